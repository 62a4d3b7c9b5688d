"""Write tables and findings as HTML."""

from __future__ import annotations

import base64
import gzip
import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from typing import TYPE_CHECKING

from steelyard.report.render.csv_table import csv_table, union
from steelyard.report.render.plain import file_name, one_line
from steelyard.terminal.findings import by_code

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from steelyard.contracts.record import Finding
    from steelyard.report.page import Cell, Column, Page, Table
    from steelyard.terminal.findings import Group

LONG_ROWS = 40
"""A table with more rows gets its own scroll bar."""
WORDS = 28
"""A column with longer texts wraps."""
SHOWN = 3
"""Findings of one code that are shown; the rest are folded, as a large study has thousands."""
CODES = "codes"
"""Name of the table that explains the codes."""
FEW = 4
"""Up to this many codes stay visible while the reader scrolls."""
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
    explained: set[str] = field(default_factory=set)
    """Codes that a table of the page explains, one per row."""
    _taken: set[str] = field(default_factory=set)
    _placed: set[str] = field(default_factory=set)

    def anchor(self, name: str) -> str:
        """Return an id that is unique in the file."""
        plain = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:80] or "part"
        found, number = plain, 1
        while found in self._taken:
            number += 1
            found = f"{plain}-{number}"
        self._taken.add(found)
        return found

    def save_button(self, label: str, name: str, kind: str, content: bytes) -> str:
        """Return a button that saves `content`, which is stored compressed at the end of the file."""
        self.payloads.append(base64.b64encode(gzip.compress(content, 6, mtime=0)).decode("ascii"))
        return (
            f'<button type="button" class="script" data-from="payload-{len(self.payloads)}" '
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
        """Find the codes that the page explains, in the table of that name."""
        self.explained = {code for table in page.tables if table.name == CODES for row in table.rows
                          for code in row[0].codes}  # fmt: skip
        self._taken.update(f"code-{code.lower()}" for code in self.explained)

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


def table_block(table: Table, book: Book, *, folded: str = "") -> str:
    """Return a table with its title; `folded`: collapsed under this title, because a chart shows the same."""
    anchor = book.anchor(table.name)
    csv = book.save_button("Save as CSV", f"{table.name}.csv", "text/csv", csv_table(table).encode())
    notes = note_list(table.notes)
    if folded:
        grid = table_grid(table, book, f'aria-label="{text(table.title)}"')
        return (
            f'<details class="fold" id="{anchor}"><summary>{text(folded)}</summary>'
            f'<div class="block">{grid}{notes}<p>{csv}</p></div></details>'
        )
    grid = table_grid(table, book, f'aria-labelledby="{anchor}"')
    head = f'<div class="head"><h3 id="{anchor}">{text(table.title)}</h3>{csv}</div>'
    return f'<div class="block">{head}{grid}{notes}</div>'


def note_list(notes: Iterable[str]) -> str:
    """Return the notes below a table or a chart."""
    items = "".join(f"<li>{text(note)}</li>" for note in notes)
    return f'<ul class="notes">{items}</ul>' if items else ""


def table_grid(table: Table, book: Book, label: str) -> str:
    """Return the table in a box that scrolls and can be reached by keyboard."""
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
    head = ""
    for column, kind in zip(table.columns, kinds, strict=True):
        unit = f' <span class="unit">{text(column.unit)}</span>' if column.unit else ""
        head += f'<th scope="col"{_class(kind)}>{text(column.name)}{unit}</th>'
    head += '<th scope="col" class="runs">run ids</th>' if shown else ""
    rows = []
    for row, ids in zip(table.rows, runs, strict=True):
        cells = "".join(_entry(cell, kind, i, book) for i, (cell, kind) in enumerate(zip(row, kinds, strict=True)))
        cells += f'<td class="runs">{_runs(row, ids, table.columns, book)}</td>' if shown else ""
        code = f' id="code-{row[0].codes[0].lower()}"' if table.name == CODES and row[0].codes else ""
        rows.append(f"<tr{code or book.row_anchor(ids)}>{cells}</tr>")
    lines = "\n".join(rows)
    long = " long" if len(rows) > LONG_ROWS else ""
    return (
        f'<div class="scroll{long}" role="group" tabindex="0" {label}><table {label}><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _entry(cell: Cell, kind: str, place: int, book: Book) -> str:
    codes = ""
    for code in cell.codes:
        anchor = book.codes.get(code)
        link = f'<a href="#{anchor}">{text(code)}</a>' if anchor else text(code)
        codes += f' <span class="code">{link}</span>'
    opening = '<th scope="row"' if place == 0 else "<td"
    return f"{opening}{_class(kind)}>{text(cell.text)}{codes}</{'th' if place == 0 else 'td'}>"


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
    for group in by_code(findings):
        anchor = book.anchor(f"{section}-{group.code}")
        own.setdefault(group.code, anchor)
        parts.append(_finding(group, anchor, book))
    book.codes |= own
    few = " few" if len(parts) <= FEW else ""
    return f'<div class="findings{few}"><h3>Findings</h3>{"".join(parts)}</div>' if parts else ""


def _finding(group: Group, anchor: str, book: Book) -> str:
    code = text(group.code)
    code = f'<a href="#code-{code.lower()}">{code}</a>' if group.code in book.explained else code
    items = []
    for found in group.findings:
        # A single name is bold; a long list of names is not.
        many = ' class="many"' if len(found.place) > SHORT else ""
        place = f"<b{many}>{text(found.place)}</b>: " if found.place else ""
        evidence = f'<span class="evidence">Evidence: {text(found.evidence)}</span>' if found.evidence else ""
        items.append(f"<li>{place}{text(found.message)}{evidence}</li>")
    shown = f"<ul>{''.join(items[:SHOWN])}</ul>"
    if len(items) > SHOWN:
        shown += f"<details><summary>{len(items) - SHOWN:,} more</summary><ul>{''.join(items[SHOWN:])}</ul></details>"
    command = f"<br><code>{text(group.command)}</code>" if group.command else ""
    severity, mark = text(group.severity), SEVERITY_MARKS.get(group.severity, "")
    return (
        f'<div class="finding {severity}" id="{anchor}"><h4>{code} {text(group.rule)} '
        f'<span class="severity"><span aria-hidden="true">{mark}</span> {severity}</span>'
        f"</h4>{shown}<p><b>Fix:</b> {text(group.fix)}{command}</p></div>"
    )
