"""The scripts of a campaign, really run by bash: quoting, leases, limits, signals, ranks; and the worker in them."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import injection_cases as injection
from conftest import HANG_S, until
from ports import port_block
from steelyard.contracts.observe import LEASE_FILE, SPEC_FILE, WORKER_LOG, read_events
from steelyard.errors import DamagedDataError, InputError
from steelyard.inputs.site import Pool, Site
from steelyard.inputs.study import Study, expand
from steelyard.launch.campaign import Campaign, JobArray, JobKind, Plan, Price, RunShape
from steelyard.launch.scripts import bash
from steelyard.launch.scripts import task as script
from steelyard.launch.scripts.bash import Raw, line, quoted
from steelyard.launch.scripts.task import LIMIT_HIT, node_script, read_done, task_script
from steelyard.launch.staging import stage
from steelyard.results.store import record_text
from steelyard.worker import __main__ as worker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from steelyard.contracts.spec import RunSpec

SHORT = {"min_steps": 20, "max_steps": 20, "min_seconds": 0.0}


def runs_of(repeats: int = 3, **run: Any) -> tuple[RunSpec, ...]:
    return expand(Study(name="study", repeats=repeats, run={"budget": SHORT, "crosscheck_steps": 0, **run})).runs


def make_campaign(
    path: Path,
    tasks: Sequence[Sequence[RunSpec]],
    kind: JobKind = "runs",
    *,
    pool: dict[str, Any] | None = None,
    site: dict[str, Any] | None = None,
    python: str = sys.executable,
    start: Sequence[str] = (),
    task_limit_s: int = 3600,
    **shape: Any,
) -> tuple[Campaign, JobArray]:
    """A campaign on disk as it would be sent, but with this machine's own code."""
    pools = {"p": Pool(architecture="x86_64", devices_per_node=2, **(pool or {}))}
    whole = Site(name="site", scheduler="slurm", pools=pools, **(site or {}))
    usual = {"nodes": 1, "processes_per_node": 1, "devices_per_node": 0, "threads": 1, "run_limit_s": int(HANG_S)}
    usual["sharing"] = shape.get("processes_per_node", 1)
    job = JobArray(
        number=0, name="sy-test-000", kind=kind, shape=RunShape(**(usual | shape)), task_limit_s=task_limit_s,
        tasks=tuple(tuple(spec.run_id for spec in task) for task in tasks),
    )  # fmt: skip
    price = Price(device_hours=0, node_hours=0, charge=0, charge_unit="", expected_s=None, basis="")
    path.mkdir(parents=True)
    plan = Plan(
        study="study", campaign="0" * 12, created_at="", made_by="", site=whole, pool="p", image=None,
        worker_sha256=stage(path / "worker"), python=python, jobs=(job,), price=price,
    )  # fmt: skip
    campaign = Campaign(path, plan)
    folder = campaign.job_folder(job)
    folder.mkdir(parents=True)
    (folder / "tasks").write_text("".join(" ".join(task) + "\n" for task in job.tasks))
    variables = [Raw(f'"${name}"') for name in ("SLURM_NODEID", script.MEETING_HOST, script.MEETING_PORT)]
    node = node_script(campaign, job, node_rank=variables[0], master=variables[1], port=variables[2])
    (folder / "node.sh").write_text(node)
    (folder / "job.sh").write_text(task_script(campaign, job, node, start=start))
    for spec in (spec for task in tasks for spec in task):
        campaign.raw(spec.run_id).mkdir(parents=True)
        (campaign.raw(spec.run_id) / SPEC_FILE).write_text(record_text(spec))
    return campaign, job


def variables_of_nobody() -> dict[str, str]:
    """As of somebody who is in no job."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "OMP", "PYTHON"))}


def by_hand(campaign: Campaign, job: JobArray, task: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", campaign.job_folder(job) / "job.sh", task], env=variables_of_nobody(), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False, timeout=HANG_S,
    )  # fmt: skip


def statuses(raw: Path) -> list[str]:
    """Return the statuses that its processes reported."""
    events = (event for path in sorted(raw.glob("events-*.jsonl")) for event in read_events(path))
    return [event["code"] for event in events if event["kind"] == "status"]


def wait_for(path: Path) -> None:
    until(path.exists, str(path))


# -- quoting


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(st.lists(injection.texts() | st.binary().map(os.fsdecode), min_size=30, max_size=60))
def test_a_quoted_word_is_that_word(words: list[str]) -> None:
    given_words = [word.replace("\0", "") for word in words]
    script_text = f"printf '%s\\0' x {line(given_words)}\n"
    assert "\n" not in script_text[:-1]  # one value never becomes a line of its own
    done = subprocess.run(["bash"], input=script_text.encode(), stdout=subprocess.PIPE, check=True, timeout=HANG_S)
    assert [os.fsdecode(word) for word in done.stdout.split(b"\0")[1:-1]] == given_words


def test_plain_words_stay_readable_and_others_do_not_become_more_than_words() -> None:
    assert line(["srun", "--nodes=2", "/a/b.c", Raw('"$x"')]) == 'srun --nodes=2 /a/b.c "$x"'
    assert quoted("A=b") == "'A=b'"
    assert quoted("time") == "'time'"
    assert quoted("") == "''"
    assert quoted("it's") == "'it'\\''s'"
    assert quoted("a\r\nb") == "$'a\\015\\012b'"
    with pytest.raises(InputError, match="NUL"):
        quoted("a\0b")


# -- nothing is injected


@pytest.fixture
def bench(tmp_path_factory: pytest.TempPathFactory) -> injection.Bench:
    return injection.Bench(tmp_path_factory.mktemp("injection") / "bench")


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(case=injection.cases())
def test_what_a_stranger_writes_reaches_no_shell(bench: injection.Bench, case: injection.Case) -> None:
    outcome = injection.check(bench, case)
    assert outcome.changed == []
    assert outcome.made == []


PLAIN = injection.Case(
    study="s", folder="f", python="p", environment={}, modules=(), init=None, image="a/b:1", mounts=(), options=(),
    meeting_host=None, arguments=(), runtime="none", kind="runs", shape="one", start="torchrun", threads=None,
    by_hand=False, asked={},
)  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"environment": {"A": "$(touch CANARY)"}},
        {"environment": {"A": "a b"}},
        {"folder": "a;touch injected"},
        {"python": "$(touch injected)"},
        {"arguments": ("`touch CANARY`",)},
        {"meeting_host": "x; touch CANARY", "shape": "nodes"},
        {"runtime": "podman", "image": "i$(touch CANARY)"},
        {"runtime": "docker", "mounts": ("$(touch injected)",)},
        {"init": "a b"},
        {"runtime": "docker", "image": "/bin/sh", "environment": {"A": "$(touch CANARY)"}},
    ],
)
def test_the_injection_test_would_see_it(
    bench: injection.Bench, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = dataclasses.replace(PLAIN, **change)
    good = injection.check(bench, case)
    assert not good.impossible
    assert good.changed + good.made == []
    for module in (bash, script):
        monkeypatch.setattr(module, "quoted", str)
    bad = injection.check(bench, case)
    assert bad.changed or bad.made


@pytest.mark.parametrize("runtime", ["none", "podman", "docker", "apptainer"])
def test_no_shell_of_ours_takes_a_variable_for_its_own(bench: injection.Bench, runtime: str) -> None:
    """Bash carries out `$()` in BASH_ENV, and changes or refuses others."""
    names = ("BASH_ENV", "ENV", "PS4", "SHELLOPTS", "BASHOPTS", "UID", "IFS", "RANDOM", "SECONDS", "n", "job")
    given_values = dict.fromkeys(names, "xtrace$(touch CANARY)")
    outcome = injection.check(bench, dataclasses.replace(PLAIN, runtime=runtime, environment=given_values))
    assert not outcome.impossible
    assert outcome.changed + outcome.made == []
    assert outcome.values > len(names)


# -- a task by hand


HOSTILE = "a b'\"$(touch x)\n;-"


@pytest.mark.parametrize("kind", ["runs", "packed"])
def test_a_task_by_hand_makes_its_runs_once(tmp_path: Path, kind: JobKind) -> None:
    specs = runs_of(5)
    campaign, job = make_campaign(tmp_path / HOSTILE, [specs[:2], specs[2:]], kind)
    done = by_hand(campaign, job, "1")
    assert done.returncode == 0, done.stderr
    lines = list(read_done(campaign.done_file(job, 1)))
    assert [entry.run_id for entry in lines] == [spec.run_id for spec in specs[2:]]
    assert all(entry.exit_code == 0 and 0 < entry.ended_unix_s - entry.began_unix_s < HANG_S for entry in lines)
    for spec in specs[2:]:
        raw = campaign.raw(spec.run_id)
        assert statuses(raw) == ["completed"]
        assert (raw / WORKER_LOG).is_file()
        assert (raw / LEASE_FILE).read_text().split()[0] == socket.gethostname()
    assert not (campaign.raw(specs[0].run_id) / LEASE_FILE).exists()
    # Again: everything was begun.
    again = by_hand(campaign, job, "01")
    assert again.returncode == 0
    assert again.stdout.count("or its folder is") == 3
    if kind == "runs":
        assert again.stdout.count("(cannot overwrite existing file)") == 3
    assert len(list(read_done(campaign.done_file(job, 1)))) == 3


@pytest.mark.parametrize("kind", ["runs", "packed"])
def test_two_that_do_the_same_task_share_its_runs(tmp_path: Path, kind: JobKind) -> None:
    specs = runs_of(6)
    campaign, job = make_campaign(tmp_path / "c", [specs], kind)
    words = ["bash", str(campaign.job_folder(job) / "job.sh"), "0"]
    both = [subprocess.Popen(words, env=variables_of_nobody(), stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(HANG_S) for process in both] == [0, 0]
    made = [entry.run_id for entry in read_done(campaign.done_file(job, 0))]
    assert sorted(made) == sorted(spec.run_id for spec in specs)
    assert all(statuses(campaign.raw(spec.run_id)) == ["completed"] for spec in specs)


@pytest.mark.parametrize("task", ["", "x", "-1", "2", "a[$(touch canary)]"])
def test_a_task_that_is_not_there(tmp_path: Path, task: str) -> None:
    specs = runs_of(2)
    campaign, job = make_campaign(tmp_path / "c", [specs[:1], specs[1:]])
    done = by_hand(campaign, job, task)
    assert done.returncode == 2
    assert "task" in done.stderr
    assert not list(tmp_path.rglob("c*nary"))


def test_a_run_that_fails_is_told_and_the_next_is_made(tmp_path: Path) -> None:
    first, second = runs_of(2)
    memory = dataclasses.replace(first.sim.memory, limit_bytes=1.0, bytes_per_sample=1.0)
    first = dataclasses.replace(first, sim=dataclasses.replace(first.sim, memory=memory))
    campaign, job = make_campaign(tmp_path / "c", [(first, second)])
    assert by_hand(campaign, job).returncode == 0
    assert [entry.exit_code for entry in read_done(campaign.done_file(job, 0))] == [1, 0]
    assert statuses(campaign.raw(first.run_id)) == ["out_of_memory"]


def test_the_time_limit_of_a_run(tmp_path: Path) -> None:
    (slow,) = runs_of(1)
    slow = dataclasses.replace(slow, sim=dataclasses.replace(slow.sim, wall_s_per_s=1000.0))
    campaign, job = make_campaign(tmp_path / "c", [(slow,)], run_limit_s=1)
    assert by_hand(campaign, job).returncode == 0
    assert [entry.exit_code for entry in read_done(campaign.done_file(job, 0))] == [LIMIT_HIT]


@pytest.mark.full("the second run must be made within the limit that the first one hits")
def test_the_next_run_after_a_time_limit(tmp_path: Path) -> None:
    slow, quick = runs_of(2)
    slow = dataclasses.replace(slow, sim=dataclasses.replace(slow.sim, wall_s_per_s=1000.0))
    campaign, job = make_campaign(tmp_path / "c", [(slow, quick)], run_limit_s=8)
    assert by_hand(campaign, job).returncode == 0
    assert [entry.exit_code for entry in read_done(campaign.done_file(job, 0))] == [LIMIT_HIT, 0]
    assert statuses(campaign.raw(slow.run_id)) == ["cancelled"]


def test_the_time_limit_of_a_packed_task_is_the_scheduler_s(tmp_path: Path) -> None:
    """Had our own `timeout` ended it, its records would say that its script failed."""
    campaign, job = make_campaign(tmp_path / "c", [runs_of(2)], "packed", task_limit_s=60)
    assert "timeout" not in (campaign.job_folder(job) / "job.sh").read_text()


def test_modules_that_cannot_be_loaded_begin_nothing(tmp_path: Path) -> None:
    specs = runs_of(1)
    campaign, job = make_campaign(tmp_path / "c", [specs])
    (tmp_path / "init").write_text("module() { return 1; }\n")
    modules = dataclasses.replace(campaign.plan.site.modules, init=str(tmp_path / "init"), load=("a/1",))
    site = dataclasses.replace(campaign.plan.site, modules=modules)
    changed = Campaign(campaign.path, dataclasses.replace(campaign.plan, site=site))
    (campaign.job_folder(job) / "job.sh").write_text(
        task_script(changed, job, (campaign.job_folder(job) / "node.sh").read_text())
    )
    done = by_hand(campaign, job)
    assert done.returncode == 1
    assert "cannot load modules" in done.stderr
    assert not (campaign.raw(specs[0].run_id) / LEASE_FILE).exists()


# -- signals


def is_alive(pid: int) -> bool:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        return not select.select([handle], [], [], 0)[0]
    finally:
        os.close(handle)


@pytest.mark.parametrize("kind", ["runs", "packed", "search"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_task_that_is_told_to_end_says_nothing_that_is_not_so(
    tmp_path: Path, kind: JobKind, number: signal.Signals
) -> None:
    """The first run ends, the second is being made when the signal comes, the third is not begun."""
    first, second, third = runs_of(3) if kind != "search" else search_runs(3)
    second = dataclasses.replace(second, sim=dataclasses.replace(second.sim, wall_s_per_s=1000.0))
    campaign, job = make_campaign(tmp_path / "c", [(first, second, third)], kind)
    words = ["bash", str(campaign.job_folder(job) / "job.sh"), "0"]
    # Where these tests run in the background, SIGINT is ignored, and a shell that was started so cannot trap it.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(words, env=variables_of_nobody(), stdout=subprocess.DEVNULL, preexec_fn=heed)
    progress = campaign.raw(second.run_id) / "events-00000.jsonl"
    wait_for(progress)
    process.send_signal(number)
    assert process.wait(HANG_S) == 143
    assert [entry.run_id for entry in read_done(campaign.done_file(job, 0))] == [first.run_id]
    assert statuses(campaign.raw(first.run_id)) == ["completed"]
    assert statuses(campaign.raw(second.run_id)) == ["cancelled"]
    assert not (campaign.raw(third.run_id) / LEASE_FILE).exists()
    assert not list(running(campaign.path))


def running(folder: Path) -> Iterator[int]:
    """Processes that have a path of the campaign among their words."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(folder) in words and is_alive(int(entry.name)):
                yield int(entry.name)


def search_runs(count: int) -> tuple[RunSpec, ...]:
    """Candidates of a search, from 1 on, none of which is passed over."""
    run = {"budget": SHORT, "crosscheck_steps": 0}
    study = Study(name="study", run=run, sweep={"batch": tuple(2**n for n in range(count))}, repeats=1)
    return tuple(sorted(expand(study).runs, key=lambda spec: spec.batch))


# -- several processes


def test_several_processes_of_one_node_by_hand(tmp_path: Path) -> None:
    specs = runs_of(1, workload="tiny", device="cpu", devices=2)
    campaign, job = make_campaign(tmp_path / HOSTILE, [specs], processes_per_node=2, start=["srun", "--nodes=1"])
    done = by_hand(campaign, job)
    raw = campaign.raw(specs[0].run_id)
    log = (raw / WORKER_LOG).read_text()
    assert done.returncode == 0, log
    assert statuses(raw) == ["completed", "completed"], log
    assert not (raw / "torchrun").exists()


def test_several_nodes_need_an_allocation(tmp_path: Path) -> None:
    specs = runs_of(1)
    campaign, job = make_campaign(tmp_path / "c", [specs], nodes=3)
    done = by_hand(campaign, job)
    assert done.returncode == 2
    assert "salloc --nodes=3" in done.stderr
    assert not (campaign.raw(specs[0].run_id) / LEASE_FILE).exists()


def test_tasks_that_share_a_host_meet_at_different_ports(tmp_path: Path) -> None:
    specs = runs_of(1)
    campaign, job = make_campaign(tmp_path / "c", [specs], nodes=2, site={"meeting_host": "127.0.0.1"})
    text = (campaign.job_folder(job) / "job.sh").read_text()
    found = re.search(r"^export STEELYARD_MEETING_PORT=.*$", text, re.MULTILINE)
    assert found is not None
    each = f"for SLURM_JOB_ID in {{4294900000..4294900299}}; do {found.group()}; echo $STEELYARD_MEETING_PORT; done"
    said = subprocess.run(["bash", "-c", each], stdout=subprocess.PIPE, check=True).stdout
    ports = {int(word) for word in said.split()}
    assert len(ports) == 300
    assert 10_000 <= min(ports) <= max(ports) < 30_000


def test_one_task_a_process_takes_its_rank_from_slurm(tmp_path: Path) -> None:
    """Two workers as srun would start them, with node.sh as it would be sent."""
    specs = runs_of(1, workload="tiny", device="cpu", devices=2)
    site = {"environment": {"GLOO_SOCKET_IFNAME": "lo"}}
    campaign, job = make_campaign(tmp_path / "c", [specs], processes_per_node=2, pool={"start": "tasks"}, site=site)
    raw = campaign.raw(specs[0].run_id)
    step = {"SLURM_NODEID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "5", "SLURM_STEP_TASKS_PER_NODE": "2"}
    with port_block() as ports, (tmp_path / "log").open("wb") as log:
        step |= {script.MEETING_HOST: "127.0.0.1", script.MEETING_PORT: str(ports[0]), "RANK": "7"}
        both = [
            subprocess.Popen(
                ["bash", str(campaign.job_folder(job) / "node.sh"), str(raw)], stdout=log, stderr=log,
                env=variables_of_nobody() | step | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            )
            for rank in range(2)
        ]  # fmt: skip
        codes = [process.wait(HANG_S) for process in both]
    assert codes == [0, 0], (tmp_path / "log").read_text()
    assert statuses(raw) == ["completed", "completed"]


def test_ranks_from_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    with pytest.raises(SystemExit, match="srun"):
        worker._take_ranks_from_slurm()
    # The step's own number: the job may have more.
    told = {"SLURM_PROCID": "9", "SLURM_LOCALID": "1", "SLURM_NODEID": "2", "SLURM_NTASKS": "40"}
    told |= {"SLURM_STEP_NUM_TASKS": "11", "SLURM_STEP_TASKS_PER_NODE": "4(x2),3"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)
    worker._take_ranks_from_slurm()
    taken = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
    assert taken == ["9", "11", "1", "3"]
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("SLURM_PROCID", "6")
    worker._take_ranks_from_slurm()
    assert os.environ["RANK"] == "5"
    monkeypatch.delenv("RANK")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "4(y2)")
    with pytest.raises(SystemExit, match="TASKS_PER_NODE"):
        worker._take_ranks_from_slurm()


def test_threads_are_shared_unless_they_are_set(tmp_path: Path) -> None:
    def text(**changes: Any) -> str:
        specs = runs_of(1)
        where = tmp_path / str(len(list(tmp_path.iterdir())))
        campaign, job = make_campaign(where, [specs], **changes)
        return (campaign.job_folder(job) / "node.sh").read_text()

    assert 'share="/4"' in text(threads=None, sharing=4)
    tasks = {"start": "tasks"}
    assert 'share="${SLURM_CPUS_ON_NODE:-}/2"' in text(threads=None, processes_per_node=2, pool=tasks)
    site = {"environment": {"OMP_NUM_THREADS": "8"}}
    for changes, value in (
        ({"threads": 3}, 3),
        ({"threads": None, "site": site}, 8),
        ({"threads": 3, "site": site}, 3),
    ):
        found = text(processes_per_node=2, **changes)
        assert f"OMP_NUM_THREADS={value} " in found
        assert "share=" not in found
        # A job that is submitted from inside a run inherits none.
        assert "STEELYARD_CPU_SHARE='' " in found


def test_a_path_that_python_cannot_import_from_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="colon"):
        make_campaign(tmp_path / "a:b", [runs_of(1)])


# -- what a task has said


def test_done_lines(tmp_path: Path) -> None:
    path = tmp_path / "0.done"
    assert list(read_done(path)) == []
    path.write_text("a-r0000 0 1.5 2.5\nb 137 3.0 4")
    assert [(entry.run_id, entry.exit_code) for entry in read_done(path)] == [("a-r0000", 0)]
    for bad in ("../a 0 1.5 2.5\n", "a 0 1.5\n", "a 999 1.5 2.5\n", "a 0 nan 2.5\n", "x" * 2000):
        path.write_text(bad)
        with pytest.raises(DamagedDataError):
            list(read_done(path))


def test_the_worker_names_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "tasks").write_text("a\n")
    words = [sys.executable, "-m", "steelyard.worker"]
    for more in ([], ["--task", str(tmp_path / "tasks"), "3"]):
        done = subprocess.run([*words, *more], capture_output=True, text=True, check=False, timeout=HANG_S)
        assert done.returncode != 0
        assert "task" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_run_of_several_that_fails_has_its_own_log(tmp_path: Path) -> None:
    specs = runs_of(3)
    campaign, job = make_campaign(tmp_path / "c", [specs], "packed")
    broken = campaign.raw(specs[1].run_id) / SPEC_FILE
    broken.write_text(json.dumps({**json.loads(broken.read_text()), "device": "nothing"}))
    done = by_hand(campaign, job)
    assert done.returncode == 0, done.stderr
    assert [entry.exit_code for entry in read_done(campaign.done_file(job, 0))] == [0, 1, 0]
    assert statuses(campaign.raw(specs[2].run_id)) == ["completed"]
