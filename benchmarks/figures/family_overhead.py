"""[family_overhead] The harness keeps at least 0.99 of the bare throughput for every family of workloads.

The same model, optimizer and data run in turns: a short block of steps in the worker, with events, and as many steps in
a hand-written loop. The speed of the machine varies by several percent within a second, so turns are short and median
steps are compared. The work of the harness between blocks (files, progress, checks of results) is measured separately,
and counts as in a run, once per block of 5 s. Sizes are those of the tests.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from figure import Figure, arguments, at_least, finish, of_time
from overhead import ByHarness, spread, turns
from steelyard import plugins
from steelyard.contracts.spec import Budget, RunSpec
from steelyard.worker.engine.blocks import MAX_BLOCK_SECONDS
from steelyard.worker.engine.ceiling_steps import CeilingSteps
from steelyard.worker.engine.generate import Generating
from steelyard.worker.workloads.bundle import call

if TYPE_CHECKING:
    from collections.abc import Callable

TURN_S = 0.08


@dataclass(frozen=True)
class Family:
    """One workload that represents its family."""

    name: str
    workload: str
    batch: int
    mode: str = "train"
    options: tuple[tuple[str, Any], ...] = ()


SMALL = (("size", "custom"), ("layers", 2), ("width", 64), ("heads", 2), ("sequence", 64), ("vocabulary", 500))
FAMILIES = (
    Family("language", "gpt", 4, options=SMALL),
    Family("ceilings", "matmul", 8, "ceiling", (("m", 512), ("n", 512), ("k", 512))),
    Family("generation", "gpt", 4, "generate", (*SMALL, ("prompt", 32), ("new_tokens", 32))),
    Family("classification", "mobilenet-v3-small", 4),
    Family("detection", "fasterrcnn-r50-fpn", 1),
    Family("segmentation", "deeplabv3plus-r101", 2),
    Family("question answering", "bert-base", 4),
    Family("reconstruction", "autoencoder", 16),
)


def by_hand(workload: Any) -> Callable[[], Any]:
    """A step without the harness, on the same objects."""
    if isinstance(workload, CeilingSteps):
        work, repeats = workload._work, workload._batch.computed  # noqa: SLF001
        return lambda: [work.step() for _ in range(repeats)]
    workload.take()
    ((inputs, target),) = workload._pieces  # noqa: SLF001
    module = workload._module  # noqa: SLF001
    if isinstance(workload, Generating):
        made = workload._generation  # noqa: SLF001

        def request() -> None:
            with torch.inference_mode():
                tokens, state = made.prefill(module, inputs)
                for _ in range(made.new_tokens - 1):
                    tokens, state = made.decode(module, tokens, state)

        return request
    optimizer, loss = workload._optimizer, workload._loss  # noqa: SLF001

    def step() -> None:
        optimizer.zero_grad()
        loss(call(module, inputs), target).backward()
        optimizer.step()

    return step


def measured(family: Family, rounds: int, *, quick: bool) -> Figure:
    options = dict(family.options) or plugins.load("workload", family.workload).about.reduced
    spec = RunSpec(
        run_id="o", configuration="o", workload=family.workload, device="cpu", mode=family.mode, batch=family.batch,  # type: ignore[arg-type]
        model=options, threads=1, budget=Budget(max_steps=10**9, max_seconds=1e9),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        harness = ByHarness(spec, Path(name))
        step = by_hand(harness.workload)
        bare, ours, between = turns(harness, step, Path(name), rounds, TURN_S, statistics.median)
    per_block_s = statistics.median(between)
    ratios = sorted(by_hand_s / ours_s for by_hand_s, ours_s in zip(bare, ours, strict=True))
    middle = statistics.median(ratios) * MAX_BLOCK_SECONDS / (MAX_BLOCK_SECONDS + per_block_s)
    error, half = spread(ratios)
    print(
        f"{family.name}: bare step {1e3 * statistics.median(bare):.1f} ms, {middle:.4f} of bare, standard error "
        f"{error:.4f}, {1e3 * per_block_s:.2f} ms between blocks; {half}"
    )
    return of_time(at_least(f"family_overhead: {family.name}", middle, "of bare", 0.99 - (3 * error if quick else 0.0)))


def main() -> None:
    quick = arguments(__doc__).quick
    torch.set_num_threads(1)
    chosen = FAMILIES[: 3 if quick else None]
    finish([measured(family, 25 if quick else 251, quick=quick) for family in chosen])


if __name__ == "__main__":
    main()
