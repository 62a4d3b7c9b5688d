"""The fields of a file format as a list for people, from the JSON Schema of its contract."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from steelyard.terminal.text import wrapped

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

KINDS = {"integer": "whole number", "boolean": "true or false", "array": "list", "string": "text"}
# A larger bound only rejects nonsense; it does not help the reader.
TELLING_BOUND = 10**6
NAME_COLUMNS = 26
DEEPEST = 8


def field_lines(schema: dict[str, Any], words: Collection[str] = (), hidden: Collection[str] = ()) -> list[str]:
    """List the fields with meaning, values and default; with `words` only those whose name has one of them.

    `hidden`: fields that people do not write.
    """
    lines: list[str] = []
    for name, facts, required in _flat(schema, schema.get("$defs", {})):
        if name.partition(".")[0] in hidden or (words and not any(word in name for word in words)):
            continue
        told = [f"{meaning(facts, 'left out').rstrip('.')}." if facts.get("description") else "", value(facts, {})]
        told.append("required" if required else f"default {given}" if (given := default(facts)) else "")
        text = f"{told[0]} [{'; '.join(filter(None, told[1:]))}]".strip()
        if len(name) >= NAME_COLUMNS:
            lines += [name, *wrapped(text, " " * NAME_COLUMNS, "")]
        else:
            lines += wrapped(f"{name:<{NAME_COLUMNS}}{text}", deeper=" " * NAME_COLUMNS)
    return lines


def field_words(schema: dict[str, Any]) -> list[str]:
    """Return the words of which the names of the fields are made."""
    names = [name for name, _, _ in _flat(schema, schema.get("$defs", {}))]
    return list(dict.fromkeys(word for name in names for word in name.split(".")))


def _flat(
    facts: dict[str, Any], defs: dict[str, Any], above: str = "", depth: int = 0
) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Yield the dotted name of every field, what the schema says about it, and whether it is required."""
    required = facts.get("required", ())
    for name, each in facts.get("properties", {}).items():
        path, inner = _inner(each)
        if inner is None or depth > DEEPEST:
            yield above + name, each, name in required
        else:
            yield from _flat(defs[inner], defs, f"{above}{name}{path}.", depth + 1)


def _inner(facts: dict[str, Any]) -> tuple[str, str | None]:
    """Return the table that a field holds, and what is written between its name and those of its fields."""
    for each in [facts, *facts.get("anyOf", ())]:
        if "$ref" in each:
            return "", each["$ref"].rpartition("/")[2]
        items = each.get("items")
        if isinstance(items, dict) and "$ref" in items:
            return "[]", items["$ref"].rpartition("/")[2]
        named = [each.get("additionalProperties"), *each.get("patternProperties", {}).values()]
        for table in named:
            if isinstance(table, dict) and "$ref" in table:
                return ".NAME", table["$ref"].rpartition("/")[2]
    return "", None


def meaning(facts: dict[str, Any], none: str) -> str:
    """Return the description in one line; `none`: what the reader calls a value that is None."""
    return re.sub(r"\bNone\b", none, " ".join(facts.get("description", "").split()))


def default(facts: dict[str, Any]) -> str:
    """Return the default as in a file; empty if there is none, or if the field is left out by default."""
    given = facts.get("default")
    if isinstance(given, dict):
        return "its own defaults" if given else ""
    return "" if given in (None, "", []) else str(given).lower() if isinstance(given, bool) else str(given)


def value(facts: dict[str, Any], links: dict[str, str], mark: str = "") -> str:
    """Return which values a field takes. `links`: what to write for the tables in it; `mark`: stands around words."""
    if "anyOf" in facts:
        return " or ".join(value(each, links, mark) for each in facts["anyOf"] if each.get("type") != "null")
    if "enum" in facts or "const" in facts:
        return ", ".join(f"{mark}{each}{mark}" for each in facts.get("enum", [facts.get("const")]) if each != "")
    if "$ref" in facts:
        return links.get(facts["$ref"].rpartition("/")[2], "table")
    if facts.get("type") == "object":
        inner = facts.get("additionalProperties")
        named = links.get(inner["$ref"].rpartition("/")[2]) if isinstance(inner, dict) and "$ref" in inner else None
        return f"table of names, each {named}" if named else "table"
    if facts.get("type") == "array" and "$ref" in facts.get("items", {}) and links:
        return f"list of {links.get(facts['items']['$ref'].rpartition('/')[2], 'tables')}"
    return _plain(facts)


def _plain(facts: dict[str, Any]) -> str:
    text = KINDS.get(facts.get("type", ""), "number")
    low, high = facts.get("minimum"), facts.get("maximum")
    if low is not None and high is not None and high < TELLING_BOUND:
        text += f", {low} to {high:,}"
    return text
