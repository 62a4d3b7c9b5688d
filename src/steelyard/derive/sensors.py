"""The energy in each window of a run from each channel of a node's sensors.

Memory does not grow with the number of samples. `energy` decides which domains make up a job.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from steelyard.contracts.energy import POWER_COLUMNS
from steelyard.errors import SteelyardError
from steelyard.stats.energy import Nature, energy_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from steelyard.contracts.energy import Channel
    from steelyard.derive.observations import NodeSensors
    from steelyard.stats.energy import Verdict, WindowEnergy

    Floats = NDArray[np.float64]
    Pieces = Sequence[tuple[float, float]]
    """A window of the run as pieces of time, on the run's clock."""

# Samples of one node in memory: 12 MB. Each channel gets a share between the next two limits.
SAMPLES_IN_MEMORY = 1 << 19
LEAST_IN_MEMORY, MOST_IN_MEMORY = 1 << 13, 1 << 15
# Samples on both sides of a cut that the integration may use.
BESIDE = 256
VERDICTS: tuple[Verdict, ...] = ("valid", "doubtful", "invalid")


@dataclass
class Joules:
    """Energy of one window, from one channel or from several domains together."""

    value_j: float | None = 0.0
    gain_j: float = 0.0
    """Half-width from the sensors' gain, which errs in the same direction in all parts: added up, with its sign."""
    rest_j2: float = 0.0
    """The rest of the half-width, squared: independent between parts."""
    verdict: Verdict = "valid"
    reasons: dict[str, None] = field(default_factory=dict)
    """In order, without duplicates."""
    covered_s: float = 0.0
    seconds: float = 0.0
    gap_s: float | None = None
    samples: int = 0

    @property
    def rest_j(self) -> float:
        """Half-width of the 95 % interval without gain."""
        return math.sqrt(self.rest_j2)

    @property
    def half_j(self) -> float:
        """Half-width of the 95 % interval."""
        return abs(self.gain_j) + self.rest_j

    @property
    def coverage(self) -> float:
        """Share of the window that is covered by readings."""
        return min(1.0, self.covered_s / self.seconds) if self.seconds > 0 else 0.0

    def add(self, other: Joules) -> None:
        """Add another energy, with the worse of both verdicts."""
        self.value_j = None if self.value_j is None or other.value_j is None else self.value_j + other.value_j
        self.gain_j += other.gain_j
        self.rest_j2 += other.rest_j2
        self.covered_s += other.covered_s
        self.seconds += other.seconds
        self.samples += other.samples
        self.gap_s = max((gap for gap in (self.gap_s, other.gap_s) if gap is not None), default=None)
        self.doubt(other.verdict, *other.reasons)

    def scaled(self, factor: float) -> Joules:
        """Multiply by an exact number: per second, per sample; negative to subtract."""
        value_j = None if self.value_j is None else self.value_j * factor
        rest_j2 = self.rest_j2 * factor**2
        return replace(self, value_j=value_j, gain_j=self.gain_j * factor, rest_j2=rest_j2, reasons={**self.reasons})

    def doubt(self, verdict: Verdict, *reasons: str) -> None:
        """Add reasons for doubt, as severe as `verdict`."""
        self.verdict = max(self.verdict, verdict, key=VERDICTS.index)
        self.reasons |= dict.fromkeys(reasons)
        if verdict == "invalid":
            self.value_j = None


def joules_of(energy: WindowEnergy, seconds: float) -> Joules:
    """Convert the result of the statistics."""
    return Joules(
        value_j=energy.value_j,
        gain_j=energy.gain_j,
        rest_j2=(energy.rest_j or 0.0) ** 2,
        verdict=energy.verdict,
        reasons=dict.fromkeys(energy.reasons),
        covered_s=energy.coverage * seconds,
        seconds=seconds,
        gap_s=energy.largest_gap_s,
        samples=energy.samples,
    )


@dataclass
class NodeReadings:
    """The energies from the samples of one node."""

    joules: dict[str, list[Joules]]
    """By window: one per channel."""
    last_s: list[float]
    """When each channel was last read, on the run's clock."""
    damage: str = ""


def read_windows(node: NodeSensors, windows: Mapping[str, Pieces]) -> NodeReadings:
    """Compute the energy of every window from every channel, in one pass over the node's samples."""
    zero_s = node.sampler.zero_s if node.sampler else 0.0
    random_phase = node.sampler.random_phase if node.sampler else False
    limit = min(MOST_IN_MEMORY, max(LEAST_IN_MEMORY, SAMPLES_IN_MEMORY // max(1, len(node.channels))))
    streams = [_Stream(channel, windows, limit, random_phase=random_phase) for channel in node.channels]
    damage = ""
    try:
        for chunk in node.samples():
            if chunk.channel < len(streams):
                streams[chunk.channel].take(chunk.table - np.array([[zero_s], [0.0], [0.0]]))
    except (SteelyardError, OSError) as error:
        damage = str(error).splitlines()[0][:300]
    for stream in streams:
        stream.finish()
    return NodeReadings(
        {name: [stream.totals[name] for stream in streams] for name in windows},
        [stream.last_s for stream in streams],
        damage,
    )


class _Stream:
    """Samples of one channel: collected up to a limit, then turned into joules up to a cut.

    Two parts of one window share a reading at the cut, whose uncertainty is counted in both: with thousands of
    readings in each part this is negligible.
    """

    def __init__(self, channel: Channel, windows: Mapping[str, Pieces], limit: int, *, random_phase: bool) -> None:
        self._nature = Nature(
            kind=channel.kind,
            resolution=channel.resolution,
            average_s=channel.average_s,
            period_s=channel.period_s,
            seen_s=channel.seen_s,
            wrap=channel.wrap,
            gain=channel.gain,
            limit_w=channel.limit_w,
        )
        self._random_phase = random_phase
        self._limit = limit
        self._held: list[Floats] = []
        self._count = 0
        self._open = [(name, start_s, stop_s) for name, pieces in windows.items() for start_s, stop_s in pieces]
        self.totals = {name: Joules() for name in windows}
        self.last_s = -math.inf

    def take(self, table: Floats) -> None:
        """Add samples, in the order in which they were taken."""
        table = table[:, np.isfinite(table[0])]
        self._held.append(table)
        self._count += table.shape[1]
        self.last_s = max(self.last_s, float(table[0].max(initial=-math.inf)))
        if self._count >= self._limit:
            whole = self._whole()
            self._settle(whole, float(whole[0, -BESIDE]))
            # Keep some samples before the next cut, or before a window that has not begun.
            begin_s = min((start_s for _, start_s, _ in self._open), default=math.inf)
            needed = min(int(np.searchsorted(whole[0], begin_s)), whole.shape[1] - BESIDE)
            self._held = [whole[:, max(0, needed - BESIDE) :].copy()]
            self._count = self._held[0].shape[1]

    def finish(self) -> None:
        """Turn the remaining samples into joules."""
        self._settle(self._whole(), math.inf)

    def _whole(self) -> Floats:
        whole = np.concatenate(self._held, axis=1) if self._held else np.zeros((len(POWER_COLUMNS), 0))
        if np.any(np.diff(whole[0]) < 0):
            whole = whole[:, np.argsort(whole[0], kind="stable")]
        return whole

    def _settle(self, whole: Floats, cut_s: float) -> None:
        """Turn everything before the cut into joules. In a long run most windows share the same piece."""
        rest = []
        known: dict[tuple[float, float], Joules] = {}
        for name, start_s, stop_s in self._open:
            end_s = min(stop_s, cut_s)
            if end_s > start_s:
                if (start_s, end_s) not in known:
                    known[start_s, end_s] = self._joules(whole, start_s, end_s)
                self.totals[name].add(known[start_s, end_s])
            if stop_s > cut_s:
                rest.append((name, max(start_s, end_s), stop_s))
        self._open = rest

    def _joules(self, whole: Floats, start_s: float, stop_s: float) -> Joules:
        # Only the window and its surroundings: there may be thousands of short windows.
        first = max(0, int(np.searchsorted(whole[0], start_s)) - BESIDE)
        last = int(np.searchsorted(whole[0], stop_s)) + BESIDE
        time_s, value, spent_s = whole[:, first:last]
        energy = energy_of(self._nature, time_s, value, spent_s, start_s, stop_s, random_phase=self._random_phase)
        return joules_of(energy, stop_s - start_s)
