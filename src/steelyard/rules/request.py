"""Rules on what a request for computing time rests on (SY315, SY510). Knows rows of figures, no form and no site."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.rules.rule import Example, TableRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import Finding
    from steelyard.rules.table.row import Amount, Row, RowTable

ASKED = "requested_device_hours"
"""The figure by which a row is a request: device-hours, in a unit of time."""
NO_PLAN = 1.0


def _requests(table: RowTable) -> Iterator[tuple[Row, float]]:
    for row in table.rows:
        devices = row.number("devices")
        if ASKED in row.figures and devices:
            yield row, devices


class JobNotMeasured(TableRule):
    """Time is asked for at a number of devices that nobody measured."""

    code = "SY315"
    name = "requested-job-not-measured"
    severity = "disclose"
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
    remedy = "measure the job at the number of devices that is asked for, or ask for one that was measured"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """One finding for each request."""
        counts = sorted({row.number("devices") or 0.0 for row in table.rows if "throughput" in row.figures} - {0.0})
        for row, devices in _requests(table):
            if not counts or devices in counts:
                continue
            beyond = devices > counts[-1]
            said = f"beyond {counts[-1]:g}" if beyond else f"at {devices:g}"
            yield self.found(
                f"{devices:g} devices are asked for, but nothing was measured {said}",
                place=row.place,
                evidence=f"measured at {', '.join(f'{count:g}' for count in counts)} devices",
            )


class HoursDoNotFollow(TableRule):
    """Device-hours that are not what the plan beside them gives."""

    code = "SY510"
    name = "device-hours-do-not-follow"
    severity = "blocks"
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
    remedy = "state the buffer and the failed runs that are in the hours, or work them out again"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """One finding for each request that states its plan."""
        for row, devices in _requests(table):
            runs, time = row.figures.get("trainings"), row.figures.get("train_time")
            if runs is None or time is None:
                continue
            low, high = (self._hours(row, devices, runs, time, end) for end in ("low", "high"))
            asked = row.figures[ASKED]
            if asked.high < low or asked.low > high:
                value = self._hours(row, devices, runs, time, "value")
                yield self.found(
                    f"{asked.value / 3600:.5g} device-hours are asked for, but the plan gives {value / 3600:.5g}",
                    place=row.place,
                    evidence=f"{runs.value:g} trainings x {time.value / 3600:.5g} h x {devices:g} devices"
                    f"{_stated(row)}",
                )

    @staticmethod
    def _hours(row: Row, devices: float, runs: Amount, time: Amount, end: str) -> float:
        """Device-seconds at one end of what the digits allow."""
        failed, buffer = row.figures.get("failed_share"), row.figures.get("buffer")
        # A share of all runs, or more, cannot be made good.
        kept = 1 - min(0.99, getattr(failed, end)) if failed is not None else NO_PLAN
        more = 1 + getattr(buffer, end) if buffer is not None else NO_PLAN
        # A count of trainings is exact, whatever zeros it ends in.
        return float(runs.value * getattr(time, end) * devices / kept * more)


def _stated(row: Row) -> str:
    parts = [
        f"{words} {100 * row.figures[name].value:g} %"
        for name, words in (("failed_share", "failed runs"), ("buffer", "buffer"))
        if name in row.figures
    ]
    return "".join(f", {part}" for part in parts) or "; no buffer and no failed runs are stated"
