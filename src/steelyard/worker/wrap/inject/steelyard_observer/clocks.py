"""When something happened: on the host's clock, or on that of a device by deferred events, without waiting for it."""

from __future__ import annotations

import time
from typing import Any

EVENT_DEVICES = ("cuda", "xpu")


class HostClock:
    """A moment is a time: the host itself computes, or waits for each step of the device."""

    timing = "host clock"
    moment = staticmethod(time.monotonic)

    @staticmethod
    def capturing() -> bool:
        """Whether what the program calls now is only recorded, to be replayed later."""
        return False

    @staticmethod
    def passed(_moment: Any) -> bool:
        """Whether the device has reached a moment."""
        return True

    @staticmethod
    def wait(_moment: Any) -> None:
        """Wait until the device has reached a moment."""

    @staticmethod
    def seconds(begin: Any, end: Any) -> Any:
        """Return the seconds between two moments."""
        return end - begin

    @staticmethod
    def at_s(moment: Any) -> Any:
        """Return a moment on the host's monotonic clock."""
        return moment


class EventClock:
    """A moment is an event in the device's queue, and when the host put it there."""

    timing = "device events, read when they have passed"

    def __init__(self, device: Any) -> None:
        self._device = device
        self._first: Any = None
        # An event that is recorded into a graph has no time, and a query of any event would break the capture.
        self.capturing = getattr(device, "is_current_stream_capturing", HostClock.capturing)

    def moment(self) -> Any:
        """Put an event into the queue."""
        event = self._device.Event(enable_timing=True)
        event.record()
        moment = (event, time.monotonic())
        self._first = self._first or moment
        return moment

    @staticmethod
    def passed(moment: Any) -> Any:
        """Whether the device has reached a moment."""
        return moment[0].query()

    @staticmethod
    def wait(moment: Any) -> None:
        """Wait until the device has reached a moment; only when the process ends."""
        moment[0].synchronize()

    @staticmethod
    def seconds(begin: Any, end: Any) -> Any:
        """Return the seconds between two moments."""
        return begin[0].elapsed_time(end[0]) / 1000.0

    def at_s(self, moment: Any) -> Any:
        """Return a moment on the host's monotonic clock."""
        # The host was at most one step ahead of its first event.
        return self._first[1] + self.seconds(self._first, moment)


def clock_of(device_type: str) -> HostClock | EventClock:
    """Return the clock of a device family."""
    from .hooks import torch_module

    # A vendor's own library adds its device under the name of the device, with the same events.
    module = None if device_type == "cpu" else getattr(torch_module(), device_type, None)
    return EventClock(module) if hasattr(module, "Event") else HostClock()
