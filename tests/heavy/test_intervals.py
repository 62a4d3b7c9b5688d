"""Intervals inside and across jobs: coverage on small simulations, and when they call themselves approximate."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import signal, stats

from steelyard.stats.intervals import TAIL_QUANTILE, hill_tail_index, within_job
from steelyard.stats.jobs import across_jobs


def ar1(rng, n, rho):
    z = rng.standard_normal(n)
    z[1:] *= math.sqrt(1 - rho**2)
    return signal.lfilter([1.0], [1.0, -rho], z)


def tail_of(series):
    threshold = float(np.quantile(series, TAIL_QUANTILE))
    return hill_tail_index([series], threshold, float(np.median(series)))


def interval(series, tail=True):
    return within_job(series, np.ones_like(series), tail_index=tail_of(series) if tail else None)


def folded(series, width):
    sums = series.reshape(-1, width).sum(axis=1)
    return sums, np.full(len(sums), float(width))


KINDS = {
    "normal": lambda rng, n: 1 + 0.05 * rng.standard_normal(n),
    "ar1 0.8": lambda rng, n: 1 + 0.05 * ar1(rng, n, 0.8),
    "lognormal 0.5": lambda rng, n: rng.lognormal(-0.125, 0.5, n),
    "spikes": lambda rng, n: (
        (1 + 0.05 * rng.standard_normal(n) + 2 * (np.arange(n) % 70 == rng.integers(70))) / (1 + 2 / 70)
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_one_job_covers_its_own_mean(kind):
    rng = np.random.default_rng(1)
    found = [interval(KINDS[kind](rng, 1000)) for _ in range(500)]
    covered = sum(i.low <= 1 <= i.high for i in found)
    # 95 % of 500 with 2.6 binomial standard errors
    assert 462 <= covered <= 488
    assert sum(bool(i.approximate) for i in found) <= 25


def test_the_method_says_that_periods_were_used():
    rng = np.random.default_rng(2)
    assert "period" in interval(KINDS["spikes"](rng, 1000)).method
    assert "period" not in interval(KINDS["normal"](rng, 1000)).method


def test_short_series_say_so():
    found = interval(1 + 0.01 * np.random.default_rng(3).standard_normal(899))
    assert len(found.approximate) == 1
    assert "899 steady steps" in found.approximate[0]
    sums, work = folded(1 + 0.01 * np.random.default_rng(3).standard_normal(904), 8)
    assert within_job(sums, work, steps_per_bin=8).approximate == ()


@pytest.mark.parametrize("width", [1, 8])
def test_strong_correlation_is_called_out(width):
    rng = np.random.default_rng(4)
    n = 1000 if width == 1 else 16_000
    for rho, doubted in ((0.8, False), (0.95, True)):
        for _ in range(30):
            sums, work = folded(1 + 0.01 * ar1(rng, n, rho), width)
            reasons = within_job(sums, work, steps_per_bin=width).approximate
            assert any("autocorrelation" in reason for reason in reasons) == doubted


@pytest.mark.parametrize("alpha", [1.5, 1.8, 2.1])
@pytest.mark.parametrize("offset", [0.0, 20.0])
def test_heavy_tails_are_called_out(alpha, offset):
    rng = np.random.default_rng(5)
    doubted = sum(bool(interval(offset + 1 + rng.pareto(alpha, 20_000)).approximate) for _ in range(25))
    assert doubted >= 24


def test_the_heaviest_checked_lognormal_is_not_called_heavy():
    rng = np.random.default_rng(6)
    assert sum(bool(interval(rng.lognormal(0, 1, 20_000)).approximate) for _ in range(40)) <= 2
    without_index = [within_job(*folded(rng.lognormal(0, 1, 20_000), 8), steps_per_bin=8) for _ in range(40)]
    assert sum(bool(i.approximate) for i in without_index) <= 4


def test_one_isolated_long_step_is_called_out():
    series = 1 + 0.01 * np.random.default_rng(8).standard_normal(1000)
    series[400] = 3
    assert "rare long steps" in interval(series).approximate[0]


def test_constant_steps_have_an_exact_interval():
    found = within_job(np.full(2000, 0.3), np.full(2000, 16.0))
    assert found.low == found.value == found.high == pytest.approx(0.3 / 16)
    assert found.approximate == ()


def test_one_step_has_no_finite_interval():
    found = within_job(np.array([0.3]), np.ones(1))
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert found.approximate


def test_hill_finds_the_index_of_a_pareto_tail():
    tail = 1 + np.random.default_rng(7).pareto(1.7, 5000)
    assert hill_tail_index([tail], 1.0) == pytest.approx(1.7, rel=0.05)
    assert hill_tail_index([tail[:9]], 1.0) is None
    assert hill_tail_index([np.full(20, 3.0)], 3.0) is None
    assert hill_tail_index([tail], 1.0, center=2.0) is None


def test_across_jobs_is_student_t():
    means = [0.100, 0.103, 0.099, 0.101, 0.102]
    found = across_jobs(means)
    low, high = stats.t.interval(0.95, 4, loc=np.mean(means), scale=stats.sem(means))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert found.spread == pytest.approx(np.std(means, ddof=1) / np.mean(means))
    assert (found.jobs, found.df, found.approximate) == (5, 4.0, ())


def test_few_jobs_say_what_is_missing():
    one = across_jobs([0.1])
    assert (one.value, one.low, one.high, one.df, one.spread) == (0.1, None, None, None, None)
    assert "one job" in one.approximate[0]
    two = across_jobs([0.1, 0.1004])
    assert two.low is not None
    assert two.low < 0.1
    assert "two jobs" in two.approximate[0]
    with pytest.raises(ValueError, match="no jobs"):
        across_jobs([])


def test_a_window_that_caught_one_spike_fewer_still_holds_value_and_truth():
    rng = np.random.default_rng(4)
    times = 1 + 0.003 * rng.standard_normal(1150)
    times[199::200] += 10  # five in 1,150 steps, where 5.75 are to be expected
    found = within_job(times, np.ones(1150))
    assert found.value == pytest.approx(times.mean())
    assert found.low <= found.value <= found.high
    assert found.low <= 1.05 <= found.high
