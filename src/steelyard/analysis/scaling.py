"""How a job scales over devices: speed-up, efficiency with its factors, and the largest useful number of devices.

The rules decide whether configurations are comparable; `loss` splits the efficiency into factors.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from steelyard.analysis.loss import parts_of, split
from steelyard.analysis.rows import PARALLELISM, row_of
from steelyard.analysis.summary import labels
from steelyard.contracts.observe import MEASURED
from steelyard.errors import InputError, Problem
from steelyard.inputs.command import run_again
from steelyard.rules import rule
from steelyard.rules.scaling.curves import GROWS
from steelyard.rules.table.batches import kind_of
from steelyard.rules.table.row import Amount, Pair, Row, RowTable
from steelyard.rules.table.settings import SETTINGS, confounders
from steelyard.stats.quotient import Estimate, Quotient, change
from steelyard.stats.ratio import MIN_JOBS, shown_trend
from steelyard.stats.scaling_fit import CurveFit, Refused, amdahl, gustafson, latency_bandwidth

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.loss import Parts, Split
    from steelyard.analysis.summary import CellSummary
    from steelyard.contracts.finding import Finding
    from steelyard.contracts.record import Quantity, RunRecord
    from steelyard.contracts.spec import RunSpec

    Key = tuple[tuple[str, str | None], ...]
    Missing = tuple[tuple[int, str], ...]

Declared = Literal["strong", "weak"]
THRESHOLD = 0.7
"""Efficiency that application forms for computing time commonly require."""
# A model that misses a held-out point by more than this is shown with its error, but not used for projections.
USABLE_ERROR_PERCENT = 10.0
PROJECTION_REACH = 2
# Rules about the base of a speed-up. Other changes along a curve are found pair by pair (SY303 names the ratio).
OF_SPEEDUPS = ("SY301",)
OF_CURVES = ("SY301", "SY31")
# Settings about evidence or the environment of the job do not make another curve.
ASIDE = ("size", "environment", "evidence")
MEANINGLESS = "-"
"""The text of a setting that has no meaning for a configuration, as a key-value cache has none in training."""
TREND = "SY211"
ABOVE = "an efficiency above 100 %, whose cause is not known"
# Errors that make the figure of a size unreliable: a trend, and few jobs without a steady state.
UNRELIABLE = (TREND, "SY213")


@dataclass(frozen=True)
class Point:
    """The result for one number of devices on a curve."""

    devices: int
    configuration: str
    """Its name."""
    jobs: int
    throughput: Quantity
    speedup: Estimate
    """Relative to the base."""
    split: Split
    """Efficiency and its factors, each relative to the base."""
    slowest: float | None
    """Computation of the slowest rank over the mean of all ranks; None: one rank, or unknown."""
    from_crosscheck: bool


@dataclass(frozen=True)
class Return:
    """What additional devices gain."""

    devices: int
    following: int
    share: Estimate
    """Share of the throughput that they would add at the rate of the devices before them."""


@dataclass(frozen=True)
class Projection:
    """The projection of a fit."""

    model: str
    devices: int
    throughput: float
    speedup: float
    efficiency: float


@dataclass(frozen=True)
class Scaling:
    """One scaling curve."""

    label: str
    """The settings that distinguish it from other curves of the selection; empty if it is the only one."""
    kind: Literal["strong", "weak", "neither", "unknown"]
    declared: bool
    base: Point
    points: tuple[Point, ...]
    """By number of devices, the base first."""
    cells: tuple[CellSummary, ...]
    """The configurations of the points."""
    returns: tuple[Return, ...]
    threshold: float
    enough: Point | None
    """The largest number of devices whose efficiency is at least the threshold."""
    fits: tuple[CurveFit | Refused, ...]
    projections: tuple[Projection, ...]
    """Projections of the fits with a small enough error."""
    projected_to: int
    missing: tuple[tuple[int, str], ...]
    """Numbers of devices without a figure, and how their runs ended."""
    findings: tuple[Finding, ...]
    aside: tuple[CellSummary, ...] = ()
    """Configurations that are unreliable and therefore not points of the curve, by number of devices."""
    provisional: tuple[str, ...] = ()
    """Why the points are unreliable, if too few configurations are reliable for a curve; empty: they are reliable."""
    alone: tuple[str, ...] = ()
    """Configurations of the selection that are on no curve."""
    besides: tuple[str, ...] = ()
    """Settings other than the devices in which the largest size differs from the base, with both values."""

    @property
    def blocked(self) -> bool:
        """Whether errors make the ratios invalid."""
        return any(finding.severity == "error" for finding in self.findings)

    @property
    def above(self) -> bool:
        """Whether the efficiency of the largest size is above 100 % beyond its interval; devices alone cannot do it."""
        return (self.points[-1].split.total.low or 0.0) > 1

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the curve is provisional; empty: it is not."""
        unknown = self.above and not self.besides
        return (*self.provisional, *([ABOVE] if unknown else []))


def scaling(
    cells: Sequence[CellSummary],
    declared: Declared | None = None,
    *,
    threshold: float = THRESHOLD,
    at: int | None = None,
) -> list[Scaling]:
    """Return one analysis per curve; InputError if the configurations form no curve.

    Configurations with the same number of devices and different settings are on different curves. The rules find what
    else changes along a curve. A curve rests on its reliable configurations; if these are fewer than two, on all
    without errors, and then it is provisional.
    """
    _refuse_collectives(cells)
    groups = _curves(cells, declared)
    whole = [(label, group) for label, group in groups if len(group) > 1]
    if not whole:
        counts = sorted({cell.records[0].spec.devices for cell in cells})
        what = f"scaling needs at least two device counts; the selection has {', '.join(map(str, counts))}"
        if len(counts) > 1:
            what = "scaling needs configurations that differ in nothing but their devices; here each differs in more"
        raise InputError(
            what,
            problems=tuple(
                Problem(_devices(group[0].records[0].spec.devices), label, "the same settings with other devices")
                for label, group in (groups if len(counts) > 1 else [])
            ),
            next_step=_another_count(cells[0].spec, counts),
        )
    measured = [(label, group, *_make_sizes(group)) for label, group in whole]
    curves = [
        _analyse(sizes, missing, label, declared, threshold, at)
        for label, _, sizes, missing in measured
        if len(sizes) > 1
    ]
    if not curves:
        _, group, sizes, missing = measured[0]
        raise InputError(
            f"only {len(sizes)} of {len(group)} device counts have a throughput",
            problems=tuple(Problem(_devices(count), ended, "a run that completes") for count, ended in missing),
        )
    alone = [f"{_devices(group[0].records[0].spec.devices)}, {label}" for label, group in groups if len(group) == 1]
    alone += [
        f"{label} ({'; '.join(f'{_devices(count)}: {ended}' for count, ended in missing)})"
        for label, _, sizes, missing in measured
        if len(sizes) < 2
    ]
    # Only once.
    curves[-1] = dataclasses.replace(curves[-1], alone=tuple(alone))
    return curves


def _another_count(spec: RunSpec, counts: Sequence[int]) -> str:
    """Return the command that measures a configuration on another number of devices."""
    if spec.study_arguments:
        return "write [sweep] devices = [1, 2, 4, 8] into the study, and run it again"
    other = next((count for count in counts if count != spec.devices), 1 if spec.devices > 1 else 2)
    return run_again(spec, {"devices": other}, repeats=MIN_JOBS) or "write a study with several [sweep] devices"


def _refuse_collectives(cells: Sequence[CellSummary]) -> None:
    models = [record.model for cell in cells for record in cell.records if record.model is not None]
    if any(model.bus_factor is not None for model in models):
        name, study = cells[0].records[0].spec.workload, cells[0].study
        problem = Problem("SELECTION", f"{name} is one collective of all devices", "a workload that devices share")
        raise InputError(
            "a collective has no speed-up: more devices do not make more of it",
            problems=(problem,),
            next_step=f"steelyard compare {study}:devices=N {study}:devices=M --factor devices --metric bus_bandwidth",
        )


# -- which configurations form a curve


def _curves(cells: Sequence[CellSummary], declared: Declared | None) -> list[tuple[str, list[CellSummary]]]:
    rows = {cell.name: row_of(cell) for cell in cells}
    settings = {cell.name: _chosen(cell, rows[cell.name]) for cell in cells}
    varied = _varied(cells, settings)
    names = [name for name in varied if SETTINGS[name] != "batches"]
    if len(names) == len(varied):
        return _grouped(cells, rows, settings, names, None)
    # Without a declaration, the kind that leaves the fewest and thus longest curves.
    kinds: tuple[Declared, ...] = ("weak", "strong") if declared is None else (declared,)
    return min((_grouped(cells, rows, settings, names, kind) for kind in kinds), key=len)


def _grouped(
    cells: Sequence[CellSummary],
    rows: dict[str, Row],
    settings: dict[str, dict[str, str | None]],
    names: Sequence[str],
    kind: Declared | None,
) -> list[tuple[str, list[CellSummary]]]:
    """Group configurations by these settings, and by the batch that the kind of scaling keeps, if one is given."""
    groups: dict[Key, list[CellSummary]] = {}
    unsure: list[tuple[Key, CellSummary]] = []
    for cell in cells:
        key: Key = tuple((name, settings[cell.name][name]) for name in names)
        key += (_batch_key(rows[cell.name], kind),) if kind is not None else ()
        if any(value is None for _, value in key):
            unsure.append((key, cell))
        else:
            groups.setdefault(key, []).append(cell)
    for key, cell in unsure:
        _join(groups, key, cell)
    _lend_single(groups, rows)
    for group in groups.values():
        _refuse_doubles(group, rows)
    named = [(_label(key), group) for key, group in groups.items()]
    return sorted(named, key=lambda entry: (len(entry[0]), entry[0]))


def _label(key: Key) -> str:
    return ", ".join(
        f"no {name}" if value == MEANINGLESS else f"{name} {'unknown' if value is None else value}".strip()
        for name, value in key
    )


def _chosen(cell: CellSummary, row: Row) -> dict[str, str | None]:
    """Return the settings as texts; None if a run ended before its settings in effect were known."""
    told = any(record.status.code in MEASURED for record in cell.records)
    spec = cell.records[0].spec
    # One device divides nothing, but may have been requested as the base of a way to divide the work.
    asked = (
        {"parallel": PARALLELISM.get(spec.parallel, spec.parallel), "backend": spec.backend}
        if spec.devices == 1
        else {}
    )
    chosen: dict[str, str | None] = {}
    for key, role in SETTINGS.items():
        if role not in ASIDE:
            value = row.get(key)
            value = asked.get(key) if value is None else value
            chosen[key] = str(value) if value is not None else MEANINGLESS if told else None
    return chosen


def _varied(cells: Sequence[CellSummary], settings: dict[str, dict[str, str | None]]) -> list[str]:
    """Return settings in which configurations with the same number of devices differ: those make several curves."""
    by_count: dict[int, list[dict[str, str | None]]] = {}
    for cell in cells:
        by_count.setdefault(cell.records[0].spec.devices, []).append(settings[cell.name])
    names = [key for key, role in SETTINGS.items() if role not in ASIDE]
    return [
        name for name in names if any(len({entry[name] for entry in same} - {None}) > 1 for same in by_count.values())
    ]


def _join(groups: dict[Key, list[CellSummary]], key: Key, cell: CellSummary) -> None:
    """Add a configuration to every curve that matches its known settings and lacks this number of devices."""
    fitting = [
        group
        for other, group in groups.items()
        if all(mine in (None, theirs) for (_, mine), (_, theirs) in zip(key, other, strict=True))
        and cell.records[0].spec.devices not in _counts(group)
    ]
    for group in fitting:
        group.append(cell)
    if not fitting:
        groups.setdefault(key, []).append(cell)


def _lend_single(groups: dict[Key, list[CellSummary]], rows: dict[str, Row]) -> None:
    """Use a single device as the base of every way to divide the work that has no base of its own."""
    singles: dict[Key, list[CellSummary]] = {}
    for key, group in groups.items():
        for cell in group:
            if cell.records[0].spec.devices == 1 and rows[cell.name].get("parallel") is None:
                singles.setdefault(_undivided(key), []).append(cell)
    for key, group in groups.items():
        fitting = singles.get(_undivided(key), [])
        if 1 not in _counts(group) and len(fitting) == 1:
            group.append(fitting[0])


def _undivided(key: Key) -> Key:
    return tuple(entry for entry in key if entry[0] not in ("parallel", "backend"))


def _counts(group: Sequence[CellSummary]) -> set[int]:
    return {cell.records[0].spec.devices for cell in group}


def _batch_key(row: Row, kind: Declared) -> tuple[str, str]:
    whole, devices = row.number("global_batch"), row.number("devices") or 1.0
    if whole is None:
        return "batch", "unknown"
    if kind == "strong":
        return f"{whole:g} samples per step", ""
    return f"{whole / devices:g} samples per device", ""


def _refuse_doubles(group: Sequence[CellSummary], rows: dict[str, Row]) -> None:
    by_count: dict[int, list[CellSummary]] = {}
    for cell in group:
        by_count.setdefault(cell.records[0].spec.devices, []).append(cell)
    for count, same in by_count.items():
        if len(same) > 1:
            names = labels(same)
            listed = "; ".join(f"{cell.name} ({names[cell.name]})" for cell in same)
            problem = Problem(
                "SELECTION",
                f"{len(same)} configurations have {_devices(count)}: {listed}",
                "one configuration per device count",
            )
            raise InputError(
                "several configurations have the same device count",
                problems=(problem,),
                next_step=f"select by a setting: {rows[same[0].name].table}:key=value",
            )


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"


# -- one curve


@dataclass(frozen=True)
class _Size:
    """The measurements at one number of devices."""

    devices: int
    cell: CellSummary
    row: Row
    records: tuple[RunRecord, ...]
    parts: Parts


def _reliable(sizes: Sequence[_Size]) -> tuple[Sequence[_Size], tuple[str, ...]]:
    """Return the sizes to use, and why they are provisional; all of them if too few are without errors."""
    valid = [size for size in sizes if not any(finding.severity == "error" for finding in size.cell.findings)]
    reliable = [size for size in valid if not size.cell.unreliable]
    if len(reliable) > 1:
        return reliable, ()
    used = valid if len(valid) > 1 else sizes
    return used, tuple(dict.fromkeys(reason for size in used for reason in size.cell.unreliable))


def _without_trends(sizes: Sequence[_Size]) -> Sequence[_Size]:
    """Return the sizes, with those marked unreliable whose trend shows only beside another size."""
    while True:
        used, provisional = _reliable(sizes)
        base = used[0].row.place
        trends = {
            finding.place: finding.message
            for size in used[1:]
            for finding in rule.check("pair", _pair(used[0], size))
            if finding.code == TREND and finding.severity == "error"
        }
        if provisional or not trends:
            return sizes
        # Without a sound base, the others are compared with the next one.
        trends = {base: trends[base]} if base in trends else trends
        sizes = [
            dataclasses.replace(size, cell=dataclasses.replace(size.cell, unreliable=(trends[size.row.place],)))
            if size.row.place in trends and not size.cell.unreliable
            else size
            for size in sizes
        ]


def _pair(base: _Size, size: _Size) -> Pair:
    return Pair(base.row, size.row, "devices", "throughput")


def _trends(a: _Size, b: _Size) -> float:
    """Return the sum of the trends that the jobs of two sizes show."""
    jobs, others = a.row.jobs, b.row.jobs
    return abs(shown_trend(jobs, others) or 0.0) + abs(shown_trend(others, jobs) or 0.0)


def _analyse(
    measured: Sequence[_Size],
    missing: Missing,
    label: str,
    declared: Declared | None,
    threshold: float,
    at: int | None,
) -> Scaling:
    measured = _without_trends(measured)
    sizes, provisional = _reliable(measured)
    base = sizes[0]
    points = tuple(_point(base, size) for size in sizes)
    kind = declared or kind_of([size.row for size in sizes])
    fits = _fits(sizes, kind)
    projected_to = at or PROJECTION_REACH * sizes[-1].devices
    projections = _projections(fits, points[0], projected_to)
    enough = [point for point in points if point.split.total.value >= threshold]
    returns = []
    for before, after in itertools.pairwise(sizes):
        # For twice as many devices: throughput over the one before, minus one. Otherwise per share of added devices.
        earlier, later = (Quotient((), (size.parts.total,)) for size in (before, after))
        per_device = change(earlier, later, trends=_trends(before, after))
        grown = after.devices / before.devices
        share = per_device.scaled(grown / (grown - 1), -1 / (grown - 1))
        returns.append(Return(before.devices, after.devices, share))
    return Scaling(
        label=label,
        kind=kind,
        declared=declared is not None,
        base=points[0],
        points=points,
        cells=tuple(size.cell for size in sizes),
        returns=tuple(returns),
        threshold=threshold,
        enough=enough[-1] if enough else None,
        fits=fits,
        projections=projections,
        projected_to=projected_to,
        missing=missing,
        findings=_findings(sizes, points, declared, projections, provisional=bool(provisional)),
        aside=tuple(size.cell for size in measured if not any(size is one for one in sizes)),
        provisional=provisional,
        besides=tuple(map(str, confounders(_pair(base, sizes[-1])))),
    )


def _make_sizes(cells: Sequence[CellSummary]) -> tuple[list[_Size], Missing]:
    sizes, missing = [], []
    for cell in sorted(cells, key=lambda cell: cell.records[0].spec.devices):
        devices = cell.records[0].spec.devices
        records = tuple(
            record
            for record in cell.records
            if record.status.code in MEASURED
            and (rate := record.quantities.get("throughput_per_device")) is not None
            and rate.value
        )
        if records:
            # Configurations of a curve are named by their number of devices.
            row = dataclasses.replace(row_of(dataclasses.replace(cell, records=records)), place=_devices(devices))
            sizes.append(_Size(devices, cell, row, records, parts_of(records)))
        else:
            ended = ", ".join(f"{count} {code}" for code, count in sorted(cell.statuses.items()))
            missing.append((devices, ended))
    return sizes, tuple(missing)


def _point(base: _Size, size: _Size) -> Point:
    divided = split(base.parts, size.parts, _trends(base, size))
    if size is base:
        # Exact by definition.
        exact = Estimate(1.0, 1.0, 1.0)
        factors = tuple(dataclasses.replace(f, change=exact if f.change else None) for f in divided.factors)
        divided = dataclasses.replace(divided, total=exact, factors=factors, rest=exact if divided.rest else None)
    mean, most = (size.row.figures.get(f"rank_compute_{name}") for name in ("mean", "max"))
    return Point(
        devices=size.devices,
        configuration=size.cell.name,
        jobs=len(size.records),
        throughput=size.cell.throughput,
        speedup=divided.total.scaled(size.devices / base.devices),
        split=divided,
        slowest=most.value / mean.value if most and mean and mean.value > 0 else None,
        from_crosscheck=size.parts.from_crosscheck,
    )


# -- models


def _fits(sizes: Sequence[_Size], kind: str) -> tuple[CurveFit | Refused, ...]:
    if kind not in ("strong", "weak"):
        return ()
    counts = [size.devices for size in sizes]
    rates = [size.devices / _mean(size.parts.total) for size in sizes]
    law = amdahl(counts, rates) if kind == "strong" else gustafson(counts, rates)
    known = []
    for size in sizes:
        # A step and its transfer, if the records have it. One device transfers nothing.
        step = size.row.figures.get("step_time_mean")
        if size.parts.transfer is not None and step is not None:
            known.append((step.value, _mean(size.parts.transfer) / _mean(size.parts.total) * step.value))
    if len(known) < len(sizes):
        return law, Refused("latency-bandwidth", "transfer and waiting for slower devices cannot be separated here")
    steps, transfers = zip(*known, strict=True)
    return law, latency_bandwidth(counts, rates, steps, transfers, strong=kind == "strong")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _projections(fits: Sequence[CurveFit | Refused], base: Point, devices: int) -> tuple[Projection, ...]:
    projections = []
    for fit in fits:
        if isinstance(fit, CurveFit) and fit.error_percent <= USABLE_ERROR_PERCENT and base.throughput.value:
            rate = fit.rate(devices)
            speedup = rate / base.throughput.value
            efficiency = speedup * base.devices / devices
            projections.append(Projection(fit.name, devices, rate, speedup, efficiency))
    return tuple(projections)


# -- findings


def _findings(
    sizes: Sequence[_Size],
    points: Sequence[Point],
    declared: Declared | None,
    projections: Sequence[Projection],
    *,
    provisional: bool,
) -> tuple[Finding, ...]:
    findings = [f for size in sizes[1:] for f in rule.check("pair", _pair(sizes[0], size))]
    if provisional:
        # Why the curve is provisional does not block it.
        findings = [dataclasses.replace(f, severity="warning") if f.code in UNRELIABLE else f for f in findings]
    table = _make_table(sizes, points, projections)
    findings += [f for made in rule.rules("table") if made.code.startswith(OF_CURVES) for f in made.check(table)]
    findings += _declared_otherwise([size.row for size in sizes], declared)
    if any(entry.severity == "error" for entry in findings):
        # These findings quote the speed-up, which is not reported.
        findings = [entry for entry in findings if entry.code not in OF_SPEEDUPS]
    order = list(rule.SEVERITIES)
    return tuple(sorted(_once(findings), key=lambda entry: (order.index(entry.severity), entry.code)))


def _once(findings: Sequence[Finding]) -> list[Finding]:
    """Merge equal findings of several places into one that lists them."""
    merged: dict[tuple[str, str, str], list[Finding]] = {}
    for entry in findings:
        merged.setdefault((entry.code, entry.severity, entry.message), []).append(entry)
    once = []
    for same in merged.values():
        names = list(dict.fromkeys(entry.place for entry in same if entry.place))
        counts = [name.partition(" device")[0] for name in names]
        place = ", ".join(names)
        if len(names) > 1 and all(count.isdigit() for count in counts):
            place = f"{', '.join(counts)} devices"
        once.append(dataclasses.replace(same[0], place=place))
    return once


def _make_table(sizes: Sequence[_Size], points: Sequence[Point], projections: Sequence[Projection]) -> RowTable:
    """Return the curve as a table with only what makes it a curve: pairs were judged before."""
    rows = []
    for size, point in zip(sizes, points, strict=True):
        # Without the throughput: the rules would compute speed-ups from bounds that are not rounding.
        figures = {"efficiency": _amount(point.split.total), "speedup": _amount(point.speedup)}
        settings = {key: value for key, value in size.row.settings.items() if key in GROWS}
        rows.append(Row(size.row.place, settings, figures, spec=size.row.spec))
    for entry in projections[:1]:
        rate = Amount(entry.throughput, entry.throughput, entry.throughput, points[0].throughput.unit)
        rows.append(Row("projection", {"devices": entry.devices}, {"projected_throughput": rate}))
    return RowTable("scaling", tuple(rows))


def _amount(estimate: Estimate) -> Amount:
    low = estimate.value if estimate.low is None else estimate.low
    high = estimate.value if estimate.high is None else estimate.high
    return Amount(estimate.value, low, high, "1")


def _declared_otherwise(rows: Sequence[Row], declared: Declared | None) -> list[Finding]:
    """Return a finding if the declared kind of scaling contradicts the measured batches."""
    measured = kind_of(rows)
    if declared is None or measured in (declared, "neither", "unknown"):
        return []
    made = rule.rule("SY312")
    kept = "job" if declared == "strong" else "device"
    message = f"declared as {declared} scaling, which keeps the batch of the {kept}; but this is {measured} scaling"
    return [made.found(message, fix=f"use --{measured}, or neither: the kind is derived from the batches")]
