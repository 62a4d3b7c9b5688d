"""Rules explained in a terminal and as pages of the documentation, made from their classes."""

from __future__ import annotations

import csv
import shlex
import textwrap
from typing import TYPE_CHECKING

from steelyard.rules.rule import FAMILIES, SEVERITIES, codes
from steelyard.rules.rule import rule as rule_of
from steelyard.rules.table.row import Pair
from steelyard.terminal.text import sentence, table, wrapped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from steelyard.rules.rule import Example, Rule
    from steelyard.terminal.shapes.checks import RuleExampleData, RuleShownData

SUBJECTS = {
    "run": "one run",
    "pair": "a pair of rows to compare",
    "table": "a table of figures",
    "claim": "a claim about figures",
}
_FORMS = {
    "run": "A valid record, except for",
    "pair": "The first row is the base",
    "table": "A table",
    "claim": "A table, and a claim about it",
}


def settings_lines(groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Format the names of settings, by what they affect."""
    text = (
        "A setting has one name in studies, selections (STUDY:batch=64), --factor, tables and JSON. --factor also "
        "takes a word of the first column, for all settings of its lines, and an option of the model: model.width."
    )
    longest = max(map(len, groups))
    lines = [
        line
        for name, keys in groups.items()
        for line in wrapped(f"{name:<{longest}}  {', '.join(keys)}", deeper=" " * (longest + 2))
    ]
    return [*wrapped(text, deeper=""), "", *lines]


def terminal(rule: Rule) -> list[str]:
    """Format a rule for a terminal."""
    lines = [f"{rule.code} {rule.name}", *wrapped(f"{rule.severity}: {SEVERITIES[rule.severity]}"), ""]
    parts = [
        ("Checks", SUBJECTS[rule.subject] + "."),
        ("Why", rule.why),
        ("How", rule.detected),
        ("Fix", sentence(rule.fix)),
    ]
    for heading, text in parts:
        lines += wrapped(f"{heading + ':':<10}{text}", deeper=" " * 10)
    for heading, example in (("Bad", rule.bad), ("Good", rule.good)):
        says = f"{example.says} {_form(rule, example)}"
        lines += ["", *wrapped(f"{heading + ':':<10}{says}", deeper=" " * 10)]
        lines += [f"    {line}".rstrip() for line in example.text.strip().splitlines()]
        lines += [f"    $ {command}"] if (command := _command(rule, example)) else []
    return lines


def rule_object(rule: Rule) -> RuleShownData:
    """Return a rule as plain data."""
    return {
        "code": rule.code,
        "name": rule.name,
        "severity": rule.severity,
        "subject": rule.subject,
        "why": rule.why,
        "detected": rule.detected,
        "fix": rule.fix,
        "bad": _example_object(rule.bad),
        "good": _example_object(rule.good),
    }


def _example_object(example: Example) -> RuleExampleData:
    return {"text": example.text, "says": example.says, "factor": example.factor}


def index() -> list[tuple[str, list[Rule]]]:
    """Return every rule by family."""
    made = [rule_of(code) for code in codes()]
    return [
        (words, [entry for entry in made if entry.code[2] == digit])
        for digit, words in FAMILIES.items()
        if any(entry.code[2] == digit for entry in made)
    ]


def overview() -> list[str]:
    """List all rules for a terminal."""
    lines = []
    for words, rules in index():
        rows = [[entry.code, entry.name, entry.severity, SUBJECTS[entry.subject]] for entry in rules]
        lines += [
            f"SY{rules[0].code[2]}xx {words}",
            *table(["code", "name", "severity", "checks"], rows).splitlines(),
        ]
        lines.append("")
    for severity, words in SEVERITIES.items():
        lines += wrapped(f"{severity}: {words}")
    return lines


def page() -> str:
    """Return the Markdown page of all rules, with a heading for each code."""
    intro = (
        "Each finding has a code. `steelyard explain CODE` prints in a terminal what this page says about it. The "
        "severities:"
    )
    out = ["# Rules", intro, "\n".join(f"- **{severity}**: {words}." for severity, words in SEVERITIES.items())]
    for words, rules in index():
        rows = [f"| [{e.code}](#{anchor(e)}) | {e.name} | {e.severity} | {SUBJECTS[e.subject]} |" for e in rules]
        head = "| code | name | severity | checks |\n| --- | --- | --- | --- |\n"
        out += [f"## SY{rules[0].code[2]}xx: {words}", head + "\n".join(rows)]
        out += [part for each in rules for part in _section(each)]
    return "\n\n".join(_filled(part) for part in out) + "\n"


def anchor(rule: Rule) -> str:
    """Return the name by which the page of all rules can be linked at this one."""
    return f"{rule.code} {rule.name}".lower().replace(" ", "-")


def _section(rule: Rule) -> list[str]:
    out = [f"### {rule.code} {rule.name}", f"**{rule.severity}**; checks {SUBJECTS[rule.subject]}."]
    out += [f"**Why.** {rule.why}", f"**How it is detected.** {rule.detected}"]
    for heading, example in (("Bad", rule.bad), ("Good", rule.good)):
        out.append(f"**{heading}.** {example.says} {_form(rule, example)}")
        language = "toml" if rule.subject == "run" else "text"
        out += [f"```{language}\n{example.text.strip()}\n```"] if example.text else []
        out += [f"```bash\n{command}\n```"] if (command := _command(rule, example)) else []
    return [*out, f"**Fix.** {sentence(rule.fix)}"]


def _form(rule: Rule, example: Example) -> str:
    if rule.subject == "pair":
        return f"{_FORMS['pair']}; factor: {example.factor}:"
    return f"{_FORMS[rule.subject]}:" if example.text else "A valid record."


def _command(rule: Rule, example: Example) -> str:
    """Return the command that compares the two rows of an example; empty if the factor does not tell them apart."""
    rows = list(csv.DictReader(example.text.splitlines())) if rule.subject == "pair" else []
    values = [row[example.factor] for row in rows]
    if len(set(values)) < 2:
        return ""
    words = ["steelyard", "compare", *(f"FILE.csv:{example.factor}={value}" for value in values)]
    words += ["--factor", example.factor] if example.factor != Pair.factor else []
    words += ["--metric", rows[0]["metric"]] if rows[0]["metric"] != Pair.metric else []
    return shlex.join(words)


def _filled(text: str) -> str:
    return text if "\n" in text or text.startswith(("#", "```")) else textwrap.fill(text, 100)
