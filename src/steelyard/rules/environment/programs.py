"""Run rules on what was seen of a wrapped program (SY619 to SY622): its processes, steps, samples and output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.inputs.command import wrap_again
from steelyard.rules.rule import Example, RunRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.finding import Finding
    from steelyard.contracts.record import RunRecord

_SEEN = (
    'spec.workload = "train"\nspec.program.command = ["torchrun", "--nproc-per-node", "2", "train.py"]\n'
    "wrapped.level = 2\nwrapped.processes = 3\nwrapped.world = 2\nwrapped.ranks_reported = 2\nwrapped.unknown = {}\n"
    'wrapped.samples = "seen"\nwrapped.steps = 1000\n'
)
SHOWN_REASON = 300


class NotReportedIn(RunRule):
    """Processes of a program that did not report in."""

    code = "SY619"
    name = "program-not-seen"
    severity = "warning"
    why = (
        "Steps are seen by a small module that Python loads at its start. A process that does not load it is measured "
        "only from outside: wall time, processor time, memory and energy, but no steps. If some ranks are missing, the "
        "slowest may be among them, and the samples of the job are unknown."
    )
    detected = (
        "No Python process reported in, or fewer ranks than the program has. That happens if the command starts no "
        "Python, if Python is told to ignore its environment (`python -I`, `python -E`), or if a launcher, a container "
        "or `env -i` removes the variables PYTHONPATH and STEELYARD_WRAP, or if Python is older than 3.10."
    )
    bad = Example(
        _SEEN.replace("processes = 3", "processes = 2").replace("ranks_reported = 2", "ranks_reported = 1"),
        "One of two ranks did not report in.",
    )
    good = Example(_SEEN, "Both ranks reported in.")
    fix = "start Python without -I and -E, and let PYTHONPATH and STEELYARD_WRAP reach every process"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding with the number of processes or ranks that reported in."""
        seen = record.wrapped
        if seen is None:
            return
        if not seen.processes and not seen.ranks_reported:
            yield self.found("no Python process of the program reported in, so its steps were not seen")
        elif seen.ranks_reported and seen.world is not None and seen.ranks_reported < seen.world:
            message = f"only {seen.ranks_reported} of {seen.world} ranks of the program reported in"
            yield self.found(f"{message}, so its throughput is unknown" if seen.samples == "unknown" else message)


class StepsUncertain(RunRule):
    """Steps of a program that are unknown, or may not be those that its author means."""

    code = "SY620"
    name = "steps-uncertain"
    severity = "warning"
    why = (
        "A step ends when the optimizer has updated the weights. A program that updates them by itself, or in an "
        "engine that is not known, has no such moment, and its step times are missing or those of something else."
    )
    detected = (
        "The program's Python processes reported in, but no step was seen, or the observer says why it is unsure."
    )
    bad = Example(
        _SEEN + 'wrapped.step_reason = "two optimizers are updated at different times"\n',
        "It is not known which of the two updates ends a step.",
    )
    good = Example(_SEEN, "One optimizer ends every step.")
    fix = "call steelyard.mark_step() at the end of each step; without `steelyard wrap` it does nothing"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding with the reason."""
        seen = record.wrapped
        if seen is None or not seen.processes or record.spec.program is None:
            return
        if not seen.steps and record.status.code != "completed":
            # It ended before its first step, or in it.
            return
        if not seen.steps or seen.step_reason:
            reason = seen.step_reason[:SHOWN_REASON] or "no optimizer of torch made an update"
            state = "uncertain" if seen.steps else "unknown"
            yield self.found(f"the steps of the program are {state}: {reason}")


class SamplesUnknown(RunRule):
    """A program whose samples per step were not seen."""

    code = "SY621"
    name = "samples-unknown"
    severity = "warning"
    why = (
        "Samples are counted in the batches that a loader of torch hands to the program. A program with a loader of "
        "its own has step times, but no throughput: a guess of the batch would be a guess of the result."
    )
    detected = "Steps were seen, but not their samples, and --samples-per-step is not set."
    bad = Example(
        _SEEN.replace('"seen"', '"unknown"') + 'wrapped.samples_reason = "no loader of torch was used"\n',
        "The program makes its own batches.",
    )
    good = Example(_SEEN.replace('"seen"', '"stated"'), "The user states the samples of a step.")
    fix = "state the samples that all ranks together process per optimizer step, with gradient accumulation"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding with the reason."""
        seen = record.wrapped
        if seen is None or not seen.steps or seen.samples != "unknown" or seen.ranks_reported != seen.world:
            return
        command = wrap_again(record.spec, {"--samples-per-step": "N"})
        reason = seen.samples_reason[:SHOWN_REASON] or "they were not seen"
        yield self.found(f"the samples per step are unknown: {reason}", command=command)


class FigureUnchecked(RunRule):
    """A figure that a program prints, of steps that were not seen."""

    code = "SY622"
    name = "printed-figure-unchecked"
    severity = "note"
    why = (
        "It is only what the program says about itself: it can leave out accumulation, count padding, or be of one "
        "device of many. It is kept with the run, but nothing compares it with measured figures."
    )
    detected = "The output has figures in a known format, but no step of the program was seen."
    bad = Example(
        _SEEN.replace("level = 2", "level = 1").replace("steps = 1000", "steps = 0")
        + 'printed = [{kind = "step_time", format = "maxtext", lines = 40, value = 6.05, verdict = "unknown", '
        'sentence = "The program prints 6.050 s per step; unchecked: its steps were not seen."}]\n',
        "A program on a device without hooks prints its step time.",
    )
    good = Example(
        _SEEN + 'printed = [{kind = "step_time", format = "maxtext", lines = 40, value = 6.05, verdict = "agrees", '
        'measured = 6.051, sentence = "The program prints 6.050 s per step; 6.051 s was measured, so it is right."}]\n',
        "The steps were seen, and the printed time is right.",
    )
    fix = "name it as printed by the program, or let its steps be seen with steelyard.mark_step()"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding for each figure, if no step was seen."""
        if record.wrapped is None or record.wrapped.level > 1:
            return
        for claim in record.printed:
            yield self.found(claim.sentence.rstrip("."))
