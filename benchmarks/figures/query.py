"""[query] One million records: a query takes at most 1.2 times as long as bare DuckDB on the same files.

Real records are archived, and DuckDB multiplies the tables of that segment into 250 segments of 4,000 runs each, with
their own ids, nodes, batches and throughputs. A query that filters and groups is asked in turn by `open_results` and by
bare DuckDB on a list of the same Parquet files, in one process; the ratio is the median of the turns. The first answer
of `steelyard query` is a whole command, from start to end, in turn with a Python program that imports DuckDB and asks
the same of the same files. The peak of its memory is that of the largest process. The quick form has 40,000 records and
its times only say whether this machine is fast enough to decide.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import duckdb

import steelyard
from figure import arguments, at_most, finish, of_time
from steelyard.results.fold import archive
from steelyard.results.rows import COLUMNS
from steelyard.results.store import ResultFolder
from whole_runs import WholeRuns

MOST_TIMES, MOST_SECONDS, MOST_MB = 1.2, 0.7, 1000.0
SEGMENT_RUNS, REAL = 4000, 20
SQL = """SELECT node, batch, count(*) AS runs, median(throughput) AS rate, max(wall_s) AS longest
FROM runs WHERE status = 'completed' AND batch >= 64 GROUP BY node, batch ORDER BY rate"""
BARE = """
import sys, duckdb
connection = duckdb.connect()
print(connection.execute(sys.argv[1].replace("FROM runs", f"FROM read_parquet({sys.argv[2:]})")).fetchall()[:3])
"""


def multiply(segment: Path, home: Path, count: int) -> list[str]:
    """Make segments of 4,000 runs each from the tables of one; return the files of the table `runs`."""
    times, made = SEGMENT_RUNS // REAL, []
    connection = duckdb.connect(config={"threads": "2"})
    for table in COLUMNS:
        connection.execute(f"CREATE TABLE {table} AS FROM '{segment / table}.parquet'")
    for number in range(count):
        place = home / f"20260101T{number // 3600:02d}{number // 60 % 60:02d}{number % 60:02d}-{number:08x}"
        place.mkdir()
        for table in COLUMNS:
            changed = "run_id || '-' || n AS run_id"
            if table == "runs":
                changed += (
                    f", (hash(run_id || n || '-{number}') // 2)::UBIGINT AS key, 'node' || (n * 7 % 97) AS node"
                    ", (8 << (n % 8))::BIGINT AS batch, throughput * (1 + (n * 31 % 100) / 1000) AS throughput"
                )
            rows = (
                f"SELECT * REPLACE ({changed}) FROM {table}, (SELECT range + {number * times} AS n FROM range({times}))"
            )
            listed = f"SELECT * EXCLUDE (n) FROM ({rows})"
            connection.execute(f"COPY ({listed}) TO '{place / table}.parquet' (FORMAT parquet, COMPRESSION zstd)")
        made.append(str(place / "runs.parquet"))
    return made


def time_queries(results: Path, files: list[str], times: int) -> tuple[list[float], bool]:
    """Return the time of each query over that of bare DuckDB, in turn, and whether the answers are the same."""
    bare, ratios, same = duckdb.connect(), [], True
    bare_sql = SQL.replace("FROM runs", f"FROM read_parquet({files})")
    with steelyard.open_results(results) as opened:
        for _ in range(times):
            begin_s = time.perf_counter()
            ours = opened.execute(SQL).fetchall()
            middle_s = time.perf_counter()
            theirs = bare.execute(bare_sql).fetchall()
            ratios.append((middle_s - begin_s) / (time.perf_counter() - middle_s))
            same = same and sorted(ours) == sorted(theirs)
    return ratios, same


def time_first(results: Path, files: list[str], times: int) -> tuple[float, float]:
    """Return how much longer the command takes than a program with bare DuckDB, and the peak of its memory in MB."""
    ours = [sys.executable, "-m", "steelyard.cli.main", "query", SQL, "--format", "csv", "--results", str(results)]
    theirs = [sys.executable, "-c", BARE, SQL, *files]
    more = []
    for _ in range(times):
        spent = []
        for words in (theirs, ours):
            begin_s = time.perf_counter()
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            spent.append(time.perf_counter() - begin_s)
        more.append(spent[1] - spent[0])
    # Of this command and its child alone: the peak of children is that of the largest.
    program = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    peak = subprocess.run([sys.executable, "-c", program, *ours], check=True, capture_output=True, text=True).stdout
    return median(more), int(peak) * 1024 / 1e6


def main() -> None:
    options = arguments(__doc__)
    segments, times, firsts = (10, 3, 1) if options.quick else (250, 25, 11)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 16_384)), hard))
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as name:
        home = Path(name).resolve()
        maker = WholeRuns(home / "real", home / "original")
        maker.make("real", range(REAL))
        archive(ResultFolder(home / "real"))
        (segment,) = (home / "real" / "archive").iterdir()
        (home / "results" / "archive").mkdir(parents=True)
        files = multiply(segment, home / "results" / "archive", segments)
        ratios, same = time_queries(home / "results", files, times)
        seconds, peak_mb = time_first(home / "results", files, firsts)
    records = segments * SEGMENT_RUNS

    print(f"{records:,} records; ratios {', '.join(f'{ratio:.2f}' for ratio in ratios)}")
    finish(
        [
            of_time(at_most("query: time over bare DuckDB", median(ratios), "times", MOST_TIMES)),
            of_time(at_most("query: first answer, above bare DuckDB", seconds, "s", MOST_SECONDS)),
            at_most("query: memory", peak_mb, "MB", MOST_MB),
            at_most("query: answers that differ", int(not same), "answers", 0),
        ]
    )


if __name__ == "__main__":
    main()
