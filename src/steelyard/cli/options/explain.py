"""Explain the code of a finding, or print the JSON Schema of a file format. Without NAME list all of them.

$ steelyard explain SY301
$ steelyard explain run-spec
"""

from steelyard.cli.arguments import add_common
from steelyard.cli.parser import Parser


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="code such as SY301 or its name, or a schema such as run-spec"
    )
    add_common(parser, results=False)
