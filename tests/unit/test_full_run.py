"""The full run: every figure is listed once, and every recorded one holds or is named as missed."""

from __future__ import annotations

import json

import pytest

import figures
import quick

RECORDED = json.loads(figures.DATA.read_text(encoding="utf-8"))


def test_every_script_is_listed_once() -> None:
    listed = [*figures.NAMES, *figures.ELSEWHERE]
    assert sorted(listed) == sorted(path.stem for path in figures.SCRIPTS.glob("*.py"))
    assert set(figures.NAMES) >= quick.TOGETHER


def test_every_figure_is_measured_or_named_as_unmeasured() -> None:
    assert RECORDED.keys() <= set(figures.NAMES)
    assert sorted(set(figures.NAMES) - RECORDED.keys()) == sorted(figures.UNMEASURED)


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_figure_holds_or_is_named_as_missed(name: str) -> None:
    entry = RECORDED[name]
    assert entry["holds"] == all(row["holds"] for row in entry["figures"])
    assert entry["holds"] != (name in figures.MISSED)
