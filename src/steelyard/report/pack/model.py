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
    from steelyard.contracts.finding import Finding
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
    pages: float | None = None
    """Pages of the section to submit, the last one in part, in tenths; None if no PDF was made."""
    appendix: bool = False
    """Whether some of it is in an appendix, to keep the page limit."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings on the runs, the curve and its projection, and the numbers in the pack."""
        curve = self.curve.findings if self.curve else ()
        return (*self.study_audit.findings, *curve, *self.projected, *self.own_audit.findings)

    @property
    def passes(self) -> bool:
        """Whether neither the study nor the numbers in the pack have errors, and no claim is contradicted."""
        return "contradictory" not in (self.study_audit.verdict, self.own_audit.verdict)

    @property
    def simulated(self) -> bool:
        """Whether any run used the simulated device."""
        return any(record.spec.device_family == "sim" for cell in self.cells for record in cell.records)
