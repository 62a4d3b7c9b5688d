"""Tables of a contract's fields for people, from its JSON Schema. Knows schemas, and no contract by name."""

from __future__ import annotations

import re
from typing import Any

HEAD = ("| field | value | if left out | meaning |", "|---|---|---|---|")
READ_HEAD = ("| field | value | meaning |", "|---|---|---|")
# A larger bound is there to stop nonsense; it tells nobody anything.
TELLING_BOUND = 10**6
KINDS = {"integer": "whole number", "boolean": "true or false", "array": "list", "string": "text"}


def table(facts: dict[str, Any], links: dict[str, str] | None = None, *, written: bool = True) -> str:
    """The fields of one contract. `links`: where to find the tables of the contracts in it, by name.

    `written`: by people, who may leave fields out; else it is only read.
    """
    required = facts.get("required", ())
    rows = []
    for name, each in facts.get("properties", {}).items():
        left_out = f" {'must be there' if name in required else _default(each)} |" if written else ""
        rows.append(f"| `{name}` | {_value(each, links or {})} |{left_out} {_meaning(each, written=written)} |")
    return "\n".join([*(HEAD if written else READ_HEAD), *rows])


def _meaning(facts: dict[str, Any], *, written: bool) -> str:
    words = " ".join(facts.get("description", "").split()).replace("|", "\\|")
    return re.sub(r"\bNone:", "left out:", words) if written else re.sub(r"\bNone\b", "null", words)


def _default(facts: dict[str, Any]) -> str:
    value = facts.get("default")
    if isinstance(value, dict):
        return "its own defaults" if value else ""
    return "" if value in (None, "", []) else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _value(facts: dict[str, Any], links: dict[str, str]) -> str:
    if "anyOf" in facts:
        return " or ".join(_value(each, links) for each in facts["anyOf"] if each.get("type") != "null")
    if "enum" in facts or "const" in facts:
        return ", ".join(f"`{each}`" for each in facts.get("enum", [facts.get("const")]))
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
