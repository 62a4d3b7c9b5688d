"""JUBE: result tables as CSV or with bars, with the columns of CARAML."""

from __future__ import annotations

import csv
import re
from itertools import islice
from typing import TYPE_CHECKING

from steelyard.imported.form import ImportedFigure, Importer, stated

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from steelyard.imported.form import ForeignFile

SETTINGS = {
    "system": "system",
    "dataset": "dataset",
    "nodes": "nodes",
    "devices": "devices",
    "precision": "precision",
    "globalbatchsize": "global_batch",
    "batchsize/device": "batch",
    "threads/task": "threads",
    "accelerator": "accelerator",
    "node": "node",
}
FIGURES = {
    "images/second": ("throughput", "images/s"),
    "tokens/second": ("throughput", "tokens/s"),
    "time/iteration(s)": ("step_time", "s"),
    "avg_tflops/gpu": ("flop_rate_per_device", "TFLOP/s"),
}
# A unit in brackets behind the name of a column.
BRACKETS = re.compile(r"(?P<name>[^()\[\]]{1,60}?)\s*[(\[](?P<unit>[^()\[\]]{1,20})[)\]]")
UNITS = {
    "s": "s",
    "sec": "s",
    "secs": "s",
    "seconds": "s",
    "ms": "ms",
    "us": "us",
    "min": "min",
    "h": "h",
    "wh": "Wh",
    "j": "J",
    "w": "W",
    "gb/s": "GB/s",
    "mb/s": "MB/s",
    "tflop/s": "TFLOP/s",
}
# The model and how it is divided need more than one column.
WAYS = ("pipelineparallel", "tensorparallel", "dataparallel", "ipu/replica")
ABOUT = ("jobid", "version", "queue", "jobtime", "energyfile")
DECIMAL = re.compile(r"\d+\.\d+")
RULE = re.compile(r"[\s|:+-]+")
MAX_COLUMNS = 100
LOOKED_AT = 200


def recognises(file: ForeignFile) -> bool:
    """Return whether a file has a table with a rate as CARAML names it."""
    return any({*map(_plain, _cells(line))} & {*FIGURES} for line in islice(file.lines(), LOOKED_AT))


def read(file: ForeignFile) -> Iterator[ImportedFigure]:
    """Yield the figures of every line; a file may hold several tables, each with its header."""
    header: list[str] = []
    for line in file.lines():
        cells = _cells(line)
        if not any(cells) or RULE.fullmatch(line):
            header = header if line.strip() else []
        elif not header or {*map(_plain, cells)} & {*FIGURES}:
            header = cells if len(cells) <= MAX_COLUMNS else []
        elif len(cells) == len(header):
            yield from _row(dict(zip(header, cells, strict=True)))


def _row(row: dict[str, str]) -> Iterator[ImportedFigure]:
    plain = {_plain(name): value for name, value in row.items()}
    settings = stated(**{key: plain.get(name) for name, key in SETTINGS.items()})
    if model := plain.get("model"):
        settings["model"] = f"{model} {plain['modelsize']}" if plain.get("modelsize") else model
    settings |= stated(parallel=_listed(row, WAYS))
    figures: list[tuple[str, str, str]] = []
    rest: dict[str, str] = {}
    for name, value in row.items():
        match = BRACKETS.fullmatch(name)
        if figure := FIGURES.get(_plain(name)):
            figures.append((figure[0], value, figure[1]))
        elif match and (unit := UNITS.get(match["unit"].casefold())):
            figures.append((re.sub(r"\W+", "_", match["name"]).strip("_").casefold(), value, unit))
        elif DECIMAL.fullmatch(value) and _plain(name) not in ABOUT:
            # A measured number, of which the table does not say the unit.
            figures.append((name, value, ""))
        elif _plain(name) not in (*SETTINGS, *WAYS, *ABOUT, "model", "modelsize"):
            rest[name] = value
    # Parameters that are no settings of ours: rows with others are never taken for the same.
    settings |= stated(options=_listed(rest, map(_plain, rest)))
    for metric, value, unit in figures:
        yield ImportedFigure(settings, metric, value, unit, _listed(row, ABOUT[:3]))


def _listed(row: dict[str, str], names: Iterable[str]) -> str:
    wanted = {*names}
    return ", ".join(f"{name} {value}" for name, value in row.items() if _plain(name) in wanted and value)


def _cells(line: str) -> list[str]:
    if "|" in line:
        cells = line.strip().removeprefix("|").removesuffix("|").split("|")
    else:
        try:
            cells = next(csv.reader([line]), [])
        except csv.Error:
            cells = []
    return [cell.strip().strip("`") for cell in cells]


def _plain(name: str) -> str:
    return name.replace(" ", "").casefold()


JUBE = Importer(
    "jube",
    "JUBE result tables (jube result, result.dat), CSV or with bars, as CARAML prints them",
    (
        "FZJ-JSC/CARAML, README.md, ac040d1d8d22",
        "FZJ-JSC/jubench-osu, README.md, aed5619a33ac",
    ),
    recognises,
    read,
)
