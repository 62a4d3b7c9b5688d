"""Steady-state detection: noise-free series exactly, and one or a few noisy series of every kind."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.stats.steady import SteadyAnswer, find_steady

if TYPE_CHECKING:
    from conftest import Within


def window(found: SteadyAnswer) -> tuple[str, int, int]:
    return found.answer, found.start, found.stop


def noisy(n: int, cv: float, seed: int, rho: float = 0.0) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(n)
    for i in range(1, n):
        values[i] = rho * values[i - 1] + np.sqrt(1 - rho**2) * values[i]
    return 1 + cv * values


@pytest.mark.parametrize("n", [2, 3, 19, 20, 21, 50, 100, 1000, 4096])
def test_exactly_constant_is_steady_from_0(n: int) -> None:
    assert window(find_steady(np.full(n, 0.123))) == ("steady", 0, n)


@pytest.mark.parametrize("n", [100, 400, 1000, 4096])
@pytest.mark.parametrize("period", [2, 3, 4, 5, 7, 10, 25, 31, 32, 100])
def test_exact_periodic_steps_belong_to_the_steady_state(n: int, period: int) -> None:
    for factor in (1.05, 3.0, 100.0):
        for first in (0, period // 2, period - 1):
            step_s = np.full(n, 0.02)
            step_s[first::period] *= factor
            if first > 0 or n >= 2 * period:  # a single slow step at 0 is a compile step
                assert window(find_steady(step_s)) == ("steady", 0, n), (factor, first)


@pytest.mark.parametrize("factor", [1.01, 1.5, 20.0, 1000.0])
@pytest.mark.parametrize("n", [20, 41, 100, 400, 1000, 4096])
def test_start_is_exact_after_slow_first_steps(n: int, factor: float) -> None:
    for slow in sorted({1, 2, 3, 5, 8, 9, 14, 15, 16, 17, 30, 31, n // 10, n // 3, n // 2}):
        if slow > n // 2:
            continue
        step_s = np.full(n, 0.5)
        step_s[:slow] *= factor
        found = find_steady(step_s)
        assert (window(found), found.change_points) == (("steady", slow, n), (slow,)), slow


@pytest.mark.parametrize("n", [3, 5, 12, 19])
def test_short_and_exact_after_one_slow_step(n: int) -> None:
    assert window(find_steady(np.array([9.0] + [1.0] * (n - 1)))) == ("steady", 1, n)


@pytest.mark.parametrize("step_s", [[1.0], [1.0, 2.0], [1.0, 1.1, 0.9, 1.05, 1.0], [1.0, 1.0, 1.0, 2.0]])
def test_few_values_that_differ_claim_nothing(step_s: list[float]) -> None:
    found = find_steady(np.array(step_s))
    assert window(found) == ("no steady state", 0, len(step_s))
    assert "20 are needed" in found.reason.sentence()


@pytest.mark.parametrize("n", [20, 60, 400, 4096])
def test_exact_rise_and_jump_slow_down(n: int) -> None:
    ramp = np.linspace(1.0, 1.2, n)
    assert window(find_steady(ramp)) == ("slowing down", 0, n)
    jump = np.where(np.arange(n) < 0.55 * n, 1.0, 1.1)
    found = find_steady(jump)
    assert (window(found), found.change_points) == (("slowing down", 0, n), (int(np.argmax(jump > 1.05)),))


def test_exact_fall_to_the_end_is_warming_up() -> None:
    for n in (60, 400, 4096):
        found = find_steady(1 + np.exp(-np.arange(n) / n))
        assert (found.answer, found.stop) == ("warming up throughout", n)


def test_a_change_below_the_tolerance_is_none() -> None:
    step_s = np.where(np.arange(1000) < 500, 1.0, 1.0015)
    assert window(find_steady(step_s)) == ("steady", 0, 1000)


@pytest.mark.parametrize("n", [1000, 4096])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8])
def test_flat_noise_is_steady_from_0(n: int, rho: float) -> None:
    found = [find_steady(noisy(n, 0.03, seed, rho)) for seed in range(20)]
    assert sum(window(f) == ("steady", 0, n) for f in found) >= 19


@pytest.mark.parametrize("n", [1000, 4096])
def test_flat_lognormal_noise_is_steady_from_0(n: int) -> None:
    found = [find_steady(np.random.default_rng(seed).lognormal(0, 1, n)) for seed in range(40)]
    assert sum(window(f) == ("steady", 0, n) for f in found) >= 38


def test_warm_up_is_cut_and_the_rest_kept() -> None:
    n, tau = 1500, 60
    step_s = noisy(n, 0.01, 3) * (1 + 0.8 * np.exp(-np.arange(n) / tau))
    found = find_steady(step_s)
    assert found.answer == "steady"
    assert 3 * tau < found.start < 10 * tau
    assert step_s[found.start : found.stop].mean() == pytest.approx(1, rel=0.005)
    assert found.change_points[-1] == found.start


def test_compile_steps_and_warm_up_and_spikes_together() -> None:
    step_s = noisy(2000, 0.02, 4) * (1 + 0.5 * np.exp(-np.arange(2000) / 40))
    step_s[49::50] *= 4
    step_s[:3] *= [300, 20, 8]
    found = find_steady(step_s)
    assert found.answer == "steady"
    assert step_s[found.start :].mean() == pytest.approx(1 + 3 / 50, rel=0.01)


def test_compile_steps_of_a_short_run_are_left_out() -> None:
    step_s = noisy(12, 0.01, 1)
    step_s[:3] += [300, 40, 60]
    assert window(find_steady(step_s)) == ("no steady state", 3, 12)
    step_s = noisy(12, 0.01, 2)
    step_s[[0, 4]] += [300, 9]  # the second is a stall
    assert window(find_steady(step_s)) == ("no steady state", 1, 12)


@pytest.mark.parametrize(
    "slow",
    [
        [2.18, 2.87, 4.48, 3.59, 4.45, 4.52, 5.93, 3.84, 4.51, 3.09],
        [70.2, 86.9, 4.57, 5.77, 4.41, 4.84, 5.77, 2.95, 2.42],
        [55.3, 34.3, 64.0, 38.8, 3.59, 5.26, 5.95],
    ],
)
def test_a_run_whose_first_half_is_slow_gets_an_answer(slow: list[float]) -> None:
    level = [1.01, 1.03, 1.01, 0.94, 1.0, 1.0, 1.02, 1.0, 0.99, 0.98, 1.01, 1.0, 1.01]
    found = find_steady(np.array([*slow, *level][:20]))
    # What is left are two batches: the fit has no bend. A single slow step among them is a spike.
    assert len(slow) - 1 <= found.start < found.stop == 20


def test_compile_steps_are_longer_than_stalls_and_not_by_their_logarithm() -> None:
    step_s = noisy(300, 0.01, 3)
    step_s[19::20] *= 10
    step_s[:2] += [60, 25]
    assert window(find_steady(step_s)) == ("steady", 2, 300)


def test_a_jagged_warm_up_is_cut() -> None:
    step_s = noisy(1500, 0.01, 11)
    step_s[:300] += np.abs(0.3 * np.random.default_rng(12).standard_normal(300))
    found = find_steady(step_s)
    assert found.answer == "steady"
    assert 290 <= found.start <= 310


def test_throttling_after_a_warm_up_slows_down() -> None:
    i = np.arange(1200)
    step_s = noisy(1200, 0.01, 5) * (1 + np.exp(-i / 20)) * np.where(i < 800, 1, 1.15)
    assert window(find_steady(step_s)) == ("slowing down", 15, 1200)  # without the first of the warm-up


def test_drift_slows_down_and_says_by_how_much() -> None:
    found = find_steady(noisy(1000, 0.01, 6) * np.linspace(1, 1.2, 1000))
    assert found.answer == "slowing down"
    assert "slower than the fastest tenth" in found.reason.sentence()


SHAPES = {
    "warm-up": noisy(1000, 0.01, 1) * np.where(np.arange(1000) < 150, 1.2, 1),
    "compilation": noisy(1000, 0.01, 2) * np.where(np.arange(1000) < 3, 30, 1),
    "irregular warm-up": noisy(1000, 0.001, 3) + np.where(np.arange(1000) < 300, np.abs(noisy(1000, 0.3, 4) - 1), 0),
    "drift": noisy(1000, 0.01, 6) * np.linspace(1, 1.2, 1000),
    "long warm-up": noisy(1000, 0.01, 7) * (1 + 0.5 * np.exp(-np.arange(1000) / 1200)),
    "walk": 1 + 0.001 * np.cumsum(np.random.default_rng(8).standard_normal(1000)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_reason_counts_steps_whatever_a_value_is_the_mean_of(shape: str) -> None:
    found = find_steady(SHAPES[shape])
    counts = re.compile(r"(?<![\d.])\d[\d,]*(?= of|(?: more)? steps|,? the first tenth|\)$)")

    def told(*each: int) -> list[int]:
        return [int(count.replace(",", "")) for count in counts.findall(found.reason.sentence(*each))]

    single = told()
    assert 1000 in single
    assert told(4, 4003) == [count * 4 + 3 * (count == 1000 or found.start + count == 1000) for count in single]


def test_long_warm_up_is_warming_up_throughout() -> None:
    found = find_steady(noisy(1000, 0.01, 7) * (1 + 0.5 * np.exp(-np.arange(1000) / 1200)))
    assert window(found) == ("warming up throughout", 0, 1000)


def test_random_walk_has_no_steady_state() -> None:
    found = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        walk = np.exp(np.cumsum(rng.standard_normal(1500)) * 0.1 / np.sqrt(1500))
        found.append(find_steady(walk * (1 + 0.005 * rng.standard_normal(1500))))
    assert sum(window(f) == ("no steady state", 0, 1500) for f in found) >= 9


def test_level_and_unit_do_not_matter() -> None:
    step_s = noisy(700, 0.02, 8) * (1 + np.exp(-np.arange(700) / 30))
    seconds, nanoseconds = find_steady(step_s), find_steady(step_s * 1e9)
    assert window(seconds) == window(nanoseconds)


def test_deterministic_and_input_untouched() -> None:
    step_s = noisy(500, 0.02, 9)
    before = step_s.copy()
    assert find_steady(step_s) == find_steady(step_s)
    assert np.array_equal(before, step_s)


@pytest.mark.parametrize("bad", [[], [[1.0, 2.0]], [1.0, 0.0], [1.0, -2.0], [1.0, np.nan], [np.inf, 1.0]])
def test_what_is_no_series_is_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="step times: "):
        find_steady(np.array(bad))


def test_result_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        find_steady(np.ones(30)).start = 3  # type: ignore[misc]


@pytest.mark.parametrize(("n", "limit_s"), [(1000, 0.020), (4096, 0.060)])
def test_fast_enough_to_be_called_thousands_of_times(n: int, limit_s: float, within: Within) -> None:
    step_s = noisy(n, 0.01, 10) * (1 + np.exp(-np.arange(n) / (n / 15)))
    find_steady(step_s)
    with within(5 * limit_s):
        assert all(n / 15 < find_steady(step_s).start < n / 2 for _ in range(5))


@settings(max_examples=150)
@given(st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=120))
def test_any_positive_series_gets_an_answer(values: list[float]) -> None:
    found = find_steady(np.array(values))
    assert 0 <= found.start < found.stop == len(values)
    assert list(found.change_points) == sorted(set(found.change_points))
    assert all(0 < c < len(values) for c in found.change_points)
