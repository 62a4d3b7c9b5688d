"""What a sample, an epoch and a phase cost in joules, whether to believe it, and the power over time as a picture."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from steelyard.analysis.crosscheck import compare_meters
from steelyard.analysis.energy import cells_with_energy, plotted
from steelyard.analysis.select import FORMS, select
from steelyard.cli.verb import add_results
from steelyard.errors import printable
from steelyard.report.charts.power_svg import power_svg
from steelyard.results.store import ResultFolder
from steelyard.terminal.energy import energy_lines, energy_object, held_lines, summary_of


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument("selection", help=f"what to look at: {FORMS}")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.svg",
        help="draw the power over time of the selected run, or of the first one with an energy",
    )  # fmt: skip
    parser.add_argument(
        "--meter", type=Path, metavar="FILE.csv",
        help="hold one run against a wattmeter's readings (timestamp,power_w; docs/sensors.md)",
    )  # fmt: skip
    parser.add_argument(
        "--meter-scope", choices=("device", "module", "cpu", "node"),
        help="what the meter counts; without it only the figures are shown",
    )  # fmt: skip
    parser.add_argument("--slurm", type=Path, metavar="FILE", help="hold one run against a saved answer of sacct")
    parser.add_argument("--slurm-plugin", metavar="NAME", help="the site's AcctGatherEnergyType, such as ipmi or rapl")
    add_results(parser)


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when an energy that is valid was shown."""
    folder = ResultFolder(arguments.results)
    cells = cells_with_energy(folder, select(folder, arguments.selection))
    found = plotted(folder, cells)
    trace = found[1] if found else None
    checks = compare_meters(
        folder, cells, meter=arguments.meter, scope=arguments.meter_scope, slurm=arguments.slurm,
        plugin=arguments.slurm_plugin,
    )  # fmt: skip
    if arguments.json:
        beside = {name: dataclasses.asdict(check) for name, check in checks.items()}
        print(json.dumps({**energy_object(cells, trace), "held_against": beside}, allow_nan=False))
    else:
        print("\n".join([*energy_lines(cells, trace), *held_lines(checks)]))
    if arguments.plot is not None:
        if found is None or not found[1].lines:
            print("no picture: no run of the selection has readings of power", file=sys.stderr)
        else:
            entry, shown = found
            title = f"Power of run {shown.run_id}"
            arguments.plot.write_text(power_svg(shown, title, summary_of(entry, shown)), encoding="utf-8")
            print(printable(f"picture of run {shown.run_id}: {arguments.plot}"), file=sys.stderr)
    return 0 if any(entry.verdict == "valid" for entry in cells) else 1
