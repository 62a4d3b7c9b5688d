"""[wrap_claims] Whether what a program prints is true: programs with one known bug each, and programs without any.

The programs in benchmarks/lib/programs/claims run under `steelyard wrap`. Each knows how many times the right figure it
prints, by its own clock and counts. The bug must be found with this factor within 1 % where it follows from what is
counted, and with the right cause everywhere. Clean programs must raise no alarm; among them are the real Trainer of
transformers, the real tqdm and Lightning. Programs that need a queue or a peak run on the scripted accelerator.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from figure import arguments, at_least, at_most, finish
from program_cases import LIMIT_S, PROGRAMS, SURROUNDINGS
from steelyard.results.store import ResultFolder

if TYPE_CHECKING:
    from steelyard.contracts.record import PrintedClaim

SCRIPTED = ("--device", "scripted", "--steps", "41", "--every", "10")


@dataclass(frozen=True)
class Case:
    """A program with its options, and what must be said about it."""

    name: str
    words: tuple[str, ...]
    cause: str = ""
    """Part of the message; empty: a clean program."""
    exact: bool = False
    """The factor is known by construction."""
    ranks: int = 1
    options: tuple[str, ...] = ()
    """Of `steelyard wrap`."""
    packages: tuple[str, ...] = ()
    """What the program imports beside torch."""

    @property
    def command(self) -> list[str]:
        """Return the command as a user types it."""
        start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}"]
        script, *rest = self.words
        return [sys.executable, *(start if self.ranks > 1 else []), str(PROGRAMS / "claims" / script), *rest]


def bug(name: str, cause: str, *words: str, **more: object) -> Case:
    return Case(f"bug: {name}", ("loop.py", "--bug", name, *words), cause, **more)  # type: ignore[arg-type]


def clean(name: str, *words: str, **more: object) -> Case:
    return Case(f"clean: {name}", words, **more)  # type: ignore[arg-type]


SECOND = ("--second-pass",)
CASES = (
    bug("no accumulation", "one of the 4 micro-batches", "--style", "samples", "--accumulation", "4", exact=True),
    bug("accumulation twice", "counted twice", "--accumulation", "3", exact=True),
    bug("padding", "padding", exact=True),
    bug("one rank", "one of the 2 devices", "--style", "total", ranks=2, exact=True),
    bug("all ranks", "all 2 devices", "--style", "device", ranks=2, exact=True),
    bug("evaluation", "evaluations are in its time", "--evaluate"),
    bug("first step", "the first step", "--style", "mean"),
    bug("input wait", "the wait for input", "--style", "time"),
    bug("samples", "samples are counted", exact=True),
    bug("no synchronisation", "does not wait for the device", *SCRIPTED, "--style", "time"),
    bug("impossible", "impossible", *SCRIPTED, "--style", "only mfu"),
    bug("other peak", "312.0 TFLOP/s", *SCRIPTED, "--style", "mfu", options=SECOND, exact=True),
    bug("sparsity", "with sparsity", *SCRIPTED, "--style", "mfu", options=SECOND, exact=True),
    clean("samples/s with accumulation", "loop.py", "--style", "samples", "--accumulation", "4"),
    clean("tokens/s without padding", "loop.py"),
    clean("total of 2 ranks", "loop.py", "--style", "total", ranks=2),
    clean("tokens/s of one of 2 devices", "loop.py", "--style", "device", ranks=2),
    clean("evaluation left out", "loop.py", "--evaluate", "--style", "time"),
    clean("nanoGPT's line", "loop.py", "--style", "nanogpt", "--accumulation", "2"),
    clean("Megatron's line", "loop.py", "--style", "megatron", ranks=2),
    clean("MaxText's line", "loop.py", "--style", "maxtext"),
    clean("tqdm's bar", "loop.py", "--style", "bar"),
    clean("Hugging Face's Trainer", "trainers.py", "hugging_face", packages=("transformers", "accelerate")),
    clean("the Trainer with accumulation", "trainers.py", "hugging_face", "--accumulation", "4",
          packages=("transformers", "accelerate")),
    clean("Lightning's bar", "trainers.py", "lightning", packages=("lightning",)),
    clean("synchronised", "loop.py", *SCRIPTED, "--style", "mfu"),
    clean("MFU by the right peak", "loop.py", *SCRIPTED, "--style", "mfu", options=SECOND),
)  # fmt: skip
QUICK = ("bug: padding", "clean: samples/s with accumulation")


@dataclass(frozen=True)
class Outcome:
    """What was said about the figures of a program."""

    case: Case
    claims: tuple[PrintedClaim, ...]
    factor: float
    """How many times the right figure it prints, by the program itself."""
    said: str

    @property
    def alarms(self) -> list[PrintedClaim]:
        """Return what became a finding."""
        return [claim for claim in self.claims if claim.verdict == "differs" and not claim.by_definition]

    @property
    def off(self) -> float:
        """Return the error of the factor in percent, if it is known by construction."""
        told = next((claim.factor for claim in self.alarms), None)
        return 100 * abs(told / self.factor - 1) if self.case.exact and told is not None else 0.0

    @property
    def problem(self) -> str:
        """Return what is wrong about what was said; empty: nothing."""
        said = "; ".join(claim.sentence for claim in self.alarms)
        if self.case.cause:
            right = self.alarms and all(self.case.cause in claim.sentence for claim in self.alarms)
            return "" if right else said or "the bug was not found"
        checked = any(claim.verdict == "agrees" or claim.by_definition for claim in self.claims)
        return said or ("" if checked else "no figure was checked")


def run(case: Case) -> Outcome:
    """Run a program under `steelyard wrap`."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, truth = Path(scratch) / "results", Path(scratch) / "truth.json"
        wrap = [sys.executable, "-m", "steelyard.cli.main", "wrap", "--results", str(folder), *case.options, "--"]
        done = subprocess.run(
            [*wrap, *case.command],
            env={**os.environ, **SURROUNDINGS, "TRUTH": str(truth)},
            cwd=scratch,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        if done.returncode:
            raise SystemExit(f"{case.name} failed:\n{done.stderr}")
        (record,) = ResultFolder(folder).records()
        factor = json.loads(truth.read_text(encoding="utf-8"))["factor"] if truth.exists() else math.nan
        return Outcome(case, record.printed, factor, done.stderr)


def show(outcome: Outcome, *, said: bool) -> Outcome:
    """Print one line on a program, or everything that was said."""
    told = ", ".join(f"{claim.factor:.4f}" for claim in outcome.alarms if claim.factor is not None)
    right = f"right{', factor ' + told if told else ''}{f', by the program {outcome.factor:.4f}' if told else ''}"
    print(f"{outcome.case.name}: {outcome.problem or right}", flush=True)
    if said:
        print(outcome.said)
    return outcome


def main() -> None:
    options = arguments(
        __doc__,
        only={"help": "run only the cases whose name contains this"},
        show={"action": "store_true", "help": "print what `steelyard wrap` says"},
    )
    chosen = [case for case in CASES if (case.name in QUICK if options.quick else (options.only or "") in case.name)]
    cases = [case for case in chosen if all(map(importlib.util.find_spec, case.packages))]
    for case in chosen:
        if case not in cases:
            print(f"{case.name}: left out, because {' or '.join(case.packages)} is not installed")
    # Two of the quick ones together: most of their time is the start of torch.
    with ThreadPoolExecutor(2 if options.quick else 1) as pool:
        outcomes = [show(outcome, said=options.show) for outcome in pool.map(run, cases)]
    wrong = [outcome.case for outcome in outcomes if outcome.problem]
    missed = sum(bool(case.cause) for case in wrong)
    bugs, fewest = sum(bool(case.cause) for case in cases), 1 if options.quick or options.only else 10
    finish(
        [
            at_least("wrap_claims: programs with a bug", bugs, "programs", fewest),
            at_most("wrap_claims: bugs not found, or with another cause", missed, "programs", 0),
            at_most("wrap_claims: largest error of a factor that is known", max(one.off for one in outcomes), "%", 1.0),
            at_least("wrap_claims: clean programs", len(cases) - bugs, "programs", fewest),
            at_most("wrap_claims: clean programs with an alarm", len(wrong) - missed, "programs", 0),
        ]
    )


if __name__ == "__main__":
    main()
