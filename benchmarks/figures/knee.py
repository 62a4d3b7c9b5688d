"""[knee] How often the knee of a batch-size curve is found within one step of the sweep.

A step of the simulated device takes a fixed time plus a constant time per sample. Random curves are swept by powers of
2 or of its square root, with 1 to 5 jobs per batch that vary by 0 to 3 %, up to the end of memory. Some are computed in
tiles, so that a step takes as long as the next full tile. Others rise with a power of the batch, or fall after their
maximum. The truth is the smallest batch that reaches 90 % of the asymptote (for tiles: any batch in that tile). The
answer that the knee is beyond or below the sweep is counted separately, and is right if the truth is there or within
one step. Some curves run through the simulated device and the whole product: worker, records, cells, `analysis.batch`.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from figure import Figure, arguments, at_least, at_most, between, finish, slack_percent
from steelyard.analysis.batch import batch_curve
from steelyard.analysis.summary import summarise
from steelyard.contracts.observe import SPEC_FILE
from steelyard.contracts.sim import Memory, Noise, SimTruth
from steelyard.contracts.spec import Budget, RunSpec
from steelyard.derive.record import derive
from steelyard.results.store import record_text
from steelyard.stats.knee import BatchTimes, Knee, knee
from steelyard.worker.engine.run import run_directory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from steelyard.contracts.record import RunRecord

    Floats = NDArray[np.float64]

FIRST_SEED = 7_000_000
SHARE = 0.9
PUBLISHED = (65.0, 97.2, 130.0, 155.7, 172.9, 183.4, 188.9, 191.9, 193.4)
"""Tokens/s of a GPT of 117 million parameters on an IPU, batches 64 to 16,384 by powers of two."""


@dataclass(frozen=True)
class Curve:
    """A random curve and its sweep."""

    fixed_s: float
    sample_s: float
    tile: int
    """Samples that are computed together; 1: no tiles."""
    batches: tuple[int, ...]
    step: float
    jobs: int
    cv: float
    limit: int | None
    """The largest batch that fits, if the sweep goes beyond it."""

    @property
    def knee(self) -> float:
        """The truth."""
        return SHARE / (1 - SHARE) * self.fixed_s / self.sample_s

    @property
    def fitting(self) -> tuple[int, ...]:
        """Swept batches that fit into memory."""
        return tuple(batch for batch in self.batches if self.limit is None or batch <= self.limit)

    def time_s(self, batch: int) -> float:
        """Of one step."""
        return self.fixed_s + self.sample_s * self.tile * math.ceil(batch / self.tile)


def random_curve(rng: np.random.Generator, *, tiled: bool) -> Curve:
    """Make a random curve; its knee is between the first swept batch and twice the last that fits."""
    fine = rng.random() < 0.5
    step = math.sqrt(2) if fine else 2.0
    count = int(rng.integers(7, 16)) if fine else int(rng.integers(5, 10))
    first = 2 ** int(rng.integers(2, 7))
    batches = tuple(dict.fromkeys(round(first * step**n) for n in range(count)))
    limit = batches[-int(rng.integers(2, 4))] if rng.random() < 0.3 else None
    last = limit if limit is not None else batches[-1]
    sample_s = 10 ** rng.uniform(-6, -3)
    ratio = math.exp(rng.uniform(math.log(batches[0]), math.log(2 * last))) / 9
    tile = max(1, 2 ** math.floor(math.log2(max(1.0, ratio * rng.uniform(0.1, 0.8))))) if tiled else 1
    cv = float(rng.choice([0.0, 0.005, 0.01, 0.02, 0.03]))
    return Curve(ratio * sample_s, sample_s, tile, batches, step, int(rng.integers(1, 6)), cv, limit)


def measured(curve: Curve, rng: np.random.Generator) -> Knee:
    """Find the knee of a curve from random jobs with the noise of the simulated device."""
    points = [
        BatchTimes(float(batch), tuple(curve.time_s(batch) * (1 + curve.cv * rng.standard_normal(curve.jobs))))
        for batch in curve.fitting
    ]
    return knee(points, SHARE)


def score(tally: Counter[str], curve: Curve, found: Knee) -> None:
    """Count one answer."""
    high = curve.knee + (curve.tile if curve.tile > 1 else 0)
    first, last = curve.fitting[0], curve.fitting[-1]
    tally["curves"] += 1
    tally[found.answer] += 1
    if found.answer == "found" and found.value is not None:
        tally["near"] += curve.knee / curve.step * 0.999 <= found.value <= high * curve.step * 1.001
    elif found.answer == "beyond the sweep":
        tally["right"] += high >= last / curve.step
    elif found.answer == "below the sweep":
        tally["right"] += curve.knee <= first * curve.step
    if found.low is not None and found.high is not None and curve.cv > 0:
        tally["intervals"] += 1
        tally["held"] += found.low <= high and curve.knee <= found.high


def other_form(count: int, *, falls: bool) -> Counter[str]:
    """Curves of another form: the answer is within one step of the truth, or correctly outside the sweep."""
    tally: Counter[str] = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + count):
        rng = np.random.default_rng([seed, 10 + int(falls)])
        curve = random_curve(rng, tiled=False)
        if falls and curve.knee > curve.fitting[-1] / 4:
            continue
        power, loss, top = rng.uniform(0.6, 0.9), rng.uniform(0.02, 0.1), curve.knee * rng.uniform(1, 2)
        ratio = curve.fixed_s / curve.sample_s

        def rate(
            batch: Floats, *, power: float = power, ratio: float = ratio, loss: float = loss, top: float = top
        ) -> Floats:
            if not falls:
                return 1 / (1 + (ratio / batch) ** power)
            found: Floats = batch / (ratio + batch) * (1 - loss * np.log2(np.maximum(batch / top, 1)))
            return found

        fine = np.geomspace(1e-2, curve.fitting[-1] * (1 if falls else 1e6), 200_001)
        rates = rate(fine)
        truth = float(fine[int(np.argmax(rates >= SHARE * (rates.max() if falls else 1.0)))])
        times = [
            BatchTimes(
                float(b),
                tuple(b / float(rate(np.array([float(b)]))[0]) * (1 + curve.cv * rng.standard_normal(curve.jobs))),
            )
            for b in curve.fitting
        ]
        found = knee(times, SHARE)
        tally["curves"] += 1
        tally[found.answer] += 1
        if found.answer == "found" and found.value is not None:
            tally["right"] += abs(math.log(found.value / truth)) <= math.log(curve.step) * 1.001
        elif found.answer == "beyond the sweep":
            tally["right"] += truth >= curve.fitting[-1] / curve.step
        elif found.answer == "below the sweep":
            tally["right"] += truth <= curve.fitting[0] * curve.step
    return tally


def many(count: int, *, tiled: bool) -> Counter[str]:
    tally: Counter[str] = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + count):
        rng = np.random.default_rng([seed, int(tiled)])
        curve = random_curve(rng, tiled=tiled)
        score(tally, curve, measured(curve, rng))
    return tally


def job(spec: RunSpec, folder: Path) -> RunRecord:
    raw = folder / spec.run_id
    raw.mkdir()
    (raw / SPEC_FILE).write_text(record_text(spec), encoding="utf-8")
    run_directory(raw)
    return derive(raw)


def through_the_product(seed: int) -> tuple[Curve, Knee | None, bool]:
    """Analyse a curve of the simulated device; return the answer and whether the batch that fits is right."""
    rng = np.random.default_rng([seed, 99])
    curve = random_curve(rng, tiled=False)
    truth = SimTruth(
        step_time_s=curve.fixed_s,
        sample_time_s=curve.sample_s,
        noise=Noise(kind="normal", cv=0.01, between_jobs_cv=curve.cv),
        memory=Memory(limit_bytes=None if curve.limit is None else float(curve.limit), bytes_per_sample=1.0),
    )
    budget = Budget(min_steps=100, min_seconds=0.0, max_steps=100)
    with tempfile.TemporaryDirectory() as name:
        records = [
            job(
                RunSpec(
                    run_id=f"b{batch}-r{repeat}", study="sweep", configuration=f"b{batch}", repeat=repeat, batch=batch,
                    seed=seed * 1000 + 10 * number + repeat, sim=truth, budget=budget, crosscheck_steps=0,
                ),
                Path(name),
            )
            for number, batch in enumerate(curve.batches)
            for repeat in range(curve.jobs)
        ]  # fmt: skip
    found = batch_curve(summarise(records), SHARE)
    too_large = min((batch for batch in curve.batches if batch not in curve.fitting), default=None)
    fits = (found.largest_fitting, found.smallest_out_of_memory) == (curve.fitting[-1], too_large)
    return curve, found.knee, fits


def product(count: int, *, quick: bool) -> list[Figure]:
    tally: Counter[str] = Counter()
    fitting = 0
    for seed in range(FIRST_SEED, FIRST_SEED + count):
        curve, found, fits = through_the_product(seed)
        fitting += fits
        if found is not None:
            score(tally, curve, found)
    near = 100 * tally["near"] / max(1, tally["found"])
    least = 95 - slack_percent(95, max(1, tally["found"]), quick=quick)
    return [
        at_least("knee: within one step, through the whole product", near, "%", least),
        at_least("knee: curves through the whole product that were answered", tally["curves"], "", count),
        at_least("knee: what fits and what does not named rightly", 100 * fitting / count, "%", 100),
    ]


def main() -> None:
    quick = arguments(__doc__).quick
    count = 250 if quick else 4000
    figures: list[Figure] = []
    for name, tiled in (("fixed and per-sample time", False), ("in tiles", True)):
        tally = many(count, tiled=tiled)
        print(name, dict(tally))
        found, apart = tally["found"], tally["beyond the sweep"] + tally["below the sweep"]
        near = 100 * tally["near"] / found
        figures.append(
            at_least(f"knee: within one step, {name}", near, "%", 95 - slack_percent(95, found, quick=quick))
        )
        right = 100 * tally["right"] / apart
        least = 95 - slack_percent(95, apart, quick=quick)
        figures.append(at_least(f"knee: rightly said to lie outside the sweep, {name}", right, "%", least))
        figures.append(at_most(f"knee: left open, {name}", 100 * tally["cannot tell"] / count, "%", 3))
        held = 100 * tally["held"] / tally["intervals"]
        slack = slack_percent(95, tally["intervals"], quick=quick)
        label = f"knee: interval holds the truth, {name}"
        # Tiles are not noise: a sweep that hits few of them cannot show where they are.
        figures.append(at_least(label, held, "%", 90) if tiled else between(label, held, "%", 93 - slack, 97 + slack))
    for name, falls in (("slow rise", False), ("fall after the best", True)):
        tally = other_form(count // 2, falls=falls)
        print(name, dict(tally))
        answered = tally["curves"] - tally["cannot tell"]
        least = 80 - slack_percent(80, answered, quick=quick)
        figures.append(at_least(f"knee: right, {name}", 100 * tally["right"] / answered, "%", least))
    published = knee([BatchTimes(64.0 * 2**n, (64 * 2**n / rate,)) for n, rate in enumerate(PUBLISHED)])
    figures.append(between("knee: published GPT curve on an IPU", published.value or 0.0, "batch", 1024, 2048))
    finish([*figures, *product(4 if quick else 60, quick=quick)])


if __name__ == "__main__":
    main()
