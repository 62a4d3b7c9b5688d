"""[wrap_truth] A program that was not changed is seen as it is: its steps, samples, tokens, accumulation and time.

Each program in benchmarks/lib/programs counts its own work and reads its own clock. It runs once by itself and once
under `steelyard wrap`. What the record says must be what the program counted. The mean step must be that of the
program's own clock in the same run. The losses of the two runs must be equal in every bit.

The full form has the real packages transformers, accelerate, lightning, deepspeed and torchtitan; those that are not
installed are named and left out. All of them run on a CPU. DeepSpeed needs the variables of torchrun, and compiles its
communication with a C++ compiler when it first runs: minutes on a busy machine, so let it run once before. torchtitan
needs the changes that its program names. `torch.compile` is left out for Hugging Face's Trainer and for torchtitan,
whose batches of different lengths and whose blocks take minutes to compile on two cores.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from figure import arguments, at_least, at_most, finish
from program_cases import CASES, Case, Outcome, run
from steelyard.contracts import sample_files
from steelyard.results.store import ResultFolder

if TYPE_CHECKING:
    from steelyard.contracts.record import RunRecord

FIRST_STEPS = 10
"""The program's own mean leaves them out."""
QUICK = ("accelerate_loop, ranks 1, accumulation 1",)


@dataclass(frozen=True)
class Seen:
    """What the files of a wrapped run say."""

    record: RunRecord
    steps: list[int]
    """Of each rank."""
    accumulations: list[int]
    """Micro-batches of each step of the first rank."""
    samples: float
    tokens: float
    padding: float
    labels: float
    step_s: float


def wrapped(case: Case, folder: Path) -> tuple[Outcome, Seen]:
    """Run a case under `steelyard wrap`; return what it left and what was seen."""
    outcome = run(case, prefix=(sys.executable, "-m", "steelyard.cli.main", "wrap", "--results", str(folder), "--"))
    (record,) = ResultFolder(folder).records()
    raw = next(folder.glob("runs/*/*/raw"))
    tables = [table(path) for path in sorted(raw.glob("steps-*.bin"))]
    works = [table(path) for path in sorted(raw.glob("work-*.bin"))]
    work = np.concatenate(works, axis=1)
    return outcome, Seen(
        record,
        [steps.shape[1] for steps in tables],
        [int(count) for count in works[0][2]],
        samples=sum(float(steps[5].sum()) for steps in tables),
        labels=float(work[3].sum()),
        padding=float(work[4].sum()),
        tokens=float(work[5].sum()),
        step_s=float(tables[0][1][FIRST_STEPS:].mean()),
    )


def table(path: Path) -> np.ndarray:
    """Return all chunks of a file."""
    return np.concatenate([chunk.table for chunk in sample_files.read_chunks(path, 0, sys.maxsize, check=True)], axis=1)


def wrong(case: Case, truth: dict[str, Any], seen: Seen) -> list[str]:
    """Return what the record has otherwise than the program."""
    found = seen.record.wrapped
    assert found is not None
    pairs: dict[str, tuple[object, object]] = {
        "steps": (seen.steps, [truth["steps"]] * case.ranks),
        "accumulation": (found.accumulation, truth["accumulation"]),
        "accumulation of each step": (seen.accumulations, truth["accumulations"]),
        "skipped updates": (found.skipped_updates, truth["skipped"]),
        "updates": (found.updates, truth["updates"]),
    }
    if case.program.sees_batches:
        pairs["samples"] = (seen.samples, truth["samples"])
        if truth["tokens"] is not None:
            pairs["tokens"] = (seen.tokens, truth["tokens"] - (truth["padding_tokens"] or 0))
            if truth["padding_tokens"] is not None:
                pairs["padding"] = (seen.padding, truth["padding_tokens"])
            pairs["labels"] = (seen.labels, truth["label_tokens"])
    else:
        pairs["samples"] = (found.samples, "unknown")
    return [f"{name}: {ours} instead of {theirs}" for name, (ours, theirs) in pairs.items() if ours != theirs]


class Compared(NamedTuple):
    """A case by itself and under `steelyard wrap`."""

    words: str
    is_wrong: bool
    has_other_losses: bool = False
    off_percent: float = 0.0


def compared(case: Case) -> Compared:
    """Run a case by itself and under `steelyard wrap`."""
    begin_s = time.monotonic()
    try:
        alone = run(case)
        with tempfile.TemporaryDirectory() as scratch:
            outcome, seen = wrapped(case, Path(scratch) / "results")
    except subprocess.TimeoutExpired as error:
        return Compared(f"{case.name}: had not ended after {error.timeout:.0f} s", is_wrong=True)
    off = 100 * abs(seen.step_s / outcome.truth["step_s"] - 1)
    problems = wrong(case, outcome.truth, seen)
    if outcome.exit_code != alone.exit_code or (case.program.stable_output and outcome.stdout != alone.stdout):
        problems.append("the output differs")
    words = (
        f"{case.name}: step {off:.3f} % off; {'; '.join(problems) or 'all counts right'}; "
        f"{time.monotonic() - begin_s:.0f} s"
    )
    return Compared(words, bool(problems), alone.truth["losses"] != outcome.truth["losses"], off)


def main() -> None:
    options = arguments(__doc__, only={"help": "run only the cases whose name contains this"})
    chosen = [case for case in CASES if (case.name in QUICK if options.quick else (options.only or "") in case.name)]
    missing = sorted({case.program.package for case in chosen if not case.installed})
    if missing:
        print(f"not installed, and left out: {', '.join(missing)}")
    # Those that take long first, so that no processor waits at the end.
    cases = sorted(
        (case for case in chosen if case.installed), key=lambda case: (case.program.package == "torch", -case.ranks)
    )
    faults, off, other = 0, [0.0], 0
    # Two at a time: the two clocks that are compared read the same run.
    with ThreadPoolExecutor(max_workers=2) as pool:
        for found in pool.map(compared, cases):
            print(found.words, flush=True)
            faults, other = faults + found.is_wrong, other + found.has_other_losses
            off.append(found.off_percent)
    finish(
        [
            at_least("wrap_truth: programs with their options", len(cases), "runs", 1 if options.quick else 30),
            at_most("wrap_truth: runs with a wrong count or other output", faults, "runs", 0),
            at_most("wrap_truth: mean step, largest difference from the program's own clock", max(off), "%", 0.5),
            at_most("wrap_truth: runs with other losses", other, "runs", 0),
        ]
    )


if __name__ == "__main__":
    main()
