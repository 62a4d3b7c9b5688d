"""[input_wait] Delays in loader, computation and communication are each found in the right column.

Each run is real, with the command line, of a small model with delays of known length. The increase of a column over the
run without delays is compared with the delay. Throughput with data on the device, on the host and from a slow loader is
printed too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figure import arguments, at_most, finish, of_time

MODEL = Path(__file__).parents[1] / "lib" / "models" / "delayed.py"
COLUMNS = ("input_wait", "compute", "exposed_comm")


@dataclass(frozen=True)
class Case:
    """One run and the expected increase of each column, in seconds per step."""

    name: str
    truth: tuple[float, float, float]
    ranks: int = 1
    place: str = "host"
    compute_s: float = 0.0
    loader_s: float = 0.0
    communication_s: float = 0.0
    workers: int = 0
    steps: int = 60


CASES = (
    Case("data on the device", (0, 0, 0), place="device"),
    Case("data on the host", (0, 0, 0)),
    Case("slow loader", (0.06, 0, 0), loader_s=0.06),
    Case("slow computation", (0, 0.06, 0), compute_s=0.06),
    # A loader process makes a few batches before the first step; with more steps they do not matter.
    Case(
        "slow loader behind a faster computation",
        (0.06, 0.04, 0),
        compute_s=0.04,
        loader_s=0.1,
        workers=1,
        steps=240,
    ),
    Case("2 ranks", (0, 0, 0), ranks=2),
    Case("2 ranks, slow network", (0, 0, 0.15), ranks=2, communication_s=0.15),
    Case("2 ranks, all three", (0.1, 0.1, 0.15), ranks=2, compute_s=0.1, loader_s=0.1, communication_s=0.15),
)
# The quick form compares the columns of one run with the delays, without subtracting a run without delays. The delays
# are long, so that the computation itself, 4 to 8 ms, and a single late wake-up do not matter.
QUICK = Case(
    "2 ranks, all three", (0.3, 0.3, 0.45), ranks=2, compute_s=0.3, loader_s=0.3, communication_s=0.45, steps=6
)
NOTHING = dict.fromkeys(COLUMNS, 0.0)


def measured(case: Case, folder: Path) -> tuple[dict[str, float], float]:
    """Return the seconds per step in each column, and the samples per second."""
    command = [
        sys.executable, "-m", "steelyard.cli.main", "run", f"{MODEL}:build", "--json", "--results", str(folder),
        "--devices", str(case.ranks), "--threads", "1", "--data", case.place, "--loader-workers", str(case.workers),
        "--model", f"compute_s={case.compute_s}", "--model", f"loader_s={case.loader_s}",
        "--min-steps", str(case.steps), "--max-steps", str(case.steps), "--min-seconds", "0",
        "--set", f"crosscheck_steps={min(case.steps, 60)}",
    ]  # fmt: skip
    if case.ranks > 1:
        command += ["--backend", "slow"]
    environment = {**os.environ, "COMMUNICATION_S": str(case.communication_s)}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    record: dict[str, Any] = json.loads(done.stdout)["runs"][0]
    assert record["status"]["code"] == "completed", record["status"]
    rate = float(record["quantities"]["throughput"]["value"])
    check = record["crosscheck"]
    if case.ranks > 1:
        return {name: float(check[f"{name}_s"]) for name in COLUMNS}, rate
    mean = record["quantities"]["step_time_mean"]["value"]
    return {name: mean * record["quantities"][f"{name}_share"]["value"] for name in COLUMNS}, rate


def main() -> None:
    options = arguments(__doc__)
    worst = 0.0
    base: dict[int, dict[str, float]] = {}
    for case in (QUICK,) if options.quick else CASES:
        with tempfile.TemporaryDirectory() as name:
            found, rate = measured(case, Path(name))
        if not any(case.truth):
            base[case.ranks] = found
        errors = []
        shown = []
        for column, truth in zip(COLUMNS, case.truth, strict=True):
            more = found[column] - base.get(case.ranks, NOTHING)[column]
            # A column without a delay must not contain part of another: compare with the largest delay.
            scale = truth or max(case.truth)
            errors.append(100 * abs(more - truth) / scale if scale else 0.0)
            shown.append(f"{column} {1e3 * found[column]:.2f} ms ({1e3 * truth:g} ms delay)")
        worst = max(worst, *errors)
        print(f"{case.name}: {rate:,.0f} samples/s; {', '.join(shown)}; worst {max(errors):.2f} %")
    figure = at_most("input_wait: a delay in its own column, largest error", worst, "% of the delay", 5.0)
    finish([of_time(figure)])


if __name__ == "__main__":
    main()
