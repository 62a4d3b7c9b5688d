"""[query_safe] Hostile queries: none reads or writes anything but the results, and all end within their limits.

The queries try files, folders, handles, the network, extensions, settings, copies, attached databases, Python
variables, several statements, and bombs of memory and time. Half of them are not ours: every function of DuckDB's own
catalogue that takes a text is called with the path of a secret file, a URL, or a path to write to. A secret that
appears in an answer or an error, a file that appears or changes anywhere in the sandbox, a connection to a local port,
and a query that is not over two seconds after its time limit (or takes more memory than it may) are faults.
"""

from __future__ import annotations

import itertools
import os
import random
import resource
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figure import arguments, at_least, at_most, finish, slowness
from steelyard.errors import SteelyardError
from steelyard.results.ask import MORE_BYTES, ask
from steelyard.results.fold import archive
from steelyard.results.store import ResultFolder
from whole_runs import WholeRuns

SECRET = "steelyard-secret-7f3a"
LIMIT_S, MEMORY_MB = 5.0, 200
CATALOGUE = """
import duckdb
rows = duckdb.connect().execute(
    "SELECT DISTINCT function_name, function_type FROM duckdb_functions() "
    "WHERE function_type IN ('table', 'table_macro', 'scalar', 'macro') AND function_name SIMILAR TO '[a-z_0-9]+'"
    "AND (list_contains(parameter_types, 'VARCHAR') OR function_type LIKE 'table%') ORDER BY ALL"
).fetchall()
print("\\n".join(f"{name} {kind}" for name, kind in rows))
"""
STATEMENTS = (
    "COPY runs TO '{new}'", "COPY (SELECT 1) TO '{new}' (FORMAT parquet)", "EXPORT DATABASE '{new}'", "INSTALL httpfs",
    "LOAD httpfs", "LOAD '{secret}'", "INSTALL '{secret}'", "FORCE INSTALL spatial FROM community", "ATTACH '{new}'",
    "ATTACH '{secret}' (READ_ONLY)", "SET enable_external_access = true", "SET lock_configuration = false",
    "SET allowed_paths = ['{secret}']", "SET temp_directory = '{new}'", "SET memory_limit = '20GB'",
    "RESET memory_limit", "SET python_enable_replacements = true", "SET home_directory = '{new}'",
    "SET log_query_path = '{new}'", "PRAGMA enable_profiling = 'json'", "PRAGMA profiling_output = '{new}'",
    "SELECT 1; COPY runs TO '{new}'", "CREATE TABLE x AS FROM '{secret}'", "CREATE SECRET (TYPE s3)", "CHECKPOINT",
    "DROP VIEW runs", "DELETE FROM runs", "INSERT INTO hidden_runs VALUES (1, 2, 3)", "UPDATE runs SET study = ''",
    "CREATE OR REPLACE VIEW runs AS SELECT 1", "IMPORT DATABASE '{folder}'", "CALL pragma_version()", "VACUUM", "BEGIN",
    "PREPARE x AS SELECT 1", "EXECUTE x", "USE memory", "DETACH memory", "CREATE MACRO f() AS TABLE FROM '{secret}'",
    "EXPLAIN ANALYZE COPY runs TO '{new}'", "SELECT 1) TO '{new}' (FORMAT csv); --",
)  # fmt: skip
READS = (
    "FROM '{path}'", "FROM read_text('{path}')", "FROM read_blob('{path}')", "FROM read_csv('{path}')",
    "FROM read_csv('{path}', header = false, columns = {{'a': 'VARCHAR'}})", "FROM read_json('{path}')",
    "FROM read_json_objects('{path}')", "FROM read_parquet('{path}')", "FROM parquet_metadata('{path}')",
    "FROM parquet_schema('{path}')", "FROM sniff_csv('{path}')", "FROM glob('{path}*')", "SELECT * FROM runs, '{path}'",
    "FROM query('FROM read_text(''{path}'')')", "FROM query_table('{path}')",
    "WITH x AS (FROM read_text('{path}')) FROM x", "SELECT (SELECT content FROM read_text('{path}'))",
    "SELECT study FROM runs WHERE study IN (SELECT content FROM read_text('{path}'))",
)  # fmt: skip
BOMBS = (
    "SELECT count(*) FROM range(1000000000000) WHERE range % 3 = hash(range) % 5",
    "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range < b.range",
    "SELECT length(repeat('x', 4000000000))", "SELECT list(range) FROM range(1000000000)",
    "SELECT string_agg(repeat('x', 1000), '') FROM range(10000000)", "SELECT range(2000000000)",
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t",
    "WITH RECURSIVE t(n) AS (SELECT 'x' UNION ALL SELECT n || n FROM t) SELECT count(*) FROM t",
    "SELECT * FROM range(1000000000) ORDER BY hash(range)", "SELECT DISTINCT hash(range) FROM range(1000000000)",
    "SELECT regexp_matches(repeat('a', 100000), '(a*)*b')", "FROM generate_series(1, 100000000000)",
    "SELECT lpad('x', 2000000000, 'y')", "SELECT bitstring('1', 2000000000)", "SELECT printf('%2000000000d', 1)",
    "SELECT 1 FROM range(100000000) GROUP BY range", "SELECT " + "(" * 5000 + "1" + ")" * 5000,
    "SELECT " + "+".join(["1"] * 50_000), "SELECT " + "-" * 20_001 + "1", "SELECT '" + "x" * 1_000_000 + "'",
)  # fmt: skip


def hostile(home: Path, port: int) -> list[str]:
    """Return queries that try what they must not do."""
    secret, new = home / "secret.txt", home / "new"
    paths = [
        str(secret), f"file://{secret}", "/proc/self/environ", "/proc/self/fd/0", "/proc/self/fd/3", "/proc/self/fd/5",
        "/etc/passwd", f"{home}/results/../secret.txt", f"http://127.0.0.1:{port}/x.parquet",
        f"https://127.0.0.1:{port}/x.csv", f"s3://127.0.0.1:{port}/bucket/x",
        f"{home}/results/archive/../../secret.txt",
    ]  # fmt: skip
    queries = [text.format(new=new, secret=secret, folder=home) for text in STATEMENTS]
    queries += [text.format(path=path) for text, path in itertools.product(READS, paths)]
    queries += BOMBS
    listed = subprocess.run([sys.executable, "-c", CATALOGUE], check=True, capture_output=True, text=True).stdout
    for line in listed.splitlines():
        name, kind = line.split()
        start = "FROM" if kind.startswith("table") else "SELECT"
        queries += [f"{start} {name}('{secret}')", f"{start} {name}('http://127.0.0.1:{port}/x', '{new}')"]
    return queries


def snapshot(home: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for folder, _, files in os.walk(home):
        for name in files:
            state = (Path(folder) / name).lstat()
            found[f"{folder}/{name}"] = (state.st_size, state.st_mtime_ns)
    return found


def main() -> None:
    options = arguments(__doc__)
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as server:
        home = Path(name).resolve()
        server.setblocking(False)
        maker = WholeRuns(home / "results", home / "original")
        maker.make("s", range(20))
        archive(ResultFolder(home / "results"))
        maker.make("s", range(20, 24))
        (home / "secret.txt").write_text(SECRET, encoding="utf-8")
        os.environ["STEELYARD_SECRET"] = SECRET
        os.chdir(home)
        queries = hostile(home, server.getsockname()[1])
        random.Random(500).shuffle(queries)
        queries = [*queries[:8], *BOMBS[2:4]] if options.quick else queries
        before = snapshot(home)
        told = late = 0
        longest_s = 0.0
        for sql in queries:
            begin_s = time.monotonic()
            try:
                with os.fdopen(ask(home / "results", sql, "csv", seconds=LIMIT_S, memory_mb=MEMORY_MB), "rb") as file:
                    said = file.read(1 << 26)
            except SteelyardError as error:
                said = str(error).encode()
            spent_s = time.monotonic() - begin_s
            longest_s = max(longest_s, spent_s)
            late += spent_s > LIMIT_S + 2 * slowness()
            if SECRET.encode() in said or b"root:x:" in said:
                told += 1
                print(f"told: {sql[:200]}")
        after = snapshot(home)
        changed = len(before.items() ^ after.items())
        try:
            server.accept()
            calls = 1
        except BlockingIOError:
            calls = 0
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6
    print(f"{len(queries)} queries; the longest took {longest_s:.1f} s; the largest process had {peak_mb:.0f} MB")
    finish(
        [
            at_least("query_safe: hostile queries", len(queries), "queries", 10 if options.quick else 500),
            at_most("query_safe: secrets told", told, "queries", 0),
            at_most("query_safe: files made or changed", changed, "files", 0),
            at_most("query_safe: connections", calls, "connections", 0),
            at_most("query_safe: queries that did not end in time", late, "queries", 0),
            at_most("query_safe: memory", peak_mb, "MB", MEMORY_MB + MORE_BYTES / 1e6),
        ]
    )


if __name__ == "__main__":
    main()
