"""The report of a study: which sections it has, that failures are seen, that what blocks has no ratio, and the verb."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import re
import shutil
import struct
import subprocess
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from steelyard.analysis.batch import batch_curve
from steelyard.analysis.scaling import scaling
from steelyard.analysis.select import select
from steelyard.cli.main import main
from steelyard.contracts.finding import Finding
from steelyard.contracts.observe import Evaluation, Settings, Status
from steelyard.contracts.record import Quantity
from steelyard.contracts.spec import Budget, Data, Loader, Quality, RunSpec
from steelyard.derive.record import derive
from steelyard.inputs.study import Study, expand
from steelyard.launch.local_study import write_study_plan
from steelyard.report.page import Chart, Drawing, Prose, Table
from steelyard.report.render import draw
from steelyard.report.render.card import card_svg
from steelyard.report.render.csv_table import csv_table
from steelyard.report.render.html import html
from steelyard.report.study import back as study_back
from steelyard.report.study import curves as study_curves
from steelyard.report.study.page import study_page
from steelyard.report.study.run import figures_section, median_job
from steelyard.report.study.subject import subject
from steelyard.results.store import PLANS, RAW, RECORD_FILE, ResultFolder, record_text
from steelyard.terminal.findings import merged
from steelyard.terminal.scaling import answer
from steelyard.worker.engine.run import run_directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from steelyard.contracts.record import RunRecord
    from steelyard.report.page import Page, Section

RUN: dict[str, Any] = {
    "crosscheck_steps": 0,
    "budget": {"min_steps": 120, "max_steps": 120, "min_seconds": 0.0},
    "energy": {"idle_s": 2.0},
    "sim": {
        "step_time_s": 0.02,
        "sample_time_s": 0.0003,
        "noise": {"kind": "normal", "cv": 0.02, "between_jobs_cv": 0.01},
        "memory": {"limit_bytes": 1e9, "bytes_per_sample": 4e6},
        "collective": {"message_bytes": 200_000_000, "links": [{"latency_s": 2e-5, "bytes_per_s": 4e10}]},
        "power": {"idle_w": 70.0, "compute_w": 400.0},
        "sensors": [{"scope": "device", "kind": "gauge", "noise_w": 4.0, "average_s": 0.1}],
    },
}
PLAIN = {key: value for key, value in RUN.items() if key != "energy"} | {
    "sim": {"step_time_s": 0.02, "noise": {"kind": "normal", "cv": 0.02, "between_jobs_cv": 0.01}}
}


def make(folder: ResultFolder, name: str, run: dict[str, Any], sweep: dict[str, Any], repeats: int = 3) -> None:
    """A study through the real worker and derivation, without starting processes."""
    for spec in expand(Study(name=name, repeats=repeats, run=run, sweep=sweep)).runs:
        scratch = folder.open_scratch(spec)
        run_directory(scratch / RAW)
        folder.commit(scratch, derive(scratch / RAW))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> ResultFolder:
    folder = ResultFolder(tmp_path_factory.mktemp("results"))
    folder.prepare()
    make(folder, "both", RUN, {"devices": (1, 2, 4), "batch": (32, 128, 512)})
    make(folder, "modes", PLAIN, {"compile": ("off", "default")})
    make(folder, "line", PLAIN, {"devices": (1, 2, 4)})
    make(folder, "single", PLAIN, {}, repeats=1)
    return folder


def altered(folder: ResultFolder, study: str, change: Callable[[RunRecord], RunRecord], name: str = "altered") -> str:
    """A copy of a study in the same folder, each of its records changed; what it is called."""
    for record in list(folder.records(study)):
        spec = dataclasses.replace(record.spec, study=name)
        place = folder.run_path(spec)
        place.mkdir(parents=True)
        made = change(dataclasses.replace(record, spec=spec))
        (place / RECORD_FILE).write_text(record_text(made), encoding="utf-8")
    return name


@pytest.fixture
def folder(results: ResultFolder, tmp_path: Path) -> ResultFolder:
    """An own folder that records may be put into; the shared studies are copied into it."""
    own = ResultFolder(tmp_path / "own")
    own.prepare()
    for study in results.studies():
        shutil.copytree(results.path / "runs" / study, own.path / "runs" / study)
    return own


@pytest.fixture(scope="module")
def both(results: ResultFolder) -> Page:
    return study_page(results, "both")


def section(page: Page, name: str) -> Section:
    return next(part for part in page.sections if part.name == name)


def table(page: Page, name: str) -> Table:
    return next(found for found in page.tables if found.name == name)


def texts(found: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in found.rows]


# -- which sections


def test_sections_are_chosen_by_what_was_swept(results: ResultFolder, both: Page) -> None:
    back = ["findings", "method", "environment", "provenance"]
    names = [part.name for part in both.sections]
    assert names == ["overview", "configurations", "scaling", "batch", "heat", "energy", "steps", *back]
    modes = [part.name for part in study_page(results, "modes").sections]
    assert modes == ["overview", "configurations", "compare-compile", "steps", *back]
    single = [part.name for part in study_page(results, "single").sections]
    assert single == ["overview", "configurations", "steps", "phases", "figures", *back]


def test_every_section_in_front_has_question_and_answer(both: Page) -> None:
    for part in both.sections:
        assert part.question.endswith("?"), part.name
        assert part.folded or part.answer.endswith("."), (part.name, part.answer)


def test_answers_are_those_of_the_verbs(results: ResultFolder, both: Page) -> None:
    curve = scaling(select(results, "both:batch=128"))[0]
    assert answer(curve) in section(both, "scaling").answer
    knee = study_curves.knee_words(batch_curve(select(results, "both:devices=4")))
    assert knee[1:] in section(both, "batch").answer
    assert "128; 512 ran out of memory" in knee


def test_names_of_tables_and_pictures_are_unique(results: ResultFolder) -> None:
    for selection in (["both"], ["both:batch=32", "both:batch=128"], ["line", "modes"]):
        page = study_page(results, selection)
        blocks = [block for part in page.sections for block in part.blocks if isinstance(block, Chart | Drawing)]
        names = [block.name for block in blocks]
        assert len(set(names)) == len(names)
        parts = [part.name for part in page.sections]
        assert len(set(parts)) == len(parts)
        alone = [block.name for part in page.sections for block in part.blocks if isinstance(block, Table)]
        assert len(set(alone)) == len(alone)


# -- what did not work is seen


def test_cells_without_a_figure_are_shown_with_their_cause(both: Page) -> None:
    lost = texts(table(both, "not-completed"))
    assert [row[0] for row in lost] == ["batch=512, devices=1", "batch=512, devices=2", "batch=512, devices=4"]
    assert {row[1] for row in lost} == {"out of memory"}
    assert all(row[2] == "3" and "the device has" in row[3] for row in lost)
    cells = texts(table(both, "configurations-table"))
    assert len(cells) == 9
    assert [row[-1] for row in cells if row[2] == "none"] == 3 * ["3 out of memory"]
    assert "18 completed, 9 out of memory" in section(both, "overview").answer


def test_a_failed_and_a_missing_run_are_told(folder: ResultFolder) -> None:
    def change(record: RunRecord) -> RunRecord:
        if record.spec.devices == 2 and record.spec.repeat == 0:
            status = Status(code="node_failure", reason="the node <b>is lost", evidence={"log_tail": "x", "rank": 3})
            return dataclasses.replace(record, status=status, quantities={}, steady=None)
        return record

    name = altered(folder, "line", change)
    gone = next(record for record in folder.records(name) if record.spec.devices == 4)
    (folder.run_path(gone.spec) / RECORD_FILE).unlink()
    page = study_page(folder, name)
    rows = texts(table(page, "not-completed"))
    assert "the node &lt;b&gt;is lost" in html(page)
    assert ["devices=2", "node failure", "1", "the node <b>is lost", "rank 3"] in rows
    # Without a plan nobody knows how many there should be.
    assert not [row for row in rows if row[1] == "missing"]
    write_study_plan(folder, expand(Study(name=name, repeats=9, run=PLAIN, sweep={"devices": (1, 2)})))
    for earlier in (folder.root / PLANS).iterdir():
        os.utime(earlier, (1000, 1000))
    write_study_plan(folder, expand(Study(name=name, repeats=3, run=PLAIN, sweep={"devices": (1, 2, 4, 8, 16)})))
    rows = texts(table(study_page(folder, name), "not-completed"))
    assert [row[:3] for row in rows if row[1] == "missing"] == [
        ["devices=4", "missing", "1"],
        ["2 configurations without any run", "missing", "6"],
    ]
    rows = texts(table(study_page(folder, f"{name}:devices=4"), "not-completed"))
    assert [row[2] for row in rows if row[1] == "missing"] == ["1"]


def test_what_was_varied_is_not_fixed_and_no_folder_is_published(folder: ResultFolder) -> None:
    wide = {1: 64, 2: 128, 4: 256}

    def change(record: RunRecord) -> RunRecord:
        model = {"width": wide[record.spec.devices], "depth": 2, "weights": "/home/somebody/private/w.pt"}
        return dataclasses.replace(record, spec=dataclasses.replace(record.spec, model=model))

    facts = {
        key: value
        for block in section(study_page(folder, altered(folder, "line", change)), "overview").blocks
        if isinstance(block, Prose)
        for key, value in block.facts
    }
    assert facts["Varied: model.width"] == "64, 128, 256"
    assert "model.depth 2" in facts["Fixed"]
    assert "model.weights w.pt" in facts["Fixed"]
    assert "width" not in facts["Fixed"]
    assert "{" not in facts["Fixed"]


@pytest.mark.parametrize(
    "shape", [{"warmup_amplitude": 0.5, "warmup_steps": 500}, {"drift_per_step": 1e-5}, {"compile_step_s": 30.0}]
)
def test_nothing_is_counted_in_bins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shape: dict[str, float]
) -> None:
    """15,003 steps are read as 3,750 bins of four."""
    folder = ResultFolder(tmp_path)
    folder.prepare()
    budget = {"min_steps": 15_003, "max_steps": 15_003, "min_seconds": 0.0, "max_seconds": 1e6}
    make(folder, "long", PLAIN | {"budget": budget, "sim": PLAIN["sim"] | {"shape": shape}}, {}, repeats=1)
    (run,) = folder.run_ids("long")
    assert main(["show", run, "--results", str(tmp_path)]) == 0
    told = capsys.readouterr().out + html(study_page(folder, "long"), charts=False)
    (record,) = folder.records("long")
    assert "15,003 steps" in told
    assert record.steady is not None
    assert "15,003" in record.steady.reason
    assert not re.findall(r"\b3,?75[01]\b", told)


def test_every_run_is_in_the_provenance(results: ResultFolder, both: Page) -> None:
    assert {row[0] for row in texts(table(both, "runs"))} == results.run_ids("both")


# -- no ratio before its verdict


def in_another_precision(record: RunRecord) -> RunRecord:
    if record.spec.devices == 4 or record.spec.compile == "default":
        return dataclasses.replace(record, settings=Settings(values={"matmul_dtype": "bfloat16"}))
    return dataclasses.replace(record, settings=Settings(values={"matmul_dtype": "float16"}))


def test_a_blocked_scaling_has_no_ratio(folder: ResultFolder) -> None:
    page = study_page(folder, altered(folder, "line", in_another_precision))
    part = section(page, "scaling")
    assert part.answer == study_curves.BLOCKED
    assert not any(isinstance(block, Chart) for block in part.blocks)
    assert page.first is not None
    assert isinstance(page.first.chart, Chart)
    assert page.first.chart.name == "scaling-throughput"
    assert "speed-up" not in {column.name for column in page.first.chart.table.columns}
    assert any(found.severity == "error" for found in part.findings)
    assert "Do not use results with SY103" in section(page, "findings").answer


def test_figures_that_may_not_be_used_are_never_called_the_highest(folder: ResultFolder) -> None:
    """Neither in the map nor in a curve; each is marked as unreliable."""
    wrong = Finding(code="SY501", severity="error", message="clocks disagree", fix="fix them")
    page = study_page(folder, altered(folder, "both", lambda record: dataclasses.replace(record, findings=(wrong,))))
    assert "highest" not in " ".join(part.answer for part in page.sections).lower()
    assert section(page, "heat").answer.startswith("No reliable best: none of 9 configurations is reliable: errors in")
    assert page.first is not None
    assert page.first.trust == "unreliable"
    assert [figure.label for figure in page.first.figures] == ["Largest that fits"]
    assert "The first (" in section(page, "scaling").answer
    found = table(page, "configurations-table")
    step, reliability = (
        [row[n] for row in found.rows]
        for n, column in enumerate(found.columns)
        if column.name in ("step time", "reliability")
    )
    told = {(a.unreliable, b.text) for a, b in zip(step, reliability, strict=True)}
    assert told == {(True, "unreliable"), (False, "no result")}
    rows = list(csv.DictReader(io.StringIO(csv_table(found))))
    assert all(row["findings"] == "SY501" for row in rows if row["throughput of the job (samples/s)"])
    part = figures_section([next(record for record in folder.records("altered") if record.status.code == "completed")])
    assert part is not None
    assert part.answer.endswith("(not reliable: SY501).")
    assert "Do not use these energies for 6 of 6 configurations: fix SY501 first." in section(page, "energy").answer


def test_a_comparison_begins_with_its_verdict(results: ResultFolder, folder: ResultFolder) -> None:
    part = section(study_page(results, "modes"), "compare-compile")
    assert part.question == "What does compile change, compared with off?"
    assert part.answer.startswith("Comparable. ")
    assert "compile default" in part.answer
    blocked = section(study_page(folder, altered(folder, "modes", in_another_precision)), "compare-compile")
    assert blocked.answer.startswith("Not comparable. No ratio: ")
    assert not any("/" in column.name for block in blocked.blocks if isinstance(block, Chart)
                   for column in block.table.columns)  # fmt: skip


def ends(chart: Chart, channel: str) -> set[tuple[float, ...]]:
    """The ends of an axis in all layers of a chart."""
    axes = [part["encoding"].get(channel, {}) for part in chart.spec["layer"]]
    return {tuple(axis["scale"]["domain"]) for axis in axes if "scale" in axis}


def test_several_selections_stand_side_by_side(results: ResultFolder) -> None:
    names = ["both:batch=32", "both:batch=128"]
    page = study_page(results, names, factor="batch", title="Two batches")
    assert page.title == "Two batches"
    assert page.first is not None
    assert page.first.verdict.startswith("Comparable.")
    assert page.first.chart is not None
    assert page.first.chart.title.endswith("both:batch=128 / both:batch=32")
    assert [figure.label for figure in page.first.figures] == [f"Highest of {name}" for name in names]
    back = ["findings", "method", "environment", "provenance"]
    front = ["differs", "selections", "overview", "configurations", "scaling", "energy", "steps"]
    assert [part.name for part in page.sections] == front + back
    # What all share is listed once; the verdict is on the first screen only.
    shared = dict(next(block.facts for block in section(page, "overview").blocks if isinstance(block, Prose)))
    assert shared["Device"] == "simulated"
    assert page.first.verdict not in [part.answer for part in page.sections]
    scaling_part = section(page, "scaling")
    charts = [block for block in scaling_part.blocks if isinstance(block, Chart)]
    assert [chart.title.partition(": Throughput")[0] for chart in charts[:2]] == names
    assert ends(charts[0], "y") == ends(charts[1], "y")
    assert len(ends(charts[0], "y")) == 1
    assert all(f"{name}: " in scaling_part.answer for name in names)


def test_what_differs_comes_first(folder: ResultFolder) -> None:
    """Settings and environment as recorded, and what the rules on comparability say about them."""

    def upgraded(record: RunRecord) -> RunRecord:
        facts = {"system.kernel": "Linux 7.0", "torch.version": "9.9", "torch.cuda": "99", "env.NCCL_DEBUG": "<b>INFO"}
        assert record.environment is not None
        environment = dataclasses.replace(record.environment, facts={**record.environment.facts, **facts})
        spec = dataclasses.replace(record.spec, device="cpu", workload="mlp", batch=record.spec.devices, devices=1)
        device = dataclasses.replace(record.device, name="cpu") if record.device is not None else None
        return dataclasses.replace(record, spec=spec, environment=environment, device=device)

    def plain(record: RunRecord) -> RunRecord:
        made = upgraded(record)
        assert made.environment is not None
        facts = {**made.environment.facts, "system.kernel": "Linux 6.0", "torch.version": "9.8", "torch.cuda": "98"}
        facts.pop("env.NCCL_DEBUG")
        return dataclasses.replace(made, environment=dataclasses.replace(made.environment, facts=facts))

    names = [altered(folder, "line", plain, "before"), altered(folder, "line", upgraded, "after")]
    page = study_page(folder, names, factor="software")
    rows = {row[0]: row[1:] for row in texts(table(page, "differs"))}
    assert rows["kernel"] == ["environment", "Linux 6.0", "Linux 7.0", "may explain part of the difference"]
    assert rows["framework"] == ["software", "PyTorch 9.8", "PyTorch 9.9", "the factor"]
    assert rows["torch.cuda"][1:3] == ["98", "99"]
    assert rows["$NCCL_DEBUG"][:3] == ["software", "not set", "<b>INFO"]
    assert section(page, "differs").answer == (
        "Beside the factor (software), this may explain part of the difference: kernel."
    )
    assert "<b>INFO" not in html(page)


def test_what_selections_share_is_said_once(results: ResultFolder) -> None:
    page = study_page(results, ["line", "modes"])
    shared, *own = [block.facts for block in section(page, "overview").blocks if isinstance(block, Prose)]
    assert {"Workload", "Device", "Nodes", "Energy"} <= dict(shared).keys()
    assert [dict(facts)["Selection"] for facts in own] == ["line", "modes"]
    assert not any(set(shared) & set(facts) for facts in own)
    made = html(page, charts=False)
    assert page.first is not None
    assert made.count(page.first.verdict) == 1
    assert made.count("Fix:</b> run the jobs on several nodes") == 1
    assert section(study_page(results, "single"), "configurations").answer == ""


def test_a_study_is_read_once(results: ResultFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    honest = ResultFolder.read

    def counting(self: ResultFolder, run: Path) -> RunRecord:
        read.append(run)
        return honest(self, run)

    monkeypatch.setattr(ResultFolder, "read", counting)
    study_page(results, ["both:batch=32", "both:batch=128"], factor="batch")
    assert len(read) == len(set(read)) == 27


# -- curves of a large sweep


def test_only_some_curves_are_looked_at(results: ResultFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_curves, "ANALYSED", 1)
    monkeypatch.setattr(study_curves, "DRAWN", 0)
    part = section(study_page(results, "both"), "batch")
    words = " ".join(text for block in part.blocks for text in getattr(block, "paragraphs", ()))
    assert "2 more curves are not analysed" in words
    assert "steelyard report both:devices=VALUE" in words


def test_findings_that_differ_in_figures_alone_are_one(results: ResultFolder) -> None:
    found = [one for cell in select(results, "both") for record in cell.records for one in record.findings]
    assert len(found) > 10
    kinds = {(one.code, one.severity) for one in found}
    assert len(merged(found)) <= 2 * len(kinds)


def test_cells_are_in_the_order_of_their_settings(results: ResultFolder) -> None:
    made = subject("both", select(results, "both"))
    assert made.swept == {"batch": (32, 128, 512), "devices": (1, 2, 4)}
    assert [(made.value(cell, "batch"), made.value(cell, "devices")) for cell in made.cells[:4]] == [
        (32, 1), (32, 2), (32, 4), (128, 1),
    ]  # fmt: skip
    label, group = made.groups("devices")[0]
    assert label == "batch=128"
    assert len(group) == 3


def test_the_median_job_stands_for_a_cell(results: ResultFolder) -> None:
    cell = select(results, "line:devices=2")[0]
    rates = sorted(record.quantities["throughput"].value or 0.0 for record in cell.records)
    assert median_job(cell).quantities["throughput"].value == rates[1]


# -- quality


def test_time_to_quality(folder: ResultFolder) -> None:
    def change(record: RunRecord) -> RunRecord:
        spec = RunSpec(
            run_id=record.run_id, configuration=record.spec.configuration, study="altered",
            repeat=record.spec.repeat, workload="mlp",
            device="cpu", data=Data(format="mnist", path="/data"), loader=Loader(place="host"),
            budget=Budget(epochs=3), quality=Quality(target=0.9), batch=record.spec.devices,
        )  # fmt: skip
        reached = Quantity(value=12.0 + spec.repeat, unit="s", scope="job", window="to quality", aggregation="sum")
        seen = Evaluation(
            metric="accuracy", value=0.91, better="higher", epoch=2, steps=9, samples=90, at_s=12.0, seconds=1.0
        )
        quantities = record.quantities | {"time_to_quality": reached}
        return dataclasses.replace(record, spec=spec, quantities=quantities, evaluations=(seen,))

    page = study_page(folder, altered(folder, "line", change))
    part = section(page, "quality")
    assert "accuracy 0.9 after 13.000 [" in part.answer
    assert "Simulated" not in section(page, "overview").answer


# -- raw data


def test_records_go_with_the_page_up_to_a_bound(results: ResultFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    page = study_page(results, "line")
    lines = page.downloads[study_back.RECORDS_FILE].splitlines()
    assert {json.loads(line)["run_id"] for line in lines} == results.run_ids("line")
    monkeypatch.setattr(study_back, "MAX_RAW_BYTES", 4 * max(map(len, lines)))
    page = study_page(results, "line")
    kept = [json.loads(line) for line in page.downloads[study_back.RECORDS_FILE].splitlines()]
    assert len({record["spec"]["configuration"] for record in kept}) == 3
    told = " ".join(text for block in section(page, "provenance").blocks for text in getattr(block, "paragraphs", ()))
    assert re.search(r"\d records are left out", told)


# -- the verb


def test_the_verb_writes_one_page(results: ResultFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "page.html"
    assert main(["report", "line", "--results", str(results.path), "-o", str(file), "--title", "A <b>"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{file}: {file.stat().st_size:,} bytes\n"
    assert "9 runs in 3 configurations" in err
    text = file.read_text(encoding="utf-8")
    assert "<h1>A &lt;b&gt;</h1>" in text


def test_the_default_file_is_called_by_the_study(
    results: ResultFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", "line:devices=2", "--results", str(results.path), "--format", "markdown", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["path"] == "line-devices-2.md"
    assert (tmp_path / made["path"]).stat().st_size == made["size_bytes"]
    assert made["sections"][0]["answer"].startswith("3 runs: all completed.")


def test_csv_and_latex_are_folders(results: ResultFolder, tmp_path: Path) -> None:
    common = ["report", "both", "--results", str(results.path)]
    assert main([*common, "--format", "csv", "-o", str(tmp_path / "csv")]) == 0
    assert (tmp_path / "csv" / "configurations-table.csv").read_text().startswith("batch,devices,throughput")
    assert main([*common, "--format", "latex", "-o", str(tmp_path / "tex")]) == 0
    figures = sorted(path.name for path in (tmp_path / "tex" / "figures").iterdir())
    assert {"scaling-throughput.pdf", "energy-power.pdf"} <= set(figures)
    assert all((tmp_path / "tex" / "figures" / name).read_bytes().startswith(b"%PDF") for name in figures)


def test_a_run_has_a_page(results: ResultFolder, tmp_path: Path) -> None:
    run = min(results.run_ids("both"))
    assert main(["report", run, "--results", str(results.path), "-o", str(tmp_path / "run.html")]) == 0
    assert f"Report: {run}" in (tmp_path / "run.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing-such"], "no such study or run"),
        (["line", "-o", "."], "this format is one file"),
        (["line", "-o", "study.toml"], "must end in .html"),
        (["line", "-o", "page.html", "--format", "markdown"], "must end in .md"),
        (["line", "-o", "no/such/folder/x.html"], "does not exist"),
        (["line", "modes", "--factor", "colour"], "no such factor"),
    ],
)
def test_what_cannot_be_done_is_said(
    results: ResultFolder, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *words, "--results", str(results.path)]) == 2
    assert said in capsys.readouterr().err


def test_without_the_drawing_library_tables_stand(
    results: ResultFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(draw, "available", lambda: False)
    assert main(["report", "line", "--results", str(results.path), "-o", str(tmp_path / "x.html")]) == 0
    assert "for charts: pip install 'vl-convert-python>=" in capsys.readouterr().err
    assert "image/svg" not in (tmp_path / "x.html").read_text(encoding="utf-8")


def test_the_card_is_a_picture_of_the_first_screen(
    results: ResultFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "card.png"
    assert main(["report", "line", "--card", "--results", str(results.path), "-o", str(file)]) == 0
    head = file.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    assert struct.unpack(">II", head[16:]) == (1200, 630)
    page = study_page(results, "line", title="<script>alert(1)</script> \x00 " + "long " * 200)
    assert page.first is not None
    drawn = ET.fromstring(card_svg(page))
    assert {element.tag.rpartition("}")[2] for element in drawn.iter()} == {"svg", "rect", "text", "image", "circle"}
    said = [element.text or "" for element in drawn.iter() if element.tag.endswith("text")]
    assert said[0].startswith("<script>")
    assert said[0].endswith("\u2026")
    assert {one.value for one in page.first.figures[:4]} <= set(said)
    assert "\u2026" not in " ".join(said[1:])
    assert main(["report", "line", "--card", "--format", "csv", "--results", str(results.path)]) == 2
    assert main(["report", "--reference", "--card", "-o", str(file)]) == 2
    assert "has no card" in capsys.readouterr().err


def test_no_torch_and_no_worker_is_imported() -> None:
    import sys

    code = "import sys, steelyard.cli.report; print([n for n in sys.modules if n == 'torch' or '.worker' in n])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_page_renders(both: Page) -> None:
    assert html(both).startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("kept", [(), (1,), (1, 4)])
def test_a_study_in_which_little_completed_has_a_page(folder: ResultFolder, kept: tuple[int, ...]) -> None:
    def change(record: RunRecord) -> RunRecord:
        if record.spec.devices in kept:
            return record
        status = Status(code="failed", reason="it fell over")
        return dataclasses.replace(
            record, status=status, quantities={}, steady=None, stop=None, environment=None, findings=(), phases=()
        )

    page = study_page(folder, altered(folder, "both", change))
    lost = texts(table(page, "not-completed"))
    assert len(lost) == 9 - len(kept) * 2
    assert ("energy" in [part.name for part in page.sections]) == bool(kept)
    assert html(page, charts=False)
