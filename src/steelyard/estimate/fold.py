"""A series of any length in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


class Fold:
    """A series of steps of any length, kept as at most `capacity` bins with the same number of steps.

    A bin holds the sums over a power of two of steps. When the bins are full, neighbours are merged. The sums keep the
    mean exactly and the slow part of the noise, which is all that a CI of the mean needs.
    """

    def __init__(self, capacity: int = 4096) -> None:
        if capacity < 2 or capacity % 2:
            raise ValueError(f"capacity {capacity}: must be an even number, at least 2")
        self.capacity = capacity
        self.steps = 0
        self.steps_per_bin = 1
        self._sums: Floats = np.zeros((2, capacity))
        self._bins = 0
        self._open: Floats = np.zeros((2, 1))
        self._open_steps = 0

    def extend(self, times: Floats, work: Floats) -> None:
        """Append the steps of one block: the time and the work of each."""
        block = np.stack((np.asarray(times, dtype=np.float64), np.asarray(work, dtype=np.float64)))
        if block.ndim != 2:
            raise ValueError("times and work of a block must be one-dimensional and of equal length")
        self.steps += block.shape[1]
        while self.steps // self.steps_per_bin > self.capacity:
            self._merge()
        fill = min(block.shape[1], self.steps_per_bin - self._open_steps)
        self._open += block[:, :fill].sum(axis=1, keepdims=True)
        self._open_steps += fill
        if self._open_steps < self.steps_per_bin:
            return
        whole, left = divmod(block.shape[1] - fill, self.steps_per_bin)
        end = fill + whole * self.steps_per_bin
        self._append(self._open)
        self._append(block[:, fill:end].reshape(2, whole, self.steps_per_bin).sum(axis=2))
        self._open = block[:, end:].sum(axis=1, keepdims=True)
        self._open_steps = left

    def bins(self) -> tuple[Floats, Floats]:
        """Return the total time and the total work of every complete bin, oldest first."""
        return self._sums[0, : self._bins].copy(), self._sums[1, : self._bins].copy()

    def _append(self, sums: Floats) -> None:
        self._sums[:, self._bins : self._bins + sums.shape[1]] = sums
        self._bins += sums.shape[1]

    def _merge(self) -> None:
        pairs, odd = divmod(self._bins, 2)
        if odd:  # the last bin has no partner yet: it opens the bin that the next steps complete
            self._open += self._sums[:, self._bins - 1 : self._bins]
            self._open_steps += self.steps_per_bin
        self._sums[:, :pairs] = self._sums[:, : 2 * pairs].reshape(2, pairs, 2).sum(axis=2)
        self._bins = pairs
        self.steps_per_bin *= 2
