"""Energy of other meters compared with ours: constructed meters and accounts with known truth, and hostile ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from steelyard.analysis import meters
from steelyard.analysis.meters import (
    MAX_LINE,
    SLURM_COMMAND,
    MeteredEnergy,
    check_agreement,
    meter_energy,
    ours,
    parse_meter,
    parse_slurm,
    read_meter,
    read_slurm,
)
from steelyard.contracts.record import Interval, Quantity
from steelyard.errors import InputError

PAGE = (Path(__file__).parents[2] / "docs/sensors.md").read_text(encoding="utf-8")
BEGIN_S = 1_794_744_000
HEADER = "JobIDRaw|Start|End|ConsumedEnergyRaw\n"


def own(
    value_j: float = 30_000.0, scope: Any = "device", length_s: float = 100.0, half_j: float = 600.0
) -> MeteredEnergy:
    """Ours: 300 W for 100 s."""
    edges = (BEGIN_S + 50.0, BEGIN_S + 50.0 + length_s)
    return MeteredEnergy("ours", scope, value_j, value_j - half_j, value_j + half_j, *edges)


def meter(power_w: float, idle_w: float = 100.0, seconds: int = 200) -> str:
    """A meter at 1 Hz: idle, 100 s of load from second 50 on, idle."""
    watts = [power_w if 50 <= second <= 150 else idle_w for second in range(seconds)]
    return "timestamp,power_w\n" + "".join(f"{BEGIN_S + second}.0,{watts[second]}\n" for second in range(seconds))


# -- Slurm --------------------------------------------------------------------------------------------------------


def test_energy_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "GAIN", 0.02)
    text = HEADER + f"71|{BEGIN_S}|{BEGIN_S + 200}|61000\n71.0|{BEGIN_S + 50}|{BEGIN_S + 150}|50000\n"
    found = parse_slurm(text, plugin="ipmi")
    step = found["71.0"]
    assert (step.value_j, step.scope, step.start_s, step.stop_s) == (50_000.0, "node", BEGIN_S + 50, BEGIN_S + 150)
    # 2 % of gain, and a second at either edge of a hundred.
    assert (step.low_j, step.high_j) == (48_000.0, 52_000.0)
    assert any("shared" in reason for reason in step.reasons)
    assert set(found) == {"71", "71.0"}


@pytest.mark.parametrize("energy", ["", "0", "18446744073709551614", "4294967294"])
def test_nothing_collected_is_not_zero(energy: str) -> None:
    found = parse_slurm(HEADER + f"71|{BEGIN_S}|{BEGIN_S + 200}|{energy}\n")["71"]
    assert found.value_j is None
    assert "collected no energy" in found.reasons[0]
    check = check_agreement(own(), found)
    assert (check.answer, check.ratio) == ("unknown", None)
    assert "collected no energy" in check.reasons[0]


def test_a_plugin_nobody_named_leaves_the_scope_unknown() -> None:
    found = parse_slurm(HEADER + f"71|{BEGIN_S}|Unknown|9000\n")["71"]
    assert (found.scope, found.stop_s) == (None, None)
    assert any("AcctGatherEnergyType" in reason for reason in found.reasons)
    assert check_agreement(own(), found).answer == "unknown"
    with pytest.raises(InputError, match="rapl"):
        parse_slurm(HEADER + "1|1|2|3\n", plugin="magic")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "JobID|Start\n1|2\n",
        HEADER,
        HEADER + "71|2026-11-15T12:00:00|Unknown|5\n",
        HEADER + f"71|{BEGIN_S}|{BEGIN_S}|12.5K\n",
        HEADER + f"71|{BEGIN_S}|{BEGIN_S}|-7\n",
        HEADER + "71|" + "9" * 40 + "|1|7\n",
        HEADER + "x" * (MAX_LINE + 1),
    ],
)
def test_what_is_no_answer_of_sacct(text: str) -> None:
    with pytest.raises(InputError) as fault:
        parse_slurm(text)
    assert SLURM_COMMAND in str(fault.value)


# -- a meter ------------------------------------------------------------------------------------------------------


def test_a_meters_joules_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "GAIN", 0.01)
    series = parse_meter(meter(300.0), "w.csv")
    found = meter_energy(series, BEGIN_S + 60.0, BEGIN_S + 140.0, scope="device")
    assert found.value_j == pytest.approx(24_000.0, rel=1e-3)
    assert found.low_j is not None
    assert found.high_j is not None
    assert found.low_j <= 24_000.0 <= found.high_j
    mine = MeteredEnergy("ours", "device", 24_100.0, 23_900.0, 24_300.0, BEGIN_S + 60.0, BEGIN_S + 140.0)
    assert check_agreement(mine, found).answer == "agree"


def test_a_clock_that_is_off_widens_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the load only begins at the window's edge, a second is worth 200 J."""
    series = parse_meter(meter(300.0), "w.csv")
    edges = (BEGIN_S + 20.0, BEGIN_S + 100.0)
    monkeypatch.setattr(meters, "GAIN", 0.0)
    monkeypatch.setattr(meters, "CLOCK_ERROR_S", 0.0)
    exact = meter_energy(series, *edges, scope="device")
    monkeypatch.setattr(meters, "CLOCK_ERROR_S", 5.0)
    loose = meter_energy(series, *edges, scope="device")
    assert exact.high_j is not None
    assert loose.high_j is not None
    assert loose.high_j - exact.high_j == pytest.approx(5 * 200.0, rel=0.05)


def test_a_clock_that_is_off_beside_the_end_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The window, moved by what the clock may be off, lies partly where the meter wrote nothing."""
    times_s = range(BEGIN_S, BEGIN_S + 101)
    series = parse_meter("timestamp,power_w\n" + "".join(f"{time_s},400\n" for time_s in times_s), "m")
    edges = (BEGIN_S + 1.0, BEGIN_S + 99.0)
    monkeypatch.setattr(meters, "GAIN", 0.0)
    monkeypatch.setattr(meters, "CLOCK_ERROR_S", 0.0)
    exact = meter_energy(series, *edges, scope="device")
    monkeypatch.setattr(meters, "CLOCK_ERROR_S", 20.0)
    loose = meter_energy(series, *edges, scope="device")
    assert exact.low_j is not None
    assert exact.high_j is not None
    assert loose.low_j == pytest.approx(exact.low_j - 20 * 400)
    assert loose.high_j == pytest.approx(exact.high_j + 20 * 400)


@pytest.mark.parametrize(
    ("power", "resolution_w"), [("412", 1.0), ("412.50", 0.01), ("4.125e2", 0.1), ("4125e-1", 0.1), ("5.e1", 1.0)]
)
def test_the_last_place_of_a_number(power: str, resolution_w: float) -> None:
    series = parse_meter(f"timestamp,power_w\n{BEGIN_S},{power}\n", "m")
    assert series.resolution_w == pytest.approx(resolution_w)


def test_a_meter_that_does_not_reach_the_window() -> None:
    found = meter_energy(parse_meter(meter(300.0), "w.csv"), BEGIN_S + 500.0, BEGIN_S + 600.0, scope="node")
    assert found.value_j is None
    assert found.reasons


def test_times_of_both_spellings(tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    path.write_text(
        "\ufeffvolts,power_w,timestamp\n\n230,10,2026-11-15T12:00:00+00:00\n230,12,2026-11-15T13:00:01+01:00\n"
        "230,14,2026-11-15T12:00:02Z\n"
    )
    series = read_meter(path)
    assert list(series.time_s - series.time_s[0]) == [0.0, 1.0, 2.0]
    assert list(series.power_w) == [10.0, 12.0, 14.0]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("2026-11-15T12:00:00,5", "no time zone"),
        ("yesterday,5", "is not a time"),
        ("nan,5", "is not a time"),
        ("1e300,5", "is not a time"),
        (f"{BEGIN_S},-5", "not a power"),
        (f"{BEGIN_S},nan", "not a power"),
        (f"{BEGIN_S},inf", "not a power"),
        (f"{BEGIN_S},1e12", "not a power"),
        (f"{BEGIN_S},4_12", "not a power"),
        (f"{BEGIN_S},\u0664\u0662", "not a power"),
        (f"1_{BEGIN_S:.0f},5", "is not a time"),
        (f"{BEGIN_S}", "not a power"),
        (f"{BEGIN_S},\x1b[2J", "not a power"),
        (f"{BEGIN_S - 100},5", "before that of the previous line"),
    ],
)
def test_lines_that_are_not_valid_are_told(line: str, words: str) -> None:
    with pytest.raises(InputError) as fault:
        parse_meter(f"timestamp,power_w\n{BEGIN_S},5\n{line}\n", "w.csv")
    assert words in str(fault.value)
    assert "line 3" in str(fault.value)
    assert "\x1b" not in str(fault.value)


def test_hostile_files(tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    for content in (b"\xff\xfe\x00", b"timestamp,power_w\n1,\x00\n", b"x" * 10_000, b"timestamp\n1\n", b""):
        path.write_bytes(content)
        for reader in (read_meter, read_slurm):
            with pytest.raises(InputError):
                reader(path)
    with pytest.raises(InputError):
        read_meter(tmp_path)
    many = "timestamp,power_w\n" + "x,y\n" * 100_000
    with pytest.raises(InputError) as fault:
        parse_meter(many, "w.csv")
    assert len(str(fault.value).splitlines()) < 30


# -- compared with ours -------------------------------------------------------------------------------------------


def node(value_j: float, **more: Any) -> MeteredEnergy:
    given = {"start_s": BEGIN_S + 50.0, "stop_s": BEGIN_S + 150.0} | more
    return MeteredEnergy("meter", "node", value_j, value_j * 0.98, value_j * 1.02, **given)


def test_the_same_scope_agrees_or_does_not() -> None:
    assert check_agreement(own(scope="node"), node(30_900.0)).answer == "agree"
    check = check_agreement(own(scope="node"), node(36_000.0))
    assert (check.answer, check.ratio, check.difference_w) == ("disagree", 1.2, 60.0)


def test_a_whole_node_must_have_more_than_its_devices() -> None:
    check = check_agreement(own(), node(50_000.0))
    assert (check.answer, check.difference_w) == ("consistent", 200.0)
    assert any("includes more than our device" in reason for reason in check.reasons)
    check = check_agreement(own(), node(20_000.0))
    assert (check.answer, "whole has less" in check.reasons[0]) == ("disagree", True)


def test_a_part_must_have_less() -> None:
    part = MeteredEnergy("meter", "die", 10_000.0, 9_900.0, 10_100.0, BEGIN_S + 50.0, BEGIN_S + 150.0)
    assert check_agreement(own(), part).answer == "consistent"
    assert check_agreement(own(9_000.0, half_j=90.0), part).answer == "disagree"
    assert check_agreement(own(scope="cpu"), part).answer == "unknown"


def test_windows_that_differ_are_said() -> None:
    longer = node(50_000.0, start_s=float(BEGIN_S))
    check = check_agreement(own(scope="node"), longer)
    assert (check.answer, check.difference_w) == ("consistent", None)
    assert any("150 s, ours is 100 s" in reason for reason in check.reasons)
    assert check_agreement(own(scope="node"), node(20_000.0, start_s=float(BEGIN_S))).answer == "disagree"
    shorter = node(20_000.0, start_s=BEGIN_S + 80.0, stop_s=BEGIN_S + 140.0)
    assert check_agreement(own(scope="node"), shorter).answer == "consistent"
    # Of a larger scope but a shorter time, nothing follows.
    assert check_agreement(own(), shorter).answer == "unknown"
    assert check_agreement(own(), node(1.0, start_s=BEGIN_S + 900.0, stop_s=BEGIN_S + 999.0)).answer == "unknown"


def test_a_records_quantity_held_against_slurm() -> None:
    interval = Interval(low=29_400.0, high=30_600.0, method="sensor", covers="this job")
    quantity = Quantity(
        value=30_000.0, unit="J", scope="job", window="steady", aggregation="sum", interval=interval
    )  # fmt: skip
    mine = ours(quantity, "device", BEGIN_S + 50.0, BEGIN_S + 150.0)
    text = HEADER + f"71|{BEGIN_S}|{BEGIN_S + 200}|48000\n"
    assert check_agreement(mine, parse_slurm(text, plugin="gpu")["71"]).answer == "consistent"
    assert check_agreement(mine, parse_slurm(text.replace("48000", "4800"), plugin="gpu")["71"]).answer == "disagree"
    unknown = Quantity(value=None, unit="J", scope="job", window="steady", aggregation="sum", reason="no sensor")
    assert check_agreement(ours(unknown, None, None, None), parse_slurm(text)["71"]).reasons[0].endswith("no sensor")
    with pytest.raises(InputError):
        ours(Quantity(value=1.0, unit="W", scope="job", window="steady", aggregation="mean"), None, None, None)


# -- the page -----------------------------------------------------------------------------------------------------


def test_the_examples_of_the_page() -> None:
    blocks = re.findall(r"```\w*\n(.*?)```", PAGE, re.DOTALL)
    steps = parse_slurm(next(block for block in blocks if block.startswith("JobIDRaw")))
    assert [step.value_j for step in steps.values()] == [None, 412_800.0]
    series = parse_meter(next(block for block in blocks if block.startswith("timestamp")), "page")
    assert list(series.power_w) == [412.5, 415.0, 414.5]
    assert SLURM_COMMAND + "\n" in blocks
