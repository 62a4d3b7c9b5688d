"""[archive] Runs folded into segments: fast, never lost, doubled or unreadable, and read as fast as their folders.

20,000 simulated runs with their raw files are archived by one process, and its processor time is measured. Then
archivers are killed by SIGKILL at random moments, 300 times, while two of them, a process that adds runs and one that
reads them work on the same folder; the reader checks that every run that was ever added is there once, with the bytes
it had. In the end every run is compared, byte by byte, and `show` and `show --derive` of an archived run are timed in
turn with the same run in a folder. The quick form has fewer runs and kills, and its times only say whether this machine
is fast enough to decide. The archive is also unpacked by tar, which we did not write.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from figure import arguments, at_least, at_most, finish, of_time, slowness
from steelyard import nofollow
from steelyard.derive.record import derive
from steelyard.results.store import RAW, RECORD_FILE, ResultFolder, read_record_text, record_text
from whole_runs import WholeRuns

LEAST_RATE, MOST_FILES, MOST_TIMES = 400.0, 0.01, 1.5
# Kills need segments that take about as long as the time between them.
SMALL = 200
ARCHIVE = """
import os, sys
from pathlib import Path
from steelyard.results import fold
from steelyard.results.store import ResultFolder
fold.SEGMENT_RUNS = int(sys.argv[2])
fold.archive(ResultFolder(Path(sys.argv[1])))
"""


def digest(run: Path) -> str:
    """Return the digest of all files of a run, with their names."""
    found = hashlib.sha256()
    for path in (run / RECORD_FILE, *(run / RAW / name for name in nofollow.names(run / RAW))):
        with nofollow.open_file(path) as file:
            found.update(path.name.encode() + b"\0" + file.read())
    return found.hexdigest()


def measure_rate(results: Path, runs: int) -> tuple[float, float]:
    """Return archived runs per second of one processor, and files per run afterwards."""
    before = os.times()
    subprocess.run([sys.executable, "-c", ARCHIVE, str(results), "4096"], check=True)
    after = os.times()
    spent_s = after.children_user + after.children_system - before.children_user - before.children_system
    left = sum(len(files) for _, _, files in os.walk(results))
    return runs / spent_s, left / runs


class Crowd:
    """A folder on which archivers that are killed, a writer and a reader work."""

    def __init__(self, maker: WholeRuns, seed: int) -> None:
        self.maker, self.chance = maker, random.Random(seed)
        self.folder = ResultFolder(maker.folder.root)
        self.wanted: dict[str, str] = {}
        self.missing = self.changed = self.kills = 0
        self._number = 0

    def add(self, count: int) -> None:
        """Add runs to one of the studies."""
        study = f"study{self.chance.randrange(5)}"
        for run in self.maker.make(study, range(self._number, self._number + count)):
            self.wanted[f"{study}/{run}"] = digest(self.folder.runs / study / run)
        self._number += count

    def look(self, count: int) -> None:
        """Check that everything is there once, and the bytes of some."""
        for study in {name.partition("/")[0] for name in self.wanted}:
            wanted = {name.partition("/")[2] for name in self.wanted if name.startswith(f"{study}/")}
            there = self.folder.run_ids(study)
            self.missing += len(wanted ^ there)
        for name in self.chance.sample(sorted(self.wanted), min(count, len(self.wanted))):
            study, _, run = name.partition("/")
            found = [path for path in self.folder.find(run) if path.parent.name == study]
            self.changed += len(found) != 1 or self.folder.of_run(found[0], digest) != self.wanted[name]

    def start(self) -> subprocess.Popen[bytes]:
        """Start an archiver."""
        return subprocess.Popen([sys.executable, "-c", ARCHIVE, str(self.folder.root), str(SMALL)])

    def kill_often(self, kills: int) -> None:
        """Kill one of two archivers again and again, while runs are added and read; let one finish, and check all."""
        self.add(2 * SMALL)
        archivers = [self.start(), self.start()]
        while self.kills < kills:
            self.add(self.chance.randrange(12, 30))
            self.look(5)
            victim = self.chance.randrange(2)
            try:
                # From before the first file is read to after the last folder is removed.
                archivers[victim].wait(self.chance.uniform(0.0, 1.2) * slowness())
            except subprocess.TimeoutExpired:
                archivers[victim].send_signal(signal.SIGKILL)
                archivers[victim].wait()
                self.kills += 1
            archivers[victim] = self.start()
        for archiver in archivers:
            archiver.wait()
        self.start().wait()
        self.look(len(self.wanted))


def measure_reading(archived: Path, fresh: Path, run: str, times: int) -> dict[str, float]:
    """Return how long verbs take on an archived run, over the time on the same run in a folder; in turn."""
    found = {}
    for verb, more in (("show", ()), ("show --derive", ("--derive",))):
        ratios = []
        for _ in range(times):
            spent = []
            for folder in (archived, fresh):
                words = [sys.executable, "-m", "steelyard.cli.main", "show", run, *more, "--results", str(folder)]
                before = os.times()
                subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
                after = os.times()
                spent.append(
                    after.children_user + after.children_system - before.children_user - before.children_system
                )
            ratios.append(spent[0] / spent[1])
        found[verb] = median(ratios)
    return found


def main() -> None:
    options = arguments(__doc__)
    runs, kills, times = (600, 3, 1) if options.quick else (20_000, 300, 15)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name).resolve()
        maker = WholeRuns(home / "many", home / "original")
        for study in range(4):
            maker.make(f"study{study}", range(study * runs // 4, (study + 1) * runs // 4))
        one = nofollow.names(home / "many" / "runs" / "study1")[7]
        shutil.copytree(home / "many" / "runs" / "study1" / one, home / "fresh" / "runs" / "study1" / one)
        rate, files = measure_rate(home / "many", runs)
        (path,) = ResultFolder(home / "many").find(one)
        same = record_text(derive(path / RAW)).encode() == read_record_text(path)
        read = measure_reading(home / "many", home / "fresh", one, times)
        segment = path.parents[2]
        unpacked = home / "unpacked"
        unpacked.mkdir()
        subprocess.run(["tar", "-xf", segment / "runs.tar", "-C", unpacked], check=True)
        tar = digest(unpacked / "study1" / one) == digest(home / "fresh" / "runs" / "study1" / one)
        crowd = Crowd(WholeRuns(home / "crowd", home / "original2"), seed=26)
        begin_s = time.monotonic()
        crowd.kill_often(kills)
        print(f"{len(crowd.wanted):,} runs, {crowd.kills} kills in {time.monotonic() - begin_s:.0f} s")
    figures = [
        at_most("archive: runs lost or doubled", crowd.missing, "runs", 0),
        at_most("archive: runs changed or unreadable", crowd.changed, "runs", 0),
        at_least("archive: kills while archiving", crowd.kills, "kills", kills),
        at_most("archive: records that differ when derived again", int(not same), "records", 0),
        at_most("archive: runs that tar unpacks differently", int(not tar), "runs", 0),
        at_most("archive: files per run", files, "files", 0.05 if options.quick else MOST_FILES),
    ]
    if not options.quick:
        # The quick form has too few runs to spread the start of the interpreter and of DuckDB over.
        figures.append(of_time(at_least("archive: runs in a second of one processor", rate, "runs/s", LEAST_RATE)))
    for verb, ratio in read.items():
        figures.append(of_time(at_most(f"archive: {verb}, archived over folder", ratio, "times", MOST_TIMES)))
    finish(figures)


if __name__ == "__main__":
    main()
