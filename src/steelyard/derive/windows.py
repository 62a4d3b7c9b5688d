"""Find the windows of a run on the clock of each node, and the work done in them.

Each process counts time from its own start. The sensors of a node use the clock of its first process: a window of steps
is taken from the samples of that rank, and a phase from the events of that process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from steelyard.derive.epochs import steps_per_epoch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from steelyard.contracts.observe import Phase
    from steelyard.contracts.record import Steady
    from steelyard.contracts.sample_files import StepChunk
    from steelyard.contracts.spec import RunSpec
    from steelyard.derive.observations import NodeSensors, Observations, StepSamples

MAIN, ALL_STEPS, FIRST_EPOCH, LATER_EPOCHS = "main", "all steps", "first epoch", "later epochs"
IDLE, COMPILE, RUN = "idle", "compile", "run"
MAX_PIECES = 10_000
# Time between blocks of steps that still counts as part of the window: less than the gain error of any sensor.
NEGLIGIBLE = 0.01


@dataclass
class NodeWindows:
    """The windows of one node, each as one or more pieces of time."""

    pieces: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    step_s: dict[str, float] = field(default_factory=dict)
    """For windows of steps: the time in steps."""
    doubts: dict[str, str] = field(default_factory=dict)
    """Problems of a window."""

    def seconds(self, name: str) -> float:
        """Return the length of a window; 0 if it does not exist."""
        return sum(stop_s - start_s for start_s, stop_s in self.pieces.get(name, ()))

    def end_s(self, name: str) -> float:
        """Return the end of a window."""
        return self.pieces[name][-1][1]


@dataclass
class Windows:
    """The windows of all nodes, and the rates of the ranks in the main window."""

    nodes: list[NodeWindows]
    rates: dict[int, float] = field(default_factory=dict)
    """Samples per second, by rank."""
    epochs: int = 0
    """Number of complete epochs."""


def windows_of(observed: Observations, nodes: Sequence[NodeSensors], steady: Steady | None) -> Windows:
    """Return the windows of each node; `steady`: the steps of the throughput."""
    spec, events = observed.spec, observed.events
    job_windows = Windows([NodeWindows() for _ in nodes])
    for node, windows in zip(nodes, job_windows.nodes, strict=True):
        _phase_windows(events.node_phases.get(node.process) or events.phases, windows, spec)
        if observed.program is not None and (end := observed.ends.get(node.number)) is not None and end.wall_s > 0:
            # A program is all of its run, whatever was seen of it.
            windows.pieces[RUN] = [(end.start_s, end.start_s + end.wall_s)]
    if steady is not None:
        samples, per_epoch = observed.steps, steps_per_epoch(spec, events.data)
        ranges = {MAIN: (steady.start_step, steady.stop_step), ALL_STEPS: (0, samples.steps)}
        if per_epoch:
            job_windows.epochs = samples.steps // per_epoch
            ranges[FIRST_EPOCH] = (0, per_epoch)
            ranges[LATER_EPOCHS] = (per_epoch, job_windows.epochs * per_epoch)
        ranges = {name: (start, stop) for name, (start, stop) in ranges.items() if start < stop <= samples.steps}
        _step_windows(nodes, job_windows, ranges, samples)
    return job_windows


def _phase_windows(phases: Sequence[Phase], windows: NodeWindows, spec: RunSpec) -> None:
    whole = {phase.name: (phase.start_s, phase.end_s) for phase in phases if phase.complete}
    idle = whole.get("idle")
    if spec.device_family == "sim" and "setup" in whole:
        # A simulated run uses its device only after setup, and its sensors may be read before the start of the run.
        idle = (whole["setup"][0] - spec.energy.idle_s, whole["setup"][1])
    if phases:
        windows.pieces[RUN] = [(min(phase.start_s for phase in phases), max(phase.end_s for phase in phases))]
    for name, piece in ((IDLE, idle), (COMPILE, whole.get("compile"))):
        if piece is not None and piece[1] > piece[0]:
            windows.pieces[name] = [piece]


# -- windows of steps


class _Stretches:
    """Pieces of time that the steps of one rank fill, separated by gaps between steps."""

    def __init__(self, least_gap_s: float) -> None:
        self._least_gap_s = least_gap_s
        self._pieces: list[tuple[float, float]] = []
        self._step_s = 0.0

    def extend(self, start_s: NDArray[np.float64], step_s: NDArray[np.float64]) -> None:
        """Add the next steps."""
        end_s = start_s + step_s
        self._step_s += float(step_s.sum())
        cuts = np.flatnonzero(start_s[1:] - end_s[:-1] > self._least_gap_s) + 1
        edges = [0, *cuts.tolist(), len(start_s)]
        for first, last in pairwise(edges):
            begin_s, stop_s = float(start_s[first]), float(end_s[last - 1])
            if self._pieces and (begin_s - self._pieces[-1][1] <= self._least_gap_s or len(self._pieces) == MAX_PIECES):
                begin_s = self._pieces.pop()[0]
            self._pieces.append((begin_s, stop_s))

    def put(self, name: str, windows: NodeWindows) -> None:
        """Store the pieces as one window, without the gaps unless they are negligible."""
        if not self._pieces:
            return
        pieces = self._pieces
        whole = (pieces[0][0], pieces[-1][1])
        if whole[1] - whole[0] - self._step_s <= NEGLIGIBLE * (whole[1] - whole[0]):
            pieces = [whole]
        windows.pieces[name] = pieces
        windows.step_s[name] = self._step_s
        length_s = windows.seconds(name)
        between = 1 - self._step_s / length_s if length_s > 0 else 0.0
        if between > NEGLIGIBLE:
            windows.doubts[name] = f"{between:.0%} of the window is time between steps"


def _step_windows(
    nodes: Sequence[NodeSensors], job_windows: Windows, ranges: Mapping[str, tuple[int, int]], samples: StepSamples
) -> None:
    """Fill all windows of all nodes in one pass over the step samples."""
    filled = {
        node.process: {name: _Stretches(node.sampler.period_s if node.sampler else 0.1) for name in ranges}
        for node in nodes
    }
    work: dict[int, NDArray[np.float64]] = {}
    for chunk in samples.windowed(0, samples.steps):
        sums = _inside(chunk, *ranges[MAIN], "samples", "step_s").sum(axis=1)
        work[chunk.rank] = work.get(chunk.rank, np.zeros(2)) + sums
        for name, pieces in filled.get(chunk.rank, {}).items():
            start_s, step_s = _inside(chunk, *ranges[name], "start_s", "step_s")
            if len(start_s):
                pieces.extend(start_s, step_s)
    job_windows.rates = {rank: float(done / time_s) for rank, (done, time_s) in work.items() if time_s > 0}
    for node, windows in zip(nodes, job_windows.nodes, strict=True):
        for name, pieces in filled[node.process].items():
            pieces.put(name, windows)


def _inside(chunk: StepChunk, start: int, stop: int, *columns: str) -> NDArray[np.float64]:
    first, last = max(0, start - chunk.first_step), max(0, stop - chunk.first_step)
    return np.stack([chunk.column(name)[first:last] for name in columns])
