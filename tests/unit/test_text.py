"""Numbers as people read them."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import make_spec
from steelyard.cli.arguments import assignment
from steelyard.numbers import change, natural_order, short
from steelyard.terminal.text import number, seconds, spec_notes, table, tuned_note


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3200.0, "3,200.0"),
        (9.999999, "10.000"),
        (0.00099999999, "0.0010000"),
        (1234567.0, "1,234,567"),
        (0.0, "0"),
        (1.5e-7, "1.5000e-07"),
        (2.5e12, "2.5000e+12"),
        (-12.5, "-12.500"),
    ],
)
def test_number(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.01, "10.000 ms"), (2.5e-5, "25.000 us"), (90.0, "90.000 s"), (3e-9, "3.0000 ns"), (0.0, "0 s")],
)
def test_seconds(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("presets", "note"),
    [([], ""), (["plain", "plain"], ""), (["tuned"], "preset: tuned"), (["tuned", "plain"], "")],
)
def test_a_table_says_that_runs_are_tuned(presets: list[Any], note: str) -> None:
    specs = [make_spec(preset=preset) for preset in presets]
    assert tuned_note(specs) == note
    assert spec_notes(specs) == ([note] if note else [])


def test_table_puts_numbers_to_the_right() -> None:
    assert table(["a", "b"], [["x", "1"], ["yy", "1,000"]]) == "a       b\n--  -----\nx       1\nyy  1,000"


def test_labels_are_sorted_by_the_numbers_in_them() -> None:
    labels = ["batch=16", "batch=8", "t=0.01, n=2", "t=0.008, n=10"]
    assert sorted(labels, key=natural_order) == ["batch=8", "batch=16", "t=0.008, n=10", "t=0.01, n=2"]


def test_headings_are_escaped() -> None:
    assert table(["a\x1b[31m", "b\u061c\ufeff"], [["1", "2"]]).splitlines()[0] == "a\\x1b[31m  b\\u061c\\ufeff"


def test_options_nested_too_deeply_are_texts() -> None:
    deep = "[" * 200_000
    assert assignment(f"sim.step_time_s={deep}") == ("sim.step_time_s", deep)


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.004, "0.4 %"), (0.0012, "0.12 %"), (0.12, "12 %"), (1.2, "120 %"), (1.8, "180 %"), (1.99, "199 %"),
        (2.0, "3x"), (2.5, "3.5x"), (120.0, "121x"), (5e4, "50,001x"), (0.0, "0 %"), (-0.3, "-30 %"),
    ],
)  # fmt: skip
def test_a_change_is_a_percentage_and_from_three_times_on_a_factor(share: float, text: str) -> None:
    assert change(share) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(1800.0, 3, "1,800"), (5.0, 4, "5"), (12.5, 4, "12.5"), (180000.0, 6, "180,000"), (100.0, 2, "100")],
)
def test_a_short_number_has_neither_exponent_nor_zeros_at_its_end(value: float, digits: int, text: str) -> None:
    assert short(value, digits) == text
