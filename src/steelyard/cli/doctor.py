"""Say what this node is and what would go wrong on it, with a remedy for each."""

import argparse
import json
from dataclasses import asdict

from steelyard.cli.verb import add_results
from steelyard.launch.preflight import checks


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    add_results(parser)


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when nothing is wrong; notes are not wrong."""
    found = list(checks(arguments.results))
    wrong = sum(check.verdict == "wrong" for check in found)
    if arguments.json:
        print(json.dumps([asdict(check) for check in found]))
        return 1 if wrong else 0
    for check in found:
        print(f"{check.verdict:<5} {check.name:<13} {check.found}")
        if check.remedy:
            print(f"{'':<19} remedy: {check.remedy}")
    print(f"\n{wrong} wrong" if wrong else "\nnothing wrong")
    return 1 if wrong else 0
