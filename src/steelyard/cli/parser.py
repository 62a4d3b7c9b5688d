"""The argument parser of all verbs: short help, and errors of two lines that suggest the nearest valid name.

Imports the standard library alone, so that help and option errors appear at once.
"""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from typing import TYPE_CHECKING, Any, NoReturn

from steelyard.errors import InputError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HELP_COLUMN = 28
MOST_COLUMNS = 100
SHOWN_VALUE = 60
_LONG = re.compile(r"--[^\s=]+(=.*)?", re.DOTALL)
_SHORT = re.compile(r"-[A-Za-z].*", re.DOTALL)


class OptionError(InputError):
    """An option or argument that is not valid; the second line names the command that lists what is."""

    def __init__(self, what: str, command: str) -> None:
        super().__init__(what, next_step=f"{command} --help")


class Parser(argparse.ArgumentParser):
    """Takes whole option names only and raises OptionError; never prints usage on an error."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            **{
                "formatter_class": HelpText,
                "add_help": False,
                "allow_abbrev": False,
                "exit_on_error": False,
                **settings,
            }
        )
        self._positionals.title = "arguments"
        self._typed: Sequence[str] = ()
        self._first_words: dict[str, Parser] = {}

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse as argparse does, but report an unknown option before a missing argument."""
        self._typed = list(args or ())
        if self._typed and self._typed[0] in self._first_words:
            arguments, rest = self._first_words[self._typed[0]].parse_known_args(self._typed[1:], namespace)
            arguments.action = self._typed[0]
            return arguments, rest
        self._require_known_names()
        try:
            arguments, rest = super().parse_known_args(self._typed, namespace)
        except argparse.ArgumentError as error:
            names = (error.argument_name or "").split("/")
            name = next((name for name in names if self._was_typed(name)), names[0])
            message = _plain(error.message)
            self.refuse(f"{name}: {message}" if name else message)
        if rest:
            self.refuse(f"{_short(rest[0])}: unexpected argument")
        return arguments, rest

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing usage and exiting."""
        self.refuse(_plain(message))

    def refuse(self, what: str) -> NoReturn:
        """Raise an error that ends with the command that lists what is valid."""
        raise OptionError(what, self.prog)

    def add_first_word(self, name: str, description: str) -> Parser:
        """Add an action to a verb that takes arguments itself, such as `new` of `study FILE`: it must come first."""
        self.set_defaults(action=None)
        self._first_words[name] = Parser(prog=f"{self.prog} {name}", description=description)
        return self._first_words[name]

    def actions(self) -> dict[str, Parser]:
        """The parsers of the actions of this verb, such as `check` of `steelyard site`."""
        return self._first_words | {
            name: inner
            for action in self._actions
            if isinstance(action, argparse._SubParsersAction)  # noqa: SLF001 - argparse has no public name for it
            for name, inner in action.choices.items()
        }

    def _require_known_names(self) -> None:
        inner = {name: each for name, each in self.actions().items() if name not in self._first_words}
        for word in self._typed:
            if word == "--":
                return
            if _LONG.fullmatch(word) or _SHORT.fullmatch(word):
                name = word.partition("=")[0] if word.startswith("--") else word[:2]
                if name not in self._option_string_actions:
                    ours = _option_for(name, self._option_string_actions)
                    hint = f"; did you mean {ours}?" if ours else did_you_mean(name, self._option_string_actions)
                    self.refuse(f"{_short(name)}: unknown option{hint}")
            elif inner:
                if word not in inner:
                    self.refuse(f"{_short(word)}: must be {_listed(inner)}{did_you_mean(word, inner)}")
                # What follows is for the parser of the action.
                return

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            self._refuse_value(action, arg_string, error.message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            hint = did_you_mean(str(value), choices)
            self._refuse_value(action, str(value), f"must be {_listed(choices)}{hint}")

    def _refuse_value(self, action: argparse.Action, value: str, problem: str) -> NoReturn:
        names = [name for name in action.option_strings if self._was_typed(name)] or action.option_strings[:1]
        name = names[0] if names else action.metavar or action.dest.upper()
        self.refuse(f"{name} {_short(value) or _NO_TEXT}: {problem}")

    def _was_typed(self, name: str) -> bool:
        return any(word.partition("=")[0] == name for word in self._typed)


class HelpText(argparse.HelpFormatter):
    """Help with a one-line usage, and descriptions that keep their paragraphs and example commands."""

    def __init__(self, prog: str, **settings: Any) -> None:
        columns = shutil.get_terminal_size().columns - 2
        super().__init__(prog, **{"max_help_position": HELP_COLUMN, "width": min(columns, MOST_COLUMNS), **settings})

    def add_usage(
        self, usage: str | None, actions: Iterable[argparse.Action], groups: Any, prefix: str | None = None
    ) -> None:
        """List the arguments only; the options are below."""
        if usage is None:
            places = [place(action) for action in actions if not action.option_strings]
            usage = " ".join([self._prog, "[options]", *places])
        super().add_usage(usage.replace("%", "%%"), [], groups, prefix)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = [
            textwrap.indent(part, "  ")
            if part.startswith("$ ")
            else textwrap.fill(" ".join(part.split()), width, break_on_hyphens=False)
            for part in paragraphs(text)
        ]
        return textwrap.indent("\n\n".join(filled), indent)

    def _format_action(self, action: argparse.Action) -> str:
        text = super()._format_action(action)
        # The group of the actions of a verb has a title already.
        return text.partition("\n")[2] if action.nargs == argparse.PARSER else text

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        return f"{', '.join(action.option_strings)} {self._format_args(action, action.dest.upper())}"

    def _split_lines(self, text: str, width: int) -> list[str]:
        # Not inside an option name or a path.
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False)


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a description. Those that begin with `$ ` are example commands, one per line."""
    return [part.strip() for part in text.split("\n\n") if part.strip()]


def place(action: argparse.Action) -> str:
    """An argument as usage shows it: `FILE`, `[STUDY]` or `[FILE ...]`."""
    name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    shapes = {"?": "[{}]", "*": "[{} ...]", "+": "{} ..."}
    if action.nargs == argparse.PARSER:
        shapes[argparse.PARSER] = "{} ..." if action.required else "[{} ...]"
    return shapes.get(str(action.nargs), "{}").replace("{}", name)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for the nearest known name, or nothing."""
    near = nearest(name[:SHOWN_VALUE], known)
    return f"; did you mean {near}?" if near else ""


def _option_for(name: str, known: Iterable[str]) -> str:
    """Return the option for a setting that other tools call so; empty if there is none."""
    # Imported late: most command lines have no mistake.
    from steelyard.inputs.synonyms import STUDY

    words = STUDY.get(name.lstrip("-").replace("-", "_"), "").removeprefix("run.").replace("_", "-").split(".")
    options = ("--" + "-".join(words), f"--{words[-1]}")
    return next((option for option in options if option in known), "")


def _listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


_NO_TEXT = "''"


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_VALUE else text[: SHOWN_VALUE - 3] + "..."


def _plain(message: str) -> str:
    """A message of argparse in our own terms."""
    for theirs, ours in (
        (r"the following arguments are required: (.*)", r"missing: \1"),
        (r"expected (?:one argument|at least one argument)", "needs a value"),
        (r"ignored explicit argument .*", "takes no value"),
        (r"not allowed with argument (.*)", r"cannot be used with \1"),
    ):
        message = re.sub(theirs, ours, message, flags=re.DOTALL)
    return message
