"""The formats of printed figures that steelyard knows, from formats.toml beside this module."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Annotated, Literal, get_args

from steelyard.contracts.base import Contract, Length, Name, Text
from steelyard.errors import InputError, Problem
from steelyard.inputs.validate import parse_object, parse_toml

Kind = Literal["step", "elapsed", "loss", "step_time", "samples_per_s", "tokens_per_s", "rate", "flops_per_s", "mfu"]
"""rate: per second, but whether of samples or of tokens the format does not tell."""
Told = Literal["device", "job", "unknown"]
Per = Literal["step", "batch", "iteration"]
"""What one unit of progress is; an iteration can be a step or a batch."""
Over = Literal["step", "interval", "recent", "run"]
"""What a figure is a mean of: one step, the steps since the last line, recent steps, or all of the run so far."""

# Every part is bounded or possessive: the time to read a line grows with its length only.
_NUMBER = r"(?<![\d.,eE])(?P<n>[-+]?+\d{1,18}+(?:,\d{3}){0,5}+(?:\.\d{0,20}+)?+(?:[eE][-+]?\d{1,3}+)?+)(?!\d)"
_PARTS = {
    "<n>": _NUMBER,
    "<i>": r"(?P<n>\d{1,15}+)",
    "<k>": "(?P<k>[kKMG]?)",
    "<t>": r"(?P<n>(?:\d{1,4}:)?\d{1,2}:\d\d)",
}


@dataclass(frozen=True, kw_only=True)
class FigurePattern(Contract):
    """Where one figure is in a line."""

    kind: Kind
    word: Text = ""
    """In every line that has the figure, in small letters; quicker to try than the expression."""
    find: Text
    unit: Text
    scope: Told = "unknown"
    per: Per = "step"
    over: Over = "step"
    once: bool = False
    """Further ones of a line are left out."""

    @property
    def expression(self) -> re.Pattern[str]:
        """Return the compiled expression; the standard library keeps it."""
        return _compiled(self.find)


@dataclass(frozen=True, kw_only=True)
class ExampleLine(Contract):
    """A line of a trainer and the figures in it."""

    line: Text
    gives: dict[str, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True)
class PrintedFormat(Contract):
    """How one trainer prints its figures."""

    name: Name
    source: Text
    """Public repository and file with the format string."""
    marks: Annotated[tuple[Text, ...], Length(10)]
    """Text that every line of the format has."""
    needs: Text = ""
    """Expression that every line of the format has; quick to try."""
    unless: Text = ""
    """Expression of lines that look alike, but are not of training."""
    wording: bool = False
    """Whether the words around a figure tell its scope."""
    figures: Annotated[tuple[FigurePattern, ...], Length(40)]
    example: Annotated[tuple[ExampleLine, ...], Length(20)]

    def has(self, line: str) -> bool:
        """Return whether a line is of this format."""
        if not all(mark in line for mark in self.marks) or (self.needs and not _compiled(self.needs).search(line)):
            return False
        return not (self.unless and _compiled(self.unless).search(line))


@cache
def _compiled(text: str) -> re.Pattern[str]:
    for short, part in _PARTS.items():
        text = text.replace(short, part)
    return re.compile(text)


@cache
def known_formats() -> tuple[PrintedFormat, ...]:
    """Return all formats in the order in which they are tried."""
    text = (resources.files("steelyard.derive") / "printed" / "formats.toml").read_bytes()
    entries = parse_toml(text, "the built-in formats of printed figures")["format"]
    return tuple(parse_object(PrintedFormat, entry, "a built-in format of printed figures") for entry in entries)


def chosen_formats(name: str | None) -> tuple[PrintedFormat, ...]:
    """Return the formats to try: all, or those of one trainer with its variants such as huggingface-loss."""
    if name is None:
        return known_formats()
    chosen = tuple(one for one in known_formats() if one.name == name or one.name.startswith(f"{name}-"))
    # The progress bars of these are the same as everybody's.
    if name == "huggingface":
        chosen += tuple(one for one in known_formats() if one.name == "tqdm")
    if not chosen:
        names = ", ".join(one.name for one in known_formats())
        problem = Problem("figures", f"{name} is not a known format of printed figures", names)
        raise InputError("the format of the printed figures is not known", problems=(problem,))
    return chosen


KINDS: tuple[str, ...] = get_args(Kind)
