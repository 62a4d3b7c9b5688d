"""The knee of a batch-size sweep, the largest batch that fits, and every cell of it."""

import argparse
import json

from steelyard.analysis.batch import SHARE, batch_curve
from steelyard.analysis.select import FORMS, select
from steelyard.cli.verb import add_results
from steelyard.results.store import ResultFolder
from steelyard.terminal.batch import curve_lines, curve_object


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument("selection", help=f"the cells of the sweep: {FORMS}")
    parser.add_argument(
        "--share", type=float, default=SHARE, help="share of the asymptote that the knee reaches (default: %(default)s)"
    )
    add_results(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the curve; exit code 1 when it cannot be told where its knee is."""
    curve = batch_curve(select(ResultFolder(arguments.results), arguments.selection), arguments.share)
    if arguments.json:
        print(json.dumps(curve_object(curve), allow_nan=False))
    else:
        print("\n".join(curve_lines(curve)))
    return 1 if curve.knee is None or curve.knee.answer == "cannot tell" else 0
