"""Archived runs: read where they are, once, whatever process was killed or worked at the same moment."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from conftest import make_spec
from simjob import run_spec
from steelyard import nofollow, open_results, packed
from steelyard.contracts.spec import Budget
from steelyard.derive.record import derive
from steelyard.errors import LEFT_OUT, DamagedDataError, SteelyardError
from steelyard.results import fold, rows
from steelyard.results.fold import archive
from steelyard.results.store import RAW, RECORD_FILE, ResultFolder, read_record_text, record_text

if TYPE_CHECKING:
    from pathlib import Path

    from steelyard.contracts.spec import RunSpec


def specs(count: int = 3, study: str = "s") -> list[RunSpec]:
    budget = Budget(min_steps=20, max_steps=20, min_seconds=0.0)
    first = make_spec(study=study, budget=budget, crosscheck_steps=0)
    return [replace(first, run_id=f"r{n}", seed=n) for n in range(count)]


def filled(path: Path, count: int = 3) -> ResultFolder:
    folder = ResultFolder(path)
    for spec in specs(count):
        run_spec(folder, spec)
    return folder


def digest(folder: ResultFolder, spec: RunSpec) -> dict[str, str]:
    run = folder.run_path(spec)
    paths = [run / RECORD_FILE, *(run / RAW / name for name in nofollow.names(run / RAW))]
    found = {}
    for path in paths:
        with nofollow.open_file(path) as file:
            found[path.name] = hashlib.sha256(file.read()).hexdigest()
    return found


def test_an_archived_run_is_read_where_it_is(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    before = [*folder.records()]
    files = [digest(folder, spec) for spec in specs()]
    done = archive(folder)
    assert (done.runs, done.segments, done.left) == (3, 1, [])
    assert nofollow.names(tmp_path / "runs" / "s") == nofollow.names(tmp_path / ".scratch") == []
    for now in (folder, ResultFolder(tmp_path)):
        assert [*now.records()] == before
        assert now.studies() == ["s"]
        assert now.run_ids("s") == {"r0", "r1", "r2"}
        assert [digest(now, spec) for spec in specs()] == files
        (path,) = now.find("r1")
        assert record_text(derive(path / RAW)).encode() == read_record_text(path)
    assert not folder.find("r7")
    assert not folder.has(make_spec(study="s"))
    assert archive(folder).runs == 0
    (segment,) = (tmp_path / "archive").iterdir()
    with tarfile.open(segment / packed.TAR) as tar:
        assert f"s/r0/raw/{next(name for name in files[0] if name != RECORD_FILE)}" in tar.getnames()


def test_a_large_file_is_read_piece_by_piece(tmp_path: Path) -> None:
    folder = filled(tmp_path, 1)
    data = os.urandom(fold.PIECE_BYTES + 12345)
    (tmp_path / "runs" / "s" / "r0" / RAW / "work-00000.bin").write_bytes(data)
    archive(folder)
    with nofollow.open_file(folder.run_path(specs(1)[0]) / RAW / "work-00000.bin") as file:
        assert file.read() == data
        assert file.seek(-10, os.SEEK_END) == len(data) - 10
        assert file.read() == data[-10:]
    assert nofollow.stat(folder.find("r0")[0] / RAW / "work-00000.bin").st_size == len(data)


def test_a_run_in_both_places_is_one_run(tmp_path: Path) -> None:
    folder = filled(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    archive(folder)
    # A process was killed before it removed the folders.
    shutil.copytree(tmp_path / "b" / "runs", tmp_path / "a" / "runs", dirs_exist_ok=True)
    assert len([*folder.records()]) == 3
    done = archive(folder)
    assert (done.runs, done.segments) == (0, 0)
    assert not nofollow.names(tmp_path / "a" / "runs" / "s")
    # Two processes archived the same runs.
    other = ResultFolder(tmp_path / "b")
    archive(other)
    (segment,) = (tmp_path / "b" / "archive").iterdir()
    shutil.move(segment, tmp_path / "a" / "archive")
    assert [record.run_id for record in folder.records()] == ["r0", "r1", "r2"]
    assert len(folder.find("r1")) == 1


def test_a_run_that_is_set_aside_can_be_made_again(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    spec = specs()[1]
    before = digest(folder, spec)
    archive(folder)
    aside = folder.set_aside(folder.run_path(spec), "s")
    assert {path.name for path in [aside / RECORD_FILE, *(aside / RAW).iterdir()]} == set(before)
    assert not folder.has(spec)
    assert folder.run_ids("s") == {"r0", "r2"}
    run_spec(folder, spec, lambda record: record)
    archive(folder)
    assert len([*folder.records()]) == 3
    assert folder.has(spec)
    assert nofollow.names(tmp_path / ".scratch") == []


def test_a_run_that_is_set_aside_while_it_is_archived_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, spec = filled(tmp_path), specs()[1]
    publish = fold.SegmentWriter.publish

    def aside_first(writer: fold.SegmentWriter, *, raw: bool) -> str:
        folder.set_aside(folder.run_path(spec), "s")
        return publish(writer, raw=raw)

    monkeypatch.setattr(fold.SegmentWriter, "publish", aside_first)
    archive(folder)
    assert folder.run_ids("s") == {"r0", "r2"}
    assert not folder.has(spec)


def test_another_launcher_does_not_add_a_run_that_is_archived(tmp_path: Path) -> None:
    folder = filled(tmp_path, 1)
    archive(folder)
    run_spec(folder, specs(1)[0])
    assert not nofollow.names(tmp_path / "runs" / "s")


def test_raw_files_are_dropped_when_they_are_old(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    before = [*folder.records()]
    old = time.time() - 10 * 86400
    os.utime(tmp_path / "runs" / "s" / "r1" / RECORD_FILE, (old, old))
    archive(folder, drop_raw_s=9 * 86400)
    assert {len(nofollow.names(folder.find(f"r{n}")[0] / RAW)) > 0 for n in (0, 2)} == {True}
    assert nofollow.names(folder.find("r1")[0] / RAW) == []
    # Segments that are old enough are written anew without them.
    done = archive(folder, drop_raw_s=0)
    assert done.merged == 1
    assert [*folder.records()] == before
    assert all(nofollow.names(folder.find(f"r{n}")[0] / RAW) == [] for n in range(3))
    assert archive(folder, drop_raw_s=0).merged == 0


def test_small_segments_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "SMALL_SEGMENTS", 3)
    folder = ResultFolder(tmp_path)
    for spec in specs(3):
        run_spec(folder, spec)
        done = archive(folder)
    assert done.merged == 3
    assert len(nofollow.names(tmp_path / "archive")) == 1
    assert [digest(folder, spec) != {} for spec in specs(3)] == [True] * 3
    assert len([*folder.records()]) == 3


def test_only_old_and_collected_runs_of_our_own_making_are_archived(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    assert archive(folder, older_than_s=3600).runs == 0
    assert archive(folder, busy={"s"}).waiting == {"s": "not all of its runs are collected"}
    runs = tmp_path / "runs" / "s"
    (runs / "r0" / RAW / "link").symlink_to("/etc/passwd")
    (runs / "r1" / "more").mkdir()
    (runs / "r2" / RECORD_FILE).write_bytes(b'{"run_id": NaN}')
    done = archive(folder)
    assert (done.runs, len(done.left)) == (0, 3)
    assert sorted(nofollow.names(runs)) == ["r0", "r1", "r2"]


def test_tables_are_not_written_through_a_link(tmp_path: Path) -> None:
    folder, segment, other = filled(tmp_path / "r", 1), tmp_path / "segment", tmp_path / "other"
    line = rows.line_of(read_record_text(folder.run_path(specs(1)[0])), "s", "r0")
    segment.mkdir()
    (segment / rows.LINES).write_bytes(line)
    other.write_text("mine")
    # Where the first exists, DuckDB writes to the second.
    for name in ("runs.parquet", "tmp_runs.parquet"):
        (segment / name).symlink_to(other)
    with suppress(FileExistsError):
        rows.write_tables(segment, len(line))
    assert other.read_text() == "mine"


@pytest.mark.parametrize("name", ["..", "raw/..", "raw/../x", "raw//x", "raw/a\0b"])
def test_a_member_with_a_name_that_no_file_has_is_damage(tmp_path: Path, name: str) -> None:
    folder = filled(tmp_path, 1)
    archive(folder)
    (segment,) = (tmp_path / "archive").iterdir()
    run, offset, size = (segment / packed.INDEX).read_text().split()
    more = packed.make_header(run, name, 3, 0) + b"abc" + packed.padding(3)
    whole = (segment / packed.TAR).read_bytes()[: int(offset) + int(size)]
    (segment / packed.TAR).write_bytes(whole + more)
    (segment / packed.INDEX).write_text(f"{run} {offset} {int(size) + len(more)}\n")
    packed.index_of.cache_clear()
    other = ResultFolder(tmp_path)
    with pytest.raises(DamagedDataError):
        other.set_aside(other.run_path(specs(1)[0]), "s")


def test_an_archive_with_links_or_damage_is_refused(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    archive(folder)
    (segment,) = (tmp_path / "archive").iterdir()
    whole = (segment / packed.TAR).read_bytes()
    for damaged in (whole[:600], b"x" * len(whole), whole.replace(b"0000644", b"0000645")):
        (segment / packed.TAR).write_bytes(damaged)
        with pytest.raises(SteelyardError):
            folder.read(folder.find("r1")[0])
    (segment / packed.TAR).unlink()
    (segment / packed.TAR).symlink_to("/etc/passwd")
    with pytest.raises(nofollow.LinkError):
        folder.read(folder.find("r1")[0])
    with pytest.raises(DamagedDataError):
        packed.place_of([b"s/r0 12 x"], "s/r0")
    shutil.rmtree(tmp_path / "archive")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "archive").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(nofollow.LinkError):
        ResultFolder(tmp_path).studies()


@pytest.mark.parametrize(
    "line",
    [b"../x 0 512", b"zz/../../x 0 512", b"zz//etc/passwd 0 512", b"z\0/x 0 512", b"/ 0 0", b"s/r0", b"zz/x 0 1e9"],
)
def test_a_line_of_an_index_that_leads_out_of_the_folder_is_left_out_and_named(tmp_path: Path, line: bytes) -> None:
    folder = filled(tmp_path)
    archive(folder)
    (segment,) = (tmp_path / "archive").iterdir()
    with (segment / packed.INDEX).open("ab") as file:
        file.write(line + b"\n")
    packed.index_of.cache_clear()
    left_out: dict[str, None] = {}
    token = LEFT_OUT.set(left_out)
    try:
        folder = ResultFolder(tmp_path)
        assert folder.studies() == ["s"]
        assert [record.run_id for record in folder.records()] == ["r0", "r1", "r2"]
    finally:
        LEFT_OUT.reset(token)
    assert [*left_out] == [f"{segment / packed.INDEX}: 1 of 4 lines are not the place of a run"]


def test_a_huge_index_takes_little_memory_and_leaves_the_other_runs_readable(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    other = tmp_path / "archive" / "20260101T000000-00000000"
    other.mkdir(parents=True)
    (other / packed.INDEX).write_bytes(b"ab\n" * (packed.MAX_INDEX_BYTES // 3 + 1))
    left_out: dict[str, None] = {}
    token = LEFT_OUT.set(left_out)
    try:
        assert len([*folder.records()]) == 3
    finally:
        LEFT_OUT.reset(token)
    assert packed.MAX_INDEX_BYTES <= 1 << 22
    assert "the limit for an index" in "".join(left_out)


def test_a_damaged_table_with_text_that_is_not_utf_8(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    folder = filled(tmp_path)
    archive(folder)
    (table,) = (tmp_path / "archive").glob("*/settings.parquet")
    table.write_bytes(table.read_bytes().replace(b"study", b"\xfftudy"))
    with pytest.raises(SteelyardError, match=r"settings\.parquet|study"), open_results(tmp_path) as opened:
        opened.query("select count(*) from settings").fetchall()
