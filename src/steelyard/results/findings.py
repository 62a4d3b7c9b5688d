"""A record with what its reader must know before using its numbers: the findings of all rules on runs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from steelyard.rules.rule import check

if TYPE_CHECKING:
    from steelyard.contracts.record import RunRecord


def findings(record: RunRecord) -> RunRecord:
    """The record with its findings."""
    return dataclasses.replace(record, findings=check("run", record))
