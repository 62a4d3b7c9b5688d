"""Quantiles of Student's t with the standard library only, because not all vendor images have scipy."""

from __future__ import annotations

import math
import sys
from functools import lru_cache
from statistics import NormalDist

ROUNDING = sys.float_info.epsilon
MAD_TO_SD = 1.4826
"""Factor from the median absolute deviation to the standard deviation, for normal noise."""


@lru_cache(maxsize=1024)
def student_t(level: float, df: float) -> float:
    """Return t with P(|T| <= t) = level for Student's distribution with `df` degrees of freedom.

    Newton's method on the distribution function, inside a shrinking bracket.
    """
    if not 0 < level < 1 or not df > 0:
        raise ValueError(f"level {level} and df {df}: level must be between 0 and 1, df above 0")
    low, high = 0.0, NormalDist().inv_cdf((1 + level) / 2) + 1.0
    while _t_inside(high, df) < level:
        low, high = high, 2 * high
    log_scale = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
    t = 0.5 * (low + high)
    for _ in range(200):
        excess = _t_inside(t, df) - level
        # The distribution function is not known better than its rounding; a further step could only leave the root.
        if abs(excess) <= ROUNDING:
            break
        low, high = (low, t) if excess > 0 else (t, high)
        slope = 2 * math.exp(log_scale - (df + 1) / 2 * math.log1p(t * t / df))
        newton = t - excess / slope
        last, t = t, newton if low < newton < high else 0.5 * (low + high)
        if abs(t - last) <= 1e-13 * t:
            break
    return t


def _t_inside(t: float, df: float) -> float:
    """Return P(|T| <= t): the regularised incomplete beta function of t^2 / (df + t^2) at 1/2 and df / 2."""
    x = t * t / (df + t * t)
    if x == 0.0:
        return 0.0
    a, b = 0.5, df / 2
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) - b * math.log1p(t * t / df)
    )
    if x < (a + 1) / (a + b + 2):  # on this side the continued fraction converges fast
        return front * _beta_fraction(a, b, x) / a
    return 1 - front * _beta_fraction(b, a, df / (df + t * t)) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Evaluate the continued fraction of the incomplete beta function (DLMF 8.17.22) by the modified Lentz method."""
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    result = d
    for m in range(1, 1000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 + term * d
            d = 1 / (d if abs(d) > tiny else tiny)
            c = 1 + term / c
            c = c if abs(c) > tiny else tiny
            result *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return result
