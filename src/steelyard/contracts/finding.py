"""A finding: an error, warning or note about results, and the figures that it doubts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from steelyard.contracts.base import Contract, Length, Text

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, kw_only=True)
class WrongFigure(Contract):
    """A printed figure of a table that a finding doubts, and what the other figures give for it."""

    place: Text
    """The row, spelled as in the table of rows."""
    name: Text
    """Metric or setting, such as `speedup` or `batch`."""
    printed: Text
    recomputed: Text
    """In the unit of the printed figure, without the unit; empty: the other figures do not give a value."""


@dataclass(frozen=True, kw_only=True)
class Finding(Contract):
    """An error, warning or note about the results."""

    code: Annotated[str, Length(8, r"^SY[0-9]{3}$")]
    severity: Severity
    message: Text
    fix: Text
    """What to do, in one sentence."""
    command: Text = ""
    """The command that does it; empty: no command can."""
    place: Text = ""
    """Row of a table or side of a comparison; empty: the record itself."""
    evidence: Text = ""
    """The numbers behind it."""
    wrong: Annotated[tuple[WrongFigure, ...], Length(1000)] = ()
    """The printed figures of a table that are wrong; empty: a record, or it is not known which figure is wrong."""
