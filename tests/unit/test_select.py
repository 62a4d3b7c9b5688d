"""Which cells a text means, and what is said where it means none."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest

from conftest import make_spec
from steelyard.analysis.rows import row_of
from steelyard.analysis.select import select
from steelyard.analysis.summary import summarise
from steelyard.analysis.sweep import selecting
from steelyard.cli.main import main
from steelyard.contracts.observe import DeviceFacts, Settings
from steelyard.contracts.sim import Collective, InputPipeline, Link, Memory, Noise, SimTruth
from steelyard.contracts.spec import Loader
from steelyard.errors import InputError
from steelyard.launch.plan import PLAN_FILE, RUNS, study_folder
from steelyard.results.store import PLANS, ResultFolder, write_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec
    from steelyard.rules.table.row import Row

    Simulate = Callable[[RunSpec], RunRecord]


def put(folder: ResultFolder, record: RunRecord, *, study: str, cell: str, repeat: int = 0) -> None:
    spec = dataclasses.replace(
        record.spec, study=study, configuration=cell, run_id=f"{cell}-r{repeat:04d}", repeat=repeat
    )
    place = folder.run_path(spec)
    place.mkdir(parents=True)
    write_json(place / "record.json", dataclasses.replace(record, spec=spec, run_id=spec.run_id))


@pytest.fixture
def folder(simulate: Simulate, tmp_path: Path) -> ResultFolder:
    """Two studies: batches 8 and 32 in two precisions, and one cell of two jobs."""
    made = ResultFolder(tmp_path / "results")
    for batch in (8, 32):
        for precision in ("fp32", "bf16"):
            record = simulate(make_spec(batch=batch, precision=precision, sim=SimTruth(step_time_s=0.02)))
            put(made, record, study="sweep", cell=f"sim-{batch}-{precision}")
    for repeat in range(2):
        put(made, simulate(make_spec(seed=repeat)), study="plain", cell="sim-1", repeat=repeat)
    return made


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ("sweep", ["sim-32-bf16", "sim-32-fp32", "sim-8-bf16", "sim-8-fp32"]),
        ("sweep/sim-8-fp32", ["sim-8-fp32"]),
        ("plain/sim", ["sim-1"]),
        ("sweep:batch=8", ["sim-8-bf16", "sim-8-fp32"]),
        ("sweep:batch=8, precision=BF16", ["sim-8-bf16"]),
        ("sweep:sim.step_time_s=2e-2,batch=32.0", ["sim-32-bf16", "sim-32-fp32"]),
        ("sweep:deterministic=false,batch=8,precision=fp32", ["sim-8-fp32"]),
        ("plain:devices=1", ["sim-1"]),
        ("sim-1-r0001", ["sim-1"]),
    ],
)
def test_what_is_selected(folder: ResultFolder, text: str, cells: list[str]) -> None:
    assert sorted(cell.name for cell in select(folder, text)) == cells


def test_a_run_is_that_run_alone(folder: ResultFolder) -> None:
    assert [len(cell.records) for cell in select(folder, "plain")] == [2]
    assert [record.run_id for cell in select(folder, "sim-1-r0001") for record in cell.records] == ["sim-1-r0001"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("swep", ["did you mean sweep?"]),
        ("nosuch:batch=8", ["no such study or run"]),
        ("sweep/gpt", ["no such configuration", "sim-8-fp32"]),
        ("sweep/sim", ["4 configurations begin with it"]),
        ("sweep/", ["no such configuration"]),
        ("sweep:batch=9", ["batch is 8, 32"]),
        ("sweep:batc=8", ["no such setting", "did you mean batch?"]),
        ("sweep:batch", ["is not key=value"]),
        ("sweep:=8", ["is not key=value"]),
        ("sweep:", ["is not key=value"]),
        ("sweep:batch=8,precision=fp64", ["precision is bf16, fp32"]),
        ("sweep:batch=[[[[8", ["no match; batch is"]),
        ("x" * 3000, ["too long"]),
        ("../../etc", ["no such study or run"]),
    ],
)
def test_what_is_said_where_nothing_is_selected(folder: ResultFolder, text: str, said: list[str]) -> None:
    with pytest.raises(InputError) as error:
        select(folder, text)
    for words in said:
        assert words in str(error.value)


def test_an_empty_folder_says_how_to_begin(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="steelyard run"):
        select(ResultFolder(tmp_path), "anything")


# -- the row of a cell


def row(simulate: Simulate, **settings: Any) -> Row:
    return row_of(summarise([simulate(make_spec(**settings))])[0])


def test_two_simulated_machines_are_two_systems(simulate: Simulate) -> None:
    slow, fast = (row(simulate, sim=SimTruth(step_time_s=step_s)) for step_s in (0.02, 0.01))
    assert slow.get("system") != fast.get("system")
    assert slow.get("accelerator") == fast.get("accelerator")


@pytest.mark.parametrize(
    ("truth", "changed"),
    [
        (SimTruth(input=InputPipeline(samples_per_s=5000.0)), {"input_rate", "loader.prefetch", "input_restart_s"}),
        (SimTruth(collective=Collective(message_bytes=10**6)), {"model_options"}),
        (SimTruth(memory=Memory(bytes_per_sample=10.0)), {"model_options"}),
        (SimTruth(memory=Memory(limit_bytes=1e9)), {"system"}),
        (SimTruth(collective=Collective(links=(Link(latency_s=1e-6),))), {"system"}),
        (SimTruth(noise=Noise(kind="normal")), {"system"}),
        (SimTruth(wall_s_per_s=0.0), set()),
    ],
)
def test_what_of_a_simulated_truth_is_the_machine(simulate: Simulate, truth: SimTruth, changed: set[str]) -> None:
    plain, other = row(simulate, sim=SimTruth()), row(simulate, sim=truth)
    keys = {*plain.settings, *other.settings}
    assert {key for key in keys if plain.get(key) != other.get(key)} == changed


def test_what_was_in_effect_goes_before_what_was_asked_for(simulate: Simulate) -> None:
    record = simulate(make_spec(precision="fp32", compile="default", learning_rate=0.5))
    values = {"matmul_dtype": "float32", "float32_products": "tf32", "compiled": "false", "learning_rate": "0.1"}
    record = dataclasses.replace(record, settings=Settings(values={**values, "threads": "4", "optimizer": "AdamW"}))
    found = row_of(summarise([record])[0])
    wanted = {"precision": "tf32", "compile": "off", "learning_rate": 0.1, "threads": 4.0, "optimizer": "AdamW"}
    assert {key: found.get(key) for key in wanted} == wanted


def test_what_has_no_effect_is_no_setting(simulate: Simulate) -> None:
    one = row(simulate, parallel="fsdp2", backend="gloo", loader=Loader(prefetch=8))
    assert not {"parallel", "backend", "loader.prefetch", "loader.workers", "loader.pin_memory"} & set(one.settings)
    two = row(simulate, devices=2, parallel="fsdp2", loader=Loader(place="host", workers=2, prefetch=8))
    assert (two.get("parallel"), two.get("loader.prefetch"), two.get("loader.workers")) == ("FSDP2", 8, 2)


def test_figures_per_part_of_a_machine(simulate: Simulate) -> None:
    record = simulate(make_spec(devices=4))
    card = DeviceFacts(name="MI250X", model="AMD MI250X", dies=2, scope="die")
    figures = row_of(summarise([dataclasses.replace(record, device=card)])[0]).figures
    rate = 32 / 0.010
    assert figures["throughput"].value == pytest.approx(4 * rate)
    assert figures["throughput_per_device"].value == pytest.approx(rate)
    assert figures["throughput_per_module"].value == pytest.approx(2 * rate)
    assert figures["throughput_per_node"].value == pytest.approx(4 * rate)
    odd = dataclasses.replace(simulate(make_spec(devices=1)), device=card)
    assert "throughput_per_module" not in row_of(summarise([odd])[0]).figures, "half a card was idle"


def test_rates_of_jobs_are_averaged_as_times_and_kept_one_by_one(simulate: Simulate) -> None:
    records = [simulate(make_spec(sim=SimTruth(step_time_s=step_s))) for step_s in (0.01, 0.03)]
    rate = row_of(summarise(records)[0]).figures["throughput"]
    assert rate.value == pytest.approx(32 / 0.02)
    assert rate.jobs == pytest.approx((3200, 32 / 0.03))
    assert rate.low <= rate.value <= rate.high


def test_a_cell_without_a_figure_says_why(simulate: Simulate) -> None:
    found = row(simulate, sim=SimTruth(memory=Memory(limit_bytes=10.0, fixed_bytes=100.0)))
    assert (found.status, dict(found.figures)) == ("out_of_memory", {})
    assert found.get("jobs_lost") == "1 out_of_memory"


@pytest.mark.parametrize(
    ("selection", "wanted", "text"),
    [
        ("sweep", ("sim-8-bf16", "sim-8-fp32"), "sweep:batch=8"),
        ("sweep", ("sim-8-bf16",), "sweep:batch=8,precision=bf16"),
        ("sweep:batch=8", ("sim-8-bf16",), "sweep:batch=8,precision=bf16"),
        ("sweep", ("sim-8-bf16", "sim-32-fp32"), "sweep/sim-32-fp32"),
    ],
)
def test_a_selection_is_written_so_that_it_selects(
    folder: ResultFolder, selection: str, wanted: tuple[str, ...], text: str
) -> None:
    cells = select(folder, selection)
    assert selecting(cells, [cell for cell in cells if cell.name in wanted], selection) == text
    assert select(folder, text)[0].name in wanted


@pytest.mark.parametrize(
    ("words", "says", "step"),
    [
        (["show", "sweep", "--derive"], "sweep: 4 runs: sim-32-bf16-r0000; ", "show sim-32-bf16-r0000 --derive"),
        (["show", "nosuch", "--derive"], "no such study or run", "show"),
        (["compare", "sweep:batch=8"], "A: 2 configurations: ",
         "compare sweep:batch=8,precision=bf16 sweep:batch=8,precision=fp32"),
        (["compare", "plain"], "missing: B", "compare --help"),
        (["pack", "sweep", "--samples", "9", "--devices", "1", "-o", "pack"], "a pack covers one configuration",
         "pack sweep:batch=32"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(
    folder: ResultFolder, capsys: pytest.CaptureFixture[str], words: list[str], says: str, step: str
) -> None:
    assert main([*words, "--results", str(folder.path)]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert f"steelyard {step}" in told.splitlines()[-1]


@pytest.mark.parametrize(
    ("left", "waiting", "step"),
    [
        ("sim-8-bf16-r0001", False, "next: write [sweep] batch = [8, 32, 128] into the study"),
        ("sim-128-bf16-r0000", False, "next: steelyard study s.toml"),
        ("sim-128-bf16-r0000", True, "next: steelyard status few"),
    ],
)
def test_a_study_is_only_continued_for_batches_that_it_lacks(
    simulate: Simulate, tmp_path: Path, capsys: pytest.CaptureFixture[str], left: str, step: str, *, waiting: bool
) -> None:
    made = ResultFolder(tmp_path / "results")
    arguments = ("study", "s.toml")
    for batch in (8, 32):
        record = simulate(make_spec(batch=batch, study_arguments=arguments, sim=SimTruth(step_time_s=0.02)))
        put(made, record, study="few", cell=f"sim-{batch}-bf16")
    (made.root / PLANS).mkdir()
    (made.root / PLANS / "few-0123456789ab.json").write_text(json.dumps({"order": ["sim-8-bf16-r0000", left]}))
    if waiting:
        campaign = study_folder(made, "few") / "0001"
        (campaign / RUNS / left).mkdir(parents=True)
        (campaign / PLAN_FILE).write_text("{}")
    main(["batch", "few", "--results", str(made.path)])
    assert step in " ".join(capsys.readouterr().out.split())
