"""Hold two results against each other: first whether they may be compared, then the ratio with its interval."""

import argparse
import json

from steelyard.analysis.compare import compare
from steelyard.audit.beside import rows_beside
from steelyard.cli.verb import add_results
from steelyard.contracts.base import to_json_object
from steelyard.results.store import ResultFolder
from steelyard.terminal.compare import lines

SIDES = (
    "STUDY, STUDY/CELL, STUDY:key=value,key=value or a run id; reference:NAME:key=value for a published table that "
    "comes with steelyard; FILE.csv:key=value for another one"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument("a", metavar="A", help=f"the base: {SIDES}")
    parser.add_argument("b", metavar="B", help="what is held against it, in the same forms")
    parser.add_argument(
        "--factor", default="system", metavar="NAME",
        help="the setting under study, such as system, precision, devices or batch; all else that differs is a finding",
    )  # fmt: skip
    parser.add_argument("--metric", default="throughput", metavar="M", help="the figure to divide")
    parser.add_argument(
        "--force", action="store_true", help="print the ratio although findings block it; they stay attached to it"
    )
    add_results(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compare; exit code 1 when findings block every ratio."""
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
