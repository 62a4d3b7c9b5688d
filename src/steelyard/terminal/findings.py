"""Findings as lines for a terminal, like those of a linter: place, code, message, evidence, fix.

Each code is shown once, with all its places. The last lines count the findings and name one command.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cache
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, Final

from steelyard.contracts.base import to_json_object
from steelyard.errors import printable
from steelyard.rules.rule import SEVERITIES, find_rule
from steelyard.terminal.text import RESULTS, capital, many, shortened, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from steelyard.contracts.finding import Finding

SHOWN_PLACES: Final = 4
LONG_PLACE: Final = 30
ENVIRONMENT = "SY6"
AGAIN: Final = {
    "SY201": "longer",
    "SY202": "longer",
    "SY203": "longer",
    "SY609": "when the machine is quiet",
    "SY610": "when nothing else computes on the device",
}
"""Findings that are answered by measuring again, and how."""
OTHER_NUMBERS: Final = "more with other numbers"
READ_RESULTS: Final = (
    "run",
    "study",
    "suite",
    "status",
    "show",
    "energy",
    "batch",
    "scaling",
    "best",
    "compare",
    "verify",
)
"""Verbs of commands in findings that take a results folder."""
_DIGITS = re.compile(r"\d[\d.,]*")


@dataclass(frozen=True)
class Group:
    """Findings with one code, one severity and one fix."""

    code: str
    rule: str
    severity: str
    fix: str
    command: str
    """That of the first finding that has one."""
    findings: tuple[Finding, ...]


def by_code(findings: Iterable[Finding]) -> list[Group]:
    """Return groups in the order of their first finding, without duplicates."""
    groups: dict[tuple[str, str, str], dict[Finding, None]] = defaultdict(dict)
    for finding in findings:
        groups[finding.code, finding.severity, finding.fix][finding] = None
    return [
        Group(code, rule_name(code), severity, fix, next((one.command for one in same if one.command), ""), tuple(same))
        for (code, severity, fix), same in groups.items()
    ]


def merged(findings: Iterable[Finding], *, of: int = 0) -> tuple[Finding, ...]:
    """Merge findings of several places into one, with the text of the first; errors first.

    Findings that differ only in numbers are merged: hundreds of configurations each have their own number of steps.
    `of`: the number of configurations, to say that a finding is about all of them.
    """
    same: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        same.setdefault((finding.code, finding.severity, _DIGITS.sub("0", finding.message)), []).append(finding)
    once = [dataclasses.replace(group[0], place=_places(group, of)) for group in same.values()]
    return tuple(sorted(once, key=_order))


def _order(finding: Finding) -> tuple[int, bool, str]:
    """Sort by severity; the environment first, because a busy machine is the cause of other findings."""
    return list(SEVERITIES).index(finding.severity), not finding.code.startswith(ENVIRONMENT), finding.code


def _places(group: Sequence[Finding], of: int) -> str:
    places = list(dict.fromkeys(finding.place for finding in group if finding.place))
    equal = len({finding.message for finding in group}) == 1
    if 1 < len(places) == of:
        return f"all {of:,} configurations" + ("" if equal else f", such as {places[0]}")
    if equal or len(places) < 2:
        return shortened(places, SHOWN_PLACES if max(map(len, places), default=0) <= LONG_PLACE else 1)
    return f"{places[0]}, and {len(places) - 1:,} {OTHER_NUMBERS}"


def finding_lines(findings: Sequence[Finding], *, fixes: bool = True) -> list[str]:
    """Format findings by code, a few lines each; those of one code and fix together."""
    lines = []
    for group in by_code(findings):
        head, inner = f"{group.code} {group.rule} ({group.severity}):", "    "
        first = group.findings[0]
        if len(group.findings) == 1 and len(first.place) <= LONG_PLACE:
            place = f"{first.place}: " if first.place else ""
            lines += wrapped(f"{place}{head} {first.message}", "", inner)
            lines += wrapped(f"evidence: {first.evidence}", inner) if first.evidence else []
        else:
            # A code is found at the beginning of a line.
            lines += wrapped(head)
            for finding in group.findings:
                place = f"{finding.place}: " if finding.place else ""
                lines += wrapped(f"{place}{finding.message}", inner)
                lines += wrapped(f"evidence: {finding.evidence}", 2 * inner) if finding.evidence else []
        if fixes and group.fix:
            lines += wrapped(f"fix: {group.fix}", inner)
            lines += [printable(f"{inner}{inner}{command_line(group.command)}")] if group.command else []
    return lines


def with_one_remedy(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Give findings that all mean "measure again" one fix and one command, the longest of theirs, after the last.

    Unless they are about several places that have commands of their own.
    """
    again = sorted((finding for finding in findings if finding.code in AGAIN and finding.command), key=_order)
    commands = {finding.command for finding in again}
    if len(again) < 2 or (len({finding.place for finding in again}) > 1 and len(commands) > 1):
        return tuple(findings)
    command = max(commands, key=_length)
    how = [word for code, word in AGAIN.items() if any(finding.code == code for finding in again)]
    fix = f"measure again, {', '.join(dict.fromkeys(how))}"
    same = [dataclasses.replace(finding, fix="", command=command) for finding in again]
    same[-1] = dataclasses.replace(same[-1], fix=fix)
    others = [finding for finding in findings if finding not in again]
    before = [finding for finding in others if _order(finding) < _order(again[0])]
    return (*before, *same, *(finding for finding in others if finding not in before))


def _length(command: str) -> tuple[float, ...]:
    """Return how much a command measures, to choose one that does what all ask for."""
    words = shlex.split(command)
    given = dict(pairwise(words))
    return tuple(float(given.get(option, 0)) for option in ("--min-steps", "--max-seconds", "--repeats"))


def command_line(command: str) -> str:
    """Return a command for the folder of results that was chosen here."""
    folder = RESULTS.get()
    try:
        words = shlex.split(command)
    except ValueError:
        # A sentence with an apostrophe.
        return command
    if folder is None or words[:1] != ["steelyard"]:
        return command
    parts = [[*part] for is_joint, part in groupby(words, "&&".__eq__) if not is_joint]
    return " && ".join(shlex.join([*part, "--results", folder] if _lacks_results(part) else part) for part in parts)


def _lacks_results(words: Sequence[str]) -> bool:
    """Return whether a command reads results and does not say which."""
    reads = {*words[1:2]} & {*READ_RESULTS} and words[2:3] != ["list"]
    return bool(reads) and not any(word.partition("=")[0] == "--results" for word in words)


def findings_object(findings: Iterable[Finding]) -> list[Any]:
    """Return findings as plain data, with their commands for the folder of results that was chosen here."""
    return [to_json_object(dataclasses.replace(finding, command=command_line(finding.command))) for finding in findings]


def tally(findings: Sequence[Finding]) -> str:
    """Count the findings by severity: 2 errors, 1 warning."""
    counts = Counter(finding.severity for finding in findings)
    return ", ".join(many(counts[each], each) for each in SEVERITIES if counts[each]) or "no findings"


def tally_lines(findings: Sequence[Finding]) -> list[str]:
    """Count the findings, and name the most severe with the command that fixes or explains it."""
    if not findings:
        return wrapped(f"{capital(tally(findings))}.")
    worst = min(findings, key=_order)
    # What is true of most comparisons asks for nothing.
    quiet = worst.severity == "note" and not worst.command
    which = f" Most severe: {worst.code} {rule_name(worst.code)}." if len(findings) > 1 and not quiet else ""
    command = [] if quiet else [next_line(worst.command or f"steelyard explain {worst.code}")]
    return [*wrapped(f"{capital(tally(findings))}.{which}"), *command]


def next_line(command: str) -> str:
    """Return the last line of an output: one command, which is never wrapped here."""
    return printable(f"next: {command_line(command)}")


@cache
def rule_name(code: str) -> str:
    """Return the name of a code's rule; cached, because a lookup scans the installed packages."""
    rule = find_rule(code)
    return rule.name if rule is not None else "(unknown rule)"
