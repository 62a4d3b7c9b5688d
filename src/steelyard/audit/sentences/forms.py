"""The forms of sentences: each becomes one kind of claim, as the data of a claims file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steelyard.audit.selecting import same
from steelyard.audit.sentences.rows import (
    SIZED,
    AmbiguousError,
    NotUnderstoodError,
    Sides,
    apart,
    find_metric,
    fitting,
    like_with_like,
    listed,
    only,
    quoted,
    read_as,
    refuse_loose,
    rivals,
    selector,
    selector_of,
    sides_of,
    tell,
)
from steelyard.audit.sentences.words import LESS, LINEAR, MORE, SLOWER, SPEED, Item, several
from steelyard.rules.table.row import Pair
from steelyard.rules.table.settings import SETTINGS, confounders, shown

if TYPE_CHECKING:
    from steelyard.audit.sentences.words import Sentence
    from steelyard.rules.table.row import Row, RowTable

SHOWN = 4


def make(sentence: Sentence, table: RowTable) -> dict[str, Any]:
    """Return a claim as data, by the first form that fits."""
    figures = sentence.figures()
    figure = figures[0] if figures else ""
    _settle_counts(sentence, table)
    if sum(map(sentence.has, (SPEED, SLOWER, LESS))) > 1 or (sentence.has(LESS) and sentence.has(MORE)):
        raise NotUnderstoodError("it says both more and less; say faster, slower or less time")
    if sentence.has(LINEAR):
        if figure:
            raise NotUnderstoodError("a figure and linear scaling are two claims; write two sentences")
        return _linear(sentence, table)
    if sentence.has("efficiency efficient"):
        return _efficiency(sentence, table, figure)
    if "/" in figure or (figure.endswith("%") and sentence.has("mfu utilization utilisation")):
        return _value(sentence, table, figure)
    if not figure:
        return _faster(sentence, table)
    return _percent(sentence, table, figure) if figure.endswith("%") else _times(sentence, table, figure)


def _settle_counts(sentence: Sentence, table: RowTable) -> None:
    """Give bare numbers and `batch N` their setting."""
    named = any(item.kind == "count" and item.key in ("devices", "nodes") for item in sentence.items)
    linear = sentence.has(LINEAR | several("scales scaling"))
    for place, item in enumerate(sentence.items):
        if item.kind != "count" or item.key in SETTINGS:
            continue
        if item.key == "any_batch":
            keys = [
                key
                for key in ("batch", "global_batch")
                if any(same(row.get(key), item.values[0]) for row in table.rows)
            ]
            if len(keys) != 1:
                raise NotUnderstoodError(
                    f"{quoted(item.text)}: {'no' if not keys else 'more than one'} batch of the table"
                )
            sentence.items[place] = Item("count", item.text, keys[0], item.values)
        elif named or linear:
            sentence.items[place] = Item("count", item.text, "devices", item.values, most=item.most)
        else:
            raise NotUnderstoodError(f"the number {item.text} has no unit")


def _linear(sentence: Sentence, table: RowTable) -> dict[str, Any]:
    counts, others = apart(sentence)
    sized = [item for item in counts if item.key in SIZED]
    if len(sized) > 1 or any(item.key == "nodes" for item in sized):
        raise NotUnderstoodError("linear scaling is checked up to one number of devices")
    named = [item for item in (*counts, *others) if item not in sized]
    rows = fitting(table.rows, named)
    metric = find_metric(sentence, rows)
    entry: dict[str, Any] = {"kind": "linear", "metric": metric, "rows": selector(named)}
    counted = [row for row in rows if metric in row.figures and row.number("devices")]
    most = max((row.number("devices") or 0.0 for row in counted), default=0.0)
    if sized:
        entry["up_to"] = sized[0].values[0]
        most = float(entry["up_to"])
        fitting(counted, sized)
    for count in dict.fromkeys(row.number("devices") or 0.0 for row in counted):
        if count <= most:
            # Two curves in one table are two claims.
            only([row for row in counted if row.number("devices") == count], named)
    return entry | {"place": read_as(metric, f"up to {shown(most)} devices")}


def _efficiency(sentence: Sentence, table: RowTable, figure: str) -> dict[str, Any]:
    if not figure.endswith("%") or sentence.has("energy power mfu"):
        raise NotUnderstoodError("an efficiency of scaling is a percentage, such as 92 %")
    sides = sides_of(sentence)
    if sides is not None and not {"devices", "nodes", "table"} & {item.key for item in sides.b}:
        raise NotUnderstoodError("an efficiency is relative to fewer devices; say on how many")
    return _scaling(sentence, table, {"kind": "efficiency", "published": figure})


def _times(sentence: Sentence, table: RowTable, figure: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"kind": "times", "published": figure}
    if sentence.has(LESS):
        if not sentence.has("energy power time latency"):
            raise NotUnderstoodError(f"{figure} less of what? Say faster, or name a time or an energy")
        entry["relation"] = "less"
    elif sentence.has("energy power longer time latency") and not sentence.has(SPEED):
        entry["relation"] = "as much"
    elif sentence.has(SLOWER):
        return _pair(sentence, table, entry, swapped=True)
    return _pair(sentence, table, entry)


def _percent(sentence: Sentence, table: RowTable, figure: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"kind": "percent", "published": figure}
    less, more = sentence.has(LESS), sentence.has(MORE)
    if sentence.has(SLOWER):
        entry["relation"] = "slower"
    elif sentence.has("time latency longer shorter") and less != more:
        entry["relation"] = "less time" if less else "more time"
    elif sentence.has("throughput rate") and less != more:
        entry["relation"] = "less throughput" if less else "more throughput"
    elif sentence.has("energy power") and less != more:
        entry["relation"] = "less" if less else "more"
    elif sentence.has(SPEED) or (more and sentence.has("performance")):
        entry["relation"] = "faster"
    else:
        raise NotUnderstoodError(f"{figure} of what? Say faster, slower, less time or more throughput")
    return _pair(sentence, table, entry)


def _faster(sentence: Sentence, table: RowTable) -> dict[str, Any]:
    # `As fast as` is no order.
    if not sentence.has(SPEED - several("fast speed") | SLOWER):
        raise NotUnderstoodError("there is no figure and no comparison in it")
    return _pair(sentence, table, {"kind": "faster"}, swapped=sentence.has(SLOWER))


def _value(sentence: Sentence, table: RowTable, figure: str) -> dict[str, Any]:
    counts, others = apart(sentence)
    if sentence.has("than over versus vs against compared faster slower"):
        raise NotUnderstoodError("a rate in a comparison is not understood; state the ratio")
    of_device = "per-device" in sentence.words
    named = [*counts, *others]
    rows = fitting(table.rows, named)
    unit = figure.split()[-1]
    metric = find_metric(sentence, rows, unit=unit, of_device=of_device)
    entry: dict[str, Any] = {"kind": "value", "published": figure, "metric": metric}
    if of_device and not metric.endswith("_per_device") and unit != "%":
        entry["per"] = "device"
    rows = [row for row in rows if metric in row.figures]
    if figure.startswith("up to"):
        return entry | {"rows": selector(named), "place": read_as(metric, f"{len(rows)} rows")}
    row = only(rows, named)
    return entry | {"rows": selector_of(row), "place": read_as(metric, row.place)}


def _pair(sentence: Sentence, table: RowTable, entry: dict[str, Any], *, swapped: bool = False) -> dict[str, Any]:
    """Find the two rows of a comparison; without a second side, the base of a scaling or the only other value."""
    sides = sides_of(sentence)
    if sides is None:
        counts, others = apart(sentence)
        sized = [item for item in counts if item.key in SIZED]
        named = [item for item in others if rivals(table, item)]
        if sized and (not named or sentence.has("scaling scales scale")):
            return _scaling(sentence, table, entry)
        if sized and named:
            own, rival = named[0].text, shown(rivals(table, named[0])[0])
            raise AmbiguousError(
                f"over fewer devices, or over {rival}? Say `over 1 GPU for {own}`, or `{own} over {rival}`"
            )
        # "A reduces the time by 40 % on BERT": what comes after on says where.
        named = (
            [item for item in named if sentence.before(item) not in ("on", "for", "in", "at")]
            if len(named) > 1
            else named
        )
        if len(named) != 1:
            raise NotUnderstoodError("compared with what? Say than, or over")
        (other,) = named
        against = rivals(table, other)
        if len(against) > 1:
            values = ", ".join(shown(value) for value in against[:SHOWN])
            raise AmbiguousError(f"compared with which {other.key}? The table has {values}")
        base = Item("name", shown(against[0]), other.key, tuple(against))
        sides = Sides((other,), (base,), tuple(item for item in (*counts, *others) if item is not other))
    refuse_loose(table.rows, sides)
    rows_a, rows_b = (fitting(table.rows, [*sides.both, *side]) for side in (sides.a, sides.b))
    metric = find_metric(sentence, [*rows_a, *rows_b])
    rows_a, rows_b = ([row for row in rows if metric in row.figures] for rows in (rows_a, rows_b))
    entry = {**entry, "metric": metric}
    # `20 % slower` has a wording of its own.
    turned = swapped and entry["kind"] != "percent"
    published = str(entry.get("published", ""))
    # `Up to 3x` and `35-55 %` are about every pair.
    if (published.startswith("up to") or "-" in published) and rows_a and rows_b and len(rows_a) + len(rows_b) > 2:
        keys = {item.key for item in (*sides.a, *sides.b)}
        first = rows_a[0]
        over = [
            key
            for key in SETTINGS
            if key not in keys
            and first.get(key) is not None
            and any(not same(row.get(key), first.get(key)) for row in rows_a)
        ]
        a, b = (selector(side) for side in ((sides.b, sides.a) if turned else (sides.a, sides.b)))
        selectors = {"rows": selector(sides.both), "over": over[:10], "a": a, "b": b}
        words = f"{listed(a)} over {listed(b)}, by {', '.join(over)}"
        return {**entry, **selectors, "place": read_as(metric, words)}
    a_row, b_row = like_with_like(rows_a, rows_b, sides, metric)
    return _compared(entry, metric, *((b_row, a_row) if turned else (a_row, b_row)))


def _scaling(sentence: Sentence, table: RowTable, entry: dict[str, Any]) -> dict[str, Any]:
    """Find the row with the stated number of devices, and the row with the fewest that is like it otherwise."""
    sides = sides_of(sentence)
    if sides is not None:
        return _pair(sentence, table, entry)
    counts, others = apart(sentence)
    sized = [item for item in counts if item.key in SIZED]
    if len(sized) == 2 and sized[0].key == sized[1].key and "from" in sentence.words:
        base, top = sized
    elif len(sized) == 1:
        base, top = None, sized[0]
    else:
        raise NotUnderstoodError("on how many devices? Say on 4 GPUs")
    named = [item for item in (*counts, *others) if item not in sized]
    rows = fitting(table.rows, named)
    metric = find_metric(sentence, rows)
    rows = [row for row in rows if metric in row.figures]
    row = only(fitting(rows, [top]), [*named, top])
    if base is not None:
        fewer = fitting(rows, [base])
    else:
        size = row.number(top.key) or 0.0
        fewer = [other for other in rows if 0 < (other.number(top.key) or 0) < size]
        if not fewer:
            raise NotUnderstoodError(f"no row has fewer {top.key} than {size:g}")
    least = min(other.number(top.key) or 0.0 for other in fewer)
    fewest = [other for other in fewer if other.number(top.key) == least]
    clean = [other for other in fewest if not confounders(Pair(other, row, "devices", metric))]
    start = only(clean or fewest, named)
    return _compared(entry, metric, row, start)


def _compared(entry: dict[str, Any], metric: str, row: Row, start: Row) -> dict[str, Any]:
    """Return a claim on two rows. A figure for more devices credits them, so nothing else may have changed."""
    if row.get("devices") != start.get("devices") and same(row.get("accelerator"), start.get("accelerator")):
        others = confounders(Pair(start, row, "devices", metric))
        entry |= {"asserts": ["attribution"], "factor": "devices"} if others else {}
    words = f"{tell(row, start)} over {tell(start, row)}"
    return {**entry, "metric": metric, "a": selector_of(row), "b": selector_of(start), "place": read_as(metric, words)}
