"""Find the knee of a batch-size sweep and the largest batch that fits."""

import argparse
import json

from steelyard.analysis.batch import batch_curves
from steelyard.analysis.select import select
from steelyard.results.store import ResultFolder
from steelyard.terminal.batch import curve_object, curves_lines


def run(arguments: argparse.Namespace) -> int:
    """Show the curves; exit code 1 when the knee of one cannot be determined."""
    curves = batch_curves(select(ResultFolder(arguments.results), arguments.selection), arguments.share)
    if arguments.json:
        print(json.dumps([curve_object(curve) for curve in curves], allow_nan=False))
    else:
        print("\n".join(curves_lines(curves)))
    return 1 if any(curve.knee is None or curve.knee.answer == "cannot tell" for curve in curves) else 0
