"""Throughput over the batch size: the knee, the largest batch that fits, and what else differs."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from steelyard.analysis.best import above
from steelyard.analysis.rows import row_of
from steelyard.analysis.select import all_settings
from steelyard.analysis.summary import labels
from steelyard.analysis.sweep import grouped
from steelyard.contracts.observe import MEASURED
from steelyard.errors import InputError, Problem
from steelyard.rules.rule import SEVERITIES, check
from steelyard.rules.table.row import Pair
from steelyard.rules.table.settings import carried_along, confounders, shown
from steelyard.stats.knee import MIN_POINTS, BatchTimes, Knee, knee

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from steelyard.analysis.summary import CellSummary
    from steelyard.contracts.finding import Finding
    from steelyard.contracts.record import Quantity
    from steelyard.rules.table.row import Row

SHARE = 0.9
FACTOR = "batch"
FIELD = "batch"
UNCHANGED = "SY111"
# Settings and environment. The intervals show how many jobs there are and where they ran.
FAMILIES = ("SY1", "SY6")


@dataclass(frozen=True)
class BatchCell:
    """One batch size of the curve, whether or not it could be run."""

    batch: int
    """Samples per micro-batch and device."""
    cell: CellSummary
    throughput: Quantity
    """Throughput of the whole job."""
    of_asymptote: float | None
    used: bool
    """Whether the knee rests on it."""
    memory_bytes: float | None
    """The highest peak of its jobs; None if unknown."""

    @property
    def fits(self) -> bool:
        """Whether jobs completed, and none ran out of memory."""
        return any(code in self.cell.statuses for code in MEASURED) and not self.out_of_memory

    @property
    def out_of_memory(self) -> bool:
        """Whether any job ran out of memory."""
        return "out_of_memory" in self.cell.statuses


@dataclass(frozen=True)
class BatchCurve:
    """Throughput over the batch size."""

    label: str
    """The settings that distinguish it from other curves of the selection; empty if it is the only one."""
    cells: tuple[BatchCell, ...]
    """By batch, including configurations that ran out of memory or failed."""
    knee: Knee | None
    """None: not reported because of errors."""
    asymptote: float | None
    """Upper limit of the throughput of the whole job, in samples per second."""
    smallest_reaching: int | None
    """The smallest measured batch at or above the knee; None if there is no knee or no such batch."""
    largest_fitting: int | None
    smallest_out_of_memory: int | None
    findings: tuple[Finding, ...]
    """What differs besides the batch, and errors that keep a configuration out of the knee."""
    beside: tuple[str, ...] = ()
    """What changes with the batch: the accumulation may, against it, so that a step has the same samples."""

    alone: tuple[str, ...] = ()
    """Configurations of the selection that are on no curve."""

    @property
    def above(self) -> CellSummary | None:
        """The fastest configuration that the knee does not rest on, if it is faster than all that it rests on."""
        return above([entry.cell for entry in self.cells if entry.used], [entry.cell for entry in self.cells])

    @property
    def provisional(self) -> tuple[str, ...]:
        """Why the knee is provisional: it rests on unreliable configurations, as too few are reliable."""
        return tuple(dict.fromkeys(reason for entry in self.cells if entry.used for reason in entry.cell.unreliable))

    @property
    def blocked(self) -> bool:
        """Whether errors keep the configurations from forming one curve."""
        return self.knee is None


def batch_curves(cells: Sequence[CellSummary], share: float = SHARE) -> list[BatchCurve]:
    """Return one curve for each combination of the other settings that the selection varies, the fastest first.

    If no two configurations differ only in the batch, all of them are one curve, and the rules say what differs. If all
    have the same batch, the fastest is shown alone: the curve could begin with it.
    """
    groups = grouped(cells, FIELD)
    if not groups and len({cell.spec.batch for cell in cells}) == 1:
        groups = [("", [max(cells, key=lambda cell: cell.throughput.value or 0.0)])]
    if not groups:
        return [batch_curve(cells, share)]
    curves = [batch_curve(group, share, label) for label, group in groups]
    curves.sort(key=lambda curve: -max(entry.throughput.value or 0.0 for entry in curve.cells))
    names, on_curves = labels(cells), {cell.name for _, group in groups for cell in group}
    alone = tuple(names[cell.name] for cell in cells if cell.name not in on_curves)
    return [*curves[:-1], dataclasses.replace(curves[-1], alone=alone)]


def batch_curve(cells: Sequence[CellSummary], share: float = SHARE, label: str = "") -> BatchCurve:
    """Return the curve through these configurations; InputError if they are not a sweep over the batch.

    The knee rests on the reliable ones. If they are too few, it rests on all that have no errors, and is provisional.
    """
    if not 0 < share < 1:
        problem = Problem("--share", f"{share:g} is out of range", "a number between 0 and 1, such as 0.9")
        raise InputError("--share is not valid", problems=(problem,))
    ordered = sorted(cells, key=lambda cell: cell.records[0].spec.batch)
    differing = _differing(ordered)
    blocked = any(finding.severity == "error" for finding in differing)
    if not blocked:
        _refuse_twice(ordered)
    usable = [] if blocked else _usable(ordered)
    bend = None if blocked else knee([_collect_times(cell) for cell in usable], share)
    asymptote = None
    if bend is not None and bend.asymptote is not None:
        asymptote = bend.asymptote * _per_micro_batch(ordered[0])
    curve = []
    for cell in ordered:
        peaks = [record.memory.peak_bytes for record in cell.records if record.memory and record.memory.peak_bytes]
        rate = cell.throughput.value
        entry = BatchCell(
            batch=cell.records[0].spec.batch,
            cell=cell,
            throughput=cell.throughput,
            of_asymptote=rate / asymptote if rate is not None and asymptote else None,
            used=any(cell is one for one in usable),
            memory_bytes=max(peaks, default=None),
        )
        curve.append(entry)
    reaching = []
    if bend is not None and bend.answer == "found" and bend.value is not None:
        least = bend.value * (1 - 1e-9)
        reaching = [entry.batch for entry in curve if entry.used and entry.batch >= least]
    return BatchCurve(
        label=label,
        cells=tuple(curve),
        knee=bend,
        asymptote=asymptote,
        smallest_reaching=min(reaching, default=None),
        largest_fitting=max((entry.batch for entry in curve if entry.fits), default=None),
        smallest_out_of_memory=min((entry.batch for entry in curve if entry.out_of_memory), default=None),
        beside=_beside(ordered),
        findings=(*differing, *(blocking for cell in ordered for blocking in _blocking(cell))),
    )


def _usable(cells: Sequence[CellSummary]) -> list[CellSummary]:
    """Return the reliable configurations; if they are too few for a knee, all with a throughput and without errors."""
    known = [cell for cell in cells if cell.throughput.value is not None and not _blocking(cell)]
    reliable = [cell for cell in known if not cell.unreliable]
    return reliable if len(reliable) >= MIN_POINTS else known


def _collect_times(cell: CellSummary) -> BatchTimes:
    """Return the step times of the whole job, one per job."""
    spec = cell.records[0].spec
    measured = [record for record in cell.records if record.status.code in MEASURED]
    values = [record.quantities["throughput"].value for record in measured if "throughput" in record.quantities]
    rates = [rate for rate in values if rate]
    return BatchTimes(float(spec.batch), tuple(spec.batch * _per_micro_batch(cell) / rate for rate in rates))


def _per_micro_batch(cell: CellSummary) -> int:
    """Return the micro-batches of the whole job per step; the knee is in samples per micro-batch."""
    spec = cell.records[0].spec
    return spec.step_samples // spec.batch


def _differing(cells: Sequence[CellSummary]) -> tuple[Finding, ...]:
    """Return what differs besides the batch from most configurations; each difference once."""
    rows = [row_of(cell) for cell in cells]
    # The base differs from the fewest others in anything but the batch.
    others = [sum(bool(confounders(Pair(row, other, FACTOR))) for other in rows) for row in rows]
    completed = [n for n, row in enumerate(rows) if row.status == "completed"] or list(range(len(rows)))
    base = rows[min(completed, key=lambda n: others[n])]
    by_difference: dict[tuple[str, ...], list[Finding]] = {}
    for row in rows:
        # What follows from the batch (the global batch) is in the message, but is not a difference of its own.
        keys = tuple(sorted(f"{key.key}={key.b}" for key in confounders(Pair(base, row, FACTOR))))
        for entry in _against(base, row):
            same = keys if keys and entry.code.startswith("SY1") else (entry.message,)
            by_difference.setdefault((entry.code, *same), []).append(entry)
    once = []
    for entries in by_difference.values():
        # The shortest message represents all.
        first = min(entries, key=lambda entry: len(entry.message))
        others_too = len({entry.place for entry in entries}) - 1
        more = f" and {others_too} more" if others_too else ""
        once.append(dataclasses.replace(first, place=first.place + more))
    order = list(SEVERITIES)
    return tuple(sorted(once, key=lambda entry: (order.index(entry.severity), entry.code)))


def _beside(cells: Sequence[CellSummary]) -> tuple[str, ...]:
    """Return the chosen settings that change with the batch without being a difference of their own."""
    base, *others = map(row_of, cells)
    keys = {one.key for row in others for one in carried_along(Pair(base, row, FACTOR))} - {"global_batch"}
    return tuple(f"{key} {' vs '.join(shown(row.get(key)) for row in (base, *others))}" for key in sorted(keys))


def _blocking(cell: CellSummary) -> list[Finding]:
    """Return the errors that make the figure of a configuration unusable."""
    batch = cell.records[0].spec.batch
    return [
        dataclasses.replace(entry, place=f"batch {batch}, left out of the knee")
        for entry in cell.findings
        if entry.severity == "error" and cell.throughput.value is not None
    ]


def _against(base: Row, row: Row) -> Iterator[Finding]:
    if row is base:
        return
    pair = Pair(base, row, FACTOR)
    keys = sorted((f"{entry.key}={entry.a}" for entry in confounders(pair)), key=lambda text: (" " in text, len(text)))
    odd = f"{base.table}:{keys[0]}" if keys else None
    for entry in check("pair", pair):
        # Without figures only the settings matter; two configurations with one batch are handled elsewhere.
        if entry.code == UNCHANGED or not entry.code.startswith(FAMILIES):
            continue
        if row.status != "completed" and entry.severity != "error":
            continue
        if odd is not None and entry.code.startswith("SY1"):
            fix = f"select configurations that differ only in the batch: {odd}"
            yield dataclasses.replace(entry, fix=fix, command=f"steelyard batch {shlex.quote(odd)}")
        else:
            yield entry


def _refuse_twice(cells: Sequence[CellSummary]) -> None:
    """Raise InputError if two configurations have the same batch: name the setting in which they differ."""
    for a, b in pairwise(cells):
        if a.records[0].spec.batch != b.records[0].spec.batch:
            continue
        first, second = all_settings(a), all_settings(b)
        keys = [key for key in first if key in second and first[key] != second[key] and key not in _OWN]
        said = ", ".join(f"{key} {first[key]} and {second[key]}" for key in keys[:4]) or "their settings"
        key = keys[0] if keys else "key"
        problem = Problem(f"batch {a.records[0].spec.batch}", f"two configurations, with {said}", "one curve at a time")
        raise InputError(
            "the selection has more than one curve",
            problems=(problem,),
            next_step=f"select one: {a.study}:{key}={first.get(key, 'value')}",
        )


# Identity and evidence of a configuration, not its settings.
_OWN = ("configuration", "run_id", "repeat", "seed", "study", "jobs", "jobs_lost", "node", "findings", "window")
