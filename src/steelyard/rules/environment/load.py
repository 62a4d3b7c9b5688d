"""Run rules on other load (SY609, SY610): processes on the same CPUs, a CPU quota, other machines, a shared device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.inputs.command import extend, join
from steelyard.numbers import percent
from steelyard.rules.rule import Example, RunRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.finding import Finding
    from steelyard.contracts.record import HostLoad, LoadShares, RunRecord

# Measured while others used 1.7 of 2 CPUs: a run with one thread made 98 steps per second of its own CPU time, and with
# two threads 17, because each step waits for its slowest thread. So a small share matters, too. The daemons of a quiet
# machine use about 1 %.
CROWDED = 0.05
# If more is idle, the run could have used it.
IDLE = 0.1
# CPU time is counted in ticks of 10 ms, so a shorter time gives no useful share.
LEAST_S = 1.0
LOST = 0.01

OTHERS_FIX = (
    "measure when the machine is quiet, or on a node of your own (Slurm: --exclusive; in a site file: exclusive = true)"
)
QUOTA_FIX = "ask for more CPUs, or use fewer threads and loader workers (--threads, --loader-workers)"
STEAL_FIX = "measure on a machine whose CPUs are not shared with other virtual machines"


class BusyMachine(RunRule):
    """Something else used the CPUs of the run."""

    code = "SY609"
    name = "busy-machine"
    severity = "warning"
    why = (
        "A run that waits for a CPU is slower and less steady than on a quiet machine, on accelerators too: the CPU "
        "feeds them. The figure then depends on what others did, and a repeat gives another one."
    )
    detected = (
        "While the steps were measured, other processes used more than 5 % of the CPUs of the run and left less than "
        "10 % idle; or a CPU quota stopped the run in more than 1 % of the scheduling periods; or the hypervisor gave "
        "more than 1 % of the CPU time to other machines. Simulated runs are not checked."
    )
    bad = Example(
        'load = [{node = "n1", cpus = 2, during = {seconds = 10.0, own_cpus = 0.1, other_cpus = 1.9, '
        "load_average = 9.2, cpu_wait_share = 0.43}}]\n",
        "Other processes used nearly both CPUs.",
    )
    good = Example(
        'load = [{node = "n1", cpus = 2, during = {seconds = 10.0, own_cpus = 1.9, other_cpus = 0.02, '
        "load_average = 2.0, cpu_wait_share = 0.04}}]\n",
        "The run had both CPUs for itself.",
    )
    fix = OTHERS_FIX

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding on the busiest node."""
        busy = list(busy_nodes(record))
        if not busy:
            return
        node, load = max(busy, key=lambda entry: (entry[1].other_cpus or 0.0) / max(1, entry[0].cpus))
        told = dict(disturbances(load, node.cpus))
        nodes = f" ({node.node}; {len(busy)} of {len(record.load)} nodes were busy)" if len(record.load) > 1 else ""
        before = node.before.other_cpus if node.before else None
        scheduled = record.launch is not None and record.launch.scheduled is not None
        yield self.found(
            f"the machine was busy while this run measured{nodes}: {'; '.join(told)}",
            fix="; ".join(told.values()),
            command=join("" if scheduled else "steelyard doctor", extend(record.spec)),
            evidence="" if before is None else f"before the first step, other processes used {before:.1f} CPUs",
        )


def busy_nodes(record: RunRecord) -> Iterator[tuple[HostLoad, LoadShares]]:
    """Yield the nodes on which something else used the CPUs while the steps were measured."""
    for node in record.load:
        if node.during and node.during.seconds >= LEAST_S and any(disturbances(node.during, node.cpus)):
            yield node, node.during


def disturbances(
    load: LoadShares, cpus: int, *, crowded: float = CROWDED, lost: float = LOST
) -> Iterator[tuple[str, str]]:
    """Yield what took CPU time from a run, and its fix.

    Other processes may use up to `crowded` of the CPUs, a quota or a hypervisor may take up to `lost`.
    """
    if (
        load.other_cpus is not None
        and load.own_cpus is not None
        and load.other_cpus > crowded * cpus
        and load.own_cpus + load.other_cpus > (1 - IDLE) * cpus
    ):
        yield describe_others(load, cpus), OTHERS_FIX
    if load.throttled_share is not None and load.throttled_share > lost:
        yield f"a CPU quota stopped processes in {percent(load.throttled_share, 2)} of its periods", QUOTA_FIX
    if load.steal_share is not None and load.steal_share > lost:
        yield f"the hypervisor gave {percent(load.steal_share, 2)} of the CPU time to other machines", STEAL_FIX


def describe_others(load: LoadShares, cpus: int) -> str:
    """Return what other processes used, with the load average and the waiting."""
    told = [] if load.load_average is None else [f"load {load.load_average:.1f}"]
    waits = {"a CPU": load.cpu_wait_share, "memory": load.memory_wait_share, "a disk": load.io_wait_share}
    shown = [f"for {what} {percent(share, 2)}" for what, share in waits.items() if share is not None and share > LOST]
    told += [f"tasks waited {', '.join(shown)} of the time"] if shown else []
    used = f"other processes used {load.other_cpus or 0.0:.1f} of {cpus} CPUs"
    return f"{used} ({'; '.join(told)})" if told else used


class SharedDevice(RunRule):
    """Another process computed on the accelerator of the run."""

    code = "SY610"
    name = "shared-device"
    severity = "warning"
    why = (
        "Processes on one accelerator take turns, and share its memory, its power and its clocks. The figure is that "
        "of a part of the device."
    )
    detected = (
        "While the steps were measured, the driver listed more than one computing process on a device of the run."
    )
    bad = Example('load = [{node = "n1", cpus = 8, device_processes = 2}]\n', "Another process was on the device.")
    good = Example('load = [{node = "n1", cpus = 8, device_processes = 1}]\n', "Only the run was on its device.")
    fix = (
        "see with nvidia-smi what it is and end it, or choose another device (CUDA_VISIBLE_DEVICES); with MPS, the "
        "server counts as a process"
    )

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding with the largest number of processes on a device."""
        worst = max(record.load, key=lambda node: node.device_processes or 0, default=None)
        if worst is not None and (worst.device_processes or 0) > 1:
            message = f"{worst.device_processes} processes computed on one device of the run on {worst.node}"
            yield self.found(message, command=extend(record.spec))
