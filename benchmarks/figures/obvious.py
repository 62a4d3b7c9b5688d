"""[obvious] On this machine, busy or not, large differences between real trainings get an answer.

Studies of three jobs of a small GPT, with 0, 2 and 8 busy processes beside them. Its layers give twice and four times
the work per sample. Each pair must get a ratio or a bound in the right direction, and the records of jobs beside busy
processes must name the load. One thread: with as many threads as cores each operation waits for the slowest thread,
and beside two busy processes three such jobs differed up to 20-fold, more than four-fold settings do.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from figure import arguments, at_least, finish, of_time

if TYPE_CHECKING:
    from collections.abc import Iterator

LAYERS = (2, 4, 8)
STUDY = """
name = "busy{busy}"
repeats = 3
[run]
workload = "gpt"
device = "cpu"
batch = 4
threads = 1
crosscheck_steps = 0
[run.budget]
max_seconds = {seconds}
min_seconds = 1
min_steps = 30
[run.model]
width = 128
heads = 4
sequence = 64
vocabulary = 256
[sweep]
"model.layers" = [{layers}]
"""
BUSY = "SY609"
FOUR_FOLD = 4.0
LOADS = (0, 2, 8)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep `count` processes computing."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def steelyard(*words: str) -> Any:
    """Run a verb with --json and return what it prints."""
    command = [sys.executable, "-m", "steelyard.cli.main", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stdout + done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def right(ratio: dict[str, Any]) -> bool:
    """Whether the throughput of the larger model, over that of the smaller, is shown to be below 1."""
    return ratio["answer"] in ("ratio", "bound") and ratio["verdict"] == "slower" and ratio["high"] < 1


def study(folder: Path, count: int, layers: tuple[int, ...], seconds: float) -> dict[tuple[int, int], bool]:
    """Measure the models beside `count` busy processes; return for each pair of them whether its answer is right."""
    file, results = folder / f"busy{count}.toml", folder / "results"
    file.write_text(STUDY.format(busy=count, seconds=seconds, layers=", ".join(map(str, layers))))
    with busy(count):
        steelyard("study", str(file), "--results", str(results))
    found = {}
    for small, large in combinations(layers, 2):
        sides = [f"busy{count}:model.layers={size}" for size in (small, large)]
        made = steelyard("compare", *sides, "--factor", "model_options", "--results", str(results))
        ratios = made["comparisons"][0]["ratios"]
        found[small, large] = bool(ratios) and right(ratios[0])
        shown = f"{ratios[0]['value']:.3g} [{ratios[0]['low']:.3g}, {ratios[0]['high']:.3g}]" if ratios else "no ratio"
        print(f"{count} busy: {large} against {small} layers: {shown}", flush=True)
    return found


def loads_named(folder: Path, count: int) -> tuple[int, int]:
    """Return how many records of a study name the load, and how many there are."""
    records = [json.loads(path.read_text()) for path in folder.glob(f"results/runs/busy{count}/*/record.json")]
    return sum(any(found["code"] == BUSY for found in record["findings"]) for record in records), len(records)


def main() -> None:
    """Measure the studies and print the figures."""
    options = arguments(__doc__)
    loads, layers, studies = ((2,), LAYERS[::2], 1) if options.quick else (LOADS, LAYERS, 2)
    four: list[bool] = []
    two: list[bool] = []
    named = runs = 0
    for _ in range(studies):
        for count in loads:
            with tempfile.TemporaryDirectory() as name:
                found = study(Path(name), count, layers, 1.0 if options.quick else 4.0)
                for (small, large), holds in found.items():
                    (four if large / small >= FOUR_FOLD else two).append(holds)
                if count:
                    busy_runs = loads_named(Path(name), count)
                    named, runs = named + busy_runs[0], runs + busy_runs[1]
    figures = [at_least("obvious: four-fold differences answered", 100 * sum(four) / len(four), "%", 100)]
    if two:
        figures.append(at_least("obvious: two-fold differences answered", 100 * sum(two) / len(two), "%", 95))
    figures.append(at_least("obvious: jobs on a busy machine that name the load", 100 * named / runs, "%", 100))
    finish([of_time(figure) for figure in figures])


if __name__ == "__main__":
    main()
