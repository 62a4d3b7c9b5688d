"""Pair rule: two energies with different scopes, or doubtful ones (SY410)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.rules.rule import Example, PairRule
from steelyard.rules.table.units import unit_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.finding import Finding
    from steelyard.rules.table.row import Pair


def is_of_energy(unit: str) -> bool:
    """Return whether a figure in this unit is an energy, a power, or per energy."""
    known = unit_of(unit)
    return unit.startswith("J/") or (known is not None and known[0] in ("energy", "power", "per_energy"))


class EnergiesNotAlike(PairRule):
    """Two energies with different scopes, or with a doubtful one."""

    code = "SY410"
    name = "different-energy-scope"
    severity = "warning"
    why = (
        "The energy of a GPU alone cannot be compared with the energy of a module that includes a CPU. And a ratio "
        "with a doubtful energy is itself doubtful."
    )
    detected = (
        "Both sides have an energy or a power, and their energy_scope differs or one of them is marked doubtful. A "
        "different scope is an error if the compared figure is an energy; otherwise it is a warning, and no ratio per "
        "watt is reported."
    )
    bad = Example(
        "system,model,energy_scope,metric,value,unit\n"
        "A,ResNet50,GPU only,energy,200,kJ\nB,ResNet50,module: CPU included,energy,260,kJ\n",
        "B's energy includes a CPU, A's does not.",
    )
    good = Example(
        "system,model,energy_scope,metric,value,unit\n"
        "A,ResNet50,GPU only,energy,200,kJ\nB,ResNet50,GPU only,energy,260,kJ\n",
        "Both energies include only the GPU.",
    )
    fix = "measure both sides with sensors of the same scope; find out why an energy is doubtful"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """Yield one finding for different scopes and one for doubtful energies."""
        if not all(any(is_of_energy(amount.unit) for amount in row.figures.values()) for row in (pair.a, pair.b)):
            return
        scopes = [row.get("energy_scope") for row in (pair.a, pair.b)]
        figure = pair.a.figures.get(pair.metric)
        energy = figure is not None and is_of_energy(figure.unit)
        if None not in scopes and scopes[0] != scopes[1]:
            message = f"the energies have different scopes: {scopes[0]} and {scopes[1]}"
            message += "" if energy else "; no ratio per watt is reported"
            yield self.found(message, place=pair.b.place, severity="error" if energy else "warning")
        doubts = [f"{row.place}: {doubt}" for row in (pair.a, pair.b) if (doubt := row.get("energy_doubts"))]
        if doubts and (energy or len(set(scopes)) == 1):
            what = "this ratio" if energy else "the ratio per watt"
            doubtful = next(row for row in (pair.a, pair.b) if row.get("energy_doubts"))
            yield self.found(
                f"{what} uses a doubtful energy",
                place=pair.b.place,
                evidence="; ".join(doubts),
                command=f"steelyard energy {doubtful.spec.study}" if doubtful.spec is not None else "",
            )
