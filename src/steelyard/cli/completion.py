"""Print the completion script of a shell, made from the parsers of all verbs."""

import argparse
from pathlib import Path

import shtab

from steelyard import plugins
from steelyard.cli.main import VERBS
from steelyard.cli.parser import Parser
from steelyard.cli.verb import make_parser
from steelyard.terminal.document import print_json

# Arguments that name something registered, by kind.
REGISTERED = {"workload": "workload", "device": "device", "format": "data"}


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
            _add_values(each)
    return whole


def _add_values(parser: Parser) -> None:
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to list what a parser takes
        if action.dest in REGISTERED:
            action.choices = plugins.names(REGISTERED[action.dest])
        elif action.type is Path:
            action.complete = shtab.DIRECTORY if action.metavar in ("DIR", "FOLDER") else shtab.FILE  # type: ignore[attr-defined]
