"""Explain codes of findings, or list the fields of a file format."""

import argparse
import importlib
import json
import re

from steelyard.cli.main import VERBS
from steelyard.cli.parser import did_you_mean
from steelyard.errors import InputError, nearest
from steelyard.rules.rule import Rule, codes, find_rule, rule
from steelyard.rules.table.settings import setting_groups
from steelyard.terminal.document import print_json
from steelyard.terminal.fields import field_lines, field_words
from steelyard.terminal.rule import overview, rule_object, settings_lines, terminal
from steelyard.terminal.text import table, wrapped

CODE = re.compile(r"SY\d{3}", re.IGNORECASE)
SCHEMAS = {
    "run-spec": (
        "steelyard.contracts.spec:RunSpec",
        "settings of a run: [run] of a study, and `steelyard run --set`",
    ),
    "study": ("steelyard.inputs.study:Study", "study file"),
    "suite": ("steelyard.inputs.suite:Suite", "suite file"),
    "recipe": ("steelyard.inputs.recipe:Recipe", "recipe file of `steelyard verify`"),
    "site": ("steelyard.inputs.site:Site", "site file"),
    "run-record": ("steelyard.contracts.record:RunRecord", "record of a run"),
}
"""Each file format with its class, as "module:class" because most uses need none of them, and what it is."""


def run(arguments: argparse.Namespace) -> int:
    """Explain; exit code 2 when a name is unknown."""
    if arguments.schema:
        _print_output_schema(arguments.names)
        return 0
    if arguments.names == ["settings"]:
        groups = setting_groups()
        if arguments.json:
            print_json({"shape": "explain-settings/1", "settings": groups})
        else:
            print("\n".join(settings_lines(groups)))
        return 0
    if arguments.names and arguments.names[0] in SCHEMAS and set(arguments.names[1:]).isdisjoint(SCHEMAS):
        _print_fields(*arguments.names, as_json=arguments.json)
        return 0
    rules = [_find(name) for name in arguments.names] or [rule(code) for code in codes()]
    if arguments.json:
        listed = [] if arguments.names else list(SCHEMAS)
        print_json({"shape": "explain/1", "codes": [rule_object(entry) for entry in rules], "schemas": listed})
    elif arguments.names:
        print("\n\n".join("\n".join(terminal(entry)) for entry in rules))
    else:
        schemas = table(["schema", "of"], [[name, text] for name, (_, text) in SCHEMAS.items()])
        outputs = wrapped("What a verb prints with --json: steelyard explain VERB --schema")
        next_step = "next: steelyard explain CODE, steelyard explain SCHEMA, or steelyard explain settings"
        print("\n".join([*overview(), "", schemas, "", *outputs, "", next_step]))
    return 0


def _print_fields(name: str, *words: str, as_json: bool) -> None:
    """Print the fields of a file format; with words only those whose name has one of them."""
    from steelyard.inputs.study import NOT_SET
    from steelyard.inputs.validate import json_schema

    module, _, attribute = SCHEMAS[name][0].partition(":")
    schema = json_schema(getattr(importlib.import_module(module), attribute))
    if as_json and words:
        raise InputError(f"{words[0]}: --json prints the whole schema", next_step=f"steelyard explain {name} --json")
    if as_json:
        print(json.dumps(schema, indent=None))
        return
    lines = field_lines(schema, words, NOT_SET if name == "run-spec" else ())
    if not lines:
        hint = did_you_mean(words[0], field_words(schema))
        raise InputError(f"{' or '.join(words)}: in no name of a field{hint}", next_step=f"steelyard explain {name}")
    said = f"{SCHEMAS[name][1]}. As a JSON Schema: steelyard explain {name} --json"
    print("\n".join([*wrapped(f"{said[:1].upper()}{said[1:]}", deeper=""), "", *lines]))


def _print_output_schema(names: list[str]) -> None:
    """Print the schema of what one verb prints with --json."""
    if len(names) != 1 or names[0] not in VERBS:
        given = " ".join(names) or "nothing"
        hint = did_you_mean(given, VERBS)
        raise InputError(f"--schema: {given} is not one verb{hint}", next_step="steelyard explain show --schema")
    # It takes a second to build.
    from steelyard.terminal.shapes import output_schema

    print(json.dumps(output_schema(names[0]), indent=2))


def _find(name: str) -> Rule:
    """The rule with this code or name."""
    if entry := find_rule(name.upper()):
        return entry
    rules = {made.name: made for made in map(rule, codes())}
    if name.lower() in rules:
        return rules[name.lower()]
    if name in SCHEMAS:
        raise InputError(f"{name}: print one schema at a time", next_step=f"steelyard explain {name}")
    if name in VERBS:
        what = f"{name} is a verb; with --schema, the JSON Schema of its output is printed"
        raise InputError(what, next_step=f"steelyard explain {name} --schema")
    # A code in the right form is no slip of another one.
    known = () if CODE.fullmatch(name) else codes()
    near = nearest(name.upper(), known) or nearest(name.lower(), [*rules, *SCHEMAS, "settings"])
    hint, step = (f"; did you mean {near}?", f"steelyard explain {near}") if near else ("", "steelyard explain")
    raise InputError(f"{name}: unknown code or schema{hint}", next_step=step)
