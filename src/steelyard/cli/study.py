"""Run a sweep from a study file: every combination, interleaved in random order, resumed where it stopped."""

import argparse
import json
from pathlib import Path
from typing import Any

from steelyard import registry
from steelyard.analysis.summary import summarise
from steelyard.cli.progress import Progress
from steelyard.cli.tables import cells_as_json, print_cells
from steelyard.cli.verb import add_results, exit_code
from steelyard.launch.campaign import run_all
from steelyard.report.text import table
from steelyard.results.store import ResultFolder
from steelyard.spec.cost import cost
from steelyard.spec.study import Expansion, expand, label, load_study, require_registered


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument("file", type=Path, help="study file (TOML)")
    parser.add_argument("--dry-run", action="store_true", help="show cells, order and cost; run nothing")
    add_results(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run what is missing; exit code 0 when every run of the study completed."""
    expansion = expand(load_study(arguments.file), arguments.file.parent)
    require_registered(expansion)
    folder = ResultFolder(arguments.results)
    if arguments.dry_run:
        _show_plan(arguments, expansion, folder)
        return 0
    launcher = registry.load("launcher", "local")()
    outcome = run_all(folder, expansion, launcher, Progress())
    records = [folder.read(folder.run_path(spec)) for spec in expansion.runs]
    order = {cell.name: number for number, cell in enumerate(expansion.cells)}
    cells = sorted(summarise(records), key=lambda cell: order.get(cell.cell, len(order)))
    if arguments.json:
        print(json.dumps({"made": len(outcome.made), "skipped": outcome.skipped, "cells": cells_as_json(cells)}))
    else:
        print_cells(cells)
    return exit_code(records)


def _show_plan(arguments: argparse.Namespace, expansion: Expansion, folder: ResultFolder) -> None:
    price = cost(expansion)
    there = sum(folder.has(spec) for spec in expansion.runs)
    if arguments.json:
        plan: dict[str, Any] = {
            "study": expansion.study.name,
            "cells": [{"cell": cell.name, "swept": cell.swept} for cell in expansion.cells],
            "order": [spec.run_id for spec in expansion.runs],
            "there": there,
            "device_hours_at_most": price.device_hours,
        }
        print(json.dumps(plan))
        return
    rows = [[label(cell.swept), str(cell.spec.ranks), str(expansion.study.repeats)] for cell in expansion.cells]
    print(table(["cell", "devices", "runs"], rows))
    print(f"\n{len(expansion.runs)} runs, {there} of them there already, in random order (seed {expansion.study.seed})")
    hours = "unknown" if price.device_hours is None else f"at most {price.device_hours:.3g} device-hours"
    print(f"measured time: {hours} ({price.basis})")
