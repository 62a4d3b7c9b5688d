"""Slurm without a cluster: what jobs ask for, and what its states and words mean."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import pytest

from cluster import Cluster
from ports import port_block
from steelyard.inputs.site import find_place
from steelyard.inputs.study import expand, load_study
from steelyard.launch import plan
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
    from pathlib import Path

    from steelyard.launch.campaign import Campaign

pytestmark = pytest.mark.gate


def test_commands_are_told_nothing_of_another_job() -> None:
    given = {"SLURM_CONF": "/x", "SLURM_JOB_ID": "5", "SBATCH_PARTITION": "other", "HOME": "/root", "TZ": "CET"}
    assert own_variables(given) == {"SLURM_CONF": "/x", "HOME": "/root", "TZ": "CET"}


# -- what a job asks for --------------------------------------------------------------------------------------


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    """Of a run on two nodes, not submitted."""
    file = tmp_path / "study.toml"
    file.write_text('name = "s"\nrepeats = 1\nrun = { workload = "tiny", device = "cpu", devices = 4 }\n')
    pool = {"devices_per_node": 2, "cpus_per_node": 8, "memory_per_node_mib": 1000}
    # Its site.toml alone: it is not started.
    place = find_place(str(Cluster(tmp_path).site(pools={"cpu": pool})))
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


@pytest.mark.full("judges a time")
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


# -- clusters of tests ----------------------------------------------------------------------------------------


def test_no_two_clusters_have_the_same_ports() -> None:
    """Or their jobs would meet: two files of tests, or two clones, on one machine."""
    with port_block() as one, port_block() as other:
        assert not set(one) & set(other)
    # Nor do they get what somebody else has.
    with socket.create_server(("127.0.0.1", one[5])), port_block() as third:
        assert not set(one) & set(third)
