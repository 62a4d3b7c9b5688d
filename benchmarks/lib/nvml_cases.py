"""Cases for the NVIDIA sensors over a fake library with programmed truth."""

from __future__ import annotations

import math
import random
import shutil
import subprocess
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fake_nvml.build import LIBRARY, Device, environment
from fake_nvml.probe import Question, Reading, ask, ask_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

Answer = dict[str, Any]
RESOLUTION = 0.001
GH200 = Device(
    name="NVIDIA GH200 480GB", capability=(9, 0), c2c=True, module_power_w=((0.0, 250.0), (4.0, 250.0), (4.0, 800.0)),
    power_w=((0.0, 90.0), (4.0, 90.0), (4.0, 600.0)), module_limit_w=1000.0, limit_w=900.0, total_is_module=True,
)  # fmt: skip
SEED = 20261115


class Bench:
    """Opens and reads the sensors, and collects errors."""

    def __init__(self, folder: Path, built: Path) -> None:
        self.folder = folder
        self.bare = folder / "bare"
        self.node = folder / "node"
        self.broken = folder / "broken"
        shutil.copytree(built, folder)
        for place in (self.bare, self.node / "dev", self.broken):
            place.mkdir(parents=True)
        (self.node / "dev/nvidiactl").touch()
        (self.broken / LIBRARY).write_text("no library")
        # Two packages with arbitrary numbers, as from firmware.
        for cpu in range(8):
            place = self.node / f"sys/devices/system/cpu/cpu{cpu}/topology"
            place.mkdir(parents=True)
            (place / "physical_package_id").write_text(f"{256 * (cpu // 4) + 36}\n")
        self.wrong: list[str] = []

    def ask(self, devices: list[Device], *named: str, variables: dict[str, str] | None = None, **more: Any) -> Answer:
        """Query the sensors on the clock of the devices."""
        return self.ask_all(devices, [named], variables=variables, **more)[0]

    def ask_all(
        self, devices: list[Device], choices: Sequence[tuple[str, ...]], *, variables: dict[str, str] | None = None,
        **more: Any,
    ) -> list[Answer]:  # fmt: skip
        """Query the sensors for several jobs, each with its own list of devices."""
        every = {**environment(self.folder, devices=devices, own_clock=True), **(variables or {})}
        base = Question(root=str(self.node), folder=str(self.folder), **more)
        return ask_all([replace(base, devices=named) for named in choices], every)

    def want(self, what: str, *, true: bool) -> None:
        """Record `what` as an error unless it is true."""
        if not true:
            self.wrong.append(what)

    def same(self, what: str, found: object, truth: object) -> None:
        """Check that two values are equal."""
        self.want(f"{what}: {found!r} is not {truth!r}", true=found == truth)

    def near(self, what: str, reading: Reading, truth: float) -> None:
        """Check that a reading shows the truth within its resolution."""
        value = reading.get("value", math.nan)
        self.want(f"{what}: {reading} is not {truth:.6f}", true=-1e-6 <= truth - value <= RESOLUTION + 1e-6)

    def missing(self, answer: Answer, what: str, code: str, words: str, count: int = 1) -> None:
        """Check that there are exactly `count` entries about `what`, all with this code and text."""
        about = [one for one in answer["missing"] if what in one["what"]]
        self.same(f"entries about {what}", len(about), count)
        for one in about:
            self.same(f"code of {one['what']}", one["code"], code)
            self.want(f"{one['what']}: {words!r} is not in {one['reason']!r}", true=words in one["reason"])

    def fails(self, what: str, reading: Reading, code: str, words: str) -> None:
        """Check that a reading fails with this code and text."""
        self.same(f"code of {what}", reading.get("code"), code)
        self.want(f"{what}: {words!r} is not in {reading}", true=words in reading.get("reason", ""))


def names(answer: Answer, kind: str = "channels") -> list[str]:
    return [one["name"] for one in answer[kind]]


def of(answer: Answer, name: str) -> dict[str, Any]:
    """Return the channel or domain of that name."""
    found: dict[str, Any] = next(one for kind in ("channels", "domains") for one in answer[kind] if one["name"] == name)
    return found


# -- truth ----------------------------------------------------------------------------------------------------


def several_devices(bench: Bench) -> None:
    """Random profiles with steps and ramps; random ticks, windows and gains; 500 readings of each channel."""
    draw = random.Random(SEED)
    devices = [_random_device(draw) for _ in range(16)]
    times_s = tuple(sorted(draw.uniform(0, 5000) for _ in range(500)))
    answer = bench.ask(devices, times_s=times_s)
    bench.same("domains", names(answer, "domains"), [f"gpu{number}" for number in range(16)])
    bench.same("missing", answer["missing"], [])
    bench.same("readings", len(answer["readings"]), len(times_s))
    for number, device in enumerate(devices):
        bench.same("UUID", of(answer, f"gpu{number}")["device"], f"GPU-{number:08x}-0000-0000-0000-000000000000")
        bench.same("limit", of(answer, f"nvml.{number}.energy")["limit_w"], device.limit_w)
        for time_s, readings in zip(times_s, answer["readings"], strict=True):
            at = f"{number} at {time_s!r}"
            bench.near(f"energy of {at}", readings[f"nvml.{number}.energy"], device.counter_j(time_s))
            for name, wide_s in (("instant", device.sensor_s[1]), ("average", device.sensor_s[2])):
                truth = device.gauge_w(time_s, wide_s)
                bench.near(f"{name} of {at}", readings[f"nvml.{number}.power_{name}"], truth)


def _random_device(draw: random.Random) -> Device:
    points, time_s = [(0.0, draw.uniform(50, 700))], 0.0
    for _ in range(20):
        time_s += draw.choice((0.0, draw.uniform(0.05, 400.0)))
        points.append((time_s, draw.uniform(50, 700)))
    period_s = draw.choice((0.02, 0.1))
    return Device(
        power_w=tuple(points), capability=draw.choice(((7, 0), (8, 0), (8, 6), (9, 0), (10, 0))),
        tick_s=draw.choice((0.02, 0.1, 1.0)), sensor_s=(period_s, period_s * draw.choice((0.25, 1.0)), 1.0),
        gain=draw.choice((0.96, 1.0, 1.04)), offset_j=draw.uniform(1e3, 1e9), limit_w=round(draw.uniform(70, 1000)),
    )  # fmt: skip


def running_clock(bench: Bench) -> None:
    """On the real clock: every reading is between the truth at the request and at the answer."""
    device = Device(power_w=((0.0, 100.0), (0.2, 100.0), (0.2, 650.0), (1.0, 80.0)), tick_s=0.02)
    start_s = time.monotonic()
    variables = environment(bench.folder, devices=[device], start_s=start_s)
    answer = ask(Question(root=str(bench.node), rounds=20_000), variables)
    seen = set()
    for readings in answer["readings"]:
        reading = readings["nvml.0.energy"]
        low = device.counter_j(reading["before_s"] - start_s) - RESOLUTION
        high = device.counter_j(reading["after_s"] - start_s)
        bench.want(f"{reading} outside {low}..{high}", true=low - 1e-6 <= reading["value"] <= high + 1e-6)
        seen.add(reading["value"])
    bench.want(f"the counter moved {len(seen)} times only", true=len(seen) >= 5)


def natures(bench: Bench) -> None:
    """The facts about the sensors of each generation; the others are reported as unknown."""
    part, unknown = (0.025, 0.1, 0.025), (None, None, None)
    truth = {(7, 0): (unknown, unknown), (8, 0): (part, unknown), (8, 6): (unknown, (1.0, None, None)),
             (9, 0): (part, (1.0, 0.1, None)), (10, 0): (unknown, (1.0, None, None))}  # fmt: skip
    answer = bench.ask([Device(capability=capability) for capability in truth])
    for number, (instant, average) in enumerate(truth.values()):
        for name, nature in (("power_instant", instant), ("power_average", average)):
            channel = of(answer, f"nvml.{number}.{name}")
            bench.same(name, (channel["average_s"], channel["period_s"], channel["seen_s"]), nature)
            bench.same("kind", (channel["kind"], channel["resolution"]), ("gauge", RESOLUTION))
        channel = of(answer, f"nvml.{number}.energy")
        bench.same("kind", (channel["kind"], channel["resolution"]), ("counter", RESOLUTION))


# -- which devices --------------------------------------------------------------------------------------------

UUIDS = ("GPU-aaaa0000-1111-2222-3333-444444444444", "GPU-aabb0000-1111-2222-3333-444444444444",
         "GPU-cccc0000-1111-2222-3333-444444444444")  # fmt: skip
INSTANCES = ("MIG-0dd00000-1111-2222-3333-444444444444", "MIG-0ee00000-1111-2222-3333-444444444444")


def chosen_devices(bench: Bench) -> None:
    """Every form in which a job names its devices."""
    devices = [Device(uuid=uuid) for uuid in UUIDS]
    truth: dict[tuple[str, ...], list[int]] = {
        ("1",): [1], ("2", "0"): [0, 2], (UUIDS[2],): [2], ("GPU-aab",): [1], (UUIDS[0][4:],): [0],
        (UUIDS[1].lower(), "1"): [1], ("0", "-1", "2"): [0], ("-1",): [], (): [0, 1, 2],
    }  # fmt: skip
    for (named, cards), answer in zip(truth.items(), bench.ask_all(devices, list(truth)), strict=True):
        bench.same(f"cards of {named}", names(answer, "domains"), [f"gpu{number}" for number in cards])
        bench.same(f"missing of {named}", answer["missing"], [])
    words = {"GPU-aa": "more than one", "7": "no GPU", "GPU-ffff": "no GPU", "MIG-ffff": "no GPU", "x": "no GPU"}
    answers = bench.ask_all(devices, [(name, "2") for name in words])
    for (name, said), answer in zip(words.items(), answers, strict=True):
        bench.same(f"cards beside {name}", names(answer, "domains"), ["gpu2"])
        bench.missing(answer, f"device {name}", "missing", said)


def unlike_devices(bench: Bench) -> None:
    """If CUDA and NVML may number devices differently, a number is ambiguous."""
    devices = [Device(name="slow", uuid=UUIDS[0]), Device(name="fast", uuid=UUIDS[2])]
    answer = bench.ask(devices, "0", UUIDS[2], variables={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
    bench.same("cards", names(answer, "domains"), ["gpu1"])
    bench.missing(answer, "GPUs by number", "missing", "CUDA numbers them by speed")
    answer = bench.ask(devices, "0", variables={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    bench.same("cards", names(answer, "domains"), ["gpu0"])


def mig(bench: Bench) -> None:
    """Two MIG instances are one card, read once as a whole, and the source says so."""
    devices = [Device(uuid=UUIDS[0]), Device(uuid=UUIDS[2], mig=INSTANCES, power_w=((0.0, 100.0), (10.0, 400.0)))]
    choices = [INSTANCES, (INSTANCES[1][4:],), (f"MIG-{UUIDS[2]}/1/0", f"MIG-{UUIDS[2]}/2/0"), ("1:0", "1:1")]
    for named, answer in zip(choices, bench.ask_all(devices, choices, times_s=(0.0, 10.0)), strict=True):
        bench.same(f"cards of {named}", names(answer, "domains"), ["gpu1"])
        bench.same("device", of(answer, "gpu1")["device"], UUIDS[2])
        bench.missing(answer, "MIG-", "unsupported", "read as a whole", count=2)
        bench.near("energy", answer["readings"][1]["nvml.1.energy"], devices[1].counter_j(10.0))
        for channel in answer["channels"]:
            bench.want(f"{channel['name']}: MIG is not said", true="of the whole card" in channel["source"])


# -- modules --------------------------------------------------------------------------------------------------


def grace_hopper(bench: Bench) -> None:
    """A module above each GPU, numbered by socket; the plain counter is that of the module."""
    devices = [beside(GH200, 4, 7), beside(GH200, 0, 3)]
    answer = bench.ask(devices, times_s=(3.0, 6.25))
    bench.same("domains", names(answer, "domains"), ["module1", "gpu0", "module0", "gpu1"])
    bench.same("missing", answer["missing"], [])
    for number, module in ((0, "module1"), (1, "module0")):
        bench.same("parent", of(answer, f"gpu{number}")["parent"], module)
        bench.same("module", of(answer, module)["scope"], "module")
        bench.same("counter", of(answer, f"nvml.{number}.module_energy")["domain"], module)
        bench.same("limit", of(answer, f"nvml.{number}.module_power_instant")["limit_w"], 1000.0)
        for time_s, readings in zip((3.0, 6.25), answer["readings"], strict=True):
            start = f"nvml.{number}."
            bench.near("module", readings[f"{start}module_energy"], GH200.counter_j(time_s, module=True))
            bench.near("module", readings[f"{start}module_power_average"], GH200.gauge_w(time_s, 1.0, module=True))
            bench.near("GPU", readings[f"{start}power_instant"], GH200.gauge_w(time_s, 0.025))
            bench.near("GPU", readings[f"{start}energy"], GH200.counter_j(time_s))


def beside(device: Device, first: int, last: int, **more: Any) -> Device:
    return replace(device, cpus=(first, last), **more)


def grace_hopper_one_counter(bench: Bench) -> None:
    """Without energy fields the plain counter belongs to the module, never to both."""
    bare = beside(GH200, 0, 3, errors=(("scoped_energy", 3, 0.0), ("module_energy", 3, 0.0)))
    answer = bench.ask([bare], times_s=(6.0,))
    counters = {one["name"]: one["domain"] for one in answer["channels"] if one["kind"] == "counter"}
    bench.same("counters", counters, {"nvml.0.module_energy": "module0"})
    bench.near("module", answer["readings"][0]["nvml.0.module_energy"], bare.counter_j(6.0, module=True))
    # A driver without module power: the GPU is still below the module, for other readers.
    silent = beside(bare, 0, 3, module_power_w=(), total_is_module=False)
    answer = bench.ask([silent])
    bench.same("parent", of(answer, "gpu0")["parent"], "module0")
    bench.missing(answer, "module_power", "unsupported", "not supported by this device", count=2)


def two_on_a_module(bench: Bench) -> None:
    """A module with two GPUs is one domain; a counter belongs to it if both GPUs show the same."""
    none = (("scoped_energy", 3, 0.0), ("module_energy", 3, 0.0))
    first = beside(GH200, 0, 3, capability=(10, 0), total_is_module=False, errors=none)
    second = beside(first, 0, 3, offset_j=3_000_000.0)
    answer = bench.ask([first, second], times_s=(5.0,))
    bench.same("domains", names(answer, "domains"), ["module0", "gpu0", "gpu1"])
    bench.same("modules", sum("module_power_instant" in name for name in names(answer)), 1)
    for number, device in enumerate((first, second)):
        bench.same("counter", of(answer, f"nvml.{number}.energy")["domain"], f"gpu{number}")
        bench.near("counter", answer["readings"][0][f"nvml.{number}.energy"], device.counter_j(5.0))
    shared = beside(first, 0, 3, total_is_module=True)
    answer = bench.ask([shared, shared])
    counters = {one["name"]: one["domain"] for one in answer["channels"] if one["kind"] == "counter"}
    bench.same("counters", counters, {"nvml.0.module_energy": "module0"})


def module_not_known(bench: Bench) -> None:
    """If it is unknown which GPUs share a module, or what a counter covers, it is not offered, with a reason."""
    none = (("scoped_energy", 3, 0.0), ("module_energy", 3, 0.0), ("cpus", 3, 0.0))
    device = beside(GH200, 0, 3, capability=(10, 0), errors=none)
    answer = bench.ask([device, beside(device, 4, 7)])
    bench.same("domains", names(answer, "domains"), ["gpu0", "gpu1"])
    bench.missing(answer, "module of gpu", "unsupported", "which GPUs share", count=2)
    answer = bench.ask([device])
    bench.same("domains", names(answer, "domains"), ["module0", "gpu0"])
    bench.missing(answer, "nvml.0.energy", "unsupported", "unclear whether")
    bench.same("counters", [one["name"] for one in answer["channels"] if one["kind"] == "counter"], [])


# -- what fails -----------------------------------------------------------------------------------------------


def vanishes(bench: Bench) -> None:
    """One of two GPUs is lost while they are read, and one before; the other goes on."""
    devices = [Device(lost_s=5.0), Device()]
    answer = bench.ask(devices, times_s=(4.9, 5.0, 60.0))
    bench.near("before", answer["readings"][0]["nvml.0.energy"], devices[0].counter_j(4.9))
    for time_s, readings in zip((5.0, 60.0), answer["readings"][1:], strict=True):
        for name in ("energy", "power_instant", "power_average"):
            bench.fails(f"{name} at {time_s}", readings[f"nvml.0.{name}"], "vanished", "GPU is lost")
        bench.near("the other", readings["nvml.1.energy"], devices[1].counter_j(time_s))
    answer = bench.ask([Device(lost_s=-1.0), Device()])
    bench.same("cards", names(answer, "domains"), ["gpu1"])
    bench.missing(answer, "GPU 0", "vanished", "no longer answers")


def stuck(bench: Bench) -> None:
    """The counter freezes at 3 s; its readings show this, and power continues."""
    device = Device(stuck_s=3.0)
    answer = bench.ask([device], times_s=(0.0, 3.0, 10.0, 100.0))
    for time_s, readings in zip((0.0, 3.0, 3.0, 3.0), answer["readings"], strict=True):
        bench.near("counter", readings["nvml.0.energy"], device.counter_j(time_s))
        bench.near("power", readings["nvml.0.power_instant"], 300.0)
    channel = of(answer, "nvml.0.energy")
    bench.same("period and resolution", (channel["period_s"], channel["resolution"]), (None, RESOLUTION))


def unsupported(bench: Bench) -> None:
    """No counter; no fields, so the old call; nothing at all; a field that fails during the run."""
    none = tuple((call, 3, 0.0) for call in ("energy", "instant", "average", "usage", "enforced", "management"))
    answer = bench.ask([Device(errors=none[:1]), Device(errors=none[1:3]), Device(errors=none)], times_s=(2.0,))
    bench.missing(answer, "nvml.0.energy", "unsupported", "nvmlDeviceGetTotalEnergyConsumption: Not Supported")
    bench.missing(answer, "nvml.1.power_", "unsupported", "Not Supported", count=2)
    bench.near("old call", answer["readings"][0]["nvml.1.power"], 300.0)
    bench.missing(answer, "nvml.2.", "unsupported", "not supported by this device", count=4)
    bench.same("nothing of the third", [name for name in names(answer) if name.startswith("nvml.2")], [])
    answer = bench.ask([Device(errors=(("energy", 3, 5.0),))], times_s=(1.0, 6.0))
    bench.fails("later", answer["readings"][1]["nvml.0.energy"], "unsupported", "Not Supported")
    answer = bench.ask([Device(errors=none[4:5])])
    bench.same("other limit", of(answer, "nvml.0.energy")["limit_w"], 400.0)
    answer = bench.ask([Device(errors=none[4:])])
    bench.same("no limit", of(answer, "nvml.0.energy")["limit_w"], None)


def forbidden(bench: Bench) -> None:
    """A call without permission, a device without permission, and permission that ends."""
    answer = bench.ask([Device(errors=(("energy", 4, 0.0),)), Device(errors=(("handle", 4, 0.0),)),
                        Device(errors=(("energy", 17, 5.0),))], times_s=(1.0, 6.0))  # fmt: skip
    bench.missing(answer, "nvml.0.energy", "forbidden", "no permission")
    bench.missing(answer, "GPU 1", "forbidden", "Insufficient Permissions")
    bench.want("a fix", true=all(one["fix"] for one in answer["missing"]))
    bench.same("cards", names(answer, "domains"), ["gpu0", "gpu2"])
    bench.fails("later", answer["readings"][1]["nvml.2.energy"], "forbidden", "blocked the request")


def blocks(bench: Bench) -> None:
    """A call that blocks for 5 s: only it is late, and its value is right."""
    devices = [Device(blocks=(("energy", 5.0, 2.0),)), Device()]
    answer = bench.ask(devices, times_s=(1.0,), blocked="nvml.0.energy", blocked_at_s=2.5)
    before, during = answer["readings"]
    bench.near("before", before["nvml.0.energy"], devices[0].counter_j(1.0))
    bench.near("when it comes", during["nvml.0.energy"], devices[0].counter_j(2.5))
    held_s = _spent_s(during.pop("nvml.0.energy"))
    bench.want(f"held {held_s:.2f} s", true=4.9 < held_s < 6.5)
    bench.same("others", len(during), 5)
    for name, reading in during.items():
        bench.want(f"{name} waited {_spent_s(reading):.2f} s for another", true=_spent_s(reading) < 1.0)


def _spent_s(reading: Reading) -> float:
    return float(reading["after_s"] - reading["before_s"])


def zero(bench: Bench) -> None:
    """A power reading of zero is not a reading."""
    answer = bench.ask([Device(power_w=((0.0, 0.0),), offset_j=0.0)])
    bench.missing(answer, "nvml.0.", "implausible", "impossible for a running device", count=4)
    bench.same("channels", answer["channels"], [])
    bench.same("readable", answer["can_read"], False)


def old_driver(bench: Bench) -> None:
    """A library without fields and scopes: the counter, and one power reading with few facts."""
    variables = environment(bench.folder / "old", devices=[Device(), Device(capability=(8, 6))], own_clock=True)
    answer = ask(Question(root=str(bench.node), folder=str(bench.folder / "old"), times_s=(1.0,)), variables)
    bench.same("channels", names(answer), ["nvml.0.energy", "nvml.0.power", "nvml.1.energy", "nvml.1.power"])
    bench.missing(answer, "power_", "unsupported", "Function Not Found", count=4)
    bench.same("GA100", of(answer, "nvml.0.power")["average_s"], 0.025)
    bench.same("unknown", of(answer, "nvml.1.power")["average_s"], None)


def no_library(bench: Bench) -> None:
    """Package, library or driver missing: reported if GPUs are expected, silent otherwise, without exceptions."""
    gone = {"LD_LIBRARY_PATH": str(bench.broken)}
    no_driver = environment(bench.folder, devices=1, init_error=9)
    kinds = (
        (gone, True, "nvidia-ml-py is not installed"),
        (gone, False, "Library Not Found"),
        (no_driver, False, "Driver Not Loaded"),
    )
    for variables, hidden, words in kinds:
        places = ((bench.bare, ("0",), 0), (bench.node, (), 1), (bench.bare, UUIDS[:1], 1))
        base = Question(root="", without_binding=hidden)
        asked = [replace(base, root=str(root), devices=devices) for root, devices, _ in places]
        for (_, _, said), answer in zip(places, ask_all(asked, variables), strict=True):
            bench.missing(answer, "all GPUs", "missing", words, count=said)
            bench.same("nothing else", (answer["channels"], answer["domains"], answer["readable"]), ([], [], []))
    for code, kind in ((18, "missing"), (4, "forbidden"), (999, "missing")):
        answer = ask(Question(root=str(bench.bare)), environment(bench.folder, devices=1, init_error=code))
        bench.missing(answer, "all GPUs", kind, "nvmlInit")
    answer = ask(Question(root=str(bench.bare), devices=("0",)), environment(bench.folder, devices=[]))
    bench.same("no GPU", (answer["channels"], answer["missing"]), ([], []))


def throttled(bench: Bench) -> None:
    """What holds the clocks back, with clocks, temperatures, limits and errors, before and after a change."""
    held = (0x1, 0x4, 0x20, 0x40 | 0x8, 0x80 | 0x8, 0x2, 0x10, 0x100, 0x8000)
    columns = ("power_capped", "thermal", "hardware", "setting", "idle")
    truth = {0x1: "idle", 0x4: "power_capped", 0x20: "thermal", 0x48: "thermal hardware", 0x88: "hardware"}
    answer = bench.ask([Device(reasons=reasons) for reasons in held])
    for number, reasons in enumerate(held):
        told = answer["states"][-1][f"gpu{number}"]
        expected = truth.get(reasons, "setting" if reasons < 0x200 else "")
        bench.same(f"{reasons:#x}", " ".join(column for column in columns if told[column]), expected)
    changing = Device(
        changed_s=50.0, clock_mhz=(1980, 1410), reasons=(0, 0x4), corrected=(7, 9), uncorrected=(2, 3), limit_w=500.0,
        default_limit_w=700.0, temperature_c=83, memory_temperature_c=95, highest_clock_mhz=2100,
    )  # fmt: skip
    answer = bench.ask([changing], times_s=(10.0, 60.0))
    before, after, _ = (row["gpu0"] for row in answer["states"])
    shown = ("clock_mhz", "power_capped", "corrected", "uncorrected")
    bench.same("before", [before[name] for name in shown], [1980.0, 0.0, 0.0, 0.0])
    bench.same("after", [after[name] for name in shown], [1410.0, 1.0, 2.0, 1.0])
    constant = ("memory_clock_mhz", "temperature_c", "memory_temperature_c", "limit_w")
    bench.same("constant", [after[name] for name in constant], [2619.0, 83.0, 95.0, 500.0])
    (facts,) = answer["readable"]
    bench.same("limits", (facts["clock_limit_mhz"], facts["default_limit_w"]), (2100.0, 700.0))
    bench.same("source", facts["sources"]["power_capped"], "nvmlDeviceGetCurrentClocksEventReasons")


def state_unknown(bench: Bench) -> None:
    """A driver that does not report part of the state: unknown with its reason, and the rest is read."""
    missing = (("ecc", 3, 0.0), ("memory_temperature", 3, 0.0), ("clock", 4, 0.0))
    (facts,) = bench.ask([Device(errors=missing)])["readable"]
    bench.same("unknown", set(facts["unknown"]) >= {"corrected", "uncorrected", "memory_temperature_c"}, True)
    bench.same("reason", "nvmlDeviceGetTotalEccErrors: Not Supported" in facts["unknown"]["corrected"], True)
    bench.same("forbidden", facts["unknown"]["clock_mhz"].startswith("no permission"), True)
    bench.same("others", "temperature_c" in facts["sources"] and "thermal" in facts["sources"], True)
    variables = environment(bench.folder / "old", devices=[Device(reasons=0x4)], own_clock=True)
    (facts,) = ask(Question(root=str(bench.node), folder=str(bench.folder / "old")), variables)["readable"]
    bench.same("old name", facts["sources"]["power_capped"], "nvmlDeviceGetCurrentClocksThrottleReasons")


def shared(bench: Bench) -> None:
    """Processes on the job's devices; unknown for MIG instances, and if the job's devices are unknown."""
    devices = [
        Device(processes=2),
        Device(),
        Device(processes=3, mig=("MIG-1",)),
        Device(errors=(("processes", 4, 0.0),)),
    ]
    told = bench.ask(devices, "0", "1", "2", "3")["states"][-1]
    counts = {name: row["processes"] for name, row in told.items() if "processes" in row}
    bench.same("counted", counts, {"gpu0": 2.0, "gpu1": 0.0})
    told = bench.ask(devices)["states"][-1]
    bench.same("devices unknown", [name for name, row in told.items() if "processes" in row], [])


CASES: tuple[Callable[[Bench], None], ...] = (
    several_devices, running_clock, natures, chosen_devices, unlike_devices, mig, grace_hopper,
    grace_hopper_one_counter, two_on_a_module, module_not_known, vanishes, stuck, unsupported, forbidden, blocks,
    zero, old_driver, no_library, throttled, state_unknown, shared,
)  # fmt: skip


def tried(case: Callable[[Bench], None], folder: Path, built: Path) -> Bench:
    bench = Bench(folder, built)
    try:
        case(bench)
    except (KeyError, StopIteration, subprocess.SubprocessError) as error:
        bench.wrong.append(f"the case raised {type(error).__name__}: {error}")
    return bench
