"""The built-in reference documents: figures, provenance, and their audit."""

from __future__ import annotations

import json
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from conftest import make_spec
from steelyard.audit import documents
from steelyard.cli.main import main
from steelyard.contracts.sim import Noise, SimTruth
from steelyard.errors import InputError
from steelyard.results.store import ResultFolder
from steelyard.rules.rule import check

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec

NAMES = ["aces-ipu", "caraml", "nrp-gh200", "olivia-gh200"]


def test_the_documents_and_where_they_come_from() -> None:
    assert documents.names() == NAMES
    for name in NAMES:
        found = documents.provenance(name)
        assert found.title
        assert found.authors
        assert found.measured
        assert found.typed_in
        assert found.unknown
        assert documents.load(name).platforms
    assert documents.provenance("aces-ipu").address == "https://doi.org/10.1145/3491418.3530772"
    # What a document does not state is unknown.
    assert documents.provenance("nrp-gh200").year is None
    assert "year unknown; address unknown" in documents.provenance("nrp-gh200").cited()


@pytest.mark.parametrize(
    ("name", "rows", "figures"),
    [("aces-ipu", 43, 65), ("caraml", 18, 54), ("nrp-gh200", 48, 48), ("olivia-gh200", 19, 38)],
)
def test_how_much_there_is(name: str, rows: int, figures: int) -> None:
    table = documents.load(name)
    assert len(table.rows) == rows
    assert sum(len(row.figures) for row in table.rows) == figures
    assert all(row.source == name for row in table.rows)


def test_figures_as_printed() -> None:
    """One figure of each document, as printed."""
    first = documents.load("nrp-gh200").rows[0]
    assert first.figures["train_time"].text == "36.67"
    assert first.figures["train_time"].value == pytest.approx(36.67 * 60)
    last = [row for row in documents.load("aces-ipu").rows if row.table == "4"][-1]
    assert (last.figures["epoch_time"].text, last.figures["throughput"].text) == ("4.9", "21547")
    assert last.number("epoch_samples") == 70_000
    gpt = documents.load("caraml").rows[0]
    assert (gpt.number("epoch_samples"), gpt.number("global_batch")) == (256, 64)
    tuned = next(row for row in documents.load("olivia-gh200").rows if row.table == "test 4")
    assert (tuned.get("float32_products"), tuned.number("loader.prefetch"), tuned.get("options")) == (
        "tf32", 4, "data prefetching",
    )  # fmt: skip
    assert tuned.note == "TF32, prefetch factor 4, data prefetching"


def test_trailing_zeros_are_as_printed() -> None:
    """125.00 hours are right within 0.005 hours."""
    printed = {amount.text for name in NAMES for row in documents.load(name).rows for amount in row.figures.values()}
    assert {"125.00", "111.30", "46.20", "0.590", "0.5030", "813.0", "33.00", "1857.90"} <= printed
    dino = next(row for row in documents.load("nrp-gh200").rows if row.get("model") == "DINO (Swin-L)")
    assert dino.figures["train_time"].high - dino.figures["train_time"].value == pytest.approx(0.005 * 3600)


def test_rows_have_only_settings_that_the_document_states_for_them() -> None:
    rows = documents.load("aces-ipu").rows
    assert {row.get("accumulation") for row in rows} == {None}
    models = [row for row in rows if row.table in ("2", "text 3.2") and "BERT" not in str(row.get("model"))]
    assert [row.get("dataset") for row in models] == [None] * 6


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match="no such reference table"):
        documents.load("none")


def test_limits_of_the_machines() -> None:
    table = documents.load("caraml")
    platform = table.platform(table.rows[0])
    assert platform is not None
    assert (platform.power_limit_w, platform.power_scope) == (300, "device")


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("aces-ipu", ["table 3, line 43", "table 4, line 63"]),
        ("caraml", ["table NLP IPU-M2000"]),
        ("nrp-gh200", ["table II, line 42", "table II, line 43"]),
        ("olivia-gh200", ["table test 2, line 6"]),
    ],
)
def test_the_rules_find_the_known_faults_without_any_claim(name: str, places: list[str]) -> None:
    found = [finding.place for finding in check("table", documents.load(name))]
    assert all(any(place.startswith(known) for place in found) for known in places), found


def test_it_is_in_the_wheel(tmp_path: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    from steelyard import __file__ as package

    root = str(tmp_path.__class__(package).resolve().parents[2])
    (wheel,) = WheelBuilder(root).build(directory=str(tmp_path), versions=["standard"])
    names = set(zipfile.ZipFile(wheel).namelist())
    files = [*(f"{name}.csv" for name in NAMES), "platforms.csv", "provenance.toml", "claims.toml"]
    assert {f"steelyard/reference/{name}" for name in files} <= names


# -- the command


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = main(["audit", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)["audits"]


def test_all_documents_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run_json(capsys, "--reference")
    assert code == 1
    assert [entry["name"] for entry in found] == NAMES
    assert sum(len(entry["claims"]) for entry in found) == 32
    assert main(["audit", "--reference"]) == 1
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "(36.67-24.81)/36.67 = 32.3 %" in out
    name, verdict, _, _, claims, hold = out.rstrip().splitlines()[-1].split()
    assert (name, verdict, claims, hold) == ("olivia-gh200", "contradictory", "8", "1")


def test_brief_leaves_out_what_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "nrp-gh200", "--brief"]) == 1
    out = capsys.readouterr().out
    assert "N10" in out
    assert "N12" not in out
    assert "fix" not in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "nothing to audit"),
        (["nrp-gh20"], "next: steelyard audit nrp-gh200"),
        (["none.csv"], "is not a file"),
        (["."], "contains no steelyard results"),
        (["tables"], "next: steelyard audit tables/t.csv"),
    ],
)
def test_what_cannot_be_judged(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "t.csv").write_text("metric,value,unit\n")
    assert main(["audit", *words]) == 2
    assert says in capsys.readouterr().err


def test_a_table_with_its_machines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table, machines = tmp_path / "t.csv", tmp_path / "p.csv"
    rows = "S,X,1,3600000,throughput,100.0,images/s\nS,X,1,3600000,energy_per_epoch_per_device,4.00,kWh\n"
    table.write_text("system,accelerator,devices,epoch_samples,metric,value,unit\n" + rows)
    machines.write_text("platform,accelerator,tdp_w_per_device,tdp_scope\nS,X,300,device\n")
    assert main(["audit", str(table)]) == 0
    assert capsys.readouterr().out.startswith("CONSISTENT")
    # 4 kWh in 10 h is 400 W.
    code, (found,) = run_json(capsys, str(table), "--platforms", str(machines))
    assert (code, [finding["code"] for finding in found["findings"]]) == (1, ["SY401"])


def test_results_of_our_own(
    simulate: Callable[[RunSpec], RunRecord],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    results = ResultFolder(tmp_path / "steelyard-results")
    results.prepare()
    for seed in range(2):
        noise = Noise(kind="pareto", alpha=1.5)
        spec = make_spec(study="heavy", seed=seed, repeat=seed, sim=SimTruth(noise=noise))
        record = simulate(spec)
        scratch = results.open_scratch(spec)
        place = results.run_path(spec).with_name(f"run{seed}")
        place.parent.mkdir(parents=True, exist_ok=True)
        scratch.rename(place)
        text = json.dumps(_json(record)).replace('"run_id": "run"', f'"run_id": "run{seed}"')
        (place / "record.json").write_text(text)
    for word in ("heavy", "steelyard-results"):
        code, (found,) = run_json(capsys, word)
        assert (code, found["verdict"]) == (3, "warnings")
        assert found["about"] == "2 runs of 1 study"
        assert "SY203" in {finding["code"] for finding in found["findings"]}
    code, (found,) = run_json(capsys, "run1")
    assert (code, found["about"]) == (3, "1 run of 1 study")
    assert main(["audit", "heavy"]) == 3
    assert "heavy/run" in capsys.readouterr().out


def _json(record: RunRecord) -> Any:
    from steelyard.contracts.base import to_json_object

    return to_json_object(record)
