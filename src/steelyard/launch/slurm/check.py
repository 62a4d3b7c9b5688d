"""Check a Slurm site from a login node: settings, partition, nodes, accounts, and a trial with sbatch.

Each check is one call, whatever the size of the site. What cannot be checked from here is a note, never "ok".
"""

from __future__ import annotations

import math
import os
import pwd
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from steelyard.doctor.node import Check
from steelyard.launch.slurm.states import seconds_of

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Sequence

    from steelyard.inputs.site import Place

    Call = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]

COMMANDS: Final = ("sbatch", "squeue", "scancel", "scontrol")
SHOWN: Final = 8
_PAIR: Final = re.compile(r"(\w+)=(\S*)")
_SETTING: Final = re.compile(r"^(\w+)\s*=\s*(.*?)\s*$", re.MULTILINE)
_GPU: Final = re.compile(r"([A-Za-z0-9_]+)(?::([A-Za-z0-9_.-]+))?:(\d{1,5})(?:\(|,|$)")


@dataclass(frozen=True)
class _SlurmNode:
    """A node as scontrol reports it."""

    name: str
    values: dict[str, str]

    @property
    def state(self) -> str:
        return self.values.get("State", "")

    def usable(self) -> bool:
        """Return whether a job could get this node now or later."""
        return not re.search(r"DOWN|DRAIN|FAIL|NOT_RESPONDING|\*", self.state)

    def number(self, key: str) -> int | None:
        text = self.values.get(key, "")
        return int(text) if text.isdecimal() else None

    def devices(self, wanted: str) -> int:
        """Count the devices that a request such as gpu or gpu:a100 matches."""
        kind, _, model = wanted.partition(":")
        found = _GPU.findall(self.values.get("Gres", ""))
        return sum(int(count) for name, of, count in found if name == kind and (not model or model == of))


def checks(place: Place, call: Call) -> Iterator[Check]:
    """Yield all checks, in the order in which they matter."""
    missing = [command for command in COMMANDS if shutil.which(command) is None]
    if missing:
        fix = "run the command on a login node of the site, or load its Slurm module"
        yield Check("Slurm", "wrong", f"command not found: {', '.join(missing)}", fix)
        return
    done = call(["scontrol", "show", "config"])
    if done.returncode:
        said = " ".join(done.stderr.split())[:300]
        yield Check("Slurm", "wrong", f"the controller does not answer: {said}", "try again later, or ask the site")
        return
    settings = dict(_SETTING.findall(done.stdout))
    version, cluster = settings.get("SLURM_VERSION", "unknown"), settings.get("ClusterName", "?")
    yield Check("Slurm", "ok", f"cluster {cluster}, version {version}")
    yield from _check_settings(place, settings)
    nodes = _list_nodes(place, call)
    yield from _check_partition(place, call)
    yield from _check_nodes(place, nodes)
    if _has_accounting(settings):
        yield from _check_association(place, call)
    yield _try_sbatch(place, call)


def _has_accounting(settings: dict[str, str]) -> bool:
    return settings.get("AccountingStorageType", "") not in ("", "(null)", "accounting_storage/none")


def _check_settings(place: Place, settings: dict[str, str]) -> Iterator[Check]:
    most, asked = settings.get("MaxArraySize", ""), place.site.limits.array_size
    if most.isdecimal():
        # Indexes go from 0 to one less than MaxArraySize.
        if asked > max(1, int(most)):
            yield Check("array", "wrong", f"limits.array_size is {asked}, MaxArraySize is {most}", f"set it to {most}")
        else:
            yield Check("array", "ok", f"arrays of up to {asked} tasks; MaxArraySize is {most}")
    if _has_accounting(settings):
        yield Check("accounting", "ok", "on: it gives times and energy of jobs")
    else:
        age = settings.get("MinJobAge", "unknown")
        fix = "collect results before that: steelyard study FILE --site SITE --wait"
        yield Check("accounting", "note", f"off: Slurm forgets a job {age} after its end", fix)


# -- the partition


def _check_partition(place: Place, call: Call) -> Iterator[Check]:
    wanted = place.pool.partition
    done = call(["scontrol", "--oneliner", "--all", "show", "partition"])
    found = {
        values["PartitionName"]: values
        for values in map(_read_pairs, done.stdout.splitlines())
        if "PartitionName" in values
    }
    if wanted is None:
        default = next((name for name, values in found.items() if values.get("Default") == "YES"), None)
        if default is None:
            yield Check("partition", "wrong", "not set, and the site has no default", f"set one of {_few(found)}")
            return
        wanted = default
    for name in wanted.split(","):
        if name not in found:
            yield Check("partition", "wrong", f"{name!r} does not exist", f"set one of {_few(found)}")
        else:
            yield from _check_one_partition(place, name, found[name])


def _check_one_partition(place: Place, name: str, values: dict[str, str]) -> Iterator[Check]:
    pool, state = place.pool, values.get("State", "?")
    if state == "UP":
        yield Check("partition", "ok", f"{name} is up, with {values.get('TotalNodes', '?')} nodes")
    else:
        yield Check("partition", "wrong", f"{name} is {state}: no job starts there now", "wait, or use another")
    longest_s = seconds_of(values.get("MaxTime", ""))
    if longest_s is not None and (pool.max_time_s is None or pool.max_time_s > longest_s):
        asked = "is not set" if pool.max_time_s is None else f"is {pool.max_time_s}"
        found = f"the pool's max_time_s {asked}, {name} allows {longest_s}"
        yield Check("time limit", "note" if pool.max_time_s is None else "wrong", found, f"set it to {longest_s}")
    most = values.get("MaxNodes", "")
    if most.isdecimal() and pool.max_nodes is not None and pool.max_nodes > int(most):
        yield Check(
            "nodes", "wrong", f"the pool's max_nodes is {pool.max_nodes}, {name} allows {most}", f"set it to {most}"
        )
    for key, value in (("AllowAccounts", pool.account), ("AllowQos", pool.qos)):
        allowed = values.get(key, "ALL").split(",")
        if value is not None and "ALL" not in allowed and value not in allowed:
            yield Check("partition", "wrong", f"{name} does not allow {value!r}", f"{key} is {_few(allowed)}")


# -- its nodes


def _list_nodes(place: Place, call: Call) -> list[_SlurmNode]:
    done = call(["scontrol", "--oneliner", "--all", "show", "node"])
    nodes = [
        _SlurmNode(values["NodeName"], values)
        for values in map(_read_pairs, done.stdout.splitlines())
        if "NodeName" in values
    ]
    wanted = place.pool.partition
    if wanted is None:
        return nodes
    names = set(wanted.split(","))
    return [node for node in nodes if names & set(node.values.get("Partitions", "").split(","))]


def _check_nodes(place: Place, nodes: list[_SlurmNode]) -> Iterator[Check]:
    if not nodes:
        yield Check("nodes", "note", "Slurm lists no nodes of the partition", "")
        return
    usable = [node for node in nodes if node.usable()]
    if not usable:
        yield Check("nodes", "wrong", f"all {len(nodes)} are down or drained", "wait, or use another partition")
        usable = nodes
    pool = place.pool
    machines = sorted({node.values.get("Arch", "") for node in usable} - {""})
    if not machines:
        yield Check("architecture", "note", "Slurm does not report it for these nodes", "")
    elif machines != [pool.architecture]:
        fix = "set the pool's architecture, or a constraint that selects such nodes"
        chosen = pool.architecture in machines and pool.constraint is not None
        found = f"nodes are {' and '.join(machines)}, the pool says {pool.architecture}"
        yield Check("architecture", "note" if chosen else "wrong", found, fix)
    else:
        yield Check("architecture", "ok", pool.architecture)
    yield from _check_devices(place, usable)
    for key, asked, what in (
        ("CPUTot", pool.cpus_per_node, "cpus_per_node"),
        ("RealMemory", pool.memory_per_node_mib, "memory_per_node_mib"),
    ):
        have = [number for node in usable if (number := node.number(key)) is not None]
        if asked is not None and have and asked > max(have):
            found = f"set to {asked}, the largest node has {max(have)}"
            yield Check(what, "wrong", found, f"set it to {max(have)} or less")


def _check_devices(place: Place, nodes: list[_SlurmNode]) -> Iterator[Check]:
    pool = place.pool
    if pool.gpus is None:
        have = sorted({node.values.get("Gres", "(null)").split("(S:")[0] for node in nodes} - {"(null)", ""})
        if have and pool.device != "cpu":
            yield Check(
                "devices",
                "note",
                f"nodes have {_few(have)}, which the pool does not request",
                'set gpus, such as "gpu"',
            )
        return
    enough = [node for node in nodes if node.devices(pool.gpus) >= pool.devices_per_node]
    wanted = f"{pool.gpus}:{pool.devices_per_node}"
    if not enough:
        have = sorted({node.values.get("Gres", "(null)") for node in nodes})
        yield Check(
            "devices", "wrong", f"no node has {wanted}; they have {_few(have)}", "set gpus and devices_per_node"
        )
    elif len(enough) < len(nodes):
        yield Check(
            "devices", "note", f"{len(enough)} of {len(nodes)} nodes have {wanted}", "select them with a constraint"
        )
    else:
        yield Check("devices", "ok", f"all nodes have {wanted}")


# -- the user


def _check_association(place: Place, call: Call) -> Iterator[Check]:
    """Check the account and QOS against what accounting allows this user."""
    pool = place.pool
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    done = call(
        ["sacctmgr", "--noheader", "--parsable2", "show", "associations", f"users={user}", "format=Account,QOS"]
    )
    rows = [line.split("|") for line in done.stdout.splitlines() if line.count("|") == 1]
    if done.returncode or not rows:
        if pool.account is not None or pool.qos is not None:
            yield Check("account", "note", f"accounting does not list {user}", "sacctmgr show associations")
        return
    accounts = sorted({row[0] for row in rows})
    if pool.account is not None and pool.account not in accounts:
        yield Check("account", "wrong", f"{user} has no account {pool.account!r}", f"set one of {_few(accounts)}")
    elif pool.account is not None:
        yield Check("account", "ok", f"{user} may use {pool.account}")
    qualities = sorted({name for row in rows for name in row[1].split(",") if pool.account in (None, row[0])} - {""})
    if pool.qos is not None and qualities and pool.qos not in qualities:
        yield Check("qos", "wrong", f"{user} may not use {pool.qos!r}", f"set one of {_few(qualities)}")


def _try_sbatch(place: Place, call: Call) -> Check:
    """Let sbatch check a job of one full node; nothing is queued."""
    pool = place.pool
    tasks = pool.devices_per_node if pool.start == "tasks" else 1
    words = ["sbatch", "--test-only", "--nodes=1", f"--ntasks-per-node={tasks}"]
    words += [f"--gres={pool.gpus}:{pool.devices_per_node}"] if pool.gpus else []
    words += [f"--cpus-per-task={max(1, pool.cpus_per_node // tasks)}"] if pool.cpus_per_node else []
    words += [f"--mem={pool.memory_per_node_mib}M"] if pool.memory_per_node_mib else []
    words += [f"--time={math.ceil(min(pool.max_time_s or 600, 600) / 60)}"]
    named = {"partition": pool.partition, "account": pool.account, "qos": pool.qos}
    named |= {"constraint": pool.constraint, "reservation": pool.reservation}
    words += [f"--{name}={value}" for name, value in named.items() if value is not None]
    words += [*(["--exclusive"] if pool.exclusive else []), *pool.options, "--wrap=true"]
    done = call(words)
    # It writes to the error stream, also on success.
    said = re.sub(r"(?:sbatch|allocation): (?:error: |failure: )?", "", " ".join(done.stderr.split()))[:400]
    if done.returncode:
        return Check("trial", "wrong", f"sbatch refuses a job of one node: {said}", "correct this in the site file")
    return Check("trial", "ok", said or "sbatch accepts a job of one node")


def _read_pairs(line: str) -> dict[str, str]:
    return dict(_PAIR.findall(line))


def _few(names: Iterator[str] | Sequence[str] | dict[str, dict[str, str]]) -> str:
    some = sorted(names)
    return ", ".join(some[:SHOWN]) + (" and more" if len(some) > SHOWN else "")
