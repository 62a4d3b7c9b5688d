"""Run a study on this machine, one run after the other. Starting it again continues it.

A failed run is recorded and the study goes on; only the end of this process stops it.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, get_args

from steelyard import nofollow
from steelyard.contracts import observe
from steelyard.contracts.base import to_json_object
from steelyard.errors import DISK_FULL, InputError, Problem, SteelyardError
from steelyard.launch.redacted import redact_log, without_secrets
from steelyard.results.store import PLANS, RAW, ResultFolder, write_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec
    from steelyard.inputs.study import Expansion


class Launcher(Protocol):
    """What a study needs from a launcher."""

    def run(self, spec: RunSpec, raw: Path, tick: Callable[[], None]) -> observe.Launch:
        """Make one run; its observations are in `raw` on return."""


class Watcher(Protocol):
    """Receives the progress of a study."""

    def begin(self, spec: RunSpec, done: int, total: int) -> None:
        """Called when a run starts."""

    def tick(self, raw: Path) -> None:
        """Called now and then while a run is going on."""

    def end(self, record: RunRecord, done: int, total: int) -> None:
        """Called when a run has its record."""


@dataclass(frozen=True)
class Outcome:
    """What a study on this machine did."""

    made: tuple[RunRecord, ...]
    skipped: int
    """Runs that already existed."""


def run_all(
    folder: ResultFolder,
    expansion: Expansion,
    launcher: Launcher,
    watcher: Watcher,
    *,
    keeps_refused: bool = True,
    wanted: Callable[[RunSpec], bool] = lambda _: True,
) -> Outcome:
    """Make every run of the study that the folder does not have, in the order of the study.

    `keeps_refused`: a run that the worker refuses before its first step is a result, as of one of several
    configurations; else an InputError. `wanted`: whether a run is made; asked for all at first, and again before each.
    """
    made: list[RunRecord] = []
    runs = [spec for spec in expansion.runs if wanted(spec)]
    total = len(runs)
    try:
        folder.prepare()
        refuse_other_seed(folder, expansion)
        write_study_plan(folder, expansion)
        for number, spec in enumerate(runs):
            # Checked each time: another process may be running the same study.
            if folder.has(spec) or not wanted(spec):
                continue
            watcher.begin(spec, number, total)
            made.append(make_run(folder, spec, launcher, watcher.tick, keeps_refused=keeps_refused))
            watcher.end(made[-1], number + 1, total)
        # Again at the end: a worker of a killed launcher may still have been writing at the first sweep.
        folder.sweep_scratch()
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise SteelyardError(
            f"the disk of {folder.path} is full: {error.strerror}",
            next_step="free some space, then run the same command again; finished runs are kept",
        ) from None
    return Outcome(tuple(made), total - len(made))


def make_run(
    folder: ResultFolder,
    spec: RunSpec,
    launcher: Launcher,
    tick: Callable[[Path], None],
    *,
    keeps_refused: bool = True,
) -> RunRecord:
    """Make one run and return its record, or the record that another process committed first."""
    scratch = folder.open_scratch(spec)
    raw = scratch / RAW
    try:
        launch = launcher.run(spec, raw, lambda: tick(raw))
        for path in [raw / observe.RESERVE_FILE, raw / observe.COMPILING_FILE, *raw.glob(f"{observe.PROGRESS_FILE}*")]:
            nofollow.remove(path)
        write_json(raw / observe.LAUNCH_FILE, without_secrets(launch))
        redact_log(raw, scratch)
        # Imported after the run: it imports numpy, which would delay the first step.
        from steelyard.derive.record import derive

        record = derive(raw)
        if record.status.code == "refused" and not record.steps_seen and not keeps_refused:
            what, _, step = record.status.reason.partition("; next: ")
            raise InputError(what, next_step=step or None)
        if not folder.commit(scratch, record):
            record = folder.read(folder.run_path(spec))
    finally:
        # Nothing is left here after a commit; after an interrupt the run counts as not made.
        nofollow.remove_tree(scratch)
    return record


def trial(spec: RunSpec, launcher: Launcher) -> RunRecord:
    """Make one run, discard its files and return its record."""
    with tempfile.TemporaryDirectory(prefix="steelyard-trial-") as scratch:
        folder = ResultFolder(Path(scratch))
        folder.prepare()
        return make_run(folder, spec, launcher, lambda _raw: None)


def set_aside(folder: ResultFolder, expansion: Expansion, codes: str) -> int:
    """Move runs of the study that ended with one of these statuses out of the results; return how many.

    They are then missing from the study and can be made again. `codes`: statuses separated by commas.
    """
    known = [code for code in get_args(observe.StatusCode) if code != "completed"]
    wanted = {code.strip() for code in codes.split(",")}
    if unknown := sorted(wanted.difference(known)):
        problem = Problem("--again", f"{', '.join(unknown)}", f"one or more of {', '.join(known)}")
        raise InputError("--again: not a status of a failed run", problems=(problem,))
    searched = (spec for group in expansion.searches for spec in group.runs)
    count = 0
    for spec in (*expansion.runs, *searched):
        if folder.has(spec) and folder.read(folder.run_path(spec)).status.code in wanted:
            folder.set_aside(folder.run_path(spec), spec.study)
            count += 1
    return count


def refuse_other_seed(folder: ResultFolder, expansion: Expansion) -> None:
    """Raise InputError if the folder has runs of this study with another seed: they would look like one study."""
    there = next((spec for spec in expansion.runs if folder.has(spec)), None)
    if there is None:
        return
    record = folder.read(folder.run_path(there))
    if record.spec.seed != there.seed:
        raise InputError(
            f"{folder.path} has runs of study {there.study} with another seed",
            next_step="give the study another name, or use the old seed",
        )


def write_study_plan(folder: ResultFolder, expansion: Expansion) -> None:
    """Write the study and the order of its runs to a file whose name depends on both; the newest is in force."""
    plan = {"study": to_json_object(expansion.study), "order": [spec.run_id for spec in expansion.runs]}
    digest = hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:12]
    path = folder.root / PLANS / f"{expansion.study.name}-{digest}.json"
    nofollow.make_folder(path.parent, exist_ok=True)
    write_json(path, plan)
