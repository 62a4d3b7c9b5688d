"""Find the best batch size of a sweep: the knee of the curve, and the largest batch that fits.

$ steelyard batch sweep
$ steelyard batch sweep:precision=bf16 --share 0.95
"""

from steelyard.cli.arguments import SELECTION, add_common, number, within
from steelyard.cli.parser import Parser

SHARE = 0.9


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    parser.add_argument("selection", metavar="SELECTION", help=f"the sweep: {SELECTION}")
    parser.add_argument(
        "--share",
        type=within(number, gt=0, lt=1),
        default=SHARE,
        metavar="X",
        help="the knee is where throughput reaches this share of its limit (default %(default)s)",
    )
    add_common(parser)
