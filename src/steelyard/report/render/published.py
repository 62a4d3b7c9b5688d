"""Findings as they may be published: without commands that name folders of the machine they were measured on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from steelyard.inputs.command import published_command
from steelyard.terminal.findings import by_code

if TYPE_CHECKING:
    from collections.abc import Iterable

    from steelyard.contracts.finding import Finding
    from steelyard.terminal.findings import Group


def published_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings without the commands that must not be published."""
    return tuple(replace(finding, command=published_command(finding.command)) for finding in findings)


def published_groups(findings: Iterable[Finding]) -> list[Group]:
    """Return findings by code, as pages show them."""
    return by_code(published_findings(findings))
