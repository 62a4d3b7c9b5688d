"""Energy of a run: simulated power, known by hand, through simulated sensors, their files and the derivation."""

from __future__ import annotations

import csv
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pytest

from conftest import make_spec
from steelyard.audit.table import parse_table
from steelyard.contracts import observe, sample_files
from steelyard.contracts.base import to_json_object
from steelyard.contracts.energy import (
    POWER_MAGIC,
    Channel,
    ChannelKind,
    Domain,
    Missing,
    Sampler,
    read_power_chunks,
    write_power_chunk,
)
from steelyard.contracts.record import DEVICES, DISAGREES, HOLDS_HOST, SAMPLER, Interval
from steelyard.contracts.sim import Collective, InputPipeline, Link, Memory, Node, Power, Sensor, Shape, SimTruth
from steelyard.contracts.spec import Budget, Energy, RunSpec
from steelyard.derive import sensors
from steelyard.derive import windows as energy_windows
from steelyard.derive.domains import cover
from steelyard.derive.observations import NodeSensors, Observations
from steelyard.derive.record import derive
from steelyard.results.store import record_text
from steelyard.rules.rule import check
from steelyard.worker.devices import sim
from steelyard.worker.engine.run import run_directory
from steelyard.worker.sensors.sim import Drawn

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.record import Quantity, RunRecord

    Simulate = Callable[[RunSpec], RunRecord]

ROOT = Path(__file__).resolve().parents[2]
POWER = Power(idle_w=60.0, compute_w=350.0, comm_w=150.0, compile_w=90.0, host_w=200.0)
# 10 ms of computation and 5 ms of communication: a ring of 4 ranks sends 2 x 3 / 4 of the message.
RING = Collective(message_bytes=2 * 10**8 // 3 // 2, links=(Link(bytes_per_s=1e10),))
STEP_S, STEP_J = 0.015, 0.010 * 350 + 0.005 * 150
FINE = Sensor(period_s=0.01, resolution=1e-6)
METER = Sensor(kind="gauge", average_s=0.1)
SHORT = Budget(min_steps=1000, max_steps=1000)


def truth(**more: Any) -> SimTruth:
    return SimTruth(**{"setup_s": 4.0, "compile_s": 6.0, "power": POWER, "sensors": (FINE, METER), **more})


def job(node: Node = Node(), sensors: tuple[Sensor, ...] = (FINE, METER), energy: Energy = Energy()) -> RunSpec:  # noqa: B008
    """Four ranks that compute and communicate."""
    script = truth(sensors=sensors, collective=RING, node=node)
    return RunSpec(run_id="run", configuration="configuration", devices=4, budget=SHORT, sim=script, energy=energy)


def value(record: RunRecord, name: str) -> float:
    found = record.quantities[name].value
    assert found is not None, record.quantities[name]
    return found


def main_of(record: RunRecord) -> Quantity:
    return record.quantities["energy_job"]


def reasons(record: RunRecord) -> str:
    validity = main_of(record).validity
    assert validity is not None
    return "\n".join(validity.reasons)


def verdict(record: RunRecord) -> str:
    validity = main_of(record).validity
    assert validity is not None
    return validity.verdict


def codes(record: RunRecord) -> list[str]:
    return [found.code for found in record.findings if found.code.startswith("SY4")]


def raw_run(folder: Path, spec: RunSpec) -> Path:
    (folder / observe.SPEC_FILE).write_text(record_text(spec), encoding="utf-8")
    assert run_directory(folder).code == "completed"
    return folder


def events(raw: Path, number: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (raw / f"sensors-{number:05d}.jsonl").read_text().splitlines()]


def rewrite(raw: Path, lines: list[dict[str, Any]], number: int = 0) -> None:
    (raw / f"sensors-{number:05d}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def keep_samples(raw: Path, keep: Callable[[int, np.ndarray[Any, Any]], np.ndarray[Any, Any]], number: int = 0) -> None:
    """The samples of a node without those that `keep` (channel and times to mask) leaves out."""
    path = raw / f"power-{number:05d}.bin"
    chunks = list(read_power_chunks(path))
    with path.open("wb") as file:
        file.write(POWER_MAGIC)
        for chunk in chunks:
            table = chunk.table[:, keep(chunk.channel, chunk.table[0])]
            if table.shape[1]:
                write_power_chunk(file, chunk.channel, table)


# -- truth


def test_every_joule_of_every_window(simulate: Simulate) -> None:
    record = simulate(job(sensors=(FINE, METER, Sensor(scope="cpu", period_s=0.01))))
    assert record.steady is not None
    steps = record.steady.stop_step - record.steady.start_step
    truths = {
        "energy_job": 4 * steps * STEP_J,
        "energy_device": steps * STEP_J,
        "energy_all_steps": 4 * 1000 * STEP_J,
        "energy_compile": 4 * 6 * 90,
        "energy_run": 4 * (4 * 60 + 6 * 90 + 1000 * STEP_J),
        "power_job": 4 * STEP_J / STEP_S,
        "idle_power_job": 4 * 60,
        "energy_job_net": 4 * steps * (STEP_J - 60 * STEP_S),
        "energy_per_sample": STEP_J / 32,
        "energy_per_sample_net": (STEP_J - 60 * STEP_S) / 32,
        "samples_per_wh": 3600 * 32 / STEP_J,
        "energy_host": steps * STEP_S * 200,
    }
    for name, expected in truths.items():
        found = record.quantities[name]
        # The run goes on for the cross-check's steps.
        near = 0.08 if name == "energy_run" else 5e-3
        assert found.value == pytest.approx(expected, rel=near), name
        assert found.interval is not None
        if name != "energy_run":
            assert found.interval.low < expected < found.interval.high, name
        assert found.validity is not None
        assert found.validity.verdict in ("valid", "doubtful"), name
    assert (verdict(record), codes(record)) == ("valid", [])
    rate = record.quantities["throughput"]
    assert {record.quantities[name].window for name in ("energy_job", "energy_per_sample")} == {rate.window}
    # What one device draws, what the job does a second, and what a sample costs are one and the same.
    assert value(record, "power_job") / value(record, "throughput") == pytest.approx(
        value(record, "energy_per_sample"), rel=1e-6
    )


@pytest.mark.parametrize(
    "sensor",
    [
        Sensor(gain_error=0.04),
        Sensor(noise_w=20.0),
        Sensor(resolution=2.0),
        Sensor(wrap=1000.0),
        Sensor(drop_share=0.3),
        Sensor(phase_s=0.07, period_s=0.13),
        Sensor(kind="gauge", resolution=1.0, noise_w=5.0),
        Sensor(kind="gauge", average_s=1.0),
        Sensor(kind="gauge", average_s=0.1, gain_error=-0.04, drop_share=0.2),
    ],
)
def test_sensors_that_err_stay_inside_their_interval(sensor: Sensor, simulate: Simulate) -> None:
    record = simulate(job(sensors=(sensor,)))
    found = main_of(record)
    assert record.steady is not None
    assert found.interval is not None, found
    expected = 4 * (record.steady.stop_step - record.steady.start_step) * STEP_J
    assert found.interval.low < expected < found.interval.high
    assert found.value != pytest.approx(expected, rel=1e-12)


def test_the_same_script_gives_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = (Sensor(noise_w=3.0, drop_share=0.1), Sensor(kind="gauge", noise_w=3.0, seen_s=0.02), Sensor(seen_s=0.02))
    spec = job(sensors=noisy, energy=Energy(random_phase=True, idle_s=2.0))
    made = []
    for held in (1 << 18, 100):
        monkeypatch.setattr(sim, "_SPANS_IN_MEMORY", held)
        folder = tmp_path / str(held)
        folder.mkdir()
        node = Observations(raw_run(folder, spec)).nodes[0]
        assert node.ended is not None
        columns: dict[int, list[np.ndarray[Any, Any]]] = {}
        for chunk in node.samples():
            columns.setdefault(chunk.channel, []).append(chunk.table)
        made.append({channel: np.concatenate(tables, axis=1) for channel, tables in columns.items()})
    assert made[0].keys() == made[1].keys()
    for channel, table in made[0].items():
        np.testing.assert_allclose(table, made[1][channel], rtol=1e-9, atol=1e-6)


def test_power_over_time_is_exact() -> None:
    drawn = Drawn(10.0)
    drawn.extend([1.0, 2.0, 110.0, 2.0, 2.5, 60.0])
    drawn.extend([4.0, 5.0, 20.0])
    at_s = np.array([-1.0, 1.0, 1.5, 2.0, 2.5, 3.0, 4.5, 6.0])
    np.testing.assert_allclose(drawn.joules(at_s), [-10, 10, 65, 120, 150, 155, 175, 195])
    np.testing.assert_allclose(drawn.watts(at_s), [10, 10, 110, 110, 60, 10, 20, 10])
    drawn.forget(4.2)
    np.testing.assert_allclose(drawn.joules(at_s[-2:]), [175, 195])


def test_epochs_and_the_loader_between_them(simulate: Simulate) -> None:
    # 25 steps an epoch; the loader takes half a second to start again, in which the device idles.
    restart = truth(input=InputPipeline(epoch_restart_s=0.5), step_time_s=0.1, sensors=(FINE,))
    record = simulate(make_spec(epoch_samples=25 * 32, budget=Budget(epochs=10), sim=restart))
    assert value(record, "energy_first_epoch") == pytest.approx(2.5 * 350, rel=5e-3)
    assert value(record, "energy_later_epochs") == pytest.approx(2.5 * 350 + 0.5 * 60, rel=5e-3)


def test_replicas_of_different_speed(simulate: Simulate) -> None:
    # Two replicas at 100 steps a second and one at 80; all of them draw the same.
    slow = truth(slow_rank=2, slow_factor=1.25, sensors=(FINE,))
    record = simulate(make_spec(devices=3, mode="infer", sim=slow, budget=SHORT))
    assert value(record, "power_job") == pytest.approx(3 * 350, rel=5e-3)
    assert value(record, "energy_per_sample") == pytest.approx(3 * 350 / (280 * 32), rel=5e-3)


def test_time_between_steps_is_left_out_where_it_counts() -> None:
    windows = energy_windows.NodeWindows()
    pieces = energy_windows._Stretches(0.1)
    pieces.extend(np.array([0.0, 1.0, 5.0]), np.ones(3))
    pieces.extend(np.array([6.0, 9.0]), np.ones(2))
    pieces.put("main", windows)
    assert windows.pieces["main"] == [(0.0, 2.0), (5.0, 7.0), (9.0, 10.0)]
    assert (windows.step_s["main"], windows.seconds("main"), windows.doubts) == (5.0, 5.0, {})
    close = energy_windows._Stretches(0.1)
    close.extend(np.array([0.0, 1.005]), np.ones(2))
    close.put("main", windows)
    assert windows.pieces["main"] == [(0.0, 2.005)]
    small = energy_windows._Stretches(10.0)
    small.extend(np.array([0.0, 6.0]), np.ones(2))
    small.put("main", windows)
    assert windows.doubts["main"] == "71% of the window is time between steps"


def test_each_node_has_its_own_clock(tmp_path: Path) -> None:
    raw = raw_run(tmp_path, job(node=Node(devices_per_node=2)))
    before = derive(raw)
    # The second node's processes started 3 s later: all that is on their clocks reads 3 s less.
    chunks = list(sample_files.read_chunks(raw / "steps-00000.bin", 0, 10**9, check=True))
    for number in (0, 2):
        with (raw / f"steps-{number:05d}.bin").open("wb") as file:
            file.write(sample_files.FILE_MAGIC)
            for chunk in chunks:
                if chunk.rank // 2 == number // 2:
                    table = chunk.table.copy()
                    table[0] -= 1.5 * number
                    sample_files.write_chunk(file, chunk.rank, chunk.first_step, table)
    lines = [line | ({"zero_s": line["zero_s"] + 3.0} if line["kind"] == "sampler" else {}) for line in events(raw, 2)]
    rewrite(raw, lines, 2)
    phases = [json.loads(line) for line in (raw / "events-00000.jsonl").read_text().splitlines()]
    moved = [
        line | {"start_s": line["start_s"] - 3.0, "end_s": line["end_s"] - 3.0}
        for line in phases
        if line["kind"] == "phase"
    ]
    (raw / "events-00002.jsonl").write_text("".join(json.dumps(line) + "\n" for line in moved))
    after = derive(raw)
    for name in ("energy_job", "energy_compile", "energy_run", "energy_per_sample"):
        assert value(after, name) == pytest.approx(value(before, name), rel=1e-9), name


# -- which domains


@pytest.mark.parametrize(
    ("node", "scopes", "counted", "scope", "host"),
    [
        (Node(), ("device", "cpu", "node"), {"device0", "device1", "device2", "device3"}, "device", 0),
        (Node(dies_per_card=2), ("device", "die"), {"device0", "device1"}, "die", 0),
        (Node(dies_per_card=2), ("die", "node"), {"die0", "die1", "die2", "die3"}, "die", 0),
        (Node(modules=True), ("module", "device", "cpu"), {f"device{n}" for n in range(4)}, "device", 0),
        (Node(modules=True), ("module", "cpu"), {f"module{n}" for n in range(4)}, "module", 1),
        (Node(), ("node",), {"node"}, "node", 1),
    ],
)
def test_each_joule_once(
    node: Node, scopes: tuple[str, ...], counted: set[str], scope: str, host: int, simulate: Simulate
) -> None:
    several = tuple(Sensor(scope=name, period_s=0.01) for name in scopes)  # type: ignore[arg-type]
    record = simulate(job(node=node, sensors=several))
    found = main_of(record)
    assert record.steady is not None
    assert found.validity is not None
    steps = record.steady.stop_step - record.steady.start_step
    assert found.value == pytest.approx(steps * (4 * STEP_J + host * STEP_S * 200), rel=2e-3)
    assert {name.removeprefix("sim0/") for name in found.validity.domains} == counted
    assert record.quantities["energy_device"].scope == scope
    assert codes(record) == (["SY409"] if host else [])
    assert reasons(record).startswith(HOLDS_HOST) == bool(host)
    assert ("energy_host" in record.quantities) == ("cpu" in scopes and not host)


def domains(*given: tuple[str, str, str | None, tuple[int, ...]]) -> dict[str, Domain]:
    return {
        name: Domain(name=name, scope=scope, parent=parent, ranks=ranks)  # type: ignore[arg-type]
        for name, scope, parent, ranks in given
    }


def test_a_neighbour_that_only_the_whole_tells_takes_the_whole() -> None:
    tree = domains(("board", "board", None, ()), ("a", "device", "board", ()), ("b", "device", "board", ()))
    assert cover(tree, {"a", "b", "board"}, on_cpu=False).counted == ["a", "b"]
    found = cover(tree, {"a", "board"}, on_cpu=False)
    assert (found.counted, found.unread) == (["board"], [])
    found = cover(tree, {"a"}, on_cpu=False)
    assert (found.counted, found.unread) == (["a"], ["b"])


def test_devices_of_others_are_not_the_jobs() -> None:
    tree = domains(("a", "device", None, (0,)), ("b", "device", None, ()))
    assert cover(tree, {"a", "b"}, on_cpu=False).counted == ["a"]


def test_a_job_on_the_cpu_counts_the_host_once() -> None:
    tree = domains(("package", "cpu", None, ()), ("core", "cpu", "package", ()), ("dram", "memory", None, ()))
    assert cover(tree, {"package", "core", "dram"}, on_cpu=True).counted == ["package", "dram"]


def test_parents_in_a_ring_are_survived() -> None:
    tree = domains(("a", "device", "b", ()), ("b", "device", "a", ()), ("c", "device", "c", ()))
    assert "c" in cover(tree, {"a", "b", "c"}, on_cpu=False).counted


def test_a_module_alone_stands_for_what_is_in_it() -> None:
    found = cover(domains(("m", "module", None, ()), ("grace", "cpu", "m", ())), {"m", "grace"}, on_cpu=False)
    assert (found.counted, found.hosts) == (["m"], [])


# -- no sensor


def test_without_sensors_there_is_no_word_of_energy(simulate: Simulate, tmp_path: Path) -> None:
    record = simulate(make_spec(sim=SimTruth(power=POWER)))
    assert not [name for name in record.quantities if "energy" in name or "power" in name]
    assert not [path for path in tmp_path.iterdir() if "sensors" in path.name]
    assert record.findings == ()


def test_nobody_looks_where_that_was_asked_for(simulate: Simulate, tmp_path: Path) -> None:
    record = simulate(job(energy=Energy(watch=False)))
    assert not [name for name in record.quantities if "energy" in name]
    assert not [path for path in tmp_path.iterdir() if "sensors" in path.name]


def test_what_cannot_be_read_is_one_quantity_with_the_reason(tmp_path: Path) -> None:
    raw = raw_run(tmp_path, make_spec())
    lost = Missing(backend="rapl", what="package-0", code="forbidden", reason="energy_uj is readable by root only")
    rewrite(raw, [{"kind": "missing", **to_json_object(lost)}])
    record = derive(raw)
    assert [name for name in record.quantities if "energy" in name or "power" in name] == ["energy_job"]
    assert main_of(record).reason == (
        "no power or energy sensor can be read here: rapl: energy_uj is readable by root only"
    )
    assert codes(record) == []


# -- what goes wrong


def test_a_sampler_that_was_killed(tmp_path: Path) -> None:
    raw = raw_run(tmp_path, job())
    rewrite(raw, events(raw)[:-1])
    # After the window: the energy stands, with a reservation.
    record = derive(raw)
    assert (verdict(record), codes(record)) == ("doubtful", ["SY408"])
    keep_samples(raw, lambda _, time_s: time_s < 1000 + 15.0)
    record = derive(raw)
    assert record.status.code == "completed"
    assert (verdict(record), main_of(record).value) == ("invalid", None)
    assert "SY408" in codes(record)
    assert f"{SAMPLER}killed on sim0;" in reasons(record)
    assert value(record, "energy_compile") == pytest.approx(4 * 6 * 90, rel=0.01)


def test_a_sampler_that_ended_early_says_why(tmp_path: Path) -> None:
    raw = raw_run(tmp_path, job())
    keep_samples(raw, lambda _, time_s: time_s < 1000 + 15.0)
    word = {"kind": "ended", "reason": "the readings cannot be written: No space left on device", "at_s": 1015.0}
    rewrite(raw, [*events(raw)[:-1], {**word, "samples": 10}])
    record = derive(raw)
    assert verdict(record) == "invalid"
    assert "No space left on device" in reasons(record)


def test_a_sampler_that_was_stopped_for_a_while(tmp_path: Path) -> None:
    raw = raw_run(tmp_path, job(sensors=(METER,)))
    keep_samples(raw, lambda _, time_s: (time_s < 1013) | (time_s > 1021))
    record = derive(raw)
    assert verdict(record) == "invalid"
    assert codes(record) == ["SY402"]


@pytest.mark.parametrize("damage", ["cut", "flip", "magic", "header", "events"])
def test_damaged_files_are_a_reason_and_no_failure(damage: str, tmp_path: Path) -> None:
    raw = raw_run(tmp_path, job())
    path = raw / ("sensors-00000.jsonl" if damage == "events" else "power-00000.bin")
    data = bytearray(path.read_bytes())
    if damage == "cut":
        del data[len(data) // 3 :]
    elif damage == "flip":
        data[len(data) // 3] ^= 0xFF
    elif damage == "events":
        data[len(data) // 2 : len(data) // 2 + 5] = b"\xff{{}}"
    else:
        data[0 if damage == "magic" else len(POWER_MAGIC)] ^= 0xFF
    path.write_bytes(bytes(data))
    record = derive(raw)
    assert record.status.code == "completed"
    assert main_of(record).value is None
    assert main_of(record).reason


def test_strange_readings_are_survived(tmp_path: Path) -> None:
    raw = raw_run(tmp_path, make_spec())
    channel = Channel(name="x", backend="odd", domain="gpu0", kind="gauge", resolution=1.0)
    told = Sampler(node="n", process=0, period_s=0.1, clock="x", zero_s=0.0)
    lines: list[tuple[str, Any]] = [
        ("sampler", told), ("domain", Domain(name="gpu0", scope="device")), ("channel", channel),
    ]  # fmt: skip
    rewrite(raw, [{"kind": kind, **to_json_object(contract)} for kind, contract in lines])
    with (raw / "power-00000.bin").open("wb") as file:
        file.write(POWER_MAGIC)
        odd = np.array([[3.0, np.nan, 1.0, np.inf, 2.0], [1e300, -5.0, np.nan, 1.0, -np.inf], [0.0, -1.0, 0, 0, 0]])
        write_power_chunk(file, 0, odd)
        write_power_chunk(file, 7, odd)
    record = derive(raw)
    assert main_of(record).value is None
    assert verdict(record) == "invalid"


def test_a_run_that_fails_has_what_its_sensors_saw(simulate: Simulate) -> None:
    full = Memory(limit_bytes=1e9, bytes_per_sample=1e8)
    record = simulate(make_spec(sim=truth(memory=full)))
    assert record.status.code == "out_of_memory"
    assert codes(record) == []
    assert "energy_per_sample" not in record.quantities
    # The setup was 4 s of idling, and the run ended with it.
    assert value(record, "energy_run") == pytest.approx(4 * 60, rel=0.02)


@pytest.mark.parametrize("node", [Node(devices_per_node=3), Node(devices_per_node=3, dies_per_card=2)])
def test_nodes_that_are_not_full(node: Node, simulate: Simulate) -> None:
    # Seven ranks on nodes of three: 3, 3 and 1. Cards of two dies: the odd ones hold a die that idles.
    record = simulate(make_spec(devices=7, mode="infer", sim=truth(node=node, sensors=(FINE,)), budget=SHORT))
    spare = 3 if node.dies_per_card == 2 else 0
    assert value(record, "power_job") == pytest.approx(7 * 350 + spare * 60, rel=2e-3)
    assert codes(record) == []


def test_a_counter_that_stands_still_gives_no_joules(simulate: Simulate) -> None:
    record = simulate(job(sensors=(Sensor(frozen_after_s=3.0),)))
    assert (verdict(record), main_of(record).value, codes(record)) == ("invalid", None, ["SY402"])
    assert "frozen" in reasons(record)


def test_a_gauge_speaks_for_a_counter_that_stands_still(simulate: Simulate) -> None:
    record = simulate(job(sensors=(Sensor(frozen_after_s=3.0), METER)))
    assert record.steady is not None
    assert (verdict(record), codes(record)) == ("doubtful", ["SY403"])
    steps = record.steady.stop_step - record.steady.start_step
    assert main_of(record).value == pytest.approx(4 * steps * STEP_J, rel=0.01)
    assert "read from a gauge" in reasons(record)


def test_counter_and_integral_that_differ_are_told(simulate: Simulate) -> None:
    record = simulate(job(sensors=(FINE, Sensor(kind="gauge", average_s=0.1, gain_error=0.3))))
    assert (verdict(record), codes(record)) == ("doubtful", ["SY404"])
    assert DISAGREES in reasons(record)
    assert record.steady is not None
    steps = record.steady.stop_step - record.steady.start_step
    assert main_of(record).value == pytest.approx(4 * steps * STEP_J, rel=2e-3), "the counter counts"


@pytest.mark.parametrize(("apart", "found"), [(0.005, []), (0.04, ["SY404"])])
def test_the_tolerance_of_one_circuit_does_not_explain_a_difference(
    simulate: Simulate, apart: float, found: list[str]
) -> None:
    """Both sensors may be wrong by 5 %, but not by different amounts."""
    record = simulate(job(sensors=(FINE, Sensor(kind="gauge", average_s=0.1, gain_error=apart))))
    assert codes(record) == found


def test_the_interval_without_gain_is_in_the_record(simulate: Simulate) -> None:
    record = simulate(job())
    for name in ("energy_job", "power_job", "energy_device", "energy_per_sample", "energy_all_steps"):
        energy, interval = value(record, name), record.quantities[name].interval
        assert interval is not None
        assert interval.low_without_gain is not None
        assert interval.high_without_gain is not None
        assert interval.gain == pytest.approx(0.05 * energy)
        assert interval.low == pytest.approx(interval.low_without_gain - 0.05 * energy)
        assert energy - interval.low_without_gain < 0.002 * energy
    energy, work = (record.quantities[name].interval for name in ("energy_per_sample", "samples_per_wh"))
    assert energy is not None
    assert work is not None
    assert work.low_without_gain == pytest.approx(3600 / (energy.high_without_gain or 0.0))
    assert work.high_without_gain == pytest.approx(3600 / (energy.low_without_gain or 0.0))


def test_errors_of_different_devices_are_independent(simulate: Simulate) -> None:
    """Four devices together have twice the uncertainty of one, apart from gain."""
    rest_j = []
    for ranks in (1, 4):
        interval = main_of(simulate(replace(job(), devices=ranks, sim=truth(sensors=(FINE,))))).interval
        assert interval is not None
        rest_j.append((interval.high_without_gain or 0.0) - (interval.low_without_gain or 0.0))
    assert rest_j[1] == pytest.approx(2 * rest_j[0], rel=0.05)


def test_power_above_the_limit_is_no_energy(simulate: Simulate) -> None:
    record = simulate(job(sensors=(Sensor(limit_w=150.0),)))
    assert verdict(record) == "invalid"
    assert "implausible" in reasons(record)


@pytest.mark.parametrize("lost", ["a device", "a node", "the first node"])
def test_without_every_device_there_is_no_energy_of_the_job(lost: str, tmp_path: Path) -> None:
    raw = raw_run(tmp_path, job(node=Node(devices_per_node=2), sensors=(FINE,)))
    if lost == "a device":
        keep = [line for line in events(raw, 2) if line.get("domain") != "device1"]
        rewrite(raw, keep, 2)
    else:
        for name in ("sensors", "power"):
            next(raw.glob(f"{name}-0000{2 if lost == 'a node' else 0}.*")).unlink()
    record = derive(raw)
    assert (verdict(record), main_of(record).value, codes(record)) == ("invalid", None, ["SY405"])
    assert DEVICES in reasons(record)


def test_devices_are_counted_where_no_ranks_are_named(tmp_path: Path) -> None:
    raw = raw_run(tmp_path, job(sensors=(FINE,)))
    unnamed = [line | ({"ranks": []} if line["kind"] == "domain" else {}) for line in events(raw)]
    rewrite(raw, unnamed)
    assert verdict(derive(raw)) == "valid"
    rewrite(raw, [line for line in unnamed if "device3" not in (line.get("domain"), line.get("name"))])
    record = derive(raw)
    assert codes(record) == ["SY405"]
    assert "3 of 4 devices on sim0 can be read" in reasons(record)


def test_devices_of_neighbours_that_are_counted_are_told(tmp_path: Path) -> None:
    raw = raw_run(tmp_path, job(sensors=(FINE,)))
    more = [
        {"kind": "domain", **to_json_object(Domain(name="device4", scope="device"))},
        {
            "kind": "channel",
            **to_json_object(Channel(name="x", backend="x", domain="device4", kind="gauge", resolution=1.0)),
        },
    ]
    unnamed = [line | ({"ranks": []} if line["kind"] == "domain" else {}) for line in events(raw)]
    rewrite(raw, [*unnamed[:-1], *more, unnamed[-1]])
    with (raw / "power-00000.bin").open("ab") as file:
        time_s = 1000 + 0.1 * np.arange(300)
        write_power_chunk(
            file,
            len([line for line in unnamed if line["kind"] == "counter"]),
            np.stack([time_s, 0 * time_s + 50, 0 * time_s]),
        )
    record = derive(raw)
    assert "SY405" in codes(record)
    assert "5 devices on sim0 are counted, but the job has only 4 there" in reasons(record)


def test_a_channel_that_was_lost_says_why(tmp_path: Path) -> None:
    raw = raw_run(tmp_path, job(sensors=(FINE,)))
    lost = Missing(backend="sim", what="sim0.device2.energy", code="vanished", reason="the device fell off the bus")
    lines = events(raw)
    rewrite(raw, [*lines[:-1], {"kind": "missing", **to_json_object(lost)}, lines[-1]])
    keep_samples(raw, lambda channel, time_s: (time_s < 1015) | (channel != 2))
    record = derive(raw)
    assert verdict(record) == "invalid"
    assert "vanished: the device fell off the bus (sim0/sim0.device2.energy)" in reasons(record)


def test_hosts_are_summed_over_all_nodes_or_not_at_all(tmp_path: Path) -> None:
    raw = raw_run(tmp_path, job(node=Node(devices_per_node=2), sensors=(FINE, Sensor(scope="cpu"))))
    assert value(derive(raw), "energy_host") == pytest.approx(2 * 1000 * STEP_S * 200, rel=0.01)
    rewrite(raw, [line for line in events(raw, 2) if line.get("domain") != "host"], 2)
    record = derive(raw)
    assert record.quantities["energy_host"].reason == "no host sensor can be read on sim1"
    assert verdict(record) == "valid"


# -- reading


def test_every_raw_file_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw_run(tmp_path, job(node=Node(devices_per_node=2)))
    parsed: list[str] = []
    for module, name in ((observe, "read_events"), (sample_files, "chunk_places")):
        read = getattr(module, name)
        monkeypatch.setattr(module, name, lambda path, read=read: (parsed.append(path.name), read(path))[1])
    derive(tmp_path)
    assert sorted(parsed) == [
        "events-00000.jsonl", "sensors-00000.jsonl", "sensors-00002.jsonl", "steps-00000.bin",
    ]  # fmt: skip


def test_phases_of_a_watched_node_are_read_past_damage_elsewhere(tmp_path: Path) -> None:
    raw_run(tmp_path, job(node=Node(devices_per_node=2)))
    first = tmp_path / "events-00000.jsonl"
    whole = first.read_text()
    (tmp_path / "events-00002.jsonl").write_text(whole)
    first.write_text('{"kind": "settings"}\n' + whole)
    found = Observations(tmp_path).events
    assert found.damage is not None
    assert (found.statuses, found.phases) == ({}, [])
    assert found.node_phases[0] == found.node_phases[2]
    assert found.node_phases[0] != []
    (tmp_path / "events-00002.jsonl").write_text(whole + "no JSON\n")
    assert list(Observations(tmp_path).events.node_phases) == [0]
    first.write_text(whole + '{"kind": "phase"}\n')
    assert Observations(tmp_path).events.node_phases == {}


# -- memory


def test_many_samples_need_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count, watts = 1_000_000, 250.0
    node = NodeSensors(process=0, power=tmp_path / "power-00000.bin")
    node.sampler = Sampler(node="n", process=0, period_s=0.1, clock="x", zero_s=50.0)
    node.channels = [
        Channel(name=kind, backend="x", domain="gpu0", kind=kind, resolution=1e-3, average_s=0.1, period_s=0.1)
        for kind in get_args(ChannelKind)
    ]
    with node.power.open("wb") as file:
        file.write(POWER_MAGIC)
        for first in range(0, count // 2, 10_000):
            time_s = 0.1 * np.arange(first, first + 10_000)
            for channel, column in enumerate((watts * time_s, np.full(10_000, watts))):
                write_power_chunk(file, channel, np.stack([time_s + 50.0, column, np.zeros(10_000)]))
    monkeypatch.setattr(sensors, "MOST_IN_MEMORY", 1 << 14)
    windows = {"all": [(100.0, 49_000.0)], "late": [(40_000.0, 40_010.0)], "two": [(7.0, 57.0), (30_000.0, 30_100.0)]}
    tracemalloc.start()
    read = sensors.read_windows(node, windows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6 < node.power.stat().st_size
    for name, pieces in windows.items():
        expected = watts * sum(stop_s - start_s for start_s, stop_s in pieces)
        for joules in read.joules[name]:
            assert joules.value_j == pytest.approx(expected, rel=2e-3), name
            assert joules.verdict == "valid", joules.reasons
            assert joules.half_j < 0.12 * expected
            assert joules.coverage == pytest.approx(1.0, abs=0.05)


# -- the tables of the background documents


def published(model: str, batch: int) -> dict[str, float]:
    with (ROOT / "src/steelyard/reference/caraml.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == model and row["accelerator"] == "GC200 IPU"]
    found = {row["metric"]: float(row["value"]) for row in rows if row["global_batch"] == str(batch)}
    return found | {"epoch_samples": float(next(r["epoch_samples"] for r in rows if r["global_batch"] == str(batch)))}


@pytest.mark.parametrize("batch", [16, 32, 64, 128, 256, 512, 1024, 2048, 4096])
def test_the_resnet_table_is_reproduced_by_one_window(batch: int, simulate: Simulate) -> None:
    told = published("ResNet50", batch)
    rate, samples = told["throughput"], int(told["epoch_samples"])
    # The truth: the same images per second, and the watts that follow from rate and images per watt-hour.
    watts = rate * 3600 / told["images_per_energy"]
    script = SimTruth(
        step_time_s=1e-9, sample_time_s=1 / rate, setup_s=10.0, shape=Shape(compile_step_s=300.0),
        power=Power(idle_w=40.0, compute_w=watts, compile_w=55.0),
        # A sensor as good as the printed figures: seven digits.
        sensors=(Sensor(resolution=1e-6, period_s=1e-5),),
    )  # fmt: skip
    epochs = 2 if batch < 1024 else 3
    spec = make_spec(
        batch=batch, epoch_samples=samples, last_batch="keep", budget=Budget(epochs=epochs), sim=script,
        energy=Energy(period_s=1.0),
    )  # fmt: skip
    record = simulate(spec)
    assert round(value(record, "throughput"), 2) == pytest.approx(rate, abs=0.011)
    assert round(value(record, "energy_later_epochs") / 3600, 2) == told["energy_per_epoch"]
    assert value(record, "samples_per_wh") == pytest.approx(told["images_per_energy"], abs=0.0051)
    windows = {record.quantities[name].window for name in ("throughput", "samples_per_wh", "energy_job")}
    assert windows == {"steady"}
    assert codes(record) == []
    # The first epoch holds a compilation, and is told apart.
    assert value(record, "energy_first_epoch") == pytest.approx(
        value(record, "energy_later_epochs") + 300 * 55, rel=1e-3
    )


@pytest.mark.parametrize("batch", [64, 1024, 16384])
def test_the_gpt_table_needs_a_compilation_inside_the_energy(batch: int, simulate: Simulate) -> None:
    told = published("GPT 117M", batch)
    rate, samples, per_device_wh = told["throughput"], int(told["epoch_samples"]), told["energy_per_epoch_per_device"]
    epoch_s, watts, compile_w = samples / rate, 150.0, 100.0
    # What is missing at 150 W in the epoch was drawn before it, while nothing was computed.
    compile_s = (per_device_wh * 3600 - watts * epoch_s) / compile_w
    script = SimTruth(
        step_time_s=batch / rate, compile_s=compile_s,
        power=Power(idle_w=40.0, compute_w=watts, comm_w=watts, compile_w=compile_w),
        sensors=(Sensor(resolution=1e-6, limit_w=300.0),),
    )  # fmt: skip
    spec = make_spec(
        devices=4, batch=batch // 4, epoch_samples=samples, budget=Budget(epochs=1), crosscheck_steps=0, sim=script
    )
    record = simulate(spec)
    assert value(record, "throughput") == pytest.approx(rate, rel=1e-6)
    run_wh = value(record, "energy_run") / 4 / 3600
    assert round(run_wh, 2) == pytest.approx(per_device_wh, abs=0.011)
    assert samples / (4 * run_wh) == pytest.approx(told["tokens_per_energy"], rel=2e-3)
    own = value(record, "energy_all_steps") / 4 / 3600
    assert own == pytest.approx(watts * epoch_s / 3600, rel=0.05)

    def audited(energy_wh: float) -> list[str]:
        """Return the findings on a table with such a row."""
        head, place = "system,devices,power_limit_w,epoch_samples,metric,value,unit", f"IPU,4,300,{samples}"
        rows = [
            f"{place},throughput,{value(record, 'throughput'):.2f},sequences/s",
            f"{place},energy_per_epoch_per_device,{energy_wh:.4g},Wh",
            f"{place},sequences_per_energy,{samples / (4 * energy_wh):.4g},sequences/Wh",
        ]
        return [found.code for found in check("table", parse_table("\n".join([head, *rows, ""]), "ours"))]

    # In short epochs the compilation is nearly all of it; in the longest it is still more than the devices can draw.
    assert ("SY401" in audited(run_wh)) == (per_device_wh * 3600 / epoch_s > 300 * 1.05)
    assert "SY401" not in audited(own)


def test_energy_of_the_run_beside_the_steady_throughput_is_told(simulate: Simulate) -> None:
    import dataclasses

    record = simulate(job())
    assert "SY407" not in codes(record)
    wrong = dataclasses.replace(record.quantities["energy_per_sample"], window="run")
    mixed = dataclasses.replace(record, quantities=record.quantities | {"energy_per_sample": wrong})
    found = [finding for finding in check("run", mixed) if finding.code == "SY407"]
    assert [finding.message for finding in found] == [
        "energy_per_sample covers run, which includes compilation; the throughput covers steady"
    ]


# -- damaged and hostile files


def test_a_killed_sampler_without_any_reading_is_said_so(tmp_path: Path) -> None:
    raw = raw_run(tmp_path, job(sensors=(FINE,)))
    rewrite(raw, [event for event in events(raw) if event["kind"] != "ended"])
    (raw / "power-00000.bin").unlink()
    record = derive(raw)
    assert "no counted channel has a reading" in reasons(record)
    assert "inf" not in reasons(record)
    assert codes(record) == ["SY402", "SY408"]


def test_a_second_file_of_one_process_is_not_counted_again(tmp_path: Path) -> None:
    raw = raw_run(tmp_path, job(sensors=(FINE,)))
    once = value(derive(raw), "energy_job")
    for name in ("sensors-{}.jsonl", "power-{}.bin"):
        whole = (raw / name.format("00000")).read_bytes()
        for other in ("0", "00099"):
            (raw / name.format(other)).write_bytes(whole)
    record = derive(raw)
    assert value(record, "energy_job") == once
    assert verdict(record) == "valid"


def test_a_ring_of_parents_holds_nobody(tmp_path: Path) -> None:
    raw = raw_run(tmp_path, job(sensors=(FINE,)))
    once = value(derive(raw), "energy_job")
    ring = {"device0": "device1", "device1": "device2", "device2": "device0", "device3": "device3"}
    told = events(raw)
    rewrite(raw, [event | ({"parent": ring[event["name"]]} if event.get("name") in ring else {}) for event in told])
    assert value(derive(raw), "energy_job") == once


def test_a_silent_second_counter_does_not_make_the_first_a_gauge(tmp_path: Path) -> None:
    raw = raw_run(tmp_path, job(sensors=(FINE,)))
    told = events(raw)
    twins = [event | {"name": f"twin.{event['name']}"} for event in told if event["kind"] == "counter"]
    rewrite(raw, told + twins)
    assert (verdict(derive(raw)), reasons(derive(raw))) == ("valid", "")


def test_wild_numbers_in_the_samples_do_not_stop_the_derivation(tmp_path: Path) -> None:
    raw = raw_run(tmp_path, job())

    path = raw / "power-00000.bin"
    chunks = list(read_power_chunks(path))
    with path.open("wb") as file:
        file.write(POWER_MAGIC)
        for chunk in chunks:
            table = chunk.table.copy()
            table[1, ::3], table[1, 1::3] = 1e308, -1e308
            write_power_chunk(file, chunk.channel, table)
    found = main_of(derive(raw))
    assert found.value is None or found.value == pytest.approx(1000 * 4 * STEP_J, rel=0.1)


def test_what_can_be_mended_is_named_first(tmp_path: Path) -> None:
    raw = raw_run(tmp_path, job(sensors=(FINE,)))
    lost = [
        {"kind": "missing", "backend": name, "what": name, "code": code, "reason": f"{code} {name}", "fix": ""}
        for name, code in (("amd", "missing"), ("hwmon", "missing"), ("ipu", "missing"), ("nvml", "forbidden"))
    ]
    rewrite(raw, [event for event in events(raw) if event["kind"] in ("sampler", "ended")] + lost)
    assert "can be read here: nvml: forbidden nvml; amd" in (main_of(derive(raw)).reason or "")


def test_net_energy_that_may_be_nothing_is_doubtful(simulate: Simulate) -> None:
    script = truth(power=Power(idle_w=300.0, compute_w=300.2), sensors=(FINE,))
    record = simulate(make_spec(budget=SHORT, sim=script))
    net = record.quantities["energy_job_net"]
    assert net.interval is not None
    assert net.interval.low <= 0.2 * 10 <= net.interval.high
    assert net.validity is not None
    assert net.validity.verdict == "doubtful"
    assert "not shown to be above idle" in net.validity.reasons
    assert verdict(record) == "valid"


def test_a_node_of_a_cpu_job_that_nobody_watched_is_said(tmp_path: Path) -> None:
    raw = raw_run(tmp_path, job(sensors=(Sensor(scope="cpu", period_s=0.01),)))
    path = raw / "events-00000.jsonl"
    told = [json.loads(line) for line in path.read_text().splitlines()]
    for event in told:
        if event["kind"] == "environment":
            event["device"] = "cpu"
            event["facts"]["env.SLURM_JOB_NUM_NODES"] = "2"
    path.write_text("".join(json.dumps(event) + "\n" for event in told))
    record = derive(raw)
    assert "sensors were read on 1 of the 2 nodes of the job" in reasons(record)
    assert (verdict(record), codes(record)) == ("doubtful", ["SY405"])


def test_an_interval_whose_ends_are_swapped_has_an_inverse() -> None:
    turned = Interval(low=2.0, high=0.0, method="made up", covers="this job").inverse(1.0)
    assert (turned.low, turned.high) == (0.0, 0.5)
