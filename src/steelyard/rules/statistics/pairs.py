"""Pair rules on the jobs of two rows (SY205 to SY209): how many, on which nodes, with which errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.inputs.command import extend, join
from steelyard.rules.rule import Example, PairRule, find_rule
from steelyard.rules.table.settings import about_rate, alike, nodes_of, shown, stated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import Finding
    from steelyard.rules.table.row import Pair, Row

# The windows that records use for rates, and the findings that concern only these windows.
STEP_WINDOWS = {"steady", "all steps", "all steps or steady"}
OF_STEPS = ("SY201",)
MIN_JOBS = 3
"""Least number of jobs per side for a ranking."""


def job_count(row: Row, metric: str) -> int:
    """Return the number of jobs behind a figure. A printed figure counts as one job unless its row says otherwise."""
    amount = row.figures.get(metric)
    if amount is not None and amount.jobs:
        return len(amount.jobs)
    jobs = row.get("jobs")
    text = shown(jobs)
    return int(text) if jobs is not None and text.isdigit() else 1


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
    detected = "A side has two jobs or more and names only one node."
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
        sides = [nodes_of(row) for row in (pair.a, pair.b) if job_count(row, pair.metric) > 1]
        single = {name for names in sides if len(names) == 1 for name in names}
        if single:
            jobs = "all jobs of each side" if len(single) > 1 else "all jobs"
            names = ", ".join(sorted(single))
            yield self.found(f"{jobs} ran on one node ({names}); other nodes may differ", place=pair.b.place)


class UnsoundRuns(PairRule):
    """Runs with errors cannot be compared."""

    code = "SY207"
    name = "runs-with-errors"
    severity = "error"
    why = (
        "A run without a steady state, with wrong clocks or with missing ranks has no valid figure. A ratio with that "
        "figure is not valid either."
    )
    detected = (
        "A run of one side has an error, such as SY201, SY501 or SY601. A missing steady state (SY201) is only a "
        "warning for figures that do not depend on it, such as a time to quality or a memory peak."
    )
    bad = Example(
        "system,model,findings,metric,value,unit\n"
        "A,ResNet50,,throughput,1000,images/s\nB,ResNet50,SY201,throughput,1030,images/s\n",
        "B never reached a steady state: a longer run would give another figure.",
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
                tolerable = not about_rate(pair) and all(code in OF_STEPS for code in codes)
                named = [f"{code} {known.name}" if (known := find_rule(code)) is not None else code for code in codes]
                yield self.found(
                    f"its runs have errors: {', '.join(named)}",
                    place=row.place,
                    fix=f"fix {' and '.join(codes)}, then rerun that side",
                    command=_show_study(row),
                    severity="warning" if tolerable else "error",
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
        "Both sides state which part of the run their figure comes from, and these differ. Steady state against all "
        "steps is not a finding for figures that do not come from single steps, such as a time to quality."
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
        of_steps = {shown(a), shown(b)} <= STEP_WINDOWS
        if a is None or b is None or (of_steps and not about_rate(pair)):
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


def _show_study(row: Row) -> str:
    """Return the command that shows a study with its findings; empty for a published row."""
    return f"steelyard show {row.spec.study}" if row.spec is not None else ""
