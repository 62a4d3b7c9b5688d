"""Draw charts as SVG, PNG and PDF with vl-convert.

The same chart always gives the same bytes of SVG. Nothing is loaded from the network.
"""

from __future__ import annotations

import importlib.util
import json
import re
import textwrap
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from steelyard.errors import InputError, Problem
from steelyard.extras import install_line
from steelyard.report.charts.style import DARK, INK, QUIET

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from steelyard.report.page import Chart

# One of the Vega-Lite releases in vl-convert; pinned because others place labels differently.
VEGA_LITE = "5.20"
NAMESPACE = "http://www.w3.org/2000/svg"
NOTICE = (
    "Vega, Vega-Lite and Vega-Embed: Copyright University of Washington Interactive Data Lab, BSD 3-Clause License, "
    "https://github.com/vega/vega. D3: Copyright Mike Bostock, ISC License, https://github.com/d3/d3."
)
# vl-convert includes Liberation Sans and measures text with it; Arial and Helvetica have the same widths.
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
GRID = "#dddddd"
THEME: dict[str, Any] = {
    "background": "#ffffff",
    "font": FONT,
    "padding": 8,
    "aria": False,
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 13,
        "titleFontSize": 14,
        "titleFontWeight": "normal",
        "labelColor": INK,
        "titleColor": INK,
        "gridColor": GRID,
        "domainColor": INK,
        "tickColor": INK,
        "titlePadding": 10,
        "labelLimit": 260,
        "titleLimit": 600,
        "labelOverlap": "greedy",
    },
    "title": {
        "anchor": "start",
        "frame": "bounds",
        "fontSize": 16,
        "fontWeight": "bold",
        "color": INK,
        "lineHeight": 20,
        "limit": 0,
        "subtitleColor": QUIET,
        "subtitleFontSize": 12.5,
        "subtitlePadding": 6,
        "subtitleLineHeight": 16,
    },
    "legend": {"labelFontSize": 13, "titleFontSize": 13, "labelColor": INK, "titleColor": INK},
    "text": {"fontSize": 13, "color": INK},
}
# Mean widths of a letter in titles and in notes.
TITLE_LETTER, NOTE_LETTER = 8.6, 6.9
MAX_NOTE_LINES = 4
WIDTH = 600
# Without Liberation Sans and Arial, letters are up to a sixth wider (DejaVu Sans).
SPARE = 0.05
# The space between a number and its unit, where lines must not break.
UNIT = re.compile(r"(?<=\d) (?=(?:%|s|ms|us|ns|W|J|GiB|jobs?|devices?)\b|%)")
LONGEST_NUMBER = re.compile(r"-?\d+\.\d{3,}(?:e-?\d+)?|-?\d+(?:\.\d+)?e-\d+")
NOISE = ("class", "role", "font-family", "pointer-events", "opacity", "stroke-miterlimit")


def available() -> bool:
    """Whether charts can be drawn here."""
    return importlib.util.find_spec("vl_convert") is not None


def svg(chart: Chart, *, titled: bool = True) -> str:
    """Return the chart as one SVG element with title and description; `titled`: also draw the title and notes."""
    vega = library()
    drawn = vega.vegalite_to_svg(_spec(chart, titled=titled), vl_version=VEGA_LITE, allowed_base_urls=[])
    return _cleaned(drawn, chart)


def live(chart: Chart) -> tuple[str, str]:
    """Return the chart without its title, as SVG and as the Vega specification that a browser draws."""
    vega = library()
    made = vega.vegalite_to_vega(_spec(chart, titled=False), vl_version=VEGA_LITE)
    drawn = vega.vega_to_svg(made, allowed_base_urls=[])
    # The background of the page shows through. The runtime in the page is newer than the schema says.
    kept = {name: part for name, part in made.items() if name not in ("background", "$schema")}
    return _cleaned(drawn, chart), json.dumps(kept, separators=(",", ":"))


@lru_cache(1)
def runtime() -> str:
    """Return the script that draws Vega specifications in a browser."""
    script = library().javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)
    return f"/* {NOTICE} */\n{script}"


def themed(picture: str) -> str:
    """Return the SVG with a style for dark pages. Inside an image element, the browser applies it."""
    rules = dark_rules("", lambda rule: rule in picture)
    opening, end, rest = picture.partition(">")
    style = f"<style>@media (prefers-color-scheme:dark){{svg{{fill:{DARK[INK]}}}{rules}}}</style>"
    return f"{opening}{end}{style}{rest}"


def dark_rules(within: str, used: Callable[[str], bool] = bool) -> str:
    """Return a style sheet that replaces colours of charts by those for dark pages, below the selector `within`."""
    pairs = [(f'{part}="{light}"', f"{part}:{dark}") for light, dark in DARK.items() for part in ("fill", "stroke")]
    return "".join(f"{within}[{old}]{{{new}}}" for old, new in pairs if used(old))


def png(chart: Chart, scale: float = 2.0, *, titled: bool = True) -> bytes:
    """Return the chart as PNG, `scale` times the width and height of the SVG."""
    vega = library()
    picture: bytes = vega.svg_to_png(svg(chart, titled=titled), scale=scale)
    return picture


def pdf(chart: Chart, *, titled: bool = True) -> bytes:
    """Return the chart as PDF, one page in its own size."""
    vega = library()
    picture: bytes = vega.svg_to_pdf(svg(chart, titled=titled))
    return picture


def library() -> ModuleType:
    """Return vl-convert; InputError if it is not installed."""
    # Imported late: an optional dependency that takes long to load.
    try:
        import vl_convert
    except ImportError:
        problem = Problem("charts", "vl-convert-python is not installed", "tables, Markdown and CSV work without it")
        raise InputError("cannot draw charts", problems=(problem,), next_step=install_line("report")) from None
    return vl_convert


def _spec(chart: Chart, *, titled: bool) -> dict[str, Any]:
    # A zero byte in a label would crash the process inside the library.
    spec: dict[str, Any] = {"config": THEME, **_readable(chart.spec)}
    if titled:
        wide = float(spec.get("usermeta", {}).get("whole_width", WIDTH))
        notes = textwrap.wrap(UNIT.sub("\u00a0", _readable(" ".join(chart.notes))), int(wide / NOTE_LETTER))
        if len(notes) > MAX_NOTE_LINES:
            notes = [*notes[: MAX_NOTE_LINES - 1], notes[MAX_NOTE_LINES - 1] + " ..."]
        spec["title"] = {
            "text": textwrap.wrap(_readable(chart.title), int(wide / TITLE_LETTER)),
            "subtitle": notes,
            "offset": 14,
        }
    return spec


def _readable(value: Any) -> Any:
    """Replace unprintable characters in all strings of a nested value."""
    if isinstance(value, str):
        return value if value.isprintable() else "".join(c if c.isprintable() else " " for c in value)
    if isinstance(value, dict):
        return {key: _readable(entry) for key, entry in value.items()}
    return [_readable(entry) for entry in value] if isinstance(value, list | tuple) else value


# -- SVG that is small, accessible, and has unique ids on a page


def _cleaned(drawn: str, chart: Chart) -> str:
    ET.register_namespace("", NAMESPACE)
    root = ET.fromstring(drawn)  # noqa: S314 - made by the library from our own spec, not untrusted
    _tidy(root)
    # Ids from the name of the chart: those of the library depend on what was drawn before.
    ids = {element.get("id"): f"{chart.name}-{n}" for n, element in enumerate(root.iterfind(".//*[@id]"))}
    for element in root.iter():
        if element.get("id") in ids:
            element.set("id", ids[element.get("id")])
        clip = element.get("clip-path")
        if clip is not None:
            element.set("clip-path", f"url(#{ids[clip[5:-1]]})")
    # Wider on both sides: the reader's font may be wider than the measured one, and text would be cut off.
    wide, high = float(root.get("width", WIDTH)), float(root.get("height", WIDTH))
    spare = round(SPARE * wide)
    root.set("viewBox", f"{-spare} 0 {wide + 2 * spare:g} {high:g}")
    root.set("width", f"{wide + 2 * spare:g}")
    root.attrib.pop("version", None)
    root.set("font-family", FONT)
    root.set("role", "img")
    root.set("aria-labelledby", f"{chart.name}-title {chart.name}-desc")
    for place, (tag, text) in enumerate((("title", chart.title), ("desc", chart.alt))):
        element = ET.Element(f"{{{NAMESPACE}}}{tag}", {"id": f"{chart.name}-{tag}"})
        element.text = _readable(text)
        root.insert(place, element)
    return ET.tostring(root, encoding="unicode") + "\n"


def _tidy(element: ET.Element) -> None:
    """Remove invisible marks and unused attributes, and round coordinates."""
    for child in list(element):
        _tidy(child)
        if _shows_nothing(child):
            element.remove(child)
    for name, value in list(element.attrib.items()):
        if name.startswith("aria-") or (name in NOISE and (name != "opacity" or value == "1")):
            del element.attrib[name]
        elif name not in ("id", "clip-path", "fill", "stroke"):
            element.set(name, LONGEST_NUMBER.sub(_rounded, value))


def _shows_nothing(element: ET.Element) -> bool:
    tag = element.tag.rpartition("}")[2]
    if tag == "path":
        hidden = element.get("display") == "none" or element.get("d", "") in ("", "M0,0h0v0h0Z")
        return hidden or not (element.get("fill") or element.get("stroke") or element.get("id"))
    return tag == "g" and len(element) == 0


def _rounded(match: re.Match[str]) -> str:
    short = f"{float(match.group()):.2f}".rstrip("0").rstrip(".")
    return "0" if short == "-0" else short
