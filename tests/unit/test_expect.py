"""Is a figure normal: bands over machines, settings that never mix, and answers without enough data."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from simjob import run_spec
from steelyard.analysis.summary import summarise
from steelyard.audit.expect import expect, expect_of, known_rows
from steelyard.audit.table import parse_table
from steelyard.cli.main import main
from steelyard.contracts.spec import Budget, RunSpec
from steelyard.results.store import RECORD_FILE, ResultFolder, write_json
from steelyard.stats.prediction import prediction_band

if TYPE_CHECKING:
    from pathlib import Path

    from steelyard.rules.table.row import Row

HEADER = "source,system,accelerator,devices,model,precision,batch,mode,metric,value,unit"


def _rows(*lines: str) -> list[Row]:
    return list(parse_table("\n".join((HEADER, *lines)), "t.csv").rows)


def _fleet(values: list[float], precision: str = "bf16", batch: int = 64) -> list[str]:
    return [
        f"site{i},machine{i},A100,1,resnet50,{precision},{batch},train,throughput,{value:.6f},images/s"
        for i, value in enumerate(values)
    ]


def test_the_band_is_the_prediction_interval() -> None:
    band = prediction_band([math.exp(x) for x in (1.0, 2.0, 3.0)])
    assert band is not None
    # t of 2 degrees of freedom at 90 % is 2.920; the spread is 1.
    assert math.log(band.high) == pytest.approx(2 + 2.91999 * math.sqrt(4 / 3), rel=1e-5)
    assert math.log(band.low) == pytest.approx(2 - 2.91999 * math.sqrt(4 / 3), rel=1e-5)
    assert prediction_band([1.0, 2.0]) is None
    assert prediction_band([1.0, 2.0, 0.0]) is None


def test_equal_digits_allow_their_rounding() -> None:
    (found,) = expect(_rows(*[line.replace("2000.000000", "2.0") for line in _fleet([2000.0] * 3)]), {}, "throughput")
    assert found.band is not None
    assert found.band.low == pytest.approx(1.95, rel=1e-3)
    assert found.band.high == pytest.approx(2.05, rel=1e-2)


def test_a_held_out_machine_is_inside_in_nine_of_ten_cases() -> None:
    source, inside, fleets = Random(7), 0, 2000
    for _ in range(fleets):
        *others, mine = [math.exp(source.gauss(7, 0.1)) for _ in range(6)]
        band = prediction_band(others)
        inside += band is not None and band.holds(mine)
    assert 0.87 <= inside / fleets <= 0.93


def test_several_figures_of_a_machine_count_as_one() -> None:
    lines = _fleet([1000.0, 1010.0])
    (found,) = expect(_rows(*lines, *lines, *lines), {}, "throughput")
    assert (len(found.machines), found.band, found.answer) == (2, None, "too few machines")


def test_rows_of_one_file_without_a_machine_may_be_of_one() -> None:
    lines = [f"file,,A100,1,resnet50,bf16,64,train,throughput,{value},images/s" for value in (1000, 1010, 1020)]
    assert [(len(each.machines), each.band) for each in expect(_rows(*lines), {}, "throughput")] == [(1, None)]


def test_settings_never_mix() -> None:
    rows = _rows(*_fleet([1000, 1010, 1020]), *_fleet([3000, 3030, 3060], "fp16"), *_fleet([900, 909, 918], batch=32))
    found = expect(rows, {}, "throughput")
    assert sorted((each.settings["precision"], each.settings["batch"]) for each in found) == [
        ("bf16", 32),
        ("bf16", 64),
        ("fp16", 64),
    ]
    for each in found:
        assert each.band is not None
        assert each.band.high / each.band.low < 1.2
    (one,) = expect(rows, {"precision": "fp16", "accelerator": "A100"}, "throughput", value=3030.0)
    assert one.answer == "inside"
    assert expect(rows, {"accelerator": "H100"}, "throughput") == []


def test_a_row_that_does_not_say_what_matters_is_not_comparable() -> None:
    rows = _rows(*[line.replace(",bf16,", ",,") for line in _fleet([1000, 1010, 1020])])
    (own,) = _rows("here,mine,A100,1,resnet50,bf16,64,train,throughput,1000,images/s")
    assert expect(rows, {}, "throughput", value=1000.0, own=own) == []
    assert expect(rows, {"precision": "bf16"}, "throughput") == []


def test_the_model_of_a_cpu_must_be_the_same() -> None:
    rows = _rows(*[line.replace("A100", "cpu") for line in _fleet([1000, 1010, 1020])])
    assert [len(each.machines) for each in expect(rows, {}, "throughput")] == [1, 1, 1]


def test_the_own_machine_is_left_out() -> None:
    rows = _rows(*_fleet([1000, 1010, 1020, 1030]))
    found = expect(rows, {}, "throughput", value=700.0, own=rows[0])
    assert [(each.answer, len(each.machines)) for each in found] == [("below", 3)]


def test_other_nodes_of_a_site_are_machines(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)
    spec = RunSpec(run_id="c-r0000", study="s", configuration="c", budget=Budget(min_steps=60, max_steps=60))
    run_spec(folder, spec)
    record = folder.read(folder.run_path(spec))
    assert record.environment is not None
    (cell,) = summarise([record])
    assert expect_of(folder, cell) is None
    for node in ("n1", "n2", "n3"):
        other = replace(spec, run_id=f"c-{node}")
        folder.run_path(other).mkdir()
        made = replace(record, run_id=other.run_id, spec=other, environment=replace(record.environment, node=node))
        write_json(folder.run_path(other) / RECORD_FILE, made)
    found = expect_of(folder, cell)
    assert found is not None
    assert (found.answer, len(found.machines), found.sources) == ("inside", 3, (str(tmp_path),))


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results"
    (results / "imported").mkdir(parents=True)
    text = "\n".join((HEADER, *_fleet([1000, 1010, 1020, 1030])))
    (results / "imported" / "fleet.csv").write_text(text, encoding="utf-8")
    (results / "imported" / "bad.csv").write_text("nonsense", encoding="utf-8")
    assert main(["expect", "resnet50", "--device", "A100", "--results", str(results)]) == 1
    assert "left out" in capsys.readouterr().err
    (results / "imported" / "bad.csv").unlink()
    assert len(known_rows(ResultFolder(results), "ResNet-50")) >= 4
    words = ["--device", "A100", "--batch", "64", "--results", str(results)]
    assert main(["expect", "resnet50", *words, "--value", "1015"]) == 0
    assert "inside" in capsys.readouterr().out
    assert main(["expect", "resnet50", *words, "--value", "1.5 kimages/s", "--json"]) == 1
    (told,) = json.loads(capsys.readouterr().out)["expected"]
    assert (told["answer"], len(told["machines"])) == ("above", 4)
    assert main(["expect", "resnet50", *words, "--precision", "fp8"]) == 3
    assert "No comparable data" in capsys.readouterr().out
    assert main(["expect", "nobody-knows", "--results", str(results)]) == 3
    assert main(["expect", "resnet50", *words, "--value", "fast"]) == 2
    assert main(["expect", "resnet50", *words, "--set", "batches=3"]) == 2
