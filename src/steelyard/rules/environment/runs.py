"""Run rules on the environment (SY601 to SY603): all ranks, enough CPUs, the intended device."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from steelyard.inputs.command import run_again
from steelyard.rules.rule import Example, RunRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import Finding, RunRecord


class RanksMissing(RunRule):
    """Ranks of the job without step samples."""

    code = "SY601"
    name = "ranks-missing"
    severity = "error"
    why = "The rate of a job depends on all its ranks. If some have no samples, the slowest rank may be missing."
    detected = "The number of ranks with step samples is not the number of ranks that were launched."
    bad = Example("ranks_seen = 3\nspec.ranks = 4\n", "One of four ranks wrote no samples.")
    good = Example("ranks_seen = 4\nspec.ranks = 4\n", "All four ranks wrote their samples.")
    fix = "check the logs of the missing ranks, then rerun"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding with the number of ranks that have samples."""
        if record.steps_seen and record.ranks_seen != record.spec.ranks:
            message = f"only {record.ranks_seen} of {record.spec.ranks} ranks wrote samples"
            yield self.found(message, command=f"steelyard show {record.run_id}")


class TooFewCpus(RunRule):
    """More processes than CPUs."""

    code = "SY602"
    name = "too-few-cpus"
    severity = "warning"
    why = (
        "Processes that share a CPU take turns. The CPUs may then limit the throughput instead of the accelerator, and "
        "the figure changes with the number of CPUs."
    )
    detected = (
        "Ranks plus loader processes exceed the CPUs that the job may use (affinity and quota). The simulated device "
        "has no such processes."
    )
    bad = Example(
        'spec.workload = "tiny"\nspec.loader.place = "host"\nspec.loader.workers = 16\n'
        'environment.facts."cpu.usable" = "8"\n',
        "17 processes on 8 CPUs.",
    )
    good = Example(
        'spec.workload = "tiny"\nspec.loader.place = "host"\nspec.loader.workers = 4\n'
        'environment.facts."cpu.usable" = "8"\n',
        "5 processes on 8 CPUs.",
    )
    fix = "use fewer loader workers per rank, or request more CPUs"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding with the number of loader workers that would fit."""
        spec, place = record.spec, record.environment
        if spec.loader.workers == 0 or spec.device_family == "sim" or place is None:
            return
        if not place.facts.get("cpu.usable", "").isdigit():
            return
        usable = float(place.facts["cpu.usable"])
        with contextlib.suppress(KeyError, ValueError):
            usable = min(usable, float(place.facts["cgroup.cpu_quota"]))
        # A rank with NUMA binding sees only its own CPUs.
        ranks = 1 if spec.numa else spec.ranks
        needed = ranks * (1 + spec.loader.workers)
        if needed > usable:
            yield self.found(
                f"{needed} processes share {usable:g} usable CPUs (ranks: {ranks}, loader workers per rank: "
                f"{spec.loader.workers})",
                fix=f"use at most {(most := max(0, int(usable // ranks) - 1))} loader "
                f"worker{'s' * (most != 1)} per rank, or request more CPUs",
                command=run_again(spec, {"loader.workers": most}),
            )


class FellBack(RunRule):
    """The run used the CPU although the node has accelerators."""

    code = "SY603"
    name = "fell-back-to-cpu"
    severity = "warning"
    why = (
        "A torch build without support for the accelerator runs on the CPU without an error. The result looks like a "
        "slow device."
    )
    detected = "--device is auto, the CPU was chosen, and the node has device files of accelerators."
    bad = Example(
        'spec.workload = "tiny"\nsettings.values.device = "cpu"\n'
        'environment.facts."accelerator.files" = "/dev/nvidia0"\n',
        "The node has an NVIDIA device, but this torch was built without CUDA.",
    )
    good = Example(
        'spec.workload = "tiny"\nsettings.values.device = "cuda"\n'
        'environment.facts."accelerator.files" = "/dev/nvidia0"\n',
        "The run used the accelerator.",
    )
    fix = "find out why torch cannot use them; to measure the CPU on purpose, use --device cpu"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding that names the accelerators."""
        if record.environment is None or record.settings is None or record.spec.device != "auto":
            return
        files = record.environment.facts.get("accelerator.files")
        if files and files != "none" and record.settings.values.get("device") == "cpu":
            message = f"ran on the CPU although the node has accelerators ({files}); torch cannot use them"
            yield self.found(message, command="steelyard doctor")
