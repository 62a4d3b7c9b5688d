"""List the workloads: what each is, how large, what a sample costs; or everything about one of them."""

import argparse
import json

from steelyard import plugins
from steelyard.cli.verb import assignment
from steelyard.errors import InputError
from steelyard.inputs.catalogue import count_workload, load
from steelyard.terminal.workloads import workload_lines, workloads_table


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument("name", nargs="?", help="a workload; nothing: all of them")
    parser.add_argument(
        "--model", action="append", default=[], metavar="KEY=VALUE", help="count with this option, such as size=13B"
    )


def run(arguments: argparse.Namespace) -> int:
    """Exit code 2 when there is no workload of that name."""
    shipped = load()
    if arguments.name is None:
        if arguments.model:
            raise InputError("options belong to one workload", next_step="steelyard workloads NAME --model KEY=VALUE")
        others = [name for name in plugins.names("workload") if name not in shipped["workloads"]]
        print(json.dumps({**shipped, "not_counted": others}) if arguments.json else workloads_table(shipped, others))
        return 0
    plugins.require("workload", arguments.name)
    options = dict(assignment("--model", text) for text in arguments.model)
    entry = None if options else shipped["workloads"].get(arguments.name)
    # With options, or of another package: as a process of the measured side counts it.
    entry = entry or count_workload(arguments.name, options)
    if arguments.json:
        print(json.dumps({"name": arguments.name, **entry}))
    else:
        print("\n".join(workload_lines(arguments.name, entry)))
    return 0
