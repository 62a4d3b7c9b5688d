"""Build the report of a study, a selection or a run: which sections it has, and in what order."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING

from steelyard.analysis.compare import require_factor
from steelyard.analysis.energy import cells_with_energy
from steelyard.analysis.select import select
from steelyard.report.page import Page
from steelyard.report.study.back import (
    codes_section,
    environment_section,
    method_section,
    provenance_section,
    raw_download,
)
from steelyard.report.study.compare import factor_sections, selections_section
from steelyard.report.study.curves import batch_section, heat_section, scaling_section
from steelyard.report.study.energy import energy_section
from steelyard.report.study.history import history_section
from steelyard.report.study.overview import cells_section, overview, quality_section, simulated
from steelyard.report.study.run import FEW, run_sections, trace_section
from steelyard.report.study.subject import subject
from steelyard.results.store import ResultFolder
from steelyard.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from steelyard.analysis.energy import CellEnergy
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
    say: Say | None = None,
) -> Page:
    """Return the page of one or several selections; InputError if one selects nothing.

    `study` is what `analysis.select` takes. Each further selection is compared with the first, by `factor`. `say` is
    called with progress messages.
    """
    texts = [study] if isinstance(study, str) else list(dict.fromkeys(study))
    require_factor(factor)
    tell = say or _silent
    once = _Once(folder)
    tell("reading records")
    subjects = [subject(text, select(once, text)) for text in texts]
    runs = sum(len(entry.records) for entry in subjects)
    tell(f"{runs:,} runs in {sum(len(entry.cells) for entry in subjects):,} configurations; analysing")
    energies = {entry.text: cells_with_energy(folder, entry.cells) for entry in subjects}
    # Answers first, then how they were made.
    front = [overview(subjects, energies)]
    compared = selections_section(subjects, factor)
    front += [compared] if compared is not None else []
    for place, entry in enumerate(subjects, 1):
        front += _sections(folder, entry, energies[entry.text], "" if len(subjects) == 1 else f"-{place}")
    downloads, parts = raw_download(folder, subjects)
    watched = any(one.main.value is not None for each in energies.values() for one in each)
    back = [method_section(subjects, energy=watched), environment_section(subjects)]
    back.append(provenance_section(subjects, parts))
    selected = [entry.text for entry in subjects]
    more = f" and {len(selected) - 3} more" if len(selected) > 3 else ""
    return Page(
        title=title or f"Report: {', '.join(selected[:3])}{more}",
        subtitle=_subtitle(subjects),
        sections=(*front, codes_section(front), *back),
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        made_by=f"steelyard {VERSION}",
        downloads=downloads,
    )


def _silent(_: str) -> None:
    """Ignore progress messages."""


def _sections(folder: ResultFolder, entry: Subject, energies: Sequence[CellEnergy], suffix: str) -> list[Section]:
    """Sections of one selection. With several selections, each title names its selection."""
    of = f": {entry.text}" if suffix else ""
    found: list[Section | None] = [cells_section(entry, energies, f"configurations{suffix}", f"Configurations{of}")]
    found.append(scaling_section(entry, f"scaling{suffix}", f"Scaling over devices{of}"))
    found.append(batch_section(entry, f"batch{suffix}", f"Batch size{of}"))
    found.append(heat_section(entry, f"heat{suffix}", f"Map of two settings{of}"))
    found += factor_sections(entry, f"compare{suffix}", of)
    found.append(energy_section(folder, entry, energies, f"energy{suffix}", f"Energy{of}"))
    found.append(quality_section(entry, f"quality{suffix}", f"Time to quality{of}"))
    found.append(history_section(folder, entry, f"history{suffix}", f"History{of}"))
    found.append(trace_section(folder, entry, f"steps{suffix}", f"Step times{of}"))
    if not suffix and len(entry.records) <= FEW:
        found += run_sections(entry)
    made = [section for section in found if section is not None]
    return [replace(part, question=f"{entry.text}: {part.question}") for part in made] if suffix else made


def _subtitle(subjects: Sequence[Subject]) -> str:
    workloads = dict.fromkeys(record.spec.workload for entry in subjects for record in entry.records)
    shown = ", ".join(list(workloads)[:4]) + (" and more" if len(workloads) > 4 else "")
    word = "workload" if len(workloads) == 1 else "workloads"
    kind = "Simulated runs" if any(simulated(entry) for entry in subjects) else "Measured runs"
    return f"{kind} of the {word} {shown}"
