"""Find the knee of a batch-size sweep and the largest batch that fits."""

import argparse
import json

from steelyard.analysis.batch import batch_curve
from steelyard.analysis.select import select
from steelyard.results.store import ResultFolder
from steelyard.terminal.batch import curve_lines, curve_object


def run(arguments: argparse.Namespace) -> int:
    """Show the curve; exit code 1 when its knee cannot be determined."""
    curve = batch_curve(select(ResultFolder(arguments.results), arguments.selection), arguments.share)
    if arguments.json:
        print(json.dumps(curve_object(curve), allow_nan=False))
    else:
        print("\n".join(curve_lines(curve)))
    return 1 if curve.knee is None or curve.knee.answer == "cannot tell" else 0
