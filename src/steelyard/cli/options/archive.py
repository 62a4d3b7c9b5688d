"""Fold finished runs into few files. All verbs read them there, and `steelyard query` reads many at once.

$ steelyard archive --older-than 30
$ steelyard archive --older-than 30 --drop-raw 365
"""

from steelyard.cli.arguments import add_common, number, within
from steelyard.cli.parser import Parser

MOST_DAYS = 36_500


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    parser.add_argument(
        "--older-than",
        type=within(number, ge=0, le=MOST_DAYS),
        default=0.0,
        metavar="DAYS",
        help="leave runs that ended less than this many days ago (default: none)",
    )
    parser.add_argument(
        "--drop-raw",
        type=within(number, ge=0, le=MOST_DAYS),
        metavar="DAYS",
        help="drop the raw files of older runs; their records stay, but cannot be derived again (default: keep all)",
    )
    add_common(parser)
