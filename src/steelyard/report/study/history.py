"""Figures of a study over days: those of a recipe's occasions, or of a study that went on for days. Knows whose runs
belong to one history; finds no change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.report.charts.history import MAX_OCCASIONS, history_chart, occasions
from steelyard.report.charts.style import blocking_codes
from steelyard.report.page import Section

if TYPE_CHECKING:
    from steelyard.report.study.subject import Subject
    from steelyard.results.store import ResultFolder

# A study that ran past midnight has no history.
MIN_DAYS = 3
CHARTS = 4


def history_section(folder: ResultFolder, entry: Subject, name: str, title: str) -> Section | None:
    """Throughput of each cell over the days on which it was measured; None where there are too few days.

    An occasion of `steelyard verify` is a study of its own, `verify.RECIPE.TIME`: all those of its recipe are one
    history.
    """
    studies = {cell.study for cell in entry.cells}
    recipes = {study.rpartition(".")[0] for study in studies if study.startswith("verify.")}
    others = [study for study in folder.studies() if study.rpartition(".")[0] in recipes and study not in studies]
    records = [*entry.records, *(record for study in others for record in folder.records(study))]
    found = []
    for cell in entry.cells:
        days = occasions(record for record in records if record.spec.configuration == cell.cell)[-MAX_OCCASIONS:]
        if len(days) >= MIN_DAYS and not blocking_codes(cell.findings):
            found.append((entry.name(cell), days, cell.throughput.unit))
    found.sort(key=lambda history: -len(history[1]))
    charts = []
    for place, (label, days, unit) in enumerate(found[:CHARTS], 1):
        whose = label if len(found) > 1 else "the job"
        charts.append(history_chart(days, f"{name}-{place}", metric=f"throughput of {whose}", unit=unit))
    answer = " ".join(chart.alt for chart in charts)
    return Section(name, title, "Has the throughput changed over time?", answer, tuple(charts)) if charts else None
