"""Simulated studies through the real worker loop, raw files and derivation, with every kind of chart."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from steelyard.analysis.batch import batch_curve
from steelyard.analysis.best import rank
from steelyard.analysis.compare import compare
from steelyard.analysis.measured_energy import cells_with_energy, plotted
from steelyard.analysis.request import WorkPlan
from steelyard.analysis.rows import row_of
from steelyard.analysis.scaling import scaling
from steelyard.analysis.select import select
from steelyard.analysis.verify import history
from steelyard.contracts.observe import LAUNCH_FILE, Launch
from steelyard.derive.record import derive
from steelyard.inputs.recipe import load_recipe, plan
from steelyard.inputs.scheme import find_scheme
from steelyard.inputs.study import expand, load_study
from steelyard.report.charts.batch import batch_chart
from steelyard.report.charts.energy import energy_chart
from steelyard.report.charts.heat import heat_chart
from steelyard.report.charts.history import history_chart, occasions
from steelyard.report.charts.loss import loss_chart
from steelyard.report.charts.power import power_drawing
from steelyard.report.charts.ranking import ranking_chart
from steelyard.report.charts.ratios import ratio_chart
from steelyard.report.charts.scaling import efficiency_chart, throughput_chart
from steelyard.report.charts.style import run_ids
from steelyard.report.charts.trace import trace_chart
from steelyard.report.pack.build import gather
from steelyard.report.pack.files import write_pack
from steelyard.results.store import RAW, ResultFolder, write_json
from steelyard.worker.engine.run import run_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from steelyard.analysis.verify import History
    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec
    from steelyard.report.page import Chart, Drawing

BUDGET = "{ min_steps = 300, max_steps = 300, min_seconds = 0.0 }"
STUDIES = {
    "scaling": """
        repeats = 3
        [run]
        batch = 64
        crosscheck_steps = 0
        budget = BUDGET
        [run.sim]
        step_time_s = 0.05
        noise = { kind = "normal", cv = 0.02, between_jobs_cv = 0.01 }
        collective = { message_bytes = 400000000, links = [
            { latency_s = 2e-5, bytes_per_s = 2e11 }, { from_ranks = 8, latency_s = 1e-4, bytes_per_s = 4e10 } ] }
        slow_rank = 3
        slow_factor = 1.12
        [run.sim.input]
        samples_per_s = 1240
        [sweep]
        devices = [1, 2, 4, 8, 16, 32]
    """,
    "mixed": """
        repeats = 3
        [run]
        batch = 64
        crosscheck_steps = 0
        budget = BUDGET
        [run.sim]
        step_time_s = 0.05
        noise = { kind = "normal", cv = 0.02, between_jobs_cv = 0.01 }
        [sweep]
        devices = [1, 2, 4, 8]
    """,
    "batch": """
        repeats = 3
        [run]
        crosscheck_steps = 0
        budget = BUDGET
        [run.sim]
        step_time_s = 0.012
        sample_time_s = 0.00012
        noise = { kind = "normal", cv = 0.02, between_jobs_cv = 0.01 }
        memory = { limit_bytes = 8e9, bytes_per_sample = 3e6 }
        [sweep]
        batch = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
    """,
    "steps": """
        repeats = 1
        [run]
        batch = 64
        crosscheck_steps = 8
        budget = { min_steps = 6000, max_steps = 6000, min_seconds = 0.0, max_seconds = 4000.0 }
        [run.sim]
        step_time_s = 0.05
        setup_s = 4.0
        compile_s = 22.0
        noise = { kind = "normal", cv = 0.015 }
        [run.sim.shape]
        warmup_amplitude = 0.4
        warmup_steps = 150.0
        compile_step_s = 3.0
        spike_every = 500
        spike_factor = 2.2
    """,
    "throttled": """
        repeats = 1
        [run]
        batch = 64
        crosscheck_steps = 8
        budget = { min_steps = 3000, max_steps = 3000, min_seconds = 0.0, max_seconds = 4000.0 }
        [run.sim]
        step_time_s = 0.05
        noise = { kind = "normal", cv = 0.01 }
        shape = { throttle_at_step = 1900, throttle_factor = 1.08 }
    """,
    "energy": """
        repeats = 3
        [run]
        crosscheck_steps = 0
        devices = 2
        budget = BUDGET
        energy = { idle_s = 4.0 }
        [run.sim]
        step_time_s = 0.03
        sample_time_s = 0.0006
        setup_s = 3.0
        compile_s = 6.0
        noise = { kind = "normal", cv = 0.02, between_jobs_cv = 0.01 }
        power = { idle_w = 70.0, compute_w = 420.0, compile_w = 110.0, host_w = 180.0 }
        sensors = [ { scope = "device", kind = "gauge", noise_w = 6.0, average_s = 0.1, limit_w = 500.0 },
                    { scope = "node", kind = "counter", resolution = 1.0 } ]
        [sweep]
        batch = [16, 32, 64, 128, 256]
    """,
    "heat": """
        repeats = 3
        [run]
        crosscheck_steps = 0
        budget = BUDGET
        [run.sim]
        step_time_s = 0.012
        sample_time_s = 0.00012
        noise = { kind = "normal", cv = 0.02, between_jobs_cv = 0.01 }
        memory = { limit_bytes = 3e9, bytes_per_sample = 4e6 }
        collective = { message_bytes = 200000000, links = [ { latency_s = 2e-5, bytes_per_s = 5e10 } ] }
        [sweep]
        batch = [32, 128, 256, 512, 1024]
        devices = [1, 2, 4, 8]
    """,
    "system-a": "STEP 0.012",
    "system-b": "STEP 0.0075",
}
COMPARED = """
    repeats = 3
    [run]
    crosscheck_steps = 0
    budget = BUDGET
    [run.sim]
    step_time_s = STEP
    sample_time_s = 0.0001
    noise = { kind = "normal", cv = 0.02, between_jobs_cv = 0.012 }
    [sweep]
    batch = [32, 64, 256, 1024]
"""
WEEKLY = """
    repeats = 3
    [run]
    crosscheck_steps = 0
    budget = BUDGET
    [run.sim]
    step_time_s = STEP
    noise = { kind = "normal", cv = 0.02, between_jobs_cv = 0.01 }
"""
WEEKS, SLOWER_FROM = 14, 9
RECIPE = """
name = "node"
title = "simulated training"
documents = "https://docs.example.org/node"
jobs = 4
[run]
crosscheck_steps = 0
budget = BUDGET
sim.noise = { kind = "normal", cv = 0.01, between_jobs_cv = 0.005 }
[expect]
value = 3200.0
"""


def make_studies(folder: ResultFolder) -> None:
    folder.prepare()
    for number, (name, text) in enumerate(STUDIES.items()):
        kind, _, step_s = text.partition(" ")
        make_study(folder, name, COMPARED.replace("STEP", step_s) if kind == "STEP" else text, seed=number)
    for week in range(WEEKS):
        day = f"2026-{5 + week // 4:02d}-{1 + 7 * (week % 4):02d}"
        text = WEEKLY.replace("STEP", "0.0530" if week >= SLOWER_FROM else "0.05")
        make_study(folder, f"week-{week:02d}", text, seed=100 + week, day=day)


def make_study(folder: ResultFolder, name: str, text: str, seed: int, day: str = "2026-05-01") -> None:
    file = folder.path / f"{name}.toml"
    lines = [line.strip() for line in text.replace("BUDGET", BUDGET).splitlines()]
    file.write_text("\n".join([f'name = "{name}"', f"seed = {seed}", *lines]), encoding="utf-8")
    for spec in expand(load_study(file)).runs:
        make_run(folder, spec, day)


def make_run(
    folder: ResultFolder, spec: RunSpec, day: str, changed: Callable[[RunRecord], RunRecord] | None = None
) -> None:
    scratch = folder.open_scratch(spec)
    raw = scratch / RAW
    write_json(raw / LAUNCH_FILE, Launch(
        launcher="gallery", host="here", command=("gallery",), started_at=f"{day}T06:00:00+00:00", wall_s=1.0,
        exit_code=0,
    ))  # fmt: skip
    run_directory(raw)
    record = derive(raw)
    folder.commit(scratch, changed(record) if changed is not None else record)


def make_history(folder: ResultFolder) -> list[History]:
    """Weekly occasions of a recipe; a new driver makes the last of them slower."""
    file = folder.path / "node.toml"
    file.write_text(RECIPE.replace("BUDGET", BUDGET), encoding="utf-8")
    recipe = load_recipe(file)
    for week in range(WEEKS):
        day = f"2026-{5 + week // 4:02d}-{1 + 7 * (week % 4):02d}"
        name = f"verify.{recipe.name}.{day.replace('-', '')}T060000"
        for spec in plan(recipe, folder.path, name=name, jobs=recipe.jobs).runs:
            make_run(folder, spec, day, lambda record, slower=week >= SLOWER_FROM: as_of(record, slower=slower))  # type: ignore[misc]
    return history(folder, recipe, plan(recipe, folder.path, name=name, jobs=recipe.jobs))


def as_of(record: RunRecord, *, slower: bool) -> RunRecord:
    """Return the record with a driver, and 6 % slower with the new one."""
    environment, rate = record.environment, record.quantities["throughput"]
    assert environment is not None
    assert rate.value is not None
    return replace(
        record,
        environment=replace(environment, facts={**environment.facts, "gpu0.driver": "560.1" if slower else "550.2"}),
        quantities={**record.quantities, "throughput": replace(rate, value=(0.94 if slower else 1) * rate.value)},
    )


def make_pack(folder: ResultFolder, place: Path) -> Path:
    """Write the pack of the study `scaling` for a scheme with a page limit, and return its overview."""
    work = WorkPlan(samples=9e9, trainings=20, devices=32, buffer_percent=25.0)
    pack = gather(folder, "scaling", work, schemes=[find_scheme("nhr-zib")])
    write_pack(pack, place)
    return place / "pack.html"


# -- charts


def pictures(folder: ResultFolder) -> Iterator[tuple[str, Callable[[], Chart | Drawing]]]:
    yield from of_scaling(folder)
    yield from of_runs(folder)
    batches = batch_curve(select(folder, "batch"))
    yield "batch", lambda: batch_chart(batches)
    yield "heat", lambda: heat_chart(select(folder, "heat"), "batch", "devices")
    yield "ranking", lambda: ranking_chart(rank(select(folder, "heat"))[0])
    energies = cells_with_energy(folder, select(folder, "energy"))
    yield "energy", lambda: energy_chart(energies)
    found = plotted(folder, energies)
    assert found is not None
    yield "power", lambda: power_drawing(*found)
    yield from of_comparisons(folder)
    weeks = [record for name in folder.studies() if name.startswith("week-") for record in folder.records(name)]
    yield "history", lambda: history_chart(occasions(weeks))


def of_scaling(folder: ResultFolder) -> Iterator[tuple[str, Callable[[], Chart | Drawing]]]:
    cells = select(folder, "scaling")
    curve, ids = scaling(cells)[0], run_ids(cells)
    yield "scaling-throughput", lambda: throughput_chart(curve, runs=ids)
    yield "scaling-efficiency", lambda: efficiency_chart(curve, runs=ids)
    yield "scaling-loss", lambda: loss_chart(curve, runs=ids)
    # One device count was measured with another precision: an error, so no ratios.
    mixed = [
        replace(cell, records=tuple(replace(r, spec=replace(r.spec, precision="bf16")) for r in cell.records))
        if cell.records[0].spec.devices == 8
        else cell
        for cell in select(folder, "mixed")
    ]
    blocked = scaling(mixed)[0]
    yield "scaling-blocked", lambda: throughput_chart(blocked, "scaling-blocked", runs=run_ids(mixed))


def of_runs(folder: ResultFolder) -> Iterator[tuple[str, Callable[[], Chart | Drawing]]]:
    for name in ("steps", "throttled"):
        record = next(iter(folder.records(name)))
        raw = folder.run_path(record.spec) / RAW
        yield f"trace-{name}", lambda raw=raw, record=record, name=name: trace_chart(raw, record, f"trace-{name}")  # type: ignore[misc]


def of_comparisons(folder: ResultFolder) -> Iterator[tuple[str, Callable[[], Chart | Drawing]]]:
    a, b = select(folder, "system-a"), select(folder, "system-b")
    ids = run_ids([*a, *b])
    several = compare([row_of(cell) for cell in a], [row_of(cell) for cell in b])
    yield "ratios", lambda: ratio_chart(several, runs=ids)
    one, other = (row_of(select(folder, f"{name}:batch=64")[0]) for name in ("system-a", "system-b"))
    single = compare([one], [other])
    yield "ratios-one-pair", lambda: ratio_chart(single, "ratios-one-pair", runs=ids)
    blocked = compare([one], [replace(other, settings={**other.settings, "precision": "bf16"})])
    yield "ratios-blocked", lambda: ratio_chart(blocked, "ratios-blocked", runs=ids)
