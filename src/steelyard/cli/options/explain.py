"""Explain the code of a finding, list the names of settings, or list the fields of a file format.

Without NAME all codes and formats are listed. Words after a format select fields by their names; with --json its JSON
Schema is printed. With --schema, NAME is a verb, and the JSON Schema of what it prints with --json is printed.

$ steelyard explain SY301
$ steelyard explain settings
$ steelyard explain run-spec budget
$ steelyard explain scaling --schema
"""

from steelyard.cli.arguments import add_common
from steelyard.cli.parser import Parser


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="code such as SY301 or its name, `settings`, or a format such as run-spec with words to look for",
    )
    parser.add_argument(
        "--schema", action="store_true", help="print the JSON Schema of what the verb NAME prints with --json"
    )
    add_common(parser, results=False)
