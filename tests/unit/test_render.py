"""Pages as HTML, Markdown, LaTeX and CSV: complete, traceable, and safe with untrusted texts."""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

import hostile
from sample_page import DEVICES, findings, full_page, poisoned, run_table, runs_of, scaling_table
from steelyard.errors import InputError
from steelyard.report.page import Cell, Column, Page, Prose, Section, Table, with_note
from steelyard.report.render import draw
from steelyard.report.render.csv_table import csv_table, inert, table_object
from steelyard.report.render.html import html
from steelyard.report.render.latex import latex, latex_table
from steelyard.report.render.markdown import markdown, markdown_table
from steelyard.report.render.plain import code_lines, file_name, one_line, picture_file
from steelyard.report.render.tex_text import tex

VOID = ("meta", "link", "img", "br", "input")


class Seen(HTMLParser):
    """What is in an HTML text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, dict[str, str]]] = []
        self.content: dict[str, list[str]] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.content.setdefault(self.open[-1], []).append(data)

    def all(self, name: str) -> list[str]:
        return [found[name] for _, found in self.attributes if name in found]


PAGE = full_page()
WHOLE = html(PAGE)
SEEN = Seen(WHOLE)


# -- HTML


def test_every_element_is_closed_and_every_id_is_there_once() -> None:
    assert SEEN.open == []
    ids = SEEN.all("id")
    assert len(ids) == len(set(ids))
    wanted = [link[1:] for link in SEEN.all("href") if link.startswith("#")]
    wanted += [
        name for key in ("aria-labelledby", "aria-describedby") for names in SEEN.all(key) for name in names.split()
    ]
    assert set(wanted) <= set(ids)


def test_the_policy_allows_the_files_own_style_and_script_and_nothing_else() -> None:
    policy = next(found["content"] for _, found in SEEN.attributes if "http-equiv" in found)
    for tag, word in (("style", "style-src"), ("script", "script-src")):
        content = re.findall(rf"<{tag}>(.*?)</{tag}>", WHOLE, re.DOTALL)
        assert len(content) == 1
        assert f"{word} 'sha256-{base64.b64encode(hashlib.sha256(content[0].encode()).digest()).decode()}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy


def test_nothing_is_asked_for_elsewhere() -> None:
    assert [name for name in SEEN.all("href") if not name.startswith(("#", "data:,"))] == []
    assert [name for name in SEEN.all("src") if not name.startswith("data:image/svg+xml;base64,")] == []
    assert "://" not in re.sub(r"<script type=.*", "", WHOLE.replace("xmlns", ""))
    assert not [key for _, found in SEEN.attributes for key in found if key.startswith("on") or key == "style"]


def test_the_layout_rules_apply_to_the_blocks_of_a_section() -> None:
    classes = {name for names in SEEN.all("class") for name in names.split()}
    assert {"inside", "with", "findings", "blocks"} <= classes
    assert ".inside.with > .blocks" in WHOLE


def test_question_and_answer_come_before_findings_and_findings_before_figures() -> None:
    body = WHOLE[WHOLE.index("<main") :]
    marks = ["Summary", "How far does training scale?", 'class="findings', "SY301 ", '<img src="data', "<table"]
    places = [body.index(mark) for mark in marks]
    assert places == sorted(places)


def test_findings_have_code_severity_message_fix_and_an_anchor_that_cells_lead_to() -> None:
    assert 'id="scaling-sy301"' in WHOLE
    assert '<a href="#scaling-sy301">SY301</a>' in WHOLE
    found = findings()[0]
    for words in (found.message, found.fix, found.evidence, "error"):
        assert words in WHOLE
    assert "9 more</summary>" in WHOLE


def test_run_ids_are_in_the_page_and_lead_to_the_row_of_the_run() -> None:
    for devices in DEVICES:
        for run in runs_of(devices):
            assert f"<span>{run}</span>" in WHOLE
    assert "<summary>5 runs</summary>" in WHOLE
    cell = Cell("3", 3, runs=tuple(row[0].text for row in run_table(60).rows[:5]))
    table = Table("mean", "Mean", (Column("mean"),), ((cell,),))
    page = replace(PAGE, sections=(*PAGE.sections, Section("more", "More", blocks=(table,))))
    assert re.search(r'<a href="#run-1">study-c0000-r0', html(page, charts=False))
    assert '<tr id="run-1"><th scope="row">study-c0000-r0' in html(page, charts=False)


def test_headers_have_scope() -> None:
    scopes = [found.get("scope") for tag, found in SEEN.attributes if tag == "th"]
    assert set(scopes) == {"col", "row"}


def test_tables_pictures_and_raw_data_are_inside() -> None:
    payloads = dict(re.findall(r'<script type="text/plain" id="(payload-\d+)">([^<]*)</script>', WHOLE))
    buttons = {found["data-name"]: found["data-from"] for tag, found in SEEN.attributes if "data-name" in found}
    inside = {name: gzip.decompress(base64.b64decode(payloads[place])) for name, place in buttons.items()}
    assert inside["records.json"] == PAGE.downloads["records.json"]
    assert inside["scaling.csv"].decode() == csv_table(scaling_table())
    assert inside["scaling-chart.svg"].startswith(b"<svg")
    tables = json.loads(inside["tables.json"])["tables"]
    assert [table["name"] for table in tables] == [table.name for table in PAGE.tables]


def test_the_same_page_gives_the_same_bytes() -> None:
    assert html(PAGE) == WHOLE


def test_method_and_environment_are_folded() -> None:
    assert re.search(r'<details class="fold"><summary><h2 id="method">', WHOLE)
    assert not re.search(r"<details[^>]* open", WHOLE)


def test_without_the_library_that_draws_the_tables_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw, "available", lambda: False)
    text = html(PAGE)
    assert "pip install &#x27;vl-convert-python" in text
    assert text.count("<table") == WHOLE.count("<table")
    assert text.count("<img") == WHOLE.count("<img") - 2


def test_an_empty_page_is_a_page() -> None:
    page = Page("", "", (Section("", "", blocks=(Prose(), Table("", "", (), ()))),), "", "")
    assert Seen(html(page)).open == []
    assert markdown(page)
    assert hostile.foreign_commands(latex(page, {})) == []


def test_a_blocked_section_shows_only_what_it_is_given() -> None:
    page = Page("t", "", (Section("s", "S", "Q?", "", (), findings()[:1]),), "now", "x")
    assert "<table" not in html(page)


# -- CSV


def test_csv_has_values_ends_runs_codes_and_remarks() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_table(scaling_table()))))
    assert list(rows[0]) == [
        "devices", "jobs", "throughput (images/s)", "throughput (images/s) low", "throughput (images/s) high",
        "efficiency (%)", "efficiency (%) low", "efficiency (%) high", "against the fit (%)", "reliability",
        "runs", "findings", "remarks",
    ]  # fmt: skip
    assert float(rows[0]["throughput (images/s)"]) == scaling_table().rows[0][2].value
    assert rows[0]["against the fit (%)"] == ""
    assert rows[0]["remarks"] == "against the fit (%): unknown: the base itself"
    assert rows[1]["against the fit (%)"] == "-0.3"
    assert rows[1]["runs"].split() == [*runs_of(2), *runs_of(1)]
    assert rows[-1]["findings"] == "SY301"


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("=1+1", "'=1+1"), ("@SUM(A1)", "'@SUM(A1)"), ("+1+1", "'+1+1"), ("-1+1", "'-1+1"), ("\t=1", "'=1"),
        ("\r\n=1", "'=1"), ("\uff1d1", "'\uff1d1"), ("a;=1", "a;'=1"), ("-5.25", "-5.25"), ("+3", "+3"),
        ("-1e-7", "-1e-7"), ("x = 1", "x = 1"), ("resnet-50", "resnet-50"),
    ],
)  # fmt: skip
def test_formulas_become_texts_and_numbers_stay(text: str, made: str) -> None:
    assert inert(text) == made


def test_no_number_is_no_number() -> None:
    cells = (Cell("nan", float("nan")), Cell("inf", float("inf"), low=float("-inf")))
    table = Table("t", "T", (Column("a"), Column("b")), (cells, (Cell("1", 1), Cell("2", 2.0))))
    assert csv_table(table).splitlines()[1] == ",,,,a: nan; b: inf"
    assert table_object(table)["rows"][0] == [{"text": "nan"}, {"text": "inf"}]
    assert json.dumps(table_object(table), allow_nan=False)


# -- Markdown


def test_markdown_table() -> None:
    lines = markdown_table(scaling_table()).splitlines()
    assert lines[0] == "**Throughput and efficiency by devices**"
    names = (
        "devices",
        "jobs",
        "throughput (images/s)",
        "efficiency (%)",
        "against the fit (%)",
        "reliability",
        "findings",
    )
    assert lines[2] == f"| {' | '.join(names)} |"
    assert lines[3] == "| ---: | ---: | ---: | ---: | ---: | --- | --- |"
    assert lines[8] == r"| 16 | 5 | 5,326.3 \[5,273.1, 5,379.6\] | 81.8 | -0.3 | unreliable | SY301 |"
    assert lines[-1].startswith("- \\[ \\] = 95 %")


def test_pictures_are_linked_where_they_have_a_file() -> None:
    text = markdown(PAGE, {"scaling-chart": "pictures/scaling.svg"})
    assert "](pictures/scaling.svg)" in text
    with pytest.raises(InputError, match="is not allowed"):
        markdown(PAGE, {"scaling-chart": "x) [y](javascript:1"})
    assert picture_file("a/b-c_1.pdf") == "a/b-c_1.pdf"
    for wrong in ("../x.pdf", "/etc/passwd", "a b", "x}", ""):
        with pytest.raises(InputError):
            picture_file(wrong)


# -- LaTeX


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("50 % & more_", r"\mbox{50 \%} \& more\_"), (r"\write18{x}", r"\textbackslash{}write18\{x\}"),
        ("--json", "-{}-json"),
        ("\u00e9\u00ef\u0142\u010d", r"\'{e}\"{\i}\l{}\v{c}"),
        ("5 \u00b5s \u00b1 2", r"\mbox{5 \ensuremath{\mu}s} \ensuremath{\pm} 2"), ("\u4e2d", "{[}U+4E2D{]}"),
        ("\u2126 \ufb01", r"\ensuremath{\Omega} fi"), ("a\u202eb", r"a\textbackslash{}u202eb"),
        ("1.5 [1.4, 1.6] device-hours of v2 s", r"1.5 {[}1.4, \mbox{1.6{]} device-hours} of v2 s"),
        ("[x]*", "{[}x{]}{*}"), ('"', r"{\char34}"),
    ],
)  # fmt: skip
def test_text_for_tex(text: str, made: str) -> None:
    assert tex(text) == made


def test_latex_table_stands_alone() -> None:
    made = latex_table(scaling_table())
    assert made.startswith("\\begin{table}[htbp]\n\\centering\n\\caption{Throughput and efficiency by devices}")
    row = r"16 & 5 & 5,326.3 {[}5,273.1, 5,379.6{]} & 81.8 & \ensuremath{-}0.3 & unreliable & SY301 \\"
    assert row in made.replace(r"\allowbreak{}", "")
    assert latex_table(run_table(60)).count(r"\begin{longtable}") == 1
    assert hostile.foreign_commands(made) == []


def test_columns_of_a_wide_table_share_the_line() -> None:
    rows = ((Cell("word " * 40), Cell("12.5", 12.5), Cell("a" * 70)),)
    made = latex_table(Table("t", "T", (Column("a", align="left"), Column("b"), Column("c")), rows))
    shares = [float(share) for share in re.findall(r"p\{([\d.]+)\\linewidth\}", made)]
    assert len(shares) == 3
    assert 0.9 < sum(shares) + 3 * 12 / 472 <= 1.0001


def test_pictures_are_set_where_they_have_a_file() -> None:
    made = latex(PAGE, {"scaling-chart": "scaling.pdf"})
    assert r"\maybe{\detokenize{scaling.pdf}}" in made
    assert made.count(r"\refstepcounter{figure}") == 1
    with pytest.raises(InputError):
        latex(PAGE, {"scaling-chart": r"\input{x}"})


# -- untrusted texts


def test_what_cannot_be_seen_is_told() -> None:
    assert one_line(" a\tb\r\n c\x00\ud800\u202e\ue000 ") == r"a b c\x00\ud800\u202e\ue000"
    assert code_lines("a\n\tb\x1b") == ["a", r"    b\x1b"]
    assert len(one_line("x" * 10**6)) < 30_000
    assert file_name("../../etc/pass wd\n") == "etc-pass-wd"
    assert file_name("...") == "data"


def test_pictures_cannot_run() -> None:
    page = poisoned(PAGE, "</svg><script>x</script>")
    assert Seen(html(page)).tags == Seen(html(poisoned(PAGE, "x" * 20))).tags


def test_a_note_is_on_every_table_of_results_and_on_no_other() -> None:
    results = Table("rates", "Rates", (Column("rate"),), ((Cell("1", 1, runs=("r",)),),), ("first",))
    facts = Table("facts", "Facts", (Column("fact"),), ((Cell("x", "x"),),))
    section = Section("s", "S", blocks=(results, facts, Prose(("text",))))
    (noted,) = with_note([section], "preset: tuned")
    assert [getattr(block, "notes", None) for block in noted.blocks] == [("first", "preset: tuned"), (), None]
    assert with_note([section], "") == (section,)
