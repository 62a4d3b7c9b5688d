"""Documents for scripts: the schema of every verb, figures as CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from typing import TYPE_CHECKING

import pytest

from conftest import json_validator, make_spec
from steelyard.analysis.summary import summarise
from steelyard.cli.main import VERBS, main
from steelyard.contracts.record import Quantity
from steelyard.contracts.spec import Budget, Data, Loader, Program
from steelyard.report.render.long_csv import WHAT, WHO, long_csv
from steelyard.terminal.document import json_text
from steelyard.terminal.plain import shown_configurations
from steelyard.terminal.shapes import DOCUMENTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec

    Simulate = Callable[[RunSpec], RunRecord]


def test_every_verb_declares_documents_that_begin_with_its_name() -> None:
    assert DOCUMENTS.keys() == VERBS.keys()
    shapes = [
        (verb, json_validator(verb).schema["$defs"][kind.__name__]["properties"]["shape"]["const"])
        for verb, kinds in DOCUMENTS.items()
        for kind in kinds
    ]
    assert [shape for verb, shape in shapes if shape.partition("/")[0].partition("-")[0] != verb] == []
    assert len({shape for _, shape in shapes}) == len(shapes)


def test_a_schema_is_printed_for_one_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "scaling", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["$defs"]["FigureData"]["properties"]["high"]["description"] == "Upper end of the interval."
    # A reader must accept fields that come later.
    assert "additionalProperties" not in schema["$defs"]["FigureData"]
    for words, said in (
        (["scalin"], "did you mean scaling?"),
        ([], "nothing is not one verb"),
        (["show", "best"], "one verb"),
    ):
        assert main(["explain", *words, "--schema"]) == 2
        assert said in capsys.readouterr().err
    assert main(["explain", "scaling"]) == 2
    assert "next: steelyard explain scaling --schema" in capsys.readouterr().err


def test_infinity_is_null() -> None:
    assert json.loads(json_text({"shape": "x/1", "a": [math.inf, (-math.inf, math.nan, 1.5)]}))["a"] == [
        None,
        [None, None, 1.5],
    ]


@pytest.fixture
def records(simulate: Simulate) -> list[RunRecord]:
    """Two configurations of three jobs; of the second, none has a result."""
    budget = Budget(min_steps=30, max_steps=30, min_seconds=0.0)
    made = []
    for batch in (32, 8):
        record = simulate(make_spec(batch=batch, crosscheck_steps=0, budget=budget))
        for repeat in range(3):
            spec = dataclasses.replace(
                record.spec, study="s", run_id=f"b{batch}-r{repeat}", configuration=f"b{batch}", repeat=repeat
            )
            made.append(dataclasses.replace(record, spec=spec, run_id=spec.run_id))
    return made


def rows_of(records: list[RunRecord]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(long_csv(summarise(records)))))


def test_csv_has_a_line_per_figure_in_the_order_of_the_table(records: list[RunRecord]) -> None:
    shown = shown_configurations(summarise(records))
    assert [each["configuration"] for each in shown] == ["batch=8", "batch=32"]
    rows = rows_of(records)
    assert list(rows[0])[:3] == [*WHO]
    assert list(rows[0])[-len(WHAT) :] == [*WHAT]
    assert len(rows) == sum(len(each["figures"]) for each in shown)
    (first,) = [row for row in rows if row["metric"] == "throughput" and row["batch"] == "8"]
    figure = shown[0]["figures"]["throughput"]
    told = [float(first[end]) for end in ("value", "low", "high")]
    assert told == [figure["value"], figure["low"], figure["high"]]
    assert (first["unit"], first["jobs"], first["runs"], first["selection"]) == (
        "samples/s",
        "3",
        "3 completed",
        "s/b8",
    )


def test_pandas_reads_it_without_cleaning(records: list[RunRecord]) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.read_csv(io.StringIO(long_csv(summarise(records))))
    assert table.columns.is_unique
    rates = table[table["metric"] == "throughput"]
    assert [str(rates[name].dtype) for name in ("value", "low", "high", "batch")] == ["float64"] * 3 + ["int64"]
    assert rates["batch"].to_list() == [8, 32]


def test_a_configuration_without_a_result_has_a_line_without_a_value(records: list[RunRecord]) -> None:
    lost = [
        dataclasses.replace(
            record,
            quantities={},
            steady=None,
            status=dataclasses.replace(record.status, code="out_of_memory", reason="x"),
        )
        if record.spec.batch == 32
        else record
        for record in records
    ]
    (row,) = [row for row in rows_of(lost) if row["batch"] == "32"]
    assert (row["metric"], row["value"], row["low"], row["jobs"]) == ("throughput", "", "", "0")
    assert row["runs"] == "3 out_of_memory"


def test_names_of_settings_do_not_hide_columns_and_texts_are_inert(records: list[RunRecord]) -> None:
    """A parameter of a program may be called like a column of ours, and hold a formula."""
    program = Program(
        command=("train", "--value", "{value}", "--low", "{low}"), parameters={"value": 3, "low": "=cmd()"}
    )
    made = [dataclasses.replace(record, spec=dataclasses.replace(record.spec, program=program)) for record in records]
    row = rows_of(made)[0]
    assert (row["settings.value"], row["settings.low"]) == ("3", "'=cmd()")
    assert (row["metric"], row["unit"]) == ("throughput", "samples/s")


def test_a_parameter_of_a_program_is_not_hidden_by_what_was_read_back(records: list[RunRecord]) -> None:
    program = Program(command=("train", "--kernel", "{kernel}"), parameters={"kernel": 3})
    made = [dataclasses.replace(record, spec=dataclasses.replace(record.spec, program=program)) for record in records]
    facts = {**made[0].environment.facts, "system.kernel": "6.1"} if made[0].environment is not None else {}
    made = [
        dataclasses.replace(
            record,
            spec=dataclasses.replace(record.spec, device="cpu"),
            environment=dataclasses.replace(record.environment, facts=facts),
        )
        for record in made
        if record.environment is not None
    ]
    row = rows_of(made)[0]
    assert (row["program.parameters.kernel"], row["kernel"]) == ("3", "6.1")


def test_a_setting_has_a_value_also_where_it_is_the_default(records: list[RunRecord]) -> None:
    noisy = [
        dataclasses.replace(
            record,
            spec=dataclasses.replace(
                record.spec,
                sim=dataclasses.replace(
                    record.spec.sim, noise=dataclasses.replace(record.spec.sim.noise, between_jobs_cv=0.01)
                ),
            ),
        )
        if record.spec.batch == 32
        else record
        for record in records
    ]
    rows = rows_of(noisy)
    assert {(row["batch"], row["sim.noise.between_jobs_cv"]) for row in rows} == {("8", "0.0"), ("32", "0.01")}


def test_no_folder_of_the_user_is_told(records: list[RunRecord]) -> None:
    data = Data(format="cifar10", path="/home/jane/secret")
    made = [
        dataclasses.replace(
            record,
            spec=dataclasses.replace(
                record.spec, device="cpu", workload="resnet50", data=data, loader=Loader(place="host")
            ),
        )
        for record in records
    ]
    assert "jane" not in long_csv(summarise(made))
    assert "jane" not in json.dumps([each["settings"] for each in shown_configurations(summarise(made))])


def test_names_and_units_of_somebody_elses_record_are_inert(records: list[RunRecord]) -> None:
    bad = Quantity(value=1.0, unit="=1+1", scope="job", window="steady", aggregation="sum")
    made = [dataclasses.replace(record, quantities={**record.quantities, '=HYPERLINK("x")': bad}) for record in records]
    (row,) = [row for row in rows_of(made) if "HYPERLINK" in row["metric"] and row["batch"] == "8"]
    assert (row["metric"], row["unit"]) == ('\'=HYPERLINK("x")', "'=1+1")


def test_figures_from_the_same_step_times_share_their_doubts(records: list[RunRecord]) -> None:
    """Two jobs alike and one far away: Student's t does not hold for the throughput, nor for what follows from it."""
    made = []
    for record in records:
        factor = 0.5 if record.spec.repeat == 2 else 1 + 1e-6 * record.spec.repeat
        scaled = {
            name: dataclasses.replace(quantity, value=quantity.value * factor, interval=None)
            for name, quantity in record.quantities.items()
            if name in ("throughput", "throughput_per_device") and quantity.value is not None
        }
        made.append(dataclasses.replace(record, quantities={**record.quantities, **scaled}))
    figures = shown_configurations(summarise(made))[0]["figures"]
    names = ("throughput", "throughput_per_device", "throughput_per_node", "step_time_mean")
    doubts = [figures[name]["approximate"] for name in names]
    assert doubts[0]
    assert doubts == [doubts[0]] * len(names)
    assert [figures[name]["scope"] for name in names[:3]] == ["job", "device", "node"]


def test_the_verb_prints_one_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--results", str(tmp_path), "--quiet"]
    for study, batch in (("Z", "8"), ("a", "16")):
        made = ["run", "sim", "--study", study, "--batch", batch, "--max-steps", "30", "--min-steps", "30"]
        assert main([*made, *words]) == 0
    capsys.readouterr()
    assert main(["show", "a", "--csv", "--results", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("study,configuration,selection,")
    (run,) = (path.name for path in (tmp_path / "runs" / "a").iterdir())
    for more, study in (([], "Z"), (["a", "--json"], "a"), (["a", "--derive"], "a"), ([run], "a")):
        assert main(["show", *more, "--csv", "--results", str(tmp_path)]) == 2
        assert f"next: steelyard show {study} --csv" in capsys.readouterr().err
    assert main(["show", "aa", "--csv", "--results", str(tmp_path)]) == 2
    assert "did you mean a?" in capsys.readouterr().err


def test_show_takes_the_selection_that_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--results", str(tmp_path)]
    for batch in ("8", "16"):
        assert main(["run", "sim", "--study", "a", "--max-steps", "30", "--batch", batch, "--quiet", *words]) == 0
    capsys.readouterr()
    assert main(["show", "a:batch=8", "--json", *words]) == 0
    (one,) = json.loads(capsys.readouterr().out)["configurations"]
    assert main(["show", one["selection"], "--json", *words]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["study"], document["configurations"]) == ("a", [one])
    assert main(["show", "a:batch=9", *words]) == 2
