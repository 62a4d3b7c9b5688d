"""Charts as SVG, PNG and PDF through vl-convert. Knows fonts, colours of axes and accessibility; not what is drawn.

The same chart gives the same bytes of SVG, however many were drawn before it. Nothing is loaded from elsewhere.
"""

from __future__ import annotations

import importlib.util
import re
import textwrap
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from steelyard.errors import InputError, Problem

if TYPE_CHECKING:
    from types import ModuleType

    from steelyard.report.page import Chart

# Of the Vega-Lite releases that vl-convert carries: another one may place labels elsewhere.
VEGA_LITE = "5.20"
NAMESPACE = "http://www.w3.org/2000/svg"
# Comes with vl-convert, which measures text by it; Arial and Helvetica are as wide.
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
INK, QUIET, GRID = "#222222", "#555555", "#dddddd"
THEME: dict[str, Any] = {
    "background": "#ffffff",
    "font": FONT,
    "padding": 8,
    "aria": False,
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 13, "titleFontSize": 14, "titleFontWeight": "normal", "labelColor": INK, "titleColor": INK,
        "gridColor": GRID, "domainColor": INK, "tickColor": INK, "titlePadding": 10, "labelLimit": 260,
        "titleLimit": 600, "labelOverlap": "greedy",
    },
    "title": {
        "anchor": "start", "frame": "bounds", "fontSize": 16, "fontWeight": "bold", "color": INK, "lineHeight": 20,
        "limit": 0, "subtitleColor": QUIET, "subtitleFontSize": 12.5, "subtitlePadding": 6, "subtitleLineHeight": 16,
    },
    "text": {"fontSize": 13, "color": INK},
}  # fmt: skip
# A letter of a title, and one below it, is on average so wide.
TITLE_LETTER, NOTE_LETTER = 8.6, 6.9
MAX_NOTE_LINES = 4
WIDTH = 600
# Where neither Liberation Sans nor Arial is, letters are up to a sixth wider (DejaVu Sans).
SPARE = 0.05
# The space between a number and its unit: no line ends there.
UNIT = re.compile(r"(?<=\d) (?=(?:%|s|ms|us|ns|W|J|GiB|jobs?|devices?)\b|%)")
LONGEST_NUMBER = re.compile(r"-?\d+\.\d{3,}(?:e-?\d+)?|-?\d+(?:\.\d+)?e-\d+")
NOISE = ("class", "role", "font-family", "pointer-events", "opacity", "stroke-miterlimit")


def available() -> bool:
    """Whether pictures can be drawn here."""
    return importlib.util.find_spec("vl_convert") is not None


def svg(chart: Chart, *, titled: bool = True) -> str:
    """The picture as one SVG element with title and description; `titled`: with title and notes to be seen as well."""
    library = _library()
    drawn = library.vegalite_to_svg(_spec(chart, titled=titled), vl_version=VEGA_LITE, allowed_base_urls=[])
    return _cleaned(drawn, chart)


def png(chart: Chart, scale: float = 2.0, *, titled: bool = True) -> bytes:
    """The picture as pixels, `scale` times as many each way as the SVG is wide."""
    library = _library()
    found: bytes = library.svg_to_png(svg(chart, titled=titled), scale=scale)
    return found


def pdf(chart: Chart, *, titled: bool = True) -> bytes:
    """The picture as one page of its own size."""
    library = _library()
    found: bytes = library.svg_to_pdf(svg(chart, titled=titled))
    return found


def _library() -> ModuleType:
    # Late: the core works without it, and nobody should wait for it who draws nothing.
    try:
        import vl_convert
    except ImportError:
        problem = Problem("pictures", "vl-convert-python is not installed", "tables, Markdown and CSV work without it")
        raise InputError(
            "charts cannot be drawn here", problems=(problem,), next_step="pip install 'steelyard[report]'"
        ) from None
    return vl_convert


def _spec(chart: Chart, *, titled: bool) -> dict[str, Any]:
    # A zero byte in a label would end the whole process inside the library.
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
    """Without characters that nobody reads, wherever they are."""
    if isinstance(value, str):
        return "".join(c if c.isprintable() else " " for c in value)
    if isinstance(value, dict):
        return {key: _readable(entry) for key, entry in value.items()}
    return [_readable(entry) for entry in value] if isinstance(value, list | tuple) else value


# -- SVG that is small, says what it shows, and can stand beside others on one page


def _cleaned(drawn: str, chart: Chart) -> str:
    ET.register_namespace("", NAMESPACE)
    root = ET.fromstring(drawn)  # noqa: S314 - made by the library from our own spec, no document of a stranger
    _tidy(root)
    # Ids by the chart's name and their order: the library goes on counting from one drawing to the next.
    ids = {element.get("id"): f"{chart.name}-{n}" for n, element in enumerate(root.iterfind(".//*[@id]"))}
    for element in root.iter():
        if element.get("id") in ids:
            element.set("id", ids[element.get("id")])
        clip = element.get("clip-path")
        if clip is not None:
            element.set("clip-path", f"url(#{ids[clip[5:-1]]})")
    # Wider at both sides: a reader's letters may be wider than those that were measured, and would be cut off.
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
    """Without marks that show nothing, without what only a program asks for, and with digits that can be seen."""
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


def _rounded(found: re.Match[str]) -> str:
    short = f"{float(found.group()):.2f}".rstrip("0").rstrip(".")
    return "0" if short == "-0" else short
