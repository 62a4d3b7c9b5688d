"""What a rule is: a code, why it matters, how it is detected, a bad and a good example, and the fix.

Knows how a rule describes itself and makes findings. Each rule is one class in the folder of its code's first digit;
`plugins.BUILTIN` names it by what it judges and by its code. A package may add its own with the entry point groups
`steelyard.run_rule`, `steelyard.pair_rule`, `steelyard.table_rule` and `steelyard.claim_rule`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, get_args

from steelyard import plugins
from steelyard.contracts.record import Finding
from steelyard.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import RunRecord, Severity
    from steelyard.rules.table.row import Pair, RowTable

Subject = Literal["run", "pair", "table", "claim"]
"""What a rule looks at: one record; two rows that are to be compared; a table of rows; a claim about rows."""
SUBJECTS: Final[tuple[Subject, ...]] = get_args(Subject)
Verdict = Literal[
    "impossible",
    "does not follow",
    "base differs",
    "confounded",
    "unfair",
    "superlinear",
    "outlier",
    "not shown",
    "holds",
]
"""What a claim is found to be, gravest first."""
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)

FAMILIES = {
    "1": "settings",
    "2": "statistics",
    "3": "scaling",
    "4": "energy",
    "5": "arithmetic and units",
    "6": "environment",
    "7": "plausibility",
}
SEVERITIES: dict[Severity, str] = {
    "error": "the figure or claim cannot be used, and no ratio is given, before it is mended",
    "warning": "must stand beside the figure",
    "note": "worth knowing",
}


@dataclass(frozen=True)
class Example:
    """Something to try a rule on, as people would write it. The tests run every one of them.

    Of a rule on runs: what differs from a sound record, as TOML with dotted names (`steady.answer = "slowing down"`).
    Of a rule on pairs: a CSV table whose first row is the base and whose second is held against it.
    Of a rule on tables: a CSV table. Of a rule on claims: a CSV table, a line `---`, and one claim as TOML.
    """

    text: str
    says: str
    """One sentence on what is wrong or right with it."""
    factor: str = "system"
    """Of a pair: what is under study."""


class Rule:
    """Base of all rules. A class is its own documentation: every attribute is shown by `steelyard explain`."""

    code: ClassVar[str]
    name: ClassVar[str]
    """Short, in words joined by hyphens."""
    severity: ClassVar[Severity]
    """Of most of its findings; one that is graver or lighter says why."""
    subject: ClassVar[Subject]
    verdict: ClassVar[Verdict] = "holds"
    """On a claim in which it finds something; a rule that judges no claims leaves every claim as it is."""
    why: ClassVar[str]
    """What goes wrong for a reader who does not know."""
    detected: ClassVar[str]
    """How it is found, with the numbers that decide."""
    bad: ClassVar[Example]
    good: ClassVar[Example]
    fix: ClassVar[str]

    def found(
        self,
        message: str,
        *,
        place: str = "",
        evidence: str = "",
        severity: Severity | None = None,
        fix: str | None = None,
    ) -> Finding:
        """A finding of this rule."""
        return Finding(
            code=self.code,
            severity=severity or self.severity,
            message=message,
            fix=fix or self.fix,
            place=place,
            evidence=evidence,
        )


class RunRule(Rule):
    """A rule on one record."""

    subject = "run"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Its findings on a record."""
        raise NotImplementedError


class PairRule(Rule):
    """A rule on two rows that are to be compared."""

    subject = "pair"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """Its findings on a pair."""
        raise NotImplementedError


class TableRule(Rule):
    """A rule on a table of rows, from its figures alone."""

    subject = "table"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """Its findings on a table."""
        raise NotImplementedError


def codes() -> list[str]:
    """Every code there is, in order."""
    return sorted({code for subject in SUBJECTS for code in plugins.names(_kind(subject))})


def rule(code: str) -> Rule:
    """The rule of a code; InputError when there is none."""
    found = find_rule(code)
    if found is None:
        raise plugins.unknown("rule", code, codes())
    return found


def find_rule(code: str) -> Rule | None:
    """The rule of a code; None when there is none, as for a record of a later version or with rules of a package."""
    # Our own kind of it first: looking through the installed packages takes longer than all else here.
    subjects = sorted(SUBJECTS, key=lambda subject: code not in plugins.BUILTIN[_kind(subject)])
    return next((_make(subject, code) for subject in subjects if plugins.has(_kind(subject), code)), None)


@cache
def rules(subject: Subject) -> tuple[Any, ...]:
    """All rules on one kind of subject, by code. No rule on another one is imported."""
    return tuple(_make(subject, code) for code in plugins.names(_kind(subject)))


def _kind(subject: Subject) -> str:
    return f"{subject}_rule"


def _make(subject: Subject, code: str) -> Rule:
    made: Rule = plugins.load(_kind(subject), code)()
    if (made.code, made.subject) != (code, subject):
        problem = Problem(code, f"the class is {made.code}, a rule on a {made.subject}", "what the class says")
        raise InputError(f"{code} is registered as a rule on a {subject}", problems=(problem,))
    return made


def check(subject: Subject, what: Any) -> tuple[Finding, ...]:
    """All findings of all rules on a record, pair or table: those that block first, then by code."""
    found = [finding for made in rules(subject) for finding in made.check(what)]
    order = list(SEVERITIES)
    return tuple(sorted(found, key=lambda finding: (order.index(finding.severity), finding.code)))
