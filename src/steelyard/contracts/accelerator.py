"""The file of `steelyard selftest --accelerator`: whether a device behaves as the measurements assume.

Somebody sends it, so it names no host, user, folder or single device, and its reader treats it as untrusted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from steelyard.contracts.base import Bound, Contract, Length, Name, NotNegative, Text

CheckOutcome = Literal["ok", "not as assumed", "could not check"]
MAX_DETAILS = 50


@dataclass(frozen=True, kw_only=True)
class AssumptionCheck(Contract):
    """One assumption about a device, and whether it is true."""

    name: Name
    outcome: CheckOutcome
    text: Text
    """One sentence: what was found, or why it could not be checked."""
    numbers: Annotated[dict[str, float], Length(40)] = field(default_factory=dict)
    """What was measured; the end of a name is its unit."""
    details: Annotated[tuple[Text, ...], Length(MAX_DETAILS)] = ()
    """Such as names of kernels."""


@dataclass(frozen=True, kw_only=True)
class AcceleratorReport(Contract):
    """All checks of one node."""

    version: Text
    """Of steelyard."""
    date: Annotated[str, Length(10, r"^\d{4}-\d{2}-\d{2}$")]
    device: Text
    """Name given by the driver."""
    devices: Annotated[int, Bound(ge=1, le=1024)]
    """Visible devices."""
    memory_bytes: NotNegative | None
    facts: Annotated[dict[str, Text], Length(100)]
    """Software and processor."""
    seconds: NotNegative
    """How long all of it took."""
    checks: Annotated[tuple[AssumptionCheck, ...], Length(40)]

    def counts(self) -> dict[CheckOutcome, int]:
        """Return how many checks ended with each outcome that occurred."""
        outcomes = [check.outcome for check in self.checks]
        return {outcome: outcomes.count(outcome) for outcome in dict.fromkeys(outcomes)}
