"""Throughput over days: of the repeated runs of a `verify` recipe, or of a study that ran for several days."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.report.charts.history import MAX_OCCASIONS, history_chart, occasions
from steelyard.report.charts.style import error_codes
from steelyard.report.page import Section

if TYPE_CHECKING:
    from steelyard.report.study.subject import Subject
    from steelyard.results.store import ResultFolder

# Two days are not enough: a study may run past midnight.
MIN_DAYS = 3
CHARTS = 4


def history_section(folder: ResultFolder, entry: Subject, name: str, title: str) -> Section | None:
    """Throughput of each configuration by day; None if there are too few days.

    `steelyard verify` makes a new study each time, `verify.RECIPE.TIME`. All studies of a recipe are one history.
    """
    studies = {cell.study for cell in entry.cells}
    recipes = {study.rpartition(".")[0] for study in studies if study.startswith("verify.")}
    others = [study for study in folder.studies() if study.rpartition(".")[0] in recipes and study not in studies]
    records = [*entry.records, *(record for study in others for record in folder.records(study))]
    found = []
    for cell in entry.cells:
        days = occasions(record for record in records if record.spec.configuration == cell.cell)[-MAX_OCCASIONS:]
        if len(days) >= MIN_DAYS and not error_codes(cell.findings):
            found.append((entry.name(cell), days, cell.throughput.unit))
    found.sort(key=lambda history: -len(history[1]))
    charts = []
    for place, (label, days, unit) in enumerate(found[:CHARTS], 1):
        metric = f"throughput of {label}" if len(found) > 1 else "throughput"
        charts.append(history_chart(days, f"{name}-{place}", metric=metric, unit=unit))
    answer = " ".join(chart.alt for chart in charts)
    return Section(name, title, "Has the throughput changed over time?", answer, tuple(charts)) if charts else None
