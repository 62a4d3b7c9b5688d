"""Make a result folder with a study of many runs, to measure readers of records.

A few simulated jobs are run; the rest are copies of their records with other ids, settings and throughputs.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from simjob import run_job
from steelyard.contracts.sim import Noise, Power, SimTruth
from steelyard.results.store import RAW, RECORD_FILE, ResultFolder, record_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from steelyard.contracts.record import Quantity, RunRecord

STUDY = "copied"
REPEATS = 5
ORIGINALS = 5
RANKS = (1, 2, 4, 8, 16)
BATCHES = (8, 16, 32, 64, 128, 256, 512, 1024)
PRECISIONS: tuple[Literal["fp32", "bf16"], ...] = ("fp32", "bf16")
ACCUMULATIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def make(folder: Path, runs: int, seed: int = 1, repeats: int = REPEATS) -> ResultFolder:
    """Make a result folder with one study of `runs` runs, `repeats` per configuration; at most 720 configurations."""
    results = ResultFolder(folder)
    results.prepare()
    for record in records(runs, seed, repeats):
        place = results.run_path(record.spec)
        (place / RAW).mkdir(parents=True)
        (place / RECORD_FILE).write_text(record_text(record), encoding="utf-8")
    return results


def records(runs: int, seed: int, repeats: int) -> Iterator[RunRecord]:
    """Return copies with their own settings and throughput."""
    truth = SimTruth(step_time_s=0.01, noise=Noise(kind="normal", cv=0.02), power=Power(idle_w=90, compute_w=410))
    originals = [run_job(truth, seed * ORIGINALS + number) for number in range(ORIGINALS)]
    chance = random.Random(seed)
    settings = itertools.product(ACCUMULATIONS, PRECISIONS, BATCHES, RANKS, range(repeats))
    for number, (accumulation, precision, batch, ranks, repeat) in enumerate(itertools.islice(settings, runs)):
        original = originals[number % ORIGINALS]
        cell = f"a{accumulation}-{precision}-b{batch}-d{ranks}"
        spec = replace(
            original.spec, study=STUDY, run_id=f"{cell}-r{repeat}-{chance.getrandbits(32):08x}",
            configuration=cell, devices=ranks,
            batch=batch, repeat=repeat, precision=precision, accumulation=accumulation, seed=number,
        )  # fmt: skip
        # Small batches are less efficient, and each doubling of ranks costs a little.
        factor = batch / (batch + 40) * ranks**0.96 * chance.gauss(1, 0.01)
        made = {name: _scaled(quantity, factor, ranks) for name, quantity in original.quantities.items()}
        yield replace(original, run_id=spec.run_id, spec=spec, ranks_seen=ranks, quantities=made)


def _scaled(quantity: Quantity, factor: float, ranks: int) -> Quantity:
    if quantity.unit != "samples/s" or quantity.value is None:
        return quantity
    by = factor if quantity.scope == "job" else factor / ranks
    interval = quantity.interval
    if interval is not None:
        interval = replace(interval, low=interval.low * by, high=interval.top * by)
    return replace(quantity, value=quantity.value * by, interval=interval)
