"""[faults] Every fault ends its run quickly and with the right status; no process is left, and the study can resume.

The faults are real and go through the command line: memory refused by an address-space limit, a killed rank, hangs with
and without the interpreter lock, a full disk, signals at every level, errors in the user's file, a time limit. The
model (models/faulty.py) records the time of its fault. The figure is the longest time from there (for hangs and time
limits: from the limit) to the end of the command, or of the run if others follow. After each fault the study is started
again: runs with a record are not repeated, and the others complete.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from figure import arguments, at_most, finish, of_time
from steelyard.inputs.study import expand, load_study
from steelyard.results.store import ResultFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from steelyard.contracts.record import RunRecord

MODEL = Path(__file__).parents[1] / "lib" / "models" / "faulty.py"
STUDY = """
name = "faults"
repeats = 1
seed = {seed}

[run]
workload = "faulty.py:build"
device = "cpu"
threads = 1
devices = {ranks}
crosscheck_steps = 0
budget = {{ min_steps = {steps}, max_steps = {steps}, min_seconds = 0.0 }}
{more}

[sweep]
batch = {batches}
"""
# A worker with the CUDA build of torch maps about 4.5 GB; the huge batch asks for 16 GiB.
ADDRESS_SPACE = 12 << 30
HUGE = 1 << 16
DISK_BYTES = 8 << 20
FILE_BYTES = 300_000
COMPILE_LIMIT_S = 1.0
LIMIT_S = 5.0
BAR_S = 15.0
LONGEST_S = 120.0
# Offset from the time of day to the clock of the stamps.
BOOT_S = time.monotonic() - time.time()
LIMITED = """
import os, resource, sys
resource.setrlimit(getattr(resource, sys.argv[1]), (int(sys.argv[2]), int(sys.argv[2])))
os.execv(sys.argv[3], sys.argv[3:])
"""
LOADER = 'loader = { place = "host", workers = 1 }'


@dataclass(frozen=True)
class Case:
    """A fault and its expected outcome."""

    name: str
    status: str | None
    """Status of the run with the fault; None: interrupted, without a record."""
    evidence: tuple[str, ...] = ()
    """Texts that the status of the record must contain."""
    fault: str = ""
    rank: int = 0
    ranks: int = 1
    more: str = ""
    batches: tuple[int, ...] = (8,)
    steps: int = 30
    cause: Callable[[Play], float] | None = None
    """Causes the fault from outside and returns its time; None: the model does."""
    limit_s: float = 0.0
    """Time limit after which the delay counts."""
    limited: tuple[str, int] | None = None
    """A resource limit for the command."""
    disk: bool = False
    exit_code: int = 1
    others: int = 0
    """Runs of the first start that complete despite the fault."""


@dataclass
class Play:
    """One case while it runs."""

    case: Case
    folder: Path
    process: subprocess.Popen[str] | None = None
    wrong: list[str] = field(default_factory=list)

    @property
    def results(self) -> Path:
        """The result folder."""
        return self.folder / "disk" / "results"

    def check(self, what: str, found: Any, wanted: Any) -> None:
        """Record a problem if a value is not as expected."""
        if found != wanted:
            self.wrong.append(f"{what}: {found!r}, not {wanted!r}")

    def start(self, *, fault: bool) -> None:
        """The command as a user types it."""
        command = [sys.executable, "-m", "steelyard.cli.main", "study", str(self.folder / "study.toml"), "--json"]
        command += ["--results", str(self.results)]
        if fault and self.case.limited:
            command = [sys.executable, "-c", LIMITED, *map(str, self.case.limited), *command]
        added = {"FAULTS": str(self.folder), "FAULT_DISK": str(self.folder / "disk")}
        # Its own cache, so that compilation never uses the result of an earlier one.
        added["TORCHINDUCTOR_CACHE_DIR"] = str(self.folder / "compiled")
        if fault:
            added |= {"FAULT": self.case.fault, "FAULT_RANK": str(self.case.rank)}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **added},
        )

    def end(self) -> tuple[int, str, str]:
        """Wait for the command and check that no process is left."""
        assert self.process is not None
        try:
            out, err = self.process.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            self.wrong.append("the command did not end")
        left = [words for _, words in self.processes()]
        self.check("processes left", left, [])
        return self.process.returncode, out, err

    def processes(self) -> Iterator[tuple[int, str]]:
        """Return all live processes of the command, found by an inherited environment variable."""
        wanted = f"FAULTS={self.folder}".encode()
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue

    def wait_for(self, what: Callable[[], bool]) -> None:
        """Wait until something appears, or the command ends."""
        assert self.process is not None
        begin_s = time.monotonic()
        while not what():
            if self.process.poll() is not None or time.monotonic() - begin_s > LONGEST_S:
                self.wrong.append("the moment of the fault never came")
                return
            time.sleep(0.005)  # polling: no event announces a file or a process

    def stamp_s(self) -> float:
        """Return the time of the first fault."""
        stamps = [float(path.read_text().split()[0]) for path in self.folder.glob("stamp_*")]
        # If files cannot grow there is no stamp; use the time of the last write.
        files = self.results.glob("runs/*/*/raw/steps-*.bin")
        return min(stamps or [path.stat().st_mtime + BOOT_S for path in files])

    def records(self) -> list[RunRecord]:
        """Return the records in the order of the study."""
        folder, file = ResultFolder(self.results), self.folder / "study.toml"
        runs = expand(load_study(file), self.folder).runs
        return [folder.read(folder.run_path(spec)) for spec in runs if folder.has(spec)]


def terminate_in_steps(play: Play) -> float:
    """Send SIGTERM to the command while one rank is stuck in a step and the others wait for it."""
    play.wait_for(lambda: any(play.folder.glob("stamp_*")))
    return terminate(play)


def terminate_at_start(play: Play) -> float:
    """Send SIGTERM to the command while torchrun is starting."""
    play.wait_for(lambda: any("torch.distributed.run" in words for _, words in play.processes()))
    return terminate(play)


def terminate(play: Play) -> float:
    assert play.process is not None
    now_s = time.monotonic()
    # Twice, as impatient users do: the second must not disturb the shutdown.
    for _ in range(2):
        play.process.send_signal(signal.SIGTERM)
    return now_s


KILLED = Case(
    "one rank of two killed, with loader processes", "killed", ("rank 1 was ended by signal 9",),
    fault="kill", rank=1, ranks=2, more=LOADER,
)  # fmt: skip
TERMINATED = Case("SIGTERM to the command", None, fault="stand", cause=terminate_in_steps, exit_code=130)
MEMORY = Case(
    "out of memory in the middle of a sweep", "out_of_memory", ("allocate", "faulty.py:"),
    batches=(8, HUGE, 16), limited=("RLIMIT_AS", ADDRESS_SPACE), others=2,
)  # fmt: skip
DISK = Case("a disk that fills", "failed", ("disk", "full"), fault="fill", batches=(8, 16), steps=300, disk=True)
LATE = Case("the time limit", "time_limit", fault="stand", more="time_limit_s = 8.0", limit_s=8.0)
HANG = f"hang_limit_s = {LIMIT_S}"
# The last batch of an epoch is smaller, so it is compiled again between steps.
COMPILED = f'compile = "default"\nhang_limit_s = {COMPILE_LIMIT_S}\nepoch_samples = 60\nlast_batch = "keep"'
CASES = [
    MEMORY,
    replace(MEMORY, name="the same with two ranks", ranks=2),
    KILLED,
    replace(KILLED, name="torchrun killed", evidence=("by signal 9",), fault="kill_parent"),
    Case("one rank, killed", "killed", ("by signal 9",), fault="kill", more=LOADER),
    Case(
        "one rank of two hangs", "hung", ("rank_0", "rank_1", "go_wrong"),
        fault="stand", rank=1, ranks=2, more=HANG, limit_s=LIMIT_S,
    ),
    Case("a hang that holds the interpreter", "hung", ("go_wrong",), fault="hold", more=HANG, limit_s=LIMIT_S),
    Case(
        "the same in one rank of two", "hung", ("rank", "go_wrong"),
        fault="hold", rank=1, ranks=2, more=HANG, limit_s=LIMIT_S,
    ),
    Case(
        "compilation beyond the hang limit is no hang", "completed", more=COMPILED, exit_code=0,
    ),
    DISK,
    replace(DISK, name="a disk that fills, two ranks", ranks=2),
    TERMINATED,
    replace(TERMINATED, name="SIGTERM to the command, two ranks", rank=1, ranks=2),
    Case("SIGTERM to the command while torchrun starts", None, ranks=2, cause=terminate_at_start, exit_code=130),
    Case("SIGTERM to the worker", "cancelled", ("SIGTERM", "go_wrong"), fault="terminate", more=LOADER),
    Case("SIGTERM to one rank of two", "cancelled", ("SIGTERM",), fault="terminate", rank=1, ranks=2),
    Case("SIGTERM to torchrun", "cancelled", ("SIGTERM",), fault="terminate_parent", ranks=2),
    Case("one rank of two that leaves", "failed", ("rank 1 ended with exit code 3",), fault="exit", rank=1, ranks=2),
    Case("an import error in the user's file", "failed", ("ModuleNotFoundError", "faulty.py:"), fault="import"),
    Case("an error in the user's build, two ranks", "failed", ("faulty.py:",), fault="build", rank=1, ranks=2),
    LATE,
    replace(LATE, name="the time limit, two ranks", rank=1, ranks=2),
]  # fmt: skip


QUICK = [KILLED, TERMINATED, replace(MEMORY, batches=(8, HUGE), others=1)]
WITHOUT_DISK: dict[str, Any] = {
    "disk": False, "fault": "", "batches": (8,), "steps": 20_000,
    "limited": ("RLIMIT_FSIZE", FILE_BYTES), "evidence": ("File too large",),
}  # fmt: skip


def play(case: Case) -> tuple[list[str], float]:
    """Run one case; return the problems and the time until the end."""
    with tempfile.TemporaryDirectory(prefix="steelyard-faults-") as name:
        disk = Path(name) / "disk"
        disk.mkdir()
        if not case.disk:
            return perform(Play(case, Path(name)))
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "steelyard-faults", str(disk)]
        mounted = subprocess.run(mount, capture_output=True, check=False)
        if mounted.returncode:
            print("mounting is not permitted here: the file size is limited instead")
            return perform(Play(replace(case, **WITHOUT_DISK), Path(name)))
        try:
            return perform(Play(case, Path(name)))
        finally:
            subprocess.run(["umount", disk], check=True)


def perform(stage: Play) -> tuple[list[str], float]:
    case, file = stage.case, stage.folder / "study.toml"
    shutil.copy(MODEL, stage.folder)
    for seed in range(100):
        text = STUDY.format(seed=seed, ranks=case.ranks, steps=case.steps, more=case.more, batches=list(case.batches))
        file.write_text(text, encoding="utf-8")
        runs = expand(load_study(file), stage.folder).runs
        if HUGE not in case.batches or runs[(len(runs) - 1) // 2].batch == HUGE:
            break
    stage.start(fault=True)
    cause_s = case.cause(stage) if case.cause else None
    code, _, err = stage.end()
    end_s = time.monotonic()
    stage.check("exit code", code, case.exit_code)
    records = stage.records()
    faulty = [record for record in records if record.spec.batch == HUGE or HUGE not in case.batches][:1]
    stage.check("status", [record.status.code for record in faulty], [case.status] if case.status else [])
    for record in faulty:
        words = f"{record.status.reason} {record.status.evidence}"
        for wanted in case.evidence:
            stage.check(f"evidence of {wanted!r} in {words}", wanted in words, True)
    others = [record.status.code for record in records if record not in faulty]
    stage.check("other runs", others, ["completed"] * case.others)
    delay_s = 0.0
    if case.status == "completed":
        compile_s = faulty[0].quantities["compile_time"].value if faulty else None
        stage.check("compilation beyond the limit", compile_s is not None and compile_s > 3 * COMPILE_LIMIT_S, True)
    elif case.status == "time_limit" and faulty and faulty[0].launch:
        delay_s = faulty[0].launch.wall_s - case.limit_s
    elif not stage.wrong:
        if case.others:
            end_s = end_of_run(faulty[0])
        delay_s = end_s - (stage.stamp_s() if cause_s is None else cause_s) - case.limit_s
    if case.disk:
        stage.check("an error that says it", "is full" in err and "next: free some space" in err, True)
        (stage.folder / "disk" / "filler").unlink()
    resume(stage, len(runs) - len(records))
    return stage.wrong, delay_s


def end_of_run(record: RunRecord) -> float:
    """Return a time of day on the clock of the stamps."""
    assert record.launch is not None
    return dt.datetime.fromisoformat(record.launch.started_at).timestamp() + record.launch.wall_s + BOOT_S


def resume(stage: Play, missing: int) -> None:
    """Run the command again, without the fault."""
    before = {record.run_id: record for record in stage.records()}
    stage.start(fault=False)
    code, out, err = stage.end()
    after = {record.run_id: record for record in stage.records()}
    good = [record.status.code == "completed" for record in after.values()]
    stage.check("exit code of the second start", code, 0 if all(good) else 1)
    stage.check(f"runs made by the second start ({err.strip()})", json.loads(out or "{}").get("made"), missing)
    stage.check("records kept", {name: after.get(name) for name in before}, before)
    made = [record.status.code for name, record in after.items() if name not in before]
    stage.check("runs of the second start", made, ["completed"] * missing)
    stage.check("scratch left", list((stage.results / ".scratch").iterdir()), [])


def main() -> None:
    options = arguments(__doc__, only={"default": "", "help": "only cases whose name contains this"})
    cases = QUICK if options.quick else [case for case in CASES if options.only in case.name]
    wrong, longest_s = 0, 0.0
    # In parallel only in the quick form: the full form measures delays on an idle machine.
    with ThreadPoolExecutor(3 if options.quick else 1) as pool:
        for case, (faults, delay_s) in zip(cases, pool.map(play, cases), strict=True):
            print(f"{delay_s:6.2f} s  {case.name}: {case.status or 'interrupted'}", flush=True)
            for fault in faults:
                print(f"          WRONG {fault}", flush=True)
            wrong += bool(faults)
            longest_s = max(longest_s, delay_s)
    finish(
        [
            at_most(f"faults: wrong outcomes of {len(cases)}", wrong, "cases", 0),
            of_time(at_most("faults: longest from the fault to the end", longest_s, "s", BAR_S)),
        ]
    )


if __name__ == "__main__":
    main()
