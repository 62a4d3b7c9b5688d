"""Show the energy of results, compare it with other meters, and draw the power over time."""

import argparse
import sys

from steelyard.analysis.crosscheck import compare_meters
from steelyard.analysis.measured_energy import cells_with_energy, plotted
from steelyard.analysis.select import select
from steelyard.errors import printable
from steelyard.report.charts.power_svg import power_svg
from steelyard.results.store import ResultFolder
from steelyard.terminal.document import print_json
from steelyard.terminal.energy import energy_lines, energy_object, held_lines, summary_of


def run(arguments: argparse.Namespace) -> int:
    """Show the energy; exit code 1 when none of it is valid."""
    folder = ResultFolder(arguments.results)
    cells = cells_with_energy(folder, select(folder, arguments.selection))
    plot = plotted(folder, cells)
    trace = plot[1] if plot else None
    checks = compare_meters(
        folder,
        cells,
        meter=arguments.meter,
        scope=arguments.meter_scope,
        slurm=arguments.slurm,
        plugin=arguments.slurm_plugin,
    )
    if arguments.json:
        print_json(energy_object(cells, trace, checks))
    else:
        print("\n".join([*energy_lines(cells, trace), *held_lines(checks)]))
    if arguments.plot is not None:
        if plot is None or not plot[1].lines:
            print("no plot: no selected run has power readings", file=sys.stderr)
        else:
            entry, shown = plot
            title = f"Power of run {shown.run_id}"
            arguments.plot.write_text(power_svg(shown, title, summary_of(entry, shown)), encoding="utf-8")
            print(printable(f"plot of run {shown.run_id}: {arguments.plot}"), file=sys.stderr)
    return 0 if any(entry.verdict == "valid" for entry in cells) else 1
