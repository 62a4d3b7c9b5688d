"""The rule on requested device-hours that do not follow from their plan (SY510). Knows rows of figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.rules.rule import Example, TableRule
from steelyard.rules.table.requests import ASKED, requests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import Finding
    from steelyard.rules.table.row import Amount, Row, RowTable


class HoursDoNotFollow(TableRule):
    """Device-hours that are not what the plan beside them gives."""

    code = "SY510"
    name = "device-hours-do-not-follow"
    severity = "error"
    why = (
        "Device-hours are trainings times time times devices, with the failed runs and the buffer that are stated. A "
        "sum that does not come out hides an overhead, or is a slip that costs a project its time."
    )
    detected = (
        f"{ASKED} of a row lies outside what its own trainings x train_time x devices / (1 - failed_share) x (1 + "
        "buffer) allow within the digits that are printed. What a row does not state of share and buffer is none."
    )
    bad = Example(
        f"devices,metric,value,unit\n32,trainings,20,\n32,train_time,5.25,h\n32,{ASKED},4410,h\n",
        "20 x 5.25 h x 32 are 3,360 device-hours; where the other 1,050 come from is not said.",
    )
    good = Example(
        f"devices,metric,value,unit\n32,trainings,20,\n32,train_time,5.25,h\n32,buffer,25,%\n32,{ASKED},4200,h\n",
        "With the stated buffer of 25 % they are 4,200.",
    )
    fix = "state the buffer and the failed runs that are in the hours, or work them out again"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """One finding for each request that states its plan."""
        for row, devices in requests(table):
            runs, time = row.figures.get("trainings"), row.figures.get("train_time")
            if runs is None or time is None:
                continue
            low, high = (self._compute_hours(row, devices, runs, time, end) for end in ("low", "high"))
            asked = row.figures[ASKED]
            if asked.high < low or asked.low > high:
                value = self._compute_hours(row, devices, runs, time, "value")
                stated = "".join(
                    f", {words} {100 * row.figures[name].value:g} %"
                    for name, words in (("failed_share", "failed runs"), ("buffer", "buffer"))
                    if name in row.figures
                )
                yield self.found(
                    f"{asked.value / 3600:.5g} device-hours are asked for, but the plan gives {value / 3600:.5g}",
                    place=row.place,
                    evidence=f"{runs.value:g} trainings x {time.value / 3600:.5g} h x {devices:g} devices"
                    + (stated or "; no buffer and no failed runs are stated"),
                )

    @staticmethod
    def _compute_hours(row: Row, devices: float, runs: Amount, time: Amount, end: str) -> float:
        """Device-seconds at one end of what the digits allow."""
        failed, buffer = row.figures.get("failed_share"), row.figures.get("buffer")
        # A share of all runs, or more, cannot be made good.
        kept = 1 - min(0.99, getattr(failed, end)) if failed is not None else 1.0
        more = 1 + getattr(buffer, end) if buffer is not None else 1.0
        # A count of trainings is exact, whatever zeros it ends in.
        return float(runs.value * getattr(time, end) * devices / kept * more)
