"""The scheduler Kubernetes: create, poll, fetch and delete the objects of jobs.

Only objects in the job's manifest.json are created. Only two facts are kept here that the platform does not know:
which tasks were submitted and which were given up.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from steelyard.contracts.base import to_json_object
from steelyard.contracts.observe import SPEC_FILE, Scheduled
from steelyard.errors import InputError, SteelyardError, printable
from steelyard.inputs.validate import MAX_SPEC_BYTES, parse_json, read_bounded
from steelyard.launch.campaign import MANIFEST_FILE, TaskState
from steelyard.launch.kubernetes import events, manifests
from steelyard.launch.kubernetes.api import FORBIDDEN, NOT_FOUND, Api, ApiError
from steelyard.launch.kubernetes.check import platform_checks
from steelyard.launch.kubernetes.logs import LogReader, PodLog, lay_down
from steelyard.launch.scripts.bash import line as shell_line
from steelyard.results.store import write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from steelyard.doctor.node import Check
    from steelyard.inputs.site import Place
    from steelyard.launch.campaign import Campaign, JobArray, Plan

Object = dict[str, Any]
Key = tuple[int, int]

SENT_FILE: Final = "sent"
"""Numbers of the tasks that were created: one that is deleted later is not created again."""
SERVER_FILE: Final = "server"
"""The API that got them: if the current context is another, they are not gone."""
MAX_MANIFEST_BYTES: Final = 1 << 29
MAX_SOURCE_BYTES: Final = 200_000
LOG_SLACK_BYTES: Final = 1 << 20
MAX_EVENTS: Final = 20_000
MAX_SERVER_CHARACTERS: Final = 1000
PASSING: Final = (401, 408, 429)
"""Statuses with which the API refuses something that it may accept later."""
SERVER_FAULT: Final = 500
LOG_PATIENCE_S: Final = 900
"""How long after the end of a pod its node may fail to return the log before the log counts as lost."""
_PATHS: Final = {
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "JobSet": f"/apis/{manifests.JOBSET_GROUP}/{manifests.JOBSET_VERSION}/namespaces/{{}}/jobsets",
    "Service": "/api/v1/namespaces/{}/services",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Pod": "/api/v1/namespaces/{}/pods",
    "Event": "/api/v1/namespaces/{}/events",
}


class Kubernetes:
    """Runs each task as one Indexed Job or JobSet."""

    name = "kubernetes"

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._apis: dict[str | None, Api] = {}

    def _api(self, place: Place) -> Api:
        context = place.site.cluster.context
        if context not in self._apis:
            self._apis[context] = Api(context)
        return self._apis[context]

    def _path(self, plan: Plan, kind: str, name: str = "") -> str:
        path = _PATHS[kind].format(plan.site.cluster.namespace)
        return f"{path}/{name}" if name else path

    # -- before submission

    def check(self, place: Place) -> Iterator[Check]:
        """Check the platform for problems before anything is queued."""
        yield from platform_checks(lambda: self._api(place), place)

    def render(self, campaign: Campaign, job: JobArray) -> dict[str, str]:
        """Return the manifest, and a script that creates its objects."""
        plan = campaign.plan
        specs: dict[str, Object] = {
            run_id: json.loads(read_bounded(campaign.raw(run_id) / SPEC_FILE, MAX_SPEC_BYTES))
            for task in job.tasks
            for run_id in task
        }
        # Users' own files, as they are now: each spec has the checksum it was planned with.
        sources: dict[str, str] = {}
        for source in (spec["source"] for spec in specs.values() if spec.get("source")):
            if source["sha256"] not in sources:
                sources[source["sha256"]] = read_bounded(Path(source["path"]), MAX_SOURCE_BYTES).decode("utf-8")
        content = manifests.Content(manifests.pack_code(campaign.path / "worker"), specs, sources)
        whole = manifests.manifest(plan, job, content, jobset=job.shape.nodes > 1 and self._uses_jobset(plan.place))
        cluster = plan.site.cluster
        context = [f"--context={cluster.context}"] if cluster.context is not None else []
        create = shell_line(["kubectl", f"--namespace={cluster.namespace}", *context, "create", "-f", MANIFEST_FILE])
        script = f'#!/bin/bash\n# Create all tasks of job {job.name}.\ncd "$(dirname "$0")" && exec {create}\n'
        return {MANIFEST_FILE: json.dumps(whole, indent=1) + "\n", "job.sh": script}

    def _uses_jobset(self, place: Place) -> bool:
        said = place.site.cluster.jobset
        if said is not None:
            return said
        try:
            groups = self._api(place).get("/apis").get("groups") or []
        except SteelyardError as error:
            raise InputError(
                f"cannot find out whether JobSet is installed: {error.what}",
                next_step="set cluster.jobset to true or false in the site file",
            ) from None
        return any(group.get("name") == manifests.JOBSET_GROUP for group in groups)

    # -- submission

    def submit(self, campaign: Campaign, job: JobArray) -> str:
        """Create all tasks of a job that do not exist; return its id.

        Once part of it is created the job counts as submitted: tasks that the platform then refuses are given up, with
        its message.
        """
        path = campaign.job_folder(job) / MANIFEST_FILE
        items: list[Object] = json.loads(read_bounded(path, MAX_MANIFEST_BYTES))["items"]
        self._require_server(campaign, job)
        api, plan, sent = self._api(campaign.plan.place), campaign.plan, _read_sent(campaign, job)
        for number, parts in enumerate(_group_by_task(items)):
            task = number - 1
            if task in sent or _read_given_up(campaign, job, task) is not None:
                continue
            try:
                for item in parts:
                    api.create(self._path(plan, item["kind"]), item)
            except ApiError as error:
                # Overload, failures and expired tokens are not about this task, and may be over soon.
                if task < 0 or not sent or error.status in PASSING or error.status >= SERVER_FAULT:
                    raise
                self._give_up(campaign, job, task, _describe_refusal(plan, job, task, error))
                continue
            if task >= 0:
                if not sent:
                    (campaign.job_folder(job) / SERVER_FILE).write_text(f"{api.host}\n", encoding="utf-8")
                sent.add(task)
                with (campaign.job_folder(job) / SENT_FILE).open("a", encoding="ascii") as file:
                    file.write(f"{task}\n")
        return manifests.job_id(plan, job)

    def _require_server(self, campaign: Campaign, job: JobArray) -> None:
        try:
            with (campaign.job_folder(job) / SERVER_FILE).open(encoding="utf-8", errors="replace") as file:
                server = file.read(MAX_SERVER_CHARACTERS).strip()
        except FileNotFoundError:
            return
        host = self._api(campaign.plan.place).host
        if server != host:
            raise SteelyardError(
                f"the jobs were submitted to {printable(server)}, but the current context belongs to {host}",
                next_step="kubectl config use-context NAME, or set cluster.context in the site file",
            )

    def find(self, campaign: Campaign, jobs: Sequence[JobArray]) -> dict[int, str]:
        """Return the ids of jobs that the platform has. A partly created job is completed: that part may be running."""
        there = {events.place_of(item) for item in self._list(campaign, "Job")}
        if any(job.shape.nodes > 1 for job in jobs):
            there |= {events.place_of(item) for item in self._list_sets(campaign)}
        known = {place[0] for place in there if place is not None}
        return {
            job.number: self.submit(campaign, job)
            for job in jobs
            if job.number in known or _read_sent(campaign, job)
        }  # fmt: skip

    # -- polling

    def _list(self, campaign: Campaign, kind: str) -> Iterator[Object]:
        query = {"labelSelector": manifests.selector(campaign.plan)}
        return self._api(campaign.plan.place).list(self._path(campaign.plan, kind), query)

    def _list_sets(self, campaign: Campaign) -> list[Object]:
        if campaign.plan.site.cluster.jobset is False:
            return []
        try:
            return list(self._list(campaign, "JobSet"))
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            return []

    def poll(self, campaign: Campaign, jobs: Sequence[JobArray]) -> dict[tuple[int, int], TaskState]:
        """One list of Jobs and one of pods; one of JobSets if there can be any; events only if something is stuck.

        A task that waits for something that will not happen is deleted here, unless it has changed meanwhile.
        """
        seen = self._look(campaign, jobs)
        now_s = self._clock()
        if any(events.is_stuck(task, now_s) for task in seen.values()):
            told = list(self._list_events(campaign))
            seen = {key: replace(task, events=told) for key, task in seen.items()}
        states: dict[Key, TaskState] = {}
        for job in jobs:
            sent = _read_sent(campaign, job)
            for task in range(len(job.tasks)):
                state = self._state(campaign, job, task, seen.get((job.number, task)), sent=task in sent)
                if state is not None:
                    states[job.number, task] = state
        return states

    def _look(self, campaign: Campaign, jobs: Sequence[JobArray]) -> dict[Key, events.Seen]:
        found: dict[Key, Object | None] = {}
        if any(job.shape.nodes > 1 for job in jobs):
            found |= {key: None for item in self._list_sets(campaign) if (key := events.place_of(item)) is not None}
        found |= {key: item for item in self._list(campaign, "Job") if (key := events.place_of(item)) is not None}
        pods: dict[Key, list[Object]] = {}
        for pod in self._list(campaign, "Pod"):
            if (key := events.place_of(pod)) is not None:
                pods.setdefault(key, []).append(pod)
        return {key: events.Seen(item, pods.get(key, ())) for key, item in found.items()}

    def _list_events(self, campaign: Campaign) -> Iterator[Object]:
        """Yield events of the campaign from the whole namespace, except those that every pod has."""
        query = {"fieldSelector": ",".join(f"reason!={reason}" for reason in events.ORDINARY_EVENTS)}
        start = manifests.prefix(campaign.plan)
        with suppress(ApiError):
            for number, event in enumerate(
                self._api(campaign.plan.place).list(self._path(campaign.plan, "Event"), query)
            ):
                if number >= MAX_EVENTS:
                    return
                if str((event.get("involvedObject") or {}).get("name")).startswith(start):
                    yield event

    def _state(
        self, campaign: Campaign, job: JobArray, task: int, seen: events.Seen | None, *, sent: bool
    ) -> TaskState | None:
        if (said := _read_given_up(campaign, job, task)) is not None:
            return TaskState("ended", said)
        if seen is None:
            if not sent:
                return None
            self._require_server(campaign, job)
            name = manifests.task_name(campaign.plan, job, task)
            reason = "its Job no longer exists: it was deleted by somebody or by the platform"
            return TaskState(
                "ended",
                Scheduled(scheduler=self.name, job=name, state="Deleted", cause="cancelled", reason=reason),
            )
        state, hopeless = events.state_of(seen, self._clock())
        if (
            hopeless is not None
            and state.said is not None
            and not self._take_away(campaign, job, task, seen, state.said)
        ):
            return TaskState("queued", why=hopeless.reason)
        return state

    def _take_away(self, campaign: Campaign, job: JobArray, task: int, seen: events.Seen, said: Scheduled) -> bool:
        """Delete a stuck task to keep it from starting later; False if it has changed since the poll."""
        plan, name = campaign.plan, manifests.task_name(campaign.plan, job, task)
        metadata = (seen.job or {}).get("metadata") or {}
        version = {"preconditions": {"resourceVersion": metadata.get("resourceVersion")}}
        api = self._api(plan.place)
        if not api.delete(self._path(plan, "Job", events.name_of(seen.job or {})), body=version):
            return False
        if events.name_of(seen.job or {}) != name:
            api.delete(self._path(plan, "JobSet", name))
        self._give_up(campaign, job, task, said)
        return True

    def _give_up(self, campaign: Campaign, job: JobArray, task: int, said: Scheduled) -> None:
        write_json(_given_up_file(campaign, job, task), to_json_object(said))

    # -- fetching

    def fetch(self, campaign: Campaign, job: JobArray, task: int) -> None:
        """Copy the results of a task from the logs of its pods into the campaign's folder."""
        key = f"{manifests.JOB_LABEL}={job.number},{manifests.TASK_LABEL}={task}"
        query = {"labelSelector": f"{manifests.selector(campaign.plan)},{key}"}
        api = self._api(campaign.plan.place)
        self._bring(campaign, job, task, list(api.list(self._path(campaign.plan, "Pod"), query)))

    def _bring(self, campaign: Campaign, job: JobArray, task: int, pods: Iterable[Object]) -> None:
        scratch = Path(tempfile.mkdtemp(prefix=".fetch-", dir=campaign.path))
        try:
            logs: dict[int, PodLog] = {}
            for pod in pods:
                log = self._read_log(campaign, job, task, pod, scratch)
                # The platform does not replace our pods; if an index has two, the one that ended counts.
                if log is not None and (log.index not in logs or log.whole):
                    logs[log.index] = log
            lay_down(campaign, job, task, list(logs.values()))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _read_log(self, campaign: Campaign, job: JobArray, task: int, pod: Object, scratch: Path) -> PodLog | None:
        """Read the log of a pod; None if it has none, or no longer has it."""
        index = events.index_of(pod)
        if index is None or index >= job.shape.nodes:
            return None
        node = events.text((pod.get("spec") or {}).get("nodeName"), 253)
        limit_bytes = (campaign.plan.site.limits.log_mib << 20) + LOG_SLACK_BYTES
        place = Path(tempfile.mkdtemp(dir=scratch))
        reader = LogReader(job.tasks[task], place, limit_bytes, PodLog(index, node))
        path = f"{self._path(campaign.plan, 'Pod', events.name_of(pod))}/log"
        query = {"container": manifests.CONTAINER, "limitBytes": limit_bytes}
        try:
            return reader.read(self._api(campaign.plan.place).stream(path, query, limit_bytes))
        except ApiError as error:
            # Going on without a log that can still be read would lose measurements.
            end_s = events.ended_s(pod)
            recent = end_s is not None and self._clock() - end_s < LOG_PATIENCE_S
            passing = error.status in (*PASSING, FORBIDDEN) or (error.status >= SERVER_FAULT and recent)
            if end_s is not None and passing:
                raise
            # Never started, or its node is gone: the platform's report on the task has to do.
            return None

    # -- cancelling

    def cancel(self, campaign: Campaign, jobs: Sequence[JobArray]) -> None:
        """Delete jobs. Logs are deleted with their pods: what was measured until now is copied here first."""
        for job in jobs:
            self._require_server(campaign, job)
        numbers = {job.number: job for job in jobs}
        pods: dict[Key, list[Object]] = {}
        for pod in self._list(campaign, "Pod"):
            key = events.place_of(pod)
            if key is not None and key[0] in numbers and (pod.get("status") or {}).get("phase") != "Pending":
                pods.setdefault(key, []).append(pod)
        for (number, task), some in pods.items():
            if task < len(numbers[number].tasks):
                self._bring(campaign, numbers[number], task, some)
        self._remove(campaign, jobs)

    def clean(self, campaign: Campaign, jobs: Sequence[JobArray]) -> None:
        """Delete all objects of collected jobs, and the code with the last of them."""
        self._remove(campaign, jobs)
        if {job.number for job in jobs} == {job.number for job in campaign.plan.jobs}:
            plan = campaign.plan
            self._api(plan.place).delete(self._path(plan, "ConfigMap", f"{manifests.prefix(plan)}-worker"))

    def _remove(self, campaign: Campaign, jobs: Sequence[JobArray]) -> None:
        plan, api = campaign.plan, self._api(campaign.plan.place)
        numbers = ",".join(str(job.number) for job in jobs)
        query = {"labelSelector": f"{manifests.selector(plan)},{manifests.JOB_LABEL} in ({numbers})"}
        kinds = ["Job", "ConfigMap"]
        if any(job.shape.nodes > 1 for job in jobs):
            # The JobSet first: it would create its Job again.
            kinds = [*(["JobSet"] if plan.site.cluster.jobset is not False else []), *kinds, "Service"]
        for kind in kinds:
            api.delete(self._path(plan, kind), query)


# -- files of a campaign -----------------------------------------------------------------------------------------


def _group_by_task(items: Iterable[Object]) -> Iterator[list[Object]]:
    """Group objects: first the code, then each task, whose last object is its Job or JobSet."""
    parts: list[Object] = []
    for number, item in enumerate(items):
        parts.append(item)
        if number == 0 or item["kind"] in ("Job", "JobSet"):
            yield parts
            parts = []


def _read_sent(campaign: Campaign, job: JobArray) -> set[int]:
    try:
        text = (campaign.job_folder(job) / SENT_FILE).read_text(encoding="ascii")
    except FileNotFoundError:
        return set()
    return {int(word) for word in text.split() if word.isdigit()}


def _given_up_file(campaign: Campaign, job: JobArray, task: int) -> Path:
    return campaign.job_folder(job) / f"{task}.given-up.json"


def _read_given_up(campaign: Campaign, job: JobArray, task: int) -> Scheduled | None:
    path = _given_up_file(campaign, job, task)
    if not path.exists():
        return None
    return parse_json(Scheduled, read_bounded(path, MAX_SPEC_BYTES), str(path))


def _describe_refusal(plan: Plan, job: JobArray, task: int, error: ApiError) -> Scheduled:
    return Scheduled(
        scheduler=Kubernetes.name,
        job=manifests.task_name(plan, job, task),
        state="Refused",
        cause="refused",
        reason=f"the platform refused it: {error.said}",
        evidence={"http_status": error.status},
    )
