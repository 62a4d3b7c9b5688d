"""Query the NVIDIA sensors in a fresh process, where the real nvidia-ml-py loads the fake library.

The result is returned as plain values.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fake_nvml.build import set_clock
from steelyard.worker.sensors.backend import DeviceState, ReadError, SensorsFound
from steelyard.worker.sensors.nvml import open_nvml

Reading = dict[str, Any]
"""{"value": J or W} or {"code": ..., "reason": ...}; with "before_s" and "after_s" on CLOCK_MONOTONIC."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What the process does."""

    root: str
    devices: tuple[str, ...] = ()
    folder: str = ""
    """Path of the clock of the library."""
    times_s: tuple[float, ...] = ()
    """Read all channels at these times of the device clock."""
    rounds: int = 0
    """Or read this many times, as fast as possible."""
    blocked: str = ""
    """At the end, read this channel in a thread, and all others meanwhile."""
    blocked_at_s: float = 0.0
    """At this time of the device clock."""
    without_binding: bool = False


def ask(question: Question, variables: dict[str, str]) -> dict[str, Any]:
    """domains, channels, missing (as the contracts have them), readings (a dict of channels each time), and the
    state of the devices: what can be read, and a dict of devices at the same times and at the end.
    """
    return ask_all([question], variables)[0]


def ask_all(questions: list[Question], variables: dict[str, str]) -> list[dict[str, Any]]:
    """Run one process for several queries of one set of devices; each opens the sensors again."""
    done = subprocess.run(
        [sys.executable, "-W", "error", __file__],
        input=json.dumps([asdict(question) for question in questions]),
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    if question["without_binding"]:
        sys.modules["pynvml"] = None  # type: ignore[assignment]
    root = Path(question["root"])
    begin_s = time.monotonic()
    found = open_nvml(root, question["devices"])
    devices = found.states() if found.states is not None else []
    opened_s = time.monotonic() - begin_s
    readings, states = [], []
    for time_s in question["times_s"]:
        set_clock(Path(question["folder"]), time_s)
        readings.append(_read_all(found))
        states.append(_read_states(devices))
    readings += [_read_all(found) for _ in range(question["rounds"])]
    if question["blocked"]:
        set_clock(Path(question["folder"]), question["blocked_at_s"])
        readings.append(_read_beside(found, question["blocked"]))
    states.append(_read_states(devices))
    found.close()
    return {
        "domains": [asdict(domain) for domain in found.domains],
        "channels": [asdict(channel) for channel in found.channels],
        "missing": [asdict(missing) for missing in found.missing],
        "readings": readings,
        "can_read": found.read is not None,
        "opened_s": opened_s,
        "readable": [asdict(state.contract) for state in devices],
        "states": states,
    }


def _read_states(devices: list[DeviceState]) -> dict[str, dict[str, float]]:
    values: dict[str, dict[str, float]] = {}
    for state in devices:
        state.begin()
        told = values[state.contract.domain] = {}
        for column, read in state.reads.items():
            with contextlib.suppress(ReadError):
                told[column] = read()
    return values


def _read_all(found: SensorsFound, without: str = "") -> dict[str, Reading]:
    return {
        channel.name: _read(found, number) for number, channel in enumerate(found.channels) if channel.name != without
    }


def _read_beside(found: SensorsFound, name: str) -> dict[str, Reading]:
    number = [channel.name for channel in found.channels].index(name)
    slow: dict[str, Reading] = {}
    thread = threading.Thread(target=lambda: slow.update({name: _read(found, number)}))
    thread.start()
    readings = _read_all(found, without=name)
    thread.join()
    return {**readings, **slow}


def _read(found: SensorsFound, number: int) -> Reading:
    assert found.read is not None
    before_s = time.monotonic()
    try:
        reading: Reading = {"value": found.read(number)}
    except ReadError as error:
        reading = {"code": error.code, "reason": error.reason}
    return {**reading, "before_s": before_s, "after_s": time.monotonic()}


if __name__ == "__main__":
    print(json.dumps([_answer(question) for question in json.loads(sys.stdin.read())]))
