"""[collectives] Every collective with a wrong result is caught, and every correct one passes.

Two ranks run gloo, and a backend (models/corrupt.py) that corrupts the results of gloo: one element of one rank off by
one, two neighbours swapped, the part of one rank missing, a NaN, no exchange at all, and one element wrong in every
50th call only. Each case is a run with the command line, which must end as `failed` and name the rank and the element;
the correct ones must complete. The quick form runs three cases this way, and all cases with the same work and check in
one pair of processes, without the command line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figure import arguments, at_most, finish

MODEL = Path(__file__).parents[1] / "lib" / "models" / "corrupt.py"
KINDS = ("all_reduce", "all_gather", "reduce_scatter")
FAULTS = {
    "off": "rank 1: element 1237",
    "swap": "rank 0: element 1237",
    "missing": "wrong result on rank",
    "nan": "found nan",
    "nothing": "wrong result on rank",
    "rare": "rank 1: element 1237",
}
"""Faults, with a text that the last message of the run must contain."""
STEPS = 120
SIZE_MB = 0.01
PAIR_REPEATS, PAIR_LOOKS = 60, 7


@dataclass(frozen=True)
class Case:
    """One collective, with gloo or with the corrupt backend."""

    kind: str
    fault: str = ""
    backend: str = "corrupt"

    def __str__(self) -> str:
        return f"{self.kind} by {self.backend}: {self.fault or 'honest'}"


HONEST = [*(Case(kind, backend="gloo") for kind in KINDS), *(Case(kind) for kind in KINDS)]
CORRUPTED = [Case(kind, fault) for kind in KINDS for fault in FAULTS]
QUICK = [Case("all_reduce", backend="gloo"), Case("all_reduce", "rare"), Case("reduce_scatter", "swap")]


def by_command(case: Case) -> str | None:
    """Return the problem with the outcome of a run, or None."""
    with tempfile.TemporaryDirectory(prefix="steelyard-collectives-") as folder:
        command = [
            sys.executable, "-m", "steelyard.cli.main", "run", f"{MODEL}:{case.kind}", "--mode", "ceiling", "--json",
            "--results", folder, "--device", "cpu", "--devices", "2", "--backend", case.backend, "--batch", "2",
            "--model", f"size_mb={SIZE_MB}", "--threads", "1",
            "--min-steps", str(STEPS), "--max-steps", str(STEPS), "--min-seconds", "0",
            "--set", "crosscheck_steps=4",
        ]  # fmt: skip
        environment = {**os.environ, "CORRUPT": case.fault}
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if not done.stdout:
        return done.stderr
    record: dict[str, Any] = json.loads(done.stdout)["runs"][0]
    code, reason = record["status"]["code"], record["status"]["reason"]
    if case.fault:
        caught = code == "failed" and "wrong result" in reason and FAULTS[case.fault] in reason
        return None if caught else f"{code}: {reason}"
    bandwidth = record["quantities"].get("bus_bandwidth", {}).get("value")
    return None if code == "completed" and bandwidth else f"{code}: {reason}"


def in_one_pair() -> dict[str, str | None]:
    """Run every case in one pair of processes."""
    with tempfile.TemporaryDirectory(prefix="steelyard-collectives-") as folder:
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__,
            "--pair", folder,
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        ranks = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(2)]
    outcomes: dict[str, str | None] = {}
    for case in [case for case in (*HONEST, *CORRUPTED) if case.backend == "corrupt"]:
        words = [f"rank {rank}: {found[str(case)]}" for rank, found in enumerate(ranks) if found[str(case)]]
        if case.fault:
            # The engine adds the rank to the message; here it is missing.
            wanted = FAULTS[case.fault].removeprefix("wrong result on ")
            outcomes[str(case)] = None if any(wanted in text for text in words) else f"not caught: {words}"
        else:
            outcomes[str(case)] = "; ".join(words) or None
    return outcomes


def pair(folder: Path) -> None:
    """One of the two processes: return the result of its checks in each case."""
    import torch
    import torch.distributed as dist

    sys.path.append(str(MODEL.parent))
    corrupt: Any = __import__("corrupt")
    dist.init_process_group("corrupt")
    group: Any = dist.group.WORLD
    found = {}
    for case in [case for case in (*HONEST, *CORRUPTED) if case.backend == "corrupt"]:
        group.fault = ""
        work = getattr(corrupt, case.kind)(size_mb=SIZE_MB).make(torch.device("cpu"), torch.float32, PAIR_LOOKS)
        group.fault, group.calls = case.fault, 0
        faults = []
        for number in range(PAIR_REPEATS):
            work.step()
            if number % PAIR_LOOKS == PAIR_LOOKS - 1 or number == PAIR_REPEATS - 1:
                faults.append(work.fault())
        found[str(case)] = next((fault for fault in faults if fault), None)
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def main() -> None:
    options = arguments(__doc__, pair={"type": Path, "default": None, "help": "be one of the pair of processes"})
    if options.pair is not None:
        pair(options.pair)
        return
    cases = QUICK if options.quick else [*HONEST, *CORRUPTED]
    # Nothing here is timed.
    with ThreadPoolExecutor(2) as pool:
        shared = pool.submit(in_one_pair) if options.quick else None
        ends = pool.map(by_command, cases)
        outcomes = {f"{case}, by the command line": wrong for case, wrong in zip(cases, ends, strict=True)}
        if shared is not None:
            outcomes |= {f"{name}, in one pair": wrong for name, wrong in shared.result().items()}
    for name, wrong in outcomes.items():
        print(f"{name}: {'WRONG ' + wrong if wrong else 'as it should be'}")
    honest = {name: wrong for name, wrong in outcomes.items() if "honest" in name}
    corrupted = {name: wrong for name, wrong in outcomes.items() if name not in honest}
    finish(
        [
            at_most(f"collectives: corrupted and not caught, of {len(corrupted)}", _wrong(corrupted), "cases", 0),
            at_most(f"collectives: honest and called wrong, of {len(honest)}", _wrong(honest), "cases", 0),
        ]
    )


def _wrong(outcomes: dict[str, str | None]) -> int:
    return sum(wrong is not None for wrong in outcomes.values())


if __name__ == "__main__":
    main()
