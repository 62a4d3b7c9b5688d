"""Read the state of one backend's devices once a second: clocks, temperature, throttling, ECC errors, power limit.

It has a thread of its own, so that a slow driver delays neither the energy sensors nor the run.
"""

from __future__ import annotations

import math
import threading
import time
from array import array
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from steelyard.contracts.base import from_json_object, to_json_object
from steelyard.contracts.conditions import COLUMNS, READ, SLOW, Readable
from steelyard.worker.sensors.backend import DeviceState, ReadError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Read = tuple[str, Callable[[], float]]
    """The call or file, and how it is read."""

T = TypeVar("T")
PERIOD_S = 1.0
SLOW_EVERY = 5
COUNTED = ("corrected", "uncorrected")
NOT_OFFERED = "this driver does not report it"
# Readings of a device that may wait for a slow disk; more are lost.
MAX_HELD = 4096
MAX_REASON = 500


def state_of(
    domain: str,
    backend: str,
    reads: Mapping[str, Read],
    unknown: Mapping[str, str],
    shared: Shared[Any] | None = None,
    **facts: float | None,
) -> DeviceState:
    """Try to read every column once; what fails stays unknown, with the reason.

    `unknown`: why columns without a way to read them have none. `shared`: the reading that several columns share.
    `facts`: the other fields of the contract.
    """
    works: dict[str, Callable[[], float]] = {}
    reasons = {column: unknown.get(column, NOT_OFFERED) for column in READ}
    for column, (_, read) in reads.items():
        try:
            first = read()
        except ReadError as error:
            reasons[column] = error.reason[:MAX_REASON]
            continue
        del reasons[column]
        # Errors count since the driver was loaded; only those of this run matter, and small numbers need few digits.
        works[column] = _since(read, first) if column in COUNTED else read
    known: dict[str, Any] = {name: value for name, value in facts.items() if value is not None and value > 0}
    sources = {column: reads[column][0] for column in works}
    contract = Readable(domain=domain, backend=backend, sources=sources, unknown=reasons, **known)
    return DeviceState(contract, works) if shared is None else DeviceState(contract, works, shared.forget)


class Shared(Generic[T]):
    """One reading from which several columns are taken."""

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._value: T | None = None

    def __call__(self) -> T:
        """Return the reading, which is made when it is first needed."""
        if self._value is None:
            self._value = self._read()
        return self._value

    def forget(self) -> None:
        """Read again at the next call."""
        self._value = None


def _since(read: Callable[[], float], first: float) -> Callable[[], float]:
    return lambda: read() - first


class StateReader:
    """Finds and reads the devices of one backend until `end`. `zero_s`: start of the run on the node's clock."""

    def __init__(self, opened: Callable[[], Sequence[DeviceState]], zero_s: float, period_s: float = PERIOD_S) -> None:
        self._open = opened
        self._zero_s, self._period_s = zero_s, period_s
        self._lock = threading.Lock()
        self._ending, self._finished = threading.Event(), threading.Event()
        self._held: dict[int, tuple[array[float], ...]] = {}
        self.readable: list[Readable] | None = None
        """What can be read of each device; None: the driver has not answered yet."""
        self.first: int | None = None
        """Number of the first device on the node, given by who writes the readings."""
        self.fault: Exception | None = None
        """Why the devices cannot be found."""

    @property
    def live(self) -> bool:
        """Whether there is, or may be, something to read."""
        return self.readable is None or bool(self.readable)

    def start(self) -> None:
        """Start reading."""
        threading.Thread(target=self._run, daemon=True, name="conditions").start()

    def end(self) -> None:
        """Read for the last time."""
        self._ending.set()

    def finished(self, timeout_s: float) -> bool:
        """Wait for the last reading; return whether it was made."""
        return self._finished.wait(timeout_s)

    def take(self) -> dict[int, tuple[array[float], ...]]:
        """Return the columns since the last call, by place of the device."""
        with self._lock:
            held, self._held = self._held, {}
        return held

    def _run(self) -> None:
        try:
            states = list(self._open())
            # Check that the result can be read back; otherwise it would corrupt the file of all sensors.
            self.readable = [from_json_object(Readable, to_json_object(state.contract)) for state in states]
        except Exception as error:  # noqa: BLE001 -- third-party code: any error is a reason
            self.fault, self.readable, states = error, [], []
        begin_s, turn = time.monotonic(), 0
        while True:
            ending = self._ending.is_set() or not states
            for place, state in enumerate(states):
                self._keep(place, self._row(state, whole=ending or turn % SLOW_EVERY == 0))
            if ending:
                self._finished.set()
                return
            # On a grid that does not drift. Turns that a slow driver has missed are left out.
            turn = max(turn + 1, int((time.monotonic() - begin_s) / self._period_s))
            self._ending.wait(max(0.0, begin_s + turn * self._period_s - time.monotonic()))

    def _row(self, state: DeviceState, *, whole: bool) -> list[float]:
        state.begin()
        values = {column: _value(read) for column, read in state.reads.items() if whole or column not in SLOW}
        values["time_s"] = time.monotonic() - self._zero_s
        return [values.get(column, math.nan) for column in COLUMNS]

    def _keep(self, place: int, row: Sequence[float]) -> None:
        with self._lock:
            columns = self._held.setdefault(place, tuple(array("d") for _ in COLUMNS))
            if len(columns[0]) < MAX_HELD:
                for column, value in zip(columns, row, strict=True):
                    column.append(value)


def _value(read: Callable[[], float]) -> float:
    """Return a reading, or not a number: the device may be lost, or a backend of another package wrong."""
    try:
        return float(read())
    except Exception:  # noqa: BLE001 -- see above
        return math.nan
