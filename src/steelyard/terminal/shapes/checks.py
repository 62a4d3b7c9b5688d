"""What the verbs print that check tables, claims and figures, and those that share results."""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import TypedDict

from steelyard.contracts.finding import Finding
from steelyard.terminal.shapes.common import Counts, FigureData
from steelyard.terminal.shapes.measure import ExpectedData


class AssertedData(TypedDict):
    """An assertion of a claim."""

    asserts: str
    verdict: str
    recomputed: str
    findings: list[Finding]


class JudgedClaimData(TypedDict):
    """A claim and its verdict."""

    id: str
    document: str
    kind: str
    text: str
    place: str
    asserted: str
    published: str | None
    recomputed: str
    verdict: str
    assertions: list[AssertedData]
    notes: list[str]


class HeadingData(TypedDict):
    """What a heading of a printed table was taken for."""

    table: int
    heading: str
    meaning: str
    known: bool


class NotReadData(TypedDict):
    """A cell that was not read."""

    place: str
    problem: str


class AuditedData(TypedDict):
    """What was audited, and the findings."""

    name: str
    about: str
    verdict: Literal["consistent", "warnings", "contradictory"]
    findings: list[Finding]
    claims: list[JudgedClaimData]
    read_as: list[HeadingData]
    """Only of printed tables."""
    not_read: list[NotReadData]


class AuditData(TypedDict):
    """The audit of tables, claims and results."""

    shape: Literal["audit/1"]
    audits: list[AuditedData]


class ExpectData(TypedDict):
    """`steelyard expect`."""

    shape: Literal["expect/1"]
    expected: list[ExpectedData]


class ImportedFileData(TypedDict):
    """A file with results of another benchmark."""

    name: str
    format: str
    figures: int


class ImportedData(TypedDict):
    """Results of others that were read."""

    shape: Literal["import/1"]
    files: list[ImportedFileData]
    rows: int
    left_out: Counts
    """Values that were left out, by reason."""
    skipped: int
    """Files in no known format."""
    table: str
    """The file with the rows."""


class ChecklistLineData(TypedDict):
    """A requirement of a proposal form."""

    id: str
    demand: str
    sections: list[str]
    answered: bool
    to_do: list[str]


class BasisData(TypedDict):
    """Where the rate at the requested number of devices comes from."""

    kind: str
    devices: int | None
    largest: int


class DerivedTermData(FigureData):
    """A line of the derivation."""

    symbol: str
    what: str
    formula: str
    """Uses other symbols in braces; empty: given, or measured."""
    origin: str
    runs: list[str]


class PackData(TypedDict):
    """The performance and resources part of a proposal."""

    shape: Literal["pack/1"]
    selection: str
    plan: dict[str, Any]
    """What was planned: samples, trainings, devices, epochs, buffer, failures, checkpoints, limit of a job."""
    tariff: dict[str, Any] | None
    """How the site charges."""
    basis: BasisData
    measured_jobs: int
    failures: dict[str, Any] | None
    derivation: list[DerivedTermData]
    not_counted: list[str]
    pages: float | None
    appendix: bool
    passes: bool
    findings: list[Finding]
    checklists: dict[str, list[ChecklistLineData]]
    files: list[str]


class SchemeData(TypedDict):
    """A proposal form."""

    name: str
    title: str
    where: str
    state: str
    seen: int
    source: str
    address: str
    place: str
    demands: list[str]


class PackSchemesData(TypedDict):
    """`steelyard pack --schemes`."""

    shape: Literal["pack-schemes/1"]
    schemes: list[SchemeData]


class RuleExampleData(TypedDict):
    """An example of a rule."""

    text: str
    says: str
    factor: str


class RuleShownData(TypedDict):
    """A rule."""

    code: str
    name: str
    severity: str
    subject: str
    why: str
    detected: str
    fix: str
    bad: RuleExampleData
    good: RuleExampleData


class ExplainData(TypedDict):
    """`steelyard explain`: codes, or without a name all of them. A name of a schema prints that JSON Schema alone."""

    shape: Literal["explain/1"]
    codes: list[RuleShownData]
    schemas: list[str]


class ExplainSettingsData(TypedDict):
    """`steelyard explain settings`: the names of settings by what they affect."""

    shape: Literal["explain-settings/1"]
    settings: dict[str, list[str]]
