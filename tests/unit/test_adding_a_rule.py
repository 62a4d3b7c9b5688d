"""What docs/adding-a-rule.md tells people to write works."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import test_rules
from steelyard import plugins
from steelyard.rules.rule import rule

if TYPE_CHECKING:
    import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "adding-a-rule.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_a_rule_is_one_file_one_plugin_line_and_one_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = next(block for block in BLOCKS if block.startswith('"SY790"'))
    assert ast.literal_eval("{" + line + "}") == {"SY790": "steelyard.rules.tiles:OddBatch"}
    for name in ("tiles.py", "test_tiles.py"):
        (tmp_path / name).write_text(
            next(block for block in BLOCKS if block.startswith(f"# {name}\n")), encoding="utf-8"
        )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(plugins.BUILTIN["rule"], "SY790", "tiles:OddBatch")
    importlib.import_module("test_tiles").test_an_unknown_precision_is_no_finding()
    made = rule("SY790")
    test_rules.test_a_rule_says_what_it_is("SY790")
    assert [found.code for found in test_rules.tried(made, made.bad, {})] == ["SY790"]
    assert test_rules.tried(made, made.good, {}) == []
