"""Make the parts of the site that are not in git: pages from code, and parts of pages in place of a marker.

<!-- code: PATH NAME ... -->     the source of classes or functions
<!-- table: NAME -->             a calculation of scale.py
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
    """Return every generated page by its path in docs/. Rules of other packages are not included."""
    codes = [code for kind, names in plugins.BUILTIN.items() if kind.endswith("rule") for code in names]
    rules = {f"rules/{code}.md": page(rule(code)) for code in codes}
    more = {"rules/README.md": index_page(), "figures.md": figures_page(), "security.md": security_page()}
    return rules | reference.pages() | more


def security_page() -> str:
    """Return SECURITY.md, which GitHub looks for at the top of a repository, with links as in docs/."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    return text.replace("](docs/figures.json)", "](figures.md)").replace("](docs/", "](")


def fill(text: str) -> str:
    """Return a page with every marker replaced."""
    return MARKER.sub(_make_part, text)


def measured() -> dict[str, float]:
    """Return the measured figures by name."""
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
    raise PageError(f"unknown marker: {found[0]}")


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
