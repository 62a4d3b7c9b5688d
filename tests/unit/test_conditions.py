"""The state of devices: the driver's files of AMD and Intel, the path from a simulated device to findings, and doctor.

Names and formats of the files are those that drivers show on real machines: an MI250X (gpu_metrics 1.3), MI300X and
MI300A (1.4 to 1.8), an Arc B-series with xe and a Data Center GPU Max with i915. NVIDIA: tests/process/test_nvml.py.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from conftest import make_spec
from steelyard.analysis.rows import row_of
from steelyard.analysis.summary import summarise
from steelyard.contracts.sim import Node, SimTruth, State
from steelyard.contracts.spec import Budget
from steelyard.derive.record import derive
from steelyard.doctor.sensors import judge_sensors
from steelyard.rules.rule import check, rule
from steelyard.rules.table.row import Pair
from steelyard.terminal.conditions import state_lines
from steelyard.terminal.tables import cells_lines
from steelyard.worker.sensors.amd import open_amd
from steelyard.worker.sensors.backend import ReadError
from steelyard.worker.sensors.conditions import state_of
from steelyard.worker.sensors.survey import survey
from steelyard.worker.sensors.xpu import open_xpu
from test_sensor_files import chip, plant

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from steelyard.contracts.finding import Finding
    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec
    from steelyard.worker.sensors.backend import DeviceState, SensorsFound

ADDRESS = "0000:c1:00.0"
DEVICE = f"sys/devices/pci0000:00/{ADDRESS}"


def states(found: SensorsFound) -> list[DeviceState]:
    assert found.states is not None
    return found.states()


def read(state: DeviceState) -> dict[str, float]:
    state.begin()
    return {column: value() for column, value in state.reads.items()}


# -- AMD ----------------------------------------------------------------------------------------------------------

MI250X = {
    "power1_average": "405000000", "power1_cap": "500000000", "power1_cap_default": "560000000",
    "freq1_input": "1700000000", "freq1_label": "sclk", "freq2_input": "1600000000", "freq2_label": "mclk",
    "temp1_input": "57000", "temp1_label": "edge", "temp2_input": "71000", "temp2_label": "junction",
    "temp3_input": "66000", "temp3_label": "mem",
}  # fmt: skip
LEVELS = "0: 500Mhz\n1: 800Mhz *\n2: 1700Mhz\n"


def metrics(version: tuple[int, int], size: int, fields: dict[int, tuple[str, int]]) -> bytes:
    """A table of this version: as the driver does, what is not filled is all ones."""
    data = bytearray(b"\xff" * size)
    struct.pack_into("<HBB", data, 0, size, *version)
    for place, (form, value) in fields.items():
        struct.pack_into(f"<{form}", data, place, value)
    return bytes(data)


def amd(root: Path, files: dict[str, str], table: bytes | None, number: str = "0x7408") -> DeviceState:
    """One device below a new root."""
    chip(root, 0, "amdgpu", ADDRESS, files)
    plant(root, {f"{DEVICE}/device": f"{number}\n", f"{DEVICE}/pp_dpm_sclk": LEVELS})
    if table is not None:
        (root / DEVICE / "gpu_metrics").write_bytes(table)
    (state,) = states(open_amd(root, ()))
    return state


@pytest.fixture(autouse=True)
def no_amdsmi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)


@pytest.mark.parametrize(
    ("bits", "power", "heat", "hardware"),
    [(0, 0, 0, 0), (1 << 0, 1, 0, 0), (1 << 16, 1, 0, 0), (1 << 36, 0, 1, 0), (1 << 45, 0, 1, 0), (1 << 47, 0, 0, 1)],
)
def test_an_mi250x(tmp_path: Path, bits: int, power: int, heat: int, hardware: int) -> None:
    plant(tmp_path, {f"{DEVICE}/ras/umc_err_count": "ue: 1\nce: 40\n", f"{DEVICE}/ras/gfx_err_count": "ue: 0\nce: 2\n"})
    state = amd(tmp_path, MI250X, metrics((1, 3), 120, {112: ("Q", bits)}))
    plant(tmp_path, {f"{DEVICE}/ras/umc_err_count": "ue: 3\nce: 41\n"})
    assert state.contract.domain == "amd0.die0"
    assert read(state) == {
        "clock_mhz": 1700.0, "memory_clock_mhz": 1600.0, "temperature_c": 71.0, "memory_temperature_c": 66.0,
        "power_capped": power, "thermal": heat, "hardware": hardware, "corrected": 1.0, "uncorrected": 2.0,
        "limit_w": 500.0,
    }  # fmt: skip
    assert (state.contract.clock_limit_mhz, state.contract.default_limit_w) == (1700.0, 560.0)
    assert state.contract.sources["clock_mhz"] == "/sys/class/hwmon/hwmon0/freq1_input"
    assert set(state.contract.unknown) == {"setting", "idle", "processes"}


@pytest.mark.parametrize(("version", "at", "size"), [((1, 6), 32, 1664), ((1, 7), 40, 2208), ((1, 8), 40, 3360)])
def test_an_mi300x_counts_how_long_it_is_held_back(
    tmp_path: Path, version: tuple[int, int], at: int, size: int
) -> None:
    def table(*counts: int) -> bytes:
        return metrics(version, size, {at + 4 * place: ("I", count) for place, count in enumerate(counts)})

    files = {name: text for name, text in MI250X.items() if not name.startswith(("freq", "temp1"))}
    # Total, PROCHOT, power limit, and the temperature limits of socket, regulators and memory. The second wraps.
    state = amd(tmp_path, files, table(1000, 2**32 - 20, 500, 0, 0, 7), "0x74a1")
    (tmp_path / DEVICE / "gpu_metrics").write_bytes(table(2000, 80, 1250, 0, 0, 507))
    told = read(state)
    assert (told["power_capped"], told["thermal"], told["hardware"]) == (0.75, 0.5, 0.1)
    assert told["temperature_c"] == 71.0
    assert "the driver has no folder ras" in state.contract.unknown["uncorrected"]


@pytest.mark.parametrize(
    ("version", "size", "clocks", "memory"),
    [((1, 4), 288, 240, 280), ((1, 5), 360, 312, 352), ((1, 7), 2208, 296, 336), ((1, 8), 3360, 296, 336)],
)
def test_clocks_from_the_table(tmp_path: Path, version: tuple[int, int], size: int, clocks: int, memory: int) -> None:
    files = {"power1_input": "300000000"}
    fields = {clocks: ("H", 2100), clocks + 2: ("H", 2000), memory: ("H", 1300)}
    state = amd(tmp_path, files, metrics(version, size, fields), "0x74a1")
    told = read(state)
    assert (told["clock_mhz"], told["memory_clock_mhz"]) == (2050.0, 1300.0)
    if version < (1, 6):
        assert "the driver writes no throttle status" in state.contract.unknown["power_capped"]
    assert state.contract.unknown["limit_w"].endswith("power1_cap: No such file or directory")
    assert state.contract.unknown["temperature_c"] == "the driver has no temperature called junction or edge"


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (None, "No such file"),
        (b"", "only 0 bytes"),
        (metrics((2, 2), 128, {}), "unknown version 2.2"),
        (metrics((1, 3), 120, {})[:100], "too short: 100 bytes"),
        (metrics((1, 3), 120, {}), "has no throttle status"),
        (metrics((1, 7), 2208, {}), "does not count"),
    ],
)
def test_a_table_that_tells_nothing(tmp_path: Path, table: bytes | None, reason: str) -> None:
    state = amd(tmp_path, MI250X, table)
    assert all(reason in state.contract.unknown[column] for column in ("power_capped", "thermal", "hardware"))
    assert read(state)["clock_mhz"] == 1700.0


@pytest.mark.parametrize(
    "files", [{f"{DEVICE}/device": "0x74a0\n"}, {f"{DEVICE}/product_name": "AMD Instinct MI300A\n"}]
)
def test_the_power_of_an_mi300a_is_that_of_its_module(tmp_path: Path, files: dict[str, str]) -> None:
    chip(tmp_path, 0, "amdgpu", ADDRESS, {"power1_input": "310000000", "freq1_input": "2100000000"})
    found = open_amd(plant(tmp_path, files), ())
    assert [(domain.name, domain.scope, domain.parent) for domain in found.domains] == [
        ("module0", "module", None), ("amd0", "device", "module0"),
    ]  # fmt: skip
    (channel,) = found.channels
    assert channel.domain == "module0"
    assert "with its CPU" in channel.source
    assert [state.contract.domain for state in states(found)] == ["amd0"]


def test_only_the_dies_of_the_job(tmp_path: Path) -> None:
    chip(tmp_path, 0, "amdgpu", "0000:c1:00.0", MI250X)
    chip(tmp_path, 1, "amdgpu", "0000:c6:00.0", MI250X | {"power1_average": "0"})
    plant(tmp_path, {f"sys/devices/pci0000:00/0000:{bus}:00.0/device": "0x7408\n" for bus in ("c1", "c6")})
    assert [state.contract.domain for state in states(open_amd(tmp_path, ()))] != []
    assert len(states(open_amd(tmp_path, ("1",)))) == 1


# -- Intel --------------------------------------------------------------------------------------------------------

XE = {
    "tile0/gt0/freq0/act_freq": "2250", "tile0/gt0/freq0/rp0_freq": "2400", "tile0/gt1/freq0/act_freq": "0",
    "tile0/gt1/freq0/rp0_freq": "1200", "tile0/gt0/freq0/throttle/status": "1",
    "tile0/gt0/freq0/throttle/reason_pl1": "1", "tile0/gt0/freq0/throttle/reason_pl2": "0",
    "tile0/gt0/freq0/throttle/reason_thermal": "0", "tile0/gt0/freq0/throttle/reason_vr_thermalert": "1",
    "tile0/gt0/freq0/throttle/reason_prochot": "0", "tile0/gt0/freq0/throttle/reasons": "pl1 vr_thermalert",
}  # fmt: skip


def test_an_intel_card_with_xe(tmp_path: Path) -> None:
    temperatures = {"temp2_input": "63000", "temp2_label": "pkg", "temp3_input": "70000", "temp3_label": "vram"}
    limits = {"power1_cap": "200000000", "power1_rated_max": "225000000", "energy1_input": "1000000"}
    chip(tmp_path, 0, "xe", ADDRESS, temperatures | limits)
    plant(tmp_path, {f"{DEVICE}/{name}": f"{text}\n" for name, text in XE.items()})
    (state,) = states(open_xpu(tmp_path, ()))
    assert read(state) == {
        "clock_mhz": 2250.0, "temperature_c": 63.0, "memory_temperature_c": 70.0, "power_capped": 1.0, "thermal": 1.0,
        "hardware": 0.0, "limit_w": 200.0,
    }  # fmt: skip
    assert (state.contract.clock_limit_mhz, state.contract.default_limit_w) == (2400.0, 225.0)
    assert state.contract.unknown["uncorrected"] == "Intel's drivers have no files with memory errors"


def test_an_intel_card_of_two_tiles_with_i915(tmp_path: Path) -> None:
    chip(tmp_path, 0, "i915", ADDRESS, {"energy1_input": "1000000", "power1_max": "600000000"})
    for tile, clock in ((0, 1600), (1, 1200)):
        folder = f"{DEVICE}/drm/card1/gt/gt{tile}"
        plant(tmp_path, {
            f"{folder}/rps_act_freq_mhz": f"{clock}\n", f"{folder}/rps_RP0_freq_mhz": "1600\n",
            f"{folder}/throttle_reason_status": "1\n", f"{folder}/throttle_reason_pl4": f"{tile}\n",
            f"{folder}/throttle_reason_thermal": "0\n", f"{folder}/throttle_reason_prochot": "0\n",
        })  # fmt: skip
    (state,) = states(open_xpu(tmp_path, ()))
    told = read(state)
    assert (told["clock_mhz"], told["power_capped"], told["thermal"], told["limit_w"]) == (1400.0, 1.0, 0.0, 600.0)
    assert state.contract.unknown["temperature_c"] == "the driver reports no such temperature"


def test_a_card_that_shows_only_its_energy(tmp_path: Path) -> None:
    chip(tmp_path, 0, "i915", ADDRESS, {"energy1_input": "1000000"})
    (state,) = states(open_xpu(tmp_path, ()))
    assert read(state) == {}
    assert "no folder of clocks" in state.contract.unknown["clock_mhz"]


def test_a_reading_that_fails_stays_unknown() -> None:
    def refuse() -> float:
        raise ReadError("forbidden", "no permission to read it")

    state = state_of("gpu0", "test", {"clock_mhz": ("a file", refuse), "limit_w": ("another", lambda: 5.0)}, {})
    assert state.contract.unknown["clock_mhz"] == "no permission to read it"
    assert state.contract.sources == {"limit_w": "another"}
    assert state.contract.unknown["thermal"] == "this driver does not report it"


# -- doctor -------------------------------------------------------------------------------------------------------


def test_doctor_says_what_can_be_read_of_a_device(tmp_path: Path) -> None:
    amd(tmp_path, MI250X, metrics((1, 3), 120, {112: ("Q", 0)}), "0x74a1")
    lines = [(line.name, line.verdict, line.found) for line in judge_sensors(survey(tmp_path))]
    readable = (
        "amd: amd0: clock, memory clock, temperature, memory temperature, held back by its power limit, "
        "held back by its temperature, held back by the hardware, power limit"
    )
    assert ("device state", "ok", readable) in lines
    (unknown,) = [text for name, verdict, text in lines if (name, verdict) == ("device state", "note")]
    assert unknown.startswith("amd: amd0: unknown: corrected ECC errors, uncorrected ECC errors (the driver has no")


# -- from a simulated device to a finding -------------------------------------------------------------------------

FREE = State(
    clock_mhz=1980.0, memory_clock_mhz=2619.0, temperature_c=60.0, power_capped=0.0, thermal=0.0, hardware=0.0,
    corrected=0, uncorrected=0, limit_w=700.0, default_limit_w=700.0,
)  # fmt: skip
HOT = replace(FREE, from_s=10.0, clock_mhz=1320.0, thermal=1.0, temperature_c=88.0)


def spec(*script: State, step_time_s: float = 0.1, **settings: Any) -> RunSpec:
    """39.5 s of steps, with a reading in every second."""
    budget = Budget(min_steps=395, max_steps=395, min_seconds=0.0)
    sim = SimTruth(step_time_s=step_time_s, states=script)
    return make_spec(sim=sim, budget=budget, crosscheck_steps=0, **settings)


def findings(record: RunRecord, code: str) -> list[Finding]:
    return [finding for finding in record.findings if finding.code == code]


def value(record: RunRecord, name: str) -> float | None:
    return record.quantities[name].value


def test_the_state_in_the_window_of_the_throughput(simulate: Callable[[RunSpec], RunRecord], tmp_path: Path) -> None:
    record = simulate(spec(FREE, HOT))
    (device,) = record.conditions
    assert (device.node, device.device, device.readings) == ("sim0", "device0", 40)
    # 10 s at 1980 MHz and 30 s at 1320 MHz.
    assert value(record, "clock_device") == pytest.approx(1485.0)
    assert value(record, "clock_memory") == 2619.0
    assert value(record, "temperature_device") == 88.0
    assert value(record, "thermal_throttled_share") == 0.75
    assert (value(record, "power_capped_share"), value(record, "hardware_slowed_share")) == (0.0, 0.0)
    assert (value(record, "power_limit_device"), value(record, "power_limit_default")) == (700.0, 700.0)
    assert (value(record, "ecc_corrected"), value(record, "ecc_uncorrected")) == (0.0, 0.0)
    assert record.quantities["clock_device"].window == record.quantities["throughput"].window
    assert record.quantities["temperature_memory"].reason == "sim0/device0: not scripted"
    # 41 readings of 14 numbers of 4 bytes; the chunk of a real sampler has one reading and 20 bytes more.
    assert (tmp_path / "conditions-00000.bin").stat().st_size < 41 * 14 * 4 + 100
    (finding,) = findings(record, "SY614")
    assert finding.severity == "warning"
    assert finding.message == (
        "device0 on sim0 was held back by its temperature in 75 % of the time: mean clock 1,485 MHz, 25 % below its "
        "highest; at most 88 °C"
    )


def test_the_mean_clock_is_shown_with_the_other_figures(simulate: Callable[[RunSpec], RunRecord]) -> None:
    cells = summarise([simulate(spec(FREE, HOT))])
    text = "\n".join(cells_lines(cells, detail=True))
    assert "mean clock" in text
    assert "1,485 MHz" in text
    # The clock is shown beside the utilisation in reports; the rest of the state is evidence, not a figure.
    figures = row_of(cells[0]).figures
    assert figures["clock_device"].value == pytest.approx(1485.0)
    assert not {"power_limit_device", "thermal_throttled_share", "ecc_corrected"} & set(figures)


def test_a_device_that_keeps_its_clock_gives_no_finding(simulate: Callable[[RunSpec], RunRecord]) -> None:
    record = simulate(spec(FREE))
    assert [finding.code for finding in record.findings if finding.code.startswith("SY6")] == []
    assert value(record, "clock_device") == 1980.0


@pytest.mark.parametrize(
    ("clock_mhz", "limit_w", "severity", "fix"),
    [(1900.0, 700.0, "note", "report the mean clock"), (1400.0, 700.0, "warning", "report the mean clock"),
     (1900.0, 500.0, "warning", "restore the default power limit")],
)  # fmt: skip
def test_a_power_limit(
    simulate: Callable[[RunSpec], RunRecord], clock_mhz: float, limit_w: float, severity: str, fix: str
) -> None:
    capped = replace(FREE, from_s=5.0, power_capped=1.0, clock_mhz=clock_mhz, limit_w=limit_w)
    (finding,) = findings(simulate(spec(replace(FREE, limit_w=limit_w), capped)), "SY614")
    assert (finding.severity, finding.fix.startswith(fix)) == (severity, True)
    assert f"power limit {limit_w:g} W" in finding.message


def test_a_clock_that_somebody_set_is_a_note(simulate: Callable[[RunSpec], RunRecord]) -> None:
    record = simulate(spec(replace(FREE, limit_w=500.0)))
    locked = replace(record.conditions[0], setting=1.0)
    (finding,) = rule("SY614").check(replace(record, conditions=(locked,)))
    assert finding.severity == "note"
    assert "was held back by a clock setting in 100 % of the time" in finding.message
    assert "nvidia-smi -rgc" in finding.fix
    hot = replace(locked, thermal=0.5)
    (finding,) = rule("SY614").check(replace(record, conditions=(hot,)))
    assert finding.severity == "warning"


def test_two_reasons_are_one_finding(simulate: Callable[[RunSpec], RunRecord]) -> None:
    both = replace(HOT, power_capped=1.0, limit_w=500.0)
    (finding,) = findings(simulate(spec(FREE, both)), "SY614")
    assert "by its power limit in 75 % and by its temperature in 75 % of the time" in finding.message
    assert "power limit 500 W, 700 W by default; at most 88 °C" in finding.message
    assert finding.fix.startswith("restore the default power limit")
    assert "cooling" in finding.fix


def test_devices_that_differ(simulate: Callable[[RunSpec], RunRecord]) -> None:
    record = simulate(spec(FREE, replace(HOT, rank=2), replace(FREE, rank=3, from_s=30.0, uncorrected=2), devices=4))
    assert [device.clock_mhz for device in record.conditions] == pytest.approx([1980.0, 1980.0, 1485.0, 1980.0])
    assert value(record, "clock_device") == pytest.approx((3 * 1980.0 + 1485.0) / 4)
    assert value(record, "ecc_uncorrected") == 2.0
    (finding,) = findings(record, "SY616")
    assert finding.message == "device3 on sim0 had 2 uncorrected memory errors during the run"
    assert finding.severity == "error"
    assert findings(record, "SY614")[0].message.endswith("; 1 of 4 devices were held back")
    text = "\n".join(state_lines([record], always=False))
    assert ("sim0 device2" in text, "3 devices" in text) == (True, True)
    assert state_lines([simulate(spec(FREE, devices=2))], always=False) == []


def test_a_device_whose_state_ends_is_unknown(simulate: Callable[[RunSpec], RunRecord]) -> None:
    record = simulate(spec(replace(FREE, thermal=None), replace(FREE, rank=1), devices=2))
    assert record.quantities["thermal_throttled_share"].reason == "sim0/device0: not scripted"
    assert value(record, "clock_device") == 1980.0


def test_more_devices_than_ranks_are_not_the_jobs(simulate: Callable[[RunSpec], RunRecord], tmp_path: Path) -> None:
    simulate(spec(FREE))
    lines = (tmp_path / "sensors-00000.jsonl").read_text().splitlines()
    told = next(line for line in lines if '"conditions"' in line)
    (tmp_path / "sensors-00000.jsonl").write_text("\n".join([*lines, told.replace("device0", "device1")]) + "\n")
    record = derive(tmp_path)
    assert record.conditions == ()
    reason = record.quantities["clock_device"].reason
    assert reason == "2 devices are visible on sim0, but the job has only 1 there"


def test_fewer_devices_than_ranks_are_not_the_job(simulate: Callable[[RunSpec], RunRecord], tmp_path: Path) -> None:
    record = simulate(spec(replace(FREE, rank=0), devices=4))
    assert record.conditions == ()
    reason = record.quantities["ecc_uncorrected"].reason
    assert reason == "only 1 of the devices of 4 ranks are visible to the sampler of sim0"
    # Four instances of one device are read as one.
    path = tmp_path / "sensors-00000.jsonl"
    lost = '{"kind": "missing", "backend": "nvml", "what": "power of MIG-1", "code": "unsupported", "reason": "MIG"}'
    path.write_text(f"{path.read_text()}{lost}\n")
    assert value(derive(tmp_path), "clock_device") == 1980.0


def test_the_power_limit_of_a_card_is_that_of_both_dies(simulate: Callable[[RunSpec], RunRecord]) -> None:
    second = replace(FREE, limit_w=None, default_limit_w=None)
    script = [replace(FREE, rank=0), replace(second, rank=1), replace(FREE, rank=2), replace(second, rank=3)]
    told = spec(*script, devices=4)
    record = simulate(replace(told, sim=replace(told.sim, node=Node(dies_per_card=2))))
    assert [device.limit_w for device in record.conditions] == [700.0] * 4
    assert (value(record, "power_limit_device"), value(record, "power_limit_default")) == (700.0, 700.0)
    # Two cards: a limit is not that of another card.
    assert (
        simulate(spec(*script[:2], devices=2)).quantities["power_limit_device"].reason == "sim0/device1: not scripted"
    )


@pytest.mark.parametrize("damage", ["payload", "magic", "cut"])
def test_damaged_readings(simulate: Callable[[RunSpec], RunRecord], tmp_path: Path, damage: str) -> None:
    simulate(spec(FREE))
    path = tmp_path / "conditions-00000.bin"
    data = bytearray(path.read_bytes())
    data[{"payload": -5, "magic": 0, "cut": -1}[damage]] ^= 0xFF
    path.write_bytes(data[:-10] if damage == "cut" else data)
    record = derive(tmp_path)
    assert value(record, "clock_device") is None
    assert record.status.code == "completed"
    reasons = {"payload": "checksum differs", "magic": "not a file", "cut": "no reading in the window"}
    assert reasons[damage] in (record.quantities["clock_device"].reason or "")


# -- comparisons --------------------------------------------------------------------------------------------------


def compared(a: RunRecord, b: RunRecord, factor: str = "precision") -> list[Finding]:
    rows = [row_of(summarise([record])[0]) for record in (a, b)]
    return [finding for finding in check("pair", Pair(*rows, factor=factor)) if finding.code == "SY615"]


def test_one_side_that_was_throttled(simulate: Callable[[RunSpec], RunRecord]) -> None:
    free = simulate(spec(FREE))
    (found,) = compared(free, simulate(spec(FREE, HOT, precision="bf16")))
    # As fast as the other: the lost clock explains no difference.
    assert found.severity == "warning"
    assert found.message.startswith("only side B was held back: by its temperature or hardware in 75 % of the time")
    slower = simulate(spec(FREE, HOT, precision="bf16"))
    rate = slower.quantities["throughput"]
    assert rate.value is not None
    slower = replace(
        slower, quantities=slower.quantities | {"throughput": replace(rate, value=0.8 * rate.value, interval=None)}
    )
    for a, b in ((free, slower), (slower, free)):
        (found,) = compared(a, b)
        assert found.severity == "error"
        assert found.message.endswith("which can explain the whole difference")
    assert compared(slower, slower) == []


def test_power_limits_that_differ(simulate: Callable[[RunSpec], RunRecord]) -> None:
    free, reduced = simulate(spec(FREE)), simulate(spec(replace(FREE, limit_w=500.0), precision="bf16"))
    (found,) = compared(free, reduced)
    assert found.message == "the power limits of the two sides differ: 700 W vs 500 W"
    assert compared(free, reduced, factor="power_limit") == []
    # What is unknown on one side is not a difference.
    assert compared(simulate(spec()), reduced) == []
