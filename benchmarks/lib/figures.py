"""Runs the full form of every figure and writes docs/figures.md; a name or more runs only those and keeps the rest."""

from __future__ import annotations

import ast
import datetime as dt
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "benchmarks" / "figures"
DATA = ROOT / "docs" / "figures.json"
PAGE = ROOT / "docs" / "figures.md"
NAMES = (
    "startup",
    "detection",
    "malformed",
    "steady_state",
    "memory",
    "crash",
    "coverage",
    "selftest",
    "flops",
    "same_training",
    "first_step",
    "input_wait",
    "overhead",
    "faults",
    "catalogue",
    "data_formats",
    "time_to_quality",
    "loader",
    "collectives",
    "family_overhead",
    "claims",
    "injected_faults",
    "verdicts",
    "knee",
    "energy_truth",
    "nvml",
    "sampler",
    "double_counting",
    "slurm",
    "slurm_10k",
    "slurm_overhead",
    "container",
    "injection",
    "gallery",
    "report_speed",
    "report_safe",
    "allocation_pack",
    "at_rest",
)


def measure(name: str) -> dict[str, Any]:
    """One script's full form."""
    begin_s = time.monotonic()
    done = subprocess.run([sys.executable, str(SCRIPTS / f"{name}.py")], stdout=subprocess.PIPE, text=True, check=False)
    last = json.loads(done.stdout.splitlines()[-1])
    return {
        "figures": last if isinstance(last, list) else [last],
        "holds": done.returncode == 0,
        "seconds": round(time.monotonic() - begin_s),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
    }


def page(data: dict[str, dict[str, Any]]) -> str:
    """The figures as Markdown."""
    out = [
        "# Figures\n",
        "Made by `python benchmarks/lib/figures.py` from the full runs.",
        "Each row is repeated by its script,",
    ]
    out += [
        "in an environment made by `pip install -e '.[dev,all]'`. Those of Slurm, containers, pages and packs need the",
        "Debian packages that `.ci/run` names.\n",
    ]
    for name in (name for name in NAMES if name in data):
        entry = data[name]
        text = ast.get_docstring(ast.parse((SCRIPTS / f"{name}.py").read_text(encoding="utf-8"))) or ""
        out.append(f"## {name}\n")
        out.append(text.partition("] ")[2] + "\n")
        measured = f"{entry['seconds']} s; {entry['machine']}; {entry['date']}"
        out.append(f"Repeat: `python benchmarks/figures/{name}.py` ({measured})\n")
        out.append("| figure | measured | bar | holds |\n| --- | ---: | --- | --- |")
        for row in entry["figures"]:
            what = row["name"].partition(": ")[2] or row["name"]
            verdict = "yes" if row["holds"] else "**no**"
            out.append(f"| {what} | {row['figure']:.4g} {row['unit']} | {row['bar']} | {verdict} |")
        out.append("")
    return "\n".join(out)


def main() -> int:
    """Measure, keep, write."""
    data = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {}
    names = sys.argv[1:] or NAMES
    if unknown := set(names) - set(NAMES):
        raise SystemExit(f"no figure is called {', '.join(sorted(unknown))}; valid: {', '.join(NAMES)}")
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        data[name] = measure(name)
        DATA.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(page(data), encoding="utf-8")
    return 0 if all(entry["holds"] for entry in data.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
