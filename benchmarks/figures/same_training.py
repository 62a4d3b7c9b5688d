"""[same_training] The harness does not change the training: losses equal those of a hand-written loop, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from figure import Figure, arguments, finish

MODELS = Path(__file__).parents[1] / "lib" / "models"
STEPS, BATCH = 50, 16


def losses(folder: Path, ranks: int) -> list[list[str]]:
    """Return the losses of every rank as exact numbers."""
    return [[line.split()[0] for line in (folder / str(rank)).read_text().splitlines()] for rank in range(ranks)]


def by_harness(folder: Path, ranks: int, accumulation: int) -> int:
    """Run the command as a user types it; return its seed."""
    command = [
        sys.executable, "-m", "steelyard.cli.main", "run", f"{MODELS / 'logged.py'}:build", "--json",
        "--nproc", str(ranks), "--batch", str(BATCH), "--accumulation", str(accumulation), "--data", "host",
        "--threads", "1", "--min-steps", str(STEPS), "--max-steps", str(STEPS), "--min-seconds", "0",
        "--set", "crosscheck_steps=0", "--results", str(folder / "results"),
    ]  # fmt: skip
    done = subprocess.run(command, env=surroundings(folder), check=True, capture_output=True, text=True)
    return int(json.loads(done.stdout)["runs"][0]["spec"]["seed"])


def by_hand(folder: Path, ranks: int, accumulation: int, seed: int) -> None:
    """Run the loop without the harness."""
    words = [str(MODELS / "by_hand.py"), str(seed), str(STEPS), str(BATCH), str(accumulation)]
    starter = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    command = [sys.executable, *starter, *words]
    # What it reports on a failure is seen: the standard error is not taken.
    subprocess.run(command, env=surroundings(folder), check=True, stdout=subprocess.PIPE)


def surroundings(folder: Path) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    return {**os.environ, "LOSSES": str(folder), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def main() -> None:
    options = arguments(__doc__)
    every = [(1, 1), (1, 4), (2, 1), (2, 4)]
    different = compared = 0
    for ranks, accumulation in [(1, 1), (2, 4)] if options.quick else every:
        with tempfile.TemporaryDirectory() as name:
            ours, bare = Path(name) / "ours", Path(name) / "bare"
            by_hand(bare, ranks, accumulation, by_harness(ours, ranks, accumulation))
            pairs = [
                (a, b)
                for one, other in zip(losses(ours, ranks), losses(bare, ranks), strict=True)
                for a, b in zip(one, other, strict=True)
            ]
        assert len(pairs) == ranks * accumulation * STEPS, f"{len(pairs)} losses"
        wrong = sum(a != b for a, b in pairs)
        print(f"{ranks} rank(s), accumulation {accumulation}: {len(pairs)} losses, {wrong} differ; last {pairs[-1]}")
        different += wrong
        compared += len(pairs)
    finish([Figure("same_training", different, f"of {compared} losses differ in any bit", "== 0", different == 0)])


if __name__ == "__main__":
    main()
