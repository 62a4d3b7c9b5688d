"""One bad run is that run's problem: whatever is in its raw files, there is a record that says so."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from conftest import make_spec
from steelyard.contracts import energy, observe, sample_files
from steelyard.contracts.record import RunRecord
from steelyard.derive import observations
from steelyard.derive import record as deriving
from steelyard.derive.ranks import checked_quantities
from steelyard.derive.record import derive
from steelyard.errors import SteelyardError
from steelyard.inputs.validate import parse_json
from steelyard.results.store import record_text
from steelyard.worker.engine.run import run_directory

if TYPE_CHECKING:
    from pathlib import Path

FIRST = "events-00000.jsonl"
STEPS = "steps-00000.bin"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """The raw files of a small simulated run."""
    folder = tmp_path / "raw"
    folder.mkdir()
    (folder / observe.SPEC_FILE).write_text(record_text(make_spec()), encoding="utf-8")
    assert run_directory(folder).code == "completed"
    (folder / observe.WORKER_LOG).write_bytes(b"")
    return folder


def damaged(raw: Path) -> str:
    """Derive the record of a damaged run; return what its status says. It can be stored and read."""
    record = derive(raw)
    assert parse_json(RunRecord, record_text(record), "record") == record
    assert record.status.code == "failed"
    assert "throughput" not in record.quantities
    assert str(raw.parent) not in record.status.reason
    return record.status.reason


def tell(raw: Path, *events: dict[str, Any]) -> None:
    """Put events before those of the run."""
    path = raw / FIRST
    path.write_text("".join(json.dumps(event) + "\n" for event in events) + path.read_text())


# -- links and other kinds of files


@pytest.mark.parametrize(
    "name", [FIRST, STEPS, "steps-00001.bin", "sensors-00000.jsonl", "launch.json", "worker.log", "x"]
)
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe"])
def test_what_is_not_a_regular_file_is_refused_with_its_name(raw: Path, name: str, kind: str) -> None:
    path, elsewhere = raw / name, raw.parent / "elsewhere"
    if path.exists():
        path.rename(elsewhere)
    else:
        elsewhere.write_bytes(b"")
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(elsewhere if kind == "link" else raw.parent / "nothing")
    reason = damaged(raw)
    assert f"{name} is " in reason
    assert ("a link" if kind in ("link", "dangling") else "not a regular file") in reason


def test_a_folder_is_left_alone_unless_it_has_the_name_of_a_file(raw: Path) -> None:
    (raw / "torchrun").mkdir()
    assert derive(raw).status.code == "completed"
    (raw / "steps-00001.bin").mkdir()
    assert "steps-00001.bin is not a regular file" in damaged(raw)


@pytest.mark.parametrize("gone", ["a link", "nothing"])
def test_without_a_spec_there_is_no_record(raw: Path, gone: str) -> None:
    path = raw / observe.SPEC_FILE
    path.rename(raw.parent / "spec")
    if gone == "a link":
        path.symlink_to(raw.parent / "spec")
    with pytest.raises(SteelyardError, match=r"spec\.json"):
        derive(raw)


def test_a_file_that_cannot_be_read_now_gives_no_record(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr(observe, "read_events", fail)
    with pytest.raises(SteelyardError, match=f"{FIRST}: cannot be read: Input/output error"):
        derive(raw)


# -- size, depth and count


def test_a_line_that_is_nested_deeply(raw: Path) -> None:
    path = raw / FIRST
    path.write_bytes(b'{"kind": "phase", "x": ' + 100_000 * b"[" + b"\n" + path.read_bytes())
    assert "a line is not JSON" in damaged(raw)


@pytest.mark.parametrize("kind", ["load", "status", "unknown"])
def test_too_many_events(raw: Path, kind: str) -> None:
    event = {
        "load": {"moment": "start", "node": "n", "at_s": 1.0, "cpus": "f"},
        "status": {"code": "completed"},
        "unknown": {"x": 1},
    }[kind]
    tell(raw, *(observe.MAX_EVENTS + 1) * [{"kind": kind, **event}])
    assert "more than" in damaged(raw)


def test_too_many_bytes_of_events(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tell(raw, *9 * [{"kind": "unknown", "x": 1_000_000 * "x"}])
    assert f"{observe.MAX_EVENTS_BYTES:,} bytes" in damaged(raw)
    monkeypatch.setattr(observations, "MAX_ALL_EVENTS_BYTES", 1000)
    assert "the events of all files have more than 1,000 bytes" in damaged(raw)


@pytest.mark.parametrize("name", ["worker.log", "power-00000.bin", "steps-00001.bin", "x"])
def test_a_file_larger_than_any_real_one_is_not_hashed(raw: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with (raw / name).open("wb") as file:
        file.truncate(1 << 37)
    digest = observations.hashlib.file_digest

    def bounded(file: Any, kind: str) -> Any:
        assert os.fstat(file.fileno()).st_size < 1 << 20
        return digest(file, kind)

    monkeypatch.setattr(observations.hashlib, "file_digest", bounded)
    assert f"{name}" in damaged(raw)


# -- range


@pytest.mark.parametrize("column", sample_files.COLUMNS)
@pytest.mark.parametrize("value", [1.7e308, -1.7e308, 1e19, np.inf])
def test_a_step_with_an_impossible_value(raw: Path, column: str, value: float) -> None:
    chunks = list(sample_files.read_chunks(raw / STEPS, 0, 10**9, check=True))
    with (raw / STEPS).open("wb") as file:
        file.write(sample_files.FILE_MAGIC)
        for chunk in chunks:
            table = chunk.table.copy()
            table[sample_files.COLUMNS.index(column)] = value
            sample_files.write_chunk(file, chunk.rank, chunk.first_step, table)
    assert f"impossible values of {column}" in damaged(raw)


@pytest.mark.parametrize("kind", [energy.POWER, energy.CONDITIONS])
@pytest.mark.parametrize("value", [1e30, -np.inf])
def test_a_reading_with_an_impossible_value(tmp_path: Path, kind: energy.ChunkFile, value: float) -> None:
    path = kind.place(tmp_path, 0)
    for row in range(len(kind.columns)):
        table = np.ones((len(kind.columns), 4))
        table[row, 2] = value
        with path.open("wb") as file:
            file.write(kind.magic)
            energy.write_power_chunk(file, 0, table, kind)
        with pytest.raises(SteelyardError, match="impossible readings"):
            list(energy.read_power_chunks(path, kind))


SPOILT: dict[str, list[dict[str, Any]]] = {
    "a length that overflows": [{"kind": "phase", "name": "setup", "start_s": -1.7e308, "end_s": 1.7e308}],
    "a memory of almost nothing": [{"kind": "memory", "peak_bytes": 5e-324}],
}


@pytest.mark.parametrize("events", SPOILT.values(), ids=SPOILT)
def test_numbers_that_no_calculation_survives(raw: Path, events: list[dict[str, Any]]) -> None:
    tell(raw, *events)
    assert damaged(raw)


HARMLESS: dict[str, list[dict[str, Any]]] = {
    "a time too long for a number": [
        {"kind": "status", "code": "failed", "reason": "r", "evidence": {"at_unix_s": 10**400}},
        {"kind": "status", "code": "failed", "reason": "r"},
    ],
    "steps in almost no time": [
        {"kind": "stop", "reason": "max_seconds", "steps": 100, "seconds": 5e-324, "host_seconds": 1.0},
    ],
    "load in almost no time": [
        {"kind": "load", "moment": "steps", "node": "n", "at_s": 0.0, "cpus": "f", "own_s": 0.0},
        {"kind": "load", "moment": "end", "node": "n", "at_s": 5e-324, "cpus": "f", "own_s": 1e18},
    ],
    "more load than any machine has": [
        {"kind": "load", "moment": "steps", "node": "n", "at_s": 0.0, "cpus": "f", "own_s": 0.0},
        {"kind": "load", "moment": "end", "node": "n", "at_s": 0.01, "cpus": "f", "own_s": 1e18},
    ],
}


@pytest.mark.parametrize("events", HARMLESS.values(), ids=HARMLESS)
def test_numbers_beside_the_result_do_not_cost_it(raw: Path, events: list[dict[str, Any]]) -> None:
    tell(raw, *events)
    record = derive(raw)
    assert parse_json(RunRecord, record_text(record), "record") == record
    assert record.quantities["throughput"].value


def test_a_division_by_a_share_that_vanishes() -> None:
    """Ranks that hardly communicate: the share of it is 0 by rounding."""
    check = observe.CrossCheck(
        steps=32, mean_step_s=0.01, sem_step_s=0.001, input_wait_s=1e18, compute_s=1.0, exposed_comm_s=5e-324
    )
    assert checked_quantities([check, check], 0.1)["rank_wait_share"].value == 0


@pytest.mark.parametrize(
    "error", [OverflowError, ZeroDivisionError, RecursionError, MemoryError, UnicodeError, KeyError]
)
@pytest.mark.parametrize("where", ["_derive_steps", "energy_quantities", "check"])
def test_an_error_that_nothing_else_has_caught(
    raw: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception], where: str
) -> None:
    def fail(*_: Any) -> None:
        raise error("of some kind")

    monkeypatch.setattr(deriving, where, fail)
    reason = damaged(raw)
    assert error.__name__ in reason
    assert "of some kind" in reason
