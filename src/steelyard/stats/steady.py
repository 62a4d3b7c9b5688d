"""Where a job's step times are steady, from the times alone; it must not know what a step does or how it was measured.

How a series is read:

1. A few far slower first steps (compilation) are set aside, and spikes are clipped, so that neither counts as a change.
2. If no level change or trend is significant in the rest: "steady".
3. If what is left around the best falling, rising or valley-shaped course has a longer memory than noise has: "no
   steady state", unless that ends with a fall in the first half and the tail is steady by itself.
4. Otherwise the series is cut at its largest change, then what follows that, until nothing significant follows. If
   that leaves a long enough tail and the last change was a rise: "slowing down". If it was a fall: "steady" from there
   on, unless a fall that outlasts the series describes it better: "warming up throughout".
5. No such tail: a course that falls to the end is "warming up throughout", one that rises there is "slowing down".

Significance respects the noise's correlation: white plus AR(1), fitted to what the course leaves over, with a memory
of at most some ten steps. A change or wandering below `TOLERANCE` of the level is none. All of it works on logarithms,
so a change is a share of the level. The constants were chosen on the tuning seeds of
benchmarks/figures/steady_state.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Series = NDArray[np.float64]

Answer = Literal["steady", "warming up throughout", "slowing down", "no steady state"]

TOLERANCE = 0.002
"""Changes below 0.2 % of the level matter to nobody: repeats of a job differ by more."""
SE_FLOOR = TOLERANCE / 8
"""Standard error given to noise-free series, so that an exact change of 1.5 x TOLERANCE is still significant."""
ROUNDING_PERCENT = 1e-6
"""Differences below this are not told to people."""
FEWEST = 20
"""Below this the noise's correlation cannot be told from a change, and nothing is claimed of a noisy series."""
LATEST_START = 0.64
"""A steady part shorter than a third of the series is not called its steady state."""
CHANGE_Z = 3.5
"""Significance of the largest of many level changes: 1 to 2 % of flat series exceed it by chance."""
REFINE_Z = 2.0
"""Once a warm-up is certain, its end is moved on until less than this is left: cutting too much then costs little."""
SHORTEST_PART = 8
"""A level is not read from fewer steps (fewer still in short series): one of them would decide it."""

HALF_WINDOW = 15
"""Of the running median: spikes and up to 15 slow first steps are a minority in 31 values."""
CLIP_SD = 2.5
"""Huber's clipping, 98 % efficient on normal noise, and a spike weighs no more than this."""
MAD_TO_SD = 1.4826
"""Median absolute deviation to standard deviation, for normal noise."""
COMMON = 0.75
"""Deviations that a quarter of the steps have are the series' second mode, and are not clipped."""
LEAD_REACH = 8
"""Slow first steps with normal ones between them are looked for this far."""
LEAD_FACTOR = 1.5
"""A slow first step must stand out this many times further than any later one, or it is one of the series' spikes."""

MOST_RHO = 0.85
"""The longest memory that is allowed for when significance is judged: AR(1) of 0.8, and the error of estimating it."""
FITTED_LAGS = 5
"""Lags that the fading of the noise's correlation is read from."""
CLEAR_CORRELATION = 3.0
"""Standard errors of a lag-1 correlation from which on its fading is fitted, and not taken to be AR(1)'s."""
CLOSE_CALL = 2.5
"""Up to this many times the critical value a change is tested a second time."""

BATCHES = 100
"""Resolution of the fitted courses: enough pairs to see wandering, in batches that average some noise away."""
SMALLEST_BATCH = 4
"""In short series a course through single steps would follow the noise itself."""
WANDER_SCORE = 1.7
"""Excess of the lag-1 correlation of batch residuals, in standard errors, above which a changing series wanders: 1 % of
jumps, drifts and warm-ups exceed it, and seven in eight random walks."""
WANDER_FADE = 0.84
"""Residuals of a changing series whose correlation fades more slowly wander: AR(1) of 0.8 stays below, and those random
walks that pass for a slope in batches do not."""
FLAT_WANDER_SCORE = 3.0
"""As WANDER_SCORE, for a series without a significant change, where a false alarm does most harm."""
FLAT_WANDER_FADE = 0.93
"""As WANDER_FADE, for a series without a significant change."""
CALM_SHARE = 0.5
"""A steady tail behind a wandering start is believed from this share of the series on: walks rest for shorter."""
CALM_FEWEST = 100
"""And from this many steps on, below which wandering is not seen."""

VALLEY_ODDS = 1.15
"""A valley fits noise a little better than a slope does, having one choice more."""
VALLEY_SPLITS = 20
"""Places tried for the bottom of a valley."""
RISE_GAIN = 14.0
"""Chi-square that a rise at the end must explain before a falling course is called a valley: 1 in 1,000 by chance,
with the some three values that an isotonic fit adapts."""
ENDING = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.14, 0.16, 0.2, 0.25)
"""Time constants, in lengths of the series, of a warm-up that ends within it."""
UNENDING = (0.45, 0.6, 0.8, 1.1, 1.6, 2.5, 5.0, 20.0)
"""Time constants of one that does not; the last is a straight line."""


@dataclass(frozen=True)
class SteadyAnswer:
    """What a job's step times say about its steady state."""

    answer: Answer
    start: int
    """First index of the steady window; 0 where there is none."""
    stop: int
    """One past the last index of the steady window; the length of the series where there is none."""
    change_points: tuple[int, ...]
    """Indices at which the level changes, in order; a gradual change is given as a few of them."""
    reason: str
    """One sentence with the numbers behind the answer."""


@dataclass(frozen=True)
class _Levels:
    """Relative log step times without spikes, and what was set aside before them."""

    values: Series
    lead: int
    lead_factor: float


@dataclass(frozen=True)
class _NoiseModel:
    """White plus AR(1) noise around a course."""

    near: float
    """Lag-1 correlation."""
    fade: float
    """Ratio of the correlations at each lag and the one before, as seen."""
    allowed: float
    """The same, as far as it is allowed for in the long-run variance."""
    long_run_var: float
    """Variance of a mean of many steps, times their number."""
    critical_z: float
    """CHANGE_Z, raised for how well the variance is known."""


@dataclass(frozen=True)
class _Course:
    """The best simple course through batch means, and the noise around it."""

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
    course = _course(levels.values)
    first = _first_change(levels.values, course.noise)
    if _wanders(course, changes=first.significant):
        return _calm_tail(levels, course, first) or _of_wandering(levels, course, first)
    if first.significant:
        return _of_changed(levels, course, first)
    lead, n = levels.lead, step_s.size
    reason = f"no level change or trend is significant in {n - lead} steps: the largest is "
    reason += f"{_percent(abs(first.size))}, {first.z:.1f} standard errors"
    if lead:
        reason += f"; the first {lead} of {n} steps, up to {levels.lead_factor:.3g} times slower, are set aside"
    return SteadyAnswer("steady", lead, n, (lead,) if lead else (), reason)


def _of_wandering(levels: _Levels, course: _Course, first: _Change) -> SteadyAnswer:
    """The answer for a series that has no level to speak of."""
    n = levels.lead + levels.values.size
    reason = f"the level wanders over {_percent(float(np.ptp(course.batch)))}, more slowly than noise does: "
    if (score := _wander_score(course)) > WANDER_SCORE:
        reason += f"the correlation between batches of {course.size} steps is {score:.1f} standard errors too high"
    else:
        reason += f"the correlation between steps fades by a factor of only {course.noise.fade:.2f} a step"
    return SteadyAnswer("no steady state", 0, n, (levels.lead + first.at,), reason)


def _of_changed(levels: _Levels, course: _Course, first: _Change) -> SteadyAnswer:
    """The answer for a series that certainly changes and does not wander."""
    rest, lead = levels.values, levels.lead
    n = lead + rest.size
    cuts, settled = _cuts(rest, course.noise, first)
    points = tuple(lead + cut.at for cut in cuts)
    rising = cuts[-1].size > 0 if settled else course.rising
    tenths = np.array([part.mean() for part in np.array_split(rest, 10)])
    if rising:
        slower = _percent(tenths[-1] - tenths.min())
        reason = f"steps get slower: the last tenth of {n} is {slower} slower than the fastest tenth"
        return SteadyAnswer("slowing down", 0, n, points, reason)
    if settled and not _unending(rest, cuts, course.noise.long_run_var):
        at = cuts[-1].at
        slower = _percent(rest[:at].mean() - rest[at:].mean())
        reason = f"the first {points[-1]} of {n} steps are slower, typically by {slower}; nothing significant follows"
        return SteadyAnswer("steady", points[-1], n, points, reason)
    reason = f"steps still get faster at the end: the first tenth of {n} is {_percent(tenths[0] - tenths[-1])} "
    reason += f"slower than the last, the last but one {_percent(tenths[-2] - tenths[-1])}"
    return SteadyAnswer("warming up throughout", 0, n, points, reason)


def _checked(step_s: Series) -> Series:
    """The series as float64, or every reason why it is none."""
    values = np.asarray(step_s, dtype=np.float64)
    wrong = []
    if values.ndim != 1 or values.size == 0:
        wrong.append(f"one dimension with at least one value is needed, got shape {values.shape}")
    elif bad := int(np.sum(~(np.isfinite(values) & (values > 0)))):
        wrong.append(f"{bad} of {values.size} values are not positive finite seconds")
    if wrong:
        raise ValueError("step times: " + "; ".join(wrong))
    return values


def _of_short(step_s: Series) -> SteadyAnswer:
    """Few values: steady only if exactly repeating after some slower first steps, for there is no noise to judge."""
    n = step_s.size
    differs = np.flatnonzero(np.abs(step_s / step_s[-1] - 1) > TOLERANCE / 2)
    start = int(differs[-1]) + 1 if differs.size else 0
    slower_first = bool(np.all(step_s[:start] > step_s[-1]))
    if n - start >= 2 and start <= LATEST_START * n and slower_first:
        reason = f"all {n - start} steps from step {start} on are equal within {_percent(TOLERANCE / 2)}"
        return SteadyAnswer("steady", start, n, (start,) if start else (), reason)
    reason = f"{n} step times that differ are too few to tell noise from change; {FEWEST} are needed"
    return SteadyAnswer("no steady state", 0, n, (), reason)


def _levels(step_s: Series) -> _Levels:
    """Logarithms with spikes clipped towards a running median, without the slow first steps."""
    # Late: scipy takes a third of a second to import, and nobody should wait for it before a run begins.
    from scipy.ndimage import median_filter

    y = np.log(step_s)
    y -= np.median(y)
    half = min(HALF_WINDOW, (y.size - 1) // 6)
    base = median_filter(y, size=2 * half + 1, mode="nearest")
    # Whole windows at both ends: a shrinking one would take a slow first step for the level.
    base[:half] = base[half]
    base[-half:] = base[-half - 1]
    off = y - base
    middle, common = np.quantile(np.abs(off), [0.5, COMMON])
    limit = max(CLIP_SD * MAD_TO_SD * float(middle), float(common), TOLERANCE / 2)
    lead = _lead(off, limit, half)
    factor = float(np.exp(np.max(off[:lead]))) if lead else 1.0
    return _Levels((base + np.clip(off, -limit, limit))[lead:], lead, factor)


def _lead(off: Series, limit: float, half: int) -> int:
    """How many first steps are slow beyond anything later: in size, or in how many follow each other."""
    largest_later = max(float(off[half:].max()), limit)
    far = np.flatnonzero(off[: min(half, LEAD_REACH)] > LEAD_FACTOR * largest_later)
    lead = int(far[-1]) + 1 if far.size else 0
    slow = off > limit
    run = int(np.argmin(slow))
    edges = np.flatnonzero(np.diff(slow[run:].astype(np.int8), prepend=0, append=0))
    longest_later = int((edges[1::2] - edges[::2]).max()) if edges.size else 0
    return run if run > lead and run >= longest_later + 2 else lead


def _course(rest: Series) -> _Course:
    """The best of falling, rising and falling-then-rising courses, and the AR(1) noise around it."""
    size = max(SMALLEST_BATCH, rest.size // BATCHES)
    count = rest.size // size
    skipped = rest.size - size * count
    batch = rest[skipped:].reshape(count, size).mean(axis=1)
    falling, rising, valley = _isotonic(batch, up=False), _isotonic(batch, up=True), _valley(batch)
    monotone = min(falling, rising, key=lambda fit: _sse(batch, fit))
    fit = valley if _sse(batch, valley) * VALLEY_ODDS < _sse(batch, monotone) else monotone
    # At every step: straight from the centre of a batch to the next, and on to both ends.
    ends = np.concatenate([[2 * fit[0] - fit[1]], fit, [2 * fit[-1] - fit[-2]]])
    centres = skipped + size * (np.arange(-1, count + 1) + 0.5) - 0.5
    left = rest - np.interp(np.arange(rest.size), centres, ends)
    noise = _noise(left[~_bent(fit, left, size, skipped)])
    unit = noise.long_run_var / size + SE_FLOOR**2
    rises = (_sse(batch, falling) - _sse(batch, valley)) / unit > RISE_GAIN
    return _Course(batch, fit, size, monotone is rising or rises, noise)


def _bent(fit: Series, left: Series, size: int, skipped: int) -> NDArray[np.bool_]:
    """The steps around a sharp bend or jump of a course, where what it misses is not noise."""
    sharp = np.zeros(fit.size, dtype=np.bool_)
    sharp[1:-1] = np.abs(np.diff(fit, 2)) > MAD_TO_SD * np.median(np.abs(left)) + SE_FLOOR
    sharp = np.convolve(sharp, np.ones(3), mode="same") > 0
    if 2 * np.sum(sharp) > fit.size:
        return np.zeros(left.size, dtype=np.bool_)
    return np.concatenate([np.full(skipped, sharp[0]), np.repeat(sharp, size)])


def _isotonic(values: Series, *, up: bool) -> Series:
    """Least-squares monotone fit."""
    from scipy.optimize import isotonic_regression

    return np.asarray(isotonic_regression(values, increasing=up).x, dtype=np.float64)


def _valley(values: Series) -> Series:
    """Least-squares fit that falls, then rises."""
    splits = np.unique(np.linspace(2, values.size - 2, VALLEY_SPLITS).astype(int))
    fits = [np.concatenate([_isotonic(values[:s], up=False), _isotonic(values[s:], up=True)]) for s in splits]
    return min(fits, key=lambda fit: _sse(values, fit))


def _sse(values: Series, fit: Series) -> float:
    """Sum of squared residuals."""
    return float(np.sum((values - fit) ** 2))


def _noise(left: Series) -> _NoiseModel:
    """White plus AR(1) noise fitted to residuals, by their covariances at the first few lags."""
    left = left - left.mean()
    limit = 4 * MAD_TO_SD * float(np.median(np.abs(left)))
    left = np.clip(left, -limit, limit)
    n = left.size
    lags = [float(left[k:] @ left[: n - k]) / n for k in range(FITTED_LAGS + 1)]
    # The dust keeps rounding errors of a noise-free series from having a correlation.
    rho = lags[1] / (lags[0] + (SE_FLOOR / 10) ** 2)
    fade = rho
    if rho > CLEAR_CORRELATION / np.sqrt(n):
        fade = max(rho, float(np.dot(lags[2:], lags[1:-1]) / np.dot(lags[1:-1], lags[1:-1])))
    allowed = min(max(_unbiased(fade, n), 0.0), MOST_RHO)
    near = min(max(_unbiased(rho, n), 0.0), allowed)
    inflation = 1 + 2 * near / (1 - allowed)
    # Student's t in place of the normal, by its first Cornish-Fisher term, with as many degrees as independent steps.
    critical_z = CHANGE_Z * (1 + (CHANGE_Z**2 + 1) * inflation / (4 * n))
    return _NoiseModel(near, fade, allowed, lags[0] * inflation, critical_z)


def _unbiased(rho: float, n: int) -> float:
    """An estimated correlation without Kendall's downward bias."""
    return rho + (1 + 3 * rho) / n


def _wanders(course: _Course, *, changes: bool) -> bool:
    """Whether what the course leaves over has a memory that noise has not, and a size that matters."""
    if float(course.batch.std()) <= TOLERANCE:
        return False
    most_score, most_fade = (WANDER_SCORE, WANDER_FADE) if changes else (FLAT_WANDER_SCORE, FLAT_WANDER_FADE)
    return _wander_score(course) > most_score or course.noise.fade > most_fade


def _calm_tail(levels: _Levels, course: _Course, first: _Change) -> SteadyAnswer | None:
    """A steady answer for a series whose wandering ends with a fall in its first half, as a jagged warm-up does.

    The tail is held to its own noise, which may be far smaller than that of the warm-up.
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
            reason = f"the first {start} of {n} steps vary more and end slower, and no significant change follows"
            return SteadyAnswer("steady", start, n, tuple(lead + cut.at for cut in cuts), reason)
        cuts.append(replace(change, at=at + change.at))
    return None


def _wander_score(course: _Course) -> float:
    """Excess of the batch residuals' lag-1 correlation over what the fitted noise gives, in standard errors."""
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
    """The largest change, judged against the noise around that change alone if it is a close call.

    A monotone or valley-shaped course follows part of the noise, and leaves too little of it.
    """
    change = _largest_change(rest, noise)
    if not change.significant or change.z > CLOSE_CALL * noise.critical_z:
        return change
    step = np.where(np.arange(rest.size) < change.at, rest[: change.at].mean(), rest[change.at :].mean())
    around = _noise(rest - step)
    again = _largest_change(rest, around)
    # A walk leaves so much around a single step that the step does not stand out.
    return replace(again, significant=again.significant or around.fade > FLAT_WANDER_FADE)


def _largest_change(values: Series, noise: _NoiseModel) -> _Change:
    """The split with the most significant difference of means, or the linear trend if that is more so."""
    n = values.size
    shortest = min(SHORTEST_PART, n // 6 + 1)
    left = np.arange(shortest, n - shortest + 1)
    total = np.cumsum(values)
    size = (total[-1] - total[left - 1]) / (n - left) - total[left - 1] / left
    se = np.sqrt(noise.long_run_var * (1 / left + 1 / (n - left)) + SE_FLOOR**2)
    z = np.maximum(np.abs(size) - TOLERANCE, 0) / se
    # Near the ends there are more independent places for chance to strike, and real changes there are large.
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
    """Cuts, each at the largest change after the one before; and whether nothing significant follows the last."""
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
    """Whether an exponential fall that outlasts the series fits better than one that ends, or steps at the cuts."""
    time = np.arange(rest.size) / rest.size
    y = rest - rest.mean()
    unending = max(_explained(y, np.exp(-time / tau)) for tau in UNENDING)
    ending = max(_explained(y, np.exp(-time / tau)) for tau in ENDING)
    parts = np.split(y, [cut.at for cut in cuts])
    steps = sum(part.size * float(part.mean()) ** 2 for part in parts)
    # Schwarz's price for the level and place of every step beyond the first.
    price = 2 * (len(cuts) - 1) * float(np.log(rest.size)) * (long_run_var + SE_FLOOR**2)
    return unending > max(ending, steps - price)


def _explained(y: Series, shape: Series) -> float:
    """Sum of squares of centred values that a downward course of this shape explains."""
    shape = shape - shape.mean()
    return max(float(y @ shape), 0.0) ** 2 / float(shape @ shape)


def _percent(share: float) -> str:
    """A log difference as a percentage; what is only rounding is none."""
    percent = 100 * float(np.expm1(share))
    return f"{percent:.2g} %" if abs(percent) > ROUNDING_PERCENT else "0 %"
