"""List suites, show one, run it, or write its report."""

import argparse

from steelyard.errors import SteelyardError
from steelyard.inputs.suites import list_suite, suite_names
from steelyard.terminal import console
from steelyard.terminal.document import print_json
from steelyard.terminal.suites import suites_lines, suites_object


def run(arguments: argparse.Namespace) -> int:
    """Do the action."""
    if arguments.action == "list":
        return _list(arguments)
    # Only these import what runs and reports.
    from steelyard.cli import suite_run

    actions = {"show": suite_run.show, "run": suite_run.run, "report": suite_run.report}
    return actions[arguments.action](arguments)


def _list(arguments: argparse.Namespace) -> int:
    suites = []
    for name in suite_names():
        try:
            suites.append(list_suite(name))
        except SteelyardError as error:
            # A broken suite of another package must not hide the others.
            console.say(f"{name}: {error.what}; see: steelyard suite show {name}")
    if arguments.json:
        print_json(suites_object(suites))
    else:
        print("\n".join(suites_lines(suites)))
    return 0
