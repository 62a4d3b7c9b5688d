"""Facts on accelerators from their drivers, read without privileges: clocks, power limits, links, partitions.

Sources are `nvidia-smi` and the sysfs files of AMD and Intel. torch is not needed.
"""

from __future__ import annotations

import contextlib
import csv
import os
import re
import signal
import subprocess
import time
from pathlib import Path

from steelyard.hostinfo import read_int, read_text

# Names of nvidia-smi's fields in our facts. All drivers since 450 have them; one unknown field would fail the query.
NVIDIA_FIELDS = {
    "name": "name",
    "uuid": "uuid",
    "driver_version": "driver",
    "pci.bus_id": "pci",
    "memory.total": "memory",
    "clocks.max.sm": "clock_max",
    "clocks.current.sm": "clock_now",
    "clocks.max.memory": "memory_clock_max",
    "clocks.current.memory": "memory_clock_now",
    "power.limit": "power_limit",
    "power.default_limit": "power_limit_default",
    "temperature.gpu": "temperature",
    "mig.mode.current": "mig",
    "ecc.mode.current": "ecc",
    "persistence_mode": "persistence",
    "compute_mode": "compute_mode",
    "pcie.link.gen.current": "pcie_generation",
    "pcie.link.width.current": "pcie_width",
    "vbios_version": "vbios",
}
QUERY = ["nvidia-smi", f"--query-gpu={','.join(NVIDIA_FIELDS)}", "--format=csv,noheader"]
TOPOLOGY = ["nvidia-smi", "topo", "-m"]
KILL_WAIT_S = 0.5

DRM_VENDORS = {"0x1002": "AMD", "0x8086": "Intel"}
DRM_FILES = {
    "name": "product_name",
    "unique_id": "unique_id",
    "memory_bytes": "mem_info_vram_total",
    "link_speed": "current_link_speed",
    "link_width": "current_link_width",
    "link_speed_max": "max_link_speed",
    "numa_node": "numa_node",
    "compute_partition": "current_compute_partition",
    "memory_partition": "current_memory_partition",
    "performance_level": "power_dpm_force_performance_level",
    "vbios": "vbios_version",
    "device_id": "device",
}
INTEL_CLOCKS = ("gt/gt0/rps_max_freq_mhz", "gt_max_freq_mhz", "device/tile0/gt0/freq0/max_freq")

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_UNKNOWN = re.compile(r"\[?(N/A|Not Supported|Unknown Error|Insufficient Permissions|Unknown)\]?", re.IGNORECASE)


class NvidiaSmi:
    """Runs `nvidia-smi`, which can take seconds: start it early and collect its output later."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._found: dict[str, str] | None = None

    def start(self) -> None:
        """Start the commands and return at once. Without nvidia-smi there are no facts."""
        for name, command in (("query", QUERY), ("topology", TOPOLOGY)):
            with contextlib.suppress(OSError):
                self._processes[name] = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )

    def facts(self, timeout_s: float = 5.0) -> dict[str, str]:
        """Return the facts under `gpuN.`, waiting at most `timeout_s`; commands that are still running are killed."""
        if self._found is None:
            deadline_s = time.monotonic() + timeout_s
            texts = {name: _outcome(process, deadline_s) for name, process in self._processes.items()}
            self._found = {**_query_facts(*texts["query"])} if "query" in texts else {}
            if "topology" in texts and texts["topology"][0] == 0:
                self._found.update(topology_facts(texts["topology"][1]))
        return dict(self._found)


def _outcome(process: subprocess.Popen[bytes], deadline_s: float) -> tuple[int | None, str]:
    """Return exit code (None: killed after the timeout) and output."""
    try:
        output, _ = process.communicate(timeout=max(0.0, deadline_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # A hanging driver can block even a killed process; do not wait for it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=KILL_WAIT_S)
        return None, ""
    return process.returncode, output.decode("utf-8", "replace")


def _query_facts(code: int | None, text: str) -> dict[str, str]:
    if code is None:
        return {"nvidia.smi": "no answer within the time limit"}
    if code != 0:
        return {"nvidia.smi": f"exit code {code}: {' '.join(text.split())[:300]}"}
    facts = {}
    rows = [row for row in csv.reader(text.splitlines(), skipinitialspace=True) if len(row) == len(NVIDIA_FIELDS)]
    for number, row in enumerate(rows):
        for name, value in zip(NVIDIA_FIELDS.values(), row, strict=True):
            if value.strip() and not _UNKNOWN.fullmatch(value.strip()):
                facts[f"gpu{number}.{name}"] = value.strip()
    return facts


def topology_facts(text: str) -> dict[str, str]:
    """Return the links of each GPU to other GPUs and network cards, from the matrix of `nvidia-smi topo -m`."""
    lines = [[cell.strip() for cell in line.split("\t")] for line in _ANSI.sub("", text).splitlines()]
    header = next((line for line in lines if "GPU0" in line[1:]), None)
    if header is None:
        return {}
    facts = {}
    for line in lines:
        if line is header or not re.fullmatch(r"GPU\d+", line[0]):
            continue
        cells = dict(zip(header[1:], line[1:], strict=False))
        if "GPU NUMA ID" in cells:
            # The last column has more tabs before it than its heading.
            cells["GPU NUMA ID"] = next(cell for cell in reversed(line) if cell)
        links = [f"{name} {cell}" for name, cell in cells.items() if re.fullmatch(r"(GPU|NIC)\d+|mlx\S+", name)]
        prefix = line[0].lower()
        facts[f"{prefix}.links"] = ", ".join(link for link in links if not link.endswith(" X"))
        for name, fact in (
            ("CPU Affinity", "cpus_beside"),
            ("NUMA Affinity", "numa_node"),
            ("GPU NUMA ID", "own_node"),
        ):
            if cells.get(name, "N/A") not in ("N/A", ""):
                facts[f"{prefix}.{fact}"] = cells[name]
    return {name: value for name, value in facts.items() if value}


def driver_facts(root: Path = Path("/")) -> dict[str, str]:
    """Return drivers, and the cards of AMD and Intel, from the kernel's files. Starts no process."""
    facts = {}
    if nvidia := read_text(root / "proc/driver/nvidia/version"):
        facts["nvidia.kernel_module"] = nvidia.splitlines()[0].partition(":")[2].strip() or nvidia.splitlines()[0]
    cards = [path for path in root.glob("sys/class/drm/card[0-9]*") if path.name[4:].isdigit()]
    for card in sorted(cards, key=lambda path: int(path.name[4:])):
        vendor = DRM_VENDORS.get(read_text(card / "device/vendor") or "")
        if vendor:
            facts.update({f"{card.name}.{name}": value for name, value in _card_facts(card, vendor, root).items()})
    return facts


def _card_facts(card: Path, vendor: str, root: Path) -> dict[str, str]:
    device = card / "device"
    facts = {"vendor": vendor}
    facts.update({name: text for name, file in DRM_FILES.items() if (text := read_text(device / file))})
    if device.is_symlink():
        facts["pci"] = device.resolve().name
    driver = (device / "driver").resolve().name if (device / "driver").exists() else ""
    if driver:
        version = read_text(root / "sys/module" / driver / "version")
        facts["driver"] = f"{driver} {version}" if version else driver
    for name, file in (("clock", "pp_dpm_sclk"), ("memory_clock", "pp_dpm_mclk")):
        facts.update(_levels(name, read_text(device / file) or ""))
    for file in INTEL_CLOCKS:
        if mhz := read_int(card / file):
            facts["clock_max"] = f"{mhz} MHz"
    for name, files in (
        ("power_limit_w", ("power1_cap", "power1_max")),
        ("power_limit_default_w", ("power1_cap_default",)),
    ):
        watts = [uw / 1e6 for file in files for path in device.glob(f"hwmon/hwmon*/{file}") if (uw := read_int(path))]
        if watts:
            facts[name] = f"{watts[0]:g}"
    if (hive := read_text(device / "xgmi_hive_info/xgmi_hive_id")) is not None:
        facts["xgmi_hive"] = hive
    return facts


def _levels(name: str, text: str) -> dict[str, str]:
    """Return clocks from lines such as `1: 1700Mhz *`: the last is the highest, the star marks the current one."""
    levels = [line.partition(":")[2].strip() for line in text.splitlines() if ":" in line]
    if not levels:
        return {}
    now = [level.rstrip(" *") for level in levels if level.endswith("*")]
    return {f"{name}_max": levels[-1].rstrip(" *"), **({f"{name}_now": now[0]} if now else {})}
