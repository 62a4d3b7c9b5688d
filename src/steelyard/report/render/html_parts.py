"""Write tables and findings as HTML."""

from __future__ import annotations

import base64
import gzip
import math
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import lru_cache
from html import escape
from typing import TYPE_CHECKING

from steelyard.report.render.csv_table import csv_table, is_number, union
from steelyard.report.render.latex import latex_table
from steelyard.report.render.markdown import markdown_table
from steelyard.report.render.plain import file_name, one_line
from steelyard.report.render.published import published_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from steelyard.contracts.finding import Finding
    from steelyard.report.page import Cell, Column, Doubt, Page, Table
    from steelyard.terminal.findings import Group

LONG_ROWS = 40
"""A table with more rows gets its own scroll bar."""
MANY_COLUMNS = 9
"""A table with more columns has smaller letters, so that it fits beside the table of contents."""
WORDS = 28
"""A column with longer texts wraps."""
SHOWN = 3
"""Findings of one code that are shown; the rest are folded, as a large study has thousands."""
CODES = "codes"
"""Name of the table that explains the codes."""
MOST_KEYS = 5
"""Columns of settings that stay visible when the reader scrolls sideways."""
WIDEST = 2.0
"""The scale of a column ends at this many times its largest value, so that a wide interval does not hide others."""
LAST_OF_HEAD = ("| ---", r"\midrule", r"\endfoot")
"""How the last line before the rows of a table begins, in Markdown and in LaTeX."""
SHORT = 48
"""Maximum length of a place that is set in bold."""
SEVERITY_MARKS = {"error": "\u25a0", "warning": "\u25b2", "note": "\u25cf"}


@lru_cache(1 << 16)
def text(words: str) -> str:
    """Escape an untrusted text as content or quoted attribute."""
    return escape(one_line(words))


@dataclass
class Book:
    """State of the whole file while it is written: anchors in use, rows of runs, downloads."""

    runs: dict[str, str] = field(default_factory=dict)
    """Anchor of the row for this run, by run id."""
    payloads: list[str] = field(default_factory=list)
    codes: dict[str, str] = field(default_factory=dict)
    """Anchor of the findings of a code; with several, the one in the current section."""
    explained: dict[str, str] = field(default_factory=dict)
    """Why a code matters, for the codes that a table of the page explains."""
    groups: dict[str, Group] = field(default_factory=dict)
    """Findings of a code, those of the first section that has it."""
    said: dict[tuple[str, str], str] = field(default_factory=dict)
    """Anchor of the findings that have a message or a fix, by code and text, so that a page says it once."""
    described: set[str] = field(default_factory=set)
    """Codes that already have the box that a chip opens."""
    live: bool = False
    """Whether a chart of the page is interactive."""
    _taken: set[str] = field(default_factory=set)
    _placed: set[str] = field(default_factory=set)

    def anchor(self, name: str) -> str:
        """Return an id that is unique in the file."""
        plain = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:80] or "part"
        unique, number = plain, 1
        while unique in self._taken:
            number += 1
            unique = f"{plain}-{number}"
        self._taken.add(unique)
        return unique

    def payload(self, content: bytes) -> str:
        """Store `content` compressed at the end of the file, and return its id."""
        packed = base64.b64encode(gzip.compress(content, 6, mtime=0)).decode("ascii")
        if packed not in self.payloads:
            self.payloads.append(packed)
        return f"payload-{1 + self.payloads.index(packed)}"

    def save_button(self, label: str, name: str, kind: str, content: bytes) -> str:
        """Return a button that saves `content`."""
        return (
            f'<button type="button" class="script" data-from="{self.payload(content)}" '
            f'data-name="{file_name(name)}" data-type="{kind}">{text(label)}</button>'
        )

    def find_runs(self, page: Page) -> None:
        """Find the row of each run, in the first table with one run per row."""
        for table in page.tables:
            alone = [union(cell.runs for cell in row) for row in table.rows]
            if len(alone) > 1 and all(len(runs) == 1 for runs in alone):
                for (run,) in alone:
                    self.runs.setdefault(run, f"run-{len(self.runs) + 1}")
        self._taken.update(self.runs.values())

    def find_explanations(self, page: Page) -> None:
        """Find the codes that the page explains, in the table of that name, and their findings."""
        self.explained = {
            code: row[2].text
            for table in page.tables
            if table.name == CODES
            for row in table.rows
            for code in row[0].codes
        }
        self._taken.update(f"code-{code.lower()}" for code in self.explained)
        for section in page.sections:
            for group in published_groups(section.findings):
                self.groups.setdefault(group.code, group)

    def row_anchor(self, runs: Sequence[str]) -> str:
        """Return the anchor of a row for one run, if it is the first for this run."""
        if len(runs) != 1 or runs[0] not in self.runs or runs[0] in self._placed:
            return ""
        self._placed.add(runs[0])
        return f' id="{self.runs[runs[0]]}"'

    def run_link(self, run: str) -> str:
        """Return a run id, linked to its row if there is one."""
        return f'<a href="#{self.runs[run]}">{text(run)}</a>' if run in self.runs else f"<span>{text(run)}</span>"


# -- tables


def table_block(table: Table, book: Book, *, folded: str = "", heading: tuple[str, str] = ("", "")) -> str:
    """Return a table with its title; `folded`: collapsed under this title, because a chart shows the same.

    `heading` is title and anchor of the section: a table of the same title does not repeat it.
    """
    anchor = book.anchor(table.name)
    folded = folded or (table.title if table.folded else "")
    csv = book.save_button("Save as CSV", f"{table.name}.csv", "text/csv", csv_table(table).encode())
    notes = note_list(table.notes)
    if folded:
        grid = table_grid(table, book, f'aria-label="{text(table.title)}"')
        return (
            f'<details class="fold" id="{anchor}"><summary>{text(folded)}</summary>'
            f'<div class="block">{grid}{notes}<p>{csv}</p></div></details>'
        )
    copies = _copy_buttons(table, book) if table.sortable else ""
    if table.title == heading[0]:
        grid = table_grid(table, book, f'aria-labelledby="{heading[1]}"')
        return f'<div class="block" id="{anchor}">{grid}<div class="head">{notes}{csv}{copies}</div></div>'
    grid = table_grid(table, book, f'aria-labelledby="{anchor}"')
    head = f'<div class="head"><h3 id="{anchor}">{text(table.title)}</h3>{csv}{copies}</div>'
    return f'<div class="block">{head}{grid}{notes}</div>'


def _copy_buttons(table: Table, book: Book) -> str:
    """Return buttons that copy the rows in sight. Each text is stored as a whole, one row of the table per line."""
    made = {"CSV": csv_table(table), "Markdown": markdown_table(table), "LaTeX": latex_table(table)}
    buttons = ""
    for kind, content in made.items():
        # The first line with a row: no text of a table looks like these lines.
        first = 1 + max(
            (place for place, line in enumerate(content.split("\n")) if line.startswith(LAST_OF_HEAD)), default=0
        )
        buttons += (
            f'<button type="button" class="script" data-copy="{book.payload(content.encode())}" data-first="{first}" '
            f'data-kind="{kind}">Copy {kind}</button>'
        )
    return buttons


def note_list(notes: Iterable[str]) -> str:
    """Return the notes below a table or a chart."""
    items = "".join(f"<li>{text(note)}</li>" for note in notes)
    return f'<ul class="notes">{items}</ul>' if items else ""


def table_grid(table: Table, book: Book, label: str) -> str:
    """Return the table in a box that scrolls and can be reached by keyboard."""
    table = _without_asides(table)
    kinds = []
    for place, column in enumerate(table.columns):
        wordy = any(len(row[place].text) > WORDS for row in table.rows)
        kinds.append(" ".join(["r"] * (column.align == "right") + ["t"] * wordy))
    runs = [union(cell.runs for cell in row) for row in table.rows]
    shown = any(
        len(ids) > 1 or not (len(ids) == 1 and any(cell.text == ids[0] for cell in row))
        for row, ids in zip(table.rows, runs, strict=True)
        if ids
    )
    coded = table.sortable and any(cell.codes for row in table.rows for cell in row)
    # Settings come first, and stay in sight. Without a script, only the first of them does.
    keys = next((n for n, column in enumerate(table.columns) if not column.filtered), 0)
    keys = min(max(keys, 1), MOST_KEYS) if table.sortable else 0
    head = ""
    for place, (column, kind) in enumerate(zip(table.columns, kinds, strict=True)):
        unit = f' <span class="unit">{text(column.unit)}</span>' if column.unit else ""
        marks = " data-key" * (place < keys) + " data-filter" * column.filtered
        head += f'<th scope="col"{_class(kind)}{marks}>{text(column.name)}{unit}</th>'
    head += '<th scope="col">findings</th>' if coded else ""
    head += '<th scope="col" class="runs">run ids</th>' if shown else ""
    scales = [_scale([row[place] for row in table.rows]) if table.sortable else 0.0 for place in range(len(kinds))]
    rows = []
    for row, ids in zip(table.rows, runs, strict=True):
        cells = ""
        for place, (cell, kind) in enumerate(zip(row, kinds, strict=True)):
            made = _figure(cell, kind, scales[place]) if table.sortable else _entry(cell, kind, book)
            cells += f'<th scope="row"{made}</th>' if place == 0 else f"<td{made}</td>"
        cells += f"<td>{_chips(union(cell.codes for cell in row), book)}</td>" if coded else ""
        cells += f'<td class="runs">{_runs(row, ids, table.columns, book)}</td>' if shown else ""
        code = f' id="code-{row[0].codes[0].lower()}"' if table.name == CODES and row[0].codes else ""
        rows.append(f"<tr{code or book.row_anchor(ids)}>{cells}</tr>")
    lines = "\n".join(rows)
    long = " long" if len(rows) > LONG_ROWS else ""
    main = f' class="main" data-keys="{keys}"' if table.sortable else ""
    dense = ' class="dense"' if not main and len(table.columns) > MANY_COLUMNS else ""
    box = f'<div class="scroll{long}{" all" if main else ""}" role="group" tabindex="0" {label}>'
    boxes = "".join(_about(code, book) for row in table.rows for cell in row for code in cell.codes) if coded else ""
    return f"{box}<table{main}{dense} {label}><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>{boxes}"


def _without_asides(table: Table) -> Table:
    shown = [place for place, column in enumerate(table.columns) if not column.aside]
    rows = tuple(tuple(row[place] for place in shown) for row in table.rows)
    return replace(table, columns=tuple(table.columns[place] for place in shown), rows=rows)


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _entry(cell: Cell, kind: str, book: Book) -> str:
    codes = ""
    for code in cell.codes:
        anchor = book.codes.get(code)
        link = f'<a href="#{anchor}">{text(code)}</a>' if anchor else text(code)
        codes += f' <span class="code">{link}</span>'
    if cell.doubt is not None:
        return f"{_class(f'{kind} wrong {cell.doubt.severity}'.strip())}>{_doubted(cell.doubt)}{codes}"
    return f"{_class(kind)}>{text(cell.text)}{codes}"


def _doubted(doubt: Doubt) -> str:
    """Return a printed figure that is wrong, what it should be, and a mark for readers who do not see the colour."""
    mark = f'<span class="mark" role="img" aria-label="{doubt.severity}">{SEVERITY_MARKS[doubt.severity]}</span>'
    if not doubt.recomputed:
        return f"{text(doubt.printed)} {mark}"
    return f"<del>{text(doubt.printed)}</del> <ins>\u2192 {text(doubt.recomputed)}</ins> {mark}"


def _scale(cells: Sequence[Cell]) -> float:
    """Return the upper end of the scale that the intervals of a column share; zero if there is nothing to draw."""
    values = [float(cell.value) for cell in cells if is_number(cell.value)]  # type: ignore[arg-type]
    ends = [cell.high for cell in cells if cell.high is not None and math.isfinite(cell.high)]
    drawn = any(cell.low is not None for cell in cells) and min(values, default=0.0) >= 0
    return min(max([*values, *ends]), WIDEST * max(values)) if values and drawn else 0.0


def _figure(cell: Cell, kind: str, scale: float) -> str:
    """Return an entry that can be sorted by its value, with its interval drawn on the scale of the column."""
    kind = " ".join(filter(None, (kind, "doubt" if cell.unreliable else "")))
    if not is_number(cell.value):
        return f"{_class(kind)}>{text(cell.text)}"
    value = float(cell.value)  # type: ignore[arg-type]
    drawn = ""
    if scale and cell.low is not None:
        low, at, high = (
            f"{100 * min(max(end, 0.0), scale) / scale:.3g}"
            for end in (cell.low, value, scale if cell.high is None else cell.high)
        )
        drawn = (
            f'<svg class="bar" viewBox="0 0 100 8" aria-hidden="true"><path d="M0 4H{at}"/>'
            f'<path d="M{low} 4H{high}M{at} 1V7"/></svg>'
        )
    return f'{_class(kind)} data-v="{value:.7g}">{text(cell.text)}{drawn}'


def _chips(codes: Sequence[str], book: Book) -> str:
    """Return one button per code that opens its box; the browser needs no script for that."""
    made = []
    for code in codes:
        group = book.groups.get(code)
        if group is None:
            made.append(text(code))
            continue
        severity = text(group.severity)
        made.append(
            f'<button type="button" class="chip {severity}" popovertarget="{_about_id(code)}" '
            f'aria-label="{text(code)}, {severity}">{SEVERITY_MARKS.get(group.severity, "")} {text(code)}</button>'
        )
    return " ".join(made)


def _about_id(code: str) -> str:
    return f"about-{file_name(code).lower()}"


def _about(code: str, book: Book) -> str:
    """Return the box with what a code means and how to fix it, once per page."""
    group = book.groups.get(code)
    if group is None or code in book.described:
        return ""
    book.described.add(code)
    why = f"<p>{text(book.explained[code])}</p>" if code in book.explained else ""
    finding = group.findings[0]
    more = f' <a href="#{book.codes[code]}">All places</a>' if code in book.codes else ""
    command = f"<p><code>{text(group.command)}</code></p>" if group.command else ""
    at, severity = _about_id(code), text(group.severity)
    return (
        f'<div popover class="about {severity}" id="{at}" role="dialog" aria-label="{text(code)}">'
        f"<p><b>{text(code)} {text(group.rule)}</b> "
        f'<span class="severity">{SEVERITY_MARKS.get(group.severity, "")} {severity}</span></p>'
        f"<p>{text(finding.message)}.{more}</p>{why}<p><b>Fix:</b> {text(group.fix)}</p>{command}"
        f'<p><button type="button" popovertarget="{at}" popovertargetaction="hide">Close</button></p></div>'
    )


def _runs(row: Sequence[Cell], ids: Sequence[str], columns: Sequence[Column], book: Book) -> str:
    """Return the runs behind a row, by column if they differ."""
    if not ids:
        return ""
    if len(ids) == 1:
        return book.run_link(ids[0])
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for cell, column in zip(row, columns, strict=True):
        if cell.runs:
            groups[cell.runs].append(column.name)
    parts = []
    for runs, names in groups.items():
        whose = f"<p>{text(', '.join(names))}:</p>" if len(groups) > 1 else ""
        # No list elements: the ids of a large study would dominate the layout time of the browser.
        parts.append(f"{whose}<div>{' '.join(book.run_link(run) for run in runs)}</div>")
    return f"<details><summary>{len(ids)} runs</summary>{''.join(parts)}</details>"


# -- findings


def findings_block(findings: Sequence[Finding], section: str, book: Book) -> str:
    """Return the findings grouped by code, each with its places and its fix."""
    own: dict[str, str] = {}
    parts = []
    for group in published_groups(findings):
        anchor = book.anchor(f"{section}-{group.code}")
        own.setdefault(group.code, anchor)
        parts.append(_finding(group, anchor, book))
    book.codes |= own
    return f'<div class="findings"><h3>Findings</h3>{"".join(parts)}</div>' if parts else ""


def _finding(group: Group, anchor: str, book: Book) -> str:
    code = text(group.code)
    code = f'<a href="#code-{code.lower()}">{code}</a>' if group.code in book.explained else code
    # What an earlier section says is not repeated here, but linked.
    words = (group.fix, *(finding.message for finding in group.findings))
    said = {entry: book.said[group.code, entry] for entry in words if (group.code, entry) in book.said}
    before = {entry: f'<a href="#{at}">as above</a>' for entry, at in said.items()}
    items = []
    for finding in group.findings:
        book.said.setdefault((group.code, finding.message), anchor)
        # A single name is bold; a long list of names is not.
        many = ' class="many"' if len(finding.place) > SHORT else ""
        place = f"<b{many}>{text(finding.place)}</b>: " if finding.place else ""
        evidence = f'<span class="evidence">Evidence: {text(finding.evidence)}</span>' if finding.evidence else ""
        items.append(f"<li>{place}{before.get(finding.message) or text(finding.message)}{evidence}</li>")
    shown = f"<ul>{''.join(items[:SHOWN])}</ul>"
    if len(items) > SHOWN:
        shown += f"<details><summary>{len(items) - SHOWN:,} more</summary><ul>{''.join(items[SHOWN:])}</ul></details>"
    book.said.setdefault((group.code, group.fix), anchor)
    command = f"<br><code>{text(group.command)}</code>" if group.command else ""
    fix = before.get(group.fix) or text(group.fix)
    told = f"<p><b>Fix:</b> {fix}{command}</p>" if command or len(before) < 1 + len(group.findings) else ""
    severity, mark = text(group.severity), SEVERITY_MARKS.get(group.severity, "")
    return (
        f'<div class="finding {severity}" id="{anchor}"><h4>{code} {text(group.rule)} '
        f'<span class="severity"><span aria-hidden="true">{mark}</span> {severity}</span>'
        f"</h4>{shown}{told}</div>"
    )
