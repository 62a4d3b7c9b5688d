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
from typing import TYPE_CHECKING, Final, Literal

from steelyard.doctor.node import Check
from steelyard.launch.slurm.request import device_options
from steelyard.launch.slurm.states import seconds_of, small_number

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from steelyard.inputs.site import Place

    Call = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]

COMMANDS: Final = ("sbatch", "squeue", "scancel", "scontrol")
SHOWN: Final = 8
_PAIR: Final = re.compile(r"\b(\w++)=(\S*)")
_SETTING: Final = re.compile(r"^(\w++)[ \t]*+=(.*)", re.MULTILINE)
_GPU: Final = re.compile(r"([A-Za-z0-9_]+)(?::([A-Za-z0-9_.-]+))?:(\d{1,5})(?:\(|,|$)")
# Words of a node's state, from sinfo(1) and scontrol(1); POWER is what versions before 21.08 say.
_UNUSABLE: Final = frozenset(("DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "FUTURE", "INVALID"))
_SAVES_POWER: Final = frozenset(("POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWER_UP", "POWER"))


@dataclass(frozen=True)
class _SlurmNode:
    """A node as scontrol reports it."""

    name: str
    values: dict[str, str]

    @property
    def state(self) -> str:
        return self.values.get("State", "")

    def usable(self) -> bool:
        """Return whether a job could get this node now or later. A node that saves power is started for a job."""
        if self.words & _UNUSABLE:
            return False
        # A node without power does not respond either.
        return self.saves_power() or not ("NOT_RESPONDING" in self.words or "*" in self.state)

    def saves_power(self) -> bool:
        """Return whether this node is switched off, or on its way there or back."""
        return bool(self.words & _SAVES_POWER)

    @property
    def words(self) -> set[str]:
        return set(re.sub(r"[*~#!%$@^-]+(?=\+|$)", "", self.state).split("+"))

    def number(self, key: str) -> int | None:
        return small_number(self.values.get(key, ""))

    def devices(self, wanted: str) -> int:
        """Count the devices that a request such as gpu or gpu:a100 matches."""
        kind, _, model = wanted.partition(":")
        gpus = _GPU.findall(self.values.get("Gres", ""))
        return sum(small_number(count) or 0 for name, of, count in gpus if name == kind and (not model or model == of))


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
    settings = {name: value.strip() for name, value in _SETTING.findall(done.stdout)}
    version, cluster = settings.get("SLURM_VERSION", "unknown"), settings.get("ClusterName", "?")
    yield Check("Slurm", "ok", f"cluster {cluster}, version {version}")
    yield from _check_settings(place, settings)
    nodes = _list_nodes(place, call)
    partitions = _list_partitions(call)
    yield from _check_partition(place, partitions)
    closed = _is_closed(place, partitions)
    yield from _check_nodes(place, nodes, closed=closed)
    if _has_accounting(settings):
        yield from _check_association(place, call)
        yield from limit_checks(place, find_limits(place, call, partitions))
    asleep = bool(nodes) and all(node.saves_power() for node in nodes if node.usable())
    yield _try_sbatch(place, call, "the partition is down" if closed else "the nodes save power" if asleep else "")


def _has_accounting(settings: dict[str, str]) -> bool:
    return settings.get("AccountingStorageType", "") not in ("", "(null)", "accounting_storage/none")


def _check_settings(place: Place, settings: dict[str, str]) -> Iterator[Check]:
    most, asked = small_number(settings.get("MaxArraySize", "")), place.site.limits.array_size
    if most is not None:
        # Indexes go from 0 to one less than MaxArraySize.
        if asked > max(1, most):
            yield Check("array", "wrong", f"limits.array_size is {asked}, MaxArraySize is {most}", f"set it to {most}")
        else:
            yield Check("array", "ok", f"arrays of up to {asked} tasks; MaxArraySize is {most}")
    if _has_accounting(settings) and shutil.which("sacct") is None:
        said = "on, but sacct is not installed here: times, energy and suspension of jobs are not known"
        yield Check("accounting", "note", said, "run the command where sacct is")
    elif _has_accounting(settings):
        yield Check("accounting", "ok", "on: it gives times and energy of jobs")
    else:
        age = settings.get("MinJobAge", "unknown")
        fix = "collect results before that: steelyard study FILE --site SITE --wait"
        yield Check("accounting", "note", f"off: Slurm forgets a job {age} after its end", fix)


# -- the partition


def _list_partitions(call: Call) -> dict[str, dict[str, str]]:
    done = call(["scontrol", "--oneliner", "--all", "show", "partition"])
    pairs = map(_read_pairs, done.stdout.splitlines())
    return {values["PartitionName"]: values for values in pairs if "PartitionName" in values}


def _chosen(place: Place, partitions: dict[str, dict[str, str]]) -> list[str]:
    """Return the partitions that the pool names, or the site's default; empty if there is none."""
    if place.pool.partition is not None:
        return place.pool.partition.split(",")
    return [name for name, values in partitions.items() if values.get("Default") == "YES"][:1]


def _is_closed(place: Place, partitions: dict[str, dict[str, str]]) -> bool:
    """Return whether jobs can be queued but do not start, as during maintenance."""
    states = {partitions[name].get("State") for name in _chosen(place, partitions) if name in partitions}
    return "DOWN" in states and "UP" not in states


def _check_partition(place: Place, partitions: dict[str, dict[str, str]]) -> Iterator[Check]:
    wanted = _chosen(place, partitions)
    if not wanted:
        yield Check("partition", "wrong", "not set, and the site has no default", f"set one of {_few(partitions)}")
    for name in wanted:
        if name not in partitions:
            yield Check("partition", "wrong", f"{name} does not exist", f"set one of {_few(partitions)}")
        else:
            yield from _check_one_partition(place, name, partitions[name])


def _check_one_partition(place: Place, name: str, values: dict[str, str]) -> Iterator[Check]:
    pool, state = place.pool, values.get("State", "?")
    if state == "UP":
        yield Check("partition", "ok", f"{name} is up, with {values.get('TotalNodes', '?')} nodes")
    elif state == "DOWN":
        yield Check("partition", "note", f"{name} is down: jobs are queued, and start when it is up again")
    else:
        yield Check("partition", "wrong", f"{name} is {state}: it takes no jobs now", "wait, or use another")
    longest_s = seconds_of(values.get("MaxTime", ""))
    if longest_s is not None and (pool.max_time_s is None or pool.max_time_s > longest_s):
        asked = "is not set" if pool.max_time_s is None else f"is {pool.max_time_s}"
        text = f"the pool's max_time_s {asked}, {name} allows {longest_s}"
        yield Check("time limit", "note" if pool.max_time_s is None else "wrong", text, f"set it to {longest_s}")
    most = small_number(values.get("MaxNodes", ""))
    if most is not None and pool.max_nodes is not None and pool.max_nodes > most:
        yield Check(
            "nodes", "wrong", f"the pool's max_nodes is {pool.max_nodes}, {name} allows {most}", f"set it to {most}"
        )
    for key, value in (("AllowAccounts", pool.account), ("AllowQos", pool.qos)):
        allowed = values.get(key, "ALL").split(",")
        if value is not None and "ALL" not in allowed and value not in allowed:
            yield Check("partition", "wrong", f"{name} does not allow {value}", f"{key} is {_few(allowed)}")


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


def _check_nodes(place: Place, nodes: list[_SlurmNode], *, closed: bool) -> Iterator[Check]:
    if not nodes:
        yield Check("nodes", "note", "Slurm lists no nodes of the partition", "")
        return
    usable = [node for node in nodes if node.usable()]
    if not usable:
        text = f"all {len(nodes)} are down or drained"
        yield Check("nodes", "note" if closed else "wrong", text, "wait, or use another partition")
        usable = nodes
    pool = place.pool
    machines = sorted({node.values.get("Arch", "") for node in usable} - {""})
    if not machines:
        yield Check("architecture", "note", "Slurm does not report it for these nodes", "")
    elif machines != [pool.architecture]:
        fix = "set the pool's architecture, or a constraint that selects such nodes"
        chosen = pool.architecture in machines and pool.constraint is not None
        text = f"nodes are {' and '.join(machines)}, the pool says {pool.architecture}"
        yield Check("architecture", "note" if chosen else "wrong", text, fix)
    else:
        yield Check("architecture", "ok", pool.architecture)
    yield from _check_devices(place, usable)
    for key, asked, what in (
        ("CPUTot", pool.cpus_per_node, "cpus_per_node"),
        ("RealMemory", pool.memory_per_node_mib, "memory_per_node_mib"),
    ):
        have = [number for node in usable if (number := node.number(key)) is not None]
        if asked is not None and have and asked > max(have):
            text = f"set to {asked}, the largest node has {max(have)}"
            yield Check(what, "wrong", text, f"set it to {max(have)} or less")


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
    pool, user = place.pool, _user()
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
        yield Check("account", "wrong", f"{user} has no account {pool.account}", f"set one of {_few(accounts)}")
    elif pool.account is not None:
        yield Check("account", "ok", f"{user} may use {pool.account}")
    qualities = sorted({name for row in rows for name in row[1].split(",") if pool.account in (None, row[0])} - {""})
    if pool.qos is not None and qualities and pool.qos not in qualities:
        yield Check("qos", "wrong", f"{user} may not use {pool.qos}", f"set one of {_few(qualities)}")


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


# -- limits of associations and QOS


LimitOf = Literal["submitted", "running", "seconds", "nodes"]


@dataclass(frozen=True)
class Limit:
    """A limit that accounting sets for this user."""

    of: LimitOf
    most: int
    who: str
    """The association or QOS, and the name of the limit there."""


_ASSOCIATION: Final[dict[str, LimitOf]] = {
    "MaxSubmitJobs": "submitted",
    "GrpSubmitJobs": "submitted",
    "MaxJobs": "running",
}
_QUALITY: Final[dict[str, LimitOf]] = {
    "MaxSubmitPU": "submitted",
    "MaxSubmitPA": "submitted",
    "GrpSubmit": "submitted",
    "MaxJobsPU": "running",
    "MaxJobsPA": "running",
    "GrpJobs": "running",
    "MaxWall": "seconds",
    "MaxTRES": "nodes",
}


def find_limits(place: Place, call: Call, partitions: dict[str, dict[str, str]] | None = None) -> list[Limit]:
    """Return the limits of the user's association, of its QOS and of the partition's; empty if they are not known."""
    pool = place.pool
    partitions = _list_partitions(call) if partitions is None else partitions
    rows = _list_accounting(call, ["associations", f"users={_user()}"], ["Account", "DefaultQOS", *_ASSOCIATION])
    own = next((row for row in rows if pool.account in (None, row["Account"])), {})
    names = {pool.qos or own.get("DefaultQOS") or "normal"}
    names |= {partitions[name].get("QoS", "") for name in _chosen(place, partitions) if name in partitions}
    qualities = _list_accounting(call, ["qos", f"names={','.join(sorted(names - {'', 'N/A'}))}"], ["Name", *_QUALITY])
    limits = [*_limits_in(own, _ASSOCIATION, f"account {own.get('Account')}")]
    for row in qualities:
        limits += _limits_in(row, _QUALITY, f"QOS {row['Name']}")
    return limits


def _list_accounting(call: Call, what: list[str], names: list[str]) -> list[dict[str, str]]:
    done = call(["sacctmgr", "--noheader", "--parsable2", "show", *what, f"format={','.join(names)}"])
    rows = [line.split("|") for line in done.stdout.splitlines()]
    return [] if done.returncode else [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]


def _limits_in(row: dict[str, str], names: Mapping[str, LimitOf], who: str) -> Iterator[Limit]:
    for name, of in names.items():
        text = row.get(name, "")
        if of == "nodes":
            text = next((part.removeprefix("node=") for part in text.split(",") if part.startswith("node=")), "")
        most = seconds_of(text) if of == "seconds" else small_number(text)
        if most is not None:
            yield Limit(of, most, f"{name} of {who}")


def limit_checks(place: Place, known: list[Limit]) -> Iterator[Check]:
    """Compare the limits of accounting with those of the site file."""
    pool, limits = place.pool, place.site.limits
    fields: dict[LimitOf, tuple[str, int | None]] = {
        "submitted": ("limits.max_submitted", limits.max_submitted),
        "running": ("limits.max_running", limits.max_running),
        "seconds": ("the pool's max_time_s", pool.max_time_s),
        "nodes": ("the pool's max_nodes", pool.max_nodes),
    }
    for of, (field, value) in fields.items():
        limit = min((limit for limit in known if limit.of == of), key=lambda limit: limit.most, default=None)
        if limit is None or (value is not None and value <= limit.most):
            continue
        said = f"{field} is {'not set' if value is None else value}, {limit.who} is {limit.most}"
        # A longer or larger job never starts; of more jobs, the rest is submitted later.
        never = value is not None and of in ("seconds", "nodes")
        yield Check("queue limits", "wrong" if never else "note", said, f"set it to {limit.most}")


def _try_sbatch(place: Place, call: Call, closed: str) -> Check:
    """Let sbatch check a job of one full node; nothing is queued. `closed`: why it may refuse it now."""
    pool = place.pool
    tasks = pool.devices_per_node if pool.start == "tasks" else 1
    words = ["sbatch", "--test-only", "--nodes=1", f"--ntasks-per-node={tasks}"]
    words += device_options(pool, pool.devices_per_node, tasks)
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
    if done.returncode and closed:
        return Check("trial", "note", f"not possible while {closed}: {said}")
    if done.returncode:
        return Check("trial", "wrong", f"sbatch refuses a job of one node: {said}", "correct this in the site file")
    return Check("trial", "ok", said or "sbatch accepts a job of one node")


def _read_pairs(line: str) -> dict[str, str]:
    return dict(_PAIR.findall(line))


def _few(names: Iterator[str] | Sequence[str] | dict[str, dict[str, str]]) -> str:
    some = sorted(names)
    return ", ".join(some[:SHOWN]) + (" and more" if len(some) > SHOWN else "")
