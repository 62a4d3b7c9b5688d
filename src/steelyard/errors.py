"""Errors a person can act on: what failed, what is valid, what to type next. Knows nothing of the rest."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass

# An input from a stranger may hold thousands of faults; a person reads the first few.
SHOWN_PROBLEMS = 20

# No space, or no more of it for this user.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


# Control characters and those that turn the direction of text: a stranger's file must not steer a terminal.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def printable(text: str) -> str:
    """Text in one line that does nothing but be read."""
    return _UNPRINTABLE.sub(lambda found: repr(found.group())[1:-1], text)


@dataclass(frozen=True)
class Problem:
    """One bad value: where it is, what is wrong with it, and what would be right."""

    field: str
    problem: str
    valid: str

    def __str__(self) -> str:
        return printable(f"{self.field}: {self.problem}; valid: {self.valid}")


class SteelyardError(Exception):
    """Something a user can mend. `exit_code` is what the command line ends with."""

    exit_code = 1

    def __init__(self, what: str, *, problems: tuple[Problem, ...] = (), next_step: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.problems = problems
        self.next_step = next_step

    def __str__(self) -> str:
        lines = [printable(self.what)]
        lines += [f"  {problem}" for problem in self.problems[:SHOWN_PROBLEMS]]
        if len(self.problems) > SHOWN_PROBLEMS:
            lines.append("  and more")
        if self.next_step:
            lines.append(printable(f"next: {self.next_step}"))
        return "\n".join(lines)


class InputError(SteelyardError):
    """A spec, study, record or option that is not valid: nothing was run."""

    exit_code = 2


class DamagedDataError(SteelyardError):
    """A raw observation file that is not what its header or checksum says."""


class WorkerMemoryError(Exception):
    """The device's memory does not hold the work; carries the evidence for the record."""

    def __init__(self, reason: str, evidence: dict[str, float]) -> None:
        super().__init__(reason)
        self.evidence = evidence
