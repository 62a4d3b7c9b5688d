"""How every verb is run: its options, its errors, its interruption. Knows no verb by name."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from steelyard.errors import InputError, Problem, SteelyardError, printable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType, ModuleType

    from steelyard.contracts.record import RunRecord

INTERRUPTED = 130


class InterruptError(BaseException):
    """We were asked to end. Not an Exception: nothing on the way may swallow it."""


def run_verb(name: str, words: list[str]) -> int:
    """Parse a verb's options and run it; errors become words, never tracebacks."""
    module = importlib.import_module(f"steelyard.cli.{name}")
    parser = argparse.ArgumentParser(prog=f"steelyard {name}", description=module.__doc__)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    module.configure(parser)
    arguments = parser.parse_args(words)
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    try:
        with nullcontext() if arguments.json else _console().output():
            code: int = module.run(arguments)
        sys.stdout.flush()
    except SteelyardError as error:
        _console().say(f"error: {error}")
        return error.exit_code
    except InterruptError:
        print("\ninterrupted: finished runs are kept; the same command resumes a study", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has gone; what it wanted, it has.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(printable(f"error: {error.filename or 'the system'}: {error.strerror or error}"), file=sys.stderr)
        return 1
    return code


def _console() -> ModuleType:
    # Imported where something is written: it imports rich, which takes time that `--help` and `--json` can do without.
    return importlib.import_module("steelyard.terminal.console")


def exit_code(records: Sequence[RunRecord]) -> int:
    """0 when every run completed; else 1, and a line that says how many did not."""
    missing = sum(record.status.code != "completed" for record in records)
    if missing:
        _console().say(f"\n{missing} of {len(records)} runs did not complete: steelyard show RUN_ID tells why")
    return 1 if missing else 0


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise InterruptError


def add_results(parser: argparse.ArgumentParser) -> None:
    """The option that says where results are."""
    default = os.environ.get("STEELYARD_RESULTS", "steelyard-results")
    parser.add_argument(
        "--results", type=Path, default=Path(default), metavar="DIR",
        help="the result folder (default: $STEELYARD_RESULTS, or steelyard-results here)",
    )  # fmt: skip


def add_loudness(parser: argparse.ArgumentParser) -> None:
    """The options that say how much is told meanwhile."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--quiet", action="store_true", help="print the result and nothing on the way to it")
    either.add_argument(
        "--verbose", action="store_true", help="also tell command lines, paths and what is being waited for"
    )


def assignment(option: str, text: str) -> tuple[str, Any]:
    """Key and value of an option such as `--model size=13B`; a value is JSON, or else a text."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        problem = Problem(option, f"{text!r} assigns nothing", "KEY=VALUE")
        raise InputError("an option is not valid", problems=(problem,))
    try:
        return key, json.loads(value)
    except (ValueError, RecursionError):
        return key, value
