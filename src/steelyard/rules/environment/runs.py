"""Rules on where one run ran (SY601 to SY603): all ranks, enough CPUs, the device that was meant."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from steelyard.rules.rule import Example, RunRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import Finding, RunRecord


class RanksMissing(RunRule):
    """Ranks of the job that left no samples."""

    code = "SY601"
    name = "ranks-missing"
    severity = "error"
    why = "A job's rate is that of all its ranks. Without the samples of some, the slowest may be missing."
    detected = "Fewer ranks have step samples than the job was launched with."
    bad = Example("ranks_seen = 3\nspec.ranks = 4\n", "One rank of four wrote nothing.")
    good = Example("ranks_seen = 4\nspec.ranks = 4\n", "All four ranks wrote their samples.")
    fix = "look at the logs of the missing ranks and run again"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """A finding with how many there are."""
        if record.steps_seen and record.ranks_seen != record.spec.ranks:
            yield self.found(f"samples from {record.ranks_seen} of {record.spec.ranks} ranks")


class TooFewCpus(RunRule):
    """More processes than CPUs."""

    code = "SY602"
    name = "too-few-cpus"
    severity = "warning"
    why = (
        "Loader processes that share a CPU take turns. The figure is then that of the allocation's CPUs, not of the "
        "accelerator, and another CPU count gives another figure."
    )
    detected = "Ranks with their loader processes are more than the CPUs that the job may use (affinity and quota)."
    bad = Example(
        'spec.loader.place = "host"\nspec.loader.workers = 16\nenvironment.facts."cpu.usable" = "8"\n',
        "17 processes on 8 CPUs.",
    )
    good = Example(
        'spec.loader.place = "host"\nspec.loader.workers = 4\nenvironment.facts."cpu.usable" = "8"\n',
        "5 processes on 8 CPUs.",
    )
    fix = "use fewer loader workers a rank, or ask for more CPUs"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """A finding with what would fit."""
        spec, place = record.spec, record.environment
        if spec.loader.workers == 0 or place is None or not place.facts.get("cpu.usable", "").isdigit():
            return
        usable = float(place.facts["cpu.usable"])
        with contextlib.suppress(KeyError, ValueError):
            usable = min(usable, float(place.facts["cgroup.cpu_quota"]))
        # A rank that was bound to CPUs of its own sees these alone.
        ranks = 1 if spec.numa else spec.ranks
        needed = ranks * (1 + spec.loader.workers)
        if needed > usable:
            yield self.found(
                f"{ranks} ranks with {spec.loader.workers} loader workers each are {needed} processes on "
                f"{usable:g} usable CPUs: they take turns",
                fix=f"use at most {max(0, int(usable // ranks) - 1)} loader workers a rank, or ask for more CPUs",
            )


class FellBack(RunRule):
    """The CPU was used although the node has accelerators."""

    code = "SY603"
    name = "fell-back-to-cpu"
    severity = "warning"
    why = (
        "A torch build that cannot use the node's accelerator runs on the CPU without an error, and looks like a slow "
        "device."
    )
    detected = "The device was left to be chosen, the CPU was chosen, and the node has device files of accelerators."
    bad = Example(
        'spec.workload = "tiny"\nsettings.values.device = "cpu"\n'
        'environment.facts."accelerator.files" = "/dev/nvidia0"\n',
        "An NVIDIA device is there, but this torch was built without CUDA.",
    )
    good = Example(
        'spec.workload = "tiny"\nsettings.values.device = "cuda"\n'
        'environment.facts."accelerator.files" = "/dev/nvidia0"\n',
        "The accelerator that is there was used.",
    )
    fix = "`steelyard doctor` says why; --device cpu says that the CPU is meant"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """A finding that names the accelerators."""
        if record.environment is None or record.settings is None or record.spec.device != "auto":
            return
        files = record.environment.facts.get("accelerator.files")
        if files and files != "none" and record.settings.values.get("device") == "cpu":
            yield self.found(f"ran on the CPU although the node has accelerators ({files}): torch cannot use them")
