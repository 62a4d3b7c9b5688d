"""The self-test: compare each figure with its known truth, and count how often intervals contain it."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard.analysis.summary import job_throughput
from steelyard.contracts.sim import Memory, Noise, Shape, SimTruth
from steelyard.contracts.spec import RunSpec
from steelyard.selftest.batch import run_many
from steelyard.selftest.cases import BATCH, STEP_S, cases
from steelyard.stats.ratio import compare_means

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from steelyard.contracts.record import Interval

EXACT = 1e-4
"""Without noise a figure must be within 0.01 % of the truth."""

NOISES = {
    "independent": Noise(kind="normal", cv=0.05, between_jobs_cv=0.02),
    "correlated": Noise(kind="ar1", cv=0.05, rho=0.8, between_jobs_cv=0.02),
    "heavy-tailed": Noise(kind="lognormal", sigma=0.4, between_jobs_cv=0.02),
}
STUDIES = 60
JOBS = 5
COMPARISONS = 40
JOBS_PER_SIDE = 8
# With few trials a share varies by chance; 2.6 standard errors allow one false failure in a hundred.
STRAY = 2.6


@dataclass(frozen=True)
class Proof:
    """One formula compared with the truth."""

    group: str
    what: str
    truth: str
    measured: str
    error: str
    holds: bool


def prove(tell: Callable[[str], None], *, quick: bool) -> Iterator[Proof]:
    """Yield the lines of the self-test; `tell` receives progress. Quick: without the many trials of intervals."""
    tell("formulas without noise")
    yield from _prove_formulas()
    tell("answers and statuses")
    yield from _prove_answers()
    if quick:
        return
    for name, noise in NOISES.items():
        tell(f"intervals under {name} noise")
        yield from _prove_coverage(name, noise)
    tell("comparisons")
    yield from _prove_comparisons()


# -- figures without noise


def _prove_formulas() -> Iterator[Proof]:
    chosen = list(cases())
    for case, record in zip(chosen, run_many([case.spec for case in chosen]), strict=True):
        for quantity, truth in case.truths.items():
            what = f"{case.name}: {quantity}"
            value = record.quantities[quantity].value if quantity in record.quantities else None
            if value is None:
                yield Proof("formula", what, f"{truth:.8g}", f"none ({record.status.code})", "-", holds=False)
                continue
            error = value / truth - 1 if truth else value
            close = abs(error) <= EXACT
            yield Proof("formula", what, f"{truth:.8g}", f"{value:.8g}", f"{100 * error:+.5f} %", close)


# -- answers that are not numbers


def _prove_answers() -> Iterator[Proof]:
    small = Noise(kind="normal", cv=0.01)
    shapes = {
        "steady": Shape(),
        "steady after warm-up": Shape(warmup_amplitude=0.5, warmup_steps=50),
        "slowing down": Shape(throttle_at_step=700, throttle_factor=1.1),
        "warming up throughout": Shape(warmup_amplitude=0.5, warmup_steps=1500),
    }
    truths = [SimTruth(step_time_s=STEP_S, noise=small, shape=shape) for shape in shapes.values()]
    expected = ["steady", "steady", "slowing down", "warming up throughout", "no steady state"]
    truths.append(SimTruth(step_time_s=STEP_S, noise=Noise(walk_cv=0.01)))
    names = [*shapes, "random walk"]
    broken = SimTruth(step_time_s=STEP_S, event_scale=0.5)
    full = SimTruth(step_time_s=STEP_S, memory=Memory(limit_bytes=1e9, bytes_per_sample=1e8))
    records = run_many([_spec(truth, seed=11) for truth in [*truths, broken, full]])
    for name, answer, record in zip(names, expected, records, strict=False):
        given = record.steady.answer if record.steady else record.status.code
        yield _compare_words(f"steady state: {name}", answer, given)
    blocking = [finding.code for finding in records[-2].findings if finding.severity == "error"]
    yield _compare_words("a timer that reads half the time", "SY501", " ".join(blocking))
    yield _compare_words("a batch that does not fit", "out_of_memory", records[-1].status.code)


def _compare_words(what: str, truth: str, given: str) -> Proof:
    return Proof("answer", what, truth, given, "-", given == truth)


# -- intervals


def _spec(truth: SimTruth, seed: int) -> RunSpec:
    return RunSpec(run_id=f"selftest-{seed}", configuration="selftest", seed=seed, batch=BATCH, sim=truth)


def _prove_coverage(name: str, noise: Noise) -> Iterator[Proof]:
    truth = SimTruth(step_time_s=STEP_S, noise=noise)
    records = run_many([_spec(truth, seed) for seed in range(STUDIES * JOBS)])
    rate = BATCH / STEP_S
    studies = [records[first : first + JOBS] for first in range(0, len(records), JOBS)]
    across = [_contains(job_throughput(study).interval, rate) for study in studies]
    yield _share(f"{JOBS} jobs, {name} noise and 2 % between jobs", across)
    # Within one job the truth is that job's own mean: the same seeds without noise between jobs.
    alone = dataclasses.replace(truth, noise=dataclasses.replace(noise, between_jobs_cv=0.0))
    records = run_many([_spec(alone, seed) for seed in range(STUDIES * 2)])
    yield _share(f"one job, {name} noise", [_contains(job_throughput([r]).interval, rate) for r in records])


def _contains(interval: Interval | None, truth: float) -> bool:
    return interval is not None and interval.low <= truth <= interval.top


def _share(what: str, hits: Sequence[bool]) -> Proof:
    share = sum(hits) / len(hits)
    stray = STRAY * math.sqrt(0.95 * 0.05 / len(hits))
    low, high = 0.93 - stray, min(1.0, 0.97 + stray)
    return Proof(
        "interval",
        what,
        "95 % contain the truth",
        f"{share:.1%} of {len(hits)}",
        f"{share - 0.95:+.1%}",
        low <= share <= high,
    )


# -- comparisons


def _prove_comparisons() -> Iterator[Proof]:
    noise = Noise(kind="normal", cv=0.01, between_jobs_cv=0.01)
    count = COMPARISONS * JOBS_PER_SIDE
    base = SimTruth(step_time_s=STEP_S, noise=noise)
    slower = SimTruth(step_time_s=STEP_S * 1.02, noise=noise)
    runs = [_spec(base, seed) for seed in range(2 * count)] + [_spec(slower, 2 * count + seed) for seed in range(count)]
    means = [1 / (record.quantities["throughput"].value or math.nan) for record in run_many(runs)]
    sides = [means[first : first + JOBS_PER_SIDE] for first in range(0, len(means), JOBS_PER_SIDE)]
    first, second, slow = sides[:COMPARISONS], sides[COMPARISONS : 2 * COMPARISONS], sides[2 * COMPARISONS :]
    detected = [compare_means(a, b).verdict == "slower" for a, b in zip(first, slow, strict=True)]
    false = [compare_means(a, b).verdict != "no difference shown" for a, b in zip(first, second, strict=True)]
    least = 0.90 - STRAY * math.sqrt(0.9 * 0.1 / COMPARISONS)
    most = 0.05 + STRAY * math.sqrt(0.05 * 0.95 / COMPARISONS)
    power, alarms = sum(detected) / COMPARISONS, sum(false) / COMPARISONS
    name = f"{JOBS_PER_SIDE} jobs per side, 1 % between jobs"
    yield Proof(
        "comparison", f"2 % slower, {name}", "found in 90 %", f"{power:.1%} of {COMPARISONS}", "-", power >= least
    )
    yield Proof(
        "comparison", f"no difference, {name}", "alarm in 5 %", f"{alarms:.1%} of {COMPARISONS}", "-", alarms <= most
    )
