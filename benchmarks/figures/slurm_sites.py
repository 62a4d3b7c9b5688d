"""[slurm_sites] What real sites do to a campaign, on a real Slurm: the right word on the screen and in the record.

Power-saving nodes, limits of a QOS while submitting and while waiting, suspension, forced requeue, a login node without
sacct, held jobs, a partition that is down, a node with another time, a folder that vanishes, and a path that is not
UTF-8. Each case is made with Slurm's own commands, and the commands are those that a user types. The clock of a node is
shifted for the task's own `date`; everything else is as it is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster import Cluster, clean_environment
from figure import arguments, at_least, at_most, finish
from steelyard.launch.follow import LONGEST_PAUSE_S
from steelyard.launch.plan import campaigns
from steelyard.results.store import ResultFolder

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.record import RunRecord
    from steelyard.launch.campaign import Campaign

STUDY = """
name = "s"
repeats = {repeats}
[run]
workload = "sim"
crosscheck_steps = 0
time_limit_s = 200.0
budget = {{ min_steps = {steps}, max_steps = {steps}, min_seconds = 0.0, max_seconds = 1e6 }}
sim = {{ step_time_s = 0.01, wall_s_per_s = 1.0 }}
"""
SHORT, LONG = 20, 100_000
COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "sacctmgr", "sinfo")
POWER = {"SuspendProgram": "/bin/true", "ResumeProgram": "/bin/true", "SuspendTime": "36000", "SuspendTimeout": "1"}
SUSPENDED_S = 2.5
"""How long the job is suspended; accounting counts whole seconds."""
LIMITED = {"AccountingStorageEnforce": "associations,limits,qos"}


@dataclass
class Case:
    """A study of one case, in its own folder."""

    cluster: Cluster
    home: Path
    seen: str = ""
    """What was printed."""

    def study(self, steps: int = SHORT, repeats: int = 1, **site: Any) -> list[str]:
        """Write the files of a study, and return the words that submit it."""
        self.home.mkdir(exist_ok=True)
        (self.home / "study.toml").write_text(STUDY.format(steps=steps, repeats=repeats), encoding="utf-8")
        shutil.copy(self.cluster.site(**site), self.home / "site.toml")
        return ["study", "study.toml", "--site", "site.toml"]

    def environment(self, variables: dict[str, str]) -> dict[str, str]:
        """Return the environment of a user of this cluster."""
        return {**clean_environment(), **self.cluster.variables, **variables}

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command of steelyard as a user types it, from the folder of the case."""
        done = subprocess.run(
            [sys.executable, "-m", "steelyard.cli.main", *words],
            cwd=self.home,
            env=self.environment(variables),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        self.seen = " ".join((done.stdout + done.stderr).split())
        return done

    def says(self, *words: str) -> bool:
        """Return whether the last command printed all of these words."""
        return all(word in self.seen for word in words)

    @property
    def campaign(self) -> Campaign:
        """The campaign of the study."""
        return campaigns(ResultFolder(self.home / "steelyard-results"), "s")[-1]

    @property
    def job(self) -> str:
        """Slurm's id of the first job."""
        return (self.campaign.job_id(self.campaign.plan.jobs[0]) or "").partition(";")[0]

    def records(self) -> list[RunRecord]:
        """Return the collected records."""
        return list(ResultFolder(self.home / "steelyard-results").records("s"))

    def begin(self) -> None:
        """Wait until the first run has written its first steps."""
        raw = self.campaign.raw(self.campaign.plan.jobs[0].tasks[0][0])
        self.cluster.wait_for(lambda: bool([*raw.glob("events-*")]), "the run has begun")

    def end(self) -> None:
        """Cancel what is left."""
        self.cluster.run("scancel", "--user=root")
        self.cluster.wait_until_empty()


# -- cases. Each returns whether the right words were seen.


def held(case: Case) -> bool:
    """Somebody holds the job."""
    words = case.study()
    case.cluster.run("scontrol", "update", "PartitionName=debug", "State=DOWN")
    try:
        case.run(*words)
        case.cluster.run("scontrol", "hold", case.job)
    finally:
        case.cluster.run("scontrol", "update", "PartitionName=debug", "State=UP")
    case.run("status", "s")
    right = case.says("JobHeld", "will not start by itself")
    case.cluster.run("scontrol", "release", case.job)
    return right and case.run("status", "s", "--wait").returncode == 0


def partition_down(case: Case) -> bool:
    """The partition is down for maintenance: jobs are queued, and start afterwards."""
    words = case.study()
    case.cluster.run("scontrol", "update", "PartitionName=debug", "State=DOWN")
    try:
        right = case.run("site", "check", "site.toml").returncode == 0 and case.says("debug is down: jobs are queued")
        right = right and case.run(*words).returncode == 0
        case.run("status", "s")
        right = right and case.says("PartitionDown")
    finally:
        case.cluster.run("scontrol", "update", "PartitionName=debug", "State=UP")
    return right and case.run("status", "s", "--wait").returncode == 0 and case.says("all 1 runs collected")


def no_sacct(case: Case) -> bool:
    """The login node has no sacct: squeue has to do."""
    tools = case.home.parent / "tools"
    tools.mkdir(exist_ok=True)
    for name in COMMANDS:
        if not (tools / name).exists():
            (tools / name).symlink_to(shutil.which(name) or name)
    words = case.study()
    case.run(*words, PATH=str(tools))
    return case.run("status", "s", "--wait", PATH=str(tools)).returncode == 0 and case.says("all 1 runs collected")


def vanished(case: Case) -> bool:
    """The folder of a run is gone before its job starts."""
    words = case.study(repeats=2)
    case.cluster.run("scontrol", "update", "PartitionName=debug", "State=DOWN")
    try:
        case.run(*words)
        shutil.rmtree(case.campaign.path / "runs" / case.campaign.plan.jobs[0].tasks[0][0])
    finally:
        case.cluster.run("scontrol", "update", "PartitionName=debug", "State=UP")
    code = case.run("status", "s", "--wait").returncode
    return code == 1 and case.says("1 of 2 runs collected, 1 without a result because their folders are gone")


def not_text(case: Case) -> bool:
    """The path of the results is not UTF-8."""
    words = case.study()
    before = case.cluster.queue()
    code = case.run(*words, "--results", os.fsdecode(b"caf\xe9")).returncode
    return code != 0 and case.says("not UTF-8") and case.cluster.queue() == before


def requeued(case: Case) -> bool:
    """An administrator requeues the job while its run is measured."""
    case.run(*case.study(steps=LONG))
    case.begin()
    case.cluster.run("scontrol", "update", f"JobId={case.job}_0", "Requeue=1")
    case.cluster.run("scontrol", "requeue", f"{case.job}_0")
    code = case.run("status", "s", "--wait").returncode
    (record,) = case.records()
    right = record.status.code == "preempted" and "requeued during this run" in record.status.reason
    return right and code == 1 and case.says("1 preempted: the job was requeued during this run")


def clock(case: Case) -> bool:
    """The clock of the node is ten minutes behind."""
    shifted = 'date() { command date --date="10 minutes ago" "$@"; }'
    case.run(*case.study(prologue=[shifted]))
    case.run("status", "s", "--wait")
    (record,) = case.records()
    found = [found.message for found in record.findings if found.code == "SY624"]
    case.run("show", record.run_id)
    return bool(found) and "behind the scheduler's" in found[0] and case.says("SY624")


def saving_power(case: Case) -> bool:
    """All nodes are switched off to save power: they are started for a job."""
    words = case.study()
    for node in case.cluster.node_names:
        case.cluster.run("scontrol", "update", f"NodeName={node}", "State=POWER_DOWN")
    shown = ["scontrol", "--oneliner", "show", "node"]
    case.cluster.wait_for(
        lambda: case.cluster.run(*shown).count("POWER") >= case.cluster.nodes, "the nodes are switched off"
    )
    right = case.run("site", "check", "site.toml").returncode == 0
    right = right and case.run(*words).returncode == 0
    answer = json.loads(case.run("status", "s", "--json").stdout)
    return right and answer["studies"][0]["totals"] in ({"queued": 1}, {"running": 1})


def suspended(case: Case) -> bool:
    """Slurm suspends the job for some seconds."""
    case.run(*case.study(steps=400))
    case.begin()
    case.cluster.run("scontrol", "suspend", f"{case.job}_0")
    case.run("status", "s")
    right = case.says("suspended by Slurm")
    time.sleep(SUSPENDED_S)
    case.cluster.run("scontrol", "resume", f"{case.job}_0")
    case.run("status", "s", "--wait")
    (record,) = case.records()
    found = [found for found in record.findings if found.code == "SY623"]
    case.run("show", record.run_id)
    return right and record.status.code == "completed" and bool(found) and case.says("SY623")


def full_while_sending(case: Case) -> bool:
    """A QOS allows two jobs in the queue, and another job is there."""
    words = case.study(repeats=3)
    case.cluster.run("sacctmgr", "-i", "modify", "qos", "normal", "set", "MaxSubmitJobsPerUser=2")
    try:
        case.run("site", "check", "site.toml")
        right = case.says("MaxSubmitPU of QOS normal is 2")
        other = case.cluster.run("sbatch", "--parsable", "--hold", "--mem=1", "--wrap=true", cwd=case.home).strip()
        right = right and case.run(*words).returncode == 0 and case.says("QOSMaxSubmitJobPerUserLimit")
        waiting = subprocess.Popen(
            [sys.executable, "-m", "steelyard.cli.main", *words, "--wait"],
            cwd=case.home,
            env=case.environment({}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert waiting.stdout is not None
        for line in waiting.stdout:
            if "QOSMaxSubmitJobPerUserLimit" in line:
                break
        case.cluster.run("scancel", other)
        text, _ = waiting.communicate(timeout=4 * LONGEST_PAUSE_S)
        return right and waiting.returncode == 0 and len(case.records()) == 3 and "completed" in text
    finally:
        case.cluster.run("sacctmgr", "-i", "modify", "qos", "normal", "set", "MaxSubmitJobsPerUser=-1")


def full_while_waiting(case: Case) -> bool:
    """A QOS lets one job run at a time."""
    words = case.study(steps=300, repeats=2)
    case.cluster.run("sacctmgr", "-i", "modify", "qos", "normal", "set", "MaxJobsPerUser=1")
    try:
        case.run(*words)
        case.begin()
        pending = ["squeue", "--noheader", "--states=pending", "--format=%r"]
        case.cluster.wait_for(lambda: "QOS" in case.cluster.run(*pending), "the limit is the reason")
        case.run("status", "s")
        right = case.says("1 task queued: QOSMaxJobsPerUserLimit")
        return right and case.run("status", "s", "--wait").returncode == 0
    finally:
        case.cluster.run("sacctmgr", "-i", "modify", "qos", "normal", "set", "MaxJobsPerUser=-1")


PLAIN: tuple[Callable[[Case], bool], ...] = (not_text, held, partition_down, no_sacct, vanished, requeued, clock)
ACCOUNTED: tuple[Callable[[Case], bool], ...] = (suspended, full_while_sending, full_while_waiting)
QUICK: tuple[Callable[[Case], bool], ...] = (not_text, held, vanished)


def play(cluster: Cluster, scratch: Path, cases: tuple[Callable[[Case], bool], ...]) -> list[str]:
    """Play cases on a cluster; return the names of those with a wrong word."""
    wrong = []
    for act in cases:
        case = Case(cluster, scratch / act.__name__)
        try:
            right = act(case)
        except Exception as error:  # noqa: BLE001 -- the other cases say more
            right, case.seen = False, f"{case.seen} {type(error).__name__}: {error}"
        print(f"{'right' if right else 'WRONG'}: {act.__name__}: {act.__doc__}", flush=True)
        if not right:
            print(f"  printed last: {case.seen[-1500:]}")
            wrong.append(act.__name__)
        case.end()
    return wrong


def main() -> None:
    options = arguments(__doc__)
    cases = 0
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        with Cluster(scratch / "plain", nodes=2) as cluster:
            chosen = QUICK if options.quick else PLAIN
            wrong += play(cluster, scratch, chosen)
            cases += len(chosen)
        if not options.quick:
            with Cluster(scratch / "accounted", nodes=2, accounting=True, settings=LIMITED, name="counted") as cluster:
                wrong += play(cluster, scratch, ACCOUNTED)
            with Cluster(scratch / "saving", nodes=2, settings=POWER) as cluster:
                wrong += play(cluster, scratch, (saving_power,))
            cases += len(ACCOUNTED) + 1
    finish(
        [
            at_least(
                "slurm_sites: situations played on a real Slurm", cases, "cases", len(QUICK) if options.quick else 11
            ),
            at_most("slurm_sites: with a wrong word on the screen or in the record", len(wrong), "cases", 0),
        ]
    )


if __name__ == "__main__":
    main()
