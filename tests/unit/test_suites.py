"""Suites: they load and expand at every size; every setting has a source, every printed figure has a configuration."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from simjob import run_spec
from steelyard.analysis.summary import summarise
from steelyard.audit.documents import load
from steelyard.audit.documents import names as documents
from steelyard.cli.main import main
from steelyard.contracts.observe import Status
from steelyard.errors import InputError
from steelyard.inputs.devices import PlaceDevices
from steelyard.inputs.packages import modules_of
from steelyard.inputs.suite import (
    SIZES,
    Choice,
    NotRun,
    SuiteFolder,
    data_formats,
    expand_part,
    find_suite,
    left_out,
    plan_part,
)
from steelyard.inputs.suites import list_suite, suite_names
from steelyard.report.page import Chart, Table
from steelyard.report.suite.beside import SuiteResults
from steelyard.report.suite.page import suite_page
from steelyard.results.store import ResultFolder
from steelyard.terminal.suite import left_out_lines, left_out_object, part_lines
from suite_sources import out_of_date, sources_of

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE = DOCS / "examples" / "suites" / "node-a"


@pytest.mark.parametrize("name", suite_names())
def test_every_setting_has_a_source(name: str) -> None:
    found = find_suite(name)
    assert found.suite.name == name
    assert found.suite.document in (*documents(), "")
    explained = sources_of(found)
    assert [str(setting) for setting, entry in explained if entry is None] == []
    assert out_of_date(found.suite.setting, explained) == []


def test_an_epoch_of_some_global_batches() -> None:
    found = find_suite("caraml")
    cells = expand_part(found, found.part("gpt-117m"), Choice()).cells
    assert {cell.spec.epoch_samples / cell.spec.step_samples for cell in cells} == {4.0}
    # All devices of a pipeline have the same samples.
    assert {(cell.spec.devices, cell.spec.step_samples) for cell in cells} == {
        (devices, 2**power) for devices in (1, 2, 4, 8) for power in range(6, 15)
    }


def test_a_share_of_at_most_some_samples_is_accumulated_up_to_the_batch() -> None:
    found = find_suite("caraml")
    cells = expand_part(found, found.part("resnet50-ipu"), Choice()).cells
    shapes = {(spec.step_samples, spec.devices): (spec.batch, spec.accumulation) for spec in (c.spec for c in cells)}
    assert [shapes[16, devices] for devices in (1, 2, 4)] == [(16, 1), (8, 1), (4, 1)]
    assert [shapes[32, devices] for devices in (1, 2, 4)] == [(16, 2), (16, 1), (8, 1)]
    assert shapes[4096, 4] == (16, 64)
    assert len(shapes) == 9 * 3
    # 24 images are no multiple of 16, and 16 of no three devices.
    part = replace(found.part("resnet50-ipu"), sweep={"global_batch": (16, 24), "devices": (1, 2, 3)})
    left = [planned.settings for planned in plan_part(found.suite, part, Choice())]
    assert left == [
        {"global_batch": 16, "devices": 1}, {"global_batch": 16, "devices": 2},
        {"global_batch": 24, "devices": 2}, {"global_batch": 24, "devices": 3},
    ]  # fmt: skip
    both = replace(part, run={**part.run, "batch": 8})
    with pytest.raises(InputError, match=r"(?s)most_batch: is given with batch or accumulation"):
        plan_part(found.suite, both, Choice())
    with pytest.raises(InputError, match=r"(?s)is computed with 0"):
        plan_part(found.suite, replace(part, run={**part.run, "most_batch": 0}), Choice())


@pytest.mark.parametrize("name", [name for name in suite_names() if find_suite(name).suite.document])
def test_every_printed_figure_has_a_configuration(name: str, tmp_path: Path) -> None:
    results = SuiteResults(ResultFolder(tmp_path), find_suite(name), "full")
    assert results.document is not None
    printed = {(row.place, metric) for row in results.document.rows for metric in row.figures}
    beside = {(entry.published.place, entry.metric) for table in results.suite.table for entry in results.beside(table)}
    assert printed - beside == set()


def test_printed_figures_are_counted_by_configuration(tmp_path: Path) -> None:
    results = SuiteResults(ResultFolder(tmp_path), find_suite("olivia"), "small")
    there = [
        str(entry.there.settings) for table in results.suite.table for entry in results.beside(table) if entry.there
    ]
    plans = [results.plan(part) for part in results.suite.part]
    counted = [(entry, count) for plan in plans for entry, count in zip(plan, results.count_figures(plan), strict=True)]
    assert sum(count for _, count in counted) == len(there) > 0
    assert {str(entry.settings) for entry, count in counted if count} == set(there)


def test_what_is_found_out_by_running_is_named_by_part() -> None:
    found = find_suite("olivia")
    part = found.part("workers")
    plan = tuple(plan_part(found.suite, part, Choice("small")))
    some = NotRun(part.name, "hours", plan[:2], whole=False, among=plan)
    given = Choice("small", hours=0.5)
    names = left_out_object([some], given)[0]["named"]["workers"]
    assert len(set(names)) == 2
    assert left_out_lines([some], given) == [f"left out, because 30 min is too short: workers: {'; '.join(names)}"]
    many = replace(some, why="failed", planned=plan[:8])
    assert left_out_lines([many], given)[0].endswith("; 2 more (--json names them)")
    assert left_out_lines([NotRun(part.name, "hours", plan[:2])], given)[0].endswith(
        "all of workers (2 configurations)"
    )


def test_stated_means_stated_for_every_configuration() -> None:
    """Accumulation is stated with batch 20 only; no document says what happens to the last batch of an epoch."""
    for suite, name in (("aces", "accumulation"), ("aces", "last_batch"), ("caraml", "last_batch")):
        entries = [entry for entry in find_suite(suite).suite.setting if entry.name == name]
        assert entries
        assert not [entry for entry in entries if entry.stated]


def test_an_implausible_time_is_said_to_be_so() -> None:
    """The rate in the text is that of the usual 12 epochs in the printed time."""
    suite = find_suite("nrp").suite
    (implausible,) = [entry for entry in suite.deviation if entry.implausible]
    part = next(part for part in suite.part if part.name in implausible.parts)
    rows = [row for row in load("nrp-gh200").rows if row.get("model") == "Faster R-CNN (ResNet-50)"]
    alone = next(row for row in rows if row.get("accelerator") == "A100-80GB" and row.number("devices") == 1)
    rate = part.run["epochs"] * part.run["epoch_samples"] / alone.figures["train_time"].value
    assert f"printed {alone.figures['train_time'].text} hours would be {rate:.0f} images/s" in implausible.text


def test_a_setting_that_no_printed_row_can_have_is_refused(tmp_path: Path) -> None:
    found = find_suite("aces")
    table = replace(found.suite.table[0], same={"phase": {}})
    wrong = replace(found, suite=replace(found.suite, table=(table,)))
    with pytest.raises(InputError, match=r"table 1: same\.phase: no such setting"):
        SuiteResults(ResultFolder(tmp_path), wrong, "full")


def test_a_part_that_needs_several_devices_is_left_out_on_one() -> None:
    found = find_suite("site-acceptance")
    part = found.part("collectives")
    assert left_out(found.suite, part, Choice("tiny", devices=(1,))) == [NotRun("collectives", "numbers")]
    assert [entry.run["devices"] for entry in plan_part(found.suite, part, Choice("tiny", devices=(1, 2)))] == [2]


def sizes_of(name: str, choice: Choice) -> dict[str, list[int]]:
    """The numbers of devices of the runs of each part that runs."""
    found = find_suite(name)
    running = [part for part in found.suite.part if not any(one.whole for one in left_out(found.suite, part, choice))]
    runs = {part.name: expand_part(found, part, choice).runs for part in running}
    return {part: sorted({spec.devices for spec in of_part}) for part, of_part in runs.items()}


def test_only_what_the_devices_allow_is_run() -> None:
    one = Choice("small", there=PlaceDevices("this machine", 1))
    parts = [
        "resnet50",
        "resnet50-gpu",
        "resnet50-gpu-epoch",
        "resnet50-batch",
        "resnet50-scaling",
        "autoencoder-scaling",
    ]
    assert sizes_of("aces", one) == {part: [1] for part in parts}
    six = sizes_of("aces", Choice("small", there=PlaceDevices("this machine", 6)))
    assert (six["resnet50"], six["models-on-4"], "models-on-16" in six) == ([1, 2, 4], [4], False)
    # Two nodes of four: 8 devices are both, 16 are too many.
    two = sizes_of("aces", Choice("small", there=PlaceDevices("pool", 4, 2)))
    assert two["resnet50"] == [1, 2, 4, 8]
    # The simulated device is not one of the machine's.
    found = find_suite(str(EXAMPLE))
    assert left_out(found.suite, found.suite.part[0], Choice("small", there=PlaceDevices("this machine", 0))) == []


def test_only_what_the_data_allows_is_run(tmp_path: Path) -> None:
    found = find_suite("nrp")
    given = Choice("small", data={"food101": tmp_path, "coco": tmp_path}, synthetic=False)
    left = {part.name: left_out(found.suite, part, given) for part in found.suite.part}
    (partly,) = left.pop("classification")
    # The cases with the other data set.
    assert (partly.why, partly.whole, {entry.data for entry in partly.planned}) == ("data", False, {"cifar100"})
    assert [entry.whole for entries in left.values() for entry in entries] == [True, True]
    assert left["detection"] == []
    runs = expand_part(found, found.part("classification"), given).runs
    assert {spec.data.format for spec in runs if spec.data is not None} == {"food101"}
    # GPT 117M is synthetic in the document.
    found = find_suite("caraml")
    assert left_out(found.suite, found.part("gpt-117m"), replace(given, data={})) == []


def test_weights_are_those_of_the_parts_that_begin_with_some(tmp_path: Path) -> None:
    found = find_suite("nrp")
    there = {"resnet50.safetensors": tmp_path / "a", "segformer-b4.safetensors": tmp_path / "b"}
    chosen = Choice("small", weights=there)
    begins = {
        (part.name, spec.workload, spec.weights)
        for part in found.suite.part
        for spec in expand_part(found, part, chosen).runs
        if spec.weights is not None
    }
    assert begins == {
        ("inference", "resnet50", str(tmp_path / "a")), ("segmentation", "segformer-b4", str(tmp_path / "b")),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--weights", "nothing", "--synthetic"),
            "--weights nothing: no such folder; valid: a folder with deeplabv3plus",
        ),
        (("--weights", ".", "--size", "tiny"), "--weights: the size tiny has reduced models; valid: small or full"),
        (
            ("--weights", ".", "--part", "detection", "--synthetic"),
            "begins none of these parts with pre-trained weights",
        ),
    ],
)
def test_weights_that_cannot_be_used(
    words: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["suite", "show", "nrp", *words]) == 2
    assert message in capsys.readouterr().err.replace("\n  ", " ")


def test_show_names_the_weights(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "swin-t.safetensors").write_bytes(b"")
    assert main(["suite", "show", "nrp", "--part", "inference", "--synthetic"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Pre-trained weights that --weights DIR reads from DIR; without it, weights are random: resnet50.s" in told
    assert " resnet50.safetensors, swin-t.safetensors " in told
    assert main(["suite", "show", "nrp", "--part", "inference", "--synthetic", "--weights", "w"]) == 0
    printed = capsys.readouterr()
    assert "Pre-trained weights that are read from --weights:\n  swin-t.safetensors\n" in printed.out
    assert "random weights instead of resnet50.safetensors, which w does not have" in printed.err


def test_an_evaluation_is_left_out_without_its_data(tmp_path: Path) -> None:
    found = find_suite("olivia")
    part = found.part("accuracy")
    assert [entry.why for entry in left_out(found.suite, part, Choice("small"))] == ["evaluation"]
    assert left_out(found.suite, part, Choice("small", data={"cifar100": tmp_path})) == []


@pytest.mark.parametrize("name", suite_names())
def test_size_small_can_be_reliable(name: str) -> None:
    found = find_suite(name)
    for part in found.suite.part:
        choice = Choice("small", data=dict.fromkeys(data_formats(found.suite, part), Path("/data")))
        assert expand_part(found, part, choice).study.repeats >= 3


def test_the_modules_that_runs_need(tmp_path: Path) -> None:
    found = find_suite("nrp")
    part = found.part("segmentation")
    with_data = expand_part(found, part, Choice("small", data={"cityscapes": tmp_path}))
    assert {frozenset(modules_of(spec)) for spec in with_data.runs} == {
        frozenset({"torch", "segmentation_models_pytorch", "PIL"})
    }
    assert "PIL" not in modules_of(expand_part(found, part, Choice("small")).runs[0])
    olivia = find_suite("olivia")
    evaluated = expand_part(olivia, olivia.part("accuracy"), Choice("small", data={"cifar100": tmp_path}))
    assert modules_of(evaluated.runs[0]) == {"torch", "torchmetrics"}
    simulated = find_suite(str(EXAMPLE))
    assert modules_of(expand_part(simulated, simulated.suite.part[0], Choice()).runs[0]) == set()


# -- suite show


@pytest.mark.parametrize("name", suite_names())
@pytest.mark.parametrize("size", SIZES)
def test_a_suite_is_described_on_two_screens(name: str, size: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suite", "show", name, "--size", size]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 80
    assert max(map(len, lines)) <= 100


# -- the suite of docs/adding-a-suite.md


def test_the_page_shows_the_files_of_the_example() -> None:
    page = (DOCS / "adding-a-suite.md").read_text(encoding="utf-8")
    for file in EXAMPLE.iterdir():
        assert f"\n{file.read_text(encoding='utf-8')}```\n" in page, file.name


def test_a_folder_with_a_table_of_its_own_is_a_suite(tmp_path: Path) -> None:
    found = find_suite(str(EXAMPLE))
    (part,) = found.suite.part
    assert [len(expand_part(found, part, Choice(size)).runs) for size in SIZES] == [6, 6, 2]
    folder = ResultFolder(tmp_path)
    for spec in expand_part(found, part, Choice("small")).runs:
        run_spec(folder, replace(spec, crosscheck_steps=0))
    beside = SuiteResults(folder, found, "small").beside(found.suite.table[0])
    assert [entry.published.get("batch") for entry in beside] == [32, 64]
    for entry, batch in zip(beside, (32, 64), strict=True):
        assert entry.ours is not None
        # A step takes 2 ms and 0.1 ms for each sample.
        assert entry.ours.value == pytest.approx(batch / (0.002 + 0.0001 * batch), rel=0.03)
        assert entry.comparison is not None
        assert entry.comparison.ratios
    page = suite_page(folder, found, "small")
    assert "2 with a ratio (same work), 2 in relations (inside)" in page.sections[0].answer
    (settings,) = (section.blocks[0] for section in page.sections if section.name == "settings")
    assert isinstance(settings, Table)
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in settings.rows}
    assert rows["batch"] == ["32, 64", "all", "table 1", '"batch 32 and 64"']
    assert rows["threads"][:3] == ["any", "all", "chosen here"]


def changed_example(place: Path, *changes: tuple[str, str]) -> SuiteFolder:
    """Copy the example with other text in its suite file."""
    shutil.copytree(EXAMPLE, place)
    file = place / "suite.toml"
    text = file.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)
    return find_suite(str(place))


OWN_TABLE = """figures = ["throughput"]
chart = "batch"

[[table]]
name = "own"
part = "batch"
title = "Not printed"
rows = ["batch"]
figures = ["throughput", "step_time_mean"]
chart = "batch"
"""


def test_the_size_tiny_has_no_figures(tmp_path: Path) -> None:
    found = changed_example(tmp_path / "suite", ('figures = ["throughput"]\n', OWN_TABLE))
    folder, part = ResultFolder(tmp_path / "results"), found.suite.part[0]
    first, second = expand_part(found, part, Choice("tiny")).runs
    run_spec(folder, replace(first, crosscheck_steps=0))
    lost = Status(code="out_of_memory", reason="too large")
    run_spec(folder, replace(second, crosscheck_steps=0), lambda record: replace(record, status=lost))
    page = suite_page(folder, found, "tiny")
    printed, own = (next(part for part in page.sections if part.name == f"table-{place}") for place in (0, 1))
    assert page.first is not None
    assert page.first.verdict.startswith("1 of 2 figures' configurations run; the size tiny is never compared.")
    assert (printed.answer, own.answer) == ("1 of 2 figures' configurations run.", "1 of 2 configurations run.")
    wanted = {"runs", "out of memory"}
    for section, columns in ((printed, ["batch", "throughput", "here, runs"]), (own, ["batch", "here"])):
        assert not [block for block in section.blocks if isinstance(block, Chart)]
        (table,) = [block for block in section.blocks if isinstance(block, Table)]
        assert [column.name for column in table.columns] == columns
        assert table.columns[-1].unit == ""
        assert {row[-1].text for row in table.rows} == wanted
    cells = summarise(folder.records("node-a-batch-tiny"))
    lines = "\n".join(part_lines(expand_part(found, part, Choice("tiny")), cells, "tiny"))
    assert "throughput" not in lines
    assert {line.rpartition("  ")[2] for line in lines.splitlines() if "batch=" in line} == {"yes", "out of memory"}


def test_generated_data_is_not_compared_with_an_unstated_data_set(tmp_path: Path) -> None:
    """A suite that chose a data set for a row without one has a ratio only with that data set."""
    chosen = ('workload = "sim"\nprecision', 'workload = "sim"\ndata = "mnist"\nprecision')
    for name, changes in (("none", ()), ("chosen", (chosen,))):
        found, folder = changed_example(tmp_path / name, *changes), ResultFolder(tmp_path / f"{name}-results")
        csv = tmp_path / name / "published.csv"
        csv.write_text(csv.read_text().replace(",synthetic,", ",,"))
        for spec in expand_part(found, found.suite.part[0], Choice("small")).runs:
            run_spec(folder, replace(spec, crosscheck_steps=0))
        for entry in SuiteResults(folder, found, "small").beside(found.suite.table[0]):
            assert entry.comparison is not None
            errors = [finding.code for finding in entry.comparison.findings if finding.severity == "error"]
            assert (errors, bool(entry.comparison.ratios)) == ((["SY107"], False) if changes else ([], True))


def test_where_each_setting_comes_from_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suite", "show", str(EXAMPLE)]) == 0
    short = capsys.readouterr().out
    assert "Settings: 2 stated by the document; 1 known difference from it:\n  steelyard suite show" in short
    assert main(["suite", "show", str(EXAMPLE), "--settings"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "all parts (environment): node A had an older driver" in text
    assert 'Settings that the document states: batch = 32, 64: table 1, "batch 32 and 64"' in text
    assert "As in every suite (--json tells why): " in text


def test_a_package_adds_a_suite_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = '[project.entry-points."steelyard.suite"]\nnode-a = "our_suites.node_a"'
    assert said in (DOCS / "adding-a-suite.md").read_text(encoding="utf-8")
    shutil.copytree(EXAMPLE, tmp_path / "our_suites" / "node_a")
    metadata = tmp_path / "our_suites-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: our_suites\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[steelyard.suite]\nnode-a = our_suites.node_a\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "node-a" in suite_names()
    assert list_suite("node-a").title == "Batch sizes on node A"
    assert find_suite("node-a").suite.title == "Batch sizes on node A"
    (tmp_path / "our_suites" / "node_a" / "suite.toml").write_text('name = "node-a"\npart = 1\n')
    assert main(["suite", "list"]) == 0
    printed = capsys.readouterr()
    assert "caraml" in printed.out
    assert "suite.toml is not a suite file: " in printed.err
