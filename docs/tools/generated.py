"""Makes what the site shows and git does not hold: whole pages from code, and parts of pages where a marker stands.

<!-- code: PATH NAME ... -->     classes or functions as in the code
<!-- table: NAME -->             arithmetic of scale.py
<!-- fields: site -->            the fields of a site file
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import reference
import scale
from console import PageError

from steelyard import plugins
from steelyard.rules.rule import rule
from steelyard.terminal.rule import index_page, page

ROOT = Path(__file__).resolve().parent.parent.parent
MARKER = re.compile(r"^<!-- (?P<kind>code|table|fields): (?P<what>[^\n]+?) -->$", re.MULTILINE)
TABLES = {"facility": scale.facility, "registry": scale.registry}


def pages() -> dict[str, str]:
    """Every generated page by its path below docs/. Rules of installed packages are documented there, not here."""
    codes = [code for kind, names in plugins.BUILTIN.items() if kind.endswith("rule") for code in names]
    rules = {f"rules/{code}.md": page(rule(code)) for code in codes}
    return rules | reference.pages() | {"rules/README.md": index_page(), "figures.md": figures_page()}


def fill(text: str) -> str:
    """A page with what its markers stand for."""
    return MARKER.sub(_make_part, text)


def measured() -> dict[str, float]:
    """The figures by name."""
    return {each["name"]: each["figure"] for entry in _figures().values() for each in entry["figures"]}


def _figures() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads((ROOT / "docs" / "figures.json").read_text(encoding="utf-8"))
    return found


def _make_part(found: re.Match[str]) -> str:
    match found["kind"], found["what"].split():
        case "code", [path, *names]:
            source = (ROOT / path).read_text(encoding="utf-8")
            pieces = "\n\n\n".join(_find_code(source, name, path) for name in names)
            return f"```python\n{pieces}\n```"
        case "table", [name] if name in TABLES:
            return TABLES[name](measured())
        case "fields", ["site"]:
            return reference.site_fields()
    raise PageError(f"a page has a marker that nothing is made for: {found[0]}")


def _find_code(source: str, name: str, path: str) -> str:
    for node in ast.parse(source).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            return "\n".join(source.splitlines()[first - 1 : node.end_lineno])
    raise PageError(f"{path} has no class or function {name}")


def figures_page() -> str:
    """Every measured figure, with the script that repeats it."""
    out = [
        "# Figures\n",
        "Measured by the full forms of these scripts. Each row is repeated by its script, in an environment made by",
        "`pip install -e '.[dev,all]'`. Those of Slurm, containers, pages and packs need the Debian packages that",
        "`.ci/run` names.\n",
    ]
    for name, entry in _figures().items():
        script = next((ROOT / "benchmarks").rglob(f"{name}.py"))
        about = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
        where = f"{entry['seconds']} s; {entry['machine']}; {entry['date']}"
        out += [f"## {name}\n", about.partition("] ")[2] + "\n"]
        out += [f"Repeat: `python {script.relative_to(ROOT)}` ({where})\n"]
        out += ["| figure | measured | bar | holds |", "| --- | ---: | --- | --- |"]
        for row in entry["figures"]:
            what = row["name"].partition(": ")[2] or row["name"]
            verdict = "yes" if row["holds"] else "**no**"
            out.append(f"| {what} | {row['figure']:.4g} {row['unit']} | {row['bar']} | {verdict} |")
        out.append("")
    return "\n".join(out)
