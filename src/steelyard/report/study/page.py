"""Build the report of a study, a selection or a run: which sections it has, and in what order."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING

from steelyard.analysis.compare import require_factor
from steelyard.analysis.measured_energy import cells_with_energy
from steelyard.analysis.select import select
from steelyard.report.charts.style import counted
from steelyard.report.page import Page, with_note
from steelyard.report.study.back import (
    codes_section,
    environment_section,
    method_section,
    provenance_section,
    raw_download,
)
from steelyard.report.study.beside import side_by_side, suffix, together
from steelyard.report.study.compare import factor_sections, selections_sections
from steelyard.report.study.curves import batch_section, heat_section, scaling_section
from steelyard.report.study.energy import energy_section
from steelyard.report.study.first import with_first_screen
from steelyard.report.study.history import history_section, recipe_section, recipe_verdict
from steelyard.report.study.overview import cells_section, overview, quality_section, simulated
from steelyard.report.study.run import FEW, run_sections, trace_section
from steelyard.report.study.subject import subject
from steelyard.results.store import ResultFolder
from steelyard.terminal.text import tuned_note
from steelyard.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from steelyard.analysis.energy import CellEnergy
    from steelyard.analysis.verify import History
    from steelyard.contracts.record import RunRecord
    from steelyard.report.page import Section
    from steelyard.report.study.subject import Subject

    Say = Callable[[str], None]


class _Once(ResultFolder):
    """A result folder that reads each study only once."""

    def __init__(self, folder: ResultFolder) -> None:
        super().__init__(folder.path)
        self._read = cache(lambda study: tuple(ResultFolder.records(self, study)))

    def records(self, study: str | None = None) -> Iterator[RunRecord]:
        """All records, or those of one study."""
        return iter(self._read(study))


def study_page(
    folder: ResultFolder,
    study: str | Sequence[str],
    *,
    title: str = "",
    factor: str = "system",
    histories: Sequence[History] = (),
    say: Say | None = None,
) -> Page:
    """Return the page of one or several selections; InputError if one selects nothing.

    `study` is what `analysis.select` takes. Each further selection is compared with the first, by `factor`.
    `histories` are those of the figures of a recipe whose latest occasion is selected. `say` is called with progress
    messages.
    """
    texts = [study] if isinstance(study, str) else list(dict.fromkeys(study))
    require_factor(factor)
    tell = say or _silent
    once = _Once(folder)
    tell("reading records")
    subjects = [subject(text, select(once, text)) for text in texts]
    runs = sum(len(entry.records) for entry in subjects)
    cells = sum(len(entry.cells) for entry in subjects)
    tell(f"{counted(runs, 'run')} in {counted(cells, 'configuration')}; analysing")
    energies = {entry.text: cells_with_energy(folder, entry.cells) for entry in subjects}
    # Answers first, then how they were made.
    compared, front = _front(folder, subjects, energies, factor, histories)
    screen, front = with_first_screen(subjects, energies, front, compared)
    downloads, parts = raw_download(folder, subjects)
    watched = any(one.main.value is not None for each in energies.values() for one in each)
    back = [method_section(subjects, energy=watched), environment_section(subjects)]
    back.append(provenance_section(subjects, parts))
    specs = [record.spec for entry in subjects for record in entry.records]
    selected = [entry.text for entry in subjects]
    more = f" and {len(selected) - 3} more" if len(selected) > 3 else ""
    return Page(
        title=title or f"Report: {', '.join(selected[:3])}{more}",
        subtitle=_subtitle(subjects),
        sections=(*with_note(front, tuned_note(specs)), codes_section(front), *back),
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        made_by=f"steelyard {VERSION}",
        first=screen,
        downloads=downloads,
    )


def _silent(_: str) -> None:
    """Ignore progress messages."""


def _front(
    folder: ResultFolder,
    subjects: Sequence[Subject],
    energies: dict[str, list[CellEnergy]],
    factor: str,
    histories: Sequence[History],
) -> tuple[str, list[Section]]:
    """Return the verdict on several selections or on a recipe, and the sections with answers.

    What several selections show of the same thing is one section.
    """
    planned = {cell.study: folder.planned(cell.study) for entry in subjects for cell in entry.cells}
    about = overview(subjects, energies, planned)
    if len(subjects) == 1:
        (entry,) = subjects
        made = [about, *_sections(folder, entry, energies[entry.text])]
        if histories:
            rest = [section for section in made if section.name != "history"]
            return recipe_verdict(histories), [recipe_section(histories), *rest]
        return "", made + (run_sections(entry) if len(entry.records) <= FEW else [])
    names = [entry.text for entry in subjects]
    each = [_sections(folder, entry, energies[entry.text], suffix(n)) for n, entry in enumerate(subjects, 1)]
    verdict, compared = selections_sections(subjects, factor)
    return verdict, [*compared, side_by_side(about, names), *together(names, each)]


def _sections(folder: ResultFolder, entry: Subject, energies: Sequence[CellEnergy], end: str = "") -> list[Section]:
    """Sections of one selection; `end` keeps the names of their blocks apart from those of another selection."""
    told = not end and len(entry.cells) == 1
    sections: list[Section | None] = [
        cells_section(entry, energies, f"configurations{end}", "Configurations", told=told)
    ]
    sections.append(scaling_section(entry, f"scaling{end}"))
    sections.append(batch_section(entry, f"batch{end}"))
    sections.append(heat_section(entry, f"heat{end}"))
    sections += factor_sections(entry, f"compare{end}")
    sections.append(energy_section(folder, entry, energies, f"energy{end}"))
    sections.append(quality_section(entry, f"quality{end}"))
    sections.append(history_section(folder, entry, f"history{end}"))
    sections.append(trace_section(folder, entry, f"steps{end}"))
    return [section for section in sections if section is not None]


def _subtitle(subjects: Sequence[Subject]) -> str:
    workloads = dict.fromkeys(record.spec.workload for entry in subjects for record in entry.records)
    shown = ", ".join(list(workloads)[:4]) + (" and more" if len(workloads) > 4 else "")
    word = "program" if any(one.spec.program for entry in subjects for one in entry.records) else "workload"
    word += "s" if len(workloads) > 1 else ""
    kind = "Simulated runs" if any(simulated(entry) for entry in subjects) else "Measured runs"
    return f"{kind} of the {word} {shown}"
