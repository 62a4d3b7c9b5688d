"""How a job scales over devices: speed-up and efficiency with intervals, what the loss is, and where to stop."""

import argparse
import json

from steelyard.analysis.scaling import THRESHOLD, scaling
from steelyard.analysis.select import select
from steelyard.cli.verb import add_results
from steelyard.errors import InputError, Problem
from steelyard.results.store import ResultFolder
from steelyard.terminal.scaling import scaling_lines, scaling_object


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument(
        "selection", help="a study with several device counts, or STUDY:key=value for some of its cells"
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--strong", action="store_const", dest="kind", const="strong", help="the job's batch stays")
    kind.add_argument("--weak", action="store_const", dest="kind", const="weak", help="a device's batch stays")
    parser.add_argument(
        "--at", type=int, metavar="N", help="project to so many devices (default: twice the largest measured count)"
    )
    parser.add_argument(
        "--threshold", type=float, default=THRESHOLD, metavar="SHARE",
        help=f"the efficiency that is still good enough (default: {THRESHOLD:g})",
    )  # fmt: skip
    add_results(parser)


def run(arguments: argparse.Namespace) -> int:
    """Analyse; exit code 1 when a finding blocks the ratios."""
    problems = []
    if not 0 < arguments.threshold <= 1:
        problems.append(Problem("--threshold", f"{arguments.threshold:g} is no efficiency", "above 0, at most 1"))
    if arguments.at is not None and not 1 <= arguments.at <= 10**9:
        problems.append(Problem("--at", f"{arguments.at} is no number of devices", "1 or more"))
    if problems:
        raise InputError("an option is not valid", problems=tuple(problems))
    cells = select(ResultFolder(arguments.results), arguments.selection)
    curves = scaling(cells, arguments.kind, threshold=arguments.threshold, at=arguments.at)
    if arguments.json:
        print(json.dumps([scaling_object(curve) for curve in curves]))
    else:
        print("\n\n".join("\n".join(scaling_lines(curve, arguments.selection)) for curve in curves))
    return 1 if any(curve.blocked for curve in curves) else 0
