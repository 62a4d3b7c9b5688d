"""The result folder: whole records or none, one a run, whoever comes first."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import make_spec
from steelyard.contracts.record import RunRecord  # noqa: TC001
from steelyard.derive.record import derive
from steelyard.errors import InputError, SteelyardError
from steelyard.results.store import RAW, RECORD_FILE, ResultFolder, read_record, record_text
from steelyard.worker.engine.run import run_directory


def make_run(folder: ResultFolder) -> tuple[Path, RunRecord]:
    folder.prepare()
    scratch = folder.open_scratch(make_spec())
    run_directory(scratch / RAW)
    return scratch, derive(scratch / RAW)


def test_a_run_appears_whole_and_once(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)
    first, record = make_run(folder)
    second, same = make_run(folder)
    assert list(folder.records()) == []
    assert folder.commit(first, record)
    assert not folder.commit(second, same)
    assert list(folder.records()) == [record]
    assert folder.has(make_spec())
    assert list((tmp_path / ".scratch").iterdir()) == [second]
    assert folder.find("run") == [tmp_path / "runs" / "adhoc" / "run"]


def test_scratch_of_the_dead_is_swept_and_of_the_living_kept(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from steelyard.contracts.spec import RunSpec;"
        "from steelyard.results.store import ResultFolder;"
        f"folder = ResultFolder(Path({str(tmp_path)!r})); folder.prepare();"
        "folder.open_scratch(RunSpec(run_id='dead', configuration='c'))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    folder = ResultFolder(tmp_path)
    dead = next((tmp_path / ".scratch").iterdir())
    assert folder.ids_being_made() == {"dead"}
    living = folder.open_scratch(make_spec())
    host, _, pid, rest = dead.name.split(".", 3)
    other_host = dead.with_name(f"other.{dead.name.partition('.')[2]}")
    other_container = dead.with_name(f"{host}.12345.{pid}.{rest}")
    other_host.mkdir()
    other_container.mkdir()
    assert folder.sweep_scratch() == 1
    assert sorted((tmp_path / ".scratch").iterdir()) == sorted([living, other_host, other_container])


def test_records_of_strangers_are_checked(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)
    scratch, record = make_run(folder)
    folder.commit(scratch, record)
    path = folder.run_path(make_spec()) / RECORD_FILE
    text = path.read_text()
    assert record_text(read_record(path)) == text
    path.write_text(text.replace('"samples/s"', "7", 1))
    with pytest.raises(InputError, match=r"quantities.throughput.unit = 7: must be text"):
        list(folder.records())
    path.write_bytes(b" " * (1 << 25))
    with pytest.raises(InputError, match="larger than"):
        list(folder.records())


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for path in (file, file / "results", Path("/proc/steelyard")):
        with pytest.raises(InputError, match="--results"):
            ResultFolder(path).prepare()


def test_a_place_that_is_taken_by_something_else(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)
    scratch, record = make_run(folder)
    (folder.run_path(make_spec()) / "notes").mkdir(parents=True)
    with pytest.raises(SteelyardError, match="has no record"):
        folder.commit(scratch, record)


def test_a_record_in_another_runs_place(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)
    scratch, record = make_run(folder)
    folder.commit(scratch, record)
    folder.run_path(make_spec()).rename(tmp_path / "runs" / "adhoc" / "other")
    with pytest.raises(InputError, match="record of another run"):
        list(folder.records())


def test_results_are_as_readable_as_the_umask_allows(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)
    old = os.umask(0o022)
    try:
        folder.commit(*make_run(folder))
    finally:
        os.umask(old)
    assert folder.run_path(make_spec()).stat().st_mode & 0o777 == 0o755


def test_a_run_directory_without_a_record_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "runs" / "adhoc" / "run" / RAW).mkdir(parents=True)
    assert list(ResultFolder(tmp_path).records()) == []
    assert not ResultFolder(tmp_path).has(make_spec())
    shutil.rmtree(tmp_path / "runs")
    assert ResultFolder(tmp_path).studies() == []
    assert os.listdir(tmp_path) == []  # noqa: PTH208
