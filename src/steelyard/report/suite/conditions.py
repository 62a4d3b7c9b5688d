"""What must hold for an answer: settings that change the figure and that the document does not state."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from string import ascii_lowercase
from typing import TYPE_CHECKING

from steelyard.report.page import Cell, Column, Table
from steelyard.rules.energy.pairs import is_of_energy
from steelyard.rules.table.row import Pair
from steelyard.rules.table.settings import (
    SETTINGS,
    about_quality,
    about_training,
    implied,
    meant_to_differ,
    of_steps,
    unclear,
)
from steelyard.terminal.text import many

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from steelyard.analysis.compare import Comparison
    from steelyard.rules.table.row import Row

OURS_ALONE = ("preset", "build", "variables", "container")
OF_SETTINGS, OF_ENERGIES = "SY1", "SY4"
UNKNOWN = "SY108"
WITH_MODEL = {"model_options", "optimizer", "sequence_length"}
"""Settings that follow from the model, and that two models may still share."""
UNRELATED = ("system", "size", "environment", "evidence")
NAMES = {
    "model_options": "options of the model, such as the resolution",
    "batch": "batch of a device",
    "learning_rate": "learning rate",
    "sequence_length": "length of the sequences",
    "last_batch": "last batch of an epoch",
    "data_identity": "files of the data set",
    "epoch_samples": "samples of an epoch",
    "float32_products": "number format of fp32 products",
    "float32_convolutions": "number format of fp32 convolutions",
    "parameter_precision": "number format of the weights",
    "global_batch": "batch of the job",
    "loader.place": "place of the data",
    "loader.workers": "loader processes",
    "loader.prefetch": "prefetching",
    "loader.pin_memory": "pinned memory",
    "filesystem": "file system",
    "compile": "compilation",
    "channels_last": "memory format",
    "deterministic": "deterministic algorithms",
    "numa": "NUMA binding",
}
"""Names of settings for readers of a document."""


def unstated(pair: Pair, ours: Sequence[Row]) -> Iterator[str]:
    """Yield the settings that a row of the pair does not state, that our rows have, and that change the figure."""
    # The batch of the job follows from that of a device, the accumulation and the number of devices.
    meant = meant_to_differ(pair) - (WITH_MODEL if pair.factor == "model" else set()) | {"global_batch"}
    for key, role in SETTINGS.items():
        missing = pair.a.get(key) is None or pair.b.get(key) is None
        known = any(row.get(key) is not None for row in ours)
        related = key not in meant and role not in UNRELATED and key not in OURS_ALONE and not implied(pair, key)
        if missing and known and related and _changes(key, pair):
            yield key


def _changes(key: str, pair: Pair) -> bool:
    """Return whether a setting changes a figure of this kind."""
    if key == "epochs":
        return about_training(pair.metric)
    if SETTINGS[key] == "training":
        return about_quality(pair.metric)
    return SETTINGS[key] != "amount" or not of_steps(pair.metric, pair.a.figures.get(pair.metric))


@dataclass(frozen=True)
class Condition:
    """What must hold for an answer, or is different here."""

    text: str
    """What rows share."""
    keys: tuple[str, ...] = ()
    """Settings that must be the same because the document does not state them."""
    values: str = ""
    """What differs from row to row."""

    @property
    def whole(self) -> str:
        """The condition in full."""
        return ": ".join(filter(None, (self.text, listed(self.keys), self.values)))


def warned(made: Comparison, where: str = "") -> Iterator[Condition]:
    """Yield the warnings of the rules on settings, and for an energy those on energies; none on unknown settings."""
    energy = any(is_of_energy(row.figures[made.metric].unit) for row in (made.a, made.b))
    about = (OF_SETTINGS, OF_ENERGIES) if energy else OF_SETTINGS
    for finding in made.findings:
        if finding.severity == "warning" and finding.code.startswith(about) and finding.code != UNKNOWN:
            meaning, _, values = finding.message.partition(": ")
            yield Condition(f"{finding.code}: {meaning}{where}", values=values)


def conditions_of(made: Comparison, *, without: str = "") -> Iterator[Condition]:
    """Yield what must hold for a ratio of our figure to a printed one; `without`: the setting that is asked for."""
    pair = Pair(made.a, made.b, made.factor, made.metric)
    if keys := [key for key in unstated(pair, [made.b]) if key != without]:
        yield Condition("if it is the same in the document, which does not say", tuple(keys))
    uncertain = unclear(pair)
    if alike := [text for text in uncertain if " vs " in text]:
        yield Condition(f"if these mean the same: {', '.join(alike)}")
    if theirs := [text for text in uncertain if text not in alike and pair.a.get(text.partition(" (")[0]) is not None]:
        yield Condition(f"if it is the same here, where it is not known: {', '.join(theirs)}")
    yield from warned(made)


class Letters:
    """Conditions as letters in the rows of tables, explained below them."""

    def __init__(self, every: Sequence[str]) -> None:
        self._every = every
        """Unstated settings of every answer of the page, which says them once."""
        self._places: dict[tuple[str, tuple[str, ...]], int] = {}
        self._values: defaultdict[int, list[str]] = defaultdict(list)

    def cell(self, conditions: Iterable[Condition]) -> Cell:
        """Return the letters of some conditions; the texts themselves, in full, are for machines."""
        conditions = list(dict.fromkeys(conditions))
        places = []
        for one in conditions:
            rest = tuple(key for key in one.keys if key not in self._every)
            if one.keys and not rest:
                continue
            place = self._places.setdefault((one.text, rest), len(self._places))
            places.append(place)
            if one.values and one.values not in self._values[place]:
                self._values[place].append(one.values)
        told = ", ".join(_letter(place) for place in sorted({*places}))
        return Cell(told or "-", "; ".join(one.whole for one in conditions) or None)

    @staticmethod
    def of_rows(cells: Sequence[Cell]) -> str:
        """Return the letters that all rows with conditions have, and those that only some have."""
        rows = [cell.text.split(", ") for cell in cells if cell.value is not None and cell.text != "-"]
        letters = sorted({letter for row in rows for letter in row})
        shared = [letter for letter in letters if all(letter in row for row in rows)]
        some = [letter for letter in letters if letter not in shared]
        told = [", ".join(shared), f"of some {', '.join(some)}" if some else ""]
        return "; ".join(filter(None, told))

    def table(self, name: str) -> Table | None:
        """Return what the letters mean; None if there are none."""
        rows = [
            (Cell(_letter(place)), Cell(Condition(text, keys, "; ".join(self._values[place])).whole))
            for (text, keys), place in self._places.items()
        ]
        if not rows:
            return None
        ends = dict.fromkeys((rows[0][0].text, rows[-1][0].text))
        settings = len({key for _, keys in self._places for key in keys})
        told = ["differences"] if any(not keys for _, keys in self._places) else []
        told += [many(settings, "unstated setting")] if settings else []
        title = f"Condition{'s' * (len(ends) > 1)} {' to '.join(ends)}: {', and '.join(told)}"
        columns = (Column("letter", align="left"), Column("condition", align="left"))
        notes = ("The conditions of every answer hold too.",) if self._every else ()
        return Table(name, title, columns, tuple(rows), notes, folded=True)


def _letter(place: int) -> str:
    return ascii_lowercase[place] if place < len(ascii_lowercase) else str(place + 1)


def listed(keys: Sequence[str]) -> str:
    """Return the names of settings in one line."""
    return ", ".join(NAMES.get(key, key.replace("_", " ")) for key in keys)
