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

    After each step but a block's first, the timer asks whether the device is still busy with the step before. If so,
    the host is ahead and the device does not wait for it.
    """

    def __init__(self, device: Device, step_maker: StepMaker) -> None:
        self.device = device
        self.step_maker = step_maker
        self._events: list[Any] = []
        self._samples: list[int] = []
        self._asked: list[Any] = []
        self._asks = device.queued
        self.asked = 0
        """Steps for which it was asked whether the host was ahead."""
        self.led = 0
        """Steps in which it was."""

    def issue(self, count: int) -> None:
        """Enqueue `count` steps."""
        record, take, run = self.device.record, self.step_maker.take, self.step_maker.run
        event, sample = self._events.append, self._samples.append
        ask, answer = (self.device.ask if self._asks else None), self._asked.append
        event(record())
        before = None
        for _ in range(count):
            batch = take()
            event(record())
            event(run(batch))
            done = record()
            event(done)
            sample(batch.samples)
            if ask is not None:
                if before is not None:
                    answer(ask(before))
                before = done

    def watch_communication(self) -> None:
        """From now on, separate computation from communication if the workload can. Measured steps have ended."""
        self._asks = False
        self.step_maker.watch_communication()

    def harvest(self) -> NDArray[np.float64]:
        """Wait for the block and return its samples, one row per column of `observe.COLUMNS`."""
        self.device.synchronize()
        events, samples, asked = self._events, self._samples, self._asked
        self._events, self._samples, self._asked = [], [], []
        if asked:
            self.asked += len(asked)
            self.led += sum(self.device.told(asked))
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
