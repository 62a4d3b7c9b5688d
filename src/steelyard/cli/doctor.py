"""Say what this node is and what would go wrong on it, with a fix for each."""

import argparse
import json
import os
from dataclasses import asdict
from functools import partial
from pathlib import Path

from steelyard.cli.verb import add_results
from steelyard.doctor.checks import checks
from steelyard.doctor.node import HostView, IntendedRun
from steelyard.launch.allocation import whereabouts
from steelyard.launch.local import LocalLauncher
from steelyard.launch.local_study import trial
from steelyard.terminal.checks import check_lines, checks_summary

NAME_COLUMNS = 14


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    add_results(parser)
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder that training data are to be read from")
    parser.add_argument("--nproc", type=_ranks, metavar="N", help="ranks that are to run on this node")
    parser.add_argument("--loader-workers", type=_count, metavar="N", help="loader processes that each rank is to have")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when nothing is wrong; notes are not wrong."""
    plan = IntendedRun(arguments.results, arguments.data, arguments.nproc, arguments.loader_workers)
    trying = partial(trial, launcher=LocalLauncher())
    found = []
    for check in checks(HostView(), plan, trying, whereabouts(os.environ).message):
        found.append(check)
        if not arguments.json:
            # At once: some checks take seconds.
            print("\n".join(check_lines(check, NAME_COLUMNS)), flush=True)
    print(json.dumps([asdict(check) for check in found]) if arguments.json else checks_summary(found))
    return int(any(check.verdict == "wrong" for check in found))


def _count(text: str) -> int:
    if not text.isdigit() or int(text) > 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count")
    return int(text)


def _ranks(text: str) -> int:
    if (ranks := _count(text)) < 1:
        raise argparse.ArgumentTypeError("there must be at least 1 rank")
    return ranks
