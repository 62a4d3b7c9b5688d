"""Rank the configurations of a study."""

import argparse

from steelyard.analysis.best import rank
from steelyard.analysis.measured_energy import cells_with_energy
from steelyard.analysis.request import Tariff, tariff_of
from steelyard.analysis.select import select
from steelyard.inputs.site import find_place
from steelyard.launch.plan import campaigns
from steelyard.results.store import ResultFolder
from steelyard.terminal.best import ranking_lines, ranking_object
from steelyard.terminal.document import print_json


def run(arguments: argparse.Namespace) -> int:
    """Rank them; exit code 1 when no configuration is reliable."""
    folder = ResultFolder(arguments.results)
    cells = select(folder, arguments.selection)
    energies = cells_with_energy(folder, cells) if arguments.by == "energy" else []
    tariff = _find_tariff(folder, cells[0].study, arguments.site) if arguments.by == "cost" else None
    rankings = rank(cells, arguments.by, tariff=tariff, energies=energies)
    if arguments.json:
        print_json({"shape": "best/1", "rankings": [ranking_object(ranking) for ranking in rankings]})
    else:
        print("\n".join(ranking_lines(rankings)))
    return 0 if any(ranking.best for ranking in rankings) else 1


def _find_tariff(folder: ResultFolder, study: str, site: str | None) -> Tariff | None:
    """Return the prices of the given site, or of the one where the study ran last; None if nothing is charged."""
    ran = campaigns(folder, study)
    place = find_place(site) if site is not None else ran[-1].plan.place if ran else None
    if place is None:
        return None
    tariff = tariff_of(place)
    return tariff if tariff.hourly(1) > 0 else None
