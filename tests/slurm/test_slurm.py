"""Slurm: runs, and each kind of failure, for real on a cluster of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cluster import Cluster, clean_environment, descendants
from conftest import HANG_S, until, write_study
from steelyard.errors import InputError, SteelyardError
from steelyard.inputs.site import Place, find_place
from steelyard.inputs.study import expand, load_study
from steelyard.launch import follow, plan
from steelyard.launch import submit as sending
from steelyard.launch.slurm.scheduler import Slurm
from steelyard.results.store import ResultFolder
from test_campaign_slurm import login

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
devices = {ranks}
"""
PROGRAMS = Path(__file__).resolve().parents[2] / "benchmarks" / "lib" / "programs"
WRAPPED = """
[run]
time_limit_s = 300
[run.program]
command = "torchrun plain.py --batch {batch} --steps 30"
[sweep]
batch = [16]
devices = [1, 2]
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
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Whose nodes fail if they are silent for seconds: no other test is to run there."""
    with Cluster(tmp_path_factory.mktemp("fragile"), nodes=2, node_timeout_s=5) as made:
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
            lambda: sum(state.phase == phase for state in self.poll().values()) >= tasks, f"{tasks} {phase}"
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


def test_node_without_power(fragile: Cluster, tmp_path: Path) -> None:
    """slurmd and all it started are gone at once, and nobody says a word."""
    study = Study(fragile, tmp_path, LONG, pools={"cpu": {"exclusive": True}})
    study.until_begun()
    node = fragile.run("squeue", "--noheader", f"--jobs={study.id}_0", "--format=%N").strip()
    fragile.kill_node(node)
    study.until("ended")
    said = study.poll()[0, 0].said
    fragile.start("slurmd", "-D", "-N", node)
    fragile.bring_back(node)
    assert said is not None
    assert (said.state, said.cause) == ("NODE_FAIL", "node_failure")
    fragile.run("scancel", study.id)
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
        .replace('workload = "sim"', 'workload = "sim"\ndevices = 64')
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


# -- the command line -----------------------------------------------------------------------------------------


@pytest.mark.gate
@pytest.mark.usefixtures("end_of_jobs")
def test_status_and_dry_run_on_the_command_line(cluster: Cluster, tmp_path: Path) -> None:
    write_study(tmp_path / "s.toml")
    site = cluster.site()

    def say(*words: str) -> str:
        process = login(cluster, *words, cwd=tmp_path)
        out, err = process.communicate(timeout=HANG_S)
        assert process.returncode == 0, err
        return out

    assert "nothing submitted: 12 runs" in say("study", "s.toml", "--site", f"{site}:cpu", "--dry-run")
    assert cluster.queue() == []
    assert "next: steelyard status s" in say("study", "s.toml", "--site", str(site))
    out = json.loads(say("status", "s", "--wait", "--json"))
    assert out["studies"][0]["totals"] == {"completed": 12}
    text = say("status")
    assert "all 12 runs collected" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "nothing to submit" in say("study", "s.toml", "--site", str(site))
    # On this machine nothing is missing, either.
    assert "6 completed" in say("study", "s.toml")


# -- runs -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("end_of_jobs")
@pytest.mark.parametrize(
    ("start", "per_node", "ranks"),
    [pytest.param("torchrun", 1, 2, marks=pytest.mark.gate), ("tasks", 2, 4), ("torchrun", 2, 2)],
)
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
        seen, ranks = record.wrapped, record.spec.devices
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
    version = cluster.run("scontrol", "--version").split()[1]
    assert found["Slurm"] == ("ok", f"cluster {cluster.name}, version {version}")


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
        [sys.executable, "-c", DIES, str(tmp_path)], capture_output=True, text=True, check=False, timeout=HANG_S
    )
    assert done.returncode == -9
    guard = int(done.stdout)
    # Its descendants are its children once their parents are gone, so that no guard is no process.
    until(lambda: not Path(f"/proc/{guard}").exists(), "the end of the guard")
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
