"""Errors that a user can act on: what is wrong, where, and what to type instead. Imports nothing of the package."""

from __future__ import annotations

import errno
import re
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# An untrusted file may have thousands of mistakes; a person reads the first few.
SHOWN_PROBLEMS = 20
# Two lines of a terminal leave room for the place and the problem. Where no command lists all, all are shown.
SHOWN_VALID, MOST_VALID = 160, 2000

# The time to compare two names grows with the square of their length.
COMPARED_CHARACTERS = 60
COMPARED_NAMES = 2000
CLOSE = 0.6
"""Share of characters that two names have in common when one is taken for a slip of the other."""
SHORTENED = 0.15
SHORTEST = 4

# No space left, or the user's quota is used up.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


# Control characters and marks that change the direction of text: an untrusted file must not steer a terminal. The bytes
# of a file name that are not UTF-8 (surrogates) cannot be printed at all.
_MARKS = "\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff"
_UNPRINTABLE = re.compile(f"[\x00-\x1f{_MARKS}]")
_UNPRINTABLE_IN_LINES = re.compile(f"[\x00-\x08\x0b-\x1f{_MARKS}]")


def printable(text: str) -> str:
    """Return the text on one line, with control characters escaped."""
    return _UNPRINTABLE.sub(lambda match: repr(match.group())[1:-1], text)


def printable_lines(text: str) -> str:
    """Return the text with control characters escaped, but with its lines and tabs."""
    return _UNPRINTABLE_IN_LINES.sub(lambda match: repr(match.group())[1:-1], text)


def nearest(text: str, known: Iterable[str], close: float = CLOSE) -> str:
    """Return the known name that `text` most likely means; "" when none is close."""
    # Imported late: most commands have no mistake to explain.
    import difflib
    from itertools import islice

    wanted = _plain(text)
    matcher = difflib.SequenceMatcher(None, "", wanted, autojunk=False)

    def score(other: str) -> float:
        matcher.set_seq1(other)
        if matcher.real_quick_ratio() < close or matcher.quick_ratio() < close:
            return 0.0
        # Letters are swapped more often than replaced, and the first ones are seldom wrong.
        swapped = 0.1 * (wanted != other and sorted(wanted) == sorted(other))
        return matcher.ratio() + swapped + 0.01 * _common_start(wanted, other)

    best = ("", 0.0)
    for name in islice(known, COMPARED_NAMES):
        other = _plain(name)
        if wanted == other:
            return name
        # A name may also be given by its beginning: "slrum" for "slurm-nvidia".
        start = score(other[: len(wanted)]) - SHORTENED if SHORTEST <= len(wanted) < len(other) else 0.0
        best = max(best, (name, max(score(other), start)), key=lambda entry: entry[1])
    return best[0] if best[1] >= close else ""


def _common_start(a: str, b: str) -> int:
    return next((index for index, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _plain(name: str) -> str:
    return name[:COMPARED_CHARACTERS].casefold().replace("-", "_")


def few(names: Sequence[str], limit: int) -> str:
    """Return the names as a list, cut off after `limit` characters."""
    text = ", ".join(names)
    return text if len(text) <= limit else f"{text[:limit].rpartition(', ')[0] or text[:limit]}, ..."


@dataclass(frozen=True)
class Problem:
    """One bad value: where it is, what is wrong, and what to write instead."""

    field: str
    """A field, an option or a file, as the user wrote it."""
    problem: str
    valid: str = ""
    given: str = ""
    """The value, if it is what is wrong."""
    near: str = ""
    """What the user most likely meant."""
    listed: str = ""
    """The command that prints all valid values; without one they are not cut off."""
    file: str = ""
    line: int | None = None

    def __str__(self) -> str:
        place = self.file + (f":{self.line}" if self.line else "") + ": " if self.file else ""
        joint = " = " if not self.field.startswith("--") else "=" if " " in self.field else " "
        given = joint + self.given if self.given else ""
        # Where the right spelling is known, the others do not matter.
        limit = SHOWN_VALID if self.listed else MOST_VALID
        valid = f"; valid: {few([self.valid], limit)}" if self.valid and "did you mean" not in self.problem else ""
        answer = f"; did you mean {self.near}?" if self.near else valid
        return printable(f"{place}{self.field}{given}: {self.problem}{answer}")


class SteelyardError(Exception):
    """An error that the user can fix. `exit_code` is the exit code of the command."""

    exit_code = 1

    def __init__(self, what: str, *, problems: tuple[Problem, ...] = (), next_step: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.problems = problems
        listed = (problem.listed for problem in problems if not problem.near and len(problem.valid) > SHOWN_VALID)
        self.next_step = next_step or next(filter(None, listed), None)

    @property
    def lines(self) -> list[str]:
        """The message and the problems that it does not name itself, without the next step."""
        if len(self.problems) == 1 and self.what == str(self.problems[0]):
            return [printable(self.what)]
        lines = [printable(self.what), *map(str, self.problems[:SHOWN_PROBLEMS])]
        return [*lines, "and more"] if len(self.problems) > SHOWN_PROBLEMS else lines

    def __str__(self) -> str:
        first, *others = self.lines
        step = [printable(f"next: {self.next_step}")] if self.next_step else []
        return "\n".join([first, *(f"  {line}" for line in others), *step])


class InputError(SteelyardError):
    """A file or option is not valid; nothing was run."""

    exit_code = 2


def refusal(*problems: Problem, next_step: str | None = None) -> InputError:
    """Return the error for these problems. A single problem is the whole message."""
    if len(problems) == 1:
        return InputError(str(problems[0]), problems=problems, next_step=next_step)
    files = {problem.file for problem in problems}
    count = f"{len(problems)} problems" if len(problems) <= SHOWN_PROBLEMS else f"more than {SHOWN_PROBLEMS} problems"
    where = f"{files.pop()}: " if len(files) == 1 and "" not in files else ""
    return InputError(f"{where}{count}", problems=problems, next_step=next_step)


LEFT_OUT: ContextVar[dict[str, None] | None] = ContextVar("LEFT_OUT", default=None)
"""Where a command that reads many runs collects what is wrong with single ones; None: the first ends it."""


def leave_out(error: SteelyardError) -> None:
    """Collect what is wrong with one of many runs, or raise it if nobody collects."""
    collected = LEFT_OUT.get()
    if collected is None:
        raise error
    # Of several problems with one file, the first is told.
    several = len(error.problems) > 1
    collected[f"{error.problems[0]}; and {len(error.problems) - 1} more" if several else error.lines[0]] = None


class DamagedDataError(SteelyardError):
    """A raw observation file does not match its header or checksum."""


class WorkerMemoryError(Exception):
    """The device's memory is too small for the work. Carries the evidence for the record."""

    def __init__(self, reason: str, evidence: dict[str, float]) -> None:
        super().__init__(reason)
        self.evidence = evidence
