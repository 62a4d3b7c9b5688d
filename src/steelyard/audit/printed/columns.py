"""What each column of a table means: its heading, and what the other columns, the cells and the caption tell."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from steelyard.audit.printed.headings import Heading, understand
from steelyard.audit.printed.layout import folded
from steelyard.audit.printed.spellings import MODEL_PARALLEL
from steelyard.audit.printed.values import (
    Printed,
    Unit,
    UnreadableError,
    is_empty,
    is_number,
    read_number,
    unit_spelled,
)
from steelyard.rules.table.relations import KINDS, metric_kind
from steelyard.rules.table.units import counted, unit_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from steelyard.audit.printed.layout import TableLayout

LOOKED_AT = 500
"""Lines of a table from which the meaning of a column is told."""
_ASSUMED_RATE = Unit("items/s", note="its unit is not printed")
_MICRO = ("micro batch size", "microbatch size", "micro batch", "mbs", "microbatch", "micro bs")
_COUNTS_OR_NAMES = ("gpu", "chip", "device", "accelerator", "card")


@dataclass
class PrintedColumn:
    """A column under examination."""

    index: int
    heading: Heading
    metric: str = ""
    setting: str = ""
    unit: Unit | None = None
    note: str = ""
    reason: str = ""

    @property
    def group(self) -> tuple[tuple[str, str], ...]:
        """Return the settings that the heading states for the column."""
        return self.heading.group


def understand_columns(layout: TableLayout, chosen: Mapping[str, Heading], used: set[str]) -> list[PrintedColumn]:
    """Find the meaning of each heading; `chosen` are meanings that the user gave, `used` notes those that apply."""
    columns = []
    caption = _caption_metric(layout.grid.caption)
    for index, text in enumerate(layout.headings):
        own = understand(text) if text else Heading(text, reason="no heading")
        mapped = chosen.get(folded(text))
        if mapped is not None:
            used.add(folded(text))
            group = () if mapped.setting and not own.setting else own.group
            own = replace(mapped, text=text, group=group, base=own.base if mapped.metric == own.metric else "")
        elif not own.known and own.group and caption is not None:
            own = replace(own, metric=caption.metric, unit=own.unit or caption.unit, reason="")
        column = PrintedColumn(index, own, own.metric, own.setting, own.unit, reason=own.reason)
        if not text and index == 0 and not any(is_number(row[0]) for row in layout.cells[:50] if row[0]):
            column.setting, column.reason = "options", ""
            column.note = "no heading; tells rows apart"
        columns.append(column)
    return columns


def _caption_metric(caption: str) -> Heading | None:
    """Return what the caption says that the figures are, such as `Throughput (images/s)`."""
    for line in reversed(caption.split("\n")):
        for text in (line, line.rpartition(":")[2], line.split(" on ")[0], line.split(" of ")[0]):
            heading = understand(text.strip(" .:")) if 0 < len(text) < 100 else None
            if heading is not None and heading.metric and not heading.group:
                return heading
    return None


def settle(columns: list[PrintedColumn], layout: TableLayout) -> None:
    """Decide what single headings leave open: counts or names, which batch, missing units, and columns that repeat."""
    _settle_names(columns, layout)
    _settle_batch(columns, layout)
    _settle_units(columns, layout)
    _settle_repeats(columns)
    figures = {column.group for column in columns if column.metric and not column.reason}
    wide = {group for group in figures if group}
    for column in columns:
        if column.setting and column.group and not column.reason:
            # The settings of a group are in columns next to its figures.
            own = [group for group in wide if set(column.group) <= set(group)]
            if not own:
                column.reason = "no figures belong to it"
        if column.metric == "speedup" and not column.reason and column.group:
            simple = column.heading.phrase in ("speedup", "throughput speedup", "relative speedup")
            rates = {other.group for other in columns if other.metric.startswith("throughput") and not other.reason}
            scaled = {other.group for other in columns if other.metric == "speedup"}
            if simple and len(rates) > 1 and scaled < rates:
                column.reason = "over what? another precision, or fewer devices"
    for column in columns:
        if column.reason:
            column.metric = column.setting = ""


def _settle_names(columns: list[PrintedColumn], layout: TableLayout) -> None:
    parallel = any(column.heading.phrase in MODEL_PARALLEL for column in columns)
    for column in columns:
        cells = [row[column.index] for row in layout.cells if not is_empty(row[column.index])][:200]
        if column.setting == "accelerator" and column.heading.phrase in (
            "gpu",
            "chip",
            "device",
            "accelerator",
            "card",
        ):
            if cells and all(re.fullmatch(r"[0-9]{1,6}", cell) for cell in cells):
                column.setting = "devices"
        elif column.setting == "devices" and cells and not any(is_number(cell) for cell in cells):
            column.setting = "accelerator"
        if (
            column.setting == "batch"
            and parallel
            and "micro" in column.heading.text.lower() + " micro"[: 6 * (column.heading.phrase == "mbs")]
        ):
            column.reason = "with tensor or pipeline parallelism a micro-batch is not that of a device"
        if column.setting in ("options", "parallel", "task") and column.setting != column.heading.phrase:
            column.note = column.note or "tells rows apart"


def _settle_batch(columns: list[PrintedColumn], layout: TableLayout) -> None:
    """Decide whether a plain `Batch size` is that of a device or of the job."""
    by = {column.setting: column for column in columns if column.setting and not column.reason}
    for column in columns:
        if column.setting != "any_batch":
            continue
        if "global_batch" in by and "batch" not in by:
            column.setting, column.note = "batch", "per device, because the global batch has its own column"
        elif "batch" in by and "global_batch" not in by:
            column.setting, column.note = "global_batch", "global, because the batch per device has its own column"
        elif "devices" not in by:
            column.setting, column.note = "global_batch", "no number of devices is printed"
        elif _is_proportional(layout, by["devices"].index, column.index):
            column.setting, column.note = "global_batch", "it grows with the devices"
        else:
            column.setting, column.note = "batch", "per device or global is not printed"


def _is_proportional(layout: TableLayout, devices: int, batch: int) -> bool:
    ratios = set()
    counts = set()
    for row in layout.cells[:200]:
        try:
            count, size = read_number(row[devices]).value, read_number(row[batch]).value
        except UnreadableError:
            continue
        if count > 0:
            ratios.add(round(size / count, 9))
            counts.add(count)
    return len(counts) > 1 and len(ratios) == 1


def _settle_units(columns: list[PrintedColumn], layout: TableLayout) -> None:
    stated = _caption_units(layout.grid.caption)
    for column in columns:
        if not column.metric or column.reason:
            continue
        kind = metric_kind(column.metric)
        reads = _sample(layout, column.index)
        if column.metric in ("speedup", "efficiency", "mfu", "hfu") and column.unit is None:
            _settle_ratio(column, reads)
        if column.unit is None and kind is not None and kind in stated:
            column.unit, column.note = stated[kind], "unit from the caption"
        if column.metric in ("speedup", "efficiency") and column.unit is not None and column.unit.name == "%":
            column.metric = "efficiency"
        if column.unit is not None or not reads or any(read.unit is not None for read in reads):
            continue
        if kind == "rate" and column.metric.startswith("throughput"):
            column.unit, column.note = _ASSUMED_RATE, _ASSUMED_RATE.note
        elif kind in (None, "ratio"):
            column.unit = column.unit or Unit("")
        elif kind == "count" and column.metric == "parameters":
            column.unit = Unit("parameters")
        else:
            example = {"time": "s", "power": "W", "energy": "kWh", "memory": "GB", "money": "$"}.get(str(kind), "unit")
            column.reason = f'no unit; --map "{column.heading.text}={column.metric}[{example}]"'


def _sample(layout: TableLayout, index: int) -> list[Printed]:
    numbers = []
    for row in layout.cells[:500]:
        try:
            numbers.append(read_number(row[index]))
        except UnreadableError:
            continue
    return numbers


def _settle_ratio(column: PrintedColumn, reads: list[Printed]) -> None:
    """Decide between a fraction and percent, from the cells, where the heading has no unit."""
    units = {read.unit.name if read.unit else "" for read in reads}
    if column.metric == "speedup":
        if units == {"%"}:
            column.metric, column.note = "efficiency", "in percent"
            column.unit = Unit("%")
        return
    if units != {""} or not reads:
        return
    if all(read.value > 2 for read in reads):
        column.unit, column.note = Unit("%"), "percent, because all are above 2"
    elif any(read.value > 2 for read in reads):
        column.reason = "fractions or percent? the figures are above and below 2"


def _caption_units(caption: str) -> dict[str, Unit]:
    """Return units that the caption states, such as `(images/s)` or `in ms`, by kind; not where it states two."""
    units: dict[str, Unit] = {}
    twice: set[str] = set()
    texts = re.findall(r"[(\[]([^()\[\]]{1,30})[)\]]", caption)
    texts += re.findall(r"\bin ([A-Za-z$µ%]+(?:(?:/| per )[A-Za-z]+){0,2})", caption)
    for text in texts:
        unit = unit_spelled(text)
        known = unit_of(unit.name) if unit is not None else None
        if unit is None or known is None or known[0] == "ratio":
            continue
        if units.setdefault(known[0], unit).name != unit.name:
            twice.add(known[0])
    return {kind: unit for kind, unit in units.items() if kind not in twice}


def _settle_repeats(columns: list[PrintedColumn]) -> None:
    """Give a second rate its own name, and leave out a second column of the same meaning."""
    taken: dict[tuple[str, object], PrintedColumn] = {}
    # A column that says "throughput" comes before one that is only a unit.
    for column in sorted(columns, key=lambda entry: not entry.heading.phrase):
        if column.reason or not (column.metric or column.setting) or column.setting == "options":
            continue
        key = (column.metric or column.setting, column.group)
        first = taken.setdefault(key, column)
        if first is column:
            continue
        item = counted(column.unit.name) if column.unit else ""
        other = f"{item}_per_second"
        if column.metric == "throughput" and other in KINDS and first.unit and counted(first.unit.name) != item:
            column.metric = other
            first = taken.setdefault((other, column.group), column)
        if first is not column and column.setting == "parallel":
            column.setting = "options"
        elif first is not column:
            column.reason = f'a second column for {key[0]}, after "{first.heading.text}"'
