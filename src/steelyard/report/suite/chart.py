"""A chart with the points of a document and ours, or with ours alone."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from steelyard.report.charts.published import PublishedCurves, Spot, curve_chart
from steelyard.report.charts.style import COLOURS
from steelyard.report.suite.answers import machine_of
from steelyard.report.suite.cells import HERE, factor_of, named, printed_setting, word
from steelyard.report.suite.conditions import listed
from steelyard.terminal.text import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.inputs.suite import Planned, PrintedTable
    from steelyard.report.page import Chart
    from steelyard.report.suite.beside import Beside
    from steelyard.rules.table.row import Amount

ALONG = ("batch", "global_batch", "devices", "loader.workers")
"""Settings that a chart may have along its horizontal axis; the first that varies most."""
WIDE = 20
"""Beyond this ratio of the largest to the smallest value, the small ones need a logarithmic axis."""
NOTE = "Hollow marks: printed. Crosses: rows that the audit doubts."


def together(entries: Sequence[Beside], name: str) -> Chart | None:
    """Return the first figure of a table over the setting that varies most; None if nothing of it was measured."""
    first = entries[0]
    figure = [entry for entry in entries if (entry.metric, entry.printed.unit) == (first.metric, first.printed.unit)]
    numbers = {key: {x for entry in figure if (x := entry.published.number(key)) is not None} for key in ALONG}
    along = max(ALONG, key=lambda key: len(numbers[key]))
    if len(numbers[along]) < 2 or not any(entry.ours is not None for entry in figure):
        return None
    series: defaultdict[str, list[Spot]] = defaultdict(list)
    for entry in figure:
        x, apart = entry.published.number(along), _apart(figure, along)
        if x is None:
            continue
        factor = factor_of(entry.printed.unit)
        printed = Spot(x, entry.printed.value / factor, entry.doubted)
        theirs = [machine_of(entry, without=along), named(entry.published, [key for key in apart if key != "devices"])]
        series[", ".join(filter(None, theirs))].append(printed)
        if entry.ours is not None:
            ours = _ours(x, entry.ours, factor)
            name_here = ", ".join(filter(None, (HERE, named(entry.published, apart))))
            if ours not in series[name_here]:
                series[name_here].append(ours)
    return _curves(series, name, along, word(figure[0].metric), figure[0].printed.unit, (NOTE,))


def alone(amounts: Sequence[tuple[Planned, Amount]], table: PrintedTable, along: str, name: str) -> Chart | None:
    """Return our first figure of a table over a setting; None if it has one value only."""
    keys = [key for key in (*table.rows, *table.columns) if key != along]
    series: defaultdict[str, list[Spot]] = defaultdict(list)
    for planned, amount in amounts:
        text = ", ".join(f"{word(key)} {planned.get(key)}" for key in keys)
        series[text or HERE].append(_ours(planned.get(along), amount, factor_of(amount.unit)))
    if len({spot.x for spots in series.values() for spot in spots}) < 2:
        return None
    return _curves(series, name, along, word(table.figures[0]), amounts[0][1].unit, ())


def _ours(x: float, amount: Amount, factor: float) -> Spot:
    value, low, high = (end / factor for end in (amount.value, amount.low, amount.high))
    known = len(amount.jobs) > 1
    return Spot(x, value, low=low if known else None, high=high if known else None)


def _curves(
    series: dict[str, list[Spot]], name: str, along: str, what: str, unit: str, notes: tuple[str, ...]
) -> Chart | None:
    if len(series) > len(COLOURS):
        return None
    values = [spot.y for spots in series.values() for spot in spots]
    curves = PublishedCurves(
        name=name,
        title=f"{what.capitalize()} over the {listed([along])}",
        alt=_words(series, what, unit),
        notes=notes,
        along=listed([along]),
        up=what,
        unit=unit,
        series={text: tuple(sorted(spots, key=lambda spot: spot.x)) for text, spots in series.items()},
        logarithmic=max(values) > WIDE * min(values),
    )
    return curve_chart(curves)


def _apart(entries: Sequence[Beside], along: str) -> list[str]:
    """Return the settings that tell the series of one machine apart."""
    table, free = entries[0].table, ("", along, "accelerator", "parallel")
    keys = [key for key in (*table.rows, table.split, *table.columns) if key not in free]
    return [key for key in keys if len({printed_setting(one.published, key) for one in entries}) > 1]


def _words(series: dict[str, list[Spot]], what: str, unit: str) -> str:
    told = []
    for name, spots in series.items():
        first, last = (end(spots, key=lambda spot: spot.x) for end in (min, max))
        ends = [f"{number(spot.y, 4)} at {spot.x:,g}" for spot in dict.fromkeys((first, last))]
        told.append(f"{name}: {', '.join(ends)}")
    return f"{what.capitalize()} in {unit}. {'; '.join(told)}."
