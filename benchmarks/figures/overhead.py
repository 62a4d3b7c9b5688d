"""[overhead] Time that the harness adds to a step, compared with a hand-written loop, interleaved in one process.

The harness side includes everything: blocks, timer, sample file, stop rule, progress. Tiny steps show the added
microseconds, in turns of 30 ms, because the speed of the machine varies from second to second; the work between blocks
counts once per 300 steps. Steps of about 50 ms show the share of the throughput, for one rank and for two ranks of DDP.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from figure import Figure, arguments, at_least, finish, of_time, timed
from steelyard.contracts.spec import Budget, RunSpec
from steelyard.derive.observations import StepSamples
from steelyard.worker.engine.between import Between
from steelyard.worker.engine.blocks import BlockLoop
from steelyard.worker.engine.timer import StepTimer
from steelyard.worker.engine.torch_entry import open_job
from steelyard.worker.measure.writer import EventLog, StepWriter
from steelyard.worker.workloads.feed import BATCHES

if TYPE_CHECKING:
    from collections.abc import Callable

MICRO = 1e6
TINY_TURN_S, TINY_BLOCK = 0.03, 300
LONG = {"width": 512, "depth": 6}
LONG_BATCH = 512


class ByHarness:
    """Steps as in the worker: one block at a time, with all the work around it."""

    def __init__(self, spec: RunSpec, folder: Path) -> None:
        job = open_job(spec)
        self.workload: Any = job.build()[0]
        timer = StepTimer(job.devices[0], self.workload)
        log = EventLog(folder, job.team.process) if job.team.process == 0 else None
        between = Between(self.workload, None, log=log, now=time.perf_counter, beat=lambda: None)
        writer = StepWriter(folder, job.team.process)
        self.flush = writer.flush
        self._loop = BlockLoop(spec, [timer], writer, folder, job.team, lambda: None, between)

    def seconds(self, steps: int) -> float:
        """Run the steps and return the seconds."""
        begin_s = time.perf_counter()
        self._loop.advance(steps)
        return time.perf_counter() - begin_s


class ByHand:
    """The loop without the harness, on the same model, optimizer and batch, so that the memory layout is the same."""

    def __init__(self, workload: Any) -> None:
        # The batches that take turns: another memory in each step costs both sides the same.
        made = []
        for _ in range(BATCHES):
            workload.take()
            made.append(workload._pieces[0])  # noqa: SLF001 -- nothing else has them
        turns = itertools.cycle(made)
        module, optimizer, loss = workload._module, workload._optimizer, workload._loss  # noqa: SLF001

        def step() -> None:
            x, y = next(turns)
            optimizer.zero_grad()
            loss(module(x), y).backward()
            optimizer.step()

        self.step = step

    def seconds(self, steps: int) -> float:
        """Run the steps and return the seconds."""
        begin_s = time.perf_counter()
        for _ in range(steps):
            self.step()
        return time.perf_counter() - begin_s


def bare_steps(step: Callable[[], Any], count: int) -> list[float]:
    """Return the seconds of each step."""
    times = [time.perf_counter()]
    for _ in range(count):
        step()
        times.append(time.perf_counter())
    return [end - begin for begin, end in pairwise(times)]


def turns(
    harness: ByHarness,
    step: Callable[[], Any],
    folder: Path,
    rounds: int,
    turn_s: float,
    middle: Callable[[Any], float],
) -> tuple[list[float], list[float], list[float]]:
    """Return the median step of each round for both sides, and the seconds of a block outside its steps."""
    # The first steps choose the memory layout and do not count.
    bare_steps(step, 3)
    count = max(1, round(turn_s / statistics.median(bare_steps(step, 5))))
    harness.seconds(count)
    bare, walls = [], []
    for number in range(rounds):
        # Each side comes first every other time.
        if number % 2:
            bare.append(middle(bare_steps(step, count)))
            walls.append(harness.seconds(count))
        else:
            walls.append(harness.seconds(count))
            bare.append(middle(bare_steps(step, count)))
    harness.flush()
    samples = StepSamples(folder, 1)
    steps = np.concatenate(list(samples.step_times(count, samples.steps))).reshape(rounds, count)
    between = [wall - own for wall, own in zip(walls, steps.sum(axis=1).tolist(), strict=True)]
    return bare, [middle(row) for row in steps.tolist()], between


def pairs(spec: RunSpec, count: int, steps: int) -> list[tuple[float, float]]:
    """Return the seconds per step of both sides, in turns; each side comes first every other time."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        harness = ByHarness(spec, Path(name))
        hand = ByHand(harness.workload)
        # The first turn sets the memory layout and does not count.
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
    return RunSpec(run_id="o", configuration="o", workload="tiny", device="cpu", budget=budget, threads=1, **settings)


def microseconds(rounds: int, *, quick: bool) -> Figure:
    """Time added to a step. The work between blocks is spread over 300 steps, the minimum of a block."""
    with tempfile.TemporaryDirectory() as name:
        harness = ByHarness(spec(), Path(name))
        hand = ByHand(harness.workload)
        bare, ours, between = turns(harness, hand.step, Path(name), rounds, TINY_TURN_S, statistics.fmean)
    inside = sorted(MICRO * (b - a) for a, b in zip(bare, ours, strict=True))
    outside = MICRO * statistics.median(between) / TINY_BLOCK
    added = statistics.median(inside) + outside
    error, half = spread(inside)
    print(
        f"tiny: bare step {1e3 * statistics.median(bare):.3f} ms, added {added:.2f} us per step, {outside:.2f} of them "
        f"between blocks, standard error {error:.2f}, {half}"
    )
    return timed("overhead: added to a step of a tiny model", added, "us", 12.0, quick=quick, error=3 * error)


def share(ranks: int, found: list[tuple[float, float]], *, quick: bool) -> Figure:
    ratios = sorted(bare / ours for bare, ours in found)
    middle, bare = statistics.median(ratios), statistics.median(bare for bare, _ in found)
    error, half = spread(ratios)
    print(f"{ranks} rank(s): bare step {1e3 * bare:.1f} ms, {middle:.4f} of bare, standard error {error:.4f}, {half}")
    name = f"overhead: throughput on long steps, {ranks} rank(s)"
    return of_time(at_least(name, middle, "of bare", 0.99 - (3 * error if quick else 0.0)))


def spread(values: list[float]) -> tuple[float, str]:
    """Return the standard error of the median, from the middle half. A quick run may miss a limit by three of them."""
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
    found = pairs(spec(devices=2, batch=LONG_BATCH, model=LONG), count, steps)
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
    # Ranks synchronise after each block. A real block lasts up to 5 s, so short blocks would count this too often.
    two = two_ranks(*((11, 6) if quick else (61, 20)))
    tiny = microseconds(121 if quick else 901, quick=quick)
    finish([tiny, share(1, one, quick=quick), share(2, two, quick=quick)])


if __name__ == "__main__":
    main()
