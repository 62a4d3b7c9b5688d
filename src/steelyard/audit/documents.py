"""The built-in reference catalogue: published tables that came with the package, and where each comes from.

Knows files and provenance; judges nothing. A measured run can be put beside these rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Annotated

from steelyard.audit.table import parse_platforms, parse_table
from steelyard.contracts.base import AtLeastOne, Contract, Length, Text
from steelyard.errors import InputError, Problem
from steelyard.inputs.validate import parse_object, parse_toml

if TYPE_CHECKING:
    from steelyard.rules.table.row import Platform, RowTable

CLAIMS_FILE = "claims.toml"


@dataclass(frozen=True, kw_only=True)
class Provenance(Contract):
    """Where a table comes from, what was measured, and what its document leaves open."""

    title: Text
    authors: Annotated[tuple[Text, ...], Length(50)]
    year: AtLeastOne | None = None
    """None: the document does not say."""
    published: Text
    address: Text = ""
    """Empty: not known."""
    measured: Text
    typed_in: Text
    unknown: Annotated[tuple[Text, ...], Length(50)]

    def cited(self) -> str:
        """Authors, title, year and address in one line."""
        first = self.authors[0] + (" and others" if len(self.authors) > 2 else "")
        who = " and ".join(self.authors) if len(self.authors) == 2 else first
        return f"{who}: {self.title} ({self.year or 'year unknown'}; {self.address or 'address unknown'})"


@cache
def provenances() -> dict[str, Provenance]:
    """Of every document, by name."""
    data = parse_toml(_read("provenance.toml"), "the built-in provenance")
    return {name: parse_object(Provenance, entry, name) for name, entry in data.items()}


def names() -> list[str]:
    """Names of the documents."""
    return sorted(provenances())


def provenance(name: str) -> Provenance:
    """Of one document; InputError when there is none of that name."""
    if name not in provenances():
        problem = Problem("table", f"no reference table is called {name!r}", ", ".join(names()))
        raise InputError("unknown reference table", problems=(problem,), next_step="steelyard audit --reference")
    return provenances()[name]


@cache
def load(name: str) -> RowTable:
    """The rows of one document, with the machines they name; InputError when there is none of that name."""
    provenance(name)
    return parse_table(_read(f"{name}.csv").decode("utf-8"), name, platforms())


@cache
def platforms() -> tuple[Platform, ...]:
    """The machines that the documents describe."""
    return parse_platforms(_read("platforms.csv").decode("utf-8"), "the built-in platforms")


def claims_text() -> bytes:
    """The claims of all documents, in the claims language."""
    return _read(CLAIMS_FILE)


def _read(name: str) -> bytes:
    return (resources.files("steelyard") / "reference" / name).read_bytes()
