"""Pair rules on the jobs of two rows (SY205 to SY213): how many, where and when, how steady, with which errors."""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING

from steelyard.inputs.command import extend, join, run_longer
from steelyard.numbers import count_in
from steelyard.rules.rule import Example, PairRule, find_rule
from steelyard.rules.table.phrases import describe_trend
from steelyard.rules.table.settings import about_rate, alike, nodes_of, shown, stated
from steelyard.stats.ratio import (
    DRIFT,
    MIN_JOBS,
    TREND_LIMIT,
    JobTime,
    apart,
    one_after_the_other,
    shown_trend,
    too_large,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.finding import Finding
    from steelyard.rules.table.row import Pair, Row

# The windows that records use for rates: both are without the slow first steps. Jobs of one row may differ.
STEP_WINDOWS = {"steady", "after start-up", "after start-up or steady"}


def job_count(row: Row, metric: str) -> int:
    """Return the number of jobs behind a figure. A printed figure counts as one job unless its row says otherwise."""
    amount = row.figures.get(metric)
    if amount is not None and amount.jobs:
        return len(amount.jobs)
    jobs = row.get("jobs")
    return 1 if jobs is None else count_in(shown(jobs)) or 1


class TooFewJobs(PairRule):
    """Too few jobs for a ranking."""

    code = "SY205"
    name = "too-few-jobs"
    severity = "warning"
    why = (
        "Two jobs of the same program differ by a few percent, because of the node, the allocation or the time of day. "
        "One job does not show this noise, so it is not known whether a ratio is more than noise."
    )
    detected = (
        f"One side has fewer than {MIN_JOBS} jobs. A printed figure counts as one job unless a column `jobs` says how "
        "many were averaged."
    )
    bad = Example(
        "system,model,jobs,metric,value,unit\nA,ResNet50,1,throughput,1000,images/s\nB,ResNet50,1,throughput,1030,images/s\n",
        "One job on each side: the 3 % may be noise.",
    )
    good = Example(
        "system,model,jobs,metric,value,unit\nA,ResNet50,5,throughput,1000,images/s\nB,ResNet50,5,throughput,1030,images/s\n",
        "Five jobs on each side.",
    )
    fix = "run each side at least three times, better five times, on different nodes"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """Yield one finding for both sides."""
        a, b = job_count(pair.a, pair.metric), job_count(pair.b, pair.metric)
        if min(a, b) < MIN_JOBS:
            message = f"{a} and {b} jobs; a ranking needs at least {MIN_JOBS} on each side"
            sides = [(row.spec, MIN_JOBS - jobs) for row, jobs in ((pair.a, a), (pair.b, b)) if jobs < MIN_JOBS]
            command = join(*(extend(spec, repeats=missing) for spec, missing in sides if spec is not None))
            yield self.found(message, place=pair.b.place, command=command)


class OneNodeOnly(PairRule):
    """All jobs of a side ran on one node."""

    code = "SY206"
    name = "one-node-only"
    severity = "warning"
    why = (
        "Nodes of one type differ in cooling, clocks or replaced memory. Jobs on one node show how well that node "
        "repeats its result, not what another node will reach."
    )
    detected = (
        "A side has two jobs or more and names only one node. It is a note if both sides ran on this node: then their "
        "ratio is not a difference between nodes."
    )
    bad = Example(
        "system,model,jobs,node,metric,value,unit\n"
        "A,ResNet50,5,n1,throughput,1000,images/s\nB,ResNet50,5,m7,throughput,1030,images/s\n",
        "Ten jobs, but only two nodes: the 3 % may be the difference between n1 and m7.",
    )
    good = Example(
        "system,model,jobs,node,metric,value,unit\n"
        'A,ResNet50,5,"n1,n2,n3",throughput,1000,images/s\nB,ResNet50,5,"m1,m2,m3",throughput,1030,images/s\n',
        "Three nodes on each side.",
    )
    fix = "run the jobs on several nodes, or state that the ratio applies only to these nodes"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """Yield one finding that names the nodes."""
        rows = (pair.a, pair.b)
        sides = [nodes_of(row) for row in rows if job_count(row, pair.metric) > 1]
        single = {name for names in sides if len(names) == 1 for name in names}
        if single:
            jobs = "all jobs of each side" if len(single) > 1 else "all jobs"
            names = ", ".join(sorted(single))
            same = {*nodes_of(pair.a)} == {*nodes_of(pair.b)} == single
            yield self.found(
                f"{jobs} ran on one node ({names}); other nodes may differ",
                place=pair.b.place,
                severity="note" if same else None,
            )


class UnsoundRuns(PairRule):
    """Runs with errors cannot be compared."""

    code = "SY207"
    name = "runs-with-errors"
    severity = "error"
    why = (
        "A run with wrong clocks, with missing ranks or with impossible figures has no valid figure. A ratio with that "
        "figure is not valid either."
    )
    detected = "A run of one side has an error, such as SY501 or SY601."
    bad = Example(
        "system,model,findings,metric,value,unit\n"
        "A,ResNet50,,throughput,1000,images/s\nB,ResNet50,SY501,throughput,1030,images/s\n",
        "The parts of B's step times do not add up: its figure is not valid.",
    )
    good = Example(
        "system,model,findings,metric,value,unit\n"
        "A,ResNet50,,throughput,1000,images/s\nB,ResNet50,,throughput,1030,images/s\n",
        "The runs of both sides have no errors.",
    )
    fix = "fix the errors, then rerun that side"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """Yield one finding per side whose runs have errors."""
        for row in (pair.a, pair.b):
            codes = shown(row.get("findings")).split() if row.get("findings") is not None else []
            if codes:
                named = [f"{code} {known.name}" if (known := find_rule(code)) is not None else code for code in codes]
                yield self.found(
                    f"its runs have errors: {', '.join(named)}",
                    place=row.place,
                    fix=f"fix {' and '.join(codes)}, then rerun that side",
                    command=_show_study(row),
                )


class OtherWindow(PairRule):
    """Two figures from different parts of a run."""

    code = "SY208"
    name = "different-window"
    severity = "error"
    why = (
        "The first steps of a run are slow: memory is allocated, kernels are compiled and tuned. A figure over all "
        "steps includes them, a figure from the steady state does not."
    )
    detected = (
        "Both sides state which part of the run their figure comes from, and these differ. `steady` and `after "
        "start-up`, the windows of our own records, are both without the slow first steps."
    )
    bad = Example(
        "system,model,window,metric,value,unit\n"
        "A,ResNet50,steady,throughput,1000,images/s\nB,ResNet50,first epoch,throughput,700,images/s\n",
        "B's figure includes compilation, A's does not.",
    )
    good = Example(
        "system,model,window,metric,value,unit\n"
        "A,ResNet50,steady,throughput,1000,images/s\nB,ResNet50,steady,throughput,990,images/s\n",
        "Both figures come from the steady state.",
    )
    fix = "take both figures from the same part of a run"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """Yield one finding with both windows."""
        a, b = stated(pair.a, "window"), stated(pair.b, "window")
        if a is None or b is None or {shown(a), shown(b)} <= STEP_WINDOWS:
            return
        if alike("window", a, b) == "different":
            yield self.found(
                f"the figures come from different parts of a run: {shown(a)} vs {shown(b)}", place=pair.b.place
            )


class JobsLost(PairRule):
    """Some jobs of a side did not complete."""

    code = "SY209"
    name = "failed-jobs"
    severity = "warning"
    why = (
        "Jobs that ran out of memory or time are not in the mean. The mean covers only the jobs that went well, so a "
        "side that loses half of its jobs looks better than it is."
    )
    detected = "Some jobs of one side did not complete."
    bad = Example(
        "system,model,jobs,jobs_lost,metric,value,unit\n"
        "A,ResNet50,5,,throughput,1000,images/s\nB,ResNet50,3,2 out_of_memory,throughput,1300,images/s\n",
        "Two of B's five jobs ran out of memory.",
    )
    good = Example(
        "system,model,jobs,jobs_lost,metric,value,unit\n"
        "A,ResNet50,5,,throughput,1000,images/s\nB,ResNet50,5,,throughput,1300,images/s\n",
        "All jobs of both sides completed.",
    )
    fix = "find out why they failed, run them again, and report how many failed with the ratio"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """Yield one finding per side with failed jobs."""
        for row in (pair.a, pair.b):
            lost = row.get("jobs_lost")
            if lost is not None:
                message = f"jobs that did not complete: {shown(lost)}; completed: {job_count(row, pair.metric)}"
                command = extend(row.spec) if row.spec is not None and row.spec.study_arguments else _show_study(row)
                yield self.found(message, place=row.place, command=command)


class UnsteadyJobs(PairRule):
    """Too few jobs to compare runs without a steady state."""

    code = "SY213"
    name = "unsteady-jobs"
    severity = "warning"
    why = (
        "The mean of a run that wanders, or that has few steps, depends on when it was stopped. From three jobs on, "
        "the spread between the jobs shows by how much, and the interval contains it. One or two jobs do not show it."
    )
    detected = (
        f"Jobs of one side have no steady state: a warning with at least {MIN_JOBS} jobs on that side, an error with "
        "fewer. Figures that do not depend on the steady state, such as a memory peak, have a warning at most."
    )
    bad = Example(
        "system,model,jobs,unsteady_jobs,metric,value,unit\n"
        "A,ResNet50,3,,throughput,1000,images/s\nB,ResNet50,2,2,throughput,1030,images/s\n",
        "B has two jobs, and neither has a steady state: the 3 % may come from when they were stopped.",
    )
    good = Example(
        "system,model,jobs,unsteady_jobs,metric,value,unit\n"
        "A,ResNet50,3,,throughput,1000,images/s\nB,ResNet50,3,,throughput,1030,images/s\n",
        "All jobs of both sides have a steady state.",
    )
    fix = "run each side at least three times"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """Yield one finding per side with such jobs."""
        for row in (pair.a, pair.b):
            unsteady = row.number("unsteady_jobs")
            if unsteady:
                jobs = job_count(row, pair.metric)
                said = f"{unsteady:g} of {jobs} jobs without a steady state"
                if jobs >= MIN_JOBS:
                    fix = "nothing has to be done; more jobs narrow the interval"
                    yield self.found(f"{said}; the interval over jobs contains this", place=row.place, fix=fix)
                    continue
                yield self.found(
                    f"{said}; {MIN_JOBS} jobs would show how much that matters",
                    place=row.place,
                    severity="error" if about_rate(pair) else "warning",
                    command=extend(row.spec, repeats=MIN_JOBS - jobs) if row.spec is not None else "",
                )


class TrendInJobs(PairRule):
    """All jobs of a side get slower or faster during each run."""

    code = "SY211"
    name = "trend-in-jobs"
    severity = "error"
    why = (
        "If every job gets slower from its beginning to its end, the mean depends on the length of the job: a longer "
        "one gives another figure. The spread between jobs of one length does not show this."
    )
    detected = (
        "The mean log step time of the last third of each job is compared with that of its first third, without the "
        "slow first steps and with clipped spikes. If Student's t over the jobs shows a trend at the 1 % level, or "
        "with the variance of both sides at the 0.2 % level, the interval of a ratio is widened by it (a warning). "
        f"Above {100 * TREND_LIMIT:g} % there is no ratio, only a bound if the difference is larger than the trend (an "
        "error)."
    )
    bad = Example(
        "system,model,jobs,trend_percent,metric,value,unit\n"
        "A,ResNet50,5,,throughput,1000,images/s\nB,ResNet50,5,3.4,throughput,1030,images/s\n",
        "B gets slower by 3.4 % during each job: a longer job would not be 3 % faster than A.",
    )
    good = Example(
        "system,model,jobs,trend_percent,metric,value,unit\n"
        "A,ResNet50,5,,throughput,1000,images/s\nB,ResNet50,5,,throughput,1030,images/s\n",
        "No trend is shown on either side.",
    )
    fix = "run longer jobs until the trend ends, or find out what changes during the run (clocks, memory, input)"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """Yield one finding per side with a trend."""
        for row, other in ((pair.a, pair.b), (pair.b, pair.a)):
            trend = shown_trend(row.jobs, other.jobs) if row.jobs else _stated_trend(row)
            if trend is None or not about_rate(pair):
                continue
            far = too_large(trend)
            then = "a ratio would depend on the length of the jobs" if far else "the interval is widened by this"
            yield self.found(
                f"{describe_trend(trend)}; {then}",
                place=row.place,
                severity="error" if far else "warning",
                command=run_longer(row.spec, MIN_JOBS) if row.spec is not None else "",
            )


def _stated_trend(row: Row) -> float | None:
    percent = row.number("trend_percent")
    return math.log1p(percent / 100) if percent else None


class OneAfterTheOther(PairRule):
    """The jobs of one side ran before those of the other."""

    code = "SY212"
    name = "one-after-the-other"
    severity = "warning"
    why = (
        "A node changes with temperature, other users and updates. If one side is measured in the morning and the "
        "other in the afternoon, this change looks like a difference between the sides. Jobs in mixed order share it."
    )
    detected = (
        "All jobs of one side ended before the first job of the other began. On the same node the interval allows for "
        f"a drift, {100 * DRIFT:g} % unless another is given or the history of the node shows one, and the sides are "
        "ranked only beyond it. On different nodes there is only this warning."
    )
    bad = Example(
        "system,model,jobs,node,began,ended,metric,value,unit\n"
        "A,ResNet50,5,n1,2026-11-02T08:00,2026-11-02T09:00,throughput,1000,images/s\n"
        "B,ResNet50,5,n1,2026-11-02T15:00,2026-11-02T16:00,throughput,1030,images/s\n",
        "A ran in the morning, B in the afternoon: the node may have changed by 3 %.",
    )
    good = Example(
        "system,model,jobs,node,began,ended,metric,value,unit\n"
        'A,ResNet50,5,"n1,n2",2026-11-02T08:00,2026-11-02T16:00,throughput,1000,images/s\n'
        'B,ResNet50,5,"n1,n2",2026-11-02T08:10,2026-11-02T16:10,throughput,1030,images/s\n',
        "The jobs of both sides ran in mixed order.",
    )
    fix = "measure both sides in one study, which runs their jobs in mixed order"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """Yield one finding for both sides."""
        a, b = _jobs(pair.a), _jobs(pair.b)
        if one_after_the_other(a, b):
            names = ", ".join(sorted({job.node for job in a} & {job.node for job in b}))
            yield self.found(
                f"the sides ran one after the other on {names}, which may have changed", place=pair.b.place
            )
        elif a and b and apart(a, b):
            yield self.found("the sides ran at different times, on different nodes", place=pair.b.place)


def _jobs(row: Row) -> list[JobTime]:
    """Return when and where the jobs of a row ran; of a printed row, its nodes with the whole time."""
    if row.jobs:
        return list(row.jobs)
    try:
        began, ended = (datetime.fromisoformat(str(row.get(key))).timestamp() for key in ("began", "ended"))
    except (ValueError, OverflowError, OSError):
        return []
    return [JobTime(1.0, node, began, ended) for node in sorted(nodes_of(row)) or [""]]


def _show_study(row: Row) -> str:
    """Return the command that shows a study with its findings; empty for a published row."""
    return f"steelyard show {row.spec.study}" if row.spec is not None else ""
