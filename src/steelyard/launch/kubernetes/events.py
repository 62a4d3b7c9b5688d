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
from steelyard.launch.kubernetes.manifests import CONTAINER, JOB_LABEL, TASK_LABEL

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Object = dict[str, Any]

SAID_CHARACTERS: Final = 1500
SHOWN_NODES: Final = 1000

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
}
# Waiting does not help against these.
_WRONG_PLATFORM = re.compile(
    r"no match for platform|no matching manifest|exec format error|does not match the (detected|specified) platform",
    re.IGNORECASE,
)
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
    "NodeNotReady": ("node_failure", "the node stopped responding"),
    "DeadlineExceeded": ("time_limit", "the deadline was reached"),
}
# Of several pods, the most specific cause counts.
_TELLING: Final = ("out_of_memory", "refused", "preempted", "node_failure", "time_limit", "killed", "failed")
# Events that every healthy pod has.
ORDINARY_EVENTS: Final = ("Pulled", "Pulling", "Created", "Started", "Scheduled", "SuccessfulCreate", "Completed")


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


def text(value: Any, length: int = SAID_CHARACTERS) -> str:
    """Return untrusted text, of bounded length and printable."""
    return printable(value)[:length] if isinstance(value, str) else ""


def place_of(thing: Object) -> tuple[int, int] | None:
    """Return the job and task number of an object, from its labels."""
    labels = (thing.get("metadata") or {}).get("labels") or {}
    try:
        return int(labels[JOB_LABEL]), int(labels[TASK_LABEL])
    except (KeyError, ValueError, TypeError):
        return None


def index_of(pod: Object) -> int | None:
    """Return the index of a pod in its task."""
    metadata = pod.get("metadata") or {}
    for kind in ("labels", "annotations"):
        found = (metadata.get(kind) or {}).get("batch.kubernetes.io/job-completion-index")
        if isinstance(found, str) and re.fullmatch(r"[0-9]{1,6}", found):
            return int(found)
    return None


def name_of(thing: Object) -> str:
    """Return the name of an object."""
    return text((thing.get("metadata") or {}).get("name"), 253)


def unix_s(value: Any) -> float | None:
    """Convert a time of the API to Unix seconds."""
    try:
        return dt.datetime.fromisoformat(value).timestamp()
    except (TypeError, ValueError):
        return None


# -- pods --------------------------------------------------------------------------------------------------------


def ended(pod: Object) -> Verdict | None:
    """Return why a pod failed; None if it did not, or not yet."""
    status = pod.get("status") or {}
    disruption = _find_condition(status, "DisruptionTarget")
    gone = (pod.get("metadata") or {}).get("deletionTimestamp") is not None
    if status.get("phase") != "Failed" and not (gone and disruption):
        return None
    verdict = _judge_container(status) or _judge_pod(status, disruption)
    told = {"pod": name_of(pod), "node": text((pod.get("spec") or {}).get("nodeName"), 253)}
    return replace(verdict, evidence={**{name: word for name, word in told.items() if word}, **verdict.evidence})


def _judge_container(status: Object) -> Verdict | None:
    """Judge the end of the container, if that is more specific than the end of the pod."""
    end = _state(status).get("terminated") or {}
    reason, code, printed = text(end.get("reason"), 100), end.get("exitCode"), end.get("message")
    # The end of the container's output, without the lines that carry results.
    lines = [
        line.strip()
        for line in (printed if isinstance(printed, str) else "").splitlines()
        if line.strip() and not line.startswith("#steelyard ")
    ]
    message = text(" | ".join(lines)[-SAID_CHARACTERS:])
    evidence: dict[str, float | int | str] = {"exit_code": code} if isinstance(code, int) else {}
    if message:
        evidence["message"] = message
    if reason == "OOMKilled":
        return Verdict(reason, "out_of_memory", "the container exceeded its memory limit and was killed", evidence)
    if _WRONG_PLATFORM.search(message):
        return Verdict("exec format error", "refused", "the image is for another architecture", evidence)
    if status.get("reason") in _BY_POD_REASON or _find_condition(status, "DisruptionTarget"):
        return None
    if reason in ("StartError", "ContainerCannotRun"):
        return Verdict(reason, "refused", f"the container could not be started: {message}"[:SAID_CHARACTERS], evidence)
    if code == NOT_MET:
        why = "not all pods of the task ran at the same time: the platform has no room for them"
        return Verdict("NotMet", "refused", why, evidence)
    if code in (137, 143):
        return Verdict(reason or "Error", "killed", f"the container was ended by signal {code - 128}", evidence)
    if isinstance(code, int) and code != 0:
        return Verdict(reason or "Error", "failed", f"the container ended with exit code {code}", evidence)
    return None


def _judge_pod(status: Object, disruption: Object | None) -> Verdict:
    reason, message = text(status.get("reason"), 100), text(status.get("message"))
    evidence: dict[str, float | int | str] = {"message": message} if message else {}
    if reason == "DeadlineExceeded" and (waits := _read_waiting(status)):
        # The deadline passed before anything of ours could start.
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
    return Verdict(reason or "Failed", "failed", f"the pod failed: {message or 'no reason given'}", evidence)


def _state(status: Object) -> Object:
    """Return the state of our container; the platform may have added others."""
    containers = status.get("containerStatuses") or [{}]
    ours = [entry for entry in containers if entry.get("name") == CONTAINER] or containers
    state: Object = ours[0].get("state") or {}
    return state


def _read_waiting(status: Object) -> Verdict | None:
    """Return what a pod waits for if that may never happen."""
    state = _state(status).get("waiting") or {}
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
    for entry in status.get("conditions") or []:
        if entry.get("type") == kind and entry.get("status") == value:
            found: Object = entry
            return found
    return None


# -- tasks -------------------------------------------------------------------------------------------------------


def is_stuck(seen: Seen, now_s: float) -> bool:
    """Return whether events are needed: the task may wait for ever, or it failed and its pods are gone."""
    if seen.job is None:
        return False
    if _find_condition(seen.job.get("status") or {}, "Failed"):
        return not any(map(ended, seen.pods))
    if _is_suspended(seen.job) or _find_condition(seen.job.get("status") or {}, "Complete"):
        return False
    if not seen.pods:
        return now_s - (_created_s(seen.job) or now_s) > JOB_WITHOUT_PODS_S
    return any(_read_waiting(pod.get("status") or {}) for pod in seen.pods)


def state_of(seen: Seen, now_s: float) -> tuple[TaskState, Verdict | None]:
    """Return the state of a task and, if it waits for something that will not happen, the reason to give it up."""
    if seen.job is None:
        return TaskState("queued", why="its Job does not exist yet"), None
    status = seen.job.get("status") or {}
    if _find_condition(status, "Complete"):
        return TaskState("ended", _describe_end(seen, Verdict("Complete", None, ""))), None
    if failed := _find_condition(status, "Failed"):
        return TaskState("ended", _describe_end(seen, _explain_failure(seen, failed))), None
    if _is_suspended(seen.job):
        return TaskState("queued", why="suspended: not yet admitted by its queue"), None
    waits = _judge_stuck(seen, now_s)
    if waits is not None and _is_hopeless(seen, waits, now_s):
        return TaskState("ended", _describe_end(seen, waits)), waits
    if any((pod.get("status") or {}).get("phase") in ("Running", "Succeeded", "Failed") for pod in seen.pods):
        return TaskState("running", why=waits.reason if waits else ""), None
    return TaskState("queued", why=waits.reason if waits else "its pods are starting"), None


def _is_suspended(job: Object) -> bool:
    return (job.get("spec") or {}).get("suspend") is True


def _created_s(thing: Object) -> float | None:
    return unix_s((thing.get("metadata") or {}).get("creationTimestamp"))


def _judge_stuck(seen: Seen, now_s: float) -> Verdict | None:
    for pod in seen.pods:
        if (waits := _read_waiting(pod.get("status") or {})) is not None:
            told = {"pod": name_of(pod), **waits.evidence}
            if event := _find_event(seen.events, ("Failed", "FailedScheduling", "InspectFailed"), name_of(pod)):
                told["event"] = event
            return replace(waits, evidence=told)
    old = now_s - (_created_s(seen.job or {}) or now_s) > JOB_WITHOUT_PODS_S
    if not seen.pods and old and (event := _find_event(seen.events, ("FailedCreate",), name_of(seen.job or {}))):
        return Verdict("FailedCreate", "refused", f"its pods cannot be created: {event}", {"event": event})
    return None


def _is_hopeless(seen: Seen, waits: Verdict, now_s: float) -> bool:
    if any((pod.get("status") or {}).get("phase") == "Running" for pod in seen.pods):
        # Running pods end by themselves, and the task with them: their results must not be lost.
        return False
    if _WRONG_PLATFORM.search(" ".join(map(str, waits.evidence.values()))):
        return True
    since = [_created_s(thing) for thing in (seen.pods or [seen.job or {}])]
    waited_s = now_s - min([moment for moment in since if moment is not None], default=now_s)
    return waited_s >= PATIENCE_S[waits.state]


def _explain_failure(seen: Seen, failed: Object) -> Verdict:
    """Return the most specific verdict of the pods; without one, that of the events or the Job."""
    verdicts = [verdict for pod in seen.pods if (verdict := ended(pod)) is not None]
    if verdicts:
        return min(verdicts, key=lambda verdict: _TELLING.index(verdict.cause or "failed"))
    reason, message = text(failed.get("reason"), 100), text(failed.get("message"))
    evidence: dict[str, float | int | str] = {"job": f"{reason}: {message}"}
    if reason == "DeadlineExceeded":
        return Verdict(reason, "time_limit", "the Job reached its deadline", evidence)
    for kind, (cause, why) in _BY_EVENT.items():
        if event := _find_event(seen.events, (kind,), name_of(seen.job or {})):
            return Verdict(kind, cause, why, {**evidence, "event": event})
    why = "its pod was removed for an unknown reason: most often its node was lost, or it was deleted"
    return Verdict(reason or "Failed", "node_failure", why, evidence)


def _find_event(events: Iterable[Object], reasons: Sequence[str], start: str) -> str:
    """Return the message of the newest of these events about an object or the pods named after it."""
    found = [("", "")]
    for event in events:
        name = (event.get("involvedObject") or {}).get("name")
        is_of = isinstance(name, str) and (name == start or name.startswith(f"{start}-"))
        if is_of and event.get("reason") in reasons:
            found.append((text(event.get("lastTimestamp") or event.get("eventTime"), 40), text(event.get("message"))))
    return max(found)[1]


def _describe_end(seen: Seen, verdict: Verdict) -> Scheduled:
    """Collect everything that the platform reports about an ended task."""
    times = [_read_times(pod) for pod in seen.pods]
    starts = [start for start, _ in times if start is not None]
    ends = [end for _, end in times if end is not None]
    job = seen.job or {}
    nodes = sorted({text((pod.get("spec") or {}).get("nodeName"), 253) for pod in seen.pods} - {""})
    image, digest = _find_image(seen.pods)
    return Scheduled(
        scheduler="kubernetes",
        job=name_of(job),
        state=verdict.state,
        cause=verdict.cause,
        reason=verdict.reason[:SAID_CHARACTERS],
        evidence=verdict.evidence or None,
        nodes=tuple(nodes[:SHOWN_NODES]),
        queued_at=_iso(_created_s(job)),
        started_at=_iso(min(starts, default=None)),
        elapsed_s=max(0.0, max(ends) - min(starts)) if starts and ends else None,
        image=image,
        digest=digest,
    )


def _read_times(pod: Object) -> tuple[float | None, float | None]:
    state = _state(pod.get("status") or {})
    ran = state.get("terminated") or state.get("running") or {}
    return unix_s(ran.get("startedAt")), unix_s(ran.get("finishedAt"))


def ended_s(pod: Object) -> float | None:
    """Return when our container ended; None if it has not, or the time is unknown."""
    return _read_times(pod)[1]


def _iso(moment_s: float | None) -> str | None:
    return None if moment_s is None else dt.datetime.fromtimestamp(moment_s, dt.UTC).isoformat(timespec="seconds")


def _find_image(pods: Iterable[Object]) -> tuple[str | None, str | None]:
    """Return name and digest of the image that ran, as the container runtime reports them."""
    for pod in pods:
        for container in (pod.get("status") or {}).get("containerStatuses") or []:
            found = re.search(r"sha256:[0-9a-f]{64}", container.get("imageID") or "")
            if found:
                return text(container.get("image"), 1000) or None, found.group()
    return None, None
