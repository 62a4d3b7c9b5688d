"""Write a page as one HTML file that opens offline.

Every text is escaped. The content security policy of the file allows only its own style sheet and scripts, by hash, and
no requests. Charts are SVG inside image elements, where they cannot run scripts or load anything. With JavaScript, the
runtime of Vega draws them again when they come into view, without eval.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from itertools import groupby
from typing import TYPE_CHECKING

from steelyard.extras import install_line
from steelyard.report.page import Chart, Drawing, Prose, Table
from steelyard.report.render import draw
from steelyard.report.render.csv_table import table_object
from steelyard.report.render.html_parts import Book, findings_block, note_list, table_block, text
from steelyard.report.render.plain import code_lines, one_line
from steelyard.terminal.findings import tally

if TYPE_CHECKING:
    from steelyard.report.page import FirstScreen, Page, Section

    Block = Table | Chart | Drawing | Prose

NAV_SECTIONS = 3
"""With fewer sections, the page needs no table of contents."""

LARGE = 9
"""Characters of a figure that fit beside others in large letters."""
TRUST = {
    "reliable": "\u2713 Reliable",
    "warnings": "\u25b2 With warnings",
    "partly": "\u25b2 Partly reliable",
    "unreliable": "\u25a0 Unreliable",
    "consistent": "\u2713 Consistent",
    "contradictory": "\u25a0 Contradictory",
}
NO_PICTURE = f"The chart could not be drawn. To get it: {install_line('report')}, then make the report again."


def html(page: Page, *, charts: bool = True) -> str:
    """Return the page as one self-contained file. Without `charts`, or if they cannot be drawn, it has their tables."""
    style, script, table_script, chart_script = (
        files("steelyard.report").joinpath("assets", name).read_text("utf-8")
        for name in ("report.css", "report.js", "table.js", "charts.js")
    )
    script += table_script
    book = Book()
    book.find_runs(page)
    book.find_explanations(page)
    anchors = [book.anchor(section.name) for section in page.sections]
    pictures = charts and draw.available()
    first = _first(page.first, book, pictures) if page.first is not None else ""
    parts = [_section(part, anchor, book, pictures) for part, anchor in zip(page.sections, anchors, strict=True)]
    scripts, runtime = [script], ""
    if book.live:
        style += f"@media screen and (prefers-color-scheme:dark){{{draw.dark_rules('.view ')}}}"
        scripts = [f"{script}{chart_script}", draw.runtime()]
        runtime = f' data-vega="{book.payload(scripts[1].encode())}"'
    nav = ""
    if len(anchors) >= NAV_SECTIONS:
        links = (
            f'<li><a href="#{at}">{text(part.title)}</a></li>' for part, at in zip(page.sections, anchors, strict=True)
        )
        nav = f'<nav aria-labelledby="contents"><h2 id="contents">Contents</h2><ul>{"".join(links)}</ul></nav>'
    body = [
        '<a class="skip" href="#main">Skip to the answers</a>',
        f"<header><h1>{text(page.title)}</h1>{f'<p>{text(page.subtitle)}</p>' if page.subtitle else ''}</header>",
        f'<main id="main" class="body{" wide" if len(parts) >= NAV_SECTIONS else ""}">{first or _short(page, anchors)}',
        nav,
        f'<div class="parts">{"".join(parts)}</div></main>',
        _footer(page, book),
        *(f'<script type="text/plain" id="payload-{n}">{data}</script>' for n, data in enumerate(book.payloads, 1)),
        f"<script>{scripts[0]}</script>",
    ]
    head = _head(page, style, scripts)
    compact = ' class="compact"' * page.compact
    body = [f"<body{compact}{runtime}>", *body, "</body>"]
    return "\n".join(["<!DOCTYPE html>", '<html lang="en">', head, *body, "</html>", ""])


def _head(page: Page, style: str, scripts: list[str]) -> str:
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_hash, scripts))}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        f'<head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">'
        f'<meta name="generator" content="{text(page.made_by)}">'
        f"<title>{text(page.title)}</title><style>{style}</style></head>"
    )


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode('ascii')}'"


def _first(screen: FirstScreen, book: Book, pictures: bool) -> str:
    """The verdict, the figures, how far to trust them, and the chart, in the first view of a usual screen."""
    figures = ""
    for one in screen.figures:
        # Names are longer than numbers.
        unit = f' <span class="unit">{text(one.unit)}</span>' if one.unit else ""
        doubt = " doubt" if one.unreliable else ""
        value = f'<a href="#{text(one.at)}">{text(one.value)}</a>' if one.at else text(one.value)
        figures += (
            f'<div class="figure{doubt}"><dt>{text(one.label)}</dt>'
            f'<dd><span class="value{" words" if len(one.value) > LARGE else ""}">{value}</span>'
            f'{unit}<span class="detail">{text(one.detail)}</span></dd></div>'
        )
    badge = (
        f'<p class="badge {screen.trust}"><b>{TRUST[screen.trust]}</b> '
        f"{' '.join(f'<span>{text(words)}</span>' for words in screen.trust_words)}</p>"
    )
    chart = _block(screen.chart, book, pictures) if screen.chart is not None else ""
    table = f'<div class="whole">{_block(screen.table, book, pictures)}</div>' if screen.table is not None else ""
    with_chart = " with" if chart else ""
    return (
        f'<section class="first{with_chart}" aria-label="In short"><p class="verdict">{text(screen.verdict)}</p>'
        f'<div class="numbers"><dl>{figures}</dl>{badge}</div>{chart}{table}</section>'
    )


def _short(page: Page, anchors: list[str]) -> str:
    """List all questions and answers at the top; not needed for a page with one answer."""
    answered = [(part, at) for part, at in zip(page.sections, anchors, strict=True) if part.answer]
    if len(answered) < 2:
        return ""
    entries = []
    for part, at in answered:
        count = tally(part.findings).partition(";")[0]
        findings = f' <span class="count">({count})</span>' if part.findings else ""
        entries.append(
            f'<div><dt><a href="#{at}">{text(part.question or part.title)}</a></dt>'
            f"<dd>{text(part.answer)}{findings}</dd></div>"
        )
    inner = "".join(entries)
    return f'<section class="short" aria-labelledby="in-short"><h2 id="in-short">Summary</h2><dl>{inner}</dl></section>'


def _section(section: Section, anchor: str, book: Book, pictures: bool) -> str:
    title = f'<h2 id="{anchor}">{text(section.title)}</h2>'
    head = f'<p class="question">{text(section.question)}</p>' if section.question else ""
    head += f'<p class="answer">{text(section.answer)}</p>' if section.answer else ""
    findings = findings_block(section.findings, anchor, book)
    blocks = ""
    for together, group in groupby(section.blocks, _together):
        made = [_block(block, book, pictures, (section.title, anchor)) for block in group]
        alone = not together or (together == "pictures" and len(made) < 2)
        blocks += "".join(made) if alone else f'<div class="{together}">{"".join(made)}</div>'
    beside = " with" if findings and blocks else ""
    inside = (
        f'<div class="inside{beside}">{findings}<div class="blocks">{blocks}</div></div>' if findings or blocks else ""
    )
    if section.folded:
        inner = f'<details class="fold"><summary>{title}</summary><div class="inside">{head}{inside}</div></details>'
        return f'<section class="part" aria-labelledby="{anchor}">{inner}</section>'
    return f'<section class="part" aria-labelledby="{anchor}">{title}{head}{inside}</section>'


def _together(block: Block) -> str:
    """Return the class of blocks that are put beside each other; empty: each is by itself."""
    if isinstance(block, Chart | Drawing):
        return "pictures"
    return "folds" if isinstance(block, Table) and block.folded else ""


def _block(block: Block, book: Book, pictures: bool, heading: tuple[str, str] = ("", "")) -> str:
    """Write a block; `heading`: title and anchor of its section."""
    if isinstance(block, Table):
        return table_block(block, book, heading=heading)
    if isinstance(block, Prose):
        made = [f"<p>{text(paragraph)}</p>" for paragraph in block.paragraphs if one_line(paragraph)]
        if block.facts:
            facts = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in block.facts)
            made.append(f'<dl class="facts">{facts}</dl>')
        if block.code:
            code = "\n".join(
                line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for line in code_lines(block.code)
            )
            made.append(f'<pre tabindex="0"><code>{code}</code></pre>')
        return f'<div class="block">{"".join(made)}</div>'
    if isinstance(block, Drawing):
        return _picture(block.title, block.svg, block.alt, (), block.table, block.name, book)
    if pictures:
        drawn, spec = draw.live(block)
        book.live = True
        live = f' data-chart="{book.payload(spec.encode())}"'
        return _picture(block.title, drawn, block.alt, block.notes, block.table, block.name, book, live)
    missing = "The chart is left out." if draw.available() else NO_PICTURE
    table = table_block(block.table, book)
    return f'<div class="block"><p>{text(block.alt)}</p>{note_list([*block.notes, missing])}{table}</div>'


def _picture(
    title: str,
    svg: str,
    alt: str,
    notes: tuple[str, ...],
    table: Table | None,
    name: str,
    book: Book,
    live: str = "",
) -> str:
    anchor = book.anchor(name)
    source = base64.b64encode(draw.themed(svg).encode("utf-8", "replace")).decode("ascii")
    save = book.save_button("Save as SVG", f"{name}.svg", "image/svg+xml", svg.encode("utf-8", "replace"))
    under = table_block(table, book, folded="Data table") if table else ""
    notes = tuple(note for note in notes if note not in alt)
    words = book.anchor(f"{name}-words")
    return (
        f'<figure class="block" aria-labelledby="{anchor}"><div class="head"><h3 id="{anchor}">{text(title)}</h3>{save}'
        f'</div><div class="scroll picture" role="group" tabindex="0" aria-labelledby="{anchor}"{live}>'
        # The description is below the chart, for everybody, so that it is read only once.
        f'<img src="data:image/svg+xml;base64,{source}" alt="{text(title)}" aria-describedby="{words}"></div>'
        f'<p class="swipe">Swipe sideways to see the whole chart.</p>'
        f'<figcaption class="alt" id="{words}">{text(alt)}</figcaption>{note_list(notes)}{under}</figure>'
    )


def _footer(page: Page, book: Book) -> str:
    everything = {
        "title": page.title,
        "made_at": page.made_at,
        "made_by": page.made_by,
        "tables": [table_object(table) for table in page.tables],
    }
    content = json.dumps(everything, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    buttons = (
        [book.save_button("All tables as JSON", "tables.json", "application/json", content)] if page.tables else []
    )
    for name, data in page.downloads.items():
        kind = "application/json" if name.endswith((".json", ".jsonl")) else "application/octet-stream"
        buttons.append(book.save_button(f"{name} ({_size(len(data))})", name, kind, data))
    files_line = (
        f'<p class="files script">Save from this file: {" ".join(buttons)}</p>'
        '<p class="plain">Tables and raw data are in this file. Saving them needs JavaScript; reading does not.</p>'
        if buttons
        else ""
    )
    made = f"<p>Made {text(page.made_at)} by {text(page.made_by)}.</p>"
    return f"<footer>{made}{files_line}</footer>"


def _size(size_bytes: int) -> str:
    for limit, unit in ((1e6, "MB"), (1e3, "kB")):
        if size_bytes >= limit:
            return f"{size_bytes / limit:.1f} {unit}"
    return f"{size_bytes} bytes"
