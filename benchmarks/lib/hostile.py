"""Texts that attack readers of a report, and checks of each output format."""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import cmarkgfm  # type: ignore[import-untyped]

from sample_page import poisoned
from steelyard.report.render.csv_table import csv_table
from steelyard.report.render.html import html
from steelyard.report.render.latex import latex
from steelyard.report.render.markdown import markdown

if TYPE_CHECKING:
    from steelyard.report.page import Page

TEXTS = (
    "<script>window.hit=1;alert(1)</script>",
    "</script><script>window.hit=1</script>",
    "</style><script>window.hit=1</script><style>",
    "</title><img src=x onerror=window.hit=1>",
    "<img src=https://example.org/x.png onerror=window.hit=1>",
    "\"><svg onload=window.hit=1><a href='javascript:window.hit=1'>x</a>",
    "' onmouseover='window.hit=1' autofocus onfocus='window.hit=1",
    "<iframe src=https://example.org></iframe><object data=x></object><embed src=x>",
    '<meta http-equiv="refresh" content="0;url=https://example.org">',
    "<base href=https://example.org/><link rel=stylesheet href=//example.org/a.css>",
    "<form action=https://example.org><input name=a autofocus onfocus=window.hit=1></form>",
    "<!-- --><script>window.hit=1</script><!--",
    "]]><script>window.hit=1</script><![CDATA[",
    "&lt;script&gt;&#x3c;script&#x3e;&amp;#60;",
    "<details open ontoggle=window.hit=1><summary>x</summary></details>",
    "javascript:window.hit=1",
    "data:text/html,<script>window.hit=1</script>",
    "<math><mtext></p><style><img src=x onerror=window.hit=1></style></mtext></math>",
    "<template><img src=x onerror=window.hit=1></template><noscript><p>",
    "{{ 7*7 }} {% include 'x' %} ${7*7} #{7*7} <%= 7 %> {: .x onclick=window.hit=1 }",
    "[link](javascript:window.hit=1) ![i](https://example.org/i.png) [r][1]",
    "[1]: https://example.org 'x'",
    "<https://example.org> https://example.org www.example.org a@example.org @someone #1",
    "`code` ``code`` **bold** __bold__ *i* _i_ ~~s~~ ==m== ^^u^^ ++k++ $x$ $$x$$ :smile: :material-x:",
    "# heading", "- item", "+ item", "1. item", "2) item", "> quote", "=== tab", "!!! note", "??? note", "::: module",
    "---", "***", "***bold", "| a | b |", "```\ncode\n```", "~~~\ncode", "    indented", "[TOC]", "[^1]: note", ": def",
    '--8<-- "/etc/passwd"', "*[HTML]: x", "\\", "\\\\", "a\\|b", "line\n\nanother\n===\n", "x\n# heading\n- item",
    r"\write18{touch hit}", r"\immediate\write18{touch hit}", r"\input{/etc/passwd}", r"\include{/etc/passwd}",
    r"\end{document}", r"\end{longtable}\end{tabular}\write18{touch hit}", r"\catcode`\%=12 \def\x{y}\x",
    r"\openout1=hit \write1{x}", r"\csname input\endcsname{/etc/passwd}", r"^^5cinput{/etc/passwd}", r"\\[1cm]*",
    r"$\frac{1}{0}$ & % # _ ^ ~ { } \ $", r"}}}{{{", r"\verb|x| \begin{verbatim}", r"\loop\iftrue\repeat",
    "=1+1", "+1+1", "-1+1", "@SUM(A1)", "=cmd|' /C calc'!A0", '=HYPERLINK("https://example.org","x")', "\t=1+1",
    "\r=1+1", "\n=1+1", " =1+1", "'=1+1", '"=1+1', "a;=1+1", "a,=1+1", "a\t=1+1", "\uff1d1+1", "\uff0b1", "%0A=1",
    "\x00\x01\x02\x07\x08\x1b[31m\x7f\x9b31m", "\u202eevil\u202c \u2066x\u2069 \u200b\u200f\ufeff \u00ad",
    "\ud800 \udfff", "\ufffe\uffff", "\U000e0041\U000e0042", "\u2028\u2029\x85\x0b\x0c", "Z\u0351\u036b\u0343\u036a",
    "\u4e2d\u6587 \u0627\u0644\u0639 \U0001f600 \u00e9\u00df\u0142\u010d\u0127 \u03bc\u2126\u212b \u00d7\u00b1\u2264",
    "x" * 3000, "a b " * 700, "<" * 500, "{" * 300, "&" * 300,
)  # fmt: skip
ACTIVE = "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
# All commands of our LaTeX. Only the two that include a figure access files, and their file names are checked
# separately.
_OWN = """
    documentclass usepackage setlength parindent parskip baselineskip emergencystretch LTcapwidth LTpost linewidth
    newcommand maybe IfFileExists includegraphics textheight textit begin end caption label toprule midrule bottomrule
    endfirsthead endhead endfoot centering par smallskip bigskip begingroup endgroup small footnotesize scriptsize
    raggedleft raggedright arraybackslash LARGE large bfseries section item textbf detokenize refstepcounter thefigure
    itemsep ttfamily mbox
    textbackslash textasciicircum textasciitilde textless textgreater textbar char ensuremath allowbreak textendash
    textemdash dots pounds S P copyright ss ae AE o O oe OE l L i j u r H v c
    mu times div pm circ cdot neg leftarrow rightarrow uparrow downarrow leftrightarrow Rightarrow surd propto infty
    sum prod in approx neq equiv leq geq ll gg bullet prime alpha beta gamma delta varepsilon zeta eta theta iota
    kappa lambda nu xi pi rho sigma tau upsilon varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega
"""
COMMANDS = frozenset(_OWN.split()) | frozenset("\\{}$&#_%,`'^~=.\"")
_COMMAND = re.compile(r"\\([A-Za-z]+|.|\n)", re.DOTALL)
# Whether a column wraps depends on the length of its texts.
_BY_LENGTH = ("class",)


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(sorted(name for name, _ in attrs if name not in _BY_LENGTH))))
        wrong = [
            (name, value) for name, value in attrs if name.startswith("on") or ("javascript:" in (value or "").lower()
            and name in ("href", "src", "action", "data"))
        ]  # fmt: skip
        if wrong:
            self.found.append((f"active attribute {wrong}", ()))


def elements(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return every element of an HTML text with the names of its attributes, in order."""
    parser = _Elements()
    parser.feed(text)
    parser.close()
    return parser.found


def formulas(text: str) -> list[str]:
    """Return the CSV entries that a spreadsheet would run as formulas, with comma or semicolon as separator."""
    found = [entry for row in csv.reader(io.StringIO(text)) for entry in row if _is_formula(entry)]
    # With the other separator, a quote is part of the text and each piece is an entry.
    pieces = (piece for line in text.splitlines() for piece in line.split(";")[1:])
    return found + [piece for piece in pieces if _is_formula(piece.lstrip(' "'))]


def _is_formula(entry: str) -> bool:
    return entry[:1] != "" and entry.lstrip(" ")[:1] in tuple(ACTIVE) and NUMBER.fullmatch(entry) is None


def foreign_commands(text: str) -> list[str]:
    """Return what is not allowed in a LaTeX text: other commands, non-ASCII characters, `^^` notation."""
    found = [name for name in _COMMAND.findall(text) if name not in COMMANDS]
    found += ["not seven-bit"] * (not text.isascii()) + ["^^"] * ("^^" in text.replace(r"\^^", ""))
    depth = 0
    for mark in re.findall(r"[{}]", re.sub(r"\\[\\{}]", "", text)):
        depth += 1 if mark == "{" else -1
        if depth < 0:
            break
    return found + ["braces do not match"] * (depth != 0)


def harmless(words: str) -> str:
    """Return a text of the same length that has no effect anywhere."""
    return "x" * max(1, len(words))


def _github(text: str) -> list[str]:
    made = cmarkgfm.github_flavored_markdown_to_html(text, cmarkgfm.Options.CMARK_OPT_UNSAFE)
    return [tag for tag, _ in elements(made)]


def effects(page: Page, words: str) -> dict[str, bool]:
    """Return for each format whether a text in every place of the page has an effect that a harmless one has not."""
    bad, good = poisoned(page, words), poisoned(page, harmless(words))
    return {
        "HTML": elements(html(bad, charts=False)) != elements(html(good, charts=False)),
        "Markdown, GitHub": _github(markdown(bad)) != _github(markdown(good)),
        "LaTeX": bool(foreign_commands(latex(bad, {}))),
        "CSV": any(formulas(csv_table(table)) for table in bad.tables),
    }
