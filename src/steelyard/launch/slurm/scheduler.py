"""The scheduler Slurm: write job scripts, submit, poll and cancel through its commands.

Each query is one call for all jobs: squeue for pending, running and recently ended jobs, sacct for older ones.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import subprocess
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from steelyard import nofollow
from steelyard.errors import InputError, SteelyardError
from steelyard.launch.campaign import QueueFullError
from steelyard.launch.scripts.bash import Raw
from steelyard.launch.scripts.task import MEETING_HOST, MEETING_PORT, lease_holder, node_script, task_script
from steelyard.launch.slurm import check
from steelyard.launch.slurm.request import is_array, output_name, sbatch_lines, start_words
from steelyard.launch.slurm.states import (
    SACCT_FIELDS,
    SQUEUE_FIELDS,
    TaskLine,
    Traces,
    read_exit_codes,
    read_sacct,
    read_squeue,
    state_of,
    state_of_forgotten,
    wait_status,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from steelyard.doctor.node import Check
    from steelyard.inputs.site import Place
    from steelyard.launch.campaign import Campaign, JobArray, TaskState
    from steelyard.launch.slurm.states import TaskKey

PATIENCE_S: Final = 180.0
"""Time limit for one answer: a busy controller may take its MessageTimeout several times."""
# Output in UTC, in one format, untruncated. Not for sbatch: a job inherits its environment.
SPEECH: Final = {"TZ": "UTC", "SLURM_TIME_FORMAT": "standard", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C"}
# Variables that tell Slurm's commands about the site. All others belong to a job we may be in, or would override the
# script invisibly.
KEPT: Final = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
_FOREIGN: Final = re.compile(r"(SLURM|SBATCH|SQUEUE|SACCT|SCANCEL|SINFO|SALLOC|SRUN|SCONTROL)_")
_ANSWER: Final = re.compile(r"(\d{1,10})(?:;([\w.-]{1,100}))?", re.ASCII)
_CLUSTER: Final = re.compile(r"^ClusterName\s*=\s*([\w.-]{1,100})\s*$", re.MULTILINE)
# Pending reasons with these names are what sbatch prints, too (slurm_protocol_defs.c, job_state_reason_string).
_FULL: Final = re.compile(
    r"(?:QOS|Assoc)(?:Max|Grp)Submit\w{0,40}|job submit limit|Slurm temporarily unable to accept job|"
    r"Resource temporarily unavailable"
)
_FORGOTTEN: Final = re.compile(r"Invalid job id|already complet|Job/step already complet", re.IGNORECASE)


class CommandMissingError(SteelyardError):
    """A command of Slurm is not installed here."""


@dataclass(frozen=True)
class _Asked:
    """A task, and the jobs of Slurm that may have made its runs."""

    job: JobArray
    task: int
    registered: str
    """The id that its submission returned, with the cluster."""
    ids: tuple[str, ...]
    """The registered one first; then others with the same name, and the one in a lease."""
    holder: str | None
    """The id in the lease of the last run that was started; None: not looked up, or none was."""
    traces: Traces


def _of_copies(one: _Asked, states: dict[str, TaskState]) -> TaskState | None:
    """Return the state of a task from those of all jobs that may have made its runs."""
    running = next((state for state in states.values() if state.phase == "running"), None)
    queued = next((state for state in states.values() if state.phase == "queued"), None)
    if running is not None or (queued is not None and not one.traces.finished()):
        return running or queued
    if one.holder is not None:
        # Another job cannot tell how the run ended.
        return states.get(one.holder)
    return next((state for state in states.values() if state.phase != "queued"), queued)


def last_holder(campaign: Campaign, job: JobArray, task: int, left: Container[str]) -> str | None:
    """Return the job id in the lease of the last run of a task that was started; None if none was."""
    for run in reversed(job.tasks[task]):
        if run in left and (holder := lease_holder(campaign.raw(run))) is not None:
            return holder
    return None


class Slurm:
    """A site whose scheduler is Slurm."""

    name = "slurm"

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        """`variables`: the environment in which Slurm's commands run; None: ours."""
        self._variables = variables
        self._cluster: str | None = None
        self.calls = 0
        """Number of commands started."""

    # -- before anything is queued

    def check(self, place: Place) -> Iterator[Check]:
        """Check the site with a handful of calls, whatever its size."""
        return check.checks(place, self._call)

    def most_queued(self, place: Place) -> int | None:
        """Return the smallest limit of the user's association and of the QOS that apply."""
        try:
            limits = check.find_limits(place, self._call)
        except CommandMissingError:
            return None
        return min((limit.most for limit in limits if limit.of == "submitted"), default=None)

    def render(self, campaign: Campaign, job: JobArray) -> dict[str, str]:
        """Return job.sh, which is given to sbatch, and node.sh."""
        if "\\" in str(campaign.path.absolute()):
            raise InputError(
                f"Slurm cannot write output below a path with a backslash: {campaign.path}",
                next_step="give another folder with --results",
            )
        master, port = Raw(f'"${MEETING_HOST}"'), Raw(f'"${MEETING_PORT}"')
        node = node_script(campaign, job, node_rank=Raw('"$SLURM_NODEID"'), master=master, port=port)
        head, start = sbatch_lines(campaign, job), start_words(campaign, job)
        return {"job.sh": task_script(campaign, job, node, head=head, start=start), "node.sh": node}

    # -- submitting and polling

    def submit(self, campaign: Campaign, job: JobArray, files: Mapping[str, str]) -> str:  # noqa: ARG002
        """Submit the whole array with one sbatch; return `ID;CLUSTER`.

        The cluster matters because a job that another cluster's controller does not know has not ended.
        """
        script = campaign.job_folder(job).absolute() / "job.sh"
        # Queried before sbatch: once the job is queued, nothing may fail before its id is written.
        cluster = self._cluster_name()
        words = ["sbatch", "--parsable", f"--chdir={campaign.path.absolute()}"]
        if "%" in str(campaign.path.absolute()):
            # Slurm would replace it, in the folder too: the only case in which the script's relative path fails.
            words.append(f"--output={str(script.parent).replace('%', '%%')}/{output_name(campaign, job)}")
        answer = self._queue_job([*words, str(script), *([] if is_array(campaign, job) else ["0"])])
        match = _ANSWER.fullmatch(answer.strip().splitlines()[-1] if answer.strip() else "")
        if match is None:
            raise SteelyardError(
                f'sbatch returned no job id: "{answer[:400]}"',
                next_step="run the same command again: it looks for the job",
            )
        return f"{match[1]};{match[2] or cluster}"

    def _queue_job(self, words: Sequence[str]) -> str:
        """Return the answer of sbatch; QueueFullError if a limit on jobs in the queue is reached."""
        done = self._call(words, {})
        if not done.returncode:
            return done.stdout
        said = (
            re.sub(r"sbatch: (?:error: )?", "", " ".join(done.stderr.split()))[:2000] or f"exit code {done.returncode}"
        )
        if full := _FULL.search(said):
            # Jobs of others count for a group's limit; jobs of ours end.
            if "Grp" in full[0] or any(told.phase != "ended" for told in self._queue().values()):
                raise QueueFullError(f"Slurm takes no more jobs now: {full[0]}")
            raise SteelyardError(
                f"sbatch failed: {said}; no job of yours is in the queue, so the job is larger than this limit",
                next_step="lower limits.max_submitted in the site file, cancel the study and submit it again",
            )
        raise SteelyardError(f"sbatch failed: {said}", next_step="steelyard site check SITE")

    def find(self, campaign: Campaign, jobs: Sequence[JobArray]) -> dict[int, str]:
        """Find jobs by their unique names, including jobs that have ended."""
        names = {job.name: job.number for job in jobs}
        told = [*self._queue().values()]
        if names.keys() - {entry.name for entry in told}:
            told += (self._account(campaign, f"--name={','.join(names)}") or {}).values()
        return {
            names[entry.name]: f"{entry.job_id};{self._cluster_name()}"
            for entry in reversed(told)
            if entry.name in names
        }

    def is_id(self, campaign: Campaign, job: JobArray, text: str) -> bool:  # noqa: ARG002
        """Return whether a text is a number, or `NUMBER;CLUSTER`."""
        return _ANSWER.fullmatch(text) is not None

    def removed(self, campaign: Campaign) -> str:  # noqa: ARG002
        """Return what `clean` removes: nothing."""
        return ""

    def poll(self, campaign: Campaign, jobs: Sequence[JobArray]) -> dict[tuple[int, int], TaskState]:
        """One squeue and, once a job has ended, one sacct; without accounting a second squeue for exit codes.

        A submission that reached the controller late may be there beside the one that we know: both have the job's
        name. Whichever started a run has its lease, and only that one can say how it ended.
        """
        names = {job.name for job in jobs}
        queue = self._queue()
        asked = self._asked_about(campaign, jobs, queue)
        account: dict[TaskKey, TaskLine] | None = {}
        keys = [(job_id, one.task) for one in asked for job_id in one.ids]
        if any(key not in queue or queue[key].phase == "ended" for key in keys):
            known = sorted({job_id for job_id, _ in keys if job_id.isdecimal()})
            account = self._account(campaign, f"--jobs={','.join(known)}") if known else {}
            queue = queue if account else self._with_exit_codes(queue)
        by_task: dict[tuple[int, int], TaskState] = {}
        for one in asked:
            states: dict[str, TaskState] = {}
            for job_id in one.ids:
                key, told = (job_id, one.task), queue.get((job_id, one.task))
                if told is None or told.name not in names:
                    # Somebody may have started the script inside another job.
                    other = told or queue.get((job_id, 0))
                    outside = other is not None and other.name not in names and other.phase != "ended"
                    told = replace(other, state="RUNNING") if other is not None and outside else None
                accounted = account_of_task((account or {}).get(key), one.job)
                state = state_of(told, accounted, one.traces, one.task, one.job.task_limit_s)
                # Slurm no longer knows the job. If accounting does not answer, only its own files can show its end.
                if state is None and job_id and (account is not None or one.traces.settled()):
                    self._require_cluster(one.registered)
                    state = state_of_forgotten(job_id, one.traces, one.task)
                if state is not None:
                    states[job_id] = state
            if (state := _of_copies(one, states)) is not None:
                by_task[one.job.number, one.task] = state
        return by_task

    def _asked_about(
        self, campaign: Campaign, jobs: Sequence[JobArray], queue: dict[TaskKey, TaskLine]
    ) -> list[_Asked]:
        """Return the tasks with runs to collect, and which jobs of Slurm may have made them."""
        copies: dict[str, set[str]] = {}
        for told in queue.values():
            copies.setdefault(told.name, set()).add(told.job_id)
        left = set(nofollow.names(campaign.path / "runs"))
        asked: list[_Asked] = []
        surplus: set[str] = set()
        for job in jobs:
            registered = campaign.job_id(job) or ""
            own = registered.partition(";")[0]
            others = sorted(copies.get(job.name, set()) - {own})
            ids = [*([own] if own else []), *others] or [""]
            surplus |= set(others if own else ())
            for task, runs in enumerate(job.tasks):
                # Tasks whose runs are all collected are not queried.
                if left.isdisjoint(runs):
                    continue
                traces = Traces(campaign.output_file(job, task), campaign.done_file(job, task), len(runs))
                lines = [queue.get((job_id, task)) for job_id in ids]
                active = any(told is not None and told.phase != "ended" for told in lines)
                # With one job that is in the queue, or whose runs have all ended, there is nothing to decide.
                alone = not others and (active or traces.finished())
                holder = None if alone else last_holder(campaign, job, task, left)
                every = tuple(ids if holder is None or holder in ids else [*ids, holder])
                asked.append(_Asked(job, task, registered, every, holder, traces))
        if surplus and any(told.job_id in surplus and told.phase == "queued" for told in queue.values()):
            # Only what has not started: the rest holds leases.
            self._call(["scancel", "--state=PENDING", *sorted(surplus)])
        return asked

    def fetch(self, campaign: Campaign, job: JobArray, task: int) -> str:  # noqa: ARG002
        """Do nothing: tasks write into the campaign's folder themselves."""
        return ""

    def cancel(self, campaign: Campaign, jobs: Sequence[JobArray]) -> None:
        """Cancel jobs with one scancel; jobs that have already ended are not an error."""
        ids = {job.number: one for job in jobs if (one := campaign.job_id(job)) is not None}
        for job_id in ids.values():
            self._require_cluster(job_id)
        # Also those whose answer was lost, and copies of a job.
        names = {job.name for job in jobs}
        named = {told.job_id for told in self._queue().values() if told.name in names and told.phase != "ended"}
        if not (every := sorted({job_id.partition(";")[0] for job_id in ids.values()} | named)):
            return
        done = self._call(["scancel", *every])
        complaints = [line for line in done.stderr.splitlines() if line.strip() and not _FORGOTTEN.search(line)]
        if done.returncode and complaints:
            raise SteelyardError(f"scancel: {' '.join(complaints)[:1000]}", next_step="squeue --me")

    def clean(self, campaign: Campaign, jobs: Sequence[JobArray]) -> None:
        """Do nothing: Slurm forgets jobs by itself."""

    # -- queries

    def _queue(self) -> dict[TaskKey, TaskLine]:
        words = ["squeue", "--all", "--noheader", "--states=all", f"--user={os.getuid()}", f"--format={SQUEUE_FIELDS}"]
        return read_squeue(self._ask(words))

    def _with_exit_codes(self, queue: dict[TaskKey, TaskLine]) -> dict[TaskKey, TaskLine]:
        """Add the exit codes of failed jobs, which only squeue's other output format has."""
        if not any(told.state == "FAILED" for told in queue.values()):
            return queue
        fields = "ArrayJobID:12,ArrayTaskID:12,exit_code:12"
        words = ["squeue", "--all", "--noheader", "--states=failed", f"--user={os.getuid()}", f"--Format={fields}"]
        codes = read_exit_codes(self._ask(words))
        for key, told in queue.items():
            if key in codes:
                exit_code, signal = wait_status(codes[key])
                queue[key] = replace(told, exit_code=exit_code, signal=signal)
        return queue

    def _account(self, campaign: Campaign, which: str) -> dict[TaskKey, TaskLine] | None:
        """Query accounting; empty if the site has none, None if it does not answer."""
        # From the day before: the clocks of two machines may differ.
        moment = dt.datetime.fromisoformat(campaign.plan.created_at) - dt.timedelta(days=1)
        since = f"--starttime={moment:%Y-%m-%dT%H:%M:%S}"
        words = ["sacct", "--noheader", "--parsable2", "--allocations", which, since, f"--format={SACCT_FIELDS}"]
        try:
            done = self._call(words)
        except CommandMissingError:
            # Some sites do not install it: squeue alone has to do.
            return {}
        if done.returncode:
            return {} if "accounting storage is disabled" in done.stderr else None
        return read_sacct(done.stdout)

    def _require_cluster(self, job_id: str) -> None:
        cluster = job_id.partition(";")[2]
        if cluster and cluster != self._cluster_name():
            raise SteelyardError(
                f"the jobs are on cluster {cluster}, but Slurm here belongs to {self._cluster_name()}",
                next_step=f"run the command on a login node of {cluster}",
            )

    def _cluster_name(self) -> str:
        if self._cluster is None:
            match = _CLUSTER.search(self._ask(["scontrol", "show", "config"]))
            if match is None:
                raise SteelyardError("Slurm does not report the name of its cluster", next_step="scontrol show config")
            self._cluster = match[1]
        return self._cluster

    def _ask(self, words: Sequence[str], speak: Mapping[str, str] = SPEECH) -> str:
        """Return the output of a command; SteelyardError with its own message if it fails."""
        done = self._call(words, speak)
        if done.returncode:
            said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
            raise SteelyardError(f"{words[0]} failed: {said[:2000]}", next_step="steelyard site check SITE")
        return done.stdout

    def _call(self, words: Sequence[str], speak: Mapping[str, str] = SPEECH) -> subprocess.CompletedProcess[str]:
        self.calls += 1
        try:
            return subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                encoding="utf-8",
                errors="replace",
                check=False,
                timeout=PATIENCE_S,
                env={**own_variables(os.environ if self._variables is None else self._variables), **speak},
            )
        except FileNotFoundError:
            raise CommandMissingError(
                f"Slurm's command {words[0]} was not found",
                next_step="run the command on a login node of the site, or load its Slurm module",
            ) from None
        except subprocess.TimeoutExpired:
            raise SteelyardError(
                f"{words[0]} did not answer within {PATIENCE_S:g} s", next_step="run the same command again later"
            ) from None


def account_of_task(told: TaskLine | None, job: JobArray) -> TaskLine | None:
    """Return the accounting line if it is about this task.

    For a job shorter than a second the line may lack array and name ("allocation", seen in 22.05): then the job id
    identifies the job, and a job with one task the task.
    """
    if told is None or (told.name != job.name and told.numbered):
        return None
    return told if told.numbered or len(job.tasks) == 1 else None


def own_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those of Slurm that belong to another job or would override the script."""
    return {name: value for name, value in variables.items() if name in KEPT or not _FOREIGN.match(name)}
