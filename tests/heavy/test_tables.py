"""Parsing of published tables, and protection against untrusted files."""

from __future__ import annotations

import contextlib
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.audit.check import check_table
from steelyard.audit.reading import read_table
from steelyard.audit.subject import MAX_CHECKED
from steelyard.audit.table import (
    MAX_CELL,
    MAX_LINES,
    MAX_TABLE_BYTES,
    MAX_TOML_BYTES,
    parse_platforms,
    parse_table,
    read_platforms,
)
from steelyard.errors import InputError
from steelyard.rules.table.units import printed

DOCUMENT = (Path(__file__).parents[2] / "docs" / "tables.md").read_text(encoding="utf-8")
HEAD = "system,devices,metric,value,unit\n"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)


def refused(text: str | bytes, tmp_path: Path, name: str = "table.csv") -> str:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as raised:
        read_table(path)
    return str(raised.value)


def test_the_documents_examples_are_the_same_table():
    of_csv, of_toml = parse_table(blocks("csv")[0], "t.csv"), parse_table(blocks("toml")[0], "t.toml")
    assert [row.settings for row in of_csv.rows] == [row.settings for row in of_toml.rows]
    assert [row.figures for row in of_csv.rows] == [row.figures for row in of_toml.rows]
    assert [row.status for row in of_csv.rows] == ["completed", "completed", "out_of_memory"]
    assert of_csv.rows[0].place == "table 3, line 2"
    assert of_toml.rows[0].place == "table 3, row 1"
    assert of_csv.rows[0].note == "one epoch"
    assert of_toml.platforms[0].power_limit_w == 300
    assert check_table(of_csv) == check_table(of_toml) == ()


def test_the_documents_machines():
    pod, box = parse_platforms(blocks("csv")[1], "machines.csv")
    assert (pod.name, pod.devices_per_node, pod.power_limit_w, pod.power_scope) == ("POD16", 16, 300.0, "device")
    assert (box.power_limit_w, box.system_power_limit_w) == (None, 6500.0)


def test_the_documents_settings_and_units_are_known():
    for setting in re.findall(r"`([a-z_]+)`", re.findall(r"\| any setting \| (.*) \|", DOCUMENT)[0]):
        assert parse_table(f"{setting},metric,value,unit\n1,throughput,1,images/s\n", "t.csv").rows
    units = re.findall(r"\| (?:time|rate|energy|samples per energy|power|ratio) \| (.*) \|", DOCUMENT)
    found = [unit for line in units for unit in re.findall(r"`([^`]+)`", line) if len(unit) > 1 or unit in "sdJWxh%"]
    assert len(found) > 25
    for unit in found:
        if unit not in ("k", "M", "G"):
            assert parse_table(f"metric,value,unit\nanything,1,{unit}\n", "t.csv").rows


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("786", 785.5, 786.5),
        ("1948.5", 1948.45, 1948.55),
        ("4200", 4150, 4250),
        ("4200.0", 4199.95, 4200.05),
        ("100", 95, 105),
        ("10", 9.5, 10.5),
        ("1,281,167", 1_281_166.5, 1_281_167.5),
        ("2.1e5", 205_000, 215_000),
        ("0", -0.5, 0.5),
    ],
)
def test_digits_say_how_far_a_figure_was_rounded(text, low, high):
    found = printed(text)
    assert found is not None
    assert found[1:] == pytest.approx((low, high))


@given(st.integers(1, 10**9), st.integers(2, 5))
def test_what_was_rounded_lies_inside(value, digits):
    factor = 10 ** max(0, len(str(value)) - digits)
    found = printed(str(round(value / factor) * factor))
    assert found is not None
    assert found[1] <= value <= found[2]


def test_unknown_is_not_zero_and_takes_its_turn():
    lines = "A,4,throughput,100.5,images/s\nA,4,power,,W\nA,4,throughput,101.5,images/s\nA,4,power,300.5,W\n"
    first, second = parse_table(HEAD + lines, "t.csv").rows
    assert list(first.figures) == ["throughput"]
    assert second.figures["power"].value == 300.5


def test_figures_are_in_base_units():
    row = parse_table("metric,value,unit\nepoch_time,1.5,min\nimages_per_energy,7.2,images/Wh\n", "t.csv").rows[0]
    assert row.figures["epoch_time"].value == 90
    assert row.figures["images_per_energy"].value == pytest.approx(0.002)
    assert (row.figures["epoch_time"].text, row.figures["epoch_time"].unit) == ("1.5", "min")


def test_a_utf8_mark_and_windows_lines_are_read(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbf" + (HEAD + "A,4,throughput,100,images/s\n").replace("\n", "\r\n").encode())
    assert read_table(path).rows[0].get("devices") == 4


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("A,4,throughput,=cmd(),images/s", 'line 2, value: "=cmd()" is not a number'),
        ("=HYPERLINK(1),4,throughput,1,images/s", 'line 2, system: "=HYPERLINK(1)" is a formula'),
        ("A,4,throughput,inf,images/s", 'line 2, value: "inf" is not a number'),
        ("A,4,throughput,nan,images/s", 'line 2, value: "nan" is not a number'),
        ("A,4,throughput,1e999,images/s", 'line 2, value: "1e999" is not a number'),
        ("A,4,throughput,-5,images/s", 'line 2, value: "-5" is negative'),
        ("A,4,throughput,\u0661\u0662,images/s", "is not a number"),
        ("A,4,throughput,12a,images/s", '"12a" is not a number; valid: a number such as 786'),
        ("A,4,throughput,1,furlongs", 'line 2, unit: unknown unit "furlongs"; valid: s, ms'),
        ("A,4,throughput,1,s", 'line 2, unit: throughput in "s"; valid: the unit of a rate'),
        ("A,0,throughput,1,images/s", 'line 2, devices: "0"; valid: a whole number, 1 or more'),
        ("A,2.5,throughput,1,images/s", 'line 2, devices: "2.5"'),
        ("A,4,,1,images/s", "line 2, metric: empty"),
        ("A,4,throughput,1", "line 2: 4 cells; valid: 5"),
        ("A,4,throughput,1,images/s,6", "line 2: 6 cells; valid: 5"),
        (f"A,4,throughput,{'9' * 500},images/s", "is not a number"),
        (f"{'A' * (MAX_CELL + 1)},4,throughput,1,images/s", "line 2, system: 2,001 characters"),
        ('A,4,"throughput,1,images/s', "line 2"),
        ('A,4,"through"put,1,images/s', "line 2"),
    ],
)
def test_a_bad_line_is_named(line, said, tmp_path):
    assert said in refused(HEAD + line + "\n", tmp_path)


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("metric,value\n", "line 1: the column unit is missing"),
        ("metric,value,unit,unit\n", 'line 1, column 4: the column "unit" occurs twice'),
        (
            "metric,value,unit,device\n",
            'column 4: unknown column "device"; did you mean devices?',
        ),
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("metric,value," + ",".join(f"c{i}" for i in range(1998)) + "\n", "2000 columns"),
    ],
)
def test_a_bad_header_is_named(head, said, tmp_path):
    assert said in refused(head, tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ((HEAD + "A,4,throughput,1,images/s\n").encode("utf-16"), "is UTF-16, not UTF-8"),
        (HEAD.encode() + "Gr\xfcn,4,throughput,1,images/s\n".encode("latin-1"), "line 2: byte 0xfc is not UTF-8"),
        (HEAD.encode() + b"A\0,4,throughput,1,images/s\n", "line 2: a NUL byte"),
    ],
)
def test_other_encodings_are_refused(content, said, tmp_path):
    assert said in refused(content, tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = " + "[" * 100_000, "nested more than 64 deep"),
        ("x." * 50_000 + "y = 1", "a key has more than 32 parts"),
        ("[table\n", "not valid TOML"),
        ("[tabel]\n", '"tabel": unknown part; valid: table, row, platform'),
        ("row = 3\n", "(whole file): not a table"),
        ("[[row]]\nfigures = 3\n", "row 1, figures: not a table of figures"),
        ("[[row]]\nfigures = { throughput = 3 }\n", 'row 1, "throughput": "3" is not text with a number and a unit'),
        ('[[row]]\ndevice = 3\nfigures = { throughput = "1 images/s" }\n', "did you mean devices?"),
        ('[[row]]\ndevices = [1]\nfigures = { throughput = "1 images/s" }\n', "a list, a date or a table"),
        ('[[row]]\nfigures = { throughput = "=1 images/s" }\n', '"=1" is not a number'),
        ("[[platform]]\nname = 'A'\npower_limit_w = inf\n", 'platform 1, power_limit_w: "inf"'),
        ("[[platform]]\nnaem = 'A'\n", 'platform 1, "naem": unknown'),
    ],
)
def test_bad_toml_is_named(text, said, tmp_path):
    assert said in refused(text, tmp_path, "t.toml")


def test_every_bad_line_is_listed_and_the_list_ends(tmp_path):
    said = refused(HEAD + "A,4,throughput,x,images/s\n" * 5000, tmp_path)
    assert "line 2, value" in said
    assert "line 21, value" in said
    assert said.count("\n") < 30


def test_terminal_codes_in_a_table_do_nothing(tmp_path):
    assert "\x1b" not in refused(HEAD + "A,4,\x1b[2Jthroughput,\x1b]0;x\x07,images/s\n", tmp_path)


def test_machines_are_held_to_the_same_form(tmp_path):
    path = tmp_path / "machines.csv"
    path.write_text("platform,accelerator,tdp_w_per_device\nA,x,300\nB,y,-1\n", encoding="utf-8")
    with pytest.raises(InputError, match='line 3, power_limit_w: "-1"; valid: a number above 0'):
        read_platforms(path)
    with pytest.raises(InputError, match="more than 200 machines"):
        parse_platforms("platform,accelerator\n" + "".join(f"p{i},a\n" for i in range(300)), "machines.csv")


def test_a_huge_file_is_not_read_whole(tmp_path, within):
    path = tmp_path / "huge.csv"
    with path.open("wb") as file:
        file.truncate(100 * 1024 * 1024)
    tracemalloc.start()
    with within(2), pytest.raises(InputError, match="larger than 4,194,304 bytes"):
        read_table(path)
    assert tracemalloc.get_traced_memory()[1] < 4 * MAX_TABLE_BYTES
    tracemalloc.stop()


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "A,4,m,1,\n" * (MAX_TABLE_BYTES // 10),
        HEAD + ("A" * 250 + ",4,throughput,1,images/s\n") * (MAX_LINES - 10),
        HEAD + "".join(f"A{i},4,throughput,1,images/s\n" for i in range(MAX_LINES - 10)),
        HEAD + '"' + "A" * (MAX_TABLE_BYTES - 100),
        HEAD + "A,4,throughput," + "9" * (MAX_TABLE_BYTES - 100),
        "," * (MAX_TABLE_BYTES - 100),
        HEAD + "\n" * 19_000,
    ],
    ids=["many lines", "wide lines", "many rows", "open quote", "one number", "all columns", "blank"],
)
def test_the_worst_files_end_soon(text, within):
    with within(5), contextlib.suppress(InputError):
        parse_table(text, "t.csv")


@pytest.mark.parametrize(
    "line",
    [
        '[[row]]\nfigures = { throughput = "786 images/s" }\n',
        "[[row]]\n",
        "[[platform]]\n",
        "a.b.c.d.e.f.g = 1\n",
        "[a.b]\n",
    ],
)
def test_the_worst_toml_ends_soon(line, within):
    with within(10), contextlib.suppress(InputError):
        parse_table(line * (MAX_TOML_BYTES // len(line)), "t.toml")


def test_the_largest_table_is_judged_soon(within):
    metrics = {
        "throughput": "images/s", "throughput_per_device": "images/s", "epoch_time": "s", "power": "W",
        "energy_per_epoch": "kJ", "speedup": "x", "efficiency": "%", "images_per_energy": "images/J",
    }  # fmt: skip
    lines = [
        f"A,{1 + row % 64},{row + 1},{metric},{1 + row * 7919 % 1009}.5,{unit}\n"
        for row in range(MAX_CHECKED)
        for metric, unit in metrics.items()
    ]
    table = parse_table("system,devices,batch,metric,value,unit\n" + "".join(lines), "t.csv")
    with within(60):
        found = check_table(table)
    assert 0 < len(found) < 200
    assert max(len(finding.message) + len(finding.evidence) for finding in found) < 4000
