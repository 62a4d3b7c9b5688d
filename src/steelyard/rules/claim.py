"""What rules on claims share: a claim once it has been worked out. What was printed, what the rows give, what differs.

How a claim is written and which rows it means is known elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from steelyard.errors import InputError, Problem
from steelyard.rules.rule import VERDICTS, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import Finding

Assertion = Literal[
    "arithmetic", "same work", "attribution", "fairness", "physical limit", "statistics", "plausibility"
]
"""What a claim says is true: its number; that rows count the same work; that one named setting is the cause; that the
comparison favours nobody; that no device exceeds its power; that repeats show it; that nothing about it is odd."""

MAX_SHOWN = 8
"""Settings that one finding names: a person reads the first few."""


@dataclass(frozen=True)
class Span:
    """A number between bounds: what printed digits allow."""

    low: float
    high: float

    def meets(self, other: Span) -> bool:
        """Whether one number may lie in both. A little slack for sums of binary fractions; an end may be open."""
        ends = map(abs, (self.low, self.high, other.low, other.high))
        slack = 1e-9 * max((end for end in ends if math.isfinite(end)), default=0.0)
        return self.low <= other.high + slack and other.low <= self.high + slack


@dataclass(frozen=True)
class Reading:
    """One way to work out a figure from rows."""

    values: tuple[Span, ...]
    """One a pair of rows."""
    words: str
    """The sum, such as `(36.67-24.81)/36.67 = 32.3 %`."""
    base: str = ""
    """What was divided by, such as `the longer time`."""
    result: str = ""
    """What it comes to, such as `32.3 %`, or `47.8 % to 118.8 %` over several pairs of rows."""

    def gives(self, published: Span, reached: Span | None = None) -> bool:
        """Whether what is printed may be this, on every pair of rows; and is reached by one, where it is `up to`."""
        inside = all(value.meets(published) for value in self.values)
        return inside and (reached is None or any(value.meets(reached) for value in self.values))


@dataclass(frozen=True)
class RepeatNoise:
    """What repeats say of chance."""

    shown: bool
    """Whether the difference is larger than chance."""
    words: str


@dataclass(frozen=True)
class Asserted:
    """One assertion of one claim, worked out from the rows it speaks of."""

    claim: str
    asserts: Assertion
    place: str = ""
    """Where a reader finds the row."""
    published: Span | None = None
    """What its digits allow; of a range, from its lower end to its upper one."""
    reached: Span | None = None
    """Of `up to`: the figure that one pair of rows must reach."""
    printed: str = ""
    """The published figure as it stands in the document."""
    meant: tuple[Reading, ...] = ()
    """What the rows give, as the claim means it; any of them will do."""
    other: tuple[Reading, ...] = ()
    """What they give when divided by something else."""
    convention: str = ""
    """What the document's other percentages are divided by."""
    faults: tuple[str, ...] = ()
    """What contradicts a claim that prints no figure."""
    hint: str = ""
    """How the printed figure may have come about."""
    factor: str = ""
    differs: tuple[str, ...] = ()
    """Settings that changed beside the factor."""
    unchanged: bool = False
    """Whether the factor itself is the same on both sides."""
    equal: Reading | None = None
    """The ratio at the settings of the claim."""
    best: Reading | None = None
    """The ratio at each side's best settings; None where these are not known."""
    noise: RepeatNoise | None = None

    def follows(self) -> bool:
        """Whether the printed figure is one of those meant."""
        return self.published is None or any(map(self.given_by, self.meant))

    def given_by(self, reading: Reading) -> bool:
        """Whether a reading gives what is printed."""
        return self.published is not None and reading.gives(self.published, self.reached)


class ClaimRule(Rule):
    """A rule on one assertion of a claim."""

    subject = "claim"

    def __init_subclass__(cls) -> None:
        # Without a verdict of its own a rule would find something and change nothing.
        if cls.verdict == "holds" or cls.verdict not in VERDICTS:
            problem = Problem("verdict", f"{cls.verdict!r} is no verdict of a rule", ", ".join(VERDICTS[:-1]))
            raise InputError(f"the rule on claims {cls.__name__} has no verdict", problems=(problem,))

    def check(self, asserted: Asserted) -> Iterator[Finding]:
        """Its findings on an assertion."""
        raise NotImplementedError
