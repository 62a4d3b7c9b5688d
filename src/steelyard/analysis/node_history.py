"""How much a node changes over time, from all of its runs in a results folder."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from steelyard.analysis.summary import job_of
from steelyard.contracts.observe import MEASURED
from steelyard.estimate.enough import MIN_OCCASIONS
from steelyard.stats.ratio import one_after_the_other

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.results.store import ResultFolder
    from steelyard.rules.table.row import Row
    from steelyard.stats.ratio import JobTime


def shown_drift(folder: ResultFolder, a: Sequence[Row], b: Sequence[Row]) -> float | None:
    """Return by how much the nodes of two sides changed in other runs, as a share; None if nothing shows it.

    Only if the sides ran one after the other. The runs of one configuration on one node show it if there are at least
    eight, over at least as long a time as the two sides: the range of their throughput, the largest of all such runs.
    """
    sides = [[job for row in rows for job in row.jobs] for rows in (a, b)]
    if not one_after_the_other(*sides):
        return None
    nodes = {job.node for job in sides[0]} & {job.node for job in sides[1]}
    needed_s = _span_s([*sides[0], *sides[1]])
    by_cell: dict[tuple[str, str, str], list[tuple[float, JobTime]]] = {}
    for study in folder.studies():
        for record in folder.records(study):
            job, rate = job_of(record), record.quantities.get("throughput")
            if job.node in nodes and record.status.code in MEASURED and rate is not None and rate.value:
                key = (job.node, study, record.spec.configuration)
                by_cell.setdefault(key, []).append((math.log(rate.value), job))
    ranges = [
        max(log for log, _ in runs) - min(log for log, _ in runs)
        for runs in by_cell.values()
        if len(runs) >= MIN_OCCASIONS and _span_s([job for _, job in runs]) >= needed_s
    ]
    return math.expm1(max(ranges)) if ranges else None


def _span_s(jobs: Sequence[JobTime]) -> float:
    """Return the time from the first start to the last end; 0 if one of them is unknown."""
    starts, ends = [job.start_s for job in jobs], [job.end_s for job in jobs]
    if None in starts or None in ends:
        return 0.0
    return max(end or 0.0 for end in ends) - min(start or 0.0 for start in starts)
