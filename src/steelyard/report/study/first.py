"""The first screen of a report: the verdict, a few large figures, how far to trust them, and one chart.

The chart is the one of what the study varied. It is moved here from its section, so that it is on the page once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from steelyard.analysis.best import rank
from steelyard.contracts.observe import MEASURED
from steelyard.errors import SteelyardError
from steelyard.report.charts.ranking import ranking_chart
from steelyard.report.charts.style import counted, error_codes, interval_of, short
from steelyard.report.page import Chart, Drawing, FirstScreen, KeyFigure
from steelyard.report.study.subject import key_figure
from steelyard.terminal.best import verdict
from steelyard.terminal.text import sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.best import Ranked, Ranking
    from steelyard.analysis.energy import CellEnergy
    from steelyard.analysis.summary import CellSummary
    from steelyard.contracts.finding import Finding
    from steelyard.contracts.record import Quantity
    from steelyard.report.page import Section, Trust
    from steelyard.report.study.subject import Subject

MOST_FIGURES = 5
LONGEST_NAME = 40
# Which section has the chart that answers, by the beginning of its name.
IN_ORDER = ("selections", "history", "scaling", "batch")
LAST = ("steps",)


def with_first_screen(
    subjects: Sequence[Subject], energies: dict[str, list[CellEnergy]], sections: Sequence[Section], compared: str = ""
) -> tuple[FirstScreen, list[Section]]:
    """Return the first screen, and the sections without the chart that is on it.

    `compared` is the verdict on several selections.
    """
    first = subjects[0]
    rankings = rank(first.cells, rows=first.rows)
    chart, rest = _taken(sections, IN_ORDER)
    if chart is None and len(first.cells) > 1:
        chart = _ranking_chart(rankings[0], first)
    if chart is None:
        chart, rest = _taken(sections, LAST)
    # The verdict of a comparison is on the first screen, and not said again in its section.
    rest = [replace(section, answer="") if section.name == "selections" else section for section in rest]
    best = [] if compared else _best(rankings[0], several=len(first.cells) > 1)
    figures = [
        *best,
        *(figure for section in sections for figure in section.figures),
        *([] if compared else _energy(rankings[0], energies.get(first.text, []))),
    ]
    trust, words = _trust(subjects, sections)
    screen = FirstScreen(
        verdict=compared or sentence(verdict(rankings[0])),
        figures=tuple(figures[:MOST_FIGURES]) or (_without_result(subjects),),
        trust=trust,
        trust_words=words,
        chart=chart,
    )
    return screen, rest


def _taken(sections: Sequence[Section], names: Sequence[str]) -> tuple[Chart | Drawing | None, list[Section]]:
    """Take the first chart of the first section with one of these names."""
    for name in names:
        for place, section in enumerate(sections):
            drawn = [block for block in section.blocks if isinstance(block, Chart | Drawing)]
            if section.name.startswith(name) and drawn:
                left = tuple(block for block in section.blocks if block is not drawn[0])
                return drawn[0], [*sections[:place], replace(section, blocks=left), *sections[place + 1 :]]
    return None, [*sections]


def _ranking_chart(ranking: Ranking, entry: Subject) -> Chart | None:
    if all(one.figure.value is None for one in ranking.entries):
        return None
    try:
        return ranking_chart(ranking, runs=entry.runs)
    except SteelyardError:
        return None


def _leading(ranking: Ranking) -> Ranked | None:
    """Return the best, or else what measured best unless its errors make that figure invalid."""
    leading = ranking.best or ranking.above
    return None if leading is None or error_codes(leading.cell.findings) else leading


def _best(ranking: Ranking, *, several: bool) -> list[KeyFigure]:
    best = _leading(ranking)
    if best is None:
        return []
    unreliable = not best.reliable
    throughput = _of("Throughput" if not several else "Its throughput", best.figure, unreliable=unreliable)
    if not several:
        return [throughput]
    tied = len(ranking.tied)
    detail = "unreliable" if unreliable else f"tied with {counted(tied - 1, 'other')}" if tied > 1 else "no tie"
    title = "Highest, unreliable" if unreliable else "Best configuration"
    return [KeyFigure(title, short(best.name, LONGEST_NAME), detail=detail, unreliable=unreliable), throughput]


def _of(label: str, quantity: Quantity, *, unreliable: bool) -> KeyFigure:
    if quantity.value is None:
        return KeyFigure(label, "unknown", detail=quantity.reason or "", unreliable=True)
    low, high = interval_of(quantity)
    return key_figure(label, quantity.value, low, high, quantity.unit, unreliable=unreliable)


def _energy(ranking: Ranking, energies: Sequence[CellEnergy]) -> list[KeyFigure]:
    best = _leading(ranking)
    energy = next((one for one in energies if best is not None and one.cell.name == best.cell.name), None)
    figure = energy.figures.get("energy_per_sample") if energy is not None else None
    if energy is None or figure is None or figure.value is None:
        return []
    return [_of("Energy per sample", figure, unreliable=energy.verdict != "valid")]


def _without_result(subjects: Sequence[Subject]) -> KeyFigure:
    """What is left to say where nothing was measured, or nothing that is valid."""
    ends = Counter(record.status.code for entry in subjects for record in entry.records)
    (code, _), *_ = ends.most_common()
    measured = sum(count for end, count in ends.items() if end in MEASURED)
    detail = "none of their figures is valid" if measured else f"mostly: {code.replace('_', ' ')}"
    return KeyFigure("Jobs with a result", f"{measured} of {ends.total()}", detail=detail, unreliable=True)


def _trust(subjects: Sequence[Subject], sections: Sequence[Section]) -> tuple[Trust, tuple[str, ...]]:
    """Say how many configurations are reliable, on how many jobs and nodes, and what was found."""
    return trust_of(
        [cell for entry in subjects for cell in entry.cells], [one for section in sections for one in section.findings]
    )


def trust_of(cells: Sequence[CellSummary], findings: Sequence[Finding] = ()) -> tuple[Trust, tuple[str, ...]]:
    """Say how many configurations are reliable, on how many jobs and nodes, and what was found, also elsewhere."""
    reliable = sum(cell.throughput.value is not None and not cell.unreliable for cell in cells)
    jobs = sum(len(cell.records) for cell in cells)
    nodes = len({node for cell in cells for node in cell.nodes})
    codes = {(one.severity, one.code) for one in findings}
    codes |= {(one.severity, one.code) for cell in cells for one in cell.findings}
    kinds = {word: len({code for kind, code in codes if kind == word}) for word in ("error", "warning")}
    words = (
        f"{reliable:,} of {counted(len(cells), 'configuration')} reliable",
        counted(jobs, "job") + (f" on {counted(nodes, 'node')}" if nodes else ""),
        ", ".join(
            f"{f'{count} {word}' + 's' * (count > 1) if count else f'no {word}s'}" for word, count in kinds.items()
        ),
    )
    if not reliable:
        return "unreliable", words
    if reliable < len(cells):
        return "partly", words
    return ("warnings" if any(kinds.values()) else "reliable"), words
