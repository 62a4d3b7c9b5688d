"""Compare two results: comparability first, then the ratio with its interval.

$ steelyard compare old new --factor batch
$ steelyard compare reference:NAME:devices=8 STUDY:devices=8
"""

from steelyard.cli.arguments import SELECTION, add_common
from steelyard.cli.parser import Parser


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    parser.add_argument(
        "a", metavar="A",
        help=f"base of the ratio: {SELECTION}; reference:NAME:key=value for a published table that comes with "
        "steelyard; FILE.csv:key=value for another table",
    )  # fmt: skip
    parser.add_argument("b", metavar="B", help="result to compare with it, in the same forms")
    parser.add_argument(
        "--factor", default="system", metavar="NAME",
        help="the setting that may differ, such as system, precision, devices or batch; any other difference is "
        "reported (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--metric", default="throughput", metavar="NAME", help="metric to compare (default %(default)s)"
    )
    parser.add_argument("--force", action="store_true", help="print the ratio in spite of errors, together with them")
    add_common(parser)
