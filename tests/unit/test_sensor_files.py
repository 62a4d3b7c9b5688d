"""Sensors that are files or other vendors' libraries, tested with real files below a test root and fake modules."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from steelyard import plugins
from steelyard.contracts.base import from_json_object, to_json_object
from steelyard.contracts.energy import Channel, Domain, Missing
from steelyard.derive.domains import cover
from steelyard.doctor import sensors as doctor_sensors
from steelyard.doctor.sensors import judge_sensors, run_survey
from steelyard.stats.energy import Nature, energy_of
from steelyard.worker.sensors import find, nvml_library, sysfs
from steelyard.worker.sensors.amd import open_amd
from steelyard.worker.sensors.backend import ReadError, SensorsFound
from steelyard.worker.sensors.hwmon import open_hwmon
from steelyard.worker.sensors.ipu import FRESH_S, open_ipu, parse_watts
from steelyard.worker.sensors.rapl import open_rapl
from steelyard.worker.sensors.survey import survey
from steelyard.worker.sensors.xpu import open_xpu

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.doctor.node import Check

POWERCAP = "sys/class/powercap"
RANGE_UJ = 262_143_328_850


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def zone(place: str, name: str, energy_uj: int = 1_000_000, range_uj: int | None = RANGE_UJ) -> dict[str, str]:
    """Return a powercap folder as the kernel writes it."""
    files = {f"{POWERCAP}/{place}/name": f"{name}\n", f"{POWERCAP}/{place}/energy_uj": f"{energy_uj}\n"}
    return files | ({} if range_uj is None else {f"{POWERCAP}/{place}/max_energy_range_uj": f"{range_uj}\n"})


def two_sockets() -> dict[str, str]:
    files = zone("intel-rapl:0", "package-0", 7_000_000) | zone("intel-rapl:1", "package-1", 9_000_000)
    for socket in (0, 1):
        files |= zone(f"intel-rapl:{socket}:0", "core") | zone(f"intel-rapl:{socket}:1", "dram", 500_000)
    return files


def watched(found: SensorsFound) -> dict[str, Channel]:
    """Return channels by the name of their domain; everything found must fit in a record."""
    for part, kind in ((found.domains, Domain), (found.channels, Channel), (found.missing, Missing)):
        for item in part:
            assert from_json_object(kind, to_json_object(item)) == item
    names = {domain.name for domain in found.domains}
    assert len(names) == len(found.domains)
    # NVML may have modules without a file.
    assert {domain.parent for domain in found.domains if not (domain.parent or "").startswith("module")} <= names | {
        None
    }
    assert {channel.domain for channel in found.channels} <= names
    assert (found.read is not None) or not found.channels
    return {channel.domain: channel for channel in found.channels}


def reading(found: SensorsFound, domain: str, end: str = "") -> float:
    assert found.read is not None
    numbers = [
        number
        for number, channel in enumerate(found.channels)
        if channel.domain == domain and channel.name.endswith(end)
    ]
    return found.read(numbers[0])


def codes(found: SensorsFound) -> set[str]:
    return {missing.code for missing in found.missing}


def parents(found: SensorsFound) -> dict[str, str | None]:
    return {domain.name: domain.parent for domain in found.domains}


@pytest.fixture
def honest_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make files without permission unreadable even if the tests run as root, whom no mode stops."""
    really = os.open

    def heeding(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if not Path(path).stat().st_mode & 0o004:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return really(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", heeding)


# -- RAPL ---------------------------------------------------------------------------------------------------------


def test_packages_and_memory_alone(tmp_path: Path) -> None:
    found = open_rapl(plant(tmp_path, two_sockets()), ())
    channels = watched(found)
    assert set(channels) == {"package-0", "package-1", "package-0-dram", "package-1-dram"}
    assert {domain.scope for domain in found.domains} == {"cpu", "memory"}
    # The memory's folder is below the package's, but its energy is not included.
    assert set(parents(found).values()) == {None}
    assert (reading(found, "package-1"), reading(found, "package-1-dram")) == (9.0, 0.5)
    assert channels["package-0"].wrap == pytest.approx(262_143.32885)
    assert (channels["package-0"].kind, channels["package-0"].period_s) == ("counter", 1e-3)
    assert found.missing == []


def test_psys_is_never_added(tmp_path: Path) -> None:
    found = open_rapl(plant(tmp_path, two_sockets() | zone("intel-rapl:2", "psys", 20_000_000)), ())
    assert "psys" not in watched(found)
    assert [missing.what for missing in found.missing] == ["psys: /sys/class/powercap/intel-rapl:2"]
    assert "is not used" in found.missing[0].reason


def test_a_package_shown_twice_is_counted_once(tmp_path: Path, honest_modes: None) -> None:
    root = plant(tmp_path, zone("intel-rapl:0", "package-0", 7_000_000))
    plant(root, zone("intel-rapl-mmio:0", "package-0", 6_999_000) | zone("intel-rapl-mmio:0:0", "dram"))
    found = open_rapl(root, ())
    assert watched(found)["package-0"].source == "/sys/class/powercap/intel-rapl:0/energy_uj"
    assert len(found.channels) == 1
    (root / POWERCAP / "intel-rapl:0/energy_uj").chmod(0o600)
    found = open_rapl(root, ())
    assert watched(found)["package-0"].source == "/sys/class/powercap/intel-rapl-mmio:0/energy_uj"
    assert codes(found) == set()


def test_a_counter_that_begins_again_during_a_run(tmp_path: Path) -> None:
    """150 W for 20 s through a counter that wraps in the middle."""
    power_w, begin_j = 150.0, RANGE_UJ / 1e6 - 1500
    root = plant(tmp_path, zone("intel-rapl:0", "package-0"))
    found = open_rapl(root, ())
    path = root / POWERCAP / "intel-rapl:0/energy_uj"
    times = np.arange(0.0, 22.0, 0.1)
    values = []
    for time_s in times:
        path.write_text(f"{int((begin_j + power_w * time_s) * 1e6) % RANGE_UJ}\n")
        values.append(reading(found, "package-0"))
    assert min(np.diff(values)) < 0
    channel = found.channels[0]
    nature = Nature("counter", channel.resolution, period_s=channel.period_s, wrap=channel.wrap, gain=0.0)
    got = energy_of(nature, times, np.array(values), np.full_like(times, 1e-5), 1.0, 21.0, random_phase=False)
    assert got.value_j == pytest.approx(3000.0, rel=1e-3)
    # Without the range the lost energy is unknown.
    (root / POWERCAP / "intel-rapl:0/max_energy_range_uj").unlink()
    found = open_rapl(root, ())
    assert found.channels[0].wrap is None
    assert "a window in which it wraps has no energy" in found.missing[0].reason
    unknown = Nature("counter", channel.resolution, period_s=channel.period_s, wrap=None, gain=0.0)
    got = energy_of(unknown, times, np.array(values), np.full_like(times, 1e-5), 1.0, 21.0, random_phase=False)
    assert (got.value_j, got.verdict) == (None, "invalid")


def test_what_we_may_not_read_is_forbidden(tmp_path: Path, honest_modes: None) -> None:
    root = plant(tmp_path, two_sockets())
    for path in (root / POWERCAP).glob("*/energy_uj"):
        path.chmod(0o400)
    found = open_rapl(root, ())
    assert watched(found) == {}
    assert codes(found) == {"forbidden"}
    assert {missing.what.partition(":")[0] for missing in found.missing} == {
        "package-0", "package-1", "package-0-dram", "package-1-dram",
    }  # fmt: skip
    assert all("chmod o+r /sys/class/powercap/*/energy_uj" in missing.fix for missing in found.missing)
    assert all(str(tmp_path) not in missing.reason for missing in found.missing)


def test_amd_counts_no_memory_and_less_exactly(tmp_path: Path) -> None:
    files = zone("intel-rapl:0", "package-0") | zone("intel-rapl:0:0", "core")
    found = open_rapl(plant(tmp_path, files | {"proc/cpuinfo": "processor : 0\nvendor_id : AuthenticAMD\n"}), ())
    assert (watched(found)["package-0"].gain, watched(found)["package-0"].period_s) == (0.1, None)
    assert [missing.what for missing in found.missing] == ["memory of package-0"]
    assert "core are parts of the package" in found.missing[0].reason


def test_folders_that_a_container_hides(tmp_path: Path) -> None:
    folder = tmp_path / POWERCAP
    folder.mkdir(parents=True)
    (folder / "intel-rapl:0").symlink_to("../../devices/virtual/powercap/intel-rapl/intel-rapl:0")
    found = open_rapl(tmp_path, ())
    assert (watched(found), codes(found)) == ({}, {"missing"})
    assert "docker run -v /sys/devices/virtual/powercap" in found.missing[0].fix


@pytest.mark.parametrize(
    ("text", "code"), [("", "missing"), ("soon", "implausible"), ("-5", "implausible"), ("9" * 30, "implausible")]
)
def test_what_is_no_reading(tmp_path: Path, text: str, code: str) -> None:
    root = plant(tmp_path, zone("intel-rapl:0", "package-0"))
    found = open_rapl(root, ())
    (root / POWERCAP / "intel-rapl:0/energy_uj").write_text(text)
    with pytest.raises(ReadError) as fault:
        reading(found, "package-0")
    assert fault.value.code == code
    assert codes(open_rapl(root, ())) >= {code}


def test_a_file_that_vanishes(tmp_path: Path) -> None:
    root = plant(tmp_path, zone("intel-rapl:0", "package-0"))
    found = open_rapl(root, ())
    (root / POWERCAP / "intel-rapl:0/energy_uj").unlink()
    with pytest.raises(ReadError) as fault:
        reading(found, "package-0")
    assert fault.value.code == "vanished"


def test_a_folder_or_a_pipe_in_place_of_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(ReadError) as fault:
            sysfs.read_number(path)
        assert fault.value.code == "missing"


# -- hwmon --------------------------------------------------------------------------------------------------------


def grace(socket: int = 0, first: int = 1) -> dict[str, str]:
    """Grace's four meters, whose files are in the ACPI device's folder, not the chip's."""
    watts = {"Module": 560.0, "Grace": 190.0, "CPU": 110.0, "SysIO": 35.5}
    files: dict[str, str] = {}
    for number, (kind, power_w) in enumerate(watts.items(), first):
        chip = f"sys/class/hwmon/hwmon{number}"
        files |= {
            f"{chip}/name": "power_meter\n",
            f"{chip}/device/power1_oem_info": f"{kind} Power Socket {socket}\n",
            f"{chip}/device/power1_average": f"{int(power_w * 1e6)}\n",
            f"{chip}/device/power1_average_interval": "50\n",
            f"{chip}/device/power1_accuracy": "100.0%\n",
        }
    return files


def test_grace_is_a_tree(tmp_path: Path) -> None:
    found = open_hwmon(plant(tmp_path, grace() | grace(socket=1, first=5)), ())
    channels = watched(found)
    assert parents(found) == {
        "module0": None, "grace0": "module0", "cpu0": "grace0", "sysio0": "grace0",
        "module1": None, "grace1": "module1", "cpu1": "grace1", "sysio1": "grace1",
    }  # fmt: skip
    assert {domain.name: domain.scope for domain in found.domains if domain.name.endswith("0")} == {
        "module0": "module", "grace0": "cpu", "cpu0": "cpu", "sysio0": "io",
    }  # fmt: skip
    assert [reading(found, name) for name in ("module0", "grace0", "cpu1", "sysio1")] == [560.0, 190.0, 110.0, 35.5]
    module = channels["module0"]
    assert (module.kind, module.average_s, module.resolution) == ("gauge", 0.05, 1e-3)
    assert module.period_s is None  # the meter's sampling time is unknown
    assert module.gain == 0.05  # the firmware's claim of 100 % is ignored
    assert found.missing == []


def test_graces_interval_is_read_not_assumed(tmp_path: Path) -> None:
    root = plant(tmp_path, grace())
    path = root / "sys/class/hwmon/hwmon1/device/power1_average_interval"
    path.write_text("1000\n")
    assert watched(open_hwmon(root, ()))["module0"].average_s == 1.0
    path.unlink()
    assert watched(open_hwmon(root, ()))["module0"].average_s is None


def test_a_part_has_its_parent_even_if_that_is_not_readable(tmp_path: Path, honest_modes: None) -> None:
    root = plant(tmp_path, grace())
    (root / "sys/class/hwmon/hwmon1/device/power1_average").chmod(0o400)
    found = open_hwmon(root, ())
    assert set(watched(found)) == {"grace0", "cpu0", "sysio0"}
    assert (parents(found)["grace0"], codes(found)) == ("module0", {"forbidden"})
    # A parent without a meter is skipped.
    for name in ("power1_average", "power1_oem_info"):
        (root / "sys/class/hwmon/hwmon2/device" / name).unlink()
    assert parents(open_hwmon(root, ()))["cpu0"] == "module0"


def test_no_joule_of_grace_is_counted_beside_a_module_that_another_reads(tmp_path: Path) -> None:
    """The module has no file here, but NVML counts it, and the processor is a part of it."""
    files = {name: text for name, text in grace().items() if "hwmon1/" not in name}
    meters = open_hwmon(plant(tmp_path, files), ())
    module = Domain(name="module0", scope="module")
    gpu = Domain(name="gpu0", scope="device", parent="module0")
    domains = {domain.name: domain for domain in (*meters.domains, module, gpu)}
    chosen = cover(domains, {"module0", "grace0", "cpu0", "sysio0"}, on_cpu=False)
    assert (chosen.counted, chosen.hosts) == (["module0"], [])
    # Without such a module the processor's own meters are the top.
    own = {domain.name: domain for domain in meters.domains}
    assert cover(own, set(own), on_cpu=True).counted == ["grace0"]


def test_the_scope_of_other_meters_is_unknown(tmp_path: Path) -> None:
    files = {
        "sys/class/hwmon/hwmon0/name": "ina3221\n",
        "sys/class/hwmon/hwmon0/power1_label": "VDD GPU/SOC\x1b[2J\n",
        "sys/class/hwmon/hwmon0/power1_input": "12500000\n",
        "sys/class/hwmon/hwmon0/power2_input": "1000000\n",
        "sys/class/hwmon/hwmon3/name": "power_meter\n",
        "sys/class/hwmon/hwmon3/device/power1_average": "450000000\n",
        "sys/class/hwmon/hwmon3/device/power1_accuracy": "80.0%\n",
        "sys/class/hwmon/hwmon4/name": "coretemp\n",
        "sys/class/hwmon/hwmon4/temp1_input": "42000\n",
    }
    found = open_hwmon(plant(tmp_path, files), ())
    channels = watched(found)
    assert set(channels) == {"hwmon0-power1-VDD-GPU-SOC-2J", "hwmon0-power2", "hwmon3-power1"}
    assert {domain.scope for domain in found.domains} == {"board"}
    assert reading(found, "hwmon0-power1-VDD-GPU-SOC-2J") == 12.5
    assert channels["hwmon3-power1"].gain == pytest.approx(0.2)
    assert channels["hwmon0-power2"].average_s is None
    assert len(found.missing) == 3
    assert all("not added to any total" in missing.reason for missing in found.missing)


def test_accelerators_have_their_own_backend(tmp_path: Path) -> None:
    files: dict[str, str] = {}
    for number, name in enumerate(("amdgpu", "i915", "xe", "i915_gt0")):
        files |= {f"sys/class/hwmon/hwmon{number}/name": name, f"sys/class/hwmon/hwmon{number}/power1_average": "5"}
    found = open_hwmon(plant(tmp_path, files), ())
    assert (found.domains, found.missing) == ([], [])


# -- Intel --------------------------------------------------------------------------------------------------------


def chip(root: Path, number: int, name: str, address: str, files: dict[str, str]) -> None:
    """A monitoring chip of a PCI device, linked like in the kernel."""
    device = f"sys/devices/pci0000:00/{address}"
    (root / device).mkdir(parents=True, exist_ok=True)
    place = f"sys/class/hwmon/hwmon{number}"
    plant(root, {f"{place}/name": f"{name}\n"} | {f"{place}/{key}": value for key, value in files.items()})
    (root / place / "device").symlink_to(f"../../../../{device}")


def test_an_intel_card_with_two_tiles(tmp_path: Path) -> None:
    chip(tmp_path, 2, "i915", "0000:3a:00.0", {"energy1_input": "5000000", "power1_max": "600000000"})
    for tile in (0, 1):
        chip(tmp_path, 3 + tile, f"i915_gt{tile}", "0000:3a:00.0", {"energy1_input": f"{2_000_000 + tile}"})
    found = open_xpu(tmp_path, ())
    channels = watched(found)
    assert parents(found) == {"xpu0": None, "xpu0.gt0": "xpu0", "xpu0.gt1": "xpu0"}
    assert (reading(found, "xpu0"), channels["xpu0"].limit_w) == (5.0, 600.0)
    assert {domain.name: domain.scope for domain in found.domains}["xpu0"] == "device"
    assert {domain.device for domain in found.domains} == {"0000:3a:00.0"}


def test_the_package_is_a_part_of_the_card(tmp_path: Path) -> None:
    chip(tmp_path, 0, "xe", "0000:03:00.0", {"energy1_input": "900", "energy2_input": "800", "energy2_label": "pkg"})
    chip(tmp_path, 1, "xe", "0000:04:00.0", {"energy2_input": "700", "energy2_label": "pkg"})
    chip(tmp_path, 2, "xe", "0000:05:00.0", {"power1_max": "1"})
    found = open_xpu(tmp_path, ())
    assert set(watched(found)) == {"xpu0", "xpu0.package", "xpu1.package"}
    assert parents(found)["xpu1.package"] == "xpu1"
    assert [missing.what for missing in found.missing] == ["energy of the whole card xpu1", "energy of xpu2"]


def test_which_cards_are_the_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZE_ENABLE_PCI_ID_DEVICE_ORDER", raising=False)
    chip(tmp_path, 0, "xe", "0000:9a:00.0", {"energy1_input": "2000000"})
    chip(tmp_path, 1, "xe", "0000:1a:00.0", {"energy1_input": "1000000"})
    assert set(watched(open_xpu(tmp_path, ("0", "1")))) == {"xpu0", "xpu1"}
    unsure = open_xpu(tmp_path, ("1",))
    assert (watched(unsure), "unclear which of the" in unsure.missing[0].reason) == ({}, True)
    monkeypatch.setenv("ZE_ENABLE_PCI_ID_DEVICE_ORDER", "1")
    assert reading(open_xpu(tmp_path, ("1.0",)), "xpu1") == 2.0


# -- AMD ----------------------------------------------------------------------------------------------------------

AMDSMI = '''
"""Like AMD's own binding: handles are opaque, answers are dictionaries, faults are exceptions."""
class AmdSmiLibraryException(Exception):
    pass
def amdsmi_init():
    if STATE.get("init"):
        raise AmdSmiLibraryException(STATE["init"])
def amdsmi_shut_down():
    STATE["closed"] = True
def amdsmi_get_processor_handles():
    return list(range(len(STATE["dies"])))
def _of(handle, name):
    value = STATE["dies"][handle].get(name)
    if value is None:
        raise AmdSmiLibraryException("Error code: 2 | AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported")
    if isinstance(value, Exception):
        raise value
    return value
def amdsmi_get_gpu_asic_info(handle):
    return _of(handle, "asic")
def amdsmi_get_gpu_device_uuid(handle):
    return _of(handle, "uuid")
def amdsmi_get_gpu_device_bdf(handle):
    return _of(handle, "bdf")
def amdsmi_get_power_cap_info(handle):
    return _of(handle, "cap")
def amdsmi_get_energy_count(handle):
    return _of(handle, "energy")
def amdsmi_get_power_info(handle):
    return _of(handle, "power")
STATE = {"dies": []}
'''


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Any]:
    """Plants a vendor's module on the path, where the backend finds it like the real one."""

    def put(name: str, text: str) -> Any:
        folder = tmp_path / "vendor"
        plant(folder, {f"{name}.py": text})
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, name, raising=False)
        module = __import__(name)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return put


def die(number: int, energy: int | None, power: Any, asic: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "uuid": f"uuid-{number}",
        "bdf": f"0000:{0xC1 + number:02x}:00.0",
        "asic": asic,
        "energy": None if energy is None else {"energy_accumulator": energy, "counter_resolution": 15.3},
        "power": power,
        "cap": {"power_cap": 560_000_000},
    } | more


MI250 = {"market_name": "AMD Instinct MI250X", "device_id": 0x7408}
MI300 = {"market_name": "AMD Instinct MI300X", "device_id": "0x74a1"}
OLD = {"current_socket_power": "N/A", "average_socket_power": 94, "power_limit": 560}
NEW = {"socket_power": 717, "current_socket_power": 717, "average_socket_power": "N/A"}
NONE = {"current_socket_power": "N/A", "average_socket_power": 0}


def mi250_node() -> list[dict[str, Any]]:
    """Two cards of two dies; the second die of each reports nothing."""
    return [
        die(place, 4_000_000_000 if place % 2 == 0 else 0, OLD if place % 2 == 0 else NONE, MI250) for place in range(4)
    ]


def test_a_card_is_counted_once_for_its_dies(tmp_path: Path, fake: Callable[[str, str], Any]) -> None:
    library = fake("amdsmi", AMDSMI)
    library.STATE["dies"] = mi250_node()
    found = open_amd(tmp_path, ())
    watched(found)
    assert parents(found) == {
        "amd0": None, "amd0.die0": "amd0", "amd0.die1": "amd0", "amd1": None, "amd1.die0": "amd1", "amd1.die1": "amd1",
    }  # fmt: skip
    assert {domain.name: domain.scope for domain in found.domains}["amd1"] == "device"
    assert [(channel.name, channel.kind) for channel in found.channels] == [
        ("amd.0.energy", "counter"), ("amd.0.power", "gauge"), ("amd.1.energy", "counter"), ("amd.1.power", "gauge"),
    ]  # fmt: skip
    assert reading(found, "amd0", "energy") == pytest.approx(61_200.0)
    assert reading(found, "amd0", "power") == 94.0
    assert found.channels[0].resolution == pytest.approx(15.3e-6)
    assert found.channels[0].limit_w == 560.0
    assert "both dies" in found.channels[0].source
    assert found.missing == []
    found.close()
    assert library.STATE["closed"]


def test_a_second_die_alone_has_no_joules(tmp_path: Path, fake: Callable[[str, str], Any]) -> None:
    fake("amdsmi", AMDSMI).STATE["dies"] = mi250_node()[1:2]
    found = open_amd(tmp_path, ())
    assert (watched(found), codes(found)) == ({}, {"unsupported"})
    assert "by its first die" in found.missing[0].reason


def test_a_card_of_one_die(tmp_path: Path, fake: Callable[[str, str], Any]) -> None:
    library = fake("amdsmi", AMDSMI)
    energy = {"power": 1_000_000_000, "counter_resolution": 15.3}  # its name in older releases
    unfilled = {"current_socket_power": 65535, "average_socket_power": 2**32 - 1}
    library.STATE["dies"] = [
        die(0, None, NEW, MI300, cap={"power_cap": 750}) | {"energy": energy},
        die(1, None, NEW, MI300),
        die(2, 5, unfilled, MI300),
        die(3, None, None, MI300),
    ]
    found = open_amd(tmp_path, ())
    watched(found)
    assert parents(found) == {"amd0": None, "amd1": None, "amd2": None}
    assert [channel.name for channel in found.channels] == [
        "amd.0.energy",
        "amd.0.power",
        "amd.1.power",
        "amd.2.energy",
    ]
    assert reading(found, "amd0", "energy") == pytest.approx(15_300.0)
    assert reading(found, "amd0", "power") == 717.0
    assert found.channels[0].limit_w == 750.0
    assert codes(found) == {"unsupported"}
    library.STATE["dies"][0]["energy"] = RuntimeError("AMDSMI_STATUS_NO_PERM")
    with pytest.raises(ReadError) as fault:
        reading(found, "amd0", "energy")
    assert fault.value.code == "forbidden"


@pytest.mark.parametrize("tells", [{0}, {2}, {0, 1, 2, 3}])
def test_partitions_of_a_card_are_counted_once(
    tmp_path: Path, fake: Callable[[str, str], Any], tells: set[int]
) -> None:
    """Functions of one PCI device are one socket, whichever of them reports energy, even if all do."""
    parts = [die(0, 1_000_000 if number in tells else None, NEW if number in tells else None, MI300)
             | {"bdf": f"0000:c1:00.{number}", "uuid": f"part-{number}"} for number in range(4)]  # fmt: skip
    fake("amdsmi", AMDSMI).STATE["dies"] = [*parts, die(9, 2_000_000, NEW, MI300)]
    found = open_amd(tmp_path, ())
    assert [channel.name for channel in found.channels] == [
        "amd.0.energy", "amd.0.power", "amd.1.energy", "amd.1.power",
    ]  # fmt: skip
    assert {parent for name, parent in parents(found).items() if ".die" in name} == {"amd0"}
    assert "all 4 parts" in found.channels[0].source
    assert reading(found, "amd0", "energy") == pytest.approx(15.3)
    # A job in one partition gets the whole card's energy, once.
    assert {channel.domain for channel in open_amd(tmp_path, ("3",)).channels} == {"amd0"}


def test_partitions_of_an_mi300a_are_devices_of_its_module(tmp_path: Path, fake: Callable[[str, str], Any]) -> None:
    asic = {"market_name": "AMD Instinct MI300A", "device_id": 0x74A0}
    parts = [die(0, 1_000_000, NEW, asic) | {"bdf": f"0000:c1:00.{number}"} for number in range(6)]
    fake("amdsmi", AMDSMI).STATE["dies"] = parts
    found = open_amd(tmp_path, ())
    assert parents(found) == {"module0": None} | {f"amd0.die{number}": "module0" for number in range(6)}
    assert {domain.scope for domain in found.domains if domain.parent} == {"device"}
    assert {channel.domain for channel in found.channels} == {"module0"}
    chosen = cover({domain.name: domain for domain in found.domains}, {"module0"}, on_cpu=False)
    assert (chosen.counted, chosen.unread) == (["module0"], [])


def test_rocm_counts_by_the_drivers_order(tmp_path: Path, fake: Callable[[str, str], Any]) -> None:
    fake("amdsmi", AMDSMI).STATE["dies"] = [die(number, 1_000_000 * (number + 1), NEW, MI300) for number in range(3)]
    nodes = "sys/class/kfd/kfd/topology/nodes"
    files = {f"{nodes}/0/properties": "cpu_cores_count 64\nsimd_count 0\n"}
    for node, number in enumerate((2, 0, 1), 1):
        files[f"{nodes}/{node}/properties"] = (
            f"simd_count 304\nlocation_id {(0xC1 + number) << 8}\ndomain 0\nunique_id {0xABC0 + number}\n"
        )
    plant(tmp_path, files)
    assert [domain.name for domain in open_amd(tmp_path, ("0", "2")).domains] == ["amd1", "amd2"]
    assert [domain.name for domain in open_amd(tmp_path, ("GPU-000000000000abc1",)).domains] == ["amd1"]
    assert [domain.name for domain in open_amd(tmp_path, ("uuid-0",)).domains] == ["amd0"]
    found = open_amd(tmp_path, ("7",))
    assert (found.domains, found.missing[-1].reason) == (
        [], "the job's device 7 is not among the 3 visible devices",
    )  # fmt: skip


def test_without_amdsmi_the_drivers_watts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    assert open_amd(tmp_path, ("0",)).missing == []
    chip(tmp_path, 0, "amdgpu", "0000:c1:00.0", {"power1_average": "90000000", "power1_cap": "560000000"})
    chip(tmp_path, 1, "amdgpu", "0000:c6:00.0", {})
    plant(tmp_path, {f"sys/devices/pci0000:00/0000:{bus}:00.0/device": "0x7408\n" for bus in ("c1", "c6")})
    found = open_amd(tmp_path, ())
    assert parents(found) == {"amd0": None, "amd0.die0": "amd0", "amd0.die1": "amd0"}
    assert (reading(found, "amd0"), watched(found)["amd0"].limit_w) == (90.0, 560.0)
    assert [(missing.what, missing.code) for missing in found.missing] == [("amdsmi", "missing")]
    assert "/opt/rocm/share/amd_smi" in found.missing[0].fix


@pytest.mark.parametrize(
    ("text", "code"), [("AMDSMI_STATUS_NO_PERM", "forbidden"), ("AMDSMI_STATUS_DRIVER_NOT_LOADED", "missing")]
)
def test_amdsmi_that_does_not_start(tmp_path: Path, fake: Callable[[str, str], Any], text: str, code: str) -> None:
    fake("amdsmi", AMDSMI).STATE["init"] = text
    assert open_amd(tmp_path, ()).missing == []  # nothing exists, and nothing was expected
    found = open_amd(plant(tmp_path, {"dev/kfd": ""}), ())
    assert codes(found) == {code}
    assert all(missing.fix for missing in found.missing)


def test_amdsmi_whose_library_does_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path / "vendor", {"amdsmi.py": "raise OSError('libamd_smi.so: cannot open shared object file')"})
    monkeypatch.syspath_prepend(str(tmp_path / "vendor"))
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    found = open_amd(plant(tmp_path, {"dev/kfd": ""}), ())
    assert "cannot open shared object file" in found.missing[0].reason


def test_the_graphics_of_a_processor_are_not_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    chip(tmp_path, 0, "amdgpu", "0000:0c:00.0", {"power1_average": "9000000"})
    chip(tmp_path, 1, "xe", "0000:0d:00.0", {"energy1_input": "9000000"})
    plant(tmp_path, {"dev/nvidia0": ""})
    for found in (open_amd(tmp_path, ("0",)), open_xpu(tmp_path, ("0",))):
        assert (found.domains, codes(found)) == ([], {"unsupported"})
    assert open_amd(tmp_path, ()).domains


# -- Graphcore ----------------------------------------------------------------------------------------------------

GCIPUINFO = '''
"""Like Graphcore's own binding: one class with the module's name, text values that are kept until updated."""
UPDATES = []
DEVICES = []
class gcipuinfo:
    def __init__(self, mode=0):
        self.kept = [dict(device) for device in DEVICES]
    def updateData(self):
        UPDATES.append(1)
        self.kept = [dict(device) for device in DEVICES]
        return not FAIL
    def getDevices(self):
        return self.kept
FAIL = False
'''


def test_ipus_of_a_pod(tmp_path: Path, fake: Callable[[str, str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    library = fake("gcipuinfo", GCIPUINFO)
    clock = [100.0]
    monkeypatch.setattr("steelyard.worker.sensors.ipu.time.monotonic", lambda: clock[0])
    library.DEVICES += [
        {"id": str(number), "ipu power": f"{120 + number}.50W", "board type": "M2000", "board serial number": "0131"}
        for number in range(4)
    ]
    found = open_ipu(tmp_path, ())
    assert set(watched(found)) == {"ipu0", "ipu1", "ipu2", "ipu3"}
    assert set(parents(found).values()) == {None}
    assert {domain.scope for domain in found.domains} == {"device"}
    assert found.read is not None
    library.DEVICES[1]["ipu power"] = "80.00W"
    clock[0] += 2 * FRESH_S
    assert [found.read(number) for number in range(4)] == [120.5, 80.0, 122.5, 123.5]
    assert len(library.UPDATES) == 2  # one query serves all channels of a round
    library.DEVICES[1]["ipu power"] = "N/A"
    clock[0] += 2 * FRESH_S
    with pytest.raises(ReadError) as fault:
        found.read(1)
    assert fault.value.code == "missing"
    library.FAIL = True
    clock[0] += 2 * FRESH_S
    with pytest.raises(ReadError):
        found.read(0)


def test_ipus_that_share_a_board(tmp_path: Path, fake: Callable[[str, str], Any]) -> None:
    library = fake("gcipuinfo", GCIPUINFO)
    shared = {"board serial number": "0340", "total board power": "99.5 W"}
    alone = {"board serial number": "0063", "total board power": "12.6 W", "ipu power": "N/A", "pci id": "0000:35:00.0"}
    library.DEVICES += [shared | {"id": "0"}, shared | {"id": "1"}, alone | {"id": "2"}]
    found = open_ipu(tmp_path, ())
    # A board of which we see one IPU includes more: the others may belong to another user.
    assert parents(found) == {
        "ipu-board0": None, "ipu-board1": None, "ipu0": "ipu-board0", "ipu1": "ipu-board0", "ipu2": "ipu-board1",
    }  # fmt: skip
    assert {name: reading(found, name) for name in watched(found)} == {"ipu-board0": 99.5, "ipu-board1": 12.6}
    assert [missing.what for missing in found.missing] == ["power of ipu0", "power of ipu1", "power of ipu2"]


def test_no_gcipuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcipuinfo", None)
    monkeypatch.delenv("IPUOF_VIPU_API_PARTITION_ID", raising=False)
    monkeypatch.delenv("IPUOF_CONFIG_PATH", raising=False)
    assert open_ipu(tmp_path, ()).missing == []
    monkeypatch.setenv("IPUOF_VIPU_API_PARTITION_ID", "pod16")
    found = open_ipu(tmp_path, ())
    assert (codes(found), "Poplar" in found.missing[0].fix) == ({"missing"}, True)


@pytest.mark.parametrize(
    ("text", "watts"),
    [("123.50W", 123.5), ("12.6 W", 12.6), ("N/A", None), ("", None), ("-3W", None), ("nanW", None), (None, None)],
)
def test_an_ipus_watts(text: str | None, watts: float | None) -> None:
    assert parse_watts(text) == watts


# -- all of them --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rapl", "hwmon", "amd", "ipu", "xpu"])
def test_without_files_nothing_is_found(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("amdsmi", "gcipuinfo"):
        monkeypatch.setitem(sys.modules, module, None)
    found = plugins.load("sensor", name)(tmp_path, ())
    assert (found.domains, found.channels, found.missing) == ([], [], [])
    found.close()


def test_the_support_table_has_every_backend() -> None:
    page = (Path(__file__).parents[2] / "docs/sensors.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", page, re.MULTILINE))
    assert set(table) == set(plugins.BUILTIN["sensor"])
    assert all("hardware: " in proof for proof in table.values())


def test_together_on_one_node(tmp_path: Path) -> None:
    root = plant(tmp_path, two_sockets() | grace())
    found = find.find(root, ())
    domains = set(watched(found))
    assert {"package-0", "package-0-dram", "module0", "cpu0"} <= domains
    assert reading(found, "module0") == 560.0


# -- the doctor ---------------------------------------------------------------------------------------------------


def survey_answer(**more: Any) -> dict[str, Any]:
    """The answer of a node without any sensor."""
    none = {"backends": ["rapl"], "domains": [], "channels": [], "states": [], "missing": []}
    return none | {"powercap": False, "perf_events": [], "cray_counters": []} | more


def told(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(check.verdict, check.found) for check in judge_sensors(found)]


def test_the_doctor_asks_the_measured_side(tmp_path: Path) -> None:
    files = two_sockets() | grace() | zone("intel-rapl:2", "psys")
    found = run_survey(plant(tmp_path, files))
    assert {"amd", "hwmon", "ipu", "rapl", "xpu"} <= set(found["backends"])
    lines = told(found)
    assert ("ok", "hwmon: module module0 (gauge); cpu grace0, cpu0 (gauge); io sysio0 (gauge)") in lines
    assert (
        "ok", "rapl: cpu package-0, package-1 (counter); memory package-0-dram, package-1-dram (counter)",
    ) in lines  # fmt: skip
    assert any(text.startswith("rapl: psys: /sys/class/powercap/intel-rapl:2: ") for _, text in lines)
    assert {channel["reading"] for channel in found["channels"] if channel["domain"] == "module0"} == {560.0}


def test_the_doctor_reports_that_nothing_can_be_measured(tmp_path: Path) -> None:
    verdict, text = told(run_survey(tmp_path))[-1]
    assert (verdict, "energy is not reported" in text) == ("note", True)


def test_the_doctor_puts_equal_causes_together() -> None:
    missing = [
        Missing(backend="nvml", what=f"gpu{number}", code="forbidden", reason="no right", fix="ask")
        for number in range(8)
    ]
    found = survey_answer(backends=["nvml"], missing=to_json_object(missing))
    checks = list(judge_sensors(found))
    assert [(check.found, check.fix) for check in checks[:1]] == [("nvml: gpu0 (and 7 more): no right", "ask")]
    assert len(checks) == 2


def test_a_survey_that_hangs_or_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patience:
        patience.setattr(doctor_sensors, "SURVEY_LIMIT_S", 0.01)
        assert "no answer" in run_survey(tmp_path)["error"]
    monkeypatch.setenv("PYTHONPATH", str(plant(tmp_path, {"numpy.py": "raise ImportError('broken')"})))
    (check,) = judge_sensors(run_survey(tmp_path))
    assert (check.verdict, "broken" in check.found, bool(check.fix)) == ("wrong", True, True)


def test_a_process_blocked_by_a_driver_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that stays after it was killed: here the kill is skipped."""
    left: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    class Held(real):  # type: ignore[misc,valid-type]
        def __init__(self, _command: list[str], **settings: Any) -> None:
            super().__init__([sys.executable, "-c", "import signal; signal.pause()"], **settings)
            left.append(self)

        def kill(self) -> None:
            pass

    monkeypatch.setattr(subprocess, "Popen", Held)
    monkeypatch.setattr(doctor_sensors, "KILLED_S", 0.1)
    monkeypatch.setattr(doctor_sensors, "SURVEY_LIMIT_S", 0.1)
    assert "a driver hangs" in run_survey(tmp_path)["error"]
    real.kill(left[0])
    assert left[0].wait() == -signal.SIGKILL
    for pipe in (left[0].stdout, left[0].stderr):
        pipe.close()  # type: ignore[union-attr]


def test_sensors_that_we_may_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused at the first reading, as for a normal user; root can read all files."""
    root = plant(tmp_path, two_sockets() | grace())
    real = os.open

    def refuse(path: Any, *rest: Any) -> int:
        if str(path).endswith(("energy_uj", "power1_average")):
            raise PermissionError(errno.EACCES, "no", str(path))
        return real(path, *rest)

    monkeypatch.setattr(os, "open", refuse)
    checks = list(judge_sensors(survey(root)))
    (closed,) = [check for check in checks if "chmod o+r /sys/class/powercap/*/energy_uj" in check.fix]
    assert (closed.verdict, closed.found.startswith("rapl: package-0: /sys/class/powercap/intel-rapl:0/energy_uj")) == (
        "note", True,
    )  # fmt: skip
    assert "Permission denied" in closed.found
    assert any(check.found.startswith("hwmon: ") and "chmod o+r on that file" in check.fix for check in checks)


@pytest.mark.parametrize("error", [nvml_library.NO_LIBRARY, nvml_library.MISMATCH, 999])
def test_a_driver_that_does_not_work_is_wrong(error: int) -> None:
    class NVMLError(Exception):
        value = error

    missing = to_json_object(nvml_library.init_failure(NVMLError("as the library says")))
    check, _ = judge_sensors(survey_answer(missing=[missing]))
    assert (check.verdict, bool(check.fix)) == ("wrong", True)
    absent = missing | {"broken": False}
    assert [check.verdict for check in judge_sensors(survey_answer(missing=[absent]))] == ["note", "note"]


def test_files_that_look_like_sensors(tmp_path: Path) -> None:
    """perf events that count nothing are a trap; Cray's counters are not read yet."""
    events = "sys/bus/event_source/devices/power/events"
    root = plant(tmp_path, {f"{events}/energy-psys": "event=0x05", f"{events}/energy-psys.unit": "Joules"})

    def notes(words: str) -> list[Check]:
        return [check for check in judge_sensors(survey(root)) if words in check.found]

    (note,) = notes("perf has")
    assert (note.verdict, "perf has energy-psys" in note.found, bool(note.fix)) == ("note", True, True)
    plant(root, zone("intel-rapl:0", "package-0"))
    assert notes("perf has") == []
    assert notes("Cray") == []
    plant(root, {"sys/cray/pm_counters/energy": "17 J", "sys/cray/pm_counters/cpu_energy": "4 J"})
    (note,) = notes("Cray")
    assert note.found.endswith("not supported yet: /sys/cray/pm_counters/cpu_energy, /sys/cray/pm_counters/energy")
