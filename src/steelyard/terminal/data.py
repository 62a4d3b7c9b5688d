"""Data sets as lines for a terminal: the formats, one of them, and what a check found. Knows words, reads no data."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any

from steelyard.errors import SHOWN_PROBLEMS, printable
from steelyard.terminal.text import number, table

if TYPE_CHECKING:
    from steelyard.data.form import Format

COLUMNS = 100


def formats_table(rows: list[dict[str, Any]]) -> str:
    """Every format, and what it needs."""
    cells = []
    for row in rows:
        needs = [f"{name} (missing)" if name in row["missing"] else name for name in row["needs"]]
        cells.append([row["name"], row["kind"], row["title"], ", ".join(needs) or "-"])
    return table(["format", "kind", "what it is", "needs"], cells)


def format_lines(form: Format) -> list[str]:
    """One format: its layout, and where its data set comes from."""
    source = textwrap.fill(
        form.source, COLUMNS, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip
    return [
        f"{form.name}: {form.title}",
        f"kind: {form.kind}; needs: {', '.join(form.needs) or 'numpy'}",
        "",
        "layout below PATH",
        textwrap.indent(form.layout, "  "),
        "",
        "source, size and terms",
        source,
        "",
        f"next: steelyard data check {form.name}:PATH",
        f"  or: steelyard data make {form.name} PATH",
    ]


def data_check_lines(found: dict[str, Any]) -> list[str]:
    """What a check of a data set found, and what to type next."""
    rows = [
        [split, f"{facts['examples']:,}" + (f" windows of {facts['window']} tokens" if facts["window"] else ""),
         "-" if facts["classes"] is None else str(facts["classes"]), f"{facts['decoded']:,}"]
        for split, facts in found["splits"].items()
    ]  # fmt: skip
    lines = [printable(f"{found['format']}: {found['path']}")]
    if rows:
        lines.append(table(["split", "examples", "classes", "decoded"], rows))
    if found["identity"] is not None:
        size_bytes = found["size_bytes"]
        step = min(4, int(math.log(max(1, size_bytes), 1024)))
        size = f"{number(size_bytes / 1024**step, 3)} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[step]}"
        lines.append(f"{found['files']:,} files, {size}, identity {found['identity'][:16]}")
    problems = found["problems"]
    lines += [printable(f"WRONG {problem['split']}: {problem['problem']}") for problem in problems[:SHOWN_PROBLEMS]]
    if len(problems) > SHOWN_PROBLEMS:
        lines.append(f"and {len(problems) - SHOWN_PROBLEMS} more; --json lists all")
    lines += ["", f"{len(problems)} wrong" if problems else "nothing wrong"]
    steps = dict.fromkeys(problem["next"] for problem in problems if problem["next"])
    if found["next"] is not None:
        steps[found["next"]] = None
    return lines + [printable(f"next: {step}") for step in steps]
