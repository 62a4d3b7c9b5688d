"""The tables that queries read, `runs`, `quantities`, `settings` and `findings`, and how records become their rows.

DuckDB reads the text of the records itself, which is ten times faster than rows made here. Only settings are flattened
here, because their names are not known before.
"""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Any

from steelyard import nofollow
from steelyard.errors import InputError, SteelyardError
from steelyard.extras import install_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PARSED = {
    "run_id": "VARCHAR",
    "spec": {
        "study": "VARCHAR",
        "configuration": "VARCHAR",
        "repeat": "INTEGER",
        "workload": "VARCHAR",
        "mode": "VARCHAR",
        "devices": "INTEGER",
        "batch": "BIGINT",
        "accumulation": "BIGINT",
        "precision": "VARCHAR",
        "compile": "VARCHAR",
        "parallel": "VARCHAR",
    },
    "status": {"code": "VARCHAR", "reason": "VARCHAR"},
    "launch": {
        "launcher": "VARCHAR",
        "host": "VARCHAR",
        "started_at": "VARCHAR",
        "wall_s": "DOUBLE",
        "scheduled": {"nodes": ["VARCHAR"]},
    },
    "environment": {"node": "VARCHAR", "device": "VARCHAR"},
    "device": {"name": "VARCHAR"},
    "steady": {"answer": "VARCHAR"},
    "steps_seen": "BIGINT",
    "quantities": 'MAP(VARCHAR, STRUCT("value" DOUBLE, unit VARCHAR, scope VARCHAR, "window" VARCHAR, '
    'aggregation VARCHAR, reason VARCHAR, "interval" STRUCT(low DOUBLE, high DOUBLE)))',
    "findings": [
        {"code": "VARCHAR", "severity": "VARCHAR", "message": "VARCHAR", "fix": "VARCHAR", "evidence": "VARCHAR"}
    ],
    "derived_by": "VARCHAR",
}
"""What is read of a record."""
_RUNS = {
    "study": "r.spec.study",
    "run_id": "r.run_id",
    "configuration": "r.spec.configuration",
    "repeat": "r.spec.repeat",
    "workload": "r.spec.workload",
    "mode": "r.spec.mode",
    "status": "r.status.code",
    "reason": "r.status.reason",
    "started": "try_cast(left(r.launch.started_at, 23) AS TIMESTAMP)",
    "wall_s": "r.launch.wall_s",
    "launcher": "r.launch.launcher",
    "node": "coalesce(r.environment.node, r.launch.host)",
    "nodes": "greatest(1, len(r.launch.scheduled.nodes))::INTEGER",
    "device": "coalesce(r.device.name, r.environment.device)",
    "devices": "r.spec.devices",
    "batch": "r.spec.batch",
    "accumulation": "r.spec.accumulation",
    "precision": "r.spec.precision",
    "compile": "r.spec.compile",
    "parallel": "r.spec.parallel",
    "throughput": "r.quantities['throughput'].value",
    "throughput_low": "r.quantities['throughput'].interval.low",
    "throughput_high": "r.quantities['throughput'].interval.high",
    "throughput_unit": "r.quantities['throughput'].unit",
    "throughput_per_device": "r.quantities['throughput_per_device'].value",
    "step_time_s": "r.quantities['step_time_mean'].value",
    "memory_peak": "r.quantities['memory_peak'].value",
    "steady": "r.steady.answer",
    "steps": "r.steps_seen",
    "errors": "len(list_filter(r.findings, lambda f: f.severity = 'error'))::INTEGER",
    "warnings": "len(list_filter(r.findings, lambda f: f.severity = 'warning'))::INTEGER",
    "derived_by": "r.derived_by",
    "record": "record::VARCHAR",
}
_QUANTITIES = {
    "study": "study",
    "run_id": "run_id",
    "name": "q.key",
    "value": "q.value.value",
    "low": "q.value.interval.low",
    "high": "q.value.interval.high",
    "unit": "q.value.unit",
    "scope": "q.value.scope",
    "time_window": 'q.value."window"',
    "aggregation": "q.value.aggregation",
    "reason": "q.value.reason",
}
_SETTINGS = {
    "study": "study",
    "run_id": "run_id",
    "name": "s.key",
    "value": "s.value",
    "number": "try_cast(s.value AS DOUBLE)",
}
_FINDINGS = {
    "study": "study",
    "run_id": "run_id",
    "code": "f.code",
    "severity": "f.severity",
    "message": "f.message",
    "fix": "f.fix",
    "evidence": "f.evidence",
}
COLUMNS = {
    "runs": tuple(_RUNS),
    "quantities": tuple(_QUANTITIES),
    "settings": tuple(_SETTINGS),
    "findings": tuple(_FINDINGS),
}
"""The columns of each table."""
KEY = "key"
"""A column of `runs` that no view shows: the same number for all copies of a run."""
LINES = "lines"
# They say which run it is, not how it was made.
_NOT_SETTINGS = ("schema_version", "run_id", "study", "study_arguments", "configuration", "repeat", "seed")


def line_of(text: bytes, study: str, run_id: str) -> bytes:
    """Return the line of a record for `load`; InputError if it is not the record of this run.

    The record is parsed and written again, so that DuckDB gets nothing that it refuses, such as a key twice: one bad
    record must not keep others from being read.
    """
    from pydantic_core import from_json, to_json  # a query of archived runs does not need it

    try:
        record = from_json(text, allow_inf_nan=False)
        spec = record["spec"]
        found = (spec["study"], record["run_id"], spec["run_id"])
        facts = (record["environment"] or {}).get("facts") or {}
        settings = {name: value for name, value in spec.items() if name not in _NOT_SETTINGS}
        if spec.get("workload") != "sim":
            settings.pop("sim", None)
        flat = dict([*_flat(settings, ""), *_flat(facts, "environment.")])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(f"the record of {study}/{run_id} is damaged") from None
    if found != (study, run_id, run_id):
        raise InputError(f"the record of {study}/{run_id} is that of another run")
    return to_json({"record": record, "settings": flat}, inf_nan_mode="null") + b"\n"


def _flat(value: dict[str, Any], start: str) -> Iterator[tuple[str, str]]:
    """Yield name and text of every setting that is set."""
    for name, inner in value.items():
        if isinstance(inner, str):
            yield start + name, inner
        elif isinstance(inner, dict):
            yield from _flat(inner, f"{start}{name}.")
        elif inner is not None and inner != []:
            yield start + name, repr(inner) if type(inner) in (int, float) else json.dumps(inner)


def import_duckdb() -> Any:
    """Return the module; SteelyardError says how to install it."""
    try:
        return importlib.import_module("duckdb")
    except ImportError:
        raise SteelyardError("DuckDB is not installed", next_step=install_line("archive")) from None


def write_tables(folder: Path, longest: int) -> None:
    """Write the tables of a segment from the lines in its folder."""
    # By its handle: nobody can swap the folder for a link meanwhile.
    with nofollow.held(folder), nofollow.folder_of(folder) as (handle, _):
        place = f"/proc/self/fd/{handle}"
        with import_duckdb().connect(":memory:", config={"threads": "1"}) as connection:
            load(connection, f"{place}/{LINES}", longest)
            for table in COLUMNS:
                # Made by us: DuckDB alone would write through a link of this name, or of its own temporary file's.
                with nofollow.open_file(folder / f"{table}.parquet", "x") as file:
                    target = f"'/proc/self/fd/{file.fileno()}' (FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false)"
                    connection.execute(f"COPY new_{table} TO {target}")


def load(connection: Any, path: str, longest: int) -> None:
    """Read lines into DuckDB, as the views `new_runs`, `new_quantities`, `new_settings` and `new_findings`."""
    connection.execute(
        f"CREATE TABLE new_lines AS SELECT record, settings, from_json(record, '{json.dumps(_PARSED)}') AS r "  # noqa: S608
        f"FROM read_json('{path}', format = 'newline_delimited', maximum_object_size = {max(1 << 20, 2 * longest)}, "
        "columns = {'record': 'JSON', 'settings': 'MAP(VARCHAR, VARCHAR)'})"
    )
    run = "r.spec.study AS study, r.run_id AS run_id"
    key = f"md5_number_lower(r.spec.study || '/' || r.run_id) AS {KEY}"
    for table, columns, source in (
        ("runs", {**_RUNS}, "new_lines"),
        ("quantities", _QUANTITIES, f"(SELECT {run}, unnest(map_entries(r.quantities)) AS q FROM new_lines)"),  # noqa: S608
        ("settings", _SETTINGS, f"(SELECT {run}, unnest(map_entries(settings)) AS s FROM new_lines)"),  # noqa: S608
        ("findings", _FINDINGS, f"(SELECT {run}, unnest(r.findings) AS f FROM new_lines)"),  # noqa: S608
    ):
        listed = ", ".join(
            [*([key] if table == "runs" else []), *(f'{sql} AS "{name}"' for name, sql in columns.items())]
        )
        connection.execute(f"CREATE VIEW new_{table} AS SELECT {listed} FROM {source}")  # noqa: S608
