"""[overhead] What the harness adds to a step, against a loop written by hand, interleaved in one process.

The harness side is the whole of it: blocks, timer, sample file, stop rule, progress. Tiny steps give the microseconds
that it adds; steps of about 50 ms give its share of the throughput, for one rank and for two ranks of DDP.
"""

from __future__ import annotations

import json
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
from torch.nn.parallel import DistributedDataParallel

from figure import Figure, arguments, at_least, at_most, finish
from steelyard.contracts.spec import Budget, RunSpec
from steelyard.worker.engine.blocks import BlockLoop
from steelyard.worker.engine.torch_entry import open_job
from steelyard.worker.measure.timer import StepTimer
from steelyard.worker.measure.writer import StepWriter
from steelyard.worker.workloads import tiny

MICRO = 1e6
LONG = {"width": 1024, "depth": 6}
LONG_BATCH = 96


class ByHand:
    """The loop without a harness."""

    def __init__(self, spec: RunSpec) -> None:
        torch.manual_seed(spec.seed)
        recipe = tiny.build(**spec.model)  # type: ignore[arg-type]
        self._module: Any = recipe.module
        if dist.is_initialized():
            self._module = DistributedDataParallel(recipe.module)
        self._loss = recipe.loss
        self._optimizer = recipe.optimizer(self._module.parameters())  # type: ignore[operator]
        self._x, self._y = recipe.batch(spec.batch, torch.Generator().manual_seed(0))

    def seconds(self, steps: int) -> float:
        """For so many steps."""
        module, loss, optimizer, x, y = self._module, self._loss, self._optimizer, self._x, self._y
        begin_s = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad()
            loss(module(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return time.perf_counter() - begin_s


class ByHarness:
    """The same steps as the worker makes them."""

    def __init__(self, spec: RunSpec, folder: Path) -> None:
        self._spec = spec
        self._folder = folder
        self._job = open_job(spec)
        self._workload = self._job.build()[0]

    def seconds(self) -> float:
        """For the steps of the spec's budget."""
        timer = StepTimer(self._job.devices[0], self._workload)
        writer = StepWriter(self._folder, self._job.team.process)
        loop = BlockLoop(self._spec, [timer], writer, self._folder, self._job.team, lambda: None)
        begin_s = time.perf_counter()
        loop.run()
        taken_s = time.perf_counter() - begin_s
        writer.close()
        return taken_s


def pairs(spec: RunSpec, count: int) -> list[tuple[float, float]]:
    """Seconds a step of both, in turn, each first every other time."""
    steps = spec.budget.max_steps
    found = []
    with tempfile.TemporaryDirectory() as name:
        harness, hand = ByHarness(spec, Path(name)), ByHand(spec)
        hand.seconds(steps), harness.seconds()
        for number in range(count):
            if number % 2:
                bare_s = hand.seconds(steps)
                ours_s = harness.seconds()
            else:
                ours_s = harness.seconds()
                bare_s = hand.seconds(steps)
            found.append((bare_s / steps, ours_s / steps))
    return found


def spec(steps: int, **settings: Any) -> RunSpec:
    budget = Budget(min_steps=steps, max_steps=steps, min_seconds=0.0)
    return RunSpec(run_id="o", cell="o", workload="tiny", device="cpu", budget=budget, threads=1, **settings)


def microseconds(count: int, steps: int) -> Figure:
    found = pairs(spec(steps), count)
    added = sorted(MICRO * (ours - bare) for bare, ours in found)
    middle, bare = statistics.median(added), statistics.median(bare for bare, _ in found)
    spread = f"{added[len(added) // 4]:.1f} to {added[-1 - len(added) // 4]:.1f}"
    print(f"tiny: bare step {1e3 * bare:.3f} ms, added {middle:.2f} us a step, middle half of {count} pairs {spread}")
    return at_most("overhead: added to a step of a tiny model", middle, "us", 15.0)


def share(ranks: int, found: list[tuple[float, float]]) -> Figure:
    ratios = sorted(bare / ours for bare, ours in found)
    middle, bare = statistics.median(ratios), statistics.median(bare for bare, _ in found)
    spread = f"{ratios[len(ratios) // 4]:.4f} to {ratios[-1 - len(ratios) // 4]:.4f}"
    print(f"{ranks} rank(s): bare step {1e3 * bare:.1f} ms, throughput {middle:.4f} of bare, middle half {spread}")
    return at_least(f"overhead: throughput on long steps, {ranks} rank(s)", middle, "of bare", 0.99)


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
    found = pairs(spec(steps, ranks=2, batch=LONG_BATCH, model=LONG), count)
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


def main() -> None:
    options = arguments(__doc__, part={"nargs": 2, "type": int, "help": "one rank of two: pairs and steps"})
    if options.part:
        part(*options.part)
        return
    torch.set_num_threads(1)
    count, steps = (15, 5) if options.quick else (31, 20)
    finish(
        [
            microseconds(15 if options.quick else 41, 1000 if options.quick else 2000),
            share(1, pairs(spec(steps, batch=LONG_BATCH, model=LONG), count)),
            share(2, two_ranks(count, steps)),
        ]
    )


if __name__ == "__main__":
    main()
