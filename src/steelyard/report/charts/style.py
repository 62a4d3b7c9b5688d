"""Style of charts: colours, shapes, axes, intervals, keys and labels as parts of Vega-Lite.

The colours are those of the colour-blind safe palette by M. Okabe and K. Ito that are dark enough on white. Each has
its own shape or dashes, for print in grey. On a dark page each is replaced by its partner in `DARK`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from steelyard.report.page import Cell
from steelyard.terminal.text import number, with_interval

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from steelyard.analysis.summary import CellSummary
    from steelyard.contracts.finding import Finding
    from steelyard.contracts.record import Quantity

    Layer = dict[str, Any]
    Values = Sequence[Mapping[str, Any]]
    Runs = Mapping[str, tuple[str, ...]]

SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
WIDTH, HEIGHT = 540, 300
BLUE, RED, BLACK, GREEN, PURPLE, BROWN = "#0072b2", "#d55e00", "#000000", "#009e73", "#a0508c", "#7a6000"
COLOURS = (BLUE, RED, BLACK, GREEN, PURPLE, BROWN)
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
INK, QUIET, PALE, MINT = "#222222", "#555555", "#ebebeb", "#e0f3ee"
DARK = {
    "#ffffff": "#15191d",
    BLACK: "#ffffff",
    INK: "#e6e9ec",
    QUIET: "#b3bcc5",
    "#444444": "#b3bcc5",
    "#888888": "#7b8793",
    "#b0b0b0": "#46505a",
    "#dddddd": "#2f373f",
    BLUE: "#56b4e9",
    RED: "#f0702a",
    GREEN: "#1fae84",
    PURPLE: "#e0a3cf",
    BROWN: "#e8d24a",
    "#99c7e0": "#2f576f",
    "#b00000": "#ff8f8f",
    "#d4d4d4": "#3a444e",
    "#dcdcdc": "#333c45",
    "#e4e4e4": "#2b333b",
    PALE: "#272e35",
    MINT: "#16362d",
    "#ececec": "#242b31",
    "#f0f0f0": "#1e2429",
}
"""Colours on a dark page, by those on white. Named colours (`black`) stay as they are."""
DIAGONAL = "M-0.8,-0.8L0.8,0.8M-0.8,0.8L0.8,-0.8"
"""A diagonal cross: no result."""
BEAM = "M-0.5,-1H0.5M0,-1V1M-0.5,1H0.5"
"""An interval."""
DASHED, DOTTED = [7, 4], [2, 3]
POINT = 80
KEY_ROW, KEY_LINE = 20, 26
LOG_TICKS = tuple(lead * 10.0**power for power in range(-6, 10) for lead in (1, 1.25, 1.5, 2, 3, 5, 7))
# Widths of letters relative to their height, as in Helvetica.
NARROW, WIDE = "fijlrtI.,:;'|![]()/- ", "mwMW%@"
MAX_LABEL = 40


@dataclass(frozen=True)
class Axes:
    """The horizontal and the vertical axis, shared by all layers of a chart."""

    x: dict[str, Any]
    y: dict[str, Any]

    def at(self, x: str = "x", y: str = "y", **more: Any) -> dict[str, Any]:
        """Return the position encoding of a layer, by the names of its columns."""
        return {"x": {"field": x, **self.x}, "y": {"field": y, **self.y}, **more}


def number_axis(
    title: str | list[str],
    low: float,
    high: float,
    *,
    logarithmic: bool = False,
    values: Sequence[float] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return an axis of numbers between two ends."""
    scale: dict[str, Any] = {"domain": [low, high], "nice": False, "zero": False}
    if logarithmic:
        scale |= {"type": "log", "base": 2}
        # Vega labels too few ticks of a logarithmic axis, and draws too many if it chooses them itself.
        values = values or [tick for tick in LOG_TICKS if low <= tick <= high]
        more = {"tickCount": 60, **more}
    axis = {
        "title": title,
        "format": ",~r",
        "tickCount": 6,
        "labelFlush": False,
        **({"values": list(values)} if values else {}),
        **more,
    }
    return {"type": "quantitative", "scale": scale, "axis": axis}


def name_axis(title: str, names: Sequence[str], **more: Any) -> dict[str, Any]:
    """Return an axis of names, in the given order."""
    return {"type": "ordinal", "sort": None, "scale": {"domain": list(names)}, "axis": {"title": title, **more}}


def spec(
    layers: Sequence[Layer], width: int = WIDTH, height: int = HEIGHT, beside: int = 70, *, zoom: Axes | None = None
) -> dict[str, Any]:
    """Return a whole chart; `beside` is the width of the axes and labels left and right of it, which titles may use.

    `zoom`: readers can look at a part of the horizontal axis of these.
    """
    meta = {"whole_width": width + beside, "zoom": zoom and zoom.x["scale"]["domain"]}
    # Names of our own: those of the key are untrusted. An entry of the key and its marks share a number.
    places = {text: n for n, text in enumerate(dict.fromkeys(part["name"][1] for part in layers if "name" in part))}
    made = []
    for count, part in enumerate(layers):
        kind, text = part.get("name", ("plain", ""))
        made.append({**part, "name": f"{kind}{places.get(text, '')}_{count}"})
    return {"$schema": SCHEMA, "usermeta": meta, "width": width, "height": height, "layer": made}


def shown_by(sign: str, layers: Sequence[Layer]) -> list[Layer]:
    """Return the layers, which the entry of the key with this text hides and shows."""
    return [{**part, "name": ("series", sign)} for part in layers]


def told(values: Values, encoding: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the values with `tip`, the lines that readers see when they point at them, unless they have it."""
    return [{**value, **({} if "tip" in value else _tip(value, encoding))} for value in values]


def _tip(value: Mapping[str, Any], encoding: Mapping[str, Any]) -> dict[str, list[str]]:
    x, y = encoding.get("x", {}), encoding.get("y", {})
    if value.get(x.get("field")) is None or value.get(y.get("field")) is None:
        return {}
    # The figure is on the vertical axis, unless that has names.
    place, figure = (y, x) if y["type"] == "ordinal" else (x, y)
    lines = [_amount(value[part["field"]], part) for part in (place, figure)]
    low, high = value.get("low"), value.get("high")
    if low is not None and high is not None:
        lines.append(f"95 % CI {number(low, 4)} to {number(high, 4)}")
    return {"tip": lines}


def _amount(value: Any, axis: Mapping[str, Any]) -> str:
    """Return a value with the title of its axis and its unit: `throughput: 12.3 samples/s`."""
    title = axis["axis"]["title"]
    name, _, unit = (title if isinstance(title, str) else title[0]).partition(" (")[0].partition(", ")
    amount = value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else number(value, 4)
    return " ".join(filter(None, (f"{name}:" if name else "", amount, unit)))


def layer(values: Values, mark: str, encoding: Mapping[str, Any], **look: Any) -> Layer:
    """Return marks of one kind, with their data."""
    return {"data": {"values": [dict(value) for value in values]}, "mark": {"type": mark, **look}, "encoding": encoding}


def points(
    values: Values, encoding: Mapping[str, Any], colour: str = BLUE, shape: str = "circle", **look: Any
) -> Layer:
    """Return filled marks."""
    given = {"filled": True, "color": colour, "shape": shape, "size": POINT, "opacity": 1, **look}
    return layer(told(values, encoding), "point", encoding, **given)


def hollow(values: Values, encoding: Mapping[str, Any], colour: str = BLUE, shape: str = "circle") -> Layer:
    """Return hollow marks, for values without an interval or without a test."""
    return points(values, encoding, colour, shape, filled=False, fill="#ffffff", stroke=colour, strokeWidth=2)


def crosses(values: Values, encoding: Mapping[str, Any]) -> Layer:
    """Return crosses, for missing results."""
    return points(values, encoding, INK, DIAGONAL, filled=False, stroke=INK, strokeWidth=2.2)


def bars_up(values: Values, axes: Axes, colour: str = BLUE, x: str = "x") -> list[Layer]:
    """Return vertical interval bars from `low` to `high`; values without an interval get none."""
    known = [value for value in values if value.get("low") is not None and value.get("high") is not None]
    if not known:
        return []
    look = {"color": colour, "opacity": 1}
    rule = layer(known, "rule", {**axes.at(x, "low"), "y2": {"field": "high"}}, strokeWidth=1.6, **look)
    ends = [
        layer(known, "tick", axes.at(x, end), orient="horizontal", size=11, thickness=1.6, **look)
        for end in ("low", "high")
    ]
    return [rule, *ends]


def bars_along(values: Values, axes: Axes, colour: str = BLUE, y: str = "y") -> list[Layer]:
    """Return horizontal interval bars from `low` to `high`; values without an interval get none."""
    known = [value for value in values if value.get("low") is not None and value.get("high") is not None]
    if not known:
        return []
    look = {"color": colour, "opacity": 1}
    rule = layer(known, "rule", {**axes.at("low", y), "x2": {"field": "high"}}, strokeWidth=1.6, **look)
    ends = [
        layer(known, "tick", axes.at(end, y), orient="vertical", size=11, thickness=1.6, **look)
        for end in ("low", "high")
    ]
    return [rule, *ends]


def texts(values: Values, encoding: Mapping[str, Any], text: str = "text", **look: Any) -> list[Layer]:
    """Return labels beside marks, with a white outline where they cross a line."""
    given = {"align": "left", "baseline": "middle", "dx": 8, "fontSize": 13, "color": INK, **look}
    named = {**encoding, "text": {"field": text, "type": "nominal"}}
    halo = {**given, "color": "#ffffff", "stroke": "#ffffff", "strokeWidth": 4, "strokeJoin": "round"}
    return [layer(values, "text", named, **halo), layer(values, "text", named, **given)]


def cut_title(title: str, *, cut: bool) -> str | list[str]:
    """Return the title of an axis, with a note if it does not start at 0."""
    return [title, "(axis does not start at 0)"] if cut else title


# -- a key of our own, because a key of Vega has either lines or points


@dataclass(frozen=True)
class Sign:
    """One entry of a key: a shape, a line or a filled square, and its text."""

    text: str
    colour: str = BLUE
    shape: str | None = None
    dash: Sequence[int] | None = None
    line: bool = False
    filled: bool = True
    area: str | None = None
    """Fill colour of a square; its outline has `colour`."""


def key(signs: Sequence[Sign], width: int = WIDTH, gap: int = 14) -> list[Layer]:
    """Return the entries of a key in rows above the chart."""
    rows: list[list[tuple[float, Sign]]] = [[]]
    at = 0.0
    for sign in signs:
        wide = _sign_width(sign) + 7 + text_width(sign.text) + 20
        if at + wide > width + 20 and rows[-1]:
            rows.append([])
            at = 0.0
        rows[-1].append((at, sign))
        at += wide
    out: list[Layer] = []
    for n, row in enumerate(rows):
        y = -gap - KEY_ROW * (len(rows) - 1 - n)
        out += [{**part, "name": ("key", sign.text)} for x, sign in row for part in _sign(sign, x, y)]
    return out


def _sign_width(sign: Sign) -> int:
    return KEY_LINE if sign.line else KEY_LINE // 2


def _sign(sign: Sign, x: float, y: float) -> list[Layer]:
    here = {"y": {"value": y}}
    middle = {"x": {"value": x + _sign_width(sign) / 2}, **here}
    out: list[Layer] = []
    if sign.line:
        ends = {"x": {"value": x}, "x2": {"value": x + KEY_LINE}, **here}
        dashes = {"strokeDash": list(sign.dash)} if sign.dash else {}
        out.append(layer([{}], "rule", ends, color=sign.colour, strokeWidth=2, opacity=1, **dashes))
    if sign.area is not None:
        look: dict[str, Any] = {"stroke": sign.colour, "strokeWidth": 1, "size": 170}
        out.append(points([{}], middle, sign.area, "square", **look))
    elif sign.shape in (DIAGONAL, BEAM):
        out.append(points([{}], middle, sign.colour, sign.shape, filled=False, stroke=sign.colour, strokeWidth=2))
    elif sign.shape is not None:
        make = points if sign.filled else hollow
        out.append(make([{}], middle, sign.colour, sign.shape))
    text = {"x": {"value": x + _sign_width(sign) + 7}, **here, "text": {"value": sign.text}}
    out.append(layer([{}], "text", text, align="left", baseline="middle", fontSize=13, color=INK))
    return out


# -- quantities as cells, and texts that all charts use


def run_ids(cells: Sequence[CellSummary]) -> dict[str, tuple[str, ...]]:
    """Return the run ids of each cell, by its id and by its place in comparisons."""
    runs: dict[str, tuple[str, ...]] = {}
    for cell in cells:
        ids = tuple(record.run_id for record in cell.records)
        runs[cell.name] = runs[f"{cell.study}/{cell.name}"] = ids
    return runs


def figure_cell(quantity: Quantity, runs: tuple[str, ...] = (), codes: tuple[str, ...] = ()) -> Cell:
    """Format a quantity with its interval, or the reason why it has no value."""
    low, high = interval_of(quantity)
    return Cell(with_interval(quantity), quantity.value, low, high, runs, codes)


def marked(cell: Cell, unreliable: Sequence[str]) -> Cell:
    """Mark a figure that is unreliable."""
    return replace(cell, text=f"{cell.text}, unreliable") if unreliable else cell


def interval_of(quantity: Quantity) -> tuple[float | None, float | None]:
    """Return the ends of the interval, or None twice."""
    interval = quantity.interval
    return (None, None) if interval is None else (interval.low, interval.high)


def named(value: float, low: float | None, high: float | None, digits: int = 4) -> str:
    """Format a value with its interval for a sentence."""
    if low is None:
        return number(value, digits)
    if high is None:
        return f"{number(value, digits)} (95 % CI: at least {number(low, digits)})"
    return f"{number(value, digits)} (95 % CI {number(low, digits)} to {number(high, digits)})"


def in_unit(largest: float, unit: str) -> tuple[float, str]:
    """Return a divisor and the unit with its prefix, to keep axis labels short."""
    for factor, word in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if largest >= 100 * factor:
            return factor, f"{word} {unit}"
    return 1.0, unit


def in_time(longest_s: float) -> tuple[float, str]:
    """Return a divisor for seconds and its unit, from s to ns."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if longest_s >= factor:
            return factor, unit
    return 1e-9, "ns"


def text_width(text: str, size: float = 13) -> float:
    """Estimate the width of a text of this height."""
    share = sum(0.3 if c in NARROW else 0.85 if c in WIDE else 0.67 if c.isupper() else 0.55 for c in text)
    # Letters are wider in DejaVu Sans, which replaces Arial and Liberation Sans where these are missing.
    return 1.14 * size * share


def short(text: str, longest: int = MAX_LABEL) -> str:
    """Shorten a text for a label."""
    clean = "".join(c if c.isprintable() else " " for c in text)
    return clean if len(clean) <= longest else clean[: longest - 3] + "..."


def error_codes(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return the distinct codes of the errors."""
    return tuple(dict.fromkeys(finding.code for finding in findings if finding.severity == "error"))


def counted(count: int, word: str) -> str:
    """`1 device`, `4 devices`."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


# -- labels beside points, where they cover least


def placed_texts(values: Values, axes: Axes, ends: tuple[float, float], size: tuple[int, int]) -> list[Layer]:
    """Place the `text` of each point where it covers least of other labels, points and intervals.

    `ends` are the values at the right and upper end of axes that start at 0, `size` that of the chart. A horizontal
    interval is `left` to `right`, a vertical one `low` to `high`.
    """
    (right, top), (wide, high) = ends, size
    dots = [(wide * value["x"] / right, high * (1 - value["y"] / top)) for value in values]
    taken: list[tuple[float, float, float, float]] = []
    for value, (x, y) in zip(values, dots, strict=True):
        left_x, right_x = (x if value[end] is None else wide * value[end] / right for end in ("left", "right"))
        low_y, high_y = (y if value[end] is None else high * (1 - value[end] / top) for end in ("low", "high"))
        taken += [(left_x - 3, y - 7, right_x + 3, y + 7), (x - 7, high_y - 3, x + 7, low_y + 3)]
    out: list[Layer] = []
    for value, (x, y) in zip(values, dots, strict=True):
        width = text_width(value["text"])
        options = [
            (dx, dy, align, _box(x + dx, y + dy, width, align))
            for dx, dy, align in (
                (11, 0, "left"),
                (10, -16, "left"),
                (10, 16, "left"),
                (-10, -16, "right"),
                (-10, 16, "right"),
                (-11, 0, "right"),
                (0, -22, "center"),
                (0, 22, "center"),
            )
        ]
        dx, dy, align, box = min(options, key=lambda option: _clashes(option[3], taken, wide, high))
        taken.append(box)
        out += texts([value], axes.at(), align=align, dx=dx, dy=dy)
    return out


def _box(x: float, y: float, width: float, align: str) -> tuple[float, float, float, float]:
    left = {"left": x, "right": x - width, "center": x - width / 2}[align]
    return left, y - 8, left + width, y + 8


def _clashes(
    box: tuple[float, float, float, float], taken: Sequence[tuple[float, float, float, float]], wide: int, high: int
) -> float:
    """Measure how much a label would cover; leaving the chart counts most."""
    left, above, right, below = box
    covered = sum(
        max(0.0, min(right, r) - max(left, x)) * max(0.0, min(below, b) - max(above, a)) for x, a, r, b in taken
    )
    outside = max(0.0, -left) + max(0.0, right - wide) + max(0.0, -above) + max(0.0, below - high)
    return covered + 100 * outside
