"""What the README tells people to type works."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.cli.main import main

if TYPE_CHECKING:
    import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_example_of_an_own_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = re.search(r"```python\n(# my\.py\n.*?)```", README, re.DOTALL)
    assert found is not None
    assert len(found[1].splitlines()) <= 20
    (tmp_path / "my.py").write_text(found[1], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    command = re.search(r"^steelyard (run \./my\.py:build .*)$", README, re.MULTILINE)
    assert command is not None
    quick = ["--max-steps", "30", "--min-steps", "30", "--min-seconds", "0", "--json"]
    assert main([*command[1].split(), *quick]) == 0
    record = json.loads(capsys.readouterr().out)["runs"][0]
    assert record["model"]["parameters"] == 64 * 512 + 512 + 512 * 10 + 10
    assert record["spec"]["batch"] == 128
    assert record["steps_seen"] == 30
