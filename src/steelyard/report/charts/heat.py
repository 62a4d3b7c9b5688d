"""Heat map of throughput by two settings, with the configurations that ran out of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from steelyard.analysis.select import all_settings
from steelyard.errors import InputError, Problem
from steelyard.report.charts.style import (
    DIAGONAL,
    INK,
    QUIET,
    Axes,
    Sign,
    crosses,
    error_codes,
    figure_cell,
    in_unit,
    interval_of,
    key,
    layer,
    marked,
    name_axis,
    named,
    short,
    spec,
    text_width,
)
from steelyard.report.page import Cell, Chart, Column, Table
from steelyard.terminal.best import extremes
from steelyard.terminal.text import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.summary import CellSummary
    from steelyard.contracts.record import Quantity
    from steelyard.report.charts.style import Layer

MAX_SIDE = 40
CELL_WIDE, CELL_HIGH = 98, 52
# With more columns there is no room for numbers in the map; they are in the table.
MAX_TEXTS = 9
# One hue from light to dark, which also works in grey. Text is white on the dark half.
LIGHT, DARK = (228, 240, 248), (0, 61, 107)
# From this share on, white text has more contrast than black. The contrast is at least 4.5 to 1 on both sides.
WHITE_FROM = 0.66
WORDS = {"batch": "batch per device, samples", "global_batch": "global batch, samples"}
SHORT = {"global_batch": "global batch"}
LOST = {"out_of_memory": "out of memory"}


@dataclass(frozen=True)
class _Field:
    x: str
    y: str
    cell: CellSummary
    quantity: Quantity
    codes: tuple[str, ...]

    @property
    def shown(self) -> float | None:
        return None if self.codes else self.quantity.value

    @property
    def ended(self) -> str:
        """Why there is no result."""
        if "out_of_memory" in self.cell.statuses:
            return LOST["out_of_memory"]
        return ", ".join(self.cell.statuses).replace("_", " ")


def heat_chart(cells: Sequence[CellSummary], x: str = "batch", y: str = "devices", name: str = "heat-map") -> Chart:
    """Draw throughput as colour: darker is faster. `x` and `y` are settings by any name that a selection accepts."""
    fields = _fields(cells, x, y)
    columns, rows = _ordered([field.x for field in fields]), _ordered([field.y for field in fields])
    if max(len(columns), len(rows)) > MAX_SIDE:
        problem = Problem(f"{x} by {y}", f"{len(columns)} x {len(rows)} values", f"at most {MAX_SIDE} on a side")
        raise InputError("the heat map is too large", problems=(problem,), next_step="select fewer configurations")
    known = [field.shown for field in fields if field.shown is not None]
    factor, unit = in_unit(max(known, default=1.0), fields[0].quantity.unit)
    title = f"Throughput by {SHORT.get(x, x)} and {SHORT.get(y, y)}"
    notes = [f"Throughput of the whole job in {unit}."]
    notes.append("±: half of the 95 % CI." if len(columns) <= MAX_TEXTS else "Values with 95 % CI are in the table.")
    codes = dict.fromkeys(code for field in fields for code in field.codes)
    if codes:
        notes.append(f"Not reliable: {', '.join(codes)}.")
    return Chart(
        name=name,
        title=title,
        spec=_spec(fields, (columns, rows), (x, y), factor, unit),
        table=_table(fields, name, title, (x, y)),
        alt=_words(fields, x, y),
        notes=tuple(notes),
    )


def _fields(cells: Sequence[CellSummary], x: str, y: str) -> list[_Field]:
    fields: dict[tuple[str, str], _Field] = {}
    for cell in cells:
        settings = all_settings(cell)
        missing = [key for key in (x, y) if key not in settings]
        if missing:
            name = f"{cell.study}/{cell.name}"
            problem = Problem(missing[0], f"{name} has no such setting", "a setting of every configuration")
            raise InputError("no heat map of these configurations is possible", problems=(problem,))
        field = _Field(
            x=short(_text(settings[x]), 24),
            y=short(_text(settings[y]), 24),
            cell=cell,
            quantity=cell.throughput,
            codes=error_codes(cell.findings) if cell.throughput.value is not None else (),
        )
        if (field.x, field.y) in fields:
            problem = Problem(f"{x} {field.x}, {y} {field.y}", "several configurations", "one configuration")
            what = "the configurations differ in more than two settings"
            raise InputError(what, problems=(problem,), next_step="select by STUDY:key=value")
        fields[field.x, field.y] = field
    if not fields:
        raise InputError("no configurations for a heat map")
    return list(fields.values())


def _text(value: Any) -> str:
    return f"{value:,g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _ordered(names: Sequence[str]) -> list[str]:
    """Sort numbers; keep other names in their order."""
    different = list(dict.fromkeys(names))
    try:
        return sorted(different, key=lambda name: float(name.replace(",", "")))
    except ValueError:
        return different


def _spec(
    fields: Sequence[_Field], sides: tuple[list[str], list[str]], settings: tuple[str, str], factor: float, unit: str
) -> dict[str, Any]:
    columns, rows = sides
    axes = Axes(
        name_axis(WORDS.get(settings[0], settings[0]), columns, labelAngle=0, grid=False),
        # The largest on top, as on a vertical axis.
        name_axis(WORDS.get(settings[1], settings[1]), rows[::-1], grid=False),
    )
    written = len(columns) <= MAX_TEXTS
    beside = 40 + round(max(text_width(row) for row in rows))
    wide = (CELL_WIDE if written else 40) * len(columns)
    high = (CELL_HIGH if written else 26) * len(rows)
    values = [{"x": f.x, "y": f.y} for f in fields if "out_of_memory" in f.cell.statuses]
    mark = crosses(values, axes.at())
    mark["mark"] |= {"size": 160, **({"yOffset": -9} if written else {})}
    layers = [_squares(fields, axes, settings), *([mark] if values else [])]
    if written:
        layers += _figures(fields, axes, factor)
    known = [field.shown / factor for field in fields if field.shown is not None]
    signs = []
    if known:
        signs = [Sign(f"lowest shown: {number(min(known), 3)}", INK, area=_colour(0.0))]
        signs.append(Sign(f"highest shown: {number(max(known), 3)} {unit}", INK, area=_colour(1.0)))
    signs += [Sign("out of memory", INK, DIAGONAL)] if values else []
    nothing = any(field.shown is None and "out_of_memory" not in field.cell.statuses for field in fields)
    signs += [Sign("no result, or not reliable", QUIET, area="#ffffff")] if nothing else []
    # With few columns, the key is wider than the map.
    longest = max((round(text_width(sign.text)) + 30 for sign in signs), default=0)
    return spec([*layers, *key(signs, max(wide, 360))], wide, high, beside + max(0, longest - wide))


def _squares(fields: Sequence[_Field], axes: Axes, settings: tuple[str, str]) -> Layer:
    known = [field.shown for field in fields if field.shown is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    values = []
    for field in fields:
        share = None if field.shown is None else (field.shown - low) / (high - low) if high > low else 0.5
        colour = "#ffffff" if share is None else _colour(share)
        values.append({"x": field.x, "y": field.y, "colour": colour, "tip": _tip(field, settings)})
    # Literal colours: a scale would need its own key.
    fill: Any = {"fill": {"field": "colour", "type": "nominal", "scale": None}}
    return layer(values, "rect", axes.at(**fill), stroke=INK, strokeWidth=0.8)


def _tip(field: _Field, settings: tuple[str, str]) -> list[str]:
    place = f"{SHORT.get(settings[0], settings[0])} {field.x}, {SHORT.get(settings[1], settings[1])} {field.y}"
    if field.quantity.value is None:
        return [place, field.ended]
    figure = f"{named(field.quantity.value, *interval_of(field.quantity))} {field.quantity.unit}"
    return [place, figure, *field.codes]


def _colour(share: float) -> str:
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in zip(LIGHT, DARK, strict=True))


def _figures(fields: Sequence[_Field], axes: Axes, factor: float) -> list[Layer]:
    known = [field.shown for field in fields if field.shown is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    upper, lower = [], []
    for field in fields:
        share = 0.5 if high == low else ((field.shown or low) - low) / (high - low)
        dark = field.shown is not None and share > WHITE_FROM
        place = {"x": field.x, "y": field.y, "ink": INK if field.shown is None else "white" if dark else "black"}
        first, second = _words_in(field, factor)
        upper.append({**place, "text": first})
        lower.append({**place, "text": second})
    ink: Any = {
        "color": {"field": "ink", "type": "nominal", "scale": None},
        "text": {"field": "text", "type": "nominal"},
    }
    return [
        layer(upper, "text", axes.at(**ink), fontSize=14, dy=-9),
        layer(lower, "text", axes.at(**ink), fontSize=12, dy=10),
    ]


def _words_in(field: _Field, factor: float) -> tuple[str, str]:
    """Return the two lines of text in a field: the rate and half its interval, or why there is none."""
    if field.codes:
        return "error", field.codes[0]
    if field.shown is None:
        return "", field.ended if len(field.ended) <= 14 else "no result"
    low, high = interval_of(field.quantity)
    rate = number(field.shown / factor, 3)
    if low is None:
        return rate, "no CI"
    if high is None:
        return rate, f"at least {number(low / factor, 3)}"
    return rate, f"± {50 * (high - low) / field.shown:.1f} %"


# -- texts and table


def _words(fields: Sequence[_Field], x: str, y: str) -> str:
    names = {field.cell.name: f"{x} {field.x}, {y} {field.y}" for field in fields}
    parts = [extremes([field.cell for field in fields], names)]
    lost = [f"{x} {field.x}, {y} {field.y}" for field in fields if "out_of_memory" in field.cell.statuses]
    if lost:
        more = f" and {len(lost) - 6} more" if len(lost) > 6 else ""
        parts.append(f"Out of memory at {'; '.join(lost[:6])}{more}.")
    return " ".join(parts)


def _table(fields: Sequence[_Field], name: str, title: str, settings: tuple[str, str]) -> Table:
    columns = (Column(settings[0]), Column(settings[1]), Column("throughput of the job", "samples/s"))
    rows = []
    for field in fields:
        ids = tuple(record.run_id for record in field.cell.records)
        cell = marked(figure_cell(field.quantity, ids, field.codes), field.cell.unreliable)
        if field.quantity.value is None:
            cell = Cell(f"none: {field.ended}", runs=ids)
        rows.append((Cell(field.x, field.x), Cell(field.y, field.y), cell))
    return Table(f"{name}-data", title, columns, tuple(rows))
