"""The tables that several verbs print. Knows which columns people want, no statistics."""

import textwrap
from collections.abc import Callable
from typing import Any

from steelyard.analysis.bound import seen
from steelyard.analysis.summary import MEASURED, CellSummary, labels
from steelyard.contracts.base import to_json_object
from steelyard.contracts.record import Finding, Quantity, RunRecord
from steelyard.errors import printable
from steelyard.terminal.findings import finding_lines
from steelyard.terminal.narrow import OUTPUT_COLUMNS
from steelyard.terminal.text import number, seconds, table, with_interval

WIDE = 120
SHORT_S = 0.01


def print_cells(cells: list[CellSummary], *, detail: bool = False) -> None:
    """One row a cell, then what the numbers mean and what must be known about them."""
    names = labels(cells)
    rows = [[names[cell.cell], _statuses(cell), with_interval(cell.throughput)] for cell in cells]
    print(table(["cell", "runs", "throughput of the job, samples/s"], rows))
    for line in _notes(cells):
        print(_filled(line))
    for cell in cells:
        if cell.time_to_quality is not None:
            _print_time_to_quality(cell, names[cell.cell])
    if detail and len(cells) == 1:
        _print_detail(cells[0])
    _print_findings(cells, names)


def print_record(record: RunRecord) -> None:
    """Everything about one run."""
    print(_filled(f"{record.run_id} ({record.spec.study}): {record.status.code} {record.status.reason}".rstrip()))
    if record.environment:
        place = record.environment
        where = f"node {place.node}, allocation {place.allocation or 'none'}, {place.device}: {place.timing}"
        print(_filled(where))
    if record.steady:
        window = f"steps {record.steady.start_step:,} to {record.steady.stop_step:,}"
        print(_filled(f"{record.steady.answer} ({window}): {record.steady.reason}"))
    for line in _facts(record):
        print(_filled(line, WIDE))
    print()
    rows = []
    for name, quantity in record.quantities.items():
        text = seconds(quantity.value) if quantity.unit == "s" and quantity.value is not None else None
        if quantity.value is None and quantity.unit == "J" and _nothing_there(quantity.reason or ""):
            text = "unknown: no sensor here"
        rows.append([name, text or with_interval(quantity), _unit(quantity.unit), quantity.scope, quantity.window])
    print(table(["quantity", "value", "unit", "scope", "window"], rows))
    _print_energy([record])
    _print_each(record.findings)


def _filled(text: str, columns: int | None = None) -> str:
    """A line broken to fit a terminal, or else so many columns; None: as it is."""
    columns = OUTPUT_COLUMNS.get() or columns
    text = printable(text)
    return text if columns is None else textwrap.fill(text, columns, subsequent_indent="  ")


def _facts(record: RunRecord) -> list[str]:
    """What ran, on what, and with which settings."""
    lines = []
    if record.status.evidence:
        lines.append("evidence: " + "; ".join(f"{key}: {value}" for key, value in record.status.evidence.items()))
    if record.model:
        flops = record.model.flops_per_sample
        work = "FLOPs unknown" if flops is None else f"{number(flops, 4)} FLOP a sample"
        lines.append(f"model: {record.model.parameters:,} parameters, {work} ({record.model.method})")
    if record.device:
        known = record.device.model or "not in the table of facts, so its peak is unknown"
        lines.append(f"device: {record.device.name} ({known})")
    if record.settings:
        lines.append("in effect: " + ", ".join(f"{key} {value}" for key, value in record.settings.values.items()))
    if record.environment:
        lines.append(f"environment: {len(record.environment.facts)} facts in the record (--json)")
    return lines


def cells_as_json(cells: list[CellSummary]) -> list[dict[str, Any]]:
    """Summaries for machines."""
    return [
        {
            "study": cell.study,
            "cell": cell.cell,
            "statuses": cell.statuses,
            "nodes": list(cell.nodes),
            "throughput_job": to_json_object(cell.throughput),
            "time_to_quality": to_json_object(cell.time_to_quality),
            "findings": to_json_object(cell.findings),
            "runs": [record.run_id for record in cell.records],
        }
        for cell in cells
    ]


def _unit(unit: str) -> str:
    return "" if unit in ("s", "1") else unit


def _statuses(cell: CellSummary) -> str:
    return ", ".join(f"{count} {code}" for code, count in sorted(cell.statuses.items()))


def _notes(cells: list[CellSummary]) -> list[str]:
    """What the brackets are: the interval, what it speaks for, and how it was made."""
    notes = []
    for cell in cells:
        interval = cell.throughput.interval
        if interval is not None:
            note = f"[]: {interval.level:.0%} interval for {interval.covers}; {interval.method}"
            notes.append(note)
        if interval is not None and interval.approximate:
            notes.append("~: approximate, " + "; ".join(interval.approximate))
    return list(dict.fromkeys(notes))


def _print_detail(cell: CellSummary) -> None:
    done = [record for record in cell.records if record.status.code in MEASURED]
    if not done:
        for record in cell.records:
            print(_filled(f"{record.run_id}: {record.status.code}: {record.status.reason}"))
        return
    rows = []
    for record in done:
        q = {name: quantity.value for name, quantity in record.quantities.items()}
        steady = record.steady.answer if record.steady else "-"
        rows.append(
            [
                str(record.spec.repeat),
                _value(q.get("step_time_mean")),
                _value(q.get("step_time_p50")),
                _value(q.get("step_time_p99")),
                _percent(q.get("input_wait_share")),
                _percent(q.get("compute_share")),
                _percent(q.get("exposed_comm_share")),
                steady,
                record.stop.reason if record.stop else "-",
            ]
        )
    print()
    header = ["job", "step mean", "p50", "p99", "input", "compute", "comm", "state", "stopped by"]
    print(table(header, rows))
    _print_more(done)
    _print_energy(done)
    _print_bound(done)
    shares = [record.quantities.get("exposed_comm_share") for record in done]
    if any(share is not None and share.window == "crosscheck" for share in shares):
        print("comm: from the cross-check pass, which alone watches the communication; compute: the rest")


# What some runs have beyond the times of their steps: heading, quantity, and how it is written.
MORE: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("compile", "compile_time", seconds),
    ("first epoch", "first_epoch_time", seconds),
    ("later epochs", "later_epochs_time", seconds),
    ("quality", "quality", number),
    ("to quality", "time_to_quality", seconds),
    ("epochs", "epochs_to_quality", "{:.0f}".format),
    ("first token p50", "ttft_p50", seconds),
    ("p99", "ttft_p99", seconds),
    ("token p50", "time_per_token_p50", seconds),
    ("p99", "time_per_token_p99", seconds),
    ("tokens/s", "tokens_job", number),
    ("tokens/s", "tokens_per_second", number),
    ("FLOP/s", "model_flops_device", number),
    ("of peak", "model_flops_utilisation", lambda share: f"{100 * share:.1f} %"),
    ("B/s", "bandwidth_device", number),
    ("B/s algorithm", "algorithm_bandwidth", number),
    ("B/s bus", "bus_bandwidth", number),
    ("J/sample", "energy_per_sample", number),
    ("J/token", "energy_per_token", number),
    ("W", "power_job", number),
    ("samples/Wh", "samples_per_wh", number),
)


def _print_more(done: list[RunRecord]) -> None:
    """A second table, with the columns that any of the jobs has."""
    shown = []
    for heading, name, write in MORE:
        values = [_believable(record.quantities.get(name)) for record in done]
        # A phase of no length is none.
        if any(value is not None and (name != "compile_time" or value > SHORT_S) for value in values):
            if name == "quality":
                # By the metric's name, which is its unit.
                heading = next(record.quantities[name].unit for record in done if name in record.quantities)
            shown.append((heading, ["-" if value is None else write(value) for value in values]))
    if shown:
        print()
        rows = [[str(record.spec.repeat), *(column[i] for _, column in shown)] for i, record in enumerate(done)]
        print(table(["job", *(heading for heading, _ in shown)], rows))


def _believable(quantity: Quantity | None) -> float | None:
    """A value, but for an energy that is known to be wrong."""
    if quantity is None or (quantity.validity is not None and quantity.validity.verdict == "invalid"):
        return None
    return quantity.value


def _print_energy(done: list[RunRecord]) -> None:
    """Why there is no energy where sensors are, and what must be known of one that is doubtful: a line each."""
    said: dict[str, list[int]] = {}
    for record in done:
        if (line := _on_energy(record)) is not None:
            said.setdefault(line, []).append(record.spec.repeat)
    for line, repeats in said.items():
        which = "" if len(repeats) == len(done) else f"job {', '.join(map(str, repeats))}: "
        print(_filled(which + line, WIDE))


def _on_energy(record: RunRecord) -> str | None:
    found = record.quantities.get("energy_job")
    # A finding says more, and how to mend it.
    if found is None or any(finding.code.startswith("SY4") for finding in record.findings):
        return None
    if found.value is None:
        return None if _nothing_there(found.reason or "") else f"no energy: {found.reason}"
    if found.validity is None or found.validity.verdict == "valid":
        return None
    word = "no energy" if found.validity.verdict == "invalid" else "energy is doubtful"
    return f"{word}: {'; '.join(found.validity.reasons[:2])} (steelyard energy {record.run_id})"


def _nothing_there(reason: str) -> bool:
    """Whether this machine simply has no sensor: then every run would say so, and nobody could mend it."""
    said = reason.partition("can be read here: ")[2].split("; ")
    return all(": there is no /" in part or part.startswith("and ") for part in said)


def _print_bound(done: list[RunRecord]) -> None:
    """Whether the jobs wait for data that the host makes or reads."""
    for record in done:
        share = record.quantities.get("input_wait_share")
        if record.spec.loader.place == "host" and record.spec.mode != "load" and share is not None and share.value:
            waits = f"the device waits for data {_percent(share.value)} of the time"
            print(f"job {record.spec.repeat}: {seen(record)}: {waits}")


def _print_time_to_quality(cell: CellSummary, name: str) -> None:
    found, spec = cell.time_to_quality, cell.records[0].spec
    assert found is not None
    assert spec.quality is not None
    metric = next((e.metric for record in cell.records for e in record.evaluations), "the metric")
    jobs = f"{len(cell.records)} jobs, each with a seed of its own" if len(cell.records) > 1 else "1 job"
    unit = "" if found.value is None else " s"
    print(printable(f"{name}: time to {metric} {spec.quality.target:g}: {with_interval(found)}{unit} ({jobs})"))


def _value(value: float | None) -> str:
    return "-" if value is None else seconds(value)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{number(100 * share, 3)} %"


def _print_findings(cells: list[CellSummary], names: dict[str, str]) -> None:
    for cell in cells:
        if cell.findings and len(cells) > 1:
            print("\n" + printable(names[cell.cell]) + ":")
        _print_each(cell.findings)


def _print_each(findings: tuple[Finding, ...]) -> None:
    if findings:
        print()
    for line in finding_lines(findings):
        print(line)
