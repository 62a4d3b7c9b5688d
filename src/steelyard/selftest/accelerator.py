"""The first run on a new accelerator: is what the measurements assume of a device true here?

Processes of the measured side examine the device; short runs of steelyard itself show the rest. The result can be sent
to others. Every check has a limit, and so has the whole.
"""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from steelyard.contracts.accelerator import AcceleratorReport, AssumptionCheck
from steelyard.contracts.base import from_json_object
from steelyard.contracts.spec import Budget, Energy, RunSpec
from steelyard.doctor.torch_build import run_probe
from steelyard.errors import InputError
from steelyard.launch.local import LocalLauncher
from steelyard.launch.local_study import trial
from steelyard.selftest.accelerator_runs import (
    MAX_REASON,
    judge_bound,
    judge_collectives,
    judge_hardware,
    judge_repeats,
    judge_throttling,
)
from steelyard.selftest.hardware import hardware_test
from steelyard.selftest.shareable import names_here, shared_facts, without_names
from steelyard.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from steelyard.contracts.record import RunRecord

# A check that begins just before may end half a minute later: the whole takes at most five minutes.
LIMIT_S = 270.0
EXAMINE = ("events", "clocks", "queue", "profiler", "memory")
"""Checks of `steelyard.worker.assumptions`."""
# To import torch from a slow file system, and for each check.
START_S, EACH_S = 45.0, 15.0
RUN_LIMIT_S = 60.0
# A run that cannot last this long with its start is not begun.
LEAST_S = 15.0
RUN_S, LOAD_S = 3.0, 20.0
SENSOR_IDLE_S, SENSOR_LOAD_S = 3.0, 10.0
REPEATS = 3
MOST_RANKS = 16
MAX_LINE = 1 << 16
TINY: dict[str, Any] = {"workload": "tiny"}
PRODUCT: dict[str, Any] = {"workload": "matmul", "mode": "ceiling", "batch": 16}
EXCHANGE: dict[str, Any] = {"workload": "all-reduce", "mode": "ceiling"}


class NodeRuns:
    """Runs of steelyard on this node within a limited time."""

    def __init__(self, limit_s: float) -> None:
        self._begin_s, self._limit_s = time.monotonic(), limit_s
        self.facts: dict[str, str] = {}
        """From the environment of the runs."""

    def spent_s(self) -> float:
        """Return seconds since the beginning."""
        return time.monotonic() - self._begin_s

    def left_s(self, most_s: float) -> float:
        """Return the time that is left, at most `most_s`; TimeoutError if it is too little to begin something."""
        left_s = self._limit_s - self.spent_s()
        if left_s < LEAST_S:
            raise TimeoutError(f"no time left of {self._limit_s:.0f} s")
        return min(most_s, left_s)

    def run(self, seconds: float, *, watch: bool = False, **settings: Any) -> RunRecord:
        """Run a workload for some seconds and return its record."""
        budget = Budget(
            min_steps=1, min_seconds=seconds, max_seconds=seconds, max_steps=10**9, rel_half_width=1e-9, max_extension=1
        )
        spec = RunSpec(
            run_id="accelerator",
            study="selftest",
            configuration="accelerator",
            budget=budget,
            time_limit_s=self.left_s(seconds + RUN_LIMIT_S),
            energy=Energy(watch=watch),
            **settings,
        )
        record = trial(spec, LocalLauncher())
        if record.environment is not None:
            self.facts |= record.environment.facts
        return record

    def examine(self, names: tuple[str, ...]) -> Iterator[AssumptionCheck]:
        """Yield the checks of the worker. One that hangs or dies is skipped, and a new process makes the rest."""
        while names:
            limit_s = self.left_s(START_S + EACH_S * len(names))
            command = [sys.executable, "-P", "-m", "steelyard.worker.assumptions", *names]
            try:
                done = subprocess.run(
                    command, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=False
                )
                lines, ended = done.stdout, f"the process ended with exit code {done.returncode}"
                if words := done.stderr.decode("utf-8", "replace").strip().splitlines():
                    ended += f": {words[-1][:MAX_REASON]}"
            except subprocess.TimeoutExpired as late:
                lines, ended = late.stdout or b"", f"no answer within {limit_s:.0f} s"
            made = [_read_check(line) for line in lines.splitlines() if line.endswith(b"}")]
            yield from made
            names = names[len(made) :]
            if names:
                yield AssumptionCheck(name=names[0], outcome="could not check", text=ended)
                names = names[1:]


def _read_check(line: bytes) -> AssumptionCheck:
    return from_json_object(AssumptionCheck, json.loads(line[:MAX_LINE]))


def accelerator_test(tell: Callable[[str], None], limit_s: float = LIMIT_S) -> AcceleratorReport:
    """Check the accelerator of this node; `tell` receives progress. InputError if torch can use none."""
    node = NodeRuns(limit_s)
    tell("looking for accelerators")
    answer = run_probe()
    devices = [device for device in answer["devices"] if device["family"] != "cpu"]
    if not devices:
        raise InputError(
            "there is no accelerator here that torch can use",
            next_step="steelyard selftest checks the arithmetic without one; steelyard doctor tells what is missing",
        )
    checks = [*_examined(tell, node), *(_by_runs(tell, name, node, len(devices)) for name in RUNS)]
    names = names_here()
    return AcceleratorReport(
        version=VERSION,
        date=dt.datetime.now(dt.UTC).date().isoformat(),
        device=devices[0]["name"],
        devices=len(devices),
        memory_bytes=devices[0]["memory_bytes"],
        facts=without_names(shared_facts(answer["facts"] | node.facts), names, private=True),
        seconds=round(node.spent_s(), 1),
        checks=tuple(
            replace(
                check,
                text=without_names(check.text, names, private=True),
                details=tuple(without_names(check.details, names, private=True)),
            )
            for check in checks
        ),
    )


def _examined(tell: Callable[[str], None], node: NodeRuns) -> Iterator[AssumptionCheck]:
    tell(", ".join(EXAMINE))
    made = 0
    try:
        for check in node.examine(EXAMINE):
            made += 1
            yield check
    except TimeoutError as error:
        for name in EXAMINE[made:]:
            yield AssumptionCheck(name=name, outcome="could not check", text=str(error))


def _by_runs(tell: Callable[[str], None], name: str, node: NodeRuns, devices: int) -> AssumptionCheck:
    """Make a check. An error becomes its result: one fault on an unknown device must not lose the other checks."""
    tell(name)
    try:
        return RUNS[name](node, devices)
    except Exception as error:  # noqa: BLE001 -- see above
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return AssumptionCheck(name=name, outcome="could not check", text=text[:MAX_REASON])


# -- checks by runs of steelyard itself


def bound(node: NodeRuns, _devices: int) -> AssumptionCheck:
    """Run tiny kernels and large products."""
    return judge_bound(node.run(RUN_S, **TINY), node.run(RUN_S, **PRODUCT))


def repeatability(node: NodeRuns, _devices: int) -> AssumptionCheck:
    """Run the same products three times, and once in another format."""
    repeats = [node.run(RUN_S, precision="bf16", **PRODUCT) for _ in range(REPEATS)]
    return judge_repeats(repeats, {"bf16": repeats[-1], "fp32": node.run(RUN_S, **PRODUCT)})


def collectives(node: NodeRuns, devices: int) -> AssumptionCheck:
    """Run an all-reduce over all devices."""
    if devices == 1:
        return AssumptionCheck(name="collectives", outcome="could not check", text="there is one device")
    return judge_collectives(node.run(RUN_S, devices=min(devices, MOST_RANKS), **EXCHANGE))


def sensors(node: NodeRuns, _devices: int) -> AssumptionCheck:
    """Compare the energy sensors with each other, shorter than `selftest --hardware` does."""
    limit_s = node.left_s(SENSOR_LOAD_S + RUN_LIMIT_S)
    return judge_hardware(
        hardware_test(lambda _text: None, idle_s=SENSOR_IDLE_S, load_s=SENSOR_LOAD_S, limit_s=limit_s)
    )


def throttling(node: NodeRuns, devices: int) -> AssumptionCheck:
    """Load all devices of the node: only then it is known which clocks are the job's."""
    ranks = min(devices, MOST_RANKS)
    return judge_throttling(node.run(LOAD_S, watch=True, precision="bf16", devices=ranks, **PRODUCT))


RUNS: dict[str, Callable[[NodeRuns, int], AssumptionCheck]] = {
    "host-bound": bound,
    "repeatability": repeatability,
    "collectives": collectives,
    "throttling": throttling,
    "sensors": sensors,
}
