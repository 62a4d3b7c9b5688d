"""The states of the runs of a study that runs on this machine."""

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
    """The states of a study's runs. A search runs only some of its candidates, and their number is not known before."""

    def __init__(self, plan: Expansion, folder: ResultFolder) -> None:
        self.name = plan.study.name
        self.searches = bool(plan.searches)
        self.queued: Counter[str] = Counter()
        """Number of queued runs by configuration."""
        self.ended = 0
        """Number of runs that have ended."""
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
        """Mark a run as running, and queued runs before it in the study's order as already done by another process."""
        while self._order and self._order[0] != spec.run_id:
            passed = self._order.popleft()
            if self._state[passed] == "queued":
                self._set(passed, "already done")
        self._set(spec.run_id, "running")

    def end(self, record: RunRecord) -> None:
        """Mark a run with the status of its record."""
        self._set(record.run_id, state_of(record.status.code))

    def lines(self, columns: int, height: int) -> list[Text]:
        """Return the grid, drawn again only on a change: what is measured shares this machine."""
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
    """Yield every run with the label of its row: that of its configuration or of its search."""
    swept = {cell.name: cell.swept for cell in plan.cells}
    place = {cell: number for number, cell in enumerate(swept)}
    for spec in sorted(plan.runs, key=lambda spec: (place[spec.configuration], spec.repeat)):
        yield label(swept[spec.configuration]), spec
    for group in plan.searches:
        beside = {key: value for key, value in swept[group.runs[0].configuration].items() if key != "batch"}
        for spec in group.runs:
            yield label(beside), spec
