"""What a report is made of, before anybody decides how it looks: pages of sections of tables, charts and findings.

Knows structure and words. Renderers (HTML, Markdown, LaTeX, CSV) know how to write it, and nothing of what it means.
Every text may come from a stranger: a renderer escapes all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from steelyard.contracts.record import Finding

Align = Literal["left", "right"]
Value = str | int | float | None
"""None: there is none; a cell says why in its text."""


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    unit: str = ""
    align: Align = "right"


@dataclass(frozen=True)
class Cell:
    """One entry: what people read, and what machines are given."""

    text: str
    value: Value = None
    low: float | None = None
    high: float | None = None
    """Ends of the 95 % interval, where it has one."""
    runs: tuple[str, ...] = ()
    """Ids of the runs it rests on."""
    codes: tuple[str, ...] = ()
    """Of the findings that concern it."""


@dataclass(frozen=True)
class Table:
    """A table with its own name, so that it can be found, linked and exported."""

    name: str
    """Letters, digits and dashes: becomes an anchor and a file's name."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    """Base, intervals, what is left out: below the table."""


@dataclass(frozen=True)
class Chart:
    """A picture with its data as a table and its content in words: who cannot see it misses nothing."""

    name: str
    title: str
    spec: dict[str, Any]
    """Vega-Lite, with its data inside."""
    table: Table
    alt: str
    """What the picture shows, in one to three sentences with its figures."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drawing:
    """A picture that is SVG already, of our own making."""

    name: str
    title: str
    svg: str
    alt: str
    table: Table | None = None


@dataclass(frozen=True)
class Prose:
    """Paragraphs; `facts` are names with values, such as the environment."""

    paragraphs: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    code: str = ""
    """To be shown as it is: a study file, a command."""


@dataclass(frozen=True)
class Section:
    """One question, its answer, and what the answer rests on."""

    name: str
    title: str
    question: str = ""
    answer: str = ""
    blocks: tuple[Table | Chart | Drawing | Prose, ...] = ()
    findings: tuple[Finding, ...] = ()
    """Shown beside the figures."""
    folded: bool = False
    """Method and environment: there for who looks for it."""


@dataclass(frozen=True)
class Page:
    """A whole report."""

    title: str
    subtitle: str
    sections: tuple[Section, ...]
    made_at: str
    """UTC, ISO 8601."""
    made_by: str
    downloads: dict[str, bytes] = field(default_factory=dict)
    """Raw data that goes with it, by file name; inside the HTML file."""

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables, those of charts too, each once by its name."""
        found: dict[str, Table] = {}
        for section in self.sections:
            for block in section.blocks:
                table = block if isinstance(block, Table) else getattr(block, "table", None)
                if isinstance(table, Table):
                    found.setdefault(table.name, table)
        return tuple(found.values())
