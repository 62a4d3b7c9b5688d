"""Compare two results: comparability first, then the ratio with its interval."""

import argparse
import json

from steelyard.analysis.compare import compare
from steelyard.audit.beside import rows_beside
from steelyard.contracts.base import to_json_object
from steelyard.results.store import ResultFolder
from steelyard.terminal.compare import lines


def run(arguments: argparse.Namespace) -> int:
    """Compare; exit code 1 when errors leave no ratio to report."""
    folder = ResultFolder(arguments.results)
    compared = compare(
        rows_beside(folder, arguments.a),
        rows_beside(folder, arguments.b),
        factor=arguments.factor,
        metric=arguments.metric,
        force=arguments.force,
    )
    if arguments.json:
        print(json.dumps({"a": arguments.a, "b": arguments.b, **to_json_object(compared)}))
    else:
        print("\n".join(lines(compared, arguments.a, arguments.b)))
    return 0 if compared.made else 1
