"""Ratios of mean times: comparison with scipy, symmetry, and the four verdicts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from steelyard.stats.ratio import compare_means

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
