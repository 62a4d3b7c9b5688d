"""[slurm_overhead] A run on two nodes is as fast with the launcher as by hand with srun and torchrun.

The speed of a machine varies by several percent between launches. So both runs exist at the same time and take turns
of half a second: while one works, the other is stopped. Steps that contain a stop are left out. Each turn is compared
with the next turn of the other side, so that other load affects both; the result of a pair is the median of these
ratios.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cluster import Cluster, clean_environment, descendants
from figure import arguments, at_least, finish, of_time
from steelyard.contracts.observe import SPEC_FILE
from steelyard.contracts.sample_files import read_chunks
from steelyard.launch.plan import campaigns
from steelyard.results.store import ResultFolder, read_progress

STUDY = """
name = "pace"
repeats = 1

[run]
workload = "tiny"
model = { width = 512, depth = 6 }
device = "cpu"
batch = 32
devices = 2
threads = 1
crosscheck_steps = 0
budget = { min_steps = 1000000, max_steps = 1000000, max_seconds = 100000 }
"""
BY_HAND = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --mem=2000M
#SBATCH --output=/dev/null
export OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo
srun --cpus-per-task=1 {python} -m torch.distributed.run --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d \\
  --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint=127.0.0.1:$((20000 + SLURM_JOB_ID % 10000)) -m steelyard.worker {raw}
"""
TURN_S = 0.5
WARM_UP = 20
LONGEST_S = 120.0


@dataclass
class Side:
    """One of the two runs."""

    cluster: Cluster
    job: str
    raw: Path

    def workers(self) -> list[int]:
        """Its ranks."""
        found = []
        for process in descendants(self.cluster.guard_pid):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
                starter = b"torch.distributed.run" in words or b"srun" in words[0]
                if os.fsencode(self.raw) in words and b"steelyard.worker" in words and not starter:
                    found.append(process)
        return found

    def is_warm(self) -> bool:
        """Whether it made its first steps."""
        return int((read_progress(self.raw) or {}).get("steps", 0)) > WARM_UP

    def send(self, number: int, ranks: list[int]) -> None:
        """Send a signal to its ranks."""
        for process in ranks:
            os.kill(process, number)

    def turns_s(self) -> list[float]:
        """Return the mean step time of each turn between its first and last stop."""
        chunks = read_chunks(self.raw / "steps-00000.bin", 0, 10**9, check=True)
        steps = np.concatenate([chunk.column("step_s") for chunk in chunks])
        # A step takes a few hundredths of a turn.
        held = steps > TURN_S
        stops = np.cumsum(held)
        turns = [steps[(stops == number) & ~held] for number in range(1, int(stops[-1]))]
        print(f"  {sum(map(len, turns))} steps in {len(turns)} turns")
        return [float(turn.mean()) if len(turn) else math.nan for turn in turns]

    def finish_block(self, ranks: list[int]) -> None:
        """Wait until the last steps are in its file: steps are written per block."""
        file = self.raw / "steps-00000.bin"
        size = file.stat().st_size
        self.send(signal.SIGCONT, ranks)
        self.cluster.wait_for(lambda: file.stat().st_size > size, "it writes a block", LONGEST_S)
        self.send(signal.SIGSTOP, ranks)


def launched(cluster: Cluster, home: Path) -> Side:
    """Submit the run with steelyard."""
    study = home / "study.toml"
    study.write_text(STUDY, encoding="utf-8")
    command = [sys.executable, "-m", "steelyard.cli.main", "study", str(study), "--site", str(cluster.site())]
    environment = {**clean_environment(), **cluster.variables}
    subprocess.run(
        [*command, "--results", str(home / "results")], env=environment, check=True, stdout=subprocess.DEVNULL
    )
    campaign = campaigns(ResultFolder(home / "results"), "pace")[0]
    job = campaign.plan.jobs[0]
    return Side(cluster, (campaign.job_id(job) or "").partition(";")[0], campaign.raw(job.tasks[0][0]))


def by_hand(cluster: Cluster, home: Path, spec: Path) -> Side:
    """Start the same run by hand."""
    raw = home / "by_hand"
    raw.mkdir()
    shutil.copy(spec, raw / SPEC_FILE)
    script = home / "by_hand.sh"
    script.write_text(BY_HAND.format(python=sys.executable, raw=raw), encoding="utf-8")
    return Side(cluster, cluster.run("sbatch", "--parsable", str(script)).strip(), raw)


def pair(cluster: Cluster, home: Path, seconds: float, *, first: int) -> float:
    """Return the throughput with the launcher divided by that by hand, from turns of both."""
    home.mkdir()
    ours = launched(cluster, home)
    sides = [ours, by_hand(cluster, home, ours.raw / SPEC_FILE)]
    ranks: list[list[int]] = []
    try:
        for side in sides:
            # Stop it until the other is warm too.
            cluster.wait_for(side.is_warm, "it makes steps", LONGEST_S)
            ranks.append(side.workers())
            assert len(ranks[-1]) == 2, f"{len(ranks[-1])} ranks"
            side.send(signal.SIGSTOP, ranks[-1])
        turns = itertools.islice(itertools.cycle([first, 1 - first]), 2 * int(seconds / TURN_S / 2))
        for turn in turns:
            sides[turn].send(signal.SIGCONT, ranks[turn])
            time.sleep(TURN_S)  # its turn
            sides[turn].send(signal.SIGSTOP, ranks[turn])
        for side, processes in zip(sides, ranks, strict=True):
            side.finish_block(processes)
    finally:
        for side in sides:
            cluster.run("scancel", side.job)
        cluster.wait_until_empty()
    # The side that finished its block later may have one more turn.
    both = zip(sides[1].turns_s(), sides[0].turns_s(), strict=False)
    ratios = [hand_s / ours_s for hand_s, ours_s in both]
    return statistics.median(ratio for ratio in ratios if not math.isnan(ratio))


def main() -> None:
    options = arguments(__doc__)
    pairs, seconds = (1, 8.0) if options.quick else (10, 20.0)
    ratios = []
    with tempfile.TemporaryDirectory() as name, Cluster(Path(name) / "slurm") as cluster:
        for number in range(pairs):
            ratios.append(pair(cluster, Path(name) / str(number), seconds, first=number % 2))
            print(f"pair {number}: {ratios[-1]:.4f} of the throughput by hand", flush=True)
    error = statistics.stdev(ratios) / math.sqrt(pairs) if pairs > 1 else float("nan")
    print(f"{pairs} pairs, from {min(ratios):.4f} to {max(ratios):.4f}, standard error of their mean {error:.4f}")
    # The standard deviation of a pair is 0.03 (ten pairs, idle machine): the quick form allows three of them.
    finish(
        [
            of_time(
                at_least(
                    "slurm_overhead: throughput",
                    statistics.median(ratios),
                    "of that by hand",
                    0.90 if options.quick else 0.99,
                )
            )
        ]
    )


if __name__ == "__main__":
    main()
