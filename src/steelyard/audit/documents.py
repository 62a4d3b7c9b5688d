"""The built-in reference catalogue: published tables that come with the package, and their provenance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Annotated

from steelyard import plugins
from steelyard.audit.table import parse_platforms, parse_table
from steelyard.contracts.base import AtLeastOne, Contract, Length, Text
from steelyard.inputs.validate import parse_object, parse_toml

if TYPE_CHECKING:
    from steelyard.rules.table.row import Platform, RowTable

CLAIMS_FILE = "claims.toml"


@dataclass(frozen=True, kw_only=True)
class Provenance(Contract):
    """Where a table comes from, what was measured, and what its document does not state."""

    title: Text
    authors: Annotated[tuple[Text, ...], Length(50)]
    year: AtLeastOne | None = None
    """None if the document does not state it."""
    published: Text
    address: Text = ""
    """Empty if unknown."""
    measured: Text
    typed_in: Text
    unknown: Annotated[tuple[Text, ...], Length(50)]

    def cited(self) -> str:
        """Return authors, title, year and address in one line."""
        first = self.authors[0] + (" and others" if len(self.authors) > 2 else "")
        who = " and ".join(self.authors) if len(self.authors) == 2 else first
        return f"{who}: {self.title} ({self.year or 'year unknown'}; {self.address or 'address unknown'})"


@cache
def provenances() -> dict[str, Provenance]:
    """Return the provenance of every document, by name."""
    data = parse_toml(_read("provenance.toml"), "the built-in provenance")
    return {name: parse_object(Provenance, entry, name) for name, entry in data.items()}


def names() -> list[str]:
    """Return the names of the documents, sorted."""
    return sorted(provenances())


def provenance(name: str) -> Provenance:
    """Return the provenance of one document; raise InputError if it does not exist."""
    if name not in provenances():
        raise plugins.unknown("reference table", name, names())
    return provenances()[name]


@cache
def load(name: str) -> RowTable:
    """Return the rows and machines of one document; raise InputError if it does not exist."""
    provenance(name)
    return parse_table(_read(f"{name}.csv").decode("utf-8"), name, platforms())


@cache
def platforms() -> tuple[Platform, ...]:
    """Return the machines that the documents describe."""
    return parse_platforms(_read("platforms.csv").decode("utf-8"), "the built-in platforms")


def claims_text() -> bytes:
    """Return the claims of all documents as TOML."""
    return _read(CLAIMS_FILE)


def _read(name: str) -> bytes:
    return (resources.files("steelyard") / "reference" / name).read_bytes()
