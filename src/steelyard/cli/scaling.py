"""Show how a job scales over devices."""

import argparse

from steelyard.analysis.scaling import scaling
from steelyard.analysis.select import select
from steelyard.results.store import ResultFolder
from steelyard.terminal.document import print_json
from steelyard.terminal.scaling import curves_lines, scaling_object


def run(arguments: argparse.Namespace) -> int:
    """Analyse; exit code 1 when errors leave no speed-up to report."""
    cells = select(ResultFolder(arguments.results), arguments.selection)
    curves = scaling(cells, arguments.kind, threshold=arguments.threshold, at=arguments.at)
    if arguments.json:
        print_json({"shape": "scaling/1", "curves": [scaling_object(curve) for curve in curves]})
    else:
        print("\n".join(curves_lines(curves, arguments.selection)))
    return 1 if any(curve.blocked for curve in curves) else 0
