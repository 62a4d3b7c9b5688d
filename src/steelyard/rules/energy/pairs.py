"""The rule on two energies that are to be compared (SY410). Knows what each counts; not how sensors are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.rules.rule import Example, PairRule
from steelyard.rules.table.units import unit_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import Finding
    from steelyard.rules.table.row import Pair


def _is_of_energy(unit: str) -> bool:
    """Whether a figure in this unit is made of joules or watts."""
    known = unit_of(unit)
    return unit.startswith("J/") or (known is not None and known[0] in ("energy", "power", "per_energy"))


class EnergiesNotAlike(PairRule):
    """Two energies that do not count the same, or that are doubtful."""

    code = "SY410"
    name = "energies-not-alike"
    severity = "warning"
    why = (
        "Joules of a GPU alone beside joules of a module with its CPU say nothing about the GPUs. And a ratio of a "
        "doubtful energy is as doubtful as that energy."
    )
    detected = (
        "Both sides have an energy or a power, and they state different things that were counted (energy_scope), or "
        "one of them is marked doubtful. Other things counted: blocks where the figure is an energy; beside a speed it "
        "is disclosed, and no ratio per watt is given."
    )
    bad = Example(
        "system,model,energy_scope,metric,value,unit\n"
        "A,ResNet50,GPU only,energy,200,kJ\nB,ResNet50,module: CPU included,energy,260,kJ\n",
        "B's energy holds a CPU, and A's does not.",
    )
    good = Example(
        "system,model,energy_scope,metric,value,unit\n"
        "A,ResNet50,GPU only,energy,200,kJ\nB,ResNet50,GPU only,energy,260,kJ\n",
        "Both count the GPU alone.",
    )
    fix = "measure both sides with sensors of the same scope; see `steelyard energy` for the reasons of a doubt"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """One finding on what is counted, one on doubts."""
        if not all(any(_is_of_energy(amount.unit) for amount in row.figures.values()) for row in (pair.a, pair.b)):
            return
        scopes = [row.get("energy_scope") for row in (pair.a, pair.b)]
        figure = pair.a.figures.get(pair.metric)
        energy = figure is not None and _is_of_energy(figure.unit)
        if None not in scopes and scopes[0] != scopes[1]:
            message = f"the energies do not count the same: {scopes[0]!r} and {scopes[1]!r}"
            message += "" if energy else "; no ratio per watt is given"
            yield self.found(message, place=pair.b.place, severity="error" if energy else "warning")
        doubts = [f"{row.place}: {told}" for row in (pair.a, pair.b) if (told := row.get("energy_doubts"))]
        if doubts and (energy or len(set(scopes)) == 1):
            what = "this ratio" if energy else "the ratio per watt"
            yield self.found(f"{what} rests on a doubtful energy", place=pair.b.place, evidence="; ".join(doubts))
