"""The energy verb: what is averaged and what is not, what the table and the picture say, and the exit code."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from steelyard.analysis.energy import energy_cells
from steelyard.analysis.power_trace import MAX_POINTS, PowerLine, PowerTrace, power_trace
from steelyard.analysis.summary import summarise
from steelyard.cli.main import main
from steelyard.contracts.base import to_json_object
from steelyard.contracts.energy import POWER_MAGIC, Channel, Domain, Ended, Missing, Sampler, write_power_chunk
from steelyard.contracts.observe import Environment, Phase, Status
from steelyard.contracts.record import Interval, Quantity, RunRecord, Steady, Validity
from steelyard.contracts.spec import RunSpec
from steelyard.derive.observations import NodeSensors
from steelyard.report.charts.power_svg import STYLES, power_svg, ticks
from steelyard.results.store import ResultFolder, write_json
from steelyard.terminal.energy import energy_lines, energy_object, power_chart
from steelyard.terminal.plain import shown_configurations
from steelyard.terminal.tables import record_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

GAIN = 0.05
NODE = "node1"
SCOPES: Any = {f"cell-{repeat}": ("device",) for repeat in range(3)}
PHASES = (
    Phase(name="setup", start_s=0.0, end_s=2.0),
    Phase(name="compile", start_s=2.0, end_s=5.0),
    Phase(name="steps", start_s=5.0, end_s=20.0),
    Phase(name="crosscheck", start_s=20.0, end_s=21.0),
    Phase(name="warmup", start_s=5.0, end_s=7.0),
    Phase(name="steady", start_s=7.0, end_s=20.0),
)
EDGES = ((0.0, 60.0), (2.0, 120.0), (5.0, 350.0), (7.0, 300.0), (20.0, 200.0))


def watts(time_s: float) -> float:
    """What the device truly draws."""
    return [power for start, power in EDGES if time_s >= start][-1]


def valid(verdict: Any = "valid", *reasons: str, domains: tuple[str, ...] = (f"{NODE}/gpu0",)) -> Validity:
    return Validity(verdict=verdict, reasons=reasons, domains=domains, channels=(f"{NODE}/nvml.0.power",), coverage=1.0)


def joules(
    value: float | None, validity: Validity | None, *, unit: str = "J", scope: Any = "job", window: Any = "steady",
    share: float = GAIN, reason: str | None = None,
) -> Quantity:  # fmt: skip
    interval = None
    if value is not None:
        low, high = value * (1 - share), value * (1 + share)
        interval = Interval(low=low, high=high, method="sensor", covers="this job")
    return Quantity(
        value=value, unit=unit, scope=scope, window=window, aggregation="sum", interval=interval, reason=reason,
        validity=validity,
    )  # fmt: skip


def energies(per_sample: float, validity: Validity, scope: Any = "job") -> dict[str, Quantity]:
    """Of a run with 3,900 samples in 13 s."""
    energy = per_sample * 3900
    return {
        "energy_job": joules(energy, validity, scope=scope),
        "energy_job_net": joules(energy - 13 * 60, validity),
        "power_job": joules(energy / 13, validity, unit="W"),
        "idle_power_job": joules(60.0, validity, unit="W"),
        "energy_per_sample": joules(per_sample, validity, unit="J/sample"),
        "energy_per_sample_net": joules(per_sample - 0.2, validity, unit="J/sample"),
        "samples_per_wh": joules(3600 / per_sample, validity, unit="samples/Wh"),
        "energy_compile": joules(360.0, validity, window="compile"),
        "energy_all_steps": joules(energy + 700, validity, window="all steps"),
        "energy_run": joules(energy + 1380, validity, window="run"),
    }


def record(repeat: int, quantities: dict[str, Quantity], *, cell: str = "cell", **settings: Any) -> RunRecord:
    rate = Quantity(value=300.0, unit="samples/s", scope="job", window="steady", aggregation="work over time")
    run_id = f"{cell}-{repeat}"
    return RunRecord(
        run_id=run_id,
        spec=RunSpec(run_id=run_id, configuration=cell, study="watts", repeat=repeat, **settings),
        status=Status(code="completed"),
        launch=None,
        environment=Environment(node=NODE, allocation=None, device="cuda", timing="events", facts={}),
        phases=PHASES,
        stop=None,
        steady=Steady(answer="steady", start_step=10, stop_step=100, reason="flat"),
        crosscheck=None,
        steps_seen=100,
        ranks_seen=1,
        seconds_measured=13.0,
        quantities={"throughput": rate, **quantities},
        findings=(),
        raw=(),
        derived_by="test",
    )


def write_sensors(
    raw: Path, channels: Sequence[Channel], domains: Sequence[Domain], read: Callable[[int, float], float],
    *, samples: int = 210, zero_s: float = 1000.0, missing: tuple[Missing, ...] = (), ended: bool = True,
) -> None:  # fmt: skip
    """Sensor files of one node as a sampler at 10 Hz would leave them over 21 s."""
    raw.mkdir(parents=True, exist_ok=True)
    events: list[tuple[str, Any]] = [("sampler", Sampler(node=NODE, process=0, period_s=0.1, clock="m", zero_s=zero_s))]
    events += [("domain", domain) for domain in domains] + [("channel", channel) for channel in channels]
    events += [("missing", one) for one in missing]
    if ended:
        events.append(("ended", Ended(reason="asked", at_s=zero_s + 21, samples=samples)))
    lines = [json.dumps({"kind": kind, **to_json_object(event)}) for kind, event in events]
    (raw / "sensors-00000.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    times = np.linspace(0, 21, samples, endpoint=False)
    with (raw / "power-00000.bin").open("wb") as file:
        file.write(POWER_MAGIC)
        for number in range(len(channels)):
            for part in np.array_split(times, 3):
                values = np.array([read(number, float(time)) for time in part])
                write_power_chunk(file, number, np.array([part + zero_s, values, np.full(part.size, 1e-4)]))


def gauge(number: int = 0, *, domain: str | None = None, average_s: float | None = 0.0, **more: Any) -> Channel:
    name = f"nvml.{number}.{'power' if average_s == 0 else 'average'}"
    return Channel(
        name=name, backend="nvml", domain=domain or f"gpu{number}", kind="gauge", resolution=1.0, average_s=average_s,
        **more,
    )  # fmt: skip


def counter(number: int = 0, **more: Any) -> Channel:
    name = f"nvml.{number}.energy"
    return Channel(name=name, backend="nvml", domain=f"gpu{number}", kind="counter", resolution=0.001, **more)


def gpu(number: int = 0, parent: str | None = None) -> Domain:
    return Domain(name=f"gpu{number}", scope="device", device=f"GPU-{number}", parent=parent, ranks=(number,))


def keep(folder: Path, *records: RunRecord) -> ResultFolder:
    results = ResultFolder(folder)
    for one in records:
        place = results.run_path(one.spec)
        place.mkdir(parents=True, exist_ok=True)
        write_json(place / "record.json", one)
    return results


# -- over jobs


def test_the_job_is_the_sampling_unit_and_the_gain_is_shared() -> None:
    values = (1.00, 1.02, 0.98)
    cell = energy_cells(summarise(record(i, energies(value, valid())) for i, value in enumerate(values)), SCOPES)[0]
    found = cell.figures["energy_per_sample"]
    assert found.value == pytest.approx(1.0)
    # Student's t with two degrees of freedom at 95 % is 4.303; then the gain that repeats cannot show.
    half = 4.3027 * 0.02 / np.sqrt(3) + GAIN
    assert found.interval is not None
    assert found.interval.high - 1 == pytest.approx(half, rel=1e-3)
    assert 1 - found.interval.low == pytest.approx(half, rel=1e-3)
    assert cell.figures["samples_per_wh"].value == pytest.approx(3600.0)
    turned = cell.figures["samples_per_wh"].interval
    assert turned is not None
    assert turned.low == pytest.approx(3600 / found.interval.high)
    assert (cell.jobs, cell.verdict, cell.scope) == (3, "valid", "GPU only")


def test_intervals_over_jobs_hold_the_truth_though_all_share_one_gain() -> None:
    rng, held = np.random.default_rng(6), 0
    for _ in range(300):
        gain = rng.uniform(-GAIN, GAIN)
        read = (1 + gain) * (1 + 0.02 * rng.standard_normal(3))
        # A job's own interval holds its gain and, here, nothing else.
        jobs = [record(i, energies(float(value), valid())) for i, value in enumerate(read)]
        found = energy_cells(summarise(jobs), {})[0].figures["energy_per_sample"].interval
        assert found is not None
        held += found.low <= 1.0 <= found.high
    assert held >= 0.95 * 300


def test_a_job_with_invalid_energy_is_not_averaged_and_is_named() -> None:
    jobs = [
        record(0, energies(1.0, valid())),
        record(1, energies(9.0, valid("invalid", "the sampler was killed"))),
        record(2, {"energy_job": joules(None, None, reason="no power or energy sensor can be read here: denied")}),
        record(3, energies(1.0, valid("doubtful", "coverage 80 %"))),
    ]
    cell = energy_cells(summarise(jobs), {})[0]
    assert cell.figures["energy_per_sample"].value == pytest.approx(1.0)
    assert (cell.jobs, cell.verdict) == (2, "doubtful")
    assert [(left.run_id, left.reason) for left in cell.left_out] == [
        ("cell-1", "the sampler was killed"),
        ("cell-2", "no power or energy sensor can be read here: denied"),
    ]
    text = "\n".join(energy_lines([cell], None))
    assert "cell-1" in text
    assert "the sampler was killed" in text
    assert "in 1 of 2 jobs: coverage 80 %" in text


def test_every_energy_has_its_own_number_of_jobs() -> None:
    jobs = [record(repeat, energies(1.0, valid())) for repeat in range(3)]
    bad = jobs[0].quantities | {"power_job": joules(900.0, valid("invalid", "a gap"), unit="W")}
    cells = summarise([replace(jobs[0], quantities=bad), *jobs[1:]])
    figures = energy_object(energy_cells(cells, SCOPES), None, {})["configurations"][0]["figures"]
    counts = {name: figures[name]["jobs"] for name in ("power_job", "energy_job", "samples_per_wh")}
    assert counts == {"power_job": 2, "energy_job": 3, "samples_per_wh": 3}
    assert shown_configurations(cells)[0]["figures"]["power_job"] == figures["power_job"]


def test_the_interval_without_gain_is_printed() -> None:
    quantities = energies(1.0, valid())
    interval = Interval(
        low=0.94, high=1.06, method="sensors", covers="this job", low_without_gain=0.99, high_without_gain=1.01
    )  # fmt: skip
    quantities["energy_per_sample"] = replace(quantities["energy_per_sample"], interval=interval)
    one = record(0, quantities)
    for lines in (energy_lines(energy_cells(summarise([one]), SCOPES), None), record_lines(one)):
        text = "\n".join(lines)
        assert re.search(r"1\.0000 \[0\.94000, 1\.0600\].*\[0\.99000, 1\.0100\]", text)
        assert "without gain = without the tolerance" in text
    jobs = [record(n, quantities) for n in range(3)]
    mean = energy_cells(summarise(jobs), SCOPES)[0].figures["energy_per_sample"].interval
    assert mean is not None
    assert mean.gain == pytest.approx(0.05)


def test_jobs_that_count_different_things_are_not_averaged() -> None:
    jobs = [record(0, energies(1.0, valid())), record(1, energies(2.0, valid(), scope="module"))]
    cell = energy_cells(summarise(jobs), {"cell-0": ("device",)})[0]
    shown = shown_configurations(summarise(jobs))[0]["figures"]
    assert (shown["energy_job"]["value"], shown["energy_job"]["jobs"]) == (None, 0)
    assert "do not measure the same" in str(shown["energy_job"]["reason"])
    assert "energy_per_sample" not in shown
    assert cell.main.value is None
    assert "do not measure the same" in str(cell.main.reason)
    assert "module: CPU included" in str(cell.main.reason)


def test_warm_up_is_what_the_steps_took_before_the_steady_window() -> None:
    cell = energy_cells(summarise([record(0, energies(1.0, valid()))]), {})[0]
    assert cell.figures["energy_warmup"].value == pytest.approx(700.0)
    whole = record(0, energies(1.0, valid()))
    cut = RunRecord(**{**vars(whole), "steps_seen": 120})
    assert "energy_warmup" not in energy_cells(summarise([cut]), {})[0].figures


def test_a_run_that_failed_has_no_energy_in_the_mean() -> None:
    failed = RunRecord(**{**vars(record(1, energies(5.0, valid()))), "status": Status(code="killed", reason="x")})
    cell = energy_cells(summarise([record(0, energies(1.0, valid())), failed]), {})[0]
    assert cell.figures["energy_per_sample"].value == 1.0
    assert "killed" in cell.left_out[0].reason


def test_several_cells_are_compared_only_where_they_count_the_same() -> None:
    jobs = [
        record(0, energies(2.0, valid()), cell="a", batch=8),
        record(0, energies(1.0, valid()), cell="b", batch=16),
        record(0, {}, cell="c", batch=32),
    ]
    scopes: Any = {"a-0": ("device",), "b-0": ("device",)}
    text = energy_lines(energy_cells(summarise(jobs), scopes), None)
    said = " ".join(" ".join(text).split())
    assert said.startswith(
        "Energy was measured for 2 of 3 configurations. No reliable best: none of 3 configurations is reliable"
    )
    assert "batch=16 measured lowest 1.000 J/sample, but is unreliable: 1 of the 3 jobs that a ranking needs" in said
    assert "batch=32: no energy: this run had no sensor" in "\n".join(text)
    text = energy_lines(energy_cells(summarise(jobs), {**scopes, "b-0": ("module",)}), None)
    assert "cannot be compared" in " ".join(" ".join(text[:2]).split())
    assert all(len(line) <= 80 for line in text)


# -- the trace


def test_the_trace_is_the_true_power_on_the_runs_clock(tmp_path: Path) -> None:
    channels = [counter(), gauge(average_s=1.0), gauge(limit_w=400.0)]
    write_sensors(tmp_path, channels, [gpu()], lambda number, at: watts(at) if number == 2 else 1e6)
    (line,) = power_trace(record(0, energies(1.0, valid())), tmp_path).lines
    assert line.time_s[0] == pytest.approx(0.0)
    assert line.counted
    assert line.limit_w == 400.0
    assert [line.mean_w[np.searchsorted(line.time_s, at)] for at in (1, 3, 6, 10, 20.5)] == [60, 120, 350, 300, 200]


@pytest.mark.parametrize("wrap", [None, 1000.0])
def test_a_counter_becomes_power_also_where_it_wraps(tmp_path: Path, wrap: float | None) -> None:
    write_sensors(tmp_path, [counter(wrap=wrap)], [gpu()], lambda _n, at: (90_000 + 250 * at) % (wrap or 1e9))
    (line,) = power_trace(record(0, energies(1.0, valid())), tmp_path).lines
    assert line.mean_w == pytest.approx(np.full(line.mean_w.size, 250.0))


@pytest.mark.parametrize("kind", [gauge, counter])
def test_a_file_that_changes_while_it_is_read_gives_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    write_sensors(tmp_path, [kind()], [gpu()], lambda _n, at: 250 * at)
    samples = NodeSensors.samples

    def then_emptied(node: NodeSensors) -> Any:
        yield from samples(node)
        for path in tmp_path.glob("power-*"):
            path.write_bytes(POWER_MAGIC)

    monkeypatch.setattr(NodeSensors, "samples", then_emptied)
    assert power_trace(record(0, energies(1.0, valid())), tmp_path).lines == ()


def test_a_long_trace_is_reduced_with_its_extremes(tmp_path: Path) -> None:
    def spiky(_number: int, at: float) -> float:
        return 900.0 if abs(at - 12.345) < 2e-4 else 300.0

    write_sensors(tmp_path, [gauge(), counter(1)], [gpu(), gpu(1)], spiky, samples=105_000)
    first, second = power_trace(record(0, energies(1.0, valid())), tmp_path).lines
    assert first.time_s.size == MAX_POINTS
    assert second.time_s.size <= MAX_POINTS
    assert first.high_w.max() == 900.0
    assert first.low_w.max() == 300.0


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    denied = Missing(backend="rapl", what="package-0", code="forbidden", reason="permission denied")
    write_sensors(tmp_path, [gauge()], [gpu()], lambda _n, at: watts(at), missing=(denied,), ended=False)
    notes = power_trace(record(0, energies(1.0, valid())), tmp_path).notes
    assert notes == ("rapl: package-0: permission denied", f"the sampler of {NODE} did not end properly")
    assert power_trace(record(0, {}), tmp_path / "nothing").lines == ()


# -- the picture


def trace_of(lines: int = 2, **more: Any) -> PowerTrace:
    times = np.linspace(0, 21, 211)
    power = np.array([watts(at) for at in times])
    made = [
        PowerLine(f"gpu{i}", NODE, "device", True, times, power - 5 - 9 * i, power - 9 * i, power + 5, 400.0)
        for i in range(lines)
    ]
    return PowerTrace("run", more.pop("phases", PHASES[:2] + PHASES[4:] + PHASES[3:4]), tuple(made), ())


def test_the_picture_is_sound_and_always_the_same() -> None:
    svg = power_svg(trace_of(), "run", "words")
    assert svg == power_svg(trace_of(), "run", "words")
    root = ET.fromstring(svg)
    name = "{http://www.w3.org/2000/svg}"
    assert (root.get("role"), root.get("aria-labelledby")) == ("img", "title desc")
    assert root.findtext(f"{name}title") == "run"
    assert root.findtext(f"{name}desc") == "words"
    texts = [text.text for text in root.iter(f"{name}text")]
    assert {"power, W", "time of the run, s", "compile", "warm-up", "steady", "gpu0 (device)"} <= set(texts)
    assert any("limit 400" in str(text) for text in texts)
    assert "http" not in svg.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert len({dash for _, dash in STYLES}) == len({colour for colour, _ in STYLES}) == len(STYLES)


def test_the_picture_shows_the_true_power_where_its_axes_say() -> None:
    svg = power_svg(trace_of(1), "run", "words")
    places = [
        (float(x), float(y))
        for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", re.findall(r'<path d="(M[^"]+L[^"]+)"', svg)[0])
    ]
    marks = dict(re.findall(r'y="([\d.]+)" text-anchor="end">([\d,]+)<', svg))
    scale = sorted((float(value.replace(",", "")), float(y) - 4) for y, value in marks.items())
    (low_w, low_y), (high_w, high_y) = scale[0], scale[-1]
    for at in (1.0, 3.0, 6.0, 10.0):
        y = places[round(at * 10)][1]
        assert low_w + (y - low_y) * (high_w - low_w) / (high_y - low_y) == pytest.approx(watts(at), abs=2)


def test_strange_texts_do_nothing_in_the_picture() -> None:
    evil = "</title><script>alert('1')</script>\x1b[2J\x00\ud800&\u202e"
    lines = [PowerLine(evil, evil, "device", True, np.arange(3.0), np.ones(3), np.ones(3), np.ones(3), 7.0)]
    svg = power_svg(PowerTrace("run", (), tuple(lines), ()), evil, evil)
    ET.fromstring(svg)
    assert "<script" not in svg
    assert "\x1b" not in svg
    svg.encode("utf-8")


def test_many_domains_are_put_together_and_a_gap_stays_one() -> None:
    svg = power_svg(trace_of(64), "run", "words")
    assert "64 x device" in svg
    times = np.concatenate([np.arange(0, 5, 0.1), np.arange(15, 21, 0.1)])
    line = PowerLine("gpu0", NODE, "device", True, times, flat := np.full(times.size, 5.0), flat, flat)
    (path,) = re.findall(r'<path d="(M[^"]+L[^"]+)"', power_svg(PowerTrace("run", (), (line,), ()), "run", ""))
    assert path.count("M") == 2


@pytest.mark.parametrize("at_s", [0.0, -5e11, 9e11, 1e-300])
@pytest.mark.parametrize("power_w", [0.0, -3.0, 9e11, 1e-300])
def test_any_reading_gives_a_sound_picture(at_s: float, power_w: float) -> None:
    ones = np.full(2, power_w)
    for times in (np.full(2, at_s), np.array([-9e11, 9e11]), np.array([at_s])):
        flat = ones[: times.size]
        line = PowerLine("x", NODE, "device", True, times, flat, flat, flat)
        svg = power_svg(PowerTrace("run", PHASES, (line,), ()), "", "")
        ET.fromstring(svg)
        assert not re.search(r"[\s\"\(](nan|inf|-inf)[\s\"\)]", svg)
        assert len(power_chart(PowerTrace("run", PHASES, (line,), ()))) >= 7


def test_a_damaged_file_is_drawn_as_far_as_it_goes(tmp_path: Path) -> None:
    write_sensors(tmp_path, [gauge()], [gpu()], lambda _n, at: watts(at))
    whole = (tmp_path / "power-00000.bin").read_bytes()
    (tmp_path / "power-00000.bin").write_bytes(whole[:-300] + bytes(300))
    (line,) = power_trace(record(0, energies(1.0, valid())), tmp_path).lines
    assert line.time_s.size == 140
    (tmp_path / "sensors-00000.jsonl").write_text('{"kind": "domain", "name": 5}\n')
    trace = power_trace(record(0, energies(1.0, valid())), tmp_path)
    assert trace.lines == ()
    assert trace.notes


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0, 424, 5) == [0, 100, 200, 300, 400]
    assert ticks(0.0, 0.9, 5) == [0, 0.2, 0.4, 0.6, 0.8]
    assert ticks(-3, 21, 8) == [0, 5, 10, 15, 20]


def test_the_chart_in_text_marks_the_phases() -> None:
    lines = power_chart(trace_of(1))
    assert all(len(line) <= 80 and line.isascii() for line in lines)
    top, marks = lines[1].partition("|")[2], next(line for line in lines if "phase |" in line).partition("|")[2]
    # The highest power is that of the warm-up, and is drawn above it alone.
    assert {mark for mark, block in zip(marks, top, strict=False) if block == "#"} <= {"w", "c", "="}
    assert re.fullmatch(r"s+c+w+=+x+ ?", marks)
    assert "350 W" in lines[1]
    assert "w warm-up" in " ".join(lines[-2:])


# -- the verb


def test_a_simulated_run_shows_its_true_energy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    power = '{"idle_w": 60, "compute_w": 300, "compile_w": 120, "host_w": 90}'
    sensors = '[{"kind": "counter", "limit_w": 350}, {"kind": "gauge", "average_s": 0.1}]'
    words = ["--results", str(tmp_path / "r")]
    settings = [f"sim.power={power}", f"sim.sensors={sensors}", "sim.setup_s=2", "sim.compile_s=3"]
    assert main(["run", "sim", *words, "--devices", "2", *(w for text in settings for w in ("--set", text))]) == 0
    assert "J/sample" in capsys.readouterr().out
    picture = tmp_path / "p.svg"
    code, found = run_json(capsys, "energy", "adhoc", *words, "--plot", str(picture))
    (cell,) = found["configurations"]
    # Two devices of 300 W; each brings 32 samples every 10 ms.
    figure = cell["figures"]["energy_per_sample"]
    assert figure["low"] <= 600 / 6400 <= figure["high"]
    assert figure["value"] == pytest.approx(600 / 6400, rel=0.01)
    assert cell["figures"]["energy_compile"]["value"] == pytest.approx(720, rel=0.1)
    assert (code, cell["verdict"], cell["scope"]) == (0, "valid", "device only")
    assert found["trace"]["domains"] == ["device0", "device1"]
    svg = picture.read_text()
    assert "limit 350 W" in svg
    assert "compile" in svg


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_verb_shows_plots_and_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [record(i, energies(value, valid())) for i, value in enumerate((1.0, 1.02, 0.98))]
    results = keep(tmp_path / "r", *jobs)
    for job in jobs:
        write_sensors(results.run_path(job.spec) / "raw", [gauge(limit_w=400.0)], [gpu()], lambda _n, at: watts(at))
    picture = tmp_path / "p.svg"
    assert main(["energy", "watts", "--results", str(results.path), "--plot", str(picture)]) == 0
    out = capsys.readouterr().out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert out.splitlines()[0].startswith("1.0000 [0.90032, 1.0997] J/sample, 3,600 samples/Wh, at 300.0 W")
    assert "GPU only" in out
    assert "samples/Wh" in out
    assert ET.fromstring(picture.read_text())
    code, found = run_json(capsys, "energy", "watts", "--results", str(results.path))
    assert code == 0
    assert found["configurations"][0]["figures"]["energy_per_sample"]["value"] == pytest.approx(1.0)
    assert found["configurations"][0]["verdict"] == "valid"


def test_no_valid_energy_is_exit_code_1_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reason = "no power or energy sensor can be read here: rapl: permission denied"
    results = keep(tmp_path / "r", record(0, {"energy_job": joules(None, None, reason=reason)}))
    assert main(["energy", "watts", "--results", str(results.path)]) == 1
    out = capsys.readouterr().out
    assert "rapl: permission denied" in " ".join(out.split())
    assert "steelyard doctor" in out
    code, found = run_json(capsys, "energy", "watts", "--results", str(results.path))
    assert (code, found["configurations"][0]["verdict"]) == (1, "invalid")
    assert main(["energy", "watts", "--results", str(results.path), "--plot", str(tmp_path / "p.svg")]) == 1
    assert not (tmp_path / "p.svg").exists()


def test_show_and_run_have_columns_of_energy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = keep(tmp_path / "r", record(0, energies(1.25, valid())))
    assert main(["show", "watts", "--results", str(results.path)]) == 0
    out = capsys.readouterr().out
    assert "J/sample" in out
    assert "1.2500" in out
    assert "samples/Wh" in out
    reason = "no power or energy sensor can be read here: rapl: package-0: permission denied"
    results = keep(tmp_path / "q", record(0, {"energy_job": joules(None, valid("invalid", "x"), reason=reason)}))
    assert main(["show", "watts", "--results", str(results.path)]) == 0
    assert "permission denied" in capsys.readouterr().out


def test_invalid_energy_is_no_number_in_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = keep(tmp_path / "r", record(0, energies(1.25, valid("invalid", "the sampler was killed"))))
    assert main(["show", "watts", "--results", str(results.path)]) == 0
    out = capsys.readouterr().out
    assert "1.2500" not in out
    assert "the sampler was killed" in out


# -- what a new user reads


def test_a_counter_of_constant_power_is_drawn_flat(tmp_path: Path) -> None:
    counter = Channel(name="c", backend="nvml", domain="gpu0", kind="counter", resolution=1e-3)

    def counted(_number: int, at_s: float) -> float:
        # A new value every 0.3 s, read every 0.1 s.
        return 1000.0 + 300.0 * 0.3 * int(at_s / 0.3 + 1e-9)

    write_sensors(tmp_path / "raw", [counter], [gpu()], counted)
    (line,) = power_trace(record(0, energies(1.0, valid())), tmp_path / "raw").lines
    assert line.mean_w == pytest.approx(300.0, rel=0.01)


def test_a_counter_that_stands_still_is_drawn_at_zero(tmp_path: Path) -> None:
    counter = Channel(name="c", backend="nvml", domain="gpu0", kind="counter", resolution=1e-3)
    write_sensors(tmp_path / "raw", [counter], [gpu()], lambda _n, at_s: 300.0 * min(at_s, 8.0))
    (line,) = power_trace(record(0, energies(1.0, valid())), tmp_path / "raw").lines
    assert line.mean_w[line.time_s < 7.5] == pytest.approx(300.0, rel=0.01)
    assert line.mean_w[-1] == 0.0
    assert line.time_s[-1] > 18


def test_a_run_that_never_got_steady_has_no_steady_joules() -> None:
    quantities = energies(1.0, valid())
    quantities |= {"energy_job": joules(3900.0, valid(), window="all steps")}
    out = "\n".join(energy_lines(energy_cells(summarise([record(0, quantities)]), SCOPES), None))
    assert "steady" not in out
    assert "all steps" in out


def test_one_reason_for_all_jobs_is_said_once() -> None:
    lost = {"energy_job": joules(None, None, reason="no power or energy sensor can be read here: x")}
    text = "\n".join(energy_lines(energy_cells(summarise([record(i, lost) for i in range(3)]), {}), None))
    assert text.count("can be read here") == 1


def test_the_picture_says_what_is_counted() -> None:
    at_s, power = np.array([0.0, 21.0]), np.array([300.0, 300.0])
    lines = [PowerLine(name, NODE, name, name == "device", at_s, power, power, power) for name in ("device", "module")]
    svg = power_svg(PowerTrace("r", PHASES, tuple(lines), ()), "t", "s")
    assert "device (counted)" in svg
    assert svg.count("(counted)") == 1


def test_a_machine_without_sensors_makes_no_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reason = "no power or energy sensor can be read here: amd: there is no /dev/kfd; ipu: there is no /dev/ipu0"
    job = record(0, {"energy_job": joules(None, None, reason=reason)})
    results = keep(tmp_path / "r", job)
    assert main(["show", job.run_id, "--results", str(results.path)]) == 0
    out = capsys.readouterr().out
    assert "unknown: no sensor" in out
    assert "/dev/kfd" not in out
