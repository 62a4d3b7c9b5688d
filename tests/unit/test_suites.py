"""Suites: they load, expand at every size, and every setting of theirs has a source."""

from __future__ import annotations

import pytest

from steelyard.audit.documents import names as documents
from steelyard.inputs.suite import Choice, expand_part, find_suite, suite_names
from suite_sources import out_of_date, sources_of


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
