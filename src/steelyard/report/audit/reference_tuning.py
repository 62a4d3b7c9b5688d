"""Settings that a document tried one by one: rates beside each other, and which two may be divided. Knows rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard.report.audit.claims import claims_table
from steelyard.report.audit.published import (
    NO_REPEATS,
    metric_unit,
    printed_cell,
    ratio_cell,
    selection,
    setting_cell,
    verdict_cell,
    verdict_words,
)
from steelyard.report.charts.published import ChartText, Dot, dots_chart
from steelyard.report.page import Cell, Column, Prose, Section, Table
from steelyard.report.study.subject import merged
from steelyard.rules.table.settings import shown
from steelyard.terminal.text import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.audit.judge import Judgement
    from steelyard.report.audit.published import Held, JudgedDocument
    from steelyard.report.page import Chart
    from steelyard.rules.table.row import Row

RATE = "throughput"
FIRST = ("devices", "workers_per_device", "precision")
OTHERS = ("batch_per_device", "parallelism", "numa", "options")
FIGURES = ("throughput", "expected_throughput", "epoch_time", "val_accuracy@epoch10")


@dataclass(frozen=True)
class SettingStep:
    """Two rows of which one setting is meant to differ."""

    factor: str
    a: str
    b: str


def tuning_section(
    document: JudgedDocument, judgements: Sequence[Judgement], base: str, steps: Sequence[SettingStep], device: str
) -> Section:
    """Every configuration as printed, held against the base that the document takes; then one setting at a time."""
    name = f"{document.name}-tuning"
    rows = document.select()
    (first,) = document.select(base)
    held = {row.place: document.hold(first, row, "devices", RATE) for row in rows if row.place != first.place}
    single = [(step, _step(document, step)) for step in steps]
    blocked = sum(entry.blocked for entry in held.values())
    answer = (
        f"Against {first.table}, the base of its speed-ups, {blocked} of {len(held)} rows are not comparable. "
        f"{_step_words(single)} {verdict_words(judgements)}."
    )
    findings = merged(
        (*document.findings_on(rows), *(found for entry in held.values() for found in entry.findings),
         *(found for _, entry in single for found in entry.findings))
    )  # fmt: skip
    blocks = (
        _rates_chart(document, rows, device, name),
        _summary_table(document, rows, held, f"{name}-summary"),
        _steps_table(single, metric_unit(rows, RATE), f"{name}-steps"),
        claims_table(judgements, f"{name}-claims"),
        Prose(("The same in a terminal:",), code="\n".join(_command(document.name, step) for step in steps)),
    )
    title = f"{document.name}: the tuning summary"
    return Section(name, title, "Which setting makes it faster, and by how much?", answer, blocks, findings)


def _step(document: JudgedDocument, step: SettingStep) -> Held:
    (a,), (b,) = document.select(step.a), document.select(step.b)
    return document.hold(a, b, step.factor, RATE)


def _command(name: str, step: SettingStep) -> str:
    return f"steelyard compare '{selection(name, step.a)}' '{selection(name, step.b)}' --factor {step.factor}"


def _step_words(single: Sequence[tuple[SettingStep, Held]]) -> str:
    """What each change alone brings; the verdict comes first."""
    made = [(step, held) for step, held in single if "job" in held.ratios]
    if not made:
        return "No step changes one setting alone."
    verdicts = " and ".join(dict.fromkeys(held.verdict for _, held in made))
    parts = [f"{_change(step, held)} {number(held.ratios['job'].value, 3)}" for step, held in made]
    return f"One setting at a time ({verdicts}), times as fast: {'; '.join(parts)}."


def _rates_chart(document: JudgedDocument, rows: Sequence[Row], device: str, name: str) -> Chart:
    labels = _labels(rows)
    dots = [
        Dot(label, _sized(row, device), row.figures[RATE].value, bool(document.blocking(row)))
        for label, row in zip(labels, rows, strict=True)
    ]
    unit = metric_unit(rows, RATE)
    slow, fast = (min(dots, key=lambda dot: dot.value), max(dots, key=lambda dot: dot.value))
    told = ChartText(
        f"{name}-rates",
        "Throughput of every configuration",
        f"Plain rates, no ratio between them. From {slow.value:,.0f} {unit} ({slow.line}, {slow.kind}) to "
        f"{fast.value:,.0f} ({fast.line}, {fast.kind}).",
        ("Plain rates: most of these rows differ in several settings at once, so no ratio is drawn.", NO_REPEATS),
    )
    return dots_chart(told, "throughput of the job", unit, dots)


def _sized(row: Row, device: str) -> str:
    count = row.number("devices") or 1.0
    return f"{count:g} {device.removesuffix('s') if count == 1 else device}"


def _labels(rows: Sequence[Row]) -> list[str]:
    """Names for a picture: test, workers and precision; rows that share these are counted."""
    seen: dict[str, int] = {}
    out = []
    for row in rows:
        text = f"{row.table}: {row.get('workers_per_device')} workers, {row.get('precision')}"
        seen[text] = seen.get(text, 0) + 1
        out.append(text if seen[text] == 1 else f"{text} ({seen[text]})")
    return out


def _summary_table(document: JudgedDocument, rows: Sequence[Row], held: dict[str, Held], name: str) -> Table:
    columns = (
        Column("test", align="left"),
        *(Column(key.replace("_", " "), align="left") for key in FIRST),
        *(Column(metric.replace("_", " "), metric_unit(rows, metric)) for metric in FIGURES),
        Column("comparable", align="left"), Column("times the base"),
        *(Column(key.replace("_", " "), align="left") for key in OTHERS),
    )  # fmt: skip
    made = []
    for row in rows:
        entry = held.get(row.place)
        figures = [printed_cell(row, metric, document.codes_on(row) if metric == RATE else ()) for metric in FIGURES]
        settings = [[setting_cell(row, key) for key in keys] for keys in (FIRST, OTHERS)]
        ratio = (verdict_cell(entry), ratio_cell(entry, "job"))
        made.append((Cell(row.table, row.table), *settings[0], *figures, *ratio, *settings[1]))
    return Table(name, "Every configuration, as printed", columns, tuple(made), (NO_REPEATS, "-: not printed."))


def _steps_table(single: Sequence[tuple[SettingStep, Held]], unit: str, name: str) -> Table:
    columns = (
        Column("what changes", align="left"), Column("comparable", align="left"), Column("times as fast"),
        Column("efficiency", "%"), Column("before", unit), Column("after", unit), Column("rows", align="left"),
    )  # fmt: skip
    rows = []
    for step, held in single:
        grew = held.a.number("devices") != held.b.number("devices")
        change, tests = _change(step, held), " and ".join(dict.fromkeys((held.a.table, held.b.table)))
        rows.append(
            (
                Cell(change, change), verdict_cell(held), ratio_cell(held, "job"),
                ratio_cell(held, "device", percent=True) if grew else Cell("-"),
                printed_cell(held.a, RATE), printed_cell(held.b, RATE), Cell(tests, tests),
            )
        )  # fmt: skip
    notes = ("Two runs with the same settings differ too: a smaller change than theirs is not shown by one run each.",)
    return Table(name, "One setting at a time", columns, tuple(rows), notes)


def _change(step: SettingStep, held: Held) -> str:
    before, after = (shown(row.get(step.factor)) for row in (held.a, held.b))
    name = step.factor.replace("_", " ")
    return f"a repeat ({name} {before})" if before == after else f"{name} {before} to {after}"
