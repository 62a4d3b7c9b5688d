"""Settings that a study varies, and selections, held against each other: the verdict first. Knows which pairs; divides
nothing.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from steelyard.analysis.compare import compare, require_factor
from steelyard.analysis.ratios import sentence as says
from steelyard.errors import InputError, SteelyardError
from steelyard.report.charts.ratios import ratio_chart
from steelyard.report.page import Cell, Column, Prose, Section, Table
from steelyard.report.study.subject import default, merged, shortened, written
from steelyard.terminal.text import capital, sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.compare import Compared, Comparison
    from steelyard.contracts.record import Finding
    from steelyard.report.study.subject import Subject
    from steelyard.rules.table.row import Row

MAX_PAIRS = 6
"""Values of one setting that are held against its base."""
MAX_GROUPS = 24
"""Cells of each value that are compared: where nothing pairs them off, each is held against each."""
DRAWN = 2
SHOWN_PAIRS = 3
SHOWN_LEFT_OUT = 6
VERDICTS = {"no difference shown": "not shown to differ", "too few jobs": "not ranked"}
# Settings of a spec that rows call otherwise, or that make a machine or a model.
FACTORS = {
    "device": "system", "data.format": "dataset", "data.path": "dataset", "quality.target": "quality_target",
    "sim.input.samples_per_s": "input_rate", "sim.collective.message_bytes": "model_options",
    "sim.memory.bytes_per_sample": "model_options", "sim.memory.fixed_bytes": "model_options",
}  # fmt: skip
# They have sections of their own.
CURVES = ("ranks", "batch")


@dataclass(frozen=True)
class _Pair:
    """Two sides with what people call them."""

    a: str
    b: str
    compared: Compared


def factor_sections(entry: Subject, prefix: str = "compare", of: str = "") -> list[Section]:
    """One section for each setting that was varied, if rules know what it is."""
    found = []
    for key in entry.swept:
        factor = None if key in CURVES else factor_of(key)
        if factor is not None:
            found.append(_factor_section(entry, key, factor, f"{prefix}-{key.replace('.', '-').replace('_', '-')}", of))
    return found


def factor_of(key: str) -> str | None:
    """The factor of a comparison that a setting of a spec is; None: it changes no figure that rules know of."""
    if key in FACTORS:
        return FACTORS[key]
    if key.startswith("model."):
        return "model_options"
    if key.startswith("sim.") and not key.startswith("sim.input"):
        return "system"
    try:
        return require_factor(key)
    except InputError:
        return None


def _factor_section(entry: Subject, key: str, factor: str, name: str, of: str) -> Section:
    # What nobody sets is the base where it is among the values.
    usual = default(key)
    values = sorted(entry.swept[key], key=lambda value: value != usual)
    groups = entry.groups(key)
    kept = {cell.cell for _, cells in groups[:MAX_GROUPS] for cell in cells}
    sides: dict[str, list[Row]] = {repr(value): [] for value in values}
    for cell in entry.cells:
        if cell.cell in kept:
            sides[repr(entry.value(cell, key))].append(entry.rows[cell.cell])
    base = values[0]
    pairs, refused = [], []
    for value in values[1 : MAX_PAIRS + 1]:
        a, b = (f"{key} {written(side)}" for side in (base, value))
        try:
            made = compare(sides[repr(base)], sides[repr(value)], factor=factor)
            equal = tuple(one for one in made.comparisons if one.how != "best against best")
            if len(groups) > MAX_GROUPS and equal:
                # The best of some cells is not the best of all.
                made = dataclasses.replace(made, comparisons=equal)
            pairs.append(_Pair(a, b, made))
        except SteelyardError as error:
            refused.append(f"{b} against {a}: no comparison: {error.what}.")
    refused += _not_compared(entry, key, factor, len(groups), len(values))
    title = f"{capital(key.replace('_', ' '))}{of}"
    question = f"What does {key} change, against {written(base)}?"
    return _section(name, title, question, pairs, refused, entry.runs)


def _not_compared(entry: Subject, key: str, factor: str, groups: int, values: int) -> list[str]:
    told = []
    if values - 1 > MAX_PAIRS:
        told.append(f"{values - 1 - MAX_PAIRS:,} more values of {key} are not compared here.")
    if groups > MAX_GROUPS:
        told.append(f"Compared are the {MAX_GROUPS} fastest of {groups:,} groups of cells that differ in {key} alone.")
    study = entry.cells[0].study
    command = f"steelyard compare {study}:{key}=A {study}:{key}=B --factor {factor} compares all."
    return [*told, command] if told else []


def selections_section(subjects: Sequence[Subject], factor: str) -> Section | None:
    """Every further selection held against the first; None where there is one."""
    if len(subjects) < 2:
        return None
    first, pairs, refused = subjects[0], [], []
    for other in subjects[1:]:
        try:
            made = compare(list(first.rows.values()), list(other.rows.values()), factor=factor)
            pairs.append(_Pair(first.text, other.text, made))
        except SteelyardError as error:
            refused.append(f"{other.text} against {first.text}: no comparison: {error.what}.")
    runs = {place: ids for entry in subjects for place, ids in entry.runs.items() if "/" in place}
    question = f"How do the selections compare, with {factor} under study?"
    return _section("selections", "Selections held against each other", question, pairs, refused, runs)


def _section(
    name: str, title: str, question: str, pairs: Sequence[_Pair], refused: Sequence[str], runs: dict[str, Any]
) -> Section:
    if not pairs:
        return Section(name, title, question, refused[0] if refused else "There is nothing to compare.")
    blocks: list[Any] = [_summary(pairs, name)] if len(pairs) > 1 else []
    for place, pair in enumerate(pairs[:DRAWN], 1):
        chart = f"{name}-ratios-{place}"
        blocks.append(ratio_chart(pair.compared, chart, runs=runs, sides=(pair.a, pair.b)))
    told = [sentence(text) for text in refused]
    for pair in pairs:
        texts = shortened(list(pair.compared.left_out), SHOWN_LEFT_OUT)
        told += [f"Left out of {pair.b} against {pair.a}: {texts}."] if texts else []
    blocks += [Prose(tuple(told))] if told else []
    if len(pairs) == 1:
        answer = pair_answer(pairs[0].compared, pairs[0].a, pairs[0].b)
    else:
        verdicts = dict.fromkeys(entry.verdict for pair in pairs for entry in pair.compared.comparisons)
        shown = "; ".join(f"{pair.b} {_short(pair)}" for pair in pairs[:SHOWN_PAIRS])
        more = f"; {len(pairs) - SHOWN_PAIRS} more in the table" if len(pairs) > SHOWN_PAIRS else ""
        answer = f"{sentence(' and '.join(verdicts))} Against {pairs[0].a}: {shown}{more}."
    return Section(name, title, question, answer, tuple(blocks), _findings(pairs))


# -- words


def _short(pair: _Pair) -> str:
    """What the ratios of a pair say, in a few words."""
    made = [entry for entry in pair.compared.comparisons if entry.ratios]
    if not made:
        return f"has no ratio ({_blocking(pair.compared.comparisons)})"
    best = [entry for entry in made if entry.how == "best against best"]
    if len(made) > 1 and len(best) != 1:
        equal = [entry for entry in made if entry not in best]
        return f"is {_counted(equal)}"
    first = (best or made)[0].ratios[0]
    bounds = "" if first.low is None or first.high is None else f" [{first.low:.4g}, {first.high:.4g}]"
    how = ", best against best" if best else ""
    return f"{first.value:.4g}{bounds} times the {first.metric}{how} ({first.verdict})"


def _counted(entries: Sequence[Comparison]) -> str:
    counts = Counter(entry.ratios[0].verdict for entry in entries)
    told = ", ".join(f"{VERDICTS.get(word, word)} in {count}" for word, count in counts.most_common())
    return f"{told} of {sum(counts.values())} pairs"


def pair_answer(compared: Compared, a: str, b: str) -> str:
    """The verdict, then what the ratios say, in two sentences."""
    entries = compared.comparisons
    verdict = sentence(" and ".join(dict.fromkeys(entry.verdict for entry in entries)))
    made = [entry for entry in entries if entry.ratios]
    if not made:
        return f"{verdict} No ratio is given: {_blocking(entries)}."
    if len(made) == 1:
        return f"{verdict} {sentence(says(made[0].ratios[0], a, b))}"
    pairs = [entry for entry in made if entry.how != "best against best"]
    text = f"{verdict} With equal settings {b} is {_counted(pairs)}, against {a}." if pairs else verdict
    best = [entry for entry in made if entry.how == "best against best"]
    if len(best) == 1:
        text += f" Best against best: {says(best[0].ratios[0], a, b)}."
    return text


def _blocking(entries: Sequence[Comparison]) -> str:
    codes = dict.fromkeys(found.code for entry in entries for found in entry.findings if found.severity == "error")
    verb = "forbids" if len(codes) == 1 else "forbid"
    return f"{', '.join(codes)} {verb} it" if codes else "the figure is zero on one of the sides"


def _summary(pairs: Sequence[_Pair], name: str) -> Table:
    """One line a pair of values, in words: a mean over their ratios would hide what they depend on."""
    columns = (Column("held against the base", align="left"), Column("verdict and ratio", align="left"))
    rows = []
    for pair in pairs:
        codes = tuple(dict.fromkeys(found.code for found in _findings([pair]) if found.severity != "note"))
        words = pair_answer(pair.compared, pair.a, pair.b)
        rows.append((Cell(pair.b, pair.b), Cell(words, words, codes=codes)))
    return Table(f"{name}-pairs", f"Each held against {pairs[0].a}", columns, tuple(rows))


def _findings(pairs: Sequence[_Pair]) -> tuple[Finding, ...]:
    found = []
    for pair in pairs:
        for entry in pair.compared.comparisons:
            sides: dict[str, Row] = {pair.a: entry.a, pair.b: entry.b}
            for one in entry.findings:
                # The side that it is about, or the pair.
                side = next((name for name, row in sides.items() if one.place and row.place == one.place), pair.b)
                place = ", ".join(filter(None, (side, ", ".join(entry.shared))))
                found.append(dataclasses.replace(one, place=place))
    return merged(found)
