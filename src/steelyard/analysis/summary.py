"""Summarise the repeats of a configuration. The job is the sampling unit."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from steelyard.contracts.observe import MEASURED
from steelyard.contracts.record import Interval, Quantity
from steelyard.inputs.command import EXTEND, words_of
from steelyard.inputs.study import chosen_settings, setting, written
from steelyard.numbers import short
from steelyard.redact import redact
from steelyard.rules.rule import find_rule
from steelyard.rules.statistics.runs import too_short
from steelyard.rules.table.phrases import describe_trend
from steelyard.stats.jobs import across_jobs, concerns_tail, two_groups
from steelyard.stats.ratio import MIN_JOBS, JobTime, shown_trend, too_large

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from steelyard.contracts.finding import Finding
    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec
    from steelyard.results.store import ResultFolder


SHOWN_COMMAND = 70
LARGEST_TREND = 1e6
OF_ONE_JOB = ("SY202", "SY203")
"""Findings on the interval of a single job."""


@dataclass(frozen=True)
class CellSummary:
    """All runs of one configuration of a study."""

    study: str
    name: str
    """That of the configuration: `configuration` in the settings of its runs."""
    spec: RunSpec
    """The settings of the configuration, with the budget before `steelyard study --extend`."""
    records: tuple[RunRecord, ...]
    """Those with the longest budget: --extend may have added longer ones."""
    statuses: dict[str, int]
    nodes: tuple[str, ...]
    throughput: Quantity
    """Of the whole job, over the jobs that completed: all their work over all their time."""
    time_to_quality: Quantity | None
    """Over the jobs, each with its own seed; None: no target was set."""
    findings: tuple[Finding, ...]
    """Each finding once, even if several runs have it."""
    unreliable: tuple[str, ...] = ()
    """Why the throughput must not be ranked; empty: it is reliable."""
    shorter: int = 0
    """Runs with a shorter budget, which are not counted."""


def summarise(records: Iterable[RunRecord]) -> list[CellSummary]:
    """Return one summary per configuration, in order of first appearance."""
    cells: dict[tuple[str, str], list[RunRecord]] = {}
    for record in records:
        cells.setdefault((record.spec.study, record.spec.configuration), []).append(record)
    summaries = []
    for (study, name), every in cells.items():
        runs = _longest(every)
        rate = job_throughput(runs)
        findings = {key: finding for record in reversed(runs) for key, finding in _numbered(record.findings)}
        if rate.interval is not None and not rate.interval.approximate and not any(map(too_short, runs)):
            # The interval over jobs replaces those of single jobs.
            findings = {key: finding for key, finding in findings.items() if finding.code not in OF_ONE_JOB}
        if sum(record.status.code in MEASURED for record in runs) >= MIN_JOBS:
            findings = {key: _without_useless_command(finding, runs) for key, finding in findings.items()}
        summary = CellSummary(
            study=study,
            name=name,
            spec=min(every, key=lambda record: record.spec.budget.max_seconds).spec,
            records=tuple(runs),
            statuses=dict(Counter(record.status.code for record in runs)),
            nodes=tuple(sorted({record.environment.node for record in runs if record.environment})),
            throughput=rate,
            time_to_quality=time_to_quality(runs),
            findings=tuple(findings[key] for key in sorted(findings)),
            unreliable=tuple(_unreliable(runs)),
            shorter=len(every) - len(runs),
        )
        summaries.append(summary)
    return summaries


def _numbered(findings: Iterable[Finding]) -> Iterator[tuple[tuple[str, str, int], Finding]]:
    """Yield findings of a run with a key, by which those of other jobs are the same; a code may have several."""
    count = Counter[tuple[str, str]]()
    for finding in findings:
        key = finding.code, finding.severity
        yield (*key, count[key]), finding
        count[key] += 1


def _without_useless_command(finding: Finding, runs: Sequence[RunRecord]) -> Finding:
    """Return a finding without the command to extend its study, if that would add no job."""
    measured = [record for record in runs if record.status.code in MEASURED]
    useless = finding.command.endswith(EXTEND) and why_longer(measured) is None
    return replace(finding, command="") if useless else finding


def why_longer(measured: Sequence[RunRecord]) -> str | None:
    """Return why a configuration needs longer jobs; None: it does not, or its length is up to its author."""
    if measured[0].spec.budget.epochs is not None or measured[0].spec.program is not None:
        return None
    codes = {finding.code for record in measured for finding in too_short(record)}
    if codes:
        return f"jobs too short ({', '.join(sorted(codes))})"
    trend = shown_trend([job_of(record) for record in measured])
    return f"{describe_trend(trend)} (SY211)" if trend is not None and too_large(trend) else None


def _longest(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs with the longest budget of a measured run, or with a longer one.

    Runs of different lengths are not repeats of each other.
    """
    least = max((record.spec.budget.max_seconds for record in runs if record.status.code in MEASURED), default=0.0)
    return [record for record in runs if record.spec.budget.max_seconds >= least]


def _unreliable(runs: Sequence[RunRecord]) -> Iterator[str]:
    """Yield why the throughput of these runs must not be ranked."""
    measured = [record for record in runs if record.status.code in MEASURED]
    if not any(rate.value for record in measured if (rate := record.quantities.get("throughput"))):
        if measured and measured[0].wrapped is not None:
            yield "its samples are unknown"
            return
        codes = Counter(record.status.code.replace("_", " ") for record in runs)
        yield "no figure: " + ", ".join(f"{count} {code}" for code, count in codes.items())
        return
    errors = {finding.code for record in measured for finding in record.findings if finding.severity == "error"}
    if errors:
        named = [f"{code} {known.name}" if (known := find_rule(code)) is not None else code for code in sorted(errors)]
        yield f"errors in its runs: {', '.join(named)}"
    if len(measured) < MIN_JOBS:
        unsteady = sum(not is_steady(record) for record in measured)
        says = f"{unsteady} without a steady state" if unsteady else "their spread is not known"
        yield f"{len(measured)} of the {MIN_JOBS} jobs that a ranking needs; {says}"
    if (trend := shown_trend([job_of(record) for record in measured])) is not None and too_large(trend):
        yield describe_trend(trend)


def is_steady(record: RunRecord) -> bool:
    """Return whether the run has a steady state."""
    return record.steady is not None and record.steady.answer == "steady"


def offline(spec: RunSpec) -> str | None:
    """Say what kind of generation a run is, which its figures are to be read with; None for other modes."""
    return f"offline, fixed batch of {spec.batch}" if spec.mode == "generate" else None


def generation(record: RunRecord) -> str | None:
    """Say how a run generated its tokens, as far as it is known; None for other modes."""
    kind = offline(record.spec)
    if kind is None:
        return None
    values = record.settings.values if record.settings else {}
    cache = f"{values['kv_cache']} cache" if "kv_cache" in values else None
    return ", ".join(filter(None, (kind, values.get("sampling"), values.get("decode"), cache)))


def job_of(record: RunRecord) -> JobTime:
    """Return where and when a job ran, and its trend. Simulated time does not depend on the node or the time of day."""
    trend = record.steady.trend if record.steady is not None else None
    if trend is not None:
        # Of a record of somebody else it may be any number, and statistics square it.
        trend = max(-LARGEST_TREND, min(trend, LARGEST_TREND))
    start_s = end_s = None
    simulated = record.spec.device_family == "sim"
    if record.launch is not None and not simulated:
        with suppress(ValueError):
            start_s = datetime.fromisoformat(record.launch.started_at).timestamp()
            end_s = start_s + record.launch.wall_s
    return JobTime(1.0, record.environment.node if record.environment else "", start_s, end_s, trend)


def list_studies(folder: ResultFolder) -> list[dict[str, Any]]:
    """List the studies of a folder by name, with the numbers of configurations, runs and completed runs."""
    rows = []
    for study in folder.studies():
        records = list(folder.records(study))
        completed = sum(record.status.code == "completed" for record in records)
        cells = len({record.spec.configuration for record in records})
        rows.append({"study": study, "configurations": cells, "runs": len(records), "completed": completed})
    return rows


def job_throughput(records: Sequence[RunRecord]) -> Quantity:
    """Return the throughput over jobs. Times are averaged, not rates: the inverse of the mean time per sample.

    A single job keeps the interval of its own steps, which applies only to that job.
    """
    whole = [record for record in records if record.status.code in MEASURED]
    rates = [record.quantities["throughput"] for record in whole if "throughput" in record.quantities]
    known = [(rate, rate.value) for rate in rates if rate.value]
    if not known:
        # The samples of a program may be unknown, although it has completed.
        seen = [record.wrapped for record in whole if record.wrapped is not None]
        reasons = [rate.reason for rate in rates if rate.reason] or ["its steps were not seen" for _ in seen]
        return Quantity(
            value=None,
            unit="samples/s",
            scope="job",
            window="steady",
            aggregation="work over time",
            reason=reasons[0] if reasons else "no run of this configuration completed",
        )
    first = known[0][0]
    if len(known) == 1:
        return first
    value, interval = mean_over_jobs([value for _, value in known], whole, rate=True)
    if interval is not None:
        interval = replace(interval, approximate=(*interval.approximate, *doubts(whole)))
    window = "steady" if all(rate.window == "steady" for rate, _ in known) else "after start-up"
    return Quantity(
        value=value,
        unit=first.unit,
        scope="job",
        window=window,  # type: ignore[arg-type]
        aggregation="work over time",
        interval=interval,
    )


def rated(records: Sequence[RunRecord]) -> int:
    """Return the number of jobs behind the throughput over these runs."""
    rates = [record.quantities.get("throughput") for record in records if record.status.code in MEASURED]
    return sum(rate is not None and bool(rate.value) for rate in rates)


def mean_over_jobs(
    values: Sequence[float], records: Sequence[RunRecord], *, rate: bool = False
) -> tuple[float, Interval | None]:
    """Return the mean over jobs with its interval, which applies to where these records ran; a rate as work over time.

    If all values are above zero and the interval reaches it, it becomes a bound on one side.
    """
    rate = rate and min(values) > 0
    across = across_jobs([1 / value for value in values] if rate else values)
    low, high = across.low, across.high
    if low is not None and high is not None and low <= 0 < min(values):
        low, high = 0.0, across.at_most
    value = 1 / across.value if rate else across.value
    if low is None or high is None:
        return value, None
    interval = Interval(
        low=low,
        high=high,
        level=across.level,
        method=across.method,
        covers=_covers(records, len(values)),
        approximate=across.approximate,
    )
    return value, interval.inverse(1) if rate else interval


def is_rate(unit: str) -> bool:
    """Return whether a unit is work per something: such figures are averaged as work over time."""
    return unit.endswith(("/s", "/J", "/Wh"))


def time_to_quality(records: Sequence[RunRecord]) -> Quantity | None:
    """Return the mean time over jobs, each with its own seed; unknown if one did not converge.

    A mean over only those that converged would be too optimistic.
    """
    if not records or records[0].spec.quality is None or records[0].spec.quality.target is None:
        return None
    times = [record.quantities.get("time_to_quality") for record in records]
    values = [quantity.value for quantity in times if quantity is not None and quantity.value is not None]
    reason = interval = value = None
    if len(values) < len(records):
        reason = f"only {len(values)} of {len(records)} jobs reached the quality {records[0].spec.quality.target:g}"
    else:
        value, interval = mean_over_jobs(values, records)
    return Quantity(
        value=value,
        unit="s",
        scope="job",
        window="to quality",
        aggregation="mean",
        interval=interval,
        reason=reason,
    )


def labels(cells: Sequence[CellSummary]) -> dict[str, str]:
    """Label configurations by the settings in which they differ; a single one by its workload."""
    if named := _label_programs(cells):
        return named
    chosen = {cell.name: settings_of(cell.spec) for cell in cells}
    keys = sorted({key for settings in chosen.values() for key in settings})
    differing = [key for key in keys if len({repr(settings.get(key)) for settings in chosen.values()}) > 1]
    named = {
        cell.name: ", ".join(f"{key}={written(setting(cell.spec, key, '-'))}" for key in differing) for cell in cells
    }
    return {cell.name: named[cell.name] or cell.spec.workload for cell in cells}


def _label_programs(cells: Sequence[CellSummary]) -> dict[str, str]:
    """Label programs by the parameters of their command, or by the whole command.

    The settings that were read back follow from these. Empty if the labels would be the same.
    """
    programs = [cell.spec.program for cell in cells]
    commands = {program.command for program in programs if program is not None}
    if len(cells) < 2 or None in programs:
        return {}
    named = {cell.name: shorten(redact(" ".join(words_of(cell.spec)))[0], SHOWN_COMMAND) for cell in cells}
    if len(commands) == 1:
        given = [{"devices": cell.spec.devices, **cell.spec.program.parameters} for cell in cells if cell.spec.program]
        keys = [key for key in given[0] if len({repr(values.get(key)) for values in given}) > 1]
        told = [", ".join(f"{key}={written(values.get(key))}" for key in keys) for values in given]
        named = {cell.name: redact(text)[0] for cell, text in zip(cells, told, strict=True)}
    return named if len({*named.values()}) == len(cells) else {}


def settings_of(spec: RunSpec) -> dict[str, Any]:
    """Return the settings that differ from their defaults by dotted name; options of the model are `model.NAME`.

    Parameters of a program have their names alone.
    """
    settings = dict(chosen_settings(spec))
    if isinstance(settings.get("model"), dict):
        settings |= {f"model.{name}": value for name, value in settings.pop("model").items()}
    for name, value in settings.pop("program.parameters", {}).items():
        # What was read back is known better, unless it is something else.
        if not hasattr(spec, name):
            settings[name] = value
        elif getattr(spec, name) != value:
            settings[f"program.parameters.{name}"] = value
    return settings


def doubts(records: Sequence[RunRecord]) -> tuple[str, ...]:
    """Return assumptions of Student's t over job means that these jobs do not meet."""
    unmet = []
    rates = [record.quantities["throughput"] for record in records if "throughput" in record.quantities]
    own = [reason for rate in rates if rate.interval for reason in rate.interval.approximate]
    reasons = [reason for reason in own if concerns_tail(reason)]
    if reasons:
        unmet.append(f"in {len(reasons)} of {len(records)} jobs {reasons[0]}")
    nodes = {record.environment.node for record in records if record.environment}
    if 1 < len(nodes) < len(records):
        unmet.append(f"{len(records)} jobs on {len(nodes)} nodes: jobs on the same node are not independent")
    values = sorted(rate.value for rate in rates if rate.value)
    if (slow := two_groups(values)) is not None:
        unmet.append(
            f"{slow} of {len(values)} jobs are slower than the others (smallest {short(values[0])}, largest "
            f"{short(values[-1])}); the CI assumes that jobs vary alike"
        )
    return tuple(unmet)


def _covers(records: Sequence[RunRecord], jobs: int) -> str:
    """Describe the jobs of an interval and where they ran; other nodes may differ."""
    places = [record.environment for record in records if record.environment]
    nodes = {place.node for place in places}
    allocations = {place.allocation for place in places}
    if len(nodes) == 1:
        return f"{jobs} jobs, all on node {nodes.pop()}"
    if len(allocations) == 1 and allocations != {None}:
        return f"{jobs} jobs on {len(nodes)} nodes, all in allocation {allocations.pop()}"
    return f"{jobs} jobs on {len(nodes)} nodes"
