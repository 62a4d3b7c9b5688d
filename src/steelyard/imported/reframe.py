"""ReFrame: the run report (JSON) and the performance logs (one line for each run, with a header)."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any

from steelyard.imported.form import Digits, ImportedFigure, Importer, inside, items, mapping, stated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.imported.form import ForeignFile

UNITS = {"flop/s": "FLOP/s", "flops": "FLOP/s", "it/s": "items/s", "sec": "s", "seconds": "s", "second": "s"}
PREFIXES = ("k", "m", "g", "t")
MAX_HEADER = 1 << 14
NOTHING = ("null", "None", "")


def recognises(file: ForeignFile) -> bool:
    """Return whether a file is a run report or a performance log."""
    if file.data is not None:
        return isinstance(inside(file.data, "session_info"), dict) and isinstance(inside(file.data, "runs"), list)
    first = file.text.lstrip()[:MAX_HEADER].partition("\n")[0]
    return first.startswith(("result|", "result,")) and "_value" in first


def read(file: ForeignFile) -> Iterator[ImportedFigure]:
    """Yield the performance variables of every test case."""
    if file.data is None:
        yield from _read_log(file)
        return
    for run in items(inside(file.data, "runs")):
        for case in items(inside(run, "testcases")):
            yield from _read_case(mapping(case))


def _read_case(case: dict[str, Any]) -> Iterator[ImportedFigure]:
    nodes = [name for name in items(case.get("nodelist") or case.get("job_nodelist")) if isinstance(name, str)]
    place = case.get("system")
    if isinstance(place, str) and ":" not in place and isinstance(case.get("partition"), str):
        place = f"{place}:{case['partition']}"
    settings = _settings(case.get("display_name") or case.get("name"), place, case, nodes)
    for entry in items(case.get("perfvars")):
        name, value, unit = (inside(entry, key) for key in ("name", "value", "unit"))
        if isinstance(name, str) and isinstance(value, Digits):
            yield ImportedFigure(settings, name, value, _unit(unit), _note(case))
    for key, entry in mapping(case.get("perfvalues")).items():
        # SYSTEM:PARTITION:NAME to value, reference, lower and upper limit, unit.
        value, unit = inside(entry, 0), inside(entry, 4)
        if isinstance(value, Digits):
            yield ImportedFigure(settings, key.rpartition(":")[2], value, _unit(unit), _note(case))


def _read_log(file: ForeignFile) -> Iterator[ImportedFigure]:
    lines = (line for line in file.lines() if line.strip())
    first = next(lines, "").strip()
    mark = "|" if first.startswith("result|") else ","
    header = first.split(mark)
    for line in lines:
        try:
            cells = next(csv.reader([line.strip()], delimiter=mark), [])
        except csv.Error:
            continue
        if len(cells) != len(header):
            continue
        row = dict(zip(header, cells, strict=True))
        place = row.get("system:partition") or ":".join(filter(None, (row.get("system"), row.get("partition"))))
        nodes = [] if row.get("job_nodelist") in (*NOTHING, None) else [row["job_nodelist"]]
        settings = _settings(row.get("name") or file.name.rpartition("/")[2].removesuffix(".log"), place, row, nodes)
        for column, value in row.items():
            name = column.removesuffix("_value")
            if name != column and value not in NOTHING:
                yield ImportedFigure(settings, name, value, _unit(row.get(f"{name}_unit")), _note(row))


def _settings(name: Any, place: Any, row: dict[str, Any], nodes: list[str]) -> dict[str, str]:
    environment = row.get("environ") or row.get("environment")
    tasks = row.get("num_tasks")
    options = [f"environment {environment}"] if isinstance(environment, str) else []
    options += [f"tasks {tasks}"] if isinstance(tasks, str) and tasks not in NOTHING else []
    return stated(model=name, system=place, options=", ".join(options), node=", ".join(nodes))


def _note(row: dict[str, Any]) -> str:
    result = row.get("result")
    return "" if result in ("pass", "success") or not isinstance(result, str) else f"result of the test: {result}"


def _unit(text: Any) -> str:
    """Return a unit in our spelling: Gflop/s and GFLOPS are GFLOP/s."""
    if not isinstance(text, str):
        return ""
    plain = text.strip().casefold()
    if plain[:1] in PREFIXES and plain[1:] in UNITS and UNITS[plain[1:]].endswith("/s"):
        return ("k" if plain[0] == "k" else plain[0].upper()) + UNITS[plain[1:]]
    return UNITS.get(plain, text.strip())


REFRAME = Importer(
    "reframe",
    "ReFrame run reports (JSON) and performance logs",
    (
        "reframe-hpc/reframe, docs/listings/run-report.json, 5ef464194bb5",
        "reframe-hpc/reframe, reframe/schemas/runreport.json, 01dde9ff5b79",
        "reframe-hpc/reframe, docs/tutorial.rst (performance logs of stream_test), a819a314234f",
    ),
    recognises,
    read,
)
