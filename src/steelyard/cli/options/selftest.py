"""Check steelyard's arithmetic on simulated accelerators, or with --accelerator or --hardware this node.

$ steelyard selftest --quick
$ steelyard selftest --accelerator
"""

from pathlib import Path

from steelyard.cli.arguments import add_common, number, within
from steelyard.cli.parser import Parser

IDLE_S, LOAD_S = 10.0, 20.0
RESULTS = {"accelerator": Path("steelyard-accelerator.json"), "hardware": Path("steelyard-hardware.json")}


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    parser.add_argument("--quick", action="store_true", help="check formulas and answers only, not the intervals")
    node = parser.add_argument_group("this node")
    which = node.add_mutually_exclusive_group()
    which.add_argument(
        "--accelerator",
        action="store_true",
        help="check in at most five minutes that the accelerator behaves as the measurements assume",
    )
    which.add_argument(
        "--hardware",
        action="store_true",
        help="watch this node idle and under load, and compare its energy sensors with each other",
    )
    seconds = within(number, ge=1, le=3600)
    node.add_argument(
        "--idle-s",
        type=seconds,
        default=IDLE_S,
        metavar="X",
        help="with --hardware: seconds to watch it idle (default %(default)g)",
    )
    node.add_argument(
        "--load-s",
        type=seconds,
        default=LOAD_S,
        metavar="X",
        help="with --hardware: seconds to watch it under load (default %(default)g)",
    )
    names = " or ".join(map(str, RESULTS.values()))
    node.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help=f"file for the result, without host and device names (default {names})",
    )
    add_common(parser, results=False)
