"""What stands on a page of a built-in document, as pages.toml says it. Knows the form; draws nothing."""

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
    """As `steelyard compare` takes it, without the name of the document; empty: all rows."""


@dataclass(frozen=True, kw_only=True)
class PairLayout(Contract):
    """Rows B compared with rows A, of which one setting is meant to differ."""

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
    """Labels of its groups; empty: all of the section."""
    columns: Texts = ()
    """Of a curve the one that is drawn."""
    pairs: Annotated[tuple[PairLayout, ...], Length(50)] = ()
    answers: bool = False
    ideal: bool = False
    level: Positive | None = None
    logarithmic: bool = False


@dataclass(frozen=True, kw_only=True)
class SectionLayout(Contract):
    """One question on a document, and what answers it."""

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
    """Sections of a document in the order of the page; none for a document that has no entry."""
    text = (resources.files("steelyard") / "reference" / "pages.toml").read_bytes()
    entries = parse_toml(text, "the built-in pages").get(document, ())
    return tuple(parse_object(SectionLayout, entry, f"the page of {document}") for entry in entries)
