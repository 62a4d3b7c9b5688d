"""Base classes of the rules: code, reason, how it is detected, a bad and a good example, and the fix.

Each rule is one class; the first digit of its code gives its folder. `plugins.BUILTIN` lists all rules by subject and
code. A package adds its own rules with the entry point groups `steelyard.run_rule`, `steelyard.pair_rule`,
`steelyard.table_rule` and `steelyard.claim_rule`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, get_args

from steelyard import plugins
from steelyard.contracts.finding import Finding
from steelyard.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.finding import Severity, WrongFigure
    from steelyard.contracts.record import RunRecord
    from steelyard.rules.table.row import Pair, RowTable

Subject = Literal["run", "pair", "table", "claim"]
"""What a rule checks: one record, two rows to be compared, a table of rows, or a claim about rows."""
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
"""The possible verdicts on a claim, most serious first."""
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)

RUNS, STATED = "steelyard run ", "--samples-per-step "
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
    "error": "the figure or claim is not valid; no ratio is reported until this is fixed",
    "warning": "the figure is usable; report this with it",
    "note": "worth knowing",
}


@dataclass(frozen=True)
class Example:
    """Input for a rule, in the form users write it. The tests run every example.

    Run rules: the changes to a valid record, as TOML with dotted names (`steady.answer = "slowing down"`).
    Pair rules: a CSV table; the first row is the base, the second is compared with it.
    Table rules: a CSV table. Claim rules: a CSV table, a line `---`, and one claim as TOML.
    """

    text: str
    says: str
    """One sentence: what is wrong or right in the example."""
    factor: str = "system"
    """The factor under study (pair rules only)."""


class Rule:
    """Base class of all rules. `steelyard explain` shows the attributes, so they are the documentation."""

    code: ClassVar[str]
    name: ClassVar[str]
    """A short name in lower case with hyphens."""
    severity: ClassVar[Severity]
    """The usual severity. A finding may override it; `detected` then says when."""
    subject: ClassVar[Subject]
    verdict: ClassVar[Verdict] = "holds"
    """The verdict on a claim with a finding of this rule; `holds` for rules that do not judge claims."""
    why: ClassVar[str]
    """What goes wrong if the finding is ignored."""
    detected: ClassVar[str]
    """How the rule detects it, with its thresholds."""
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
        command: str = "",
        wrong: tuple[WrongFigure, ...] = (),
    ) -> Finding:
        """Return a finding of this rule; severity and fix default to those of the class. `command`: what to paste."""
        return Finding(
            code=self.code,
            severity=severity or self.severity,
            message=message,
            fix=fix or self.fix,
            command=command,
            place=place,
            evidence=evidence,
            wrong=wrong,
        )


class RunRule(Rule):
    """A rule that checks one record."""

    subject = "run"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield the findings in a record."""
        raise NotImplementedError


class PairRule(Rule):
    """A rule that checks two rows to be compared."""

    subject = "pair"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """Yield the findings in a pair."""
        raise NotImplementedError


class TableRule(Rule):
    """A rule that checks a table of rows, using only its figures and settings."""

    subject = "table"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """Yield the findings in a table."""
        raise NotImplementedError


def codes() -> list[str]:
    """Return all rule codes, sorted."""
    return sorted({code for subject in SUBJECTS for code in plugins.names(_kind(subject))})


def rule(code: str) -> Rule:
    """Return the rule with this code; raise InputError if it does not exist."""
    known = find_rule(code)
    if known is None:
        raise plugins.unknown("rule", code, codes())
    return known


def find_rule(code: str) -> Rule | None:
    """Return the rule with this code, or None: a record may come from a later version or use another package's rule."""
    # Look among the built-in rules first: searching the installed packages is slow.
    subjects = sorted(SUBJECTS, key=lambda subject: code not in plugins.BUILTIN[_kind(subject)])
    return next((_make(subject, code) for subject in subjects if plugins.has(_kind(subject), code)), None)


@cache
def rules(subject: Subject) -> tuple[Any, ...]:
    """Return all rules on one subject, by code. Rules on other subjects are not imported."""
    return tuple(_make(subject, code) for code in plugins.names(_kind(subject)))


def _kind(subject: Subject) -> str:
    return f"{subject}_rule"


def _make(subject: Subject, code: str) -> Rule:
    made: Rule = plugins.load(_kind(subject), code)()
    if (made.code, made.subject) != (code, subject):
        problem = Problem(
            code, f"the class is {made.code}, a {made.subject} rule", "the code and the subject of the class"
        )
        raise InputError(f"{code} is registered as a {subject} rule", problems=(problem,))
    return made


def _of_program(finding: Finding, what: Any) -> Finding:
    """Return a finding without a command that runs a workload, if it is about a program: that is no workload.

    A command does not state samples again that were seen to be others.
    """
    sides = [getattr(what, side, None) for side in ("a", "b")] if hasattr(what, "a") else [what]
    wraps = any(getattr(getattr(side, "spec", None), "program", None) is not None for side in sides)
    if wraps and RUNS in finding.command:
        return replace(finding, command="")
    if STATED in finding.command and hasattr(what, "wrapped"):
        # Imported late: most findings are not about a program.
        from steelyard.rules.program import other_samples

        if other_samples(what) is not None:
            head, _, tail = finding.command.partition(STATED)
            return replace(finding, command=head + tail.partition(" ")[2])
    return finding


def check(subject: Subject, what: Any) -> tuple[Finding, ...]:
    """Run all rules on a record, pair or table; return the findings, errors first, then by code."""
    findings = [_of_program(finding, what) for made in rules(subject) for finding in made.check(what)]
    order = list(SEVERITIES)
    return tuple(sorted(findings, key=lambda finding: (order.index(finding.severity), finding.code)))
