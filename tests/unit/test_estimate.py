"""The running estimate compared with scipy, closed forms and simulated truth."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import fft, signal, stats

from steelyard.contracts.spec import Budget
from steelyard.estimate.fold import Fold
from steelyard.estimate.mean import correlation_in_steps, fit_ratio, long_run_variance, ratio_estimate
from steelyard.estimate.recurrence import recurrence
from steelyard.estimate.stop import StopRule, warmup_bins
from steelyard.estimate.student import student_t


def default_rule(**changes):
    """Return the stop rule of the default budget."""
    budget = dataclasses.asdict(Budget())
    del budget["epochs"]
    return StopRule(**{**budget, **changes})


def ar1(rng, n, rho):
    z = rng.standard_normal(n)
    z[1:] *= math.sqrt(1 - rho**2)
    return signal.lfilter([1.0], [1.0, -rho], z)


def run(series, rule, block=10_000):
    """Measure like a worker: in blocks that end at a check or at the limit."""
    fold, clock, reason = Fold(), np.cumsum(series), None
    while reason is None:
        size = min(rule.steps_to_next_look(fold.steps), block)
        part = series[fold.steps : fold.steps + size]
        assert len(part) == size, "the rule did not stop in time"
        fold.extend(part, np.ones_like(part))
        reason = rule.decide(fold, float(clock[fold.steps - 1]))
    return reason, fold


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95, 0.99, 0.999])
def test_student_t_agrees_with_scipy(level):
    for df in [*range(1, 31), 47, 212, *np.geomspace(1, 1e6, 41)]:
        assert student_t(level, float(df)) == pytest.approx(stats.t.ppf((1 + level) / 2, df), rel=1e-6)


@pytest.mark.parametrize(("level", "df"), [(0.0, 5), (1.0, 5), (0.95, 0), (0.95, math.nan)])
def test_student_t_refuses_what_has_no_quantile(level, df):
    with pytest.raises(ValueError, match="level must be between"):
        student_t(level, df)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 700), max_size=20), st.sampled_from([2, 6, 16, 64]))
def test_fold_does_not_depend_on_the_blocks(sizes, capacity):
    times = np.random.default_rng(len(sizes)).integers(1, 1000, sum(sizes)).astype(float)
    at_once, in_blocks = Fold(capacity), Fold(capacity)
    at_once.extend(times, 2 * times)
    start = 0
    for size in sizes:
        in_blocks.extend(times[start : start + size], 2 * times[start : start + size])
        start += size
    assert in_blocks.steps == at_once.steps == len(times)
    assert in_blocks.steps_per_bin == at_once.steps_per_bin
    folded, work = in_blocks.bins()
    np.testing.assert_array_equal(folded, at_once.bins()[0])
    width = in_blocks.steps_per_bin
    assert len(folded) == len(times) // width <= capacity
    np.testing.assert_array_equal(folded, times[: len(folded) * width].reshape(-1, width).sum(axis=1))
    np.testing.assert_array_equal(work, 2 * folded)
    assert width == 1 or 2 * len(folded) >= capacity, "no coarser than it must be"


def test_fold_refuses_bad_shapes():
    with pytest.raises(ValueError, match="even number"):
        Fold(7)
    with pytest.raises(ValueError, match="shape"):
        Fold().extend(np.ones(3), np.ones(2))


def test_white_noise_is_measured_by_its_slowest_cosines():
    series = np.random.default_rng(1).standard_normal(900)
    series -= series.mean()
    series -= 0.2 * np.concatenate(([0.0], series[:-1]))  # negative correlation: no whitening
    noise = long_run_variance(series)
    cosines = fft.dct(series, norm="ortho")[1 : int(noise.df) + 1]
    assert noise.df == 45
    assert noise.variance == pytest.approx(np.mean(cosines**2))


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8])
def test_long_run_variance_of_ar1_is_nearly_unbiased(rho):
    rng = np.random.default_rng(2)
    truth = (1 + rho) / (1 - rho)
    found = []
    for _ in range(400):
        series = ar1(rng, 1000, rho)
        found.append(long_run_variance(series - series.mean()).variance)
    assert np.mean(found) == pytest.approx(truth, rel=0.04)


@pytest.mark.parametrize("rho", [0.5, 0.8, 0.95])
def test_correlation_time_survives_folding(rho):
    fold = Fold(4096)
    series = 10 + ar1(np.random.default_rng(3), 32_768, rho)
    fold.extend(series, np.ones_like(series))
    assert fold.steps_per_bin == 8
    found = ratio_estimate(*fold.bins(), steps_per_bin=8)
    assert found.correlation_steps == pytest.approx((1 + rho) / (1 - rho), rel=0.3)
    assert found.steps == 32_768
    whole = ratio_estimate(series, np.ones_like(series))
    assert found.value == pytest.approx(whole.value, rel=1e-12)
    assert found.half_width == pytest.approx(whole.half_width, rel=0.15)


def test_correlation_in_steps_inverts_the_sum_of_ar1():
    rho, width = 0.9, 16
    lags = np.arange(1, width)
    factor = 1 + 2 * np.sum((1 - lags / width) * rho**lags)
    assert correlation_in_steps(19 / factor, width) == pytest.approx(19)
    assert correlation_in_steps(0.7, width) == 0.7


def test_value_is_total_time_over_total_work():
    rng = np.random.default_rng(4)
    work = rng.integers(1, 9, 2000).astype(float)
    times = 0.01 * work + 1e-4 * rng.standard_normal(2000)
    found = ratio_estimate(times, work)
    assert found.value == times.sum() / work.sum()
    # Only the noise counts, not the different work per step.
    expected = student_t(0.95, found.df) * 1e-4 / math.sqrt(2000) / work.mean()
    assert found.half_width == pytest.approx(expected, rel=0.25)


def test_one_step_has_no_width_and_constant_steps_have_none_either():
    assert ratio_estimate(np.array([0.1]), np.ones(1)).half_width == math.inf
    for n in (2, 10, 1000):
        assert ratio_estimate(np.full(n, 0.1), np.full(n, 32.0)).half_width == 0.0
        assert ratio_estimate(np.full(n, 0.1) * np.arange(1, n + 1), np.arange(1.0, n + 1)).half_width == 0.0


@settings(max_examples=80)
@given(
    st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=60),
    st.floats(1e-3, 1e3),
)
def test_an_estimate_scales_with_its_unit(times, unit):
    series = np.array(times)
    found, scaled = ratio_estimate(series, np.ones(len(times))), ratio_estimate(unit * series, np.ones(len(times)))
    assert math.isfinite(found.half_width)
    assert scaled.value == pytest.approx(unit * found.value)
    assert scaled.half_width == pytest.approx(unit * found.half_width, rel=1e-6, abs=1e-9 * unit * found.value)


@pytest.mark.parametrize(("times", "work"), [([], []), ([1.0], [1.0, 1.0]), ([1.0], [0.0])])
def test_a_ratio_needs_times_and_work(times, work):
    with pytest.raises(ValueError, match=r"at least one|must be positive"):
        ratio_estimate(np.array(times), np.array(work))


@pytest.mark.parametrize("period", [2, 7, 64, 100, 230])
def test_recurring_long_steps_are_counted_by_their_period(period):
    rng = np.random.default_rng(5)
    truth = 1 + 4 / period
    for phase in (0, period // 3, period - 1):
        series = 1 + 0.001 * rng.standard_normal(1111)
        series[phase::period] += 4
        fit = fit_ratio(series, np.ones_like(series))
        assert fit.periods_bins == (period,)
        assert fit.value == pytest.approx(truth, abs=5 * 0.001 / math.sqrt(1111))
        assert fit.half_width(0.95) < 4 * 0.001 / math.sqrt(1111)


def test_recurring_long_steps_are_seen_through_a_fold():
    fold = Fold(512)
    series = 1 + 0.001 * np.random.default_rng(6).standard_normal(4096)
    series[30::100] += 4
    fold.extend(series, np.ones_like(series))
    assert fold.steps_per_bin == 8
    fit = fit_ratio(*fold.bins(), steps_per_bin=8)
    assert fit.periods_bins == (25,)  # 12.5 bins, twice
    assert fit.value == pytest.approx(1.04, abs=1e-4)


def test_two_periods_are_told_apart():
    series = 1 + 0.001 * np.random.default_rng(13).standard_normal(1234)
    series[11::50] += 1
    series[77::300] += 3
    fit = fit_ratio(series, np.ones_like(series))
    assert set(fit.periods_bins) == {50, 300}
    assert fit.value == pytest.approx(1 + 1 / 50 + 3 / 300, abs=2e-4)


def test_few_long_steps_of_unequal_height_leave_few_degrees_of_freedom():
    rng = np.random.default_rng(14)
    covered, trials = 0, 400
    for _ in range(trials):
        series = 1 + 0.01 * rng.standard_normal(1000)
        series[rng.integers(100) :: 100] += 2 + 0.5 * rng.standard_normal(10)
        fit = fit_ratio(series, np.ones_like(series))
        covered += abs(fit.value - 1.02) <= fit.half_width(0.95)
    assert fit.noise.df < 15
    assert covered >= 0.92 * trials


def test_one_huge_step_is_no_recurrence():
    rng = np.random.default_rng(7)
    for _ in range(20):
        series = rng.standard_normal(1000)
        series[rng.integers(1000)] = 1e6
        assert recurrence(series) is None


def test_warmup_is_left_out_and_a_flat_series_is_not_cut():
    rng = np.random.default_rng(8)
    ones = np.ones(1000)
    assert not any(warmup_bins(1 + 0.1 * ar1(rng, 1000, 0.8), ones) for _ in range(200))
    warm = 1 + 0.02 * rng.standard_normal(1000) + np.exp(-np.arange(1000) / 40)
    assert 90 <= warmup_bins(warm, ones) <= 350
    outlier = 1 + 0.02 * rng.standard_normal(1000)
    outlier[3] = 500
    assert warmup_bins(outlier, ones) == 0
    assert warmup_bins(warm[:100], ones[:100]) == 0


def test_the_rule_stops_at_the_minimum_when_noise_is_small():
    series = 0.01 * (1 + 0.01 * np.random.default_rng(9).standard_normal(20_000))
    rule = default_rule()
    reason, fold = run(series, rule)
    assert (reason, fold.steps) == ("interval", 1000)
    assert rule.estimate is not None
    assert rule.estimate.rel_half_width < 0.01


def test_the_rule_looks_only_when_steps_have_doubled():
    series = 0.01 * (1 + 0.3 * np.random.default_rng(10).standard_normal(20_000))
    looks, fold, rule = [], Fold(), default_rule()
    last = None
    for start in range(0, 20_000, 250):
        fold.extend(series[start : start + 250], np.ones(250))
        reason = rule.decide(fold, fold.steps * 0.01)
        if rule.estimate is not last:
            last = rule.estimate
            looks.append(fold.steps)
        if reason:
            break
    assert looks[:3] == [1000, 2000, 4000]
    assert reason == "interval"
    assert rule.steps_to_next_look(fold.steps) == fold.steps


def test_caps_end_a_job_that_stays_noisy():
    noisy = np.random.default_rng(11).lognormal(0, 2, 20_000)
    assert run(0.001 * noisy, default_rule(max_seconds=1e9))[0] == "max_steps"
    reason, fold = run(noisy, default_rule(max_seconds=900), block=50)
    assert reason == "max_seconds"
    assert fold.steps < 20_000
    reason, fold = run(0.001 * noisy, default_rule(max_steps=300))
    assert (reason, fold.steps) == ("max_steps", 300)


def test_minimum_seconds_hold_back_a_fast_job():
    series = np.full(20_000, 0.002)
    reason, fold = run(series, default_rule())
    assert (reason, fold.steps) == ("interval", 4000)


def test_steps_are_counted_after_warmup():
    rng = np.random.default_rng(12)
    series = 0.01 * (1 + 0.01 * rng.standard_normal(20_000) + np.exp(-np.arange(20_000) / 60))
    rule = default_rule()
    reason, fold = run(series, rule)
    assert reason == "interval"
    assert 1200 <= fold.steps <= 1900
    assert rule.estimate is not None
    assert rule.estimate.steps >= 1000
    assert rule.estimate.value == pytest.approx(0.01, rel=0.005)


def test_rounding_is_no_warmup():
    clock = np.cumsum(np.full(1001, 0.01))
    assert warmup_bins(np.diff(clock), np.ones(1000)) == 0
