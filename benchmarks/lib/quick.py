"""Run the quick forms of figures, as CI does: those without a limit of time two at a time, the others alone."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from figure import UNDECIDED_CODE
from figures import MISSED, NAMES, SCRIPTS

TOGETHER = frozenset(
    {
        "malformed",
        "typos",
        "words",
        "messages",
        "steady_state",
        "flops",
        "same_training",
        "catalogue",
        "claims",
        "import_exact",
        "expect",
        "injected_faults",
        "printed",
        "verdicts",
        "order",
        "knee",
        "energy_truth",
        "report_safe",
        "first_screen",
        "foreign",
        "no_secrets",
        "allocation_pack",
        "extend",
        "weight_casts",
        "suite_settings",
        "suite_answers",
        "suite_complete",
        "suite_hours",
        "suite_truth",
        "wrap_faults",
        "wrap_truth",
        "fuzz",
        "slurm",
        "kubernetes_survival",
        "slurm_sites",
        "container",
        "injection",
        "suites",
        "headline",
        "json_shape",
        "lead",
        "nvml",
        "double_counting",
    }
)
"""Figures without a limit of time, that do not use two cores alone."""
PRINTING = threading.Lock()


def result_of(name: str, code: int, output: str) -> str:
    """Return what the exit code and the output of a figure mean; a miss is known if `MISSED` names all its rows."""
    if code != 1:
        return {0: "holds", UNDECIDED_CODE: "undecided"}.get(code, "failed")
    try:
        last = json.loads(output.splitlines()[-1])
        missed = {row["name"] for row in (last if isinstance(last, list) else [last]) if not row["holds"]}
    except (LookupError, TypeError, ValueError):
        # It broke off, and ends with something else.
        return "failed"
    return "missed as known" if missed and missed <= MISSED.get(name, {}).keys() else "failed"


def run(name: str) -> dict[str, Any]:
    """Run one figure, print its output when it ends, and return its result and seconds."""
    begin_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / f"{name}.py"), "--quick"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    seconds = round(time.monotonic() - begin_s)
    result = result_of(name, done.returncode, done.stdout)
    with PRINTING:
        print(f"\n== figure: {name}, {result} ({seconds} s)\n{done.stdout}", end="", flush=True)
    return {"result": result, "seconds": seconds}


def main() -> int:
    """Run figures; return 1 if any failed, 3 if any is undecided."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--together", action="store_true", help="only those without a limit of time")
    parser.add_argument("--alone", action="store_true", help="only the others")
    parser.add_argument("--details", type=Path, help="write the results as JSON to this file")
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"unknown figure: {', '.join(sorted(unknown))}; valid: {', '.join(NAMES)}")
    names = options.names or NAMES
    together = [name for name in names if name in TOGETHER and not options.alone]
    alone = [name for name in names if name not in TOGETHER and not options.together]
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(together, pool.map(run, together), strict=True))
    found |= {name: run(name) for name in alone}
    if options.details:
        options.details.write_text(json.dumps(found), encoding="utf-8")
    for word in ("missed as known", "undecided", "failed"):
        if named := [name for name, one in found.items() if one["result"] == word]:
            print(f"\nfigures {word}: {', '.join(named)}", flush=True)
    results = {one["result"] for one in found.values()}
    return 1 if "failed" in results else UNDECIDED_CODE if "undecided" in results else 0


if __name__ == "__main__":
    sys.exit(main())
