"""List the workloads, or show one of them in full."""

import argparse

from steelyard import plugins
from steelyard.errors import InputError
from steelyard.inputs.catalogue import count_workload, load
from steelyard.terminal.document import print_json
from steelyard.terminal.workloads import workload_lines, workloads_table


def run(arguments: argparse.Namespace) -> int:
    """Show it; exit code 2 when no workload has that name."""
    shipped = load()
    if arguments.name is None:
        if arguments.model:
            raise InputError("--model needs a workload", next_step="steelyard workloads NAME --model KEY=VALUE")
        others = [name for name in plugins.names("workload") if name not in shipped["workloads"]]
        if arguments.json:
            print_json({"shape": "workloads/1", **shipped, "not_counted": others})
        else:
            print(workloads_table(shipped, others))
        return 0
    plugins.require("workload", arguments.name)
    options = dict(arguments.model)
    entry = None if options else shipped["workloads"].get(arguments.name)
    # With options, or from another package: counted by a worker process.
    entry = entry or count_workload(arguments.name, options)
    if arguments.json:
        print_json({"shape": "workloads-show/1", "name": arguments.name, **entry})
    else:
        print("\n".join(workload_lines(arguments.name, entry)))
    return 0
