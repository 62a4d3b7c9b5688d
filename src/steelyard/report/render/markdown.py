"""Write a page as Markdown for GitHub and for mkdocs.

Characters that either would read as markup become character references, because a backslash does not work everywhere
in Python-Markdown. So do characters of common extensions (macros, snippets, mathematics, mentions, bare links).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from steelyard.report.page import Chart, Drawing, Prose, Table
from steelyard.report.render.csv_table import union
from steelyard.report.render.plain import code_lines, one_line, picture_file
from steelyard.report.render.published import published_groups
from steelyard.terminal.findings import tally

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from steelyard.contracts.finding import Finding
    from steelyard.report.page import Page, Section

SHOWN = 20
"""Findings shown per code and section."""
_MARKS = str.maketrans(
    {mark: f"&#{ord(mark)};" for mark in "|{}~$^\\`"}
    | {mark: f"\\{mark}" for mark in "*_[]"}
    # GitHub looks for mentions in the rendered HTML: a comment separates the sign from the name.
    | {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "@<!-- -->"}
)
_CODE = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"} | {mark: f"&#{ord(mark)};" for mark in "{}`~"})
# Links and emoji have a colon or a dot inside a word; the others are marks of extensions.
_INSIDE = re.compile(r":(?=\S)|(?<=\bwww)\.|={2,}|\+{2,}", re.IGNORECASE)
_NUMBERED = re.compile(r"(\d{1,9})([.)])")


def inline(words: str) -> str:
    """Escape an untrusted text inside a line."""
    # References come last, so that their own characters are not escaped.
    escaped = one_line(words).translate(_MARKS)
    return _INSIDE.sub(lambda match: "".join(f"&#{ord(mark)};" for mark in match.group()), escaped)


def beginning(words: str) -> str:
    """Escape an untrusted text at the start of a line, where a mark would start a list, a heading or a block."""
    made = inline(words)
    if made[:1] and made[0] in "#+-=:!?%":
        return f"&#{ord(made[0])};{made[1:]}"
    return _NUMBERED.sub(lambda match: f"{match[1]}&#{ord(match[2])};", made, count=1) if made[:1].isdigit() else made


def _strong(words: str) -> str:
    made = inline(words)
    return f"**{made}**" if made else ""


def markdown_table(table: Table) -> str:
    """Return one table with its title above and its notes below."""
    codes = any(cell.codes for row in table.rows for cell in row)
    names = [f"{column.name} ({column.unit})" if column.unit else column.name for column in table.columns]
    header = [inline(name) for name in names] + ["findings"] * codes
    rules = ["---:" if column.align == "right" else "---" for column in table.columns] + ["---"] * codes
    lines = [_row(header), _row(rules)]
    for row in table.rows:
        entries = [inline(cell.text) for cell in row]
        lines.append(_row([*entries, inline(" ".join(union(cell.codes for cell in row)))] if codes else entries))
    notes = [f"- {beginning(note)}" for note in table.notes]
    return "\n\n".join(filter(None, [_strong(table.title), "\n".join(lines), "\n".join(notes)])) + "\n"


def _row(entries: Sequence[str]) -> str:
    return f"| {' | '.join(entries)} |"


def markdown(page: Page, pictures: Mapping[str, str] | None = None) -> str:
    """Return the whole page; `pictures` are files by name of the chart, relative to the Markdown file.

    A chart without a file is replaced by its description and its table.
    """
    parts = [f"# {inline(page.title)}", beginning(page.subtitle)]
    answered = [section for section in page.sections if one_line(section.answer)]
    if len(answered) > 1 and page.first is None:
        short = []
        for section in answered:
            count = f" ({tally(section.findings).partition(';')[0]})" if section.findings else ""
            short.append(f"- {beginning(section.question or section.title)} {_strong(section.answer)}{count}")
        parts.append("\n".join(short))
    for section in page.all_sections:
        parts += _section(section, pictures or {})
    parts.append(f"Made {inline(page.made_at)} by {inline(page.made_by)}.")
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def _section(section: Section, pictures: Mapping[str, str]) -> list[str]:
    head = [beginning(section.question), _strong(section.answer), _findings(section.findings)]
    parts = [f"## {inline(section.title)}", *head]
    for block in section.blocks:
        if isinstance(block, Table):
            parts.append(markdown_table(block))
        elif isinstance(block, Prose):
            parts += _prose(block)
        else:
            parts += _picture(block, pictures)
    return parts


def _findings(findings: Sequence[Finding]) -> str:
    lines = []
    for group in published_groups(findings):
        lines.append(f"- **{inline(group.code)} {inline(group.rule)}** ({inline(group.severity)})")
        for finding in group.findings[:SHOWN]:
            place = f"{beginning(finding.place)}: " if one_line(finding.place) else ""
            message = inline(finding.message) if place else beginning(finding.message)
            evidence = f" (evidence: {inline(finding.evidence)})" if finding.evidence else ""
            lines.append(f"    - {place}{message}{evidence}")
        if len(group.findings) > SHOWN:
            lines.append(f"    - and {len(group.findings) - SHOWN:,} more of this code")
        command = f": <code>{inline(group.command)}</code>" if group.command else ""
        lines.append(f"    - Fix: {inline(group.fix)}{command}")
    return "\n".join(["Findings:", "", *lines]) if lines else ""


def _picture(block: Chart | Drawing, pictures: Mapping[str, str]) -> list[str]:
    parts = [_strong(block.title)]
    if block.name in pictures:
        # In some readers a bracket ends the alternative text, even if escaped.
        words = inline(block.alt.replace("[", "(").replace("]", ")"))
        parts.append(f"![{words}]({picture_file(pictures[block.name])})")
    else:
        parts.append(beginning(block.alt))
    notes = block.notes if isinstance(block, Chart) else ()
    parts.append("\n".join(f"- {beginning(note)}" for note in notes))
    return parts + ([markdown_table(block.table)] if block.table else [])


def _prose(prose: Prose) -> list[str]:
    parts = [beginning(paragraph) for paragraph in prose.paragraphs]
    if prose.facts:
        rows = [_row([inline(name), inline(value)]) for name, value in prose.facts]
        parts.append("\n".join([_row(["fact", "value"]), _row(["---", "---"]), *rows]))
    if prose.code:
        # Extensions look for snippets and macros even inside fences; here they only find references.
        code = "\n".join(line.translate(_CODE) for line in code_lines(prose.code))
        parts.append(f"<pre><code>{code}</code></pre>")
    return parts
