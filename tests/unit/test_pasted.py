"""Tables as people print them: what is read, what is refused by name, and that nothing is read wrongly."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from steelyard.audit.printed import formats, grid, latex, page
from steelyard.audit.printed.headings import understand
from steelyard.audit.printed.values import UnreadableError, read_number, to_amount, unit_spelled
from steelyard.audit.reading import long_form, parse_any
from steelyard.audit.table import parse_table
from steelyard.cli.main import main
from steelyard.errors import InputError

PRINTED = Path(__file__).parents[1] / "data" / "printed"
MARKDOWN = """System: DGX-2, Model: BERT-large

| GPUs | Batch size / GPU | Throughput - FP32 (images/s) | Throughput - mixed (images/s) | Comment |
|---|---:|---|---|---|
| 1 | 32 | 1,234.5 | **2.5k** | fast |
| 8 | 32 | N/A | 19,100* | OOM before |
"""


def figures(text: str, name: str = "t.md", *maps: str) -> dict[str, float]:
    """Return each figure of a table by its row's precision, devices and metric."""
    return {
        " ".join(
            str(part) for part in (row.get("precision"), row.get("devices"), metric) if part is not None
        ): amount.value
        for row in parse_any(text, name, maps=maps).table.rows
        for metric, amount in row.figures.items()
    }


@pytest.mark.parametrize(
    ("text", "unit", "value", "low", "high"),
    [
        ("938 img/s", "", 938, 937.5, 938.5),
        ("22.59M", "tokens/s", 22.59e6, 22.585e6, 22.595e6),
        ("~36 hours", "", 129600, 126000, 133200),
        ("03:19:59", "", 11999, 11998.5, 11999.5),
        ("3h 20m", "", 12000, 11970, 12030),
        ("3:20", "h:mm", 12000, 11970, 12030),
        ("3:20", "mm:ss", 200, 199.5, 200.5),
        ("77.12 +/- 0.11", "%", 0.7712, 0.7701, 0.7723),
        ("1,234", "W", 1234, 1233.5, 1234.5),
        ("1.2e3", "ms", 1.2, 1.15, 1.25),
        ("1.2\u00d710^{3}", "ms", 1.2, 1.15, 1.25),
        ("12.5†", "GB", 12.5e9, 12.45e9, 12.55e9),
        ("3.24x", "", 3.24, 3.235, 3.245),
        ("$3.50", "", 3.5, 3.495, 3.505),
        ("312 TFLOP/s", "", 312e12, 311.5e12, 312.5e12),
    ],
)
def test_a_printed_number(text, unit, value, low, high):
    amount = to_amount(read_number(text), unit_spelled(unit), None)
    assert (amount.value, amount.low, amount.high) == pytest.approx((value, low, high))


@pytest.mark.parametrize(
    "text",
    [
        "12..3",
        "1-2",
        "100/200",
        "<5",
        "+20%",
        "10^{6}",
        "938²5",
        "77.12 (0.11)",
        "1,5",
        "5 apples",
        "12 (1.5x)",
        "1e999",
        "3:75",
        "x",
    ],
)
def test_an_unclear_number_is_refused(text):
    with pytest.raises(UnreadableError):
        to_amount(read_number(text), unit_spelled("s"), "time")


@pytest.mark.parametrize(
    ("text", "meaning", "unit", "precision"),
    [
        ("#GPUs", "devices", "", ""),
        ("Throughput - FP32 (images/s)", "throughput", "images/s", "fp32"),
        ("Throughput speedup (TF32 - mixed precision)", "speedup_over_precision", "", "mixed"),
        ("Weak scaling - mixed precision", "speedup", "", "mixed"),
        ("tokens/sec/GPU", "throughput_per_device", "tokens/s", ""),
        ("Latency-99%(ms)", "latency_p99", "ms", ""),
        ("p99.9 latency (us)", "latency_p99_9", "us", ""),
        ("FP32 imgs/second", "throughput", "images/s", "fp32"),
        ("GlobalBatchSize", "global_batch", "", ""),
        ("Training time, hours", "train_time", "h", ""),
    ],
)
def test_a_heading(text, meaning, unit, precision):
    found = understand(text)
    assert (found.metric or found.setting, found.unit.name if found.unit else "") == (meaning, unit)
    assert dict(found.group).get("precision", "") == precision


@pytest.mark.parametrize(
    "text",
    [
        "Server queue (ms)",
        "Throughput (Kfoo/s)",
        "Throughput (T/s/GPU)",
        "Output token throughput (tok/s)",
        "GPUs / node",
        "Latency interval 90% (s)",
    ],
)
def test_an_unknown_heading_is_left_out_by_name(text):
    assert not understand(text).known
    read = parse_any(f"GPUs,{text},Speedup\n1,5,1\n2,7,1.9\n", "t.csv")
    assert [meaning.heading for meaning in read.meanings if not meaning.known] == [text]


def test_markdown_with_groups_and_caption():
    read = parse_any(MARKDOWN, "t.md")
    assert [row.place for row in read.table.rows] == [
        "line 5, FP32",
        "line 5, mixed precision",
        "line 6, mixed precision",
    ]
    assert {row.get("system") for row in read.table.rows} == {"DGX-2"}
    assert [amount.value for row in read.table.rows for amount in row.figures.values()] == [1234.5, 2500, 19100]
    grid, line, column = read.table.rows[2].cells["throughput"]
    assert read.table.grids[grid].cells[line][column] == "19,100*"
    assert [meaning.heading for meaning in read.meanings if not meaning.known] == ["Comment"]


@pytest.mark.parametrize(("first", "options"), [("large", ["small", "large"]), ("7", [None, None])])
def test_a_first_column_of_words_needs_no_heading(first, options):
    read = parse_any(f",GPUs,Throughput (img/s)\nsmall,1,1000\n{first},1,300\n", "t.csv")
    assert [row.get("options") for row in read.table.rows] == options


LATEX = r"""\begin{table}\caption{Runs}
\begin{tabular}{lrr} \toprule
\multirow{2}{*}{\# GPUs} & \multicolumn{2}{c}{Throughput (img/s)} \\ \cmidrule{2-3}
 & FP32 & \textbf{mixed} \\ \midrule % comment
1 & 1{,}000 & $2\,000 \pm 3$ \\
8 & 7.9k$^{*}$ & \textbf{15500} \\ \bottomrule
\end{tabular}\end{table}"""
HTML = """<h2>Runs</h2><table><tr><th rowspan=2>GPUs</th><th colspan=2>Throughput (img/s)</th></tr>
<tr><th>FP32</th><th>mixed</th></tr><tr><td>1</td><td>1,000</td><td>2000 &plusmn; 3</td></tr>
<tr><td>8<td>7.9k<sup>1</sup></td><td><b>15500</b></td></tr></table>"""
TSV = "GPUs\tThroughput (img/s)\t\n\tFP32\tmixed\n1\t1,000\t2000 ± 3\n8\t7.9k\t15500\n"


@pytest.mark.parametrize(
    "caption",
    [
        r"\caption{BERT, FP16}",
        r"\caption*{BERT, FP16}",
        r"\captionof{table}{BERT, FP16}",
        r"\captionsetup{font=small}\caption{BERT, FP16}",
        r"\caption[Short {x}]{BERT, FP16}",
    ],
)
def test_the_caption_of_a_table_is_its_text(caption):
    body = r"\begin{tabular}{rr} GPUs & Throughput (img/s) \\ \midrule 1 & 100 \\ 2 & 190 \\ \end{tabular}"
    for text in (caption + body, body + caption):
        assert [grid.caption for grid in parse_any(text, "t.tex").table.grids] == ["BERT, FP16"]


@pytest.mark.parametrize(("text", "name"), [(LATEX, "t.tex"), (HTML, "t.html"), (TSV, "t.tsv")])
def test_headings_over_several_lines_and_columns(text, name):
    wanted = {
        "fp32 1 throughput": 1000,
        "mixed 1 throughput": 2000,
        "fp32 8 throughput": 7900,
        "mixed 8 throughput": 15500,
    }
    assert figures(text, name) == pytest.approx(wanted)
    assert figures(text, "standard input") == pytest.approx(wanted)


def test_a_page_with_several_tables():
    page = f"<table><tr><td>Menu</td><td>Home</td></tr><tr><td>a</td><td>b</td></tr></table>{HTML}{HTML}"
    read = parse_any(page, "page.html")
    assert len(read.table.grids) == 2
    assert len(read.skipped) == 1
    assert {row.place for row in read.table.rows if row.get("devices") == 1} == {
        f"table {table}, row 1, {precision}" for table in (2, 3) for precision in ("FP32", "mixed precision")
    }


def test_figures_in_lines():
    text = "| | A100 | H100 |\n|---|---|---|\n| Throughput (tok/s) | 100 | 250 |\n| Power (W) | 400 | 700 |\n"
    text += "| p99 latency | 3 ms | - |\n"
    read = parse_any(text, "t.md")
    assert [len(row.figures) for row in read.table.rows] == [3, 2]
    grid, line, column = read.table.rows[1].cells["power"]
    assert read.table.grids[grid].cells[line][column] == "700"


def test_cells_that_cannot_be_read_are_named_and_left_out():
    read = parse_any("GPUs,Throughput (img/s),Speedup\n1,100,1\n2,1oo,1.9\n?4,300,2.9\nx8,1,1\n", "t.csv")
    assert [problem.field for problem in read.refused] == ["line 3, Throughput (img/s)", "line 4, GPUs", "line 5, GPUs"]
    assert [len(row.figures) for row in read.table.rows] == [2, 1]


def test_a_cell_with_one_value_for_each_precision():
    head = "GPUs,Batch size / GPU (TF32 and FP16),Throughput - TF32 (seq/s),Throughput - mixed precision (seq/s)\n"
    rows = parse_any(head + "8,128 and 256,2486,4553\n16,32,1,2\n", "t.csv").table.rows
    assert [row.get("batch") for row in rows] == [128, 256, 32, 32]
    three = parse_any(head + "8,1 and 2 and 3,2486,4553\n16,32,1,2\n", "t.csv")
    assert [problem.field for problem in three.refused] == ["line 2, Batch size / GPU (TF32 and FP16)"]


def test_decimal_commas():
    assert figures("GPUs;Throughput (img/s)\n1;1234,5\n2;2,345\n", "t.csv") == {
        "1 throughput": 1234.5,
        "2 throughput": 2.345,
    }
    mixed = parse_any("GPUs;Throughput (img/s)\n1;1234,5\n2;2,345\n4;2.5\n", "t.csv")
    assert [problem.field for problem in mixed.refused] == ["line 2, Throughput (img/s)", "line 3, Throughput (img/s)"]


def test_a_missing_unit_is_not_guessed():
    read = parse_any("GPUs,Training time,Throughput\n1,5,100\n", "t.csv")
    assert read.meanings[1].meaning.startswith("left out: no unit")
    assert "not printed" in read.meanings[2].note
    assert figures("GPUs,Training time\n1,5\n", "t.csv", "Training time=train_time[h]") == {"1 train_time": 18000}


def test_map_and_save(tmp_path, capsys):
    table, saved = tmp_path / "t.md", tmp_path / "long.csv"
    table.write_text(
        MARKDOWN.replace("Comment", "Watt-ish").replace("fast", "250").replace("OOM before", "1900"), encoding="utf-8"
    )
    main(["audit", str(table), "--map", "Watt-ish=power[W]", "--save", str(saved), "--json"])
    told = json.loads(capsys.readouterr().out)["audits"][0]
    assert {"table": 0, "heading": "Watt-ish", "meaning": "power, W", "known": True} in told["read_as"]
    again = parse_table(saved.read_text(encoding="utf-8"), "long.csv")
    first = parse_any(table.read_text(encoding="utf-8"), "t.md", maps=["Watt-ish=power[W]"]).table
    assert [row.figures for row in again.rows] == [row.figures for row in first.rows]
    assert [dict(row.settings) for row in again.rows] == [dict(row.settings) for row in first.rows]


def test_the_base_of_a_speedup_is_saved():
    read = parse_any((PRINTED / "resnet50-a100.md").read_text(encoding="utf-8"), "r.md")
    again = parse_table(long_form([read.table]), "long.csv")
    assert [row.bases for row in again.rows] == [row.bases for row in read.table.rows]
    assert read.table.rows[0].bases == {"speedup_over_precision": "tf32"}


@pytest.mark.parametrize(
    ("maps", "said"),
    [
        ("Speed", "is not Heading=meaning"),
        ("Speed=throughput[images/s]", 'no heading "Speed"'),
        ("Comment=throughput[furlongs]", "unknown unit"),
        ("Comment=throughput[s]", "cannot be in s"),
        ("Comment=troughput", "unknown meaning"),
    ],
)
def test_a_bad_map_is_explained(maps, said):
    with pytest.raises(InputError, match=said):
        parse_any(MARKDOWN, "t.md", maps=[maps])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", "t.md"), ("", "t.csv"), ("just words\nand more\n", "notes.txt"), ("a,b\n1,2\n", "t.csv"),
        ("# Title\n", "README.md"), ("<p>nothing</p>", "t.html"), ("\\section{x}", "t.tex"), ("{}", "x.json5"),
        ("|" * 5000, "t.md"), ("import os\n", "x.py"),
    ],
)  # fmt: skip
def test_a_wrong_file_gets_a_short_answer(text, name):
    with pytest.raises(InputError) as error:
        parse_any(text, name)
    assert len(str(error.value)) < 500


def test_standard_input(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MARKDOWN.encode())))
    main(["audit", "-", "--brief"])
    out = capsys.readouterr().out
    assert out.index("read as") < out.index("standard input: 3 rows")
    assert "1 heading not understood" in out


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("resnet50-a100.md", 15), ("maskrcnn-v100.md", 12), ("bert-pretraining-dgx2.md", 32),
        ("bert-multinode.csv", 48), ("llm-h100.csv", 88),
    ],
)  # fmt: skip
def test_public_tables(name, count):
    read = parse_any((PRINTED / name).read_text(encoding="utf-8"), name)
    assert sum(len(row.figures) for row in read.table.rows) == count
    assert not read.refused
    assert all(meaning.known for meaning in read.meanings)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.md", "|\n" + " " * 300_000 + "x-|\n"),
        ("t.md", "|a" * 64 + "|b|\n" + "|-" * 64 + "|-|\n" + "a|\v" * 30_000),
        ("t.csv", "a," * 64 + "b\r" + "a,b\r" * 30_000),
        ("t.tex", "\\begin{tabular}{l}" + "a&" * 64 + "b\\\\" + "a\\\\" * 30_000 + "\\end{tabular}"),
        ("t.tex", ("\\begin{tabular}{l}" + "a&" * 64 + "b\\\\" + "a\\\\" * 9000 + "\\end{tabular}\n") * 2),
        ("t.html", ("<table>" + "<tr><td rowspan=9999 colspan=64>x" + "<tr>" * 9999 + "</table>") * 9),
    ],
)
def test_a_file_whose_tables_grow_when_they_are_laid_out_is_refused_at_once(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    shape = grid.shape

    def counted(rows: Any) -> Any:
        shaped = shape(rows)
        made.append(sum(map(len, shaped)))
        return shaped

    for module in (formats, latex, page):
        monkeypatch.setattr(module, "shape", counted)
    with pytest.raises(InputError):
        parse_any(text, name)
    assert sum(made) <= 2 * grid.MAX_CELLS
