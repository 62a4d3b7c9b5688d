"""Ratios of mean times: comparison with scipy, symmetry, and the four verdicts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from steelyard.stats.jobs import across_jobs, two_groups
from steelyard.stats.ratio import JobTime, compare_jobs, compare_means

TIMES = st.lists(st.floats(0.1, 10), min_size=3, max_size=12)
OPPOSITE = {"faster": "slower", "slower": "faster", "no difference shown": "no difference shown"}


def test_b_over_a_and_one_meaning_of_faster():
    half = compare_means([2.0, 2.0, 2.0], [1.0, 1.0, 1.0])
    assert (half.value, half.verdict, half.percent_faster) == (0.5, "faster", 100.0)
    double = compare_means([1.0, 1.0, 1.0], [2.0, 2.0, 2.0])
    assert (double.value, double.verdict, double.percent_faster) == (2.0, "slower", -50.0)
    same = compare_means([1.0, 1.0, 1.0], [1.0, 1.0, 1.0])
    assert (same.low, same.high, same.verdict) == (1.0, 1.0, "no difference shown")


def test_small_noise_agrees_with_welch():
    rng = np.random.default_rng(1)
    a, b = 1 + 0.001 * rng.standard_normal(6), 1.002 + 0.003 * rng.standard_normal(9)
    welch = stats.ttest_ind(b, a, equal_var=False)
    bounds = welch.confidence_interval(0.95)
    found = compare_means(a.tolist(), b.tolist())
    assert found.df == pytest.approx(welch.df, rel=0.02)
    assert found.low == pytest.approx(1 + bounds.low / a.mean(), abs=2e-5)
    assert found.high == pytest.approx(1 + bounds.high / a.mean(), abs=2e-5)


@given(TIMES, TIMES)
def test_the_verdict_does_not_depend_on_the_base(a, b):
    there, back = compare_means(a, b), compare_means(b, a)
    assert there.value * back.value == pytest.approx(1)
    assert there.low is not None
    assert back.high is not None
    assert there.low * back.high == pytest.approx(1)
    assert there.low <= there.value * (1 + 1e-12)
    # Rounding may decide when a bound is 1 to the last digit.
    if min(abs(there.low - 1), abs((there.high or 0) - 1)) > 1e-9:
        assert back.verdict == OPPOSITE[there.verdict]


@pytest.mark.parametrize(("a", "b"), [([1.0], [2.0]), ([1.0, 1.1], [2.0] * 8), ([1.0] * 8, [2.0, 2.1])])
def test_fewer_than_three_jobs_are_not_ranked(a, b):
    found = compare_means(a, b)
    assert (found.verdict, found.low, found.high, found.df) == ("too few jobs", None, None, None)
    assert found.value == pytest.approx(np.mean(b) / np.mean(a))


def test_false_alarms_stay_at_their_level():
    rng = np.random.default_rng(2)
    sides = 1 + 0.05 * rng.standard_normal((2000, 2, 3))
    alarms = sum(compare_means(a, b).verdict != "no difference shown" for a, b in sides.tolist())
    assert alarms <= 0.065 * 2000


def test_every_bad_time_is_named():
    with pytest.raises(ValueError, match=r"a 0\.0, b nan, b inf"):
        compare_means([1.0, 0.0], [math.nan, math.inf])
    with pytest.raises(ValueError, match="0 jobs in a"):
        compare_means([], [1.0])


# -- trend, order in time, nodes, margin


def jobs(times, **common):
    return [JobTime(time, **common) for time in times]


def test_a_shown_trend_widens_the_interval_and_a_large_one_leaves_a_bound():
    a = jobs([1.0, 1.01, 0.99])
    plain = compare_jobs(a, jobs([1.2, 1.21, 1.19]))
    small = compare_jobs(
        a, [JobTime(t, trend=d) for t, d in zip((1.2, 1.21, 1.19), (0.0099, 0.01, 0.0101), strict=True)]
    )
    assert (small.answer, small.trends) == ("ratio", (None, pytest.approx(0.01)))
    assert small.high / plain.high == pytest.approx(math.exp(0.01))
    large = [JobTime(t, trend=d) for t, d in zip((1.2, 1.21, 1.19), (0.029, 0.03, 0.031), strict=True)]
    assert (compare_jobs(a, large).answer, compare_jobs(a, large).verdict) == ("bound", "slower")
    assert compare_jobs(jobs([1.19, 1.2, 1.21]), large).answer == "none"
    # Trends that differ between jobs are noise, which is in the spread.
    mixed = [JobTime(t, trend=d) for t, d in zip((1.2, 1.21, 1.19), (0.03, -0.03, 0.03), strict=True)]
    assert compare_jobs(a, mixed).high == plain.high


def test_sides_one_after_the_other_on_a_node_are_ranked_only_beyond_the_drift():
    def side(times, begin):
        return [JobTime(t, "n1", begin + 10 * n, begin + 10 * n + 9) for n, t in enumerate(times)]

    base = side([1.0, 1.001, 0.999], 0)
    near, far = side([0.97, 0.971, 0.969], 100), side([0.5, 0.501, 0.499], 100)
    assert (compare_jobs(base, near).verdict, compare_jobs(base, near).drift) == ("no difference shown", 0.05)
    assert (compare_jobs(base, far).verdict, compare_jobs(base, far).answer) == ("faster", "bound")
    assert compare_jobs(base, near, drift=0.01).verdict == "faster"
    mixed = compare_jobs(base, side([0.97, 0.971, 0.969], 5))
    assert (mixed.verdict, mixed.answer, mixed.drift) == ("faster", "ratio", None)
    elsewhere = [JobTime(job.time, "n2", job.start_s, job.end_s) for job in near]
    assert (compare_jobs(base, elsewhere).verdict, compare_jobs(base, elsewhere).drift) == ("faster", None)


def test_the_node_is_the_unit_if_both_sides_have_several():
    a = [JobTime(t, node) for node, t in zip("xxyy", (1.0, 1.0, 1.1, 1.1), strict=True)]
    b = [JobTime(t, node) for node, t in zip("xxyy", (0.9, 0.9, 0.99, 0.99), strict=True)]
    other = [JobTime(job.time, {"x": "u", "y": "v"}[job.node]) for job in b]
    paired, apart = compare_jobs(a, b), compare_jobs(a, other)
    assert (paired.unit, apart.unit, compare_jobs(a, jobs([1, 1, 1.0], node="x")).unit) == (
        "node, paired", "node", "job",
    )  # fmt: skip
    assert (paired.verdict, apart.verdict) == ("faster", "no difference shown")
    assert paired.high - paired.low < 1e-9 < apart.high - apart.low


def test_equal_within_a_margin_needs_both_tests():
    a, b = [1.0, 1.004, 0.996, 1.0, 1.002], [1.006, 1.002, 1.01, 1.004, 1.005]
    assert compare_jobs(jobs(a), jobs(b), margin=0.02).verdict == "equal within margin"
    assert compare_jobs(jobs(a), jobs(b), margin=0.006).verdict != "equal within margin"
    noisy = [1.0, 1.1, 0.9, 1.05, 0.95]
    assert compare_jobs(jobs(noisy), jobs(a), margin=0.02).verdict == "no difference shown"


def test_normal_jobs_rarely_form_two_groups_and_slow_ones_do():
    rng = np.random.default_rng(5)
    for count in (3, 5, 8):
        normal = [two_groups(values) is not None for values in np.exp(0.03 * rng.standard_normal((2000, count)))]
        assert np.mean(normal) < 0.08, count
        slow = np.exp(0.003 * rng.standard_normal((500, count)))
        slow[:, 0] *= 0.9
        assert np.mean([two_groups(values) == 1 for values in slow]) > 0.75


def test_a_mean_whose_interval_reaches_zero_has_an_upper_bound():
    found = across_jobs([1.0, 1.0, 4.0])
    assert found.low < 0 < found.at_most < found.high
    rng = np.random.default_rng(6)
    means = rng.standard_normal((4000, 4)) + 3
    assert np.mean([across_jobs(values).at_most >= 3 for values in means.tolist()]) == pytest.approx(0.95, abs=0.012)


def test_many_jobs_on_the_other_side_do_not_make_a_trend_of_noise():
    shown = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        few, many = ([JobTime(1.0, trend=float(d)) for d in 0.01 * rng.standard_normal(n)] for n in (3, 100))
        shown += compare_jobs(few, many).trends[0] is not None
    assert shown <= 9  # 1.1 % expected
