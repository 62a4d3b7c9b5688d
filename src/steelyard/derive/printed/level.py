"""Level 1: step time, rates and number of steps from nothing but the figures that a program prints."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from steelyard.derive.printed.formats import Kind, Over, Per, Told
    from steelyard.derive.printed.reader import PrintedFigure, PrintedOutput

RATES: tuple[Kind, ...] = ("samples_per_s", "tokens_per_s", "rate", "flops_per_s", "mfu")
_BEST: tuple[Over, ...] = ("interval", "step", "run", "recent")
"""The closer to a mean of the steps after the first, the better."""


@dataclass(frozen=True)
class PrintedMean:
    """The mean of one kind of figure over the lines of an output."""

    kind: Kind
    value: float
    low: float
    high: float
    """Bounds of the mean by the rounding of the printed digits."""
    scope: Told
    per: Per
    over: Over
    format: str
    lines: int
    """Lines that it is the mean of."""
    spread: float | None
    """Relative standard deviation over these lines; None: too few of them."""
    text: str
    """As printed, for one line."""
    first_left_out: bool
    """The first line, which often has the compilation in it, is not in the mean."""
    may_hold_start: bool = False
    """It is the first line only, whose interval may begin with the program: what happened before the loop is in it."""
    steps: tuple[int, int] | None = None
    """Numbers of the steps between which its lines are, as they tell; None: they do not, or begin again."""
    parts: tuple[tuple[int, int, float], ...] = ()
    """The same for each line, with its value; empty also if the lines are about more or fewer steps than these."""


@dataclass(frozen=True)
class PrintedSummary:
    """What an output tells. What it does not tell is None, and `reasons` has why."""

    step_time: PrintedMean | None
    rates: dict[Kind, PrintedMean]
    steps: int | None
    """Steps from the first to the last that a line tells."""
    steps_per: Per
    """What these steps are by the wording; an iteration can be an optimizer step or a batch."""
    means: tuple[PrintedMean, ...]
    """All kinds of figures with their scope."""
    reasons: dict[str, str]


def summarize(output: PrintedOutput) -> PrintedSummary:
    """Return what the figures of an output tell without any other measurement."""
    means = printed_means(output.figures)
    reasons: dict[str, str] = {}
    step_time = _best(means, "step_time") or step_time_by_clock(output.figures)
    if step_time is None:
        reasons["step_time"] = "no line has a step time, nor both a step number and a clock"
    rates = {kind: best for kind in RATES if (best := _best(means, kind)) is not None}
    if not rates:
        reasons["rates"] = "no line has a figure per second that is known"
    numbered = [figure for figure in output.figures if figure.kind == "step"]
    done = bool(numbered) and numbered[0].unit == "done"
    steps, reasons["steps"] = count_steps([int(figure.value) for figure in numbered], done=done)
    if output.left_out:
        reasons["lines"] = f"only the first {output.lines} lines were read"
    told = {name: reason for name, reason in reasons.items() if reason}
    return PrintedSummary(step_time, rates, steps, numbered[0].per if numbered else "step", means, told)


def printed_means(figures: Iterable[PrintedFigure]) -> tuple[PrintedMean, ...]:
    """Return the mean of each kind of figure, separately by scope and by what it is a mean of itself."""
    groups: dict[tuple[str, ...], list[PrintedFigure]] = {}
    for figure in figures:
        if figure.kind not in ("step", "loss", "elapsed"):
            key = (figure.kind, figure.scope, figure.per, figure.over, figure.format)
            groups.setdefault(key, []).append(figure)
    return tuple(_mean(group) for group in groups.values())


def _mean(group: Sequence[PrintedFigure]) -> PrintedMean:
    used, first = _used(group)
    one = used[-1]
    # Each line stands for the same work, so the mean of rates is the one of their inverse: work over time.
    inverse = one.kind != "step_time"

    def mean(values: Iterable[float]) -> float:
        taken = [1 / value if inverse else value for value in values]
        middle = math.fsum(taken) / len(taken)
        return 1 / middle if inverse and middle else middle

    value = mean(figure.value for figure in used)
    spread = None
    if len(used) > 1:
        squares = math.fsum((figure.value / value - 1) ** 2 for figure in used)
        spread = math.sqrt(squares / (len(used) - 1))
    low, high = mean(max(figure.low, 1e-300) for figure in used), mean(figure.high for figure in used)
    steps, parts = steps_of_lines(group, used)
    return PrintedMean(
        kind=one.kind,
        value=value,
        low=low,
        high=high,
        scope=one.scope,
        per=one.per,
        over=one.over,
        format=one.format,
        lines=len(used),
        spread=spread,
        text=one.text,
        first_left_out=first,
        may_hold_start=not first and one.over != "run" and not _of_one_later_step(one),
        steps=steps,
        parts=parts,
    )


def steps_of_lines(
    group: Sequence[PrintedFigure], used: Sequence[PrintedFigure]
) -> tuple[tuple[int, int] | None, tuple[tuple[int, int, float], ...]]:
    """Return the steps between the line before the first that is used and the last one, and those of each line."""
    known = [figure.step for figure in group if figure.step is not None]
    if len(known) < len(group) or known != sorted({*known}):
        return None, ()
    if used[0].over == "run":
        # Each mean of a run begins with its first step.
        return (0, known[-1]), ()
    ends = known[-len(used) - 1 :] if len(used) < len(known) else [0, *known]
    lines = zip(ends, ends[1:], used, strict=False)
    parts = tuple((start, stop, figure.value) for start, stop, figure in lines)
    return (ends[0], ends[-1]), parts if used[0].over != "recent" else ()


def _used(group: Sequence[PrintedFigure]) -> tuple[Sequence[PrintedFigure], bool]:
    """Return the figures to take the mean of, and whether the first was left out."""
    if group[0].over == "run":
        # Each contains the ones before it.
        return group[-1:], False
    if group[0].over == "recent":
        return group[len(group) // 2 :], len(group) > 1
    first = group[0]
    later = [one for one in group if one.line != first.line and (one.step is None or one.step != first.step)]
    return (later, True) if later else (group, False)


def _of_one_later_step(figure: PrintedFigure) -> bool:
    """Return whether a figure is known to be of a single step, and not of the first. Wording alone does not tell."""
    return figure.over == "step" and figure.format != "generic" and figure.step is not None and figure.step > 1


def _best(means: Sequence[PrintedMean], kind: Kind) -> PrintedMean | None:
    known = [mean for mean in means if mean.kind == kind]
    # Of two that are as good, the one with more lines.
    return min(known, key=lambda mean: (_BEST.index(mean.over), -mean.lines), default=None)


def step_time_by_clock(figures: Sequence[PrintedFigure]) -> PrintedMean | None:
    """Return the step time from step numbers and the clock of a progress bar."""
    clocks = [figure for figure in figures if figure.kind == "elapsed" and figure.step is not None]
    if len(clocks) < 2:
        return None
    first, last = clocks[0], clocks[-1]
    steps = (last.step or 0) - (first.step or 0)
    if steps <= 0 or last.low <= first.high:
        return None
    value, low, high = last.value - first.value, last.low - first.high, last.high - first.low
    return PrintedMean(
        kind="step_time",
        value=value / steps,
        low=low / steps,
        high=high / steps,
        scope="unknown",
        per="iteration",
        over="interval",
        format=last.format,
        lines=len(clocks),
        spread=None,
        text=f"{last.text} at step {last.step}",
        first_left_out=True,
    )


def count_steps(numbers: Sequence[int], *, done: bool) -> tuple[int | None, str]:
    """Return how many steps the numbers of the lines tell, and why they are not known or only a lower bound.

    `done`: a number is how many steps are complete, and not which step it is.
    """
    if not numbers:
        return None, "no line tells its step"
    starts = [0, *(at + 1 for at, (one, other) in enumerate(pairwise(numbers)) if other < one)]
    ends = [*(start - 1 for start in starts[1:]), len(numbers) - 1]
    steps = sum(numbers[end] - numbers[start] + (not done) for start, end in zip(starts, ends, strict=True))
    if len(starts) == 1:
        return steps, ""
    return steps, f"the numbers begin again {len(starts) - 1} times, so there were at least {steps} steps"
