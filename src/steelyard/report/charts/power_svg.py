"""Power over time as SVG: shaded phases, one line per domain.

The same trace gives the same bytes. The file loads nothing, and every text is escaped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

import numpy as np

from steelyard.analysis.power_trace import together
from steelyard.errors import printable
from steelyard.terminal.text import seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from steelyard.analysis.power_trace import PowerLine, PowerTrace
    from steelyard.contracts.observe import Phase

    Floats = NDArray[np.float64]

WIDTH, LEFT, RIGHT, TOP, PLOT_HEIGHT = 760, 76, 18, 92, 270
INSIDE = WIDTH - LEFT - RIGHT
LEGEND_COLUMNS, LEGEND_ROW = 3, 22
MAX_LINES = 6
MAX_PHASES = 400
MAX_NAME = 24
# Points per line. With more, sensor noise would blur the dashes; the band shows the noise.
DRAWN = 340
# Colours of the colour-blind safe palette by M. Okabe and K. Ito that are dark enough on white. Each has its own dash
# pattern, for print in grey.
STYLES = (
    ("#0072b2", ""),
    ("#d55e00", "9 4"),
    ("#000000", "2 3"),
    ("#009e73", "14 4 2 4"),
    ("#a0508c", "5 2 1 2 1 2"),
    ("#7a6000", "1 4"),
)
SHADES = {
    "setup": "#f0f0f0",
    "data": "#f0f0f0",
    "compile": "#d4d4d4",
    "warmup": "#e4e4e4",
    "steady": "#ffffff",
    "steps": "#ffffff",
    "evaluation": "#dcdcdc",
    "crosscheck": "#ececec",
}
PHASE_WORDS = {"warmup": "warm-up", "crosscheck": "cross-check"}
# Mean width of a letter of 13 units height.
LETTER = 7.2


@dataclass(frozen=True)
class _Axes:
    start_s: float
    end_s: float
    top_w: float

    def x(self, time_s: float) -> float:
        return LEFT + INSIDE * (time_s - self.start_s) / (self.end_s - self.start_s)

    def y(self, power_w: float) -> float:
        return TOP + PLOT_HEIGHT * (1 - max(0.0, power_w) / self.top_w)


def power_svg(trace: PowerTrace, title: str, summary: str) -> str:
    """Return the SVG; `summary` describes it for readers who cannot see it."""
    lines = shown_lines(trace.lines)
    highest = max((float(line.high_w.max()) for line in lines), default=1.0)
    limit = max((line.limit_w for line in lines if line.limit_w), default=0.0)
    # A limit far above all readings would flatten them.
    top = max(highest, limit if limit <= 2.5 * highest else 0.0, 1.0)
    # A minimum width for the time axis, even if all readings are from one moment.
    least_s = 1e-6 * max(1.0, abs(trace.start_s))
    axes = _Axes(trace.start_s, max(trace.end_s, trace.start_s + least_s), 1.06 * top)
    legend = _legend(lines)
    height = TOP + PLOT_HEIGHT + 62 + LEGEND_ROW * math.ceil(len(lines) / LEGEND_COLUMNS)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"',
        ' role="img" aria-labelledby="title desc" font-size="14"',
        ' font-family="DejaVu Sans, Arial, Helvetica, sans-serif">',
        f'<title id="title">{_text(title, 200)}</title>',
        f'<desc id="desc">{_text(summary, 2000)}</desc>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-size="17" font-weight="bold">{_text(title, 62)}</text>',
        f'<text x="{LEFT}" y="45" font-size="12" fill="#444444">{_text(summary, 98)}</text>',
        *_phases(trace.phases, axes),
        *_grid(axes),
        *(part for line, style in zip(lines, STYLES, strict=False) for part in _line(drawn(line), style, axes)),
        *_limits(lines, axes),
        *legend,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def shown_lines(lines: Sequence[PowerLine]) -> list[PowerLine]:
    """Return at most as many lines as can be distinguished; with more, domains of one kind are merged."""
    if len(lines) <= MAX_LINES:
        return list(lines)
    kinds: dict[tuple[str, bool], list[PowerLine]] = {}
    for line in lines:
        kinds.setdefault((line.scope, line.counted), []).append(line)
    grouped = [together(kind) if len(kind) > 1 else kind[0] for kind in kinds.values()]
    return grouped[:MAX_LINES]


def _text(text: str, longest: int) -> str:
    """Escape an untrusted text as content or attribute, with bounded length."""
    text = printable(text)
    short = text if len(text) <= longest else text[: longest - 3] + "..."
    # XML does not allow some code points, even escaped.
    allowed = "".join(c if c.isprintable() else "?" for c in short)
    return escape(allowed, {'"': "&quot;", "'": "&#39;"})


def ticks(low: float, high: float, about: int) -> list[float]:
    """Return round values between `low` and `high`."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _grid(axes: _Axes) -> list[str]:
    bottom, right = TOP + PLOT_HEIGHT, LEFT + INSIDE
    parts = ['<g stroke="#b0b0b0" stroke-width="0.6">']
    across = ticks(0.0, axes.top_w, 5)
    along = ticks(axes.start_s, axes.end_s, 8)
    parts += [f'<line x1="{LEFT}" x2="{right}" y1="{axes.y(w):.1f}" y2="{axes.y(w):.1f}"/>' for w in across[1:]]
    parts += [f'<line x1="{axes.x(s):.1f}" x2="{axes.x(s):.1f}" y1="{bottom}" y2="{bottom + 5}"/>' for s in along]
    parts += ["</g>", f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#000000"/>']
    parts += [f'<text x="{LEFT - 8}" y="{axes.y(w) + 4:.1f}" text-anchor="end">{w:,g}</text>' for w in across]
    parts += [f'<text x="{axes.x(s):.1f}" y="{bottom + 20}" text-anchor="middle">{s:,g}</text>' for s in along]
    middle = TOP + PLOT_HEIGHT / 2
    parts.append(f'<text x="{LEFT + INSIDE / 2}" y="{bottom + 40}" text-anchor="middle">time of the run, s</text>')
    parts.append(f'<text transform="translate(18 {middle}) rotate(-90)" text-anchor="middle">power, W</text>')
    return parts


def _phases(phases: Sequence[Phase], axes: _Axes) -> list[str]:
    """Draw bands with names above them. A name wider than its band is raised, or only in the tooltip."""
    parts: list[str] = []
    taken, named = float(LEFT), set()
    for phase in phases[:MAX_PHASES]:
        left, right = (min(max(axes.x(at), LEFT), LEFT + INSIDE) for at in (phase.start_s, phase.end_s))
        name = PHASE_WORDS.get(phase.name, phase.name)
        tip = f"{name}: {seconds(phase.end_s - phase.start_s)}"
        shade = SHADES.get(phase.name, "#e4e4e4")
        parts.append(
            f'<rect x="{left:.1f}" y="{TOP}" width="{max(right - left, 0.5):.1f}" height="{PLOT_HEIGHT}" '
            f'fill="{shade}"><title>{_text(tip, 80)}</title></rect>'
        )
        parts.append(f'<path d="M{left:.1f} {TOP - 5}V{TOP + PLOT_HEIGHT}" stroke="#888888" stroke-width="0.7"/>')
        wide, middle = LETTER * len(name), (left + right) / 2
        at = min(max(middle, LEFT + wide / 2), LEFT + INSIDE - wide / 2)
        fits = wide <= right - left
        # A repeated phase is named once.
        if fits or (at - wide / 2 >= taken and name not in named):
            named.add(name)
            taken = taken if fits else at + wide / 2 + 6
            y = TOP - 8 if fits else TOP - 23
            parts.append(f'<text x="{at:.1f}" y="{y}" text-anchor="middle" font-size="13">{_text(name, 20)}</text>')
            if not fits:
                parts.append(f'<path d="M{middle:.1f} {TOP - 20}V{TOP}" stroke="#888888" stroke-width="0.7"/>')
    return parts


def _limits(lines: Sequence[PowerLine], axes: _Axes) -> list[str]:
    """Draw a line at every limit inside the picture, each labelled once."""
    parts = []
    for limit in sorted({line.limit_w for line in lines if line.limit_w and line.limit_w <= axes.top_w}):
        y, whose = axes.y(limit), [line.name for line in lines if line.limit_w == limit]
        name = "limit" if len(whose) == len(lines) else f"limit of {', '.join(whose[:3])}"
        label = f"{name} {limit:,g} W"[:60]
        parts.append(
            f'<path d="M{LEFT} {y:.1f}H{LEFT + INSIDE}" stroke="#b00000" stroke-width="1.2" stroke-dasharray="1 3" '
            'fill="none"/>'
        )
        # Put the label where it hides least: right or left, above or below the line.
        wide = LETTER * len(label)
        places = [
            (LEFT + INSIDE - wide - 4 - share * max(0.0, INSIDE - wide - 8), baseline)
            for share in (0.0, 1.0, 0.25, 0.5, 0.75)
            for baseline in (y - 5, y + 14)
        ]
        x, baseline = min(
            places, key=lambda place: sum(_touches(line, place[0], place[1], wide, axes) for line in lines)
        )
        parts.append(f'<text x="{x:.1f}" y="{baseline:.1f}" font-size="13" fill="#b00000">{_text(label, 60)}</text>')
    return parts


def _touches(line: PowerLine, x: float, baseline: float, wide: float, axes: _Axes) -> int:
    """Count the segments of a line that cross a label's box."""
    at = LEFT + INSIDE * (line.time_s - axes.start_s) / (axes.end_s - axes.start_s)
    inside = (at[1:] >= x - 4) & (at[:-1] <= x + wide + 4)
    bottom_w, top_w = (axes.top_w * (1 - (edge - TOP) / PLOT_HEIGHT) for edge in (baseline + 4, baseline - 13))
    high, low = np.maximum(line.high_w[1:], line.high_w[:-1]), np.minimum(line.low_w[1:], line.low_w[:-1])
    return int(np.count_nonzero(inside & (high >= bottom_w) & (low <= top_w)))


def drawn(line: PowerLine) -> PowerLine:
    """Reduce a line to the points that can be seen: mean, minimum and maximum of neighbours."""
    every = -(-line.time_s.size // DRAWN)
    starts = np.arange(0, line.time_s.size, every)
    if every == 1 or line.gaps():
        return line
    counts = np.diff(starts, append=line.time_s.size)
    return replace(
        line,
        time_s=np.add.reduceat(line.time_s, starts) / counts,
        mean_w=np.add.reduceat(line.mean_w, starts) / counts,
        low_w=np.minimum.reduceat(line.low_w, starts),
        high_w=np.maximum.reduceat(line.high_w, starts),
    )


def _line(line: PowerLine, style: tuple[str, str], axes: _Axes) -> list[str]:
    """Draw the mean, and behind it the range from minimum to maximum if a point covers several readings."""
    colour, dash = style
    pieces = np.split(np.arange(line.time_s.size), line.gaps())
    parts = []
    if bool((line.high_w > line.low_w).any()):
        for piece in pieces:
            around = [(i, line.high_w) for i in piece] + [(i, line.low_w) for i in piece[::-1]]
            points = " ".join(f"{axes.x(line.time_s[i]):.1f},{axes.y(column[i]):.1f}" for i, column in around)
            parts.append(f'<polygon points="{points}" fill="{colour}" fill-opacity="0.2"/>')
    path = ""
    for piece in pieces:
        spots = [f"{axes.x(line.time_s[i]):.1f} {axes.y(line.mean_w[i]):.1f}" for i in piece]
        # A single reading is a dot as wide as the line.
        path += "M" + "L".join(spots) + ("h0.1" if len(spots) == 1 else "")
    parts.append(
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.8" stroke-linejoin="round"{_dashes(dash)}/>'
    )
    return parts


def _dashes(dash: str) -> str:
    return f' stroke-dasharray="{dash}"' if dash else ""


def _legend(lines: Sequence[PowerLine]) -> list[str]:
    parts = []
    for i, (line, (colour, dash)) in enumerate(zip(lines, STYLES, strict=False)):
        x = LEFT + (i % LEGEND_COLUMNS) * (INSIDE / LEGEND_COLUMNS)
        y = TOP + PLOT_HEIGHT + 62 + LEGEND_ROW * (i // LEGEND_COLUMNS)
        # Otherwise readers cannot see which domains are part of the energy of the job.
        suffix = " (counted)" if line.counted and not all(other.counted for other in lines) else ""
        if line.of > 1:
            label = f"{line.of} x {line.scope}{suffix}"
        else:
            several = len({other.node for other in lines if other.of == 1}) > 1
            name = f"{line.node} {line.name}" if several else line.name
            label = name + (suffix or (f" ({line.scope})" if line.scope not in line.name else ""))
        parts.append(
            f'<path d="M{x:.1f} {y - 4}h38" fill="none" stroke="{colour}" stroke-width="2.4"{_dashes(dash)}/>'
            f'<text x="{x + 46:.1f}" y="{y}">{_text(label, MAX_NAME)}</text>'
        )
    return parts
