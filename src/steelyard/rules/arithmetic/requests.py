"""Table rule: requested device-hours that do not match the stated plan (SY510)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.numbers import short
from steelyard.rules.rule import Example, TableRule
from steelyard.rules.table.requests import ASKED, requests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.finding import Finding
    from steelyard.rules.table.row import Amount, Row, RowTable


class HoursDoNotFollow(TableRule):
    """Requested device-hours that the plan in the same row does not give."""

    code = "SY510"
    name = "device-hours-mismatch"
    severity = "error"
    why = (
        "Device-hours are trainings x time x devices, plus the stated failures and buffer. If the request does not "
        "match, it hides an overhead, or a mistake that costs the project compute time."
    )
    detected = (
        f"{ASKED} differs from trainings x train_time x devices / (1 - failed_share) x (1 + buffer) of the same row by "
        "more than the rounding of the printed digits. failed_share is the share of the hours that failures waste; a "
        "failed_share or buffer that is not stated counts as 0."
    )
    bad = Example(
        f"devices,metric,value,unit\n32,trainings,20,\n32,train_time,5.25,h\n32,{ASKED},4410,h\n",
        "20 x 5.25 h x 32 devices is 3,360 device-hours; nothing explains the other 1,050.",
    )
    good = Example(
        f"devices,metric,value,unit\n32,trainings,20,\n32,train_time,5.25,h\n32,buffer,25,%\n32,{ASKED},4200,h\n",
        "With the stated buffer of 25 % it is 4,200 device-hours.",
    )
    fix = "state the buffer and the failures that the hours include, or recompute the hours"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """Yield one finding per request whose stated plan gives other hours."""
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
                    for name, words in (("failed_share", "lost to failures"), ("buffer", "buffer"))
                    if name in row.figures
                )
                yield self.found(
                    f"{short(asked.value / 3600, 5)} device-hours are requested, but the plan gives "
                    f"{short(value / 3600, 5)}",
                    place=row.place,
                    evidence=f"{runs.value:g} trainings x {short(time.value / 3600, 5)} h x {devices:g} devices"
                    + (stated or "; no buffer or failures stated"),
                )

    @staticmethod
    def _compute_hours(row: Row, devices: float, runs: Amount, time: Amount, end: str) -> float:
        """Return the planned device-seconds from one bound (`low`, `high`) or the `value` of each figure."""
        failed, buffer = row.figures.get("failed_share"), row.figures.get("buffer")
        # Avoid a division by zero if everything is lost.
        kept = 1 - min(0.99, getattr(failed, end)) if failed is not None else 1.0
        more = 1 + getattr(buffer, end) if buffer is not None else 1.0
        # The number of trainings is exact, even if it ends in zeros.
        return float(runs.value * getattr(time, end) * devices / kept * more)
