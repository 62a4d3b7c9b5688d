"""Facts about this machine from kernel files: control groups, mounts, NUMA nodes, fabrics, shared libraries.

Used by the front side and by the worker. Files are read below a root that tests can replace, without privileges.
What cannot be read is None or absent, never an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Set
    from pathlib import Path

# The kernel files read here are a line or a table.
MAX_BYTES = 1 << 20
LIBRARY_FOLDERS = ("lib", "lib64", "usr/lib", "usr/lib64", "usr/local/lib", "usr/local/lib64")

_OCTAL = re.compile(r"\\([0-7]{3})")

_INTEGRATED = "0000:00:02.0"
"""Where Intel's graphics in the processor are on every machine that has them."""
_INTEL = "0x8086"
_RENDER_MINOR = re.compile(r"^drm_render_minor ([1-9]\d*)$", re.MULTILINE)

VISIBLE = {
    "NVIDIA": ("CUDA_VISIBLE_DEVICES",),
    "AMD": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "Habana": ("HABANA_VISIBLE_MODULES",),
    "Intel": ("ZE_AFFINITY_MASK",),
}
"""Variables with the devices that a program may use, by maker."""
_LISTED = re.compile(r"\d+(\.\d+)?|(GPU|MIG)-.+")


def read_text(path: Path) -> str | None:
    """Return a small file, stripped; None when it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES).decode("utf-8", "replace").strip("\x00 \t\r\n")
    except (OSError, ValueError):
        return None


def read_int(path: Path) -> int | None:
    """Return the number in a file; None when there is none."""
    text = read_text(path)
    try:
        return int(text) if text else None
    except ValueError:
        return None


def parse_cpus(text: str) -> set[int]:
    """Return the CPU numbers of a kernel list such as `0-3,8`; empty when it is not valid."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def cores(cpus: Set[int], sys: Path) -> int:
    """Return how many cores these CPUs are; where the kernel does not say, each is one."""
    beside = sys / "devices/system/cpu"
    return len({read_text(beside / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in cpus})


def control_groups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the directories of the control groups of this process, its own first. The limits of all of them apply.

    Version 1 has a tree for each set of controllers; version 2 has one, below `unified` where both are mounted.
    """
    base = root / "sys/fs/cgroup"
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        trees = [base / controllers, base / controller] if controllers else [base / "unified", base]
        tree = next((tree for tree in trees if tree.is_dir()), None)
        if tree is not None:
            own = tree / path.lstrip("/")
            yield from (group for group in [own, *own.parents] if group.is_relative_to(tree) and group.is_dir())


def cpu_quota(groups: Iterable[Path]) -> float | None:
    """Return the CPUs that the control groups (version 1 or 2) allow; None: no limit."""
    quotas = []
    for group in groups:
        second = (read_text(group / "cpu.max") or "").split()
        if second and second[0].isdigit():
            quotas.append(int(second[0]) / int(second[1] if len(second) > 1 else 100_000))
        limit, period = read_int(group / "cpu.cfs_quota_us"), read_int(group / "cpu.cfs_period_us")
        if limit and period and limit > 0:
            quotas.append(limit / period)
    return min(quotas, default=None)


def memory_table(root: Path) -> dict[str, int]:
    """Return the kernel's table of the machine's memory, in bytes."""
    sizes = {}
    for line in (read_text(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            sizes[name] = int(words[0]) * 1024
    return sizes


def memory_limit(groups: Iterable[Path]) -> int | None:
    """Return the bytes that the control groups allow; None: no limit.

    Version 1 writes "no limit" as a number larger than any memory: compare it with the machine's memory.
    """
    limits = [read_int(group / name) for group in groups for name in ("memory.max", "memory.limit_in_bytes")]
    return min((limit for limit in limits if limit is not None), default=None)


def cpuset(groups: Iterable[Path]) -> str | None:
    """Return the CPUs that the innermost control group allows, as a kernel list."""
    names = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
    return next((text for group in groups for name in names if (text := read_text(group / name))), None)


def numa_nodes(sys: Path) -> dict[int, set[int]]:
    """Return the CPUs of each NUMA node, including nodes with memory only."""
    folders = {
        int(path.name[4:]): path for path in sys.glob("devices/system/node/node[0-9]*") if path.name[4:].isdigit()
    }
    return {node: parse_cpus(read_text(folders[node] / "cpulist") or "") for node in sorted(folders)}


# -- accelerators


def accelerators(root: Path) -> dict[str, int]:
    """Return how many accelerators of each maker have files below /dev, without Intel's graphics in the processor."""
    shown = [root / "sys/class/drm" / path.name / "device" for path in (root / "dev/dri").glob("renderD*")]
    vendors = [read_text(path / "vendor") for path in shown if path.resolve().name != _INTEGRATED]
    counts = {
        "NVIDIA": _count_numbered(root / "dev", "nvidia"),
        "AMD": _amd_devices(root),
        "Habana": _count_numbered(root / "dev/accel", "accel"),
        "Graphcore": _count_numbered(root / "dev", "ipu"),
        "Intel": vendors.count(_INTEL),
    }
    return {maker: count for maker, count in counts.items() if count}


def _count_numbered(folder: Path, name: str) -> int:
    """Count the files with this name and a number."""
    return sum(path.name.removeprefix(name).isdigit() for path in folder.glob(f"{name}[0-9]*"))


def _amd_devices(root: Path) -> int:
    """Count AMD's devices: they share one file, and the kernel lists them with the processors.

    In a container the list has all of the machine; those that may be used have files.
    """
    if not (root / "dev/kfd").exists():
        return 0
    nodes = [read_text(path) for path in (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties")]
    if not any(nodes):
        return 1
    minors = [match[1] for text in nodes if (match := _RENDER_MINOR.search(text or ""))]
    return sum((root / f"dev/dri/renderD{minor}").exists() for minor in minors)


def usable_accelerators(root: Path, variables: Mapping[str, str]) -> int:
    """Return how many accelerators a program that starts here may use: those of one maker."""
    for maker, count in accelerators(root).items():
        given = [variables[name] for name in VISIBLE.get(maker, ()) if name in variables]
        return min([count, *map(_count_listed, given)])
    return 0


def _count_listed(text: str) -> int:
    """Count the devices in a list such as CUDA_VISIBLE_DEVICES, which ends at the first entry that is none."""
    names = list(takewhile(_LISTED.fullmatch, (name.strip() for name in text.split(","))))
    # A program has one slice of a card at most.
    return 1 if names and names[0].startswith("MIG-") else len(names)


@dataclass(frozen=True)
class MountPoint:
    """A mounted file system."""

    point: str
    kind: str
    source: str
    options: str


def mount_of(path: Path, root: Path) -> MountPoint | None:
    """Return the mount of a path: the longest mount point above it, the last one of several."""
    parts = path.absolute().parts
    deepest: MountPoint | None = None
    for mount in mounts(root):
        point = _parts(mount.point)
        if parts[: len(point)] == point and (deepest is None or len(point) >= len(_parts(deepest.point))):
            deepest = mount
    return deepest


def mounts(root: Path) -> Iterator[MountPoint]:
    """Yield all mounts, in mounting order."""
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if len(left) >= 6 and len(right) >= 2:
            yield MountPoint(_unescape(left[4]), right[0], _unescape(right[1]), left[5])


def _parts(point: str) -> tuple[str, ...]:
    return ("/", *(part for part in point.split("/") if part))


def _unescape(text: str) -> str:
    """Decode the octal numbers that the kernel writes for blanks, tabs, newlines and backslashes."""
    return _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), text)


@dataclass(frozen=True)
class Fabric:
    """Network hardware for parallel jobs."""

    kind: str
    """InfiniBand, RoCE, Omni-Path, EFA or Slingshot."""
    devices: tuple[str, ...]
    active: bool | None
    """Whether a port is up; None: unknown."""


def fabrics(root: Path) -> list[Fabric]:
    """Return the fabric hardware by kind."""
    by_kind: dict[str, list[Path]] = {}
    for device in sorted(root.glob("sys/class/infiniband/*")):
        by_kind.setdefault(_verbs_kind(device), []).append(device)
    result = [Fabric(kind, tuple(path.name for path in paths), _active(paths)) for kind, paths in by_kind.items()]
    slingshot = sorted(root.glob("sys/class/cxi/*")) or sorted(root.glob("sys/class/net/hsn[0-9]*"))
    if slingshot:
        up = [read_text(path / "operstate") == "up" for path in root.glob("sys/class/net/hsn[0-9]*")]
        result.append(Fabric("Slingshot", tuple(path.name for path in slingshot), any(up) if up else None))
    return result


def _verbs_kind(device: Path) -> str:
    if device.name.startswith("hfi1"):
        return "Omni-Path"
    driver = device / "device/driver"
    if device.name.startswith("efa") or (driver.exists() and driver.resolve().name == "efa"):
        return "EFA"
    layers = {read_text(path) for path in device.glob("ports/*/link_layer")}
    return "RoCE" if layers == {"Ethernet"} else "InfiniBand"


def _active(devices: list[Path]) -> bool | None:
    states = [read_text(path) for device in devices for path in device.glob("ports/*/state")]
    known = [state for state in states if state]
    return any("ACTIVE" in state for state in known) if known else None


def find_libraries(stem: str, root: Path, variables: Mapping[str, str]) -> list[str]:
    """Return the files of a shared library, such as `libibverbs`, in the loader's folders and cache."""
    pattern = f"{stem}*.so*"
    given = [folder for folder in variables.get("LD_LIBRARY_PATH", "").split(":") if folder.startswith("/")]
    folders = [root / folder.lstrip("/") for folder in given]
    for name in LIBRARY_FOLDERS:
        folders += [root / name, *root.glob(f"{name}/*-linux-gnu")]
    paths = [str(path) for folder in folders for path in sorted(folder.glob(pattern))]
    return list(dict.fromkeys([*paths, *_in_loader_cache(stem, root)]))


def _in_loader_cache(stem: str, root: Path) -> Iterator[str]:
    """Yield the library's paths in the cache, which holds them as text between zero bytes in every version."""
    try:
        content = (root / "etc/ld.so.cache").read_bytes()
    except OSError:
        return
    for match in re.finditer(rb"/[^\0]*/" + re.escape(stem.encode()) + rb"[^\0/]*\.so[^\0/]*(?=\0)", content):
        path = match.group().decode("utf-8", "replace")
        if (root / path.lstrip("/")).exists():
            yield path
