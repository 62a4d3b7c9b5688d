"""Queries over archived runs and others together, and what a query cannot do."""

from __future__ import annotations

import csv
import io
import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import duckdb
import pytest

import steelyard
from conftest import make_spec
from simjob import run_spec
from steelyard.cli.exit_codes import FAILED
from steelyard.cli.main import main
from steelyard.contracts.spec import Budget
from steelyard.errors import InputError, SteelyardError
from steelyard.inputs import validate
from steelyard.results import query
from steelyard.results.ask import ask, read_table
from steelyard.results.fold import archive
from steelyard.results.questions import QUESTIONS
from steelyard.results.store import ResultFolder

if TYPE_CHECKING:
    from pathlib import Path

    from steelyard.contracts.spec import RunSpec

COUNTS = "select count(*), count(distinct run_id) from runs"


def spec(number: int) -> RunSpec:
    budget = Budget(min_steps=20, max_steps=20, min_seconds=0.0)
    made = make_spec(study="s", budget=budget, crosscheck_steps=0, seed=number)
    return replace(made, run_id=f"r{number}", batch=8 << number % 3)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five archived runs in two segments, and two that are not archived."""
    folder = ResultFolder(tmp_path_factory.mktemp("results"))
    for numbers in (range(3), range(3, 5), range(5, 7)):
        for number in numbers:
            run_spec(folder, spec(number))
        if 5 not in numbers:
            archive(folder)
    return folder.root


def rows(results: Path, sql: str, **limits: float) -> list[list[object]]:
    answer = ask(results, sql, "table", seconds=limits.get("seconds", 60.0), memory_mb=int(limits.get("memory", 300)))
    found: list[list[object]] = read_table(answer)["rows"]
    return found


def test_archived_runs_and_others_are_one_table(results: Path) -> None:
    folder = ResultFolder(results)
    records = {record.run_id: record for record in folder.records()}
    found = rows(results, "select run_id, batch, throughput, throughput_low, warnings from runs order by run_id")
    assert [row[0] for row in found] == sorted(records)
    for run_id, batch, throughput, low, warnings in found:
        record = records[str(run_id)]
        rate = record.quantities["throughput"]
        assert rate.interval is not None
        assert (batch, throughput, low) == (record.spec.batch, rate.value, rate.interval.low)
        assert warnings == sum(finding.severity == "warning" for finding in record.findings)
    (count,) = rows(results, "select count(*) from quantities")
    assert count == [sum(len(record.quantities) for record in records.values())]
    assert rows(results, "select number from settings where name = 'batch' and run_id = 'r1'") == [[16.0]]
    assert rows(results, "select value from settings where name = 'loader.place' and run_id = 'r6'") == [["device"]]
    (text,) = rows(results, "select record from runs where run_id = 'r0'")
    assert json.loads(str(text[0]))["run_id"] == "r0"


def test_a_run_counts_once_wherever_it_is(results: Path, tmp_path: Path) -> None:
    copy = tmp_path / "results"
    shutil.copytree(results, copy)
    folder = ResultFolder(copy)
    # One run in two segments, and one in a folder and a segment.
    first, second = sorted((copy / "archive").iterdir())
    shutil.copytree(first, second.with_name(f"{second.name[:-8]}ffffffff"))
    (copy / "runs" / "s" / "r3").mkdir()
    (copy / "runs" / "s" / "r3" / "record.json").write_bytes(
        (copy / "runs/s/r5/record.json").read_bytes().replace(b'"r5"', b'"r3"')
    )
    folder.set_aside(folder.run_path(spec(4)), "s")
    assert rows(copy, COUNTS) == [[6, 6]]
    assert rows(copy, "select count(distinct run_id), count(*) from quantities where name = 'throughput'") == [[6, 6]]
    assert rows(copy, "select seed from (select record->>'$.spec.seed' as seed from runs where run_id = 'r3')") == [
        ["5"]
    ]


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_named_question_has_an_answer(results: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", name, "--json", "--results", str(results)]) == 0


def test_what_json_does_not_have_is_null(results: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    query = "select 'inf'::double as a, ['nan'::double, 1.5] as b, 7 as c"
    assert main(["query", query, "--json", "--results", str(results)]) == 0
    answer = json.loads(capfdbinary.readouterr().out, parse_constant=pytest.fail)
    assert answer == {"shape": "query/1", "rows": [{"a": None, "b": [None, 1.5], "c": 7}]}


def test_answers_are_tables_csv_json_and_parquet(
    results: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    words = ["query", "select run_id, '=1+1' as text from runs order by run_id", "--results", str(results)]
    assert main(words) == main([*words, "--format", "csv"]) == main([*words, "--json"]) == 0
    table, _, rest = capfdbinary.readouterr().out.partition(b"run_id,text\n")
    assert b"r6" in table
    text, _, document = rest.partition(b"{")
    assert next(csv.reader(io.StringIO(text.decode()))) == ["r0", "'=1+1"]
    answer = json.loads(b"{" + document)
    assert answer["shape"] == "query/1"
    assert answer["rows"][6] == {"run_id": "r6", "text": "=1+1"}
    output = tmp_path / "runs.parquet"
    assert main([*words, "--format", "parquet", "-o", str(output)]) == 0
    assert duckdb.execute(f"select count(*) from '{output}'").fetchall() == [(7,)]
    assert main([*words, "--format", "parquet"]) == main(["query", "slow-node"]) == main(["query"]) == 2
    assert b"slow-nodes" in capfdbinary.readouterr().err


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_text('/etc/passwd')", "from '/etc/passwd'", "from glob('/*')", "copy runs to '/tmp/x.csv'",
        "set memory_limit = '9GB'", "install httpfs", "load httpfs", "attach '/tmp/x.db'", "select 1; select 2", "",
        "drop view runs", "create table x as select 1", "from read_csv('http://localhost/x')", "select getenv('HOME')",
        "from rows", "pragma database_list", "from read_parquet('/proc/self/fd/0')", "select", "explain select 1",
    ],
)  # fmt: skip
def test_a_query_reads_nothing_else_and_changes_nothing(results: Path, sql: str) -> None:
    with pytest.raises(InputError):
        rows(results, sql)


def test_a_query_ends_at_its_limits(results: Path) -> None:
    with pytest.raises(SteelyardError, match="longer than 1 s"):
        rows(results, "select count(*) from range(100000000000) where range % 7 = hash(range) % 5", seconds=1)
    with pytest.raises(SteelyardError):
        rows(results, "select length(repeat('x', 4000000000))")
    with pytest.raises(SteelyardError, match="emory"):
        rows(results, "select list(range) from range(200000000)")


def test_a_run_that_cannot_be_read_is_named_and_hinders_no_other(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "results"
    shutil.copytree(results, copy)
    home = copy / "runs" / "s"
    (home / "r5" / "record.json").write_text('{"run_id": ')
    (home / "r6" / "record.json").rename(tmp_path / "elsewhere.json")
    (home / "r6" / "record.json").symlink_to(tmp_path / "elsewhere.json")
    assert main(["query", "select count(*) as n from runs", "--format", "csv", "--results", str(copy)]) == FAILED
    printed = capsys.readouterr().err
    assert "2 runs were left out" in printed
    assert "s/r5 is damaged" in printed
    assert "r6/record.json is a link" in printed
    with steelyard.open_results(copy) as opened:
        assert opened.query("select count(*) from runs").fetchall() == [(5,)]
        assert len(opened.left_out) == 2


def test_a_link_in_the_archive_is_refused(results: Path, tmp_path: Path) -> None:
    copy = tmp_path / "results"
    shutil.copytree(results, copy)
    table = next((copy / "archive").iterdir()) / "runs.parquet"
    shutil.move(table, tmp_path / "elsewhere")
    table.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SteelyardError, match="is a link"):
        rows(copy, COUNTS)


def test_python_gets_the_same_as_relations(results: Path) -> None:
    with steelyard.open_results(results) as opened:
        assert opened.query(COUNTS).fetchall() == [(7, 7)]
        assert len(opened.runs.fetchall()) == 7
        with pytest.raises(InputError, match="one SELECT"):
            opened.query("create table x as select 1")
        assert len(opened.findings.columns) == 7
    assert query.MAX_RECORD_BYTES == validate.MAX_RECORD_BYTES
