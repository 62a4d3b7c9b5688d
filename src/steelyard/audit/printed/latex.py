"""Tables of a LaTeX source: tabular and its relatives. No macro is run; an unknown command stays in its cell."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

from steelyard.audit.printed.grid import MAX_CAPTION, MAX_CELL, MAX_COLUMNS, MAX_LINES, MAX_TABLES, Found, shape
from steelyard.errors import InputError
from steelyard.rules.table.row import Grid

if TYPE_CHECKING:
    from collections.abc import Iterator

_BEGIN = re.compile(r"\\begin\{(tabular[xy]?\*?|longtable|tblr|NiceTabular)\}")
_COMMENT = re.compile(r"(?<!\\)%[^\n]*")
_RULES = re.compile(
    r"\\(?:hline|toprule|bottomrule|addlinespace|hdashline|thickhline|Xhline|noalign|rowcolor|cmidrule|cline|arrayrulecolor"
    r"|specialrule|endhead|endfirsthead|endfoot|endlastfoot|morecmidrules)"
    r"(?![A-Za-z])(?:\([^()]{0,20}\)|\[[^\[\]]{0,40}\]|\{[^{}]{0,60}\})*"
)
# \captionsetup is none; \captionof names a kind first.
_CAPTION = re.compile(r"\\caption(?:of\s*\{\w*\})?\*?\s*(?=[\[{])")
_MIDRULE = re.compile(r"\\midrule(?![A-Za-z])(?:\[[^\[\]]{0,40}\])?")
_FONTS = (
    "textbf", "textit", "textrm", "textsf", "texttt", "textsc", "emph", "underline", "mathbf", "mathrm", "mathit",
    "text", "num", "makecell", "thead", "mbox", "uline", "bm", "boldsymbol", "ensuremath", "shortstack",
    "hbox", "bf", "bfseries", "it", "itshape", "rm", "tt", "small", "footnotesize", "scriptsize", "tiny",
    "normalsize", "centering", "displaystyle", "raggedright", "raggedleft", "strut", "left", "right", "bfnum",
    "textnormal",
    "mathsf", "mathtt", "mathcal", "xspace", "relax", "protect", "leavevmode",
)  # fmt: skip
_DROPPED = (
    "cite", "citep", "citet", "ref", "label", "cellcolor", "color", "footnote", "footnotemark", "tablefootnote",
    "hspace", "vspace", "rule", "columncolor", "phantom", "hphantom", "vphantom",
)  # fmt: skip
_WRAPPERS = ("textcolor", "colorbox", "rotatebox", "resizebox", "href", "scalebox", "parbox")
_QUANTITIES = ("SI", "qty", "si", "unit")
_RAISED = ("textsuperscript", "tnote", "textsubscript")
_SIGNS = {
    "times": "×", "pm": "±", "sim": "~", "approx": "~", "dagger": "†", "ddagger": "‡", "ast": "*", "star": "*",
    "mu": "µ", "percent": "%", "textasciitilde": "~", "textpm": "±", "texttimes": "×", "textdagger": "†",
    "uparrow": "↑", "downarrow": "↓", "rightarrow": "→", "to": "→", "textemdash": "—", "textendash": "–",
    "infty": "∞", "cdot": "·", "textmu": "µ", "le": "<", "ge": ">", "leq": "<", "geq": ">", "slash": "/", "quad": " ",
    "qquad": " ", "newline": " ", "textbackslash": "\\", "S": "§", "dag": "†", "ddag": "‡", "euro": "€",
    "texteuro": "€", "textdollar": "$", "textrightarrow": "→", "checkmark": "✓", "xmark": "✗", "ldots": "...",
    "dots": "...",
}  # fmt: skip
_COMMAND = re.compile(r"\\([A-Za-z]+)\*?\s?")
_MARK = re.compile(
    r"(?P<row>\\\\\*?(?:[ \t]*\[[^\[\]\n]{0,20}\])?|\\tabularnewline)|\\(?P<begin>begin|end)\{|\\.|(?P<brace>[{}])",
    re.DOTALL,
)
_SPAN = re.compile(r"\\(multicolumn|multirow)\*?")
MAX_DEPTH = 12


def latex_grids(text: str) -> Iterator[Found]:
    """Yield the tables of a LaTeX source, each with the caption nearest to it."""
    text = _COMMENT.sub("", text)
    end = 0
    begins = list(islice(_BEGIN.finditer(text), 4 * MAX_TABLES + 1))
    if len(begins) > 4 * MAX_TABLES:
        raise InputError(f"more than {MAX_TABLES} tables", next_step="paste those you need")
    for begin in begins:
        if begin.start() < end:
            # A tabular inside a cell, such as one that breaks a heading into lines.
            continue
        stop = _find_end(text, begin.end(), begin[1])
        start = _after_arguments(text, begin.end(), 2 if begin[1] in ("tabularx", "tabulary", "tabular*") else 1)
        grid, lines = _read_body(text[start:stop], text.count("\n", 0, start) + 1)
        if len(grid.cells) > 0:
            after = _BEGIN.search(text, stop)
            caption = _find_caption(text[max(end, begin.start() - 3000) : begin.start()], last=True) or _find_caption(
                text[stop : min(after.start() if after else len(text), stop + 3000)], last=False
            )
            yield Found(Grid(caption, grid.headings, grid.cells), lines)
        end = stop


def _find_end(text: str, at: int, name: str) -> int:
    """Return where the environment ends; the end of the text if it is not closed."""
    depth = 1
    for mark in re.compile(rf"\\(begin|end)\{{{re.escape(name)}\}}").finditer(text, at):
        depth += 1 if mark[1] == "begin" else -1
        if not depth:
            return mark.start()
    return len(text)


def _after_arguments(text: str, at: int, count: int) -> int:
    """Skip the arguments of an environment: [t], {width} and {columns}."""
    while True:
        while at < len(text) and text[at] in " \n\t":
            at += 1
        if text[at : at + 1] == "[":
            close = text.find("]", at, at + 200)
            at = close + 1 if close > 0 else at + 1
        elif text[at : at + 1] == "{" and count:
            at = _close(text, at) + 1
            count -= 1
        else:
            return at


def _close(text: str, at: int) -> int:
    """Return where the brace that opens at `at` closes; the end of the text if it does not."""
    depth = 0
    position = at
    while position < len(text):
        mark = text[position]
        if mark == "\\":
            position += 2
            continue
        depth += (mark == "{") - (mark == "}")
        if not depth:
            return position
        position += 1
    return len(text)


def _after_short(text: str, at: int) -> int:
    """Skip the short caption in brackets, which may have braces of its own; return where the caption begins."""
    if text[at] == "[":
        while at < len(text) and text[at] != "]":
            at = _close(text, at) + 1 if text[at] == "{" else at + 1
    return text.find("{", at)


def _find_caption(text: str, *, last: bool) -> str:
    captions = list(_CAPTION.finditer(text))
    if not captions:
        return ""
    brace = _after_short(text, captions[-1 if last else 0].end())
    return to_text(text[brace + 1 : _close(text, brace)][: 2 * MAX_CAPTION])[:MAX_CAPTION] if brace >= 0 else ""


def _read_body(body: str, line: int) -> tuple[Grid, tuple[int, ...]]:
    """Split a body into lines of cells; lines before the first rule below text are headings."""
    rows: list[list[str]] = []
    at: list[int] = []
    heads = 0
    # Cells that a multirow above still covers: column -> (lines left, text).
    waiting: dict[int, tuple[int, str]] = {}
    for raw, number in _split_rows(body, line):
        middle = _MIDRULE.match(raw.lstrip()) or re.match(r"\\hline(?![A-Za-z])", raw.lstrip())
        if middle and rows and not heads and any(any(row) for row in rows):
            heads = len(rows)
        bare = _MIDRULE.sub(" ", _RULES.sub(" ", raw))
        if not bare.strip():
            continue
        row: list[str] = []
        for part in _split_cells(bare):
            words, across, down = _read_cell(part)
            for _ in range(min(across, MAX_COLUMNS + 1 - len(row))):
                covered = waiting.pop(len(row), None)
                if covered is not None and not words:
                    if covered[0] > 1:
                        waiting[len(row)] = (covered[0] - 1, covered[1])
                    row.append(covered[1])
                    continue
                if down > 1:
                    waiting[len(row)] = (down - 1, words)
                row.append(words)
        rows.append(row)
        at.append(number)
    shaped = shape(rows)
    heads = min(max(heads, 1), max(len(shaped) - 1, 1))
    return Grid("", tuple(shaped[:heads]), tuple(shaped[heads:])), tuple(at[heads:])


def _split_rows(body: str, line: int) -> list[tuple[str, int]]:
    r"""Split at `\\\\` outside braces, with the line where the text of each begins."""
    rows: list[tuple[str, int]] = []
    depth = begin = position = inner = 0
    while position < len(body):
        mark = _MARK.search(body, position)
        if mark is None:
            break
        position = mark.end()
        if mark["row"] is not None and depth <= 0 and inner <= 0:
            rows.append((body[begin : mark.start()], line))
            if len(rows) > MAX_LINES:
                # They need no lines of their own in the file.
                raise InputError(f"a table has more than {MAX_LINES:,} rows", next_step="paste only the part you need")
            line += body.count("\n", begin, position)
            begin = position
        elif mark["brace"] is not None:
            depth += 1 if mark["brace"] == "{" else -1
        elif mark["begin"] is not None:
            inner += 1 if mark["begin"] == "begin" else -1
    rows.append((body[begin:], line))
    return [(row, at + row.count("\n", 0, len(row) - len(row.lstrip()))) for row, at in rows]


def _split_cells(row: str) -> list[str]:
    cells: list[str] = []
    depth = begin = position = 0
    while position < len(row):
        mark = row[position]
        if mark == "\\":
            position += 2
            continue
        depth += (mark == "{") - (mark == "}")
        if mark == "&" and depth <= 0:
            cells.append(row[begin:position])
            begin = position + 1
        position += 1
    return [*cells, row[begin:]]


def _read_cell(text: str) -> tuple[str, int, int]:
    """Return the text of a cell, and over how many columns and rows it reaches."""
    across = down = 1
    for _ in range(4):
        span = _SPAN.match(text.strip())
        if not span:
            break
        text = text.strip()
        parts: list[str] = []
        at = span.end()
        while len(parts) < 3 and at < len(text):
            if text[at] == "[":
                at = text.find("]", at) + 1 or len(text)
            elif text[at] == "{":
                close = _close(text, at)
                parts.append(text[at + 1 : close])
                at = close + 1
            elif text[at] in " *\n":
                at += 1
            else:
                break
        if len(parts) < 3:
            break
        count = min(abs(int(parts[0])), 10_000) if re.fullmatch(r"-?\d{1,4}", parts[0].strip()) else 1
        if span[1] == "multicolumn":
            across = max(1, count)
        else:
            down = max(1, count)
        text = parts[2] + text[at:]
    return to_text(text[: 2 * MAX_CELL]), across, down


def to_text(text: str, depth: int = 0) -> str:
    """Return the words of a piece of LaTeX. An unknown command stays, so that its cell is not read as a number."""
    out: list[str] = []
    at = 0
    while at < len(text):
        mark = text[at]
        if mark == "\\":
            named = _COMMAND.match(text, at)
            if named is None:
                escaped = text[at + 1 : at + 2]
                # \, and \; are thin spaces, which separate thousands; \\ breaks a line inside a cell.
                out.append(
                    {",": "\u2009", ";": " ", ":": " ", "!": "", "\\": " ", "/": "", "-": ""}.get(escaped, escaped)
                )
                at += 2
                continue
            at = _take_command(named[1], text, named.end(), out, depth)
        elif mark == "^":
            raised, at = _argument(text, at + 1, depth)
            out.append(f"^{{{raised}}}")
        elif mark == "~":
            out.append(" ")
            at += 1
        elif mark in "${}":
            # A group such as 1{,}234 has no meaning of its own.
            at += 1
            continue
        else:
            out.append(mark)
            at += 1
    words = "".join(out).replace("---", "—").replace("--", "–" if depth else "--")
    return re.sub(r"[ \t\n]+", " ", words).strip()


def _take_command(name: str, text: str, at: int, out: list[str], depth: int) -> int:
    """Add what a command prints; return where the text goes on."""
    if name in _DROPPED or name in _WRAPPERS or name in ("begin", "end"):
        # The first argument of a wrapper is a colour, an angle or an address; the text follows.
        return _after_arguments(text, at, 2 if name in ("begin", "resizebox") else 1)
    if name in _QUANTITIES or name in _RAISED:
        first, at = _argument(text, at, depth)
        second, at = _argument(text, at, depth) if name in ("SI", "qty") else ("", at)
        out.append(f"^{{{first}}}" if name in _RAISED else f"{first} {second}")
    elif name in _FONTS:
        while text[at : at + 1] == "[":
            at = text.find("]", at) + 1 or len(text)
    else:
        out.append(_SIGNS.get(name, f"\\{name} "))
    return at


def _argument(text: str, at: int, depth: int) -> tuple[str, int]:
    """Return the argument that begins here, as text, and where it ends."""
    while text[at : at + 1] in (" ", "\n", "["):
        at = (text.find("]", at) + 1 or len(text)) if text[at] == "[" else at + 1
    if text[at : at + 1] == "{":
        close = _close(text, at)
        inner = text[at + 1 : close]
        return (to_text(inner, depth + 1) if depth < MAX_DEPTH else inner), close + 1
    if text[at : at + 1] == "\\" and (named := _COMMAND.match(text, at)):
        return _SIGNS.get(named[1], named[1]), named.end()
    return text[at : at + 1], at + 1
