"""Questions in SQL over all runs of a results folder, archived or not, by DuckDB.

Nothing but these runs can be read, and nothing written. DuckDB may open exactly the tables of the archive, each by a
handle that was opened without following a link; it has no network, no extensions, no other files, no Python variables,
and its settings are locked. What is asked must be one SELECT.
"""

from __future__ import annotations

import os
import resource
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from steelyard import nofollow
from steelyard.errors import InputError, SteelyardError
from steelyard.results import rows
from steelyard.results.segments import RECORD_FILE, Segments

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MAX_RECORD_BYTES = 1 << 24
"""As inputs/validate.py, which takes long to import; a test compares them."""
TRIES = 10
LOCKED = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "python_scan_all_frames": "false",
    "temp_directory": "''",
    "enable_external_access": "false",
    "lock_configuration": "true",
}


class Results:
    """The runs of a results folder as tables: `runs`, `quantities`, `settings` and `findings`.

    Relations of DuckDB have `df()` for pandas, `to_arrow_table()` for Arrow, `fetchall()` and more.
    """

    def __init__(self, path: Path, *, memory_mb: int | None = None, output: str = "") -> None:
        """`output`: the one file that may be written, by a method of a relation."""
        self.left_out: list[str] = []
        """What is wrong with each run that is not in the tables, because its record cannot be read."""
        self._root = path.resolve()
        self._handles: list[int] = []
        self._names: dict[str, str] = {}
        duckdb = rows.import_duckdb()
        # DuckDB's Python package cannot decode a message that quotes a damaged table.
        self.error: tuple[type[Exception], ...] = (duckdb.Error, UnicodeDecodeError)
        self._connection = duckdb.connect(":memory:")
        try:
            if memory_mb is not None:
                self._connection.execute(f"SET memory_limit = '{int(memory_mb)}MB'")
            # First the folders, then the archive: a run is archived before its folder is removed.
            fresh = self._load_fresh()
            self._make_views(fresh=fresh)
            allowed = ", ".join(f"'{name}'" for name in (*self._names, output) if name)
            self._connection.execute(f"SET allowed_paths = [{allowed}]")
            for name, value in LOCKED.items():
                self._connection.execute(f"SET {name} = {value}")
        except self.error as error:
            self.close()
            raise SteelyardError(self.plain(error)) from None
        except BaseException:
            self.close()
            raise

    def query(self, sql: str) -> Any:
        """Return what one SELECT gives, as a relation of DuckDB."""
        return self._ask(sql, self._connection.query)

    def execute(self, sql: str) -> Any:
        """Ask one SELECT; return the connection, whose rows are fetched as usual in Python."""
        return self._ask(sql, self._connection.execute)

    def write_parquet(self, sql: str, path: str) -> None:
        """Write what one SELECT gives to the file that may be written."""
        self.query(sql).create_view("answer", replace=True)
        try:
            self._connection.execute(f"COPY answer TO '{path}' (FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false)")
        except self.error as error:
            raise InputError(self.plain(error)) from None

    def _ask(self, sql: str, ask: Callable[[str], Any]) -> Any:
        try:
            statements = self._connection.extract_statements(sql)
            if len(statements) != 1 or statements[0].type.name != "SELECT":
                raise InputError("a query is one SELECT statement", next_step="steelyard query --list")
            return ask(statements[0].query)
        except self.error as error:
            raise InputError(self.plain(error)) from None

    def __getattr__(self, name: str) -> Any:
        if name in rows.COLUMNS:
            return self._connection.table(name)
        raise AttributeError(name)

    def close(self) -> None:
        """Close DuckDB and all files."""
        self._connection.close()
        while self._handles:
            os.close(self._handles.pop())

    def __enter__(self) -> Results:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def plain(self, error: Exception) -> str:
        """Return the message of an error, with the names of files instead of their handles."""
        said = error.object.decode(errors="replace") if isinstance(error, UnicodeDecodeError) else str(error)
        # What follows a blank line points into the text of the query.
        text = " ".join(said.partition("\n\n")[0].split())
        for handle, name in self._names.items():
            text = text.replace(handle, name) if handle in text else text
        return text

    # -- the tables

    def _open(self, path: Path) -> str:
        """Open a file; return the name by which DuckDB may open it."""
        with nofollow.open_file(path) as file:
            handle = os.dup(file.fileno())
        self._handles.append(handle)
        self._names[f"/proc/self/fd/{handle}"] = str(path)
        return f"/proc/self/fd/{handle}"

    def _load_fresh(self) -> bool:
        """Read the records of runs that are not archived."""
        longest = 0
        with tempfile.TemporaryFile() as lines:
            for study in nofollow.names(self._root / "runs"):
                home = self._root / "runs" / study
                if not nofollow.is_folder(home):
                    continue
                with nofollow.held(home):
                    for run in nofollow.names(home):
                        try:
                            # It was archived meanwhile, or it is no run.
                            with suppress(FileNotFoundError, NotADirectoryError):
                                with nofollow.open_file(home / run / RECORD_FILE) as file:
                                    text = file.read(MAX_RECORD_BYTES)
                                line = rows.line_of(text, study, run)
                                longest = max(longest, lines.write(line))
                        except SteelyardError as error:
                            self.left_out.append(str(error))
                        except OSError as error:
                            self.left_out.append(f"{home / run / RECORD_FILE}: {error.strerror or error}")
            lines.flush()
            if longest:
                rows.load(self._connection, f"/proc/self/fd/{lines.fileno()}", longest)
        return longest > 0

    def _make_views(self, *, fresh: bool) -> None:
        files = self._open_tables()
        runs = files["runs"]
        hidden = self._find_hidden(runs, fresh=fresh) if runs else []
        for table, columns in rows.COLUMNS.items():
            listed = ", ".join(columns)
            parts = [f"SELECT {listed} FROM new_{table}"] if fresh or not runs else []  # noqa: S608 -- our names
            if runs:
                paths = ", ".join(f"'{path}'" for path in files[table])
                source = f"SELECT {listed} FROM read_parquet([{paths}])"  # noqa: S608
                if hidden:
                    self._connection.execute(
                        f"CREATE TABLE hidden_{table} (file VARCHAR, study VARCHAR, run_id VARCHAR)"
                    )
                    of = dict(zip(runs, files[table], strict=True))
                    values = [(of[file], study, run) for file, study, run in hidden]
                    self._connection.executemany(f"INSERT INTO hidden_{table} VALUES (?, ?, ?)", values)  # noqa: S608
                    same = "(h.file, h.study, h.run_id) = (t.file, t.study, t.run_id)"
                    source = (
                        f"SELECT {listed} FROM read_parquet([{paths}], filename = 'file') AS t "  # noqa: S608
                        f"WHERE NOT EXISTS (SELECT 1 FROM hidden_{table} AS h WHERE {same})"
                    )
                parts.append(source)
            self._connection.execute(f"CREATE VIEW {table} AS {' UNION ALL '.join(parts)}")

    def _open_tables(self) -> dict[str, list[str]]:
        """Open the tables of all segments, oldest first."""
        segments = Segments(self._root)
        for _ in range(TRIES):
            files: dict[str, list[str]] = {table: [] for table in rows.COLUMNS}
            # A segment may be replaced between two looks; then the new one is there.
            with suppress(FileNotFoundError):
                names = segments.names()
                _allow_files(len(rows.COLUMNS) * 2 * len(names) + 64)
                for name in names:
                    with nofollow.held(segments.path / name):
                        for table, paths in files.items():
                            paths.append(self._open(segments.path / name / f"{table}.parquet"))
                self._void = {(n, study, run) for n, study, run in segments.void_copies()}
                self._segments = dict(zip(files["runs"], names, strict=True))
                return files
        raise SteelyardError(f"the archive in {self._root} changes all the time, or a segment is incomplete")

    def _find_hidden(self, runs: list[str], *, fresh: bool) -> list[tuple[str, str, str]]:
        """Return file, study and run id of the rows that do not count: the run is also elsewhere, or was set aside."""
        if not self._void and not fresh and len(runs) < 2:
            return []
        paths = ", ".join(f"'{path}'" for path in runs)
        keys = f"SELECT {rows.KEY} FROM read_parquet([{paths}])"  # noqa: S608
        keys += f" UNION ALL SELECT {rows.KEY} FROM new_runs" if fresh else ""  # noqa: S608
        twice = self._connection.execute(
            f"SELECT {rows.KEY} FROM ({keys}) GROUP BY ALL HAVING count(*) > 1"  # noqa: S608
        ).fetchall()
        hidden = [
            (file, study, run) for file, name in self._segments.items() for n, study, run in self._void if n == name
        ]
        if twice:
            found = self._connection.execute(
                f"SELECT file, study, run_id FROM read_parquet([{paths}], filename = 'file') "  # noqa: S608
                f"WHERE {rows.KEY} IN (SELECT unnest(?))",
                [[key for (key,) in twice]],
            ).fetchall()
            new_runs = (
                set(self._connection.execute("SELECT study, run_id FROM new_runs").fetchall()) if fresh else set()
            )
            counted = dict[tuple[str, str], str]()
            void = {(file, study, run) for file, study, run in hidden}
            for file, study, run in sorted(found, key=lambda row: self._segments[row[0]]):
                # The copy in the last segment counts, unless the run still has its folder.
                if (file, study, run) not in void:
                    if (study, run) in new_runs:
                        hidden.append((file, study, run))
                    elif (study, run) in counted:
                        hidden.append((counted[study, run], study, run))
                    counted[study, run] = file
        return hidden


def _allow_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
