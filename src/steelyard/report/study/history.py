"""Throughput over days: of the repeated runs of a `verify` recipe, or of a study that ran for several days."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steelyard.analysis.verify import ORDER, overall
from steelyard.inputs.study import label
from steelyard.report.charts.history import (
    MAX_OCCASIONS,
    history_chart,
    metric_words,
    occasions,
    verified_chart,
)
from steelyard.report.charts.style import error_codes, named
from steelyard.report.page import Cell, Column, KeyFigure, Section, Table
from steelyard.report.study.subject import key_figure
from steelyard.terminal.findings import merged
from steelyard.terminal.text import capital, number, sentence
from steelyard.terminal.verify import band_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.verify import History, Occasion
    from steelyard.contracts.record import RunRecord
    from steelyard.report.study.subject import Subject
    from steelyard.results.store import ResultFolder

# Two days are not enough: a study may run past midnight.
MIN_DAYS = 3
CHARTS = 4
SHOWN_FIGURES = 2
QUESTION = "Has the figure changed over time, and is it as documented?"


def history_section(
    folder: ResultFolder, entry: Subject, name: str = "history", title: str = "History"
) -> Section | None:
    """Throughput of each configuration by day; None if there are too few days.

    `steelyard verify` makes a new study each time, `verify.RECIPE.TIME`. All studies of a recipe are one history.
    """
    studies = {cell.study for cell in entry.cells}
    recipes = {study.rpartition(".")[0] for study in studies if study.startswith("verify.")}
    others = [study for study in folder.studies() if study.rpartition(".")[0] in recipes and study not in studies]
    records: dict[str, list[RunRecord]] = {}
    for record in (*entry.records, *(record for study in others for record in folder.records(study))):
        records.setdefault(record.spec.configuration, []).append(record)
    histories = []
    for cell in entry.cells:
        days = occasions(records.get(cell.name, []))[-MAX_OCCASIONS:]
        if len(days) >= MIN_DAYS and not error_codes(cell.findings):
            histories.append((entry.name(cell), days, cell.throughput.unit))
    histories.sort(key=lambda history: -len(history[1]))
    charts = []
    for place, (text, days, unit) in enumerate(histories[:CHARTS], 1):
        metric = f"throughput of {text}" if len(histories) > 1 else "throughput"
        charts.append(history_chart(days, f"{name}-{place}", metric=metric, unit=unit))
    answer = " ".join(chart.alt for chart in charts)
    return Section(name, title, "Has the throughput changed over time?", answer, tuple(charts)) if charts else None


# -- of a recipe, with its band


def recipe_section(histories: Sequence[History]) -> Section:
    """Return the section on all occasions of a recipe."""
    charts: list[Any] = []
    tables, figures = [], []
    for place, entry in enumerate(histories, 1):
        measured = _measured(entry)
        if 2 <= len(measured) <= MAX_OCCASIONS and len(charts) < CHARTS:
            charts.append(verified_chart(entry, f"history-{place}"))
        tables.append(_occasion_table(entry, place))
        figures += _figures(entry, several=len(histories) > 1) if place <= SHOWN_FIGURES and measured else []
    findings = merged(finding for entry in histories for finding in entry.findings)
    left = sum(entry.other_settings for entry in histories)
    answer = f"{left} occasions with other settings are not shown." if left else ""
    return Section("history", "History", QUESTION, answer, (*charts, *tables), findings, figures=tuple(figures))


def _measured(entry: History) -> list[Occasion]:
    return [occasion for occasion in entry.occasions if occasion.values]


def recipe_verdict(histories: Sequence[History]) -> str:
    """Judge the latest occasion, worst figure first, and say what changed."""
    latest = [(entry, entry.occasions[-1].outcome) for entry in histories if entry.occasions]
    if not latest:
        return "Not run yet with these settings."
    worst = overall([outcome for _, outcome in latest])
    entry, outcome = max(latest, key=lambda one: ORDER.index(one[1].verdict))
    count = f" ({sum(one.verdict == worst for _, one in latest)} of {len(latest)} figures)" if len(latest) > 1 else ""
    text = f"{capital(worst)}{count}: {_name(entry)} on {entry.occasions[-1].started_at[:10]}"
    judgement = outcome.judgement
    if judgement is None:
        text += f": {outcome.why}"
    else:
        text += f" was {named(judgement.value, judgement.low, judgement.high)} {outcome.unit}"
        text += f", expected {band_words(outcome.band)}"
    measured = _measured(entry)
    changes = [
        f"{abs(100 * (step.change.ratio - 1)):.1f} % {'higher' if step.change.ratio > 1 else 'lower'} "
        f"since {measured[step.change.index].started_at[:10]}"
        for step in entry.steps
    ]
    return f"{text}. {sentence(capital(', then '.join(changes) or f'no change shown in {len(measured)} occasions'))}"


def _name(entry: History) -> str:
    return metric_words(entry) + (f" at {label(dict(entry.expect.at))}" if entry.expect.at else "")


def _figures(entry: History, *, several: bool) -> list[KeyFigure]:
    last = _measured(entry)[-1].outcome
    judgement = last.judgement
    of = f", {label(dict(entry.expect.at)) or entry.expect.metric}" if several else ""
    if judgement is None:
        return []
    doubt = last.verdict != "pass"
    made = [key_figure(f"Latest{of}", judgement.value, judgement.low, judgement.high, last.unit, unreliable=doubt)]
    detail = f"documented {number(entry.expect.value)}" if entry.expect.value is not None else ""
    made.append(KeyFigure(f"Expected{of}", band_words(last.band), last.unit, detail))
    for step in entry.steps[-1:]:
        percent = f"{100 * (step.change.ratio - 1):+.1f}"
        since = _measured(entry)[step.change.index].started_at[:10]
        made.append(KeyFigure(f"Change since {since}{of}", percent, "%", f"p <= {step.change.p_value:.2g}"))
    return made


def _occasion_table(entry: History, place: int) -> Table:
    columns = (
        Column("started (UTC)", align="left"),
        Column("jobs"),
        Column("figure", entry.unit),
        Column("verdict", align="left"),
    )
    rows = []
    for occasion in entry.occasions:
        judgement, ids = occasion.outcome.judgement, tuple(record.run_id for record in occasion.outcome.records)
        figure = Cell("-", runs=ids)
        if judgement is not None:
            ends = (
                ""
                if judgement.low is None or judgement.high is None
                else f" [{number(judgement.low)}, {number(judgement.high)}]"
            )
            figure = Cell(f"{number(judgement.value)}{ends}", judgement.value, judgement.low, judgement.high, ids)
        started, verdict = occasion.started_at[:16].replace("T", " "), occasion.outcome.verdict
        rows.append(
            (
                Cell(started, occasion.started_at),
                Cell(str(len(occasion.values)), len(occasion.values)),
                figure,
                Cell(verdict, verdict),
            )
        )
    return Table(f"occasions-{place}", f"Occasions: {_name(entry)}", columns, tuple(rows))
