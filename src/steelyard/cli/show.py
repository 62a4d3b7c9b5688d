"""List what has been measured: all studies, the cells of one, or one run in full."""

import argparse
import json

from steelyard.analysis.summary import list_studies, summarise
from steelyard.cli.verb import add_results
from steelyard.contracts.base import to_json_object
from steelyard.errors import InputError
from steelyard.results.store import RAW, ResultFolder
from steelyard.terminal.step_times import step_time_lines
from steelyard.terminal.tables import cells_lines, cells_object, record_lines, studies_table


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument("what", nargs="?", help="a study or a run id; nothing: all studies")
    add_results(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show it; exit code 2 when there is nothing of that name."""
    folder = ResultFolder(arguments.results)
    studies = folder.studies()
    if not studies:
        raise InputError(f"no results in {folder.path}", next_step="steelyard run sim")
    if arguments.what is None:
        listed = list_studies(folder)
        print(json.dumps(listed) if arguments.json else studies_table(listed))
        return 0
    if arguments.what in studies:
        cells = summarise(folder.records(arguments.what))
        if arguments.json:
            print(json.dumps(cells_object(cells)))
        else:
            print("\n".join(cells_lines(cells, detail=True)))
        return 0
    found = {path: folder.read(path) for path in folder.find(arguments.what)}
    if not found:
        raise InputError(
            f"{folder.path} has neither a study nor a run called {arguments.what!r}; studies: {', '.join(studies)}",
            next_step="steelyard show",
        )
    if arguments.json:
        print(json.dumps([to_json_object(record) for record in found.values()]))
    else:
        for path, record in found.items():
            steps = step_time_lines(path / RAW, record)
            print("\n".join([*record_lines(record), *steps]))
    return 0
