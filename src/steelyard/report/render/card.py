"""Draw the first screen of a page as one picture of 1,200 x 630 pixels, for chats and slides.

Every text is untrusted: it is escaped, and cut with an ellipsis where it does not fit. The chart is an image inside the
picture, where nothing in it can run or load anything.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from steelyard.errors import InputError
from steelyard.report.charts.style import text_width
from steelyard.report.page import Chart
from steelyard.report.render import draw
from steelyard.report.render.plain import one_line

if TYPE_CHECKING:
    from steelyard.report.page import Page, Trust

WIDTH, HEIGHT, EDGE = 1200, 630, 56
INK, QUIET, PANEL, LINK = "#1b1f24", "#4d5661", "#f4f6f8", "#0b57a4"
TRUST: dict[Trust, tuple[str, str]] = {
    "reliable": ("Reliable", "#1a7f37"),
    "warnings": ("With warnings", "#8a5a00"),
    "partly": ("Partly reliable", "#8a5a00"),
    "unreliable": ("Unreliable", "#a4161a"),
    "consistent": ("Consistent", "#1a7f37"),
    "contradictory": ("Contradictory", "#a4161a"),
}
# The letters of the picture are those that the library measures, narrower than the widest that a reader may have.
NARROWER, BOLD = 1 / 1.14, 1.08
SMALLEST = 0.7
"""A text is first made smaller, to this share of its size: an ellipsis in a number would mislead."""
SHOWN_FIGURES, VERDICT_LINES, LARGE = 4, 3, 9
# Left, top, width and height of a figure, and the gap to the next; then of the chart.
FIGURE, GAP = (EDGE, 250, 222, 138), 12
CHART = (540, 240, 604, 318)


def card(page: Page) -> bytes:
    """Return the picture as PNG; InputError if the page has no first screen or nothing can draw here."""
    library = draw.library()
    picture: bytes = library.svg_to_png(card_svg(page), scale=1.0, ppi=72)
    return picture


def card_svg(page: Page) -> str:
    """Return the picture as SVG."""
    screen = page.first
    if screen is None:
        raise InputError("this page has no card", next_step="steelyard report STUDY --card")
    word, colour = TRUST[screen.trust]
    parts = [
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/><rect width="16" height="{HEIGHT}" fill="{colour}"/>',
        _text(page.title, EDGE, 74, 36, WIDTH - 2 * EDGE, font_weight="bold"),
        _text(page.subtitle, EDGE, 106, 20, WIDTH - 2 * EDGE, QUIET),
    ]
    for place, line in enumerate(wrapped(screen.verdict, 27, WIDTH - 2 * EDGE, VERDICT_LINES)):
        parts.append(_text(line, EDGE, 152 + 36 * place, 27, WIDTH - 2 * EDGE, font_weight="bold"))
    left, top, across, high = FIGURE
    for place, one in enumerate(screen.figures[:SHOWN_FIGURES]):
        x, y = left + (place % 2) * (across + GAP), top + (place // 2) * (high + GAP)
        edge = TRUST["warnings"][1] if one.unreliable else LINK
        inner, size = across - 24, 34 if len(one.value) <= LARGE else 24
        parts += [
            f'<rect x="{x}" y="{y}" width="{across}" height="{high}" fill="{PANEL}"/>',
            f'<rect x="{x}" y="{y}" width="{across}" height="5" fill="{edge}"/>',
            _text(one.label, x + 12, y + 34, 17, inner, QUIET),
            _text(one.value, x + 12, y + 72, size, inner, font_weight="bold"),
            _text(one.unit, x + 12, y + 97, 17, inner, QUIET),
            _text(one.detail, x + 12, y + 122, 15, inner, QUIET),
        ]
    if screen.chart is not None:
        drawn = draw.svg(screen.chart, titled=False) if isinstance(screen.chart, Chart) else screen.chart.svg
        source = base64.b64encode(drawn.encode("utf-8", "replace")).decode("ascii")
        x, y, across, high = CHART
        parts.append(
            f'<image x="{x}" y="{y}" width="{across}" height="{high}" href="data:image/svg+xml;base64,{source}"/>'
        )
    parts += [
        f'<circle cx="{EDGE + 8}" cy="590" r="8" fill="{colour}"/>',
        _text(f"{word}: {'; '.join(screen.trust_words)}", EDGE + 26, 597, 19, 880, colour, font_weight="bold"),
        _text(page.made_by, WIDTH - EDGE, 597, 17, 180, QUIET, text_anchor="end"),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="{draw.FONT}">{"".join(parts)}</svg>'
    )


def wide(text: str, size: float) -> float:
    """Return the width of a bold text."""
    return NARROWER * BOLD * text_width(text, size)


def fitting(text: str, size: float, width: float) -> str:
    """Cut a text with an ellipsis so that it fits a width."""
    clean = one_line(text)
    if wide(clean, size) <= width:
        return clean
    # Bounded first: a text may have thousands of letters.
    clean = clean[: int(5 * width / size)]
    while clean and wide(f"{clean}\u2026", size) > width:
        clean = clean[:-1]
    return f"{clean.rstrip()}\u2026"


def wrapped(text: str, size: float, width: float, most: int) -> list[str]:
    """Break a text into at most `most` lines; the last ends with an ellipsis if there is more."""
    lines, words = [""], one_line(text).split(" ")
    for place, word in enumerate(words):
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and wide(longer, size) > width:
            if len(lines) == most:
                lines[-1] = fitting(" ".join([lines[-1], *words[place:]]), size, width)
                break
            longer = word
            lines.append("")
        lines[-1] = longer
    return [fitting(line, size, width) for line in lines]


def _text(text: str, x: float, y: float, size: float, width: float, colour: str = INK, **look: str) -> str:
    size = max(SMALLEST * size, min(size, size * width / max(1.0, wide(one_line(text), size))))
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in look.items())
    shown = escape(fitting(text, size, width))
    return f'<text x="{x}" y="{y}" font-size="{size:.1f}" fill="{colour}"{more}>{shown}</text>'
