"""Charts: valid Vega-Lite, the same bytes every time, figures in table and words, no ratio where one is forbidden."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from steelyard.analysis.batch import batch_curve
from steelyard.analysis.compare import compare
from steelyard.analysis.energy import energy_cells
from steelyard.analysis.power_trace import PowerLine, PowerTrace
from steelyard.analysis.rows import row_of
from steelyard.analysis.scaling import scaling
from steelyard.analysis.summary import summarise
from steelyard.contracts import observe, sample_files
from steelyard.contracts.finding import Finding
from steelyard.contracts.observe import Launch, Phase, Status
from steelyard.contracts.record import Interval, Quantity, Steady, Validity
from steelyard.contracts.sim import Collective, InputPipeline, Link, Memory, Noise, SimTruth
from steelyard.contracts.spec import Budget, RunSpec
from steelyard.derive.record import derive
from steelyard.errors import DamagedDataError, InputError
from steelyard.report.charts.batch import batch_chart
from steelyard.report.charts.energy import energy_chart
from steelyard.report.charts.heat import heat_chart
from steelyard.report.charts.history import HistoryPoint, history_chart, occasions
from steelyard.report.charts.loss import loss_chart
from steelyard.report.charts.power import power_drawing
from steelyard.report.charts.ratios import ratio_chart
from steelyard.report.charts.scaling import efficiency_chart, throughput_chart
from steelyard.report.charts.style import COLOURS, DARK, INK, QUIET, named, placed_texts, run_ids
from steelyard.report.charts.trace import POINTS, step_band, trace_chart
from steelyard.report.render import draw
from steelyard.results.store import record_text
from steelyard.worker.engine.run import run_directory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from steelyard.analysis.summary import CellSummary
    from steelyard.contracts.record import RunRecord
    from steelyard.report.page import Chart

STEPS = Budget(min_steps=120, max_steps=120, min_seconds=0)
NOISE = Noise(kind="normal", cv=0.01, between_jobs_cv=0.01)
HOSTILE = '<script>alert(1)</script>"&\x00\x1b[31m\u202e\ud800 {{7*7}} datum.x'


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Records through the real worker and derivation, each made once."""
    known: dict[str, RunRecord] = {}

    def make(cell: str, job: int, **settings: Any) -> RunRecord:
        given: dict[str, Any] = {"batch": 32, "budget": STEPS, "crosscheck_steps": 0, **settings}
        spec = RunSpec(run_id=f"{cell}-{job}", study="study", configuration=cell, repeat=job, seed=job, **given)
        if spec.run_id not in known:
            raw = tmp_path_factory.mktemp(spec.run_id)
            (raw / observe.SPEC_FILE).write_text(record_text(spec), encoding="utf-8")
            run_directory(raw)
            known[spec.run_id] = derive(raw)
        return known[spec.run_id]

    return make


@pytest.fixture(scope="module")
def scaled(made: Any) -> list[CellSummary]:
    ring = Collective(message_bytes=10_000_000, links=(Link(latency_s=1e-3, bytes_per_s=1e10),))
    truth = SimTruth(
        step_time_s=0.01, noise=NOISE, collective=ring, slow_rank=1, slow_factor=1.2,
        input=InputPipeline(samples_per_s=3000.0),
    )  # fmt: skip
    return summarise(made(f"n{ranks}", job, devices=ranks, sim=truth) for ranks in (1, 2, 4) for job in range(3))


@pytest.fixture(scope="module")
def swept(made: Any) -> list[CellSummary]:
    truth = SimTruth(
        step_time_s=0.01, sample_time_s=1e-4, noise=NOISE, memory=Memory(limit_bytes=4e9, bytes_per_sample=4e6)
    )
    return summarise(
        made(f"b{batch}", job, batch=batch, sim=truth) for batch in (16, 64, 256, 512, 2048) for job in range(3)
    )


@pytest.fixture(scope="module")
def pair(made: Any) -> tuple[list[CellSummary], list[CellSummary]]:
    def side(name: str, step_s: float) -> list[CellSummary]:
        truth = SimTruth(step_time_s=step_s, sample_time_s=1e-4, noise=NOISE)
        records = [made(f"{name}{batch}", job, batch=batch, sim=truth) for batch in (16, 64) for job in range(3)]
        return summarise(replace(record, spec=replace(record.spec, study=f"study-{name}")) for record in records)

    return side("x", 0.012), side("y", 0.008)


def with_energy(cells: Sequence[CellSummary], verdict: Any = "valid") -> list[Any]:
    """Return the cells with an energy per sample that falls with the batch."""
    validity = Validity(verdict=verdict, reasons=() if verdict == "valid" else ("few readings",), coverage=1.0)

    def joules(record: RunRecord) -> RunRecord:
        cost = 0.5 + 8 / record.spec.batch + 0.01 * record.spec.repeat
        made = {
            name: Quantity(
                value=value, unit=unit, scope="job", window="steady", aggregation="sum", validity=validity,
                interval=Interval(low=0.95 * value, high=1.05 * value, method="sensor", covers="this job"),
            )
            for name, value, unit in (("energy_job", 100 * cost, "J"), ("energy_per_sample", cost, "J/sample"))
        }  # fmt: skip
        whole = record.status.code == "completed"
        return replace(record, quantities=record.quantities | made) if whole else record

    records = [joules(record) for cell in cells for record in cell.records]
    return energy_cells(summarise(records), {})


@pytest.fixture(scope="module")
def charts(made: Any, scaled: Any, swept: Any, pair: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Chart]:
    """One of each kind."""
    curve, ids = scaling(scaled)[0], run_ids(scaled)
    raw = tmp_path_factory.mktemp("trace")
    record = written_trace(raw, made("n1", 0), 1000)
    a, b = pair
    compared = compare([row_of(cell) for cell in a], [row_of(cell) for cell in b])
    return {
        "throughput": throughput_chart(curve, runs=ids),
        "efficiency": efficiency_chart(curve, runs=ids),
        "loss": loss_chart(curve, runs=ids),
        "batch": batch_chart(batch_curve(swept)),
        "trace": trace_chart(raw, record),
        "heat": heat_chart(swept, "batch", "devices"),
        "energy": energy_chart(with_energy(swept)),
        "ratios": ratio_chart(compared, runs=run_ids([*a, *b])),
        "history": history_chart(weekly(12, slower_from=7)),
    }


def written_trace(raw: Path, record: RunRecord, steps: int, chunk: int = 333) -> RunRecord:
    """A step file: slow first steps, then a level; and a record that says so."""
    times = step_times(steps)
    with (raw / "steps-00000.bin").open("wb") as file:
        file.write(sample_files.FILE_MAGIC)
        for first in range(0, steps, chunk):
            table = np.ones((len(sample_files.COLUMNS), min(chunk, steps - first)))
            table[1] = times[first : first + chunk]
            sample_files.write_chunk(file, 0, first, table)
    steady = Steady(answer="steady", start_step=100, stop_step=steps, reason="made so", change_steps=(100,))
    return replace(record, steady=steady, spec=replace(record.spec, devices=1))


def step_times(steps: int) -> Any:
    times = 0.05 * (1 + 0.01 * np.random.default_rng(4).standard_normal(steps))
    times[:100] *= 1.3
    times[0] = 5.0
    return times


def weekly(weeks: int, slower_from: int) -> list[HistoryPoint]:
    rng = np.random.default_rng(6)
    levels = [950.0 if week >= slower_from else 1000.0 for week in range(weeks)]
    return [
        HistoryPoint(
            f"2026-{3 + week // 4:02d}-{1 + 7 * (week % 4):02d}", tuple(level * (1 + 0.003 * rng.standard_normal(3))),
            tuple(f"w{week}-{job}" for job in range(3)),
        )
        for week, level in enumerate(levels)
    ]  # fmt: skip


def blocking(code: str = "SY103") -> Finding:
    return Finding(code=code, severity="error", message="precision changes", fix="measure again")


KINDS = ("throughput", "efficiency", "loss", "batch", "trace", "heat", "energy", "ratios", "history")


# -- every kind


@pytest.mark.parametrize("kind", KINDS)
def test_the_spec_is_vega_lite_with_its_data_inside(charts: dict[str, Chart], kind: str) -> None:
    import altair as alt

    spec = charts[kind].spec
    alt.Chart.from_dict(spec, validate=True)
    text = json.dumps(spec, allow_nan=False)
    assert '"url"' not in text
    assert len(text) < 200_000


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_says_what_it_shows_and_is_the_same_every_time(charts: dict[str, Chart], kind: str) -> None:
    chart = charts[kind]
    first = draw.svg(chart)
    assert draw.svg(chart) == first
    root = ET.fromstring(first)
    assert root.get("role") == "img"
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    assert all(name is not None and name.startswith(chart.name) for name in ids)
    assert root.get("aria-labelledby") == f"{chart.name}-title {chart.name}-desc"
    assert [root[n].text for n in (0, 1)] == [chart.title, chart.alt]
    assert "http" not in first.replace("http://www.w3.org/2000/svg", "")
    assert "NaN" not in first
    assert chart.title in "".join(root.itertext())
    assert draw.svg(chart, titled=False).count(chart.title) == first.count(chart.title) - 1


def test_every_colour_has_a_partner_on_dark_pages(charts: dict[str, Chart]) -> None:
    both = {"#e69f00", "#f0e442"}  # bright on dark, and outlined on white
    for kind, chart in charts.items():
        picture, spec = draw.live(chart)
        assert picture == draw.svg(chart, titled=False)
        used = set(re.findall(r'(?:fill|stroke)="(#[0-9a-f]{6})"', picture))
        assert kind == "heat" or used <= {*DARK, *both}
        themed = draw.themed(picture)
        ET.fromstring(themed)
        assert all(DARK[colour] in themed for colour in used - both if kind != "heat")
        assert '"tip"' in spec
    lines = [_contrast(DARK[colour], DARK["#ffffff"]) for colour in (*COLOURS, INK, QUIET)]
    assert min(lines) > 4.5
    assert len({DARK[colour] for colour in COLOURS}) == len(COLOURS)


def _contrast(a: str, b: str) -> float:
    """The contrast of two colours as WCAG 2 defines it."""
    light = []
    for colour in (a, b):
        parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        light.append(0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05)
    return max(light) / min(light)


@pytest.mark.parametrize("kind", KINDS)
def test_the_data_is_a_table_that_leads_to_runs(charts: dict[str, Chart], kind: str) -> None:
    table = charts[kind].table
    assert table.rows
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert any(cell.runs for row in table.rows for cell in row)
    assert all(cell.text for row in table.rows for cell in row if kind != "history")
    figures = [cell for row in table.rows for cell in row if cell.low is not None and cell.high is not None]
    assert figures or kind == "trace"
    assert all((cell.low or 0) <= float(cell.value or 0) <= (cell.high or 0) for cell in figures)


@pytest.mark.parametrize("kind", KINDS)
def test_the_words_have_figures(charts: dict[str, Chart], kind: str) -> None:
    alt = charts[kind].alt
    assert sum(c.isdigit() for c in alt) >= 4
    assert alt.endswith(".")


def test_pixels_and_pages(charts: dict[str, Chart]) -> None:
    assert draw.png(charts["heat"], scale=1.0).startswith(b"\x89PNG")
    assert draw.pdf(charts["heat"]).startswith(b"%PDF")


def test_texts_of_strangers_do_nothing(pair: Any) -> None:
    a, b = pair
    rows = [replace(row_of(side[0]), place=HOSTILE, table=HOSTILE) for side in (a, b)]
    rows[1] = replace(rows[1], place=HOSTILE + "2")
    chart = ratio_chart(compare([rows[0]], [rows[1]]))
    found = ET.fromstring(draw.svg(replace(chart, title=HOSTILE, alt=HOSTILE)))
    assert not [element for element in found.iter() if element.tag.rpartition("}")[2] == "script"]
    assert "alert(1)" in "".join(found.itertext())


def test_without_the_library_there_is_a_command_to_type(charts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert draw.available()
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not draw.available()
    with pytest.raises(InputError, match="next: pip install 'vl-convert-python>="):
        draw.svg(charts["heat"])


# -- scaling and loss


def test_the_ideal_line_goes_from_the_base_to_the_largest_count(scaled: Any) -> None:
    found = scaling(scaled)[0]
    values = [layer["data"]["values"] for layer in throughput_chart(found).spec["layer"]]
    rate = found.base.throughput.value
    assert rate is not None
    assert values[0][0] == {"x": 1, "y": rate}
    assert values[0][1] == {"x": 4, "y": pytest.approx(4 * rate)}
    assert throughput_chart(found).spec["layer"][0]["encoding"]["x"]["scale"].get("type", "linear") == "linear"


@pytest.mark.parametrize("make", [throughput_chart, efficiency_chart, loss_chart])
def test_a_blocked_analysis_gives_plain_rates_and_says_so(scaled: Any, make: Any) -> None:
    found = replace(scaling(scaled)[0], findings=(blocking(),))
    chart: Chart = make(found, runs=run_ids(scaled))
    assert chart.alt.startswith("Throughput only; for ratios, fix SY103")
    assert chart.notes[0].startswith("Throughput only")
    assert [column.name for column in chart.table.columns] == ["devices", "jobs", "throughput"]
    assert not [layer for layer in chart.spec["layer"] if layer["mark"]["type"] in ("line", "bar")]
    words = "".join(ET.fromstring(draw.svg(chart)).itertext())
    assert not [word for word in ("efficiency", "speed-up", "ideal") if word in words]


def test_counts_without_a_figure_and_without_an_interval_are_seen(scaled: Any) -> None:
    first = [replace(cell, records=cell.records[:1]) for cell in scaled]
    found = replace(scaling(summarise(r for cell in first for r in cell.records))[0], missing=((8, "1 out_of_memory"),))
    chart = efficiency_chart(found)
    words = draw.svg(chart)
    assert "no result" in words
    assert "no CI" in words
    assert "8 devices: 1 out of memory" in chart.alt
    assert chart.table.rows[-1][2].text == "none: 1 out of memory"


def test_the_parts_of_a_bar_add_up_to_its_time(scaled: Any) -> None:
    found = scaling(scaled)[0]
    table = loss_chart(found).table
    names = [column.name for column in table.columns]
    parts = names[3:-1]
    assert {"computation", "exposed communication", "waiting for slower devices"} <= set(parts)
    for row, point in zip(table.rows, found.points, strict=True):
        total = float(row[2].value or 0)
        assert sum(float(row[names.index(part)].value or 0) for part in parts) == pytest.approx(total, rel=1e-9)
        assert total == pytest.approx(1e6 * point.devices / (point.throughput.value or 0), rel=1e-9)
        assert row[-1].value == pytest.approx(100 * point.split.total.value)


def test_what_is_not_told_apart_is_one_part(scaled: Any) -> None:
    def without(record: RunRecord, *names: str) -> RunRecord:
        gone = {
            name: replace(record.quantities[name], value=None, interval=None, reason="not told")
            for name in names
            if name in record.quantities
        }
        return replace(record, quantities={**record.quantities, **gone})

    records = [record for cell in scaled for record in cell.records]
    names = ["exposed_transfer_share"]
    together = loss_chart(scaling(summarise(without(record, *names) for record in records))[0])
    assert "exposed communication and waiting for slower devices" in [column.name for column in together.table.columns]
    names += ["compute_share", "exposed_comm_share", "input_wait_share"]
    rest = loss_chart(scaling(summarise(without(record, *names) for record in records))[0])
    assert "not split" in [column.name for column in rest.table.columns]
    assert any("Not split" in note for note in rest.notes)


# -- batch and heat


def test_the_knee_and_what_ran_out_of_memory_are_drawn(swept: Any) -> None:
    curve = batch_curve(swept)
    chart = batch_chart(curve)
    assert curve.knee is not None
    assert "Knee at batch" in chart.alt
    assert "Out of memory at batch 2,048" in chart.alt
    words = draw.svg(chart)
    assert "logarithmic axis" in words
    assert "out of memory" in words
    blocked = batch_chart(replace(curve, knee=None, asymptote=None, findings=(blocking(),)))
    assert blocked.alt.startswith("No knee")
    assert not [layer for layer in blocked.spec["layer"] if layer["mark"]["type"] == "line"]
    assert "knee" not in draw.svg(blocked, titled=False).split("</desc>")[1]


def test_a_sweep_that_nothing_survived_is_still_a_picture(swept: Any) -> None:
    lost = [cell for cell in swept if cell.throughput.value is None]
    chart = batch_chart(batch_curve(lost))
    assert "Out of memory at batch 2,048" in chart.alt
    draw.svg(chart)


def test_a_heat_map_has_its_figures_or_why_not(swept: Any) -> None:
    chart = heat_chart(swept, "batch", "devices")
    assert "Out of memory at batch 2,048" in chart.alt
    assert "out of memory" in draw.svg(chart)
    assert chart.table.rows[-1][2].text == "none: out of memory"
    wrong = {"findings": (blocking("SY501"),), "unreliable": ("errors in its runs: SY501",)}
    spoiled = [replace(cell, **wrong) if cell.throughput.value else cell for cell in swept]
    marked = heat_chart(spoiled, "batch", "devices")
    assert "SY501" in draw.svg(marked)
    assert "Fastest" not in marked.alt
    assert "No configuration is reliable" in marked.alt


def test_a_bound_without_an_upper_end_is_shown(swept: Any) -> None:
    rate = swept[0].throughput
    bound = Interval(low=0.5 * rate.value, high=None, level=0.95, method="t", covers="3 jobs")
    cells = [replace(swept[0], throughput=replace(rate, interval=bound)), *swept[1:]]
    assert '"at least ' in json.dumps(heat_chart(cells, "batch", "devices").spec)
    assert named(20.93, 7.904, None) == "20.93 (95 % CI: at least 7.904)"


def test_a_heat_map_of_more_than_two_settings_is_refused(swept: Any, scaled: Any) -> None:
    with pytest.raises(InputError, match="differ in more than two settings"):
        heat_chart(swept, "devices", "precision")
    with pytest.raises(InputError, match="no such setting"):
        heat_chart(swept, "batch", "nothing-of-this-name")


# -- traces


def test_a_trace_is_reduced_to_the_truth(tmp_path: Path, made: Any) -> None:
    written_trace(tmp_path, made("n1", 0), 1000, chunk=77)
    times = step_times(1000)
    band = step_band(tmp_path, 1, most=150)
    assert band.steps_per_point == 7
    for place in range(band.mean_s.size):
        part = times[7 * place : 7 * place + 7]
        assert band.mean_s[place] == pytest.approx(part.mean())
        assert (band.low_s[place], band.high_s[place]) == (part.min(), part.max())


def test_a_long_trace_has_few_points_and_says_what_is_beyond_its_axis(tmp_path: Path, made: Any) -> None:
    record = written_trace(tmp_path, made("n1", 0), 50_000, chunk=5000)
    chart = trace_chart(tmp_path, record)
    assert len(chart.table.rows) <= POINTS
    assert len(draw.svg(chart)) < 60_000
    assert any("beyond the axis, up to 5.00 s" in note for note in chart.notes)
    assert "steps 100 to 50,000" in " ".join(chart.notes)
    assert "The level changes at step 100" in chart.alt


def test_a_run_without_steps_or_with_damaged_ones_has_no_trace(tmp_path: Path, made: Any) -> None:
    with pytest.raises(InputError, match="no step times to draw"):
        trace_chart(tmp_path, made("n1", 0))
    record = written_trace(tmp_path, made("n1", 0), 500)
    file = tmp_path / "steps-00000.bin"
    data = bytearray(file.read_bytes())
    data[400] ^= 0xFF
    file.write_bytes(bytes(data))
    with pytest.raises(DamagedDataError):
        trace_chart(tmp_path, record)


# -- energy and power


def test_an_energy_that_is_doubtful_is_hollow_and_one_that_is_not_there_is_named(swept: Any) -> None:
    valid, doubtful = energy_chart(with_energy(swept)), energy_chart(with_energy(swept, "doubtful"))
    assert "device only, valid" in draw.svg(valid) or "accelerators of the job, valid" in draw.svg(valid)
    assert "doubtful" in draw.svg(doubtful, titled=False)
    assert any(note.startswith("Not drawn: batch=2048") for note in valid.notes)
    with pytest.raises(InputError, match="no configuration has an energy"):
        energy_chart(energy_cells(swept, {}))


def test_names_of_points_do_not_cover_each_other() -> None:
    values = [
        {"x": 5.0, "y": 5.0 + 0.1 * n, "text": f"point {n}", "left": None, "right": None, "low": None, "high": None}
        for n in range(4)
    ]
    from steelyard.report.charts.style import Axes, number_axis

    layers = placed_texts(values, Axes(number_axis("x", 0, 10), number_axis("y", 0, 10)), (10, 10), (500, 300))
    places = {(layer["mark"]["dx"], layer["mark"]["dy"]) for layer in layers}
    assert len(places) == 4


def test_the_power_of_a_run_is_a_drawing_with_ids_of_its_own(swept: Any) -> None:
    time_s = np.linspace(0, 20, 400)
    power_w = np.where(time_s > 5, 300.0, 60.0)
    line = PowerLine("gpu0", "node1", "device", True, time_s, power_w - 5, power_w, power_w + 5)
    trace = PowerTrace("run-1", (Phase(name="steps", start_s=5.0, end_s=20.0),), (line,), ())
    drawing = power_drawing(with_energy(swept)[0], trace, "power-1")
    root = ET.fromstring(drawing.svg)
    assert root.get("aria-labelledby") == "power-1-title power-1-desc"
    assert {element.get("id") for element in root.iter() if element.get("id")} == {"power-1-title", "power-1-desc"}
    assert drawing.table is not None
    assert len(drawing.table.rows) == 100
    assert drawing.table.rows[0][3].value == pytest.approx(60.0)
    assert drawing.table.rows[-1][3].runs == ("run-1",)
    assert "gpu0 from 55.0 to 305 W" in drawing.alt


# -- comparisons


def test_ratios_come_after_their_verdict_with_intervals(charts: dict[str, Chart]) -> None:
    chart = charts["ratios"]
    columns = [column.name for column in chart.table.columns]
    assert columns.index("verdict") < columns.index("B / A")
    assert chart.alt.startswith("Comparable")
    assert chart.notes[0].startswith("Comparable")
    assert "1: equal to A, the base" in draw.svg(chart)
    names = [row[0].text for row in chart.table.rows]
    assert names[:2] == ["batch 16", "batch 64"]


def test_what_may_not_be_compared_has_figures_and_no_ratio(pair: Any) -> None:
    a, b = (row_of(side[0]) for side in pair)
    other = replace(b, settings={**b.settings, "precision": "bf16"})
    blocked = ratio_chart(compare([a], [other]), runs=run_ids([cell for side in pair for cell in side]))
    assert blocked.alt.startswith("No ratio: not comparable (SY103")
    assert "B / A" not in draw.svg(blocked)
    assert [column.name for column in blocked.table.columns] == ["side", "row", "throughput"]
    forced = ratio_chart(compare([a], [other], force=True))
    assert "FORCED" in draw.svg(forced)


def test_a_blocked_pair_among_others_has_a_line_without_a_dot(pair: Any) -> None:
    a, b = pair
    found = compare([row_of(cell) for cell in a], [row_of(cell) for cell in b])
    first = found.comparisons[0]
    spoiled = replace(first, verdict="not comparable", ratios=(), findings=(blocking(),))
    chart = ratio_chart(replace(found, comparisons=(spoiled, *found.comparisons[1:])))
    assert "not comparable: SY103" in draw.svg(chart)
    row = next(row for row in chart.table.rows if row[1].text == "not comparable")
    assert [cell.value for cell in row[2:]] == [None] * 6


def test_a_logarithmic_axis_says_so(pair: Any) -> None:
    found = compare([row_of(cell) for cell in pair[0]], [row_of(cell) for cell in pair[1]])
    assert "logarithmic" not in draw.svg(ratio_chart(found))
    assert "(logarithmic axis)" in draw.svg(ratio_chart(found, logarithmic=True))


def test_many_pairs_are_a_bounded_picture_and_a_whole_table(pair: Any) -> None:
    found = compare([row_of(cell) for cell in pair[0]], [row_of(cell) for cell in pair[1]])
    many = replace(found, comparisons=found.comparisons[:1] * 100)
    chart = ratio_chart(many)
    assert len(chart.table.rows) == 100
    assert chart.spec["height"] == 40 * 30
    assert any("60 more pairs" in note for note in chart.notes)


# -- history


def test_a_change_is_dated() -> None:
    chart = history_chart(weekly(12, slower_from=7))
    assert "lower since 2026-04-22" in chart.alt
    assert [row[3].text for row in chart.table.rows].count("") == 11
    assert "change" in draw.svg(chart)
    flat = history_chart(weekly(12, slower_from=12))
    assert "No change found" in flat.alt
    assert "possible days" not in draw.svg(flat)
    with pytest.raises(InputError, match="no history"):
        history_chart(weekly(1, slower_from=9))


def test_occasions_are_days_of_runs_that_have_a_figure(made: Any) -> None:
    def on(day: str, job: int, **changes: Any) -> RunRecord:
        launch = Launch(
            launcher="local", host="h", command=("x",), started_at=f"{day}T10:00:00+00:00", wall_s=1.0, exit_code=0
        )
        record: RunRecord = made("n1", job)
        return replace(record, launch=launch, **changes)

    failed = Status(code="failed", reason="broken")
    records = [on("2026-05-08", 0), on("2026-05-01", 1), on("2026-05-01", 2), on("2026-05-02", 0, status=failed)]
    found = occasions([*records, made("n1", 0), on("2026-02-30", 3)])
    assert [(entry.day, len(entry.values)) for entry in found] == [("2026-05-01", 2), ("2026-05-08", 1)]
    assert found[0].runs == ("n1-1", "n1-2")
