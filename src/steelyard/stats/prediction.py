"""The band in which the figure of one more machine lies, from the figures of some: a prediction interval.

Speeds of machines of one kind differ by factors, so their logarithms are taken as normal. With mean m and standard
deviation s over n machines, one more lies in m +- t s sqrt(1 + 1/n), where t is Student's t for n - 1 degrees of
freedom. That holds for any n from 2; with two machines t is 6.3 at 90 %, and the band says nothing, so three are
required.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard.estimate.student import student_t

if TYPE_CHECKING:
    from collections.abc import Sequence

LEVEL = 0.9
MIN_MACHINES = 3
# Relative error of taking logarithms and back: equal figures must be inside their own band.
ARITHMETIC = 1e-12


@dataclass(frozen=True)
class PredictionBand:
    """Where the figure of one more machine lies with the probability `level`."""

    low: float
    high: float
    middle: float
    """The geometric mean over machines."""
    machines: int
    level: float

    def holds(self, value: float) -> bool:
        """Return whether a figure is inside."""
        return self.low <= value <= self.high


def prediction_band(values: Sequence[float], rounding: float = 0.0, level: float = LEVEL) -> PredictionBand | None:
    """Return the band from one figure for each machine; None if there are too few, or one is not above zero.

    `rounding`: largest relative error of a figure from its printed digits. Figures that agree in all their digits
    still allow this much.
    """
    if len(values) < MIN_MACHINES or min(values) <= 0 or not all(map(math.isfinite, values)):
        return None
    logs = [math.log(value) for value in values]
    middle = math.fsum(logs) / len(logs)
    spread = math.sqrt(math.fsum((log - middle) ** 2 for log in logs) / (len(logs) - 1))
    half = student_t(level, float(len(logs) - 1)) * spread * math.sqrt(1 + 1 / len(logs))
    half += math.log1p(rounding) + ARITHMETIC
    # A spread of many orders of magnitude has no upper end that a number can hold.
    high = math.exp(middle + half) if middle + half < math.log(1.7e308) else math.inf
    return PredictionBand(math.exp(middle - half), high, math.exp(middle), len(logs), level)


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of figures above zero; that of one figure is exactly this figure."""
    return values[0] if len(values) == 1 else math.exp(math.fsum(map(math.log, values)) / len(values))
