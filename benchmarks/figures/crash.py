"""[crash] SIGKILL at random moments of a study, then resume: no run is lost, doubled or half written.

Studies of 50 runs (30 in the quick form) run in parallel, each in its own folder. The launcher is killed at random
moments. After each kill, every record in the folder is read and validated, and the time until the last worker of the
dead launcher ends is measured. Then the study is started again. At the end each run has exactly one record, and the
scratch space is empty.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from figure import arguments, at_least, at_most, finish, of_time
from steelyard.errors import SteelyardError
from steelyard.inputs.study import expand, load_study
from steelyard.results.store import RAW, RECORD_FILE, ResultFolder, read_record

STUDY = """
name = "crash"
repeats = {repeats}
seed = {seed}

[run]
workload = "sim"
crosscheck_steps = 0
budget = {{ min_steps = 200, max_steps = 200, min_seconds = 0.0 }}

[run.sim]
wall_s_per_s = 0.02

[sweep]
batch = [8, 16, 32, 64, 128]
"sim.step_time_s" = [0.01, 0.02]
"""
LONGEST_S = 5.0


@dataclass(frozen=True)
class Result:
    """Results of one study."""

    kills: int
    unreadable: int
    wrong_count: int
    leftovers: int
    longest_orphan_s: float


def crash_and_resume(seed: int, kills: int, repeats: int) -> Result:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as scratch:
        file, results = Path(scratch) / "study.toml", Path(scratch) / "results"
        file.write_text(STUDY.format(seed=seed, repeats=repeats), encoding="utf-8")
        unreadable, orphan_s, made = 0, 0.0, 0
        for _ in range(kills):
            launcher = start(file, results)
            try:
                # The moment of the kill: from before the first run to somewhere in the middle of the study.
                launcher.wait(chance.uniform(0.0, 3.0))
            except subprocess.TimeoutExpired:
                made += 1
            launcher.send_signal(signal.SIGKILL)
            launcher.wait()
            orphan_s = max(orphan_s, seconds_until_gone(results))
            unreadable += count_unreadable(results)
        last = start(file, results)
        code = last.wait()
        records = list(ResultFolder(results).records())
        wanted = sorted(spec.run_id for spec in expand(load_study(file)).runs)
        wrong = int(code != 0) + int(sorted(record.run_id for record in records) != wanted)
        wrong += sum(record.status.code != "completed" or record.steps_seen != 200 for record in records)
        return Result(made, unreadable + count_unreadable(results), wrong, leftovers(results), orphan_s)


def start(file: Path, results: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "steelyard.cli.main", "study", str(file), "--results", str(results)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def seconds_until_gone(results: Path) -> float:
    begin_s = time.monotonic()
    while workers(results) and time.monotonic() - begin_s < 2 * LONGEST_S:
        time.sleep(0.01)  # the figure is a duration; this is its resolution
    return time.monotonic() - begin_s


def workers(results: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"steelyard.worker" in words and any(os.fsencode(results) in word for word in words):
                found.append(int(entry.name))
    return found


def count_unreadable(results: Path) -> int:
    """Count run folders that are visible but unreadable."""
    bad = 0
    for run in (results / "runs").glob("*/*"):
        try:
            read_record(run / RECORD_FILE)
            bad += not (run / RAW).is_dir()
        except SteelyardError:
            bad += 1
    return bad


def leftovers(results: Path) -> int:
    scratch = results / ".scratch"
    return len(list(scratch.iterdir())) if scratch.is_dir() else 0


def main() -> None:
    options = arguments(__doc__)
    studies, kills, repeats = (1, 4, 3) if options.quick else (36, 6, 5)
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(crash_and_resume, range(studies), [kills] * studies, [repeats] * studies))
    total = sum(result.kills for result in results)
    print(f"{studies} studies of {10 * repeats} runs, {total} kills while running")
    finish(
        [
            at_least("crash: kills while running", total, "kills", 3 if options.quick else 200),
            at_most("crash: records unreadable", sum(r.unreadable for r in results), "records", 0),
            at_most("crash: studies with a cell not exactly once", sum(r.wrong_count for r in results), "faults", 0),
            at_most("crash: scratch left after resuming", sum(r.leftovers for r in results), "directories", 0),
            of_time(
                at_most("crash: longest life of an orphan", max(r.longest_orphan_s for r in results), "s", LONGEST_S)
            ),
        ]
    )


if __name__ == "__main__":
    main()
