"""How every verb is run: its options, its errors, its interruption. No verb is named here."""

from __future__ import annotations

import importlib
import os
import shlex
import signal
import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, NoReturn

from steelyard.cli.exit_codes import DONE, FAILED, INTERRUPTED
from steelyard.cli.parser import OptionError, Parser
from steelyard.errors import LEFT_OUT, SHOWN_PROBLEMS, InputError, SteelyardError, nearest, printable
from steelyard.terminal import console
from steelyard.terminal.document import print_json
from steelyard.terminal.text import RESULTS, many

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection, Iterator, Sequence
    from types import FrameType, ModuleType

    from steelyard.contracts.record import RunRecord
    from steelyard.inputs.study import Expansion
    from steelyard.results.store import ResultFolder


SAME = "the same command"


class InterruptError(BaseException):
    """The process was asked to end. Not an Exception: nothing on the way may swallow it."""

    done = ""
    """What is kept, such as `2 of 6 runs of slow done`."""
    again = ""
    """The command that continues from there."""


def make_parser(name: str) -> Parser:
    """The parser of a verb. Of the verb itself nothing is imported."""
    options = importlib.import_module(f"steelyard.cli.options.{name}")
    parser = Parser(prog=f"steelyard {name}", description=options.__doc__)
    options.configure(parser)
    return parser


def run_verb(name: str, words: list[str], known: Collection[str]) -> int:
    """Parse the options of a verb and run it, if it is a known one. Errors are reported, not shown as tracebacks.

    Of many runs, those that cannot be read are left out and named at the end; the exit code is then not 0.
    """
    left_out: dict[str, None] = {}
    before = LEFT_OUT.set(left_out)
    try:
        code = _run(name, words, known)
    finally:
        LEFT_OUT.reset(before)
    if left_out:
        places = [*left_out][:SHOWN_PROBLEMS]
        places += [f"and {len(left_out) - SHOWN_PROBLEMS:,} more"] if len(left_out) > SHOWN_PROBLEMS else []
        runs = "1 run was" if len(left_out) == 1 else f"{len(left_out):,} runs were"
        console.say("\n  ".join([f"error: {runs} left out, because files cannot be read", *places]))
    return code or (FAILED if left_out else DONE)


def _run(name: str, words: list[str], known: Collection[str]) -> int:
    as_json = "--json" in words[: words.index("--") if "--" in words else None]
    named = RESULTS.set(None)
    results = None
    try:
        if name not in known:
            near = nearest(name, known)
            hint, command = (f"; did you mean {near}?", f"steelyard {near}") if near else ("", "steelyard")
            raise OptionError(f"{name}: unknown verb{hint}", command)
        parser = make_parser(name)
        arguments = parser.parse_args(words)
        if sys.platform != "linux":
            raise InputError(
                f"steelyard needs Linux, and this is {sys.platform}", next_step="use a Linux machine or container"
            )
        signal.signal(signal.SIGTERM, _interrupt)
        signal.signal(signal.SIGINT, _interrupt)
        module = importlib.import_module(f"steelyard.cli.{name}")
        results, folder = getattr(arguments, "results", None), _other_results(parser, arguments)
        if folder is not None and os.path.isfile(folder):  # noqa: PTH113 -- pathlib is not imported for a line
            raise InputError(f"--results {folder}: is a file, not a folder")
        RESULTS.set(folder)
        with nullcontext() if arguments.json else console.output():
            code: int = module.run(arguments)
        sys.stdout.flush()
    except SteelyardError as error:
        return _report(error, error.exit_code, as_json=as_json)
    except InterruptError as stop:
        again = shlex.join(["steelyard", name, *words]) if stop.again == SAME else stop.again
        stopped = SteelyardError(f"interrupted: {stop.done}" if stop.done else "interrupted", next_step=again or None)
        return _report(stopped, INTERRUPTED, as_json=as_json)
    except BrokenPipeError:
        # The reader (head, less) has gone; it has what it wanted.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        what = printable(f"{error.filename or 'the system'}: {error.strerror or error}")
        if isinstance(error, PermissionError) and results and str(error.filename).startswith(os.path.abspath(results)):  # noqa: PTH100
            refused = InputError(
                f"cannot use the results in {results}: {error.strerror}", next_step="give another folder with --results"
            )
            return _report(refused, refused.exit_code, as_json=as_json)
        return _report(SteelyardError(what), FAILED, as_json=as_json)
    finally:
        RESULTS.reset(named)
    return code


@contextmanager
def counted_if_interrupted(
    folder: ResultFolder, expansion: Expansion, again: Callable[[int], str] = lambda _: SAME
) -> Iterator[None]:
    """If the process is asked to end, say how many runs of the study are done.

    `again`: the command that makes the rest, for their number; SAME: the one that was typed.
    """
    try:
        yield
    except InterruptError as stop:
        done, total = sum(map(folder.has, expansion.runs)), len(expansion.runs)
        stop.done = f"{done:,} of {many(total, 'run')} of {expansion.study.name} done"
        stop.again = again(total - done)
        raise


def _other_results(parser: Parser, arguments: argparse.Namespace) -> str | None:
    """Return the results folder, if it is not the one that a command without --results uses."""
    folder = getattr(arguments, "results", None)
    inner = parser.actions().get(getattr(arguments, "action", None) or "", parser)
    return None if folder is None or folder == inner.get_default("results") else str(folder)


def _findings() -> ModuleType:
    # It imports the rules.
    return importlib.import_module("steelyard.terminal.findings")


def command_on_file(verb: str, arguments: argparse.Namespace) -> str:
    """Return the command line of a verb for this file and, if one was chosen, this site."""
    path = str(arguments.file)
    words = ["steelyard", verb, f"./{path}" if path.startswith("-") else path]
    site = getattr(arguments, "site", None)
    return shlex.join([*words, *(["--site", site] if site else [])])


def exit_code(records: Sequence[RunRecord]) -> int:
    """0 when every run completed; else 1, after a line that says how many did not."""
    missing = [record.run_id for record in records if record.status.code != "completed"]
    if missing:
        said = f"\n{len(missing)} of {len(records)} runs"
        ended = {(record.status.code, record.status.reason) for record in records if record.status.code != "completed"}
        if len(ended) == 1 and (only := ended.pop())[0] == "refused":
            # The reason ends with what to do.
            console.say(f"{said} were refused: {only[1]}")
        else:
            console.say(f"{said} did not complete\n{_findings().next_line(f'steelyard show {missing[0]}')}")
    return FAILED if missing else DONE


def _report(error: SteelyardError, code: int, *, as_json: bool) -> int:
    """Print an error for a person on standard error; with --json also as JSON on standard output."""
    if error.next_step:
        error.next_step = _findings().command_line(error.next_step)
    # After an interruption the cursor is behind the terminal's ^C.
    console.say(f"\n{error}" if code == INTERRUPTED else f"error: {error}")
    if as_json:
        problems = [{"field": p.field, "problem": p.problem, "valid": p.valid} for p in error.problems]
        about = {"message": error.what, "problems": problems, "next": error.next_step, "exit_code": code}
        print_json({"shape": "error/1", "error": about})
    return code


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise InterruptError
