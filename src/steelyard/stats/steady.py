"""Find the steady state in the step times of a job.

The algorithm:

1. Remove a few far slower first steps (compilation), and clip spikes, so that neither counts as a change.
2. If no level change or trend is significant in the rest: "steady".
3. If the residuals of the best falling, rising or valley-shaped fit have a longer autocorrelation than noise: "no
   steady state", unless this ends with a fall in the first half and the tail is steady on its own.
4. Otherwise cut the series at its largest change, then cut the rest, until nothing significant follows. If a long
   enough tail remains and the last change was a rise: "slowing down". If it was a fall: "steady" from there on, unless
   a fall that continues beyond the end fits better: "warming up throughout".
5. Without such a tail: a fit that falls at the end is "warming up throughout", one that rises is "slowing down".

The significance takes the autocorrelation of the noise into account: white plus AR(1) noise, fitted to the residuals,
with a range of at most about ten steps. Changes or drift below `TOLERANCE` are ignored. Logarithms are used, so a
change is relative to the level. The constants were chosen on the tuning seeds of benchmarks/figures/steady_state.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from steelyard.estimate.student import MAD_TO_SD
from steelyard.numbers import change, short

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Series = NDArray[np.float64]

Answer = Literal["steady", "warming up throughout", "slowing down", "no steady state"]

TOLERANCE = 0.002
"""Changes below 0.2 % of the level do not matter: repeats of a job differ by more."""
SE_FLOOR = TOLERANCE / 8
"""Least standard error, for noise-free series: an exact change of 1.5 x TOLERANCE is still significant."""
ROUNDING = 1e-8
"""Smaller differences are shown as 0 %."""
FEWEST = 20
"""With fewer steps, autocorrelation cannot be distinguished from a change."""
LATEST_START = 0.64
"""The steady state must be at least about a third of the series."""
LATEST_WARMUP = 0.3
"""A warm-up that takes longer is part of the trend: a change in the middle third of a job must not pass as warm-up."""
FEWEST_OF_THIRD = 3
"""Least number of steps in a third for a trend."""
CHANGE_Z = 3.5
"""Threshold for the largest of many level changes: 1 to 2 % of constant series exceed it by chance."""
REFINE_Z = 2.0
"""If there is a warm-up, its end is moved until the remaining change is below this: cutting too much costs little."""
SHORTEST_PART = 8
"""Least number of steps for a level (fewer in short series), so that no single step decides it."""

HALF_WINDOW = 15
"""Half-width of the running median: spikes and up to 15 slow first steps are a minority of 31 values."""
CLIP_SD = 2.5
"""Huber clipping in standard deviations: 98 % efficient for normal noise, and limits the weight of a spike."""
COMMON = 0.75
"""Deviations that a quarter of the steps have are a second mode, and are not clipped."""
LEAD_REACH = 8
"""Number of first steps that are searched for isolated slow ones."""
LEAD_FACTOR = 1.5
"""A slow first step must exceed the largest later deviation by this factor; otherwise it is a spike."""
SHORT_LEAD = 1.0
"""In a series shorter than `FEWEST`, it must also take twice as long as the level: the noise is hardly known."""
LEAD_SHARE = 0.2
LEAD_LONG = 20.0
"""A slow first step may follow fast ones if it has at least this share of the longest one, or this many steps."""
RARE = 0.05
LEAST_NEARBY = 0.1
"""If fewer later steps are spikes, a step next to the slow first ones that is slow, by 10 % or more, is one of them."""
LEAD_DROP = 0.5
"""After the last slow first step, the deviation must fall below this share of it."""
LARGEST_LOG = 700.0
"""Larger logarithms of a ratio have no exponential."""

MOST_RHO = 0.85
"""Largest AR(1) coefficient in the significance tests: 0.8, plus its estimation error."""
FITTED_LAGS = 5
"""Number of lags used to fit the decay of the autocorrelation."""
CLEAR_CORRELATION = 3.0
"""If the lag-1 correlation exceeds this many standard errors, its decay is fitted; otherwise AR(1) is assumed."""
CLOSE_CALL = 2.5
"""A change below this many times the critical value is tested a second time."""

BATCHES = 100
"""Number of batch means for the fits: enough pairs to detect drift, and each averages out some noise."""
SMALLEST_BATCH = 4
"""Least steps per batch; in short series a fit to single steps would follow the noise."""
WANDER_SCORE = 1.7
"""Excess of the lag-1 correlation of batch residuals, in standard errors, above which a changing series drifts
irregularly: 1 % of jumps, drifts and warm-ups exceed it, and seven of eight random walks."""
WANDER_FADE = 0.84
"""A changing series drifts irregularly if the correlation of its residuals decays more slowly: AR(1) of 0.8 stays below
this, random walks that look like a slope in batches do not."""
FLAT_WANDER_SCORE = 3.0
"""As WANDER_SCORE, for a series without a significant change, where a false alarm does most harm."""
FLAT_WANDER_FADE = 0.93
"""As WANDER_FADE, for a series without a significant change."""
CALM_SHARE = 0.5
"""A steady tail after an irregular start must be at least this share of the series: random walks rest for shorter."""
CALM_FEWEST = 100
"""Least number of steps of such a tail, because irregular drift is not detected in fewer."""

VALLEY_ODDS = 1.15
"""Factor by which a valley must fit better than a slope, because it has one more parameter."""
VALLEY_SPLITS = 20
"""Number of positions tried for the bottom of a valley."""
RISE_GAIN = 14.0
"""Chi-square that a rise at the end must explain to count: 1 in 1,000 by chance, with about three values that an
isotonic fit adapts."""
ENDING = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.14, 0.16, 0.2, 0.25)
"""Time constants of a warm-up that ends within the series, in lengths of the series."""
UNENDING = (0.45, 0.6, 0.8, 1.1, 1.6, 2.5, 5.0, 20.0)
"""Time constants of a warm-up that does not end; the last is a straight line."""


@dataclass(frozen=True)
class Reason:
    """Why the answer is so. It becomes a sentence only when it is known how many steps each value is the mean of."""

    text: str
    """With a place, such as {first}, for each count."""
    spans: dict[str, tuple[int, int]]
    """The name of each place, and the values that are counted there: the index of the first, and one past the last."""

    def sentence(self, steps_per_value: int = 1, steps: int | None = None) -> str:
        """Write it in steps; `steps`: all steps of the job, the last of which may fill no value."""
        last = max((stop for _, stop in self.spans.values()), default=0)

        def at(index: int) -> int:
            return steps if steps is not None and index == last else index * steps_per_value

        return self.text.format_map({name: f"{at(stop) - at(start):,}" for name, (start, stop) in self.spans.items()})


@dataclass(frozen=True)
class SteadyAnswer:
    """The steady state of a job's step times."""

    answer: Answer
    start: int
    """First index of the window to use: the steady one, else all that follows the slow first steps."""
    stop: int
    """One past the last index of the window."""
    change_points: tuple[int, ...]
    """Indices at which the level changes, in order; a gradual change has several."""
    reason: Reason
    """The numbers behind the answer."""
    trend: float | None = None
    """Mean log step time of the last third minus that of the first, with clipped spikes; None: too few steps."""


@dataclass(frozen=True)
class _Levels:
    """Log step times relative to the median, with clipped spikes and without slow first steps."""

    values: Series
    lead: int
    lead_factor: float


@dataclass(frozen=True)
class _NoiseModel:
    """White plus AR(1) noise around a fit."""

    near: float
    """Lag-1 correlation."""
    fade: float
    """Observed ratio of the correlations at consecutive lags."""
    allowed: float
    """The same ratio, limited to `MOST_RHO`, for the long-run variance."""
    long_run_var: float
    """Variance of a mean of many steps, times their number."""
    critical_z: float
    """CHANGE_Z, increased for the uncertainty of the variance."""


@dataclass(frozen=True)
class _Course:
    """The best falling, rising or valley-shaped fit to batch means, and the noise around it."""

    batch: Series
    fit: Series
    size: int
    rising: bool
    noise: _NoiseModel


@dataclass(frozen=True)
class _Change:
    """The most significant change of a series."""

    at: int
    size: float
    z: float
    significant: bool


def find_steady(step_s: Series) -> SteadyAnswer:
    """Classify the step times of one job, in order, and find their steady window."""
    step_s = _checked(step_s)
    if step_s.size < FEWEST:
        return _of_short(step_s)
    levels = _levels(step_s)
    answer = _classify(levels)
    warm = answer.start if answer.answer == "steady" and answer.start <= LATEST_WARMUP * step_s.size else levels.lead
    return replace(answer, trend=_trend(levels.values[warm - levels.lead :]))


def _trend(values: Series) -> float | None:
    """Return the change of the mean from the first third to the last."""
    third = values.size // 3
    return float(values[-third:].mean() - values[:third].mean()) if third >= FEWEST_OF_THIRD else None


def _classify(levels: _Levels) -> SteadyAnswer:
    course = _course(levels.values)
    first = _first_change(levels.values, course.noise)
    if _wanders(course, changes=first.significant):
        return _calm_tail(levels, course, first) or _of_wandering(levels, course, first)
    if first.significant:
        return _of_changed(levels, course, first)
    lead, n = levels.lead, levels.lead + levels.values.size
    text = "no significant level change or trend in {rest} steps: the largest is "
    text += f"{_percent(abs(first.size))}, {first.z:.1f} standard errors"
    spans = {"rest": (lead, n)}
    if lead:
        slower = short(levels.lead_factor, 3)
        text += f"; the first {{first}} of {{all}} steps, up to {slower} times slower, are excluded"
        spans |= {"first": (0, lead), "all": (0, n)}
    return SteadyAnswer("steady", lead, n, (lead,) if lead else (), Reason(text, spans))


def _of_wandering(levels: _Levels, course: _Course, first: _Change) -> SteadyAnswer:
    """Return the answer for a series that drifts irregularly."""
    n = levels.lead + levels.values.size
    text = f"step times drift by up to {_percent(float(np.ptp(course.batch)))} in {{all}} steps, "
    if _wander_score(course) > WANDER_SCORE:
        text += "far more than noise, as means of {size} steps show"
        size = course.size
    else:
        text += "and slowly: a deviation takes {size} steps to halve"
        size = min(n, round(math.log(0.5) / math.log(course.noise.fade))) if 0 < course.noise.fade < 1 else n
    reason = Reason(text, {"all": (0, n), "size": (0, size)})
    return SteadyAnswer("no steady state", levels.lead, n, (levels.lead + first.at,), reason)


def _of_changed(levels: _Levels, course: _Course, first: _Change) -> SteadyAnswer:
    """Return the answer for a series with a significant change that does not drift irregularly."""
    rest, lead = levels.values, levels.lead
    n = lead + rest.size
    cuts, settled = _cuts(rest, course.noise, first)
    points = tuple(lead + cut.at for cut in cuts)
    rising = cuts[-1].size > 0 if settled else course.rising
    tenths = np.array([part.mean() for part in np.array_split(rest, 10)])
    spans = {"all": (0, n), "first": (0, points[-1])}
    if rising:
        slower = _percent(tenths[-1] - tenths.min())
        text = f"the last tenth of {{all}} steps is {slower} slower than the fastest tenth"
        return SteadyAnswer("slowing down", lead, n, points, Reason(text, spans))
    if settled and not _unending(rest, cuts, course.noise.long_run_var):
        at = cuts[-1].at
        slower = _percent(rest[:at].mean() - rest[at:].mean())
        text = f"the first {{first}} of {{all}} steps are slower, typically by {slower}; no significant change follows"
        return SteadyAnswer("steady", points[-1], n, points, Reason(text, spans))
    faster = _percent(tenths[0] - tenths[-1])
    text = f"steps were still getting faster: the first tenth of {{all}} steps was {faster} slower than the last"
    return SteadyAnswer("warming up throughout", lead, n, points, Reason(text, spans))


def _checked(step_s: Series) -> Series:
    """Return the series as float64; raise ValueError if it is not valid."""
    values = np.asarray(step_s, dtype=np.float64)
    wrong = []
    if values.ndim != 1 or values.size == 0:
        wrong.append(f"need one dimension with at least one value, got shape {values.shape}")
    elif bad := int(np.sum(~(np.isfinite(values) & (values > 0)))):
        wrong.append(f"{bad} of {values.size} values are not positive finite seconds")
    if wrong:
        raise ValueError("step times: " + "; ".join(wrong))
    return values


def _of_short(step_s: Series) -> SteadyAnswer:
    """Return the answer for few values: steady only if they are equal after some slower first steps."""
    n = step_s.size
    differs = np.flatnonzero(np.abs(step_s / step_s[-1] - 1) > TOLERANCE / 2)
    start = int(differs[-1]) + 1 if differs.size else 0
    slower_first = bool(np.all(step_s[:start] > step_s[-1]))
    if n - start >= 2 and start <= LATEST_START * n and slower_first:
        text = f"all {{rest}} steps from step {{first}} on are equal within {_percent(TOLERANCE / 2)}"
        reason = Reason(text, {"rest": (start, n), "first": (0, start)})
        return SteadyAnswer("steady", start, n, (start,) if start else (), reason, _trend(np.log(step_s[start:])))
    text = f"{{all}} steps are too few to distinguish noise from a change; at least {FEWEST} are needed"
    reason = Reason(text, {"all": (0, n)})
    lead = _compile_steps(np.log(step_s))
    return SteadyAnswer("no steady state", lead, n, (), reason, _trend(np.log(step_s[lead:])))


def _levels(step_s: Series) -> _Levels:
    """Return logarithms with spikes clipped towards a running median, without the slow first steps."""
    y = np.log(step_s)
    y -= np.median(y)
    skipped = _compile_steps(y)
    base = _running_median(y[skipped:])
    off = y[skipped:] - base
    limit = _spike_limit(off)
    run = _slow_run(off > limit)
    lead = skipped + run
    factor = float(np.exp(np.max(y[:lead]) - base[0])) if lead else 1.0
    return _Levels((base + np.clip(off, -limit, limit))[run:], lead, factor)


def _running_median(y: Series) -> Series:
    # Imported late: scipy takes a third of a second to import, which would delay the start of a run.
    from scipy.ndimage import median_filter

    half = min(HALF_WINDOW, (y.size - 1) // 6)
    base = np.asarray(median_filter(y, size=2 * half + 1, mode="nearest"), dtype=np.float64)
    if half:
        # Full windows at both ends: with a shrinking window a slow first step would look like the level.
        base[:half] = base[half]
        base[-half:] = base[-half - 1]
    return base


def _spike_limit(off: Series) -> float:
    """Return the deviation from the running median beyond which a step is a spike."""
    middle, common = np.quantile(np.abs(off), [0.5, COMMON])
    return max(CLIP_SD * MAD_TO_SD * float(middle), float(common), TOLERANCE / 2)


def _compile_steps(y: Series) -> int:
    """Count the first steps, up to `LEAD_REACH`, that begin with one longer than any later spike and end with a drop.

    The level comes from the steps after `LEAD_REACH`, because slow steps may be most of the first ones.
    """
    reach = min(LEAD_REACH, y.size // 2)
    if not reach:
        return 0
    base = _running_median(y[reach:])
    off = y - np.concatenate([np.full(reach, base[0]), base])
    limit = _spike_limit(off[reach:])
    # Not logarithms, because a step counts in the mean by its time: compilation takes far longer than a stall, but its
    # logarithm is not far larger.
    excess = np.expm1(np.minimum(off, LARGEST_LOG))
    least = LEAD_FACTOR * max(float(excess[reach:].max()), limit)
    if y.size < FEWEST:
        least = max(least, SHORT_LEAD)
    far = np.flatnonzero(excess[:reach] > max(least, min(LEAD_SHARE * float(excess[:reach].max()), LEAD_LONG)))
    if not far.size:
        return 0
    end = int(far[-1]) + 1
    rare = y.size >= FEWEST and np.mean(off[reach:] > limit) < RARE
    nearby = max(float(np.expm1(limit)), LEAST_NEARBY) if rare else least
    while end < reach and excess[end] > nearby:
        end += 1
    # A gradual fall is a warm-up.
    drops = np.flatnonzero(excess[1 : end + 1] < LEAD_DROP * excess[:end])
    return int(drops[-1]) + 1 if drops.size else 0


def _slow_run(slow: NDArray[np.bool_]) -> int:
    """Count the slow first steps if they are at least two more than any slow steps in a row later."""
    run = int(np.argmin(slow))
    edges = np.flatnonzero(np.diff(slow[run:].astype(np.int8), prepend=0, append=0))
    longest_later = int((edges[1::2] - edges[::2]).max()) if edges.size else 0
    return run if run >= longest_later + 2 else 0


def _course(rest: Series) -> _Course:
    """Return the best of a falling, a rising and a valley-shaped fit, and the AR(1) noise around it."""
    size = max(SMALLEST_BATCH, rest.size // BATCHES)
    count = rest.size // size
    skipped = rest.size - size * count
    batch = rest[skipped:].reshape(count, size).mean(axis=1)
    falling, rising, valley = _isotonic(batch, up=False), _isotonic(batch, up=True), _valley(batch)
    monotone = min(falling, rising, key=lambda fit: _sse(batch, fit))
    fit = valley if _sse(batch, valley) * VALLEY_ODDS < _sse(batch, monotone) else monotone
    # Interpolate linearly between batch centres, and extrapolate to both ends.
    ends = np.concatenate([[2 * fit[0] - fit[1]], fit, [2 * fit[-1] - fit[-2]]])
    centres = skipped + size * (np.arange(-1, count + 1) + 0.5) - 0.5
    left = rest - np.interp(np.arange(rest.size), centres, ends)
    noise = _noise(left[~_bent(fit, left, size, skipped)])
    unit = noise.long_run_var / size + SE_FLOOR**2
    rises = (_sse(batch, falling) - _sse(batch, valley)) / unit > RISE_GAIN
    return _Course(batch, fit, size, monotone is rising or rises, noise)


def _bent(fit: Series, left: Series, size: int, skipped: int) -> NDArray[np.bool_]:
    """Mark the steps around a sharp bend or jump of the fit, where its residuals are not noise."""
    if fit.size < 3:
        # Two values have no bend.
        return np.zeros(left.size, dtype=np.bool_)
    sharp = np.zeros(fit.size, dtype=np.bool_)
    sharp[1:-1] = np.abs(np.diff(fit, 2)) > MAD_TO_SD * np.median(np.abs(left)) + SE_FLOOR
    sharp = np.convolve(sharp, np.ones(3), mode="same") > 0
    if 2 * np.sum(sharp) > fit.size:
        return np.zeros(left.size, dtype=np.bool_)
    return np.concatenate([np.full(skipped, sharp[0]), np.repeat(sharp, size)])


def _isotonic(values: Series, *, up: bool) -> Series:
    """Return the least-squares monotone fit."""
    from scipy.optimize import isotonic_regression

    return np.asarray(isotonic_regression(values, increasing=up).x, dtype=np.float64)


def _valley(values: Series) -> Series:
    """Return the least-squares fit that falls, then rises."""
    splits = np.unique(np.linspace(2, values.size - 2, VALLEY_SPLITS).astype(int))
    fits = [np.concatenate([_isotonic(values[:s], up=False), _isotonic(values[s:], up=True)]) for s in splits]
    return min(fits, key=lambda fit: _sse(values, fit))


def _sse(values: Series, fit: Series) -> float:
    """Return the sum of squared residuals."""
    return float(np.sum((values - fit) ** 2))


def _noise(left: Series) -> _NoiseModel:
    """Fit white plus AR(1) noise to residuals, using their covariances at the first few lags."""
    left = left - left.mean()
    limit = 4 * MAD_TO_SD * float(np.median(np.abs(left)))
    left = np.clip(left, -limit, limit)
    n = left.size
    lags = [float(left[k:] @ left[: n - k]) / n for k in range(FITTED_LAGS + 1)]
    # The small term suppresses correlated rounding errors in a noise-free series.
    rho = lags[1] / (lags[0] + (SE_FLOOR / 10) ** 2)
    fade = rho
    if rho > CLEAR_CORRELATION / np.sqrt(n):
        fade = max(rho, float(np.dot(lags[2:], lags[1:-1]) / np.dot(lags[1:-1], lags[1:-1])))
    allowed = min(max(_unbiased(fade, n), 0.0), MOST_RHO)
    near = min(max(_unbiased(rho, n), 0.0), allowed)
    inflation = 1 + 2 * near / (1 - allowed)
    # Student's t instead of the normal, by its first Cornish-Fisher term; degrees of freedom: independent steps.
    critical_z = CHANGE_Z * (1 + (CHANGE_Z**2 + 1) * inflation / (4 * n))
    return _NoiseModel(near, fade, allowed, lags[0] * inflation, critical_z)


def _unbiased(rho: float, n: int) -> float:
    """Correct an estimated correlation for Kendall's downward bias."""
    return rho + (1 + 3 * rho) / n


def _wanders(course: _Course, *, changes: bool) -> bool:
    """Return whether the residuals have a longer autocorrelation than noise, and are large enough to matter."""
    if float(course.batch.std()) <= TOLERANCE:
        return False
    most_score, most_fade = (WANDER_SCORE, WANDER_FADE) if changes else (FLAT_WANDER_SCORE, FLAT_WANDER_FADE)
    return _wander_score(course) > most_score or course.noise.fade > most_fade


def _calm_tail(levels: _Levels, course: _Course, first: _Change) -> SteadyAnswer | None:
    """Return a steady answer if the irregular part ends with a fall in the first half, as in an irregular warm-up.

    The tail is tested against its own noise, which may be far smaller than that of the warm-up.
    """
    rest, lead = levels.values, levels.lead
    cuts, settled = _cuts(rest, course.noise, first)
    while settled and cuts[-1].size < 0:
        at = cuts[-1].at
        tail = rest[at:]
        if tail.size < max(CALM_SHARE * rest.size, CALM_FEWEST):
            return None
        own = _course(tail)
        if _wanders(own, changes=True):
            return None
        change = _first_change(tail, own.noise)
        if not change.significant:
            start, n = lead + at, lead + rest.size
            text = "the first {first} of {all} steps vary more and are slower; no significant change follows"
            reason = Reason(text, {"first": (0, start), "all": (0, n)})
            return SteadyAnswer("steady", start, n, tuple(lead + cut.at for cut in cuts), reason)
        cuts.append(replace(change, at=at + change.at))
    return None


def _wander_score(course: _Course) -> float:
    """Return the excess of the batch residuals' lag-1 correlation over that of the fitted noise, in standard errors."""
    left = course.batch - course.fit
    dust = left.size * SE_FLOOR**2
    seen = float(np.sum(left[1:] * left[:-1])) / (float(np.sum(left * left)) + dust)
    # The correlation of adjacent batch means of the fitted noise.
    size, lag = course.size, np.arange(1, 2 * course.size)
    correlation = course.noise.near * course.noise.allowed ** (lag - 1.0)
    variance = size + 2 * float(np.sum(np.maximum(size - lag, 0) * correlation))
    expected = float(np.sum(np.minimum(lag, 2 * size - lag) * correlation)) / variance
    return (seen - expected) * float(np.sqrt(left.size))


def _first_change(rest: Series, noise: _NoiseModel) -> _Change:
    """Return the largest change; in a close call, test it again with the noise around this change only.

    A monotone or valley-shaped fit follows part of the noise, so its residuals underestimate the noise.
    """
    change = _largest_change(rest, noise)
    if not change.significant or change.z > CLOSE_CALL * noise.critical_z:
        return change
    step = np.where(np.arange(rest.size) < change.at, rest[: change.at].mean(), rest[change.at :].mean())
    around = _noise(rest - step)
    again = _largest_change(rest, around)
    # For a random walk the residuals around a single step are so large that the step is not significant.
    return replace(again, significant=again.significant or around.fade > FLAT_WANDER_FADE)


def _largest_change(values: Series, noise: _NoiseModel) -> _Change:
    """Return the split with the most significant difference of means; its z is that of a linear trend if larger."""
    n = values.size
    shortest = min(SHORTEST_PART, n // 6 + 1)
    left = np.arange(shortest, n - shortest + 1)
    total = np.cumsum(values)
    size = (total[-1] - total[left - 1]) / (n - left) - total[left - 1] / left
    se = np.sqrt(noise.long_run_var * (1 / left + 1 / (n - left)) + SE_FLOOR**2)
    z = np.maximum(np.abs(size) - TOLERANCE, 0) / se
    # Near the ends there are more independent splits, so chance changes are more likely.
    share = left / n
    z = np.sqrt(np.maximum(z * z + 2 * np.log(4 * share * (1 - share)), 0))
    time = (np.arange(n) - (n - 1) / 2) / n
    spread = float(np.sum(time * time))
    rise = float(np.sum(time * values)) / spread
    trend_z = max(abs(rise) - TOLERANCE, 0) / float(np.sqrt(noise.long_run_var / spread + SE_FLOOR**2))
    best = int(np.argmax(z if z.max() > 0 else np.abs(size) / se))
    largest_z = max(float(z[best]), trend_z)
    return _Change(int(left[best]), float(size[best]), largest_z, largest_z > noise.critical_z)


def _cuts(rest: Series, noise: _NoiseModel, first: _Change) -> tuple[list[_Change], bool]:
    """Return cuts, each at the largest change after the previous one, and whether the rest is without a change."""
    latest = LATEST_START * rest.size
    cuts = [first]
    while cuts[-1].at <= latest:
        here = cuts[-1]
        change = _largest_change(rest[here.at :], noise)
        change = replace(change, at=here.at + change.at)
        fading = here.size < 0 and change.size < 0 and change.z > REFINE_Z and change.at <= latest
        if not (change.significant or fading):
            return cuts, True
        cuts.append(change)
    return cuts, False


def _unending(rest: Series, cuts: list[_Change], long_run_var: float) -> bool:
    """Return whether an exponential fall that does not end in the series fits better than one that does, or steps."""
    time = np.arange(rest.size) / rest.size
    y = rest - rest.mean()
    unending = max(_explained(y, np.exp(-time / tau)) for tau in UNENDING)
    ending = max(_explained(y, np.exp(-time / tau)) for tau in ENDING)
    parts = np.split(y, [cut.at for cut in cuts])
    steps = sum(part.size * float(part.mean()) ** 2 for part in parts)
    # Penalty (BIC) for the level and position of every step after the first.
    price = 2 * (len(cuts) - 1) * float(np.log(rest.size)) * (long_run_var + SE_FLOOR**2)
    return unending > max(ending, steps - price)


def _explained(y: Series, shape: Series) -> float:
    """Return the sum of squares of centred values that a fall of this shape explains."""
    shape = shape - shape.mean()
    return max(float(y @ shape), 0.0) ** 2 / float(shape @ shape)


def _percent(share: float) -> str:
    """Format a log difference as a percentage; rounding errors as 0 %."""
    relative = float(np.expm1(share))
    return change(relative) if abs(relative) > ROUNDING else "0 %"
