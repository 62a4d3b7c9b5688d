"""[same_training] The harness does not change the training: losses equal those of a hand-written loop, bit for bit.

So do those with the tuning settings that only move data or choose among equal kernels. A fused optimizer rounds in its
own way: its losses may differ in the last bits, by a bounded amount.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from figure import Figure, arguments, finish

MODELS = Path(__file__).parents[1] / "lib" / "models"
STEPS, BATCH = 50, 16
IN_TURN = 4
"""Synthetic micro-batches on the device that take turns."""
LAST_BITS = 5e-6
"""Bound on the relative difference of a loss with a fused optimizer. fp32 rounds to 6e-8, and 50 steps add up."""
TUNED = ("--preset", "tuned", "--optimizer-kernel", "default", "--pin-memory")
"""The preset with everything that must not change a bit."""


@dataclass(frozen=True)
class Case:
    """A training by the harness that is repeated by hand."""

    name: str
    ranks: int = 1
    accumulation: int = 1
    options: tuple[str, ...] = ()
    place: str = "host"
    exact: bool = True
    quick: bool = True


CASES = (
    Case("data on the host", quick=False),
    Case("accumulation", accumulation=4, quick=False),
    Case("2 ranks", ranks=2, quick=False),
    Case("2 ranks, accumulation", ranks=2, accumulation=4, quick=False),
    Case("batches on the device, in turn", accumulation=3, place="device", quick=False),
    Case("foreach", options=("--optimizer-kernel", "foreach"), quick=False),
    Case("tuned but not fused, 2 ranks, accumulation", ranks=2, accumulation=4, options=TUNED),
    Case("tuned, batches on the device", accumulation=3, options=("--preset", "tuned"), place="device", exact=False),
)


def losses(folder: Path, ranks: int) -> list[list[str]]:
    """Return the losses of every rank as exact numbers."""
    return [[line.split()[0] for line in (folder / str(rank)).read_text().splitlines()] for rank in range(ranks)]


def by_harness(folder: Path, case: Case) -> int:
    """Run the command as a user types it; return its seed."""
    command = [
        sys.executable, "-m", "steelyard.cli.main", "run", f"{MODELS / 'logged.py'}:build", "--json",
        "--devices", str(case.ranks), "--batch", str(BATCH), "--accumulation", str(case.accumulation),
        "--data", case.place,
        "--threads", "1", "--min-steps", str(STEPS), "--max-steps", str(STEPS), "--min-seconds", "0",
        "--set", "crosscheck_steps=0", "--results", str(folder / "results"), *case.options,
    ]  # fmt: skip
    done = subprocess.run(command, env=surroundings(folder), check=True, capture_output=True, text=True)
    return int(json.loads(done.stdout)["runs"][0]["spec"]["seed"])


def by_hand(folder: Path, ranks: int, accumulation: int, seed: int, in_turn: int = 0) -> None:
    """Run the loop without the harness."""
    words = [str(MODELS / "by_hand.py"), *map(str, (seed, STEPS, BATCH, accumulation, in_turn))]
    starter = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    command = [sys.executable, *starter, *words]
    # What it reports on a failure is seen: the standard error is not taken.
    subprocess.run(command, env=surroundings(folder), check=True, stdout=subprocess.PIPE)


def surroundings(folder: Path) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    return {**os.environ, "LOSSES": str(folder), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def pairs_of(case: Case) -> list[tuple[float, float]]:
    """Return each loss of the harness and of the loop."""
    with tempfile.TemporaryDirectory() as name:
        ours, bare = Path(name) / "ours", Path(name) / "bare"
        seed = by_harness(ours, case)
        by_hand(bare, case.ranks, case.accumulation, seed, IN_TURN if case.place == "device" else 0)
        pairs = [
            (float.fromhex(a), float.fromhex(b))
            for one, other in zip(losses(ours, case.ranks), losses(bare, case.ranks), strict=True)
            for a, b in zip(one, other, strict=True)
        ]
    assert len(pairs) == case.ranks * case.accumulation * STEPS, f"{len(pairs)} losses"
    return pairs


def main() -> None:
    options = arguments(__doc__)
    different = compared = 0
    rounded = 0.0
    for case in CASES:
        if options.quick and not case.quick:
            continue
        pairs = pairs_of(case)
        wrong = sum(a != b for a, b in pairs)
        print(f"{case.name}: {len(pairs)} losses, {wrong} differ; last {pairs[-1]}")
        if case.exact:
            different += wrong
            compared += len(pairs)
        else:
            rounded = max(rounded, *(abs(a / b - 1) for a, b in pairs))
    fused = "largest relative difference of a loss with the preset tuned"
    finish(
        [
            Figure("same_training", different, f"of {compared} losses differ in any bit", "== 0", different == 0),
            Figure("same_training: fused optimizer", rounded, fused, f"<= {LAST_BITS:g}", rounded <= LAST_BITS),
        ]
    )


if __name__ == "__main__":
    main()
