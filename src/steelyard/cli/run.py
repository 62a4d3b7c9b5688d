"""Measure a workload on this machine and print a table, or its input pipeline and which runs would wait for it."""

import argparse
from typing import Any

from steelyard.cli.options.run import LOAD_BUDGET, LOAD_WORKERS
from steelyard.cli.parser import OptionError
from steelyard.cli.verb import counted_if_interrupted, exit_code
from steelyard.contracts.base import to_json_object
from steelyard.contracts.observe import MEASURED
from steelyard.contracts.record import RunRecord
from steelyard.errors import InputError
from steelyard.inputs.study import assign, require_registered, single_run
from steelyard.launch.allocation import launcher_here
from steelyard.launch.local_study import run_all
from steelyard.results.store import ResultFolder
from steelyard.terminal.document import print_json
from steelyard.terminal.live.progress import Progress, loudness

COMMAND = "steelyard run"
# Options that are settings of the RunSpec under the same name, and those of its parts.
SETTINGS = (
    "device", "mode", "devices", "batch", "accumulation", "learning_rate", "precision", "compile", "parallel",
    "backend", "kv_cache", "threads", "preset", "cudnn_benchmark", "optimizer_kernel", "gradient_as_bucket_view",
    "attention", "numa", "data", "weights", "epoch_samples", "last_batch", "time_limit_s", "hang_limit_s",
)  # fmt: skip
SWITCHES = ("autocast", "graphs", "channels_last", "deterministic")
PARTS = {
    "budget": ("min_steps", "min_seconds", "rel_half_width", "max_steps", "max_seconds", "max_extension", "epochs"),
    "quality": ("target", "every_epochs"),
    "loader": ("prefetch", "pin_memory"),
}


def run(arguments: argparse.Namespace) -> int:
    """Launch the repeats; exit code 0 when all completed."""
    if arguments.workload.endswith(".toml"):
        problem = f"{arguments.workload} is a study or a recipe, not a workload"
        raise InputError(problem, next_step=f"steelyard study {arguments.workload}")
    folder = ResultFolder(arguments.results)
    chosen = settings(arguments)
    if chosen.get("mode") == "load":
        return _measure_pipeline(arguments, folder, chosen)
    made = measure(arguments, folder, chosen)
    _tell(arguments, folder, made)
    return exit_code(made)


def _tell(arguments: argparse.Namespace, folder: ResultFolder, made: list[RunRecord]) -> None:
    """Print what was measured."""
    # Imported after the run, so that it starts at once.
    from steelyard.analysis.summary import summarise
    from steelyard.audit.expect import expect_of
    from steelyard.terminal.expect import expected_object, run_line
    from steelyard.terminal.plain import shown_configurations
    from steelyard.terminal.tables import cells_lines

    cells = summarise(made)
    # A simulated device is no machine that others could have.
    measured = [cell for cell in cells if {*cell.statuses} & {*MEASURED} and cell.spec.device_family != "sim"]
    expected = [expect_of(folder, cell) for cell in measured]
    if arguments.json:
        told = [expected_object(entry) for entry in expected]
        records = [to_json_object(record) for record in made]
        shown = shown_configurations(cells)
        print_json({"shape": "run/1", "configurations": shown, "expected": told, "runs": records})
    else:
        print("\n".join([*cells_lines(cells, detail=True), *(line for entry in expected for line in run_line(entry))]))


def measure(arguments: argparse.Namespace, folder: ResultFolder, chosen: dict[str, Any]) -> list[RunRecord]:
    """Run the repeats here with these settings and return their records."""
    expansion = single_run(
        chosen,
        study=arguments.study,
        seed=arguments.seed,
        repeats=arguments.repeats,
        taken=lambda study: folder.run_ids(study) | folder.ids_being_made(),
    )
    require_registered(expansion)
    # The same command would begin again.
    with (
        counted_if_interrupted(folder, expansion, lambda _: ""),
        Progress(loudness(arguments), expansion, folder) as progress,
    ):
        launcher = launcher_here(progress.say, expansion.runs)
        return list(run_all(folder, expansion, launcher, progress, keeps_refused=False).made)


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings of the run, as the options give them."""
    chosen: dict[str, Any] = {"workload": arguments.workload, "budget": {}}
    chosen |= {name: value for name in SETTINGS if (value := getattr(arguments, name)) is not None}
    chosen |= {name: True for name in SWITCHES if getattr(arguments, name)}
    parts = {
        part: {name: value for name in names if (value := getattr(arguments, name)) is not None}
        for part, names in PARTS.items()
    }
    if arguments.loader_workers is not None:
        parts["loader"]["workers"] = arguments.loader_workers[0]
    chosen |= {part: values for part, values in parts.items() if values}
    for key, value in arguments.model:
        assign(chosen, f"model.{key}", value)
    for key, value in arguments.assignments:
        assign(chosen, key, value)
    if len(arguments.loader_workers or ()) > 1 and chosen.get("mode") != "load":
        listed = ",".join(map(str, arguments.loader_workers))
        raise OptionError(f"--loader-workers {listed}: several counts need --mode load", COMMAND)
    return chosen


def _measure_pipeline(arguments: argparse.Namespace, folder: ResultFolder, chosen: dict[str, Any]) -> int:
    """Measure the model alone, then the pipeline alone for every worker count; exit code 0 when all completed."""
    chosen["budget"] = {**LOAD_BUDGET, **chosen["budget"]}
    # A rate is measured, not a training.
    chosen["budget"].pop("epochs", None)
    chosen.pop("quality", None)
    alone = {key: value for key, value in chosen.items() if key not in ("data", "loader", "mode")}
    device = measure(arguments, folder, alone)
    chosen.pop("weights", None)
    rows = []
    for count in arguments.loader_workers or LOAD_WORKERS:
        loader = {**chosen.get("loader", {}), "workers": count}
        rows.append((count, measure(arguments, folder, {**chosen, "loader": loader})))
    from steelyard.analysis.bound import forecast, has_queue
    from steelyard.analysis.summary import job_throughput, rated
    from steelyard.terminal.loader import loader_lines, loader_object

    queued = all(has_queue(record) for record in device)
    model = job_throughput(device)
    rates = [(count, job_throughput(made)) for count, made in rows]
    told = [(count, rate, forecast(rate, model, overlaps=count > 0 or queued)) for count, rate in rates]
    if arguments.json:
        print_json(loader_object(model, told, [rated(made) for made in (device, *(made for _, made in rows))]))
    else:
        print("\n".join(loader_lines(model, told)))
    return exit_code([*device, *(record for _, made in rows for record in made)])
