"""Check a Kubernetes platform: connection, permissions, nodes, JobSet and Kueue. Creates nothing."""

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
# Indexed Jobs are stable since then; termination messages from the log since long before.
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
    yield from _check_nodes(api, place)
    if place.site.limits.max_running is not None:
        found = "limits.max_running has no effect: Kubernetes starts every pod that fits"
        yield Check("limits", "note", found, "set a quota of that size on the namespace, or use a Kueue queue")


def _check_namespace(api: Api, place: Place) -> Iterator[Check]:
    name = place.site.cluster.namespace
    try:
        there = api.get(f"/api/v1/namespaces/{name}")
    except ApiError as error:
        if error.status == NOT_FOUND:
            yield Check(
                "namespace", "wrong", f"{name!r} does not exist", "set cluster.namespace: kubectl get namespaces"
            )
        elif error.status == FORBIDDEN:
            yield Check("namespace", "note", f"no permission to read {name!r}: it may not exist")
        else:
            raise
        return
    yield Check("namespace", "ok", name)
    # Pods that violate the namespace's security standard are never created, and their Jobs wait for ever.
    labels = (there.get("metadata") or {}).get("labels") or {}
    standard = labels.get("pod-security.kubernetes.io/enforce")
    if standard == "restricted" and place.site.cluster.run_as is None:
        found = "the namespace enforces the security standard `restricted`, but pods run as the image's user"
        yield Check("security", "wrong", found, "set cluster.run_as to a user id, such as 1000")
    if standard in ("baseline", "restricted") and any(mount.claim is None for mount in place.site.container.mounts):
        found = f"the security standard `{standard}` does not allow hostPath volumes"
        yield Check("security", "wrong", found, "give the mounts a claim: kubectl get pvc")


def _check_extensions(api: Api, place: Place, groups: set[str]) -> Iterator[Check]:
    cluster = place.site.cluster
    if cluster.jobset and JOBSET_GROUP not in groups:
        yield Check(
            "JobSet", "wrong", "cluster.jobset is true, but JobSet is not installed", "set cluster.jobset = false"
        )
    elif JOBSET_GROUP in groups:
        used = "used for tasks of several pods" if cluster.jobset is not False else "not used: cluster.jobset is false"
        yield Check("JobSet", "ok", used)
    if cluster.queue is None:
        return
    if KUEUE_GROUP not in groups:
        found = f"cluster.queue is {cluster.queue!r}, but Kueue is not installed: jobs would stay suspended"
        yield Check("Kueue", "wrong", found, "remove cluster.queue")
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
            yield Check("Kueue", "note", f"the queue {queue!r} cannot be read: {error.said}")
    else:
        yield Check("Kueue", "ok", f"queue {queue}")


def _check_rights(api: Api, place: Place, groups: set[str]) -> Iterator[Check]:
    """Check permissions one by one with access reviews, which include every role of this user."""
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
        fix = "ask for a role in the namespace that allows this, such as `edit`"
        yield Check("rights", "wrong", f"no permission to {', '.join(missing)}", fix)
    else:
        yield Check("rights", "ok", "all permissions that a campaign needs")
    if not _may(api, place.site.cluster.namespace, "", "events", "", "list"):
        yield Check("events", "note", "no permission to list events: reasons for stuck pods will be less precise")


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
        found = f"{len(fitting)} with {labels}, but none has {pool.devices_per_node} {pool.resource}; most: {most}"
        yield Check("nodes", "wrong", found, "set devices_per_node or resource to what kubectl describe node shows")


def _count_devices(node: Object, resource: str) -> int:
    said = ((node.get("status") or {}).get("allocatable") or {}).get(resource)
    return int(said) if isinstance(said, str) and re.fullmatch(r"[0-9]{1,9}", said) else 0
