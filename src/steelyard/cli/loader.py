"""Measure a workload's input pipeline without the model, by worker count, and say which runs would wait for data."""

import argparse
import json
from typing import Any

from steelyard.analysis.bound import Forecast, forecast, has_queue
from steelyard.analysis.summary import job_throughput
from steelyard.cli import run as run_verb
from steelyard.cli.verb import exit_code
from steelyard.contracts.base import to_json_object
from steelyard.contracts.record import Quantity, RunRecord
from steelyard.errors import InputError, Problem
from steelyard.inputs.study import require_registered, single_run
from steelyard.launch.allocation import launcher_here
from steelyard.launch.local_study import run_all
from steelyard.results.store import ResultFolder
from steelyard.terminal.live.progress import Progress, loudness
from steelyard.terminal.text import number, table, with_interval

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
    counts = _counts(arguments.workers)
    settings = run_verb.settings(arguments)
    settings["budget"] = {**BUDGET, **settings["budget"]}
    # A rate is measured, not a training.
    settings["budget"].pop("epochs", None)
    settings.pop("quality", None)
    folder = ResultFolder(arguments.results)
    alone = {key: value for key, value in settings.items() if key not in ("data", "loader")}
    device = _measured(arguments, folder, alone)
    rows = []
    for count in counts:
        loader = {**settings.get("loader", {}), "workers": count}
        rows.append((count, _measured(arguments, folder, {**settings, "mode": "load", "loader": loader})))
    records = [*device, *(record for _, made in rows for record in made)]
    queued = all(has_queue(record) for record in device)
    rates = [(count, job_throughput(made)) for count, made in rows]
    model = job_throughput(device)
    _print(arguments, model, [(n, rate, forecast(rate, model, overlaps=n > 0 or queued)) for n, rate in rates])
    return exit_code(records)


def _measured(arguments: argparse.Namespace, folder: ResultFolder, settings: dict[str, Any]) -> list[RunRecord]:
    expansion = single_run(
        settings,
        study=arguments.study,
        seed=arguments.seed,
        repeats=arguments.repeats,
        taken=lambda study: folder.run_ids(study) | folder.ids_being_made(),
    )
    require_registered(expansion)
    with Progress(loudness(arguments), expansion, folder) as progress:
        return list(run_all(folder, expansion, launcher_here(progress.say), progress).made)


def _print(arguments: argparse.Namespace, device: Quantity, told: list[tuple[int, Quantity, Forecast | None]]) -> None:
    if arguments.json:
        pipelines = [
            {"workers": count, "pipeline": to_json_object(rate), "forecast": _as_json(found)}
            for count, rate, found in told
        ]
        print(json.dumps({"model_alone": to_json_object(device), "pipelines": pipelines}))
        return
    print(f"the model alone, on synthetic data that is on the device: {with_interval(device)} samples/s\n")
    lines = [[str(count), with_interval(rate), *_words(found)] for count, rate, found in told]
    print(
        table(["workers", "pipeline alone, samples/s", "the full run would be", "waits", "at most, samples/s"], lines)
    )
    if device.interval is not None:
        print("[]: 95 % interval; the forecast holds where the pipeline has CPUs that the model does not use")


def _words(found: Forecast | None) -> list[str]:
    if found is None:
        return ["unknown", "-", "-"]
    return [found.bound, f"{100 * found.wait_share:.0f} %", number(found.rate)]


def _as_json(found: Forecast | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"bound": found.bound, "wait_share": found.wait_share, "samples_per_s_at_most": found.rate}


def _counts(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts):
        problem = Problem("--workers", f"{text[:100]!r} is no list of counts", "such as 0,1,2,4")
        raise InputError("an option is not valid", problems=(problem,))
    return list(dict.fromkeys(int(part) for part in parts))
