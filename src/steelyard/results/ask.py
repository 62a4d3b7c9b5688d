"""Ask a query in a child process that cannot take more than its share of memory and time.

The child is a copy of this process (fork), made before DuckDB is imported: a second interpreter would add its own
start. It writes the answer to a file without a name, which is passed on only if the query ended well.
"""

from __future__ import annotations

import csv
import json
import os
import resource
import select
import signal
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from steelyard.contracts.base import finite_json
from steelyard.errors import InputError, SteelyardError, leave_out
from steelyard.results.query import Results

if TYPE_CHECKING:
    from collections.abc import Callable

Form = Literal["table", "csv", "json", "parquet"]
SHOWN_ROWS = 1000
"""Rows of a table for people; the other forms have all."""
FETCHED = 10_000
MAX_ANSWER_BYTES = 1 << 32
# Address space beyond what DuckDB counts: the interpreter, libraries, and stacks of threads.
MORE_BYTES = 2 << 30
MAX_MESSAGE = 8000
MAX_REASON, MAX_LEFT_OUT = 400, 100_000
"""Of the runs that are left out, and why; more are not named."""
MAX_SAID_BYTES = 1 << 27


def ask(
    results: Path, sql: str, form: Form, *, seconds: float, memory_mb: int, clean: Callable[[str], str] = str
) -> int:
    """Return the handle of a file with the answer, from its beginning. A table is JSON, for `read_table`.

    Runs that cannot be read are left out, as `errors.leave_out` does.
    `clean`: what is done to texts in CSV.
    InputError if the query is wrong, SteelyardError if it takes too long or too much memory.
    """
    with tempfile.TemporaryFile() as file:
        answer = os.dup(file.fileno())
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _be_child(results, partial(_write, sql=sql, form=form, answer=answer, clean=clean), answer, writer, memory_mb)
    os.close(writer)
    try:
        message = _wait(reader, time.monotonic() + seconds)
    finally:
        os.close(reader)
        # Also if we are interrupted. A child that has ended is not reaped yet, so the number is still its own.
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    if message is None:
        raise SteelyardError(f"the query took longer than {seconds:g} s", next_step="add a filter, or raise --timeout")
    if not message:
        ended = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"code {os.WEXITSTATUS(status)}"
        raise SteelyardError(
            f"the query ended without an answer ({ended}): too little memory, or a damaged archive",
            next_step="raise --memory",
        )
    said = json.loads(message)
    if said["kind"] == "input":
        raise InputError(said["text"], next_step=said["next"])
    if said["kind"] == "failure":
        raise SteelyardError(said["text"], next_step=said["next"])
    for text in said["left_out"]:
        leave_out(SteelyardError(text))
    os.lseek(answer, 0, os.SEEK_SET)
    return answer


def _wait(reader: int, end_s: float) -> bytes | None:
    """Return what the child says before it ends; None if it does not end in time."""
    said = b""
    while len(said) < MAX_SAID_BYTES:
        ready, _, _ = select.select([reader], [], [], max(0.0, end_s - time.monotonic()))
        if not ready:
            return None
        piece = os.read(reader, 1 << 16)
        if not piece:
            break
        said += piece
    return said


def _be_child(results: Path, write: Callable[[Results], None], answer: int, writer: int, memory_mb: int) -> NoReturn:
    """Answer, say how it went, and end without returning into the program of the parent."""
    said: dict[str, Any] = {"kind": "failure", "text": "the query failed", "next": None}
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for handle in (0, 1, 2):
            os.dup2(nothing, handle)
        os.environ.clear()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # On top of what the process that was forked has mapped.
        most = _mapped_bytes() + (memory_mb << 20) + MORE_BYTES
        limits = {resource.RLIMIT_AS: most, resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: MAX_ANSWER_BYTES}
        for limit, wanted in limits.items():
            _, hard = resource.getrlimit(limit)
            value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(limit, (value, value))
        with Results(results, memory_mb=memory_mb, output=f"/proc/self/fd/{answer}") as opened:
            write(opened)
            said = {"kind": "answer", "left_out": [text[:MAX_REASON] for text in opened.left_out[:MAX_LEFT_OUT]]}
    except InputError as error:
        said = {"kind": "input", "text": error.what[:MAX_MESSAGE], "next": error.next_step}
    except SteelyardError as error:
        said = {"kind": "failure", "text": error.what[:MAX_MESSAGE], "next": error.next_step}
    except MemoryError:
        said = {"kind": "failure", "text": "the query needs more memory than it may have", "next": "raise --memory"}
    except Exception as error:  # noqa: BLE001 -- the parent reports it
        said["text"] = f"the query failed: {type(error).__name__}: {error}"[:MAX_MESSAGE]
    finally:
        os.write(writer, json.dumps(said).encode())
        os._exit(0)


def _write(opened: Results, sql: str, form: Form, answer: int, clean: Callable[[str], str]) -> None:
    """Write the answer in its form."""
    if form == "parquet":
        opened.write_parquet(sql, f"/proc/self/fd/{answer}")
        return
    try:
        cursor = opened.execute(sql)
        columns = [column[0] for column in cursor.description]
        with os.fdopen(os.dup(answer), "w", encoding="utf-8", newline="") as file:
            if form == "table":
                shown = cursor.fetchmany(SHOWN_ROWS + 1)
                found = {"columns": columns, "rows": shown[:SHOWN_ROWS], "more": len(shown) > SHOWN_ROWS}
                json.dump(found, file, default=str)
            elif form == "csv":
                table = csv.writer(file, lineterminator="\n")
                table.writerow(columns)
                while rows := cursor.fetchmany(FETCHED):
                    table.writerows([clean(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
            else:
                file.write('{"shape": "query/1", "rows": [')
                start = "\n"
                while rows := cursor.fetchmany(FETCHED):
                    for row in rows:
                        file.write(start + json.dumps(dict(zip(columns, finite_json(row), strict=True)), default=str))
                        start = ",\n"
                file.write("]}\n")
    except opened.error as error:
        raise InputError(opened.plain(error)) from None


def read_table(answer: int) -> dict[str, Any]:
    """Return columns, rows and whether there are more, of an answer in the form of a table."""
    with os.fdopen(answer, encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


def _mapped_bytes() -> int:
    """Return the address space of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")
