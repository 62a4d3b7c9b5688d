"""`python -m steelyard.worker RAW...`: run the spec in each directory, one after the other."""

from steelyard.worker.measure import clock  # noqa: F401 -- first: time counts from here

# isort: split
import argparse
import os
import re
import socket
import sys
import threading
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path

from steelyard.contracts import observe, threads
from steelyard.contracts.spec import RunSpec
from steelyard.worker.engine.run import report_termination, run_directory
from steelyard.worker.wrap.program import Supervisor

ORPHANED = 75  # EX_TEMPFAIL: the run may be repeated
# Also without convergence: on another exit code torchrun ends the other ranks before they have written everything.
DONE = ("completed", "not_converged")


def _wait_for_launcher(handle: int, runs: "_Runs") -> None:
    """End the worker when the launcher dies, which closes the other end; meanwhile take its orders for a program."""
    while orders := os.read(handle, 4096):
        if runs.supervisor is not None:
            runs.supervisor.obey(orders)
    if runs.supervisor is not None:
        runs.supervisor.kill()
    os._exit(ORPHANED)


def _take_ranks_from_slurm() -> None:
    """Set RANK and the like from Slurm's variables if srun started one process per rank and no one else set them."""
    if "RANK" in os.environ:
        return
    try:
        node = int(os.environ["SLURM_NODEID"])
        world = int(os.environ.get("SLURM_STEP_NUM_TASKS") or os.environ["SLURM_NTASKS"])
        taken = {"RANK": os.environ["SLURM_PROCID"], "LOCAL_RANK": os.environ["SLURM_LOCALID"]}
        # Slurm's short form: 4(x2),3 is 4, 4 and 3 tasks.
        text, tasks = os.environ["SLURM_STEP_TASKS_PER_NODE"], []
        for entry in text.split(","):
            match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", entry)
            if match is None:
                raise ValueError(f'SLURM_STEP_TASKS_PER_NODE is "{text[:200]}"')
            tasks += [int(match[1])] * int(match[2] or 1)
        local_world = tasks[node]
    except (KeyError, ValueError, IndexError) as error:
        sys.exit(f"no rank in Slurm's variables ({error}): start with srun, or leave out --ranks-from")
    os.environ.update(taken, WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(local_world))


def _take_lease(raw: Path) -> bool:
    """Whether this process may start the run: nobody else has, and from now on nobody will."""
    try:
        handle = os.open(raw / observe.LEASE_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except (FileExistsError, FileNotFoundError):
        sys.stdout.write(f"{raw.parent.name}: already started, or its folder is missing\n")
        return False
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        job = os.environ.get("SLURM_ARRAY_JOB_ID") or os.environ.get("SLURM_JOB_ID") or "by-hand"
        file.write(f"{socket.gethostname()} {job}\n")
    return True


class _Runs:
    """Runs made one after the other in this process."""

    def __init__(self, *, lease: bool, done: Path | None, show: bool = False, own_input: bool = False) -> None:
        self._lease = lease
        self._done = done
        self._show, self._own_input = show, own_input
        # What we start may start workers of its own.
        self._sha256 = os.environ.pop(observe.SPEC_VARIABLE, "")
        self.current: Path | None = None
        """The run in progress."""
        self.supervisor: Supervisor | None = None
        """Who runs a program."""

    def make(self, raw: Path) -> int:
        """Make the run; return 0 if it was measured or somebody else has started it, or a program's own exit code."""
        if self._lease and not _take_lease(raw):
            return 0
        self.current = raw
        began_s = time.time()
        status = self._status(raw)
        code = int((status.evidence or {}).get("exit_code", 0)) or (0 if status.code in DONE else 1)
        self.current = None
        if self._done is not None:
            text = f"{raw.parent.name} {code} {began_s:.3f} {time.time():.3f}\n"
            with self._done.open("ab", buffering=0) as file:
                file.write(text.encode())
        return code

    def _supervise(self, spec: RunSpec, raw: Path) -> Supervisor:
        self.supervisor = Supervisor(spec, raw, show=self._show, own_input=self._own_input)
        return self.supervisor

    def _status(self, raw: Path) -> observe.Status:
        if self._done is None:
            return run_directory(raw, self._supervise, sha256=self._sha256)
        # Each run has its own log, as if it had its own process.
        kept = [os.dup(number) for number in (1, 2)]
        log = os.open(raw / observe.WORKER_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            for number in (1, 2):
                os.dup2(log, number)
            return run_directory(raw, self._supervise, sha256=self._sha256)
        finally:
            _flush()
            for number, old in zip((1, 2), kept, strict=True):
                os.dup2(old, number)
            for handle in (log, *kept):
                os.close(handle)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()


def main() -> int:
    """Exit with 0 if every run completed; with --done, if every run has its line in that file."""
    parser = argparse.ArgumentParser(prog="python -m steelyard.worker")
    parser.add_argument("raw", nargs="*", type=Path, help="directory with spec.json; observations are written there")
    parser.add_argument("--task", nargs=2, metavar=("FILE", "NUMBER"), help="make the runs of this task of a campaign")
    parser.add_argument("--lifeline", action="store_true", help="exit when standard input closes")
    parser.add_argument(
        "--lifeline-from", type=int, metavar="FD", help="exit when this file closes; a program has ours"
    )
    parser.add_argument("--show", action="store_true", help="pass the output of a program on")
    parser.add_argument("--lease", action="store_true", help="skip runs that were already started; one process per run")
    parser.add_argument("--done", type=Path, metavar="FILE", help="append RUN_ID EXIT BEGAN ENDED after each run")
    parser.add_argument("--ranks-from", choices=["slurm"], help="where to read the rank from if torchrun is not used")
    arguments = parser.parse_args()
    raws = list(arguments.raw)
    if arguments.task is not None:
        # The file is CAMPAIGN/jobs/JOB/tasks, with a line of run ids for each task.
        file, number = Path(arguments.task[0]), int(arguments.task[1])
        with file.open(encoding="utf-8") as lines:
            run_ids = next(islice(lines, number, None), None)
        if run_ids is None:
            sys.exit(f"{file} has no task {number}")
        raws += [file.parent.parent.parent / "runs" / run_id / "raw" for run_id in run_ids.split()]
    if not raws:
        parser.error("no run given: name a directory or use --task")
    line = 0 if arguments.lifeline else arguments.lifeline_from
    own_input = arguments.lifeline_from is not None
    runs = _Runs(lease=arguments.lease, done=arguments.done, show=arguments.show, own_input=own_input)
    if own_input:
        # No program must inherit it.
        os.set_inheritable(arguments.lifeline_from, False)
    if line is not None:
        threading.Thread(target=_wait_for_launcher, args=(line, runs), daemon=True, name="lifeline").start()
    if arguments.ranks_from is not None:
        _take_ranks_from_slurm()
    report_termination(lambda: runs.current)
    threads.settle()
    codes = [runs.make(raw) for raw in raws]
    return 0 if arguments.done is not None else next((code for code in codes if code), 0)


if __name__ == "__main__":
    code = main()
    # Everything is written. Libraries or threads of the user could keep the interpreter from ending.
    _flush()
    os._exit(code)
