"""Time steps with deferred events: one synchronisation per block, never one per step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from steelyard.worker.devices.device import Device
    from steelyard.worker.workloads.step_maker import StepMaker


class StepTimer:
    """Times the steps of one rank in blocks. `issue` enqueues a block; `harvest` waits for it and returns its samples.

    Events of a step: data has arrived, exposed communication begins, it ends, step done. A step starts when the step
    before it ends, so the gap before its first event is the time in which the device waited for data. Each block starts
    with its own event, so work of the harness between blocks belongs to no step.
    """

    def __init__(self, device: Device, step_maker: StepMaker) -> None:
        self.device = device
        self.step_maker = step_maker
        self._events: list[Any] = []
        self._samples: list[int] = []

    def issue(self, count: int) -> None:
        """Enqueue `count` steps."""
        record, take, run = self.device.record, self.step_maker.take, self.step_maker.run
        event, sample = self._events.append, self._samples.append
        event(record())
        for _ in range(count):
            batch = take()
            event(record())
            event(run(batch))
            event(record())
            sample(batch.samples)

    def watch_communication(self) -> None:
        """From now on, separate computation from communication if the workload can."""
        self.step_maker.watch_communication()

    def harvest(self) -> NDArray[np.float64]:
        """Wait for the block and return its samples, one row per column of `observe.COLUMNS`."""
        self.device.synchronize()
        events, samples = self._events, self._samples
        self._events, self._samples = [], []
        first = events[2]
        if first is None:
            times = self.device.seconds([events[0], *(e for e in events[1:] if e is not None)])
            begin, end = times[1::2], times[2::2]
            exposed = np.full_like(end, math.nan) if self.step_maker.communicates else np.zeros_like(end)
        elif isinstance(first, tuple):
            flat = [events[0]]
            for step in range(len(samples)):
                data, (ready, reduced), done = events[1 + 3 * step : 4 + 3 * step]
                flat += (data, ready, reduced, done)
            times = self.device.seconds(flat)
            begin, end = times[1::4], times[4::4]
            exposed = times[3::4] - times[2::4]
        else:
            times = self.device.seconds(events)
            begin, end = times[1::3], times[3::3]
            exposed = end - times[2::3]
        start = np.concatenate([times[:1], end[:-1]])
        return np.stack(
            [start, end - start, begin - start, end - begin - exposed, exposed, np.asarray(samples, np.float64)]
        )
