"""Find the rows that a sentence is about; a sentence that fits several is refused, with the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard.audit.recompute import kind_of
from steelyard.audit.selecting import same
from steelyard.audit.sentences.words import THAN
from steelyard.rules.table.row import Pair
from steelyard.rules.table.settings import SETTINGS, confounders, shown
from steelyard.rules.table.units import counted, unit_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from steelyard.audit.sentences.words import Item, Sentence
    from steelyard.rules.table.row import Row, RowTable, Setting

SHOWN = 4
LONGEST = 200
SIZED = ("devices", "nodes")
TIMES = ("train_time", "time_to_train", "epoch_time", "step_time", "latency")
RATES = ("throughput", "throughput_per_device")


class NotUnderstoodError(ValueError):
    """A sentence, or a part of it, that has no meaning here; the message says which and why."""


class AmbiguousError(NotUnderstoodError):
    """A sentence in one of the forms that fits several rows or figures."""


@dataclass(frozen=True)
class Sides:
    """Which values belong to the row that the claim is about, to the row that it is compared with, and to both."""

    a: tuple[Item, ...]
    b: tuple[Item, ...]
    both: tuple[Item, ...]
    loose: tuple[Item, ...] = ()
    """Those of `both` that may belong to one side only: `A with FP8 is faster than B`."""


def apart(sentence: Sentence) -> tuple[list[Item], list[Item]]:
    """Return the counts of a sentence, and its names."""
    items = [item for item in sentence.items if item.kind in ("name", "count")]
    return [item for item in items if item.kind == "count"], [item for item in items if item.kind == "name"]


def sides_of(sentence: Sentence) -> Sides | None:
    """Split the values at the word of comparison; None if there is none. Values on one side only belong to both."""
    items = sentence.items
    cut = next(
        (n for n, item in enumerate(items) if item.kind == "word" and item.text in (*THAN, "outperformed", "behind")),
        None,
    )
    fast = next((n for n, item in enumerate(items) if item.text == "fast"), None)
    if cut is None and fast is not None:
        cut = next((n for n in range(fast + 1, len(items)) if items[n].text == "as"), None)
    if cut is None:
        return None
    sides = [[], []]  # type: list[list[Item]]
    for n, item in enumerate(items):
        if item.kind in ("name", "count"):
            sides[n > cut].append(item)
    if items[cut].text == "outperformed":
        sides.reverse()
    keys = [{item.key for item in side} for side in sides]
    shared = keys[0] & keys[1]
    # `compared with` may come first: "compared with B, A is ..." has both sides after it.
    if not shared:
        raise NotUnderstoodError("what is compared? Both sides must be values of the same column of the table")
    own: list[tuple[Item, ...]] = []
    both: list[Item] = []
    for side in sides:
        # Two named tables may be of different sizes: "4 GPUs of test 2 over test 1".
        sized = shared == {"table"} and side is sides[0]
        apart = [item for item in side if item.key in shared or item.glued or (sized and item.key in SIZED)]
        own.append(tuple(apart))
        both += [item for item in side if item not in apart]
    for key in shared:
        if len([item for side in own for item in side if item.key == key]) > 2:
            raise NotUnderstoodError(f"more than two values of {key}")
    loose = tuple(item for item in both if sentence.before(item) in ("with", "using"))
    return Sides(own[0], own[1], tuple(both), loose)


def refuse_loose(rows: Iterable[Row], sides: Sides) -> None:
    """Raise if a value is stated for one side and the other side has rows with other values."""
    every = list(rows)
    for item in sides.loose:
        fixed = [other for other in sides.both if other is not item]
        for side in (sides.a, sides.b):
            values = {shown(value_of(row, item.key)) for row in fitting(every, [*fixed, *side])}
            if len(values) > 1:
                raise AmbiguousError(f"{quoted(item.text)} for both sides? Write on or for {item.text} if so")


def rivals(table: RowTable, item: Item) -> list[Setting]:
    """Return the other values that the table has of a setting."""
    values = dict.fromkeys(value_of(row, item.key) for row in table.rows)
    return [value for value in values if value is not None and not any(same(value, own) for own in item.values)]


def value_of(row: Row, key: str) -> Setting | None:
    """Return a setting of a row, or the name of its table."""
    return row.table if key == "table" else row.get(key)


def fitting(rows: Iterable[Row], items: Sequence[Item]) -> list[Row]:
    """Return the rows that have all values; raise if there are none."""
    every = list(rows)
    matching = [
        row
        for row in every
        if all(any(same(value_of(row, item.key), value) for value in item.values) for item in items)
    ]
    if not matching:
        raise NotUnderstoodError(f"no row has {', '.join(f'{item.key} {item.text}' for item in items) or 'figures'}")
    return matching


def only(rows: Sequence[Row], named: Sequence[Item]) -> Row:
    """Return the only row; raise with the rows and what tells them apart if there are several."""
    if len(rows) == 1:
        return rows[0]
    if not rows:
        raise NotUnderstoodError("no row has the figure")
    keys = [key for key in SETTINGS if any(not same(row.get(key), rows[0].get(key)) for row in rows)]
    places = [
        f"{row.place} ({', '.join(f'{key} {shown(row.get(key))}' for key in keys[:4]) or 'a repeat'})" for row in rows
    ]
    more = f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
    what = " ".join(item.text for item in named) or "it"
    raise AmbiguousError(f"{len(rows)} rows fit {quoted(what)}: {'; '.join(places[:SHOWN])}{more}; say which")


def like_with_like(rows_a: Sequence[Row], rows_b: Sequence[Row], sides: Sides, metric: str) -> tuple[Row, Row]:
    """Return the row of each side. If only one side is clear, the other is the row that is like it otherwise."""
    keys = {item.key for item in (*sides.a, *sides.b)}
    factor = "system" if keys & {"system", "accelerator"} else next(iter(keys - {"nodes"} or keys))

    def like(row: Row, others: Sequence[Row]) -> list[Row]:
        sized = [other for other in others if "devices" in keys or same(other.get("devices"), row.get("devices"))]
        return [other for other in sized if not confounders(Pair(other, row, factor, metric))]

    if len(rows_a) == 1 and len(rows_b) > 1:
        rows_b = like(rows_a[0], rows_b) or rows_b
    if len(rows_b) == 1 and len(rows_a) > 1:
        rows_a = like(rows_b[0], rows_a) or rows_a
    return only(rows_a, [*sides.both, *sides.a]), only(rows_b, [*sides.both, *sides.b])


def find_metric(sentence: Sentence, rows: Sequence[Row], *, unit: str = "", of_device: bool = False) -> str:
    """Return the metric that a sentence is about: the one it names, or the usual one for speed."""
    having = list(dict.fromkeys(name for row in rows for name in row.figures))
    amounts = {name: next(row.figures[name] for row in rows if name in row.figures) for name in having}
    if unit == "%":
        wanted = [name for name in having if name in ("mfu", "hfu")]
    elif unit:
        kind = (unit_of(unit) or ("", 1.0))[0]
        wanted = [
            name
            for name, it in amounts.items()
            if (unit_of(it.unit) or ("",))[0] == kind and counted(it.unit) == counted(unit)
        ]
        wanted = (
            sorted((name for name in wanted if name in RATES), key=lambda name: (name == RATES[1]) != of_device)
            or wanted
        )
        wanted = wanted[:1] if wanted and wanted[0] in RATES else wanted
    elif sentence.has("energy"):
        wanted = [name for name in having if "energy" in name and "_per_energy" not in name]
    elif sentence.has("power"):
        wanted = [name for name in having if name.startswith("power")]
    elif sentence.has("latency"):
        wanted = [name for name in having if name.startswith(("latency", "ttft"))]
    elif sentence.has("epoch"):
        wanted = [name for name in having if name in ("epoch_time", "time_per_epoch")]
    elif sentence.has("step"):
        wanted = [name for name in having if name.startswith("step_time")]
    elif sentence.has("time") and any(name in having for name in TIMES):
        wanted = [name for name in TIMES if name in having][:1]
    else:
        order = (*RATES[::-1], *TIMES) if of_device else (*RATES, *TIMES)
        wanted = [name for name in order if name in having][:1] or [
            name for name, it in amounts.items() if kind_of(it) != "other"
        ]
    if len(wanted) != 1:
        metrics = ", ".join((wanted or having)[:6])
        raise NotUnderstoodError(f"{'which figure' if wanted else 'the figure is not in the rows'}: {metrics}")
    return wanted[0]


def selector(items: Iterable[Item]) -> dict[str, Setting]:
    """Return a selector for the rows with these values; raise if a name may be several values."""
    for item in items:
        if len(item.values) > 1:
            values = ", ".join(shown(value) for value in item.values[:SHOWN])
            raise AmbiguousError(f"{quoted(item.text)} may be {values}; say which")
    return {item.key: item.values[0] for item in items}


def selector_of(row: Row) -> dict[str, Setting]:
    """Return a selector for exactly this row: all that it states."""
    settings = {key: value for key, value in row.settings.items() if len(str(value)) <= LONGEST}
    settings |= {"table": row.table} if row.table else {}
    return dict([*settings.items()][:40])


def tell(row: Row, other: Row) -> str:
    """Return what distinguishes a row from another."""
    keys = [key for key in SETTINGS if row.get(key) is not None and not same(row.get(key), other.get(key))]
    return listed({key: row.settings[key] for key in keys[:3]}) or row.place


def listed(settings: Mapping[str, Setting]) -> str:
    """Format settings: `devices 4, precision fp16`."""
    return ", ".join(f"{key} {shown(value)}" for key, value in settings.items())


def read_as(metric: str, words: str) -> str:
    """Say how a sentence was read, beside the sentence."""
    return f"read as {metric}: {words}"[:LONGEST]


def quoted(text: str) -> str:
    """Return a text in quotes, cut if it is long."""
    return f'"{text if len(text) <= 60 else text[:57] + "..."}"'
