"""The content of a report, independent of its format: pages of sections with tables, charts and findings.

The renderers (HTML, Markdown, LaTeX, CSV) write it without knowing what it means. Every text is untrusted, so renderers
escape all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from steelyard.contracts.finding import Finding, Severity

Trust = Literal["reliable", "warnings", "partly", "unreliable", "consistent", "contradictory"]
Align = Literal["left", "right"]
Value = str | int | float | None
"""None: no value; the text of the cell gives the reason."""


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    unit: str = ""
    align: Align = "right"
    filtered: bool = False
    """A choice of the reader on the HTML page: a setting that varied, or the reliability."""
    aside: bool = False
    """Left out on the HTML page, which says it elsewhere; exports have it in every row."""


@dataclass(frozen=True)
class Doubt:
    """A printed figure that a finding doubts."""

    printed: str
    recomputed: str
    """What the other figures give; empty if unknown."""
    severity: Severity


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
    unreliable: bool = False
    """Drawn differently, so that nobody takes it for a reliable value."""
    doubt: Doubt | None = None
    """Drawn with a mark and the recomputed value; `text` has both for formats that do not draw."""


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
    folded: bool = False
    """Collapsed below its title on the HTML page: for few readers."""

    @property
    def sortable(self) -> bool:
        """Whether readers of the HTML page can sort and filter it."""
        return any(column.filtered for column in self.columns)


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
class KeyFigure:
    """A figure that is read from afar, such as the throughput of the best configuration."""

    label: str
    value: str
    unit: str = ""
    detail: str = ""
    """Its interval, or why it has none."""
    unreliable: bool = False
    at: str = ""
    """Name of the section or table with more, to link to."""


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
    figures: tuple[KeyFigure, ...] = ()
    """For the first screen."""


@dataclass(frozen=True)
class FirstScreen:
    """What a reader sees first: the verdict, a few figures, how far to trust them, and one chart or a short table."""

    verdict: str
    """One sentence."""
    figures: tuple[KeyFigure, ...]
    trust: Trust
    trust_words: tuple[str, ...]
    chart: Chart | Drawing | None = None
    table: Table | None = None

    @property
    def section(self) -> Section:
        """The first screen for formats without screens."""
        rows = tuple(
            (Cell(one.label), Cell(" ".join(filter(None, (one.value, one.unit)))), Cell(one.detail))
            for one in self.figures
        )
        columns = (Column("figure", align="left"), Column("value"), Column("interval", align="left"))
        table = Table("key-figures", "Key figures", columns, rows)
        trust = Prose((f"{self.trust.capitalize()}: {'; '.join(self.trust_words)}.",))
        blocks = (*((table,) if rows else ()), trust, *filter(None, (self.chart, self.table)))
        return Section("in-short", "In short", "", self.verdict, blocks)


def with_note(sections: Iterable[Section], note: str) -> tuple[Section, ...]:
    """Return the sections with a note on every table and chart of results; an empty note changes nothing."""
    return tuple(
        replace(section, blocks=tuple(_noted(block, note) for block in section.blocks)) if note else section
        for section in sections
    )


def _noted(block: Any, note: str) -> Any:
    table = block if isinstance(block, Table) else getattr(block, "table", None)
    if isinstance(block, (Table, Chart)) and table and any(cell.runs for row in table.rows for cell in row):
        return replace(block, notes=(*block.notes, note))
    return block


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
    first: FirstScreen | None = None
    compact: bool = False
    """For many sections: closer together, and charts beside tables where there is room."""

    @property
    def all_sections(self) -> tuple[Section, ...]:
        """The sections, the first screen as the first of them: for formats without screens."""
        return (*((self.first.section,) if self.first is not None else ()), *self.sections)

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables, including those of charts, without duplicate names."""
        by_name: dict[str, Table] = {}
        for section in self.all_sections:
            for block in section.blocks:
                table = block if isinstance(block, Table) else getattr(block, "table", None)
                if isinstance(table, Table):
                    by_name.setdefault(table.name, table)
        return tuple(by_name.values())
