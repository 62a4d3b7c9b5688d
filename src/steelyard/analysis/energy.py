"""Energy of configurations over their jobs: per sample, epoch, token and phase, with its validity.

Averages the energy quantities of records; `derive` computes those from readings.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from steelyard.analysis.summary import job_throughput
from steelyard.contracts.observe import MEASURED
from steelyard.contracts.record import Interval, Quantity, Validity
from steelyard.stats.jobs import across_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.summary import CellSummary
    from steelyard.contracts.energy import DomainScope
    from steelyard.contracts.finding import Finding
    from steelyard.contracts.record import RunRecord

Verdict = Literal["valid", "doubtful", "invalid"]
VERDICTS: tuple[Verdict, ...] = ("valid", "doubtful", "invalid")
MAIN = "energy_job"
JOULES_PER_WH = 3600.0

FIGURES = (
    "energy_per_sample",
    "energy_per_sample_net",
    "energy_per_token",
    "power_job",
    "idle_power_job",
    "energy_device",
    "energy_first_epoch",
    "energy_later_epochs",
    "energy_compile",
    "energy_warmup",
    "energy_all_steps",
    MAIN,
    "energy_job_net",
    "energy_run",
    "energy_host",
)
"""Quantities of a record that are averaged over jobs."""
TURNED = {"samples_per_wh": ("energy_per_sample", "samples/Wh"), "tokens_per_wh": ("energy_per_token", "tokens/Wh")}
"""Work per energy is the inverse of the mean energy, as throughput is of times: a mean of rates would be too high."""

UNSAID = "the record has no validity for its energy"
NOT_WATCHED = "this run had no sensor"
GPUS = ("cuda", "xpu")
MAX_NAMED = 10_000


@dataclass(frozen=True)
class LeftOut:
    """A job whose energy is left out of the means, and why."""

    run_id: str
    reason: str


@dataclass(frozen=True)
class CellEnergy:
    """The energy of one configuration."""

    cell: CellSummary
    figures: dict[str, Quantity]
    """By quantity name, over the jobs whose figure is valid or doubtful; each with its validity."""
    counts: dict[str, int]
    """Number of jobs in each mean, by quantity name."""
    left_out: tuple[LeftOut, ...]
    scope: str
    """What was measured, as text."""
    findings: tuple[Finding, ...]
    """The findings about energy."""

    @property
    def jobs(self) -> int:
        """Number of jobs whose energy counts."""
        return self.counts[MAIN]

    @property
    def main(self) -> Quantity:
        """Joules of the measured window."""
        return self.figures[MAIN]

    @property
    def verdict(self) -> Verdict:
        """The validity of the energy."""
        return _verdict(self.main)


def energy_cells(cells: Sequence[CellSummary], scopes: dict[str, tuple[DomainScope, ...]]) -> list[CellEnergy]:
    """Return the energy of each configuration; `scopes`: what was measured, by run id, where known."""
    return [_cell(cell, scopes) for cell in cells]


def _cell(cell: CellSummary, scopes: dict[str, tuple[DomainScope, ...]]) -> CellEnergy:
    records = [_with_warmup(record) for record in cell.records]
    used, left_out = _sorted_out(records)
    words = {record.run_id: scope_words(record, scopes.get(record.run_id, ())) for record in used}
    findings = [finding for finding in cell.findings if finding.code.startswith("SY4")]
    if len(set(words.values())) > 1:
        several = ", ".join(f'{count} with "{word}"' for word, count in sorted(Counter(words.values()).items()))
        reason = f"the jobs do not measure the same: {several}; their energy cannot be averaged"
        left_out += tuple(LeftOut(run_id, f'measures "{word}"') for run_id, word in words.items())
        return CellEnergy(cell, {MAIN: _unknown(reason)}, {MAIN: 0}, left_out, "differs", tuple(findings))
    scope = next(iter(words.values()), "nothing")
    figures = energy_figures(used, left_out)
    counts = {name: _count(used, TURNED.get(name, (name,))[0]) for name in figures}
    return CellEnergy(cell, figures, counts, left_out, scope, tuple(findings))


def _count(records: Sequence[RunRecord], name: str) -> int:
    """Return how many jobs are in the mean of a quantity."""
    there = [record.quantities[name] for record in records if name in record.quantities]
    return sum(_verdict(quantity) != "invalid" for quantity in there)


def _with_warmup(record: RunRecord) -> RunRecord:
    """Add the energy of the warm-up: that of all steps minus that of the window at their end."""
    everything, steady = record.quantities.get("energy_all_steps"), record.quantities.get(MAIN)
    if everything is None or steady is None or everything.value is None or steady.value is None:
        return record
    if "energy_warmup" in record.quantities or record.steady is None or not record.steady.start_step:
        return record
    if record.steady.stop_step < record.steps_seen or everything.value <= steady.value:
        return record
    warmup = replace(
        everything,
        value=everything.value - steady.value,
        window="warmup",
        interval=None,
        validity=_merged([validity for q in (everything, steady) if (validity := q.validity) is not None], 1),
    )
    return replace(record, quantities=record.quantities | {"energy_warmup": warmup})


def _sorted_out(records: Sequence[RunRecord]) -> tuple[list[RunRecord], tuple[LeftOut, ...]]:
    """Split jobs into those whose energy counts and the others, with their reasons."""
    used, left_out = [], []
    for record in records:
        reason = why_not(record)
        if reason is None:
            used.append(record)
        else:
            left_out.append(LeftOut(record.run_id, reason))
    return used, tuple(left_out)


def why_not(record: RunRecord) -> str | None:
    """Return why the energy of a job does not count; None if it does."""
    energy = record.quantities.get(MAIN)
    if record.status.code not in MEASURED:
        return f"the run ended as {record.status.code}"
    if energy is None:
        return NOT_WATCHED
    if energy.value is None:
        return energy.reason
    if _verdict(energy) == "invalid":
        return "; ".join(energy.validity.reasons if energy.validity else ()) or "its energy is marked invalid"
    return None


def energy_figures(records: Sequence[RunRecord], left_out: Sequence[LeftOut] = ()) -> dict[str, Quantity]:
    """Return the energies over jobs by quantity name."""
    if not records:
        reasons = list(dict.fromkeys(left.reason for left in left_out))
        more = f"; and {len(reasons) - 1} more reasons" if len(reasons) > 1 else ""
        return {MAIN: _unknown(f"{reasons[0]}{more}" if reasons else "there is no job")}
    figures = {name: figure for name in FIGURES if (figure := over_jobs(records, name)) is not None}
    for name, (energy, unit) in TURNED.items():
        if energy in figures:
            figures[name] = _turned(figures[energy], unit)
    return figures


def over_jobs(records: Sequence[RunRecord], name: str) -> Quantity | None:
    """Return the mean of a quantity over jobs. A single job keeps its own interval, which applies only to that job.

    None: no job has it.
    """
    there = [record for record in records if name in record.quantities]
    known = [record for record in there if _verdict(record.quantities[name]) != "invalid"]
    if not there:
        return None
    first = there[0].quantities[name]
    if not known:
        if first.value is None:
            return first
        reasons = "; ".join(first.validity.reasons if first.validity else ())[:4000]
        return replace(first, value=None, interval=None, reason=reasons or "it is marked invalid")
    if len(records) == 1:
        return replace(first, validity=first.validity or _unsaid())
    quantities = [record.quantities[name] for record in known]
    values = [quantity.value for quantity in quantities if quantity.value is not None]
    across = across_jobs(values)
    validity = _merged([quantity.validity or _unsaid() for quantity in quantities], len(records))
    interval = None
    if across.low is not None and across.high is not None:
        common = common_share(quantities) * across.value
        speed = job_throughput(known).interval
        interval = Interval(
            # Net energy and idle power may be on either side of zero; gross energy may not.
            low=across.low - common if name.endswith("_net") else max(0.0, across.low - common),
            high=across.high + common,
            level=across.level,
            method=f"{across.method}, plus the sensor uncertainty common to all jobs" if common else across.method,
            # The same jobs as for the throughput.
            covers=speed.covers if speed is not None else f"{len(known)} jobs",
            approximate=across.approximate,
            low_without_gain=across.low,
            high_without_gain=across.high,
        )
    return replace(quantities[0], value=across.value, interval=interval, validity=validity)


def common_share(quantities: Sequence[Quantity]) -> float:
    """Return by which share all jobs may be wrong in the same direction.

    Repeats do not show the gain of a sensor: it is the same in all of them. If a record does not state it apart, it is
    not larger than the interval.
    """
    shares = []
    for quantity in quantities:
        if quantity.interval is None or not quantity.value:
            return 0.0
        gain = quantity.interval.gain
        half = (quantity.interval.top - quantity.interval.low) / 2 if gain is None else gain
        shares.append(half / abs(quantity.value))
    return min(shares, default=0.0)


def _turned(energy: Quantity, unit: str) -> Quantity:
    """Return work per watt-hour from joules per unit of work."""
    if energy.value is None or energy.value <= 0:
        return replace(
            energy, value=None, interval=None, unit=unit, reason=energy.reason or "the energy is not above 0"
        )
    interval = energy.interval
    if interval is not None:
        # An interval that reaches zero has no finite inverse.
        interval = interval.inverse(JOULES_PER_WH) if interval.low > 0 else None
    return replace(energy, value=JOULES_PER_WH / energy.value, unit=unit, interval=interval)


# -- validity


def _verdict(quantity: Quantity) -> Verdict:
    if quantity.value is None:
        return "invalid"
    return quantity.validity.verdict if quantity.validity else "doubtful"


def _unsaid() -> Validity:
    return Validity(verdict="doubtful", reasons=(UNSAID,))


def _unknown(reason: str) -> Quantity:
    return Quantity(value=None, unit="J", scope="job", window="steady", aggregation="sum", reason=reason[:4000])


def _merged(each: Sequence[Validity], jobs: int) -> Validity:
    """Return the worst verdict of several jobs, with every reason once and the number of jobs that have it."""
    counts = Counter(reason for validity in each for reason in validity.reasons)
    reasons = [f"in {count} of {jobs} jobs: {reason}" if jobs > 1 else reason for reason, count in counts.items()]
    coverages = [validity.coverage for validity in each if validity.coverage is not None]
    gaps = [validity.largest_gap_s for validity in each if validity.largest_gap_s is not None]
    return Validity(
        verdict=max((validity.verdict for validity in each), key=VERDICTS.index, default="doubtful"),
        reasons=tuple(reason[:4000] for reason in reasons[:50]),
        channels=tuple(dict.fromkeys(name for validity in each for name in validity.channels))[:MAX_NAMED],
        domains=tuple(dict.fromkeys(name for validity in each for name in validity.domains))[:MAX_NAMED],
        coverage=min(coverages, default=None),
        largest_gap_s=max(gaps, default=None),
    )


# -- what was measured


def scope_words(record: RunRecord, scopes: Sequence[DomainScope]) -> str:
    """Describe what the energy includes."""
    family = record.environment.device if record.environment else record.spec.device
    device = "GPU" if family.partition(":")[0] in GPUS else "device"
    words = {
        "die": f"{device} only",
        "device": f"{device} only",
        "module": "module: CPU included",
        "cpu": "CPU only",
        "memory": "memory",
        "io": "input and output",
        "board": "board",
        "node": "whole node",
    }
    parts = [words[scope] for scope in dict.fromkeys(scopes)]
    if not parts:
        said = record.quantities.get("energy_device", record.quantities[MAIN]).scope
        parts = [words.get(said, "accelerators of the job")]
    return " + ".join(dict.fromkeys(parts))
