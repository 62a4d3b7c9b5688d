"""Layout of the pages of the built-in documents, read from pages.toml."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Annotated, Literal

from steelyard.contracts.base import Contract, Length, Positive, Text
from steelyard.inputs.validate import parse_object, parse_toml

Texts = Annotated[tuple[Text, ...], Length(50)]


@dataclass(frozen=True, kw_only=True)
class RowsLayout(Contract):
    """A group of rows."""

    label: Text
    select: Text
    """A selection as in `steelyard compare`, without the name of the document; empty: all rows."""


@dataclass(frozen=True, kw_only=True)
class PairLayout(Contract):
    """Rows B compared with rows A; `factor` is the setting that differs."""

    factor: Text
    a: Text
    b: Text


@dataclass(frozen=True, kw_only=True)
class BlockLayout(Contract):
    """One table, curve or comparison."""

    kind: Literal["table", "curve", "knees", "pairs"]
    name: Text
    title: Text
    of: Texts = ()
    """Labels of its groups; empty: all groups of the section."""
    columns: Texts = ()
    """For a curve, the one column to draw."""
    pairs: Annotated[tuple[PairLayout, ...], Length(50)] = ()
    answers: bool = False
    ideal: bool = False
    level: Positive | None = None
    logarithmic: bool = False


@dataclass(frozen=True, kw_only=True)
class SectionLayout(Contract):
    """One question about a document, and the blocks that answer it."""

    name: Text
    title: Text
    question: Text
    tables: Texts
    kinds: Texts = ()
    figure: Text = "throughput"
    over: Text = ""
    factor: Text = ""
    rows: Annotated[tuple[RowsLayout, ...], Length(50)] = ()
    block: Annotated[tuple[BlockLayout, ...], Length(50)]


@cache
def layouts(document: str) -> tuple[SectionLayout, ...]:
    """Return the sections of a document in the order of the page; none if it has no entry."""
    text = (resources.files("steelyard") / "reference" / "pages.toml").read_bytes()
    entries = parse_toml(text, "the built-in pages").get(document, ())
    return tuple(parse_object(SectionLayout, entry, f"the page of {document}") for entry in entries)
