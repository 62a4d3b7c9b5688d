"""What of the node would slow or stop a run: CPUs, memory, limits, fabric, sensors, file systems.

Knows the kernel's files below a root that tests can replace, and what to do about each trap. Knows nothing of torch.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from steelyard import hostinfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Verdict = Literal["ok", "note", "wrong"]
Access = Literal["open", "closed", "silent"]

RENDER_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}

SHM_BYTES_PER_WORKER = 64 << 20
FILES_PER_WORKER, FILES_ELSE = 64, 512
CAP_IPC_LOCK = 14
SMI_LIMIT_S = 15.0

SLOW_FILESYSTEMS = re.compile(
    r"nfs4?|cifs|smb3?|smbfs|9p|afs|virtiofs|davfs|fuse(\.(?!squashfuse).+)?|fuseblk|ceph-fuse|vboxsf|drvfs"
)
PARALLEL_FILESYSTEMS = re.compile(r"lustre|gpfs|beegfs|wekafs|ceph|panfs|pvfs2|orangefs|fuse\.(glusterfs|daos|dfuse)")
LAYERED_FILESYSTEMS = re.compile(r"overlay|aufs|fuse\.fuse-overlayfs")

SENSORS = {
    "CPU energy (powercap)": ("sys/class/powercap/*/energy_uj",),
    "node energy (Cray, not used yet)": ("sys/cray/pm_counters/*energy",),
    # The ACPI driver, which Grace has, keeps its files with the device.
    "power (hwmon)": (
        "sys/class/hwmon/hwmon*/power*_average",
        "sys/class/hwmon/hwmon*/power*_input",
        "sys/class/hwmon/hwmon*/device/power*_average",
    ),
    "energy (hwmon)": ("sys/class/hwmon/hwmon*/energy*_input",),
}
PERF_ENERGY = "sys/bus/event_source/devices/power/events/energy-*"

# Which of the loader's libraries each fabric needs; any one of a tuple will do.
FABRIC_LIBRARIES: dict[str, tuple[str, ...]] = {
    "InfiniBand": ("libibverbs",),
    "RoCE": ("libibverbs",),
    "Omni-Path": ("libfabric", "libpsm2"),
    "EFA": ("libfabric",),
    "Slingshot": ("libfabric",),
}
# In containers the hardware shows in /sys though its device files were not handed in.
FABRIC_FILES = {"InfiniBand": "infiniband/uverbs*", "RoCE": "infiniband/uverbs*", "EFA": "infiniband/uverbs*",
                "Omni-Path": "hfi1*", "Slingshot": "cxi*"}  # fmt: skip
# NCCL and RCCL speak verbs themselves; for these fabrics they need a plugin.
PLUGIN_FABRICS = ("EFA", "Slingshot", "Omni-Path")
PLUGINS = ("libnccl-net", "librccl-net")
FABRIC_REMEDIES = {
    "EFA": "install the EFA software and aws-ofi-nccl in the image, or add their lib folders to LD_LIBRARY_PATH",
    "Slingshot": "load the site's libfabric and aws-ofi-nccl modules, or bind them into the container",
    "Omni-Path": "install libfabric or libpsm2 (in the container too)",
}


def access(path: Path) -> Access:
    """Whether a file can be read by us now: tried, not asked. Silent: allowed, but it gives nothing."""
    try:
        with path.open("rb") as file:
            return "open" if file.read(1) else "silent"
    except PermissionError:
        return "closed"
    except OSError:
        return "silent"


def _limit(which: int) -> int | None:
    soft = resource.getrlimit(which)[0]
    return None if soft == resource.RLIM_INFINITY else soft


@dataclass(frozen=True)
class Check:
    """One thing looked at."""

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class HostView:
    """What checks look at. Tests put another root, other limits and other numbers in."""

    root: Path = Path("/")
    variables: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    machine: str = field(default_factory=platform.machine)
    usable_cpus: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    locked_memory_bytes: int | None = field(default_factory=lambda: _limit(resource.RLIMIT_MEMLOCK))
    """None: no limit."""
    open_files: int | None = field(default_factory=lambda: _limit(resource.RLIMIT_NOFILE))
    access: Callable[[Path], Access] = access


@dataclass(frozen=True)
class IntendedRun:
    """What is to be run here, as far as the user said."""

    results: Path
    data: Path | None = None
    ranks: int | None = None
    """Processes on this node."""
    loader_workers: int | None = None
    """Loader processes a rank."""

    @property
    def processes(self) -> int | None:
        """Processes that want a CPU each; None when nothing was said."""
        if self.ranks is None and self.loader_workers is None:
            return None
        return (self.ranks or 1) * (1 + (self.loader_workers or 0))


def node_checks(node: HostView, plan: IntendedRun) -> Iterator[Check]:
    """CPUs, memory and limits."""
    yield from _cpus(node, plan)
    yield _memory(node)
    yield from _shared_memory(node, plan)
    yield from _open_files(node, plan)
    yield _accelerators(node)
    yield from _fabric(node)
    yield from _sensors(node)


def place_checks(node: HostView, plan: IntendedRun) -> Iterator[Check]:
    """The file systems that data are read from and results written to."""
    if plan.data is not None:
        yield _data(node, plan.data)
    yield from _results_filesystem(node, plan.results)


def _cpus(node: HostView, plan: IntendedRun) -> Iterator[Check]:
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
            f"{plan.ranks or 1} ranks with {plan.loader_workers or 0} loader workers each are {plan.processes} "
            f"processes for {allowed:g} CPUs",
            f"ask for {plan.processes} CPUs (Slurm: --cpus-per-task), or use fewer loader workers",
        )


def _memory(node: HostView) -> Check:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = hostinfo.memory_limit(hostinfo.control_groups("memory", node.root))
    # Version 1 writes "no limit" as a number larger than any memory.
    bound = f", limited to {limit / 2**30:.1f} GiB" if limit is not None and limit < total else ""
    return Check("memory", "ok", f"{total / 2**30:.1f} GiB{bound}")


def _shared_memory(node: HostView, plan: IntendedRun) -> Iterator[Check]:
    try:
        status = os.statvfs(node.root / "dev/shm")
    except OSError:
        yield Check("shared memory", "wrong", "no /dev/shm: loader workers need it", "mount a tmpfs there")
        return
    yield shared_memory_check(status.f_bavail * status.f_frsize, plan)


def shared_memory_check(free_bytes: int, plan: IntendedRun) -> Check:
    """Whether loader workers can hand over their batches; each needs room for the batches it keeps ready."""
    workers = (plan.ranks or 1) * (plan.loader_workers or 0)
    found = f"{free_bytes / 2**20:,.0f} MiB free in /dev/shm"
    remedy = "docker run --shm-size=16g (or --ipc=host); Kubernetes: an emptyDir of medium Memory at /dev/shm"
    if free_bytes < workers * SHM_BYTES_PER_WORKER:
        need = workers * SHM_BYTES_PER_WORKER // 2**20
        return Check("shared memory", "wrong", f"{found}; {workers} loader workers need some {need:,} MiB", remedy)
    if free_bytes <= SHM_BYTES_PER_WORKER:
        return Check("shared memory", "note", f"{found}: too little for more than one loader worker", remedy)
    return Check("shared memory", "ok", found)


def _open_files(node: HostView, plan: IntendedRun) -> Iterator[Check]:
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
    """Makers of the accelerators whose device files are here; True where they are certainly there to compute."""
    dev = node.root / "dev"
    found = {maker: True for maker in ("NVIDIA", "AMD") if any(dev.glob(hostinfo.ACCELERATOR_FILES[maker]))}
    for path in dev.glob("dri/renderD*"):
        maker = RENDER_VENDORS.get(hostinfo.read_text(node.root / "sys/class/drm" / path.name / "device/vendor") or "")
        if maker == "Intel":
            # Most Intel graphics only drive a display.
            found.setdefault(maker, False)
    return found


def _accelerators(node: HostView) -> Check:
    dev = node.root / "dev"
    counts = {name: len(list(dev.glob(pattern))) for name, pattern in hostinfo.ACCELERATOR_FILES.items()}
    found = [f"{name}: {count}" for name, count in counts.items() if count]
    if found:
        return Check("accelerators", "ok", "device files of " + ", ".join(found))
    return Check("accelerators", "note", "no device files: only the CPU and `sim` can be measured here")


def _fabric(node: HostView) -> Iterator[Check]:
    there = hostinfo.fabrics(node.root)
    for fabric in there:
        yield _fabric_check(node, fabric)
    if any(fabric.kind != "Slingshot" for fabric in there):
        yield _locked_memory(node)


def _fabric_check(node: HostView, fabric: hostinfo.Fabric) -> Check:
    devices = f"{fabric.kind} ({', '.join(fabric.devices[:4])}{', ...' if len(fabric.devices) > 4 else ''})"
    wanted = [FABRIC_LIBRARIES[fabric.kind]]
    if fabric.kind in PLUGIN_FABRICS and any(accelerator_makers(node).values()):
        wanted.append(PLUGINS)
    if fabric.active is False:
        return Check("fabric", "note", f"{devices}: no port is active", "ask whoever runs the node, if you need it")
    # Many clouds show their plain network card as RoCE; only a faster path is at stake there.
    verdict: Verdict = "note" if fabric.kind == "RoCE" else "wrong"
    missing = [" or ".join(names) for names in wanted if not _any_library(node, names)]
    if missing:
        return Check(
            "fabric",
            verdict,
            f"{devices} is here, but the loader finds no {' and no '.join(missing)}: several nodes would talk over TCP",
            FABRIC_REMEDIES.get(fabric.kind, "install rdma-core (in the container too), or add it to LD_LIBRARY_PATH"),
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


def _any_library(node: HostView, names: tuple[str, ...]) -> bool:
    return any(hostinfo.find_libraries(name, node.root, node.variables) for name in names)


def _locked_memory(node: HostView) -> Check:
    limit = node.locked_memory_bytes
    if limit is None or _may_lock(node):
        return Check("locked memory", "ok", "no limit" if limit is None else "the limit does not bind this process")
    return Check(
        "locked memory",
        "wrong",
        f"limited to {limit / 2**10:,.0f} KiB: the fabric must lock every buffer it sends from",
        "ulimit -l unlimited; docker run --ulimit memlock=-1; Slurm: PropagateResourceLimitsExcept=MEMLOCK",
    )


def _may_lock(node: HostView) -> bool:
    status = hostinfo.read_text(node.root / "proc/self/status") or ""
    match = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    return bool(match and int(match.group(1), 16) >> CAP_IPC_LOCK & 1)


def _sensors(node: HostView) -> Iterator[Check]:
    """Sensors of energy and power: none is a pity, one that we may not read is wrong."""
    found: list[str] = []
    faults: list[Check] = []
    for name, patterns in SENSORS.items():
        paths = [path for pattern in patterns for path in sorted(node.root.glob(pattern))]
        states = {path: node.access(path) for path in paths}
        closed = [path for path, state in states.items() if state == "closed"]
        if closed:
            faults.append(_closed_sensor(name, len(closed), "/" + str(closed[0].relative_to(node.root))))
        elif count := sum(state == "open" for state in states.values()):
            found.append(f"{name}: {count}")
    if any((node.root / "dev").glob(hostinfo.ACCELERATOR_FILES["NVIDIA"])):
        check = _nvidia_sensor(node)
        if check.verdict == "ok":
            found.append(check.found)
        else:
            faults.append(check)
    if found:
        yield Check("sensors", "ok", "readable: " + ", ".join(found))
    elif not faults:
        yield Check("sensors", "note", "no sensor of power or energy to be seen: energy stays unknown")
    yield from faults
    yield from _perf_events(node)


def _perf_events(node: HostView) -> Iterator[Check]:
    """Events of perf that count nothing: they look like sensors, and other tools take them for such."""
    events = sorted(path.name for path in node.root.glob(PERF_ENERGY) if not path.suffix)
    if events and not any(node.root.glob(SENSORS["CPU energy (powercap)"][0])):
        yield Check(
            "sensors",
            "note",
            f"perf has {', '.join(events)} here, and powercap has no counter: such an event is never used, because "
            "without the counter it reads 0 and says nothing of it",
            "on a virtual machine: measure on the machine itself; else: modprobe intel_rapl_msr",
        )


def _closed_sensor(name: str, count: int, path: str) -> Check:
    files = "/sys/class/powercap/*/energy_uj" if "powercap" in path else path
    return Check(
        "sensors",
        "note",
        f"{name}: {count} there, but we may not read them, such as {path}: that energy stays unknown",
        f"as administrator, until the next boot: chmod o+r {files}",
    )


def _nvidia_sensor(node: HostView) -> Check:
    command = ["nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            command,
            env=dict(node.variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SMI_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Check(
            "sensors",
            "wrong",
            f"nvidia-smi gave no answer in {SMI_LIMIT_S:g} s",
            "dmesg tells whether a GPU has failed",
        )
    except OSError:
        if hostinfo.find_libraries("libnvidia-ml", node.root, node.variables):
            return Check("sensors", "ok", "NVIDIA (NVML)")
        return Check(
            "sensors",
            "wrong",
            "NVIDIA devices are here, but neither nvidia-smi nor libnvidia-ml",
            "start the container with --nv (Apptainer), --gpus all (Docker) or NVIDIA_DRIVER_CAPABILITIES=all",
        )
    words = " ".join((done.stdout or done.stderr).split())
    if done.returncode != 0:
        return Check("sensors", "wrong", f"nvidia-smi failed: {words[:200]}", "the driver must be loaded and match it")
    if not re.search(r"\d", words):
        return Check("sensors", "note", f"the NVIDIA driver tells no power: {words[:80]}")
    return Check("sensors", "ok", "NVIDIA (nvidia-smi)")


def _data(node: HostView, data: Path) -> Check:
    if not data.is_dir():
        return Check("data", "wrong", f"{data} is not a folder that we can see", "give another folder with --data")
    mount = hostinfo.mount_of(_resolved(data), node.root)
    if mount is None:
        return Check("data", "note", f"{data}: its file system is not known")
    found = f"{data} is on {mount.kind} ({mount.point})"
    if PARALLEL_FILESYSTEMS.fullmatch(mount.kind):
        return Check(
            "data",
            "note",
            f"{found}: fast for large files, slow for many small ones",
            "keep samples in few large files (tar shards, HDF5), or copy them to the node's own disk",
        )
    if LAYERED_FILESYSTEMS.fullmatch(mount.kind):
        return Check(
            "data",
            "wrong",
            f"{found}, the layered file system of a container: slow to open files, and gone with the container",
            "mount the data into the container (-v DIR:DIR, --bind DIR)",
        )
    if SLOW_FILESYSTEMS.fullmatch(mount.kind):
        return Check(
            "data",
            "wrong",
            f"{found}: the loader would be measured, not the device",
            "copy the data to the node's own disk or /dev/shm, or to the parallel file system",
        )
    return Check("data", "ok", found)


def _results_filesystem(node: HostView, results: Path) -> Iterator[Check]:
    mount = hostinfo.mount_of(_resolved(results), node.root)
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


def _resolved(path: Path) -> Path:
    with contextlib.suppress(OSError, RuntimeError):
        return path.resolve()
    return path
