"""Energy of the configurations of a study, and the power of one run over time."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from steelyard.analysis.measured_energy import plotted
from steelyard.errors import SteelyardError
from steelyard.report.charts.energy import energy_chart
from steelyard.report.charts.power import power_drawing
from steelyard.report.page import Cell, Column, Prose, Section, Table
from steelyard.report.study.subject import DIGITS, brief
from steelyard.terminal.energy import answers
from steelyard.terminal.findings import merged
from steelyard.terminal.text import WITHOUT_GAIN, sentence, shortened, without_gain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.energy import CellEnergy
    from steelyard.report.study.subject import Subject
    from steelyard.results.store import ResultFolder

SHOWN_REASONS = 6
WORK = (
    ("energy_per_sample", "per sample", "J"),
    ("energy_per_sample_net", "per sample, net", "J"),
    ("samples_per_wh", "samples per Wh", ""),
    ("energy_per_token", "per token", "J"),
    ("tokens_per_wh", "tokens per Wh", ""),
    ("power_job", "mean power", "W"),
    ("idle_power_job", "idle power", "W"),
    ("energy_first_epoch", "first epoch", "J"),
    ("energy_later_epochs", "per later epoch", "J"),
)
PHASES = (
    ("energy_compile", "compile", "J"),
    ("energy_warmup", "warm-up", "J"),
    ("energy_job", "steady", "J"),
    ("energy_all_steps", "all steps", "J"),
    ("energy_run", "whole run", "J"),
    ("energy_host", "host", "J"),
)


def energy_section(
    folder: ResultFolder, entry: Subject, energies: Sequence[CellEnergy], name: str = "energy", title: str = "Energy"
) -> Section | None:
    """Energy per sample of each configuration; None if no run of the selection has an energy."""
    known = [one for one in energies if one.main.value is not None]
    if not known:
        return None
    blocks: list[Any] = []
    if len(known) > 1:
        # Without energy per sample there is no chart; the table shows what is known.
        with suppress(SteelyardError):
            blocks.append(energy_chart(energies, f"{name}-throughput"))
    work, phases = _known_columns(WORK, known), _known_columns(PHASES, known)
    notes = tuple(_notes(known))
    if work:
        blocks.append(Table(f"{name}-work", "Energy of the work", *_filled(entry, known, work, judged=True), notes))
    if phases:
        by_phase = "Energy of a job by phase"
        blocks.append(Table(f"{name}-phases", by_phase, *_filled(entry, known, phases, judged=False), notes))
    doubts = _doubts(entry, energies)
    blocks += [Prose(tuple(doubts))] if doubts else []
    plot = plotted(folder, known)
    if plot is not None:
        blocks.append(power_drawing(*plot, name=f"{name}-power"))
        texts = [sentence(text) for text in plot[1].held[:SHOWN_REASONS]]
        blocks += [Prose(tuple(texts))] if texts else []
    question = "How much energy does a sample take?"
    findings = merged(replace(finding, place=entry.name(one.cell)) for one in energies for finding in one.findings)
    return Section(name, title, question, energy_words(energies), tuple(blocks), findings)


def energy_words(energies: Sequence[CellEnergy]) -> str:
    """The answer that `steelyard energy` gives."""
    return sentence(answers(energies))


def _known_columns(wanted: Sequence[tuple[str, str, str]], known: Sequence[CellEnergy]) -> list[tuple[str, str, str]]:
    return [column for column in wanted if any(_value(one, column[0]) is not None for one in known)]


def _filled(
    entry: Subject, known: Sequence[CellEnergy], wanted: Sequence[tuple[str, str, str]], *, judged: bool
) -> tuple[tuple[Column, ...], tuple[tuple[Cell, ...], ...]]:
    columns = [
        Column("configuration", align="left"),
        Column("jobs"),
        *(Column(words, unit) for _, words, unit in wanted),
    ]
    cost = next((column for column in wanted if any(_inner(one, column[0]) for one in known)), None) if judged else None
    columns += [Column(f"{cost[1]}, without gain", cost[2])] if cost else []
    columns += [Column("includes", align="left"), Column("verdict", align="left")] if judged else []
    rows = []
    for one in known:
        ids = tuple(record.run_id for record in one.cell.records)
        codes = tuple(dict.fromkeys(finding.code for finding in one.findings))
        label = entry.name(one.cell)
        cells = [Cell(label, label), Cell(str(one.jobs), one.jobs)]
        cells += [Cell("-") if _value(one, key) is None else brief(one.figures[key], ids) for key, _, _ in wanted]
        cells += [Cell(_inner(one, cost[0]) or "-", runs=ids)] if cost else []
        cells += [Cell(one.scope, one.scope), Cell(one.verdict, one.verdict, codes=codes)] if judged else []
        rows.append(tuple(cells))
    return tuple(columns), tuple(rows)


def _value(one: CellEnergy, key: str) -> float | None:
    return one.figures[key].value if key in one.figures else None


def _inner(one: CellEnergy, key: str) -> str:
    return without_gain(one.figures[key], DIGITS) if key in one.figures else ""


def _notes(known: Sequence[CellEnergy]) -> list[str]:
    notes: dict[str, None] = {}
    for one in known:
        interval = one.main.interval
        if interval is not None:
            notes[f"[ ] = {100 * interval.level:g} % CI over {interval.covers}; {interval.method}."] = None
    if any(_inner(one, key) for one in known for key in one.figures):
        notes[sentence(WITHOUT_GAIN)] = None
    if any(_value(one, "energy_per_sample_net") is not None for one in known):
        notes["Net: without the idle energy of the same hardware."] = None
    return list(notes)[:SHOWN_REASONS]


def _doubts(entry: Subject, energies: Sequence[CellEnergy]) -> list[str]:
    """List doubts about the energies, and completed jobs that no mean includes."""
    reasons: dict[str, list[str]] = {}
    for one in energies:
        validity = one.main.validity
        if validity is not None and one.main.value is not None:
            for reason in validity.reasons[:SHOWN_REASONS]:
                reasons.setdefault(f"{validity.verdict}: {reason}", []).append(entry.name(one.cell))
        for left in one.left_out:
            # The overview lists runs that did not complete.
            if not left.reason.startswith("the run ended as"):
                reasons.setdefault(f"not in the mean: {left.reason}", []).append(left.run_id)
    doubts = [sentence(f"{text} ({shortened(places)})") for text, places in list(reasons.items())[:SHOWN_REASONS]]
    left_over = len(reasons) - SHOWN_REASONS
    return doubts + ([f"{left_over} more doubts: steelyard energy {entry.text}"] if left_over > 0 else [])
