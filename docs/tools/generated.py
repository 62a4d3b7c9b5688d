"""Make what comes from code: the pages in docs/reference, and parts of other pages.

<!-- code: PATH NAME ... -->  ... <!-- end of code -->     the source of classes or functions
<!-- table: NAME -->          ... <!-- end of table -->    a calculation of scale.py
<!-- fields: site -->         ... <!-- end of fields -->   the fields of a site file
<!-- extras -->               ... <!-- end of extras -->   the extras of the package
<!-- verbs -->                ... <!-- end of verbs -->    the verbs, grouped by question
<!-- accelerators -->         ... <!-- end of accelerators -->   on which somebody tested; see accelerators.py
<!-- table: experiments -->   ... <!-- end of table -->    how many experiments of the documents run as stated
<!-- table: differences -->   ... <!-- end of table -->    the others, and why
<!-- figure: NAME -->8.5<!-- end -->                       a measured figure of figures.json
"""

from __future__ import annotations

import ast
import difflib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import accelerators
import reference
import scale
from console import PageError

from experiments import STATES, experiments
from steelyard.cli.main import GROUPS
from steelyard.extras import EXTRAS
from steelyard.terminal import rule

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent.parent
PART = re.compile(r"^<!-- (?P<kind>[a-z]+)(?:: (?P<what>[^\n]+?))? -->\n", re.MULTILINE)
FIGURE = re.compile(r"<!-- figure: (?P<name>.+?) -->.*?<!-- end -->", re.DOTALL)
PURPOSES = {
    "torch": "run models",
    "images": "read image files as data",
    "timm": "the workload `timm`",
    "transformers": "Llama, BERT and the detection transformer",
    "segmentation": "the segmentation workloads",
    "quality": "metrics of detection and segmentation",
    "nvidia": "energy of NVIDIA devices",
    "kubernetes": "studies on Kubernetes",
    "report": "charts in reports; tables work without it",
    "archive": "archive and query many runs",
}
THOUSAND = 1000


def pages() -> dict[str, str]:
    """Return every page that is made from code alone, by its path in docs/."""
    return reference.pages() | {"reference/rules.md": rule.page(), "reference/figures.md": figures_page()}


def fill(text: str) -> str:
    """Return a page with its parts and its figures made anew."""
    made, at = [], 0
    while found := PART.search(text, at):
        end = f"<!-- end of {found['kind']} -->"
        until = text.find(end, found.end())
        if until < 0:
            raise PageError(f"{found[0].strip()} has no {end}")
        made += [text[at : found.end()], _make_part(found), "\n"]
        at = until
    return FIGURE.sub(_figure, "".join(made) + text[at:])


def measured() -> dict[str, float]:
    """Return the measured figures by name."""
    return {each["name"]: each["figure"] for entry in _figures().values() for each in entry["figures"]}


def _figures() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads((ROOT / "docs" / "figures.json").read_text(encoding="utf-8"))
    return found


def _figure(found: re.Match[str]) -> str:
    figures, name = measured(), " ".join(found["name"].split())
    if name not in figures:
        near = difflib.get_close_matches(name, figures, n=1)
        raise PageError(f"unknown figure {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    value = figures[name]
    shown = f"{value:,.0f}" if abs(value) >= THOUSAND else f"{value:.3g}"
    return f"<!-- figure: {found['name']} -->{shown}<!-- end -->"


def _make_part(found: re.Match[str]) -> str:
    made = TABLES.get((found["kind"], found["what"]))
    if made is not None:
        return made()
    match found["kind"], (found["what"] or "").split():
        case "code", [path, *names]:
            source = (ROOT / path).read_text(encoding="utf-8")
            pieces = "\n\n\n".join(_find_code(source, name, path) for name in names)
            return f"```python\n{pieces}\n```"
    raise PageError(f"unknown part: {found[0].strip()}")


def _extras() -> str:
    rows = [f"| `{name}` | {PURPOSES[name]} | {', '.join(f'`{each}`' for each in EXTRAS[name])} |" for name in EXTRAS]
    return "\n".join(["| extra | for | installs |", "| --- | --- | --- |", *rows])


def _verbs() -> str:
    """Return the table of verbs, in the groups of `steelyard --help`."""
    rows = []
    for group, verbs in GROUPS.items():
        heads = [f"**{group}**", *[""] * (len(verbs) - 1)]
        rows += [f"| {head} | `{verb}` | {text} |" for head, (verb, text) in zip(heads, verbs.items(), strict=True)]
    return "\n".join(["| | verb | what it does |", "| --- | --- | --- |", *rows])


def _experiments() -> str:
    """Return how many experiments of each suite's document have which state."""
    states = [state for state in STATES if any(one.state == state for one in experiments())]
    rows = []
    for suite in dict.fromkeys(one.suite for one in experiments()):
        own = [one.state for one in experiments() if one.suite == suite]
        rows.append(f"| [{suite}]({suite}.md) | {len(own)} | {' | '.join(str(own.count(state)) for state in states)} |")
    header = f"| suite | experiments | {' | '.join(states)} |"
    return "\n".join([header, "| --- |" + " ---: |" * (len(states) + 1), *rows])


def _differences() -> str:
    """Return the experiments that do not run as stated, and why."""
    rows = [
        f"| {one.suite} | {one.place} | {one.name} | {one.state}: {one.note} |"
        for one in experiments()
        if one.state != STATES[0]
    ]
    return "\n".join(["| suite | place | experiment | what differs |", "| --- | --- | --- | --- |", *rows])


TABLES: dict[tuple[str, str | None], Callable[[], str]] = {
    ("table", "facility"): lambda: scale.facility(measured()),
    ("table", "registry"): lambda: scale.registry(measured()),
    ("table", "experiments"): _experiments,
    ("table", "differences"): _differences,
    ("fields", "site"): reference.site_fields,
    ("extras", None): _extras,
    ("verbs", None): _verbs,
    ("accelerators", None): accelerators.table,
}


def _find_code(source: str, name: str, path: str) -> str:
    for node in ast.parse(source).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            return "\n".join(source.splitlines()[first - 1 : node.end_lineno])
    raise PageError(f"{path} has no class or function {name}")


def figures_page() -> str:
    """Return the page of all measured figures, with the script that repeats each."""
    out = [
        "# Figures\n",
        "Measured by these scripts in their full form. To repeat a figure, run its script in an environment made with",
        "`pip install -e '.[dev,all]'`. Figures about Slurm, containers, pages and packs need the Debian packages in",
        "`.ci/full`.\n",
    ]
    for name, entry in _figures().items():
        script = next((ROOT / "benchmarks").rglob(f"{name}.py"))
        about = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
        slow = f", {entry['slowness']} times slower than usual" if entry.get("slowness", 1.0) > 1.0 else ""
        where = f"{entry['seconds']} s; {entry['machine']}{slow}; {entry['date']}"
        out += [f"## {name}\n", about.partition("] ")[2] + "\n"]
        out += [f"Repeat: `python {script.relative_to(ROOT)}` ({where})\n"]
        out += ["| figure | measured | bar | holds |", "| --- | ---: | --- | --- |"]
        for row in entry["figures"]:
            what = row["name"].partition(": ")[2] or row["name"]
            verdict = "yes" if row["holds"] else "**no**"
            out.append(f"| {what} | {row['figure']:.4g} {row['unit']} | {row['bar']} | {verdict} |")
        out.append("")
    return "\n".join(out)
