"""Base class of the claim rules, and what they check: a claim, recomputed from the rows it refers to.

Parsing claims and finding their rows is in `audit`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from steelyard.errors import InputError, Problem
from steelyard.rules.rule import VERDICTS, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.finding import Finding

Assertion = Literal[
    "arithmetic", "same work", "attribution", "fairness", "physical limit", "statistics", "plausibility"
]
"""What a claim asserts: that its number is right; that rows count the same work; that one named setting is the cause;
that the comparison is fair; that no device exceeds its power limit; that the difference is more than noise; that the
figure is plausible."""

MAX_SHOWN = 8
"""Maximum number of settings named in one finding."""


@dataclass(frozen=True)
class Span:
    """An interval: the values that the printed digits allow."""

    low: float
    high: float

    def meets(self, other: Span) -> bool:
        """Return whether the two intervals overlap, allowing for floating-point error. Bounds may be infinite."""
        ends = map(abs, (self.low, self.high, other.low, other.high))
        slack = 1e-9 * max((end for end in ends if math.isfinite(end)), default=0.0)
        return self.low <= other.high + slack and other.low <= self.high + slack


@dataclass(frozen=True)
class Reading:
    """One way to compute a figure from rows."""

    values: tuple[Span, ...]
    """One value per pair of rows."""
    text: str
    """The calculation, such as `(36.67-24.81)/36.67 = 32.3 %`."""
    base: str = ""
    """The divisor, such as `the longer time`."""
    result: str = ""
    """The result, such as `32.3 %`, or `47.8 % to 118.8 %` over several pairs of rows."""

    def gives(self, published: Span, reached: Span | None = None) -> bool:
        """Return whether every value matches the published figure; for `up to`, one must also reach `reached`."""
        inside = all(value.meets(published) for value in self.values)
        return inside and (reached is None or any(value.meets(reached) for value in self.values))


@dataclass(frozen=True)
class RepeatNoise:
    """How a difference compares with the noise between repeats."""

    shown: bool
    """Whether the difference is larger than the noise."""
    text: str


@dataclass(frozen=True)
class Asserted:
    """One assertion of one claim, recomputed from the rows it refers to."""

    claim: str
    asserts: Assertion
    place: str = ""
    """Where the claim is in the document."""
    published: Span | None = None
    """The values that the published digits allow; for a range, from its lower to its upper end."""
    reached: Span | None = None
    """For `up to`: the figure that at least one pair of rows must reach."""
    printed: str = ""
    """The published figure as printed in the document."""
    meant: tuple[Reading, ...] = ()
    """The calculations that fit the wording of the claim; one match is enough."""
    other: tuple[Reading, ...] = ()
    """The same calculations with another divisor."""
    convention: str = ""
    """The divisor of the document's other percentages."""
    faults: tuple[str, ...] = ()
    """What contradicts a claim without a figure."""
    hint: str = ""
    """A likely origin of the printed figure."""
    factor: str = ""
    differs: tuple[str, ...] = ()
    """Settings that changed besides the factor."""
    unchanged: bool = False
    """Whether the factor itself is the same on both sides."""
    equal: Reading | None = None
    """The ratio at the settings of the claim."""
    best: Reading | None = None
    """The ratio at each side's best settings, or None if unknown."""
    noise: RepeatNoise | None = None

    def follows(self) -> bool:
        """Return whether the printed figure follows from the rows as the claim words it."""
        return self.published is None or any(map(self.given_by, self.meant))

    def given_by(self, reading: Reading) -> bool:
        """Return whether a calculation gives the printed figure."""
        return self.published is not None and reading.gives(self.published, self.reached)


class ClaimRule(Rule):
    """A rule that checks one assertion of a claim."""

    subject = "claim"

    def __init_subclass__(cls) -> None:
        # Findings of a rule without a verdict would not change the verdict on the claim.
        if cls.verdict == "holds" or cls.verdict not in VERDICTS:
            problem = Problem("verdict", f"{cls.verdict} is not a verdict for a rule", ", ".join(VERDICTS[:-1]))
            raise InputError(f"the claim rule {cls.__name__} has no verdict", problems=(problem,))

    def check(self, asserted: Asserted) -> Iterator[Finding]:
        """Yield the findings on an assertion."""
        raise NotImplementedError
