"""Slurm: what jobs ask for, what their states mean, and each kind of failure for real on a cluster of this machine."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import pytest

from cluster import Cluster, clean_environment, descendants
from steelyard.errors import InputError, SteelyardError
from steelyard.inputs.site import Place, find_place
from steelyard.inputs.study import expand, load_study
from steelyard.launch import follow, plan
from steelyard.launch import submit as sending
from steelyard.launch.slurm.output import cause_in
from steelyard.launch.slurm.request import sbatch_lines, start_words
from steelyard.launch.slurm.scheduler import Slurm, account_of_task, own_variables
from steelyard.launch.slurm.states import (
    Traces,
    indexes,
    node_names,
    read_exit_codes,
    read_sacct,
    read_squeue,
    state_of,
    state_of_forgotten,
    wait_status,
)
from steelyard.results.store import ResultFolder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import RunRecord
    from steelyard.launch.campaign import Campaign, TaskState

SIMULATED = """
[run]
workload = "sim"
crosscheck_steps = 0
budget = {{ min_steps = {steps}, max_steps = {steps}, min_seconds = 0.0, max_seconds = 1e6 }}
sim = {{ step_time_s = 0.01, wall_s_per_s = {wall} }}
[sweep]
batch = [8, 16]
"""
LONG = SIMULATED.format(steps=100_000, wall=1.0)
SHORT = SIMULATED.format(steps=20, wall=1.0)
PACKED = SIMULATED.format(steps=200, wall=0.0)
TORCH = """
[run]
workload = "tiny"
device = "cpu"
crosscheck_steps = 0
threads = 1
budget = {{ min_steps = 20, max_steps = 20, min_seconds = 0.0 }}
ranks = {ranks}
"""
PROGRAMS = Path(__file__).resolve().parents[2] / "benchmarks" / "lib" / "programs"
WRAPPED = """
[run]
time_limit_s = 100
[run.program]
command = "torchrun plain.py --batch {batch} --steps 30"
[sweep]
batch = [16]
ranks = [1, 2]
"""
PREEMPTING = {"PreemptType": "preempt/partition_prio", "PreemptMode": "CANCEL"}
PARTITIONS = (
    "PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 State=UP",
    "PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=10 State=UP",
    "PartitionName=short Nodes=ALL MaxTime=00:10:00 MaxNodes=2 State=UP",
    "PartitionName=closed Nodes=ALL MaxTime=INFINITE State=DOWN",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Without accounting."""
    scratch = tmp_path_factory.mktemp("slurm")
    with Cluster(scratch, settings=PREEMPTING, partitions=PARTITIONS) as made:
        yield made


@pytest.fixture(scope="module")
def accounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With slurmdbd and a database."""
    with Cluster(tmp_path_factory.mktemp("accounted"), accounting=True, name="counted") as made:
        yield made


class Study:
    """A study sent to a cluster."""

    def __init__(self, cluster: Cluster, home: Path, text: str, **site: Any) -> None:
        self.cluster = cluster
        self.slurm = Slurm({**clean_environment(), **cluster.variables})
        self.folder = ResultFolder(home / "results")
        file = home / "study.toml"
        file.write_text('name = "s"\nrepeats = 1\n' + text, encoding="utf-8")
        place = find_place(str(cluster.site(**site)))
        campaign = plan.make_campaign(self.folder, expand(load_study(file)), place, self.slurm)
        assert campaign is not None
        self.campaign: Campaign = campaign
        sending.submit(self.folder, "s", lambda _: self.slurm)

    @property
    def id(self) -> str:
        """Slurm's, of the first job."""
        return (self.campaign.job_id(self.campaign.plan.jobs[0]) or "").partition(";")[0]

    def poll(self) -> dict[tuple[int, int], TaskState]:
        return self.slurm.poll(self.campaign, self.campaign.plan.jobs)

    def until(self, phase: str, tasks: int = 1) -> None:
        """Until so many tasks are there."""
        self.cluster.wait_for(
            lambda: sum(state.phase == phase for state in self.poll().values()) >= tasks, f"{tasks} {phase}", 120
        )

    def until_begun(self) -> None:
        """Until every run's worker has said something: before that, an end finds Slurm's own starter."""
        raws = [self.campaign.raw(run) for job in self.campaign.plan.jobs for task in job.tasks for run in task]
        self.cluster.wait_for(lambda: all((raw / "events-00000.jsonl").exists() for raw in raws), "all runs began")

    def collect(self) -> dict[str, RunRecord]:
        """Every record by its run, after all has ended."""
        self.until("ended", sum(len(job.tasks) for job in self.campaign.plan.jobs))
        standing = follow.look(self.folder, "s", lambda _: self.slurm)
        assert not standing.problems
        assert not standing.waiting
        return {record.run_id: record for record in self.folder.records()}

    def run_of(self, task: int) -> str:
        return self.campaign.plan.jobs[0].tasks[task][0]


@pytest.fixture
def end_of_jobs(cluster: Cluster) -> Iterator[None]:
    """Nothing of one test is left in the queue of the next."""
    yield
    cluster.run("scancel", "--user=root", "--quiet", check=False)
    cluster.wait_until_empty()


# -- each failure for real ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("end_of_jobs")
def test_cancelled_by_hand(cluster: Cluster, tmp_path: Path) -> None:
    study = Study(cluster, tmp_path, LONG)
    study.until_begun()
    cluster.run("scancel", f"{study.id}_0")
    study.until("ended")
    states = study.poll()
    said = states[0, 0].said
    assert states[0, 1].phase == "running"
    assert said is not None
    assert (said.state, said.cause, said.job) == ("CANCELLED", "cancelled", f"{study.id}_0")
    assert "while it was running" in said.reason
    assert said.nodes[0] in cluster.node_names
    assert said.started_at is not None
    assert "CANCELLED AT" in str((said.evidence or {})["output"])
    calls = study.slurm.calls
    study.slurm.cancel(study.campaign, study.campaign.plan.jobs)
    assert study.slurm.calls - calls <= 2, "one scancel, and the name of the cluster"
    records = study.collect()
    assert {record.status.code for record in records.values()} == {"cancelled"}
    # What has ended is no error.
    study.slurm.cancel(study.campaign, study.campaign.plan.jobs)


@pytest.mark.usefixtures("end_of_jobs")
def test_cancelled_while_it_waited(cluster: Cluster, tmp_path: Path) -> None:
    study = Study(cluster, tmp_path, LONG, limits={"max_running": 1})
    study.until("running")
    waiting = [state for state in study.poll().values() if state.phase == "queued"]
    assert [state.why for state in waiting] == ["JobArrayTaskLimit"]
    study.slurm.cancel(study.campaign, study.campaign.plan.jobs)
    study.until("ended", 2)
    said = study.poll()[0, 1].said
    assert said is not None
    assert (said.cause, said.nodes, said.started_at, said.elapsed_s) == ("cancelled", (), None, None)
    assert "while it was pending" in said.reason
    record = study.collect()[study.run_of(1)]
    assert record.status.code == "cancelled"
    assert "never started" in record.status.reason


@pytest.mark.usefixtures("end_of_jobs")
def test_node_set_down(cluster: Cluster, tmp_path: Path) -> None:
    study = Study(cluster, tmp_path, LONG, pools={"cpu": {"exclusive": True}})
    study.until_begun()
    node = cluster.run("squeue", "--noheader", f"--jobs={study.id}_1", "--format=%N").strip()
    cluster.set_node(node, "down")
    study.until("ended")
    said = study.poll()[0, 1].said
    cluster.bring_back(node)
    assert said is not None
    assert (said.state, said.cause, said.nodes) == ("NODE_FAIL", "node_failure", (node,))
    assert study.poll()[0, 0].phase == "running"
    cluster.run("scancel", study.id)
    assert study.collect()[study.run_of(1)].status.code == "node_failure"


@pytest.mark.usefixtures("end_of_jobs")
def test_node_without_power(cluster: Cluster, tmp_path: Path) -> None:
    """slurmd and all it started are gone at once, and nobody says a word."""
    study = Study(cluster, tmp_path, LONG, pools={"cpu": {"exclusive": True}})
    study.until_begun()
    node = cluster.run("squeue", "--noheader", f"--jobs={study.id}_0", "--format=%N").strip()
    cluster.kill_node(node)
    study.until("ended")
    said = study.poll()[0, 0].said
    cluster.start("slurmd", "-D", "-N", node)
    cluster.bring_back(node)
    assert said is not None
    assert (said.state, said.cause) == ("NODE_FAIL", "node_failure")
    cluster.run("scancel", study.id)
    assert study.collect()[study.run_of(0)].status.code == "node_failure"


@pytest.mark.usefixtures("end_of_jobs")
def test_time_limit(cluster: Cluster, tmp_path: Path) -> None:
    study = Study(cluster, tmp_path, LONG)
    study.until_begun()
    cluster.end_now(study.id)
    records = study.collect()
    for record in records.values():
        assert record.status.code == "time_limit"
        assert record.launch is not None
        assert record.launch.scheduled is not None
        assert record.launch.scheduled.state == "TIMEOUT"
        assert "DUE TO TIME LIMIT" in str((record.status.evidence or {})["output"])


@pytest.mark.usefixtures("end_of_jobs")
def test_memory_of_a_step(cluster: Cluster, tmp_path: Path) -> None:
    """Only the run that is over it is ended: its task goes on, and only slurmstepd says why."""
    site = {"pools": {"cpu": {"memory_per_node_mib": 20}}, "limits": {"max_submitted": 1}}
    study = Study(cluster, tmp_path, LONG, **site)
    assert len(study.campaign.plan.jobs[0].tasks) == 1
    records = study.collect()
    assert {record.status.code for record in records.values()} == {"out_of_memory"}
    said = {record.launch.scheduled.state for record in records.values() if record.launch and record.launch.scheduled}
    assert said == {"COMPLETED"}
    assert len((study.campaign.done_file(study.campaign.plan.jobs[0], 0)).read_text().splitlines()) == 2


@pytest.mark.usefixtures("end_of_jobs")
def test_memory_of_a_whole_task(cluster: Cluster, tmp_path: Path) -> None:
    """Slurm's state says FAILED: the cause is in the output alone."""
    long = (
        SIMULATED.format(steps=15_000, wall=0.0)
        .replace("[8, 16]", str([*range(1, 101)]))
        .replace('workload = "sim"', 'workload = "sim"\nranks = 64')
    )
    study = Study(cluster, tmp_path, long, pools={"cpu": {"memory_per_node_mib": 20}})
    assert study.campaign.plan.jobs[0].kind == "packed"
    study.until("ended")
    said = next(state.said for state in study.poll().values() if state.phase == "ended")
    assert said is not None
    assert (said.state, said.cause) == ("FAILED", "out_of_memory")
    evidence = said.evidence or {}
    assert "memory limit" in str(evidence["output"])
    cluster.run("scancel", study.id)
    records = study.collect()
    assert any(record.status.code == "out_of_memory" for record in records.values())
    assert len(records) == 100, "those that could not begin have a record, too"


@pytest.mark.usefixtures("end_of_jobs")
def test_preempted(cluster: Cluster, tmp_path: Path) -> None:
    study = Study(cluster, tmp_path, LONG, pools={"cpu": {"exclusive": True}})
    study.until_begun()
    cluster.run("sbatch", "--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=true")
    records = study.collect()
    assert {record.status.code for record in records.values()} == {"preempted"}


@pytest.mark.usefixtures("end_of_jobs")
def test_script_that_fails(cluster: Cluster, tmp_path: Path) -> None:
    study = Study(cluster, tmp_path, SHORT, modules={"init": "/nowhere/init.sh"})
    study.until("ended", 2)
    said = study.poll()[0, 0].said
    assert said is not None
    assert (said.state, said.cause, (said.evidence or {})["exit_code"]) == ("FAILED", "failed", 1)
    records = study.collect()
    assert all("never started" in record.status.reason for record in records.values())
    assert all("/nowhere/init.sh" in str(record.status.evidence) for record in records.values())


@pytest.mark.usefixtures("end_of_jobs")
def test_forgotten_by_slurm(cluster: Cluster, tmp_path: Path) -> None:
    """The controller comes back without a memory: what a task has left is all there is."""
    done = Study(cluster, _made(tmp_path / "done"), SHORT)
    done.until("ended", 2)
    killed = Study(cluster, _made(tmp_path / "killed"), LONG)
    killed.until_begun()
    cluster.run("scancel", killed.id)
    killed.until("ended", 2)
    shutil.rmtree(killed.campaign.raw(killed.run_of(0)).parent)
    killed.campaign.output_file(killed.campaign.plan.jobs[0], 1).write_text("", encoding="utf-8")
    _forget(cluster)
    states = done.poll()
    assert {(state.phase, state.said.state, state.said.cause) for state in states.values() if state.said} == {
        ("ended", "GONE", None)
    }
    assert {record.status.code for record in done.collect().values()} == {"completed"}
    state = killed.poll()[0, 1]
    assert state.said is not None
    assert (state.phase, state.said.state, state.said.cause) == ("unknown", "GONE", "failed")
    assert (0, 0) not in killed.poll(), "collected jobs are not queried"


def _made(path: Path) -> Path:
    path.mkdir()
    return path


# -- runs -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("end_of_jobs")
@pytest.mark.parametrize(("start", "per_node", "ranks"), [("torchrun", 1, 2), ("tasks", 2, 4), ("torchrun", 2, 2)])
def test_real_ranks_over_nodes(cluster: Cluster, tmp_path: Path, start: str, per_node: int, ranks: int) -> None:
    pool = {"start": start, "devices_per_node": per_node, "cpus_per_node": 2}
    study = Study(cluster, tmp_path, TORCH.format(ranks=ranks), pools={"cpu": pool})
    (record,) = study.collect().values()
    log = (study.folder.run_path(record.spec) / "raw" / "worker.log").read_text()
    assert record.status.code == "completed", (record.status, log)
    assert record.launch is not None
    assert record.launch.scheduled is not None
    assert len(set(record.launch.scheduled.nodes)) == max(1, ranks // per_node)
    assert record.launch.scheduled.elapsed_s is not None


@pytest.mark.usefixtures("end_of_jobs")
def test_a_program_over_nodes(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same words on one node and on two: torchrun learns from variables which node it is on."""
    for name in ("plain.py", "truth.py"):
        shutil.copy(PROGRAMS / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    study = Study(cluster, tmp_path, WRAPPED)
    records = study.collect()
    raws = {run: study.folder.run_path(record.spec) / "raw" for run, record in records.items()}
    logs = {run: (raw / "worker.log").read_text() for run, raw in raws.items()}
    assert {record.status.code for record in records.values()} == {"completed"}, logs
    for run, record in records.items():
        seen, ranks = record.wrapped, record.spec.ranks
        assert seen is not None
        assert (seen.level, seen.world, seen.ranks_reported, seen.steps) == (2, ranks, ranks, 30)
        assert (record.spec.batch, seen.samples) == (16, "seen")
        assert record.launch is not None
        assert record.launch.scheduled is not None
        assert len(set(record.launch.scheduled.nodes)) == ranks
        for node in range(ranks):
            assert (raws[run] / f"program-{node:05d}.json").is_file()
            assert f'"rank": {node}' in (raws[run] / f"processes-{node:05d}.jsonl").read_text()


@pytest.mark.usefixtures("end_of_jobs")
@pytest.mark.parametrize("name", ["per%cent %a 100%", 'quo\'te $(touch pwned); "x"', "two\nlines"])
def test_strange_folders(cluster: Cluster, tmp_path: Path, name: str) -> None:
    study = Study(cluster, _made(tmp_path / name), PACKED)
    assert {record.status.code for record in study.collect().values()} == {"completed"}
    assert (study.campaign.path / "jobs" / "000" / "0.out").exists()
    assert not list(tmp_path.rglob("pwned"))


def test_no_output_below_a_backslash(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="backslash"):
        Study(cluster, _made(tmp_path / "back\\slash"), PACKED)


@pytest.mark.usefixtures("end_of_jobs")
def test_devices_are_asked_for(cluster: Cluster, tmp_path: Path) -> None:
    pool = {"gpus": "gpu:fake", "devices_per_node": 4, "device": "auto", "exclusive": True, "account": None}
    text = TORCH.format(ranks=2).replace('device = "cpu"', 'device = "auto"')
    study = Study(cluster, tmp_path, text, pools={"cpu": pool})
    shown = cluster.run("scontrol", "--oneliner", "show", "job", study.id)
    assert "TresPerNode=gres:gpu:fake:2" in shown
    assert "OverSubscribe=NO" in shown
    assert "Requeue=0" in shown
    study.slurm.cancel(study.campaign, study.campaign.plan.jobs)
    study.collect()


@pytest.mark.usefixtures("end_of_jobs")
def test_found_by_name_after_a_lost_answer(cluster: Cluster, tmp_path: Path) -> None:
    study = Study(cluster, tmp_path, LONG)
    job = study.campaign.plan.jobs[0]
    said = study.campaign.job_id(job)
    (study.campaign.job_folder(job) / "id").unlink()
    never = replace(job, number=1, name="sy-000000000000-001")
    assert study.slurm.find(study.campaign, [job, never]) == {0: said}
    assert study.poll(), "the name is enough"
    # Without an id it can still be taken back; and it is found when it is over.
    study.slurm.cancel(study.campaign, [job])
    study.until("ended", 2)
    assert study.slurm.find(study.campaign, [job]) == {0: said}


@pytest.mark.usefixtures("end_of_jobs")
def test_calls_do_not_grow_with_tasks(cluster: Cluster, tmp_path: Path) -> None:
    many = LONG.replace("[8, 16]", str([*range(1, 61)]))
    study = Study(cluster, tmp_path, many, limits={"array_size": 20})
    assert len(study.campaign.plan.jobs) == 3
    calls = study.slurm.calls
    states = study.poll()
    assert study.slurm.calls - calls == 1
    assert len(states) == 60
    study.slurm.cancel(study.campaign, study.campaign.plan.jobs)
    study.until("ended", 60)
    calls = study.slurm.calls
    study.poll()
    assert study.slurm.calls - calls <= 3


def test_another_cluster_is_not_an_end(cluster: Cluster, tmp_path: Path) -> None:
    study = Study(cluster, tmp_path, SHORT)
    study.until("ended", 2)
    job = study.campaign.plan.jobs[0]
    stranger = replace(job, name="sy-000000000000-000")
    study.campaign.registration.id_file(0).write_text("99;elsewhere")
    with pytest.raises(SteelyardError, match="elsewhere"):
        study.slurm.poll(study.campaign, [stranger])


def test_refusal_in_slurms_own_words(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(SteelyardError, match="invalid partition specified"):
        Study(cluster, tmp_path, SHORT, pools={"cpu": {"partition": "nowhere"}})


# -- accounting -----------------------------------------------------------------------------------------------


def test_accounting_says_who_and_how_long(accounted: Cluster, tmp_path: Path) -> None:
    study = Study(accounted, tmp_path, LONG)
    study.until_begun()
    accounted.run("scancel", f"{study.id}_0")
    study.until("ended")
    accounted.wait_for(lambda: "by root (uid 0)" in _reason(study), "the account has it")
    said = study.poll()[0, 0].said
    assert said is not None
    assert (said.evidence or {})["cancelled_by"] == "root (uid 0)"
    assert said.elapsed_s is not None
    assert said.energy_j is None, "nobody measures it here, and 0 J is not a measurement"
    assert said.queued_at is not None
    assert said.queued_at.endswith("+00:00")
    accounted.run("scancel", study.id)
    study.until("ended", 2)


def _reason(study: Study) -> str:
    said = study.poll()[0, 0].said
    return said.reason if said else ""


def test_accounting_remembers_what_the_controller_forgot(accounted: Cluster, tmp_path: Path) -> None:
    study = Study(accounted, tmp_path, SIMULATED.format(steps=300, wall=1.0))
    study.until("ended", 2)
    shown = ["sacct", "--noheader", "--allocations", f"--jobs={study.id}", "--format=State"]
    accounted.wait_for(lambda: accounted.run(*shown).split() == ["COMPLETED"] * 2, "the account has it")
    # As a node's meter would have it: nothing here measures energy.
    query = f"update slurm.counted_job_table set tres_alloc='1=1,3=1234,4=1' where id_array_job={study.id}"
    socket = f"--socket={accounted.scratch}/mariadb.sock"
    accounted.run("mariadb", "--no-defaults", socket, "--user=root", "-e", query)
    _forget(accounted)
    said = study.poll()[0, 1].said
    assert said is not None
    assert (said.state, said.cause, said.energy_j, said.runs) == ("COMPLETED", None, 1234.0, 1)
    job = study.campaign.plan.jobs[0]
    assert study.slurm.find(study.campaign, [job]) == {0: f"{study.id};counted"}
    records = study.collect()
    assert {record.status.code for record in records.values()} == {"completed"}
    launches = [record.launch for record in records.values() if record.launch]
    assert {launch.scheduled.energy_j for launch in launches if launch.scheduled} == {1234.0}


def _forget(cluster: Cluster) -> None:
    """The controller comes back without a memory, as it has after MinJobAge."""
    os.kill(int((cluster.scratch / "ctld.pid").read_text()), 9)
    cluster.start("slurmctld", "-D", "-c")
    cluster.wait_for(lambda: cluster.run("squeue", "--noheader", "--states=all", check=False) == "", "it forgot")
    cluster.wait_for(lambda: cluster.idle() == cluster.nodes, "all nodes are idle")


def test_an_account_that_does_not_answer_is_no_end(accounted: Cluster, tmp_path: Path) -> None:
    study = Study(accounted, tmp_path, LONG)
    study.until_begun()
    accounted.run("scancel", study.id)
    study.until("ended", 2)
    _forget(accounted)
    job = study.campaign.plan.jobs[0]
    for task in (0, 1):
        study.campaign.output_file(job, task).write_text("", encoding="utf-8")
    broken = accounted.scratch / "broken.conf"
    text = (accounted.scratch / "slurm.conf").read_text()
    broken.write_text(re.sub(r"AccountingStoragePort=\d+", "AccountingStoragePort=1", text), encoding="utf-8")
    study.slurm = Slurm({**clean_environment(), "SLURM_CONF": str(broken)})
    assert study.poll() == {}
    study.campaign.done_file(job, 1).write_text("x 0 1.0 2.0\n", encoding="utf-8")
    assert study.poll().keys() == {(0, 1)}, "its own traces say that it is over"


def test_accounts_are_checked(accounted: Cluster) -> None:
    assert "account" in _wrong(accounted, pools={"cpu": {"account": "nobodys"}})
    assert "account" not in _wrong(accounted, pools={"cpu": {"account": "project"}})
    assert "qos" in _wrong(accounted, pools={"cpu": {"account": "project", "qos": "gold"}})


# -- the site -------------------------------------------------------------------------------------------------


def _checked(cluster: Cluster, **site: Any) -> dict[str, tuple[str, str]]:
    slurm = Slurm({**clean_environment(), **cluster.variables})
    place = find_place(str(cluster.site(**site)))
    return {check.name: (check.verdict, check.found) for check in slurm.check(place)}


def _wrong(cluster: Cluster, **site: Any) -> set[str]:
    return {name for name, (verdict, _) in _checked(cluster, **site).items() if verdict == "wrong"}


def test_a_good_site(cluster: Cluster) -> None:
    found = _checked(cluster)
    assert not [name for name, (verdict, _) in found.items() if verdict == "wrong"]
    assert found["accounting"][0] == "note"
    assert found["architecture"] == ("ok", platform.machine())
    assert "22.05" in found["Slurm"][1] or "version" in found["Slurm"][1]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"pools": {"cpu": {"partition": "nowhere"}}}, "partition"),
        ({"pools": {"cpu": {"architecture": "aarch64"}}}, "architecture"),
        ({"pools": {"cpu": {"gpus": "gpu:fake", "devices_per_node": 8}}}, "devices"),
        ({"pools": {"cpu": {"gpus": "gpu:a100", "devices_per_node": 1}}}, "devices"),
        ({"pools": {"cpu": {"cpus_per_node": 64}}}, "cpus_per_node"),
        ({"pools": {"cpu": {"memory_per_node_mib": 900_000}}}, "memory_per_node_mib"),
        ({"pools": {"cpu": {"partition": "short", "max_time_s": 3600}}}, "time limit"),
        ({"pools": {"cpu": {"partition": "short", "max_time_s": 600, "max_nodes": 4}}}, "nodes"),
        ({"pools": {"cpu": {"constraint": "infiniband"}}}, "trial"),
        ({"pools": {"cpu": {"reservation": "nobodys"}}}, "trial"),
        ({"limits": {"array_size": 5000}}, "array"),
    ],
)
def test_a_bad_site(cluster: Cluster, changes: dict[str, Any], name: str) -> None:
    assert name in _wrong(cluster, **changes)


def test_jobs_are_queued_into_a_partition_that_is_down(cluster: Cluster) -> None:
    site = {"pools": {"cpu": {"partition": "closed"}}}
    assert _wrong(cluster, **site) == set()
    assert _checked(cluster, **site)["partition"][0] == "note"


def test_a_machine_without_slurm(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = find_place(str(cluster.site()))
    monkeypatch.setenv("PATH", str(tmp_path))
    (check,) = Slurm().check(place)
    assert (check.name, check.verdict) == ("Slurm", "wrong")
    with pytest.raises(SteelyardError, match="was not found"):
        Slurm()._queue()


def test_commands_are_told_nothing_of_another_job() -> None:
    given = {"SLURM_CONF": "/x", "SLURM_JOB_ID": "5", "SBATCH_PARTITION": "other", "HOME": "/root", "TZ": "CET"}
    assert own_variables(given) == {"SLURM_CONF": "/x", "HOME": "/root", "TZ": "CET"}


# -- what a job asks for --------------------------------------------------------------------------------------


@pytest.fixture
def campaign(cluster: Cluster, tmp_path: Path) -> Campaign:
    """Of a run on two nodes, not submitted."""
    file = tmp_path / "study.toml"
    file.write_text('name = "s"\nrepeats = 1\n' + TORCH.format(ranks=4), encoding="utf-8")
    pool = {"devices_per_node": 2, "cpus_per_node": 8, "memory_per_node_mib": 1000}
    place = find_place(str(cluster.site(pools={"cpu": pool})))
    made = plan.make_campaign(ResultFolder(tmp_path / "results"), expand(load_study(file)), place, Slurm())
    assert made is not None
    return made


def _with_pool(campaign: Campaign, limits: dict[str, Any] | None = None, **changes: Any) -> Campaign:
    site = campaign.plan.site
    pool = replace(site.pools["cpu"], **changes)
    site = replace(site, pools={"cpu": pool}, limits=replace(site.limits, **(limits or {})))
    return replace(campaign, plan=replace(campaign.plan, site=site))


def test_head(campaign: Campaign) -> None:
    job = campaign.plan.jobs[0]
    changed = _with_pool(
        campaign,
        {"max_running": 3},
        gpus="gpu:h100",
        account="me",
        qos="normal",
        constraint="(a|b)&c",
        reservation="mine",
        exclusive=True,
        options=("--switches=1",),
    )
    lines = sbatch_lines(changed, job)
    assert [line.removeprefix("#SBATCH ") for line in lines] == [
        f"--job-name={job.name}",
        "--comment=steelyard/s/000",
        "--array=0-0%3",
        "--output=jobs/000/%a.out",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--cpus-per-task=8",
        "--mem=1000M",
        "--gres=gpu:h100:2",
        f"--time={-(-job.task_limit_s // 60)}",
        "--no-requeue",
        "--open-mode=append",
        "--partition=debug",
        "--account=me",
        "--qos=normal",
        "--constraint=(a|b)&c",
        "--reservation=mine",
        "--exclusive",
        "--export=NONE",
        "--switches=1",
    ]
    inherited = sbatch_lines(_with_pool(campaign, options=("--export=ALL",)), job)
    assert [line for line in inherited if "--export" in line] == ["#SBATCH --export=ALL"]


def test_a_task_a_device(campaign: Campaign) -> None:
    changed, job = _with_pool(campaign, start="tasks"), campaign.plan.jobs[0]
    assert "#SBATCH --ntasks-per-node=2" in sbatch_lines(changed, job)
    assert "#SBATCH --cpus-per-task=4" in sbatch_lines(changed, job)
    words = start_words(changed, job)
    assert {"srun", "--ntasks=4", "--ntasks-per-node=2", "--cpus-per-task=4"} <= set(words)
    # A site's --export=NONE is about the shell at the login node, not about what the script sets.
    assert "--export=ALL" in words


def test_a_whole_node_is_not_bound_to_one_core(campaign: Campaign) -> None:
    job = campaign.plan.jobs[0]
    whole = _with_pool(campaign, exclusive=True, cpus_per_node=None)
    assert "--cpu-bind=none" in start_words(whole, job)
    for changes in ({"exclusive": True}, {"cpus_per_node": None}):
        assert "--cpu-bind=none" not in start_words(_with_pool(campaign, **changes), job)


def test_part_of_a_node_asks_for_a_part(campaign: Campaign) -> None:
    job = campaign.plan.jobs[0]
    small = replace(job, shape=replace(job.shape, nodes=1, processes_per_node=1, devices_per_node=1))
    assert {"#SBATCH --cpus-per-task=4", "#SBATCH --mem=500M"} <= set(sbatch_lines(campaign, small))
    whole = _with_pool(campaign, exclusive=True)
    assert {"#SBATCH --cpus-per-task=8", "#SBATCH --mem=1000M"} <= set(sbatch_lines(whole, small))


def test_no_array_where_there_are_none(campaign: Campaign) -> None:
    lines = sbatch_lines(_with_pool(campaign, {"array_size": 1}), campaign.plan.jobs[0])
    assert "#SBATCH --output=jobs/000/0.out" in lines
    assert not any("--array" in line for line in lines)


def test_packed_runs_need_no_step(campaign: Campaign) -> None:
    job = replace(campaign.plan.jobs[0], kind="packed")
    assert start_words(campaign, job) == []


# -- texts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tasks"),
    [
        ("N/A", [0]),
        ("", [0]),
        ("7", [7]),
        ("0-3", [0, 1, 2, 3]),
        ("0-6:3%2", [0, 3, 6]),
        ("1,4-5%1", [1, 4, 5]),
        ("nonsense", []),
        ("9999999999", []),
    ],
)
def test_indexes(text: str, tasks: list[int]) -> None:
    assert list(indexes(text)) == tasks


def test_indexes_have_an_end() -> None:
    assert sum(1 for _ in indexes("0-9999999:1000000")) < 10


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("n1", ("n1",)),
        ("n[1-3]", ("n1", "n2", "n3")),
        ("n[08-10,12],login", ("n08", "n09", "n10", "n12", "login")),
        ("a[1-2]-ib,b3", ("a1-ib", "a2-ib", "b3")),
        ("r[1-2]n[1-2]", ("r[1-2]n[1-2]",)),
    ],
)
def test_node_names(text: str, names: tuple[str, ...]) -> None:
    assert node_names(text) == names


def test_node_names_have_an_end() -> None:
    assert len(node_names("n[0-999999999]")) == 10_000


QUEUE = "5|0-1|{state}|{reason}|n[1-2]|2026-11-15T10:00:00|2026-11-15T10:01:00|1-02:03:04|job\n"
ACCOUNT = "5_0|{state}|{code}|n1|2026-11-15T10:00:00|2026-11-15T10:01:00|61|{energy}||job\n"


def _traces(tmp_path: Path, output: str = "", done: int = 0, runs: int = 1) -> Traces:
    (tmp_path / "0.out").write_text(output, encoding="utf-8")
    (tmp_path / "0.done").write_text("x 0 1.0 2.0\n" * done, encoding="utf-8")
    return Traces(tmp_path / "0.out", tmp_path / "0.done", runs)


@pytest.mark.parametrize(
    ("state", "phase", "cause"),
    [
        ("PENDING", "queued", None),
        ("CONFIGURING", "queued", None),
        ("RUNNING", "running", None),
        ("COMPLETING", "running", None),
        ("SUSPENDED", "running", None),
        ("A_STATE_OF_TOMORROW", "running", None),
        ("REVOKED", "running", None),
        ("COMPLETED", "ended", None),
        ("TIMEOUT", "ended", "time_limit"),
        ("DEADLINE", "ended", "time_limit"),
        ("OUT_OF_MEMORY", "ended", "out_of_memory"),
        ("NODE_FAIL", "ended", "node_failure"),
        ("BOOT_FAIL", "ended", "node_failure"),
        ("PREEMPTED", "ended", "preempted"),
        ("CANCELLED", "ended", "cancelled"),
        ("FAILED", "ended", "failed"),
    ],
)
def test_states(tmp_path: Path, state: str, phase: str, cause: str | None) -> None:
    queue = read_squeue(QUEUE.format(state=state, reason="None"))
    assert queue.keys() == {("5", 0), ("5", 1)}
    found = state_of(queue["5", 0], None, _traces(tmp_path), 0, 60)
    assert found is not None
    assert found.phase == phase
    if phase == "ended":
        assert found.said is not None
        assert (found.said.cause, found.said.elapsed_s) == (cause, 93784.0)
        assert (found.said.reason != "") == (cause is not None)


def test_what_another_cluster_took_ends_by_its_own_traces(tmp_path: Path) -> None:
    told = read_squeue(QUEUE.format(state="REVOKED", reason="None"))["5", 0]
    found = state_of(told, None, _traces(tmp_path, done=1), 0, 60)
    assert found is not None
    assert found.said is not None
    assert (found.phase, found.said.cause) == ("ended", None)


@pytest.mark.parametrize("reason", ["BadConstraints", "QOSMaxWallDurationPerJobLimit", "JobHoldMaxRequeue"])
def test_what_never_starts_by_itself(tmp_path: Path, reason: str) -> None:
    told = read_squeue(QUEUE.format(state="PENDING", reason=reason))["5", 0]
    found = state_of(told, None, _traces(tmp_path), 0, 60)
    assert found is not None
    assert found.why == f"{reason}; will not start by itself"


def test_account(tmp_path: Path) -> None:
    text = ACCOUNT.format(state="CANCELLED by 4294967", code="0:15", energy="5000")
    told = read_sacct(text)["5", 0]
    found = state_of(None, told, _traces(tmp_path), 0, 60)
    assert found is not None
    assert found.said is not None
    assert (found.said.energy_j, found.said.elapsed_s) == (5000.0, 61.0)
    assert "a user unknown on this machine (uid 4294967)" in found.said.reason


@pytest.mark.parametrize("energy", ["", "0", "4294967294", "18446744073709551614", "nonsense"])
def test_no_energy(energy: str) -> None:
    assert read_sacct(ACCOUNT.format(state="COMPLETED", code="0:0", energy=energy))["5", 0].energy_j is None


def test_account_that_lags(tmp_path: Path) -> None:
    """The controller has forgotten it, the account has not heard: wait, but not for ever."""
    told = read_sacct(ACCOUNT.format(state="RUNNING", code="0:0", energy=""))["5", 0]
    lagging = state_of(None, told, _traces(tmp_path), 0, 60)
    assert lagging is not None
    assert lagging.phase == "running"
    lost = state_of(None, replace(told, elapsed_s=100_000.0), _traces(tmp_path), 0, 60)
    assert lost is not None
    assert lost.said is not None
    assert lost.said.state == "GONE"


def test_an_account_without_array_and_name(tmp_path: Path, campaign: Campaign) -> None:
    """What slurmdbd keeps of a job that ended before it had heard of its start."""
    text = "5|COMPLETED|0:0|n1|2026-11-15T10:00:00|2026-11-15T10:01:00|0|||allocation\n"
    told, job = read_sacct(text)["5", 0], campaign.plan.jobs[0]
    assert account_of_task(told, job) is told
    assert account_of_task(told, replace(job, tasks=(("a",), ("b",)))) is None
    assert account_of_task(replace(told, numbered=True), job) is None, "another job's, which has the same id"


def test_what_squeue_does_not_say_is_left_out() -> None:
    assert read_squeue("slurm_load_jobs error\n\n5|0|RUNNING\n") == {}
    assert read_sacct("nonsense\n") == {}
    assert read_exit_codes("5  N/A  9\nnonsense\n6 0-1 768\n") == {("5", 0): 9, ("6", 0): 768, ("6", 1): 768}


@pytest.mark.parametrize(("status", "told"), [(9, (0, 9)), (768, (3, 0)), (4021, (0, 53)), (0, (0, 0))])
def test_wait_status(status: int, told: tuple[int, int]) -> None:
    assert wait_status(status) == told


@pytest.mark.parametrize(
    ("code", "output", "cause"),
    [
        ("137:0", "slurmstepd: error: Exceeded job memory limit\n", "out_of_memory"),
        ("0:9", "slurmstepd: error: Detected 1 oom_kill event in StepId=5.batch.\n", "out_of_memory"),
        ("0:9", "", "killed"),
        ("137:0", "", "killed"),
        ("1:0", "", "failed"),
        ("0:53", "", "failed"),
        ("1:0", "a run prints: exceeded memory limit\n", "failed"),
    ],
)
def test_a_failed_script(tmp_path: Path, code: str, output: str, cause: str) -> None:
    told = read_sacct(ACCOUNT.format(state="FAILED", code=code, energy=""))["5", 0]
    found = state_of(None, told, _traces(tmp_path, output), 0, 60)
    assert found is not None
    assert found.said is not None
    assert found.said.cause == cause


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2026-11-15T10:00:00 DUE TO TIME LIMIT ***", "time_limit"),
        ("slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2026-11-15T10:00:00 DUE TO PREEMPTION ***", "preempted"),
        (
            "slurmstepd-n1: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-11-15T10:00:00 DUE TO NODE FAILURE, SEE SLUR",
            "node_failure",
        ),
        ("slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-11-15T10:00:00 ***", "cancelled"),
        ("srun: error: n1: task 0: Out Of Memory", "out_of_memory"),
        # Since 25.05 it begins with the time.
        (
            "[2026-11-15T10:00:00.1] error: *** JOB 5 ON n1 CANCELLED AT 2026-11-15T10:00:00 DUE TO TIME LIMIT ***",
            "time_limit",
        ),
        (
            "[2026-11-15T10:00:00.1] error: *** STEP 5.0 ON n1 CANCELLED AT 2026-11-15T10:00:00 DUE TO PREEMPTION ***",
            "preempted",
        ),
        (
            "[2026-11-15T10:00:00.1] error: *** JOB 5 ON n1 CANCELLED AT 2026-11-15T10:00:00 DUE to SIGNAL Terminated",
            "cancelled",
        ),
        (
            "[2026-11-15T10:00:00] error: Detected 1 oom_kill event in StepId=5.batch. Some of the step tasks",
            "out_of_memory",
        ),
        ("slurmstepd: error: StepId=3.0 exceeded memory limit (637947904 > 209715200), being killed", "out_of_memory"),
    ],
)
def test_words(line: str, cause: str) -> None:
    assert cause_in(f"before\n{line}\nafter\n") == (cause, line)


def test_words_after_a_line_that_has_not_ended() -> None:
    said = "slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2026-11-15T10:00:00 DUE TO TIME LIMIT ***"
    assert cause_in(f"45%|####    | 723/1602 [2:12, 1.3s/it]{said}\n") == ("time_limit", said)


@pytest.mark.parametrize(
    "output",
    [
        "srun: Terminating StepId=5.0\nslurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-11-15T10:00:00 ***\n",
        (
            "srun: launch/slurm: _step_signal: Terminating StepId=5.0\n"
            "slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-11-15T10:00:00 ***\n"
        ),
        "[2026-11-15T10:00:00.1] error: *** STEP 5.0 ON n1 CANCELLED AT 2026-11-15T10:00:00 DUE TO TASK FAILURE ***\n",
    ],
)
def test_the_rest_of_a_step_that_failed_is_not_cancelled(output: str) -> None:
    assert cause_in(output) is None


def test_words_are_found_in_time() -> None:
    began = time.process_time()
    for word in ("srun: ", "slurmstepd: error: *** JOB ", "[2026-11-15T10:00:00] error: *** a CANCELLED AT "):
        assert cause_in(word * (64_000 // len(word))) in (None, ("cancelled", ANY))
    assert time.process_time() - began < 5


def test_words_of_others() -> None:
    assert cause_in("my program: *** JOB 5 ON n1 CANCELLED AT noon ***\n") is None


@pytest.mark.parametrize(
    ("output", "done", "cause"),
    [
        (
            "slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2026-11-15T10:00:00 DUE TO TIME LIMIT ***\n",
            0,
            "time_limit",
        ),
        ("", 2, None),
        ("", 1, "failed"),
    ],
)
def test_gone(tmp_path: Path, output: str, done: int, cause: str | None) -> None:
    state = state_of_forgotten("5", _traces(tmp_path, output, done, runs=2), 0)
    assert state.said is not None
    assert (state.said.cause, state.said.state) == (cause, "GONE")
    assert state.phase == ("unknown" if cause == "failed" else "ended")


# -- the cluster itself ---------------------------------------------------------------------------------------

DIES = """
import os, sys
from pathlib import Path
from cluster import Cluster
made = Cluster(Path(sys.argv[1])).__enter__()
made.run("sbatch", "--output=/dev/null", "--wrap=setsid sleep 1000 & sleep 1000")
made.wait_for(lambda: any("RUNNING" in line for line in made.queue()), "it runs")
print(made._guard.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_cluster_ends_with_its_owner(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DIES, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == -9
    guard = int(done.stdout)
    # Its descendants are its children once their parents are gone, so that no guard is no process.
    waited = 0
    while Path(f"/proc/{guard}").exists() and waited < 1000:
        waited += 1
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(["tail", f"--pid={guard}", "-f", "/dev/null"], timeout=10, check=False)
    assert descendants(guard) == []
    assert not [pid for pid in Path("/proc").iterdir() if pid.name.isdigit() and _holds(pid, str(tmp_path))]


def _holds(process: Path, text: str) -> bool:
    with contextlib.suppress(OSError):
        return text.encode() in (process / "environ").read_bytes()
    return False


def test_places_are_what_they_say(cluster: Cluster) -> None:
    place = find_place(str(cluster.site()))
    assert isinstance(place, Place)
    assert place.pool.partition == "debug"
