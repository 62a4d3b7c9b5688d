"""Show the energy per sample, epoch and phase, whether it is reliable, and the power over time.

$ steelyard energy sweep
$ steelyard energy sweep:batch=64 --plot power.svg
"""

from pathlib import Path

from steelyard.cli.arguments import SELECTION, add_common
from steelyard.cli.parser import Parser

METER_SCOPES = ("device", "module", "cpu", "node")


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    parser.add_argument("selection", metavar="SELECTION", help=f"results to show: {SELECTION}")
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE.svg",
        help="draw the power over time of the selected run, or of the first run with energy data",
    )
    meters = parser.add_argument_group("compare with another meter")
    meters.add_argument(
        "--meter", type=Path, metavar="FILE.csv", help="readings of a wattmeter for one run (timestamp,power_w)"
    )
    meters.add_argument(
        "--meter-scope",
        choices=METER_SCOPES,
        metavar="SCOPE",
        help=f"what the wattmeter measures: {', '.join(METER_SCOPES[:-1])} or {METER_SCOPES[-1]}; without it the "
        "energies are shown but not judged",
    )
    meters.add_argument("--slurm", type=Path, metavar="FILE", help="saved output of sacct for one run")
    meters.add_argument("--slurm-plugin", metavar="NAME", help="AcctGatherEnergyType of the site, such as ipmi or rapl")
    add_common(parser)
