"""The data of an allocation pack."""

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
    """All analyses behind a pack."""

    selection: str
    cells: tuple[CellSummary, ...]
    """One per number of devices."""
    curve: Scaling | None
    no_curve: str
    """Why there is no curve."""
    request: Request
    projected: tuple[Finding, ...]
    """On a projection far beyond the measurements, if the plan uses one."""
    energies: tuple[CellEnergy, ...]
    schemes: tuple[SchemeFile, ...]
    study_audit: Audit
    own_audit: Audit
    """Audit of the numbers in the pack."""
    table_csv: str
    claims_toml: str
    pages: int | None = None
    """Pages of the section to submit; None if no PDF was made."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings on the runs, the curve and its projection, and the numbers in the pack."""
        curve = self.curve.findings if self.curve else ()
        return (*self.study_audit.findings, *curve, *self.projected, *self.own_audit.findings)

    @property
    def simulated(self) -> bool:
        """Whether any run used the simulated device."""
        return any(record.spec.device_family == "sim" for cell in self.cells for record in cell.records)
