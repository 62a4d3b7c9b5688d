"""Runs of simulated devices in this process, on a clock that each moves by as long as it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.analysis.probe import run_s
from steelyard.contracts.observe import MEASURED, Launch
from steelyard.launch.local_study import run_all
from steelyard.worker.engine.run import run_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec
    from steelyard.inputs.study import Expansion
    from steelyard.launch.local_study import Outcome
    from steelyard.results.store import ResultFolder

FAILS_AFTER_S = 30.0


class SimulatedTime:
    """The launcher and the watcher of studies, with their clock."""

    def __init__(self, folder: ResultFolder, broken: Collection[str] = ()) -> None:
        """`broken`: configurations whose runs die."""
        self._folder, self._broken = folder, broken
        self.now_s = 0.0
        self.starts: list[tuple[float, RunSpec]] = []
        self.longest_s = 0.0

    def clock(self) -> float:
        """Return the time."""
        return self.now_s

    def make(self, _: str, expansion: Expansion, wanted: Callable[[RunSpec], bool]) -> Outcome:
        """Make the wanted runs of a study."""
        return run_all(self._folder, expansion, self, self, wanted=wanted)

    def run(self, spec: RunSpec, raw: Path, _: object) -> Launch:
        """Make one run."""
        dies = spec.configuration in self._broken
        if not dies:
            run_directory(raw)
        return Launch(
            launcher="local", host="simulated", command=("simulated",), started_at="2026-01-01T00:00:00.000+00:00",
            wall_s=0.0, exit_code=int(dies), limit_hit=False,
        )  # fmt: skip

    def begin(self, spec: RunSpec, *_: object) -> None:
        """Note when a run starts."""
        self.starts.append((self.now_s, spec))

    def tick(self, _: object) -> None:
        """Do nothing: time passes when a run ends."""

    def end(self, record: RunRecord, *_: object) -> None:
        """Let the time of a run pass."""
        self.now_s += time_of(record)
        self.longest_s = max(self.longest_s, time_of(record))


def time_of(record: RunRecord) -> float:
    """Return how long a run took."""
    return max(run_s(record), 0.0 if record.status.code in MEASURED else FAILS_AFTER_S)
