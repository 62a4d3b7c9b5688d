"""Repeats of one cell put together: the job is the sampling unit. Knows statistics of jobs, not of steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard.contracts.record import Interval, Quantity
from steelyard.stats.intervals import across_jobs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from steelyard.contracts.record import Finding, RunRecord


@dataclass(frozen=True)
class CellSummary:
    """All runs of one cell of one study."""

    study: str
    cell: str
    records: tuple[RunRecord, ...]
    statuses: dict[str, int]
    nodes: tuple[str, ...]
    throughput: Quantity
    """Of the whole job, over the jobs that completed: all their work over all their time."""
    findings: tuple[Finding, ...]
    """Each finding once, however many runs have it."""


def summarise(records: Iterable[RunRecord]) -> list[CellSummary]:
    """One summary a cell, in the order in which cells first appear."""
    cells: dict[tuple[str, str], list[RunRecord]] = {}
    for record in records:
        cells.setdefault((record.spec.study, record.spec.cell), []).append(record)
    return [_summary(study, cell, runs) for (study, cell), runs in cells.items()]


def _summary(study: str, cell: str, records: Sequence[RunRecord]) -> CellSummary:
    findings = {(found.code, found.severity): found for record in reversed(records) for found in record.findings}
    return CellSummary(
        study=study,
        cell=cell,
        records=tuple(records),
        statuses=dict(Counter(record.status.code for record in records)),
        nodes=tuple(sorted({record.environment.node for record in records if record.environment})),
        throughput=job_throughput(records),
        findings=tuple(findings[key] for key in sorted(findings)),
    )


def job_throughput(records: Sequence[RunRecord]) -> Quantity:
    """Throughput over jobs. Times are averaged, not rates: the mean time for a sample, turned over.

    One job keeps the interval of its own steps, which speaks for that job only.
    """
    whole = [record for record in records if record.status.code == "completed"]
    rates = [record.quantities["throughput_job"] for record in whole if "throughput_job" in record.quantities]
    known = [(rate, rate.value) for rate in rates if rate.value]
    if not known:
        return Quantity(
            value=None, unit="samples/s", scope="job", window="steady", aggregation="work over time",
            reason="no run of this cell completed",
        )  # fmt: skip
    first = known[0][0]
    if len(known) == 1:
        return first
    across = across_jobs([1.0 / value for _, value in known])
    interval = None
    if across.low is not None and across.high is not None and across.low > 0:
        interval = Interval(
            low=1.0 / across.high,
            high=1.0 / across.low,
            level=across.level,
            method=across.method,
            covers=_covers(whole),
            approximate=across.approximate,
        )
    window = "steady" if all(rate.window == "steady" for rate, _ in known) else "all steps"
    return Quantity(
        value=1.0 / across.value,
        unit=first.unit,
        scope="job",
        window=window,  # type: ignore[arg-type]
        aggregation="work over time",
        interval=interval,
    )


def _covers(records: Sequence[RunRecord]) -> str:
    """What repeats on these nodes can speak for."""
    places = [record.environment for record in records if record.environment]
    nodes = {place.node for place in places}
    allocations = {place.allocation for place in places}
    if len(nodes) == 1:
        return f"jobs on node {nodes.pop()} only: every repeat ran there"
    if len(allocations) == 1 and allocations != {None}:
        return f"jobs in allocation {allocations.pop()} only, {len(nodes)} nodes"
    return f"jobs across {len(nodes)} nodes"
