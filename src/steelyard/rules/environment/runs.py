"""Run rules on the environment (SY601 to SY603, SY617, SY618): all ranks, CPUs, the device, memory, the second pass."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

from steelyard.inputs.command import run_again
from steelyard.numbers import count_in
from steelyard.rules.rule import Example, RunRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.finding import Finding
    from steelyard.contracts.record import RunRecord

GIB = 2**30
NEARLY_FULL = 0.9
SHOWN_REASON = 300


class RanksMissing(RunRule):
    """Ranks of the job without step samples."""

    code = "SY601"
    name = "ranks-missing"
    severity = "error"
    why = "The rate of a job depends on all its ranks. If some have no samples, the slowest rank may be missing."
    detected = "The number of ranks with step samples is not the number of ranks that were launched."
    bad = Example("ranks_seen = 3\nspec.devices = 4\n", "One of four ranks wrote no samples.")
    good = Example("ranks_seen = 4\nspec.devices = 4\n", "All four ranks wrote their samples.")
    fix = "check the logs of the missing ranks, then rerun"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding with the number of ranks that have samples."""
        # Of a program SY619 says why.
        if record.steps_seen and record.ranks_seen != record.spec.devices and record.wrapped is None:
            message = f"only {record.ranks_seen} of {record.spec.devices} ranks wrote samples"
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
        "The ranks of a node and their loader processes exceed the CPUs that they may use there (affinity and quota). "
        "The simulated device has no such processes."
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
        if spec.device_family == "sim" or place is None:
            return
        cpus = count_in(place.facts.get("cpu.usable", ""))
        if cpus is None:
            return
        usable, ranks = float(cpus), spec.devices
        bound = record.settings.values.get("numa_bound") if record.settings else None
        if record.load:
            # The CPUs of all ranks of a node together: each rank may have its own, or share them with others.
            usable, ranks = float(min(host.cpus for host in record.load)), math.ceil(ranks / len(record.load))
        elif bool(spec.numa) if bound is None else not bound.startswith("no "):
            # A rank with NUMA binding sees the CPUs of its NUMA node, and shares them with the other ranks there.
            groups = count_in(place.facts.get("numa.nodes_with_cpus", ""))
            ranks = ranks if groups is None else math.ceil(ranks / max(1, groups))
        with contextlib.suppress(KeyError, ValueError):
            usable = min(usable, float(place.facts["cgroup.cpu_quota"]))
        needed = ranks * (1 + spec.loader.workers)
        if needed > usable and not spec.loader.workers:
            if not record.load:
                # A rank may see only the CPUs that are its own.
                return
            most = max(1, int(usable))
            own = spec.device_family == "cpu"
            yield self.found(
                f"{ranks} ranks share {usable:g} usable CPUs",
                fix=f"use at most {most} device{'s' * (most != 1)} per node" if own else "request more CPUs",
                command=run_again(spec, {"devices": most}) if own and ranks == spec.devices else "",
            )
        elif needed > usable:
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


class NodeMemoryNearlyFull(RunRule):
    """A device that shares the memory of its node, and little of it left."""

    code = "SY617"
    name = "node-memory-nearly-full"
    severity = "warning"
    why = (
        "On some modules the accelerator can use the memory of the processor. On an MI300A, and with managed memory "
        "elsewhere, no error says that it is full: the system moves pages to a disk, which makes steps slower, or it "
        "ends the process. On a GH200, what torch allocates is in the memory of the GPU, and fails when that is full."
    )
    detected = (
        "Processor and device share their memory, and when the steps ended at least 90 % of the node's memory was in "
        "use, without what the system can free."
    )
    bad = Example("memory.node_used_bytes = 124e9\nmemory.node_bytes = 128e9\n", "97 % of the memory was in use.")
    good = Example("memory.node_used_bytes = 64e9\nmemory.node_bytes = 128e9\n", "Half of the memory was free.")
    fix = "use a smaller batch or fewer loader workers, or keep other processes from the node"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding with the memory in use."""
        memory = record.memory
        if memory is None or memory.node_used_bytes is None or not memory.node_bytes:
            return
        if memory.node_used_bytes >= NEARLY_FULL * memory.node_bytes:
            used, whole = memory.node_used_bytes / GIB, memory.node_bytes / GIB
            yield self.found(
                f"{used:.0f} of {whole:.0f} GiB of the memory that the processor shares with the accelerator were in "
                "use when the steps ended",
                command=run_again(record.spec, {"batch": max(1, record.spec.batch // 2)}),
            )


class CrossCheckFailed(RunRule):
    """The second pass after the measurement failed."""

    code = "SY618"
    name = "cross-check-failed"
    severity = "note"
    why = (
        "After the measured steps, a short second pass times single steps and communication. The figures of the run do "
        "not depend on it. Without it, the share of communication is unknown, and nothing confirms the clock."
    )
    detected = "The second pass ended with an error, or the run was ended during it, after all ranks had measured."
    bad = Example(
        'crosscheck_failure = "rank 1: OutOfMemoryError: CUDA out of memory."\n', "Rank 1 had no memory for it."
    )
    good = Example("", "The second pass has run.")
    fix = "leave some memory free for it, or leave it out (in a study: crosscheck_steps = 0)"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding with the reason."""
        if record.crosscheck_failure is not None:
            first, *_ = record.crosscheck_failure.splitlines() or [""]
            yield self.found(
                f"the cross-check after the measurement failed ({first[:SHOWN_REASON]})",
                command=f"steelyard show {record.run_id}",
            )
