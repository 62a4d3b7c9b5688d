"""List the workloads with their size and cost per sample, or show one of them in full.

$ steelyard workloads
$ steelyard workloads gpt --model size=800M
"""

from steelyard.cli.arguments import add_common, assignment
from steelyard.cli.parser import Parser


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="workload to show (default: all)")
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        type=assignment,
        metavar="KEY=VALUE",
        help="model option to count with, such as size=13B; may be repeated",
    )
    add_common(parser, results=False)
