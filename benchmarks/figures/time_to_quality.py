"""[time_to_quality] A WideResNet trains on a generated data set in the format of CIFAR-100 to a target accuracy.

Three seeds (one in the quick form), each a fresh launch with the command line. All must converge, and each must stop at
the first evaluation that reaches the target; the times in the record are compared with its evaluations. Then a target
that cannot be reached within its epochs must end as `not_converged`, without a time (full form only, because a test
does the same). The network is the smallest of its family (depth 10, width 1), so that two cores train it in seconds.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from figure import arguments, at_least, at_most, finish, of_time
from steelyard import plugins
from steelyard.cli.main import main as steelyard

TARGET = 0.9
SEEDS = 3
LIMIT_S = 180.0


def trained(data: Path, results: Path, *more: str) -> list[dict[str, Any]]:
    words = ["run", "wideresnet28-10", "--model", "depth=10", "--model", "widen=1", "--data", f"cifar100:{data}"]
    words += ["--device", "cpu", "--batch", "20", "--learning-rate", "0.02", "--results", str(results), "--json", *more]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        steelyard(words)
    runs: list[dict[str, Any]] = json.loads(out.getvalue())["runs"]
    return runs


def contradictions(run: dict[str, Any]) -> list[str]:
    """Return the contradictions in the record of a training to a target."""
    found, evaluations = [], run["evaluations"]
    last = evaluations[-1]
    # Single precision may show an accuracy slightly below its exact value.
    right = [round(e["value"] * e["samples"]) >= TARGET * e["samples"] for e in evaluations]
    if right != [False] * (len(right) - 1) + [True]:
        found.append(f"it did not stop at the first evaluation that reached the target: {right}")
    if run["quantities"]["time_to_quality"]["value"] != last["at_s"]:
        found.append("its time is not that of its last evaluation")
    if not last["at_s"] >= run["stop"]["seconds"] + sum(e["seconds"] for e in evaluations):
        found.append("its time is shorter than its steps and evaluations together")
    return found


def main() -> None:
    options = arguments(__doc__)
    seeds = 1 if options.quick else SEEDS
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        plugins.load("data", "cifar100").make(root / "data", 600 if options.quick else 4000, 0)
        begin_s = time.monotonic()
        runs = trained(
            root / "data", root / "results", "--epochs", "40", "--target", str(TARGET), "--repeats", str(seeds)
        )
        seconds = time.monotonic() - begin_s
        short = [] if options.quick else trained(root / "data", root / "results", "--epochs", "1", "--target", "0.9999")
    reached = [run for run in runs if run["status"]["code"] == "completed"]
    wrong = [f"{run['run_id']}: {what}" for run in reached for what in contradictions(run)]
    wrong += [
        f"a target that was not reached ended as {run['status']['code']}"
        for run in short
        if run["status"]["code"] != "not_converged" or run["quantities"]["time_to_quality"]["value"] is not None
    ]
    for run in reached:
        value = run["quantities"]
        epochs, at_s = value["epochs_to_quality"]["value"], value["time_to_quality"]["value"]
        print(f"seed {run['spec']['seed']}: {value['quality']['value']:.3f} after {epochs:.0f} epochs, {at_s:.1f} s")
    print("\n".join(wrong))
    finish(
        [
            at_least(f"time_to_quality: seeds of {seeds} that reached {TARGET:.0%}", len(reached), "seeds", seeds),
            at_most("time_to_quality: contradictions in the records", len(wrong), "contradictions", 0),
            of_time(at_most("time_to_quality: all seeds, start to end", seconds, "s", LIMIT_S)),
        ]
    )


if __name__ == "__main__":
    main()
