"""Chart of the ratios of a comparison: dots with intervals and a line at 1.

A pair that is not comparable has a line with the reason and no dot. If no pair is comparable, the values are drawn.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from steelyard.analysis.ratios import sense
from steelyard.errors import InputError
from steelyard.report.charts.style import (
    BLUE,
    DASHED,
    INK,
    QUIET,
    RED,
    Axes,
    Sign,
    bars_along,
    error_codes,
    hollow,
    key,
    layer,
    name_axis,
    number_axis,
    points,
    short,
    shown_by,
    spec,
    text_width,
)
from steelyard.report.page import Cell, Chart, Column, Table
from steelyard.stats.ratio import MIN_JOBS
from steelyard.terminal.ratios import bounded, level_percent
from steelyard.terminal.text import number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from steelyard.analysis.compare import Compared, Comparison
    from steelyard.analysis.ratios import Ratio
    from steelyard.report.charts.style import Runs
    from steelyard.rules.table.row import Row

WIDTH, LINE = 340, 30
MAX_LINES = 40
MAX_NAME = 34
SHOWN = ("faster", "slower", "more", "less")
LOOKS = {
    (BLUE, "circle", True): "difference shown",
    (BLUE, "circle", False): "equal, or no difference shown",
    (BLUE, "triangle-right", True): "at least this",
    (BLUE, "triangle-left", True): "at most this",
    (INK, "diamond", False): "not ranked: too few jobs",
    (RED, "square", False): "forced despite errors",
}
"""Meaning of a mark, by its colour, shape, and whether it is filled."""


@dataclass(frozen=True)
class _Line:
    """One line of the chart: a pair of rows, or one of the ratios of the only pair."""

    name: str
    entry: Comparison
    ratio: Ratio | None
    """None: not comparable."""

    @property
    def says(self) -> str:
        """Text to the right of the line."""
        if self.ratio is None:
            codes = ", ".join(error_codes(self.entry.findings)[:3])
            return f"not comparable: {codes}" if codes else "no ratio: a value is zero"
        if self.ratio.bound is not None:
            return bounded(self.ratio.bound)
        text = ("FORCED " if self.entry.forced else "") + number(self.ratio.value, 4)
        if self.ratio.low is None or self.ratio.high is None:
            return f"{text}, no CI"
        return f"{text} [{number(self.ratio.low, 4)}, {number(self.ratio.high, 4)}]"


def ratio_chart(
    compared: Compared,
    name: str = "ratios",
    *,
    runs: Runs | None = None,
    logarithmic: bool = False,
    sides: tuple[str, str] | None = None,
) -> Chart:
    """Draw B / A for each pair; for a single pair also per device, node and watt.

    `runs` are run ids by place of a row (`style.run_ids`). `sides` are the names of A and B; None: those of the rows.
    """
    if not compared.comparisons:
        raise InputError("no pair to draw")
    about = f": {sides[1]} / {sides[0]}" if sides else ""
    if not compared.made:
        return _plain(compared, name, f"{_capital(compared.metric)} of both sides{about}", runs or {})
    lines = _lines(compared)
    drawn = lines[:MAX_LINES]
    made = [line for line in lines if line.ratio is not None]
    each = [f"{line.name} {line.says}" for line in made[:6]]
    more = f" and {len(made) - 6} more" if len(made) > 6 else ""
    blocked = len(lines) - len(made)
    left = f" {blocked} of {len(lines)} pairs have no ratio." if blocked else ""
    title = f"{_capital(compared.metric)}, B / A"
    words = f"{_verdicts(compared)} {title}: {'; '.join(each)}{more}.{left}"
    notes = _notes(compared, lines, sides)
    columns, rows = _columns_and_rows(lines, runs or {})
    table = Table(f"{name}-data", f"{title}{about}", columns, rows, notes)
    return Chart(name, f"{title}{about}", _spec(drawn, compared, logarithmic=logarithmic), table, words, notes)


def _lines(compared: Compared) -> list[_Line]:
    entries = compared.comparisons
    if len(entries) == 1:
        only = entries[0]
        scopes = {"job": "whole job"}
        return _distinct([_Line(scopes.get(ratio.scope, f"per {ratio.scope}"), only, ratio) for ratio in only.ratios])
    names = _telling([entry.shared for entry in entries])
    several = sum(entry.how == "best against best" for entry in entries) > 1
    lines = []
    for entry, shared in zip(entries, names, strict=True):
        how = f"best, devices {entry.a.get('devices')}" if several and not shared else entry.how
        lines.append(_Line(shared or how, entry, entry.ratios[0] if entry.ratios else None))
    return _distinct(sorted(lines, key=lambda line: (line.entry.how == "best against best", _natural(line.name))))


def _telling(each: Sequence[tuple[str, ...]]) -> list[str]:
    """Join the settings of each pair, without those that are not needed to tell the pairs apart."""
    width = max(map(len, each))
    kept = list(range(width))
    for place in range(width - 1, 0, -1):
        fewer = [one for one in kept if one != place]
        names = [tuple(parts[one] for one in fewer) for parts in each if len(parts) == width]
        if len(set(names)) == len(names):
            kept = fewer
    return [", ".join(parts[one] for one in kept).replace("_", " ") if parts else "" for parts in each]


def _natural(text: str) -> list[tuple[bool, float, str]]:
    """Sort key: numbers in a name are ordered by value."""
    return [
        (not part.isdecimal(), float(part) if part.isdecimal() else 0.0, part) for part in re.split(r"(\d{1,15})", text)
    ]


def _distinct(lines: Sequence[_Line]) -> list[_Line]:
    """Make the names unique, as an axis needs."""
    seen: dict[str, int] = {}
    out = []
    for line in lines:
        text = short(line.name, MAX_NAME)
        seen[text] = seen.get(text, 0) + 1
        out.append(_Line(text if seen[text] == 1 else f"{text} ({seen[text]})", line.entry, line.ratio))
    return out


def _spec(lines: Sequence[_Line], compared: Compared, *, logarithmic: bool) -> dict[str, Any]:
    ratios = [line.ratio for line in lines if line.ratio is not None]
    ends = [1.0] + [end for ratio in ratios for end in (ratio.value, ratio.low, ratio.high) if end is not None]
    low, high = min(ends), max(ends)
    room = 0.08 * (high - low or 0.2)
    first, last = (low / 1.1, high * 1.1) if logarithmic else (max(0.0, low - room), high + room)
    title = f"{compared.metric}, B / A" + (" (logarithmic axis)" if logarithmic else "")
    axes = Axes(
        number_axis(title, first, last, logarithmic=logarithmic),
        name_axis("", [line.name for line in lines], grid=True, labelPadding=8),
    )
    at_one = layer([{"x": 1}], "rule", {"x": {"field": "x", **axes.x}}, color=QUIET, strokeDash=DASHED, strokeWidth=1.8)
    says: Any = {"x": {"value": WIDTH + 12}, "text": {"field": "text", "type": "nominal"}}
    words = [{"y": line.name, "text": line.says} for line in lines]
    right = layer(words, "text", {**says, "y": {"field": "y", **axes.y}}, align="left", baseline="middle", fontSize=13)
    beside = _beside([line.name for line in lines]) + round(max(text_width(line.says) for line in lines))
    layers = [at_one]
    for line in lines:
        if line.ratio is not None:
            colour, shape, filled = _look(line)
            ratio, bound = line.ratio, line.ratio.bound
            value = {"x": ratio.value, "y": line.name, "low": ratio.low, "high": ratio.high}
            if bound is not None:
                value |= {"x": bound, "low": None, "high": None}
            make = points if filled else hollow
            value["tip"] = [line.name, f"B / A: {line.says}"]
            marks = [*bars_along([value], axes, colour), make([value], axes.at(), colour, shape)]
            layers += shown_by(LOOKS[colour, shape, filled], marks)
    layers.append(right)
    return spec([*layers, *key(_signs(lines), WIDTH + 180)], WIDTH, max(2, len(lines)) * LINE, beside)


def _beside(names: Iterable[str]) -> int:
    return 40 + round(max(text_width(name) for name in names))


def _look(line: _Line) -> tuple[str, str, bool]:
    """Return colour, shape and whether the mark is filled."""
    assert line.ratio is not None
    if line.entry.forced:
        return RED, "square", False
    if line.ratio.bound is not None:
        return BLUE, "triangle-right" if line.ratio.bound > 1 else "triangle-left", True
    if line.ratio.verdict in SHOWN:
        return BLUE, "circle", True
    return (INK, "diamond", False) if line.ratio.verdict == "too few jobs" else (BLUE, "circle", False)


def _signs(lines: Sequence[_Line]) -> list[Sign]:
    looks = dict.fromkeys(_look(line) for line in lines if line.ratio is not None)
    signs = [Sign(LOOKS[look], look[0], look[1], filled=look[2]) for look in looks]
    return [*signs, Sign("1: equal to A, the base", QUIET, line=True, dash=DASHED)]


# -- texts and table


def _verdicts(compared: Compared) -> str:
    verdicts = dict.fromkeys(entry.verdict for entry in compared.comparisons)
    codes = dict.fromkeys(
        finding.code for entry in compared.comparisons for finding in entry.findings if finding.severity != "note"
    )
    listed = ", ".join(list(codes)[:6]) + (", ..." if len(codes) > 6 else "")
    return f"{_capital(' and '.join(verdicts))}{f' ({listed})' if codes else ''}."


def _notes(compared: Compared, lines: Sequence[_Line], sides: tuple[str, str] | None) -> tuple[str, ...]:
    ratios = [line.ratio for line in lines if line.ratio is not None]
    first, notes = compared.comparisons[0], [_verdicts(compared)]
    # With several rows, a side is named by its table.
    one = len(compared.comparisons) == 1
    a, b = (short(row.place if one else row.table or row.place, 70) for row in (first.a, first.b))
    a, b = sides or (a, b)
    notes.append(f"A, the base: {a}; B: {b}.")
    # Levels of the intervals: the best of several choices has a higher one.
    levels: dict[str, list[str]] = {}
    for line in lines:
        if line.ratio is not None and line.ratio.level is not None and line.ratio.low is not None:
            levels.setdefault(level_percent(line.ratio.level), []).append(line.name)
    texts = [f"{level} CI for {names[0]}" if n else f"{level} CI" for n, (level, names) in enumerate(levels.items())]
    notes += [f"Bars: {', '.join(texts)}."] if texts else []
    if any(ratio.level is None and ratio.low is not None for ratio in ratios):
        notes.append("Bars of printed values: their rounding, not a CI.")
    if any(ratio.low is None for ratio in ratios):
        notes.append(f"No CI: fewer than {MIN_JOBS} jobs on a side, or a value that is not above zero.")
    if any(sense(ratio.unit) == "time" for ratio in ratios):
        notes.append("Times: below 1, B is faster.")
    if len(lines) > MAX_LINES:
        notes.append(f"{len(lines) - MAX_LINES} more pairs are in the table.")
    return tuple(notes)


def _columns_and_rows(lines: Sequence[_Line], runs: Runs) -> tuple[tuple[Column, ...], tuple[tuple[Cell, ...], ...]]:
    unit = next((line.ratio.unit for line in lines if line.ratio is not None), "")
    columns = (
        Column("pair", align="left"),
        Column("verdict", align="left"),
        Column("A", unit),
        Column("B", unit),
        Column("B / A"),
        Column("B is", align="left"),
        Column("jobs of A"),
        Column("jobs of B"),
    )
    rows = []
    for line in lines:
        codes = tuple(dict.fromkeys(finding.code for finding in line.entry.findings if finding.severity != "note"))
        ids_a, ids_b = runs.get(line.entry.a.place, ()), runs.get(line.entry.b.place, ())
        start = (Cell(line.name, line.name), Cell(line.entry.verdict, line.entry.verdict, codes=codes))
        ratio = line.ratio
        if ratio is None:
            rows.append((*start, *(Cell("-") for _ in columns[2:])))
            continue
        text = ("FORCED, " if line.entry.forced else "") + ratio.verdict
        rows.append(
            (
                *start,
                Cell(number(ratio.a), ratio.a, runs=ids_a),
                Cell(number(ratio.b), ratio.b, runs=ids_b),
                _ratio_cell(line, ids_a + ids_b, codes),
                Cell(text, text),
                Cell(str(ratio.jobs_a), ratio.jobs_a),
                Cell(str(ratio.jobs_b), ratio.jobs_b),
            )
        )
    return columns, tuple(rows)


def _ratio_cell(line: _Line, runs: tuple[str, ...], codes: tuple[str, ...]) -> Cell:
    """Return the ratio with its interval; of a bound, only the end that counts."""
    ratio = line.ratio
    assert ratio is not None
    if (bound := ratio.bound) is not None:
        return Cell(line.says, bound, bound if bound > 1 else None, bound if bound < 1 else None, runs, codes)
    return Cell(line.says.removeprefix("FORCED "), ratio.value, ratio.low, ratio.high, runs, codes)


def _capital(text: str) -> str:
    text = text.replace("_", " ")
    return text[:1].upper() + text[1:]


# -- values without ratios


def _plain(compared: Compared, name: str, title: str, runs: Runs) -> Chart:
    """Draw the values of both sides, without ratios."""
    metric = compared.metric
    rows: dict[str, tuple[str, Row]] = {}
    for entry in compared.comparisons:
        for side, row in (("A", entry.a), ("B", entry.b)):
            rows.setdefault(f"{side}: {short(row.place, MAX_NAME)}", (side, row))
    drawn = dict(list(rows.items())[:MAX_LINES])
    values: list[dict[str, Any]] = []
    for label, (_, row) in drawn.items():
        amount = row.figures[metric]
        low, high = (amount.low, amount.high) if amount.low < amount.high < math.inf else (None, None)
        values.append({"x": amount.value, "y": label, "low": low, "high": high})
    unit = next(iter(rows.values()))[1].figures[metric].unit
    top = 1.08 * max([value["high"] or value["x"] for value in values] + [1e-12])
    axes = Axes(number_axis(f"{metric}, {unit}", 0, top), name_axis("", list(drawn), labelPadding=8))
    verdicts = _verdicts(compared)
    text = f"No ratio: {verdicts[:1].lower()}{verdicts[1:]}"
    words = "; ".join(f"{value['y']} {number(value['x'])}" for value in values[:8])
    known, bare = [v for v in values if v["low"] is not None], [v for v in values if v["low"] is None]
    layers = [*bars_along(values, axes, INK), points(known, axes.at(), INK, "circle"), hollow(bare, axes.at(), INK)]
    return Chart(
        name=name,
        title=title,
        spec=spec(layers, WIDTH, max(2, len(values)) * LINE, _beside(drawn)),
        table=_plain_table(rows, metric, name, title, runs),
        alt=f"{text} {words} {unit}.",
        notes=(text, "Bars: CI over the jobs, or rounding of printed values. Hollow: no CI."),
    )


def _plain_table(rows: dict[str, tuple[str, Row]], metric: str, name: str, title: str, runs: Runs) -> Table:
    out = []
    for label, (side, row) in rows.items():
        amount = row.figures[metric]
        figure = Cell(
            amount.text or number(amount.value), amount.value, amount.low, amount.high, runs.get(row.place, ())
        )
        out.append((Cell(side, side), Cell(label[3:], row.place), figure))
    unit = next(iter(rows.values()))[1].figures[metric].unit
    columns = (Column("side", align="left"), Column("row", align="left"), Column(metric, unit))
    return Table(f"{name}-data", title, columns, tuple(out))
