"""Fit three models of a scaling curve, with their cross-validation error.

Amdahl (fixed work): time = serial + parallel / n. Gustafson (work grows with n): rate = serial + parallel * n.
Latency-bandwidth: a step is computation plus a ring all-reduce of 2 (n - 1) hops, in which each device sends
2 (n - 1) / n of the message. All models are linear in their parameters, which must not be negative. The error of a fit
is measured by leaving out each point in turn.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from steelyard.estimate.student import student_t

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Basis = tuple[Callable[[float], float], ...]

Name = Literal["Amdahl", "Gustafson", "latency-bandwidth"]
# Points needed beyond the number of parameters: one for a residual, one more to leave a point out.
SPARE_POINTS = 2
# Level of the CIs of the parameters.
LEVEL = 0.95

_LINEAR: Basis = (lambda _: 1.0, lambda n: n)
_HYPERBOLA: Basis = (lambda _: 1.0, lambda n: 1.0 / n)
_CONSTANT: Basis = (lambda _: 1.0,)
_RING: Basis = (lambda n: 2.0 * (n - 1.0), lambda n: 2.0 * (n - 1.0) / n)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a model, with its CI from the residuals of the fit."""

    name: str
    value: float
    low: float
    high: float
    unit: str


@dataclass(frozen=True)
class CurveFit:
    """A fitted model."""

    name: Name
    parameters: tuple[Parameter, ...]
    points: int
    error_percent: float
    """The largest relative error of the rate at a point that was left out of the fit."""
    rate: Callable[[float], float]
    """Rate of the whole job as a function of the number of devices."""
    level: float = LEVEL


@dataclass(frozen=True)
class Refused:
    """A model that was not fitted, and why."""

    name: Name
    reason: str


def amdahl(counts: Sequence[int], rates: Sequence[float]) -> CurveFit | Refused:
    """Fit Amdahl's law: the serial share of the time on one device, for constant work per step."""
    if refused := _too_few("Amdahl", len(counts), 2):
        return refused
    times = [1.0 / rate for rate in rates]

    def rate_of(some: Sequence[int]) -> Callable[[float], float]:
        fit = _fit(_HYPERBOLA, [counts[i] for i in some], [times[i] for i in some])
        return lambda n: 1.0 / fit.at(n)

    return _shown("Amdahl", counts, rates, rate_of, _serial_share(_HYPERBOLA, counts, times))


def gustafson(counts: Sequence[int], rates: Sequence[float]) -> CurveFit | Refused:
    """Fit Gustafson's law: the serial share of the time of a parallel job, for constant work per device."""
    if refused := _too_few("Gustafson", len(counts), 2):
        return refused

    def rate_of(some: Sequence[int]) -> Callable[[float], float]:
        return _fit(_LINEAR, [counts[i] for i in some], [rates[i] for i in some]).at

    return _shown("Gustafson", counts, rates, rate_of, _serial_share(_LINEAR, counts, rates))


def latency_bandwidth(
    counts: Sequence[int],
    rates: Sequence[float],
    steps_s: Sequence[float],
    transfers_s: Sequence[float],
    *,
    strong: bool,
) -> CurveFit | Refused:
    """Fit the latency per hop and the message time to the exposed communication of a step, and the rest of the step.

    The rest is constant in weak scaling. In strong scaling (`strong`) it is a constant plus a part divided by the
    number of devices.
    """
    name: Name = "latency-bandwidth"
    joined = [i for i, count in enumerate(counts) if count > 1]
    if refused := _too_few(name, len(joined), len(_RING), " above one"):
        return refused
    if any(transfers_s[i] <= 0 for i in joined):
        return Refused(name, "no exposed communication at some device counts")
    rests = [step - transfer for step, transfer in zip(steps_s, transfers_s, strict=True)]
    basis = _HYPERBOLA if strong else _CONSTANT
    samples = [rate * step for rate, step in zip(rates, steps_s, strict=True)]
    per_count = [value / (1 if strong else count) for value, count in zip(samples, counts, strict=True)]
    scale = math.fsum(per_count) / len(per_count)

    def rate_of(some: Sequence[int]) -> Callable[[float], float]:
        ring = _fit(_RING, [counts[i] for i in some if counts[i] > 1], [transfers_s[i] for i in some if counts[i] > 1])
        rest = _fit(basis, [counts[i] for i in some], [rests[i] for i in some])
        return lambda n: scale * (1 if strong else n) / (rest.at(n) + ring.at(n))

    ring = _fit(_RING, [counts[i] for i in joined], [transfers_s[i] for i in joined])
    names = ("latency per hop", "message time at full bandwidth")
    parameters = tuple(
        Parameter(label, value, max(0.0, value - half), value + half, "s")
        for label, value, half in zip(names, ring.values, ring.half_widths(), strict=True)
    )
    return _shown(name, counts, rates, rate_of, parameters)


def _too_few(name: Name, points: int, parameters: int, what: str = "") -> Refused | None:
    needed = parameters + SPARE_POINTS
    if points >= needed:
        return None
    return Refused(
        name, f"its {parameters} parameters need at least {needed} device counts{what}, but there are {points}"
    )


def _shown(
    name: Name,
    counts: Sequence[int],
    rates: Sequence[float],
    rate_of: Callable[[Sequence[int]], Callable[[float], float]],
    parameters: tuple[Parameter, ...],
) -> CurveFit:
    every = range(len(counts))
    errors = [abs(rate_of([i for i in every if i != out])(counts[out]) / rates[out] - 1) for out in every]
    return CurveFit(name, parameters, len(counts), 100 * max(errors), rate_of(list(every)))


@dataclass(frozen=True)
class _Linear:
    basis: Basis
    values: tuple[float, ...]
    covariance: Floats
    df: int

    def at(self, n: float) -> float:
        return math.fsum(value * part(n) for value, part in zip(self.values, self.basis, strict=True))

    def half_widths(self) -> list[float]:
        if self.df < 1:
            return [math.inf] * len(self.values)
        t = student_t(LEVEL, float(self.df))
        return [t * math.sqrt(float(self.covariance[i, i])) for i in range(len(self.values))]


def _fit(basis: Basis, counts: Sequence[int], values: Sequence[float]) -> _Linear:
    """Minimise the squared relative error with non-negative parameters, trying all subsets of parameters."""
    design = np.asarray([[part(float(n)) / y for part in basis] for n, y in zip(counts, values, strict=True)])
    ones, best, chosen = np.ones(len(values)), math.inf, np.zeros(len(basis))
    for used in itertools.product((True, False), repeat=len(basis)):
        columns = np.flatnonzero(used)
        if not columns.size:
            continue
        part = np.linalg.lstsq(design[:, columns], ones, rcond=None)[0]
        loss = float(np.sum((ones - design[:, columns] @ part) ** 2))
        if np.all(part >= 0) and loss < best:
            best, chosen = loss, np.zeros(len(basis))
            chosen[columns] = part
    df = len(values) - len(basis)
    covariance = np.linalg.pinv(design.T @ design) * (best / max(1, df))
    return _Linear(basis, tuple(float(value) for value in chosen), covariance, df)


def _serial_share(basis: Basis, counts: Sequence[int], values: Sequence[float]) -> tuple[Parameter, ...]:
    fit = _fit(basis, counts, values)
    serial, parallel = fit.values
    total = serial + parallel
    # Gradient of serial / (serial + parallel), for the delta method.
    slope = np.asarray([parallel, -serial]) / total**2
    half = student_t(LEVEL, float(fit.df)) * math.sqrt(max(0.0, float(slope @ fit.covariance @ slope)))
    share = serial / total
    return (Parameter("serial share", share, max(0.0, share - half), min(1.0, share + half), "1"),)
