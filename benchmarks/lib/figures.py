"""Run the full form of every figure, or of the named ones, and write docs/figures.json."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from figure import slowness

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "benchmarks" / "figures"
DATA = ROOT / "docs" / "figures.json"
NAMES = (
    "startup",
    "detection",
    "malformed",
    "fuzz",
    "typos",
    "words",
    "messages",
    "steady_state",
    "memory",
    "crash",
    "coverage",
    "selftest",
    "flops",
    "same_training",
    "quick_answers",
    "input_wait",
    "overhead",
    "two_clocks",
    "faults",
    "catalogue",
    "data_formats",
    "time_to_quality",
    "loader",
    "collectives",
    "family_overhead",
    "claims",
    "import_exact",
    "expect",
    "injected_faults",
    "printed",
    "verdicts",
    "usable",
    "order",
    "pasted",
    "lead",
    "obvious",
    "knee",
    "energy_truth",
    "nvml",
    "sampler",
    "double_counting",
    "slurm",
    "slurm_10k",
    "collecting",
    "slurm_overhead",
    "kubernetes_survival",
    "slurm_sites",
    "container",
    "injection",
    "gallery",
    "report_speed",
    "report_safe",
    "first_screen",
    "foreign",
    "no_secrets",
    "allocation_pack",
    "headline",
    "next_works",
    "json_shape",
    "no_false_headline",
    "at_rest",
    "extend",
    "weight_casts",
    "wrap_truth",
    "wrap_claims",
    "wrap_faults",
    "wrap_overhead",
    "suite_settings",
    "suite_answers",
    "suite_complete",
    "suite_hours",
    "suite_truth",
    "suites",
    "archive",
    "query",
    "query_safe",
)
ELSEWHERE = {"apptainer_real": "bootstraps another Debian, 400 MB; run by hand, its output is in docs/containers.md"}
"""Scripts that neither CI nor this one runs, and why."""
SLOW_MACHINE = "the machine was twice as slow as the one that the limits were set on"
IN_PYTHON = "out of reach in Python: docs/decisions/0019-wrap.md"
MISSED = {
    "family_overhead": {"family_overhead: reconstruction": "keeps 0.9876 of the bare throughput, and 0.99 is wanted"},
    "report_speed": {
        "report_speed: built in": SLOW_MACHINE,
        "report_speed: load event after": SLOW_MACHINE,
        "report_speed: sorted in, median of 20": SLOW_MACHINE,
    },
    "two_clocks": {
        "two_clocks: largest error of the busy share": "off by 4.6 points for 1 machine of 500, and 2 are allowed"
    },
    "wrap_overhead": {
        "wrap_overhead: added to a step, without labels, by the clock": IN_PYTHON,
        "wrap_overhead: added to a step, without labels, by the processor": IN_PYTHON,
        "wrap_overhead: added to a step, with labels counted, by the clock": IN_PYTHON,
        "wrap_overhead: added to a step, with labels counted, by the processor": IN_PYTHON,
    },
}
"""By script, the rows of docs/figures.json that do not hold, and what limits them. Quick forms name them the same."""
UNMEASURED = (
    "archive",
    "expect",
    "import_exact",
    "kubernetes_survival",
    "obvious",
    "pasted",
    "printed",
    "query",
    "query_safe",
    "slurm_sites",
)
"""Figures whose full form is not in docs/figures.json yet."""


def measure(name: str) -> dict[str, Any]:
    """Run the full form of one script."""
    begin_s, slow = time.monotonic(), slowness()
    done = subprocess.run([sys.executable, str(SCRIPTS / f"{name}.py")], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(done.stdout, file=sys.stderr)
    last = json.loads(done.stdout.splitlines()[-1])
    return {
        "figures": last if isinstance(last, list) else [last],
        "holds": done.returncode == 0,
        "seconds": round(time.monotonic() - begin_s),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        # Judge times by it: machines of one kind differ by a factor of two.
        "slowness": round((slow + slowness()) / 2, 1),
    }


def text(data: dict[str, dict[str, Any]]) -> str:
    """Format the file with one line per figure, for small diffs."""
    entries = []
    for name, entry in data.items():
        about = json.dumps({key: value for key, value in entry.items() if key != "figures"})
        rows = ",\n".join(f"  {json.dumps(row)}" for row in entry["figures"])
        entries.append(f' {json.dumps(name)}: {about[:-1]}, "figures": [\n{rows}\n ]}}')
    return "{\n" + ",\n".join(entries) + "\n}\n"


def main() -> int:
    """Run the figures and write the file; other entries are kept."""
    data = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {}
    names = sys.argv[1:] or NAMES
    if unknown := set(names) - set(NAMES):
        raise SystemExit(f"unknown figure: {', '.join(sorted(unknown))}; valid: {', '.join(NAMES)}")
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        data[name] = measure(name)
        DATA.write_text(text(data), encoding="utf-8")
    return 0 if all(entry["holds"] for entry in data.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
