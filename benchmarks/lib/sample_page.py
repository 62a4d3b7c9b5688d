"""A page with every kind of block and made-up values, to test the renderers.

`poisoned` puts a text into every text of a page, including names and file names, as a hostile record could.
"""

from __future__ import annotations

import dataclasses
import json
import random
from dataclasses import replace
from typing import Any

from steelyard.contracts.finding import Finding
from steelyard.report.charts.style import Axes, Sign, bars_up, key, number_axis, points, shown_by, spec, texts
from steelyard.report.page import Cell, Chart, Column, Drawing, Page, Prose, Section, Table

DEVICES = (1, 2, 4, 8, 16)
STUDY = """name = "resnet50-scaling"
repeats = 5

[run]
workload = "vision"
model = "resnet50"
budget = { min_steps = 200, min_seconds = 30.0 }

[sweep]
devices = [1, 2, 4, 8, 16]
"""
SQUARE = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 300" width="760" height="300" role="img">'
    '<rect width="760" height="300" fill="#ffffff"/><path d="M60 20V260H740" fill="none" stroke="#222222"/>'
    '<path d="M60 250L150 120L700 110L720 240" fill="none" stroke="#0072b2" stroke-width="2"/>'
    '<text x="70" y="40" font-size="14" font-family="sans-serif">power, W</text></svg>'
)


def runs_of(devices: int) -> tuple[str, ...]:
    """Return run ids like those of a study."""
    return tuple(f"resnet50-scaling-d{devices:02d}-r{repeat}-7f3a{devices:02d}{repeat}" for repeat in range(5))


def scaling_table() -> Table:
    """One row per device count, with intervals and runs."""
    rows = []
    for devices in DEVICES:
        rate = 412.0 * devices * (1 - 0.012 * devices)
        share = 100 * (1 - 0.012 * devices) / (1 - 0.012)
        runs, last = runs_of(devices), devices == DEVICES[-1]
        rows.append(
            (
                Cell(f"{devices}", devices),
                Cell("5", 5, runs=runs),
                Cell(f"{rate:,.1f} [{rate * 0.99:,.1f}, {rate * 1.01:,.1f}]", rate, rate * 0.99, rate * 1.01, runs),
                Cell(
                    f"{share:.1f}",
                    share,
                    share - 1.2,
                    share + 1.2,
                    runs_of(1) + runs,
                    ("SY301",) * last,
                    unreliable=last,
                ),
                Cell("-0.3", -0.3) if devices > 1 else Cell("unknown: the base itself"),
                Cell("unreliable" if last else "reliable"),
            )
        )
    columns = (
        Column("devices", filtered=True), Column("jobs"), Column("throughput", "images/s"), Column("efficiency", "%"),
        Column("against the fit", "%"), Column("reliability", align="left", filtered=True),
    )  # fmt: skip
    notes = ("Efficiency is relative to one device.", "[ ] = 95 % CI over jobs, Student's t.")
    return Table("scaling", "Throughput and efficiency by devices", columns, tuple(rows), notes)


def chart_spec(words: str = "") -> dict[str, Any]:
    """Return a chart with `words` in every text: axes, key, labels and what readers see when they point at a mark."""
    values: list[dict[str, Any]] = []
    for n in DEVICES:
        rate = 412.0 * n * (1 - 0.012 * n)
        values.append({"x": n, "y": rate, "low": 0.97 * rate, "high": 1.03 * rate, "name": f"{n} devices{words}"})
    axes = Axes(number_axis(f"{words}devices", 0, 22), number_axis(f"{words}throughput, images/s{words}", 0, 6000))
    sign = f"{words}measured{words}"
    marks = [*bars_up(values, axes), points(values, axes.at()), *texts(values, axes.at(), "name")]
    return spec([*shown_by(sign, marks), *key([Sign(sign, shape="circle")])], zoom=axes)


def chart() -> Chart:
    """A small chart."""
    columns = tuple(replace(column, filtered=False) for column in scaling_table().columns)
    table = replace(scaling_table(), name="scaling-chart-data", columns=columns, notes=())
    words = "Throughput grows from 407 to 5,326 images/s between 1 and 16 devices, a little below the ideal line."
    return Chart("scaling-chart", "Throughput by devices", chart_spec(), table, words, ("Linear axes.",))


def findings() -> tuple[Finding, ...]:
    """Findings of each severity, one of them many times."""
    blocks = Finding(
        code="SY301", severity="error", message="the base of the efficiency is 1 device in one row and 4 in another",
        fix="measure one device with the same settings, and report the efficiency relative to it", place="row 5",
        evidence="5,326 / (16 x 407) = 0.82, stated 0.94",
    )  # fmt: skip
    disclose = [
        Finding(
            code="SY203", severity="warning", message=f"only {n % 3 + 2} jobs",
            fix="add repeats: `repeats = 5` in the study file", place=f"configuration {n}",
        )
        for n in range(12)
    ]  # fmt: skip
    note = Finding(
        code="SY602", severity="note", message="all jobs ran on one node; other nodes may differ", fix="none needed"
    )
    return (blocks, *disclose, note)


def full_page() -> Page:
    """Return a page with every kind of block."""
    drawing = Drawing("power", "Power over time", SQUARE, "Power rises to 410 W within 12 s and stays.", None)
    facts = (
        ("device", "Simulated accelerator, 80 GB"), ("driver", "sim 1.0"), ("torch", "2.14.1+cpu"),
        ("path of the container image", "/cvmfs/software.example.org/containers/pytorch-24.10-py3-aarch64.sif"),
        ("kernel", "6.1.0-27-arm64 #1 SMP PREEMPT_DYNAMIC"),
    )  # fmt: skip
    sections = (
        Section(
            "scaling", "Scaling", "How far does training scale?",
            "To 8 devices at 90 % efficiency or more; 16 devices give 82 % [81, 83].",
            (chart(), replace(chart(), name="second", title="The same again"), scaling_table()), findings(),
        ),
        Section(
            "energy", "Energy", "What does an image cost?", "1.02 J [0.99, 1.05] on 8 devices, at the module.",
            (drawing, Prose(("The counter and the integral of the gauge agree within 0.4 %.",))), findings()[-1:],
        ),
        Section("method", "Method", blocks=(Prose(("Jobs are the sampling unit.",), code=STUDY),), folded=True),
        Section("environment", "Environment", blocks=(Prose(facts=facts), run_table(60)), folded=True),
    )  # fmt: skip
    raw = json.dumps([{"run": run} for n in DEVICES for run in runs_of(n)]).encode()
    return Page(
        "ResNet-50 on a simulated accelerator", "25 runs in 5 configurations", sections, "2026-11-15T12:00:00Z",
        "steelyard 0.1",
        {"records.json": raw},
    )  # fmt: skip


def small_page() -> Page:
    """A page with every kind of block, as small as possible."""
    page = full_page()
    sections = []
    for section in page.sections:
        blocks = [
            replace(block, rows=block.rows[:2]) if isinstance(block, Table) else block for block in section.blocks
        ]
        sections.append(replace(section, blocks=tuple(blocks), findings=section.findings[:2]))
    return replace(page, sections=tuple(sections))


def run_table(count: int, seed: int = 1) -> Table:
    """One row per run."""
    chance = random.Random(seed)
    rows = []
    for number in range(count):
        run = f"study-c{number // 5:04d}-r{number % 5}-{chance.getrandbits(32):08x}"
        rate, power = chance.gauss(3200, 40), chance.gauss(402, 6)
        mine = (run,)
        rows.append(
            (
                Cell(run, run, runs=mine),
                Cell(f"batch {2 ** (number // 5 % 9)}, {2 ** (number // 45 % 5)} devices"),
                Cell("completed"),
                Cell(f"{rate:,.1f}", rate, rate - 12, rate + 12, mine),
                Cell(f"{1e3 * 128 / rate:.3f}", 128 / rate, runs=mine),
                Cell(f"{power:.1f}", power, power - 8, power + 8, mine),
                Cell(f"{power / rate:.4f}", power / rate, runs=mine, codes=("SY602",) * (number % 7 == 0)),
                Cell(f"node{chance.randrange(64):03d}"),
            )
        )
    columns = (
        Column("run", align="left"), Column("configuration", align="left"), Column("ended", align="left"),
        Column("throughput", "images/s"), Column("step", "ms"), Column("power", "W"), Column("energy", "J/image"),
        Column("node", align="left"),
    )  # fmt: skip
    return Table("runs", "Every run", columns, tuple(rows))


def poisoned(page: Page, words: str) -> Page:
    """Return the page with `words` before and after every text in it."""
    made = _poisoned(page, words)
    assert isinstance(made, Page)
    return replace(made, downloads={f"{words}{name}{words}": data for name, data in page.downloads.items()})


def _poisoned(part: Any, words: str) -> Any:
    if isinstance(part, str):
        return f"{words} {part} {words}"
    if isinstance(part, tuple):
        return tuple(_poisoned(entry, words) for entry in part)
    if isinstance(part, Finding):
        return replace(part, **{name: _poisoned(getattr(part, name), words) for name in ("message", "fix", "place")})
    if isinstance(part, Chart):
        table = _poisoned(part.table, words)
        spec_of = chart_spec(f" {words} ")
        return Chart(part.name + words, part.title + words, spec_of, table, part.alt + words, part.notes)
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        keep = ("align", "svg", "downloads", "folded")
        changed = {
            f.name: _poisoned(getattr(part, f.name), words) for f in dataclasses.fields(part) if f.name not in keep
        }
        return replace(part, **changed)
    return part
