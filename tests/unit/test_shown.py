"""Verdicts, and tables as printed with the wrong figures marked: in the terminal and on the page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from steelyard.audit.claims import Faster
from steelyard.audit.judge import Document, judge_claim
from steelyard.audit.shown import shown_tables
from steelyard.audit.subject import Audit
from steelyard.audit.table import figure, parse_table
from steelyard.contracts.finding import Finding, Severity, WrongFigure
from steelyard.report.audit.page import audit_page
from steelyard.report.render.html import html
from steelyard.report.render.markdown import markdown
from steelyard.rules.table.row import Grid, Row, RowTable, Setting
from steelyard.terminal.claims import audit_lines, audit_object, verdict_line

HEADINGS = (
    ("Throughput", "GPUs", "Throughput", "Scaling", "Scaling"),
    ("FP32 (images/s)", "GPUs", "mixed (images/s)", "FP32", "mixed"),
)
CELLS = (("7.57", "1", "14.47", "-", "-"), ("44.55", "8", "53.40", "5.26", "3.69"), ("<b>", "=1+1", "", "", ""))


def printed() -> RowTable:
    """A table whose number of GPUs is not in its first column; each line holds a row per precision."""
    rows = []
    for line in (0, 1):
        for precision, rate, gain in (("fp32", 0, 3), ("mixed", 2, 4)):
            cells = {"devices": (0, line, 1), "throughput": (0, line, rate), "speedup": (0, line, gain)}
            texts = {"throughput": (CELLS[line][rate], "images/s"), "speedup": (CELLS[line][gain].strip("-"), "x")}
            figures = {name: amount for name, it in texts.items() if (amount := figure(name, *it)[0]) is not None}
            settings: dict[str, Setting] = {"devices": int(CELLS[line][1]), "precision": precision}
            rows.append(Row(f"line {line + 3}, {precision}", settings, figures, cells=cells))
    return RowTable("t.md", tuple(rows), grids=(Grid("Mask R-CNN", HEADINGS, CELLS),))


def wrong(severity: Severity = "error", name: str = "speedup", recomputed: str = "5.885") -> Finding:
    place = "line 4, fp32"
    return Finding(
        code="SY503", severity=severity, message="m", fix="f", place=place,
        wrong=(WrongFigure(place=place, name=name, printed="5.26", recomputed=recomputed),),
    )  # fmt: skip


def test_a_printed_table_has_its_counts_first_and_its_wrong_figure_marked() -> None:
    (shown,) = shown_tables(printed(), [wrong()])
    assert shown.headings[:2] == ("GPUs", "Throughput / FP32 (images/s)")
    assert (shown.keys, shown.title) == (1, "Mask R-CNN")
    assert [cell.marked for cell in shown.lines[1]] == ["8", "44.55", "53.40", "5.26 -> 5.885 !", "3.69"]
    assert shown.wrong == (shown.lines[1],)
    assert shown.places[1] == ("line 4, fp32", "line 4, mixed")


def test_warnings_have_another_mark_and_notes_none() -> None:
    assert [
        shown_tables(printed(), [wrong(severity, recomputed="")])[0].lines[1][3].marked
        for severity in ("error", "warning", "note")
    ] == ["5.26 !", "5.26 ?", "5.26"]


def test_the_most_severe_finding_on_a_cell_marks_it() -> None:
    (shown,) = shown_tables(
        printed(), [wrong("warning", recomputed="5.9"), replace(wrong(recomputed=""), code="SY508")]
    )
    assert shown.lines[1][3].marked == "5.26 -> 5.9 !"
    assert shown.lines[1][3].codes == ("SY508", "SY503")


def test_rows_in_long_form_become_a_wide_table() -> None:
    text = (
        "system,devices,metric,value,unit\nA,1,throughput,25,images/s\nA,1,epoch_time,9,s\nA,4,throughput,90,images/s\n"
    )
    table = parse_table(text, "t.csv")
    doubt = WrongFigure(place="line 4", name="throughput", printed="90", recomputed="100")
    (shown,) = shown_tables(table, [replace(wrong(), wrong=(doubt,), place="line 4")])
    assert shown.headings == ("row", "devices", "throughput, images/s", "epoch time, s")
    assert [cell.marked for cell in shown.lines[1]] == ["line 4", "4", "90 -> 100 !", "-"]


def audit(*severities: Severity, claims: str = "") -> Audit:
    table = parse_table(
        "system,devices,metric,value,unit\nA,1,throughput,25,images/s\nB,1,throughput,90,images/s\n", "t"
    )
    claim = Faster(id="c", kind="faster", a={"system": claims}, b={"system": "A" if claims == "B" else "B"})
    judged = (judge_claim(claim, Document(table)),) if claims else ()
    return Audit("t", "2 rows", tuple(wrong(severity) for severity in severities), judged, (table,))


@pytest.mark.parametrize(
    ("entry", "verdict", "line"),
    [
        (audit(), "consistent", "CONSISTENT: nothing contradicts the figures"),
        (audit("note"), "consistent", "CONSISTENT: nothing contradicts the figures, but for 1 small slip"),
        (audit("warning", "note"), "warnings", "1 WARNING: 1 figure does not fit the others"),
        (
            audit("warning", "error"),
            "contradictory",
            "CONTRADICTORY: 1 error, 1 warning, 1 figure does not fit the others",
        ),
        (audit(claims="B"), "consistent", "CONSISTENT: nothing contradicts the figures; 1 of 1 claim holds"),
        (audit(claims="A"), "contradictory", "CONTRADICTORY: 1 claim contradicted by the rows"),
    ],
)
def test_the_verdict(entry: Audit, verdict: str, line: str) -> None:
    assert (entry.verdict, verdict_line(entry)) == (verdict, line)
    assert audit_object(entry)["verdict"] == verdict
    assert audit_lines([entry], brief=True)[0] == line


def test_the_terminal_and_the_page_mark_the_cell() -> None:
    entry = Audit("t.md", "2 rows", (wrong(),), tables=(printed(),))
    text = "\n".join(audit_lines([entry], brief=False))
    assert "5.26 -> 5.885 !" in text
    assert "! = error; -> = what the other figures give" in text
    page = audit_page([entry])
    written = html(page)
    assert '<td class="r wrong error"><del>5.26</del> <ins>\u2192 5.885</ins>' in written
    assert "&lt;b&gt;" in written
    assert "5.26 -&gt; 5.885 !" in markdown(page).replace("\\", "")


@pytest.mark.parametrize(("count", "title"), [(1, "a"), (5, "a, b, c, d, e"), (6, "a, b, c, d, e, ...")])
def test_the_page_of_several_tables_names_some(count: int, title: str) -> None:
    page = audit_page([Audit(name, "2 rows", (), tables=(printed(),)) for name in "abcdef"[:count]])
    assert page.title == f"Audit: {title}"


def test_of_a_long_table_the_terminal_shows_the_wrong_lines() -> None:
    table = printed()
    grid = replace(table.grids[0], cells=(*CELLS, *[("1", "2", "3", "4", "5")] * 500))
    entry = Audit("t.md", "2 rows", (wrong(),), tables=(replace(table, grids=(grid,)),))
    lines = audit_lines([entry], brief=False)
    assert any("5.26 -> 5.885 !" in line for line in lines)
    assert "502 more lines are not shown" in " ".join(lines)
    assert len(lines) < 30
