"""Energy counters and power readings of NVIDIA GPUs, each with its scope and the properties of its sensor.

Sources. [reference]: nvml.h and https://docs.nvidia.com/deploy/nvml-api. [part-time]: Yang, Adamek, Armour, SC24,
https://arxiv.org/abs/2312.02741: A100 and H100 sample their power 25 ms of every 100 ms. [module counter]:
https://github.com/ml-energy/zeus/pull/172: on a GH200 the plain energy counter covers the whole module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from steelyard.contracts.energy import Channel, ChannelKind, Domain
from steelyard.worker.sensors import nvml_library as library
from steelyard.worker.sensors.backend import ReadError, SensorsFound
from steelyard.worker.sensors.nvml_cards import GA100, HOPPER, Card, all_cards, ours, wanted
from steelyard.worker.sensors.nvml_conditions import gpu_state, power_limit
from steelyard.worker.sensors.nvml_library import BACKEND, GPU_SCOPE, MODULE_SCOPE, Session, missing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

# Signs of a driver; without any of them a missing library is not worth a report.
SIGNS = ("dev/nvidiactl", "dev/nvidia0", "proc/driver/nvidia/version", "dev/dxg")
TOTAL, USAGE = "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage"
RESOLUTION = 0.001  # mJ and mW


class SensorTiming(NamedTuple):
    """Timing properties of a sensor; None is unknown."""

    average_s: float | None = None
    period_s: float | None = None
    seen_s: float | None = None


def open_nvml(root: Path, devices: Sequence[str]) -> SensorsFound:
    """Find the counters and power readings of the job's GPUs; of all GPUs if `devices` is empty."""
    expected = any((root / sign).exists() for sign in SIGNS) or any(ours(device) for device in devices)
    package = library.binding()
    if package is None:
        reason = "NVIDIA GPUs are expected here, but nvidia-ml-py is not installed"
        fix = "pip install nvidia-ml-py in the Python that runs the job"
        return SensorsFound(missing=[missing("all GPUs", "missing", reason, fix)] if expected else [])
    try:
        package.nvmlInit()
    except package.NVMLError as error:
        silent = error.value in (library.NO_LIBRARY, library.NO_DRIVER) and not expected
        return SensorsFound(missing=[] if silent else [library.init_failure(error)])
    session = Session(package)
    offer = Offer(session)
    cards = all_cards(session, root, offer.sensors.missing)
    # Numbers alone do not imply NVIDIA: the node may have another vendor's devices.
    if cards or any(ours(device) for device in devices):
        own = wanted(cards, devices, offer.sensors.missing)
        for card in own:
            offer.add(card, cards)
        if own:
            offer.sensors.states = lambda: [gpu_state(session, card, devices) for card in own]
    return offer.finish()


class Offer:
    """Collects domains, channels, and how each channel is read."""

    def __init__(self, session: Session) -> None:
        self.sensors = SensorsFound(close=session.close)
        self._session = session
        self._reads: list[Callable[[], float]] = []

    def finish(self) -> SensorsFound:
        """Return everything; close the library if there is nothing to read."""
        reads = self._reads
        if reads:
            self.sensors.read = lambda number: reads[number]()
        elif self.sensors.states is None:
            self._session.close()
            self.sensors.close = lambda: None
        return self.sensors

    def add(self, card: Card, cards: list[Card]) -> None:
        """Add one card, and its module if it is new."""
        gpu = f"gpu{card.index}"
        new_module = card.module if card.module not in {domain.name for domain in self.sensors.domains} else None
        if new_module is not None:
            self.sensors.domains.append(Domain(name=new_module, scope="module"))
        self.sensors.domains.append(Domain(name=gpu, scope="device", parent=card.module, device=card.uuid))
        limit = power_limit(self._session, card)
        limit_w = limit[1] if limit else None
        counters = _counters(self._session, card, cards)
        self._counter(card, counters.gpu, gpu, limit_w)
        self._gauges(card, gpu, limit_w)
        if new_module is not None:
            self._module(card, new_module, counters.module)
        if counters == Counters():
            reason = "unclear whether the counter covers the GPU or its module; power readings are used instead"
            self.sensors.missing.append(missing(f"{BACKEND}.{card.index}.energy", "unsupported", reason))
        if card.superchip and card.module is None:
            reason = f"unknown which GPUs share a module with {gpu}: not counted, to avoid counting twice"
            self.sensors.missing.append(missing(f"module of {gpu}", "unsupported", reason))
        for instance in card.instances:
            reason = f"NVML has no power per MIG instance: {gpu} is read as a whole, with its other instances"
            self.sensors.missing.append(missing(f"power of {instance}", "unsupported", reason))

    def _counter(self, card: Card, way: str | None, domain: str, limit_w: float | None) -> None:
        if way is None:
            return
        # How often a counter is updated, and whether it samples part-time, is not documented.
        nature = SensorTiming()
        scope = GPU_SCOPE if domain.startswith("gpu") else MODULE_SCOPE
        name = "energy" if scope == GPU_SCOPE else "module_energy"
        if way == TOTAL:
            source = TOTAL if scope == GPU_SCOPE else f"{TOTAL}: here for the whole module, including the processor"
            self._offer(
                card, name, domain, "counter", nature, limit_w, source, lambda: self._session.milli(TOTAL, card.handle)
            )
        else:
            self._field(card, name, domain, "counter", nature, limit_w, library.ENERGY, scope)

    def _gauges(self, card: Card, domain: str, limit_w: float | None) -> None:
        """Add the GPU's instantaneous power and its average over a second; the old call if there is neither."""
        instant = SensorTiming(0.025, 0.1, 0.025) if _part_time(card) else SensorTiming()
        # [reference] Average over a second from Ampere on, except GA100; for others it is not documented.
        newer = card.capability is not None and card.capability > GA100
        average = SensorTiming(1.0, 0.1 if _part_time(card) else None) if newer else SensorTiming()
        added = [
            self._field(card, "power_instant", domain, "gauge", instant, limit_w, library.INSTANT, GPU_SCOPE),
            self._field(card, "power_average", domain, "gauge", average, limit_w, library.AVERAGE, GPU_SCOPE),
        ]
        if not any(added):
            # A driver without the fields: the meaning of its old call differs.
            usage = instant if card.capability == GA100 else SensorTiming()
            self._offer(
                card, "power", domain, "gauge", usage, limit_w, USAGE, lambda: self._session.milli(USAGE, card.handle)
            )

    def _module(self, card: Card, domain: str, counter: str | None) -> None:
        """Add the superchip as a whole. Its sensor is not documented beyond the names of its fields."""
        limit_mw = self._session.try_field(card.handle, library.CURRENT_LIMIT, MODULE_SCOPE)
        limit_w = limit_mw / 1000 if limit_mw else None
        self._counter(card, counter, domain, limit_w)
        for name, nature, field in (
            ("module_power_instant", SensorTiming(), library.INSTANT),
            ("module_power_average", SensorTiming(average_s=1.0), library.AVERAGE),
        ):
            self._field(card, name, domain, "gauge", nature, limit_w, field, MODULE_SCOPE)

    def _field(
        self,
        card: Card,
        name: str,
        domain: str,
        kind: ChannelKind,
        nature: SensorTiming,
        limit_w: float | None,
        field: int,
        scope: int,
    ) -> bool:
        names = {library.INSTANT: "POWER_INSTANT", library.AVERAGE: "POWER_AVERAGE", library.ENERGY: "ENERGY"}
        source = f"NVML_FI_DEV_{names[field]}, scope {('GPU', 'module (including the processor)')[scope]}"
        return self._offer(
            card,
            name,
            domain,
            kind,
            nature,
            limit_w,
            source,
            lambda: self._session.field(card.handle, field, scope) / 1000,
        )

    def _offer(
        self,
        card: Card,
        name: str,
        domain: str,
        kind: ChannelKind,
        nature: SensorTiming,
        limit_w: float | None,
        source: str,
        read: Callable[[], float],
    ) -> bool:
        """Add a channel after a test reading; one that fails or reports zero where power always flows is not added."""
        channel = Channel(
            name=f"{BACKEND}.{card.index}.{name}",
            backend=BACKEND,
            domain=domain,
            kind=kind,
            resolution=RESOLUTION,
            average_s=nature.average_s,
            period_s=nature.period_s,
            seen_s=nature.seen_s,
            limit_w=limit_w,
            source=source + ("; MIG is on: of the whole card" if card.instances else ""),
        )
        try:
            value = read()
        except ReadError as error:
            self.sensors.missing.append(missing(channel.name, error.code, error.reason))
            return False
        if value <= 0:
            unit = "J" if kind == "counter" else "W"
            reason = f"{source} reports {value:g} {unit}, which is impossible for a running device"
            self.sensors.missing.append(missing(channel.name, "implausible", reason))
            return False
        self.sensors.channels.append(channel)
        self._reads.append(read)
        return True


def _part_time(card: Card) -> bool:
    """[part-time]. The Hopper of a superchip is assumed to be the same, which gives the wider interval."""
    return card.capability in (GA100, HOPPER)


# -- scope of the counter -------------------------------------------------------------------------------------

FIELD = "field"


class Counters(NamedTuple):
    """How the energy of the GPU and of its module is read: by the plain call, by the field with a scope, or not."""

    gpu: str | None = None
    module: str | None = None


def _counters(session: Session, card: Card, cards: list[Card]) -> Counters:
    """Return both counters. On a superchip the plain one covers the GPU by the reference, the module by observation.

    Counters run since the driver was loaded, so two that differ are different counters.
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
    """Whether two counters differ by more than an update can explain: a kilojoule and 0.1 %."""
    return abs(one_mj - other_mj) > max(1e6, 1e-3 * max(one_mj, other_mj))
