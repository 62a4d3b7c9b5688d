"""Find the knee of a batch-size sweep, with its CI."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from steelyard.estimate.student import student_t

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MIN_POINTS = 3
# Level of the CI.
LEVEL = 0.95
# Least relative noise: clocks and rounding, if repeats happen to agree.
NOISE_FLOOR = 1e-4
# A misfit of d shifts a knee at 90 % by about d / (1 - 0.9): 2 % of throughput is 20 % of batch. Less does not matter.
MISFIT_MATTERS = 0.02
# Without repeats the noise between jobs is unknown. A misfit of three times a job noise of 2 % means a wrong model.
MISFIT_WITHOUT_REPEATS = 0.06
MISFIT_LEVEL = 0.99
ODD_LEVEL = 0.95
# A CI from K/4 to 4K is too wide to be useful.
MAX_SPAN = 16.0
GRID = 481
# Without repeats, a rise must exceed the scatter by this factor.
SCATTER = 6.0
# Slow rise: the exponents to try, the least number of points, and the least effect on the knee.
POWERS = np.linspace(0.3, 1.0, 36)
SLOW_POINTS = 5
SLOW_MATTERS = 1.25

Answer = Literal["found", "below the sweep", "beyond the sweep", "cannot tell"]
Method = Literal["fixed and per-sample time", "slow rise", "swept batches alone", "none"]


@dataclass(frozen=True)
class BatchTimes:
    """One batch size, with the step time of each job."""

    batch: float
    times: tuple[float, ...]

    @property
    def mean_s(self) -> float:
        """Return the mean step time over jobs."""
        return math.fsum(self.times) / len(self.times)

    @property
    def rate(self) -> float:
        """Return the samples per second."""
        return self.batch / self.mean_s


@dataclass(frozen=True)
class Knee:
    """The smallest batch that reaches `share` of the asymptote."""

    answer: Answer
    share: float
    value: float | None
    """None if unknown. Outside the sweep it is extrapolated with the model, to at most twice the sweep."""
    low: float | None
    """Lower bound of the CI; 0 if there is none. None if there is no CI."""
    high: float | None
    """Upper bound of the CI; infinite if there is none."""
    level: float
    method: Method
    asymptote: float | None
    """Highest possible samples per second; for `swept batches alone`, the best swept batch."""
    fixed_s: float | None
    """Fixed time per step; `sample_s` is the time per sample. None if that model does not fit."""
    sample_s: float | None
    misfit: float | None
    """Relative scatter of the measured times around the model, also if the model was rejected."""
    from_batch: float | None
    """The smallest batch that the model was fitted to; smaller batches deviate from it."""
    reason: str
    """How the knee was found, or why it is unknown."""

    @property
    def of_best(self) -> bool:
        """Whether the knee is that of the best swept batch, because no model gives an asymptote."""
        return self.method == "swept batches alone"


def knee(points: Sequence[BatchTimes], share: float = 0.9) -> Knee:
    """Find the knee of throughput over batch size, from the step times of the jobs at each swept batch.

    The model: a step takes `fixed + batch x sample` seconds, so throughput approaches 1/sample and reaches a share s of
    it at batch s/(1-s) x fixed/sample. Logarithms of times are fitted, which gives every job the same relative weight.
    One parameter remains (the ratio fixed/sample). Its CI comes from the profile of the sum of squares, so it may be
    asymmetric or open on one side. The noise is the scatter of the jobs around the model, so a bad fit gives a wide CI.

    For a curve that rises more slowly (by a power of the batch below 1) the asymptote would be too low; if the power is
    significantly below 1, it is fitted as well. If the model does not fit, small batches are dropped as long as that
    helps (tiling and launch overhead affect only those). Otherwise the knee is the smallest swept batch that reaches
    the share of the best.
    """
    ordered = sorted(points, key=lambda point: point.batch)
    _refuse_bad(ordered, share)
    if len(ordered) < MIN_POINTS:
        sizes = "1 batch size has" if len(ordered) == 1 else f"{len(ordered) or 'no'} batch sizes have"
        reason = f"{sizes} a usable throughput; at least {MIN_POINTS} are needed"
        return Knee("cannot tell", share, None, None, None, LEVEL, "none", None, None, None, None, None, reason)
    whole = _fit(ordered)
    slow = _slow_rise(ordered, whole, share)
    if slow is not None:
        return slow
    fit = whole
    for dropped in range(1, len(ordered) - MIN_POINTS):
        if fit.fits:
            break
        fit = _fit(ordered[dropped:])
        if share / (1 - share) * fit.ratio < ordered[dropped].batch:
            break
    if fit.fits:
        return _by_form(fit, ordered, share)
    return _by_sweep(ordered, whole.misfit, share)


@dataclass(frozen=True)
class _Fit:
    """The model fitted to some batches: ratio of fixed to per-sample time, with its CI."""

    first: float
    ratio: float
    low: float
    high: float
    scale: float
    """Time per sample."""
    misfit: float
    fits: bool


def _fit(points: Sequence[BatchTimes]) -> _Fit:
    batches = np.array([point.batch for point in points])
    logs = np.log([point.mean_s for point in points])
    jobs = np.array([float(len(point.times)) for point in points])
    grid = np.geomspace(batches[0] * 1e-4, batches[-1] * 1e4, GRID)
    ratio = _refine(grid, int(np.argmin(_squares(grid, batches, logs, jobs))), batches, logs, jobs)
    least = float(_squares(np.array([ratio]), batches, logs, jobs)[0])
    pure = math.fsum((time / point.mean_s - 1) ** 2 for point in points for time in point.times)
    repeats = int(jobs.sum()) - len(points)
    free = len(points) - 2
    misfit = math.sqrt(least / free / float(jobs.mean()))
    # If means scatter more around the model than repeats do, more jobs would not reduce the scatter.
    odd = repeats > 0 and _exceeds(least / free, free, pure / repeats, repeats, ODD_LEVEL)
    degrees, squared = (free, least / free) if odd else (free + repeats, (least + pure) / (free + repeats))
    noise = max(math.sqrt(squared), NOISE_FLOOR)
    limit = least + (student_t(LEVEL, float(degrees)) * noise) ** 2

    def above(at: float) -> bool:
        return float(_squares(np.array([at]), batches, logs, jobs)[0]) > limit

    # The model fits if the scatter around it is small, or no larger than that of repeats.
    fits = misfit <= (MISFIT_MATTERS if repeats else MISFIT_WITHOUT_REPEATS)
    if not fits and repeats:
        fits = not _exceeds(least / free, free, pure / repeats, repeats, MISFIT_LEVEL)
    log_ratio = logs - np.log(ratio + batches)
    return _Fit(
        first=float(batches[0]),
        ratio=ratio,
        low=_crossing(ratio, float(grid[0]), above) or 0.0,
        high=_crossing(ratio, float(grid[-1]), above) or math.inf,
        scale=math.exp(float(np.sum(jobs * log_ratio) / np.sum(jobs))),
        misfit=misfit,
        fits=fits,
    )


def _slow_rise(points: Sequence[BatchTimes], plain: _Fit, share: float) -> Knee | None:
    """Return the knee of a curve that rises by a power of the batch below 1; None if the plain model fits as well."""
    if len(points) < SLOW_POINTS:
        return None
    batches = np.array([point.batch for point in points])
    logs = np.log([point.mean_s for point in points])
    jobs = np.array([float(len(point.times)) for point in points])
    grid = np.geomspace(batches[0] * 1e-4, batches[-1] * 1e4, GRID)
    squares = np.array([_squares(grid, batches, logs, jobs, float(power)) for power in POWERS])
    row, column = np.unravel_index(int(np.argmin(squares)), squares.shape)
    least, degrees = float(squares[row, column]), float(jobs.sum() - 3)
    pure = math.fsum((time / point.mean_s - 1) ** 2 for point in points for time in point.times)
    noise = max((least + pure) / degrees, NOISE_FLOOR**2)
    knees = grid[None, :] * (share / (1 - share)) ** (1 / POWERS[:, None])
    value = float(knees[row, column])
    gain = float(squares[-1].min()) - least
    shown = gain > student_t(MISFIT_LEVEL, degrees) ** 2 * noise
    if not shown or value < SLOW_MATTERS * plain.ratio * share / (1 - share):
        return None
    inside = squares <= least + student_t(LEVEL, degrees) ** 2 * noise
    power, ratio = float(POWERS[row]), float(grid[column])
    scale = logs - np.log(batches) - np.log1p((ratio / batches) ** power)
    reached = 1 / (1 + (ratio / batches[-1]) ** power)
    answer: Answer = "found" if value <= batches[-1] else "beyond the sweep"
    cell = float(grid[1] / grid[0])
    return Knee(
        answer=answer if value >= batches[0] else "below the sweep",
        share=share,
        value=value if value <= 2 * batches[-1] else None,
        # Widen by the resolution of the grid.
        low=float(knees[inside].min()) / cell,
        high=math.inf if inside[0].any() else float(knees[inside].max()) * cell,
        level=LEVEL,
        method="slow rise",
        asymptote=math.exp(-float(np.sum(jobs * scale) / np.sum(jobs))),
        fixed_s=None,
        sample_s=None,
        misfit=math.sqrt(least / (len(points) - 2) / float(jobs.mean())),
        from_batch=float(batches[0]),
        reason=(
            f"throughput rises more slowly than a fixed time per step explains; at batch {batches[-1]:,.0f} it reaches "
            f"{100 * reached:.0f} % of the extrapolated asymptote"
        ),
    )


def _squares(ratios: Floats, batches: Floats, logs: Floats, jobs: Floats, power: float = 1.0) -> Floats:
    """Return the weighted sum of squares around the model, for each ratio of fixed to per-sample time."""
    rest = (logs - np.log(batches))[None, :] - np.log1p((ratios[:, None] / batches[None, :]) ** power)
    centre = (rest @ jobs / jobs.sum())[:, None]
    squares: Floats = ((rest - centre) ** 2) @ jobs
    return squares


def _refine(grid: Floats, best: int, batches: Floats, logs: Floats, jobs: Floats) -> float:
    """Refine the minimum between the neighbours of the best grid point with finer grids."""
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, GRID - 1)]
    for _ in range(4):
        fine = np.geomspace(low, high, 41)
        at = int(np.argmin(_squares(fine, batches, logs, jobs)))
        low, high = fine[max(at - 1, 0)], fine[min(at + 1, 40)]
    return math.sqrt(float(low) * float(high))


def _crossing(inside: float, outside: float, above: Callable[[float], bool]) -> float | None:
    """Find by bisection where the sum of squares exceeds its limit; None if it does not on this side.

    The profile has one minimum, so there is at most one such point on each side.
    """
    if not above(outside):
        return None
    for _ in range(40):
        middle = math.sqrt(inside * outside)
        inside, outside = (inside, middle) if above(middle) else (middle, outside)
    return math.sqrt(inside * outside)


def _exceeds(square: float, free: int, noise_square: float, noise_free: int, level: float) -> bool:
    """Return whether one mean square is significantly larger than another (F test)."""
    if noise_square == 0.0:
        return square > 0.0
    # Imported late: most commands do not need scipy.
    from scipy.special import fdtrc

    return bool(fdtrc(free, noise_free, square / noise_square) < 1 - level)


def _by_form(fit: _Fit, points: Sequence[BatchTimes], share: float) -> Knee:
    times = share / (1 - share)
    first, last = points[0].batch, points[-1].batch
    value, low, high = times * fit.ratio, times * fit.low, times * fit.high
    answer: Answer = "found"
    reason = "the curve fits a fixed time per step plus a constant time per sample"
    shown: float | None = value
    if value > last:
        answer = "beyond the sweep"
        reason = f"by the model, batch {last:,.0f} reaches {100 * _reached(fit, last):.0f} % of the asymptote"
        shown = value if value <= 2 * last else None
    elif value < first:
        answer = "below the sweep"
        reason = f"by the model, the smallest batch already reaches {100 * _reached(fit, first):.0f} % of the asymptote"
        shown = value if value >= first / 2 else None
    elif low <= 0 or high / low > MAX_SPAN:
        answer, shown = "cannot tell", None
        reason = f"the CI of the knee spans more than a factor of {MAX_SPAN:g}, with {len(points)} batch sizes"
    if fit.first > first:
        reason += f", from batch {fit.first:g}"
    return Knee(
        answer=answer,
        share=share,
        value=shown,
        low=low,
        high=high,
        level=LEVEL,
        method="fixed and per-sample time",
        asymptote=1 / fit.scale,
        fixed_s=fit.ratio * fit.scale,
        sample_s=fit.scale,
        misfit=fit.misfit,
        from_batch=fit.first,
        reason=reason,
    )


def _reached(fit: _Fit, batch: float) -> float:
    return batch / (fit.ratio + batch)


def _by_sweep(points: Sequence[BatchTimes], misfit: float, share: float) -> Knee:
    """Return the smallest swept batch that reaches the share of the best, assuming only a single maximum."""
    jobs = [float(len(point.times)) for point in points]
    smooth = unimodal([point.rate for point in points], jobs)
    top = max(range(len(points)), key=lambda n: (smooth[n], -n))
    goal = share * smooth[top]
    at = next(n for n in range(len(points)) if smooth[n] >= goal)
    noise, low, high = _sweep_bounds(points, smooth, top, goal)
    answer: Answer = "found"
    reason = "no model fits the curve; this is the smallest batch near the best one"
    # Rise over the last doubling, or from the smallest batch if the sweep is shorter.
    logs = [math.log(point.batch) for point in points]
    half = logs[-1] - math.log(2)
    before = float(np.interp(half, logs, smooth)) if half >= logs[0] else smooth[0]
    rise = smooth[-1] / before - 1
    # In the model, a doubling that ends below the knee gains more than this.
    if smooth[-1] >= smooth[top] and rise > 2 / (1 + share) - 1:
        answer = "beyond the sweep"
        reason = (
            f"throughput still rises at batch {points[-1].batch:,.0f}, by {100 * rise:.0f} % over the last doubling"
        )
        low, high = points[-1].batch, math.inf
        if noise is None and rise <= SCATTER * max(abs(p.rate / s - 1) for p, s in zip(points, smooth, strict=True)):
            answer, low, high = "cannot tell", None, None
            reason = "the scatter is as large as the rise of the curve"
    elif at == 0:
        answer, reason = "below the sweep", f"the smallest batch already reaches {100 * share:g} % of the best"
        low = None if noise is None else 0.0
    if noise is None:
        reason += "; one job per batch, so the noise is unknown and there is no CI"
    return Knee(
        answer=answer,
        share=share,
        value=points[at].batch if answer == "found" else None,
        low=low,
        high=high,
        level=LEVEL,
        method="swept batches alone",
        asymptote=smooth[top] if answer in ("found", "below the sweep") else None,
        fixed_s=None,
        sample_s=None,
        misfit=misfit,
        from_batch=points[0].batch,
        reason=reason,
    )


def _sweep_bounds(
    points: Sequence[BatchTimes], smooth: Sequence[float], top: int, goal: float
) -> tuple[float | None, float | None, float | None]:
    """Return the relative noise between jobs, and the bounds of the knee; None if no batch has several jobs.

    The bounds are the largest batch significantly below the goal, and the smallest significantly above it.
    """
    free = sum(len(point.times) - 1 for point in points)
    if free == 0:
        return None, None, None
    noise = math.sqrt(math.fsum((time / p.mean_s - 1) ** 2 for p in points for time in p.times) / free)
    quantile = student_t(LEVEL, float(free))
    margins = [quantile * noise * math.sqrt(1 / len(point.times) + 1 / len(points[top].times)) for point in points]
    short = [n for n in range(top + 1) if smooth[n] * (1 + margins[n]) < goal]
    there = [n for n in range(top + 1) if smooth[n] * (1 - margins[n]) >= goal]
    return noise, (points[short[-1]].batch if short else 0.0), points[there[0] if there else top].batch


def unimodal(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the least-squares fit that rises to a maximum and then falls."""
    best: list[float] = list(values)
    least = math.inf
    for top in range(1, len(values) + 1):
        up = _isotonic(values[:top], weights[:top])
        down = [-value for value in _isotonic([-value for value in values[top:]], weights[top:])]
        fitted = up + down
        squares = math.fsum(w * (v - f) ** 2 for v, f, w in zip(values, fitted, weights, strict=True))
        # A later maximum must fit better, so that a flat end stays flat.
        if squares < least * (1 - 1e-12) or math.isinf(least):
            best, least = fitted, squares
    return best


def _isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the least-squares fit that never falls (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (v1, w1, n1), (v2, w2, n2) = pools[-2], pools[-1]
            pools[-2:] = [((v1 * w1 + v2 * w2) / (w1 + w2), w1 + w2, n1 + n2)]
    return [value for value, _, count in pools for _ in range(count)]


def _refuse_bad(points: Sequence[BatchTimes], share: float) -> None:
    if not 0 < share < 1:
        raise ValueError(f"share {share}: must be between 0 and 1")
    batches = [point.batch for point in points]
    if len(set(batches)) < len(batches):
        raise ValueError("a batch size occurs twice: combine its jobs")
    bad = [point.batch for point in points if not point.times or not all(0 < t < math.inf for t in point.times)]
    if bad or any(not 0 < batch < math.inf for batch in batches):
        raise ValueError(f"batch sizes and times must be positive and finite, got {bad or batches}")
