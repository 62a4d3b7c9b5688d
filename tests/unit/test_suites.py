"""Suites: they load and expand at every size; every setting has a source, every printed figure has a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from steelyard.audit.documents import names as documents
from steelyard.inputs.suite import Choice, expand_part, find_suite, plan_part, suite_names, why_left_out
from steelyard.report.suite.beside import SuiteResults
from steelyard.results.store import ResultFolder
from suite_sources import out_of_date, sources_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", suite_names())
def test_every_setting_has_a_source(name: str) -> None:
    found = find_suite(name)
    assert found.suite.name == name
    assert found.suite.document in (*documents(), "")
    explained = sources_of(found)
    assert [str(setting) for setting, entry in explained if entry is None] == []
    assert out_of_date(found.suite.setting, explained) == []


def test_an_epoch_of_some_global_batches() -> None:
    found = find_suite("caraml")
    cells = expand_part(found, found.part("gpt-117m"), Choice()).cells
    assert {cell.spec.epoch_samples / cell.spec.step_samples for cell in cells} == {4.0}
    assert {cell.spec.step_samples for cell in cells if cell.spec.ranks == 4} == {2**n for n in range(6, 15)}


@pytest.mark.parametrize("name", [name for name in suite_names() if find_suite(name).suite.document])
def test_every_printed_figure_has_a_configuration(name: str, tmp_path: Path) -> None:
    results = SuiteResults(ResultFolder(tmp_path), find_suite(name), "full")
    assert results.document is not None
    printed = {(row.place, metric) for row in results.document.rows for metric in row.figures}
    beside = {(entry.published.place, entry.metric) for table in results.suite.table for entry in results.beside(table)}
    assert printed - beside == set()


def test_a_part_that_needs_several_devices_is_left_out_on_one() -> None:
    found = find_suite("site-acceptance")
    part = found.part("collectives")
    assert "devices" in (why_left_out(found.suite, part, Choice("tiny", devices=(1,))) or "")
    assert [entry.run["ranks"] for entry in plan_part(found.suite, part, Choice("tiny", devices=(1, 2)))] == [2]
