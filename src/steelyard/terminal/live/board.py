"""Which run of a study is in which state while it is made here. Knows the study and its folder, no terminal."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from steelyard.inputs.study import label
from steelyard.terminal.drawing import grid, state_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.text import Text

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec
    from steelyard.inputs.study import Expansion
    from steelyard.results.store import ResultFolder


class Board:
    """The states of a study's runs. A search makes only some of its candidates; how many is known at its end."""

    def __init__(self, plan: Expansion, folder: ResultFolder) -> None:
        self.name = plan.study.name
        self.searches = bool(plan.searches)
        self.queued: Counter[str] = Counter()
        """Runs to come, by cell."""
        self.ended = 0
        """Runs that are over."""
        self._before = "not tried" if self.searches else "queued"
        self._state: dict[str, str] = {}
        self._cell: dict[str, str] = {}
        self._rows: dict[str, list[str]] = {}
        self._order = deque(spec.run_id for spec in plan.runs)
        self._drawn: tuple[int, int, list[Text]] | None = None
        there = folder.run_ids(plan.study.name)
        for name, spec in _named(plan):
            self._rows.setdefault(name, []).append(spec.run_id)
            self._cell[spec.run_id] = spec.configuration
            self._set(spec.run_id, "already done" if spec.run_id in there else self._before)

    def begin(self, spec: RunSpec) -> None:
        """A run starts; those before it in the study's order are there, whoever made them."""
        while self._order and self._order[0] != spec.run_id:
            passed = self._order.popleft()
            if self._state[passed] == "queued":
                self._set(passed, "already done")
        self._set(spec.run_id, "running")

    def end(self, record: RunRecord) -> None:
        """A run has its record."""
        self._set(record.run_id, state_of(record.status.code))

    def lines(self, columns: int, height: int) -> list[Text]:
        """The grid. Drawn anew only where something has changed: what is being measured shares this machine."""
        if self._drawn is None or self._drawn[:2] != (columns, height):
            cells = {name: [self._state[run] for run in runs] for name, runs in self._rows.items()}
            self._drawn = (columns, height, grid(cells, columns, height))
        return self._drawn[2]

    def _set(self, run: str, state: str) -> None:
        old, cell = self._state.get(run, self._before), self._cell[run]
        open_states = (self._before, "running")
        self.ended += (state not in open_states) - (old not in open_states)
        self.queued[cell] += (state == "queued") - (run in self._state and old == "queued")
        self._state[run] = state
        self._drawn = None


def _named(plan: Expansion) -> Iterator[tuple[str, RunSpec]]:
    """Every run with the name of its row: its cell's, or that of the search it is a candidate of."""
    swept = {cell.name: cell.swept for cell in plan.cells}
    place = {cell: number for number, cell in enumerate(swept)}
    for spec in sorted(plan.runs, key=lambda spec: (place[spec.configuration], spec.repeat)):
        yield label(swept[spec.configuration]), spec
    for group in plan.searches:
        beside = {key: value for key, value in swept[group.runs[0].configuration].items() if key != "batch"}
        for spec in group.runs:
            yield label(beside), spec
