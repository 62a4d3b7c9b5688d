"""Write a page as a LaTeX document, or one table for a paper.

Debian: `apt-get install --no-install-recommends texlive-latex-recommended lmodern`, then `pdflatex` twice. Every text
goes through tex_text, so that untrusted text cannot contain commands.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard.report.page import Cell, Chart, Column, Drawing, Prose, Table
from steelyard.report.render.csv_table import union
from steelyard.report.render.plain import code_lines, file_name, one_line, picture_file
from steelyard.report.render.published import published_groups
from steelyard.report.render.tex_text import tex, tex_line, unbroken
from steelyard.terminal.findings import tally

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from steelyard.contracts.finding import Finding
    from steelyard.report.page import Page, Section

PREAMBLE = r"""\documentclass[a4paper,10pt]{article}
\usepackage[T1]{fontenc}
\usepackage{lmodern}
\usepackage[margin=22mm]{geometry}
\usepackage{array,booktabs,graphicx,longtable}
\setlength{\parindent}{0pt}
\setlength{\parskip}{0.5\baselineskip}
\setlength{\emergencystretch}{3em}
\setlength{\LTcapwidth}{\linewidth}
\setlength{\LTpost}{2pt}
\newcommand{\maybe}[1]{\IfFileExists{#1}{\includegraphics[width=\linewidth,height=0.42\textheight,keepaspectratio]{#1}}%
  {\textit{(figure file not found)}}}
"""
SHOWN = 10
"""Findings shown per code and section."""
LONG_ROWS = 30
"""A table with more rows breaks over pages."""
# A4 with the margins above is 166 mm or 472 TeX points wide; the gaps of a column take 12 of them.
LINE_PT, GAPS_PT = 472.0, 12.0
# Mean width of a letter or digit in Latin Modern, for the smaller sizes of a ten point document.
SIZES = (("\\small", 4.9), ("\\footnotesize", 4.4), ("\\scriptsize", 3.9))
LONGEST_WORD, LONGEST_FIGURE = 22, 36
MAX_BOXED, MAX_HEADING = 1000, 80
"""Maximum length of captions, labels and entries, and of column headings. CSV and HTML have the full text."""

_NEGATIVE = re.compile(r"(?<![^\s\[(])-(?=\d)")


def latex_table(table: Table, *, floating: bool = True, line_pt: float = LINE_PT) -> str:
    """Return one table for booktabs, array and (if long, or not `floating`) longtable, for a line of this width."""
    # Codes get their own column, so that columns of numbers hold only numbers.
    shown = table
    if any(cell.codes for row in table.rows for cell in row):
        coded = tuple((*row, Cell(" ".join(union(cell.codes for cell in row)))) for row in table.rows)
        shown = Table(table.name, table.title, (*table.columns, Column("findings", align="left")), coded, table.notes)
    layout = _layout(shown, line_pt)
    head = [_row([_short(column.name, MAX_HEADING) for column in shown.columns])]
    if any(column.unit for column in shown.columns):
        head.append(_row([f"({_short(column.unit, MAX_HEADING)})" if column.unit else "" for column in shown.columns]))
    # A minus sign instead of a hyphen before numbers.
    rows = [
        _row([_short(_NEGATIVE.sub("\u2212", cell.text), breakable=layout.wraps) for cell in row]) for row in shown.rows
    ]
    caption = rf"\caption{{{_short(table.title)}}}\label{{tab:{file_name(table.name)}}}"
    notes = [rf"{{\footnotesize {tex(note, breakable=True)}\par}}" for note in table.notes]
    if floating and len(rows) <= LONG_ROWS:
        lines = [r"\begin{table}[htbp]", r"\centering", caption, layout.size, rf"\begin{{tabular}}{{{layout.columns}}}"]
        lines += [r"\toprule", *head, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}", r"\par\smallskip", *notes]
        return "\n".join([*lines, r"\end{table}"]) + "\n"
    lines = [
        r"\begingroup",
        layout.size,
        rf"\begin{{longtable}}{{{layout.columns}}}",
        caption + r"\\",
        r"\toprule",
        *head,
    ]
    lines += [r"\midrule", r"\endfirsthead", r"\toprule", *head, r"\midrule", r"\endhead", r"\bottomrule", r"\endfoot"]
    return "\n".join([*lines, *rows, r"\end{longtable}", *notes, r"\endgroup"]) + "\n"


@dataclass(frozen=True)
class _Layout:
    size: str
    columns: str
    wraps: bool


def _layout(table: Table, line_pt: float) -> _Layout:
    """Choose the largest letters in which the table fits the line; if none fit, columns that wrap."""
    texts = [
        [column.name, column.unit and f"({column.unit})", *(row[i].text for row in table.rows)]
        for i, column in enumerate(table.columns)
    ]
    wanted = [max(2, *(len(text) for text in column)) for column in texts]
    for size, letter_pt in SIZES[:2]:
        if sum(wanted) * letter_pt + GAPS_PT * len(wanted) <= line_pt:
            return _Layout(
                size, "".join("r" if column.align == "right" else "l" for column in table.columns), wraps=False
            )
    # Letters for the longest word, or for a figure with its interval and unit; one extra, because widths are means.
    least = []
    for column, entries in zip(table.columns, texts, strict=True):
        whole = column.align == "right"
        parts = entries if whole else [part for text in entries for part in unbroken(text)]
        least.append(1 + min(LONGEST_FIGURE if whole else LONGEST_WORD, max(2, *map(len, parts))))
    size, letter_pt = next(
        (entry for entry in SIZES[1:] if sum(least) * entry[1] + GAPS_PT * len(least) <= line_pt), SIZES[-1]
    )
    # Letters per column: enough for its longest word, plus a share of the rest by the length of its lines.
    room = (line_pt - GAPS_PT * len(least)) / letter_pt
    spare = room - sum(least)
    if spare < 0:
        widths = [m * room / sum(least) for m in least]
    else:
        more = [max(0, w - m) for w, m in zip(wanted, least, strict=True)]
        widths = [m + spare * extra / (sum(more) or 1) for m, extra in zip(least, more, strict=True)]
    shares = [width * letter_pt / line_pt for width in widths]
    made = []
    for column, share in zip(table.columns, shares, strict=True):
        side = "raggedleft" if column.align == "right" else "raggedright"
        # Relative to the line, so that it also fits in other documents.
        made.append(rf">{{\{side}\arraybackslash}}p{{{share:.4f}\linewidth}}")
    return _Layout(size, "".join(made), wraps=True)


def _row(entries: Sequence[str]) -> str:
    return " & ".join(entries) + r" \\"


def _short(words: str, most: int = MAX_BOXED, *, breakable: bool = True) -> str:
    """Shorten a text for places that TeX cannot break over pages: captions, labels, table rows."""
    return tex(words if len(words) <= most else f"{words[:most]} ...", breakable=breakable)


def latex(page: Page, pictures: Mapping[str, str], *, beside: bool = False) -> str:
    """Return a whole document; `pictures` are PDF or PNG files by name of the chart, relative to the document.

    A chart without a file is replaced by its description and its table. With `beside`, a picture is as wide as a
    column, with its caption beside it.
    """
    lines = [PREAMBLE, r"\begin{document}", rf"{{\LARGE\bfseries {tex(page.title, breakable=True)}\par}}"]
    lines += [rf"{{\large {tex(page.subtitle, breakable=True)}\par}}"] if page.subtitle else []
    answered = [section for section in page.sections if section.answer]
    if len(answered) > 1 and page.first is None:
        lines += [
            r"\section*{Summary}",
            r"\begin{itemize}",
            *(_answer(section) for section in answered),
            r"\end{itemize}",
        ]
    for section in page.all_sections:
        lines += _section(section, pictures, beside)
    lines += [rf"\bigskip{{\footnotesize Made {tex(page.made_at)} by {tex(page.made_by)}.\par}}", r"\end{document}"]
    return "\n".join(lines) + "\n"


def _answer(section: Section) -> str:
    count = f" ({tex(tally(section.findings).partition(';')[0])})" if section.findings else ""
    return (
        rf"\item {{}}{tex(section.question or section.title)} \textbf{{{tex(section.answer, breakable=True)}}}{count}"
    )


def _section(section: Section, pictures: Mapping[str, str], beside: bool) -> list[str]:
    lines = [rf"\section{{{tex(section.title, breakable=True)}}}"]
    lines += [rf"\textit{{{tex(section.question, breakable=True)}}}\par"] if section.question else []
    lines += [rf"\textbf{{{tex(section.answer, breakable=True)}}}\par"] if section.answer else []
    lines += _findings(section.findings)
    for block in section.blocks:
        if isinstance(block, Table):
            lines.append(latex_table(block, floating=False))
        elif isinstance(block, Prose):
            lines += _prose(block)
        else:
            lines += _picture(block, pictures, beside)
    return lines


def _findings(findings: Sequence[Finding]) -> list[str]:
    items = []
    for group in published_groups(findings):
        items.append(rf"\item[{{{tex(group.code)}}}] {{}}{tex(group.rule)} ({tex(group.severity)}).")
        for finding in group.findings[:SHOWN]:
            place = f"{tex(finding.place, breakable=True)}: " if finding.place else ""
            evidence = f" (evidence: {tex(finding.evidence, breakable=True)})" if finding.evidence else ""
            items.append(f"{place}{tex(finding.message, breakable=True)}{evidence}" + r"\par")
        if len(group.findings) > SHOWN:
            items.append(rf"And {len(group.findings) - SHOWN} more of this code.\par")
        command = rf": \texttt{{{tex(group.command, breakable=True)}}}" if group.command else ""
        items.append(rf"\textit{{Fix:}} {tex(group.fix, breakable=True)}{command}")
    return [r"\begin{description}", *items, r"\end{description}"] if items else []


def _picture(block: Chart | Drawing, pictures: Mapping[str, str], beside: bool) -> list[str]:
    title, words = tex(block.title, breakable=True), tex(block.alt, breakable=True)
    if block.name not in pictures:
        table = [latex_table(block.table, floating=False)] if block.table else []
        return [rf"\textbf{{{title}}}\par {words}\par", *table]
    file = picture_file(pictures[block.name])
    if beside:
        return [
            rf"\noindent\begin{{minipage}}[c]{{0.49\linewidth}}\maybe{{\detokenize{{{file}}}}}\end{{minipage}}\hfill",
            r"\begin{minipage}[c]{0.48\linewidth}\small\raggedright",
            rf"\refstepcounter{{figure}}\textbf{{Figure \thefigure: {title}.}} {words}\end{{minipage}}\par",
        ]
    return [
        r"\begin{center}\begin{minipage}{\linewidth}\centering",
        rf"\maybe{{\detokenize{{{file}}}}}\par\smallskip",
        rf"\refstepcounter{{figure}}\small\textbf{{Figure \thefigure: {title}.}} {words}",
        r"\end{minipage}\end{center}",
    ]


def _prose(prose: Prose) -> list[str]:
    lines = [tex(paragraph, breakable=True) + r"\par" for paragraph in prose.paragraphs if one_line(paragraph)]
    if prose.facts:
        items = [rf"\item[{{{_short(name)}}}] {{}}{tex(value, breakable=True)}" for name, value in prose.facts]
        lines += [r"\begin{description}\setlength{\itemsep}{0pt}", *items, r"\end{description}"]
    if prose.code:
        lines += [r"\begingroup\footnotesize\ttfamily\raggedright\setlength{\parskip}{0pt}"]
        for line in code_lines(prose.code):
            bare = line.lstrip(" ")
            lines.append(rf"\mbox{{}}{'~' * (len(line) - len(bare))}{tex_line(bare, breakable=True)}\par")
        lines += [r"\endgroup"]
    return lines
