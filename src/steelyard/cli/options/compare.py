"""Compare two results: comparability first, then the ratio with its interval.

$ steelyard compare old new
$ steelyard compare old new --factor batch
$ steelyard compare reference:NAME:devices=8 STUDY:devices=8
"""

from steelyard.cli.arguments import SELECTION, add_common, number, within
from steelyard.cli.parser import Parser

PERCENT = within(number, gt=0, lt=100)


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    parser.add_argument(
        "a",
        metavar="A",
        help=f"base of the ratio: {SELECTION}; reference:NAME:key=value for a published table that comes with "
        "steelyard; FILE.csv:key=value for another table",
    )
    parser.add_argument("b", nargs="?", metavar="B", help="result to compare with it, in the same forms")
    parser.add_argument(
        "--factor",
        metavar="NAME",
        help="the setting that may differ, such as system, precision, devices or batch; any other difference is "
        "reported (default: system, or the batch, precision, input, implementation or devices if nothing else differs)",
    )
    parser.add_argument(
        "--metric", default="throughput", metavar="NAME", help="metric to compare (default %(default)s)"
    )
    parser.add_argument(
        "--margin",
        type=PERCENT,
        metavar="PERCENT",
        help="call the sides equal if tests show that they differ by less than this",
    )
    parser.add_argument(
        "--drift",
        type=PERCENT,
        metavar="PERCENT",
        help="change of a node to allow for if the sides ran on it one after the other (default: what its other runs "
        "show, else 5)",
    )
    parser.add_argument("--force", action="store_true", help="print the ratio in spite of errors, together with them")
    add_common(parser)
