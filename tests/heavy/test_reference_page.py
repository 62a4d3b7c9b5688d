"""The built-in documents made again: figures as printed, ratios with their verdicts, nothing of what is blocked."""

from __future__ import annotations

import csv
import json
import math
import re
from importlib import resources
from typing import TYPE_CHECKING, Any

import pytest

from steelyard.audit import documents
from steelyard.audit.subject import audit_reference
from steelyard.cli.main import main
from steelyard.errors import InputError
from steelyard.report.audit import reference as module
from steelyard.report.audit.layout import layouts
from steelyard.report.audit.published import JudgedDocument
from steelyard.report.audit.reference import reference_page
from steelyard.report.page import Chart, Prose, Table
from steelyard.report.render.csv_table import csv_table
from steelyard.report.render.html import html
from steelyard.report.render.latex import latex
from steelyard.report.render.markdown import markdown
from steelyard.stats.knee import BatchTimes, knee

if TYPE_CHECKING:
    from pathlib import Path

    from steelyard.report.page import Cell, Page, Section

MADE = "2026-01-01T00:00:00+00:00"
RATIOS = (
    "efficiency", "times as fast", "times as long", "ratio to base", "of the longer time", "of the shorter time",
)  # fmt: skip


@pytest.fixture(scope="module")
def page() -> Page:
    return reference_page(made_at=MADE)


def section(page: Page, name: str) -> Section:
    return next(entry for entry in page.sections if entry.name == name)


def table(page: Page, name: str) -> Table:
    return next(entry for entry in page.tables if entry.name == name)


def chart(page: Page, name: str) -> Chart:
    blocks = [block for part in page.sections for block in part.blocks if isinstance(block, Chart)]
    return next(block for block in blocks if block.name == name)


def column(found: Table, name: str) -> list[Cell]:
    place = [entry.name for entry in found.columns].index(name)
    return [row[place] for row in found.rows]


def layers(found: Chart, mark: str) -> list[list[dict[str, Any]]]:
    return [part["data"]["values"] for part in found.spec["layer"] if part["mark"]["type"] == mark]


# -- what is printed


@pytest.mark.parametrize("name", documents.names())
def test_every_printed_figure_stands_on_the_page_with_its_digits(page: Page, name: str) -> None:
    """Read from the file itself, without our parser."""
    text = (resources.files("steelyard") / "reference" / f"{name}.csv").read_text("utf-8")
    lines = list(csv.DictReader(text.splitlines()))
    tables = [entry for entry in page.tables if entry.name.startswith(name) and "-data" not in entry.name]
    cells = [cell for entry in tables for row in entry.rows for cell in row]
    for line in lines:
        value = float(line["value"])
        same = [c for c in cells if isinstance(c.value, float) and math.isclose(c.value, value, rel_tol=1e-12)]
        digits = {cell.text.partition(" ")[0].replace(",", "") for cell in same}
        assert line["value"] in digits, line


def test_every_claim_stands_on_the_page_once_with_its_verdict(page: Page) -> None:
    told = {}
    for entry in page.tables:
        if entry.name.endswith("-claims"):
            for row in entry.rows:
                assert row[0].value not in told
                told[row[0].value] = row[1].value
    judged = [one for name in documents.names() for one in audit_reference(name).judgements]
    assert told == {one.claim.id: one.verdict for one in judged}
    assert len(judged) == 32


def test_provenance_and_what_is_unknown_stand_before_the_figures(page: Page) -> None:
    for name in documents.names():
        first = next(part for part in page.sections if part.name.startswith(name))
        assert first.name == f"{name}-document"
        (prose,) = [block for block in first.blocks if isinstance(block, Prose)]
        source = documents.provenance(name)
        assert dict(prose.facts)["document"] == source.title
        assert dict(prose.facts)["address"] == (source.address or "unknown")
        unknown = [text for key, text in prose.facts if key == "unknown"]
        assert set(source.unknown) <= set(unknown)
        assert any(text.startswith("energy:") for text in unknown) == (name != "caraml")


# -- what is worked out


@pytest.mark.parametrize("number", ["i", "ii"])
def test_each_printed_percentage_is_one_of_the_shares_or_has_a_code(page: Page, number: str) -> None:
    seen = 0
    for other in (1, 4):
        found = table(page, f"nrp-gh200-table-{number}-shares-{other}")
        shares = zip(column(found, "of the longer time"), column(found, "of the shorter time"), strict=True)
        for pair, printed in zip(shares, column(found, "printed claim and verdict"), strict=True):
            for text, verdict in re.findall(r"([0-9.]+) % \(N\d+\): ([a-z ]+)", printed.text):
                seen += 1
                places = len(text.partition(".")[2])
                fits = [abs(cell.value - float(text)) <= 0.5 * 10**-places + 0.05 for cell in pair]
                if verdict == "holds":
                    assert fits[0], printed.text
                    assert not printed.codes
                else:
                    assert printed.codes, printed.text
    assert seen == {"i": 8, "ii": 4}[number]


def test_the_two_percentages_that_are_wrong_say_how(page: Page) -> None:
    one = table(page, "nrp-gh200-table-ii-shares-1")
    four = table(page, "nrp-gh200-table-ii-shares-4")
    dino = column(four, "printed claim and verdict")[0]
    assert (dino.text, dino.codes) == ("9.9 % (N10): base differs", ("SY520",))
    assert column(four, "of the longer time")[0].text == "9.0"
    assert column(four, "of the shorter time")[0].text == "9.9"
    rcnn = column(one, "printed claim and verdict")[1]
    assert rcnn.text.startswith("58 % (N11): does not follow")
    assert "SY521" in rcnn.codes
    assert (column(one, "of the longer time")[1].text, column(one, "of the shorter time")[1].text) == ("61.2", "158.0")


def test_odd_rows_have_their_codes_in_the_table_of_times(page: Page) -> None:
    tables = [table(page, f"nrp-gh200-table-ii-shares-{count}") for count in (1, 4)]
    cells = [cell for found in tables for name in ("A, the base", "B") for cell in column(found, name)]
    assert {cell.text: cell.codes for cell in cells if cell.codes} == {"1.08": ("SY301",), "11.84": ("SY703",)}


def test_efficiencies_are_those_that_the_audit_works_out(page: Page) -> None:
    """By another way: the audit divides by itself, the page asks for the comparison of each pair."""
    claims = {one.claim.id: one for one in audit_reference("aces-ipu").judgements}
    first = [cell.text for cell in column(table(page, "aces-ipu-scaling-1-rows"), "efficiency")][1:6]
    assert first == re.findall(r"([\d.]+) %", claims["A1"].sums) == ["99.8", "95.0", "93.5", "77.4", "62.2"]
    fourth = [cell.text for cell in column(table(page, "aces-ipu-scaling-3-rows"), "efficiency")][1:4]
    assert fourth == re.findall(r"([\d.]+) %", claims["A4"].sums)[:3]


def test_a_row_that_blocks_has_no_ratio_in_tables_or_pictures(page: Page) -> None:
    for name, last in (("2", 64), ("3", 16)):
        found = table(page, f"aces-ipu-scaling-{name}-rows")
        assert found.rows[-1][0].value == last
        assert column(found, "efficiency")[-1].value is None
        assert "SY503" in column(found, "comparable")[-1].codes
        drawn = chart(page, f"aces-ipu-scaling-{name}")
        assert all(value["x"] < last for line in layers(drawn, "line") for value in line)
        assert any(value.get("x") == last for line in layers(drawn, "point") for value in line)
    efficiency = chart(page, "aces-ipu-scaling-efficiency")
    points = [value for line in layers(efficiency, "point") for value in line if "x" in value]
    assert max(value["x"] for value in points) == 16
    assert sum(value["x"] == 16 for value in points) == 5


def test_where_the_verdict_is_no_there_is_no_ratio_anywhere(page: Page) -> None:
    blocked = 0
    for found in page.tables:
        names = [entry.name for entry in found.columns]
        if "comparable" not in names:
            continue
        for row in found.rows:
            verdict = row[names.index("comparable")]
            ratios = [row[place].value for place, name in enumerate(names) if name in RATIOS]
            if verdict.text == "no":
                blocked += 1
                assert verdict.codes
                assert all(value is None for value in ratios)
            elif verdict.text != "base":
                assert str(verdict.value).startswith("comparable")
    assert blocked > 25


def test_scaling_axes_are_linear_and_the_ideal_line_starts_at_the_base(page: Page) -> None:
    found = chart(page, "aces-ipu-scaling-1")
    scales = [
        channel["scale"] for part in found.spec["layer"] for channel in part["encoding"].values() if "scale" in channel
    ]
    assert all("type" not in scale for scale in scales)
    ideal = layers(found, "line")[0]
    assert ideal == [{"x": 1, "y": 1862.9}, {"x": 16, "y": pytest.approx(16 * 1862.9)}]


# -- batch size


def test_a_knee_is_found_as_for_our_own_runs_and_not_where_a_finding_blocks(page: Page) -> None:
    found = table(page, "caraml-batch-knees")
    rows = JudgedDocument("caraml").select("table=CV IPU-M2000")
    batches = [row.number("global_batch") or 0.0 for row in rows]
    own = knee([BatchTimes(b, (b / row.figures["throughput"].value,)) for b, row in zip(batches, rows, strict=True)])
    gpt, resnet = found.rows
    assert [cell.text for cell in gpt[2:5]] == ["none", "-", "-"]
    assert gpt[1].codes == ("SY401",)
    assert resnet[2].text == own.answer == "below the sweep"
    assert (resnet[3].value, resnet[4].value) == (own.low, own.high)
    blocked = chart(page, "caraml-batch-1")
    assert not layers(blocked, "line")
    assert "not comparable (SY401)" in blocked.alt
    assert "no knee, not comparable (SY401)" in section(page, "caraml-batch").answer


def test_batch_curves_of_two_machines_are_apart(page: Page) -> None:
    found = table(page, "aces-ipu-batch-knees")
    assert [row[2].text for row in found.rows] == ["beyond the sweep", "beyond the sweep"]
    first = table(page, "aces-ipu-batch-1-rows")
    assert [cell.value for cell in column(first, "batch")] == [2, 4, 8, 14, 16, 18, 20]


# -- tuning


def test_no_row_of_the_tuning_summary_may_be_divided_by_its_base(page: Page) -> None:
    found = table(page, "olivia-gh200-tuning-summary")
    verdicts = [cell.text for cell in column(found, "comparable")]
    assert verdicts == ["base"] + ["no"] * 18
    assert "18 of 18 rows are not comparable" in section(page, "olivia-gh200-tuning").answer


def test_one_setting_at_a_time_may_be_divided(page: Page) -> None:
    found = table(page, "olivia-gh200-tuning-steps")
    told = dict(zip([row[0].text for row in found.rows], column(found, "times as fast"), strict=True))
    assert told["devices 4 to 8"].value == pytest.approx(64596 / 37510)
    assert told["loader.workers 8 to 4"].value == pytest.approx(36264 / 34545)
    assert told["precision bf16 to fp16"].value == pytest.approx(35408 / 34545)
    assert told["a repeat (precision fp16)"].value == pytest.approx(35408 / 37510)
    assert column(found, "efficiency")[0].text == "86.1"
    assert {cell.text for cell in column(found, "comparable")} == {"warning"}
    assert (
        "comparable with warnings), times as fast: devices 4 to 8 1.72" in section(page, "olivia-gh200-tuning").answer
    )


# -- energy


def test_work_per_energy_follows_within_its_printed_digits(page: Page) -> None:
    rows = JudgedDocument("caraml").select("table=CV IPU-M2000")
    found = table(page, "caraml-energy-2-rows")
    printed, own = column(found, "images per energy"), column(found, "work per energy")
    for a, b, row in zip(printed, own, rows, strict=True):
        energy = row.figures["energy_per_epoch"]
        assert abs(a.value / b.value - 1) < (energy.high - energy.low) / energy.value
    assert {cell.text for cell in column(found, "matches")} == {"yes, within rounding"}


def test_power_beyond_the_limit_has_its_code_and_is_joined_by_no_line(page: Page) -> None:
    cells = column(table(page, "caraml-energy-1-rows"), "power per device")
    assert [cell.codes for cell in cells] == [("SY401",)] * 9
    assert cells[0].value == pytest.approx(64.99 / 4.08 / 4 * 3600)
    fine = column(table(page, "caraml-energy-2-rows"), "power per device")
    assert not any(cell.codes for cell in fine)
    drawn = chart(page, "caraml-energy-power")
    assert all(value["y"] < 300 for line in layers(drawn, "line") for value in line)
    assert [value for line in layers(drawn, "rule") for value in line if "y" in value] == [{"y": 300.0}]


def test_tokens_per_energy_cannot_be_worked_out_from_samples(page: Page) -> None:
    cells = column(table(page, "caraml-energy-1-rows"), "work per energy")
    assert len(cells) == 9
    assert all(cell.value is None and cell.text.startswith("unknown") for cell in cells)


# -- findings, and documents that nobody drew


def test_findings_stand_in_the_section_of_their_rows(page: Page) -> None:
    codes = {part.name: {found.code for found in part.findings} for part in page.sections}
    assert {"SY301", "SY703", "SY109", "SY205"} <= codes["nrp-gh200-table-ii"]
    assert not codes["nrp-gh200-table-i"] & {"SY301", "SY703"}
    assert {"SY503", "SY112"} <= codes["aces-ipu-scaling"]
    assert "SY401" in codes["caraml-energy"] & codes["caraml-batch"]
    assert {"SY303", "SY103", "SY104"} <= codes["olivia-gh200-tuning"]


def test_a_document_without_pictures_still_has_its_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "layouts", lambda name: ())
    (only,) = reference_page(["caraml"], made_at=MADE).sections
    (claims,) = [block for block in only.blocks if isinstance(block, Table)]
    assert [row[0].value for row in claims.rows] == ["C1", "C2", "C3"]


def test_every_row_of_a_document_stands_in_a_section() -> None:
    for name in documents.names():
        document = JudgedDocument(name)
        asked = [rows.select for part in layouts(name) for rows in part.rows]
        pairs = [pair for part in layouts(name) for block in part.block for pair in block.pairs]
        asked += [side for pair in pairs for side in (pair.a, pair.b)]
        found = {row.place for wanted in asked for row in document.select(wanted)}
        assert found == {row.place for row in document.select("")}


def test_a_name_that_is_not_there_is_refused_before_anything_is_made() -> None:
    with pytest.raises(InputError, match="no such reference table"):
        reference_page(["caraml", "nope"])


# -- forms


def test_the_page_is_written_in_every_form(page: Page) -> None:
    text = html(page, charts=False)
    assert "N10" in text
    assert "http-equiv" in text
    words = markdown(page)
    assert "**SY503 different-work-in-row** (error)" in words
    assert latex(page, {}).count(r"\section") >= len(page.sections)
    assert all(csv_table(entry).count("\n") > len(entry.rows) for entry in page.tables)
    names = [entry.name for entry in page.tables]
    assert len(set(names)) == len(names)


def test_the_same_rows_give_the_same_page(page: Page) -> None:
    again = reference_page(["nrp-gh200"], made_at=MADE)
    assert again.sections == tuple(part for part in page.sections if part.name.startswith("nrp-gh200"))


def test_every_picture_is_vega_lite_with_words_and_a_table(page: Page) -> None:
    import altair as alt

    drawn = [block for part in page.sections for block in part.blocks if isinstance(block, Chart)]
    assert len(drawn) == 15
    for found in drawn:
        alt.Chart.from_dict(found.spec, validate=True)
        json.dumps(found.spec, allow_nan=False)
        assert found.table.rows
        assert re.search(r"\d", found.alt)


def test_the_verb_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.md"
    assert main(["report", "--reference", "caraml", "--format", "markdown", "-o", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [part["name"] for part in told["sections"]] == ["caraml-document", "caraml-batch", "caraml-energy"]
    assert "SY401" in out.read_text("utf-8")


@pytest.mark.parametrize(("words", "said"), [(["--reference", "nope"], "aces-ipu"), ([], "--reference")])
def test_the_verb_says_what_it_can_make(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *words]) == 2
    assert said in capsys.readouterr().err


def test_commands_on_the_page_give_what_the_page_has(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    prose = next(block for block in section(page, "nrp-gh200-table-ii").blocks if isinstance(block, Prose))
    words = prose.code.splitlines()[0].replace("'", "").split(" ")[1:]
    assert main([*words, "--json"]) == 0
    ratios = [entry["ratios"][0]["value"] for entry in json.loads(capsys.readouterr().out)["comparisons"]]
    own = [cell.value for cell in column(table(page, "nrp-gh200-table-ii-shares-1"), "times as long")]
    assert sorted(ratios) == pytest.approx(sorted(own))
