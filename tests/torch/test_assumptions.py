"""What is assumed of an accelerator: each check on a scripted one that is as assumed, and on one that is not."""

from __future__ import annotations

from typing import Any

import pytest

from scripted_accelerator import Script, ScriptedBench
from steelyard.worker import assumptions
from steelyard.worker.assumptions import CHECKS, Bench, check
from steelyard.worker.devices.torch_device import CpuDevice


@pytest.mark.parametrize("name", CHECKS)
def test_a_device_as_assumed(name: str) -> None:
    found = ScriptedBench(Script()).check(name)
    assert found.outcome == "ok", found.text
    assert found.numbers


@pytest.mark.parametrize(
    ("name", "script", "words"),
    [
        ("events", {"timer_scale": 1.01}, "events say"),
        ("events", {"timer_scale": 0.0}, "64 of 64 events are not later"),
        ("events", {"blocking": True, "event_s": 0.0}, "the cost of an event cannot be measured"),
        ("clocks", {"event_s": 5e-3}, "reached only after 5"),
        ("clocks", {"event_s": 1.0}, "reached only after more than 10"),
        ("clocks", {"timer_scale": 1.002}, "runs at 1.0020 times the host's"),
        ("queue", {"depth": 1}, "the queue is short"),
        ("queue", {"blocking": True}, "launches wait for the device"),
        ("profiler", {"profiler_scale": 0.0}, "the profiler saw no kernel"),
        ("profiler", {"profiler_scale": 0.9}, "takes 18 ms for the profiler"),
        ("profiler", {"names": ("gemm", "upload", "ncclDevKernel")}, "a copy from the host is not recognised"),
        ("profiler", {"names": ("gemm", "Memcpy HtoD", "sum")}, "communication is not recognised by its name (sum)"),
        ("memory", {"full": "error 2 in allocation"}, "which is not recognised as out of memory"),
        ("memory", {"full": ""}, "allocates twice the memory"),
        ("memory", {"driver_share": 0.5}, "memory is not plausible: reserved"),
    ],
)
def test_what_is_not_as_assumed_is_found(name: str, script: dict[str, Any], words: str) -> None:
    found = ScriptedBench(Script(**script)).check(name)
    assert found.outcome == "not as assumed", found.text
    assert words in found.text


@pytest.mark.parametrize("depth", [64, 1024])
def test_the_depth_of_the_queue(depth: int) -> None:
    found = ScriptedBench(Script(depth=depth)).check("queue")
    assert found.numbers["depth"] == pytest.approx(depth, rel=0.05)


def test_names_of_kernels_are_kept() -> None:
    assert ScriptedBench(Script()).check("profiler").details == (
        "gemm",
        "Memcpy HtoD (Pinned -> Device)",
        "ncclDevKernel_AllReduce",
    )


def test_a_device_without_timed_events_and_one_that_fails() -> None:
    outcomes = {name: check(name, Bench(CpuDevice(0))).outcome for name in ("events", "clocks", "queue", "profiler")}
    assert outcomes.pop("events") == "not as assumed"
    assert set(outcomes.values()) == {"could not check"}
    broken = ScriptedBench(Script())
    broken.device = None  # type: ignore[assignment]
    assert broken.check("queue").outcome == "could not check"


def test_the_work_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a real device is given, on the CPU."""
    monkeypatch.setattr(assumptions, "SIDE", 8)
    bench = Bench(CpuDevice(0))
    assert bench.long_kernel()().shape == (8, 8)
    assert bench.from_host()().nbytes == assumptions.COPY_BYTES
    assert bench.all_reduce() is None
    assert bench.allocate(8).nbytes == 8
