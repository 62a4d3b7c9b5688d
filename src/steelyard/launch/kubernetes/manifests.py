"""Make the manifest of a job for Kubernetes: Job or JobSet, pod, Service, ConfigMaps. Creates nothing.

A task is an Indexed Job, with a headless Service if it has several pods; or a JobSet, which has its own. Code and specs
are ConfigMaps, because a platform may share no file system with us.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import re
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from steelyard.errors import InputError, Problem
from steelyard.inputs.validate import read_inside
from steelyard.launch.campaign import Image, JobArray, Plan, RunShape
from steelyard.launch.kubernetes.store import LONGEST_S
from steelyard.launch.price import price
from steelyard.launch.staging import MAX_SOURCE_BYTES, files_below

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from steelyard.inputs.site import Mount, Place, Pool

Object = dict[str, Any]

ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
"""The values of the label kubernetes.io/arch, which every node has."""
CAMPAIGN_LABEL, JOB_LABEL, TASK_LABEL = "steelyard-campaign", "steelyard-job", "steelyard-task"
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
JOBSET_GROUP, JOBSET_VERSION = "jobset.x-k8s.io", "v1alpha2"
SET_MEMBER: Final = "w"
CONTAINER: Final = "worker"
CODE, TASK, RESULTS, KEPT = "/steelyard/code", "/steelyard/task", "/steelyard/results", "/steelyard/kept"
ADDRESSES_FILE: Final = "addresses.json"
# Fields that [cluster.pod] may not set: the task depends on them.
OWN_FIELDS: Final = {
    "metadata": {"name", "generateName", "namespace", "ownerReferences", "finalizers"},
    "spec": {
        "containers",
        "restartPolicy",
        "activeDeadlineSeconds",
        "subdomain",
        "hostname",
        "terminationGracePeriodSeconds",
    },
    "container": {"name", "image", "command", "args", "workingDir", "terminationMessagePolicy"},
}
# The API accepts 1 MiB; the rest is for names and labels.
MAX_CONFIG_BYTES: Final = 1_000_000
MEETING_S: Final = 900
"""How long the first pod of a task waits for the others, holding its devices: nothing else starts pods together."""
PULL_S: Final = 900
"""Allowance for pulling the image, which counts towards the deadline of a pod."""
GRACE_S: Final = 60
READER_S: Final = 600
SMALL_MIB: Final = 2048
"""Memory for each process of a simulated run."""
_CAMPAIGN = re.compile(r"[a-z0-9]{1,20}")
# A fixed date: the same code gives the same archive.
_ZIP_DATE: Final = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Code:
    """The code of the measured side, as submitted."""

    archive: bytes
    entry: str
    """The entry script of a pod, which unpacks the archive."""

    @property
    def sha256(self) -> str:
        """SHA-256 of the archive."""
        return hashlib.sha256(self.archive).hexdigest()


@dataclass(frozen=True)
class Content:
    """What the pods of a job read."""

    code: Code
    specs: Mapping[str, Object]
    """Specs by run id."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Users' own workload files by their SHA-256."""


def pack_code(worker: Path) -> Code:
    """Pack the worker folder of a campaign into one archive."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in files_below(worker):
            entry = zipfile.ZipInfo(path.relative_to(worker).as_posix(), _ZIP_DATE)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, read_inside(path, MAX_SOURCE_BYTES))
    entry_file = worker / "steelyard" / "worker" / "pod.py"
    return Code(packed.getvalue(), read_inside(entry_file, MAX_SOURCE_BYTES).decode())


# -- names -------------------------------------------------------------------------------------------------------


def prefix(plan: Plan) -> str:
    """Return the prefix of the names of all objects of a campaign."""
    if not _CAMPAIGN.fullmatch(plan.campaign):
        raise InputError(f"no object can be named after campaign {plan.campaign}")
    return f"sy-{plan.campaign}"


def task_name(plan: Plan, job: JobArray, task: int) -> str:
    """Return the name of the Job or JobSet, Service and ConfigMap of a task."""
    return f"{prefix(plan)}-{job.number:03d}-{task}"


def job_id(plan: Plan, job: JobArray) -> str:
    """Return the id of a submitted job: the namespace and the prefix of the names of its tasks."""
    return f"{plan.site.cluster.namespace}/{prefix(plan)}-{job.number:03d}"


def selector(plan: Plan) -> str:
    """Return the label selector for every object of a campaign."""
    return f"{CAMPAIGN_LABEL}={plan.campaign}"


def literal(text: str) -> str:
    """Escape text for Kubernetes, which would otherwise replace `$(NAME)` in a variable or argument."""
    return text.replace("$", "$$")


# -- a job -------------------------------------------------------------------------------------------------------


def manifest(plan: Plan, job: JobArray, content: Content, *, jobset: bool) -> Object:
    """Return all objects of a job, in the order of creation."""
    _refuse(plan, job)
    items = [_make_code_map(plan, content.code)]
    for task in range(len(job.tasks)):
        items += task_objects(plan, job, task, content, jobset=jobset)
    return {"apiVersion": "v1", "kind": "List", "items": items}


def task_objects(plan: Plan, job: JobArray, task: int, content: Content, *, jobset: bool) -> Iterator[Object]:
    """Yield the objects of one task: its ConfigMap, a Service if it has several pods, and its Job or JobSet."""
    several = job.shape.nodes > 1
    as_set = jobset and several
    name = task_name(plan, job, task)
    # Ranks connect to the first pod, by the name of its Job with its index, below the name of the Service.
    first = f"{name}-{SET_MEMBER}-0-0" if as_set else f"{name}-0"
    host = plan.site.meeting_host or f"{first}.{name}"
    yield _make_task_map(plan, job, task, content, host if several else None)
    pods = make_pod(plan, job, task)
    if several and not as_set:
        # Pod names resolve below the name of the Service.
        pods["spec"]["subdomain"] = name
        # Names must resolve before the pods are ready: they wait for each other.
        service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": _labels(plan, job, task)}
        yield {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(plan, job, task), "spec": service}
    nodes = job.shape.nodes
    spec: Object = {
        "completions": nodes,
        "parallelism": nodes,
        "completionMode": "Indexed",
        # A run starts once: a failure is a result, and the platform must not retry it.
        "backoffLimit": 0,
        "template": pods,
    }
    api, kind = "batch/v1", "Job"
    if as_set:
        api, kind, spec = f"{JOBSET_GROUP}/{JOBSET_VERSION}", "JobSet", _make_set_spec(_labels(plan, job, task), spec)
    metadata = _metadata(plan, job, task)
    if (queue := plan.site.cluster.queue) is not None:
        # Kueue starts what it admits; until then it must not run.
        metadata["labels"][QUEUE_LABEL] = queue
        spec["suspend"] = True
    yield {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}


def _refuse(plan: Plan, job: JobArray) -> None:
    pool, problems = plan.place.pool, []
    if plan.image is None:
        valid = f'[container] images = {{{pool.architecture} = "IMAGE"}}'
        problems.append(Problem("container.images", f"none for {pool.architecture}", valid))
    if job.kind == "search" and job.shape.nodes > 1:
        valid = "ranks on one node: the other pods cannot learn the next batch"
        problems.append(Problem("search", f"over {job.shape.nodes} pods", valid))
    memory_mib = pool.memory_per_node_mib
    if memory_mib is not None and pool.shm_mib >= memory_mib:
        valid = f"less than memory_per_node_mib = {memory_mib}, which includes it"
        problems.append(Problem("shm_mib", str(pool.shm_mib), valid))
    longest_s = job.task_limit_s + PULL_S + MEETING_S
    if plan.site.cluster.results == "s3" and longest_s > LONGEST_S:
        valid = f"tasks of at most {LONGEST_S - PULL_S - MEETING_S} s, or other results than s3"
        problems.append(Problem("results", f"an address expires before a task of {job.task_limit_s} s ends", valid))
    for part, names in plan.site.cluster.pod.items():
        problems += [
            Problem(f"cluster.pod.{part}.{name}", "set by steelyard", "other fields of Kubernetes")
            for name in sorted(OWN_FIELDS[part] & names.keys())
        ]
    if problems:
        raise InputError("the platform cannot run this", problems=(*problems,), next_step="steelyard site check SITE")


def _labels(plan: Plan, job: JobArray, task: int) -> dict[str, str]:
    return {**_campaign_labels(plan), JOB_LABEL: str(job.number), TASK_LABEL: str(task)}


def _campaign_labels(plan: Plan) -> dict[str, str]:
    return {"app.kubernetes.io/managed-by": "steelyard", CAMPAIGN_LABEL: plan.campaign}


def _metadata(plan: Plan, job: JobArray, task: int) -> Object:
    return {
        "name": task_name(plan, job, task),
        "labels": _labels(plan, job, task),
        # Labels hold few characters; these are for people.
        "annotations": {"steelyard/study": plan.study, "steelyard/job": job.name},
    }


def _make_set_spec(labels: dict[str, str], job_spec: Object) -> Object:
    """Return the spec of a JobSet with one Job."""
    member = {"name": SET_MEMBER, "replicas": 1, "template": {"metadata": {"labels": labels}, "spec": job_spec}}
    return {
        "failurePolicy": {"maxRestarts": 0},
        "network": {"enableDNSHostnames": True},
        "replicatedJobs": [member],
    }


# -- ConfigMaps --------------------------------------------------------------------------------------------------


def _make_code_map(plan: Plan, code: Code) -> Object:
    _refuse_large(len(code.archive) + len(code.entry), "the measured side's code", "this version cannot be submitted")
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{prefix(plan)}-worker", "labels": _campaign_labels(plan)},
        "immutable": True,
        "data": {"pod.py": code.entry},
        "binaryData": {"worker.zip": base64.b64encode(code.archive).decode("ascii")},
    }


def _make_task_map(plan: Plan, job: JobArray, task: int, content: Content, host: str | None) -> Object:
    specs: Object = {run_id: content.specs[run_id] for run_id in job.tasks[task]}
    used = {spec["source"]["sha256"] for spec in specs.values() if spec.get("source")}
    specs["sources"] = {sha256: content.sources[sha256] for sha256 in sorted(used & content.sources.keys())}
    packed = gzip.compress(json.dumps(specs, sort_keys=True).encode(), mtime=0)
    shape = job.shape
    # What the entry script needs beside the specs.
    settings = {
        "name": task_name(plan, job, task),
        "kind": job.kind,
        "program": shape.program,
        "runs": list(job.tasks[task]),
        "nodes": shape.nodes,
        "processes": shape.processes_per_node,
        "threads": shape.threads,
        "sharing": shape.sharing,
        "cpus": _share(plan.place.pool, job, plan.place.pool.cpus_per_node),
        "run_limit_s": shape.run_limit_s,
        "task_limit_s": job.task_limit_s,
        "meeting_s": MEETING_S,
        "log_bytes": plan.site.limits.log_mib << 20,
        "results": plan.site.cluster.results,
        "folder": folder_of(plan, job, task),
        "master": host,
        "worker_sha256": content.code.sha256,
    }
    told = json.dumps(settings, indent=1)
    _refuse_large(
        len(packed) + len(told), f"the specs of task {task}", "use fewer runs per task: raise limits.max_submitted"
    )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(plan, job, task),
        "immutable": True,
        "data": {"task.json": told},
        "binaryData": {"specs.json.gz": base64.b64encode(packed).decode("ascii")},
    }


def _refuse_large(size_bytes: int, what: str, next_step: str) -> None:
    if size_bytes > MAX_CONFIG_BYTES:
        raise InputError(
            f"{what} take {size_bytes:,} bytes; a ConfigMap holds {MAX_CONFIG_BYTES:,}", next_step=next_step
        )


# -- pods --------------------------------------------------------------------------------------------------------


def make_pod(plan: Plan, job: JobArray, task: int) -> Object:
    """Return the pod of a task: ours, and what the site adds to it."""
    added = plan.site.cluster.pod
    spec = merge(_make_spec(plan, job, task), added.get("spec", {}))
    spec["containers"] = [merge(_make_container(plan, job, task_name(plan, job, task)), added.get("container", {}))]
    return {"metadata": merge(added.get("metadata", {}), {"labels": _labels(plan, job, task)}), "spec": spec}


def merge(ours: Mapping[str, Any], added: Mapping[str, Any]) -> Object:
    """Return both objects as one: objects are merged, lists joined, other values replaced by what is added."""
    merged = dict(ours)
    for name, value in added.items():
        there = merged.get(name)
        if isinstance(there, dict) and isinstance(value, dict):
            merged[name] = merge(there, value)
        elif isinstance(there, list) and isinstance(value, list | tuple):
            merged[name] = [*there, *value]
        else:
            merged[name] = value
    return merged


def sample_pod(place: Place) -> Object:
    """Return the pod of a run on one whole node, which a platform can check without starting it."""
    pool, image = place.pool, place.image or ""
    devices = pool.devices_per_node
    shape = RunShape(
        nodes=1,
        processes_per_node=devices,
        devices_per_node=devices if pool.resource else 0,
        threads=None,
        sharing=devices,
        run_limit_s=3600,
    )
    job = JobArray(number=0, name="check", kind="runs", shape=shape, task_limit_s=3600, tasks=(("check",),))
    plan = Plan(
        study="check",
        campaign="check",
        created_at="",
        made_by="",
        site=place.site,
        pool=place.pool_name,
        image=Image(name=image, reference=image, architecture=None, digest=None),
        worker_sha256="0" * 64,
        python=place.site.python or "python3",
        jobs=(job,),
        price=price(place, [job]),
    )
    _refuse(plan, job)
    pod = make_pod(plan, job, 0)
    pod["metadata"]["name"] = f"{prefix(plan)}-dry-run"
    return {"apiVersion": "v1", "kind": "Pod", **pod}


def reader_pod(plan: Plan, job: JobArray, task: int) -> Object:
    """Return the short pod that prints what a task has stored on the claim."""
    name = f"{task_name(plan, job, task)}-read"
    added = plan.site.cluster.pod
    small = {"cpu": "100m", "memory": "256Mi"}
    container = {
        key: value for key, value in _make_container(plan, job, name).items() if key not in ("env", "workingDir")
    }
    container |= {
        "command": [
            literal(word) for word in (plan.python, f"{CODE}/pod.py", "--read", f"{KEPT}/{folder_of(plan, job, task)}")
        ],
        "resources": {"requests": small, "limits": small},
        "volumeMounts": [mount for mount in container["volumeMounts"] if mount["name"] in ("code", "kept")],
    }
    whole = _make_spec(plan, job, task)
    spec: Object = {key: whole[key] for key in ("restartPolicy", "automountServiceAccountToken", "enableServiceLinks")}
    spec |= {
        "activeDeadlineSeconds": READER_S,
        "volumes": [volume for volume in whole["volumes"] if volume["name"] in ("code", "kept")],
    }
    spec = merge(spec, added.get("spec", {}))
    own = {key: value for key, value in added.get("container", {}).items() if key == "securityContext"}
    spec["containers"] = [merge(container, own)]
    # Without the labels of the task: it is not one of its pods.
    metadata = merge(added.get("metadata", {}), {"name": name, "labels": _campaign_labels(plan)})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def address_secret(plan: Plan, job: JobArray, task: int, addresses: Sequence[Sequence[str]]) -> Object:
    """Return the Secret with the addresses to which the pods of a task may write: a list of runs for each pod."""
    text = json.dumps(addresses)
    _refuse_large(len(text), f"the addresses of task {task}", "use fewer runs per task: raise limits.max_submitted")
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(plan, job, task),
        "immutable": True,
        "stringData": {ADDRESSES_FILE: text},
    }


def folder_of(plan: Plan, job: JobArray, task: int) -> str:
    """Return the folder of a task in the object store or on the claim."""
    return f"{plan.campaign}/{job.number:03d}-{task}"


def _make_spec(plan: Plan, job: JobArray, task: int) -> Object:
    pool, name = plan.place.pool, task_name(plan, job, task)
    spec: Object = {
        "restartPolicy": "Never",
        # Of the pod, not of the Job: the deadline of a Job includes the time in the queue, and removes the logs with
        # the pods. The entry script keeps the task's limit itself; this is the safety net.
        "activeDeadlineSeconds": job.task_limit_s + PULL_S + (MEETING_S if job.shape.nodes > 1 else 0),
        "terminationGracePeriodSeconds": GRACE_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "nodeSelector": {**pool.node_selector, "kubernetes.io/arch": ARCHITECTURES[pool.architecture]},
        "volumes": [
            {"name": "code", "configMap": {"name": f"{prefix(plan)}-worker"}},
            {"name": "task", "configMap": {"name": name}},
            {"name": "results", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{pool.shm_mib}Mi"}},
            *_make_kept_volume(plan, name),
            *(_make_volume(number, mount) for number, mount in enumerate(plan.site.container.mounts)),
        ],
    }
    if pool.tolerations:
        given = [
            {"key": each.key, "operator": each.operator, "value": each.value, "effect": each.effect}
            for each in pool.tolerations
        ]
        spec["tolerations"] = [{name: value for name, value in each.items() if value is not None} for each in given]
    if job.shape.nodes > 1:
        # Several pods on one node would be recorded as several nodes.
        apart = {"labelSelector": {"matchLabels": _labels(plan, job, task)}, "topologyKey": "kubernetes.io/hostname"}
        spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    return spec


def _make_container(plan: Plan, job: JobArray, name: str) -> Object:
    mounts = [
        {"name": "code", "mountPath": CODE, "readOnly": True},
        {"name": "task", "mountPath": TASK, "readOnly": True},
        {"name": "results", "mountPath": RESULTS},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 -- the volume itself is mounted there
    ]
    kept = plan.site.cluster.results != "logs"
    if kept:
        mounts.append({"name": "kept", "mountPath": KEPT, "readOnly": plan.site.cluster.results == "s3"})
    for number, mount in enumerate(plan.site.container.mounts):
        entry: Object = {"name": f"mount-{number}", "mountPath": mount.target or mount.source}
        if mount.claim is not None and (within := mount.source.strip("/")):
            entry["subPath"] = within
        mounts.append({**entry, "readOnly": not mount.writable})
    environment = {**plan.site.environment, **plan.place.pool.environment}
    resources = _make_resources(plan.place.pool, job)
    # A program starts where the image says, because its files are there.
    place = {} if job.shape.program else {"workingDir": RESULTS}
    return {
        "name": CONTAINER,
        "image": plan.image.reference if plan.image is not None else "",
        "imagePullPolicy": "IfNotPresent",
        "command": [literal(word) for word in (plan.python, f"{CODE}/pod.py", CODE, TASK, RESULTS, *[KEPT] * kept)],
        **place,
        "env": [
            *({"name": key, "value": literal(value)} for key, value in environment.items()),
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            # The name of the allocation in the record of a run.
            {"name": "STEELYARD_ALLOCATION", "value": name},
        ],
        # Equal requests and limits: a pod gets exactly what it requests, unless the site wants it otherwise.
        "resources": {"requests": resources, "limits": dict(resources)},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        # If the entry script cannot start, the end of the log shows why.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def _share(pool: Pool, job: JobArray, whole: int | None) -> int | None:
    """Return the share of a node that matches the requested devices; all of it if nodes are exclusive."""
    if whole is None or pool.exclusive:
        return whole
    return max(1, whole * min(_ranks_per_node(job), pool.devices_per_node) // pool.devices_per_node)


def _ranks_per_node(job: JobArray) -> int:
    """Return the ranks of a node. A person's own program is one process for us, which starts its ranks itself."""
    return job.shape.sharing if job.shape.program else job.shape.processes_per_node


def _make_resources(pool: Pool, job: JobArray) -> dict[str, str]:
    resources: dict[str, str] = {}
    cpus = _share(pool, job, pool.cpus_per_node)
    whole_mib = pool.memory_per_node_mib
    memory_mib = _share(pool, job, whole_mib)
    ranks = _ranks_per_node(job)
    if pool.resource is not None and not job.shape.devices_per_node and not pool.exclusive:
        # A simulated run needs no share of a node with devices.
        cpus = cpus and min(cpus, ranks)
        memory_mib = memory_mib and min(memory_mib, SMALL_MIB * ranks)
    if cpus is not None:
        resources["cpu"] = str(cpus)
    if memory_mib is not None and whole_mib is not None:
        # Shared memory counts as the pod's memory: a share of a node must have room for it, too.
        resources["memory"] = f"{min(whole_mib, max(memory_mib, 2 * pool.shm_mib))}Mi"
    devices = pool.devices_per_node if pool.exclusive and job.shape.devices_per_node else job.shape.devices_per_node
    if pool.resource is not None and devices:
        resources[pool.resource] = str(devices)
    return resources


def _make_kept_volume(plan: Plan, name: str) -> list[Object]:
    cluster = plan.site.cluster
    if cluster.results == "s3":
        return [{"name": "kept", "secret": {"secretName": name}}]
    if cluster.results == "claim":
        return [{"name": "kept", "persistentVolumeClaim": {"claimName": cluster.claim}}]
    return []


def _make_volume(number: int, mount: Mount) -> Object:
    """Return a folder of the node, or a volume of the platform."""
    if mount.claim is not None:
        return {"name": f"mount-{number}", "persistentVolumeClaim": {"claimName": mount.claim}}
    return {"name": f"mount-{number}", "hostPath": {"path": mount.source}}
