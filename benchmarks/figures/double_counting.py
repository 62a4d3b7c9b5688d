"""[double_counting] Each joule of a job is counted once: 64 ranks on 8 simulated nodes.

Every job runs through the real worker loop, sensor files and derivation. Sensors without noise read the same joules on
several levels: dies and cards (MI250), devices and modules with their CPU (GH200), hosts and whole nodes. The truth is
computed here from the script alone: watts times seconds. The ranks of each counted domain follow from its name.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from figure import arguments, at_most, finish
from steelyard.contracts.observe import SPEC_FILE
from steelyard.contracts.sim import Collective, Link, Node, Power, Sensor, SimTruth
from steelyard.contracts.spec import Budget, RunSpec
from steelyard.derive.record import derive
from steelyard.results.store import record_text
from steelyard.worker.engine.run import run_directory

if TYPE_CHECKING:
    from steelyard.contracts.record import RunRecord

RANKS, NODES = 64, 8
A_NODE = RANKS // NODES
# A step computes for 10 ms and communicates for 5: a ring of 64 ranks sends 2 x 63 / 64 of the message.
COMPUTE_S, COMM_S = 0.010, 0.005
BYTES_PER_S = 1e10
MESSAGE = round(COMM_S * BYTES_PER_S / (2 * (RANKS - 1) / RANKS))
POWER = Power(idle_w=90.0, compute_w=400.0, comm_w=200.0, compile_w=120.0, host_w=480.0)
SETUP_S, COMPILE_S = 6.0, 8.0

DEVICE_STEP_J = COMPUTE_S * 400.0 + COMM_S * 200.0
NODE_STEP_J = (COMPUTE_S + COMM_S) * 480.0

PLAIN = Node(devices_per_node=A_NODE)
MI250 = Node(devices_per_node=A_NODE, dies_per_card=2)
GH200 = Node(devices_per_node=A_NODE, modules=True)


def counter(scope: str, **more: float) -> Sensor:
    return Sensor(scope=scope, kind="counter", period_s=0.02, **more)  # type: ignore[arg-type]


def gauge(scope: str) -> Sensor:
    return Sensor(scope=scope, kind="gauge", period_s=0.1, average_s=0.1)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Scenario:
    """One machine: its sensors, and which parts of a node belong to the energy of the job and of the host."""

    node: Node
    sensors: tuple[Sensor, ...]
    host_in_job: bool = False
    host_known: bool = False


SCENARIOS = {
    "devices, hosts and nodes": Scenario(
        PLAIN, (counter("device"), gauge("device"), counter("cpu"), counter("node")), host_known=True
    ),
    "devices by gauges": Scenario(PLAIN, (gauge("device"), gauge("node"))),
    "counters that wrap": Scenario(PLAIN, (counter("device", wrap=2500.0), counter("node", wrap=20_000.0))),
    "nodes alone": Scenario(PLAIN, (counter("node"),), host_in_job=True),
    "MI250, cards and dies": Scenario(MI250, (counter("die"), counter("device"), gauge("device"))),
    "MI250, cards alone": Scenario(MI250, (counter("device"),)),
    "MI250, dies alone": Scenario(MI250, (counter("die"), gauge("die"))),
    "GH200, modules and all in them": Scenario(
        GH200, (counter("module"), counter("device"), counter("cpu"), counter("node")), host_known=True
    ),
    "GH200, modules by gauges": Scenario(GH200, (gauge("module"), counter("cpu")), host_in_job=True),
    "GH200, GPUs by gauges in counted modules": Scenario(GH200, (counter("module"), gauge("device"))),
}


def run(scenario: Scenario, steps: int) -> RunRecord:
    """The job on this machine."""
    truth = SimTruth(
        step_time_s=COMPUTE_S, setup_s=SETUP_S, compile_s=COMPILE_S, power=POWER, sensors=scenario.sensors,
        node=scenario.node, collective=Collective(message_bytes=MESSAGE, links=(Link(bytes_per_s=BYTES_PER_S),)),
    )  # fmt: skip
    spec = RunSpec(
        run_id="double-counting", configuration="figure", devices=RANKS, batch=32, sim=truth,
        budget=Budget(min_steps=steps, max_steps=steps),
    )  # fmt: skip
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        raw = Path(folder)
        (raw / SPEC_FILE).write_text(record_text(spec), encoding="utf-8")
        status = run_directory(raw)
        if status.code != "completed":
            raise RuntimeError(str(status))
        return derive(raw)


def truths(scenario: Scenario, record: RunRecord) -> dict[str, float]:
    """Return the true joules of the steady steps and of the compilation."""
    assert record.steady is not None
    steps = record.steady.stop_step - record.steady.start_step
    host = NODES if scenario.host_in_job else 0
    found = {
        "energy_job": steps * (RANKS * DEVICE_STEP_J + host * NODE_STEP_J),
        "energy_compile": COMPILE_S * (RANKS * 120.0 + host * 480.0),
        "idle_power_job": RANKS * 90.0 + host * 480.0,
        "energy_per_sample": (RANKS * DEVICE_STEP_J + host * NODE_STEP_J) / (RANKS * 32),
    }
    if scenario.host_known:
        found["energy_host"] = steps * NODES * NODE_STEP_J
    return found


def held(name: str, node: Node) -> range:
    """Return the ranks of a counted domain: `sim3/die5` is the die of rank 29."""
    place, _, domain = name.partition("/")
    first = A_NODE * int(place.removeprefix("sim"))
    if domain == "node":
        return range(first, first + A_NODE)
    kind, number = domain.rstrip("0123456789"), int(domain.lstrip("abcdefghijklmnopqrstuvwxyz"))
    each = 1 if kind == "die" else node.dies_per_card
    return range(first + number * each, first + (number + 1) * each)


def main() -> None:
    options = arguments(__doc__)
    steps = 1200 if options.quick else 4000
    worst, twice, never = 0.0, 0, 0
    for name, scenario in SCENARIOS.items():
        begin_s = time.monotonic()
        record = run(scenario, steps)
        errors = {}
        for quantity, truth in truths(scenario, record).items():
            found = record.quantities.get(quantity)
            value = found.value if found is not None else None
            errors[quantity] = abs(value / truth - 1) if value is not None else float("inf")
        main_error = max(errors["energy_job"], errors["energy_per_sample"], errors.get("energy_host", 0.0))
        worst = max(worst, main_error)
        validity = record.quantities["energy_job"].validity
        counted = Counter(
            rank for domain in (validity.domains if validity else ()) for rank in held(domain, scenario.node)
        )
        twice += sum(count - 1 for count in counted.values())
        never += RANKS - len(counted)
        shown = ", ".join(f"{quantity} {error:.1e}" for quantity, error in errors.items())
        print(f"{name}: {shown}; {time.monotonic() - begin_s:.1f} s", file=sys.stderr)
    finish(
        [
            at_most("double_counting: largest error of a job's energy", worst, "of the truth", 1e-3),
            at_most("double_counting: devices counted more than once", twice, "devices", 0),
            at_most("double_counting: devices not counted", never, "devices", 0),
        ]
    )


if __name__ == "__main__":
    main()
