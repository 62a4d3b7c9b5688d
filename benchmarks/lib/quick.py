"""Run the quick form of every figure, as CI does: figures without timing two at a time, then the others alone."""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from figures import NAMES, SCRIPTS

TOGETHER = frozenset(
    {
        "malformed",
        "typos",
        "words",
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
        "pasted",
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
        "suite_truth",
        "wrap_faults",
        "wrap_truth",
        "fuzz",
        "crash",
        "slurm",
        "kubernetes_survival",
        "slurm_sites",
        "container",
        "injection",
        "suites",
        "headline",
        "lead",
        "nvml",
        "double_counting",
    }
)
"""Figures without a limit that another program on the machine can break, and that do not use two cores alone."""
PRINTING = threading.Lock()


def run(name: str, times: Path | None) -> str:
    """Run one figure and print its output when it ends; return its name if it failed."""
    begin_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / f"{name}.py"), "--quick"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - begin_s
    with PRINTING:
        print(f"\n== figure: {name} ({seconds:.0f} s)\n{done.stdout}", end="", flush=True)
        if times is not None:
            with times.open("a", encoding="utf-8") as file:
                file.write(f"{seconds:6.0f}    figure: {name}{' (beside another)' if name in TOGETHER else ''}\n")
    return name if done.returncode else ""


def main() -> int:
    """Run all figures; return 1 if any failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=Path, help="append the seconds of each figure to this file")
    times = parser.parse_args().times
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda name: run(name, times), [name for name in NAMES if name in TOGETHER]))
    results += [run(name, times) for name in NAMES if name not in TOGETHER]
    if failed := [name for name in results if name]:
        print(f"\nFAILED: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
