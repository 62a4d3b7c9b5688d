"""Public tables that were not used in building the audit: what it says, as the page for reviewers has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from steelyard.audit.subject import audit
from steelyard.errors import InputError
from steelyard.results.store import ResultFolder

PUBLISHED = Path(__file__).parents[1] / "data" / "published"


@pytest.mark.parametrize(
    ("name", "rows", "wrong"),
    [
        ("dlperf-bert-mxnet.md", 36, [("speedup", "27.33", "27.231")]),
        # 249 TFLOP/s and 64.05 % contradict each other, but the peak of the device is not known.
        ("maxtext-v5p.md", 10, []),
        ("csc-imagenet.md", 19, []),
        ("torchtitan-llama3.md", 6, []),
    ],
)
def test_public_tables_are_judged_as_by_hand(
    name: str, rows: int, wrong: list[tuple[str, str, str]], tmp_path: Path
) -> None:
    found = audit(str(PUBLISHED / name), ResultFolder(tmp_path))
    (table,) = found.tables
    assert len(table.rows) == rows
    assert found.verdict == "consistent"
    assert [(each.name, each.printed, each.recomputed) for one in found.findings for each in one.wrong] == wrong


def test_headings_that_are_not_understood_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="16B TFLOP/sec/chip"):
        audit(str(PUBLISHED / "maxtext-v5e.md"), ResultFolder(tmp_path))
