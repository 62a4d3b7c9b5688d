"""[quick_answers] Time of short commands, as ratios measured in turn.

- `explain CODE`, `suite list`, `site list` and `workloads`, over `python -c 'import numpy'`.
- `show` and `compare` of a study of 10 runs, over the same.
- From the command to the first training step, over a bare script that trains the same small model. The model records
  when its first loss is computed, on the monotonic clock. Both import torch, which takes seconds and varies.

A figure is the middle of the ratios of its pairs, with its 95 % interval. It holds if the interval is at or below the
limit, misses if it is above, and is undecided else. Fewer than six pairs have no such interval: they hold if all are
at or below the limit, and are undecided else. Output goes to a pipe, as in scripts: on a terminal each command also
imports rich to colour it.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figure import Figure, arguments, finish, of_time
from same_training import MODELS, surroundings

STEELYARD = [sys.executable, "-m", "steelyard.cli.main"]
NUMPY = [sys.executable, "-c", "import numpy"]
LOOKUP_LIMIT, ANSWER_LIMIT, FIRST_STEP_LIMIT = 1.5, 3.0, 1.25
LEAST_PAIRS = 6
LOOKUPS = ("explain SY103", "suite list", "site list", "workloads")
ANSWERS = ("show ten", "compare ten:batch=16 ten:batch=32")
STUDY = """name = "ten"
repeats = 5
[run]
workload = "sim"
device = "sim"
budget.max_steps = 1000
[sweep]
batch = [16, 32]
"""


def seconds(command: list[str], environment: dict[str, str]) -> float:
    """Return how long a command takes."""
    begin_s = time.monotonic()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begin_s


def seconds_to_first(command: list[str], folder: Path) -> float:
    """Return the seconds from the start of the command to its first loss."""
    begin_s = time.monotonic()
    subprocess.run(command, env=compiled(folder), check=True, capture_output=True)
    first = (folder / "0").read_text().splitlines()[0]
    return float(first.split()[1]) - begin_s


def compiled(folder: Path) -> dict[str, str]:
    """Return variables with which Python uses compiled files, as of an installed package."""
    environment = surroundings(folder)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def short_commands(pairs: int) -> list[Figure]:
    """Time the short commands and the import of numpy in turn."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "ten.toml").write_text(STUDY)
        results = ["--results", str(folder / "results")]
        environment = compiled(folder)
        made = [*STEELYARD, "study", str(folder / "ten.toml"), *results]
        subprocess.run(made, env=environment, check=True, capture_output=True)
        commands = {text: [*STEELYARD, *text.split()] for text in LOOKUPS}
        commands |= {text: [*STEELYARD, *text.split(), *results] for text in ANSWERS}
        times: dict[str, list[float]] = {text: [] for text in commands}
        # The first round reads cold files and writes compiled ones.
        for number in range(pairs + 1):
            numpy_s = seconds(NUMPY, environment)
            for text, command in commands.items():
                ratio = seconds(command, environment) / numpy_s
                times[text] += [ratio] if number else []
    return [
        judged(f"quick_answers: {text.partition(':')[0]}, over import numpy", ratios, limit)
        for texts, limit in ((LOOKUPS, LOOKUP_LIMIT), (ANSWERS, ANSWER_LIMIT))
        for text, ratios in ((text, times[text]) for text in texts)
    ]


def first_step(pairs: int, *, quick: bool) -> Figure:
    """Time the first step of a bare script and of `steelyard run` in turn."""
    bare = [sys.executable, str(MODELS / "by_hand.py"), "0", "5", "16", "1", "0"]
    ratios = []
    # A quick form has no time for a first pair that reads cold files.
    for number in range(quick, pairs + 1):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            command = [
                *STEELYARD, "run", f"{MODELS / 'logged.py'}:build", "--batch", "16", "--data", "host",
                "--min-steps", "5", "--max-steps", "5", "--min-seconds", "0", "--set", "crosscheck_steps=0",
                "--results", str(folder / "results"),
            ]  # fmt: skip
            bare_s = seconds_to_first(bare, folder / "bare")
            ratios += [seconds_to_first(command, folder / "ours") / bare_s] if number else []
    return judged("quick_answers: time to the first step, over a bare script", ratios, FIRST_STEP_LIMIT)


def judged(name: str, ratios: list[float], limit: float) -> Figure:
    """Compare the interval with the limit."""
    middle, low, high = middle_of(ratios)
    spread = f"{min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} pairs"
    print(f"{name}: {middle:.2f} [{low:.2f}, {high:.2f}], {spread}")
    holds = True if high <= limit else False if low > limit and len(ratios) >= LEAST_PAIRS else None
    return of_time(Figure(name, middle, "x", f"<= {limit:g}", holds))


def middle_of(ratios: list[float]) -> tuple[float, float, float]:
    """Return the middle of ratios and the ends of its 95 % interval: Hodges and Lehmann's, on logarithms.

    The signed-rank test gives the interval. Both need only that the noise is as often above as below, and use more of
    the pairs than a median does (Biometrics 19, 1963).
    """
    logs, n = [math.log(ratio) for ratio in ratios], len(ratios)
    means = sorted((a + b) / 2 for number, a in enumerate(logs) for b in logs[number:])
    outside = 0 if n < LEAST_PAIRS else int(n * (n + 1) / 4 - 1.96 * math.sqrt(n * (n + 1) * (2 * n + 1) / 24))
    return math.exp(statistics.median(means)), math.exp(means[outside]), math.exp(means[-1 - outside])


def main() -> None:
    """Run both."""
    options = arguments(__doc__)
    figures = short_commands(1 if options.quick else 40)
    finish([*figures, first_step(1 if options.quick else 40, quick=options.quick)])


if __name__ == "__main__":
    main()
