"""Runs of the training programs in `programs/`: the cases, and how one is started with and without an observer."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROGRAMS = Path(__file__).parent / "programs"
STEPS = 100
LIMIT_S = 300
"""No program takes so long, even if everything that it compiles is new."""
PAIRS = ((1, 1, False), (1, 4, True), (2, 1, True), (2, 4, False))
"""Ranks, accumulation and compile: each pair of values of two of them occurs."""
NOT_COMPILED = ((1, 1, False), (1, 4, False), (2, 1, False), (2, 4, False))
SURROUNDINGS = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


@dataclass(frozen=True)
class Program:
    """A file in `programs/` and what it can do."""

    name: str
    batch: int
    """Samples of a micro-batch, so that a step takes some milliseconds."""
    package: str = "torch"
    """What it imports beside the standard library."""
    combinations: tuple[tuple[int, int, bool], ...] = PAIRS
    backend: str = "aot_eager"
    """Of torch.compile. It traces models and gradients as inductor does, which takes minutes to write C++ for them."""
    options: tuple[str, ...] = ()
    steps: int = STEPS
    always_torchrun: bool = False
    """It needs the variables of torchrun for one rank too."""
    sees_batches: bool = True
    """Its batches come from a DataLoader; otherwise only the program knows its samples and tokens."""
    stable_output: bool = True
    """Its standard output is the same each time; otherwise it contains times."""
    environment: Mapping[str, str] = field(default_factory=dict)


ALL = (
    Program("plain", batch=32, backend="inductor"),
    Program("nanogpt_like", batch=4, sees_batches=False),
    Program("amp_scaler", batch=16),
    Program("gan", batch=32),
    Program("gan", batch=32, options=("--critic", "5"), combinations=((1, 1, False), (2, 4, False))),
    Program("lbfgs", batch=16),
    # Its gradients are gone after each backward pass: no accumulation, no DDP.
    Program("per_parameter", batch=16, combinations=((1, 1, False), (1, 1, True))),
    Program("text", batch=8),
    # Not compiled: with texts of different lengths that had not ended after 300 s on two busy cores.
    Program("hf_trainer", batch=8, package="accelerate", stable_output=False, combinations=NOT_COMPILED),
    Program("accelerate_loop", batch=16, package="accelerate"),
    Program("lightning_module", batch=16, package="lightning"),
    # Its log is part of its output, with the time of day.
    Program("deepspeed_loop", batch=16, package="deepspeed", always_torchrun=True, stable_output=False),
    Program(
        "deepspeed_loop", batch=16, package="deepspeed", always_torchrun=True, stable_output=False,
        options=("--zero", "1"), combinations=((2, 4, False),),
    ),
    # Not compiled: on two busy cores that had not ended after 100 s.
    Program(
        "torchtitan_loop", batch=4, package="torchtitan", always_torchrun=True, stable_output=False, steps=40,
        combinations=NOT_COMPILED,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A program with all its options."""

    program: Program
    ranks: int = 1
    accumulation: int = 1
    compile: bool = False
    steps: int = STEPS
    seed: int = 1

    @property
    def name(self) -> str:
        """Say what is run, for people."""
        parts = [self.program.name, *self.program.options, f"ranks {self.ranks}", f"accumulation {self.accumulation}"]
        return ", ".join([*parts, *(["compiled"] if self.compile else [])])

    @property
    def installed(self) -> bool:
        """Whether what the program imports is here."""
        return importlib.util.find_spec(self.program.package) is not None

    def words(self) -> list[str]:
        """Return the command as a user types it."""
        start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}"]
        numbers = {
            "--steps": self.steps, "--batch": self.program.batch, "--accumulation": self.accumulation,
            "--seed": self.seed,
        }  # fmt: skip
        return [
            sys.executable,
            *(start if self.ranks > 1 or self.program.always_torchrun else []),
            str(PROGRAMS / f"{self.program.name}.py"),
            *(word for name, value in numbers.items() for word in (name, str(value))),
            *(["--compile", self.program.backend] if self.compile else []),
            *self.program.options,
        ]


CASES = tuple(
    Case(program, ranks, accumulation, compiled, program.steps)
    for program in ALL
    for ranks, accumulation, compiled in program.combinations
)


class Outcome(NamedTuple):
    """What a run of a program leaves."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    truth: dict[str, Any]
    """Empty if the program wrote none."""


def run(case: Case, environment: Mapping[str, str] | None = None, prefix: Sequence[str] = ()) -> Outcome:
    """Run a case in an empty folder; `prefix` comes before its command, `environment` beside its variables."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "truth.json"
        place = Path(folder) / "work"
        place.mkdir()
        variables = {**os.environ, **SURROUNDINGS, **case.program.environment, **(environment or {})}
        done = subprocess.run(
            [*prefix, *case.words()],
            env={**variables, "TRUTH": str(file)},
            cwd=place,
            capture_output=True,
            check=False,
            timeout=LIMIT_S,
        )
        truth = json.loads(file.read_text(encoding="utf-8"))["truth"] if file.exists() else {}
    return Outcome(done.returncode, done.stdout, done.stderr, truth)
