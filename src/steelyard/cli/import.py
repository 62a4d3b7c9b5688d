"""Read results of others, keep them as a table, and say what was read."""

import argparse

from steelyard.audit.foreign import keep, read_results
from steelyard.results.store import ResultFolder
from steelyard.terminal.document import print_json
from steelyard.terminal.expect import imported_lines, imported_object


def run(arguments: argparse.Namespace) -> int:
    """Import; exit code 2 when a file is in no known format."""
    made = read_results(arguments.files, form=arguments.format, source=arguments.source, known=dict(arguments.stated))
    place = arguments.save
    if place is None:
        place = keep(ResultFolder(arguments.results), made)
    else:
        place.write_text(made.text, encoding="utf-8")
    if arguments.json:
        print_json(imported_object(made, place))
    else:
        print("\n".join(imported_lines(made, place)))
    return 0
