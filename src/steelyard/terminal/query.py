"""The answer of a query as a table, and the questions that have a name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steelyard.errors import printable
from steelyard.results.questions import QUESTIONS
from steelyard.results.rows import COLUMNS
from steelyard.terminal.text import number, table, wrapped

if TYPE_CHECKING:
    from steelyard.terminal.shapes.results import QueryListData

MOST_CHARACTERS = 200


def answer_lines(answer: dict[str, Any]) -> list[str]:
    """Return an answer as a table, and whether there is more."""
    rows = [[_cell(value) for value in row] for row in answer["rows"]]
    if not rows:
        return ["no rows"]
    lines = [table(answer["columns"], rows)]
    if answer["more"]:
        lines.append(f"the first {len(rows):,} rows; for all: --format csv")
    return lines


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return number(value, 5)
    text = str(value)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."


def question_lines() -> list[str]:
    """Return the questions that have a name, and the tables for those that have none."""
    wide = max(map(len, (*QUESTIONS, *COLUMNS)))
    lines = [
        "questions:",
        *(f"  {name:<{wide}}  {question.text}" for name, question in QUESTIONS.items()),
        "",
        "tables:",
    ]
    for name, columns in COLUMNS.items():
        lines += wrapped(f"{name:<{wide}}  {', '.join(columns)}", "  ", " " * (wide + 2))
    return list(map(printable, lines))


def questions_object() -> QueryListData:
    """Return the same as plain data for JSON."""
    return {
        "shape": "query-list/1",
        "questions": {name: {"text": question.text, "sql": question.sql} for name, question in QUESTIONS.items()},
        "tables": {name: list(columns) for name, columns in COLUMNS.items()},
    }
