"""Measure a workload's input pipeline without the model, by worker count, and say which runs would wait for data."""

import argparse
import json

from steelyard.analysis.bound import forecast, has_queue
from steelyard.analysis.summary import job_throughput
from steelyard.cli import run as run_verb
from steelyard.cli.verb import exit_code
from steelyard.errors import InputError, Problem
from steelyard.results.store import ResultFolder
from steelyard.terminal.loader import loader_lines, loader_object

# A pipeline's rate is known soon; what a run's own budget says goes before these.
BUDGET = {"min_steps": 50, "max_seconds": 20.0}


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the verb: those of `run`, and the worker counts to try."""
    run_verb.configure(parser)
    parser.set_defaults(study="loader")
    parser.add_argument(
        "--workers", default="0,1,2", metavar="N,N,...", help="loader processes a rank to try (default: 0,1,2)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure the model alone, then the pipeline alone for every worker count; exit code 0 when all completed."""
    parts = arguments.workers.split(",")
    if not all(part.strip().isdigit() for part in parts):
        problem = Problem("--workers", f"{arguments.workers[:100]!r} is no list of counts", "such as 0,1,2,4")
        raise InputError("an option is not valid", problems=(problem,))
    settings = run_verb.settings(arguments)
    settings["budget"] = {**BUDGET, **settings["budget"]}
    # A rate is measured, not a training.
    settings["budget"].pop("epochs", None)
    settings.pop("quality", None)
    folder = ResultFolder(arguments.results)
    alone = {key: value for key, value in settings.items() if key not in ("data", "loader")}
    device = run_verb.measure(arguments, folder, alone)
    rows = []
    for count in dict.fromkeys(map(int, parts)):
        loader = {**settings.get("loader", {}), "workers": count}
        rows.append((count, run_verb.measure(arguments, folder, {**settings, "mode": "load", "loader": loader})))
    records = [*device, *(record for _, made in rows for record in made)]
    queued = all(has_queue(record) for record in device)
    model = job_throughput(device)
    rates = [(count, job_throughput(made)) for count, made in rows]
    told = [(count, rate, forecast(rate, model, overlaps=count > 0 or queued)) for count, rate in rates]
    print(json.dumps(loader_object(model, told)) if arguments.json else "\n".join(loader_lines(model, told)))
    return exit_code(records)
