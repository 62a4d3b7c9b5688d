"""The scheduler Kubernetes: create, poll, fetch and delete the objects of jobs.

Only objects that the plan gives are created, those of the job's manifest.json. Only two facts are kept here that the
platform does not know: which tasks were submitted and which were given up.
"""

from __future__ import annotations

import datetime as dt
import json
import secrets
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from steelyard import nofollow
from steelyard.contracts.base import to_json_object
from steelyard.contracts.observe import SPEC_FILE, Scheduled
from steelyard.errors import InputError, SteelyardError, printable
from steelyard.inputs.validate import MAX_SPEC_BYTES, parse_json, read_bounded, read_inside
from steelyard.launch.campaign import MANIFEST_FILE, TaskState
from steelyard.launch.kubernetes import events, manifests
from steelyard.launch.kubernetes.api import FORBIDDEN, NOT_FOUND, Api, ApiError
from steelyard.launch.kubernetes.check import KUEUE_GROUP, KUEUE_VERSION, may_use_jobsets, platform_checks
from steelyard.launch.kubernetes.copies import Copy, Followers, copies_of, copy_name, tasks_with_copies
from steelyard.launch.kubernetes.logs import UNPACKED_FACTOR, LogReader, PodLog, bounded_lines, lay_down, read_parcels
from steelyard.launch.kubernetes.store import LONGEST_S, MAX_OBJECT_BYTES, key_from_environment, presign, read_object
from steelyard.launch.scripts.bash import line as shell_line
from steelyard.redact import clean
from steelyard.results.store import replace_text, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from steelyard.doctor.node import Check
    from steelyard.inputs.site import Place
    from steelyard.launch.campaign import Campaign, JobArray, Plan

Object = dict[str, Any]
Key = tuple[int, int]

SENT_FILE: Final = "sent"
"""Numbers of the tasks that were created: one that is deleted later is not created again."""
SERVER_FILE: Final = "server"
"""The API that got them: if the current context is another, they are not gone."""
MAX_SENT_BYTES: Final = 1 << 24
MAX_DIGITS: Final = 10
MAX_SOURCE_BYTES: Final = 200_000
LOG_SLACK_BYTES: Final = 1 << 20
MAX_EVENTS: Final = 20_000
MAX_SERVER_CHARACTERS: Final = 1000
PASSING: Final = (401, 408, 429)
"""Statuses with which the API refuses something that it may accept later."""
SERVER_FAULT: Final = 500
LOG_PATIENCE_S: Final = 900
"""How long after the first failed look the log of an ended pod may be unreadable before it counts as lost."""
LOG_READ_S, FOLLOW_READ_S = 15.0, 300.0
"""How long a node may be silent while its log is read once, or followed."""
READER_WAIT_S, READER_LOOK_S = 120.0, 0.5
"""How long the pod that reads a claim may take to start."""
COPY_S: Final = 60.0
"""How long one look may read logs of running pods."""
HELD_FILE: Final = "held-back"
"""Why the platform has no room yet for the tasks that are not created: its message."""
_PATHS: Final = {
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "JobSet": f"/apis/{manifests.JOBSET_GROUP}/{manifests.JOBSET_VERSION}/namespaces/{{}}/jobsets",
    "Service": "/api/v1/namespaces/{}/services",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Secret": "/api/v1/namespaces/{}/secrets",
    "Workload": f"/apis/{KUEUE_GROUP}/{KUEUE_VERSION}/namespaces/{{}}/workloads",
    "Pod": "/api/v1/namespaces/{}/pods",
    "Event": "/api/v1/namespaces/{}/events",
}


class Kubernetes:
    """Runs each task as one Indexed Job or JobSet."""

    name = "kubernetes"

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._apis: dict[str | None, Api] = {}
        self._followers = Followers()
        self._looks = 0

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

    def most_queued(self, place: Place) -> None:
        """Return that it is not known: a queue admits jobs after they were created."""

    def render(self, campaign: Campaign, job: JobArray) -> dict[str, str]:
        """Return the manifest, and a script that creates its objects."""
        plan = campaign.plan
        specs: dict[str, Object] = {
            run_id: json.loads(read_inside(campaign.raw(run_id) / SPEC_FILE, MAX_SPEC_BYTES))
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
        there = any(group.get("name") == manifests.JOBSET_GROUP for group in groups)
        # The role `edit` does not include it unless its installation says so.
        return there and may_use_jobsets(self._api(place), place.site.cluster.namespace)

    # -- submission

    def submit(self, campaign: Campaign, job: JobArray, files: Mapping[str, str]) -> str:
        """Create all tasks of a job that do not exist; return its id.

        Once part of it is created the job counts as submitted: tasks that the platform then refuses are given up, with
        its message. Tasks for which a quota has no room are left for later.
        """
        # Not from the file, which somebody might change at this moment.
        items: list[Object] = json.loads(files[MANIFEST_FILE])["items"]
        self._require_server(campaign, job)
        api, plan, sent = self._api(campaign.plan.place), campaign.plan, _read_sent(campaign, job)
        held = ""
        for number, parts in enumerate(_group_by_task(items)):
            task = number - 1
            if task in sent or _read_given_up(campaign, job, task) is not None:
                continue
            try:
                if task >= 0 and plan.site.cluster.results == "s3":
                    api.create(self._path(plan, "Secret"), self._make_addresses(plan, job, task))
                for item in parts:
                    api.create(self._path(plan, item["kind"]), item)
            except ApiError as error:
                if task >= 0 and error.status == FORBIDDEN and events.QUOTA_FULL in error.said:
                    held = error.said
                    break
                # Overload, failures and expired tokens are not about this task, and may be over soon.
                if task < 0 or not sent or error.status in PASSING or error.status >= SERVER_FAULT:
                    raise
                self._give_up(campaign, job, task, _describe_refusal(plan, job, task, error))
                continue
            if task >= 0:
                self._keep_server(campaign, job)
                sent.add(task)
                with nofollow.open_file(campaign.job_folder(job) / SENT_FILE, "a") as file:
                    file.write(f"{task}\n".encode())
        home = campaign.job_folder(job)
        if held:
            self._keep_server(campaign, job)
            replace_text(home / HELD_FILE, f"{held}\n", home)
        else:
            nofollow.remove(home / HELD_FILE)
        return manifests.job_id(plan, job)

    def _make_addresses(self, plan: Plan, job: JobArray, task: int) -> Object:
        """Return the Secret of a task. It is made at submission and written nowhere else."""
        key, now = key_from_environment(), dt.datetime.fromtimestamp(self._clock(), dt.UTC)
        addresses = [
            [
                presign("PUT", _object_url(plan, job, task, index, run), key, plan.site.cluster.region, now, LONGEST_S)
                for run in range(len(job.tasks[task]))
            ]
            for index in range(job.shape.nodes)
        ]
        return manifests.address_secret(plan, job, task, addresses)

    def _keep_server(self, campaign: Campaign, job: JobArray) -> None:
        home = campaign.job_folder(job)
        if not nofollow.is_file(home / SERVER_FILE):
            replace_text(home / SERVER_FILE, f"{self._api(campaign.plan.place).host}\n", home)

    def _require_server(self, campaign: Campaign, job: JobArray) -> None:
        try:
            with nofollow.open_file(campaign.job_folder(job) / SERVER_FILE) as file:
                server = file.read(MAX_SERVER_CHARACTERS).decode("utf-8", "replace").strip()
        except FileNotFoundError:
            return
        host = self._api(campaign.plan.place).host
        if server != host:
            raise SteelyardError(
                f"the jobs were submitted to {printable(server)}, but the current context belongs to {host}",
                next_step="kubectl config use-context NAME, or set cluster.context in the site file",
            )

    def find(self, campaign: Campaign, jobs: Sequence[JobArray]) -> dict[int, str]:
        """Return the ids of jobs that the platform has; not of those of which only a part was created."""
        there = {events.place_of(item) for item in self._list(campaign, "Job")}
        if any(job.shape.nodes > 1 for job in jobs):
            there |= {events.place_of(item) for item in self._list_sets(campaign)}
        ids: dict[int, str] = {}
        for job in jobs:
            self._require_server(campaign, job)
            sent = _read_sent(campaign, job)
            # A task that is gone or was given up is not created again; one that is held back is created later.
            if read_held(campaign, job) or all(
                (job.number, task) in there or task in sent or _read_given_up(campaign, job, task) is not None
                for task in range(len(job.tasks))
            ):
                ids[job.number] = manifests.job_id(campaign.plan, job)
        return ids

    def is_id(self, campaign: Campaign, job: JobArray, text: str) -> bool:
        """Return whether a text is the id that this job gets here."""
        return text == manifests.job_id(campaign.plan, job)

    def removed(self, campaign: Campaign) -> str:
        """Return the objects that `clean` deletes."""
        cluster = campaign.plan.site.cluster
        where = f"namespace {cluster.namespace}, context {cluster.context or '(the current one)'}"
        return (
            f"Jobs, JobSets, Services, Secrets and ConfigMaps with label {manifests.selector(campaign.plan)} in {where}"
        )

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
            if error.status not in (NOT_FOUND, FORBIDDEN):
                raise
            return []

    def poll(self, campaign: Campaign, jobs: Sequence[JobArray]) -> dict[tuple[int, int], TaskState]:
        """One list of Jobs and one of pods; one of JobSets if there can be any; events only if something is stuck.

        The logs of pods that run are copied. A task that waits for something that will not happen is deleted here,
        unless it has changed meanwhile.
        """
        self._looks += 1
        seen = self._look(campaign, jobs)
        now_s = self._clock()
        self._copy_logs(campaign, jobs, seen)
        if campaign.plan.site.cluster.queue is not None and any(map(events.is_suspended, seen.values())):
            queued = events.queue_messages(self._list_workloads(campaign))
            seen = {
                key: replace(task, queue=queued.get(events.name_of(task.job or {}), "")) for key, task in seen.items()
            }
        if any(events.is_stuck(task, now_s) for task in seen.values()):
            told = list(self._list_events(campaign))
            seen = {key: replace(task, events=told) for key, task in seen.items()}
        states: dict[Key, TaskState] = {}
        for job in jobs:
            held = read_held(campaign, job)
            for task in range(len(job.tasks)):
                state = self._state(campaign, job, task, seen.get((job.number, task)), held)
                if state is not None:
                    states[job.number, task] = state
        return states

    def _look(self, campaign: Campaign, jobs: Sequence[JobArray]) -> dict[Key, events.Seen]:
        objects: dict[Key, Object] = {}
        if any(job.shape.nodes > 1 for job in jobs):
            # Until it has made its Job, and after it has removed it, the JobSet itself tells the state.
            sets = ((events.place_of(item), events.as_job(item)) for item in self._list_sets(campaign))
            objects |= {key: item for key, item in sets if key is not None}
        objects |= {key: item for item in self._list(campaign, "Job") if (key := events.place_of(item)) is not None}
        pods: dict[Key, list[Object]] = {}
        for pod in self._list(campaign, "Pod"):
            if (key := events.place_of(pod)) is not None:
                pods.setdefault(key, []).append(pod)
        seen: dict[Key, events.Seen] = {}
        for job in jobs:
            begun, sent = tasks_with_copies(campaign.job_folder(job)), _read_sent(campaign, job)
            for task in range(len(job.tasks)):
                key = job.number, task
                if key in objects or task in sent:
                    there = objects.get(key), pods.get(key, ())
                    seen[key] = events.Seen(*there, begun=task in begun, gone=key not in objects)
        return seen

    def _list_workloads(self, campaign: Campaign) -> list[Object]:
        """Return Kueue's own objects for the Jobs of the namespace; none without permission to read them."""
        try:
            return list(self._api(campaign.plan.place).list(self._path(campaign.plan, "Workload"), {}))
        except ApiError:
            return []

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
        self, campaign: Campaign, job: JobArray, task: int, seen: events.Seen | None, held: str
    ) -> TaskState | None:
        if (said := _read_given_up(campaign, job, task)) is not None:
            return TaskState("ended", said, began=False)
        if seen is None:
            return TaskState("queued", why=held, began=False, unsent=True) if held else None
        if seen.gone:
            self._require_server(campaign, job)
            name = manifests.task_name(campaign.plan, job, task)
            verdict, began = events.judge_gone(seen, name)
            said = Scheduled(
                scheduler=self.name,
                job=name,
                state=verdict.state,
                cause=verdict.cause,
                reason=verdict.reason,
                evidence=verdict.evidence or None,
            )
            return TaskState("ended", said, began=began)
        state, hopeless = events.state_of(seen, self._clock())
        if (
            hopeless is not None
            and state.said is not None
            and not self._take_away(campaign, job, task, seen, state.said)
        ):
            return TaskState("queued", why=hopeless.reason)
        if state.phase == "queued" and campaign.plan.site.cluster.results == "s3" and seen.job is not None:
            expires_s = (events.created_s(seen.job) or self._clock()) + LONGEST_S
            if self._clock() + job.task_limit_s > expires_s:
                why = "the address for its results expires before it can end: cancel and submit it again"
                return replace(state, why=why)
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
        write_json(_given_up_file(campaign, job, task), clean(to_json_object(said))[0])

    # -- copies of logs

    def _copy_logs(self, campaign: Campaign, jobs: Sequence[JobArray], seen: Mapping[Key, events.Seen]) -> None:
        """Copy what pods have printed until now. From the second look on, running pods are followed without a gap.

        Nodes that do not answer are left for the next look.
        """
        end_s = time.monotonic() + COPY_S
        silent: set[str] = set()
        for job in jobs:
            for task in range(len(job.tasks)):
                there = seen.get((job.number, task))
                for pod in there.pods if there is not None else ():
                    copy, node = self._copy_of(campaign, job, task, pod), _node_of(pod)
                    if copy is None or copy.closed or node in silent or time.monotonic() > end_s:
                        continue
                    try:
                        self._copy_log(campaign, pod, copy)
                    except SteelyardError:
                        silent.add(node)

    def _copy_of(self, campaign: Campaign, job: JobArray, task: int, pod: Object) -> Copy | None:
        """Return the copy of a pod's log; None if its container was not started."""
        index = events.index_of(pod)
        if index is None or index >= job.shape.nodes or not events.has_started(events.inside(pod, "status")):
            return None
        name = copy_name(task, index, events.text(events.inside(pod, "metadata").get("uid"), 100))
        copy = Copy(campaign.job_folder(job) / name, _log_bytes(campaign))
        copy.begin()
        return copy

    def _copy_log(self, campaign: Campaign, pod: Object, copy: Copy) -> None:
        """Bring the copy of a log up to date."""
        over = events.ended_s(pod) is not None
        if not over and self._looks > 1 and self._followers.start(copy, lambda: self._stream_log(campaign, pod, copy)):
            return
        if over:
            self._followers.finish(copy)
        copy.add(self._stream_log(campaign, pod, copy, once=True), last=over)

    def _stream_log(self, campaign: Campaign, pod: Object, copy: Copy, *, once: bool = False) -> Iterator[bytes]:
        path = f"{self._path(campaign.plan, 'Pod', events.name_of(pod))}/log"
        limit_bytes = _log_bytes(campaign)
        query: dict[str, object] = {"container": manifests.CONTAINER, "timestamps": "true", "limitBytes": limit_bytes}
        if not once:
            query["follow"] = "true"
        if (since := copy.since()) is not None:
            query["sinceTime"] = since
        read_s = LOG_READ_S if once else FOLLOW_READ_S
        return self._api(campaign.plan.place).stream(path, query, limit_bytes, read_s)

    # -- fetching

    def fetch(self, campaign: Campaign, job: JobArray, task: int) -> str:
        """Copy the results of a task into the campaign's folder; return why some are lost."""
        key = f"{manifests.JOB_LABEL}={job.number},{manifests.TASK_LABEL}={task}"
        query = {"labelSelector": f"{manifests.selector(campaign.plan)},{key}"}
        pods = list(self._api(campaign.plan.place).list(self._path(campaign.plan, "Pod"), query))
        why = self._update_copies(campaign, job, task, pods)
        missing = self._bring(campaign, job, task, pods, whole=True)
        nofollow.remove(_unread_file(campaign, job, task))
        self._end_others(campaign, job, task, pods)
        if not missing:
            return ""
        if why:
            return f"the log of the pod could not be read: {why}"
        stored = "" if campaign.plan.site.cluster.results == "logs" else ", and it had stored nothing more"
        return f"its pod is gone with its log{stored}" if not pods else f"part of the pod's log is missing{stored}"

    def _update_copies(self, campaign: Campaign, job: JobArray, task: int, pods: Sequence[Object]) -> str:
        """Copy the logs of ended pods; return why one cannot be read. SteelyardError while it may still be readable.

        Going on without a log that can be read later would lose measurements: nodes restart, and are away for minutes.
        """
        for pod in pods:
            copy = self._copy_of(campaign, job, task, pod)
            if copy is None or copy.closed:
                continue
            try:
                self._copy_log(campaign, pod, copy)
            except SteelyardError as error:
                status = error.status if isinstance(error, ApiError) else None
                said = error.said if isinstance(error, ApiError) else error.what
                if status == NOT_FOUND and f'pods "{events.name_of(pod)}" not found' in said:
                    continue
                first_s = self._first_failure_s(campaign, job, task)
                if status in (*PASSING, FORBIDDEN) or self._clock() - first_s < LOG_PATIENCE_S:
                    raise
                return said
        return ""

    def _first_failure_s(self, campaign: Campaign, job: JobArray, task: int) -> float:
        """Return when a log of this task could not be read for the first time, and remember it."""
        path, now_s = _unread_file(campaign, job, task), self._clock()
        with suppress(FileNotFoundError, ValueError), nofollow.open_file(path) as file:
            first_s = float(file.read(MAX_DIGITS * 2))
            # Neither from the future nor no number at all.
            if 0 <= first_s <= now_s:
                return first_s
        replace_text(path, f"{now_s:.3f}\n", path.parent)
        return now_s

    def _bring(
        self, campaign: Campaign, job: JobArray, task: int, pods: Iterable[Object], *, whole: bool = False
    ) -> bool:
        """Read all copies of a task into the folders of its runs; return whether something is missing.

        `whole`: also what the pods have stored outside their logs.
        """
        nodes = {events.index_of(pod): _node_of(pod) for pod in pods}
        scratch = campaign.path / f".fetch-{secrets.token_hex(8)}"
        nofollow.make_folder(scratch, 0o700)
        try:
            logs: list[PodLog] = []
            for number, (index, path) in enumerate(copies_of(campaign.job_folder(job), task)):
                nofollow.make_folder(scratch / str(number), 0o700)
                copy = Copy(path, _log_bytes(campaign))
                start = PodLog(index, nodes.get(index, ""), closed=copy.closed)
                reader = LogReader(job.tasks[task], scratch / str(number), _log_bytes(campaign), start)
                logs.append(reader.read(copy.lines()))
            if whole and campaign.plan.site.cluster.results != "logs":
                logs += self._read_stored(campaign, job, task, nodes, scratch)
            return lay_down(campaign, job, task, logs)
        finally:
            nofollow.remove_tree(scratch)

    def _read_stored(
        self, campaign: Campaign, job: JobArray, task: int, nodes: Mapping[int | None, str], scratch: Path
    ) -> list[PodLog]:
        """Read what the pods of a task have stored outside their logs; SteelyardError if that may succeed later."""

        def make(index: int) -> LogReader:
            folder = scratch / f"stored-{secrets.token_hex(4)}"
            nofollow.make_folder(folder, 0o700)
            start = PodLog(index, nodes.get(index, ""), stored=True)
            return LogReader(job.tasks[task], folder, MAX_OBJECT_BYTES // UNPACKED_FACTOR, start)

        try:
            if campaign.plan.site.cluster.results == "claim":
                return self._read_claim(campaign, job, task, make)
            return _read_objects(campaign.plan, job, task, make)
        except SteelyardError:
            if self._clock() - self._first_failure_s(campaign, job, task) < LOG_PATIENCE_S:
                raise
            return []

    def _read_claim(
        self, campaign: Campaign, job: JobArray, task: int, make: Callable[[int], LogReader]
    ) -> list[PodLog]:
        """Read the files of a task from the claim, through the log of a short pod.

        The log is followed from its start: a node that rotates logs shows only the newest part afterwards.
        """
        plan, api = campaign.plan, self._api(campaign.plan.place)
        pod = manifests.reader_pod(plan, job, task)
        path = self._path(plan, "Pod", pod["metadata"]["name"])
        api.create(self._path(plan, "Pod"), pod)
        try:
            deadline_s = time.monotonic() + READER_WAIT_S
            while not events.has_started(events.inside(there := api.get(path), "status")):
                waits = events.waits_for(there)
                if time.monotonic() > deadline_s or events.ended(there) is not None:
                    raise SteelyardError(f"the pod that reads the claim does not start: {waits or 'no reason given'}")
                time.sleep(READER_LOOK_S)
            query = {"container": manifests.CONTAINER, "follow": "true"}
            lines = bounded_lines(api.stream(f"{path}/log", query, MAX_OBJECT_BYTES))
            pods, count = read_parcels(lines, make)
        finally:
            api.delete(path)
        if count != len(pods):
            raise SteelyardError("the log of the pod that reads the claim is incomplete")
        return pods

    def _end_others(self, campaign: Campaign, job: JobArray, task: int, pods: Iterable[Object]) -> None:
        """Delete the Job of a task whose own containers have ended while others, put there by the platform, go on."""
        if any(events.inside(pod, "status").get("phase") == "Running" for pod in pods):
            plan, name = campaign.plan, manifests.task_name(campaign.plan, job, task)
            for kind in self._kinds_of_tasks(campaign, job):
                self._api(plan.place).delete(self._path(plan, kind, name))

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
                for pod in some:
                    copy = self._copy_of(campaign, numbers[number], task, pod)
                    if copy is not None and not copy.closed:
                        self._followers.finish(copy)
                        # What a node does not return now is lost: the user wants the end.
                        with suppress(SteelyardError):
                            copy.add(self._stream_log(campaign, pod, copy, once=True))
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
        kinds = [*dict.fromkeys(kind for job in jobs for kind in self._kinds_of_tasks(campaign, job)), "ConfigMap"]
        kinds += ["Secret"] if plan.site.cluster.results == "s3" else []
        if any(job.shape.nodes > 1 for job in jobs):
            kinds.append("Service")
        for kind in kinds:
            api.delete(self._path(plan, kind), query)

    def _kinds_of_tasks(self, campaign: Campaign, job: JobArray) -> list[str]:
        """Return the kinds of objects that tasks are; the JobSet first: it would create its Job again."""
        kinds = ["JobSet"] if job.shape.nodes > 1 and self._uses_jobset(campaign.plan.place) else []
        return [*kinds, "Job"]


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
    path = campaign.job_folder(job) / SENT_FILE
    if not nofollow.is_file(path):
        return set()
    words = read_inside(path, MAX_SENT_BYTES).decode("ascii", "replace").split()
    return {int(word) for word in words if word.isdecimal() and len(word) < MAX_DIGITS}


def read_held(campaign: Campaign, job: JobArray) -> str:
    """Return why tasks of a job are not created yet; empty: all are."""
    path = campaign.job_folder(job) / HELD_FILE
    if not nofollow.is_file(path):
        return ""
    return printable(read_inside(path, MAX_SPEC_BYTES).decode("utf-8", "replace").strip())[: events.SAID_CHARACTERS]


def _unread_file(campaign: Campaign, job: JobArray, task: int) -> Path:
    """Return the file with the time at which a log of the task could not be read for the first time."""
    return campaign.job_folder(job) / f"{task}.unread"


def _object_url(plan: Plan, job: JobArray, task: int, index: int, run: int) -> str:
    bucket = (plan.site.cluster.bucket or "").rstrip("/")
    return f"{bucket}/{manifests.folder_of(plan, job, task)}/{index}-{run}"


def _read_objects(plan: Plan, job: JobArray, task: int, make: Callable[[int], LogReader]) -> list[PodLog]:
    """Read the objects that the pods of a task have stored."""
    key, pods = key_from_environment(), list[PodLog]()
    for index in range(job.shape.nodes):
        for run in range(len(job.tasks[task])):
            chunks = read_object(_object_url(plan, job, task, index, run), key, plan.site.cluster.region)
            if chunks is not None:
                pods += read_parcels(bounded_lines(chunks), make)[0]
    return pods


def _node_of(pod: Object) -> str:
    return events.text(events.inside(pod, "spec").get("nodeName"), 253)


def _log_bytes(campaign: Campaign) -> int:
    return (campaign.plan.site.limits.log_mib << 20) + LOG_SLACK_BYTES


def _given_up_file(campaign: Campaign, job: JobArray, task: int) -> Path:
    return campaign.job_folder(job) / f"{task}.given-up.json"


def _read_given_up(campaign: Campaign, job: JobArray, task: int) -> Scheduled | None:
    path = _given_up_file(campaign, job, task)
    if not nofollow.is_file(path):
        return None
    return parse_json(Scheduled, read_inside(path, MAX_SPEC_BYTES), str(path))


def _describe_refusal(plan: Plan, job: JobArray, task: int, error: ApiError) -> Scheduled:
    return Scheduled(
        scheduler=Kubernetes.name,
        job=manifests.task_name(plan, job, task),
        state="Refused",
        cause="refused",
        reason=f"the platform refused it: {error.said}",
        evidence={"http_status": error.status},
    )
