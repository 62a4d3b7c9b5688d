"""Check a site before anything is queued: its file, this machine, its scheduler. Changes nothing.

Contradictions and gaps in the site file are found here, also where this machine differs from the nodes. The scheduler
and the container runtime are queried for the rest. A check that fails is reported as an error, too.
"""

from __future__ import annotations

import ipaddress
import math
import shutil
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from steelyard import hostinfo, plugins
from steelyard.contracts.base import to_json_object
from steelyard.doctor.node import PARALLEL_FILESYSTEMS, SLOW_FILESYSTEMS, Check, HostView
from steelyard.doctor.torch_build import elf_machine, torch_folder
from steelyard.errors import SteelyardError
from steelyard.inputs.templates import PLACEHOLDER
from steelyard.launch.plan import TASK_ROOM_S
from steelyard.launch.scripts.container import container_checks
from steelyard.launch.scripts.task import NODE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from steelyard.inputs.site import Place

SHOWN: Final = 12
# Options that we pass to sbatch ourselves; other values would break the jobs or their records.
OWN_OPTIONS: Final = {
    "--array", "--chdir", "--dependency", "--error", "--exclusive", "--gres", "--job-name", "--nodes", "--no-requeue",
    "--ntasks", "--ntasks-per-node", "--output", "--parsable", "--requeue", "--time", "--wait", "--wrap", "--account",
    "--constraint", "--partition", "--qos", "--reservation", "--gpus-per-node", "--gpus-per-task", "--comment",
    "--open-mode",
}  # fmt: skip
# The same for srun.
OWN_SRUN_OPTIONS: Final = {
    "--nodes",
    "--ntasks",
    "--ntasks-per-node",
    "--export",
    "--input",
    "--output",
    "--error",
    "--jobid",
    "--kill-on-bad-exit",
}
# Variables that the launcher sets for every run.
OWN_VARIABLES: Final = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSAFEPATH",
    "OMP_NUM_THREADS",
}
ONLY_SLURM: Final = (
    *("gpus", "partition", "account", "qos", "constraint", "reservation", "options", "srun_options", "expanded"),
)
ONLY_KUBERNETES: Final = ("resource", "node_selector", "tolerations")


def checks(
    place: Place, *, results: Path | None = None, node: HostView | None = None, offline: bool = False
) -> Iterator[Check]:
    """Yield all checks: first those that query nobody, then the scheduler, then the container.

    `offline`: only the file itself, because this is not a machine of the site.
    """
    node = node or HostView()
    own: list[tuple[str, Callable[[], Iterator[Check]]]] = [
        ("filled in", lambda: _check_placeholders(place)),
        ("limits", lambda: _check_limits(place)),
        ("charge", lambda: _check_charge(place)),
        ("fields", lambda: _check_fields(place)),
        ("devices", lambda: _check_devices(place)),
        ("environment", lambda: _check_environment(place)),
        ("image", lambda: _check_image(place)),
    ]
    here: list[tuple[str, Callable[[], Iterator[Check]]]] = [
        ("python", lambda: _check_python(place, node)),
        ("mounts", lambda: _check_mounts(place, node)),
        ("meeting host", lambda: _check_meeting_host(place)),
        ("results", lambda: _check_results(place, results or Path(), node)),
        (place.site.scheduler, lambda: plugins.load("scheduler", place.site.scheduler)().check(place)),
    ]
    if place.image is not None and not PLACEHOLDER.search(place.image):
        here.append(("container", lambda: container_checks(place)))
    for name, check in own if offline else [*own, *here]:
        try:
            yield from check()
        except SteelyardError as error:
            fix = error.next_step or "fix this, then check again"
            yield Check(name, "wrong", "; ".join(error.lines[: SHOWN + 1]), fix)
        except Exception as error:  # noqa: BLE001 -- one check that breaks must not hide what the others find
            text = f"the check itself failed: {type(error).__name__}: {error}"[:500]
            yield Check(name, "wrong", text, "this is a bug in steelyard: please report it with the site file")


# -- the site file itself -------------------------------------------------------------------------------------


def _check_placeholders(place: Place) -> Iterator[Check]:
    site = to_json_object(place.site)
    site["pools"] = {place.pool_name: site["pools"][place.pool_name]}
    left = [path for path, text in _list_texts(site, "") if PLACEHOLDER.search(text)]
    if not left:
        yield Check("filled in", "ok", "no placeholders are left")
        return
    shown = ", ".join(left[:SHOWN]) + (", ..." if len(left) > SHOWN else "")
    yield Check("filled in", "wrong", f"placeholders left: {shown}", "replace them by the values of your site")


def _list_texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _list_texts(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _list_texts(item, f"{path}[{number}]")


def _check_limits(place: Place) -> Iterator[Check]:
    faults = list(_find_contradictions(place))
    yield from (Check("limits", "wrong", text, fix) for text, fix in faults)
    limits = place.site.limits
    if limits.max_running is not None and limits.max_running > limits.max_submitted:
        yield Check(
            "limits",
            "note",
            f"max_running {limits.max_running} is never reached: max_submitted is {limits.max_submitted}",
            "raise max_submitted, or lower max_running",
        )
    elif not faults:
        text = f"arrays of {limits.array_size} tasks, {limits.max_submitted} tasks in the queue"
        yield Check("limits", "ok", text)


def _find_contradictions(place: Place) -> Iterator[tuple[str, str]]:
    pool, limits = place.pool, place.site.limits
    if pool.max_time_s is not None and limits.setup_s + TASK_ROOM_S >= pool.max_time_s:
        text = f"a run may take setup_s = {limits.setup_s} s to start, but max_time_s of a job is {pool.max_time_s} s"
        yield (
            f"{text}, of which the job itself takes {TASK_ROOM_S} s",
            "lower limits.setup_s, or raise the pool's max_time_s",
        )
    if pool.max_time_s is not None and limits.unbounded_s > pool.max_time_s:
        yield (
            f"unbounded_s = {limits.unbounded_s} s is longer than any job (max_time_s = {pool.max_time_s} s)",
            "lower limits.unbounded_s, or use another pool",
        )
    if pool.cpus_per_node is not None and pool.cpus_per_node < pool.devices_per_node:
        yield (
            f"{pool.cpus_per_node} CPUs per node for {pool.devices_per_node} devices: some processes would have no CPU",
            "raise cpus_per_node, or remove it",
        )
    shared = place.site.scheduler == "kubernetes" and pool.memory_per_node_mib is not None
    if shared and pool.shm_mib >= (pool.memory_per_node_mib or 0):
        yield (
            f"shm_mib = {pool.shm_mib} counts as memory, but a pod has only {pool.memory_per_node_mib} MiB",
            "lower shm_mib, or raise memory_per_node_mib",
        )


def _check_charge(place: Place) -> Iterator[Check]:
    charge, devices = place.site.charge, place.pool.devices_per_node
    node_hour = charge.per_device_hour * devices + charge.per_node_hour
    text = f"an hour of a whole node costs {node_hour:g} {charge.unit}s"
    if node_hour == 0:
        yield Check("charge", "note", "nothing is charged: every campaign shows a cost of 0", "fill in [charge]")
    elif charge.unit == "node-hour" and charge.per_node_hour == 0 and charge.per_device_hour == 1 and devices > 1:
        fix = "for node-hours: per_device_hour = 0.0 and per_node_hour = 1.0"
        yield Check("charge", "wrong", f"{text}: the rule counts devices", fix)
    elif charge.unit == "node-hour" and not math.isclose(node_hour, 1):
        yield Check("charge", "note", f"{text}: correct only if the site weights these nodes like this")
    elif charge.unit == "device-hour" and not math.isclose(node_hour, devices):
        yield Check(
            "charge", "note", f"{text} and has {devices} devices: correct only if the site weights them like this"
        )
    else:
        yield Check("charge", "ok", text)


def _check_fields(place: Place) -> Iterator[Check]:
    """Find fields that this scheduler ignores: somebody expects an effect."""
    pool, site = place.pool, place.site
    foreign = ONLY_SLURM if site.scheduler == "kubernetes" else ONLY_KUBERNETES
    idle = [name for name in foreign if getattr(pool, name)]
    if site.scheduler == "kubernetes":
        tables = {"modules": site.modules.load or site.modules.init, "prologue": site.prologue}
        idle += [name for name, value in {**tables, "expanded": site.expanded}.items() if value]
    if site.scheduler != "kubernetes" and site.container.runtime == "none" and (site.container.images or pool.image):
        idle.append("container.images (container.runtime is none)")
    if idle:
        fix = "remove them, or correct the scheduler or container.runtime"
        yield Check("fields", "note", f"no effect on this site: {', '.join(idle)}", fix)
    own = sorted({option.partition("=")[0] for option in pool.options} & OWN_OPTIONS)
    own += sorted({option.partition("=")[0] for option in pool.srun_options} & OWN_SRUN_OPTIONS)
    if own:
        fix = "remove them; partition, account and others have their own fields"
        yield Check("options", "wrong", f"options that steelyard sets itself: {', '.join(own)}", fix)


def _check_devices(place: Place) -> Iterator[Check]:
    pool = place.pool
    asked = pool.resource if place.site.scheduler == "kubernetes" else pool.gpus
    wants = pool.device not in ("auto", "cpu", "sim")
    if pool.gpus is not None and pool.gpus.rpartition(":")[2].isdigit():
        fix = 'give only the kind: gpus = "gpu" or "gpu:TYPE"; devices_per_node is the count'
        yield Check("devices", "wrong", f"gpus = {pool.gpus} contains a count", fix)
    elif wants and asked is None and place.site.scheduler == "kubernetes":
        fix = 'resource = "nvidia.com/gpu", or the name that kubectl describe node shows'
        yield Check("devices", "wrong", f"device = {pool.device}, but no device is requested: a pod gets none", fix)
    elif wants and asked is None:
        fix = 'gpus = "gpu", unless Slurm allocates whole nodes and does not manage devices'
        yield Check("devices", "note", f"device = {pool.device}, but no device is requested", fix)
    elif not wants and asked is not None and pool.device != "auto":
        yield Check("devices", "note", f"device = {pool.device}, but {asked} is requested", "devices would be idle")


def _check_environment(place: Place) -> Iterator[Check]:
    given = {**place.variables, **place.expanded}
    if own := sorted(OWN_VARIABLES & given.keys()):
        fix = "remove them: each run sets its own (for threads use `threads` of the study)"
        yield Check("environment", "wrong", f"variables that every run sets itself: {', '.join(own)}", fix)


def _check_image(place: Place) -> Iterator[Check]:
    """Check that there is an image; its content is checked elsewhere."""
    kubernetes = place.site.scheduler == "kubernetes"
    if place.image is None and (kubernetes or place.site.container.runtime != "none"):
        known = ", ".join(place.site.container.images) or "none"
        text = f"no image for {place.pool.architecture}, the architecture of {place.pool_name}; images for: {known}"
        fix = f"container.images.{place.pool.architecture} = ..., or image in [pools.{place.pool_name}]"
        yield Check("image", "wrong", text, fix)


# -- this machine compared with the nodes ---------------------------------------------------------------------


def _check_python(place: Place, node: HostView) -> Iterator[Check]:
    """Check that the Python on this machine runs on the nodes, if there is no container."""
    if place.image is not None or place.site.scheduler == "kubernetes":
        return
    nodes = place.pool.architecture
    python = place.site.python or sys.executable
    path = node.root / python.lstrip("/") if python.startswith("/") else None
    if place.site.python is None and node.machine != nodes:
        yield Check(
            "python",
            "wrong",
            f"this machine is {node.machine}, the nodes are {nodes}: the Python that runs steelyard here cannot "
            "start there (exec format error)",
            f"use a container with an image for {nodes}, or python = the path of one installed on such a node",
        )
    elif path is None and "/" in python:
        yield Check("python", "wrong", f"{python} depends on the current folder", "give its full path or a bare name")
    elif path is None:
        yield Check("python", "note", f"{python} is taken from the PATH of the jobs: not checked from here")
    elif not path.exists():
        fix = f"if the nodes have it, ignore this; check with: srun {python} -V"
        yield Check("python", "note", f"{python} does not exist on this machine", fix)
    elif (built := elf_machine(path.resolve())) is not None and built != nodes:
        fix = f"use a Python installed on such a node, or an image for {nodes}"
        yield Check("python", "wrong", f"{python} is built for {built}, the nodes are {nodes}", fix)
    elif place.site.python is None and torch_folder() is None:
        fix = "python = the path of one that has torch, or use a container"
        yield Check("python", "note", f"{python} has no torch: only simulated runs work", fix)
    else:
        yield Check("python", "ok", f"{python}, for {nodes}")


def _check_mounts(place: Place, node: HostView) -> Iterator[Check]:
    mounts = place.site.container.mounts
    targets = [mount.target or mount.source for mount in mounts]
    if twice := sorted({target for target in targets if targets.count(target) > 1}):
        text = f"mounted twice in the container: {', '.join(twice[:SHOWN])}"
        yield Check("mounts", "wrong", text, "give one source for each target")
    if place.image is None or place.site.scheduler == "kubernetes":
        return
    for mount in mounts[:SHOWN]:
        path = node.root / mount.source.lstrip("/")
        if path.exists() or PLACEHOLDER.search(mount.source):
            continue
        there = next((parent for parent in path.parents if parent.exists()), path)
        lies_on = hostinfo.mount_of(Path("/") / there.relative_to(node.root), node.root)
        # A path missing on a file system that the nodes share is missing there, too; else only the nodes know.
        if lies_on is not None and lies_on.point != "/" and _can_be_shared(lies_on.kind):
            text = f"{mount.source} does not exist, and its file system is shared with the nodes"
            yield Check("mounts", "wrong", text, "correct the path, or create the folder")


def _can_be_shared(kind: str) -> bool:
    return bool(PARALLEL_FILESYSTEMS.fullmatch(kind) or SLOW_FILESYSTEMS.fullmatch(kind))


def _check_meeting_host(place: Place) -> Iterator[Check]:
    host = place.site.meeting_host
    if host is None or place.site.scheduler == "kubernetes" or PLACEHOLDER.search(host) or NODE in host:
        return
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if loopback:
        fix = "remove meeting_host, unless all nodes are this one machine"
        yield Check("meeting host", "note", f"{host} is every node's own address: two nodes would not connect", fix)
        return
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        fix = "remove meeting_host: the name of the first node is used then"
        yield Check("meeting host", "note", f"{host} cannot be resolved on this machine; the nodes may know it", fix)
    else:
        text = f"{host}: correct only if every job has its first rank there"
        yield Check("meeting host", "note", text, "remove meeting_host: the name of the first node is used then")


def _check_results(place: Place, results: Path, node: HostView) -> Iterator[Check]:
    """Check that the results are on a file system that the nodes can share, as Slurm needs it."""
    if place.site.scheduler == "kubernetes":
        return
    there = results.absolute()
    mount = hostinfo.mount_of(Path(*there.resolve().parts), node.root)
    if mount is None:
        yield Check("results", "note", f"{there}: its file system is unknown")
    elif _can_be_shared(mount.kind):
        yield Check("results", "ok", f"{there} is on {mount.kind} ({mount.point}), which nodes can share")
    else:
        fix = "use --results on a file system that the nodes share, such as your scratch space"
        text = f"{there} is on {mount.kind} ({mount.point}): nodes see it only if they are this machine"
        yield Check("results", "note", text, fix)
    nearest = next((parent for parent in [there, *there.parents] if parent.exists()), None)
    if nearest is not None and (free := shutil.disk_usage(nearest).free) < 1 << 30:
        yield Check(
            "results", "note", f"only {free / 2**20:,.0f} MiB are free there", "free some space, or use --results"
        )
