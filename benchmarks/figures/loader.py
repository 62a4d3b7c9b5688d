"""[loader] `steelyard run --mode load` predicts correctly whether the full run waits for its data.

For every case, `steelyard run --mode load` measures the model alone and the pipeline alone and predicts the full run;
then the full run is made and compared with the prediction. Some cases have delays of known length in loader and
computation, which use no CPU; two read real formats: JPEG pictures for a trivial model, and small pictures for a
network. The prediction "cannot tell" counts as wrong, because the cases are clear.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from figure import arguments, at_most, finish, of_time
from steelyard import plugins
from steelyard.cli.main import main as steelyard

DELAYED = f"{Path(__file__).parents[1] / 'lib' / 'models' / 'delayed.py'}:build"


@dataclass(frozen=True)
class Case:
    """A full run and its expected bound."""

    name: str
    truth: str
    workers: int
    words: tuple[str, ...]
    steps: int = 80


def delayed(truth: str, workers: int, loader_s: float, compute_s: float) -> Case:
    words = (DELAYED, "--data", "host", "--model", f"loader_s={loader_s}", "--model", f"compute_s={compute_s}")
    name = f"loader {1e3 * loader_s:g} ms, computation {1e3 * compute_s:g} ms, {workers} loader processes"
    return Case(name, truth, workers, (*words, "--batch", "4"))


def cases(root: Path) -> list[Case]:
    plugins.load("data", "imagefolder").make(root / "pictures", 60, 0)
    plugins.load("data", "cifar100").make(root / "small", 400, 0)
    pictures = ("tiny", "--data", f"imagefolder:{root / 'pictures'}", "--batch", "10")
    small = ("wideresnet28-10", "--data", f"cifar100:{root / 'small'}", "--batch", "20")
    return [
        Case("JPEG pictures, a model of no size", "input-bound", 1, pictures, 60),
        Case(
            "small pictures, a network", "compute-bound", 1, (*small, "--model", "depth=10", "--model", "widen=2"), 30
        ),
        delayed("compute-bound", 1, 0.004, 0.02),
        delayed("input-bound", 1, 0.04, 0.02),
        delayed("input-bound", 1, 0.03, 0.02),
        delayed("compute-bound", 2, 0.03, 0.02),
        delayed("compute-bound", 0, 0.001, 0.03),
        delayed("input-bound", 0, 0.02, 0.02),
    ]


def told(words: list[str]) -> dict[str, Any]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = steelyard(words)
    assert code == 0, out.getvalue()
    answer: dict[str, Any] = json.loads(out.getvalue())
    return answer


def outcome(case: Case, results: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the prediction and the record of the full run."""
    common = [*case.words, "--device", "cpu", "--threads", "1", "--results", str(results), "--json"]
    common += ["--min-seconds", "0", "--min-steps", str(case.steps), "--max-steps", str(case.steps)]
    forecast = told(["run", *common, "--mode", "load", "--loader-workers", str(case.workers)])["pipelines"][0][
        "forecast"
    ]
    record = told(["run", *common, "--loader-workers", str(case.workers)])["runs"][0]
    return forecast, record


def main() -> None:
    options = arguments(__doc__)
    wrong, largest = 0, 0.0
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        chosen = cases(root)[: 1 if options.quick else None]
        for case in chosen:
            forecast, record = outcome(replace(case, steps=25) if options.quick else case, root / "results")
            waits = record["quantities"]["input_wait_share"]["value"]
            was = "input-bound" if waits > 0.10 else "compute-bound"
            right = forecast["bound"] == was == case.truth
            wrong += not right
            largest = max(largest, abs(forecast["wait_share"] - waits))
            print(
                f"{'ok  ' if right else 'MISS'} {case.name}: predicted {forecast['bound']}, waiting "
                f"{forecast['wait_share']:.0%}; was {was}, waiting {waits:.0%}"
            )
    print(f"largest difference of predicted and measured share of waiting: {100 * largest:.1f} points")
    finish([of_time(at_most(f"loader: wrong forecasts of {len(chosen)}", wrong, "cases", 0))])


if __name__ == "__main__":
    main()
