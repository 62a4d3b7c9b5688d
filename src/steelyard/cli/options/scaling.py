"""Show how a job scales over devices: speed-up and efficiency with intervals, the causes of loss, where to stop.

$ steelyard scaling sweep
$ steelyard scaling sweep:batch=64 --at 64
"""

from steelyard.cli.arguments import add_common, number, whole, within
from steelyard.cli.parser import Parser

THRESHOLD = 0.7


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    parser.add_argument(
        "selection", metavar="SELECTION", help="study with several device counts, or STUDY:key=value for a part of it"
    )
    add_kind(parser)
    parser.add_argument(
        "--at",
        type=within(whole, ge=1, le=10**9),
        metavar="N",
        help="project to this many devices (default: twice the largest measured count)",
    )
    parser.add_argument(
        "--threshold",
        type=within(number, gt=0, le=1),
        default=THRESHOLD,
        metavar="X",
        help="lowest acceptable efficiency (default %(default)s)",
    )
    add_common(parser)


def add_kind(parser: Parser) -> None:
    """Add the choice between strong and weak scaling."""
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--strong",
        action="store_const",
        dest="kind",
        const="strong",
        help="strong scaling: the batch of the job is constant",
    )
    kind.add_argument(
        "--weak",
        action="store_const",
        dest="kind",
        const="weak",
        help="weak scaling: the batch per device is constant",
    )
