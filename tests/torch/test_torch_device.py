"""Devices that torch drives: how one is found, and how each kind times a step. The accelerators here are simulated."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from conftest import HANG_S, make_spec
from steelyard.contracts.sample_files import COLUMNS
from steelyard.errors import InputError
from steelyard.worker.devices import torch_device
from steelyard.worker.devices.torch_device import CpuDevice, EventDevice, SynchronisedDevice, open_device
from steelyard.worker.engine.timer import StepTimer
from steelyard.worker.measure import clock
from steelyard.worker.measure.software import ACCELERATORS, accelerator_name, available
from steelyard.worker.workloads.batches import batches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from steelyard.worker.devices.torch_device import TorchDevice
    from steelyard.worker.workloads.batches import Batch


class Scripted:
    """A device module like torch's, for a device whose queue is controlled by the test."""

    def __init__(self, device_s: float = 0.0) -> None:
        self.device_s = device_s
        self.events = 0
        self.chosen: int | None = None
        self.outstanding = False

    def work(self, seconds: float) -> None:
        self.device_s += seconds
        self.outstanding = True

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 2

    def set_device(self, index: int) -> None:
        self.chosen = index

    def synchronize(self) -> None:
        self.outstanding = False

    def max_memory_allocated(self) -> int:
        return 3 << 30

    def max_memory_reserved(self) -> int:
        return 4 << 30

    def mem_get_info(self) -> tuple[int, int]:
        return 1 << 30, 8 << 30

    def get_device_name(self, index: int) -> str:
        return f"Scripted 9000 number {index}"

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(total_memory=8 << 30, pci_domain_id=1, pci_bus_id=0x65, pci_device_id=index)

    def Event(self, *, enable_timing: bool) -> ScriptedEvent:  # noqa: N802 -- torch's name
        assert enable_timing
        self.events += 1
        return ScriptedEvent(self)


class ScriptedEvent:
    """An event with its time in double precision that returns differences in single precision, as drivers do."""

    def __init__(self, module: Scripted) -> None:
        self._module = module
        self.at_s: float | None = None

    def record(self) -> None:
        self.at_s = self._module.device_s

    def query(self) -> bool:
        return not self._module.outstanding

    def elapsed_time(self, other: ScriptedEvent) -> float:
        if self._module.outstanding:
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        assert self.at_s is not None
        assert other.at_s is not None
        return float(np.float32((other.at_s - self.at_s) * 1e3))


class Eventless:
    """A backend without events."""

    def __init__(self) -> None:
        self.synchronised = 0

    def is_available(self) -> bool:
        return True

    def synchronize(self) -> None:
        self.synchronised += 1


class Scheduled:
    """A workload whose steps take the listed times, after half as long without data."""

    communicates = False

    def __init__(self, module: Scripted, step_s: list[float]) -> None:
        self._module = module
        self._step_s = iter(step_s)
        self._plan: Iterator[Batch] = batches(make_spec(), 0)
        self._next_s = 0.0

    def take(self) -> Batch:
        self._next_s = next(self._step_s)
        self._module.work(self._next_s / 2)
        return next(self._plan)

    def run(self, batch: Batch) -> None:
        self._module.work(self._next_s)


def planted(module: Any, monkeypatch: pytest.MonkeyPatch, local_rank: int = 0, local_world: int = 4) -> TorchDevice:
    """Put the module where torch keeps those of its backends."""
    monkeypatch.setattr(torch, "hpu", module, raising=False)
    monkeypatch.setenv("PT_HPU_LAZY_MODE", "0")
    return open_device("hpu", rank=local_rank, local_rank=local_rank, local_world=local_world)


def harvested(timer: StepTimer) -> dict[str, np.ndarray]:
    return dict(zip(COLUMNS, timer.harvest(), strict=True))


def test_a_build_for_cuda_on_a_machine_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.6 and newer name the accelerator of the build even if there is none."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert accelerator_name(torch) is None
    assert isinstance(open_device("auto", 0, 0), CpuDevice)
    with pytest.raises(InputError, match=r"(?s)found no cuda device on this node.*next: .*--device cpu"):
        open_device("cuda", 0, 0)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert accelerator_name(torch) == "cuda"


def test_a_torch_without_the_accelerator_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "accelerator", None)
    for kind in ACCELERATORS:
        monkeypatch.setattr(torch, kind, SimpleNamespace(is_available=lambda: False), raising=False)
    assert accelerator_name(torch) is None
    monkeypatch.setattr(torch, "hpu", Scripted(), raising=False)
    assert accelerator_name(torch) == "hpu"
    monkeypatch.setattr(torch, "cuda", Scripted())
    assert accelerator_name(torch) == "cuda"
    monkeypatch.delattr(torch, "hpu")
    assert not available(torch, "hpu")


def test_each_rank_takes_a_device_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Scripted()
    device = planted(module, monkeypatch, local_rank=1)
    assert device.visible == 2
    assert isinstance(device, EventDevice)
    assert (module.chosen, device.device, device.rank) == (1, torch.device("hpu", 1), 1)
    assert device.name() == "Scripted 9000 number 1"
    assert device.memory_bytes() == 8 << 30
    found = device.memory()
    assert (found.peak_bytes, found.reserved_bytes) == (3 << 30, 4 << 30)
    assert (found.driver_used_bytes, found.device_bytes) == (7 << 30, 8 << 30)
    assert (device.shares_memory, found.node_used_bytes, found.node_bytes) == (False, None, None)
    assert device.pci_address() == "0001:65:01.0"
    with pytest.raises(InputError, match=r"(?s)a node with 2 hpu device\(s\).*use --devices 2"):
        planted(module, monkeypatch, local_rank=2)


class OneVisible(Scripted):
    """The only device that a scheduler lets this process see."""

    def __init__(self, uuid: str | None) -> None:
        super().__init__()
        self._uuid = uuid

    def device_count(self) -> int:
        return 1

    def get_device_properties(self, index: int) -> Any:
        found = super().get_device_properties(index)
        return SimpleNamespace(**vars(found), uuid=self._uuid) if self._uuid else found


def test_one_visible_device_is_that_of_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    module = OneVisible("a0b1")
    device = planted(module, monkeypatch, local_rank=3)
    assert (module.chosen, device.device.index, device.rank, device.identity()) == (0, 0, 3, "a0b1")
    assert planted(OneVisible(None), monkeypatch, local_rank=3).identity() == "0001:65:00.0"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1,MIG-2")
    assert planted(module, monkeypatch, local_rank=3).identity() == "MIG-1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert planted(module, monkeypatch, local_rank=3).identity() == "a0b1"
    # Partitions of an AMD card may have one UUID.
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "5")
    assert planted(module, monkeypatch, local_rank=3).identity() == "a0b1 5 2 number 0"


def test_ranks_that_could_share_a_device_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend may tell neither a UUID nor a PCI address; a Gaudi has one owner in any case."""
    monkeypatch.setattr(torch, "mtia", Eventless())
    assert open_device("mtia", 0, 0, local_world=2).identity() is None
    with pytest.raises(InputError, match=r"(?s)each rank sees one mtia device.*cannot tell them apart.*newer torch"):
        open_device("mtia", 1, 1, local_world=2)
    assert planted(Eventless(), monkeypatch, local_rank=1).identity() is None


@pytest.mark.parametrize(
    ("setting", "lazy", "refused"),
    [
        ("0", True, False),
        ("1", False, True),
        ("2", False, True),
        (None, True, True),
        (None, False, False),
        (None, None, True),
    ],
)
def test_lazy_mode_is_refused(
    setting: str | None, lazy: bool | None, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the variable, the installed release tells its default; without an answer it is taken for lazy."""
    monkeypatch.setattr(torch, "hpu", Scripted(), raising=False)
    monkeypatch.delenv("PT_HPU_LAZY_MODE", raising=False)
    if setting is not None:
        monkeypatch.setenv("PT_HPU_LAZY_MODE", setting)
    if lazy is not None:
        internal = SimpleNamespace(is_lazy=lambda: lazy)
        monkeypatch.setitem(sys.modules, "habana_frameworks.torch.utils.internal", internal)  # type: ignore[arg-type]
        for name in ("habana_frameworks", "habana_frameworks.torch", "habana_frameworks.torch.utils"):
            monkeypatch.setitem(sys.modules, name, SimpleNamespace())  # type: ignore[arg-type]
    if refused:
        with pytest.raises(InputError, match=r"(?s)lazy mode is not supported.*set PT_HPU_LAZY_MODE=0"):
            open_device("hpu", 0, 0)
    else:
        assert open_device("hpu", 0, 0).device.type == "hpu"


# Two processes of torchrun, each with one visible device at index 0.
TWO = """
import os
import sys
from types import SimpleNamespace
import torch
import torch.distributed as dist
from steelyard.errors import InputError
from steelyard.worker.devices.torch_device import open_device
from steelyard.worker.engine.distinct import refuse_shared

rank = int(os.environ["RANK"])
identity = sys.argv[1 + rank]
torch.xpu = SimpleNamespace(
    is_available=lambda: True, device_count=lambda: 1, set_device=lambda _: None, synchronize=lambda: None,
    get_device_properties=lambda _: SimpleNamespace(uuid=identity, name="scripted"),
    get_device_name=lambda _: "scripted",
)
device = open_device("xpu", rank, rank, local_world=2)
assert device.device.index == 0
dist.init_process_group("gloo")
try:
    refuse_shared(device.identity(), rank, 2)
    said = "own"
except InputError as error:
    said = str(error).splitlines()[0]
# One call: the lines of two processes must not mix.
os.write(1, f"{said}\\n".encode())
dist.barrier()
# When the interpreter ends a thread of gloo may still run, which aborts the process.
os._exit(0)
"""


@pytest.mark.parametrize(
    ("identities", "own"),
    [
        pytest.param(("aa", "bb"), True, marks=pytest.mark.full("takes long: 12 s, two more ranks")),
        (("aa", "aa"), False),
    ],
)
def test_two_ranks_of_a_node_need_two_devices(identities: tuple[str, str], own: bool, tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(TWO)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(
        [*command, *identities],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")[:2]
    if own:
        assert lines == ["own", "own"]
    else:
        assert all(line.startswith("ranks 0, 1 of ") and "the same device (aa)" in line for line in lines), lines


def test_short_steps_stay_right_after_much_device_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """In single precision 10^6 s have a resolution of 64 ms: it would hide a step of 1 ms."""
    module = Scripted(device_s=1e6)
    device = planted(module, monkeypatch)
    timer = StepTimer(device, Scheduled(module, [1e6 / 1.5] + [1e-3 / 1.5] * 200))
    timer.issue(101)
    table = harvested(timer)
    assert table["step_s"][0] == pytest.approx(1e6)
    np.testing.assert_allclose(table["step_s"][1:], 1e-3, rtol=1e-6)
    np.testing.assert_allclose(table["input_wait_s"][1:], 1e-3 / 3, rtol=1e-6)
    np.testing.assert_allclose(table["compute_s"][1:], 2e-3 / 3, rtol=1e-6)
    made = module.events
    timer.issue(100)
    np.testing.assert_allclose(harvested(timer)["step_s"], 1e-3, rtol=1e-6)
    assert module.events == made


def test_a_block_begins_when_the_host_opens_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device's clock has another zero than the host's: only differences are used."""
    module = Scripted(device_s=5e4)
    device = planted(module, monkeypatch)
    host = SimpleNamespace(now_s=10.0)
    monkeypatch.setattr(clock, "now", lambda: host.now_s)
    timer = StepTimer(device, Scheduled(module, [0.2] * 20))
    for begin_s in (10.0, 700.0):
        host.now_s = begin_s
        timer.issue(10)
        host.now_s += 0.001
        table = harvested(timer)
        np.testing.assert_allclose(table["start_s"], begin_s + 0.3 * np.arange(10), rtol=1e-6)
    assert device.now() == host.now_s


class Untimed(Scripted):
    """Has events without times, as in some releases for some devices."""

    def Event(self, *, enable_timing: bool) -> Any:  # noqa: N802
        event = super().Event(enable_timing=enable_timing)
        event.elapsed_time = self._refuse  # type: ignore[method-assign]
        return event

    def _refuse(self, _other: ScriptedEvent) -> float:
        raise NotImplementedError("elapsed_time is not supported")


@pytest.mark.parametrize("module", [Eventless(), Untimed()])
def test_without_timed_events_the_host_waits(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    device = planted(module, monkeypatch)
    assert isinstance(device, SynchronisedDevice)
    assert "synchronisation at every event" in device.timing
    seen: list[str] = []
    monkeypatch.setattr(module, "synchronize", lambda: seen.append("waited"))

    def read() -> float:
        seen.append("read")
        return clock.START_S + 7.0

    # Not in `time` itself, which other threads read as well.
    monkeypatch.setattr(torch_device, "time", SimpleNamespace(monotonic=read))
    mark = device.record()
    assert seen == ["waited", "read"]
    assert device.seconds([mark]).tolist() == pytest.approx([7.0])


def test_memory_where_the_driver_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is unknown, not an error."""
    broken = Scripted()
    monkeypatch.setattr(broken, "mem_get_info", lambda: 1 / 0)
    found = planted(broken, monkeypatch).memory()
    assert (found.driver_used_bytes, found.device_bytes, found.reserved_bytes) == (None, 8 << 30, 4 << 30)


@pytest.mark.parametrize(
    ("name", "integrated", "shares"),
    [
        ("NVIDIA GH200 120GB", 0, True),
        ("NVIDIA GB200", 0, True),
        ("AMD Instinct MI300A", 0, True),
        ("NVIDIA GB10", 1, True),
        ("AMD Radeon Graphics", 1, True),
        ("NVIDIA H100 80GB HBM3", 0, False),
        ("AMD Instinct MI300X", 0, False),
    ],
)
def test_a_device_that_shares_the_memory_of_its_node(
    name: str, integrated: int, shares: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 60 kB\n")
    monkeypatch.setattr(torch_device, "ROOT", tmp_path)
    module = Scripted()
    monkeypatch.setattr(module, "get_device_name", lambda _index: name)
    monkeypatch.setattr(module, "get_device_properties", lambda _index: SimpleNamespace(is_integrated=integrated))
    device = planted(module, monkeypatch)
    assert device.shares_memory == shares
    found = device.memory()
    assert (found.node_used_bytes, found.node_bytes) == ((940 * 1024, 1000 * 1024) if shares else (None, None))


def test_a_backend_without_device_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    device = planted(Eventless(), monkeypatch)
    assert device.name() == "hpu"
    assert (device.memory_bytes(), device.pci_address()) == (None, None)
    found = device.memory()
    assert {found.peak_bytes, found.reserved_bytes, found.driver_used_bytes, found.device_bytes} == {None}


def test_the_cpu_is_timed_by_the_clock() -> None:
    device = open_device("cpu", 3, 0)
    assert (device.rank, device.pci_address(), device.memory_bytes()) == (3, None, None)
    before_s = device.now()
    marks = [device.record() for _ in range(3)]
    device.synchronize()
    assert before_s <= device.seconds(marks)[0] <= device.seconds(marks)[2] <= device.now()
    peak = device.memory().peak_bytes
    assert peak is not None
    assert 1e7 < peak < 1e13
