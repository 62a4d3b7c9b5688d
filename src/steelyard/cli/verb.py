"""How every verb is run: its options, its errors, its interruption. Knows no verb by name."""

import argparse
import importlib
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from steelyard.errors import SteelyardError

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
        code: int = module.run(arguments)
        sys.stdout.flush()
    except SteelyardError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except InterruptError:
        print("\ninterrupted: finished runs are kept; the same command resumes a study", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has gone; what it wanted, it has.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise InterruptError


def add_results(parser: argparse.ArgumentParser) -> None:
    """The option that says where results are."""
    default = os.environ.get("STEELYARD_RESULTS", "steelyard-results")
    parser.add_argument(
        "--results", type=Path, default=Path(default), metavar="DIR",
        help="the result folder (default: $STEELYARD_RESULTS, or steelyard-results here)",
    )  # fmt: skip
