"""Campaigns: planned as files, submitted once, and collected completely despite failures.

Tasks are the real scripts, started as real processes. The answers of the scheduler are scripted here; tests/slurm uses
a real one.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import HANG_S, make_spec, write_study
from steelyard.cli.main import main
from steelyard.contracts.base import to_json_object
from steelyard.contracts.observe import LEASE_FILE, SPEC_FILE, Scheduled
from steelyard.derive.record import derive
from steelyard.errors import InputError, SteelyardError
from steelyard.inputs.site import Place, Site
from steelyard.inputs.study import Expansion, Study, expand, load_study
from steelyard.inputs.validate import parse_object
from steelyard.launch import follow, staging
from steelyard.launch.adopt import adopt, digest_of, find_takeovers
from steelyard.launch.campaign import Campaign, JobArray, TaskState
from steelyard.launch.collect import RunEnd, read_ended, write_ended
from steelyard.launch.follow import look, wait
from steelyard.launch.local_study import set_aside
from steelyard.launch.plan import campaigns, make_campaign, runs_left, under_way
from steelyard.launch.scripts.bash import Raw
from steelyard.launch.scripts.task import node_script, task_script
from steelyard.launch.submit import Submitted, cancel, lock, resume, submit
from steelyard.results.store import ResultFolder, create_once, owner, record_text, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from steelyard.contracts.record import RunRecord

FEW_STEPS = {"min_steps": 20, "max_steps": 20, "min_seconds": 0.0}


class Hand:
    """A scheduler that a test plays: it is told what to say, and starts what the test has it start."""

    name = "slurm"

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self.cancelled: list[str] = []
        self.cleaned: list[str] = []
        self.polls = 0
        self.said: dict[tuple[int, int], TaskState] = {}
        self.usual = TaskState("queued", why="Resources")
        self.answers = True

    def __call__(self, name: str) -> Hand:
        assert name == self.name
        return self

    def check(self, place: Place) -> Any:
        yield from ()

    def most_queued(self, place: Place) -> None:
        return None

    def render(self, campaign: Campaign, job: JobArray) -> dict[str, str]:
        none = Raw('"0"')
        node = node_script(campaign, job, node_rank=none, master=none, port=none)
        return {"job.sh": task_script(campaign, job, node), "node.sh": node}

    def submit(self, campaign: Campaign, job: JobArray, files: Mapping[str, str]) -> str:
        self.submitted.append(job.name)
        return str(len(self.submitted))

    def is_id(self, campaign: Campaign, job: JobArray, text: str) -> bool:
        return text.isdecimal()

    def removed(self, campaign: Campaign) -> str:
        return ""

    def find(self, campaign: Campaign, jobs: Sequence[JobArray]) -> dict[int, str]:
        names = {name: str(number) for number, name in enumerate(self.submitted, 1)}
        return {job.number: names[job.name] for job in jobs if job.name in names}

    def poll(self, campaign: Campaign, jobs: Sequence[JobArray]) -> dict[tuple[int, int], TaskState]:
        self.polls += 1
        if not self.answers:
            raise SteelyardError("the controller does not answer", next_step="ask again")
        tasks = [(job.number, task) for job in jobs for task in range(len(job.tasks))]
        return {key: state for key in tasks if (state := self.said.get(key, self.usual)).phase != "unknown"}

    def fetch(self, campaign: Campaign, job: JobArray, task: int) -> str:
        return ""

    def cancel(self, campaign: Campaign, jobs: Sequence[JobArray]) -> None:
        self.cancelled += [job.name for job in jobs]

    def clean(self, campaign: Campaign, jobs: Sequence[JobArray]) -> None:
        self.cleaned += [job.name for job in jobs]


def ended(cause: Any = None, reason: str = "", state: str = "COMPLETED", **more: Any) -> TaskState:
    said = Scheduled(scheduler="slurm", job="7_0", state=state, cause=cause, reason=reason, **more)
    return TaskState("ended", said)


def place(pool: dict[str, Any] | None = None, **settings: Any) -> Place:
    nodes = {"architecture": "x86_64", "devices_per_node": 2, "device": "cpu", **(pool or {})}
    site = parse_object(Site, {"name": "site", "scheduler": "slurm", "pools": {"cpu": nodes}, **settings}, "a site")
    return Place(site, "cpu")


def study(*, repeats: int = 4, sweep: dict[str, Any] | None = None, search: Any = None, **run: Any) -> Expansion:
    settings = {"workload": "sim", "budget": FEW_STEPS, "crosscheck_steps": 0, **run}
    more = {"search": search} if search else {"repeats": repeats, "sweep": sweep or {}}
    return expand(parse_object(Study, {"name": "s", "run": settings, **more}, "a study"))


def alone(**run: Any) -> Expansion:
    """Simulated runs that are launched one by one, because each has a time limit of its own."""
    return study(time_limit_s=HANG_S, **run)


def plan(folder: ResultFolder, expansion: Expansion, hand: Hand, where: Place | None = None) -> Campaign:
    made = make_campaign(folder, expansion, where or place(), hand)
    assert made is not None
    return made


def sent(folder: ResultFolder, expansion: Expansion, hand: Hand, where: Place | None = None) -> Campaign:
    made = plan(folder, expansion, hand, where)
    submit(folder, "s", hand)
    return made


def lose_id(campaign: Campaign, job: JobArray) -> None:
    """As if the process had died before the scheduler's answer."""
    (campaign.job_folder(job) / "id").unlink()
    campaign.registration.id_file(job.number).unlink()


def start(campaign: Campaign, job: int = 0, task: int = 0) -> subprocess.CompletedProcess[str]:
    script = campaign.path / "jobs" / f"{job:03d}" / "job.sh"
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    command = ["bash", str(script), str(task)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=variables, timeout=HANG_S)


def records(folder: ResultFolder) -> dict[str, RunRecord]:
    return {record.run_id: record for record in folder.records("s")}


@pytest.fixture
def folder(tmp_path: Path) -> ResultFolder:
    return ResultFolder(tmp_path / "results")


@pytest.fixture
def hand() -> Hand:
    return Hand()


# -- planning


def test_a_campaign_is_files_that_a_person_can_run(folder: ResultFolder, hand: Hand) -> None:
    made = plan(folder, study(), hand)
    assert made.path == folder.path.resolve() / "campaigns" / "s" / "0001"
    assert [(job.kind, len(job.tasks), len(job.tasks[0])) for job in made.plan.jobs] == [("packed", 1, 4)]
    text = (made.path / "README").read_text()
    assert f"bash {made.path}/jobs/000/job.sh 0" in text
    code = {path.name for path in (made.path / "worker" / "steelyard").iterdir()}
    modules = "errors extras hostinfo hostload nofollow out_of_memory packed plugins redact version __init__"
    assert code == {"worker", "contracts", "estimate", "data", *(f"{name}.py" for name in modules.split())}
    done = start(made)
    assert done.returncode == 0, done.stderr
    # By hand, without any scheduler: the same command counts them as under way, and collecting finds them.
    assert under_way(folder, "s") == {spec.run_id for spec in study().runs}
    assert make_campaign(folder, study(), place(), hand) is None
    submit(folder, "s", hand)
    hand.usual = ended()
    assert dict(look(folder, "s", hand).totals) == {"completed": 4}


def test_what_is_there_is_not_sent_again(folder: ResultFolder, hand: Hand) -> None:
    first = sent(folder, study(repeats=2), hand)
    start(first)
    hand.usual = ended()
    look(folder, "s", hand)
    second = plan(folder, study(repeats=3), hand)
    assert [task for job in second.plan.jobs for task in job.tasks] == [(study(repeats=3).runs[2].run_id,)]
    assert make_campaign(folder, study(repeats=3), place(), hand) is None


def test_shapes(folder: ResultFolder, hand: Hand) -> None:
    expansion = study(repeats=1, workload="tiny", sweep={"devices": [1, 2, 4, 8]})
    made = plan(folder, expansion, hand)
    shapes = {(job.shape.nodes, job.shape.processes_per_node, job.shape.devices_per_node) for job in made.plan.jobs}
    assert shapes == {(1, 1, 1), (1, 2, 2), (2, 2, 2), (4, 2, 2)}


@pytest.mark.parametrize(
    ("run", "pool", "words"),
    [
        ({"devices": 3}, {}, "3 on nodes with 2 devices; valid: at most 2, or a multiple of it"),
        ({"devices": 8}, {"max_nodes": 2}, "8 devices need 4 nodes; valid: at most 4 devices"),
        ({"device": "cuda"}, {}, "cuda, but the nodes have cpu; valid: cpu, auto"),
        ({"time_limit_s": 600.0}, {"max_time_s": 600}, "time_limit_s: 600; valid: at most 540"),
    ],
)
def test_what_the_place_cannot_give(
    folder: ResultFolder, hand: Hand, run: dict[str, Any], pool: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError) as caught:
        make_campaign(folder, study(workload="tiny", **run), place(pool), hand)
    assert words in str(caught.value)
    assert campaigns(folder, "s") == []


@pytest.mark.parametrize(
    ("run", "site", "limits"),
    [
        ({"time_limit_s": 95.0}, {}, (95, 155)),
        ({"budget": {"max_seconds": 100.0}}, {"limits": {"setup_s": 50}}, (300, 360)),
        ({"budget": {"max_seconds": 100.0, "max_extension": 1.0}}, {"limits": {"setup_s": 50}}, (180, 240)),
        ({"budget": {"epochs": 3}, "epoch_samples": 64}, {"limits": {"unbounded_s": 500}}, (540, 600)),
        ({"budget": {"max_seconds": 1e5}}, {"pools": {"cpu": {"max_time_s": 900}}}, (840, 900)),
    ],
)
def test_time_limits(
    folder: ResultFolder, hand: Hand, run: dict[str, Any], site: dict[str, Any], limits: tuple[int, int]
) -> None:
    pools = site.pop("pools", {"cpu": {}})
    made = plan(folder, study(workload="tiny", repeats=1, **run), hand, place(pools["cpu"], **site))
    assert [(job.shape.run_limit_s, job.task_limit_s) for job in made.plan.jobs] == [limits]


def test_a_cell_that_was_measured_here_sets_its_own_limit(folder: ResultFolder, hand: Hand) -> None:
    few: dict[str, Any] = {"workload": "tiny", "budget": FEW_STEPS, "threads": 1}
    first = sent(folder, study(repeats=1, **few), hand)
    start(first)
    hand.usual = ended()
    look(folder, "s", hand)
    (record,) = records(folder).values()
    assert record.status.code == "completed", record.status
    # As if it had taken this long.
    path = folder.path / "runs" / "s" / record.run_id / "record.json"
    content = json.loads(path.read_text())
    content["launch"]["wall_s"] = 9.0
    path.write_text(json.dumps(content))
    second = plan(folder, study(repeats=2, **few), hand)
    assert [job.shape.run_limit_s for job in second.plan.jobs] == [60]
    # What was measured at another place says nothing of this one.
    other = Place(replace(place().site, name="other"), "cpu")
    third = plan(folder, study(repeats=3, **few), hand, other)
    assert [job.shape.run_limit_s for job in third.plan.jobs] == [900]


@pytest.mark.parametrize(
    ("limits", "arrays"),
    [
        ({}, [12]),
        ({"array_size": 5}, [5, 5, 2]),
        ({"max_submitted": 6}, [6]),
        ({"max_submitted": 6, "array_size": 4}, [4, 2]),
        ({"max_submitted": 1}, [1]),
    ],
)
def test_tasks_stay_within_the_limits(
    folder: ResultFolder, hand: Hand, limits: dict[str, int], arrays: list[int]
) -> None:
    made = plan(folder, alone(repeats=12), hand, place(limits=limits))
    assert [len(job.tasks) for job in made.plan.jobs] == arrays
    runs = [run for job in made.plan.jobs for task in job.tasks for run in task]
    assert runs == [spec.run_id for spec in alone(repeats=12).runs]
    longest = max(len(task) for job in made.plan.jobs for task in job.tasks)
    assert all(job.task_limit_s == HANG_S * longest + 60 for job in made.plan.jobs)


def test_what_does_not_fit_into_the_queue_comes_later(folder: ResultFolder, hand: Hand) -> None:
    where = place({"max_time_s": int(2 * HANG_S + 60)}, limits={"max_submitted": 3})
    first = sent(folder, alone(repeats=10), hand, where)
    assert [len(task) for job in first.plan.jobs for task in job.tasks] == [2, 2, 2]
    with pytest.raises(SteelyardError, match="is full"):
        make_campaign(folder, alone(repeats=10), where, hand)
    for task in range(3):
        start(first, task=task)
    hand.usual = ended()
    look(folder, "s", hand)
    second = plan(folder, alone(repeats=10), hand, where)
    assert [len(task) for job in second.plan.jobs for task in job.tasks] == [2, 2]


def test_simulated_runs_are_packed(folder: ResultFolder, hand: Hand) -> None:
    made = plan(folder, study(repeats=450), hand)
    assert [(job.kind, [len(task) for task in job.tasks]) for job in made.plan.jobs] == [("packed", [200, 200, 50])]
    # Those that take our time are not.
    slow = expand(parse_object(Study, {"name": "t", "run": {"sim": {"wall_s_per_s": 1.0}}, "repeats": 3}, "a study"))
    (job,) = plan(folder, slow, hand).plan.jobs
    assert (job.kind, len(job.tasks), job.shape.run_limit_s) == ("runs", 3, 900)


def test_a_planner_that_died_leaves_nothing(folder: ResultFolder, hand: Hand) -> None:
    made = plan(folder, study(), hand)
    (made.path / "plan.json").unlink()
    assert under_way(folder, "s") == set()
    again = plan(folder, study(), hand)
    assert (again.path.name, again.plan.campaign != made.plan.campaign) == ("0001", True)
    assert [entry.name for entry in again.path.parent.iterdir()] == ["0001"]


def test_a_dry_run_sends_nothing_and_is_replaced(folder: ResultFolder, hand: Hand) -> None:
    for _ in range(2):
        made = make_campaign(folder, study(), place(), hand, dry_run=True)
        assert made is not None
        assert (made.path.name, (made.path / "jobs" / "000" / "job.sh").is_file()) == ("dry-run", True)
    assert (submit(folder, "s", hand).count, campaigns(folder, "s"), under_way(folder, "s")) == (0, [], set())


def test_the_seed_is_part_of_a_study(folder: ResultFolder, hand: Hand) -> None:
    start(sent(folder, study(), hand))
    hand.usual = ended()
    look(folder, "s", hand)
    other = expand(replace(study(repeats=5).study, seed=1))
    with pytest.raises(InputError, match="another seed"):
        make_campaign(folder, other, place(), hand)


# -- sending once


def test_a_submission_whose_answer_was_lost(folder: ResultFolder, hand: Hand) -> None:
    made = sent(folder, alone(repeats=4), hand, place(limits={"array_size": 1}))
    jobs = made.plan.jobs
    for job in jobs[:3]:
        lose_id(made, job)
    (made.job_folder(jobs[1]) / "trying").unlink()
    hand.submitted[2] = "was never accepted"
    assert submit(folder, "s", hand).count == 2
    assert [made.job_id(job) for job in jobs] == ["1", "5", "6", "4"]
    assert hand.submitted[4:] == [jobs[1].name, jobs[2].name]


def test_a_job_that_has_run_is_not_submitted_again_because_its_scheduler_has_forgotten_it(
    folder: ResultFolder, hand: Hand
) -> None:
    made = sent(folder, study(), hand)
    start(made)
    lose_id(made, made.plan.jobs[0])
    hand.submitted.clear()
    assert submit(folder, "s", hand).count == 0
    assert dict(look(folder, "s", hand).totals) == {"completed": 4}
    assert hand.polls == 0


def test_a_job_that_begins_while_its_scheduler_is_asked_is_not_forgotten(folder: ResultFolder, hand: Hand) -> None:
    """A look comes between the submission and its answer; the job leaves traces right after it was looked for."""
    made = sent(folder, study(), hand)
    (job,) = made.plan.jobs
    lose_id(made, job)

    class Slow(Hand):
        def find(self, campaign: Campaign, jobs: Sequence[JobArray]) -> dict[int, str]:
            (made.job_folder(job) / "0.out").touch()
            return {}

    assert dict(look(folder, "s", Slow()).totals) == {"planned": 4}
    assert made.job_id(job) is None
    look(folder, "s", hand)
    assert made.job_id(job) == "1"


def test_a_campaign_of_another_version_hinders_no_other(folder: ResultFolder, hand: Hand) -> None:
    first = sent(folder, alone(repeats=1), hand)
    start(first)
    hand.usual = ended()
    look(folder, "s", hand)
    text = (first.path / "plan.json").read_text()
    (first.path / "plan.json").write_text(text.replace('"schema_version": 1', '"schema_version": 9', 1))
    second = sent(folder, alone(repeats=2), hand)
    start(second)
    now = look(folder, "s", hand)
    assert dict(now.totals) == {"completed": 1}
    assert (len(now.problems), "schema_version" in now.problems[0]) == (1, True)


def test_a_record_that_is_gone_hides_no_other(folder: ResultFolder, hand: Hand) -> None:
    made = sent(folder, study(), hand)
    start(made)
    hand.usual = ended()
    look(folder, "s", hand)
    (made.path / "ended.jsonl").write_text('{"run": "x", "code": ["completed"], "reason": ""}\n')
    next((folder.path / "runs" / "s").glob("*/record.json")).unlink()
    now = look(folder, "s", hand)
    assert (dict(now.totals), len(now.problems)) == ({"completed": 3}, 1)


def test_files_of_a_file_server_are_no_runs(folder: ResultFolder, hand: Hand) -> None:
    made = sent(folder, study(), hand)
    (made.path / "runs" / ".nfs0001").touch()
    start(made)
    hand.usual = ended()
    assert dict(look(folder, "s", hand).totals) == {"completed": 4}
    assert ((made.path / "collected").exists(), under_way(folder, "s")) == (True, set())


def test_a_campaign_that_another_look_closes_meanwhile(folder: ResultFolder, hand: Hand) -> None:
    made = sent(folder, study(), hand)
    start(made)

    class Late(Hand):
        def poll(self, campaign: Campaign, jobs: Sequence[JobArray]) -> dict[tuple[int, int], TaskState]:
            hand.usual = ended()
            look(folder, "s", hand)
            return {(0, task): ended() for task, _ in enumerate(os.scandir(campaign.path / "runs"))}

    now = look(folder, "s", Late())
    assert (dict(now.totals), now.problems) == ({"completed": 4}, [])


def test_a_link_that_was_made_although_the_server_says_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """open(2): where an answer was lost, the number of links tells."""
    link = os.link

    def asked_twice(*names: str, **folders: Any) -> None:
        link(*names, **folders)
        link(*names, **folders)

    monkeypatch.setattr(os, "link", asked_twice)
    assert create_once(tmp_path / "a", "ours", tmp_path) is True
    monkeypatch.setattr(os, "link", link)
    assert create_once(tmp_path / "a", "theirs", tmp_path) is False
    assert [path.read_text() for path in tmp_path.iterdir()] == ["ours"]


def test_a_lock_that_was_taken_from_us_stays_theirs(folder: ResultFolder) -> None:
    path = folder.path / "campaigns" / "s" / "lock"
    with lock(folder, "s"):
        path.write_text("theirs.1.2.3\n")
    assert path.exists()


def test_a_job_that_was_refused_is_planned_anew_for_the_mended_site(folder: ResultFolder, hand: Hand) -> None:
    wrong, right = place({"account": "nobody"}), place({"account": "me"})
    first = plan(folder, study(), hand, wrong)
    resume(folder, study(), wrong, hand)
    assert make_campaign(folder, study(), wrong, hand) is None
    resume(folder, study(), right, hand)
    second = plan(folder, study(), hand, right)
    assert submit(folder, "s", hand).count == 1
    assert hand.submitted == [second.plan.jobs[0].name]
    # Should the first one come to life after all, it finds nothing to do.
    done = start(first)
    assert "its folder is missing" in done.stdout
    start(second)
    hand.usual = ended()
    assert dict(look(folder, "s", hand).totals) == {"completed": 4}


def test_what_has_begun_is_not_taken_back(folder: ResultFolder, hand: Hand) -> None:
    made = plan(folder, alone(repeats=2), hand)
    first, second = (task[0] for task in made.plan.jobs[0].tasks)
    (made.raw(first) / LEASE_FILE).write_text("a node\n")
    resume(folder, alone(repeats=2), place({"account": "me"}), hand)
    assert runs_left(made.path) == {first}
    assert second not in under_way(folder, "s")


def test_one_at_a_time(folder: ResultFolder) -> None:
    words = f"another process is working on this study: {os.getpid()} on"
    with lock(folder, "s"), pytest.raises(SteelyardError, match=words), lock(folder, "s"):
        pass
    with lock(folder, "s"), lock(folder, "t"):
        pass
    path = folder.path / "campaigns" / "s" / "lock"
    assert not path.exists()
    # Of this host, with the number of a living process that is another one.
    host, namespace, _, _ = owner().split(".")
    path.write_text(f"{host}.{namespace}.{os.getpid()}.1\n")
    with lock(folder, "s"):
        assert path.read_text().strip() == owner()
    path.write_text("elsewhere.1.2.3\n")
    with pytest.raises(SteelyardError, match="2 on elsewhere") as caught, lock(folder, "s"):
        pass
    assert f"rm {path.resolve()}" in str(caught.value)


def _hold(path: Path, many: int, told: Any) -> None:
    folder, count = ResultFolder(path), 0
    while count < many:
        with contextlib.suppress(SteelyardError), lock(folder, "s"):
            mark = path / "inside"
            handle = os.open(mark, os.O_CREAT | os.O_EXCL)
            os.close(handle)
            mark.unlink()
            count += 1
    told.put(count)


def test_several_that_take_over_from_a_dead_one(folder: ResultFolder) -> None:
    """No two are ever inside, also when all find the same dead holder."""
    home = folder.path / "campaigns" / "s"
    home.mkdir(parents=True)
    host, namespace, _, _ = owner().split(".")
    (home / "lock").write_text(f"{host}.{namespace}.{os.getpid()}.1\n")
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    others = [context.Process(target=_hold, args=(folder.path, 50, told)) for _ in range(3)]
    for other in others:
        other.start()
    assert [told.get(timeout=HANG_S) for _ in others] == [50, 50, 50]
    for other in others:
        other.join()
        assert other.exitcode == 0


# -- collecting


def test_states_on_the_way(folder: ResultFolder, hand: Hand) -> None:
    where = place(limits={"max_submitted": 2})
    expansion = alone(repeats=2, sweep={"batch": [1, 2]})
    made = sent(folder, expansion, hand, where)
    assert dict(look(folder, "s", hand).totals) == {"queued": 4}
    hand.said[0, 0] = TaskState("running")
    now = look(folder, "s", hand)
    assert (dict(now.totals), now.why) == ({"queued": 3, "running": 1}, {"Resources": 1})
    start(made, task=0)
    assert dict(look(folder, "s", hand).totals) == {"ended": 2, "queued": 2}
    hand.said[0, 0] = ended(nodes=("n1",), elapsed_s=12.0, energy_j=5.0)
    now = look(folder, "s", hand)
    assert (dict(now.totals), now.collected) == ({"completed": 2, "queued": 2}, 2)
    assert set(now.labels.values()) == {"batch=1", "batch=2"}
    record = next(iter(records(folder).values()))
    assert record.launch is not None
    assert record.launch.scheduled is not None
    assert (record.launch.host, record.launch.exit_code, record.launch.scheduled.runs) == ("n1", 0, 2)
    assert record.launch.scheduled.elapsed_s == 12.0
    assert not (made.path / "collected").exists()
    start(made, task=1)
    hand.usual = ended()
    assert dict(look(folder, "s", hand).totals) == {"completed": 4}
    assert ((made.path / "collected").exists(), (made.path / "runs").exists()) == (True, False)
    polls = hand.polls
    assert dict(look(folder, "s", hand).totals) == {"completed": 4}
    assert (hand.polls, hand.cleaned) == (polls, [made.plan.jobs[0].name])


def test_a_record_is_what_its_files_give(folder: ResultFolder, hand: Hand) -> None:
    start(sent(folder, study(), hand))
    hand.usual = ended()
    look(folder, "s", hand)
    for run, record in records(folder).items():
        raw = folder.path / "runs" / "s" / run / "raw"
        assert derive(raw) == record
        assert sorted(path.name for path in raw.iterdir()) == sorted(file.name for file in record.raw)
        assert "reserve" not in {file.name for file in record.raw}


CAUSES = {
    "time_limit": "TIMEOUT",
    "out_of_memory": "OUT_OF_MEMORY",
    "node_failure": "NODE_FAIL",
    "preempted": "PREEMPTED",
    "cancelled": "CANCELLED",
}


@pytest.mark.parametrize(("cause", "state"), CAUSES.items())
def test_what_a_scheduler_did_to_a_task(folder: ResultFolder, hand: Hand, cause: Any, state: str) -> None:
    """Of four runs in a task one completed, one was told to end, one was killed in the act, one never began."""
    made = sent(folder, alone(repeats=4), hand, place(limits={"max_submitted": 1}))
    runs = made.plan.jobs[0].tasks[0]
    for run in runs[1:]:
        (made.raw(run) / LEASE_FILE).write_text("a node\n")
    start(made)
    (made.raw(runs[3]) / LEASE_FILE).unlink()
    word = {"kind": "status", "code": "cancelled", "reason": "terminated by SIGTERM", "evidence": {"at_unix_s": 1.0}}
    (made.raw(runs[1]) / "events-00000.jsonl").write_text(json.dumps(word) + "\n")
    (made.raw(runs[2]) / "worker.log").write_text("the last words")
    hand.usual = ended(cause, f"slurm says so: {state}", state, evidence={"limit_s": 60}, nodes=("n1", "n2"))
    assert dict(look(folder, "s", hand).totals) == {"completed": 1, cause: 3}
    found = [records(folder)[run].status for run in runs]
    assert [status.code for status in found] == ["completed", cause, cause, cause]
    assert [status.reason for status in found[1:]] == [
        f"slurm says so: {state}", f"slurm says so: {state}", f"the run never started: slurm says so: {state}",
    ]  # fmt: skip
    evidence = found[2].evidence or {}
    assert {"state": state, "limit_s": 60, "nodes": "n1, n2", "log_tail": "the last words"}.items() <= evidence.items()
    # The last one can never begin now, and the lease tells why.
    launch = records(folder)[runs[3]].launch
    assert launch is not None
    assert (launch.exit_code, launch.wall_s) == (None, 0.0)


def test_a_worker_that_knows_better_than_its_scheduler(folder: ResultFolder, hand: Hand) -> None:
    made = sent(folder, alone(repeats=1), hand)
    (run,) = made.plan.jobs[0].tasks[0]
    (made.raw(run) / LEASE_FILE).write_text("a node\n")
    word = {"kind": "status", "code": "out_of_memory", "reason": "no room", "evidence": {"at_unix_s": 1.0}}
    (made.raw(run) / "events-00000.jsonl").write_text(json.dumps(word) + "\n")
    hand.usual = ended("cancelled", "by user 7", "CANCELLED")
    look(folder, "s", hand)
    assert (records(folder)[run].status.code, records(folder)[run].status.reason) == ("out_of_memory", "no room")


def test_a_task_that_ended_by_itself_without_a_word(folder: ResultFolder, hand: Hand) -> None:
    made = sent(folder, alone(repeats=2), hand)
    begun, not_begun = (task[0] for task in made.plan.jobs[0].tasks)
    (made.raw(begun) / LEASE_FILE).write_text("a node\n")
    made.output_file(made.plan.jobs[0], 1).write_text("module: not found\n")
    hand.usual = ended()
    look(folder, "s", hand)
    first, second = records(folder)[begun].status, records(folder)[not_begun].status
    assert (first.code, first.reason) == ("failed", "the task ended without reporting how this run ended")
    assert (second.code, second.reason) == ("failed", "the run never started: the task ended before it")
    assert (second.evidence or {})["output_tail"] == "module: not found\n"


@pytest.mark.parametrize(
    ("line", "log", "code", "words"),
    [
        ("124 100.000 160.500", "", "time_limit", "ended by its time limit after 60.5 s"),
        ("137 100.000 101.000", "", "killed", "the worker was ended by signal 9"),
        ("1 100.000 101.000", "boom", "failed", "the worker ended with exit code 1 and no status"),
        (
            "137 100.000 101.000",
            "slurmstepd-n1: error: StepId=5.0 exceeded memory limit (200 > 100), being killed\n",
            "out_of_memory",
            "Slurm killed the run at the memory limit of its job",
        ),
        (
            "137 100.000 101.000",
            "slurmstepd: error: Detected 1 oom_kill event in StepId=5.0. Some of the step tasks have been killed.\n",
            "out_of_memory",
            "Slurm killed the run at the memory limit of its job",
        ),
        (
            "137 100.000 101.000",
            "[2026-11-15T10:00:00.123] error: Detected 1 oom_kill event in StepId=5.0. Some of the step tasks have\n",
            "out_of_memory",
            "Slurm killed the run at the memory limit of its job",
        ),
    ],
)
def test_exit_codes(folder: ResultFolder, hand: Hand, line: str, log: str, code: str, words: str) -> None:
    made = sent(folder, alone(repeats=2), hand, place(limits={"max_submitted": 1}))
    first, second = made.plan.jobs[0].tasks[0]
    for run in (first, second):
        (made.raw(run) / LEASE_FILE).write_text("a node\n")
    (made.raw(first) / "worker.log").write_text(log)
    made.done_file(made.plan.jobs[0], 0).write_text(f"{first} {line}\n")
    # What ended the task is about the run that was the last to begin, not about those before it.
    hand.usual = ended("preempted", "for somebody else", "PREEMPTED")
    look(folder, "s", hand)
    assert (records(folder)[first].status.code, records(folder)[first].status.reason) == (code, words)
    assert records(folder)[second].status.code == "preempted"


def test_our_own_time_limit(folder: ResultFolder, hand: Hand) -> None:
    endless = {"sim": {"step_time_s": 1.0, "wall_s_per_s": 1.0}, "budget": {"max_seconds": 1e6, "min_steps": 10_000}}
    made = sent(folder, study(repeats=1, time_limit_s=1.0, **endless), hand)
    start(made)
    hand.usual = ended()
    look(folder, "s", hand)
    (record,) = records(folder).values()
    assert (record.status.code, record.launch is not None and record.launch.limit_hit) == ("time_limit", True)


def test_a_completed_run_stays_completed(folder: ResultFolder, hand: Hand) -> None:
    """Its task was at its very end when the node failed: the line is not there, the measurement is."""
    made = sent(folder, alone(repeats=1), hand)
    start(made)
    made.done_file(made.plan.jobs[0], 0).unlink()
    hand.usual = ended("node_failure", "n1 is down", "NODE_FAIL")
    assert dict(look(folder, "s", hand).totals) == {"completed": 1}


def test_a_scheduler_that_does_not_answer(folder: ResultFolder, hand: Hand) -> None:
    made = sent(folder, study(), hand)
    start(made)
    hand.answers = False
    now = look(folder, "s", hand)
    assert (dict(now.totals), now.collected, len(now.problems)) == ({"unknown": 4}, 0, 1)
    assert "the controller does not answer" in now.problems[0]
    hand.answers, hand.usual = True, ended()
    assert dict(look(folder, "s", hand).totals) == {"completed": 4}


def test_a_task_that_its_scheduler_has_forgotten(
    folder: ResultFolder, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sent(folder, alone(repeats=3), hand)
    runs = [task[0] for task in made.plan.jobs[0].tasks]
    start(made, task=0)
    (made.raw(runs[1]) / LEASE_FILE).write_text("a node\n")
    hand.usual = TaskState("unknown")
    # All its runs have said how they ended: nothing more is needed.
    assert dict(look(folder, "s", hand).totals) == {"completed": 1, "unknown": 2}
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + follow.LOST_AFTER_S + 1)
    # A worker still writes.
    (made.raw(runs[1]) / "worker.log").write_text("still here")
    look(folder, "s", hand)
    assert dict(look(folder, "s", hand).totals) == {"completed": 1, "unknown": 1, "failed": 1}
    monkeypatch.setattr(time, "time", lambda: now_s + 2 * follow.LOST_AFTER_S + 2)
    now = look(folder, "s", hand)
    assert dict(now.totals) == {"completed": 1, "failed": 2}
    assert {reason for _, reason in now.causes} == {
        "the scheduler no longer knows this job", "the run never started: the scheduler no longer knows this job",
    }  # fmt: skip


def test_a_task_that_is_given_up_without_an_account_of_it(
    folder: ResultFolder, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its scheduler has lost its memory; a worker that still writes is not robbed of its folder."""
    made = sent(folder, alone(repeats=1), hand)
    (run,) = made.plan.jobs[0].tasks[0]
    (made.raw(run) / LEASE_FILE).write_text("a node\n")
    hand.usual = replace(ended("failed", "forgotten", "GONE"), phase="unknown")
    assert dict(look(folder, "s", hand).totals) == {"unknown": 1}
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + follow.LOST_AFTER_S + 1)
    assert dict(look(folder, "s", hand).totals) == {"failed": 1}


def test_a_file_server_whose_clock_is_ahead(folder: ResultFolder, hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    made = sent(folder, alone(repeats=1), hand)
    (run,) = made.plan.jobs[0].tasks[0]
    (made.raw(run) / LEASE_FILE).write_text("a node\n")
    tomorrow_s = time.time() + 86_400
    os.utime(made.raw(run) / LEASE_FILE, (tomorrow_s, tomorrow_s))
    hand.usual = replace(ended("failed", "forgotten", "GONE"), phase="unknown")
    assert dict(look(folder, "s", hand).totals) == {"unknown": 1}
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + follow.LOST_AFTER_S + 1)
    assert dict(look(folder, "s", hand).totals) == {"failed": 1}


def test_files_that_take_their_time_on_a_network_file_system(
    folder: ResultFolder, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sent(folder, alone(repeats=1), hand)
    monkeypatch.setattr(follow.hostinfo, "mount_of", lambda *_: follow.hostinfo.MountPoint("/", "nfs4", "", ""))
    hand.usual = ended()
    assert dict(look(folder, "s", hand).totals) == {"ended": 1}
    start(made)
    assert dict(look(folder, "s", hand).totals) == {"completed": 1}


def test_a_run_that_was_made_elsewhere_as_well(folder: ResultFolder, hand: Hand) -> None:
    made = sent(folder, study(repeats=1), hand)
    start(made)
    (run,) = made.plan.jobs[0].tasks[0]
    scratch = folder.open_scratch(study().runs[0])
    other = derive(scratch / "raw")
    assert folder.commit(scratch, other)
    hand.usual = ended()
    look(folder, "s", hand)
    assert records(folder) == {run: other}
    assert (folder.path / "superseded" / "s" / f"{run}.1" / "record.json").is_file()


def test_a_run_whose_files_are_damaged_holds_up_no_other(folder: ResultFolder, hand: Hand) -> None:
    made = sent(folder, study(repeats=3), hand)
    start(made)
    bad = made.plan.jobs[0].tasks[0][1]
    (made.raw(bad) / SPEC_FILE).write_text("{}")
    hand.usual = ended()
    now = look(folder, "s", hand)
    assert (dict(now.totals), len(now.problems)) == ({"completed": 2, "ended": 1}, 1)
    assert bad in now.problems[0]


def test_a_done_file_that_is_cut_short_or_damaged(folder: ResultFolder, hand: Hand) -> None:
    made = sent(folder, alone(repeats=3), hand, place(limits={"max_submitted": 1}))
    start(made)
    path = made.done_file(made.plan.jobs[0], 0)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + "\0\0\0\n" + lines[2])
    hand.usual = ended()
    assert dict(look(folder, "s", hand).totals) == {"completed": 3}


def _collect_at_once(path: Path, told: Any) -> None:
    hand = Hand()
    hand.usual = ended()
    now = look(ResultFolder(path), "s", hand)
    told.put((now.collected, now.problems))


def test_several_collectors_at_once(folder: ResultFolder, hand: Hand) -> None:
    expansion = study(repeats=90)
    made = sent(folder, expansion, hand)
    for task in range(len(made.plan.jobs[0].tasks)):
        start(made, task=task)
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    others = [context.Process(target=_collect_at_once, args=(folder.path, told)) for _ in range(3)]
    for other in others:
        other.start()
    said = [told.get(timeout=HANG_S) for _ in others]
    for other in others:
        other.join()
    assert [problems for _, problems in said] == [[], [], []]
    assert sum(count for count, _ in said) == 90
    found = records(folder)
    assert set(found) == {spec.run_id for spec in expansion.runs}
    assert not (folder.path / "superseded").exists()
    for run, record in list(found.items())[::10]:
        assert derive(folder.path / "runs" / "s" / run / "raw") == record


# -- killed at every step

CHANGES = ("os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "os.truncate", "test.accepted")


def killed_at(step: int, action: Callable[[], object]) -> bool:
    """Do something in a process that is killed at its n-th change of a file; whether it was."""
    child = os.fork()
    if child == 0:
        count = 0

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal count
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if event in CHANGES or writes:
                count += 1
                if count == step:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            # Compiled modules that an import writes are not counted.
            sys.dont_write_bytecode = True
            sys.addaudithook(hook)
            action()
        except BaseException:  # noqa: BLE001 -- the parent sees the exit code
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), f"exit status {status} at step {step}"
    return status != 0


class Kept(Hand):
    """One that remembers what it accepted over the deaths of those who asked."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        self.submitted = file.read_text().split() if file.exists() else []

    def submit(self, campaign: Campaign, job: JobArray, files: Mapping[str, str]) -> str:
        handle = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(handle, f"{job.name}\n".encode())
        os.close(handle)
        # The moment in which it is queued and nobody knows.
        sys.audit("test.accepted", "")
        return super().submit(campaign, job, files)


def test_killed_at_every_step_of_planning_and_submitting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The copies of the code are many, and all alike.
    monkeypatch.setattr(staging, "MEASURED_SIDE", ())
    monkeypatch.setattr(staging, "MEASURED_FILES", ("__init__.py",))
    expansion, where = alone(repeats=3), place(limits={"array_size": 2})
    for step in range(1, 1000):
        folder, file = ResultFolder(tmp_path / str(step)), tmp_path / f"{step}.accepted"

        def command(folder: ResultFolder = folder, file: Path = file) -> None:
            kept = Kept(file)
            with lock(folder, "s"):
                resume(folder, expansion, where, kept)
                make_campaign(folder, expansion, where, kept)
                submit(folder, "s", kept)

        killed = killed_at(step, command)
        command()
        jobs = {job.name: (each, job) for each in campaigns(folder, "s") for job in each.plan.jobs}
        accepted = file.read_text().split()
        assert len(accepted) == len(set(accepted)) == 2
        runs = [run for name in accepted for task in jobs[name][1].tasks for run in task]
        assert sorted(runs) == sorted(spec.run_id for spec in expansion.runs)
        assert all(jobs[name][0].job_id(jobs[name][1]) for name in accepted)
        if not killed:
            break
    assert 30 < step < 200


def test_killed_at_every_step_of_collecting(folder: ResultFolder, hand: Hand, tmp_path: Path) -> None:
    expansion = alone(repeats=3)
    made = sent(folder, expansion, hand)
    for task in range(2):
        start(made, task=task)
    hand.usual = ended("preempted", "for somebody else", "PREEMPTED")
    for step in range(1, 1000):
        copy = ResultFolder(tmp_path / str(step))
        shutil.copytree(folder.path, copy.path)
        adopt(copy, "s", digest_of(find_takeovers(copy, "s", hand)), hand)
        killed = killed_at(step, lambda copy=copy: look(copy, "s", hand))  # type: ignore[misc]
        now = look(copy, "s", hand)
        assert (dict(now.totals), now.problems) == ({"completed": 2, "preempted": 1}, [])
        found = records(copy)
        assert set(found) == {spec.run_id for spec in expansion.runs}
        assert all(derive(copy.path / "runs" / "s" / run / "raw") == record for run, record in found.items())
        assert (copy.path / "campaigns" / "s" / "0001" / "collected").exists()
        assert not (copy.path / "superseded").exists()
        assert [*copy.path.rglob("campaigns/**/.*")] == []
        if not killed:
            break
    assert 15 < step < 200


# -- a study of several kinds


def test_a_search_is_one_task(folder: ResultFolder, hand: Hand) -> None:
    memory = {"limit_bytes": 1000.0, "bytes_per_sample": 100.0}
    expansion = study(search={"first": 1, "last": 64}, sim={"memory": memory})
    made = sent(folder, expansion, hand)
    (job,) = made.plan.jobs
    # The start of Python is in the limit of every run.
    assert (job.kind, len(job.tasks), job.shape.run_limit_s) == ("search", 1, 360)
    done = start(made)
    assert "largest batch known to fit: 10" in done.stdout
    hand.usual = ended()
    now = look(folder, "s", hand)
    tried = {record.spec.batch: record.status.code for record in records(folder).values()}
    assert (tried[10], tried[11]) == ("completed", "out_of_memory")
    assert len(tried) < len(expansion.searches[0].runs)
    assert (now.totals.total(), now.waiting, (made.path / "collected").exists()) == (len(tried), {}, True)
    assert make_campaign(folder, expansion, place(), hand) is None


def test_a_search_that_was_broken_off_goes_on(folder: ResultFolder, hand: Hand) -> None:
    expansion = study(search={"first": 1, "last": 64}, sim={"memory": {"limit_bytes": 1e3, "bytes_per_sample": 1e2}})
    sent(folder, expansion, hand)
    hand.usual = ended("preempted", "for somebody else", "PREEMPTED")
    assert dict(look(folder, "s", hand).totals) == {"preempted": 1}
    # Not by itself: what failed for another reason than memory is looked at first.
    assert make_campaign(folder, expansion, place(), hand) is None
    assert set_aside(folder, expansion, "preempted") == 1
    made = sent(folder, expansion, hand)
    start(made)
    hand.usual = ended()
    look(folder, "s", hand)
    assert max(r.spec.batch for r in records(folder).values() if r.status.code == "completed") == 10


def test_again(folder: ResultFolder, hand: Hand) -> None:
    made = sent(folder, alone(repeats=2), hand)
    lost = made.plan.jobs[0].tasks[1][0]
    start(made, task=0)
    hand.usual = ended("preempted", "for somebody else", "PREEMPTED")
    look(folder, "s", hand)
    assert set_aside(folder, alone(repeats=2), "failed,hung") == 0
    assert set_aside(folder, alone(repeats=2), "preempted") == 1
    assert (folder.path / "superseded" / "s" / f"{lost}.1" / "record.json").is_file()
    assert dict(look(folder, "s", hand).totals) == {"completed": 1}
    second = sent(folder, alone(repeats=2), hand)
    assert second.plan.jobs[0].tasks == ((lost,),)
    start(second)
    assert dict(look(folder, "s", hand).totals) == {"completed": 2}
    with pytest.raises(InputError, match="one or more of not_converged"):
        set_aside(folder, alone(repeats=2), "completed")


def test_cancel(folder: ResultFolder, hand: Hand) -> None:
    made = sent(folder, alone(repeats=2), hand, place(limits={"array_size": 1}))
    lose_id(made, made.plan.jobs[1])
    (made.job_folder(made.plan.jobs[1]) / "trying").unlink()
    assert cancel(folder, "s", hand) == 2
    assert hand.cancelled == [made.plan.jobs[0].name]
    hand.usual = ended("cancelled", "by user 7", "CANCELLED")
    # The one that was sent has its record; the other is simply not made.
    assert dict(look(folder, "s", hand).totals) == {"cancelled": 1}
    assert under_way(folder, "s") == set()


def test_waiting(folder: ResultFolder, hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    made = sent(folder, study(), hand)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        hand.answers = len(pauses) != 2
        if len(pauses) == 4:
            start(made)
            hand.usual = ended()

    monkeypatch.setattr(follow, "time", SimpleNamespace(sleep=pause, time=time.time))
    told: list[dict[str, int]] = []
    wait(folder, "s", lambda now: told.append(dict(now.totals)), hand)
    assert told == [{"queued": 4}, {"queued": 4}, {"unknown": 4}, {"queued": 4}, {"completed": 4}]
    assert pauses == [1.5, 2.25, 3.375, 5.0625]


# -- the command line


def test_a_study_that_is_out_is_not_made_here_too(
    folder: ResultFolder, hand: Hand, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sent(folder, study(), hand)
    file = write_study(tmp_path / "s.toml")
    assert main(["study", str(file), "--results", str(folder.path)]) == 2
    assert "4 runs of s submitted to a site and not collected" in capsys.readouterr().err


@pytest.mark.usefixtures("capsys")
def test_what_has_ended_is_collected_before_it_is_made_again(
    folder: ResultFolder, hand: Hand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_study(tmp_path / "s.toml", workload="sim", time_limit_s=30.0)
    sent(folder, expand(load_study(file), tmp_path), hand)
    hand.usual = ended("preempted", "for somebody else", "PREEMPTED")
    monkeypatch.setattr("steelyard.cli.study.look", lambda home, name, **_: look(home, name, hand))
    monkeypatch.setattr("steelyard.cli.study.send", lambda *_, **__: Submitted(0))
    site = tmp_path / "site.toml"
    site.write_text('name="a"\nscheduler="slurm"\n[pools.p]\narchitecture="x86_64"\ndevices_per_node=1\n')
    words = ["study", str(file), "--site", str(site), "--again", "preempted", "--results", str(folder.path)]
    assert main(words) == 0
    assert len(list((folder.path / "superseded" / "s").iterdir())) == 12


def test_status_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--results", str(tmp_path)]) == 0
    assert "no study was submitted" in capsys.readouterr().out
    assert main(["status", "x", "--results", str(tmp_path)]) == 2
    assert main(["status", "--cancel", "--results", str(tmp_path)]) == 2
    assert "--cancel needs a study" in capsys.readouterr().err


# -- how contracts are written

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=30,
)


@given(VALUES)
def test_contracts_are_written_as_json_would(value: Any) -> None:
    assert record_text(value) == json.dumps(value, indent=1, allow_nan=False) + "\n"


def test_a_spec_is_written_as_json_would(tmp_path: Path) -> None:
    spec = make_spec(model={"size": "13B"}, time_limit_s=1.5)
    write_json(tmp_path / "x", spec)
    assert (tmp_path / "x").read_text() == json.dumps(to_json_object(spec), indent=1) + "\n"
    with pytest.raises(ValueError, match="Out of range float"):
        record_text({"a": float("nan")})


def test_why_a_run_was_too_short_is_written_down(tmp_path: Path) -> None:
    made = [RunEnd("a-r0000", "completed", "", "SY202 stopped"), RunEnd("a-r0001", "failed", "it crashed")]
    write_ended(tmp_path, made)
    assert list(read_ended(tmp_path, {"a-r0000", "a-r0001"}).values()) == made
