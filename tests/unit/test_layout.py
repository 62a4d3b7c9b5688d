"""One name for one thing, and private helpers that earn their place: what keeps the code findable."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from steelyard.launch.staging import MEASURED_FILES, MEASURED_SIDE, PACKAGE

TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in Path(__file__).parents[2].glob("src/**/*.py")}
MOST_SINGLE_CALLERS = 0.6


def test_a_class_name_stands_for_one_thing() -> None:
    names = Counter(node.name for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def test_few_private_functions_have_a_single_caller() -> None:
    """By the names that a module uses: a helper with one caller must explain something that its lines do not."""
    private = single = 0
    for tree in TREES.values():
        uses = Counter(map(_used, ast.walk(tree)))
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            if function.name.startswith("_") and not function.name.startswith("__"):
                own = sum(_used(node) == function.name for node in ast.walk(function))
                private += 1
                single += uses[function.name] - own == 1
    assert single / private <= MOST_SINGLE_CALLERS


def _used(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def test_everything_that_the_measured_side_imports_is_sent_to_nodes() -> None:
    """A job runs a copy of the measured side: a module that is missing there fails every job."""
    sent = {*MEASURED_SIDE, *(name.removesuffix(".py") for name in MEASURED_FILES)}
    for name in sent:
        place = PACKAGE / name
        for path in place.rglob("*.py") if place.is_dir() else (PACKAGE / f"{name}.py",):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("steelyard."):
                    assert (node.module or "").split(".")[1] in sent, f"{path}: {node.module}"
