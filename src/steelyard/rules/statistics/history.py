"""Table rule: a figure that changed over time (SY220)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from steelyard.numbers import short
from steelyard.rules.rule import Example, TableRule
from steelyard.rules.table.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from steelyard.contracts.finding import Finding
    from steelyard.rules.table.row import Row, RowTable
    from steelyard.stats.drift import Change

DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
# Settings that may change over time within one history. If one changes together with the figure, it is a likely cause.
AROUND = ("software", "environment", "evidence")
MIN_ROWS = 2
MAX_ROWS = 10_000
SHOWN = 6


class Drifted(TableRule):
    """A figure that changed over time."""

    code = "SY220"
    name = "figure-drifted"
    severity = "warning"
    why = (
        "Readers take a figure for the current speed of the machine. If it changed at some date (new driver, new "
        "library, throttling), figures from before and after are not comparable, and their mean describes neither."
    )
    detected = (
        "Rows with the same settings whose note begins with a date (2026-11-15) are one figure over time. For every "
        "date, the difference between earlier and later rows is computed in standard errors. The largest is a change "
        "if noise alone would produce it in at most 1 % of histories. With 8 rows or more the standard error comes "
        "from the rows, otherwise from their jobs."
    )
    bad = Example(
        "system,metric,value,unit,note\n"
        "A,throughput,1003.1,images/s,2026-03-01\n"
        "A,throughput,998.7,images/s,2026-03-08\n"
        "A,throughput,1001.9,images/s,2026-03-15\n"
        "A,throughput,997.2,images/s,2026-03-22\n"
        "A,throughput,1002.4,images/s,2026-03-29\n"
        "A,throughput,948.8,images/s,2026-04-05\n"
        "A,throughput,951.6,images/s,2026-04-12\n"
        "A,throughput,947.3,images/s,2026-04-19\n"
        "A,throughput,950.2,images/s,2026-04-26\n",
        "The machine has been 5 % slower since 5 April; a mean over all nine weeks hides it.",
    )
    good = Example(
        "system,metric,value,unit,note\n"
        "A,throughput,1003.1,images/s,2026-03-01\n"
        "A,throughput,998.7,images/s,2026-03-08\n"
        "A,throughput,1001.9,images/s,2026-03-15\n"
        "A,throughput,997.2,images/s,2026-03-22\n"
        "A,throughput,1002.4,images/s,2026-03-29\n"
        "A,throughput,999.8,images/s,2026-04-05\n"
        "A,throughput,1000.6,images/s,2026-04-12\n"
        "A,throughput,998.3,images/s,2026-04-19\n"
        "A,throughput,1001.2,images/s,2026-04-26\n",
        "The figure varies from week to week, but there is no change point.",
    )
    fix = "find out what changed on that date, and report only figures measured since then"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """Yield one finding per change."""
        # It imports numpy, which `steelyard explain` can do without.
        from steelyard.stats.drift import changes

        for metric, rows in _group_histories(table):
            amounts = [row.figures[metric] for row in rows]
            values = [amount.jobs or (amount.value,) for amount in amounts]
            if any(value <= 0 for jobs in values for value in jobs):
                continue
            # Ignore changes that rounding alone can explain.
            rounding = max((amount.high - amount.low for amount in amounts if not amount.jobs), default=0.0)
            for step in changes(values):
                if abs(step.after - step.before) > rounding:
                    yield self._report_step(metric, rows, step)

    def _report_step(self, metric: str, rows: Sequence[Row], step: Change) -> Finding:
        percent = 100 * (step.ratio - 1)
        word = "higher" if percent > 0 else "lower"
        day = _read_day(rows[step.index])
        unit = rows[0].figures[metric].unit
        between = ""
        if step.earliest != step.latest:
            between = f" (or from another day, {_read_day(rows[step.earliest])} to {_read_day(rows[step.latest])})"
        p_percent = 100 * step.p_value
        chance = f"less than {p_percent:.2g} %" if p_percent < 0.1 else f"{p_percent:.1g} %"
        around = _find_changed(rows[: step.index], rows[step.index :])
        evidence = (
            f"{short(step.before, 5)} {unit} before, {short(step.after, 5)} since; "
            f"noise alone would produce this in {chance} of histories"
        )
        if step.unit == "jobs":
            evidence += ", if days differ no more than the jobs of one day do"
        return self.found(
            f"{metric} is {abs(percent):.1f} % {word} since {day}{between}",
            place=rows[step.index].place,
            evidence="; ".join([evidence, *([f"changed at the same time: {around}"] if around else [])]),
        )


def _group_histories(table: RowTable) -> Iterator[tuple[str, list[Row]]]:
    """Yield each metric with its rows over time, oldest first."""
    groups: dict[tuple[str, tuple[object, ...]], list[Row]] = {}
    for row in table.rows[:MAX_ROWS]:
        if DATE.match(row.note):
            same = [(key, str(row.get(key))) for key, role in SETTINGS.items() if role not in AROUND]
            for metric in row.figures:
                groups.setdefault((metric, (row.source, *same)), []).append(row)
    for (metric, _), rows in groups.items():
        if len(rows) >= MIN_ROWS:
            yield metric, sorted(rows, key=lambda row: row.note)


def _read_day(row: Row) -> str:
    return row.note[:10]


def _find_changed(before: Sequence[Row], after: Sequence[Row]) -> str:
    """Return the software and environment settings with one value in all rows before and another in all rows after."""
    changed = []
    for key, role in SETTINGS.items():
        if role not in ("software", "environment"):
            continue
        first, second = ({row.get(key) for row in rows} for rows in (before, after))
        if len(first) == len(second) == 1 and None not in first | second and first != second:
            changed.append(f"{key} {first.pop()} -> {second.pop()}")
    return "; ".join(changed[:SHOWN])
