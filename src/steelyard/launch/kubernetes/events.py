"""Work out the state of a Kubernetes task from its Jobs, pods and events. Queries nothing.

Objects are the API's plain JSON, from a platform of any version: every field may be missing.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from steelyard.contracts.observe import Scheduled, StatusCode
from steelyard.errors import printable
from steelyard.launch.campaign import TaskState
from steelyard.launch.collect import OOM_KILLED
from steelyard.launch.kubernetes.manifests import CONTAINER, JOB_LABEL, TASK_LABEL

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Object = dict[str, Any]

SAID_CHARACTERS: Final = 1500
SHOWN_NODES: Final = 1000
MAX_EXIT: Final = 2**31

# How long a pod may wait for each reason before it is given up. Images: a registry may be down for some minutes, a
# wrong name stays wrong. No room: a day in the queue is usual, and an autoscaler takes time.
PATIENCE_S: Final = {
    "InvalidImageName": 0,
    "ErrImageNeverPull": 0,
    "ErrImagePull": 600,
    "ImagePullBackOff": 600,
    "ImageInspectError": 600,
    "RegistryUnavailable": 600,
    "SignatureValidationFailed": 600,
    "CreateContainerConfigError": 300,
    "CreateContainerError": 300,
    "RunContainerError": 300,
    "Unschedulable": 86_400,
    "FailedCreate": 3_600,
    # A full quota is a queue: it has room again when others have ended.
    "ExceededQuota": 86_400,
}
QUOTA_FULL: Final = "exceeded quota"
"""In the message of a quota that has no room now; one that needs a limit says `failed quota`."""
TERMINATING_S: Final = 120
"""How long after its deadline a pod that was told to end may still be shown before its node counts as lost."""
OVERDUE_S: Final = 900
"""How long a pod may outlive its own deadline, which its node enforces, before the node counts as lost."""
SIDECAR_S: Final = 60
"""How long a Job may take to end after our container has ended, before its other containers are what it waits for."""
# Waiting does not help against these.
_WRONG_PLATFORM = re.compile(
    r"no match for platform|no matching manifest|exec format error|does not match the (detected|specified) platform",
    re.IGNORECASE,
)
UNKNOWN: Final = "ContainerStatusUnknown"
DELETED: Final = "the pod was deleted, by somebody or by a service of the platform"
NOT_MET: Final = 71  # worker/pod.py: not all pods of the task started in time
JOB_WITHOUT_PODS_S: Final = 60

_BY_POD_REASON: Final[dict[str, tuple[StatusCode, str]]] = {
    "Evicted": ("preempted", "the pod was evicted from its node"),
    "Preempting": ("preempted", "the pod was preempted by a pod of higher priority"),
    "DeadlineExceeded": ("time_limit", "the pod reached its deadline"),
    "NodeLost": ("node_failure", "the node was lost"),
    "NodeShutdown": ("node_failure", "the node was shut down"),
    "Shutdown": ("node_failure", "the node was shut down"),
    "Terminated": ("node_failure", "the node was shut down"),
    "NodeAffinity": ("refused", "the node did not accept the pod"),
    "UnexpectedAdmissionError": ("refused", "the node did not accept the pod"),
    "OutOfcpu": ("refused", "the node does not have enough CPUs"),
    "OutOfmemory": ("refused", "the node does not have enough memory"),
    "OutOfpods": ("refused", "the node accepts no more pods"),
}
_BY_DISRUPTION: Final[dict[str, tuple[StatusCode, str]]] = {
    "PreemptionByScheduler": ("preempted", "the pod was preempted by a pod of higher priority"),
    "EvictionByEvictionAPI": ("preempted", "the pod was evicted: its node was drained"),
    "DeletionByTaintManager": ("node_failure", "the node stopped responding, or was tainted"),
    "DeletionByPodGC": ("node_failure", "the node no longer exists"),
}
_BY_EVENT: Final[dict[str, tuple[StatusCode, str]]] = {
    "Preempted": ("preempted", "the pod was preempted by a pod of higher priority"),
    "Evicted": ("preempted", "the pod was evicted from its node"),
    "TaintManagerEviction": ("node_failure", "the node stopped responding, or was tainted"),
    "DeadlineExceeded": ("time_limit", "the deadline was reached"),
}
# After an interruption of the API healthy pods have NodeNotReady, and pods that were spared have this.
_SPARED: Final = "Cancelling deletion"
# Of several pods, the most specific cause counts.
_TELLING: Final = (
    "out_of_memory",
    "refused",
    "preempted",
    "node_failure",
    "time_limit",
    "cancelled",
    "killed",
    "failed",
    "lost",
)
# Events that every healthy pod has. Started and Completed are needed of Jobs that are gone.
ORDINARY_EVENTS: Final = ("Pulled", "Pulling", "Created", "Scheduled", "SuccessfulCreate")


@dataclass(frozen=True)
class Verdict:
    """What happened to a pod, or what it waits for."""

    state: str
    cause: StatusCode | None
    reason: str
    evidence: dict[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """The objects of one task from the API."""

    job: Object | None
    pods: Sequence[Object] = ()
    events: Sequence[Object] = ()
    """Only if they were requested."""
    begun: bool = False
    """Whether an earlier look saw its container started."""
    queue: str = ""
    """Why its queue has not admitted it, as the queue reports it."""
    gone: bool = False
    """Whether it was submitted and its Job is no longer there."""


def text(value: Any, length: int = SAID_CHARACTERS) -> str:
    """Return untrusted text, of bounded length and printable."""
    return printable(value)[:length] if isinstance(value, str) else ""


def inside(thing: Object, name: str) -> Object:
    """Return an object inside another; an empty one if it is missing or not an object."""
    value = thing.get(name)
    return value if isinstance(value, dict) else {}


def list_inside(thing: Object, name: str) -> list[Object]:
    """Return the objects of a list inside another object."""
    value = thing.get(name)
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def place_of(thing: Object) -> tuple[int, int] | None:
    """Return the job and task number of an object, from its labels."""
    labels = inside(inside(thing, "metadata"), "labels")
    try:
        return int(labels[JOB_LABEL]), int(labels[TASK_LABEL])
    except (KeyError, ValueError, TypeError):
        return None


def index_of(pod: Object) -> int | None:
    """Return the index of a pod in its task."""
    metadata = inside(pod, "metadata")
    for kind in ("labels", "annotations"):
        index = inside(metadata, kind).get("batch.kubernetes.io/job-completion-index")
        if isinstance(index, str) and re.fullmatch(r"[0-9]{1,6}", index):
            return int(index)
    return None


def name_of(thing: Object) -> str:
    """Return the name of an object."""
    return text(inside(thing, "metadata").get("name"), 253)


def unix_s(value: Any) -> float | None:
    """Convert a time of the API to Unix seconds."""
    try:
        moment_s = dt.datetime.fromisoformat(value).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
    return moment_s if moment_s >= 0 else None


# -- pods --------------------------------------------------------------------------------------------------------


def ended(pod: Object) -> Verdict | None:
    """Return why a pod failed; None if it did not, or not yet."""
    status = inside(pod, "status")
    disruption = _find_condition(status, "DisruptionTarget")
    gone = inside(pod, "metadata").get("deletionTimestamp") is not None
    if status.get("phase") != "Failed" and not (gone and disruption):
        return None
    verdict = _judge_container(status) or _judge_pod(status, disruption, gone=gone)
    told = {"pod": name_of(pod), "node": text(inside(pod, "spec").get("nodeName"), 253)}
    return replace(verdict, evidence={**{name: word for name, word in told.items() if word}, **verdict.evidence})


def _judge_container(status: Object) -> Verdict | None:
    """Judge the end of the container, if that is more specific than the end of the pod."""
    end = inside(_state(status), "terminated")
    reason, code, printed = text(end.get("reason"), 100), _exit_code(end), end.get("message")
    # The end of the container's output, without the lines that carry results.
    lines = [
        line.strip()
        for line in (printed if isinstance(printed, str) else "").splitlines()
        if line.strip() and not line.startswith("#steelyard ")
    ]
    message = text(" | ".join(lines)[-SAID_CHARACTERS:])
    evidence: dict[str, float | int | str] = {} if code is None else {"exit_code": code}
    if message:
        evidence["message"] = message
    if reason == OOM_KILLED:
        return Verdict(reason, "out_of_memory", "the container exceeded its memory limit and was killed", evidence)
    if _WRONG_PLATFORM.search(message):
        return Verdict("exec format error", "refused", "the image is for another architecture", evidence)
    if text(status.get("reason")) in _BY_POD_REASON or _find_condition(status, "DisruptionTarget"):
        return None
    if reason == UNKNOWN:
        return Verdict(reason, "node_failure", "the node does not know how the container ended", evidence)
    if reason in ("StartError", "ContainerCannotRun"):
        return Verdict(reason, "refused", f"the container could not be started: {message}"[:SAID_CHARACTERS], evidence)
    if code == NOT_MET:
        why = "not all pods of the task ran at the same time: the platform has no room for them"
        return Verdict("NotMet", "refused", why, evidence)
    if code in (137, 143):
        return Verdict(reason or "Error", "killed", f"the container was ended by signal {code - 128}", evidence)
    if code:
        return Verdict(reason or "Error", "failed", f"the container ended with exit code {code}", evidence)
    return None


def _exit_code(end: Object) -> int | None:
    code = end.get("exitCode")
    return code if type(code) is int and abs(code) <= MAX_EXIT else None


def _judge_pod(status: Object, disruption: Object | None, *, gone: bool) -> Verdict:
    reason, message = text(status.get("reason"), 100), text(status.get("message"))
    evidence: dict[str, float | int | str] = {"message": message} if message else {}
    if reason == "DeadlineExceeded" and _state(status) and not has_started(status):
        # The deadline passed before anything of ours could start.
        waits = _read_waiting(status) or Verdict("DeadlineExceeded", None, "it was not ready before the deadline")
        why = f"the container never started: {waits.reason}"
        return Verdict(waits.state, "refused", why, {**evidence, **waits.evidence})
    if reason == "Evicted" and re.search(r'EmptyDir volume "shm" exceeds', message):
        return Verdict(reason, "out_of_memory", "the pod used more shared memory than shm_mib allows", evidence)
    if reason == "Evicted" and "exceeds" in message:
        return Verdict(reason, "failed", "the pod exceeded its disk limit", evidence)
    if reason in _BY_POD_REASON:
        return Verdict(reason, *_BY_POD_REASON[reason], evidence)
    if disruption is not None:
        kind = text(disruption.get("reason"), 100)
        cause, why = _BY_DISRUPTION.get(kind, ("preempted", "the platform removed the pod"))
        said = text(disruption.get("message"))
        return Verdict(kind, cause, why, {**evidence, **({"disruption": said} if said else {})})
    if gone:
        return Verdict("Deleted", "cancelled", DELETED, evidence)
    return Verdict(reason or "Failed", "failed", f"the pod failed: {message or 'no reason given'}", evidence)


def has_started(status: Object) -> bool:
    """Return whether our container has been started, as far as the pod tells."""
    state = _state(status)
    return bool((inside(state, "running") or inside(state, "terminated")).get("startedAt"))


def _state(status: Object) -> Object:
    """Return the state of our container; the platform may have added others."""
    containers = list_inside(status, "containerStatuses") or [{}]
    ours = [entry for entry in containers if entry.get("name") == CONTAINER] or containers
    return inside(ours[0], "state")


def _read_waiting(status: Object) -> Verdict | None:
    """Return what a pod waits for if that may never happen."""
    state = inside(_state(status), "waiting")
    reason, message = text(state.get("reason"), 100), text(state.get("message"))
    evidence: dict[str, float | int | str] = {"message": message} if message else {}
    if reason in PATIENCE_S:
        return Verdict(reason, "refused", f"{reason}: {message}" if message else reason, evidence)
    scheduled = _find_condition(status, "PodScheduled", "False")
    if scheduled is not None and scheduled.get("reason") == "Unschedulable":
        why = text(scheduled.get("message"))
        return Verdict("Unschedulable", "refused", f"no node can run it: {why}", {"message": why} if why else {})
    return None


def _find_condition(status: Object, kind: str, value: str = "True") -> Object | None:
    conditions = list_inside(status, "conditions")
    return next((entry for entry in conditions if entry.get("type") == kind and entry.get("status") == value), None)


# -- tasks -------------------------------------------------------------------------------------------------------


def is_stuck(seen: Seen, now_s: float) -> bool:
    """Return whether events are needed: the task may wait for ever, or its pods do not tell how they ended."""
    if seen.job is None:
        return seen.gone
    status = inside(seen.job, "status")
    if _find_condition(status, "Failed") or _find_condition(status, "FailureTarget"):
        return not any(_ended_knowingly(pod) for pod in seen.pods)
    if is_suspended(seen) or _find_condition(status, "Complete"):
        return False
    if not seen.pods:
        return now_s - (created_s(seen.job) or now_s) > JOB_WITHOUT_PODS_S
    return any(_read_waiting(inside(pod, "status")) for pod in seen.pods)


def _ended_knowingly(pod: Object) -> bool:
    status = inside(pod, "status")
    end = inside(_state(status), "terminated")
    return ended(pod) is not None and (end.get("reason") != UNKNOWN or has_started(status))


def state_of(seen: Seen, now_s: float) -> tuple[TaskState, Verdict | None]:
    """Return the state of a task and, if it waits for something that will not happen, the reason to give it up."""
    if seen.job is None:
        return TaskState("queued", why="its Job does not exist yet"), None
    status, began = inside(seen.job, "status"), _began(seen)
    if _find_condition(status, "Complete"):
        return TaskState("ended", _describe_end(seen, _judge_complete(seen)), began=True), None
    if failed := _find_condition(status, "Failed"):
        why = _explain_failure(seen, failed)
        began = False if why.cause == "refused" and not began else began
        return TaskState("ended", _describe_end(seen, why), began=began), None
    if (verdict := _judge_unfinished(seen, now_s)) is not None:
        return TaskState("ended", _describe_end(seen, verdict), began=True), None
    if is_suspended(seen):
        return TaskState("queued", why=seen.queue or "suspended: not yet admitted by its queue", began=began), None
    waits = _judge_stuck(seen, now_s)
    if waits is not None and _is_hopeless(seen, waits, now_s):
        return TaskState("ended", _describe_end(seen, waits), began=bool(began)), waits
    if target := _find_condition(status, "FailureTarget"):
        told = f"its pods are being ended: {text(target.get('message')) or text(target.get('reason'))}"
        return TaskState("running", why=told, began=began), None
    if any(inside(pod, "status").get("phase") in ("Running", "Succeeded", "Failed") for pod in seen.pods):
        return TaskState("running", why=waits.reason if waits else "", began=began), None
    return TaskState("queued", why=waits.reason if waits else "its pods are starting", began=began), None


def _began(seen: Seen) -> bool | None:
    """Return whether a container of the task was started; None: not known, as pods may be gone."""
    status = inside(seen.job or {}, "status")
    if seen.begun or any(has_started(inside(pod, "status")) for pod in seen.pods):
        return True
    if any(status.get(count) for count in ("succeeded", "ready")):
        return True
    if (
        seen.pods
        and not status.get("failed")
        and all(inside(pod, "status").get("phase") == "Pending" for pod in seen.pods)
    ):
        return False
    counted = any(status.get(count) for count in ("failed", "active", "terminating"))
    return None if counted or _find_condition(status, "Failed") else False


def _judge_complete(seen: Seen) -> Verdict:
    """Under the first version of control groups a container can complete although one of its processes was killed."""
    for pod in seen.pods:
        end = inside(_state(inside(pod, "status")), "terminated")
        if end.get("reason") == OOM_KILLED:
            return Verdict(OOM_KILLED, "out_of_memory", "a process of the container exceeded its memory limit", {})
    return Verdict("Complete", None, "")


def _judge_unfinished(seen: Seen, now_s: float) -> Verdict | None:
    """Return how a task has ended whose Job does not say so: its node is dead, or another container goes on."""
    wanted = inside(seen.job or {}, "spec").get("completions")
    if len({index_of(pod) for pod in seen.pods}) < (wanted if isinstance(wanted, int) else 1):
        return None
    over = ("Succeeded", "Failed")
    still = [pod for pod in seen.pods if inside(pod, "status").get("phase") not in over]
    verdicts = [_judge_open_pod(pod, now_s) for pod in still]
    known = [verdict for verdict in verdicts if verdict is not None]
    # Of pods that have all ended the Job will tell.
    if not known or len(known) < len(verdicts):
        return None
    known += [verdict for pod in seen.pods if pod not in still and (verdict := ended(pod)) is not None]
    return min(known, key=lambda verdict: _TELLING.index(verdict.cause or "lost"))


def _judge_open_pod(pod: Object, now_s: float) -> Verdict | None:
    status, metadata = inside(pod, "status"), inside(pod, "metadata")
    told: dict[str, float | int | str] = {"pod": name_of(pod), "node": text(inside(pod, "spec").get("nodeName"), 253)}
    # The platform sets this time to when the pod must be gone.
    deleted_s = unix_s(metadata.get("deletionTimestamp"))
    if deleted_s is not None and now_s - deleted_s > TERMINATING_S and has_started(status):
        why = "the pod was told to end, and its node has not confirmed it"
        return ended(pod) or Verdict("Terminating", "node_failure", why, told)
    limit_s, began_s = inside(pod, "spec").get("activeDeadlineSeconds"), unix_s(status.get("startTime"))
    if isinstance(limit_s, int) and began_s is not None and now_s - began_s > limit_s + OVERDUE_S:
        return Verdict("Overdue", "node_failure", "the node has not ended the pod at its deadline", told)
    end = inside(_state(status), "terminated")
    end_s = unix_s(end.get("finishedAt"))
    others = [entry for entry in list_inside(status, "containerStatuses") if entry.get("name") != CONTAINER]
    running = [text(entry.get("name"), 63) for entry in others if inside(inside(entry, "state"), "running")]
    if running and end_s is not None and now_s - end_s > SIDECAR_S:
        return _judge_container(status) or Verdict("Completed", None, "", {"still_running": ", ".join(running)})
    return None


def is_suspended(seen: Seen) -> bool:
    """Return whether the Job of a task waits for a queue."""
    return inside(seen.job or {}, "spec").get("suspend") is True


def as_job(jobset: Object) -> Object:
    """Return a JobSet in the form of a Job: its conditions have other names (jobset.x-k8s.io/v1alpha2)."""
    names = {"Completed": "Complete", "Failed": "Failed", "Suspended": "Suspended"}
    conditions = [
        {**entry, "type": names[str(entry.get("type"))]}
        for entry in list_inside(inside(jobset, "status"), "conditions")
        if entry.get("type") in names
    ]
    spec = {"suspend": inside(jobset, "spec").get("suspend")}
    return {"metadata": inside(jobset, "metadata"), "spec": spec, "status": {"conditions": conditions}}


def queue_messages(workloads: Iterable[Object]) -> dict[str, str]:
    """Return why Kueue has not admitted Jobs, by their names: from the conditions of its Workloads (v1beta1)."""
    messages: dict[str, str] = {}
    for workload in workloads:
        status = inside(workload, "status")
        evicted, reserved = _find_condition(status, "Evicted"), _find_condition(status, "QuotaReserved", "False")
        told = evicted or reserved
        if told is None:
            continue
        start = "evicted by its queue" if evicted else "not yet admitted by its queue"
        message = text(told.get("message")) or text(told.get("reason"))
        for owner in list_inside(inside(workload, "metadata"), "ownerReferences"):
            messages[text(owner.get("name"), 253)] = f"{start}: {message}" if message else start
    return messages


def waits_for(pod: Object) -> str:
    """Return what a pod waits for; empty if that is not known."""
    waits = _read_waiting(inside(pod, "status"))
    return waits.reason if waits is not None else ""


def created_s(thing: Object) -> float | None:
    """Return when an object was created."""
    return unix_s(inside(thing, "metadata").get("creationTimestamp"))


def _judge_stuck(seen: Seen, now_s: float) -> Verdict | None:
    for pod in seen.pods:
        if (waits := _read_waiting(inside(pod, "status"))) is not None:
            told = {"pod": name_of(pod), **waits.evidence}
            if event := _find_event(seen.events, ("Failed", "FailedScheduling", "InspectFailed"), name_of(pod)):
                told["event"] = event
            return replace(waits, evidence=told)
    old = now_s - (created_s(seen.job or {}) or now_s) > JOB_WITHOUT_PODS_S
    if not seen.pods and old and (event := _find_event(seen.events, ("FailedCreate",), name_of(seen.job or {}))):
        state = "ExceededQuota" if QUOTA_FULL in event else "FailedCreate"
        return Verdict(state, "refused", f"its pods cannot be created: {event}", {"event": event})
    return None


def _is_hopeless(seen: Seen, waits: Verdict, now_s: float) -> bool:
    if any(inside(pod, "status").get("phase") == "Running" for pod in seen.pods):
        # Running pods end by themselves, and the task with them: their results must not be lost.
        return False
    if _WRONG_PLATFORM.search(" ".join(map(str, waits.evidence.values()))):
        return True
    since = [created_s(thing) for thing in (seen.pods or [seen.job or {}])]
    waited_s = now_s - min([moment for moment in since if moment is not None], default=now_s)
    return waited_s >= PATIENCE_S[waits.state]


def _explain_failure(seen: Seen, failed: Object) -> Verdict:
    """Return the most specific verdict of the pods; without one, that of the events or the Job."""
    verdicts = [_with_events(seen, pod, verdict) for pod in seen.pods if (verdict := ended(pod)) is not None]
    if verdicts:
        return min(verdicts, key=lambda verdict: _TELLING.index(verdict.cause or "failed"))
    reason, message = text(failed.get("reason"), 100), text(failed.get("message"))
    evidence: dict[str, float | int | str] = {"job": f"{reason}: {message}"}
    if reason == "DeadlineExceeded":
        return Verdict(reason, "time_limit", "the Job reached its deadline", evidence)
    for kind, (cause, why) in _BY_EVENT.items():
        if event := _find_event(seen.events, (kind,), name_of(seen.job or {})):
            return Verdict(kind, cause, why, {**evidence, "event": event})
    if event := _find_event(seen.events, ("Killing",), name_of(seen.job or {})):
        return Verdict("Deleted", "cancelled", DELETED, {**evidence, "event": event})
    why = "its pod was removed for an unknown reason: most often its node was lost, or it was deleted"
    return Verdict(reason or "Failed", "node_failure", why, evidence)


def _with_events(seen: Seen, pod: Object, verdict: Verdict) -> Verdict:
    """Return why a container never started, which the platform forgets at the deadline and only events tell."""
    if verdict.cause != "refused" or has_started(inside(pod, "status")):
        return verdict
    event = _find_event(seen.events, ("Failed", "FailedMount", "FailedScheduling", "InspectFailed"), name_of(pod))
    if not event or "event" in verdict.evidence:
        return verdict
    why = f"the container never started: {event}"[:SAID_CHARACTERS]
    return replace(verdict, reason=why, evidence={**verdict.evidence, "event": event})


def judge_gone(seen: Seen, name: str) -> tuple[Verdict, bool | None]:
    """Return what is known about a task whose Job no longer exists, and whether it began."""
    why = "its Job no longer exists: it was deleted by somebody or by the platform"
    if event := _find_event(seen.events, ("Completed",), name):
        return Verdict("Deleted", None, f"{why} after it had completed", {"event": event}), True
    if event := _find_event(seen.events, ("Started",), name):
        return Verdict("Deleted", "cancelled", why, {"event": event}), True
    return Verdict("Deleted", "cancelled", why), seen.begun or None


def _find_event(events: Iterable[Object], reasons: Sequence[str], start: str) -> str:
    """Return the message of the newest of these events about an object or the pods named after it."""
    messages = [("", "")]
    for event in events:
        name = inside(event, "involvedObject").get("name")
        is_of = isinstance(name, str) and (name == start or name.startswith(f"{start}-"))
        if is_of and event.get("reason") in reasons and not text(event.get("message")).startswith(_SPARED):
            messages.append(
                (text(event.get("lastTimestamp") or event.get("eventTime"), 40), text(event.get("message")))
            )
    return max(messages)[1]


def _describe_end(seen: Seen, verdict: Verdict) -> Scheduled:
    """Collect everything that the platform reports about an ended task."""
    times = [_read_times(pod) for pod in seen.pods]
    starts = [start for start, _ in times if start is not None]
    ends = [end for _, end in times if end is not None]
    job = seen.job or {}
    nodes = sorted({text(inside(pod, "spec").get("nodeName"), 253) for pod in seen.pods} - {""})
    image, digest = _find_image(seen.pods)
    return Scheduled(
        scheduler="kubernetes",
        job=name_of(job),
        state=verdict.state,
        cause=verdict.cause,
        reason=verdict.reason[:SAID_CHARACTERS],
        evidence=verdict.evidence or None,
        nodes=tuple(nodes[:SHOWN_NODES]),
        queued_at=_iso(created_s(job)),
        started_at=_iso(min(starts, default=None)),
        elapsed_s=max(0.0, max(ends) - min(starts)) if starts and ends else None,
        image=image,
        digest=digest,
    )


def _read_times(pod: Object) -> tuple[float | None, float | None]:
    state = _state(inside(pod, "status"))
    ran = inside(state, "terminated") or inside(state, "running")
    return unix_s(ran.get("startedAt")), unix_s(ran.get("finishedAt"))


def ended_s(pod: Object) -> float | None:
    """Return when our container ended; None if it has not, or the time is unknown."""
    return _read_times(pod)[1]


def _iso(moment_s: float | None) -> str | None:
    return None if moment_s is None else dt.datetime.fromtimestamp(moment_s, dt.UTC).isoformat(timespec="seconds")


def _find_image(pods: Iterable[Object]) -> tuple[str | None, str | None]:
    """Return name and digest of the image that ran, as the container runtime reports them."""
    for pod in pods:
        for container in list_inside(inside(pod, "status"), "containerStatuses"):
            match = re.search(r"sha256:[0-9a-f]{64}", text(container.get("imageID"), 1000))
            if match:
                return text(container.get("image"), 1000) or None, match.group()
    return None, None
