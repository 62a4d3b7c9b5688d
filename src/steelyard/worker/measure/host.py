"""Facts on the machine: CPUs, memory, NUMA nodes, control groups, file systems, fabric, container.

Reads the kernel's files below a root that tests can replace.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard import hostinfo
from steelyard.hostinfo import read_int, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# ARM cores have numbers instead of names. From the tables of the kernel and util-linux.
ARM_CORES = {
    ("0x41", "0xd0c"): "Arm Neoverse N1",
    ("0x41", "0xd40"): "Arm Neoverse V1",
    ("0x41", "0xd49"): "Arm Neoverse N2",
    ("0x41", "0xd4f"): "Arm Neoverse V2",
    ("0x41", "0xd83"): "Arm Neoverse V3AE",
    ("0x41", "0xd84"): "Arm Neoverse V3",
    ("0x41", "0xd8e"): "Arm Neoverse N3",
    ("0x46", "0x001"): "Fujitsu A64FX",
    ("0xc0", "0xac3"): "Ampere-1",
    ("0xc0", "0xac4"): "Ampere-1a",
}
MODEL_KEYS = ("model name", "cpu model", "cpu", "uarch")
SWITCHES = {
    "cpu.smt": "sys/devices/system/cpu/smt/control",
    "cpu.boost": "sys/devices/system/cpu/cpufreq/boost",
    "cpu.no_turbo": "sys/devices/system/cpu/intel_pstate/no_turbo",
    "cpu.frequency_driver": "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver",
    "memory.transparent_hugepages": "sys/kernel/mm/transparent_hugepage/enabled",
    "numa.balancing": "proc/sys/kernel/numa_balancing",
    "system.product": "sys/class/dmi/id/product_name",
}
IMAGE_LABELS = ("org.opencontainers.image.", "org.label-schema.")


def host_facts(root: Path) -> dict[str, str]:
    """Return facts on the machine that do not change while a process runs."""
    return {
        **_cpu_facts(root),
        **_memory_facts(root),
        **_numa_facts(root),
        **_group_facts(root),
        **_fabric_facts(root),
        **{name: text for name, path in SWITCHES.items() if (text := read_text(root / path))},
    }


def _cpu_facts(root: Path) -> dict[str, str]:
    facts: dict[str, str] = {}
    # Fields of the first processor; the others repeat them.
    cpuinfo: dict[str, str] = {}
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        cpuinfo.setdefault(name.strip(), value.strip())
    if model := _cpu_model(cpuinfo):
        facts["cpu.model"] = model
    folders = [path for path in root.glob("sys/devices/system/cpu/cpu[0-9]*") if path.name[3:].isdigit()]
    sockets = _distinct(read_text(path / "topology/physical_package_id") for path in folders)
    cores = _distinct(
        read_text(path / "topology/core_cpus_list") or read_text(path / "topology/thread_siblings_list")
        for path in folders
    )
    if sockets:
        facts["cpu.sockets"] = str(len(sockets))
    if cores:
        facts["cpu.cores"] = str(len(cores))
    governors = [text for path in folders if (text := read_text(path / "cpufreq/scaling_governor"))]
    if governors:
        facts["cpu.governor"] = ", ".join(f"{name} ({count} CPUs)" for name, count in Counter(governors).most_common())
    limits = [khz for path in folders if (khz := read_int(path / "cpufreq/scaling_max_freq"))]
    if limits:
        low, high = min(limits) / 1000, max(limits) / 1000
        facts["cpu.max_mhz"] = f"{high:g}" if low == high else f"{low:g} to {high:g}"
    # Only one CPU: the kernel measures the frequency on each read, which takes time.
    now = read_int(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
    mhz = f"{now / 1000:g}" if now else cpuinfo.get("cpu MHz")
    if mhz:
        facts["cpu.cpu0_mhz"] = mhz
    return facts


def _cpu_model(fields: dict[str, str]) -> str | None:
    for key in MODEL_KEYS:
        if fields.get(key):
            return fields[key]
    core = fields.get("CPU implementer", ""), fields.get("CPU part", "")
    if not all(core):
        return None
    return ARM_CORES.get(core, f"ARM implementer {core[0]}, part {core[1]}")


def _distinct(texts: Iterable[str | None]) -> set[str]:
    return {text for text in texts if text}


def _memory_facts(root: Path) -> dict[str, str]:
    sizes = hostinfo.memory_table(root)
    names = {"MemTotal": "memory.total_bytes", "SwapTotal": "memory.swap_bytes"}
    return {fact: str(sizes[name]) for name, fact in names.items() if name in sizes}


def _numa_facts(root: Path) -> dict[str, str]:
    nodes = hostinfo.numa_nodes(root / "sys")
    facts = (
        {"numa.nodes": str(len(nodes)), "numa.nodes_with_cpus": str(sum(map(bool, nodes.values())))} if nodes else {}
    )
    for node in nodes:
        folder = root / f"sys/devices/system/node/node{node}"
        facts[f"numa.node{node}.cpus"] = read_text(folder / "cpulist") or "none"
        total = next((line for line in (read_text(folder / "meminfo") or "").splitlines() if "MemTotal" in line), "")
        kib = total.split()[-2:-1]
        if kib and kib[0].isdigit():
            facts[f"numa.node{node}.memory_bytes"] = str(int(kib[0]) * 1024)
    return facts


def _group_facts(root: Path) -> dict[str, str]:
    quota = hostinfo.cpu_quota(hostinfo.control_groups("cpu", root))
    limit = hostinfo.memory_limit(hostinfo.control_groups("memory", root))
    cpus = hostinfo.cpuset(hostinfo.control_groups("cpuset", root))
    total = _memory_facts(root).get("memory.total_bytes")
    if limit is not None and total is not None and limit >= int(total):
        limit = None
    return {
        "cgroup.cpu_quota": "none" if quota is None else f"{quota:g}",
        "cgroup.memory_limit_bytes": "none" if limit is None else str(limit),
        **({"cgroup.cpuset": cpus} if cpus else {}),
    }


def _fabric_facts(root: Path) -> dict[str, str]:
    facts = {}
    for fabric in hostinfo.fabrics(root):
        state = {True: "active", False: "no port is active", None: "state unknown"}[fabric.active]
        facts[f"fabric.{fabric.kind}"] = f"{', '.join(fabric.devices)}: {state}"
    for path in sorted(root.glob("sys/class/infiniband/*/ports/*/rate")):
        if rate := read_text(path):
            facts[f"fabric.rate.{path.parts[-4]}.{path.parts[-2]}"] = rate
    return facts


def filesystem_facts(name: str, path: Path, root: Path) -> dict[str, str]:
    """Return the file system of a folder, under a name such as `data`."""
    try:
        mount = hostinfo.mount_of(path.resolve(), root)
    except (OSError, RuntimeError):
        mount = None
    if mount is None:
        return {}
    return {
        f"filesystem.{name}.type": mount.kind,
        f"filesystem.{name}.mount": mount.point,
        f"filesystem.{name}.source": without_password(mount.source),
        f"filesystem.{name}.options": mount.options,
    }


def without_password(text: str) -> str:
    """Return a source such as `https://user:password@host/share` without user and password."""
    scheme, separator, rest = text.rpartition("://")
    place, slash, path = rest.partition("/")
    return scheme + separator + place.rpartition("@")[2] + slash + path


def container_facts(root: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return facts on the container, if any; the image only if the container names it."""
    image = variables.get("APPTAINER_CONTAINER") or variables.get("SINGULARITY_CONTAINER")
    if image or (root / ".singularity.d").is_dir():
        return {"container.kind": "apptainer", **_apptainer_facts(image, root)}
    if (root / "run/.containerenv").exists():
        return {"container.kind": "podman", **_podman_facts(read_text(root / "run/.containerenv") or "")}
    if "KUBERNETES_SERVICE_HOST" in variables:
        return {"container.kind": "kubernetes"}
    if (root / ".dockerenv").exists():
        return {"container.kind": "docker"}
    return {"container.kind": variables["container"]} if variables.get("container") else {}


def _apptainer_facts(image: str | None, root: Path) -> dict[str, str]:
    """Return the image's file and the labels built into it."""
    facts = {}
    if image:
        facts["container.image"] = without_password(image)
        # Hashing the whole image would take longer than many runs; the size distinguishes most images.
        with contextlib.suppress(OSError, ValueError):
            facts["container.image_bytes"] = str(Path(image).stat().st_size)
    try:
        labels = json.loads(read_text(root / ".singularity.d/labels.json") or "")
        labels = labels.get("data", {}).get("attributes", {}).get("labels", labels)
        texts = {str(name): str(value) for name, value in labels.items()}
    except (ValueError, AttributeError):
        return facts
    facts |= {f"container.label.{name}": text for name, text in texts.items() if name.startswith(IMAGE_LABELS)}
    source = texts.get("org.label-schema.usage.singularity.deffile.from", "")
    if "@sha256:" in source:
        facts["container.digest"] = source.partition("@")[2]
    return facts


def _podman_facts(text: str) -> dict[str, str]:
    """Return the image, which Podman names only in privileged containers; otherwise the file is empty."""
    fields = {name: value.strip('"') for name, _, value in (line.partition("=") for line in text.splitlines())}
    names = {"engine": "container.engine", "image": "container.image", "imageid": "container.image_id"}
    facts = {name: fields[field] for field, name in names.items() if fields.get(field)}
    if "@sha256:" in fields.get("image", ""):
        facts["container.digest"] = fields["image"].partition("@")[2]
    return facts
