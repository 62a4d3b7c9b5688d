"""Check this node: what it has, what would go wrong in a run, and how to fix it.

$ steelyard doctor
$ steelyard doctor --data /data/imagenet --devices 4 --loader-workers 8
"""

from pathlib import Path

from steelyard.cli.arguments import add_common, whole, within
from steelyard.cli.parser import Parser

MOST = 100_000


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    planned = parser.add_argument_group("planned run")
    planned.add_argument("--data", type=Path, metavar="DIR", help="folder of the training data")
    planned.add_argument(
        "--devices", type=within(whole, ge=1, le=MOST), metavar="N", help="devices of the run on this node"
    )
    planned.add_argument(
        "--loader-workers", type=within(whole, ge=0, le=MOST), metavar="N", help="loader processes per rank"
    )
    add_common(parser)
