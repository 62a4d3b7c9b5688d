"""The scheduler Slurm: write job scripts, submit, poll and cancel through its commands.

Each query is one call for all jobs: squeue for pending, running and recently ended jobs, sacct for older ones.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import re
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from steelyard.errors import InputError, SteelyardError
from steelyard.launch.scripts.bash import Raw
from steelyard.launch.scripts.task import MEETING_HOST, MEETING_PORT, node_script, task_script
from steelyard.launch.slurm import check
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
    from collections.abc import Iterator, Mapping, Sequence

    from steelyard.doctor.node import Check
    from steelyard.inputs.site import Place, Pool
    from steelyard.launch.campaign import Campaign, JobArray, TaskState
    from steelyard.launch.scripts.bash import Word
    from steelyard.launch.slurm.states import TaskKey

PATIENCE_S: Final = 180.0
"""Time limit for one answer: a busy controller may take its MessageTimeout several times."""
# Output in UTC, in one format, untruncated. Not for sbatch: a job inherits its environment.
SPEECH: Final = {"TZ": "UTC", "SLURM_TIME_FORMAT": "standard", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C"}
# Variables that tell Slurm's commands about the site. All others belong to a job we may be in, or would override the
# script invisibly.
KEPT: Final = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
_FOREIGN: Final = re.compile(r"(SLURM|SBATCH|SQUEUE|SACCT|SCANCEL|SINFO|SALLOC|SRUN|SCONTROL)_")
_ANSWER: Final = re.compile(r"(\d{1,10})(?:;([\w.-]{1,100}))?")
_CLUSTER: Final = re.compile(r"^ClusterName\s*=\s*([\w.-]{1,100})\s*$", re.MULTILINE)
_FORGOTTEN: Final = re.compile(r"Invalid job id|already complet|Job/step already complet", re.IGNORECASE)


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

    def render(self, campaign: Campaign, job: JobArray) -> dict[str, str]:
        """Return job.sh, which is given to sbatch, and node.sh."""
        place = campaign.plan.place
        if "\\" in str(campaign.path.absolute()):
            raise InputError(
                f"Slurm cannot write output below a path with a backslash: {campaign.path.absolute()}",
                next_step="give another folder with --results",
            )
        return {
            "job.sh": task_script(campaign, job, head=sbatch_lines(campaign, job), start=start_words(place.pool, job)),
            "node.sh": node_script(
                campaign,
                job,
                node_rank=Raw('"$SLURM_NODEID"'),
                master=Raw(f'"${MEETING_HOST}"'),
                port=Raw(f'"${MEETING_PORT}"'),
            ),
        }

    # -- submitting and polling

    def submit(self, campaign: Campaign, job: JobArray) -> str:
        """Submit the whole array with one sbatch; return `ID;CLUSTER`.

        The cluster matters because a job that another cluster's controller does not know has not ended.
        """
        script = campaign.job_folder(job).absolute() / "job.sh"
        # Queried before sbatch: once the job is queued, nothing may fail before its id is written.
        cluster = self._cluster_name()
        words = ["sbatch", "--parsable", f"--chdir={campaign.path.absolute()}"]
        if "%" in str(campaign.path.absolute()):
            # Slurm would replace it, in the folder too: the only case in which the script's relative path fails.
            words.append(f"--output={str(script.parent).replace('%', '%%')}/{_output_name(campaign, job)}")
        answer = self._ask([*words, str(script), *([] if is_array(campaign, job) else ["0"])], speak={})
        found = _ANSWER.fullmatch(answer.strip().splitlines()[-1] if answer.strip() else "")
        if found is None:
            raise SteelyardError(
                f"sbatch returned no job id: {answer[:400]!r}",
                next_step="run the same command again: it looks for the job",
            )
        return f"{found[1]};{found[2] or cluster}"

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

    def poll(self, campaign: Campaign, jobs: Sequence[JobArray]) -> dict[tuple[int, int], TaskState]:
        """One squeue and, once a job has ended, one sacct; without accounting a second squeue for exit codes."""
        names = {job.name for job in jobs}
        queue = {key: told for key, told in self._queue().items() if told.name in names}
        by_name = {told.name: told.job_id for told in queue.values()}
        ids = {job.number: (campaign.job_id(job) or by_name.get(job.name, "")) for job in jobs}
        # Tasks whose runs are all collected are not queried.
        left = {entry.name for entry in os.scandir(campaign.path / "runs")}
        wanted = [
            (job, task, (ids[job.number].partition(";")[0], task))
            for job in jobs
            for task, runs in enumerate(job.tasks)
            if not left.isdisjoint(runs)
        ]
        account: dict[TaskKey, TaskLine] | None = {}
        if any(key not in queue or queue[key].phase == "ended" for _, _, key in wanted):
            known = sorted({key[0] for _, _, key in wanted} - {""})
            account = self._account(campaign, f"--jobs={','.join(known)}") if known else {}
            queue = queue if account else self._with_exit_codes(queue)
        found: dict[tuple[int, int], TaskState] = {}
        for job, task, key in wanted:
            traces = Traces(campaign.output_file(job, task), campaign.done_file(job, task), len(job.tasks[task]))
            told = account_of_task((account or {}).get(key), job)
            state = state_of(queue.get(key), told, traces, task, job.task_limit_s)
            # Slurm no longer knows the job. If accounting does not answer, only its own files can show its end.
            if state is None and key[0] and (account is not None or traces.settled()):
                self._require_cluster(ids[job.number])
                state = state_of_forgotten(key[0], traces, task)
            if state is not None:
                found[job.number, task] = state
        return found

    def fetch(self, campaign: Campaign, job: JobArray, task: int) -> None:
        """Do nothing: tasks write into the campaign's folder themselves."""

    def cancel(self, campaign: Campaign, jobs: Sequence[JobArray]) -> None:
        """Cancel jobs with one scancel; jobs that have already ended are not an error."""
        ids = {job.number: found for job in jobs if (found := campaign.job_id(job)) is not None}
        lost = [job for job in jobs if job.number not in ids]
        if lost:
            ids |= self.find(campaign, lost)
        if not ids:
            return
        for job_id in ids.values():
            self._require_cluster(job_id)
        numbers = [job_id.partition(";")[0] for job_id in ids.values()]
        # The file may be untrusted: a value such as --me would cancel jobs of other campaigns.
        if wrong := [number for number in numbers if not (number.isascii() and number.isdigit())]:
            raise SteelyardError(
                f"{campaign.path} names a job {wrong[0]!r}, which is not a number", next_step="squeue --me"
            )
        done = self._call(["scancel", *numbers])
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
        done = self._call(words)
        if done.returncode:
            return {} if "accounting storage is disabled" in done.stderr else None
        return read_sacct(done.stdout)

    def _require_cluster(self, job_id: str) -> None:
        cluster = job_id.partition(";")[2]
        if cluster and cluster != self._cluster_name():
            raise SteelyardError(
                f"the jobs are on cluster {cluster!r}, but Slurm here belongs to {self._cluster_name()!r}",
                next_step=f"run the command on a login node of {cluster!r}",
            )

    def _cluster_name(self) -> str:
        if self._cluster is None:
            found = _CLUSTER.search(self._ask(["scontrol", "show", "config"]))
            if found is None:
                raise SteelyardError("Slurm does not report the name of its cluster", next_step="scontrol show config")
            self._cluster = found[1]
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
            raise SteelyardError(
                f"Slurm's command {words[0]!r} was not found",
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


# -- what a job requests


def is_array(campaign: Campaign, job: JobArray) -> bool:
    """Return whether a job is submitted as an array; with array_size 1 the site may not allow arrays at all."""
    return campaign.plan.site.limits.array_size > 1 or len(job.tasks) > 1


def sbatch_lines(campaign: Campaign, job: JobArray) -> list[str]:
    """Return the #SBATCH lines. Each value is a number of ours or was checked against the site contract."""
    pool, shape = campaign.plan.place.pool, job.shape
    tasks = tasks_per_node(pool, job)
    options = [f"--job-name={job.name}"]
    if is_array(campaign, job):
        most = campaign.plan.site.limits.max_running
        # Slurm has a limit per array, not one for all arrays.
        together = f"%{max(1, most // len(campaign.plan.jobs))}" if most is not None else ""
        options.append(f"--array=0-{len(job.tasks) - 1}{together}")
    options.append(f"--output=jobs/{campaign.job_folder(job).name}/{_output_name(campaign, job)}")
    options += [f"--nodes={shape.nodes}", f"--ntasks-per-node={tasks}"]
    if (cpus := cpus_per_task(pool, job)) is not None:
        options.append(f"--cpus-per-task={cpus}")
    if pool.memory_per_node_mib is not None:
        options.append(f"--mem={_share(pool.memory_per_node_mib, pool, job)}M")
    if pool.gpus is not None and shape.devices_per_node:
        options.append(f"--gres={pool.gpus}:{shape.devices_per_node}")
    # Slurm counts whole minutes, rounded up.
    minutes = math.ceil(job.task_limit_s / 60)
    options += [f"--time={minutes}", "--no-requeue"]
    named = {
        "partition": pool.partition,
        "account": pool.account,
        "qos": pool.qos,
        "constraint": pool.constraint,
        "reservation": pool.reservation,
    }
    options += [f"--{name}={value}" for name, value in named.items() if value is not None]
    options += ["--exclusive"] if pool.exclusive else []
    return [f"#SBATCH {option}" for option in [*options, *pool.options]]


def _output_name(campaign: Campaign, job: JobArray) -> str:
    return "%a.out" if is_array(campaign, job) else "0.out"


def tasks_per_node(pool: Pool, job: JobArray) -> int:
    """Return the number of Slurm tasks per node: one torchrun, or one per process."""
    return job.shape.processes_per_node if pool.start == "tasks" and job.kind != "packed" else 1


def cpus_per_task(pool: Pool, job: JobArray) -> int | None:
    """Return the CPUs of each Slurm task; None: the scheduler's default."""
    if pool.cpus_per_node is None:
        return None
    return max(1, _share(pool.cpus_per_node, pool, job) // tasks_per_node(pool, job))


def _share(amount: int, pool: Pool, job: JobArray) -> int:
    """Return the share of a node's CPUs or memory that matches its share of devices: other jobs need the rest."""
    if pool.exclusive:
        return amount
    devices = max(1, job.shape.devices_per_node, job.shape.processes_per_node)
    return max(1, math.ceil(amount * min(devices, pool.devices_per_node) / pool.devices_per_node))


def start_words(pool: Pool, job: JobArray) -> list[Word]:
    """Return the command that starts node.sh once per node or per process.

    Each run is a step, even on one node: if Slurm ends it for its memory, the next run can still start.
    """
    if job.kind == "packed":
        return []
    tasks = tasks_per_node(pool, job)
    words: list[Word] = ["srun", f"--nodes={job.shape.nodes}", f"--ntasks={job.shape.nodes * tasks}"]
    words.append(f"--ntasks-per-node={tasks}")
    # Since 22.05 srun does not inherit it from the job.
    if (cpus := cpus_per_task(pool, job)) is not None:
        words.append(f"--cpus-per-task={cpus}")
    elif pool.exclusive and tasks == 1:
        # One torchrun has the whole node; a site's automatic binding would give it a single core.
        words.append("--cpu-bind=none")
    # If a rank dies, the others must not wait for it; standard input belongs to the script. If the job was submitted
    # with --export=NONE, srun would hide from the run what modules and the script have set.
    return [*words, "--export=ALL", "--kill-on-bad-exit=1", "--input=none", "--unbuffered"]
