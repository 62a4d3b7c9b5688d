"""Put what several selections show of the same thing side by side: one section for each question, on shared scales."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from steelyard.report.page import Cell, Chart, Column, Drawing, Prose, Section, Table
from steelyard.terminal.findings import merged

if TYPE_CHECKING:
    from collections.abc import Sequence

CHANNELS = ("x", "y", "color", "fill")


def suffix(place: int) -> str:
    """Return the end of the names of blocks of one selection, so that they differ from those of another."""
    return f"-{place}"


def together(names: Sequence[str], each: Sequence[Sequence[Section]]) -> list[Section]:
    """Join the sections of the selections that have the same title; `names` are those of the selections."""
    titles = dict.fromkeys(section.title for sections in each for section in sections)
    joined = []
    for title in titles:
        parts = [
            (name, suffix(place), section)
            for place, (name, sections) in enumerate(zip(names, each, strict=True), 1)
            for section in sections
            if section.title == title
        ]
        joined.append(_joined(parts))
    return joined


def _joined(parts: Sequence[tuple[str, str, Section]]) -> Section:
    questions = dict.fromkeys(section.question for _, _, section in parts)
    answers = dict.fromkeys(section.answer for _, _, section in parts)
    blocks: list[Any] = []
    for row in zip_longest(*([_named(block, name) for block in section.blocks] for name, _, section in parts)):
        blocks += on_one_scale([block for block in row if block is not None])
    # Neighbouring pictures are drawn side by side, so that texts between them would tear pairs apart.
    pictures = [block for block in blocks if isinstance(block, Chart | Drawing)]
    others = [block for block in blocks if not isinstance(block, Chart | Drawing)]
    findings = (
        replace(one, place=": ".join(filter(None, (name, one.place))))
        for name, _, section in parts
        for one in section.findings
    )
    _, end, first = parts[0]
    answer = first.answer if len(answers) == 1 else " ".join(f"{name}: {part.answer}" for name, _, part in parts)
    return Section(
        name=first.name.replace(end, "", 1),
        title=first.title,
        question=" ".join(questions),
        answer=answer,
        blocks=(
            *[block for block in others if isinstance(block, Table)],
            *pictures,
            *[block for block in others if not isinstance(block, Table)],
        ),
        findings=merged(findings),
    )


def _named(block: Any, name: str) -> Any:
    """Add the selection to a title, or to the first of some sentences."""
    if isinstance(block, Prose):
        return replace(block, paragraphs=tuple(f"{name}: {text}" for text in block.paragraphs))
    made = replace(block, title=f"{name}: {block.title}")
    return replace(made, table=replace(made.table, title=made.title)) if isinstance(made, Chart) else made


def side_by_side(section: Section, names: Sequence[str]) -> Section:
    """Turn the facts of each selection into one table with a column for each, and list once what they share."""
    listed = [dict(block.facts) for block in section.blocks if isinstance(block, Prose) and block.facts]
    if len(listed) != len(names):
        return section
    same, rows = [], []
    for key in dict.fromkeys(key for facts in listed for key in facts if key != "Selection"):
        values = [facts.get(key, "-") for facts in listed]
        if len(set(values)) == 1:
            same.append((key, values[0]))
        else:
            rows.append((Cell(key, key), *(Cell(value, value) for value in values)))
    columns = (Column("", align="left"), *(Column(name, align="left") for name in names))
    kept = [block for block in section.blocks if not (isinstance(block, Prose) and block.facts)]
    shared = Prose(facts=tuple(same))
    return replace(section, blocks=(Table("beside", "Each selection", columns, tuple(rows)), shared, *kept))


# -- shared scales


def on_one_scale(blocks: Sequence[Any]) -> list[Any]:
    """Give charts of the same kind the same ends of their axes, wherever the axes have the same title."""
    charts = [block for block in blocks if isinstance(block, Chart)]
    if len(charts) < 2:
        return list(blocks)
    specs = [chart.spec for chart in charts]
    for channel in CHANNELS:
        ends = _ends(specs, channel)
        if ends is not None:
            specs = [_with_ends(spec, channel, *ends) for spec in specs]
    made = iter(specs)
    return [replace(block, spec=next(made)) if isinstance(block, Chart) else block for block in blocks]


def _has_ends(axis: Any) -> bool:
    """Whether it is an axis of numbers."""
    if not isinstance(axis, dict):
        return False
    domain = (axis.get("scale") or {}).get("domain") or ()
    return len(domain) == 2 and all(isinstance(end, int | float) for end in domain)


def _ends(specs: Sequence[dict[str, Any]], channel: str) -> tuple[float, float, list[float]] | None:
    """Return the common ends and labels of an axis; None if the charts show different things on it."""
    each = [
        [axis for part in spec.get("layer", ()) if _has_ends(axis := part.get("encoding", {}).get(channel))]
        for spec in specs
    ]
    axes = [axis for own in each for axis in own]
    kinds = {(repr(_look(axis, "title")), axis["scale"].get("type")) for axis in axes}
    if not all(each) or len(kinds) != 1:
        return None
    ends = [end for axis in axes for end in axis["scale"]["domain"]]
    return min(ends), max(ends), sorted({tick for axis in axes for tick in _look(axis, "values") or ()})


def _look(axis: dict[str, Any], name: str) -> Any:
    return (axis.get("axis") or axis.get("legend") or {}).get(name)


def _with_ends(spec: dict[str, Any], channel: str, low: float, high: float, ticks: Sequence[float]) -> dict[str, Any]:
    layers = []
    for entry in spec["layer"]:
        axis = entry.get("encoding", {}).get(channel)
        if _has_ends(axis):
            axis = {**axis, "scale": {**axis["scale"], "domain": [low, high]}}
            if ticks and _look(axis, "values"):
                axis["axis"] = {**axis["axis"], "values": list(ticks)}
            entry = {**entry, "encoding": {**entry["encoding"], channel: axis}}
        layers.append(entry)
    return {**spec, "layer": layers}
