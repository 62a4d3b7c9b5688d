"""A clock for runs on the CPU that no load can change: a reading takes a tick, and everything else no time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.worker.devices import torch_device
from steelyard.worker.measure import clock

if TYPE_CHECKING:
    import pytest

TICK_S = 2.0**-10


class ScriptedClock:
    """Replaces the module `time` where steps are timed."""

    def __init__(self) -> None:
        self.now_s = clock.START_S

    def monotonic(self) -> float:
        self.now_s += TICK_S
        return self.now_s


def script_the_clock(monkeypatch: pytest.MonkeyPatch) -> ScriptedClock:
    """Time the steps of this test by a scripted clock, which the test may also set forward."""
    scripted = ScriptedClock()
    monkeypatch.setattr(torch_device, "time", scripted)
    return scripted
