"""Check a Kubernetes platform: connection, permissions, nodes, JobSet and Kueue. Creates nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from steelyard.doctor.node import Check
from steelyard.errors import SteelyardError
from steelyard.launch.kubernetes.api import FORBIDDEN, NOT_FOUND, Api, ApiError
from steelyard.launch.kubernetes.events import QUOTA_FULL, text
from steelyard.launch.kubernetes.manifests import ARCHITECTURES, JOBSET_GROUP, MEETING_S, PULL_S, sample_pod
from steelyard.launch.kubernetes.store import LONGEST_S, key_from_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from steelyard.inputs.site import Place

Object = dict[str, Any]

KUEUE_GROUP, KUEUE_VERSION = "kueue.x-k8s.io", "v1beta1"
# Indexed Jobs are stable since then; termination messages from the log since long before.
OLDEST: Final = (1, 24)
RIGHTS: Final = (
    ("batch", "jobs", "", ("create", "list", "delete", "deletecollection")),
    ("", "pods", "", ("list",)),
    ("", "pods", "log", ("get",)),
    ("", "configmaps", "", ("create", "delete", "deletecollection")),
)
RIGHTS_OF_RESULTS: Final = {
    "s3": (("", "secrets", "", ("create", "deletecollection")),),
    "claim": (("", "pods", "", ("create", "get", "delete")),),
}
RIGHTS_OF_SEVERAL: Final = (("", "services", "", ("create", "deletecollection")),)
RIGHTS_OF_SETS: Final = ((JOBSET_GROUP, "jobsets", "", ("create", "list", "delete", "deletecollection")),)
MAX_NODES: Final = 20_000


def platform_checks(connect: Callable[[], Api], place: Place) -> Iterator[Check]:
    """Yield all checks; only one if the API does not answer."""
    try:
        api = connect()
        version = api.get("/version")
    except SteelyardError as error:
        yield Check("API", "wrong", error.what, error.next_step or "")
        return
    said = text(version.get("gitVersion"), 100)
    number = re.match(r"v(\d{1,4})\.(\d{1,4})", said)
    if number and (int(number[1]), int(number[2])) < OLDEST:
        yield Check("API", "wrong", f"{said} at {api.host}: Indexed Jobs need 1.24", "use another platform")
    else:
        yield Check("API", "ok", f"{said or 'an unknown version'} at {api.host}")
    groups = {str(group.get("name")) for group in api.get("/apis").get("groups") or []}
    yield from _check_namespace(api, place)
    yield from _check_extensions(api, place, groups)
    yield from _check_rights(api, place, groups)
    yield from _check_results(api, place)
    yield from _check_dry_run(api, place)
    yield from _check_nodes(api, place)
    if place.site.limits.max_running is not None:
        words = "limits.max_running has no effect: Kubernetes starts every pod that fits"
        yield Check("limits", "note", words, "set a quota of that size on the namespace, or use a Kueue queue")


def _check_namespace(api: Api, place: Place) -> Iterator[Check]:
    name = place.site.cluster.namespace
    try:
        api.get(f"/api/v1/namespaces/{name}")
    except ApiError as error:
        if error.status == NOT_FOUND:
            yield Check("namespace", "wrong", f"{name} does not exist", "set cluster.namespace: kubectl get namespaces")
        elif error.status == FORBIDDEN:
            yield Check("namespace", "note", f"no permission to read {name}: it may not exist")
        else:
            raise
        return
    yield Check("namespace", "ok", name)


def _check_dry_run(api: Api, place: Place) -> Iterator[Check]:
    """Let the platform check a pod and a Job without creating them: LimitRange, quota, PodSecurity, unknown fields.

    Only the pod tells about the first three: a Job that violates them is created, and its pods never are.
    """
    pod = sample_pod(place)
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": pod["metadata"]["name"]},
        "spec": {"backoffLimit": 0, "template": {"metadata": {}, "spec": pod["spec"]}},
    }
    fine = True
    for path, body in (("/api/v1/namespaces/{}/pods", pod), ("/apis/batch/v1/namespaces/{}/jobs", job)):
        query = {"dryRun": "All", "fieldValidation": "Strict"}
        try:
            _, warnings = api.ask(path.format(place.site.cluster.namespace), body, query)
        except ApiError as error:
            if error.status == NOT_FOUND:
                return
            fine = False
            yield _explain_refusal(error)
            break
        if warnings and body is pod:
            fine = False
            yield Check("dry run", "note", f"accepted with a warning: {warnings}")
    if fine:
        yield Check("dry run", "ok", "a pod on a whole node is accepted")


def _explain_refusal(error: ApiError) -> Check:
    said = error.said
    if error.status not in (FORBIDDEN, 400, 422):
        return Check("dry run", "note", f"not possible: {said}")
    if "cannot create resource" in said:
        words = "no permission to create pods: LimitRange, quota and PodSecurity are not checked"
        return Check("dry run", "note", words)
    if QUOTA_FULL in said:
        if exceeds_whole_quota(said):
            return Check("quota", "wrong", f"a pod never fits: {said}", "lower what the pool requests, or ask for more")
        return Check("quota", "note", f"full now, tasks will wait: {said}")
    if "failed quota" in said:
        fix = "set cpus_per_node and memory_per_node_mib, or the resource in [cluster.pod.container.resources.limits]"
        return Check("quota", "wrong", said, fix)
    if "violates PodSecurity" in said:
        return Check(
            "PodSecurity", "wrong", said, "set what it names in [cluster.pod.spec] and [cluster.pod.container]"
        )
    if re.search(r"(minimum|maximum) .* usage per|max limit to request ratio", said):
        fix = "adapt cpus_per_node and memory_per_node_mib, or [cluster.pod.container.resources]"
        return Check("LimitRange", "wrong", said, fix)
    return Check("dry run", "wrong", f"the platform refuses a pod: {said}", "change [cluster.pod], or what it names")


def exceeds_whole_quota(said: str) -> bool:
    """Return whether a message says that one pod requests more than a quota allows altogether."""
    parts = {name: dict(_AMOUNT.findall(listed)) for name, listed in _QUOTA.findall(said)}
    return any(
        name in parts.get("limited", {}) and amount(wanted) > amount(parts["limited"][name])
        for name, wanted in parts.get("requested", {}).items()
    )


_QUOTA = re.compile(r"(requested|used|limited): (\S+)")
_AMOUNT = re.compile(r"([^,=]+)=([^,]+)")
_UNITS: Final = {
    "": 1.0,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
    "Ti": 2.0**40,
    "Pi": 2.0**50,
}


def amount(quantity: str) -> float:
    """Return a quantity of Kubernetes as a number; infinite if it is none."""
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([A-Za-z]{0,2})", quantity)
    return float(match[1]) * _UNITS[match[2]] if match and match[2] in _UNITS else float("inf")


def _check_results(api: Api, place: Place) -> Iterator[Check]:
    """Check where results are kept."""
    cluster = place.site.cluster
    if cluster.results == "s3":
        key = key_from_environment()
        if not str(cluster.bucket).startswith("https://"):
            yield Check("results kept", "note", "the bucket is reached without encryption", "use https://")
        if key.session is not None:
            said = "the key is temporary: addresses of tasks that wait longer than it lives are void"
            yield Check("results kept", "note", said, "use a permanent key, or submit what starts soon")
        elif (longest_s := place.pool.max_time_s or 0) + PULL_S + MEETING_S > LONGEST_S:
            said = f"addresses expire after {LONGEST_S} s, before a task of max_time_s = {longest_s} s must end"
            yield Check("results kept", "wrong", said, 'lower max_time_s, or set results = "claim"')
        else:
            yield Check("results kept", "ok", f"{cluster.bucket}")
    elif cluster.results == "claim":
        path = f"/api/v1/namespaces/{cluster.namespace}/persistentvolumeclaims/{cluster.claim}"
        try:
            modes = (api.get(path).get("spec") or {}).get("accessModes") or []
        except ApiError as error:
            said = f"claim {cluster.claim}: {error.said}"
            yield Check("results kept", "wrong" if error.status == NOT_FOUND else "note", said, "kubectl get pvc")
            return
        if "ReadWriteMany" in modes:
            yield Check("results kept", "ok", f"claim {cluster.claim}")
        else:
            said = f"claim {cluster.claim} has {', '.join(map(str, modes))}, but pods on all nodes write to it"
            yield Check("results kept", "wrong", said, "use a claim with ReadWriteMany")


def _check_extensions(api: Api, place: Place, groups: set[str]) -> Iterator[Check]:
    cluster = place.site.cluster
    if cluster.jobset and JOBSET_GROUP not in groups:
        yield Check(
            "JobSet", "wrong", "cluster.jobset is true, but JobSet is not installed", "set cluster.jobset = false"
        )
    elif JOBSET_GROUP in groups:
        used = "used for tasks of several pods"
        if cluster.jobset is False:
            used = "not used: cluster.jobset is false"
        elif cluster.jobset is None and not may_use_jobsets(api, cluster.namespace):
            used = "not used: no permission to create and delete JobSets; tasks of several pods are plain Jobs"
        yield Check("JobSet", "ok", used)
    if cluster.queue is None:
        return
    if KUEUE_GROUP not in groups:
        said = f"cluster.queue is {cluster.queue}, but Kueue is not installed: jobs would stay suspended"
        yield Check("Kueue", "wrong", said, "remove cluster.queue")
        return
    namespace, queue = cluster.namespace, cluster.queue
    try:
        group = api.get(f"/apis/{KUEUE_GROUP}")
        version = (group.get("preferredVersion") or {}).get("version") or "v1beta1"
        api.get(f"/apis/{KUEUE_GROUP}/{version}/namespaces/{namespace}/localqueues/{queue}")
    except ApiError as error:
        if error.status == NOT_FOUND:
            said = f"the namespace {namespace} has no LocalQueue {queue}"
            yield Check("Kueue", "wrong", said, f"kubectl --namespace {namespace} get localqueues")
        else:
            yield Check("Kueue", "note", f"the queue {queue} cannot be read: {error.said}")
    else:
        yield Check("Kueue", "ok", f"queue {queue}")


def _check_rights(api: Api, place: Place, groups: set[str]) -> Iterator[Check]:
    """Check permissions one by one with access reviews, which include every role of this user."""
    wanted = [*RIGHTS, *RIGHTS_OF_RESULTS.get(place.site.cluster.results, ())]
    if place.pool.max_nodes != 1:
        sets = place.site.cluster.jobset
        if sets is None:
            sets = JOBSET_GROUP in groups and may_use_jobsets(api, place.site.cluster.namespace)
        wanted += RIGHTS_OF_SETS if sets else RIGHTS_OF_SEVERAL
    missing = [
        f"{verb} {resource}{'/' + part if part else ''}"
        for group, resource, part, verbs in wanted
        for verb in verbs
        if not _may(api, place.site.cluster.namespace, group, resource, part, verb)
    ]
    if missing:
        fix = "ask for a role in the namespace that allows this, such as `edit`"
        yield Check("rights", "wrong", f"no permission to {', '.join(missing)}", fix)
    else:
        yield Check("rights", "ok", "all permissions that a campaign needs")
    if not _may(api, place.site.cluster.namespace, "", "events", "", "list"):
        yield Check("events", "note", "no permission to list events: reasons for stuck pods will be less precise")


def may_use_jobsets(api: Api, namespace: str) -> bool:
    """Return whether this user may create JobSets and delete them."""
    return all(
        _may(api, namespace, group, resource, part, verb)
        for group, resource, part, verbs in RIGHTS_OF_SETS
        for verb in verbs
    )


def _may(api: Api, namespace: str, group: str, resource: str, part: str, verb: str) -> bool:
    attributes = {"namespace": namespace, "group": group, "resource": resource, "subresource": part, "verb": verb}
    question = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {name: value for name, value in attributes.items() if value}},
    }
    answer, _ = api.ask("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", question)
    return (answer.get("status") or {}).get("allowed") is True


def _check_nodes(api: Api, place: Place) -> Iterator[Check]:
    """Check whether any node could run a pod, now or later."""
    pool = place.pool
    architecture = ARCHITECTURES[pool.architecture]
    wanted = {**pool.node_selector, "kubernetes.io/arch": architecture}
    query = {"labelSelector": ",".join(f"{name}={value}" for name, value in wanted.items())}
    try:
        fitting = [node for _, node in zip(range(MAX_NODES), api.list("/api/v1/nodes", query), strict=False)]
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        yield Check("nodes", "note", "no permission to list nodes: they are not checked")
        return
    labels = ", ".join(f"{name}={value}" for name, value in wanted.items())
    if not fitting:
        # An autoscaler may have none at the moment.
        yield Check("nodes", "note", f"no node has {labels}", "kubectl get nodes --show-labels")
        return
    if pool.resource is None:
        yield Check("nodes", "ok", f"{len(fitting)} with {labels}")
        return
    enough = [node for node in fitting if _count_devices(node, pool.resource) >= pool.devices_per_node]
    if enough:
        yield Check("nodes", "ok", f"{len(enough)} with {labels} and {pool.devices_per_node} {pool.resource}")
    else:
        most = max(_count_devices(node, pool.resource) for node in fitting)
        said = f"{len(fitting)} with {labels}, but none has {pool.devices_per_node} {pool.resource}; most: {most}"
        yield Check("nodes", "wrong", said, "set devices_per_node or resource to what kubectl describe node shows")


def _count_devices(node: Object, resource: str) -> int:
    said = ((node.get("status") or {}).get("allocatable") or {}).get(resource)
    return int(said) if isinstance(said, str) and re.fullmatch(r"[0-9]{1,9}", said) else 0
