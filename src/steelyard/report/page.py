"""The content of a report, independent of its format: pages of sections with tables, charts and findings.

The renderers (HTML, Markdown, LaTeX, CSV) write it without knowing what it means. Every text is untrusted, so renderers
escape all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from steelyard.contracts.record import Finding

Align = Literal["left", "right"]
Value = str | int | float | None
"""None: no value; the text of the cell gives the reason."""


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    unit: str = ""
    align: Align = "right"


@dataclass(frozen=True)
class Cell:
    """One table entry: text for people, and the value for machines."""

    text: str
    value: Value = None
    low: float | None = None
    high: float | None = None
    """Ends of the 95 % CI, if any."""
    runs: tuple[str, ...] = ()
    """Ids of the runs behind the value."""
    codes: tuple[str, ...] = ()
    """Codes of the findings that apply to it."""


@dataclass(frozen=True)
class Table:
    """A table. Its name is unique, so that it can be linked and exported."""

    name: str
    """Letters, digits and dashes: used as anchor and file name."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    """Footnotes: base, intervals, what is left out."""


@dataclass(frozen=True)
class Chart:
    """A chart with its data as a table and a text description, for readers who cannot see it."""

    name: str
    title: str
    spec: dict[str, Any]
    """Vega-Lite specification, including the data."""
    table: Table
    alt: str
    """What the chart shows, with numbers, in one to three sentences."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drawing:
    """A chart that steelyard draws directly as SVG."""

    name: str
    title: str
    svg: str
    alt: str
    table: Table | None = None


@dataclass(frozen=True)
class Prose:
    """Paragraphs, and `facts`: names with values, such as the environment."""

    paragraphs: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    code: str = ""
    """Shown verbatim: a study file, a command."""


@dataclass(frozen=True)
class Section:
    """One question, its answer, and the evidence."""

    name: str
    title: str
    question: str = ""
    answer: str = ""
    blocks: tuple[Table | Chart | Drawing | Prose, ...] = ()
    findings: tuple[Finding, ...] = ()
    """Shown next to the tables and charts."""
    folded: bool = False
    """Collapsed by default: method, environment, provenance."""


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
    """Raw data by file name, embedded in the HTML file."""

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables, including those of charts, without duplicate names."""
        found: dict[str, Table] = {}
        for section in self.sections:
            for block in section.blocks:
                table = block if isinstance(block, Table) else getattr(block, "table", None)
                if isinstance(table, Table):
                    found.setdefault(table.name, table)
        return tuple(found.values())
