"""Whether the figures that a program prints are true: compared with what was measured over the same steps.

A known mistake changes a figure by a known factor: without accumulation a rate is 1/A of the true one, of one device
it is 1/ranks. So where a figure differs, the mistakes whose factor explains it within the rounding are named.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from steelyard.derive.printed.level import printed_means
from steelyard.numbers import number, percent, seconds, short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from steelyard.derive.printed.formats import Kind
    from steelyard.derive.printed.level import PrintedMean
    from steelyard.derive.printed.reader import PrintedFigure

TOLERANCE = 0.02
"""Beyond rounding and noise: a program's clock starts and stops at other places than ours."""
MOST_TOLERANCE = 0.25
ERRORS = 3.0
"""Standard errors of the mean of the printed lines that are taken for noise."""
UNSYNCHRONISED = 0.9
"""A printed step time below this share of the measured one can be a missing synchronisation."""
CLOSE = 0.05
"""Above this relative difference, noise is named beside an agreement."""
FEW = 0.01
RECENT = 3.0
"""Steps that a smoothed figure is taken to be the mean of, at least."""


@dataclass(frozen=True, kw_only=True)
class MeasuredWindow:
    """What was measured over the steps that the printed figures are about. None: unknown."""

    step_s: float
    """Mean time of a step, without evaluations and checkpoints."""
    steps: int
    spread: float = 0.0
    """Relative standard deviation of the time of one step."""
    by_line: float | None = None
    """Relative standard deviation of printed over measured by line; None: the steps of each line are not known."""
    samples: float | None = None
    """Per step of the whole job."""
    tokens: float | None = None
    """Per step of the whole job, without padding."""
    labels: float | None = None
    """Tokens per step of the whole job that count in the loss."""
    world: int = 1
    accumulation: int | None = None
    batches: float | None = None
    """Batches of a loader per step of a rank. Micro-batches are those with a gradient, in most steps."""
    padding: float | None = None
    """Share of padding in all tokens."""
    evaluation_s: float = 0.0
    checkpoint_s: float = 0.0
    """Time of evaluations and of checkpoints between these steps, in all."""
    first_step_s: float | None = None
    """Time of the first step, with the compilation, which is not one of `steps`."""
    input_wait_s: float | None = None
    """Per step."""
    flops: float | None = None
    """Floating-point operations per step of the whole job."""
    peak: float | None = None
    """Highest rate of one device in the precision of the run, in FLOP/s."""
    asynchronous: bool = False
    """The device works through a queue, so that a clock of the host must wait for it."""


CauseName = Literal[
    "without accumulation",
    "accumulation twice",
    "micro-batch",
    "one device",
    "all devices",
    "devices twice",
    "one micro-batch of one device",
    "padding",
    "samples for tokens",
    "tokens for samples",
    "evaluation",
    "checkpoint",
    "evaluation and checkpoint",
    "first step",
    "first step, evaluation and checkpoint",
    "input wait left out",
    "no synchronisation",
    "other peak",
    "peak with sparsity",
]

WHOLE_RUN: tuple[CauseName, ...] = (
    "evaluation",
    "checkpoint",
    "evaluation and checkpoint",
    "first step",
    "first step, evaluation and checkpoint",
)
"""What a mean over a whole run has in its time, if its format is known to be one."""


@dataclass(frozen=True)
class FactorCause:
    """A known mistake, and the factor by which it changes a figure."""

    name: CauseName
    factor: float | None
    """None: it can be any."""
    words: str
    of_time: bool = False
    """The mistake is in the time, not in what is counted."""


@dataclass(frozen=True)
class PrintedVerdict:
    """Whether one kind of printed figure is true."""

    mean: PrintedMean
    verdict: Literal["agrees", "differs", "unknown"]
    measured: float | None
    factor: float | None
    """Printed over measured."""
    tolerance: float
    """Relative difference that counts as agreement, beyond rounding."""
    causes: tuple[FactorCause, ...]
    """Those that explain the factor; more than one if they explain it equally well."""
    by_definition: bool
    """The format is known to be a mean with the first step in it, so that it is no mistake."""
    sentence: str


def check_printed(
    figures: Iterable[PrintedFigure], measure: Callable[[PrintedMean], MeasuredWindow], peaks: Mapping[str, float]
) -> tuple[PrintedVerdict, ...]:
    """Compare printed figures with what was measured; `peaks`: known peaks of devices by name, in FLOP/s.

    `measure` gives what was measured over the steps of a printed mean.
    """
    # Times first: what is wrong with them is wrong with the rates as well.
    means = sorted(printed_means(figures), key=lambda mean: mean.kind != "step_time")
    verdicts: list[PrintedVerdict] = []
    for mean in means:
        verdicts.append(check_mean(mean, measure(mean), peaks, verdicts))
    return tuple(verdicts)


def unchecked(mean: PrintedMean, why: str) -> PrintedVerdict:
    """Return that a mean is not compared with anything; `why`: for example, its steps were not seen."""
    lines = f" (mean of {mean.lines} lines)" if mean.lines > 1 else ""
    said = f"The program prints {_said(mean)}{lines}; unchecked: {why}."
    return PrintedVerdict(mean, "unknown", None, None, 0.0, (), False, said)


def check_mean(
    mean: PrintedMean, window: MeasuredWindow, peaks: Mapping[str, float], others: Sequence[PrintedVerdict]
) -> PrintedVerdict:
    """Compare one mean; `others`: what was found for the times that are printed beside it."""
    readings = list(allowed_values(mean, window))
    tolerance = tolerance_of(mean, window)
    nothing = PrintedVerdict(mean, "unknown", None, None, tolerance, (), False, "")
    if not readings:
        if mean.kind == "mfu" and mean.low > 1:
            causes = _unsynchronised_beside(mean, others)
            because = "".join(f"; {one.words}" for one in causes)
            said = f"The program prints {_said(mean)}, which is impossible: no device does more than its peak{because}."
            return replace(nothing, verdict="differs", causes=causes, sentence=said)
        missing = "the peak of the device" if mean.kind == "mfu" and window.flops else _NEEDED[mean.kind]
        count = "; count it with steelyard wrap --second-pass" * (missing == _OPERATIONS)
        said = f"The program prints {_said(mean)}; whether it is right is unknown: {missing} is not known{count}."
        return replace(nothing, sentence=said)
    for value, words in readings:
        if _misfit(mean, value) <= tolerance:
            factor = mean.value / value
            right = "it is right" if abs(math.log(factor)) <= CLOSE else f"they agree within ±{percent(tolerance)}"
            said = f"The program prints {_said(mean)}; {_shown(mean.kind, value)} was measured{words}, so {right}."
            return replace(nothing, verdict="agrees", measured=value, factor=factor, sentence=said)
    value, words = min(readings, key=partial(_distance, mean)) if mean.kind == "step_time" else readings[0]
    factor = mean.value / value
    if mean.may_hold_start and (factor > 1) == (mean.kind == "step_time"):
        # The start makes a program slower, and by any factor: also by that of a mistake it did not make.
        said = (
            f"The program prints {_said(mean)}, and {_shown(mean.kind, value)} was measured{words}; whether it is "
            "right is unknown: a program's first line may have its start in its time, and this is the only one."
        )
        return replace(nothing, measured=value, sentence=said)
    causes = _explain(mean, value, window, peaks, tolerance, others)
    if mean.per == "iteration" and not causes:
        # A bar counts whatever its loop repeats.
        said = (
            f"The program prints {_said(mean)}, and {_shown(mean.kind, value)} was measured{words}; whether it is "
            "right is unknown: an iteration may be that of another loop."
        )
        return replace(nothing, measured=value, sentence=said)
    known = mean.over == "run" and mean.format != "generic" and any(one.name in WHOLE_RUN for one in causes)
    because = f", because {' or '.join(one.words for one in causes)}" if causes else "; no known mistake explains it"
    because += ", as in every figure of this format" * known
    said = (
        f"The program prints {_said(mean)}, but {_shown(mean.kind, value)} was measured{words}: "
        f"{short(factor)} times as much{because}."
    )
    return PrintedVerdict(mean, "differs", value, factor, tolerance, causes, known, said)


# -- what should have been printed

_OPERATIONS = "the number of operations per step"
_NEEDED: dict[Kind, str] = {
    "samples_per_s": "the number of samples per step",
    "tokens_per_s": "the number of tokens per step",
    "rate": "the number of samples per step",
    "flops_per_s": _OPERATIONS,
    "mfu": _OPERATIONS,
}


def allowed_values(mean: PrintedMean, window: MeasuredWindow) -> Iterator[tuple[float, str]]:
    """Yield the values that the wording of a figure allows, the most usual first; none if they are unknown."""
    rate = 1 / window.step_s
    one, of_one = 1 / window.world, f" on each of {window.world} devices" if window.world > 1 else ""
    share, of_share = (one, of_one) if mean.scope == "device" else (1.0, "")
    kind = mean.kind
    if kind == "step_time":
        parts = window.accumulation or 1
        if mean.per != "batch" or parts == 1:
            yield window.step_s, ""
        if mean.per != "step" and parts > 1:
            yield window.step_s / parts, f" for one of the {parts} micro-batches of a step"
        batches = window.batches or 1.0
        if mean.per != "step" and abs(batches / parts - 1) > FEW and batches > 1 + FEW:
            yield window.step_s / batches, f" for one of the {number(batches, 3)} batches of a step"
    for work, of_work in counted_work(kind, window):
        yield work * rate * share, of_share + of_work
    if kind == "flops_per_s" and window.flops is not None:
        if mean.scope != "job":
            yield window.flops * rate * one, of_one
        if mean.scope != "device" and (window.world > 1 or mean.scope == "job"):
            yield window.flops * rate, ""
    if kind == "mfu" and window.flops is not None and window.peak is not None:
        yield window.flops * rate * one / window.peak, ""


def counted_work(kind: Kind, window: MeasuredWindow) -> Iterator[tuple[float, str]]:
    """Yield what a rate may count in a step."""
    if kind in ("samples_per_s", "rate") and window.samples is not None:
        yield window.samples, ""
    if kind in ("tokens_per_s", "rate") and window.tokens is not None:
        yield window.tokens, ""
        if window.labels is not None and window.labels < window.tokens:
            # Some trainers count only these, and say tokens as well.
            yield window.labels, ", of tokens that count in the loss"


# -- how far it may be off


def tolerance_of(mean: PrintedMean, window: MeasuredWindow) -> float:
    """Return the relative difference that rounding does not explain, and noise does."""
    if mean.over == "recent":
        error = max(mean.spread or 0.0, window.spread) / math.sqrt(RECENT)
    elif window.by_line is not None:
        error = window.by_line / math.sqrt(mean.lines)
    elif mean.spread is not None:
        error = mean.spread / math.sqrt(mean.lines)
    elif mean.over == "step":
        error = window.spread
    else:
        error = window.spread / math.sqrt(max(1, window.steps))
    return min(MOST_TOLERANCE, TOLERANCE + ERRORS * error)


def _distance(mean: PrintedMean, reading: tuple[float, str]) -> float:
    return abs(math.log(mean.value / reading[0]))


def _misfit(mean: PrintedMean, value: float) -> float:
    """Return the relative difference between a printed mean and a value that its rounding does not explain."""
    if mean.low <= value <= mean.high:
        return 0.0
    nearest = mean.low if value < mean.low else mean.high
    return abs(math.log(nearest / value))


# -- why it is off


def _explain(
    mean: PrintedMean,
    value: float,
    window: MeasuredWindow,
    peaks: Mapping[str, float],
    tolerance: float,
    others: Sequence[PrintedVerdict],
) -> tuple[FactorCause, ...]:
    """Return the mistakes that explain the difference to the measured value, the best first."""
    beside = _times_beside(mean, others)
    for other in beside:
        # The work of a step over a time that is too short.
        same = abs(math.log(mean.value / value * (other.factor or 1.0))) <= tolerance + other.tolerance
        if mean.kind != "step_time" and same and (unsynchronised := _unsynchronised_beside(mean, [other])):
            return unsynchronised
    right = any(one.verdict == "agrees" and one.mean.over == mean.over for one in beside)
    fits: list[tuple[float, FactorCause]] = []
    for cause in (*work_causes(mean, window), *time_causes(mean, window), *peak_causes(mean, window, peaks)):
        if cause.factor is None or abs(math.log(cause.factor)) <= tolerance or (right and cause.of_time):
            continue
        if (misfit := _misfit(mean, value * cause.factor)) <= tolerance:
            fits.append((misfit, cause))
    if any(cause.name == "peak with sparsity" for _, cause in fits):
        # Twice the peak is also that of numbers of half the size, of the same device and of others.
        fits = [fit for fit in fits if fit[1].name != "other peak"]
    fits.sort(key=lambda fit: fit[0])
    if fits:
        return tuple(cause for misfit, cause in fits if misfit <= fits[0][0] + tolerance / 2)
    return () if right else _unsynchronised(mean, mean.value / value, window)


def _times_beside(mean: PrintedMean, others: Sequence[PrintedVerdict]) -> list[PrintedVerdict]:
    return [one for one in others if (one.mean.kind, one.mean.format) == ("step_time", mean.format)]


def _unsynchronised_beside(mean: PrintedMean, others: Sequence[PrintedVerdict]) -> tuple[FactorCause, ...]:
    """Return that the time printed beside a figure is too short, because its clock does not wait for the device."""
    causes = [cause for other in _times_beside(mean, others) for cause in other.causes]
    return tuple(cause for cause in causes if cause.name == "no synchronisation")


def work_causes(mean: PrintedMean, window: MeasuredWindow) -> Iterator[FactorCause]:
    """Yield what can be counted wrongly."""
    parts, world, kind = window.accumulation or 1, window.world, mean.kind
    if kind == "step_time":
        yield FactorCause("micro-batch", 1 / parts, f"it is the time of one of the {parts} micro-batches of a step")
        return
    yield FactorCause(
        "without accumulation", 1 / parts, f"only one of the {parts} micro-batches of each step is counted"
    )
    yield FactorCause(
        "accumulation twice",
        parts,
        f"the {parts} micro-batches of a step are counted twice, or the time is of one of them",
    )
    if mean.scope == "device" or (kind in ("flops_per_s", "mfu") and mean.scope == "unknown"):
        yield FactorCause("all devices", world, f"it is the figure of all {world} devices and not of one")
        yield FactorCause("devices twice", 1 / world, f"it is divided by the {world} devices twice")
    else:
        yield FactorCause("one device", 1 / world, f"it is the figure of one of the {world} devices")
        yield FactorCause("devices twice", world, f"the {world} devices are counted twice")
    if parts > 1 and world > 1:
        words = f"only one of the {parts} micro-batches of one of the {world} devices is counted"
        yield FactorCause("one micro-batch of one device", 1 / (parts * world), words)
    if kind == "tokens_per_s" and window.padding and window.padding < 1:
        yield FactorCause(
            "padding", 1 / (1 - window.padding), f"padding, {percent(window.padding)} of the tokens, is counted"
        )
    if window.samples and window.tokens:
        length = window.tokens / window.samples
        words = f"samples are counted, and not their {short(length)} tokens"
        if kind == "tokens_per_s":
            yield FactorCause("samples for tokens", 1 / length, words)
        if kind == "samples_per_s":
            yield FactorCause("tokens for samples", length, f"the {short(length)} tokens of each sample are counted")


def time_causes(mean: PrintedMean, window: MeasuredWindow) -> Iterator[FactorCause]:
    """Yield what can be in the time and does not belong there, or the other way round."""
    right = window.step_s * window.steps
    first = window.first_step_s
    evaluation, checkpoint = window.evaluation_s, window.checkpoint_s
    longer: list[tuple[CauseName, float, str]] = [
        ("evaluation", 1 + evaluation / right, f"{seconds(evaluation)} of evaluations are in its time"),
        ("checkpoint", 1 + checkpoint / right, f"{seconds(checkpoint)} of checkpoints are in its time"),
    ]
    both = evaluation + checkpoint
    if evaluation and checkpoint:
        words = f"{seconds(both)} of evaluations and checkpoints are in its time"
        longer.append(("evaluation and checkpoint", 1 + both / right, words))
    if first is not None:
        whole = right + window.step_s
        words = f"the first step, which took {seconds(first)} with its compilation, is in its mean"
        longer.append(("first step", (right + first) / whole, words))
        if both:
            words = f"the first step ({seconds(first)}), evaluations and checkpoints ({seconds(both)}) are in its mean"
            longer.append(("first step, evaluation and checkpoint", (right + first + both) / whole, words))
    wait = window.input_wait_s
    if wait is not None and 0 < wait < window.step_s:
        words = f"the wait for input, {seconds(wait)} a step, is not in its time"
        longer.append(("input wait left out", 1 - wait / window.step_s, words))
    for name, factor, words in longer:
        yield FactorCause(name, factor if mean.kind == "step_time" else 1 / factor, words, True)


def peak_causes(mean: PrintedMean, window: MeasuredWindow, peaks: Mapping[str, float]) -> Iterator[FactorCause]:
    """Yield the peaks of other devices and data types, those of the same value together."""
    if mean.kind != "mfu" or window.peak is None:
        return
    yield FactorCause("peak with sparsity", 0.5, "it is relative to the peak with sparsity, which is twice as high")
    names: dict[float, list[str]] = {}
    for name, peak in peaks.items():
        if peak > 0:
            names.setdefault(peak, []).append(name)
    for peak, known in names.items():
        listed = f"{known[0]} and {len(known) - 1} more" if len(known) > 1 else known[0]
        words = f"it is relative to {number(peak / 1e12)} TFLOP/s, the peak of {listed}"
        yield FactorCause("other peak", window.peak / peak, words)


def _unsynchronised(mean: PrintedMean, factor: float, window: MeasuredWindow) -> tuple[FactorCause, ...]:
    """Return the missing synchronisation if the printed time is far too short for the steps."""
    time = factor if mean.kind == "step_time" else 1 / factor
    if not window.asynchronous or time > UNSYNCHRONISED:
        return ()
    took = window.step_s * window.steps
    words = (
        f"its clock does not wait for the device: by it {window.steps} steps took {seconds(took * time)}, "
        f"and not {seconds(took)}"
    )
    return (FactorCause("no synchronisation", None, words, True),)


# -- words

_UNITS: dict[Kind, str] = {"samples_per_s": "samples/s", "tokens_per_s": "tokens/s", "rate": "samples or tokens/s"}


def _said(mean: PrintedMean) -> str:
    """Return a printed mean with its unit and scope."""
    scope = {"device": " per device", "job": " in total", "unknown": ""}[mean.scope]
    per = f" per {mean.per}" if mean.kind == "step_time" else ""
    return f"{_shown(mean.kind, mean.value)}{per}{scope}"


def _shown(kind: Kind, value: float) -> str:
    if kind == "step_time":
        return seconds(value)
    if kind == "mfu":
        return f"an MFU of {percent(value)}"
    if kind == "flops_per_s":
        return f"{number(value / 1e12)} TFLOP/s"
    return f"{number(value)} {_UNITS[kind]}"
