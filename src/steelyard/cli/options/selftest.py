"""Check steelyard's arithmetic on simulated accelerators, or with --hardware the energy sensors of this node."""

from pathlib import Path

from steelyard.cli.arguments import add_common, number, within
from steelyard.cli.parser import Parser

IDLE_S, LOAD_S = 10.0, 20.0
RESULT = Path("steelyard-hardware.json")


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    parser.add_argument("--quick", action="store_true", help="check formulas and answers only, not the intervals")
    hardware = parser.add_argument_group("sensors")
    hardware.add_argument(
        "--hardware", action="store_true",
        help="watch this node idle and under load, and compare its energy sensors with each other",
    )  # fmt: skip
    seconds = within(number, ge=1, le=3600)
    hardware.add_argument(
        "--idle-s", type=seconds, default=IDLE_S, metavar="X", help="seconds to watch it idle (default %(default)g)"
    )
    hardware.add_argument(
        "--load-s", type=seconds, default=LOAD_S, metavar="X",
        help="seconds to watch it under load (default %(default)g)",
    )  # fmt: skip
    hardware.add_argument(
        "--write", type=Path, default=RESULT, metavar="FILE",
        help="file for the result, without host and device names (default %(default)s)",
    )  # fmt: skip
    add_common(parser, results=False)
