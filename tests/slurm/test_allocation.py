"""Runs inside an allocation that the user already has: a real Slurm, real steps, real torchrun over several nodes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cluster import Cluster, clean_environment, descendants
from conftest import HANG_S, make_spec, until
from ports import port_block
from steelyard.contracts.sim import SimTruth
from steelyard.contracts.spec import Budget, RunSpec
from steelyard.errors import InputError
from steelyard.launch.allocation import Allocation, AllocationLauncher, launcher_here, read_allocation, whereabouts
from steelyard.launch.local_study import make_run
from steelyard.results.store import ResultFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEELYARD = [sys.executable, "-m", "steelyard.cli.main"]
SHORT = ["--min-steps", "10", "--max-steps", "10", "--min-seconds", "0"]
SLOW = SimTruth(step_time_s=1.0, wall_s_per_s=1.0)
ENDLESS = Budget(min_steps=100_000, max_steps=100_000, max_seconds=1e6)


def launcher() -> AllocationLauncher:
    """For the allocation that the environment names."""
    return AllocationLauncher(read_allocation(os.environ))


def slow_spec(**settings: Any) -> RunSpec:
    return make_spec(sim=SLOW, budget=ENDLESS, **settings)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture(scope="module")
def network() -> Iterator[dict[str, str]]:
    """Variables of runs whose nodes are all this machine: the ranks meet at a port that nobody else here has."""
    with port_block() as ports:
        yield {"STEELYARD_MEETING_PORT": str(ports[0]), "GLOO_SOCKET_IFNAME": "lo"}


@pytest.fixture
def allocate(
    cluster: Cluster, network: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., str]]:
    """Puts this process into an allocation, as salloc would; its job id."""
    jobs: list[str] = []

    def take(*options: str) -> str:
        command = ["salloc", "--no-shell", "--mem=1500", *options]
        environment = {**clean_environment(), **cluster.variables}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=HANG_S)
        found = re.search(r"Granted job allocation (\d+)", done.stderr)
        assert found is not None
        jobs.append(found[1])
        nodes = cluster.run("squeue", f"--jobs={found[1]}", "--noheader", "--format=%N").strip()
        given = {**cluster.variables, "SLURM_JOB_ID": found[1], "SLURM_JOB_NODELIST": nodes}
        for name, value in {**given, **network}.items():
            monkeypatch.setenv(name, value)
        return found[1]

    yield take
    cluster.run("scancel", *jobs, check=False)
    cluster.wait_until_empty()


def steps(cluster: Cluster) -> list[str]:
    """Names of the steps of ours that run."""
    lines = cluster.run("squeue", "--steps", "--noheader", "--format=%j").split()
    return [name for name in lines if name.startswith("steelyard")]


def workers(path: Path) -> list[int]:
    """Processes of the measured side that work below `path`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"steelyard.worker" in words and any(word.startswith(bytes(path)) for word in words):
                found.append(int(entry.name))
    return found


def folder_in(path: Path) -> ResultFolder:
    folder = ResultFolder(path)
    folder.prepare()
    return folder


def test_what_slurm_says_of_the_allocation(allocate: Callable[..., str]) -> None:
    job = allocate("--nodes=2", "--ntasks-per-node=2", "--gres=gpu:fake:3")
    found = read_allocation(os.environ)
    assert found == Allocation(
        job=job, nodes=("n1", "n2"), tasks_per_node=2, cpus_per_node=2, devices_per_node=3, here=None
    )
    words = (
        f"inside Slurm allocation {job}: 2 nodes (n1, n2) with 3 device(s) each; runs start on these nodes with srun"
    )
    said: list[str] = []
    assert isinstance(launcher_here(said.append, [make_spec(workload="tiny")]), AllocationLauncher)
    # A busy machine is told after it.
    assert said[0] == words


def test_many_nodes_make_a_short_command(allocate: Callable[..., str], tmp_path: Path) -> None:
    """A record holds texts of some length, not the names of a thousand nodes."""
    job = allocate("--nodes=1")
    nodes = tuple(f"n{number}" for number in range(1, 1001))
    many = Allocation(job=job, nodes=nodes, tasks_per_node=1, cpus_per_node=8, devices_per_node=4, here=None)
    command = AllocationLauncher(many).command(make_spec(workload="tiny", device="cpu", devices=1000), tmp_path)
    assert "--nodelist=n[1-1000]" in command


def test_the_smallest_share_counts(allocate: Callable[..., str]) -> None:
    allocate("--nodes=2", "--ntasks=3", "--gpus=3")
    found = read_allocation(os.environ)
    assert (found.tasks_per_node, found.cpus_per_node, found.devices_per_node) == (1, 1, 1)


def test_ddp_over_one_two_and_four_nodes(cluster: Cluster, network: dict[str, str], tmp_path: Path) -> None:
    """A study of three cells by the command line, inside one salloc."""
    results = tmp_path / "results"
    run = " ".join([*STEELYARD, "run", "tiny", "--device", "cpu", "--results", str(results), *SHORT])
    script = f"for n in 1 2 4; do {run} --devices $n --study nodes$n > /dev/null || exit 1; done"
    done = subprocess.run(
        ["salloc", "--nodes=4", "--mem=1500", "bash", "-c", script],
        env={**clean_environment(), **cluster.variables, **network},
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * HANG_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("4 nodes (n1, n2, n3, n4) with 1 task(s) each; runs start on these nodes with srun") == 3
    folder = ResultFolder(results)
    for count in (1, 2, 4):
        (record,) = folder.records(f"nodes{count}")
        assert (record.status.code, record.spec.devices) == ("completed", count)
        assert record.launch is not None
        assert (record.launch.launcher, record.launch.exit_code) == ("allocation", 0)
        assert record.launch.scheduled is not None
        assert record.launch.scheduled.nodes == ("n1", "n2", "n3", "n4")[:count]
        assert record.environment is not None
        assert record.environment.node == "n1"
        assert record.environment.allocation == record.launch.scheduled.job
        assert record.environment.facts["env.SLURM_NNODES"] == str(count)
    cluster.wait_until_empty()


def test_devices_are_given_to_the_step(allocate: Callable[..., str], tmp_path: Path) -> None:
    """One device of two: the run sees no more than it asked for."""
    allocate("--nodes=2", "--gres=gpu:2")
    budget = Budget(min_steps=10, max_steps=10, min_seconds=0)
    record = make_run(folder_in(tmp_path), make_spec(workload="tiny", budget=budget), launcher(), lambda _: None)
    assert record.status.code == "completed"
    assert record.environment is not None
    facts = record.environment.facts
    assert (facts["env.SLURM_GPUS_ON_NODE"], facts["env.CUDA_VISIBLE_DEVICES"]) == ("1", "0")


def test_a_run_that_does_not_fit_starts_nothing(allocate: Callable[..., str], tmp_path: Path) -> None:
    job = allocate("--nodes=2")
    spec = make_spec(workload="tiny", device="cpu", devices=3)
    with pytest.raises(InputError, match=f"does not fit the Slurm allocation {job}"):
        make_run(folder_in(tmp_path), spec, launcher(), lambda _: None)


def test_the_time_limit_of_a_run(cluster: Cluster, allocate: Callable[..., str], tmp_path: Path) -> None:
    allocate("--nodes=2")
    record = make_run(folder_in(tmp_path), slow_spec(time_limit_s=2.0), launcher(), lambda _: None)
    assert record.status.code == "time_limit"
    assert (steps(cluster), workers(tmp_path)) == ([], [])


def test_a_step_that_somebody_cancels(cluster: Cluster, allocate: Callable[..., str], tmp_path: Path) -> None:
    job = allocate("--nodes=1")

    def cancel(raw: Path) -> None:
        if (raw / "steps-00000.bin").exists():
            for step in cluster.run("squeue", "--steps", f"--jobs={job}", "--noheader", "--format=%i").split():
                cluster.run("scancel", step, check=False)

    record = make_run(folder_in(tmp_path), slow_spec(), launcher(), cancel)
    assert record.status.code == "cancelled"
    assert record.launch is not None
    assert record.launch.scheduled is not None
    assert (record.launch.scheduled.cause, record.launch.scheduled.state) == ("cancelled", "RUNNING")


def test_the_end_of_the_allocation(cluster: Cluster, allocate: Callable[..., str], tmp_path: Path) -> None:
    job = allocate("--nodes=1", "--time=60")
    ended: list[str] = []

    def end(raw: Path) -> None:
        if not ended and (raw / "steps-00000.bin").exists():
            cluster.end_now(job)
            ended.append(job)

    record = make_run(folder_in(tmp_path), slow_spec(), launcher(), end)
    assert record.status.code == "time_limit"
    assert "DUE TO TIME LIMIT" in record.status.reason


def test_a_step_over_its_memory(allocate: Callable[..., str], tmp_path: Path) -> None:
    """Seen only in what Slurm prints: to the worker it is a kill."""
    allocate("--nodes=2", "--mem=20")
    record = make_run(folder_in(tmp_path), slow_spec(), launcher(), lambda _: None)
    assert record.status.code == "out_of_memory"
    assert "memory limit" in record.status.reason


def test_srun_that_is_killed_leaves_no_step(cluster: Cluster, allocate: Callable[..., str], tmp_path: Path) -> None:
    allocate("--nodes=2")
    killed: list[int] = []

    def kill(raw: Path) -> None:
        if not killed and (raw / "steps-00000.bin").exists():
            ours = [child for child in descendants(os.getpid()) if Path(f"/proc/{child}/comm").read_text() == "srun\n"]
            for process in ours:
                os.kill(process, signal.SIGKILL)
            killed.extend(ours)

    record = make_run(folder_in(tmp_path), slow_spec(), launcher(), kill)
    assert killed
    # Nobody is left who could say why.
    assert record.launch is not None
    assert (record.status.code, record.launch.exit_code) == ("killed", -signal.SIGKILL)
    assert (steps(cluster), workers(tmp_path)) == ([], [])


def slow_command(path: Path) -> list[str]:
    settings = ["--set", "sim.step_time_s=1.0", "--set", "sim.wall_s_per_s=1.0", "--max-seconds", "1000000"]
    return [*STEELYARD, "run", "sim", *settings, "--min-steps", "100000", "--results", str(path)]


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_our_end_is_the_end_of_the_step(
    cluster: Cluster, allocate: Callable[..., str], tmp_path: Path, number: signal.Signals, code: int
) -> None:
    allocate("--nodes=2")
    process = subprocess.Popen(slow_command(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: list(tmp_path.glob(".scratch/*/raw/steps-00000.bin")), "the run has begun")
    assert steps(cluster)
    process.send_signal(number)
    assert process.wait(HANG_S) == code
    until(lambda: not steps(cluster) and not workers(tmp_path), "the step is gone")


def test_nodes_that_do_not_see_our_files(
    allocate: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate("--nodes=2")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(InputError, match="of the allocation cannot run this") as caught:
        launcher().run(make_spec(), tmp_path / "raw", lambda: None)
    assert {problem.field for problem in caught.value.problems} == {"--results", "python"}
    assert "not seen from n1" in str(caught.value)


def test_a_batch_job_on_one_node_is_a_machine_of_its_own(cluster: Cluster, tmp_path: Path) -> None:
    results, output = tmp_path / "results", tmp_path / "output"
    command = " ".join([*STEELYARD, "run", "sim", "--json", "--results", str(results), *SHORT])
    cluster.run("sbatch", "--mem=1500", f"--output={output}", f"--wrap={command}")
    until(lambda: not cluster.queue(), "the job has ended")
    lines = output.read_text().splitlines()
    assert any("1 node (n1) with 1 task(s) each; runs start on this node" in line for line in lines), lines
    record = json.loads(next(line for line in lines if line.startswith("{")))["runs"][0]
    assert (record["launch"]["launcher"], record["environment"]["node"]) == ("local", "n1")


def test_the_doctor_says_what_a_run_would_use(allocate: Callable[..., str]) -> None:
    job = allocate("--nodes=2")
    found = whereabouts(os.environ).message
    assert found.partition(":")[0] == f"inside Slurm allocation {job}"
    assert "runs start on these nodes with srun" in found
