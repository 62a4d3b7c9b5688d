"""Figures and configurations, the same in every document."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from steelyard.contracts.finding import Finding
from steelyard.contracts.record import Validity

Settings = dict[str, bool | int | float | str]
"""By the names that `steelyard explain settings` lists, and those of a study file."""
Counts = dict[str, int]


class FigureData(TypedDict):
    """A number with its interval."""

    value: float | None
    low: float | None
    """Lower end of the interval."""
    high: float | None
    """Upper end of the interval."""
    level: float | None
    """Level of the interval, such as 0.95; null: there is none. Ends without a level are those of printed digits."""
    unit: str
    """1 for shares and ratios."""
    jobs: int
    """Number of jobs behind the value, of a ratio on both sides. With 1 the interval is of the steps of this job."""
    reason: str | None
    """Why the value is unknown."""
    approximate: list[str] | None
    """Why the interval is only approximate; empty: its coverage is verified. Null: calculated from other figures."""
    method: str | None
    """How the interval was calculated."""
    scope: str | None
    """What the number is of: the job, a device, a rank."""
    window: str | None
    """The part of the run that it comes from."""
    validity: Validity | None
    """Energy and power: whether the number is valid."""


class ConfigurationData(TypedDict):
    """One configuration of a study: its settings, its jobs, and its throughput."""

    study: str
    configuration: str
    """The settings that distinguish it from the others shown."""
    selection: str
    """Selects this configuration on the command line."""
    settings: Settings
    """In effect, as far as they are known."""
    statuses: Counts
    """Number of runs by how they ended."""
    jobs: int
    """Runs that were measured."""
    nodes: list[str]
    throughput: FigureData
    unreliable: list[str]
    """Why the throughput must not be ranked; empty: it is reliable."""
    findings: list[Finding]


class ShownConfigurationData(ConfigurationData):
    """A configuration with all its figures."""

    figures: dict[str, FigureData]
    """By metric; those that all measured jobs have."""
    shorter_runs: int
    """Runs with a shorter budget, which are not counted."""
    runs: list[str]
    """Ids of the runs."""


class BadValueData(TypedDict):
    """A value that is not valid."""

    field: str
    problem: str
    valid: str


class ErrorShownData(TypedDict):
    """What went wrong."""

    message: str
    problems: list[BadValueData]
    next: str | None
    exit_code: int


class ErrorData(TypedDict):
    """Instead of any document: the command failed before it had a result."""

    shape: Literal["error/1"]
    error: ErrorShownData
