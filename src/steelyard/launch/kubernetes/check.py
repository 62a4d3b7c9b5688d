"""Checks a Kubernetes platform: reach, rights, nodes, JobSet and Kueue. Creates nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from steelyard.doctor.node import Check
from steelyard.errors import SteelyardError
from steelyard.launch.kubernetes.api import FORBIDDEN, NOT_FOUND, Api, ApiError
from steelyard.launch.kubernetes.events import text
from steelyard.launch.kubernetes.manifests import ARCHITECTURES, JOBSET_GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from steelyard.inputs.site import Place

Object = dict[str, Any]

KUEUE_GROUP: Final = "kueue.x-k8s.io"
# Indexed Jobs are stable since then; container's last words from the log since long before.
OLDEST: Final = (1, 24)
RIGHTS: Final = (
    ("batch", "jobs", "", ("create", "list", "delete", "deletecollection")),
    ("", "pods", "", ("list",)),
    ("", "pods", "log", ("get",)),
    ("", "configmaps", "", ("create", "delete", "deletecollection")),
)
RIGHTS_OF_SEVERAL: Final = (("", "services", "", ("create", "deletecollection")),)
RIGHTS_OF_SETS: Final = ((JOBSET_GROUP, "jobsets", "", ("create", "list", "delete", "deletecollection")),)
MAX_NODES: Final = 20_000


def platform_checks(connect: Callable[[], Api], place: Place) -> Iterator[Check]:
    """One after the other; without an answer there is only one."""
    try:
        api = connect()
        version = api.get("/version")
    except SteelyardError as error:
        yield Check("API", "wrong", error.what, error.next_step or "")
        return
    said = text(version.get("gitVersion"), 100)
    number = re.match(r"v(\d{1,4})\.(\d{1,4})", said)
    if number and (int(number[1]), int(number[2])) < OLDEST:
        yield Check("API", "wrong", f"{said} at {api.host}: Indexed Jobs came with 1.24", "another platform")
    else:
        yield Check("API", "ok", f"{said or 'an unknown version'} at {api.host}")
    groups = {str(group.get("name")) for group in api.get("/apis").get("groups") or []}
    yield from _check_namespace(api, place)
    yield from _check_extensions(api, place, groups)
    yield from _check_rights(api, place, groups)
    yield from _check_nodes(api, place)
    if place.site.limits.max_running is not None:
        found = "limits.max_running is not kept: Kubernetes starts whatever has room"
        yield Check("limits", "note", found, "give the namespace a quota, or a Kueue queue, of that size")


def _check_namespace(api: Api, place: Place) -> Iterator[Check]:
    name = place.site.cluster.namespace
    try:
        there = api.get(f"/api/v1/namespaces/{name}")
    except ApiError as error:
        if error.status == NOT_FOUND:
            yield Check("namespace", "wrong", f"there is no {name!r}", "set cluster.namespace: kubectl get namespaces")
        elif error.status == FORBIDDEN:
            yield Check("namespace", "note", f"{name!r} may not be looked at: whether it is there is unknown")
        else:
            raise
        return
    yield Check("namespace", "ok", name)
    # Pods that the namespace's security standard forbids are never made, and their Jobs wait in vain.
    labels = (there.get("metadata") or {}).get("labels") or {}
    standard = labels.get("pod-security.kubernetes.io/enforce")
    if standard == "restricted" and place.site.cluster.run_as is None:
        found = "the namespace demands the security standard `restricted`, and pods run as the image says"
        yield Check("security", "wrong", found, "set cluster.run_as to the number of a user, such as 1000")
    if standard in ("baseline", "restricted") and any(mount.claim is None for mount in place.site.container.mounts):
        found = f"the security standard `{standard}` forbids folders of the node"
        yield Check("security", "wrong", found, "give the mounts a claim: kubectl get pvc")


def _check_extensions(api: Api, place: Place, groups: set[str]) -> Iterator[Check]:
    cluster = place.site.cluster
    if cluster.jobset and JOBSET_GROUP not in groups:
        yield Check(
            "JobSet", "wrong", "cluster.jobset is true, and the platform has none", "set cluster.jobset = false"
        )
    elif JOBSET_GROUP in groups:
        used = "used for tasks of several pods" if cluster.jobset is not False else "not used: cluster.jobset is false"
        yield Check("JobSet", "ok", used)
    if cluster.queue is None:
        return
    if KUEUE_GROUP not in groups:
        found = f"cluster.queue is {cluster.queue!r}, and the platform has no Kueue: jobs would stay suspended"
        yield Check("Kueue", "wrong", found, "leave cluster.queue out")
        return
    namespace, queue = cluster.namespace, cluster.queue
    try:
        group = api.get(f"/apis/{KUEUE_GROUP}")
        version = (group.get("preferredVersion") or {}).get("version") or "v1beta1"
        api.get(f"/apis/{KUEUE_GROUP}/{version}/namespaces/{namespace}/localqueues/{queue}")
    except ApiError as error:
        if error.status == NOT_FOUND:
            found = f"the namespace {namespace!r} has no LocalQueue {queue!r}"
            yield Check("Kueue", "wrong", found, f"kubectl --namespace {namespace} get localqueues")
        else:
            yield Check("Kueue", "note", f"the queue {queue!r} cannot be looked at: {error.said}")
    else:
        yield Check("Kueue", "ok", f"queue {queue}")


def _check_rights(api: Api, place: Place, groups: set[str]) -> Iterator[Check]:
    """What we may do, asked one by one: the platform answers for this user, whatever gives the right."""
    wanted = list(RIGHTS)
    if place.pool.max_nodes != 1:
        sets = JOBSET_GROUP in groups and place.site.cluster.jobset is not False
        wanted += RIGHTS_OF_SETS if sets else RIGHTS_OF_SEVERAL
    missing = [
        f"{verb} {resource}{'/' + part if part else ''}"
        for group, resource, part, verbs in wanted
        for verb in verbs
        if not _may(api, place.site.cluster.namespace, group, resource, part, verb)
    ]
    if missing:
        fix = "ask for a role in the namespace, such as `edit`, that allows it"
        yield Check("rights", "wrong", f"we may not {', '.join(missing)}", fix)
    else:
        yield Check("rights", "ok", "all that a campaign needs")
    if not _may(api, place.site.cluster.namespace, "", "events", "", "list"):
        yield Check("events", "note", "we may not list events: why something is stuck will be told less well")


def _may(api: Api, namespace: str, group: str, resource: str, part: str, verb: str) -> bool:
    attributes = {"namespace": namespace, "group": group, "resource": resource, "subresource": part, "verb": verb}
    question = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {name: value for name, value in attributes.items() if value}},
    }
    answer = api.ask("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", question)
    return (answer.get("status") or {}).get("allowed") is True


def _check_nodes(api: Api, place: Place) -> Iterator[Check]:
    """Whether any node could take a pod; free or not."""
    pool = place.pool
    architecture = ARCHITECTURES[pool.architecture]
    wanted = {**pool.node_selector, "kubernetes.io/arch": architecture}
    query = {"labelSelector": ",".join(f"{name}={value}" for name, value in wanted.items())}
    try:
        fitting = [node for _, node in zip(range(MAX_NODES), api.list("/api/v1/nodes", query), strict=False)]
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        yield Check("nodes", "note", "we may not list nodes: whether any fits is unknown")
        return
    labels = ", ".join(f"{name}={value}" for name, value in wanted.items())
    if not fitting:
        # An autoscaler may have none now.
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
        found = f"{len(fitting)} with {labels}, of which none has {pool.devices_per_node} {pool.resource}; most: {most}"
        yield Check("nodes", "wrong", found, "set devices_per_node or resource to what kubectl describe node shows")


def _count_devices(node: Object, resource: str) -> int:
    said = ((node.get("status") or {}).get("allocatable") or {}).get(resource)
    return int(said) if isinstance(said, str) and re.fullmatch(r"[0-9]{1,9}", said) else 0
