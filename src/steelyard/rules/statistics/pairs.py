"""Rules on how many jobs stand behind two figures, where they ran, and how sound they were (SY205 to SY209).

Knows counts and names; the statistics of the ratio are in `stats.ratio`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.rules.rule import Example, PairRule, find_rule
from steelyard.rules.table.settings import about_rate, alike, nodes_of, shown, stated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import Finding
    from steelyard.rules.table.row import Pair, Row

# How our own records name the part of a run that rates come from, and the findings that are about that part.
STEP_WINDOWS = {"steady", "all steps", "all steps or steady"}
OF_STEPS = ("SY201",)
MIN_JOBS = 3
"""On each side, before anything is ranked."""


def job_count(row: Row, metric: str) -> int:
    """Jobs behind a figure. A printed figure counts as one job unless its source says otherwise."""
    amount = row.figures.get(metric)
    if amount is not None and amount.jobs:
        return len(amount.jobs)
    said = row.get("jobs")
    text = shown(said)
    return int(text) if said is not None and text.isdigit() else 1


class TooFewJobs(PairRule):
    """Too few jobs to rank anything."""

    code = "SY205"
    name = "too-few-jobs"
    severity = "warning"
    why = (
        "Two jobs of one and the same program differ by a few percent: another node, another allocation, another hour. "
        "How much they differ cannot be seen in one job, so that nobody can say if a ratio is more than chance."
    )
    detected = (
        f"Fewer than {MIN_JOBS} jobs on one of the sides. A printed figure counts as one job unless a column `jobs` "
        "says how many were averaged."
    )
    bad = Example(
        "system,model,jobs,metric,value,unit\nA,ResNet50,1,throughput,1000,images/s\nB,ResNet50,1,throughput,1030,images/s\n",
        "One job on each side: 3 % may be nothing.",
    )
    good = Example(
        "system,model,jobs,metric,value,unit\nA,ResNet50,5,throughput,1000,images/s\nB,ResNet50,5,throughput,1030,images/s\n",
        "Five jobs on each side.",
    )
    fix = "launch each side at least three times (--repeats 3), better five, on different nodes"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """One finding for both sides."""
        a, b = job_count(pair.a, pair.metric), job_count(pair.b, pair.metric)
        if min(a, b) < MIN_JOBS:
            message = f"{a} against {b} jobs: with fewer than {MIN_JOBS} on a side nothing is ranked"
            yield self.found(message, place=pair.b.place)


class OneNodeOnly(PairRule):
    """All jobs of a side ran on one node."""

    code = "SY206"
    name = "one-node-only"
    severity = "warning"
    why = (
        "Nodes of one type differ: cooling, clocks, memory that was replaced. Jobs that all ran on one node show how "
        "that node repeats itself, and not how the next node will do."
    )
    detected = "A side has two jobs or more, says where they ran, and names one node only."
    bad = Example(
        "system,model,jobs,node,metric,value,unit\n"
        "A,ResNet50,5,n1,throughput,1000,images/s\nB,ResNet50,5,m7,throughput,1030,images/s\n",
        "Ten jobs, but two nodes: the 3 % may be the difference between n1 and m7 alone.",
    )
    good = Example(
        "system,model,jobs,node,metric,value,unit\n"
        'A,ResNet50,5,"n1,n2,n3",throughput,1000,images/s\nB,ResNet50,5,"m1,m2,m3",throughput,1030,images/s\n',
        "Three nodes on each side.",
    )
    fix = "spread the jobs over several nodes; else say that the ratio speaks for these nodes only"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """One finding that names the nodes."""
        sides = [nodes_of(row) for row in (pair.a, pair.b) if job_count(row, pair.metric) > 1]
        single = {name for names in sides if len(names) == 1 for name in names}
        if single:
            jobs = "the jobs of each side" if len(single) > 1 else "the jobs"
            names = ", ".join(sorted(single))
            yield self.found(f"{jobs} ran on one node ({names}), for which alone they speak", place=pair.b.place)


class UnsoundRuns(PairRule):
    """Runs that are not fit to be believed are not fit to be compared."""

    code = "SY207"
    name = "unsound-runs"
    severity = "error"
    why = (
        "A run that never became steady, whose clocks disagree or whose ranks are missing has no figure that stands "
        "for it. Divided by another, it does not become sounder."
    )
    detected = (
        "A run of one of the sides has a finding of its own that blocks, such as SY201, SY501 or SY601. No steady "
        "state (SY201) is disclosed beside figures that need none, such as a time to quality or a memory peak."
    )
    bad = Example(
        "system,model,findings,metric,value,unit\n"
        "A,ResNet50,,throughput,1000,images/s\nB,ResNet50,SY201,throughput,1030,images/s\n",
        "B had no steady state: run longer, it would have another figure.",
    )
    good = Example(
        "system,model,findings,metric,value,unit\n"
        "A,ResNet50,,throughput,1000,images/s\nB,ResNet50,,throughput,1030,images/s\n",
        "Neither side's runs have a finding that blocks.",
    )
    fix = "mend what the code says and run that side again: `steelyard show STUDY` has the details"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """One finding a side."""
        for row in (pair.a, pair.b):
            codes = shown(row.get("findings")).split() if row.get("findings") is not None else []
            if codes:
                bearable = not about_rate(pair) and all(code in OF_STEPS for code in codes)
                named = [f"{code} {known.name}" if (known := find_rule(code)) is not None else code for code in codes]
                yield self.found(
                    f"its own runs have findings that block: {', '.join(named)}",
                    place=row.place,
                    severity="warning" if bearable else "error",
                )


class OtherWindow(PairRule):
    """Two figures of different parts of a run."""

    code = "SY208"
    name = "other-window"
    severity = "error"
    why = (
        "The first steps of a run are slow: memory is allocated, kernels are compiled and tuned. A figure over all "
        "steps contains them, a figure of the steady part does not."
    )
    detected = (
        "Both sides say which part of the run their figure comes from, and these differ. A figure that does not come "
        "from single steps, such as a time to quality, is not asked for its steady part."
    )
    bad = Example(
        "system,model,window,metric,value,unit\n"
        "A,ResNet50,steady,throughput,1000,images/s\nB,ResNet50,first epoch,throughput,700,images/s\n",
        "B pays for its compilation within the figure, A does not.",
    )
    good = Example(
        "system,model,window,metric,value,unit\n"
        "A,ResNet50,steady,throughput,1000,images/s\nB,ResNet50,steady,throughput,990,images/s\n",
        "Both figures come from the steady part.",
    )
    fix = "take both figures from the same part of a run"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """One finding with both windows."""
        a, b = stated(pair.a, "window"), stated(pair.b, "window")
        of_steps = {shown(a), shown(b)} <= STEP_WINDOWS
        if a is None or b is None or (of_steps and not about_rate(pair)):
            return
        if alike("window", a, b) == "different":
            yield self.found(
                f"the figures come from different parts of a run: {shown(a)} against {shown(b)}", place=pair.b.place
            )


class JobsLost(PairRule):
    """Some jobs of a side gave no figure."""

    code = "SY209"
    name = "jobs-lost"
    severity = "warning"
    why = (
        "Jobs that ran out of memory or time are not in the mean. What is left are the jobs that went well, and a side "
        "that loses half of its jobs is not as good as its figure."
    )
    detected = "Jobs of one of the sides did not complete."
    bad = Example(
        "system,model,jobs,jobs_lost,metric,value,unit\n"
        "A,ResNet50,5,,throughput,1000,images/s\nB,ResNet50,3,2 out_of_memory,throughput,1300,images/s\n",
        "Two of B's five jobs ran out of memory.",
    )
    good = Example(
        "system,model,jobs,jobs_lost,metric,value,unit\n"
        "A,ResNet50,5,,throughput,1000,images/s\nB,ResNet50,5,,throughput,1300,images/s\n",
        "Every job of both sides completed.",
    )
    fix = "find out why they failed (`steelyard show STUDY`), and say beside the ratio how many did"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """One finding a side."""
        for row in (pair.a, pair.b):
            lost = row.get("jobs_lost")
            if lost is not None:
                message = f"jobs without a figure: {shown(lost)}; with a figure: {job_count(row, pair.metric)}"
                yield self.found(message, place=row.place)
