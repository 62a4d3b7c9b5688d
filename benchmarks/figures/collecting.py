"""[collecting] What it costs to collect runs without following links.

The runs of a campaign are collected one after the other, in turn by this code and by the same code with functions that
open, list, move and remove files by their paths, as any program does. Both take turns in one process, run by run, so
that what else the machine does meets both. The figure is a ratio of processor times, with its spread, from the launch
of one run to that of the next. What follows for all runs together, the flush to disk and the move, is the same and not
in it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from figure import arguments, at_most, finish, of_time
from steelyard import nofollow
from steelyard.contracts.observe import Scheduled
from steelyard.derive import record as records
from steelyard.inputs.site import Place, Site
from steelyard.inputs.study import Study, expand
from steelyard.inputs.validate import parse_object
from steelyard.launch.collect import collect_task
from steelyard.launch.plan import make_campaign, runs_left
from steelyard.launch.slurm.scheduler import Slurm
from steelyard.results.store import ResultFolder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from steelyard.contracts.record import RunRecord
    from steelyard.launch.campaign import Campaign


@contextmanager
def held(_path: Path) -> Iterator[None]:
    yield


def open_file(path: Path, mode: str = "r") -> IO[Any]:
    return path.open({"r": "rb", "x": "xb", "a": "ab"}[mode], buffering=0 if mode == "a" else -1)


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []


def flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def make_folder(path: Path, mode: int = 0o777, *, exist_ok: bool = False) -> None:
    path.mkdir(mode, exist_ok=exist_ok)


BY_PATH: dict[str, Any] = {
    "held": held, "open_file": open_file, "stat": os.stat, "is_file": os.path.isfile, "is_folder": os.path.isdir,
    "names": names, "flush": flush, "make_folder": make_folder, "move": os.rename, "give_name": os.link,
    "remove": lambda path: path.unlink(missing_ok=True),
    "remove_tree": lambda path: shutil.rmtree(path, ignore_errors=True),
}  # fmt: skip
OURS = {name: getattr(nofollow, name) for name in BY_PATH}
LIMIT_PERCENT = 10
FIRST_PAIRS = 5


def make(results: Path, runs: int) -> Campaign:
    """Plan a campaign of simulated runs, and make them by its own scripts."""
    pool = {"architecture": "x86_64", "devices_per_node": 2, "device": "cpu"}
    site = parse_object(Site, {"name": "site", "scheduler": "slurm", "pools": {"cpu": pool}}, "a site")
    budget = {"min_steps": 50, "max_steps": 50, "min_seconds": 0.0}
    settings = {"workload": "sim", "budget": budget, "crosscheck_steps": 0}
    study = parse_object(Study, {"name": "many", "run": settings, "repeats": runs}, "a study")
    campaign = make_campaign(ResultFolder(results), expand(study), Place(site, "cpu"), Slurm())
    assert campaign is not None
    for job in campaign.plan.jobs:
        for task in range(len(job.tasks)):
            script = campaign.job_folder(job) / "job.sh"
            subprocess.run(
                ["bash", script, str(task)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
    return campaign


class Turns:
    """Changes the way at the start of each run, and adds up the processor time from one start to the next."""

    def __init__(self) -> None:
        self._derive = records.derive
        self.times_s: list[float] = []
        self._begin_s: float | None = None

    def derive(self, raw: Path) -> RunRecord:
        """Derive the record of a run, which is the first thing in collecting it."""
        self.end()
        # Pairs begin with the one and the other way in turn.
        number = len(self.times_s)
        way = (BY_PATH, OURS)[(number + number // 2) % 2]
        for name, function in way.items():
            setattr(nofollow, name, function)
        self._begin_s = time.process_time()
        return self._derive(raw)

    def end(self) -> None:
        """End a run."""
        if self._begin_s is not None:
            self.times_s.append(time.process_time() - self._begin_s)
            self._begin_s = None

    def pairs(self) -> NDArray[np.float64]:
        """Return the times by path and by ours, pair by pair."""
        count = len(self.times_s) // 2
        pairs = np.array(self.times_s[: 2 * count]).reshape(count, 2)
        pairs[1::2] = pairs[1::2, ::-1]
        return pairs


def main() -> None:
    options = arguments(__doc__)
    runs = 300 if options.quick else 10_000
    with tempfile.TemporaryDirectory() as name:
        folder = ResultFolder(Path(name).resolve() / "results")
        begin_s = time.monotonic()
        campaign = make(folder.path, runs)
        print(f"{runs} runs made in {time.monotonic() - begin_s:.0f} s")
        said = Scheduled(scheduler="slurm", job="1_0", state="COMPLETED")
        turns = Turns()
        with mock.patch.object(records, "derive", turns.derive):
            for job in campaign.plan.jobs:
                for task in range(len(job.tasks)):
                    haul = collect_task(folder, campaign, job, task, said, runs_left(campaign.path))
                    assert not haul.problems, haul.problems[:3]
                    turns.end()
    assert len(turns.times_s) == runs
    # The first runs import libraries, which takes as long as dozens of runs.
    pairs = turns.pairs()[FIRST_PAIRS:]
    # What interrupts a run only adds to its time, so the half of the pairs with the most is left out.
    calm = pairs[np.argsort(pairs.sum(axis=1))[: len(pairs) // 2]]
    plain_s, ours_s = calm.mean(axis=0)
    ratio = float(ours_s / plain_s)
    spread = float(np.std(calm[:, 1] - ratio * calm[:, 0], ddof=1) / len(calm) ** 0.5 / plain_s)
    more = 100 * (ratio - 1)
    print(f"  by path {1e3 * plain_s:.2f} ms per run, ours {1e3 * ours_s:.2f}")
    print(f"  {more:.1f} % more processor time, standard error {100 * spread:.1f}")
    # A quick run fails only if the limit is passed beyond its noise.
    slack = 200 * spread if options.quick else 0.0
    name = f"collecting: {runs} runs, more processor time than by path"
    finish([of_time(at_most(name, more, "%", LIMIT_PERCENT + slack))])


if __name__ == "__main__":
    main()
