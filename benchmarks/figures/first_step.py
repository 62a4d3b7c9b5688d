"""[first_step] Time from the command to the first step, compared with a bare script.

Both train the same small model, started in turn; the model records when its first loss is computed, on the monotonic
clock. The time to import torch varies: 15 pairs differed by -0.44 to 1.60 s, a standard deviation of 0.59 s (the range
is 3.47 of them). The median of the three pairs of the quick form has a standard error of 0.67 of that, 0.39 s, and may
miss the limit by three of these. The full form may not.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figure import arguments, at_most, finish
from same_training import MODELS, surroundings

LIMIT_S = 0.7
QUICK_NOISE_S = 3 * 0.39


def seconds_to_first(command: list[str], folder: Path) -> float:
    """Return the seconds from the start of the command to its first loss."""
    environment = surroundings(folder)
    begin_s = time.monotonic()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    first = (folder / "0").read_text().splitlines()[0]
    return float(first.split()[1]) - begin_s


def main() -> None:
    options = arguments(__doc__)
    bare_script = [sys.executable, str(MODELS / "by_hand.py"), "0", "5", "16", "1"]
    bare_s, ours_s = [], []
    # The first pair reads cold files and does not count.
    for number in range(4 if options.quick else 16):
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
    limit_s = LIMIT_S + (QUICK_NOISE_S if options.quick else 0.0)
    finish([at_most("first_step: added to the time to the first step", statistics.median(added), "s", limit_s)])


if __name__ == "__main__":
    main()
