"""Find the knee of a batch-size sweep and the largest batch that fits."""

import argparse
import shlex

from steelyard.analysis.batch import BatchCurve, batch_curves
from steelyard.analysis.select import select
from steelyard.inputs.study import configuration_of
from steelyard.launch.plan import under_way
from steelyard.results.store import ResultFolder
from steelyard.terminal.batch import curve_object, curves_lines, has_enough
from steelyard.terminal.document import print_json


def run(arguments: argparse.Namespace) -> int:
    """Show the curves; exit code 1 when the knee of one cannot be determined."""
    folder = ResultFolder(arguments.results)
    curves = batch_curves(select(folder, arguments.selection), arguments.share)
    wider = None if all(map(has_enough, curves)) else _rest(folder, curves) or _wider(folder, arguments)
    if arguments.json:
        print_json({"shape": "batch/1", "curves": [curve_object(curve, wider) for curve in curves]})
    else:
        print("\n".join(curves_lines(curves, wider)))
    return 1 if any(curve.knee is None or curve.knee.answer == "cannot tell" for curve in curves) else 0


def _rest(folder: ResultFolder, curves: list[BatchCurve]) -> str | None:
    """Return the command of the study, if it was interrupted: the batches that lack may be in its file."""
    spec = curves[0].cells[0].cell.spec
    there = folder.run_ids(spec.study)
    # Further repeats of configurations that have a result add no batch.
    begun = {configuration_of(run) for run in there}
    left = {run for run in folder.planned(spec.study) if run not in there and configuration_of(run) not in begun}
    if left and left <= under_way(folder, spec.study):
        return f"steelyard status {spec.study}"
    known = spec.study_arguments and "" not in spec.study_arguments
    return shlex.join(["steelyard", *spec.study_arguments]) if left and known else None


def _wider(folder: ResultFolder, arguments: argparse.Namespace) -> str | None:
    """Return the command for the whole study, if only the selection has too few batches for a knee."""
    study, colon, _ = arguments.selection.partition(":")
    if not colon:
        return None
    whole = batch_curves(select(folder, study), arguments.share)
    return f"steelyard batch {study}" if any(map(has_enough, whole)) else None
