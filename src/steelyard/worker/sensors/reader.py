"""Read the channels of one backend at fixed times, in a thread.

A call that blocks is left in its thread, and a new thread goes on with the other channels. If the call returns, its
channel is read again; if it does not, the channel is given up.
"""

from __future__ import annotations

import math
import random
import threading
import time
from array import array
from contextlib import suppress
from typing import TYPE_CHECKING

from steelyard.worker.sensors.backend import ReadError, SensorsFound
from steelyard.worker.sensors.find import missing_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.energy import Missing
    from steelyard.worker.sensors.files import Samples

# A reading takes microseconds, but tens of milliseconds with some drivers.
STALLED_S = 1.0
# Longer than the longest pause of a driver that still answers.
BLOCKED_S = 10.0
# Minimum distance of requested readings from the one before: very short epochs must not cause a busy loop.
MARK_GAP_S = 0.02
# Samples per channel that may wait for a slow disk; more are lost and counted.
MAX_HELD = 4096


class Reader:
    """Reads one backend. `first` is the number of its first channel on the node."""

    def __init__(
        self,
        sensors: SensorsFound,
        first: int,
        period_s: float,
        *,
        random_phase: bool = False,
        ring: Callable[[], None] = lambda: None,
    ) -> None:
        """`ring` is called when every channel has been read once."""
        assert sensors.read is not None
        self._sensors, self._read = sensors, sensors.read
        self._first, self._period_s = first, period_s
        self._phase = random.Random(first).random if random_phase else lambda: 0.0
        self._begin_s, self._slot = time.monotonic(), -1
        self._lock = threading.Lock()
        self._wake, self._finished = threading.Event(), threading.Event()
        self._turn = 0  # a thread with an older turn was left behind
        self._call: tuple[int, float] | None = None  # the channel being read, and since when
        self._active = list(range(len(sensors.channels)))
        self._aside: dict[int, float] = {}
        self._held: dict[int, Samples] = {}
        self._lost: list[Missing] = []
        self._last, self._last_round_s = False, -math.inf
        self._ring = ring
        self.begun = False
        self.late = 0

    @property
    def live(self) -> bool:
        """Whether a channel is left or may come back."""
        return bool(self._active or self._aside)

    def start(self) -> None:
        """Start reading."""
        threading.Thread(target=self._run, args=(self._turn,), daemon=True, name="reader").start()

    def mark(self) -> None:
        """Read once more, immediately."""
        self._wake.set()

    def end(self) -> None:
        """Read for the last time; then `finished` returns True."""
        self._last = True
        self._wake.set()

    def finished(self, timeout_s: float) -> bool:
        """Wait for the last reading; return whether it was made."""
        return self._finished.wait(timeout_s)

    def take(self) -> tuple[dict[int, Samples], list[Missing]]:
        """Return samples by channel number, and lost channels, since the last call."""
        with self._lock:
            held, self._held = self._held, {}
            lost, self._lost = self._lost, []
        return {self._first + channel: samples for channel, samples in held.items()}, lost

    def look_after(self, *, ending: bool = False) -> None:
        """Leave blocking calls behind, and give up channels whose call does not return; at the end immediately.

        Must be called regularly.
        """
        now_s = time.monotonic()
        with self._lock:
            # Not those just left behind: the whole process may have been suspended and resume in a moment.
            self._give_up(
                [] if ending else [one for one, since_s in self._aside.items() if now_s - since_s > BLOCKED_S]
            )
            if self._call is not None and now_s - self._call[1] > STALLED_S:
                channel, since_s = self._call
                self._turn, self._call = self._turn + 1, None
                self._active.remove(channel)
                self._aside[channel] = since_s
                if not ending:
                    self.start()
            self._give_up(list(self._aside) if ending else [])

    def _give_up(self, channels: list[int]) -> None:
        for channel in channels:
            spent_s = time.monotonic() - self._aside.pop(channel)
            self._lose(channel, ReadError("blocked", f"a reading took more than {spent_s:.1f} s"))

    def _run(self, turn: int) -> None:
        due_s = self._next_due()
        while self._turn == turn:
            marked = self._wake.wait(max(0.0, due_s - time.monotonic()))
            if marked:
                self._wake.clear()
                time.sleep(max(0.0, self._last_round_s + MARK_GAP_S - time.monotonic()))
            last = self._last
            if not self._round(turn):
                return
            if last:
                with suppress(Exception):
                    self._sensors.close()
                self._finished.set()
                return
            if not marked:
                due_s = self._next_due()

    def _next_due(self) -> float:
        """Return the time of the next reading, on a grid that does not drift; missed periods are counted."""
        now_slot = int((time.monotonic() - self._begin_s) / self._period_s)
        slot = max(self._slot + 1, now_slot)
        self.late += slot - self._slot - 1
        self._slot = slot
        return self._begin_s + (slot + self._phase()) * self._period_s

    def _round(self, turn: int) -> bool:
        """Read every channel once; return False if this thread was left behind."""
        for channel in tuple(self._active):
            begin_s = time.monotonic()
            self._call = channel, begin_s
            value: float | Exception
            try:
                value = float(self._read(channel))
            except Exception as error:  # noqa: BLE001 -- third-party code: any error is a reason
                value = error
            end_s = time.monotonic()
            with self._lock:
                behind = self._turn != turn
                if behind and channel not in self._aside:
                    return False
                if behind:
                    del self._aside[channel]
                    self._active.append(channel)
                else:
                    self._call = None
                self._keep(channel, end_s, value, end_s - begin_s)
                if behind:
                    return False
        self._last_round_s = time.monotonic()
        if not self.begun:
            self.begun = True
            self._ring()
        return True

    def _keep(self, channel: int, time_s: float, value: float | Exception, spent_s: float) -> None:
        if isinstance(value, float) and not math.isfinite(value):
            value = ReadError("implausible", f"the reading is {value}")
        if isinstance(value, Exception):
            self._active.remove(channel)
            self._lose(channel, value)
            return
        samples = self._held.get(channel)
        if samples is None:
            samples = self._held[channel] = (array("d"), array("d"), array("d"))
        if len(samples[0]) == MAX_HELD:
            self.late += 1
            return
        for column, number in zip(samples, (time_s, value, spent_s), strict=True):
            column.append(number)

    def _lose(self, channel: int, error: Exception) -> None:
        known = self._sensors.channels[channel]
        self._lost.append(missing_of(known.backend, known.name, error))
