"""The gate gives the same answer on a busy machine: none of its tests judges a time, or gives up early."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from conftest import MOSTLY_FULL

TESTS = Path(__file__).parents[1]
CLOCKS = ("monotonic", "perf_counter", "process_time", "thread_time", "time")
WAITS = ("wait", "join", "communicate", "poll")


def gate_code(tree: ast.Module, folder: str) -> list[ast.stmt]:
    """Return the top-level statements of a test file, without the tests that only the full run makes."""
    of_all = [ast.unparse(one) for one in tree.body]
    if any(text.startswith("pytestmark = pytest.mark.full") for text in of_all):
        return []
    rest_is_full = folder in MOSTLY_FULL and "pytestmark = pytest.mark.gate" not in of_all

    def is_full(one: ast.stmt) -> bool:
        if not (isinstance(one, ast.FunctionDef) and one.name.startswith("test_")):
            return False
        marks = [ast.unparse(mark) for mark in one.decorator_list]
        full = any(mark.startswith("pytest.mark.full") for mark in marks)
        return full or (rest_is_full and not any("pytest.mark.gate" in mark for mark in marks))

    return [one for one in tree.body if not is_full(one)]


def faults(text: str, folder: str = "unit") -> list[str]:
    """Return each expression that judges a time or waits less than the hang limit."""
    found = []
    for top in gate_code(ast.parse(text), folder):
        for node in ast.walk(top):
            if isinstance(node, ast.Compare):
                words = ast.unparse(node)
                if any(f"time.{clock}()" in words for clock in CLOCKS) and "HANG_S" not in words:
                    found.append(words)
            if isinstance(node, ast.Call):
                short = [one.value for one in node.keywords if one.arg == "timeout"]
                if isinstance(node.func, ast.Attribute) and node.func.attr in WAITS:
                    short += node.args[:1]
                judged = isinstance(node.func, ast.Attribute) and ast.unparse(node.func) == "time.sleep"
                numbers = [one.value for one in short if isinstance(one, ast.Constant)]
                if judged or any(isinstance(number, int | float) and number > 0 for number in numbers):
                    found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("def test_a():\n    assert time.monotonic() - begin < 3", 1),
        ("def test_a():\n    assert time.monotonic() - begin < HANG_S", 0),
        ("def test_a():\n    thread.join(5)", 1),
        ("def test_a():\n    subprocess.run(words, timeout=60)", 1),
        ("def test_a():\n    subprocess.run(words, timeout=HANG_S)", 0),
        ("def helper():\n    time.sleep(0.1)", 1),
        ("@pytest.mark.full('shares of time')\ndef test_a():\n    thread.join(5)", 0),
        ("pytestmark = pytest.mark.full('why')\ndef test_a():\n    thread.join(5)", 0),
    ],
)
def test_what_is_a_fault(text: str, count: int) -> None:
    assert len(faults(text)) == count


def test_no_test_of_the_gate_depends_on_time() -> None:
    found = {}
    for path in TESTS.rglob("test_*.py"):
        folder = path.relative_to(TESTS).parts[0]
        if told := faults(path.read_text(encoding="utf-8"), folder):
            found[path.name] = told
    assert found == {}, "use conftest's until, within and HANG_S, or mark the test `full`"
