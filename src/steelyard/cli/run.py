"""Measure a workload on this machine and print a small honest table."""

import argparse
import json
from typing import Any

from steelyard import plugins
from steelyard.analysis.summary import summarise
from steelyard.cli.verb import add_loudness, add_results, assignment, exit_code
from steelyard.contracts.base import to_json_object
from steelyard.contracts.record import RunRecord
from steelyard.inputs.study import assign, require_registered, single_run
from steelyard.launch.allocation import launcher_here
from steelyard.launch.local_study import run_all
from steelyard.results.store import ResultFolder
from steelyard.terminal.live.progress import Progress, loudness
from steelyard.terminal.tables import cells_lines

# Options that are settings of the RunSpec under the same name, and those of its budget.
SETTINGS: dict[str, tuple[type, str]] = {
    "device": (str, "device family; auto takes the accelerator that is there"),
    "mode": (str, "train, infer, generate (tokens), load (the input pipeline alone) or ceiling"),
    "ranks": (int, "ranks of the job, one device and (but for sim) one process each; --nproc is the same"),
    "batch": (int, "samples in one micro-batch on one device"),
    "accumulation": (int, "micro-batches to one optimizer step"),
    "learning_rate": (float, "of the optimizer; the workload's own is small, for random labels"),
    "precision": (str, "fp32, tf32, bf16 or fp16"),
    "compile": (str, "off, default, reduce-overhead or max-autotune"),
    "parallel": (str, "ddp or fsdp2"),
    "backend": (str, "of the collectives, such as nccl or gloo"),
    "threads": (int, "CPU threads a rank"),
    "epoch_samples": (int, "samples in one epoch"),
    "last_batch": (str, "drop, pad or keep the last partial batch"),
    "time_limit_s": (float, "end the run after so many seconds of wall time"),
    "hang_limit_s": (float, "end a run whose steps stand still for so long"),
}
SWITCHES = {
    "channels_last": "put the channel dimension last in memory",
    "deterministic": "only algorithms that give the same bits every time",
    "numa": "bind each rank to the CPUs beside its device",
}
LOADER: dict[str, tuple[type, str]] = {
    "data": (str, "synthetic data on the device or on the host; or real data as FORMAT:PATH (see steelyard data)"),
    "loader_workers": (int, "loader processes a rank (data on the host)"),
    "prefetch": (int, "batches each loader process keeps ready"),
}
QUALITY: dict[str, tuple[type, str]] = {
    "target": (float, "train until the workload's metric is this good (needs --data and --epochs, the most to train)"),
    "evaluate_every": (int, "evaluate after so many epochs, and after the last"),
}
BUDGET: dict[str, tuple[type, str]] = {
    "min_steps": (int, "measure at least so many steps"),
    "min_seconds": (float, "measure at least so many seconds"),
    "rel_half_width": (float, "until the interval's half-width is this share of the mean"),
    "max_steps": (int, "never more than so many steps"),
    "max_seconds": (float, "never more than so many seconds"),
    "epochs": (int, "exactly so many epochs instead"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument(
        "workload",
        help=f"one of {', '.join(plugins.names('workload'))}; or a function of your own: ./my.py:build",
    )
    for name, (kind, text) in {**SETTINGS, **LOADER, **QUALITY, **BUDGET}.items():
        also = ["--nproc"] if name == "ranks" else []
        parser.add_argument(f"--{name.replace('_', '-')}", *also, type=kind, default=None, help=text)
    for name, text in {**SWITCHES, "pin_memory": "pinned memory for data from the host"}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=text)
    parser.add_argument(
        "--model", action="append", default=[], metavar="KEY=VALUE", help="an option of the model, such as size=800M"
    )
    parser.add_argument("--repeats", type=int, default=1, help="fresh launches; three or more give an interval")
    parser.add_argument("--seed", type=int, default=0, help="decides all that is random")
    parser.add_argument("--study", default="adhoc", help="name under which the runs are kept")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="assignments",
        help="any other setting, such as --set sim.step_time_s=0.02 (JSON values)",
    )  # fmt: skip
    add_loudness(parser)
    add_results(parser)


def run(arguments: argparse.Namespace) -> int:
    """Launch the repeats; exit code 0 when all completed."""
    made = measure(arguments, ResultFolder(arguments.results), settings(arguments))
    if arguments.json:
        print(json.dumps({"runs": [to_json_object(record) for record in made]}))
    else:
        print("\n".join(cells_lines(summarise(made), detail=True)))
    return exit_code(made)


def measure(arguments: argparse.Namespace, folder: ResultFolder, chosen: dict[str, Any]) -> list[RunRecord]:
    """The records of the repeats, made here with these settings."""
    expansion = single_run(
        chosen,
        study=arguments.study,
        seed=arguments.seed,
        repeats=arguments.repeats,
        taken=lambda study: folder.run_ids(study) | folder.ids_being_made(),
    )
    require_registered(expansion)
    with Progress(loudness(arguments), expansion, folder) as progress:
        return list(run_all(folder, expansion, launcher_here(progress.say), progress).made)


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The run's settings as the options give them."""
    chosen: dict[str, Any] = {"workload": arguments.workload}
    chosen |= {name: value for name in SETTINGS if (value := getattr(arguments, name)) is not None}
    chosen |= {name: True for name in SWITCHES if getattr(arguments, name)}
    chosen["budget"] = {name: value for name in BUDGET if (value := getattr(arguments, name)) is not None}
    if arguments.data is not None:
        chosen["data"] = arguments.data
    quality = {"target": arguments.target, "every_epochs": arguments.evaluate_every}
    quality = {name: value for name, value in quality.items() if value is not None}
    if quality:
        chosen["quality"] = quality
    loader = {"workers": arguments.loader_workers, "prefetch": arguments.prefetch}
    loader = {name: value for name, value in loader.items() if value is not None}
    if arguments.pin_memory:
        loader["pin_memory"] = True
    if loader:
        chosen["loader"] = loader
    for text in arguments.model:
        key, value = assignment("--model", text)
        assign(chosen, f"model.{key}", value)
    for text in arguments.assignments:
        assign(chosen, *assignment("--set", text))
    return chosen
