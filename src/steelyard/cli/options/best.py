"""Rank the configurations of a study: the best, those as good, the unreliable and the failed ones.

$ steelyard best sweep
$ steelyard best sweep:devices=4 --by energy
"""

from steelyard.cli.arguments import SELECTION, add_common
from steelyard.cli.parser import Parser

MEASURES = ("throughput", "efficiency", "cost", "energy")


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    parser.add_argument("selection", metavar="SELECTION", help=f"configurations to rank: {SELECTION}")
    parser.add_argument(
        "--by",
        choices=MEASURES,
        default=MEASURES[0],
        metavar="WHAT",
        help="throughput of the job, efficiency (throughput per device), cost or energy per sample "
        "(default %(default)s)",
    )
    parser.add_argument(
        "--site", metavar="SITE[:POOL]", help="for cost: the site whose prices to use (default: where the study ran)"
    )
    add_common(parser)
