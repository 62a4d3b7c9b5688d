"""Energy of Intel accelerators from the drivers' hwmon files (i915, xe). torch is not used.

torch.xpu.power_draw is not used: it blocks its caller for 100 ms, works only inside the measured process, and returns
the current average instead of the counter
(https://docs.pytorch.org/docs/2.14/generated/torch.xpu.power_draw.html).
Files: Documentation/ABI/testing/sysfs-driver-intel-i915-hwmon and -xe-hwmon of the kernel. The drivers extend a 32-bit
register to 64 bits as long as it is read more than once per wrap: our sampler does, so it never wraps.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from steelyard.contracts.energy import Channel, Domain
from steelyard.worker.sensors.sysfs import (
    MICRO,
    FileSensors,
    hwmon,
    number_or_none,
    pci_address,
    shown,
    text_or_none,
    whose_numbers,
)
from steelyard.worker.sensors.xpu_conditions import card_state

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from steelyard.worker.sensors.backend import SensorsFound

BACKEND = "xpu"
OTHERS = ("dev/nvidia[0-9]*", "dev/kfd")
ORDER = "ZE_ENABLE_PCI_ID_DEVICE_ORDER"
# The usual unit of Intel's energy registers, as for RAPL; the drivers' files do not tell.
UNIT_J = 2**-14
FIXES = {
    "forbidden": "as root, until the next boot: chmod o+r on that file",
    "missing": "use a newer kernel or driver: i915 reports energy since Linux 6.2, xe since 6.5",
    "unsupported": "use a newer kernel or driver; xpu-smi shows whether the card has a counter",
}


def open_xpu(root: Path, devices: Sequence[str]) -> SensorsFound:
    """Find the job's cards (all if `devices` is empty), each once, with their package and tiles as parts."""
    sensors = FileSensors(root, BACKEND, FIXES)
    if reason := whose_numbers(root, devices, OTHERS):
        if hwmon(root, "i915|xe"):
            sensors.miss("the job's cards", "unsupported", reason, "")
        return sensors.offered
    # Ordered by PCI address, as Level Zero does if ZE_ENABLE_PCI_ID_DEVICE_ORDER is set.
    chips = sorted(hwmon(root, "i915|xe"), key=lambda chip: (pci_address(chip) or "~", chip.name))
    cards: dict[str, str] = {}
    chosen: dict[str, Path] = {}
    for number in _wanted(sensors, len(chips), devices):
        chip = chips[number]
        address = pci_address(chip)
        name = f"xpu{number}"
        cards[address or name] = name
        _card(sensors, chip, name, address)
        chosen[name] = chip
    for chip in hwmon(root, r"i915_gt\d+"):
        card = cards.get(pci_address(chip) or "")
        if card is not None and (chip / "energy1_input").exists():
            # A card with several tiles has a counter for each; the card's own counter includes them.
            tile = (text_or_none(chip / "name") or "").removeprefix("i915_")
            domain = Domain(name=f"{card}.{tile}", scope="die", parent=card, device=pci_address(chip))
            _offer(sensors, chip / "energy1_input", domain, None)
    if chosen:
        sensors.offered.states = lambda: [card_state(root, chip, name, BACKEND) for name, chip in chosen.items()]
    return sensors.offered


def _wanted(sensors: FileSensors, cards: int, devices: Sequence[str]) -> list[int]:
    """Return the numbers of the job's cards; none if they are uncertain, because a wrong card would be worse."""
    words = [device.strip().partition(".")[0] for device in devices]
    numbers = {int(word) for word in words if word.isascii() and word.isdigit() and len(word) < 6}
    if not devices or numbers == set(range(cards)):
        return list(range(cards))
    if cards and os.environ.get(ORDER) == "1" and numbers and max(numbers) < cards:
        return sorted(numbers)
    if cards:
        reason = f"the job uses {', '.join(devices)[:80]}: unclear which of the {cards} cards that is"
        sensors.miss("the job's cards", "unsupported", reason, f"export {ORDER}=1")
    return []


def _card(sensors: FileSensors, chip: Path, name: str, address: str | None) -> None:
    """Add the card's counter; xe has a second one for the package, which is part of the card."""
    whole, part = chip / "energy1_input", chip / "energy2_input"
    if not whole.exists() and not part.exists():
        sensors.miss(f"energy of {name}", "unsupported", "the driver has no energy counter for this device")
        return
    limit_uw = number_or_none(chip / "power1_max") or number_or_none(chip / "power1_rated_max")
    domain = Domain(name=name, scope="device", device=address)
    sensors.add(domain)
    if whole.exists():
        _offer(sensors, whole, domain, limit_uw)
    if not part.exists():
        return
    inner = Domain(name=f"{name}.package", scope="die", parent=name, device=address)
    if _offer(sensors, part, inner, None) and not whole.exists():
        label = text_or_none(chip / "energy2_label") or "pkg"
        reason = f"only the package is measured ({label[:20]}), without the card's memory and regulators"
        sensors.miss(f"energy of the whole card {name}", "unsupported", reason)


def _offer(sensors: FileSensors, path: Path, domain: Domain, limit_uw: int | None) -> bool:
    channel = Channel(
        name=f"{BACKEND}.{domain.name}",
        backend=BACKEND,
        domain=domain.name,
        kind="counter",
        resolution=UNIT_J,
        limit_w=limit_uw * MICRO if limit_uw is not None and limit_uw > 0 else None,
        source=shown(sensors.root, path),
    )
    return sensors.offer(domain, channel, path)
