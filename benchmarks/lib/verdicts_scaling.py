"""[verdicts] Scaling: the factors of an efficiency, compared with the truth of simulated accelerators.

The truth is computed here from the script alone: ranks compute, wait for the slowest, reduce their gradients over a
ring whose links change at the border of a node, and wait for their input if that is slower. Every job runs through the
real worker loop, sample files, derivation and analysis.

Without noise each factor must be within 1 % of the truth. With noise (2 % between jobs, 1 to 5 % between steps,
independent for each rank) the 95 % intervals must contain the truth as often as they state.
"""

from __future__ import annotations

import math
import os
import random
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from figure import Figure, arguments, at_least, at_most, finish, slack_percent
from steelyard.analysis.scaling import scaling
from steelyard.analysis.summary import summarise
from steelyard.contracts.observe import SPEC_FILE
from steelyard.contracts.sim import Collective, InputPipeline, Link, Noise, SimTruth
from steelyard.contracts.spec import Budget, RunSpec
from steelyard.derive.record import derive
from steelyard.results.store import record_text
from steelyard.stats.scaling_fit import CurveFit
from steelyard.worker.engine.run import run_directory

if TYPE_CHECKING:
    from steelyard.analysis.scaling import Scaling
    from steelyard.contracts.record import RunRecord

# Seeds of the generators; nothing was tuned on them.
FIRST_SEED = 7_000_000
SHARE = 95.0
LEAST_COVERAGE = 93.0
JOBS = 5
NAMES = ("input", "balance", "communication", "computation")
VISIBLE = 0.95
# Narrower intervals belong to factors without noise, such as a steady input pipeline.
EXACT_WIDTH = 1e-6
# A fast pipeline causes one wait, in the first of 1,000 steps. The truth is that of a long run, so this tolerance
# applies to intervals of this factor that are narrower than one step.
FIRST_STEP = 1e-3


@dataclass(frozen=True)
class Script:
    """A simulated study in plain numbers."""

    counts: tuple[int, ...]
    strong: bool
    batch: int
    """Of a device at the largest count (strong) or at every count (weak)."""
    fixed_s: float
    sample_s: float
    slow_rank: int | None
    slow_factor: float
    message_bytes: int
    latency_s: float
    bytes_per_s: float
    border: int | None
    """From this many ranks on, links are ten times slower."""
    samples_per_s: float | None
    """Rate of the input pipeline of a rank, or of all ranks if they share one, such as a file system."""
    shared_input: bool = False
    noise_cv: float = 0.0

    def batch_at(self, ranks: int) -> int:
        """Samples per rank and step."""
        return self.batch * self.counts[-1] // ranks if self.strong else self.batch

    def input_at(self, ranks: int) -> float | None:
        """Samples per second available to one rank."""
        if self.samples_per_s is None:
            return None
        return self.samples_per_s / ranks if self.shared_input else self.samples_per_s


@dataclass(frozen=True)
class Truth:
    """The truth for one number of ranks."""

    rate: float
    """Samples per second and device."""
    factors: dict[str, float]
    """Absolute factors; that of computation is samples per second of computation."""


def truth(script: Script, ranks: int) -> Truth:
    """Compute the truth, without code of the package."""
    batch = script.batch_at(ranks)
    alone_s = script.fixed_s + batch * script.sample_s
    speeds = [script.slow_factor if rank == script.slow_rank else 1.0 for rank in range(ranks)]
    mean_s = alone_s * sum(speeds) / ranks
    slowest_s = alone_s * expected_maximum(speeds, script.noise_cv)
    ring_s = 0.0
    if ranks > 1:
        ten = 10.0 if script.border is not None and ranks >= script.border else 1.0
        hops = 2 * (ranks - 1)
        ring_s = hops * script.latency_s * ten + hops / ranks * script.message_bytes / script.bytes_per_s * ten
    busy_s = slowest_s + ring_s
    input_rate = script.input_at(ranks)
    input_s = batch / input_rate if input_rate else 0.0
    step_s = max(busy_s, input_s)
    return Truth(
        rate=batch / step_s,
        factors={
            "input": busy_s / step_s,
            "balance": mean_s / slowest_s,
            "communication": slowest_s / busy_s,
            "computation": batch / mean_s,
        },
    )


def expected_maximum(speeds: list[float], cv: float) -> float:
    """Mean time of the slowest of several ranks with normal noise, each around its own speed."""
    if cv == 0:
        return max(speeds)
    low, high, count = min(speeds) * (1 - 8 * cv), max(speeds) * (1 + 8 * cv), 4000
    width = (high - low) / count
    # The mean of a positive variable is its lower end plus the integral of its survival function.
    above = 0.0
    for i in range(count):
        x = low + (i + 0.5) * width
        below = math.prod(0.5 * (1 + math.erf((x / speed - 1) / cv / math.sqrt(2))) for speed in speeds)
        above += (1 - below) * width
    return low + above


def random_script(seed: int, counts: tuple[int, ...], noise_cv: float = 0.0) -> Script:
    """A random mixture of the four losses."""
    draw = random.Random(seed)
    strong = draw.random() < 0.5
    script = Script(
        counts=counts,
        strong=strong,
        batch=draw.choice((4, 8, 16, 32)),
        fixed_s=draw.uniform(0.001, 0.01),
        sample_s=draw.uniform(5e-5, 5e-4),
        slow_rank=draw.choice((None, 0, 1)),
        slow_factor=draw.uniform(1.05, 1.8),
        message_bytes=draw.randrange(10**6, 10**8),
        latency_s=draw.uniform(1e-6, 1e-4),
        bytes_per_s=draw.uniform(2e10, 2e11),
        border=draw.choice((None, 4, 8)),
        samples_per_s=None,
        noise_cv=noise_cv,
    )
    if draw.random() < 0.35:
        return script
    # A pipeline from half the needed rate up; with noise not so close to it that a job would wait only in some steps.
    wanted, shared = draw.choice(counts), draw.random() < 0.5
    need = truth(script, wanted).rate * (wanted if shared else 1)
    fed = replace(script, samples_per_s=need * draw.uniform(0.4, 1.6), shared_input=shared)
    apart = [abs(math.log((fed.input_at(count) or 1.0) / truth(script, count).rate)) for count in counts]
    return script if noise_cv and min(apart) < 6 * (noise_cv + 0.02) else fed


def simulate(script: Script, ranks: int, job: int, seed: int, steps: int) -> RunRecord:
    """One job through the real worker and derivation."""
    links = [Link(latency_s=script.latency_s, bytes_per_s=script.bytes_per_s)]
    if script.border is not None:
        slow = Link(from_ranks=script.border, latency_s=10 * script.latency_s, bytes_per_s=script.bytes_per_s / 10)
        links.append(slow)
    noise = Noise()
    if script.noise_cv:
        noise = Noise(kind="normal", cv=script.noise_cv, between_jobs_cv=0.02)
    spec = RunSpec(
        run_id=f"r{ranks}-{job}",
        study="figure",
        configuration=f"c{ranks}",
        repeat=job,
        seed=seed,
        devices=ranks,
        batch=script.batch_at(ranks),
        crosscheck_steps=0,
        budget=Budget(min_steps=steps, max_steps=steps, min_seconds=0),
        sim=SimTruth(
            step_time_s=script.fixed_s,
            sample_time_s=script.sample_s,
            noise=noise,
            input=InputPipeline(samples_per_s=script.input_at(ranks)),
            collective=Collective(message_bytes=script.message_bytes, links=tuple(links)),
            slow_rank=script.slow_rank,
            slow_factor=script.slow_factor,
        ),
    )
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        raw = Path(folder)
        (raw / SPEC_FILE).write_text(record_text(spec), encoding="utf-8")
        status = run_directory(raw)
        if status.code != "completed":
            raise RuntimeError(f"{spec.run_id}: {status}")
        return derive(raw)


def study(script: Script, seed: int, jobs: int, steps: int) -> Scaling:
    """Run all jobs of a study and analyse them."""
    records = [
        simulate(script, ranks, job, (seed * 100 + ranks) * 100 + job, steps)
        for ranks in script.counts
        for job in range(jobs)
    ]
    curves = scaling(summarise(records))
    if len(curves) != 1:
        raise RuntimeError(f"{len(curves)} curves instead of one")
    return curves[0]


# -- without noise


@dataclass
class Errors:
    """Largest errors over several studies, in percent of the truth."""

    scenarios: int = 0
    losing: dict[str, int] = field(default_factory=lambda: dict.fromkeys(NAMES, 0))
    """Scenarios in which a factor is below 95 % at some point."""
    factor: dict[str, float] = field(default_factory=lambda: dict.fromkeys(NAMES, 0.0))
    speedup: float = 0.0
    product: float = 0.0
    ring: float = 0.0
    wrong_kind: int = 0
    blocked: int = 0

    def add(self, other: Errors) -> None:
        """Add those of other studies."""
        self.scenarios += other.scenarios
        self.losing = {name: self.losing[name] + other.losing[name] for name in NAMES}
        self.wrong_kind += other.wrong_kind
        self.blocked += other.blocked
        self.factor = {name: max(self.factor[name], other.factor[name]) for name in NAMES}
        self.speedup, self.product = max(self.speedup, other.speedup), max(self.product, other.product)
        self.ring = max(self.ring, other.ring)


def exact_scenario(seed: int) -> Errors:
    """One study without noise."""
    counts = (2, 4, 8, 16) if seed % 4 == 0 else (1, 2, 4, 8, 16)
    script = random_script(seed, counts)
    found = study(script, seed, 1, 200)
    base = truth(script, counts[0])
    kind = "strong" if script.strong else "weak"
    errors = Errors(scenarios=1, wrong_kind=int(found.kind != kind), blocked=int(found.blocked))
    for point in found.points[1:]:
        true = truth(script, point.devices)
        speedup = true.rate * point.devices / (base.rate * counts[0])
        errors.speedup = max(errors.speedup, off(point.speedup.value, speedup))
        product = 1.0
        for factor in point.split.factors:
            value = factor.change.value if factor.change else math.nan
            product *= value
            wanted = true.factors[factor.name] / base.factors[factor.name]
            errors.factor[factor.name] = max(errors.factor[factor.name], off(value, wanted))
            if wanted < VISIBLE:
                errors.losing[factor.name] = 1
        errors.product = max(errors.product, off(product, point.split.total.value))
    if script.border is None:
        errors.ring = ring_error(found, script)
    return errors


def ring_error(found: Scaling, script: Script) -> float:
    """Error of the two parameters of the fit, if the links are the same along the curve."""
    for fit in found.fits:
        if isinstance(fit, CurveFit) and fit.name == "latency-bandwidth":
            latency, message = (entry.value for entry in fit.parameters)
            return max(off(latency, script.latency_s), off(message, script.message_bytes / script.bytes_per_s))
    return math.inf


def off(value: float, true: float) -> float:
    """Return the error in percent; infinite if unknown."""
    return math.inf if math.isnan(value) else 100 * abs(value / true - 1)


# -- with noise


@dataclass
class Held:
    """Number of intervals, and how many contain the truth."""

    intervals: dict[str, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    blocked: int = 0
    exact: float = 0.0
    """Largest error in percent of the truth for factors without noise, whose interval has no width."""

    def see(self, name: str, low: float | None, high: float | None, true: float) -> None:
        """Count one interval."""
        if low is None or high is None:
            raise RuntimeError(f"{name}: no interval")
        if high / low - 1 < (FIRST_STEP if name == "input" else EXACT_WIDTH):
            self.exact = max(self.exact, off(low, true))
            return
        self.intervals[name] = self.intervals.get(name, 0) + 1
        self.held[name] = self.held.get(name, 0) + int(low <= true <= high)

    def add(self, other: Held) -> None:
        """Add those of other studies."""
        for mine, theirs in ((self.intervals, other.intervals), (self.held, other.held)):
            for name, count in theirs.items():
                mine[name] = mine.get(name, 0) + count
        self.exact = max(self.exact, other.exact)
        self.blocked += other.blocked


def noisy_study(seed: int) -> Held:
    """Five jobs at each of four counts."""
    counts = (1, 2, 4, 8)
    script = random_script(seed, counts, random.Random(-seed).uniform(0.01, 0.05))
    found, base = study(script, seed, JOBS, 1000), truth(script, 1)
    held = Held(blocked=int(found.blocked))
    for point in found.points[1:]:
        true = truth(script, point.devices)
        speedup = true.rate * point.devices / base.rate
        held.see("speed-up and efficiency", point.speedup.low, point.speedup.high, speedup)
        for factor in point.split.factors:
            if factor.change is None:
                raise RuntimeError(f"{factor.name} is unknown: {factor.reason}")
            wanted = true.factors[factor.name] / base.factors[factor.name]
            held.see(factor.name, factor.change.low, factor.change.high, wanted)
    return held


def figures(*, quick: bool) -> list[Figure]:
    """All figures of scaling."""
    exact, noisy = (16, 5) if quick else (200, 600)
    errors, held = Errors(), Held()
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for found in pool.map(exact_scenario, range(FIRST_SEED, FIRST_SEED + exact), chunksize=4):
            errors.add(found)
        for counted in pool.map(noisy_study, range(FIRST_SEED, FIRST_SEED + noisy), chunksize=2):
            held.add(counted)
    made = [at_least("scaling: scenarios without noise", errors.scenarios, "studies", exact)]
    made += [
        at_least(f"scaling: scenarios that lose by {name}", count, "studies", exact // 10)
        for name, count in errors.losing.items()
    ]
    made += [
        at_most(f"scaling: largest error of the {name} factor, no noise", error, "%", 1.0)
        for name, error in errors.factor.items()
    ]
    made += [
        at_most("scaling: largest error of the speed-up, no noise", errors.speedup, "%", 1.0),
        at_most("scaling: largest error of the product of the factors", errors.product, "%", 1e-6),
        at_most("scaling: largest error of latency and message time, no noise", errors.ring, "%", 1.0),
        at_most("scaling: strong taken for weak or the reverse", errors.wrong_kind, "studies", 0),
        at_most("scaling: sound studies blocked, no noise", errors.blocked, "studies", 0),
        at_most(
            "scaling: sound studies blocked, 2 % job noise", 100 * held.blocked / noisy, "%", 5.0 if not quick else 20.0
        ),
        at_most("scaling: largest error where noise does not reach", held.exact, "%", 100 * FIRST_STEP),
    ]
    for name, count in sorted(held.intervals.items()):
        share = 100 * held.held[name] / count
        least = LEAST_COVERAGE - slack_percent(SHARE, count // 3, quick=quick)
        made.append(at_least(f"scaling: intervals of {name} that hold the truth, 2 % job noise", share, "%", least))
    return made


if __name__ == "__main__":
    finish(figures(quick=arguments(__doc__).quick))
