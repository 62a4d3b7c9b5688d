"""Run rules on a wrapped program (SY619 to SY622, SY626 to SY630): its processes, steps, samples and output."""

from __future__ import annotations

from itertools import takewhile
from pathlib import PurePath
from typing import TYPE_CHECKING

from steelyard.contracts.wrap import OTHERS
from steelyard.inputs.command import words_of, wrap_again
from steelyard.numbers import short
from steelyard.rules.program import other_samples
from steelyard.rules.rule import Example, RunRule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from steelyard.contracts.finding import Finding
    from steelyard.contracts.record import RunRecord

_SEEN = (
    'spec.workload = "train"\nspec.program.command = ["torchrun", "--nproc-per-node", "2", "train.py"]\n'
    "wrapped.level = 2\nwrapped.processes = 3\nwrapped.world = 2\nwrapped.ranks_reported = 2\nwrapped.unknown = {}\n"
    'wrapped.samples = "seen"\nwrapped.steps = 1000\n'
)
_STATED = _SEEN + "wrapped.batch = 8\nwrapped.accumulation = 1\n"
SHOWN_REASON = 300
HOOKS_S = 100e-6
"""What the observer adds to a micro-batch, measured by the figure wrap_overhead; 5 us in a loop of nothing else."""
COSTLY = 0.02
MUCH = 0.1
CONTAINERS = ("podman", "docker", "apptainer", "singularity")
LAUNCHING_WORDS = 4
"""Words of a command among which the one that starts a container is: `srun --ntasks 1 apptainer`."""
NOTEBOOKS = ("nbconvert", "jupyter-nbconvert", "papermill")


def _starts_container(words: Sequence[str]) -> bool:
    """Return whether a command starts a container; what follows a script or Python is the program's own."""
    names = [PurePath(word).name for word in words[:LAUNCHING_WORDS]]
    before = takewhile(lambda name: not name.startswith("python") and not name.endswith((".py", ".sh")), names)
    return any(name in CONTAINERS for name in before)


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
        fix = None
        if _starts_container(words_of(record.spec)):
            # The folder with the module is outside, as is the one that reports go to.
            fix = "let steelyard start the container, which mounts what it needs: name the image in [container] of a "
            fix += "site file, and the command without the container in a study; then steelyard study FILE --site SITE"
        if not seen.processes and not seen.ranks_reported:
            yield self.found("no Python process of the program reported in, so its steps were not seen", fix=fix)
        elif seen.ranks_reported and seen.world is not None and seen.ranks_reported < seen.world:
            message = f"only {seen.ranks_reported} of {seen.world} ranks of the program reported in"
            message += ", so its throughput is unknown" if seen.samples == "unknown" else ""
            yield self.found(message, fix=fix)


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
    fix = (
        "call steelyard.mark_step() at the end of each step; `import steelyard` always works under `steelyard wrap`, "
        "elsewhere only where steelyard is installed"
    )

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
            # To mark the steps does not tell whose they are.
            fix = "wrap each training on its own" if OTHERS in seen.step_reason else None
            yield self.found(f"the steps of the program are {state}: {reason}", fix=fix)


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
        # The command of a study does not change what its file says.
        fix = f"{self.fix}: samples_per_step in [run.program] of the study" if record.spec.study_arguments else None
        reason = seen.samples_reason[:SHOWN_REASON] or "they were not seen"
        yield self.found(f"the samples per step are unknown: {reason}", fix=fix, command=command)


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


class OtherDevices(RunRule):
    """A program with another number of ranks than devices were asked for."""

    code = "SY626"
    name = "devices-not-used"
    severity = "warning"
    why = (
        "Devices that a program leaves idle are paid for, and their energy is counted. Ranks that share a device slow "
        "each other down. In both cases the figures are not those of the devices that the study names."
    )
    detected = "The study asks for several devices, and another number of ranks has reported in."
    bad = Example(_SEEN + "wrapped.devices_asked = 4\n", "Four devices were asked for, and two ranks started.")
    good = Example(_SEEN + "wrapped.devices_asked = 2\n", "Each rank has a device.")
    fix = "start as many ranks as devices: {devices} in the command is their number"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding with both numbers."""
        seen = record.wrapped
        if seen is None or seen.world is None or seen.devices_asked in (None, seen.world):
            return
        yield self.found(
            f"the program has {seen.world} rank{'s' if seen.world > 1 else ''}, but {seen.devices_asked} devices were "
            f"asked for, so its figures are of {seen.world}"
        )


class CostlyHooks(RunRule):
    """A program whose steps are so short that seeing them may slow them down."""

    code = "SY627"
    name = "short-steps"
    severity = "note"
    why = (
        "The hooks that see a step run in the program. They take up to 0.1 ms per micro-batch on the host. A step of "
        "1 ms is then up to 10 % longer than without them. A device that computes meanwhile hides it."
    )
    detected = "0.1 ms per micro-batch is more than 2 % of the mean step."
    bad = Example(
        _SEEN + "wrapped.accumulation = 1\nquantities.step_time_mean.value = 0.002\n",
        "Steps of 2 ms may be 5 % slower with hooks.",
    )
    good = Example(
        _SEEN + "wrapped.accumulation = 1\nquantities.step_time_mean.value = 0.05\n",
        "Of steps of 50 ms, hooks are at most 0.2 %.",
    )
    fix = "take the program's speed as at least the measured one"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding with the largest possible share."""
        seen, step = record.wrapped, record.quantities.get("step_time_mean")
        if seen is None or step is None or not step.value:
            return
        share = HOOKS_S * (seen.accumulation or 1) / step.value
        if share > COSTLY:
            share = min(share, 1.0)
            yield self.found(f"up to {100 * share:.2g} % of each step may be the time of our own hooks")


class OtherSamples(RunRule):
    """Samples per step that the user states, and that are not those of the batches."""

    code = "SY628"
    name = "other-samples-stated"
    severity = "warning"
    why = (
        "What was counted goes before what is stated. One of the two is wrong: the number stated, often without "
        "accumulation or for one rank, or a batch does not hold what its author calls samples."
    )
    detected = "The samples were seen in the batches, and --samples-per-step is more than 2 % off."
    bad = Example(
        _STATED + "spec.program.samples_per_step = 99\n",
        "Two ranks with batches of 8 make 16 samples per step, not 99.",
    )
    good = Example(_STATED + "spec.program.samples_per_step = 16\n", "What is stated was seen.")
    fix = "leave out --samples-per-step (in a study: samples_per_step), or find out which of the two is right"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding with both numbers."""
        counted, program = other_samples(record), record.spec.program
        if counted is not None and program is not None:
            stated = short(program.samples_per_step or 0.0)
            yield self.found(f"{stated} samples per step are stated, but {short(counted)} were seen, and these count")


class NotebookOutput(RunRule):
    """A notebook whose cells may print figures that nobody sees."""

    code = "SY629"
    name = "notebook-output"
    severity = "note"
    why = (
        "A notebook that is executed by a command keeps what its cells print in the notebook. Its steps are seen as "
        "those of a script, but figures that it prints are neither shown beside them nor checked."
    )
    detected = "The command has the word nbconvert or papermill, and no figure is in its output."
    bad = Example(
        _SEEN.replace('"torchrun", "--nproc-per-node", "2", "train.py"', '"papermill", "train.ipynb", "out.ipynb"'),
        "What the cells print is only in the notebook.",
    )
    good = Example(_SEEN, "What a script prints is read.")
    fix = "to have printed figures checked, wrap a script: jupyter nbconvert --to script NOTEBOOK makes one"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding if the command executes a notebook and prints no figure."""
        words = {PurePath(word).name for word in words_of(record.spec)}
        if record.wrapped is not None and record.wrapped.steps and not record.printed and words & {*NOTEBOOKS}:
            yield self.found("what the cells of the notebook print was not seen, so figures in it are not checked")


class EvaluationMode(RunRule):
    """Much time in evaluation mode, of which nothing else tells that it is an evaluation."""

    code = "SY630"
    name = "time-in-evaluation-mode"
    severity = "warning"
    why = (
        "The time of evaluations belongs to no step. A program that collects its data in evaluation mode, as in "
        "reinforcement learning, does so for its steps. Its rate with this time is then lower than the one reported."
    )
    detected = (
        "A model is in evaluation mode for more than 10 % of the time of its steps, and no batch of a loader and no "
        "method of a library tells that it is evaluated."
    )
    bad = Example(
        _SEEN + "wrapped.evaluation_s = 900.0\nwrapped.evaluation_mode_s = 900.0\n", "Most of the time is in no step."
    )
    good = Example(_SEEN + "wrapped.evaluation_s = 900.0\n", "Batches of other data were read in this time.")
    fix = "if its steps need what it does then, divide their rate by the factor above"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding with the time, and what it would make of the rate."""
        seen, step = record.wrapped, record.quantities.get("step_time_mean")
        if seen is None or step is None or not step.value or not seen.steps:
            return
        factor = 1 + seen.evaluation_mode_s / (step.value * seen.steps)
        if factor > 1 + MUCH:
            yield self.found(
                f"the model was in evaluation mode for {seen.evaluation_mode_s:.3g} s, which is in no step; with it, "
                f"steps take {factor:.3g} times as long"
            )
