"""Table rule: requests for a job size that was not measured (SY315)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.rules.rule import Example, TableRule
from steelyard.rules.table.requests import ASKED, requests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.finding import Finding
    from steelyard.rules.table.row import RowTable


class JobNotMeasured(TableRule):
    """Device-hours requested for a number of devices that was not measured."""

    code = "SY315"
    name = "requested-job-not-measured"
    severity = "warning"
    why = (
        "Scaling losses are known only for measured device counts. Hours for a larger job are extrapolated, and too "
        "few if scaling gets worse. Application forms ask for measurements up to the largest job."
    )
    detected = (
        f"A row has {ASKED} for a number of devices without a throughput in the table, although the table has "
        "throughputs for other numbers of devices."
    )
    bad = Example(
        f"devices,metric,value,unit\n1,throughput,100,images/s\n8,throughput,760,images/s\n64,{ASKED},5200,h\n",
        "Measured up to 8 devices, requested for 64.",
    )
    good = Example(
        f"devices,metric,value,unit\n1,throughput,100,images/s\n64,throughput,5900,images/s\n64,{ASKED},5200,h\n",
        "The requested job size was measured.",
    )
    fix = "measure the job at the requested number of devices, or request a number that was measured"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """Yield one finding per request."""
        counts = sorted({row.number("devices") or 0.0 for row in table.rows if "throughput" in row.figures} - {0.0})
        for row, devices in requests(table):
            if not counts or devices in counts:
                continue
            beyond = devices > counts[-1]
            where = f"beyond {counts[-1]:g}" if beyond else f"at {devices:g}"
            yield self.found(
                f"{devices:g} devices are requested, but nothing was measured {where}",
                place=row.place,
                evidence=f"measured at {', '.join(f'{count:g}' for count in counts)} devices",
            )
