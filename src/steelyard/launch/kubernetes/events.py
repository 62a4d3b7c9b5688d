"""Reads a Kubernetes task's state: what its Jobs, pods and events say, and what that means. Asks nobody.

Objects come as the API's plain JSON, from a platform that may run any version: every field may be missing.
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

# How long a pod may wait for a reason before it is given up, by that reason. Images: a registry may be away for some
# minutes, a wrong name stays wrong. No room: a queue of a day is usual, and an autoscaler takes its time.
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
# No registry and no patience helps against these.
_WRONG_PLATFORM = re.compile(
    r"no match for platform|no matching manifest|exec format error|does not match the (detected|specified) platform",
    re.IGNORECASE,
)
NOT_MET: Final = 71  # worker/pod.py: not all pods of the task came in time
JOB_WITHOUT_PODS_S: Final = 60

_BY_POD_REASON: Final[dict[str, tuple[StatusCode, str]]] = {
    "Evicted": ("preempted", "the node put the pod out"),
    "Preempting": ("preempted", "the node put the pod out for a more important one"),
    "DeadlineExceeded": ("time_limit", "the pod's deadline ended it"),
    "NodeLost": ("node_failure", "the node is lost"),
    "NodeShutdown": ("node_failure", "the node was shut down"),
    "Shutdown": ("node_failure", "the node was shut down"),
    "Terminated": ("node_failure", "the node was shut down"),
    "NodeAffinity": ("refused", "the node does not take the pod"),
    "UnexpectedAdmissionError": ("refused", "the node does not take the pod"),
    "OutOfcpu": ("refused", "the node has not the CPUs that were promised"),
    "OutOfmemory": ("refused", "the node has not the memory that was promised"),
    "OutOfpods": ("refused", "the node takes no more pods"),
}
_BY_DISRUPTION: Final[dict[str, tuple[StatusCode, str]]] = {
    "PreemptionByScheduler": ("preempted", "the scheduler took its place for a more important pod"),
    "EvictionByEvictionAPI": ("preempted", "somebody had the node emptied"),
    "DeletionByTaintManager": ("node_failure", "the node stopped answering, or was closed"),
    "DeletionByPodGC": ("node_failure", "the node is gone"),
}
_BY_EVENT: Final[dict[str, tuple[StatusCode, str]]] = {
    "Preempted": ("preempted", "the scheduler took its place for a more important pod"),
    "Evicted": ("preempted", "the node put the pod out"),
    "TaintManagerEviction": ("node_failure", "the node stopped answering, or was closed"),
    "NodeNotReady": ("node_failure", "the node stopped answering"),
    "DeadlineExceeded": ("time_limit", "the deadline ended it"),
}
# Of several pods, the one that tells the most.
_TELLING: Final = ("out_of_memory", "refused", "preempted", "node_failure", "time_limit", "killed", "failed")
# In a list of events: what every healthy pod has, too.
ORDINARY_EVENTS: Final = ("Pulled", "Pulling", "Created", "Started", "Scheduled", "SuccessfulCreate", "Completed")


@dataclass(frozen=True)
class Verdict:
    """What became of a pod, or what it waits for."""

    state: str
    cause: StatusCode | None
    reason: str
    evidence: dict[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """What the API says of one task."""

    job: Object | None
    pods: Sequence[Object] = ()
    events: Sequence[Object] = ()
    """Only where they were asked for."""


def text(value: Any, length: int = SAID_CHARACTERS) -> str:
    """A stranger's words, of bounded length and harmless to read."""
    return printable(value)[:length] if isinstance(value, str) else ""


def place_of(thing: Object) -> tuple[int, int] | None:
    """Which job and task an object belongs to, by its labels."""
    labels = (thing.get("metadata") or {}).get("labels") or {}
    try:
        return int(labels[JOB_LABEL]), int(labels[TASK_LABEL])
    except (KeyError, ValueError, TypeError):
        return None


def index_of(pod: Object) -> int | None:
    """Which of its task's pods it is."""
    metadata = pod.get("metadata") or {}
    for kind in ("labels", "annotations"):
        found = (metadata.get(kind) or {}).get("batch.kubernetes.io/job-completion-index")
        if isinstance(found, str) and re.fullmatch(r"[0-9]{1,6}", found):
            return int(found)
    return None


def name_of(thing: Object) -> str:
    """Its name."""
    return text((thing.get("metadata") or {}).get("name"), 253)


def unix_s(value: Any) -> float | None:
    """A time of the API."""
    try:
        return dt.datetime.fromisoformat(value).timestamp()
    except (TypeError, ValueError):
        return None


# -- pods --------------------------------------------------------------------------------------------------------


def ended(pod: Object) -> Verdict | None:
    """Why a pod failed; None: it did not, or not yet."""
    status = pod.get("status") or {}
    disruption = _find_condition(status, "DisruptionTarget")
    gone = (pod.get("metadata") or {}).get("deletionTimestamp") is not None
    if status.get("phase") != "Failed" and not (gone and disruption):
        return None
    verdict = _judge_container(status) or _judge_pod(status, disruption)
    told = {"pod": name_of(pod), "node": text((pod.get("spec") or {}).get("nodeName"), 253)}
    return replace(verdict, evidence={**{name: word for name, word in told.items() if word}, **verdict.evidence})


def _judge_container(status: Object) -> Verdict | None:
    """What the container's end tells, where that is more than the pod's."""
    end = _state(status).get("terminated") or {}
    reason, code, printed = text(end.get("reason"), 100), end.get("exitCode"), end.get("message")
    # What the container printed last, without the lines in which it shipped its results.
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
        return Verdict(reason, "out_of_memory", "the container was over its memory limit and was killed", evidence)
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
        return Verdict(reason or "Error", "killed", f"the container ended by signal {code - 128}", evidence)
    if isinstance(code, int) and code != 0:
        return Verdict(reason or "Error", "failed", f"the container ended with exit code {code}", evidence)
    return None


def _judge_pod(status: Object, disruption: Object | None) -> Verdict:
    reason, message = text(status.get("reason"), 100), text(status.get("message"))
    evidence: dict[str, float | int | str] = {"message": message} if message else {}
    if reason == "DeadlineExceeded" and (waits := _read_waiting(status)):
        # Its time ran out before anything of ours could start.
        why = f"the container never started: {waits.reason}"
        return Verdict(waits.state, "refused", why, {**evidence, **waits.evidence})
    if reason == "Evicted" and re.search(r'EmptyDir volume "shm" exceeds', message):
        return Verdict(reason, "out_of_memory", "more shared memory was used than shm_mib allows", evidence)
    if reason == "Evicted" and "exceeds" in message:
        return Verdict(reason, "failed", "the pod used more disk than it may", evidence)
    if reason in _BY_POD_REASON:
        return Verdict(reason, *_BY_POD_REASON[reason], evidence)
    if disruption is not None:
        kind = text(disruption.get("reason"), 100)
        cause, why = _BY_DISRUPTION.get(kind, ("preempted", "the platform took the pod away"))
        said = text(disruption.get("message"))
        return Verdict(kind, cause, why, {**evidence, **({"disruption": said} if said else {})})
    return Verdict(reason or "Failed", "failed", f"the pod failed: {message or 'nothing says why'}", evidence)


def _state(status: Object) -> Object:
    """Of our container; a platform may have put others beside it."""
    containers = status.get("containerStatuses") or [{}]
    ours = [entry for entry in containers if entry.get("name") == CONTAINER] or containers
    state: Object = ours[0].get("state") or {}
    return state


def _read_waiting(status: Object) -> Verdict | None:
    """What a pod waits for that may never come."""
    state = _state(status).get("waiting") or {}
    reason, message = text(state.get("reason"), 100), text(state.get("message"))
    evidence: dict[str, float | int | str] = {"message": message} if message else {}
    if reason in PATIENCE_S:
        return Verdict(reason, "refused", f"{reason}: {message}" if message else reason, evidence)
    scheduled = _find_condition(status, "PodScheduled", "False")
    if scheduled is not None and scheduled.get("reason") == "Unschedulable":
        why = text(scheduled.get("message"))
        return Verdict("Unschedulable", "refused", f"no node can take it: {why}", {"message": why} if why else {})
    return None


def _find_condition(status: Object, kind: str, value: str = "True") -> Object | None:
    for entry in status.get("conditions") or []:
        if entry.get("type") == kind and entry.get("status") == value:
            found: Object = entry
            return found
    return None


# -- tasks -------------------------------------------------------------------------------------------------------


def is_stuck(seen: Seen, now_s: float) -> bool:
    """Whether only events can tell more: it waits for what may never come, or it failed and nothing is left of it."""
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
    """The task's state; and, where it waits for what will not come, why it is to be given up."""
    if seen.job is None:
        return TaskState("queued", why="its Job is not there yet"), None
    status = seen.job.get("status") or {}
    if _find_condition(status, "Complete"):
        return TaskState("ended", _describe_end(seen, Verdict("Complete", None, ""))), None
    if failed := _find_condition(status, "Failed"):
        return TaskState("ended", _describe_end(seen, _explain_failure(seen, failed))), None
    if _is_suspended(seen.job):
        return TaskState("queued", why="suspended: its queue has not admitted it yet"), None
    waits = _judge_stuck(seen, now_s)
    if waits is not None and _is_hopeless(seen, waits, now_s):
        return TaskState("ended", _describe_end(seen, waits)), waits
    if any((pod.get("status") or {}).get("phase") in ("Running", "Succeeded", "Failed") for pod in seen.pods):
        return TaskState("running", why=waits.reason if waits else ""), None
    return TaskState("queued", why=waits.reason if waits else "its pods are being started"), None


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
        return Verdict("FailedCreate", "refused", f"its pods are not let in: {event}", {"event": event})
    return None


def _is_hopeless(seen: Seen, waits: Verdict, now_s: float) -> bool:
    if any((pod.get("status") or {}).get("phase") == "Running" for pod in seen.pods):
        # The pods that run end by themselves, and with them the task: what they have to say is not thrown away.
        return False
    if _WRONG_PLATFORM.search(" ".join(map(str, waits.evidence.values()))):
        return True
    since = [_created_s(thing) for thing in (seen.pods or [seen.job or {}])]
    waited_s = now_s - min([moment for moment in since if moment is not None], default=now_s)
    return waited_s >= PATIENCE_S[waits.state]


def _explain_failure(seen: Seen, failed: Object) -> Verdict:
    """The pod that tells the most; without one, what the events tell, or the Job."""
    verdicts = [verdict for pod in seen.pods if (verdict := ended(pod)) is not None]
    if verdicts:
        return min(verdicts, key=lambda verdict: _TELLING.index(verdict.cause or "failed"))
    reason, message = text(failed.get("reason"), 100), text(failed.get("message"))
    evidence: dict[str, float | int | str] = {"job": f"{reason}: {message}"}
    if reason == "DeadlineExceeded":
        return Verdict(reason, "time_limit", "the Job's deadline ended it", evidence)
    for kind, (cause, why) in _BY_EVENT.items():
        if event := _find_event(seen.events, (kind,), name_of(seen.job or {})):
            return Verdict(kind, cause, why, {**evidence, "event": event})
    why = "its pod was taken away, and nothing is left that says why: most often its node was lost or it was deleted"
    return Verdict(reason or "Failed", "node_failure", why, evidence)


def _find_event(events: Iterable[Object], reasons: Sequence[str], start: str) -> str:
    """What the newest of these events says of an object, or of the pods that are named after it."""
    found = [("", "")]
    for event in events:
        name = (event.get("involvedObject") or {}).get("name")
        is_of = isinstance(name, str) and (name == start or name.startswith(f"{start}-"))
        if is_of and event.get("reason") in reasons:
            found.append((text(event.get("lastTimestamp") or event.get("eventTime"), 40), text(event.get("message"))))
    return max(found)[1]


def _describe_end(seen: Seen, verdict: Verdict) -> Scheduled:
    """All that the platform says of a task that has ended."""
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
    """When our container ended; None: it has not, or nobody says."""
    return _read_times(pod)[1]


def _iso(moment_s: float | None) -> str | None:
    return None if moment_s is None else dt.datetime.fromtimestamp(moment_s, dt.UTC).isoformat(timespec="seconds")


def _find_image(pods: Iterable[Object]) -> tuple[str | None, str | None]:
    """Name and digest of what really ran, as the node's runtime says."""
    for pod in pods:
        for container in (pod.get("status") or {}).get("containerStatuses") or []:
            found = re.search(r"sha256:[0-9a-f]{64}", container.get("imageID") or "")
            if found:
                return text(container.get("image"), 1000) or None, found.group()
    return None, None
