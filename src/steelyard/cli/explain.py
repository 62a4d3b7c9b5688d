"""Say what a code of a finding means: why it matters, how it is detected, a bad and a good example, the fix."""

import argparse
import json

from steelyard.errors import InputError
from steelyard.rules.rule import Rule, codes, rule
from steelyard.terminal.rule import overview, rule_object, terminal


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument("codes", nargs="*", metavar="CODE", help="such as SY301, or its name; nothing: all of them")


def run(arguments: argparse.Namespace) -> int:
    """Explain; exit code 2 when there is no such code."""
    found = [_find(word) for word in arguments.codes] or [rule(code) for code in codes()]
    if arguments.json:
        print(json.dumps([rule_object(entry) for entry in found]))
    elif not arguments.codes:
        print("\n".join(overview()))
        print("\nsteelyard explain CODE says what one of them means")
    else:
        print("\n\n".join("\n".join(terminal(entry)) for entry in found))
    return 0


def _find(word: str) -> Rule:
    """By code or by name."""
    named = [made for made in map(rule, codes()) if made.name == word.lower()]
    if named:
        return named[0]
    try:
        return rule(word.upper())
    except InputError as error:
        raise InputError(
            f"no rule is called {word!r}", problems=error.problems, next_step="steelyard explain"
        ) from None
