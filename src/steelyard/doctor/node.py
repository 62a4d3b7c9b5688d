"""Checks of the node: CPUs, memory, limits, fabric and file systems that would slow or stop a run.

Kernel files are read below a root that tests can replace.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from steelyard import hostinfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Verdict = Literal["ok", "note", "wrong"]

TORCH_MAKERS = ("NVIDIA", "AMD", "Intel")

SHM_BYTES_PER_WORKER = 64 << 20
FILES_PER_WORKER, FILES_ELSE = 64, 512
CAP_IPC_LOCK = 14

SLOW_FILESYSTEMS = re.compile(
    r"nfs4?|cifs|smb3?|smbfs|9p|afs|virtiofs|davfs|fuse(\.(?!squashfuse).+)?|fuseblk|ceph-fuse|vboxsf|drvfs"
)
PARALLEL_FILESYSTEMS = re.compile(r"lustre|gpfs|beegfs|wekafs|ceph|panfs|pvfs2|orangefs|fuse\.(glusterfs|daos|dfuse)")
LAYERED_FILESYSTEMS = re.compile(r"overlay|aufs|fuse\.fuse-overlayfs")

# Shared libraries that each fabric needs; one of a tuple is enough.
FABRIC_LIBRARIES: dict[str, tuple[str, ...]] = {
    "InfiniBand": ("libibverbs",),
    "RoCE": ("libibverbs",),
    "Omni-Path": ("libfabric", "libpsm2"),
    "EFA": ("libfabric",),
    "Slingshot": ("libfabric",),
}
# In containers the hardware is visible in /sys even if its device files were not passed in.
FABRIC_FILES = {
    "InfiniBand": "infiniband/uverbs*",
    "RoCE": "infiniband/uverbs*",
    "EFA": "infiniband/uverbs*",
    "Omni-Path": "hfi1*",
    "Slingshot": "cxi*",
}
# NCCL and RCCL support verbs; for these fabrics they need a plugin.
PLUGIN_FABRICS = ("EFA", "Slingshot", "Omni-Path")
PLUGINS = ("libnccl-net", "librccl-net")
FABRIC_FIXES = {
    "EFA": "install the EFA software and aws-ofi-nccl in the image, or add their lib folders to LD_LIBRARY_PATH",
    "Slingshot": "load the site's libfabric and aws-ofi-nccl modules, or bind them into the container",
    "Omni-Path": "install libfabric or libpsm2 (in the container too)",
}


def _limit(which: int) -> int | None:
    soft = resource.getrlimit(which)[0]
    return None if soft == resource.RLIM_INFINITY else soft


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    verdict: Verdict
    found: str
    fix: str = ""


@dataclass(frozen=True)
class HostView:
    """The machine as the checks see it. Tests replace the root, limits and numbers."""

    root: Path = Path("/")
    variables: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    machine: str = field(default_factory=platform.machine)
    usable_cpus: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    cpu_numbers: frozenset[int] = field(default_factory=lambda: frozenset(os.sched_getaffinity(0)))
    locked_memory_bytes: int | None = field(default_factory=lambda: _limit(resource.RLIMIT_MEMLOCK))
    """None: no limit."""
    open_files: int | None = field(default_factory=lambda: _limit(resource.RLIMIT_NOFILE))


@dataclass(frozen=True)
class IntendedRun:
    """The run that is planned here, as far as the user said."""

    results: Path
    data: Path | None = None
    devices: int | None = None
    """Processes on this node."""
    loader_workers: int | None = None
    """Loader processes per rank."""

    @property
    def processes(self) -> int | None:
        """Processes that need a CPU each; None: unknown."""
        if self.devices is None and self.loader_workers is None:
            return None
        return (self.devices or 1) * (1 + (self.loader_workers or 0))


def node_checks(node: HostView, plan: IntendedRun) -> Iterator[Check]:
    """Check CPUs, memory, limits, accelerators and fabrics."""
    yield from _check_cpus(node, plan)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = hostinfo.memory_limit(hostinfo.control_groups("memory", node.root))
    # Version 1 writes "no limit" as a number larger than any memory.
    bound = f", limited to {limit / 2**30:.1f} GiB" if limit is not None and limit < total else ""
    yield Check("memory", "ok", f"{total / 2**30:.1f} GiB{bound}")
    try:
        shared = os.statvfs(node.root / "dev/shm")
    except OSError:
        yield Check("shared memory", "wrong", "no /dev/shm: loader workers need it", "mount a tmpfs there")
    else:
        yield shared_memory_check(shared.f_bavail * shared.f_frsize, plan)
    yield from _check_open_files(node, plan)
    if there := hostinfo.accelerators(node.root):
        yield Check("accelerators", "ok", ", ".join(f"{maker}: {count}" for maker, count in there.items()))
    else:
        yield Check("accelerators", "note", "no device files: only the CPU and `sim` can be measured here")
    fabrics = hostinfo.fabrics(node.root)
    for fabric in fabrics:
        yield _check_fabric(node, fabric)
    if any(fabric.kind != "Slingshot" for fabric in fabrics):
        yield _check_locked_memory(node)


def place_checks(node: HostView, plan: IntendedRun) -> Iterator[Check]:
    """Check the file systems of data and results."""
    if plan.data is not None:
        yield _check_data(node, plan.data)
    mount = _find_mount(node, plan.results)
    if mount is None or PARALLEL_FILESYSTEMS.fullmatch(mount.kind):
        return
    if LAYERED_FILESYSTEMS.fullmatch(mount.kind):
        yield Check(
            "results disk",
            "note",
            f"on {mount.kind}: gone with the container",
            "keep results in a mounted folder with --results",
        )
    elif SLOW_FILESYSTEMS.fullmatch(mount.kind):
        yield Check(
            "results disk",
            "note",
            f"on {mount.kind} ({mount.point}): results are small, but a slow server delays every run",
            "a folder on the node's own disk with --results, copied afterwards",
        )


def _check_cpus(node: HostView, plan: IntendedRun) -> Iterator[Check]:
    yield Check("CPUs", "ok", f"{node.usable_cpus} usable of {os.cpu_count() or 1} online")
    quota = hostinfo.cpu_quota(hostinfo.control_groups("cpu", node.root))
    if quota is not None and quota < node.usable_cpus:
        yield Check(
            "CPU quota",
            "wrong",
            f"the control group allows {quota:g} CPUs, {node.usable_cpus} are visible: threads and loader workers "
            "would be throttled",
            f"ask for more CPUs, or use at most {max(1, int(quota))} threads and loader workers together",
        )
    allowed = node.usable_cpus if quota is None else min(quota, node.usable_cpus)
    if plan.processes is not None and plan.processes > allowed:
        yield Check(
            "CPU share",
            "wrong",
            f"{plan.devices or 1} devices with {plan.loader_workers or 0} loader workers each are {plan.processes} "
            f"processes for {allowed:g} CPUs",
            f"ask for {plan.processes} CPUs (Slurm: --cpus-per-task), or use fewer loader workers",
        )


def shared_memory_check(free_bytes: int, plan: IntendedRun) -> Check:
    """Check the shared memory, in which loader workers keep their batches."""
    workers = (plan.devices or 1) * (plan.loader_workers or 0)
    text = f"{free_bytes / 2**20:,.0f} MiB free in /dev/shm"
    fix = "docker run --shm-size=16g (or --ipc=host); Kubernetes: an emptyDir of medium Memory at /dev/shm"
    if free_bytes < workers * SHM_BYTES_PER_WORKER:
        need = workers * SHM_BYTES_PER_WORKER // 2**20
        return Check("shared memory", "wrong", f"{text}; {workers} loader workers need some {need:,} MiB", fix)
    if free_bytes <= SHM_BYTES_PER_WORKER:
        return Check("shared memory", "note", f"{text}: too little for more than one loader worker", fix)
    return Check("shared memory", "ok", text)


def _check_open_files(node: HostView, plan: IntendedRun) -> Iterator[Check]:
    if node.open_files is None or not plan.loader_workers:
        return
    need = FILES_ELSE + FILES_PER_WORKER * plan.loader_workers
    if node.open_files < need:
        yield Check(
            "open files",
            "wrong",
            f"a process may open {node.open_files} files; with {plan.loader_workers} loader workers it needs some "
            f"{need}, because each batch kept ready holds several",
            "ulimit -n 65536 before the run",
        )
    else:
        yield Check("open files", "ok", f"a process may open {node.open_files}")


def accelerator_makers(node: HostView) -> dict[str, bool]:
    """Return the makers whose accelerators torch has a build for; True: certainly meant for computing."""
    # Most Intel graphics only drive a display.
    return {maker: maker != "Intel" for maker in hostinfo.accelerators(node.root) if maker in TORCH_MAKERS}


def _check_fabric(node: HostView, fabric: hostinfo.Fabric) -> Check:
    devices = f"{fabric.kind} ({', '.join(fabric.devices[:4])}{', ...' if len(fabric.devices) > 4 else ''})"
    wanted = [FABRIC_LIBRARIES[fabric.kind]]
    if fabric.kind in PLUGIN_FABRICS and any(accelerator_makers(node).values()):
        wanted.append(PLUGINS)
    if fabric.active is False:
        return Check("fabric", "note", f"{devices}: no port is active", "ask whoever runs the node, if you need it")
    # Many clouds show their plain network card as RoCE; only a faster path is at stake there.
    verdict: Verdict = "note" if fabric.kind == "RoCE" else "wrong"
    missing = [
        " or ".join(names)
        for names in wanted
        if not any(hostinfo.find_libraries(name, node.root, node.variables) for name in names)
    ]
    if missing:
        return Check(
            "fabric",
            verdict,
            f"{devices} is here, but the loader finds no {' and no '.join(missing)}: several nodes would talk over TCP",
            FABRIC_FIXES.get(fabric.kind, "install rdma-core (in the container too), or add it to LD_LIBRARY_PATH"),
        )
    if not any((node.root / "dev").glob(FABRIC_FILES[fabric.kind])):
        return Check(
            "fabric",
            verdict,
            f"{devices} is here, but not its device files /dev/{FABRIC_FILES[fabric.kind]}: several nodes would talk "
            "over TCP",
            f"hand them to the container: docker run --device /dev/{FABRIC_FILES[fabric.kind].partition('/')[0]}; "
            "Kubernetes: the fabric's device plugin",
        )
    return Check("fabric", "ok", f"{devices} with {', '.join(' or '.join(names) for names in wanted)}")


def _check_locked_memory(node: HostView) -> Check:
    limit = node.locked_memory_bytes
    status = hostinfo.read_text(node.root / "proc/self/status") or ""
    rights = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    may_lock = rights is not None and int(rights[1], 16) >> CAP_IPC_LOCK & 1
    if limit is None or may_lock:
        return Check("locked memory", "ok", "no limit" if limit is None else "the limit does not bind this process")
    return Check(
        "locked memory",
        "wrong",
        f"limited to {limit / 2**10:,.0f} KiB: the fabric must lock every buffer it sends from",
        "ulimit -l unlimited; docker run --ulimit memlock=-1; Slurm: PropagateResourceLimitsExcept=MEMLOCK",
    )


def _check_data(node: HostView, data: Path) -> Check:
    if not data.is_dir():
        return Check("data", "wrong", f"{data} is not a folder that we can see", "give another folder with --data")
    mount = _find_mount(node, data)
    if mount is None:
        return Check("data", "note", f"{data}: its file system is not known")
    where = f"{data} is on {mount.kind} ({mount.point})"
    if PARALLEL_FILESYSTEMS.fullmatch(mount.kind):
        return Check(
            "data",
            "note",
            f"{where}: fast for large files, slow for many small ones",
            "keep samples in few large files (tar shards, HDF5), or copy them to the node's own disk",
        )
    if LAYERED_FILESYSTEMS.fullmatch(mount.kind):
        return Check(
            "data",
            "wrong",
            f"{where}, the layered file system of a container: slow to open files, and gone with the container",
            "mount the data into the container (-v DIR:DIR, --bind DIR)",
        )
    if SLOW_FILESYSTEMS.fullmatch(mount.kind):
        return Check(
            "data",
            "wrong",
            f"{where}: the loader would be measured, not the device",
            "copy the data to the node's own disk or /dev/shm, or to the parallel file system",
        )
    return Check("data", "ok", where)


def _find_mount(node: HostView, path: Path) -> hostinfo.MountPoint | None:
    with contextlib.suppress(OSError, RuntimeError):
        path = path.resolve()
    return hostinfo.mount_of(path, node.root)
