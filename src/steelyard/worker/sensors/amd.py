"""Energy and power of AMD accelerators: from amdsmi if installed, else from the driver's files.

Sources: AMD SMI documentation (https://rocm.docs.amd.com/projects/amdsmi): amdsmi_get_energy_count, not on virtual
guests; amdsmi_get_power_info in W; amdsmi_get_power_cap_info in microwatts. Of the two dies of an MI250 only the
first reports power, for the whole card: https://github.com/ml-energy/zeus/pull/203 and
https://github.com/mlco2/codecarbon/issues/1097; drivers/gpu/drm/amd/pm/swsmu/smu13/aldebaran_ppt.c of the kernel.
The power of an MI300A is that of its socket, in which CPU and accelerator share the memory:
https://rocm.docs.amd.com/projects/amdsmi, socket_power; its PCI id is 0x74a0.
"""

from __future__ import annotations

import importlib
import math
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from steelyard.contracts.energy import Channel, Domain, Missing, MissingCode
from steelyard.worker.sensors.amd_conditions import UNFILLED, die_state
from steelyard.worker.sensors.backend import ReadError, SensorsFound
from steelyard.worker.sensors.sysfs import (
    MICRO,
    entries,
    hwmon,
    number_or_none,
    pci_address,
    read_micro,
    shown,
    whose_numbers,
)
from steelyard.worker.sensors.sysfs import text_or_none as words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

BACKEND = "amd"
NVIDIA = ("dev/nvidia[0-9]*",)
# PCI ids of MI250X and MI250, and their name; each device is one of two dies of a card.
TWO_DIES = {"0x7408", "0x740c"}
TWO_DIES_NAME = re.compile(r"\bMI250X?\b")
# PCI id and name of MI300A: its socket, and so its power, includes the CPU.
WITH_CPU = {"0x74a0"}
WITH_CPU_NAME = re.compile(r"\bMI300A\b")
INSTALL = "PYTHONPATH=/opt/rocm/share/amd_smi, or pip install /opt/rocm/share/amd_smi: it must match the driver's ROCm"
GROUPS = "join the groups render and video, or pass /dev/kfd and /dev/dri to the container"
POWER_FIELDS = ("socket_power", "current_socket_power", "average_socket_power")
POWER_RESOLUTION_W = 1.0


@dataclass(frozen=True)
class DieChannel:
    """One channel of a die, before it has a name."""

    what: str
    """`energy` or `power`."""
    read: Callable[[], float]
    resolution: float
    source: str
    limit_w: float | None = None


@dataclass(frozen=True)
class Die:
    """What the driver presents as one device."""

    address: str | None
    uuid: str | None
    is_half: bool
    """Whether it is one of the two dies of a card."""
    with_cpu: bool
    """Whether its power includes that of a CPU."""
    chip: Path | None
    """Its folder of the driver's sensors."""
    readings: tuple[DieChannel, ...]
    faults: tuple[Missing, ...] = ()


def open_amd(root: Path, devices: Sequence[str]) -> SensorsFound:
    """Find the job's cards (all if `devices` is empty), each once, with their channels."""
    missing: list[Missing] = []
    if reason := whose_numbers(root, devices, NVIDIA):
        if hwmon(root, "amdgpu") or any(root.glob("dev/kfd")):
            fix = "name the devices: ROCR_VISIBLE_DEVICES=GPU-..."
            missing.append(Missing(backend=BACKEND, what="devices", code="unsupported", reason=reason, fix=fix))
        return SensorsFound(missing=missing)
    library = _library(root, missing)
    if library is not None:
        try:
            chips = {pci_address(chip): chip for chip in hwmon(root, "amdgpu")}
            dies = [_asked(library, handle, chips) for handle in library.amdsmi_get_processor_handles()]
        except Exception as error:  # noqa: BLE001 -- any error of the vendor's binding is a reason
            dies = []
            missing.append(_missing("devices", error, INSTALL))
        if dies:
            wanted = _wanted(root, dies, devices, missing)
            close = partial(_quietly, library.amdsmi_shut_down)
            return _cards(root, dies, wanted, SensorsFound(missing=missing, close=close))
        _quietly(library.amdsmi_shut_down)
    dies = [_seen(root, chip) for chip in hwmon(root, "amdgpu")]
    return _cards(root, dies, _wanted(root, dies, devices, missing), SensorsFound(missing=missing))


def _library(root: Path, missing: list[Missing]) -> Any | None:
    """Return the initialised vendor binding, or None if it is missing or fails."""
    present = any(root.glob("dev/kfd")) or bool(hwmon(root, "amdgpu"))
    try:
        library = importlib.import_module("amdsmi")
    except Exception as error:  # noqa: BLE001 -- it loads a shared library and may raise anything
        if present:
            absent = isinstance(error, ModuleNotFoundError)
            reason = (
                "amdsmi is not installed for this Python"
                if absent
                else f"amdsmi cannot be loaded: {_describe_error(error)}"
            )
            reason += "; only power from the driver, no energy counter"
            missing.append(Missing(backend=BACKEND, what="amdsmi", code="missing", reason=reason, fix=INSTALL))
        return None
    try:
        library.amdsmi_init()
    except Exception as error:  # noqa: BLE001 -- as above
        if present:
            missing.append(_missing("amdsmi", error, GROUPS))
        return None
    return library


# -- the job's devices ----------------------------------------------------------------------------------------------


def _wanted(root: Path, dies: list[Die], devices: Sequence[str], missing: list[Missing]) -> set[int]:
    """Return the indices of the job's dies. ROCm's device numbers follow the driver's order, not the library's."""
    if not devices or not dies:
        return set(range(len(dies)))
    order = _rocm_order(root) or [(die.address, None) for die in dies]
    places = {die.address: place for place, die in enumerate(dies)}
    uuids = {die.uuid.lower(): place for place, die in enumerate(dies) if die.uuid}
    wanted = set()
    for device in devices:
        word = device.strip().lower()
        if word.isascii() and word.isdigit() and len(word) < 6:
            address = order[int(word)][0] if int(word) < len(order) else None
        else:
            address = next((place for place, serial in order if serial and f"gpu-{serial}" == word), None)
        place = places.get(address) if address else uuids.get(word)
        if place is not None:
            wanted.add(place)
        else:
            reason = f"the job's device {device[:60]} is not among the {len(dies)} visible devices"
            missing.append(Missing(backend=BACKEND, what=f"device {device[:60]}", code="missing", reason=reason))
    return wanted


def _rocm_order(root: Path) -> list[tuple[str | None, str | None]]:
    """Return PCI address and serial number of each device in ROCm's order, which is that of the driver's topology."""
    order: list[tuple[str | None, str | None]] = []
    for node in entries(root / "sys/class/kfd/kfd/topology/nodes", r"\d+"):
        lines = (words_of(node / "properties") or "").splitlines()
        facts = {
            key: int(value)
            for key, _, value in (line.partition(" ") for line in lines)
            if re.fullmatch(r"[0-9]{1,20}", value)
        }
        # Processors are nodes as well, but have no SIMD units.
        if facts.get("simd_count", 0) > 0:
            at = facts.get("location_id", 0)
            address = f"{facts.get('domain', 0):04x}:{at >> 8 & 0xFF:02x}:{at >> 3 & 0x1F:02x}.{at & 7}"
            order.append((address, f"{facts['unique_id']:016x}" if "unique_id" in facts else None))
    return order


# -- one die ----------------------------------------------------------------------------------------------------


def _asked(library: Any, handle: Any, chips: Mapping[str | None, Path]) -> Die:
    """Return what the library reports for one device."""
    asic = _quietly(library.amdsmi_get_gpu_asic_info, handle) or {}
    uuid = _quietly(library.amdsmi_get_gpu_device_uuid, handle)
    address = _quietly(library.amdsmi_get_gpu_device_bdf, handle)
    cap = _number((_quietly(library.amdsmi_get_power_cap_info, handle) or {}).get("power_cap"))
    # Some releases report W instead of microwatts; no card has a limit between 10 mW and 10 kW in these units.
    limit_w = cap * MICRO if cap is not None and cap > 1e4 else cap
    name = str(asic.get("market_name") or "")
    number = asic.get("device_id")
    # In the kernel's spelling; releases report a number or text.
    spelled = f"{number:#06x}" if isinstance(number, int) else str(number).lower()
    is_half = spelled in TWO_DIES or bool(TWO_DIES_NAME.search(name))
    with_cpu = spelled in WITH_CPU or bool(WITH_CPU_NAME.search(name))
    device = _text(address) or _text(uuid)
    tried = [_tried(library, handle, what, limit_w or None, device) for what in ("energy", "power")]
    readings = tuple(one for one in tried if isinstance(one, DieChannel))
    faults = tuple(one for one in tried if isinstance(one, Missing))
    chip = chips.get(address) if isinstance(address, str) else None
    return Die(_text(address), _text(uuid), is_half, with_cpu, chip, readings, faults)


def _tried(library: Any, handle: Any, what: str, limit_w: float | None, device: str | None) -> DieChannel | Missing:
    """Return a channel of a device after a test reading, or why there is none."""
    read = partial(_energy_j if what == "energy" else _power_w, library, handle)
    call = "amdsmi_get_energy_count" if what == "energy" else "amdsmi_get_power_info"
    try:
        # The second die of a card reports 0, which a running device cannot draw.
        if read() == 0:
            raise ReadError("implausible", f"{call} reports 0, which is impossible for a running device")
        step = POWER_RESOLUTION_W
        if what == "energy":
            unit_uj = _number(_call(library.amdsmi_get_energy_count, handle).get("counter_resolution"))
            step = (unit_uj or 0.0) * MICRO
    except ReadError as error:
        return _fault(f"{what} of {device}", error)
    return DieChannel(what, read, step, call, limit_w)


def _seen(root: Path, chip: Path) -> Die:
    """Return what the driver's files report for one device without the library: power only."""
    number = (words_of(chip / "device/device") or "").lower()
    with_cpu = number in WITH_CPU or bool(WITH_CPU_NAME.search(words_of(chip / "device/product_name") or ""))
    path = next((chip / name for name in ("power1_average", "power1_input") if (chip / name).exists()), None)
    readings: tuple[DieChannel, ...] = ()
    faults: tuple[Missing, ...] = ()
    if path is not None:
        try:
            read_micro(path)
            cap = number_or_none(chip / "power1_cap")
            limit_w = cap * MICRO if cap else None
            readings = (DieChannel("power", partial(read_micro, path), MICRO, shown(root, path), limit_w),)
        except ReadError as error:
            code = "missing" if error.code == "vanished" else error.code
            faults = (_fault(f"power: {shown(root, path)}", ReadError(code, error.reason)),)
    return Die(pci_address(chip), None, number in TWO_DIES, with_cpu, chip, readings, faults)


def _energy_j(library: Any, handle: Any) -> float:
    reading = _call(library.amdsmi_get_energy_count, handle)
    # Named `power` until ROCm 6.1.
    ticks = _number(reading.get("energy_accumulator", reading.get("power")))
    unit_uj = _number(reading.get("counter_resolution"))
    if ticks is None or not unit_uj:
        raise ReadError("unsupported", "amdsmi_get_energy_count returned no number")
    return ticks * unit_uj * MICRO


def _power_w(library: Any, handle: Any) -> float:
    reading = _call(library.amdsmi_get_power_info, handle)
    # MI300 and newer fill the second, older ones the third, new releases the first for all.
    values = [value for field in POWER_FIELDS if (value := _number(reading.get(field))) is not None]
    if not values:
        raise ReadError("unsupported", "amdsmi_get_power_info returned no power")
    return next((value for value in values if value > 0), 0.0)


def _call(function: Callable[[Any], Any], handle: Any) -> dict[str, Any]:
    try:
        reading = function(handle)
    except Exception as error:  # noqa: BLE001 -- any error of the vendor's binding is a reason
        raise ReadError(_code(error), _describe_error(error)) from None
    if not isinstance(reading, dict):
        raise ReadError("unsupported", f"{getattr(function, '__name__', 'amdsmi')} returned no table")
    return reading


# -- cards ------------------------------------------------------------------------------------------------------


def _cards(root: Path, dies: list[Die], wanted: set[int], sensors: SensorsFound) -> SensorsFound:
    """Group dies into cards: a second die without readings belongs to the first die before it.

    Partitions of a card are functions of one PCI device; the energy of any of them is that of the whole socket.
    """
    reads: list[Callable[[], float]] = []
    chips: dict[str, Path] = {}
    slots = [(die.address or "").rpartition(".")[0] for die in dies]
    number = start = 0
    while start < len(dies):
        first, others = dies[start], dies[start + 1 :]
        end = start + 1
        if first.is_half and first.readings and others and others[0].is_half and not others[0].readings:
            end += 1
        else:
            while slots[start] and end < len(dies) and slots[end] == slots[start]:
                end += 1
        if wanted & set(range(start, end)):
            # The sort is stable.
            order = sorted(range(start, end), key=lambda place: not dies[place].readings)
            members = [dies[place] for place in order]
            _add_card(sensors, reads, members, number)
            for name, place, die in zip(_names(members, number), order, members, strict=True):
                if place in wanted and die.chip is not None:
                    chips[name] = die.chip
        number, start = number + 1, end
    if reads:
        sensors.read = lambda channel: reads[channel]()
    if chips:
        sensors.states = lambda: [die_state(root, chip, name, BACKEND) for name, chip in chips.items()]
    return sensors


def _names(members: list[Die], number: int) -> list[str]:
    """Return the names of the dies of a card; of the card itself, if it is one device."""
    card = f"{BACKEND}{number}"
    several = members[0].is_half or len(members) > 1
    return [f"{card}.die{index}" for index in range(len(members))] if several else [card]


def _add_card(sensors: SensorsFound, reads: list[Callable[[], float]], members: list[Die], number: int) -> None:
    first = members[0]
    device = first.uuid or first.address
    card = f"{BACKEND}{number}"
    if not first.readings:
        sensors.missing += [_silent(first, device)] if first.is_half else first.faults or [_silent(first, device)]
        return
    sensors.missing += first.faults
    names = _names(members, number)
    module = f"module{number}" if first.with_cpu else None
    whole = module or card
    sensors.domains.append(
        Domain(name=whole, scope="module" if module else "device", device=None if module else device)
    )
    if names != [whole]:
        # The energy is that of the whole card or module; there is none for a part of it.
        sensors.domains += [
            Domain(name=name, scope="device" if module else "die", parent=whole, device=die.uuid or die.address)
            for name, die in zip(names, members, strict=True)
        ]
    for reading in first.readings:
        of_card = " (of both dies)" if first.is_half else f" (of all {len(members)} parts)" if len(members) > 1 else ""
        of_card += " (of the socket, with its CPU)" if first.with_cpu else ""
        channel = Channel(
            name=f"{BACKEND}.{number}.{reading.what}",
            backend=BACKEND,
            domain=whole,
            kind="counter" if reading.what == "energy" else "gauge",
            resolution=reading.resolution,
            limit_w=reading.limit_w,
            source=reading.source + of_card,
        )
        sensors.channels.append(channel)
        reads.append(reading.read)


def _silent(die: Die, device: str | None) -> Missing:
    if die.is_half:
        reason = "the card's energy is reported by its first die, which is not visible here"
        fix = "request whole cards (both dies), or make the other die visible"
    else:
        reason, fix = "the driver reports neither energy nor power for this device (a virtual machine?)", ""
    return Missing(backend=BACKEND, what=f"device {device}", code="unsupported", reason=reason, fix=fix)


# -- values from the vendor's library ---------------------------------------------------------------------------


def _quietly(function: Callable[..., Any], *arguments: Any) -> Any | None:
    """Return the answer of an optional call, or None on any error."""
    try:
        return function(*arguments)
    except Exception:  # noqa: BLE001 -- the answer is optional
        return None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value >= 0 and value not in UNFILLED else None


def _text(value: object) -> str | None:
    return value[:200] if isinstance(value, str) and value else None


def _describe_error(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _code(error: Exception) -> MissingCode:
    text = _describe_error(error).lower()
    if isinstance(error, PermissionError) or "permission" in text or "no_perm" in text:
        return "forbidden"
    if "not_supported" in text or "not supported" in text or "not_yet_implemented" in text:
        return "unsupported"
    return "vanished" if "not_found" in text or "no such device" in text else "missing"


def _missing(what: str, error: Exception, fix: str) -> Missing:
    return Missing(backend=BACKEND, what=what, code=_code(error), reason=_describe_error(error), fix=fix)


def _fault(what: str, error: ReadError) -> Missing:
    code = cast("MissingCode", error.code)
    fix = GROUPS if code == "forbidden" else ""
    return Missing(backend=BACKEND, what=what, code=code, reason=error.reason, fix=fix)
