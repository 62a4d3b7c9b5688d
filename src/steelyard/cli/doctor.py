"""Say what this node is and what would go wrong on it, with a remedy for each."""

import argparse
import json
import os
import textwrap
from dataclasses import asdict
from functools import partial
from pathlib import Path

from steelyard.cli.verb import add_results
from steelyard.doctor.checks import checks
from steelyard.doctor.node import Check, IntendedRun
from steelyard.errors import printable
from steelyard.launch.allocation import whereabouts
from steelyard.launch.local import LocalLauncher
from steelyard.launch.local_study import trial

COLUMNS = 100
INDENT = " " * 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    add_results(parser)
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder that training data are to be read from")
    parser.add_argument("--nproc", type=_ranks, metavar="N", help="ranks that are to run on this node")
    parser.add_argument("--loader-workers", type=_count, metavar="N", help="loader processes that each rank is to have")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when nothing is wrong; notes are not wrong."""
    plan = IntendedRun(arguments.results, arguments.data, arguments.nproc, arguments.loader_workers)
    found = []
    trying = partial(trial, launcher=LocalLauncher())
    for check in checks(plan, trying, whereabouts(os.environ).words):
        found.append(check)
        if not arguments.json:
            # At once: some checks take seconds.
            print(_lines(check), flush=True)
    wrong = sum(check.verdict == "wrong" for check in found)
    if arguments.json:
        print(json.dumps([asdict(check) for check in found]))
    else:
        print(f"\n{wrong} wrong" if wrong else "\nnothing wrong")
    return 1 if wrong else 0


def _lines(check: Check) -> str:
    """One check as a person reads it: verdict, name and finding, then the remedy, none wider than a terminal."""
    lines = _wrap(f"{check.verdict:<5} {check.name:<13} ", check.found)
    if check.remedy:
        lines += _wrap(f"{INDENT}remedy: ", check.remedy)
    return "\n".join(lines)


def _wrap(start: str, text: str) -> list[str]:
    return textwrap.wrap(
        printable(text),
        COLUMNS,
        initial_indent=start,
        subsequent_indent=" " * len(start) if start.isspace() else INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [start.rstrip()]


def _count(text: str) -> int:
    if not text.isdigit() or int(text) > 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count")
    return int(text)


def _ranks(text: str) -> int:
    if (ranks := _count(text)) < 1:
        raise argparse.ArgumentTypeError("there must be at least 1 rank")
    return ranks
