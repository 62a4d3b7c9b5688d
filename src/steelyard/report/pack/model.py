"""What an allocation pack is written from. Knows the parts; writes none of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steelyard.analysis.energy import CellEnergy
    from steelyard.analysis.request import Request
    from steelyard.analysis.scaling import Scaling
    from steelyard.analysis.summary import CellSummary
    from steelyard.audit.subject import Audit
    from steelyard.contracts.record import Finding
    from steelyard.inputs.scheme import SchemeFile


@dataclass(frozen=True)
class Pack:
    """Everything that a pack is written from."""

    selection: str
    cells: tuple[CellSummary, ...]
    """One a number of devices."""
    curve: Scaling | None
    no_curve: str
    """Why there is none."""
    request: Request
    projected: tuple[Finding, ...]
    """On a projection that goes far, where the plan rests on one."""
    energies: tuple[CellEnergy, ...]
    schemes: tuple[SchemeFile, ...]
    study_audit: Audit
    own_audit: Audit
    """Of what the pack itself prints."""
    table_csv: str
    claims_toml: str
    pages: int | None = None
    """Of the part to be handed in, where it was set; None: no PDF was made."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """On the runs, on the curve and its projection, and on what the pack prints."""
        curve = self.curve.findings if self.curve else ()
        return (*self.study_audit.findings, *curve, *self.projected, *self.own_audit.findings)

    @property
    def simulated(self) -> bool:
        """Whether any run is of the simulated device."""
        return any(record.spec.device_family == "sim" for cell in self.cells for record in cell.records)
