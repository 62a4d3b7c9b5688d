"""Make the reference pages from code: verbs from their parsers, contracts from their dataclasses, metrics from a list.

A test compares docs/metrics.toml with real records.
"""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from steelyard.cli.exit_codes import MEANINGS
from steelyard.cli.main import GROUPS, VERBS
from steelyard.cli.parser import Parser, paragraphs, place
from steelyard.cli.verb import make_parser
from steelyard.contracts.record import RunRecord
from steelyard.contracts.spec import RunSpec
from steelyard.inputs.recipe import Recipe
from steelyard.inputs.scheme import Scheme
from steelyard.inputs.site import Site
from steelyard.inputs.study import Study
from steelyard.inputs.suite import Suite
from steelyard.inputs.validate import json_schema
from steelyard.terminal import fields

DOCS = Path(__file__).resolve().parent.parent
HEAD = ("| field | value | default | meaning |", "|---|---|---|---|")
READ_HEAD = ("| field | value | meaning |", "|---|---|---|")
SITE_TABLES = {
    "Site": "At the top of the file",
    "Pool": "`[pools.NAME]`: one kind of node",
    "Toleration": "`tolerations` of a pool, each a table in a list",
    "Container": "`[container]`",
    "Mount": "`[[container.mounts]]`",
    "Modules": "`[modules]`",
    "Charge": "`[charge]`",
    "Limits": "`[limits]`",
    "Cluster": "`[cluster]`, for Kubernetes",
}


class ContractPage(NamedTuple):
    """A contract, with the title and the text above its tables."""

    contract: type
    title: str
    words: str


CONTRACTS = {
    "study": ContractPage(
        Study,
        "A study file",
        "A study is a TOML file. `run` has the fields of a [run](run-spec.md), `sweep` has lists of values for them.\n"
        "`steelyard explain study` lists the fields; with `--json` it prints the JSON Schema.\n"
        "Unknown fields are errors.",
    ),
    "suite": ContractPage(
        Suite,
        "A suite file",
        "The file `suite.toml` in the folder of a [suite](../adding-a-suite.md). `run` has the fields of\n"
        "a [run](run-spec.md). `steelyard explain suite` lists the fields; with `--json` it prints the\n"
        "JSON Schema.",
    ),
    "run-spec": ContractPage(
        RunSpec,
        "A run's settings",
        "The settings of one run, for a study's table `[run]` and `steelyard run --set KEY=VALUE`. Nested fields have\n"
        "dotted names, such as `budget.max_seconds`. `run_id`, `study`, `configuration`, `repeat` and `seed` are set\n"
        "automatically. `steelyard explain run-spec` lists the settings, `steelyard explain run-spec budget`\n"
        "those with this word in their names; with `--json` it prints the JSON Schema.",
    ),
    "record": ContractPage(
        RunRecord,
        "A record",
        "The result of one run: `RESULTS/runs/STUDY/RUN_ID/record.json`. It is derived from the raw files in the same\n"
        "folder; `steelyard show RUN_ID --derive` derives it again. The names in `quantities` are on the page of\n"
        "[metrics](metrics.md). `steelyard explain run-record` lists the fields; with `--json` it prints the\n"
        "JSON Schema.",
    ),
    "recipe": ContractPage(
        Recipe,
        "A recipe file",
        "A TOML file for `steelyard verify`: a run, and the figure that its documentation states. Those of a suite\n"
        "have names, such as `steelyard verify olivia/test-1`.\n"
        "`steelyard explain recipe` lists the fields; with `--json` it prints the JSON Schema.",
    ),
    "scheme": ContractPage(
        Scheme,
        "A scheme file",
        "A TOML file for `steelyard pack --scheme`: the questions of a proposal form. `steelyard pack --schemes`\n"
        "lists the known schemes and the folder for yours.",
    ),
}


def pages() -> dict[str, str]:
    """Return every reference page by its path in docs/."""
    made = {f"reference/{name}.md": contract_page(name) for name in CONTRACTS}
    return made | {"reference/verbs.md": verbs_page(), "reference/metrics.md": metrics_page()}


# -- verbs


def verbs_page() -> str:
    """Every verb with all its options, from the parsers themselves."""
    intro = """# Verbs

`steelyard VERB --help` prints the same. Results go to standard output, progress and errors to standard error.

Every verb takes `--json`. Standard output is then one JSON document, whose first field is its shape, such as
`"shape": "scaling/1"`. `steelyard explain VERB --schema` prints the JSON Schema of what a verb prints
([an example](../howto/own-plot.md)). A command that fails before it has a result prints
`{"shape": "error/1", "error": {"message": ..., "problems": [...], "next": ..., "exit_code": 2}}`. `problems` lists bad
values with `field`, `problem` and `valid`; `next` is a command to try, or null. The message for people is on standard
error.

## Exit codes

| code | meaning |
| ---: | --- |
"""
    codes = "\n".join(f"| {code} | {meaning} |" for code, meaning in MEANINGS.items())
    groups = "\n\n".join(
        "\n".join([f"**{group}**\n", "| verb | does |", "| --- | --- |", *(_row(*verb) for verb in verbs.items())])
        for group, verbs in GROUPS.items()
    )
    return f"{intro}{codes}\n\n## All verbs\n\n{groups}\n\n" + "\n".join(_verb(name) for name in VERBS)


def _row(name: str, text: str) -> str:
    return f"| [`{name}`](#{name}) | {text} |"


def _verb(name: str) -> str:
    parser = make_parser(name)
    text = f"## {name}\n\n{_words(parser)}"
    for inner, sub in parser.actions().items():
        text += f"\n### {name} {inner}\n\n{_words(sub)}"
    return text


def _words(parser: Parser) -> str:
    """Description, the line to type, and a table of the options."""
    plain = [
        action
        for action in parser._actions  # noqa: SLF001 - argparse has no public way to list what it takes
        if not isinstance(action, (argparse._HelpAction, argparse._SubParsersAction))  # noqa: SLF001
    ]
    described = "".join(_paragraph(part) for part in paragraphs(parser.description or ""))
    places = "".join(f" {place(action)}" for action in parser._actions if not action.option_strings)  # noqa: SLF001
    text = f"{described}```bash\n{parser.prog} [options]{places}\n```\n"
    rows = [f"| `{_name(action)}` | {_help(action, parser.prog)} |" for action in plain]
    return text + "\n" + "\n".join(["| option | meaning |", "| --- | --- |", *rows]) + "\n"


def _paragraph(text: str) -> str:
    return f"```console\n{text}\n```\n\n" if text.startswith("$ ") else f"{' '.join(text.split())}\n\n"


def _name(action: argparse.Action) -> str:
    if not action.option_strings:
        return (_metavar(action) or action.dest.upper()).replace("|", "\\|")
    value = "" if action.nargs == 0 else f" {_metavar(action) or action.dest.upper()}"
    return ", ".join(action.option_strings) + value


def _metavar(action: argparse.Action) -> str:
    if action.metavar is None and action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.metavar if isinstance(action.metavar, str) else ""


def _help(action: argparse.Action, prog: str) -> str:
    words = " ".join((action.help or "").split()) % {**vars(action), "prog": prog}
    return words.replace("|", "\\|").replace("<", "&lt;")


# -- contracts


def contract_page(name: str) -> str:
    """A contract and all that is nested in it, the nested ones in the order in which they are met."""
    page = CONTRACTS[name]
    schema = json_schema(page.contract)
    elsewhere = {"RunSpec": "[a run's settings](run-spec.md)"} if page.contract is RunRecord else {}
    nested = [inner for inner in _met(schema, schema.get("$defs", {}), set(elsewhere)) if inner not in elsewhere]
    links = elsewhere | {inner: f"[{inner}](#{inner.lower()})" for inner in nested}
    written = page.contract is not RunRecord
    parts = [f"# {page.title}\n\n{page.words}\n", table(schema, links, written=written)]
    for inner in nested:
        facts = schema["$defs"][inner]
        parts.append(f"\n## {inner}\n\n{_said(facts)}\n\n{table(facts, links, written=written)}")
    return "\n".join(parts) + "\n"


def _said(facts: dict[str, Any]) -> str:
    return " ".join(facts.get("description", "").split())


def _met(facts: Any, defs: dict[str, Any], seen: set[str]) -> list[str]:
    """Names of the contracts that a schema refers to, depth first."""
    if isinstance(facts, list):
        return [name for each in facts for name in _met(each, defs, seen)]
    if not isinstance(facts, dict):
        return []
    found = []
    target = facts.get("$ref", "").rpartition("/")[2] if isinstance(facts.get("$ref"), str) else ""
    if target and target not in seen:
        seen.add(target)
        found += [target, *_met(defs[target], defs, seen)]
    for key, each in facts.items():
        if key != "$defs":
            found += _met(each, defs, seen)
    return found


def site_fields() -> str:
    """The tables of a site file's fields."""
    schema = json_schema(Site)
    defs = {"Site": schema, **schema["$defs"]}
    return "\n\n".join(f"### {title}\n\n{table(defs[name])}" for name, title in SITE_TABLES.items())


def table(facts: dict[str, Any], links: dict[str, str] | None = None, *, written: bool = True) -> str:
    """Return the table of the fields of one contract.

    `links` maps the contracts inside it to the places of their tables. `written`: people write it; show defaults.
    """
    required = facts.get("required", ())
    rows = []
    for name, each in facts.get("properties", {}).items():
        left_out = f" {'required' if name in required else _default(each)} |" if written else ""
        values = fields.value(each, links or {}, mark="`")
        rows.append(f"| `{name}` | {values} |{left_out} {_meaning(each, written=written)} |")
    return "\n".join([*(HEAD if written else READ_HEAD), *rows])


def _meaning(facts: dict[str, Any], *, written: bool) -> str:
    return fields.meaning(facts, "left out" if written else "null").replace("|", "\\|")


def _default(facts: dict[str, Any]) -> str:
    found = fields.default(facts)
    return f"`{found}`" if found and found != "its own defaults" else found


# -- metrics


def metrics() -> dict[str, Any]:
    """Return the list of metrics."""
    return tomllib.loads((DOCS / "metrics.toml").read_text(encoding="utf-8"))


def metrics_page() -> str:
    """Return the page of all quantities, with formula, unit, scope, window and aggregation."""
    data = metrics()
    parts = ["# Metrics\n", data["words"].strip()]
    for group in data["group"]:
        parts += [f"\n## {group['title']}\n", group["words"].strip()]
        parts += [_metric(metric) for metric in group["metric"]]
    return "\n".join(parts) + "\n"


def _metric(metric: dict[str, Any]) -> str:
    facts = {
        "unit": metric["unit"],
        "scope": " or ".join(metric["scope"]),
        "window": " or ".join(metric["window"]),
        "aggregation": " or ".join(metric["aggregation"]),
    }
    names = ", ".join(f"`{name}`" for name in metric["names"])
    line = "; ".join(f"{name}: {value}" for name, value in facts.items())
    return f"\n### {metric['title']}\n\n{names}\n\n{metric['formula']}\n\n*{line}*"
