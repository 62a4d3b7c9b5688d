"""Print the completion script of a shell, made from the parsers of all verbs."""

import argparse
from pathlib import Path

import shtab

from steelyard import plugins
from steelyard.cli.explain import SCHEMAS
from steelyard.cli.main import VERBS
from steelyard.cli.parser import Parser
from steelyard.cli.verb import make_parser
from steelyard.inputs.scheme import scheme_names
from steelyard.inputs.templates import kinds
from steelyard.results.questions import QUESTIONS
from steelyard.rules.rule import codes
from steelyard.terminal.document import print_json

REGISTERED = {
    "workload": "workload",
    "device": "device",
    "suite.suite": "suite",
    "workloads.name": "workload",
    "data.format": "data",
    "import.format": "importer",
}
"""Arguments, alone or with their verb, that name something registered, by kind."""
STUDIES = (
    "show.what",
    "best.selection",
    "compare.a",
    "compare.b",
    "batch.selection",
    "scaling.selection",
    "energy.selection",
    "report.selection",
    "status.study",
    "pack.study",
)
FILES = ("audit.what", "site.site", "study.site", "pack.site", "best.site")
# Folders of others may have any name: only names that a study can have are printed, as nothing but words.
_RUNS = '"${STEELYARD_RESULTS:-steelyard-results}"/runs'
_BASH = f"""
_steelyard_studies() {{
  local each
  for each in {_RUNS}/"$1"*/; do
    each=${{each%/}}; each=${{each##*/}}
    [[ $each =~ ^[A-Za-z0-9][A-Za-z0-9_.-]*$ ]] && echo "$each"
  done
}}
"""
_ZSH = f"""
_steelyard_studies() {{
  local -a found
  found=({_RUNS}/*(N/:t))
  compadd -a found
}}
"""
_FISH = """
function _steelyard_studies
  set -l home steelyard-results
  set -q STEELYARD_RESULTS; and set home $STEELYARD_RESULTS
  for each in $home/runs/*/
    string match -r '[A-Za-z0-9_.-]+(?=/$)' $each
  end
end
"""
STUDY_NAMES = {
    "bash": "_steelyard_studies",
    "zsh": "_steelyard_studies",
    "fish": "(_steelyard_studies)",
    "preamble": {"bash": _BASH, "zsh": _ZSH, "fish": _FISH},
}


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    script = shtab.complete(_whole_parser(), arguments.shell)
    if arguments.json:
        print_json({"shape": "completion/1", "shell": arguments.shell, "script": script})
    else:
        print(script)
    return 0


def _whole_parser() -> Parser:
    """One parser that has every verb as an action."""
    whole = Parser(prog="steelyard")
    whole.add_argument("--version", action="store_true", help="print the version")
    verbs = whole.add_subparsers(metavar="VERB")
    for name, text in VERBS.items():
        parser = verbs.add_parser(name, help=text, parents=[make_parser(name)])
        for each in (parser, *parser.actions().values()):
            _add_values(each, name)
    return whole


def _add_values(parser: Parser, verb: str) -> None:
    """Say what the arguments of a verb or of one of its actions can be."""
    names = {
        "explain.names": [*codes(), *SCHEMAS, "settings"],
        "query.query": [*QUESTIONS],
        "site.kind": kinds("sites"),
        "pack.scheme": scheme_names(),
    }
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to list what a parser takes
        own = f"{verb}.{action.dest}"
        complete: object = None
        kind = REGISTERED.get(own) or REGISTERED.get(action.dest)
        if own in names or kind:
            action.choices = names.get(own) or plugins.names(str(kind))
        elif own in STUDIES:
            complete = STUDY_NAMES
        elif action.type is Path or own in FILES:
            complete = shtab.DIRECTORY if action.metavar in ("DIR", "FOLDER") else shtab.FILE
        if complete is not None:
            action.complete = complete  # type: ignore[attr-defined]
