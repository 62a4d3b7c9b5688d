"""Mean time per unit of work, with a CI that takes autocorrelation into account.

The worker uses it to decide when to stop, and the analysis uses it for the final CIs, so that both agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from steelyard.estimate.recurrence import MAX_PERIODS, recurrence, recurring_part
from steelyard.estimate.student import student_t

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# Cosine weights per square root of the number of steps: 47 at 1,000 steps, 212 at 20,000. With fewer, the width is so
# noisy that stopping on it selects lucky ones; more would include noise that is too fast to affect the mean.
COSINES_PER_SQRT_STEP = 1.5
# A series folded from very many steps has few bins, so use only the slowest quarter of its spectrum.
BINS_PER_COSINE = 4
# With fewer bins the lag-1 correlation is mostly estimation error, and whitening would do harm.
MIN_BINS_TO_WHITEN = 32
MAX_WHITENING = 0.98

# A step takes at least a microsecond, and no clock resolves a femtosecond. Smaller differences are rounding errors,
# whose correlation looks like noise.
CLOCK_RESOLUTION = 1e-9


@dataclass(frozen=True)
class RatioEstimate:
    """Mean time per unit of work with the half-width of its CI."""

    value: float
    """Total time over total work, with recurring long steps at their long-run frequency."""
    half_width: float
    """Half-width of the two-sided CI at `level`; infinite if the series is too short."""
    level: float
    df: float
    """Degrees of freedom of the Student t quantile used."""
    steps: int
    correlation_steps: float
    """Integrated autocorrelation time: the number of correlated steps with the information of one independent step."""

    @property
    def rel_half_width(self) -> float:
        """Return the half-width as a share of the value."""
        return self.half_width / abs(self.value) if self.value else math.inf


@dataclass(frozen=True)
class LongRunVariance:
    """The contribution of noise to the variance of the mean of a series."""

    variance: float
    """n times the variance of the mean of n values, for large n."""
    df: float
    correlation: float
    """Ratio to the variance of single values; 1 without autocorrelation."""


def long_run_variance(residuals: Floats, steps_per_bin: int = 1) -> LongRunVariance:
    """Return the long-run variance of a series with mean zero: whiten it, then measure its lowest frequencies.

    The mean square of the first K cosine (DCT-II) coefficients estimates the spectrum at frequency zero, and
    the studentised mean follows t with K degrees of freedom (E. Lazarus et al., HAR Inference, J. Bus. Econ.
    Stat. 36, 2018). Dividing out a first-order autoregression beforehand (D. Andrews and J. Monahan,
    Econometrica 60, 1992) flattens the spectrum there, so that K can be large enough for a stable width.
    The alternative, twenty batch means, has a coverage of 93.3 to 93.8 %, this one 94.5 to 95 % (AR(1) 0.8).
    """
    n = len(residuals)
    if n < 2:
        return LongRunVariance(math.inf, 1.0, 1.0)
    power = float(residuals @ residuals)
    if power == 0.0:
        return LongRunVariance(0.0, float(n - 1), 1.0)
    whitening = 0.0
    if n >= MIN_BINS_TO_WHITEN:
        lag_one = float(residuals[1:] @ residuals[:-1]) / power
        # Its bias is -(1 + 4 rho) / n (F. Marriott and J. Pope, Biometrika 41, 1954). Negative correlation is not
        # removed: it only narrows the CI, and the cosines include it anyway.
        whitening = min(max(lag_one + (1 + 4 * lag_one) / n, 0.0), MAX_WHITENING)
    white = residuals[1:] - whitening * residuals[:-1] if whitening else residuals
    bins = len(white)
    wanted = int(COSINES_PER_SQRT_STEP * math.sqrt(n * steps_per_bin))
    cosines = max(1, min(wanted, max(bins // BINS_PER_COSINE, 8), bins - 1))
    # The orthonormal DCT-II coefficients 1 to `cosines`, by one FFT of the mirrored series.
    spectrum = np.fft.rfft(np.concatenate((white, white[::-1])))[1 : cosines + 1]
    turn = np.exp(-0.5j * np.pi * np.arange(1, cosines + 1) / bins)
    variance = float(np.mean((spectrum * turn).real ** 2 / (2 * bins))) / (1 - whitening) ** 2
    return LongRunVariance(variance, float(cosines), variance * (n - 1) / power)


def linear_residuals(times: Floats, work: Floats, value: float) -> Floats:
    """Return the time of each bin minus `value` times its work; all zero if below the resolution of any clock.

    To first order, the error of a ratio of totals is the mean of these residuals over the mean work (W. Cochran,
    Sampling Techniques, chapter 6).
    """
    residuals: Floats = times - value * work
    dust = CLOCK_RESOLUTION * float(np.max(np.abs(times), initial=0.0))
    return np.zeros_like(residuals) if np.max(np.abs(residuals), initial=0.0) <= dust else residuals


def correlation_in_steps(correlation: float, steps_per_bin: int) -> float:
    """Convert the autocorrelation time between bins of `steps_per_bin` steps to steps.

    Summing hides the correlation inside a bin. It is reconstructed by assuming AR(1) steps, for which the correlation
    between bins determines it: bins of m steps have variance m F(rho) times that of a step, with
    F(rho) = 1 + 2 sum over k < m of (1 - k/m) rho^k.
    """
    if steps_per_bin == 1 or correlation <= 1 or not math.isfinite(correlation):
        return correlation
    lags = np.arange(1, steps_per_bin)
    taper = 2 * (1 - lags / steps_per_bin)
    low, high = 1.0, correlation * steps_per_bin
    for _ in range(50):
        middle = math.sqrt(low * high)
        rho = (middle - 1) / (middle + 1)
        if middle / (1 + float(taper @ rho**lags)) < correlation:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


@dataclass(frozen=True)
class Fit:
    """A mean time per unit of work, with residuals and noise."""

    value: float
    total_work: float
    residuals: Floats
    """Time of each bin minus the mean and the recurring part."""
    noise: LongRunVariance
    periods_bins: tuple[int, ...]
    """Periods of recurring long steps, in bins."""

    def half_width(self, level: float) -> float:
        """Return the half-width of the two-sided CI of the value."""
        n = len(self.residuals)
        if not math.isfinite(self.noise.variance):
            return math.inf
        return student_t(level, self.noise.df) * math.sqrt(self.noise.variance * n) / self.total_work


def fit_ratio(times: Floats, work: Floats, steps_per_bin: int = 1) -> Fit:
    """Return total time over total work, with recurring long steps at their long-run frequency.

    A checkpoint every 200 steps is not noise: a window of 1,000 steps contains five, and one of 1,100 counts as five
    and a half instead of the five or six that it contains.
    """
    n = len(times)
    if n == 0 or len(work) != n:
        raise ValueError(f"{n} times and {len(work)} amounts of work: need equally many, at least one")
    total_time, total_work = float(np.sum(times)), float(np.sum(work))
    if total_work <= 0:
        raise ValueError(f"total work {total_work:g}: must be positive")
    periods: list[int] = []
    rest, long_bins, means = times, np.zeros(n, dtype=bool), 0
    residuals = linear_residuals(times, work, total_time / total_work)
    while len(periods) < MAX_PERIODS and (period := recurrence(residuals)) is not None:
        pattern = recurring_part(residuals, period)
        total_time -= float(np.sum(pattern)) - n * float(np.mean(pattern[:period]))
        rest = rest - pattern
        residuals = linear_residuals(rest, work, float(np.sum(rest)) / total_work)
        long_bins |= pattern > 0
        means += int(np.count_nonzero(pattern[:period]))
        periods.append(period)
    noise = _uneven_recurrence(long_run_variance(residuals, steps_per_bin), residuals[long_bins], n, means)
    return Fit(total_time / total_work, total_work, residuals, noise, tuple(periods))


def _uneven_recurrence(noise: LongRunVariance, left: Floats, n: int, means: int) -> LongRunVariance:
    """Combine the noise of a series with that of its long bins; `left` are their residuals, `means` the fitted means.

    A few long steps of unequal length can dominate the variance, but have few degrees of freedom. The two parts are
    combined after F. Satterthwaite, Biometrics Bull. 2, 1946.
    """
    spare = len(left) - means
    if spare < 1 or noise.variance == 0.0:
        return noise
    power = float(left @ left) / n
    even, uneven = max(noise.variance - power, 0.0), power * len(left) / spare
    total = even + uneven
    df = total**2 / (even**2 / noise.df + uneven**2 / spare)
    return LongRunVariance(total, df, noise.correlation)


def ratio_estimate(times: Floats, work: Floats, *, steps_per_bin: int = 1, level: float = 0.95) -> RatioEstimate:
    """Return the mean time per unit of work with its CI; see `fit_ratio` for the value.

    With equal work in every bin this is the mean step time over the work per step.
    """
    fit = fit_ratio(times, work, steps_per_bin)
    correlation = correlation_in_steps(fit.noise.correlation, steps_per_bin)
    half_width = fit.half_width(level)
    return RatioEstimate(fit.value, half_width, level, fit.noise.df, len(times) * steps_per_bin, correlation)
