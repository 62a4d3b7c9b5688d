"""[overhead] What the harness adds to a step, against a loop written by hand, interleaved in one process.

The harness side is the whole of it: blocks, timer, sample file, stop rule, progress. Tiny steps give the microseconds
that it adds; steps of about 50 ms give its share of the throughput, for one rank and for two ranks of DDP.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from figure import Figure, arguments, at_least, at_most, finish
from steelyard.contracts.spec import Budget, RunSpec
from steelyard.worker.engine.between import Between
from steelyard.worker.engine.blocks import BlockLoop
from steelyard.worker.engine.torch_entry import open_job
from steelyard.worker.measure.timer import StepTimer
from steelyard.worker.measure.writer import EventLog, StepWriter

MICRO = 1e6
LONG = {"width": 512, "depth": 6}
LONG_BATCH = 512


class ByHarness:
    """Steps as the worker makes them: one block at a time, with all that belongs to it."""

    def __init__(self, spec: RunSpec, folder: Path) -> None:
        job = open_job(spec)
        self.workload: Any = job.build()[0]
        timer = StepTimer(job.devices[0], self.workload)
        log = EventLog(folder, job.team.process) if job.team.process == 0 else None
        between = Between(self.workload, None, log=log, now=time.perf_counter, beat=lambda: None)
        writer = StepWriter(folder, job.team.process)
        self._loop = BlockLoop(spec, [timer], writer, folder, job.team, lambda: None, between)

    def seconds(self, steps: int) -> float:
        """For so many steps."""
        begin_s = time.perf_counter()
        self._loop.advance(steps)
        return time.perf_counter() - begin_s


class ByHand:
    """The loop without a harness, on the very same model, optimizer and batch: memory laid out alike."""

    def __init__(self, workload: Any) -> None:
        workload.take()
        ((self._x, self._y),) = workload._pieces  # noqa: SLF001 -- nothing else has them
        self._module, self._optimizer = workload._module, workload._optimizer  # noqa: SLF001
        self._loss = workload._loss  # noqa: SLF001

    def seconds(self, steps: int) -> float:
        """For so many steps."""
        module, loss, optimizer, x, y = self._module, self._loss, self._optimizer, self._x, self._y
        begin_s = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad()
            loss(module(x), y).backward()
            optimizer.step()
        return time.perf_counter() - begin_s


def pairs(spec: RunSpec, count: int, steps: int) -> list[tuple[float, float]]:
    """Seconds a step of both, in turn, each first every other time."""
    with tempfile.TemporaryDirectory() as name:
        harness = ByHarness(spec, Path(name))
        return interleaved(harness, ByHand(harness.workload), count, steps)


def interleaved(harness: ByHarness, hand: Any, count: int, steps: int) -> list[tuple[float, float]]:
    """Seconds a step of both; the first of each are not counted: the model's memory is laid out then."""
    found = []
    for number in range(-2, count):
        if number % 2:
            bare_s = hand.seconds(steps)
            ours_s = harness.seconds(steps)
        else:
            ours_s = harness.seconds(steps)
            bare_s = hand.seconds(steps)
        if number >= 0:
            found.append((bare_s / steps, ours_s / steps))
    return found


def spec(**settings: Any) -> RunSpec:
    budget = Budget(max_steps=10**9, max_seconds=1e9)
    return RunSpec(run_id="o", cell="o", workload="tiny", device="cpu", budget=budget, threads=1, **settings)


def microseconds(found: list[tuple[float, float]], *, quick: bool) -> Figure:
    added = sorted(MICRO * (ours - bare) for bare, ours in found)
    middle, bare = statistics.median(added), statistics.median(bare for bare, _ in found)
    error, half = spread(added)
    print(f"tiny: bare step {1e3 * bare:.3f} ms, added {middle:.2f} us a step, standard error {error:.2f}, {half}")
    return at_most("overhead: added to a step of a tiny model", middle, "us", 15.0 + (3 * error if quick else 0.0))


def share(ranks: int, found: list[tuple[float, float]], *, quick: bool) -> Figure:
    ratios = sorted(bare / ours for bare, ours in found)
    middle, bare = statistics.median(ratios), statistics.median(bare for bare, _ in found)
    error, half = spread(ratios)
    print(f"{ranks} rank(s): bare step {1e3 * bare:.1f} ms, {middle:.4f} of bare, standard error {error:.4f}, {half}")
    name = f"overhead: throughput on long steps, {ranks} rank(s)"
    return at_least(name, middle, "of bare", 0.99 - (3 * error if quick else 0.0))


def spread(values: list[float]) -> tuple[float, str]:
    """Standard error of the median, by the middle half. A quick run may miss a bar by three of them, a full one not."""
    low, high = values[len(values) // 4], values[-1 - len(values) // 4]
    error = 1.25 * (high - low) / 1.35 / math.sqrt(len(values))
    return error, f"middle half of {len(values)} pairs {low:.4g} to {high:.4g}"


def two_ranks(count: int, steps: int) -> list[tuple[float, float]]:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__,
        "--part", str(count), str(steps),
    ]  # fmt: skip
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, env=surroundings, check=True, capture_output=True, text=True)
    return [tuple(pair) for pair in json.loads(done.stdout.splitlines()[-1])]


def part(count: int, steps: int) -> None:
    """One rank of two."""
    found = pairs(spec(ranks=2, batch=LONG_BATCH, model=LONG), count, steps)
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


def main() -> None:
    options = arguments(__doc__, part={"nargs": 2, "type": int, "help": "one rank of two: pairs and steps"})
    if options.part:
        part(*options.part)
        return
    torch.set_num_threads(1)
    quick = options.quick
    one = pairs(spec(batch=LONG_BATCH, model=LONG), *((15, 4) if quick else (101, 8)))
    # Ranks agree after each block, and a block of a real run lasts up to 5 s: short ones would count that too often.
    two = two_ranks(*((11, 6) if quick else (61, 20)))
    tiny = pairs(spec(), 45 if quick else 151, 300)
    finish([microseconds(tiny, quick=quick), share(1, one, quick=quick), share(2, two, quick=quick)])


if __name__ == "__main__":
    main()
