"""Split the time of a step into factors that multiply to the efficiency.

After the efficiencies of the Performance Optimisation and Productivity centre (POP: parallel efficiency is load
balance times communication efficiency; computation scaling), extended by input. The time per sample and device, T, is
waiting for input, W; the transfer that even the last rank to arrive pays, X; waiting for slower ranks; and computation,
C. Then

    input factor          (T - W) / T
    communication factor  (T - W - X) / (T - W)
    balance factor        C / (T - W - X)
    computation factor    C of the base / C

The first three multiply to C / T, and with the fourth, each relative to the base, exactly to T of the base / T: the
efficiency. Means over jobs are means of times, for which this holds as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from steelyard.stats.quotient import Estimate, Quotient, change

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.contracts.record import RunRecord

FactorName = Literal["input", "communication", "balance", "computation"]
FACTORS: dict[FactorName, str] = {
    "input": "waiting for input",
    "balance": "waiting for slower devices",
    "communication": "communication not hidden by computation",
    "computation": "longer computation per sample",
}
"""In reading order, with the loss that each factor describes."""
APART = "transfer and waiting for slower devices cannot be separated here"
NO_PARTS = "computation and communication cannot be separated here"


@dataclass(frozen=True)
class Parts:
    """Device-seconds per sample, one value per job; None if a record does not have it."""

    total: tuple[float, ...]
    input: tuple[float, ...] | None
    transfer: tuple[float, ...] | None
    compute: tuple[float, ...] | None
    reasons: dict[FactorName, str]
    """Why a factor is unknown."""
    from_crosscheck: bool
    """Whether the parts are from the cross-check pass instead of the measured steps."""


@dataclass(frozen=True)
class Factor:
    """One factor of the efficiency."""

    name: FactorName
    change: Estimate | None
    """Relative to the base; None: unknown."""
    own: float | None
    """Of this configuration alone; None for computation, which has no meaning alone."""
    reason: str | None = None


@dataclass(frozen=True)
class Split:
    """The efficiency as a product."""

    total: Estimate
    factors: tuple[Factor, ...]
    rest: Estimate | None
    """The product of the unknown factors; None: all are known."""
    rest_is: tuple[FactorName, ...] = ()


def parts_of(records: Sequence[RunRecord]) -> Parts:
    """Return the parts for the jobs of one configuration that have a rate."""
    rates = [record.quantities["throughput_per_device"].value or 0.0 for record in records]
    total = tuple(1.0 / rate for rate in rates)
    reasons: dict[FactorName, str] = {}
    wait = _times(records, total, "input_wait_share")
    compute = _times(records, total, "compute_share")
    launching = _times(records, total, "host_wait_share")
    if compute is not None and launching is not None:
        # Launching belongs to the program, whatever the number of devices.
        compute = tuple(a + b for a, b in zip(compute, launching, strict=True))
    several = any(record.spec.devices > 1 for record in records)
    transfer = _times(records, total, "exposed_transfer_share" if several else "exposed_comm_share")
    if wait is None:
        reasons["input"] = "the time waiting for input is not known here"
    if compute is None:
        reasons["computation"] = NO_PARTS
    if transfer is None or wait is None or compute is None:
        reasons["communication"] = reasons["balance"] = NO_PARTS if compute is None else APART
    shares = [record.quantities.get("compute_share") for record in records]
    checked = any(share is not None and share.window == "crosscheck" for share in shares)
    return Parts(total, wait, transfer, compute, reasons, checked)


def _times(records: Sequence[RunRecord], total: tuple[float, ...], name: str) -> tuple[float, ...] | None:
    quantities = [record.quantities.get(name) for record in records]
    shares = [quantity.value for quantity in quantities if quantity is not None and quantity.value is not None]
    if len(shares) < len(records):
        return None
    return tuple(share * time for share, time in zip(shares, total, strict=True))


def split(base: Parts, other: Parts, trends: float = 0.0) -> Split:
    """Return the efficiency relative to the base, with the factors that are known for both.

    `trends`: the sum of the trends of both, by which the intervals are wider.
    """
    rest_a, rest_b = Quotient((), (base.total,)), Quotient((), (other.total,))
    total = change(rest_a, rest_b, trends=trends)
    theirs, ours = _quotients(base), _quotients(other)
    factors, unknown = [], []
    for name in FACTORS:
        a, b = theirs.get(name), ours.get(name)
        if a is None or b is None:
            unknown.append(name)
            reason = other.reasons.get(name) or base.reasons.get(name) or "a part of the step is zero"
            factors.append(Factor(name, None, None if b is None else b.value, reason))
            continue
        factors.append(Factor(name, change(a, b, trends=trends), None if name == "computation" else b.value))
        rest_a, rest_b = rest_a.without(a), rest_b.without(b)
    rest = change(rest_a, rest_b, trends=trends) if unknown else None
    return Split(total, tuple(factors), rest, tuple(unknown))


def _quotients(parts: Parts) -> dict[FactorName, Quotient]:
    quotients: dict[FactorName, Quotient] = {}
    total, wait, transfer, compute = parts.total, parts.input, parts.transfer, parts.compute
    if compute is not None and min(compute) > 0:
        quotients["computation"] = Quotient((), (compute,))
    if wait is None:
        return quotients
    fed = tuple(t - w for t, w in zip(total, wait, strict=True))
    if min(fed) <= 0:
        return quotients
    quotients["input"] = Quotient((fed,), (total,))
    if transfer is not None and "computation" in quotients and compute is not None:
        arrived = tuple(f - x for f, x in zip(fed, transfer, strict=True))
        if min(arrived) > 0:
            quotients["communication"] = Quotient((arrived,), (fed,))
            quotients["balance"] = Quotient((compute,), (arrived,))
    return quotients
