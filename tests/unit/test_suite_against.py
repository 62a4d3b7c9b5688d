"""Ratios of two machines that a document states, beside those of two simulated machines of known speeds."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gallery_suites import SIZE, data_of, make_jobs
from steelyard.cli.main import main
from steelyard.contracts.observe import ModelFacts
from steelyard.contracts.sim import Noise, SimTruth
from steelyard.contracts.spec import Budget
from steelyard.inputs.suite import Choice, PrintedRatio, expand_part, find_suite, plan_part
from steelyard.report.suite.page import suite_page
from steelyard.results.store import ResultFolder
from steelyard.worker.devices.facts import look_up

if TYPE_CHECKING:
    from pathlib import Path

    from steelyard.report.page import Cell, Table

FAST, SLOW = "NVIDIA GH200 480GB", "NVIDIA A100-SXM4-80GB"
BUDGET = Budget(min_steps=60, max_steps=60, min_seconds=0.0, max_seconds=1e9)
TOKENS = ModelFacts(parameters=1, flops_per_sample=None, tokens_per_sample=2048, method="chosen")


def machine(
    home: Path, suite: str, device: str, rate: float, devices: tuple[int, ...], *, real_data: bool = True
) -> Path:
    """A machine on which each device makes this many samples per second, in the part with stated ratios."""
    folder, found = ResultFolder(home), find_suite(suite)
    part, choice = found.part(found.suite.ratio[0].part), Choice(SIZE, devices)
    plan, cells = plan_part(found.suite, part, choice), expand_part(found, part, choice).cells
    for planned, cell in zip(plan, cells, strict=True):
        noise = Noise(kind="normal", cv=0.02, between_jobs_cv=0.005)
        truth = SimTruth(step_time_s=cell.spec.batch / rate, noise=noise)
        spec = replace(cell.spec, device="sim", sim=truth, crosscheck_steps=0, budget=BUDGET)
        seen = {"device": look_up(device), "model": TOKENS}
        data = data_of(planned) if real_data else None
        make_jobs(folder, spec, data, seen, {"device": "auto"})
    return home


@pytest.fixture(scope="module")
def nrp(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    home = tmp_path_factory.mktemp("nrp")
    return machine(home / "fast", "nrp", FAST, 2000.0, (1, 4)), machine(home / "slow", "nrp", SLOW, 1000.0, (1, 4))


def table_of(suite: str, here: Path, there: Path) -> Table:
    page = suite_page(ResultFolder(here), find_suite(suite), SIZE, ResultFolder(there))
    return next(table for table in page.tables if table.name == "against")


def lines(table: Table) -> list[dict[str, Cell]]:
    return [dict(zip([column.name for column in table.columns], row, strict=True)) for row in table.rows]


def test_a_stated_ratio_is_beside_that_of_two_machines_of_known_speeds(nrp: tuple[Path, Path]) -> None:
    made = lines(table_of("nrp", *nrp))
    assert {line["kind"].text for line in made} == {"between"}
    first, back = made[:2]
    assert (first["machines"].text, back["machines"].text) == ("GH200 over 4 x A100", "4 x A100 over GH200")
    assert first["stated"].value == pytest.approx(1 - 0.417)
    assert back["stated"].value == pytest.approx(1 / (1 - 0.417))
    # One device with 2,000 images/s over four with 1,000 each; then four of the former over one of the latter.
    assert first["here / there"].value == pytest.approx(0.5, rel=0.02)
    assert back["here / there"].value == pytest.approx(8.0, rel=0.02)
    assert first["here / there"].low is not None
    assert "41.7%" in str(first["words"].value)
    assert "neither direction nor calculation" in str(first["conditions"].value)
    assert "SY109" in str(first["conditions"].value)


def test_the_other_machine_is_the_base(nrp: tuple[Path, Path]) -> None:
    fast, slow = nrp
    turned = lines(table_of("nrp", slow, fast))[0]
    assert turned["machines"].text == "GH200 over 4 x A100"
    assert turned["here / there"].value == pytest.approx(1 / 8, rel=0.02)


def test_machines_with_one_device_are_compared_where_both_of_the_document_had_four(tmp_path: Path) -> None:
    here = machine(tmp_path / "here", "caraml", FAST, 24.0, (1,), real_data=False)
    there = machine(tmp_path / "there", "caraml", SLOW, 10.0, (1,), real_data=False)
    made = lines(table_of("caraml", here, there))
    line = next(line for line in made if line["machines"].text == "GH200 over A100")
    assert (line["stated"].text, line["other way"].text) == ("2.45", "0.408")
    assert line["here / there"].value == pytest.approx(2.4, rel=0.03)
    assert "1 device on each machine here, 4 in the document" in str(line["conditions"].value)
    assert "generated data here" in str(line["conditions"].value)
    # The smallest and the largest batch; no energy was measured, and nothing with 4 or 8 devices.
    assert {line["configuration"].text for line in made} == {"global batch 16, 1 device", "global batch 64, 1 device"}
    notes = table_of("caraml", here, there).notes
    assert any("no energy per hour per device there and here" in note for note in notes)
    assert any("not measured on both machines: 1 device here and 4 devices there" in note for note in notes)


def test_what_the_rules_refuse_has_no_ratio(nrp: tuple[Path, Path], tmp_path: Path) -> None:
    there = machine(tmp_path / "there", "nrp", SLOW, 1000.0, (1, 4), real_data=False)
    table = table_of("nrp", nrp[0], there)
    assert table.rows == ()
    assert any(note.startswith("No ratio for GH200 over 4 x A100") and "SY107" in note for note in table.notes)


@pytest.mark.parametrize(
    ("suite", "size", "said"),
    [
        ("caraml", "small", "has nrp-inference-small; valid: results of caraml, size small"),
        ("nrp", "full", "has nrp with the size small; valid: results of nrp, size full"),
        ("nrp", "", ""),
    ],
)
def test_results_of_something_else_are_refused(
    suite: str, size: str, said: str, nrp: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = nrp if said else (nrp[0], tmp_path / "nothing")
    words = ["suite", "report", suite, *(["--size", size] if size else []), "--results", str(here)]
    assert main([*words, "--against", str(there), "-o", str(tmp_path / "r.html")]) == 2
    assert (said or "has no results; valid: results of nrp, size small") in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "r.html").exists()


def test_the_ratios_are_in_the_terminal_and_in_json(
    nrp: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["suite", "report", "nrp", "--results", str(nrp[0]), "--against", str(nrp[1])]
    assert main([*words, "-o", str(tmp_path / "r.html")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "GH200 over 4 x A100" in out
    assert "(a) if four A100 took 41.7 % less time than the GH200" in out
    assert main([*words, "-o", str(tmp_path / "r.html"), "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)["answers"]
    assert answer["columns"][0]["name"] == "kind"
    assert len(answer["rows"]) == 4


def test_a_ratio_names_the_same_settings_on_both_machines() -> None:
    known = find_suite("nrp").suite.ratio[0]
    with pytest.raises(ValueError, match="over_at: not the same settings as base_at"):
        replace(known, base_at={})
    assert isinstance(known, PrintedRatio)
