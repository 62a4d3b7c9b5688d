"""[at_rest] Storage of results: bytes and files per run, bytes per step, and the time to read records.

Jobs run through the real command: simulated with one and eight devices and sensors, and a training of two ranks on the
CPU. Bytes per step are the growth of the sample files from a short to a long job. Reading is measured on a folder of
copied records (copied_study.py) as processor time, so that a busy machine does not matter. The compressed size is that
of one real record with zlib; many together take less.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from copied_study import make
from figure import Figure, arguments, at_least, at_most, finish, of_time
from steelyard.results.store import RAW, RECORD_FILE

if TYPE_CHECKING:
    from steelyard.results.store import ResultFolder

STEPS, MANY_STEPS = 100, 10_000
FEW = ["--min-steps", str(STEPS), "--max-steps", str(STEPS), "--min-seconds", "0"]
MANY = ["--min-steps", str(MANY_STEPS), "--max-steps", str(MANY_STEPS), "--min-seconds", "0"]
SENSORS = [
    "--set", "sim.power.compute_w=300", "--set",
    'sim.sensors=[{"kind": "counter", "period_s": 0.1}, {"kind": "gauge", "period_s": 0.1}]',
]  # fmt: skip
JOBS = {
    "simulated, 1 device": ["sim", *FEW],
    "simulated, 8 devices with sensors": ["sim", "--devices", "8", *FEW, *SENSORS],
    "training on the CPU, 2 ranks": ["tiny", "--device", "cpu", "--devices", "2", *FEW],
}


def run(folder: Path, name: str, options: list[str]) -> Path:
    """Run one job with the command and return its folder."""
    command = [sys.executable, "-m", "steelyard.cli.main", "run", *options, "--study", name, "--results", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return next((folder / "runs" / name).iterdir())


def raw_bytes(place: Path) -> int:
    return sum(path.stat().st_size for path in (place / RAW).iterdir())


def of_runs(folder: Path) -> list[Figure]:
    """Bytes and files of each kind of job, and bytes per step."""
    figures = []
    for number, (name, options) in enumerate(JOBS.items()):
        place = run(folder, f"job{number}", options)
        record = (place / RECORD_FILE).stat().st_size
        files = sum(path.is_file() for path in place.rglob("*"))
        figures += [
            at_most(f"at_rest: record, {name}", record / 1e3, "kB", 50),
            at_most(f"at_rest: raw files of {STEPS} steps, {name}", raw_bytes(place) / 1e3, "kB", 100),
            at_most(f"at_rest: files, {name}", files, "files", 16),
        ]
    packed = len(zlib.compress((place / RECORD_FILE).read_bytes())) / 1e3
    short, long = run(folder, "short", ["sim", *FEW]), run(folder, "long", ["sim", *MANY])
    step = (raw_bytes(long) - raw_bytes(short)) / (MANY_STEPS - STEPS)
    return [
        *figures,
        at_most("at_rest: raw bytes of a step and rank", step, "bytes", 64),
        at_most("at_rest: record of the training, compressed", packed, "kB", 10),
    ]


def of_reading(folder: ResultFolder, runs: int) -> list[Figure]:
    """Records read per second of processor time."""
    begin_s = time.process_time()
    read = sum(1 for _ in folder.records())
    rate = read / (time.process_time() - begin_s)
    assert read == runs, read
    return [of_time(at_least("at_rest: records read in a second of one processor", rate, "records/s", 200))]


def main() -> None:
    """Run the jobs, read the folder."""
    runs = 200 if arguments(__doc__).quick else 2000
    with tempfile.TemporaryDirectory() as name:
        figures = of_runs(Path(name) / "jobs")
        finish(figures + of_reading(make(Path(name) / "many", runs), runs))


if __name__ == "__main__":
    main()
