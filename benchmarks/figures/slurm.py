"""[slurm] A study over several nodes of a real Slurm is complete at the end, despite failures.

Forty runs of real PyTorch on 1, 2, 3 and 4 nodes, started by torchrun with gloo. The first submission reaches the
controller only after the job was submitted again, and its copy begins first. Meanwhile the login process is killed at
random and started again, one task is cancelled, a node of another is set down, a third is frozen until its time limit,
the daemon of a node is killed under a worker that lives on, and every run of one batch size exceeds its memory. At the
end each run has one record, with the cause of a failure; nothing ran twice, counted by what Slurm started; no file of
a collected run has changed since; and the queue is empty.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cluster import Cluster, clean_environment, descendants
from figure import Figure, arguments, at_least, at_most, finish
from steelyard.inputs.study import expand, load_study
from steelyard.launch.plan import campaigns
from steelyard.results.store import ResultFolder

if TYPE_CHECKING:
    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec

STUDY = """
name = "real"
seed = 7
repeats = {repeats}

[run]
crosscheck_steps = 0
threads = 1
budget = {{ min_steps = 30, max_steps = {steps}, min_seconds = 0.0, max_seconds = {seconds}, rel_half_width = 1e-9 }}
sim = {{ step_time_s = 0.1, wall_s_per_s = 1.0 }}

[sweep]
workload = {workloads}
devices = {devices}
batch = {batches}
"""
HUGE = 3_000_000
"""A batch of this many samples takes gigabytes."""
FULL = {"repeats": 2, "workloads": '["tiny"]', "devices": [1, 2, 3, 4], "batches": [32, 64, 128, 256, HUGE]}
QUICK = {"repeats": 1, "workloads": '["sim", "tiny"]', "devices": [1, 2], "batches": [64, HUGE]}
MEMORY_MIB = 1800
"""torchrun and a worker need some 1,200 while they start."""
PYTHON = """#!/bin/bash
# Counts what is started, whoever starts it.
echo "$*" >> {log}
exec {python} "$@"
"""
LATE = """#!/bin/bash
# A submission that reaches the controller late: it waits for the file `go`. Trials go through.
if [[ $* == *--parsable* ]]; then
  touch {folder}/asked
  until [[ -e {folder}/go ]]; do sleep 0.1; done
fi
exec {sbatch} "$@"
"""
KILLS, QUICK_KILLS = 200, 2
STARTED = re.compile(r"^-m steelyard\.worker (?:.*/)?runs/([^/]+)/raw", re.MULTILINE)
LONGEST_S = 3600.0


@dataclass
class Story:
    """Faults caused in the study, and the expected status of its runs."""

    cluster: Cluster
    study: Path
    site: Path
    results: ResultFolder
    chance: random.Random
    kills: int = 0
    hit: dict[str, str] = field(default_factory=dict)
    """Expected status of each run with a fault."""
    copies: int = 0
    """Jobs that were submitted twice."""
    digests: dict[Path, str] = field(default_factory=dict)
    """SHA-256 of each file of the collected runs, when it was first seen."""
    orphaned: dict[str, str] = field(default_factory=dict)
    """Nodes whose daemon was killed under a worker, and its run."""
    outlived: set[str] = field(default_factory=set)
    """Runs whose worker outlived their job."""
    went_on: int = 0
    """Workers that went on after their run was collected."""

    def login(self, **variables: str) -> subprocess.Popen[bytes]:
        """Start the command as a user types it, in its own session, which can be killed as a whole."""
        command = [sys.executable, "-m", "steelyard.cli.main", "study", str(self.study), "--site", str(self.site)]
        return subprocess.Popen(
            [*command, "--wait", "--results", str(self.results.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(self.cluster.scratch / "login.err").open("ab"),
            start_new_session=True,
            env={**clean_environment(), **self.cluster.variables, **variables},
        )

    def submit_late(self) -> None:
        """Kill the command while its submission is on the way; let this arrive after another, and begin first."""
        folder = self.cluster.scratch / "late"
        folder.mkdir()
        real, wrapper = shutil.which("sbatch"), folder / "sbatch"
        wrapper.write_text(LATE.format(folder=folder, sbatch=real), encoding="utf-8")
        wrapper.chmod(0o755)
        first = self.login(PATH=f"{folder}:{os.environ['PATH']}")
        self.cluster.wait_for((folder / "asked").exists, "the first submission is on its way")
        first.kill()
        first.wait()
        # Nothing starts until both are there.
        partition = ["scontrol", "update", "PartitionName=debug"]
        self.cluster.run(*partition, "State=DOWN")
        second = self.login()
        try:
            self.cluster.wait_for(lambda: bool(self.jobs()), "the job is submitted again")
            (known,) = self.jobs()[:1]
            # It would notice the late copy, and cancel it before it can begin.
            os.killpg(second.pid, signal.SIGSTOP)
            self.cluster.run("scontrol", "hold", known)
            (folder / "go").touch()
            self.cluster.wait_for(lambda: len(self.jobs()) > 1, "the first submission has arrived")
            self.cluster.run(*partition, "State=UP")
            self.cluster.wait_for(lambda: self.begun(except_for=known), "the late copy has begun")
            self.copies = 1
            self.cluster.run("scontrol", "release", known)
        finally:
            os.killpg(second.pid, signal.SIGKILL)
            second.wait()

    def jobs(self) -> list[str]:
        """Return the ids of the jobs of the first array, in the order of their submission."""
        lines = self.cluster.run("squeue", "--noheader", "--array-unique", "--format=%F %j").splitlines()
        names = {job.name for campaign in campaigns(self.results, "real") for job in campaign.plan.jobs[:1]}
        return sorted({line.split()[0] for line in lines if line.split()[1] in names}, key=int)

    def begun(self, *, except_for: str) -> bool:
        """Return whether another job than this has the lease of a run."""
        leases = self.results.root.glob("campaigns/*/*/runs/*/raw/lease")
        return any((words := lease.read_text().split()) and words[1:] != [except_for] for lease in leases)

    def kill_at_random(self, times: int, longest_s: float, harms: list[str]) -> None:
        """Start the command and kill it, at any time from before its first file to the middle of collecting."""
        for number in range(2 * times):
            if self.kills == times:
                break
            if number % 10 == 9 and harms and self.harm(harms[0]):
                harms.pop(0)
            self.mend()
            self.watch()
            process = self.login()
            try:
                process.wait(self.chance.uniform(0.0, longest_s))
            except subprocess.TimeoutExpired:
                self.kills += 1
            # Kill it alone, or together with the Slurm command that it has just started.
            if number % 2:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
            process.wait()

    # -- faults

    def running(self) -> dict[str, str]:
        """Return the started runs with their Slurm task ids."""
        found = {}
        tasks = self.cluster.run("squeue", "--noheader", "--states=running", "--format=%F_%K").split()
        for campaign in campaigns(self.results, "real"):
            for job in campaign.plan.jobs:
                known = (campaign.job_id(job) or "").partition(";")[0]
                for task in (task for task in tasks if known and task.startswith(f"{known}_")):
                    run = job.tasks[int(task.partition("_")[2])][0]
                    if (campaign.raw(run) / "lease").exists() and run not in self.hit:
                        found[run] = task
        return found

    def harm(self, kind: str) -> bool:
        """Cause a fault in one of the running runs; False if none fits."""
        huge = {run for run, spec in self.specs().items() if spec.batch == HUGE}
        victims = sorted((run, task) for run, task in self.running().items() if run not in huge)
        if kind == "orphan":
            return self.orphan([run for run, _ in victims])
        if not victims:
            return False
        run, task = self.chance.choice(victims)
        # Stop it first, so that it cannot complete or report anything meanwhile.
        if not self.freeze(run):
            return False
        if kind == "cancelled":
            self.cluster.run("scancel", task)
        elif kind == "node_failure":
            self.cluster.set_node(self.first_node(task), "down", "its power supply")
        else:
            self.cluster.end_now(task)
        self.hit[run] = kind
        return True

    def orphan(self, runs: list[str]) -> bool:
        """Kill the daemon of the node of a run on one node; its worker lives on. False if none fits."""
        specs, tasks = self.specs(), self.running()
        for run in runs:
            # Stopped until its run is collected, so that it cannot complete before.
            if run in tasks and specs[run].devices == 1 and self.freeze(run):
                node = self.first_node(tasks[run])
                os.kill(int((self.cluster.scratch / f"slurmd-{node}.pid").read_text()), signal.SIGKILL)
                self.hit[run] = "node_failure"
                self.orphaned[node] = run
                self.outlived.add(run)
                return True
        return False

    def let_go_on(self) -> None:
        """Let workers go on whose run is collected; start the daemon of their node again once they have ended."""
        for node, run in [*self.orphaned.items()]:
            if (self.results.root / "runs" / "real" / run).is_dir():
                processes = workers(self.cluster, run)
                _send(signal.SIGCONT, processes)
                self.went_on += bool(processes)
                if not processes:
                    self.cluster.start("slurmd", "-D", "-N", node)
                    del self.orphaned[node]

    def watch(self) -> None:
        """Note the digests of the files of runs that were collected since the last look."""
        for file in self.results.root.glob("runs/*/*/**/*"):
            if file.is_file() and file not in self.digests:
                self.digests[file] = hashlib.sha256(file.read_bytes()).hexdigest()

    def changed(self) -> list[Path]:
        """Return the files of collected runs that are no longer what they were."""
        return [
            file
            for file, digest in self.digests.items()
            if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != digest
        ]

    def specs(self) -> dict[str, RunSpec]:
        """The study's runs."""
        return {spec.run_id: spec for spec in expand(load_study(self.study)).runs}

    def first_node(self, task: str) -> str:
        """Return the first node of a task."""
        names = self.cluster.run("squeue", "--noheader", f"--jobs={task}", "--format=%N").strip()
        return self.cluster.run("scontrol", "show", "hostnames", names).split()[0]

    def freeze(self, run: str) -> int:
        """Stop its processes, like a hanging file system; return how many they are, 0 if it has told its end."""
        processes = workers(self.cluster, run)
        _send(signal.SIGSTOP, processes)
        self.cluster.wait_for(lambda: not any(map(_runs, processes)), "its processes are stopped")
        raw = (campaign.raw(run) for campaign in campaigns(self.results, "real"))
        if any(b'"kind": "status"' in log.read_bytes() for folder in raw for log in folder.glob("events-*.jsonl")):
            _send(signal.SIGCONT, processes)
            return 0
        return len(processes)

    def go_on(self, harms: list[str]) -> None:
        """Let the login process finish, and cause faults when possible."""
        login, end_s = self.login(), time.monotonic() + LONGEST_S
        try:
            while login.poll() is None and time.monotonic() < end_s:
                if harms and self.harm(harms[0]):
                    harms.pop(0)
                self.mend()
                self.watch()
                time.sleep(0.2)  # between two looks
        finally:
            login.kill()
            login.wait()

    def mend(self) -> None:
        """Bring nodes back that were down."""
        self.let_go_on()
        for name in self.cluster.run("sinfo", "--noheader", "--states=down", "--Node", "--format=%N").split():
            self.cluster.run("scontrol", "update", f"NodeName={name}", "State=resume", check=False)


def workers(cluster: Cluster, run: str) -> list[int]:
    """Processes below the cluster that belong to a run."""
    found = []
    for process in descendants(cluster.guard_pid):
        try:
            words = Path(f"/proc/{process}/cmdline").read_bytes()
        except OSError:
            continue
        if b"steelyard.worker" in words and run.encode() in words:
            found.append(process)
    return found


def _send(order: signal.Signals, processes: list[int]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, order)


def _runs(process: int) -> bool:
    """Return whether a process is neither stopped nor at its end."""
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(") ")[2][0]
    except OSError:
        return False
    return state not in "TtZX"


def tell(story: Story, kinds: int, records: list[RunRecord], starts: Counter[str]) -> list[Figure]:
    """Compute the figures from the records and from what Slurm started."""
    codes, wanted, queue = Counter(r.status.code for r in records), story.specs(), story.cluster.queue()
    print(f"{len(wanted)} runs, {story.kills} kills of the login process, ended as: {dict(codes)}")
    for run, kind in story.hit.items():
        status = next(record.status for record in records if record.run_id == run)
        print(f"  {run} was to be {kind}: {status.code}: {status.reason[:100]}")
    by_run = {record.run_id: record for record in records}
    huge = [record for record in records if record.spec.batch == HUGE and record.spec.workload != "sim"]
    expected = (
        {record.run_id: "completed" for record in records} | {r.run_id: "out_of_memory" for r in huge} | story.hit
    )
    wrong = [run for run, code in expected.items() if by_run[run].status.code != code]
    for run in wrong:
        print(f"  {run}: {by_run[run].status.code}, not {expected[run]}: {by_run[run].status.reason[:200]}")
    failed = [record for record in records if record.status.code != "completed"]
    mute = [r.run_id for r in failed if not r.status.reason or not r.status.evidence]
    # In a run without a fault every rank started once; in others none started twice.
    twice = [r.run_id for r in records if starts[r.run_id] > r.spec.devices]
    unstarted = [r.run_id for r in records if r.status.code == "completed" and starts[r.run_id] != processes(r)]
    return [
        at_least("slurm: kills of the login process", story.kills, "kills", QUICK_KILLS if len(wanted) < 40 else KILLS),
        at_least("slurm: jobs submitted twice", story.copies, "jobs", 1),
        at_least("slurm: looks at workers that outlived their run", story.went_on, "looks", len(story.outlived)),
        at_most("slurm: files of collected runs that changed", len(story.changed()), "files", 0),
        Figure(
            "slurm: runs without a record", len(set(wanted) ^ set(by_run)), "runs", "= 0", set(wanted) == set(by_run)
        ),
        at_most("slurm: runs with another end than they were given", len(wrong), "runs", 0),
        at_most("slurm: failures without cause and evidence", len(mute), "runs", 0),
        at_most("slurm: runs with a rank started twice", len(twice) + len(unstarted), "runs", 0),
        at_most("slurm: left in the queue", len(queue), "tasks", 0),
        at_least("slurm: kinds of failure seen", len(codes.keys() - {"completed"}), "kinds", kinds),
    ]


def processes(record: RunRecord) -> int:
    """A simulated run is one process, whatever its ranks."""
    return 1 if record.spec.workload == "sim" else record.spec.devices


def main() -> None:
    options = arguments(__doc__)
    shape = QUICK if options.quick else FULL
    harms = ["cancelled"] if options.quick else ["cancelled", "node_failure", "time_limit", "orphan"]
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        study, log, python = scratch / "study.toml", scratch / "starts", scratch / "python"
        steps, seconds = (50, 6.0) if options.quick else (200, 20.0)
        study.write_text(STUDY.format(**shape, steps=steps, seconds=seconds), encoding="utf-8")
        python.write_text(PYTHON.format(log=log, python=sys.executable), encoding="utf-8")
        python.chmod(0o755)
        with Cluster(scratch / "slurm") as cluster:
            # A node goes down under one run alone.
            pool = {"memory_per_node_mib": MEMORY_MIB, "exclusive": True}
            site = cluster.site(python=str(python), pools={"cpu": pool}, limits={"setup_s": 120})
            story = Story(cluster, study, site, ResultFolder(scratch / "results"), random.Random(3))
            story.submit_late()
            left = [*harms]
            story.kill_at_random(QUICK_KILLS if options.quick else KILLS, 2.0 if options.quick else 3.0, left)
            story.go_on(left)
            records = list(story.results.records())
            starts = Counter(STARTED.findall(log.read_text(encoding="utf-8")))
            # And out of memory.
            figures = tell(story, len({*harms} - {"orphan"}) + 1, records, starts)
            if not all(figure.holds for figure in figures):
                print((scratch / "slurm" / "login.err").read_text(encoding="utf-8")[-2000:])
    finish(figures)


if __name__ == "__main__":
    main()
