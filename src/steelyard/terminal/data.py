"""Data formats and checked data sets as lines for a terminal."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any

from steelyard.errors import SHOWN_PROBLEMS, printable
from steelyard.terminal.text import many, number, table, wrapped

if TYPE_CHECKING:
    from steelyard.data.form import Format


def formats_table(rows: list[dict[str, Any]]) -> str:
    """Format one row per format."""
    cells = []
    for row in rows:
        needs = [f"{name} (missing)" if name in row["missing"] else name for name in row["needs"]]
        cells.append([row["name"], row["kind"], row["title"], ", ".join(needs) or "-"])
    return table(["format", "kind", "description", "needs"], cells)


def format_lines(form: Format) -> list[str]:
    """Format the layout of one format and the source of its data set."""
    return [
        f"{form.name}: {form.title}",
        f"kind: {form.kind}; needs: {', '.join(form.needs) or 'numpy'}",
        "",
        "Layout below PATH:",
        textwrap.indent(form.layout, "  "),
        "",
        "Source, size and terms:",
        *wrapped(form.source, "  ", ""),
        "",
        f"next: steelyard data check {form.name}:PATH",
        f"  or: steelyard data make {form.name} PATH",
    ]


def data_check_lines(check: dict[str, Any]) -> list[str]:
    """Format the result of a check of a data set, and the next command."""
    rows = [
        [
            split,
            f"{facts['examples']:,}" + (f" windows of {facts['window']} tokens" if facts["window"] else ""),
            "-" if facts["classes"] is None else str(facts["classes"]),
            f"{facts['decoded']:,}",
        ]
        for split, facts in check["splits"].items()
    ]
    lines = [printable(f"{check['format']}: {check['path']}")]
    if rows:
        lines.append(table(["split", "examples", "classes", "decoded"], rows))
    if check["identity"] is not None:
        size_bytes = check["size_bytes"]
        step = min(4, int(math.log(max(1, size_bytes), 1024)))
        size = f"{number(size_bytes / 1024**step, 3)} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[step]}"
        lines.append(f"{check['files']:,} files, {size}, identity {check['identity'][:16]}")
    problems = check["problems"]
    for problem in problems[:SHOWN_PROBLEMS]:
        lines += wrapped(f"error: {problem['split']}: {problem['problem']}")
    if len(problems) > SHOWN_PROBLEMS:
        lines.append(f"and {len(problems) - SHOWN_PROBLEMS} more (listed by --json)")
    lines += ["", many(len(problems), "problem") if problems else "No problems found."]
    steps = dict.fromkeys(problem["next"] for problem in problems if problem["next"])
    if check["next"] is not None:
        steps[check["next"]] = None
    return lines + [printable(f"next: {step}") for step in steps]
