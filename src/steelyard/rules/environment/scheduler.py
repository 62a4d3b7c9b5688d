"""Run rules on what a scheduler did to a run (SY623, SY624): suspension, and nodes with another time."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

from steelyard.inputs.command import run_again
from steelyard.numbers import short
from steelyard.rules.rule import Example, RunRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.finding import Finding
    from steelyard.contracts.observe import Launch, Scheduled
    from steelyard.contracts.record import RunRecord

TOLERATED_S: Final = 5.0
"""Schedulers report whole seconds, and a task takes a moment to start and to end."""
_LAUNCH: Final = (
    '[launch]\nlauncher = "slurm"\nhost = "n1"\ncommand = ["bash"]\nstarted_at = "{began}"\n'
    "wall_s = 60.0\nexit_code = 0\n"
    '[launch.scheduled]\nscheduler = "slurm"\njob = "7_0"\nstate = "COMPLETED"\nnodes = ["n1"]\n'
    'started_at = "2026-11-17T10:00:00+00:00"\nelapsed_s = 65.0\n'
)


class Suspended(RunRule):
    """The scheduler stopped the processes of the task for a while."""

    code = "SY623"
    name = "suspended"
    severity = "error"
    why = (
        "A scheduler suspends a job to give its node to another one. Clocks go on meanwhile: steps are too long by the "
        "whole pause, and afterwards caches and clocks of the device are cold. The figure is not that of the machine."
    )
    detected = (
        "The scheduler's accounting reports for how long the task was suspended. Without accounting it is unknown."
    )
    bad = Example(
        _LAUNCH.format(began="2026-11-17T10:00:01+00:00") + "suspended_s = 30.0\n", "It was suspended for 30 s."
    )
    good = Example(_LAUNCH.format(began="2026-11-17T10:00:01+00:00"), "It was not suspended.")
    fix = "rerun it where jobs are not suspended: another partition or QOS, or exclusive nodes"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding with the time."""
        scheduled = record.launch.scheduled if record.launch else None
        if scheduled is None or not scheduled.suspended_s:
            return
        others = f"; {scheduled.runs} runs share the task" if scheduled.runs > 1 else ""
        yield self.found(
            f"the scheduler suspended task {scheduled.job} for {short(scheduled.suspended_s)} s{others}",
            command=run_again(record.spec, {}),
        )


class ClockSkew(RunRule):
    """The clock of a node differs from the scheduler's."""

    code = "SY624"
    name = "clock-skew"
    severity = "warning"
    why = (
        "Times of day of this run, its sensors and its node are off. Energy that an outside meter recorded is cut from "
        "the wrong interval, and runs seem to come before or after each other. Step times do not depend on it."
    )
    detected = (
        "By the clock of its first node the run began more than 5 s before the scheduler started the task, or ended "
        "more than 5 s after the task had ended. A smaller difference, or one that a queue hides, is not seen."
    )
    bad = Example(_LAUNCH.format(began="2026-11-17T09:50:00+00:00"), "The node is 10 minutes behind.")
    good = Example(_LAUNCH.format(began="2026-11-17T10:00:01+00:00"), "The run began after its task.")
    fix = "ask the site to synchronise the clock of this node; do not use outside meters for this run"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding with the smallest difference that explains the times."""
        launch = record.launch
        skew_s = clock_skew_s(launch, launch.scheduled) if launch and launch.scheduled else 0.0
        if launch is None or not skew_s:
            return
        node = launch.scheduled.nodes[0] if launch.scheduled and launch.scheduled.nodes else launch.host
        where = "behind" if skew_s < 0 else "ahead of"
        yield self.found(
            f"the clock of node {node} is at least {short(abs(skew_s))} s {where} the scheduler's",
        )


def clock_skew_s(launch: Launch, scheduled: Scheduled) -> float:
    """Return by how much the clock of a run's node is ahead of the scheduler's, at least; 0.0 if it may be right."""
    if scheduled.started_at is None:
        return 0.0
    try:
        began, started = (dt.datetime.fromisoformat(text) for text in (launch.started_at, scheduled.started_at))
        early_s = (began - started).total_seconds()
    except (ValueError, TypeError):
        # Without a time zone, or no time at all.
        return 0.0
    if early_s < -TOLERATED_S:
        return early_s
    if scheduled.elapsed_s is None:
        return 0.0
    late_s = early_s + launch.wall_s - scheduled.elapsed_s - (scheduled.suspended_s or 0.0)
    return late_s if late_s > TOLERATED_S else 0.0
