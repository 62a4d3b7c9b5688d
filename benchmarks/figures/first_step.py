"""[first_step] Time from the command to the first step, compared with a bare script.

Both train the same small model, started in turn; the model records when its first loss is computed, on the monotonic
clock. The time to import torch varies: 15 pairs differed by -0.44 to 1.60 s. So the quick form misses only if the
one-sided 99 % bound of its three pairs is above the limit.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figure import arguments, finish, timed
from same_training import MODELS, surroundings

LIMIT_S = 0.7
# 99 % of Student's distribution with 2 degrees of freedom, divided by the root of 3 pairs.
QUICK_ERRORS = 6.965 / 3**0.5


def seconds_to_first(command: list[str], folder: Path) -> float:
    """Return the seconds from the start of the command to its first loss."""
    environment = surroundings(folder)
    # With the compiled files of an installed package, also on a machine whose users do without them.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    begin_s = time.monotonic()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    first = (folder / "0").read_text().splitlines()[0]
    return float(first.split()[1]) - begin_s


def main() -> None:
    options = arguments(__doc__)
    bare_script = [sys.executable, str(MODELS / "by_hand.py"), "0", "5", "16", "1", "0"]
    bare_s, ours_s = [], []
    # The first pair reads cold files and does not count; before a quick form, other figures have read them.
    for number in range(1, 4) if options.quick else range(16):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            command = [
                sys.executable, "-m", "steelyard.cli.main", "run", f"{MODELS / 'logged.py'}:build", "--batch", "16",
                "--data", "host", "--min-steps", "5", "--max-steps", "5", "--min-seconds", "0",
                "--set", "crosscheck_steps=0", "--results", str(folder / "results"),
            ]  # fmt: skip
            pair = seconds_to_first(bare_script, folder / "bare"), seconds_to_first(command, folder / "ours")
        if number:
            bare_s.append(pair[0])
            ours_s.append(pair[1])
    added = sorted(ours - bare for bare, ours in zip(bare_s, ours_s, strict=True))
    print(
        f"bare {statistics.median(bare_s):.2f} s, steelyard {statistics.median(ours_s):.2f} s to the first loss; "
        f"added {statistics.median(added):.2f} s, {added[0]:.2f} to {added[-1]:.2f} over {len(added)} pairs"
    )
    figure, error_s = statistics.median(added), QUICK_ERRORS * statistics.stdev(added)
    name = "first_step: added to the time to the first step"
    finish([timed(name, figure, "s", LIMIT_S, quick=options.quick, error=error_s)])


if __name__ == "__main__":
    main()
