"""Energy of a window, compared with loads whose energy is known in closed form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sensor_truth import Power, Sensor, bursts, ramps, square_wave
from steelyard.stats.energy import Nature, WindowEnergy, agreement, energy_of
from steelyard.stats.energy_gauge import _unfollowed

GAUGE = Nature(kind="gauge", resolution=0.001, average_s=0.1, period_s=0.1, gain=0.0, limit_w=700.0)
COUNTER = Nature(kind="counter", resolution=0.001, period_s=0.1, gain=0.0, limit_w=700.0)


def times(begin_s: float = -2.0, end_s: float = 12.0, period_s: float = 0.1) -> np.ndarray:
    return np.arange(begin_s, end_s, period_s)


def energy(
    nature: Nature, time_s: np.ndarray, value: np.ndarray, start_s: float = 0.0, stop_s: float = 10.0, **more: bool
) -> WindowEnergy:
    random_phase = more.get("random_phase", False)
    return energy_of(nature, time_s, value, np.zeros(len(time_s)), start_s, stop_s, random_phase=random_phase)


def counted(time_s: np.ndarray, power_w: float = 300.0, tick_s: float = 0.1, first_j: float = 5000.0) -> np.ndarray:
    """Return a counter at constant power with a new value every `tick_s`."""
    return first_j + power_w * np.floor(time_s / tick_s + 1e-9) * tick_s


def holds(found: WindowEnergy, truth_j: float) -> bool:
    assert found.low_j is not None
    assert found.high_j is not None
    return found.low_j <= truth_j <= found.high_j


# -- gauges ---------------------------------------------------------------------------------------------------


def test_constant_power_is_power_times_time() -> None:
    found = energy(GAUGE, times(), np.full(140, 300.0))
    assert found.value_j == pytest.approx(3000.0, rel=1e-12)
    assert found.verdict == "valid"
    assert found.reasons == ()
    assert found.coverage == 1.0
    assert holds(found, 3000.0)
    assert found.high_j is not None
    assert found.high_j < 3000 * 1.02


def test_a_window_between_readings_is_interpolated() -> None:
    found = energy(GAUGE, times(), np.full(140, 300.0), 0.033, 7.777)
    assert found.value_j == pytest.approx(300.0 * 7.744)


def test_samples_in_pairs_change_nothing() -> None:
    time_s = times()
    value = 300 + 50 * np.sin(time_s)
    once = energy(GAUGE, time_s, value)
    order = np.argsort(np.concatenate([time_s, time_s + 0.001]), kind="stable")
    twice = energy(
        GAUGE, np.concatenate([time_s, time_s + 0.001])[order], np.concatenate([value, value])[order]
    )  # fmt: skip
    assert twice == once
    same_time = energy(GAUGE, np.repeat(time_s, 2), np.repeat(value, 2))
    assert same_time == once


def test_order_and_missing_values_do_not_matter() -> None:
    time_s = times()
    value = 300 + 50 * np.sin(time_s)
    mixed = np.random.default_rng(1).permutation(len(time_s))
    assert energy(GAUGE, time_s[mixed], value[mixed]) == energy(GAUGE, time_s, value)
    with_hole = np.append(value, np.nan)
    assert energy(GAUGE, np.append(time_s, 5.05), with_hole) == energy(GAUGE, time_s, value)


def test_one_update_read_ten_times_is_one_reading() -> None:
    fast_s = times(period_s=0.01)
    made_s = np.floor(fast_s / 0.1 + 1e-9) * 0.1
    found = energy(GAUGE, fast_s, 300 + 100 * np.sin(made_s - 0.05))
    truth_j = 300 * 10 + 100 * (1 - np.cos(10.0))
    assert found.samples == pytest.approx(100, abs=1)
    assert found.value_j == pytest.approx(truth_j, rel=2e-3)
    assert holds(found, truth_j)


def test_the_average_is_put_in_the_middle_of_its_time() -> None:
    """A ramp of 10 W/s, read as the mean over the last second: each reading is that of half a second before."""
    time_s = times()
    value = 200 + 10 * (time_s - 0.5)
    found = energy(replace(GAUGE, average_s=1.0), time_s, value)
    assert found.value_j == pytest.approx(200 * 10 + 5 * 100, rel=2e-3)


def test_an_unknown_period_is_taken_from_the_changes() -> None:
    fast_s = times(period_s=0.01)
    made_s = np.floor(fast_s / 0.1 + 1e-9) * 0.1
    noisy = 300 + np.random.default_rng(1).normal(0, 5, 1000)[np.round((made_s + 2) / 0.1).astype(int)]
    stated = energy(GAUGE, fast_s, noisy)
    found = energy(replace(GAUGE, period_s=None), fast_s, noisy)
    assert found.samples == pytest.approx(stated.samples, abs=2)
    assert found.value_j == pytest.approx(stated.value_j, rel=1e-3)


def test_noise_and_coarse_steps_widen_the_interval() -> None:
    time_s = times()
    clean = energy(GAUGE, time_s, np.full(140, 300.0))
    noisy = energy(GAUGE, time_s, 300 + np.random.default_rng(1).normal(0, 30, 140))
    coarse = energy(replace(GAUGE, resolution=10.0), time_s, np.full(140, 300.0))
    assert clean.rest_j is not None
    assert noisy.rest_j is not None
    assert coarse.rest_j is not None
    assert noisy.rest_j > 1.5 * clean.rest_j
    # The readings may be rounded (up to 5 W) or cut off (up to 10 W) for 10 s.
    assert coarse.rest_j == pytest.approx(0.9 * 100, rel=0.05)


def test_gain_is_reported_apart() -> None:
    found = energy(replace(GAUGE, gain=0.05), times(), np.full(140, 300.0))
    assert found.gain_j == pytest.approx(150.0)
    assert found.rest_j is not None
    assert found.low_j == pytest.approx(3000 - 150 - found.rest_j)


def test_a_gap_is_said_and_widens() -> None:
    time_s = times()
    short = time_s[(time_s < 4) | (time_s > 4.8)]
    found = energy(GAUGE, short, np.full(len(short), 300.0))
    assert found.largest_gap_s == pytest.approx(0.9, abs=0.11)
    assert found.coverage == pytest.approx(0.92, abs=0.01)
    assert found.rest_j is not None
    # In the gap the power may be anything from 0 to the limit, but it is seldom far from that beside the gap.
    assert found.rest_j == pytest.approx(1.96 * 0.1 * 0.8 * 400, rel=0.05)
    long = time_s[(time_s < 2) | (time_s > 8)]
    assert energy(GAUGE, long, np.full(len(long), 300.0)).verdict == "invalid"


def test_a_window_shorter_than_the_sensor_can_tell_has_no_number() -> None:
    found = energy(GAUGE, times(), np.full(140, 300.0), 3.02, 3.15)
    assert (found.value_j, found.low_j, found.high_j, found.verdict) == (None, None, None, "invalid")
    assert "too short" in found.reasons[0]


def test_readings_of_an_instant_hide_a_load_with_their_beat() -> None:
    """400 W for 60 ms of each 100 ms and 100 W for the rest, read every 100 ms: always 400 W."""
    instant = replace(GAUGE, average_s=0.0)
    found = energy(instant, times(), np.full(140, 400.0))
    assert found.verdict == "doubtful"
    assert "with that period would look constant" in found.reasons[0]
    rng = np.random.default_rng(3)
    long_s = times(-2, 102)
    random_s = long_s + 0.1 * rng.random(len(long_s))
    value = np.where(random_s % 0.1 < 0.06, 400.0, 100.0)
    randomised = energy(instant, random_s, value, 0.0, 100.0, random_phase=True)
    assert randomised.verdict == "valid"
    assert holds(randomised, 28_000.0)


def test_an_unknown_average_is_doubtful() -> None:
    found = energy(replace(GAUGE, average_s=None), times(), np.full(140, 300.0))
    assert found.verdict == "doubtful"
    assert "averaging time of this power sensor is unknown" in found.reasons[0]


def test_a_part_time_sensor_needs_random_looks_and_many() -> None:
    part_time = replace(GAUGE, average_s=None, seen_s=0.025)
    fixed = energy(part_time, times(), np.full(140, 300.0))
    assert fixed.verdict == "doubtful"
    assert "measures 25% of the time" in fixed.reasons[0]
    rng = np.random.default_rng(2)
    time_s = times() + 0.1 * rng.random(140)
    value = rng.normal(300, 30, 140)
    assert energy(part_time, time_s, value, random_phase=True).verdict == "valid"
    few = energy(part_time, time_s, value, 3.0, 5.0, random_phase=True)
    assert few.verdict != "valid"


def test_random_moments_do_not_help_with_a_sensor_that_keeps_its_own_beat() -> None:
    rng = np.random.default_rng(2)
    time_s = times() + 0.1 * rng.random(140)
    own = rng.normal(300, 30, 1000)[np.floor((time_s + 3.03) / 0.1).astype(int)]
    found = energy(replace(GAUGE, average_s=None, seen_s=0.025), time_s, own, random_phase=True)
    assert found.verdict == "doubtful"


def test_impossible_power_is_not_integrated() -> None:
    above = energy(GAUGE, times(), np.full(140, 900.0))
    assert above.verdict == "invalid"
    assert "implausible" in above.reasons[0]
    negative = energy(GAUGE, times(), np.full(140, -300.0))
    assert negative.verdict == "invalid"
    value = np.full(140, 300.0)
    value[70] = 4.2e6
    spike = energy(GAUGE, times(), value)
    assert spike.verdict == "doubtful"
    assert holds(spike, 3000.0)
    assert spike.value_j == pytest.approx(3000)


def test_no_readings_and_no_window() -> None:
    empty = np.array([])
    assert energy(GAUGE, empty, empty).reasons == ("no readings from this sensor",)
    assert energy(COUNTER, empty, empty).verdict == "invalid"
    assert energy(GAUGE, times(), np.full(140, 300.0), 5.0, 5.0).verdict == "invalid"
    assert energy(GAUGE, times(), np.full(140, 300.0), 50.0, 60.0).verdict == "invalid"


# -- counters -------------------------------------------------------------------------------------------------


def test_a_counter_gives_the_joules_between_its_ticks() -> None:
    time_s = times(period_s=0.02) + 0.003
    found = energy(COUNTER, time_s, counted(time_s), 0.0, 10.0)
    assert found.value_j == pytest.approx(3000, abs=3)
    assert found.verdict == "valid"
    assert holds(found, 3000.0)
    assert found.rest_j is not None
    assert found.rest_j < 1.5 * 30  # two edges, each within a tick of 30 J


@pytest.mark.parametrize("offset_s", [0.01, 0.037, 0.05, 0.093])
def test_an_edge_inside_a_tick_is_interpolated(offset_s: float) -> None:
    time_s = times(period_s=0.02) + 0.003
    found = energy(COUNTER, time_s, counted(time_s), offset_s, 10.0)
    truth_j = 300 * (10 - offset_s)
    assert found.value_j == pytest.approx(truth_j, abs=4)
    assert holds(found, truth_j)


def test_a_counter_that_wraps() -> None:
    time_s = times(period_s=0.02) + 0.003
    plain = energy(COUNTER, time_s, counted(time_s))
    wrapping = replace(COUNTER, wrap=1000.0)
    found = energy(wrapping, time_s, counted(time_s) % 1000.0)
    assert found.value_j == pytest.approx(plain.value_j)
    assert found.verdict == "valid"


def test_a_wrap_of_an_unknown_range_is_no_number() -> None:
    time_s = times(period_s=0.02)
    found = energy(COUNTER, time_s, counted(time_s) % 1000.0)
    assert found.verdict == "invalid"
    assert "dropped from" in found.reasons[0]


def test_a_reset_is_not_a_wrap() -> None:
    time_s = times(period_s=0.02)
    value = np.where(time_s < 5, counted(time_s), counted(time_s - 5, first_j=0.0))
    found = energy(replace(COUNTER, wrap=262_143.0), time_s, value)
    assert found.verdict == "invalid"
    assert "implausible" in found.reasons[0]
    # A reset before the window does not matter.
    assert energy(replace(COUNTER, wrap=262_143.0), time_s, value, 6.0, 11.0).verdict == "valid"


def test_two_wraps_in_one_gap_cannot_be_counted() -> None:
    time_s = times(period_s=0.02)
    time_s = time_s[(time_s < 2) | (time_s > 8)]
    found = energy(replace(COUNTER, wrap=1000.0), time_s, counted(time_s) % 1000.0)
    assert found.verdict == "invalid"
    assert "more than once" in found.reasons[0]


def test_a_counter_counts_through_a_gap() -> None:
    time_s = times(period_s=0.02) + 0.003
    time_s = time_s[(time_s < 2) | (time_s > 8)]
    found = energy(COUNTER, time_s, counted(time_s))
    assert found.value_j == pytest.approx(3000, abs=3)
    assert found.verdict == "valid"
    assert found.largest_gap_s == pytest.approx(6.0, abs=0.2)


def test_a_counter_that_stands_still() -> None:
    time_s = times(period_s=0.02)
    still = energy(COUNTER, time_s, np.full(len(time_s), 5000.0))
    assert still.verdict == "invalid"
    assert "frozen" in still.reasons[0]
    stops = energy(COUNTER, time_s, np.minimum(counted(time_s), 6500.0))
    assert stops.verdict == "invalid"
    assert "frozen" in stops.reasons[0]


def test_a_window_shorter_than_a_tick() -> None:
    time_s = times(period_s=0.02)
    found = energy(COUNTER, time_s, counted(time_s), 3.02, 3.08)
    assert found.verdict == "invalid"
    assert found.value_j is None


def test_a_step_at_the_edge_is_in_the_interval() -> None:
    """100 W up to the window and 500 W from its begin on, in the middle of a tick."""
    time_s = times(period_s=0.02) + 0.003
    tick_s = np.floor(time_s / 0.1 + 1e-9) * 0.1
    value = 1000 + np.where(tick_s < 0.05, 100 * (tick_s - 0.05), 500 * (tick_s - 0.05))
    found = energy(COUNTER, time_s, value, 0.05, 10.0)
    assert holds(found, 500 * 9.95)
    assert found.value_j == pytest.approx(500 * 9.95, rel=0.01)


def test_two_readings_around_the_window_are_enough_for_a_fast_counter() -> None:
    fast = replace(COUNTER, period_s=0.001)
    found = energy(fast, np.array([-0.002, 10.003]), 5000 + 300 * np.array([-0.002, 10.003]))
    assert found.value_j == pytest.approx(3000, abs=1)
    assert holds(found, 3000.0)


def test_joules_beyond_the_limit_are_implausible() -> None:
    time_s = times(period_s=0.02)
    found = energy(replace(COUNTER, limit_w=250.0), time_s, counted(time_s))
    assert found.verdict == "invalid"
    assert "implausible" in found.reasons[0]


def test_long_records_are_cut_to_what_matters() -> None:
    time_s = np.arange(-1000.0, 20_000.0, 0.1)
    value = 300 + 10 * np.sin(time_s)
    near = (time_s > -15) & (time_s < 25)
    assert energy(GAUGE, time_s, value).value_j == pytest.approx(energy(GAUGE, time_s[near], value[near]).value_j)


# -- the simulated truth ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "power",
    [
        ramps(np.array([0.0, 3.0, 7.0, 20.0]), np.array([10.0, 100.0, 30.0, 70.0])),
        square_wave(-0.3, 20.0, 0.37, 0.3, 50.0, 400.0),
        bursts(0.0, 20.0, np.array([1.0, 5.0]), np.array([0.5, 2.0]), 20.0, np.array([300.0, 500.0])),
    ],
)
def test_energy_in_closed_form_is_the_sum_of_the_power(power: Power) -> None:
    middle_s = np.arange(1.23405, 11.234, 1e-4)
    assert power.between_j(1.234, 11.234) == pytest.approx(np.sum(power.at_w(middle_s)) * 1e-4, rel=1e-4)


def test_a_simulated_gauge_gives_the_mean_over_the_time_before_its_beat() -> None:
    power = ramps(np.array([0.0, 100.0]), np.array([0.0, 1000.0]))
    gauge = Sensor(counter=False, period_s=1.0, phase_s=0.25, average_s=0.5)
    value = gauge.read(power, np.array([10.0, 10.2, 10.3]), np.random.default_rng(1))
    assert value == pytest.approx([90.0, 90.0, 100.0])  # made at 9.25 and 10.25 s, the middle is 0.25 s before


# -- together -------------------------------------------------------------------------------------------------


def test_counter_and_integral_agree_or_say_why_not() -> None:
    time_s = times(period_s=0.02) + 0.003
    gained = replace(COUNTER, gain=0.05)
    counter = energy(gained, time_s, counted(time_s))
    same = energy(replace(GAUGE, gain=0.05), times(), np.full(140, 300.0))
    assert agreement(counter, same).agrees is True
    # 4 % more: within the gain of each, but they share it.
    other = energy(replace(GAUGE, gain=0.05), times(), np.full(140, 312.0))
    found = agreement(counter, other)
    assert found.agrees is False
    assert found.difference_j == pytest.approx(120, abs=5)
    assert "more than the counter" in found.reason
    nothing = energy(GAUGE, np.array([]), np.array([]))
    assert agreement(counter, nothing).agrees is None
    assert "no reading" in agreement(counter, nothing).reason


@pytest.mark.parametrize("average_s", [None, 0.025], ids=["unknown", "part-time"])
def test_a_gauge_that_may_miss_the_load_contradicts_no_counter(average_s: float | None) -> None:
    time_s = times(period_s=0.02) + 0.003
    counter = energy(COUNTER, time_s, counted(time_s))
    # Locked to the load, its readings are all 10 % too high.
    locked = energy(replace(GAUGE, average_s=average_s), times(), np.full(140, 330.0))
    found = agreement(counter, locked)
    assert found.agrees is None
    assert "would look constant" in found.reason


def test_the_same_difference_counts_if_only_one_sensor_may_have_it() -> None:
    time_s = times(period_s=0.02) + 0.003
    counter = energy(COUNTER, time_s, counted(time_s))
    other = energy(replace(GAUGE, gain=0.05), times(), np.full(140, 312.0))
    assert agreement(counter, other).agrees is True


# -- as narrow as the truth allows


def test_the_two_edges_of_a_window_are_independent() -> None:
    """Two ends in the middle of ticks: the square root of two times one end, not twice."""
    time_s = times(period_s=0.02) + 0.003
    value = counted(time_s)
    one = energy(COUNTER, time_s, value, 0.1, 10.05).rest_j
    none = energy(COUNTER, time_s, value, 0.1, 10.1).rest_j
    two = energy(COUNTER, time_s, value, 0.05, 10.05).rest_j
    assert one is not None
    assert none is not None
    assert two is not None
    assert two**2 - none**2 == pytest.approx(2 * (one**2 - none**2), rel=0.1)


@pytest.mark.parametrize(
    ("nature", "limit"),
    [
        (replace(COUNTER, period_s=0.02), 0.003),
        (replace(GAUGE, average_s=1.0), 0.01),
        (replace(GAUGE, average_s=None, seen_s=0.025), 0.02),
    ],
)
def test_a_steady_load_has_a_narrow_interval(nature: Nature, limit: float) -> None:
    time_s = times(-4.0, 14.0, 0.01)
    value = counted(time_s, tick_s=0.02)
    if nature.kind == "gauge":
        value = 300 + np.random.default_rng(1).normal(0, 3, 1000)[np.round((time_s + 4) / 0.1).astype(int)]
    found = energy(nature, time_s, value)
    assert found.rest_j is not None
    assert holds(found, 3000.0)
    assert found.rest_j < limit * 3000


def test_a_steadily_rising_power_is_no_scatter() -> None:
    flat = energy(replace(GAUGE, average_s=0.0), times(), np.full(140, 300.0))
    rising = energy(replace(GAUGE, average_s=0.0), times(), 300 + 20 * (times() - 5))
    assert flat.rest_j is not None
    assert rising.rest_j is not None
    assert rising.rest_j < 2.5 * flat.rest_j + 0.01 * 3000


def test_a_window_of_few_averages_is_doubtful() -> None:
    found = energy(GAUGE, times(), np.full(140, 300.0), 3.0, 3.5)
    assert found.verdict == "doubtful"
    assert "the power inside one of them is unknown" in found.reasons[0]


# -- untrusted files and busy machines


@pytest.mark.parametrize("period_s", [0.001, None])
def test_late_readings_of_a_constant_power_are_no_change_of_it(period_s: float | None) -> None:
    random = np.random.default_rng(1)
    nature = Nature(kind="counter", resolution=6.1e-5, period_s=period_s, gain=0.0)
    held = 0
    for _ in range(100):
        time_s = np.sort(times(-1.0, 3.0, 0.01) + random.exponential(0.003, 400))
        spent_s = 5e-5 + (random.random(400) < 0.05) * random.exponential(0.01, 400)
        made_s = np.maximum.accumulate(time_s - spent_s * random.random(400))
        value = np.floor(300.0 * (10.0 + np.floor(made_s / 0.001) * 0.001) / 6.1e-5) * 6.1e-5
        found = energy_of(nature, time_s, value, spent_s, 0.0, 2.0, random_phase=False)
        assert (found.verdict, found.reasons) == ("valid", ())
        held += holds(found, 600.0)
    assert held >= 95


def test_a_step_of_the_power_inside_a_tick_is_still_said() -> None:
    # Ticks of 0.5 s, and a window that begins where the power falls, in the middle of one.
    time_s = times(-10.0, 62.0, 0.1)
    made_s = np.floor(time_s / 0.5 + 1e-9) * 0.5
    value = 15000.0 + 50.0 * made_s + 550.0 * np.minimum(0.0, made_s - 0.25)
    nature = replace(COUNTER, period_s=0.5)
    found = energy(nature, time_s, value, 0.25, 55.25)
    assert holds(found, 50.0 * 55)
    assert found.verdict == "doubtful"
    assert "the power changes at an edge" in found.reasons[0]
    assert energy(nature, time_s, 5000.0 + 50.0 * made_s, 0.25, 55.25).reasons == ()


def test_a_counter_behind_a_part_time_sensor_is_doubtful() -> None:
    found = energy(replace(COUNTER, seen_s=0.025), times(), counted(times()))
    assert found.verdict == "doubtful"
    assert "measures only 25% of the time" in found.reasons[0]


@pytest.mark.parametrize("nature", [GAUGE, COUNTER, replace(GAUGE, limit_w=None), replace(COUNTER, limit_w=None)])
@pytest.mark.parametrize("wild", [1e308, -1e308, np.inf, np.nan])
@pytest.mark.filterwarnings("error")
def test_numbers_out_of_this_world_are_no_readings(nature: Nature, wild: float) -> None:
    value = np.full(140, 300.0) if nature.kind == "gauge" else counted(times())
    every = energy(nature, times(), np.full(140, wild))
    assert (every.value_j, every.verdict) == (None, "invalid")
    value[::20] = wild
    value[5] = -wild
    some = energy(nature, times(), value)
    assert some.value_j is None or holds(some, 3000.0)


def test_between_readings_noise_is_missed_a_ramp_is_followed_and_of_a_walk_a_twelfth_is_missed() -> None:
    # Noise of variance 1: two readings differ by 2 or not at all, 4 on average over neighbours.
    noise = np.array([1.0, -1.0] * 500)
    assert _unfollowed(noise) == pytest.approx(2)
    assert _unfollowed(np.arange(1000.0)) == pytest.approx(0)
    walk = np.cumsum(np.random.default_rng(1).standard_normal(200_000))
    assert _unfollowed(walk) == pytest.approx(1 / 12, rel=0.05)
