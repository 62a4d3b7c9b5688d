"""site.toml: what a site is, said once: its scheduler, kinds of node, containers, limits and prices. Runs nothing.

A study never names a site, and a site never names a study.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

from steelyard import plugins
from steelyard.contracts.base import Bound, Contract, Length, Name, NotNegative
from steelyard.errors import InputError, Problem, SteelyardError, nearest, refusal
from steelyard.inputs.synonyms import SITE as SYNONYMS
from steelyard.inputs.synonyms import value_for
from steelyard.inputs.validate import missing_file, near_file, parse_file

SITE_VERSION: Final = 1
SITES_VARIABLE: Final = "STEELYARD_SITES"

Architecture = Literal["x86_64", "aarch64"]
Runtime = Literal["none", "apptainer", "podman", "docker"]
Start = Literal["torchrun", "tasks"]
"""One torchrun a node that starts a process a device, or one task of the scheduler a device."""
ChargeUnit = Literal["device-hour", "node-hour", "billing-hour"]

# Part of an #SBATCH line: no character may end the line, the word or the comment.
Word = Annotated[
    str, Length(200, r"^[A-Za-z0-9_][A-Za-z0-9_.,:@/+=&|\[\]*-]*$", "letters, digits and .,:@/+=&|[]*-, without spaces")
]
Option = Annotated[
    str,
    Length(300, r"^--[a-z][a-z0-9-]*(=[A-Za-z0-9_.,:@/+=%\[\]*-]+)?$", "one long option, --name or --name=value"),
]
Variable = Annotated[str, Length(200, r"^[A-Za-z_][A-Za-z0-9_]*$", "letters, digits and '_'")]
# Any text but NUL, which no process can be given; it is always quoted.
Value = Annotated[str, Length(4000, r"^[^\x00]*$", "any characters but NUL")]
AbsolutePath = Annotated[str, Length(1000, r"^/[^\x00]*$", "an absolute path, such as /scratch/data")]
ImageName = Annotated[
    str, Length(1000, r"^[^\x00-\x1f\x7f-][^\x00-\x1f\x7f]*$", "an image name or path without control characters")
]
Label = Annotated[
    str, Length(253, r"^[A-Za-z0-9]([A-Za-z0-9_./-]*[A-Za-z0-9])?$", "letters, digits and _./-, as Kubernetes labels")
]
LabelValue = Annotated[
    str, Length(63, r"^([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?$", "letters, digits and _.-, as Kubernetes labels")
]
SomeNodes = Annotated[int, Bound(ge=1, le=100_000)]
Seconds = Annotated[int, Bound(ge=1, le=10**8)]
Variables = Annotated[dict[Variable, Value], Length(200)]


@dataclass(frozen=True, kw_only=True)
class Toleration(Contract):
    """A taint of Kubernetes nodes that jobs bear."""

    key: Label
    """Of the taint."""
    operator: Literal["Exists", "Equal"] = "Exists"
    """Whatever the taint's value is, or this one."""
    value: LabelValue | None = None
    """With Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """None: every one."""


@dataclass(frozen=True, kw_only=True)
class Pool(Contract):
    """One kind of node."""

    architecture: Architecture
    """Of the compute nodes, as `uname -m` says it there; login nodes may have another."""
    devices_per_node: Annotated[int, Bound(ge=1, le=1024)]
    """Ranks that a full node runs, one device each; on a node without accelerators as many as it shall run."""
    device: Name = "auto"
    """Device family that the nodes have, such as cuda or cpu; auto: any."""
    gpus: Word | None = None
    """Slurm: what to ask devices as, such as gpu or gpu:a100 (--gres=gpu:a100:4); None: they are not asked for."""
    resource: Label | None = None
    """Kubernetes: the resource a device is, such as nvidia.com/gpu; None: they are not asked for."""
    cpus_per_node: Annotated[int, Bound(ge=1, le=100_000)] | None = None
    """To ask for; None: what the scheduler gives."""
    memory_per_node_mib: Annotated[int, Bound(ge=1, le=10**9)] | None = None
    """To ask for; None: what the scheduler gives."""
    shm_mib: Annotated[int, Bound(ge=1, le=10**9)] = 1024
    """Kubernetes: shared memory of a pod, which loader processes and collectives need."""
    partition: Word | None = None
    """Slurm: the queue; None: the site's default."""
    account: Word | None = None
    """Slurm: who is charged; None: the user's default."""
    qos: Word | None = None
    """Slurm: quality of service; None: the user's default."""
    constraint: Word | None = None
    """Slurm: features that nodes must have."""
    reservation: Word | None = None
    """Slurm: nodes that are kept for somebody."""
    exclusive: bool = False
    """Whole nodes, whatever is asked of them."""
    start: Start = "torchrun"
    """One torchrun a node that starts a process a device, or one task of the scheduler a device."""
    options: Annotated[tuple[Option, ...], Length(50)] = ()
    """More options of sbatch, such as --switches=1."""
    node_selector: Annotated[dict[Label, LabelValue], Length(50)] = field(default_factory=dict)
    """Kubernetes: labels that nodes must have; the architecture is always one of them."""
    tolerations: Annotated[tuple[Toleration, ...], Length(50)] = ()
    """Kubernetes: taints of nodes that jobs bear."""
    environment: Variables = field(default_factory=dict)
    """Added to the site's, for these nodes."""
    image: ImageName | None = None
    """Instead of the site's image for this architecture."""
    max_nodes: SomeNodes | None = None
    """Most nodes that one job may ask for."""
    max_time_s: Seconds | None = None
    """Longest job that may be asked for."""


@dataclass(frozen=True, kw_only=True)
class Mount(Contract):
    """A folder of the node as the container sees it."""

    source: AbsolutePath
    """On the node."""
    target: AbsolutePath | None = None
    """None: the same path."""
    writable: bool = False
    """Whether runs may write there."""
    claim: (
        Annotated[str, Length(253, r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", "lower-case letters, digits, '-' and '.'")]
        | None
    ) = None
    """Kubernetes: the PersistentVolumeClaim that `source` is a folder of, instead of the node's own."""


@dataclass(frozen=True, kw_only=True)
class Container(Contract):
    """How a worker gets its Python, numpy and torch."""

    runtime: Runtime = "none"
    """What starts it on the nodes; Kubernetes starts its own."""
    images: Annotated[dict[Architecture, ImageName], Length(10)] = field(default_factory=dict)
    """By architecture; one name for several is an index of several images."""
    mounts: Annotated[tuple[Mount, ...], Length(100)] = ()
    """Data, fabric libraries; our worker and the results are mounted anyway."""
    options: Annotated[tuple[Option, ...], Length(50)] = ()
    """More options of the runtime's run command, such as --nv or --device=nvidia.com/gpu=all."""
    devices: Literal["none", "nvidia", "amd", "intel"] = "none"
    """Whose devices are passed into it."""


@dataclass(frozen=True, kw_only=True)
class Modules(Contract):
    """Environment modules to load on the compute node before anything else."""

    init: AbsolutePath | None = None
    """A file to source first, where batch jobs have no `module` command."""
    load: Annotated[tuple[Word, ...], Length(50)] = ()
    """Names, in the order in which they are loaded."""


@dataclass(frozen=True, kw_only=True)
class Charge(Contract):
    """What an hour costs."""

    unit: ChargeUnit = "device-hour"
    """What the site calls it; the rates below turn time into it."""
    per_device_hour: NotNegative = 1.0
    """For each device that a job holds, used or not."""
    per_node_hour: NotNegative = 0.0
    """Added, for a whole node or a part of it."""


@dataclass(frozen=True, kw_only=True)
class Limits(Contract):
    """What the site allows one user."""

    array_size: Annotated[int, Bound(ge=1, le=4_000_000)] = 1000
    """Tasks in one array: Slurm's MaxArraySize, or less."""
    max_submitted: Annotated[int, Bound(ge=1, le=10**7)] = 1000
    """Tasks in the queue at one time, all arrays together."""
    max_running: Annotated[int, Bound(ge=1, le=10**7)] | None = None
    """Tasks that shall run at one time; None: as many as there is room for."""
    setup_s: Seconds = 300
    """Allowed for the start of a run, from the first process to the first step: import, model, compilation."""
    unbounded_s: Seconds = 3600
    """Time of a run whose budget has no end in seconds (epochs) and which sets no time_limit_s."""
    log_mib: Annotated[int, Bound(ge=1, le=100)] = 8
    """Kubernetes: what a pod may write into its log; results come back through it. Most platforms turn logs at 10."""


@dataclass(frozen=True, kw_only=True)
class Cluster(Contract):
    """Kubernetes: where and as whom."""

    namespace: Annotated[str, Length(63, r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", "lower-case letters, digits and '-'")] = (
        "default"
    )
    """In which jobs are made."""
    context: Value | None = None
    """Of the kubeconfig; None: the current one."""
    service_account: (
        Annotated[str, Length(253, r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", "lower-case letters, digits, '-' and '.'")]
        | None
    ) = None
    """Of the pods; None: the namespace's default."""
    queue: LabelValue | None = None
    """Of Kueue, as its label kueue.x-k8s.io/queue-name."""
    jobset: bool | None = None
    """JobSet or plain Indexed Jobs; None: JobSet where the platform has it."""
    pull_secret: (
        Annotated[str, Length(253, r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", "lower-case letters, digits, '-' and '.'")]
        | None
    ) = None
    """For a registry that asks for one."""
    run_as: Annotated[int, Bound(ge=1, le=2**31 - 1)] | None = None
    """Number of the user that pods run as, without root and with the runtime's seccomp profile, as namespaces of the
    `restricted` security standard demand; None: what the image says."""


@dataclass(frozen=True, kw_only=True)
class Site(Contract):
    """One site."""

    schema_version: Literal[1] = SITE_VERSION
    """Of this form of file."""
    name: Name
    """What people call it."""
    scheduler: Name
    """What jobs are given to: slurm, kubernetes, or one that another package adds."""
    description: Annotated[str, Length(1000)] = ""
    """For people."""
    pools: Annotated[dict[Name, Pool], Length(100)]
    """The first is used where none is named."""
    container: Container = field(default_factory=Container)
    """The table [container]."""
    modules: Modules = field(default_factory=Modules)
    """The table [modules]."""
    environment: Variables = field(default_factory=dict)
    """Fabric and library variables for every run, such as NCCL_SOCKET_IFNAME."""
    python: Value | None = None
    """On the compute node or in the container; None: this one's path without a container, python3 with."""
    meeting_host: Value | None = None
    """Name or address at which ranks meet; None: the host name of the first node."""
    charge: Charge = field(default_factory=Charge)
    """The table [charge]."""
    limits: Limits = field(default_factory=Limits)
    """The table [limits]."""
    cluster: Cluster = field(default_factory=Cluster)
    """The table [cluster]."""

    def __post_init__(self) -> None:
        if not self.pools:
            raise ValueError("pools: empty; valid: one table [pools.NAME] or more")
        known = plugins.names("scheduler")
        if self.scheduler not in known:
            near = value_for(self.scheduler, "scheduler") or nearest(self.scheduler, known)
            answer = f"did you mean {near}?" if near else f"valid: {', '.join(known)}"
            raise ValueError(f"scheduler: no such scheduler: {self.scheduler}; {answer}")


@dataclass(frozen=True)
class Place:
    """A site and the pool of it that runs are to use."""

    site: Site
    pool_name: str

    @property
    def pool(self) -> Pool:
        """The kind of node."""
        return self.site.pools[self.pool_name]

    @property
    def image(self) -> str | None:
        """The container image for its nodes; None: no container."""
        if self.site.scheduler != "kubernetes" and self.site.container.runtime == "none":
            return None
        return self.pool.image or self.site.container.images.get(self.pool.architecture)


def load_site(path: Path) -> Site:
    """Read and validate a site file."""
    return parse_file(Site, path, synonyms=SYNONYMS)


def find_place(text: str) -> Place:
    """Return the place that `--site` names: a file or a name, and a pool after a colon."""
    path = _file_of(text)
    pool = None
    if path is None:
        start, colon, end = text.rpartition(":")
        path = _file_of(start) if colon else None
        pool = end
        if path is None:
            raise _unknown_site(start if colon else text)
    site = load_site(path)
    pool = pool or next(iter(site.pools))
    if pool not in site.pools:
        near = nearest(pool, site.pools)
        raise refusal(Problem(f"--site {text[:200]}", f"{path} has no pool {pool}", ", ".join(site.pools), near=near))
    return Place(site, pool)


def _unknown_site(text: str) -> InputError:
    if text.endswith(".toml") or "/" in text:
        error = missing_file(Path(text))
        return error if error.problems[0].near else refusal(*error.problems, next_step="steelyard site list")
    names = site_names()
    near = nearest(text, names) or near_file(Path(text))
    valid = f"a site file, or one of {', '.join(names)}" if names else "a site file"
    problem = Problem(f"--site {text[:200]}", "no such site", valid, near=near)
    return refusal(problem, next_step=None if near else "steelyard site list")


def site_folders() -> list[Path]:
    """Where sites are looked for by their name: the user's own first."""
    own = os.environ.get(SITES_VARIABLE)
    folders = [Path(entry) for entry in own.split(":") if entry] if own else []
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return [*folders, home / "steelyard" / "sites", Path("/etc/steelyard/sites")]


def site_names() -> list[str]:
    """Sites that can be named."""
    return sorted({path.stem for folder in site_folders() if folder.is_dir() for path in folder.glob("*.toml")})


def list_sites() -> list[dict[str, str]]:
    """What can be told of each of them in a line; of two with one name both, the one that is taken first."""
    found = []
    for path in (path for folder in site_folders() for path in sorted(folder.glob("*.toml"))):
        try:
            site = load_site(path)
            told = {"scheduler": site.scheduler, "pools": ", ".join(site.pools)}
        except SteelyardError:
            told = {"scheduler": "not valid", "pools": ""}
        found.append({"site": path.stem, **told, "file": str(path)})
    return found


def _file_of(text: str) -> Path | None:
    if text.endswith(".toml") or "/" in text:
        return Path(text) if Path(text).is_file() else None
    named = [folder / f"{text}.toml" for folder in site_folders()]
    return next((path for path in named if path.is_file()), None)
