"""What a rule says of itself, for a terminal and as a page of the documentation. Made from the rule's class alone."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import TYPE_CHECKING, Any

from steelyard.rules.rule import FAMILIES, SEVERITIES, codes, rule
from steelyard.terminal.text import WIDTH, sentence, table

if TYPE_CHECKING:
    from steelyard.rules.rule import Example, Rule

SUBJECTS = {
    "run": "one run",
    "pair": "two rows that are to be compared",
    "table": "a table of figures",
    "claim": "a claim about figures",
}
_FORMS = {
    "run": "A sound record, but with",
    "pair": "The first row is the base, the second is held against it",
    "table": "A table",
    "claim": "A table, and a claim about it",
}


def terminal(found: Rule) -> list[str]:
    """A rule in lines for a terminal."""
    severity = textwrap.wrap(f"{found.severity}: {SEVERITIES[found.severity]}", WIDTH, subsequent_indent="  ")
    lines = [f"{found.code} {found.name}", *severity, ""]
    parts = [
        ("Looks at", SUBJECTS[found.subject] + "."),
        ("Why", found.why),
        ("How", found.detected),
        ("Fix", sentence(found.fix)),
    ]
    for heading, text in parts:
        lines += textwrap.wrap(text, WIDTH, initial_indent=f"{heading + ':':<10}", subsequent_indent=" " * 10)
    for heading, example in (("Bad", found.bad), ("Good", found.good)):
        says = f"{example.says} {_form(found, example)}:"
        lines += ["", *textwrap.wrap(says, WIDTH, initial_indent=f"{heading + ':':<10}", subsequent_indent=" " * 10)]
        lines += [f"    {line}".rstrip() for line in example.text.strip().splitlines()]
    return lines


def rule_object(found: Rule) -> dict[str, Any]:
    """A rule for machines."""
    names = ("code", "name", "severity", "subject", "why", "detected", "fix")
    examples = {name: dataclasses.asdict(getattr(found, name)) for name in ("bad", "good")}
    return {name: getattr(found, name) for name in names} | examples


def page(found: Rule) -> str:
    """A rule as a page in Markdown."""
    first = f"**{found.severity}**: {SEVERITIES[found.severity]}. Family: {FAMILIES[found.code[2]]}. Looks at: "
    out = [f"# {found.code} {found.name}", first + SUBJECTS[found.subject] + "."]
    out += ["## Why", found.why, "## How it is detected", found.detected]
    for heading, example in (("Bad", found.bad), ("Good", found.good)):
        language = "toml" if found.subject == "run" else "text"
        block = f"```{language}\n{example.text.strip()}\n```"
        out += [f"## {heading}", f"{example.says} {_form(found, example)}:", block]
    out += ["## Fix", sentence(found.fix)]
    return "\n\n".join(_wrapped(part) for part in out) + "\n"


def index() -> list[tuple[str, list[Rule]]]:
    """Every rule, by family."""
    made = [rule(code) for code in codes()]
    return [
        (words, [entry for entry in made if entry.code[2] == digit])
        for digit, words in FAMILIES.items()
        if any(entry.code[2] == digit for entry in made)
    ]


def overview() -> list[str]:
    """All rules in lines for a terminal."""
    lines = []
    for words, found in index():
        rows = [[entry.code, entry.name, entry.severity, SUBJECTS[entry.subject]] for entry in found]
        lines += [
            f"SY{found[0].code[2]}xx {words}",
            *table(["code", "name", "severity", "looks at"], rows).splitlines(),
        ]
        lines.append("")
    for severity, words in SEVERITIES.items():
        lines += textwrap.wrap(f"{severity}: {words}", WIDTH, subsequent_indent="  ")
    return lines


def index_page() -> str:
    """The page that lists all rules."""
    out = ["# Rules", _wrapped(
        "Each finding has a code. `steelyard explain CODE` says in a terminal what the page of a code says here. The "
        "pages are made from the rules' classes."
    )]  # fmt: skip
    out.append("\n".join(f"- **{severity}**: {words}." for severity, words in SEVERITIES.items()))
    for words, found in index():
        rows = [f"| [{e.code}]({e.code}.md) | {e.name} | {e.severity} | {SUBJECTS[e.subject]} |" for e in found]
        head = "| code | name | severity | looks at |\n| --- | --- | --- | --- |\n"
        out += [f"## SY{found[0].code[2]}xx: {words}", head + "\n".join(rows)]
    return "\n\n".join(out) + "\n"


def _form(found: Rule, example: Example) -> str:
    if found.subject == "pair":
        return f"{_FORMS['pair']}; under study: {example.factor}"
    return _FORMS[found.subject]


def _wrapped(text: str) -> str:
    return text if "\n" in text or text.startswith(("#", "```")) else textwrap.fill(text, 100)
