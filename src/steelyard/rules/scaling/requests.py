"""The rule on requests for a job that nobody measured (SY315). Knows rows of figures, no form and no site."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.rules.rule import Example, TableRule
from steelyard.rules.table.requests import ASKED, requests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import Finding
    from steelyard.rules.table.row import RowTable


class JobNotMeasured(TableRule):
    """Time is asked for at a number of devices that nobody measured."""

    code = "SY315"
    name = "requested-job-not-measured"
    severity = "warning"
    why = (
        "What a job loses on more devices is known only where it was measured. Hours for a larger job rest on a curve "
        "that was drawn further, and they are too few where the curve bends; forms ask for data up to the largest job."
    )
    detected = (
        f"A row with the figure {ASKED} stands at a number of devices at which the table has no throughput, although "
        "it has some at other numbers."
    )
    bad = Example(
        f"devices,metric,value,unit\n1,throughput,100,images/s\n8,throughput,760,images/s\n64,{ASKED},5200,h\n",
        "Measured up to 8 devices, asked for 64.",
    )
    good = Example(
        f"devices,metric,value,unit\n1,throughput,100,images/s\n64,throughput,5900,images/s\n64,{ASKED},5200,h\n",
        "The job that is asked for was measured.",
    )
    fix = "measure the job at the number of devices that is asked for, or ask for one that was measured"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """One finding for each request."""
        counts = sorted({row.number("devices") or 0.0 for row in table.rows if "throughput" in row.figures} - {0.0})
        for row, devices in requests(table):
            if not counts or devices in counts:
                continue
            beyond = devices > counts[-1]
            said = f"beyond {counts[-1]:g}" if beyond else f"at {devices:g}"
            yield self.found(
                f"{devices:g} devices are asked for, but nothing was measured {said}",
                place=row.place,
                evidence=f"measured at {', '.join(f'{count:g}' for count in counts)} devices",
            )
