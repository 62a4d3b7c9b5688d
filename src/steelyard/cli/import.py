"""Read results of others, keep them as a table, and say what was read."""

import argparse
import json

from steelyard.audit.foreign import keep, read_results
from steelyard.results.store import ResultFolder
from steelyard.terminal.expect import imported_lines, imported_object


def run(arguments: argparse.Namespace) -> int:
    """Import; exit code 2 when a file is in no known format."""
    made = read_results(arguments.files, form=arguments.format, source=arguments.source, known=dict(arguments.stated))
    place = arguments.save
    if place is None:
        place = keep(ResultFolder(arguments.results), made)
    else:
        place.write_text(made.text, encoding="utf-8")
    print(json.dumps(imported_object(made, place)) if arguments.json else "\n".join(imported_lines(made, place)))
    return 0
