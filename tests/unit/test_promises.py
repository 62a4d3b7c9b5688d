"""Every promise of docs/campaigns.md names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.findall(r"\| `(tests/[\w/]+\.py)::(\w+)` \|", (ROOT / "docs" / "campaigns.md").read_text(encoding="utf-8"))


def test_there_are_promises() -> None:
    assert len(NAMED) > 20


@pytest.mark.parametrize(("file", "test"), NAMED, ids=[test for _, test in NAMED])
def test_the_test_exists(file: str, test: str) -> None:
    assert re.search(rf"^def {test}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
