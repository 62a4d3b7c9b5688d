"""Compare two results: comparability first, then the ratio with its interval."""

import argparse
import json

from steelyard.analysis.compare import compare
from steelyard.analysis.node_history import shown_drift
from steelyard.analysis.ratios import RatioQuestion
from steelyard.audit.beside import rows_beside
from steelyard.contracts.base import to_json_object
from steelyard.results.store import ResultFolder
from steelyard.stats.ratio import DRIFT
from steelyard.terminal.compare import lines


def run(arguments: argparse.Namespace) -> int:
    """Compare; exit code 1 when errors leave no ratio to report."""
    folder = ResultFolder(arguments.results)
    a, b = rows_beside(folder, arguments.a), rows_beside(folder, arguments.b)
    drift = arguments.drift / 100 if arguments.drift else shown_drift(folder, a, b)
    asked = RatioQuestion(
        margin=arguments.margin / 100 if arguments.margin else None, drift=DRIFT if drift is None else drift
    )
    compared = compare(a, b, factor=arguments.factor, metric=arguments.metric, force=arguments.force, asked=asked)
    if arguments.json:
        found = json.dumps({"a": arguments.a, "b": arguments.b, **to_json_object(compared)})
        # The end of a one-sided interval is infinite, which JSON cannot say.
        print(json.dumps(json.loads(found, parse_constant=lambda _: None), allow_nan=False))
    else:
        print("\n".join(lines(compared, arguments.a, arguments.b)))
    return 0 if compared.made else 1
