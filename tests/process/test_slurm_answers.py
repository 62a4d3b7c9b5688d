"""What Slurm answers, and what follows: the real binding with scripted sbatch, squeue, sacct, sacctmgr and scontrol.

Tasks are the real scripts, started as real processes. tests/slurm uses a real Slurm.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import TypeAdapter

from steelyard.contracts.record import RunRecord
from steelyard.derive.record import derive
from steelyard.errors import InputError, SteelyardError
from steelyard.inputs.site import Place, Site
from steelyard.inputs.study import Expansion, Study, expand
from steelyard.inputs.validate import parse_object
from steelyard.launch import collect
from steelyard.launch.follow import StudyStatus, look
from steelyard.launch.plan import make_campaign
from steelyard.launch.slurm import check
from steelyard.launch.slurm.scheduler import Slurm
from steelyard.launch.slurm.states import ENDS
from steelyard.launch.submit import Submitted, cancel, submit
from steelyard.results.store import ResultFolder, record_text
from steelyard.terminal.status import status_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from steelyard.launch.campaign import Campaign

COMMAND = """#!/bin/bash
# Answers what is in the file of its name, if there is one, and writes down how it was called.
echo "${0##*/} $*" >> "$ANSWERS/calls"
cat "$ANSWERS/${0##*/}.err" >&2 2>/dev/null
cat "$ANSWERS/${0##*/}" 2>/dev/null
exit "$(cat "$ANSWERS/${0##*/}.code" 2>/dev/null || echo 0)"
"""
NAMES = ("sbatch", "squeue", "scancel", "scontrol", "sacct", "sacctmgr")
LONG = {"budget": {"min_steps": 100_000, "max_steps": 100_000, "min_seconds": 0.0, "max_seconds": 1e6},
        "sim": {"step_time_s": 0.01, "wall_s_per_s": 1.0}}  # fmt: skip
NOW = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")
SHORT = {"budget": {"min_steps": 20, "max_steps": 20, "min_seconds": 0.0}}


class Site1:
    """A site with a scripted Slurm, and a study of four single runs that is submitted to it."""

    def __init__(self, home: Path, run: dict[str, Any], *, repeats: int = 4, **limits: int) -> None:
        self.answers, self.bin = home / "answers", home / "bin"
        for folder in (self.answers, self.bin):
            folder.mkdir()
        for name in NAMES:
            (self.bin / name).write_text(COMMAND)
            (self.bin / name).chmod(0o755)
        # The starter of a step starts what it is given. Written once: tasks that were started still read it.
        (self.bin / "srun").write_text('#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\nexec "$@"\n')
        (self.bin / "srun").chmod(0o755)
        self.say("scontrol", "ClusterName = scripted\n")
        self.say("sbatch", "7\n")
        self.slurm = Slurm({"PATH": f"{self.bin}:/usr/bin:/bin", "ANSWERS": str(self.answers)})
        self.folder = ResultFolder(home / "results")
        nodes = {"architecture": "x86_64", "devices_per_node": 2, "device": "cpu"}
        site = {"name": "site", "scheduler": "slurm", "pools": {"cpu": nodes}, "limits": limits}
        self.place = Place(parse_object(Site, site, "a site"), "cpu")
        settings = {"workload": "sim", "crosscheck_steps": 0, "time_limit_s": 100.0, **run}
        study = {"name": "s", "run": settings, "repeats": repeats}
        self.expansion: Expansion = expand(parse_object(Study, study, "a study"))

    def say(self, command: str, text: str, *, error: str = "", code: int = 0) -> None:
        """Set what a command answers from now on."""
        (self.answers / command).write_text(text)
        (self.answers / f"{command}.err").write_text(error)
        (self.answers / f"{command}.code").write_text(str(code))

    def send(self) -> Campaign:
        """Plan and submit what is missing."""
        made = make_campaign(self.folder, self.expansion, self.place, self.slurm)
        assert made is not None
        submit(self.folder, "s", lambda _: self.slurm)
        return made

    def send_now(self) -> Submitted:
        """Plan what is missing, and submit what the queue takes."""
        make_campaign(self.folder, self.expansion, self.place, self.slurm)
        return submit(self.folder, "s", lambda _: self.slurm)

    def look(self) -> StudyStatus:
        return look(self.folder, "s", lambda _: self.slurm)

    def calls(self, command: str) -> list[str]:
        lines = (self.answers / "calls").read_text().splitlines()
        return [line for line in lines if line.startswith(f"{command} ")]

    def records(self) -> dict[str, RunRecord]:
        return {record.run_id: record for record in self.folder.records("s")}

    def queue(self, campaign: Campaign, *lines: str) -> None:
        """Set the answer of squeue: `JOB|TASKS|STATE|REASON` of jobs of this campaign."""
        name = campaign.plan.jobs[0].name
        end = "n1|2026-11-17T10:00:00|2026-11-17T10:00:01|0:05"
        self.say("squeue", "".join(f"{line}|{end}|{name}\n" for line in lines))


def start(campaign: Campaign, task: int, job: str | None, **more: str) -> subprocess.Popen[bytes]:
    """Start a task as Slurm does, as part of this job; None: by hand."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    if job is not None:
        variables |= {"SLURM_ARRAY_JOB_ID": job, "SLURM_JOB_ID": "99", "SLURM_ARRAY_TASK_ID": str(task), **more}
    variables["PATH"] = f"{campaign.path.parents[3] / 'bin'}:{variables['PATH']}"
    script = campaign.path / "jobs" / "000" / "job.sh"
    with (campaign.path / "jobs" / "000" / f"{task}.out").open("ab") as output:
        command = ["bash", str(script), str(task)]
        return subprocess.Popen(command, env=variables, stdout=output, stderr=output, start_new_session=True)


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes of a test, which end with it."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        with suppress(ProcessLookupError):
            # The script passes it on to the worker, which has a process group of its own.
            process.terminate()
        process.wait()


def wait_for_file(path: Path, process: subprocess.Popen[bytes]) -> None:
    while not (path.exists() and path.stat().st_size):
        assert process.poll() is None, "the task has ended"


def first_run(campaign: Campaign, task: int = 0) -> str:
    return campaign.plan.jobs[0].tasks[task][0]


def begun(site: Site1, job: str, file: str, started: list[subprocess.Popen[bytes]]) -> tuple[Campaign, Path]:
    """Submit the study and start its first task, which writes a file; return the campaign and the run's folder."""
    made = site.send()
    process = start(made, 0, job)
    started.append(process)
    raw = made.raw(first_run(made))
    wait_for_file(raw / file, process)
    return made, raw


# -- a submission that arrives late


def test_a_copy_that_began_first_is_not_judged_by_the_other(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    site = Site1(tmp_path, LONG)
    made, raw = begun(site, "6", "lease", started)
    assert start(made, 0, "7").wait() == 0
    site.queue(made, "6|0|RUNNING|None", "6|1-3|PENDING|Resources", "7|0|COMPLETED|None", "7|1-3|PENDING|Resources")
    status = site.look()
    assert dict(status.totals) == {"running": 1, "queued": 3}
    assert raw.is_dir()
    # What the copy has not begun is left to the job that is known.
    assert site.calls("scancel") == ["scancel --state=PENDING 6"]
    os.killpg(started[0].pid, signal.SIGKILL)
    site.queue(made, "6|0|NODE_FAIL|None", "7|0|COMPLETED|None", "7|1-3|PENDING|Resources")
    site.look()
    ended = site.records()[first_run(made)]
    assert ended.status.code == "node_failure"
    assert (ended.status.evidence or {})["job"] == "6_0"


def test_a_holder_that_slurm_does_not_know_is_watched(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    """By hand, or a job that Slurm has forgotten: the end of another job says nothing about the run."""
    site = Site1(tmp_path, LONG)
    made = site.send()
    for task, job in ((1, None), (0, "5")):
        process = start(made, task, job)
        started.append(process)
        wait_for_file(made.raw(first_run(made, task)) / "lease", process)
        start(made, task, "7").wait()
    site.queue(made, "7|0-1|COMPLETED|None", "7|2-3|PENDING|Resources")
    assert dict(site.look().totals) == {"unknown": 2, "queued": 2}
    # Somebody's own allocation, in which the script was started.
    site.say("squeue", (site.answers / "squeue").read_text() + "5|N/A|RUNNING|None|n1|N/A|N/A|0:01|bash\n")
    assert dict(site.look().totals) == {"unknown": 1, "running": 1, "queued": 2}


def test_the_late_copy_alone_has_the_result(tmp_path: Path) -> None:
    site = Site1(tmp_path, SHORT, repeats=1)
    made = site.send()
    assert start(made, 0, "6").wait() == 0
    assert start(made, 0, "7").wait() == 0
    site.queue(made, "6|0|COMPLETED|None", "7|0|COMPLETED|None")
    assert dict(site.look().totals) == {"completed": 1}
    (record,) = site.records().values()
    assert record.launch is not None
    assert record.launch.scheduled is not None
    assert record.launch.scheduled.job == "6_0"


def test_cancelling_includes_copies(tmp_path: Path) -> None:
    site = Site1(tmp_path, SHORT)
    made = site.send()
    site.queue(made, "6|0-3|PENDING|Resources", "7|0-3|PENDING|Resources")
    cancel(site.folder, "s", lambda _: site.slurm)
    assert site.calls("scancel") == ["scancel 6 7"]


def test_a_requeued_job_does_not_repeat_its_run(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    site = Site1(tmp_path, LONG, repeats=1)
    made, _ = begun(site, "7", "lease", started)
    os.killpg(started[0].pid, signal.SIGKILL)
    assert start(made, 0, "7", SLURM_RESTART_COUNT="1").wait() == 0
    site.queue(made, "7|0|COMPLETED|None")
    site.look()
    (record,) = site.records().values()
    assert record.status.code == "preempted"
    assert "requeued during this run" in record.status.reason


# -- files of a collected run


def test_what_a_task_prints_has_no_secret_when_the_campaign_is_over(tmp_path: Path) -> None:
    site = Site1(tmp_path, SHORT, repeats=1)
    made = site.send()
    assert start(made, 0, "7").wait() == 0
    output = made.output_file(made.plan.jobs[0], 0)
    secret = "gh" + "p_" + "aB3" * 12
    with output.open("a") as file:
        file.write(f"module: {secret}\n")
    site.queue(made, "7|0|COMPLETED|None")
    assert dict(site.look().totals) == {"completed": 1}
    assert secret not in output.read_text()
    assert "module: [redacted]" in output.read_text()


def test_no_folder_of_the_list_of_campaigns_is_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before = os.umask(0)
    try:
        Site1(tmp_path, SHORT, repeats=1).send()
    finally:
        os.umask(before)
    folders = [path for path in (tmp_path / "state").rglob("*") if path.is_dir()]
    assert len(folders) >= 2
    assert not any(path.stat().st_mode & 0o077 for path in folders)


def test_a_collected_run_never_changes(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    """Its worker lives on, because the daemon of its node was killed."""
    site = Site1(tmp_path, LONG, repeats=1)
    made, raw = begun(site, "7", "events-00000.jsonl", started)
    # A writer with the files open, as the worker has them, and one that comes late.
    files = {path.name: path.open("ab") for path in raw.iterdir() if path.is_file() and path.name != "lease"}
    site.queue(made, "7|0|NODE_FAIL|None")
    site.look()
    there = site.folder.root / "runs" / "s" / first_run(made) / "raw"
    before = {path.name: path.read_bytes() for path in there.iterdir()}
    for file in files.values():
        file.write(b"late\n")
        file.close()
    assert {path.name: path.read_bytes() for path in there.iterdir()} == before
    assert record_text(derive(there)) == (there.parent / "record.json").read_text()
    assert started[0].poll() is None
    assert not raw.exists()


@pytest.mark.parametrize("often", [collect.MAX_DERIVED - 1, collect.MAX_DERIVED], ids=["now and then", "without end"])
def test_a_file_that_appears_while_a_run_is_collected_is_not_in_its_record(
    tmp_path: Path, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch, often: int
) -> None:
    site = Site1(tmp_path, LONG, repeats=1)
    made, _ = begun(site, "7", "events-00000.jsonl", started)
    os.killpg(started[0].pid, signal.SIGKILL)
    started[0].wait()
    late = [f"events-{rank:05}.jsonl" for rank in range(1, often + 1)]

    def derive_late(place: Path) -> RunRecord:
        if late:
            shutil.copy(place / "events-00000.jsonl", place / late.pop())
        return derive(place)

    monkeypatch.setattr("steelyard.derive.record.derive", derive_late)
    site.queue(made, "7|0|NODE_FAIL|None")
    status = site.look()
    assert late == []
    if often == collect.MAX_DERIVED:
        (problem,) = status.problems
        assert problem.endswith("its processes live on and keep making files; end them first")
        site.look()
    there = site.folder.root / "runs" / "s" / first_run(made) / "raw"
    assert [path.name for path in there.glob("events-*")] == ["events-00000.jsonl"]
    assert record_text(derive(there)) == (there.parent / "record.json").read_text()


# -- limits on jobs in the queue

QOS_FULL = (
    "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates "
    "accounting/QOS policy (job submit limit, user's size and/or time limits)\n"
)


def test_a_full_queue_is_waited_for(tmp_path: Path) -> None:
    site = Site1(tmp_path, SHORT)
    site.say("squeue", "3|N/A|RUNNING|None|n1|N/A|N/A|0:01|another\n")
    site.say("sbatch", "", error=QOS_FULL, code=1)
    assert site.send_now().full == "Slurm takes no more jobs now: QOSMaxSubmitJobPerUserLimit"
    assert dict(site.look().totals) == {"planned": 4}
    site.say("sbatch", "7\n")
    assert submit(site.folder, "s", lambda _: site.slurm).count == 1


def test_a_job_above_the_limit_is_an_error(tmp_path: Path) -> None:
    """Waiting would not help: nothing of ours is in the queue."""
    site = Site1(tmp_path, SHORT)
    site.say("squeue", "")
    site.say("sbatch", "", error=QOS_FULL, code=1)
    with pytest.raises(SteelyardError, match="larger than this limit"):
        site.send()


@pytest.mark.parametrize(
    ("association", "quality", "who"),
    [
        ("project|normal|||", "normal|2||||||1-00:00:00|", "PU of QOS normal is 2"),
        ("project|normal|3||", "normal||||||||", "Jobs of account project is 3"),
    ],
)
def test_arrays_fit_the_limits_of_accounting(tmp_path: Path, association: str, quality: str, who: str) -> None:
    site = Site1(tmp_path, SHORT)
    # One answer for both questions: lines with another number of fields are about the other one.
    site.say("sacctmgr", f"{association}\n{quality}\n")
    (job,) = site.send().plan.jobs
    assert [len(runs) for runs in job.tasks] == [2, 2]
    (found, *_) = check.limit_checks(site.place, check.find_limits(site.place, site.slurm._call))
    assert (found.verdict, found.found) == ("note", f"limits.max_submitted is 1000, MaxSubmit{who}")


# -- what the screen and the record say


def test_without_sacct_squeue_has_to_do(tmp_path: Path) -> None:
    site = Site1(tmp_path, SHORT, repeats=1)
    made = site.send()
    assert start(made, 0, "7").wait() == 0
    (site.bin / "sacct").unlink()
    site.queue(made, "7|0|COMPLETED|None")
    assert dict(site.look().totals) == {"completed": 1}


def test_a_suspended_run_has_a_finding(tmp_path: Path) -> None:
    site = Site1(tmp_path, SHORT, repeats=1)
    made = site.send()
    site.queue(made, "7|0|SUSPENDED|None")
    status = site.look()
    assert "1 task started: suspended by Slurm" in "\n".join(status_lines(status))
    assert start(made, 0, "7").wait() == 0
    name = made.plan.jobs[0].name
    site.queue(made, "7|0|COMPLETED|None")
    site.say("sacct", f"7_0|COMPLETED|0:0|n1|{NOW}|{NOW}|600||00:01:10|{name}\n")
    site.look()
    (record,) = site.records().values()
    assert record.launch is not None
    assert record.launch.scheduled is not None
    assert record.launch.scheduled.suspended_s == 70
    assert [found.code for found in record.findings if found.code == "SY623"] == ["SY623"]


@pytest.mark.parametrize(
    ("started", "elapsed", "word"),
    [("2099-01-01T00:00:00", 600, "behind"), (NOW, 0, "ahead of")],
    ids=["behind", "ahead"],
)
def test_the_clock_of_a_node_is_flagged(tmp_path: Path, started: str, elapsed: int, word: str) -> None:
    site = Site1(tmp_path, SHORT, repeats=1)
    made = site.send()
    assert start(made, 0, "7").wait() == 0
    site.queue(made, "7|0|COMPLETED|None")
    site.say("sacct", f"7_0|COMPLETED|0:0|n1|{started}|{started}|{elapsed}|||{made.plan.jobs[0].name}\n")
    site.look()
    (record,) = site.records().values()
    (found,) = [found for found in record.findings if found.code == "SY624"]
    assert "the clock of node n1 is at least" in found.message
    assert word in found.message


def test_withdrawn_and_vanished_runs_are_not_collected(tmp_path: Path) -> None:
    site = Site1(tmp_path, SHORT)
    made = site.send()
    shutil.rmtree(made.path / "runs" / first_run(made, 3))
    for task in range(3):
        assert start(made, task, "7").wait() == 0
    site.queue(made, "7|0-3|COMPLETED|None")
    text = " ".join(" ".join(status_lines(site.look())).split())
    assert "3 of 4 runs collected, 1 without a result because their folders are gone" in text


def test_runs_cancelled_before_submission_are_not_collected(tmp_path: Path) -> None:
    site = Site1(tmp_path, SHORT)
    make_campaign(site.folder, site.expansion, site.place, site.slurm)
    cancel(site.folder, "s", lambda _: site.slurm)
    text = " ".join(" ".join(status_lines(site.look())).split())
    assert "0 of 4 runs collected, 4 withdrawn before submission" in text


def test_a_path_that_is_not_text_is_refused(tmp_path: Path) -> None:
    site = Site1(tmp_path, SHORT)
    folder = ResultFolder(tmp_path / os.fsdecode(b"caf\xe9"))
    with pytest.raises(InputError, match="not UTF-8"):
        make_campaign(folder, site.expansion, site.place, site.slurm)


# -- every end, by each of the two commands

STATUSES = {
    "TIMEOUT": ("time_limit", "at its time limit"),
    "DEADLINE": ("time_limit", "at its deadline"),
    "OUT_OF_MEMORY": ("out_of_memory", "at its memory limit"),
    "NODE_FAIL": ("node_failure", "a node of the job failed"),
    "BOOT_FAIL": ("node_failure", "did not boot"),
    "LAUNCH_FAILED": ("node_failure", "could not launch the job"),
    "RECONFIG_FAIL": ("node_failure", "could not be reconfigured"),
    "PREEMPTED": ("preempted", "by a job of higher priority"),
    "CANCELLED": ("cancelled", "Slurm does not report by whom"),
    "CANCELLED by 4294967": ("cancelled", "by a user unknown on this machine (uid 4294967)"),
    "FAILED": ("failed", "the job script"),
}
"""What a run's record says after each state of Slurm in which a job ends without a result."""


def test_every_end_of_slurm_is_tried() -> None:
    assert {state.split()[0] for state in STATUSES} == ENDS.keys() - {"COMPLETED"}


@pytest.mark.parametrize("told_by", ["squeue", "sacct", "both"])
@pytest.mark.parametrize("began", [True, False], ids=["began", "never began"])
def test_every_end_has_its_status(tmp_path: Path, told_by: str, began: bool) -> None:
    """One study with a run for each state. What began has a lease, as a killed task leaves it."""
    site = Site1(tmp_path, SHORT, repeats=len(STATUSES))
    made = site.send()
    name = made.plan.jobs[0].name
    node = "n1" if began else ""
    queue, account = [], []
    for task, state in enumerate(STATUSES):
        queue.append(f"7|{task}|{state.split()[0]}|None|{node}|{NOW}|{NOW}|0:05|{name}\n")
        account.append(f"7_{task}|{state}|0:0|{node or 'None assigned'}|{NOW}|{NOW}|5|||{name}\n")
        if began:
            (made.raw(first_run(made, task)) / "lease").write_text("n1 7\n")
    site.say("squeue", "" if told_by == "sacct" else "".join(queue))
    site.say("sacct", "" if told_by == "squeue" else "".join(account))
    status = site.look()
    assert status.problems == []
    assert dict(status.waiting) == {}
    records = site.records()
    for task, (state, (code, words)) in enumerate(STATUSES.items()):
        found = records[first_run(made, task)].status
        assert found.code == code, state
        # Only accounting says who.
        assert (words if told_by != "squeue" or " by " not in state else STATUSES["CANCELLED"][1]) in found.reason
        assert (found.evidence or {})["state"] == state.split()[0]
        assert (found.evidence or {})["job"] == f"7_{task}"


# -- what a study costs the controller and the file system


class Opened:
    """Counts the files that this process opens, without folders."""

    def __init__(self) -> None:
        self.count = 0
        # A hook stays for the whole process.
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and not (arguments[2] or 0) & os.O_DIRECTORY:
            self.count += 1


def costs(home: Path, runs: int, opened: Opened) -> dict[str, tuple[int, int]]:
    """Return how many commands of Slurm and how many files each step takes, of a study whose jobs all fail."""
    home.mkdir()
    site = Site1(home, SHORT, repeats=runs)
    found: dict[str, tuple[int, int]] = {}

    def take(name: str, step: Callable[[], Any]) -> Any:
        calls, files = site.slurm.calls, opened.count
        done = step()
        found[name] = (site.slurm.calls - calls, opened.count - files)
        return done

    made = take("submit", site.send)
    (job,) = made.plan.jobs
    assert len(job.tasks) == runs
    for name, state in (("queued", "PENDING"), ("running", "RUNNING"), ("ended", "NODE_FAIL")):
        site.queue(made, f"7|0-{runs - 1}|{state}|None")
        take(name, site.look)
    assert len(take("collected", site.look).runs) == runs
    take("read", site.records)
    return found


def test_calls_do_not_grow_with_the_number_of_runs_and_files_in_proportion(tmp_path: Path) -> None:
    opened = Opened()
    # The first imports what is needed, but for what reads many records.
    TypeAdapter(RunRecord)
    _, few, many = (costs(tmp_path / str(runs), runs, opened) for runs in (10, 100, 1000))
    per_run = {name: (many[name][1] - files) / 900 for name, (_, files) in few.items()}
    assert {name: (many[name][0], per_run[name]) for name in few} == {
        "submit": (5, 5),
        "queued": (1, 1),
        "running": (1, 0),
        "ended": (2, 41),
        "collected": (0, 0),
        "read": (0, 2),
    }
    assert {name: calls for name, (calls, _) in few.items()} == {name: calls for name, (calls, _) in many.items()}
    # A look does not read a file of every installed package.
    assert few["collected"][1] < 50


# -- nodes


@pytest.mark.parametrize(
    ("state", "usable"),
    [
        ("IDLE+POWERED_DOWN", True),
        ("IDLE+CLOUD+POWERED_DOWN", True),
        ("IDLE+POWERING_DOWN", True),
        ("MIXED+CLOUD+NOT_RESPONDING+POWERING_UP", True),
        ("ALLOCATED+POWERING_UP", True),
        ("IDLE~", True),
        ("IDLE+POWER", True),
        ("IDLE", True),
        ("IDLE+PLANNED", True),
        ("DOWN", False),
        ("DOWN*", False),
        ("DOWN+CLOUD+POWERED_DOWN", False),
        ("IDLE+DRAIN", False),
        ("IDLE*+DRAIN", False),
        ("IDLE*", False),
        ("IDLE+NOT_RESPONDING", False),
        ("DOWN+NOT_RESPONDING", False),
    ],
)
def test_nodes_that_save_power_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, usable: bool
) -> None:
    site = Site1(tmp_path, SHORT)
    shown = f"NodeName=n1 Arch=x86_64 State={state} Partitions=debug CPUTot=2 RealMemory=10\n"

    def call(words: Any) -> subprocess.CompletedProcess[str]:
        answer = shown if "node" in words else "PartitionName=debug Default=YES State=UP TotalNodes=1\n"
        answer = "ClusterName = c\n" if "config" in words else answer
        return subprocess.CompletedProcess(words, 0, answer, "")

    monkeypatch.setenv("PATH", f"{site.bin}:{os.environ['PATH']}")
    wrong = {one.name for one in check.checks(site.place, call) if one.verdict == "wrong"}
    assert ("nodes" not in wrong) == usable
