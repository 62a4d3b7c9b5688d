"""Energy counters and power readings of NVIDIA GPUs, each with its scope and what is known of its sensor. Knows no run.

Sources. [reference]: nvml.h and https://docs.nvidia.com/deploy/nvml-api. [part-time]: Yang, Adamek, Armour, SC24,
https://arxiv.org/abs/2312.02741: A100 and H100 look at their power 25 ms of every 100 ms. [module counter]:
https://github.com/ml-energy/zeus/pull/172: on a GH200 the plain energy counter is the whole module's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from steelyard.contracts.energy import Channel, ChannelKind, Domain
from steelyard.worker.sensors import nvml_library as library
from steelyard.worker.sensors.backend import ReadError, SensorsFound
from steelyard.worker.sensors.nvml_cards import GA100, HOPPER, Card, all_cards, ours, wanted
from steelyard.worker.sensors.nvml_library import BACKEND, GPU_SCOPE, MODULE_SCOPE, Session, missing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

# Signs of a driver; without any of them, a library that is not there is nothing to speak of.
SIGNS = ("dev/nvidiactl", "dev/nvidia0", "proc/driver/nvidia/version", "dev/dxg")
TOTAL, USAGE = "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage"
RESOLUTION = 0.001  # mJ and mW

# [reference] nvmlClocksEventReasons. An idle GPU (0x1) is not held back.
REASONS = {
    0x002: "clocks set by a user",
    0x004: "power limit",
    0x008: "hardware slowdown",
    0x010: "kept in step with other GPUs",
    0x020: "too hot (software)",
    0x040: "too hot (hardware)",
    0x080: "power brake from outside",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability",
}
IDLE = 0x1


class SensorTiming(NamedTuple):
    """What is known of a sensor's times; None is unknown."""

    average_s: float | None = None
    period_s: float | None = None
    seen_s: float | None = None


def open_nvml(root: Path, devices: Sequence[str]) -> SensorsFound:
    """The counters and power readings of the job's GPUs; of all GPUs, where `devices` is empty."""
    expected = any((root / sign).exists() for sign in SIGNS) or any(ours(device) for device in devices)
    package = library.binding()
    if package is None:
        reason = "NVIDIA GPUs are expected here, and there is no nvidia-ml-py to read them with"
        fix = "pip install nvidia-ml-py where the job runs"
        return SensorsFound(missing=[missing("all GPUs", "missing", reason, fix)] if expected else [])
    try:
        package.nvmlInit()
    except package.NVMLError as error:
        silent = error.value in (library.NO_LIBRARY, library.NO_DRIVER) and not expected
        return SensorsFound(missing=[] if silent else [library.init_failure(error)])
    session = Session(package)
    offer = Offer(session)
    cards = all_cards(session, root, offer.found.missing)
    # Numbers alone are no word for this vendor: a node without its GPUs may have another's.
    if cards or any(ours(device) for device in devices):
        for card in wanted(cards, devices, offer.found.missing):
            offer.add(card, cards)
    found = offer.finish()
    if found.channels:
        found.conditions = lambda: conditions(root, devices)
    return found


def conditions(root: Path, devices: Sequence[str]) -> dict[str, str]:
    """Facts of the moment, as text under `gpuN.`: what holds the clocks back, and the limit of power."""
    package = library.binding()
    session = Session(package)
    try:
        session.call("nvmlInit")
    except ReadError:
        return {}
    facts = {}
    for card in wanted(all_cards(session, root, []), devices, []):
        mask = session.try_call("nvmlDeviceGetCurrentClocksEventReasons", card.handle)
        if mask is None:  # The name that drivers before 535 have for it.
            mask = session.try_call("nvmlDeviceGetCurrentClocksThrottleReasons", card.handle)
        if mask is not None:
            facts[f"gpu{card.index}.clocks_held_by"] = ", ".join(held_by(mask)) or "nothing"
        if (limit_w := _limit_w(session, card)) is not None:
            facts[f"gpu{card.index}.power_limit_w"] = f"{limit_w:g}"
    session.close()
    return facts


def held_by(mask: int) -> list[str]:
    """The reasons in NVML's mask, in words; one that is not known here keeps its number."""
    unknown = mask & ~IDLE & ~sum(REASONS)
    words = [text for bit, text in REASONS.items() if mask & bit]
    return words + ([f"reason {unknown:#x}"] if unknown else [])


class Offer:
    """Collects domains, channels, and how each channel is read."""

    def __init__(self, session: Session) -> None:
        self.found = SensorsFound(close=session.close)
        self._session = session
        self._reads: list[Callable[[], float]] = []

    def finish(self) -> SensorsFound:
        """All of it; the library is closed at once where there is nothing to read."""
        reads = self._reads
        if reads:
            self.found.read = lambda number: reads[number]()
        else:
            self._session.close()
            self.found.close = lambda: None
        return self.found

    def add(self, card: Card, cards: list[Card]) -> None:
        """One card, and the module that it sits on if no card of it came before."""
        gpu = f"gpu{card.index}"
        new_module = card.module if card.module not in {domain.name for domain in self.found.domains} else None
        if new_module is not None:
            self.found.domains.append(Domain(name=new_module, scope="module"))
        self.found.domains.append(Domain(name=gpu, scope="device", parent=card.module, device=card.uuid))
        limit_w = _limit_w(self._session, card)
        counters = _counters(self._session, card, cards)
        self._counter(card, counters.gpu, gpu, limit_w)
        self._gauges(card, gpu, limit_w)
        if new_module is not None:
            self._module(card, new_module, counters.module)
        if counters == Counters():
            reason = "whether the counter is the GPU's or its module's cannot be told here; power readings say it"
            self.found.missing.append(missing(f"{BACKEND}.{card.index}.energy", "unsupported", reason))
        if card.superchip and card.module is None:
            reason = f"nothing says which GPUs share a module with {gpu}: better not counted than counted twice"
            self.found.missing.append(missing(f"module of {gpu}", "unsupported", reason))
        for instance in card.instances:
            reason = f"NVML has no power of a MIG instance: {gpu} is read whole, its other instances included"
            self.found.missing.append(missing(f"power of {instance}", "unsupported", reason))

    def _counter(self, card: Card, way: str | None, domain: str, limit_w: float | None) -> None:
        if way is None:
            return
        # Nobody has said how often a counter moves on, nor whether it, too, sees part of the time only.
        nature = SensorTiming()
        scope = GPU_SCOPE if domain.startswith("gpu") else MODULE_SCOPE
        name = "energy" if scope == GPU_SCOPE else "module_energy"
        if way == TOTAL:
            source = TOTAL if scope == GPU_SCOPE else f"{TOTAL}: here of the whole module, processor included"
            self._offer(card, name, domain, "counter", nature, limit_w, source,
                        lambda: self._session.milli(TOTAL, card.handle))  # fmt: skip
        else:
            self._field(card, name, domain, "counter", nature, limit_w, library.ENERGY, scope)

    def _gauges(self, card: Card, domain: str, limit_w: float | None) -> None:
        """Power of the GPU alone: of a moment, and the mean of a second; the old call where there is neither."""
        instant = SensorTiming(0.025, 0.1, 0.025) if _part_time(card) else SensorTiming()
        # [reference] The mean of a second from Ampere on, but for GA100; what others answer is not said.
        newer = card.capability is not None and card.capability > GA100
        average = SensorTiming(1.0, 0.1 if _part_time(card) else None) if newer else SensorTiming()
        said = [
            self._field(card, "power_instant", domain, "gauge", instant, limit_w, library.INSTANT, GPU_SCOPE),
            self._field(card, "power_average", domain, "gauge", average, limit_w, library.AVERAGE, GPU_SCOPE),
        ]
        if not any(said):
            # A driver without the fields: whether its old call gives a moment or a mean, and of what, differs.
            usage = instant if card.capability == GA100 else SensorTiming()
            self._offer(card, "power", domain, "gauge", usage, limit_w, USAGE,
                        lambda: self._session.milli(USAGE, card.handle))  # fmt: skip

    def _module(self, card: Card, domain: str, counter: str | None) -> None:
        """The superchip as a whole. Nothing is known of its sensor but what its fields are called."""
        limit_mw = self._session.try_field(card.handle, library.CURRENT_LIMIT, MODULE_SCOPE)
        limit_w = limit_mw / 1000 if limit_mw else None
        self._counter(card, counter, domain, limit_w)
        for name, nature, field in (
            ("module_power_instant", SensorTiming(), library.INSTANT),
            ("module_power_average", SensorTiming(average_s=1.0), library.AVERAGE),
        ):
            self._field(card, name, domain, "gauge", nature, limit_w, field, MODULE_SCOPE)

    def _field(self, card: Card, name: str, domain: str, kind: ChannelKind, nature: SensorTiming, limit_w: float | None,
               field: int, scope: int) -> bool:  # fmt: skip
        names = {library.INSTANT: "POWER_INSTANT", library.AVERAGE: "POWER_AVERAGE", library.ENERGY: "ENERGY"}
        source = f"NVML_FI_DEV_{names[field]}, scope {('GPU', 'module (processor included)')[scope]}"
        return self._offer(card, name, domain, kind, nature, limit_w, source,
                           lambda: self._session.field(card.handle, field, scope) / 1000)  # fmt: skip

    def _offer(self, card: Card, name: str, domain: str, kind: ChannelKind, nature: SensorTiming, limit_w: float | None,
               source: str, read: Callable[[], float]) -> bool:  # fmt: skip
        """Try it once: what cannot be read, or stands at zero where something always flows, is no channel."""
        channel = Channel(
            name=f"{BACKEND}.{card.index}.{name}", backend=BACKEND, domain=domain, kind=kind, resolution=RESOLUTION,
            average_s=nature.average_s, period_s=nature.period_s, seen_s=nature.seen_s, limit_w=limit_w,
            source=source + ("; MIG is on: of the whole card" if card.instances else ""),
        )  # fmt: skip
        try:
            value = read()
        except ReadError as error:
            self.found.missing.append(missing(channel.name, error.code, error.reason))
            return False
        if value <= 0:
            reason = f"{source} says {value:g} {'J' if kind == 'counter' else 'W'}, and no device runs on that"
            self.found.missing.append(missing(channel.name, "implausible", reason))
            return False
        self.found.channels.append(channel)
        self._reads.append(read)
        return True


def _part_time(card: Card) -> bool:
    """[part-time]. The Hopper of a superchip is taken for the same: that errs to the wider interval."""
    return card.capability in (GA100, HOPPER)


def _limit_w(session: Session, card: Card) -> float | None:
    """The limit in force, whoever set it; else the one that was asked for."""
    for name in ("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit"):
        if limit_mw := session.try_call(name, card.handle):
            return float(limit_mw) / 1000
    return None


# -- whose the counter is -------------------------------------------------------------------------------------

FIELD = "field"


class Counters(NamedTuple):
    """How the energy of the GPU and of its module are read: by the plain call, by the field with a scope, or not."""

    gpu: str | None = None
    module: str | None = None


def _counters(session: Session, card: Card, cards: list[Card]) -> Counters:
    """Both counters. On a superchip the plain one is the GPU's by the reference, the module's by those who looked.

    Counters have run since the driver was loaded: two that differ are not one.
    """
    plain = session.try_call(TOTAL, card.handle)
    if not card.superchip or not plain:
        return Counters(gpu=TOTAL)
    gpu = session.try_field(card.handle, library.ENERGY, GPU_SCOPE)
    module = session.try_field(card.handle, library.ENERGY, MODULE_SCOPE)
    if gpu and module and _apart(gpu, module):
        return Counters(gpu=FIELD, module=FIELD)
    if gpu and _apart(gpu, plain):
        return Counters(gpu=FIELD, module=TOTAL)
    if module and _apart(module, plain):
        return Counters(gpu=TOTAL, module=FIELD)
    beside = [other for other in cards if other.module == card.module and other.index != card.index]
    others = [value for other in beside if (value := session.try_call(TOTAL, other.handle))]
    if others:
        return Counters(gpu=TOTAL) if any(_apart(plain, other) for other in others) else Counters(module=TOTAL)
    return Counters(module=TOTAL) if card.capability == HOPPER else Counters()


def _apart(one_mj: float, other_mj: float) -> bool:
    """By more than an update of one of them can make: a kilojoule, and a thousandth."""
    return abs(one_mj - other_mj) > max(1e6, 1e-3 * max(one_mj, other_mj))
