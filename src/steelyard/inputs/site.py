"""Site files: a site's scheduler, pools of nodes, containers, limits and prices.

A study never names a site, and a site never names a study.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from steelyard import plugins
from steelyard.contracts.base import Bound, Contract, Length, Name, NotNegative, to_json_object
from steelyard.errors import InputError, Problem, SteelyardError, nearest, refusal
from steelyard.inputs.synonyms import SITE as SYNONYMS
from steelyard.inputs.synonyms import value_for
from steelyard.inputs.validate import missing_file, near_file, parse_file
from steelyard.redact import clean, looks_secret

if TYPE_CHECKING:
    from collections.abc import Mapping

SITE_VERSION: Final = 1
SITES_VARIABLE: Final = "STEELYARD_SITES"

Architecture = Literal["x86_64", "aarch64"]
Runtime = Literal["none", "apptainer", "singularity", "podman", "podman-hpc", "docker", "shifter", "pyxis"]
Request = Literal["gres", "gpus-per-node", "gpus-per-task"]
Start = Literal["torchrun", "tasks"]
"""torchrun: one torchrun per node starts one process per device; tasks: one scheduler task per device."""
ChargeUnit = Literal["device-hour", "node-hour", "billing-hour"]

# Part of an #SBATCH line: no character may end the line, the word or the comment.
Word = Annotated[
    str, Length(200, r"^[A-Za-z0-9_][A-Za-z0-9_.,:@/+=&|\[\]*-]*$", "letters, digits and .,:@/+=&|[]*-, without spaces")
]
Constraint = Annotated[
    str,
    Length(
        200, r"^[A-Za-z0-9_(\[][A-Za-z0-9_.,:@/+=&|()\[\]*-]*$", "letters, digits and .,:@/+=&|()[]*-, without spaces"
    ),
]
Option = Annotated[
    str,
    Length(300, r"^--[a-z][a-z0-9-]*(=[A-Za-z0-9_.,:@/+=%\[\]*-]+)?$", "one long option, --name or --name=value"),
]
Variable = Annotated[str, Length(200, r"^[A-Za-z_][A-Za-z0-9_]*$", "letters, digits and '_'")]
# Any text but NUL, which no process can be given; it is always quoted.
Value = Annotated[str, Length(4000, r"^[^\x00]*$", "any characters but NUL")]
# Text in which $NAME and ${NAME} stand for variables of the node; nothing else is expanded.
Expanded = Annotated[
    str,
    Length(
        4000,
        r"^([^\x00-\x1f\x7f$`]|\$[A-Za-z_][A-Za-z0-9_]*|\$\{[A-Za-z_][A-Za-z0-9_]*\})*$",
        "text with $NAME or ${NAME}, without other $ and without backquotes",
    ),
]
ShellLine = Annotated[str, Length(2000, r"^[^\x00-\x08\x0a-\x1f\x7f]*$", "one line of bash")]
MeetingHost = Annotated[str, Length(300, r"^[A-Za-z0-9_.:{}-]+$", "a host name or address; {node} is the first node")]
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
ExpandedVariables = Annotated[dict[Variable, Expanded], Length(200)]


NO_SECRETS: Final = (
    "a file that only you can read and the job sources (modules.init), or the scheduler's own way: "
    "a Kubernetes Secret, Slurm's --export"
)


@dataclass(frozen=True, kw_only=True)
class Toleration(Contract):
    """A Kubernetes toleration."""

    key: Label
    """Key of the taint."""
    operator: Literal["Exists", "Equal"] = "Exists"
    """Exists: any value of the taint; Equal: this value."""
    value: LabelValue | None = None
    """Value of the taint, with Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint; None: every effect."""


@dataclass(frozen=True, kw_only=True)
class Pool(Contract):
    """A pool: nodes of one kind."""

    architecture: Architecture
    """Architecture of the compute nodes, as printed by `uname -m` there."""
    devices_per_node: Annotated[int, Bound(ge=1, le=1024)]
    """Ranks per full node, one device each."""
    device: Name = "auto"
    """Device family of the nodes, such as cuda or cpu; auto: any."""
    gpus: Word | None = None
    """Slurm: generic resource to request, such as gpu or gpu:a100 (--gres=gpu:a100:4); None: none."""
    gpu_request: Request = "gres"
    """Slurm: option that requests the devices: --gres, --gpus-per-node or --gpus-per-task."""
    resource: Label | None = None
    """Kubernetes: resource to request per device, such as nvidia.com/gpu; None: none."""
    cpus_per_node: Annotated[int, Bound(ge=1, le=100_000)] | None = None
    """CPUs to request; None: the scheduler's default."""
    memory_per_node_mib: Annotated[int, Bound(ge=1, le=10**9)] | None = None
    """Memory to request; None: the scheduler's default."""
    shm_mib: Annotated[int, Bound(ge=1, le=10**9)] = 1024
    """Kubernetes: shared memory of a pod, for loader processes and collectives."""
    partition: Word | None = None
    """Slurm: partition; None: the site's default."""
    account: Word | None = None
    """Slurm: account to charge; None: the user's default."""
    qos: Word | None = None
    """Slurm: quality of service; None: the user's default."""
    constraint: Constraint | None = None
    """Slurm: node features."""
    reservation: Word | None = None
    """Slurm: reservation."""
    exclusive: bool = False
    """Request whole nodes."""
    start: Start = "torchrun"
    """torchrun: one torchrun per node starts one process per device; tasks: one scheduler task per device."""
    options: Annotated[tuple[Option, ...], Length(50)] = ()
    """Further sbatch options, such as --switches=1. --export=ALL: jobs inherit the environment of the login shell."""
    srun_options: Annotated[tuple[Option, ...], Length(50)] = ()
    """Slurm: further options of srun, which starts the runs, such as --cpu-bind=cores or --mpi=pmix."""
    node_selector: Annotated[dict[Label, LabelValue], Length(50)] = field(default_factory=dict)
    """Kubernetes: labels that nodes must have, besides the architecture."""
    tolerations: Annotated[tuple[Toleration, ...], Length(50)] = ()
    """Kubernetes: tolerations."""
    environment: Variables = field(default_factory=dict)
    """Environment variables for these nodes, added to the site's."""
    expanded: ExpandedVariables = field(default_factory=dict)
    """Environment variables whose $NAME is replaced on the node, added to the site's."""
    image: ImageName | None = None
    """Container image, instead of the site's image for this architecture."""
    max_nodes: SomeNodes | None = None
    """Largest number of nodes per job."""
    max_time_s: Seconds | None = None
    """Longest time of a job, in seconds."""

    def __post_init__(self) -> None:
        _refuse_secrets(self, {**self.environment, **self.expanded})


@dataclass(frozen=True, kw_only=True)
class Mount(Contract):
    """A folder that is mounted into the container."""

    source: AbsolutePath
    """Path on the node."""
    target: AbsolutePath | None = None
    """Path in the container; None: the same path."""
    writable: bool = False
    """Whether runs may write to it."""
    claim: (
        Annotated[str, Length(253, r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", "lower-case letters, digits, '-' and '.'")]
        | None
    ) = None
    """Kubernetes: PersistentVolumeClaim that `source` is a folder of; None: the node's disk."""


@dataclass(frozen=True, kw_only=True)
class Container(Contract):
    """The container that runs use."""

    runtime: Runtime = "none"
    """Container runtime on the nodes; Kubernetes uses its own."""
    images: Annotated[dict[Architecture, ImageName], Length(10)] = field(default_factory=dict)
    """Image per architecture. A multi-architecture image may be given for each."""
    mounts: Annotated[tuple[Mount, ...], Length(100)] = ()
    """Folders to mount, such as data and fabric libraries. The worker and the results are always mounted."""
    options: Annotated[tuple[Option, ...], Length(50)] = ()
    """Further options of the runtime's run command, such as --nv or --device=nvidia.com/gpu=all."""
    devices: Literal["none", "nvidia", "amd", "intel"] = "none"
    """Devices to pass into the container."""

    @property
    def family(self) -> str:
        """The runtime whose command line this one has."""
        return {"singularity": "apptainer", "podman-hpc": "podman"}.get(self.runtime, self.runtime)


@dataclass(frozen=True, kw_only=True)
class Modules(Contract):
    """Environment modules to load on the compute node."""

    init: AbsolutePath | None = None
    """File to source first if batch jobs have no `module` command."""
    purge: bool = False
    """Unload all modules first."""
    use: Annotated[tuple[AbsolutePath, ...], Length(50)] = ()
    """Folders with more modules, added with `module use`."""
    load: Annotated[tuple[Word, ...], Length(50)] = ()
    """Names of modules, in loading order."""


@dataclass(frozen=True, kw_only=True)
class Charge(Contract):
    """Price of an hour."""

    unit: ChargeUnit = "device-hour"
    """Unit of the site's accounting."""
    per_device_hour: NotNegative = 1.0
    """Units per hour for each device that a job holds."""
    per_node_hour: NotNegative = 0.0
    """Units per hour for each node that a job uses, in addition."""


@dataclass(frozen=True, kw_only=True)
class Limits(Contract):
    """Limits of the site for one user."""

    array_size: Annotated[int, Bound(ge=1, le=4_000_000)] = 1000
    """Largest number of tasks per array: Slurm's MaxArraySize, or less."""
    max_submitted: Annotated[int, Bound(ge=1, le=10**7)] = 1000
    """Largest number of tasks in the queue, all arrays together."""
    max_running: Annotated[int, Bound(ge=1, le=10**7)] | None = None
    """Largest number of tasks that run at the same time; None: no limit."""
    setup_s: Seconds = 300
    """Seconds allowed for the start of a run: import, model, compilation."""
    unbounded_s: Seconds = 3600
    """Seconds allowed for a run with a budget in epochs and without time_limit_s."""
    log_mib: Annotated[int, Bound(ge=1, le=100)] = 8
    """Kubernetes: largest log of a pod; results are returned in it. Most platforms rotate logs at 10 MiB."""


@dataclass(frozen=True, kw_only=True)
class Cluster(Contract):
    """Kubernetes: namespace, account and queue."""

    namespace: Annotated[str, Length(63, r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", "lower-case letters, digits and '-'")] = (
        "default"
    )
    """Namespace of the jobs."""
    context: Value | None = None
    """Context of the kubeconfig; None: the current one."""
    queue: LabelValue | None = None
    """Kueue queue (label kueue.x-k8s.io/queue-name)."""
    jobset: bool | None = None
    """Use JobSet instead of Indexed Jobs; None: if the platform has it."""
    results: Literal["logs", "s3", "claim"] = "logs"
    """How results leave the pods. logs: in what they print, which is gone with the pod; s3: to an object store; claim:
    on a volume that all nodes can write."""
    bucket: (
        Annotated[str, Length(1000, r"^https?://[A-Za-z0-9.:-]+/[A-Za-z0-9._/-]+$", "https://HOST/BUCKET/FOLDER")]
        | None
    ) = None
    """For s3: bucket and folder, with the host before them. The key is in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY
    of whoever submits and collects."""
    region: Name = "us-east-1"
    """For s3: region of the object store."""
    claim: (
        Annotated[str, Length(253, r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", "lower-case letters, digits, '-' and '.'")]
        | None
    ) = None
    """For claim: PersistentVolumeClaim with the access mode ReadWriteMany."""
    pod: Annotated[dict[Literal["metadata", "spec", "container"], dict[str, Any]], Length(3)] = field(
        default_factory=dict
    )
    """Fields of Kubernetes to add to every pod: [cluster.pod.metadata] such as annotations, [cluster.pod.spec] such as
    priorityClassName, [cluster.pod.container] such as resources. Lists are joined, other values replaced."""

    def __post_init__(self) -> None:
        if self.results == "s3" and self.bucket is None:
            raise ValueError('bucket: missing; valid: https://HOST/BUCKET/FOLDER, for results = "s3"')
        if self.results == "claim" and self.claim is None:
            raise ValueError('claim: missing; valid: a PersistentVolumeClaim, for results = "claim"')


@dataclass(frozen=True, kw_only=True)
class Site(Contract):
    """A site."""

    schema_version: Literal[1] = SITE_VERSION
    """Version of the file format."""
    name: Name
    """Name of the site."""
    scheduler: Name
    """Scheduler: slurm, kubernetes, or one that another package adds."""
    description: Annotated[str, Length(1000)] = ""
    """Free text."""
    pools: Annotated[dict[Name, Pool], Length(100)]
    """Pools of nodes. The first is the default."""
    container: Container = field(default_factory=Container)
    """The table [container]."""
    modules: Modules = field(default_factory=Modules)
    """The table [modules]."""
    environment: Variables = field(default_factory=dict)
    """Environment variables for every run, such as NCCL_SOCKET_IFNAME."""
    expanded: ExpandedVariables = field(default_factory=dict)
    """Environment variables whose $NAME is replaced on the node: LD_LIBRARY_PATH = "/opt/lib:$LD_LIBRARY_PATH"."""
    prologue: Annotated[tuple[ShellLine, ...], Length(200)] = ()
    """Slurm: lines of bash that every task executes before its runs, after the modules. They are code: read those of
    others before you submit."""
    python: Value | None = None
    """Python on the compute node or in the container; None: the current one, or python3 in a container."""
    meeting_host: MeetingHost | None = None
    """Host name or address for the rendezvous of the ranks, {node} is the first node's name: "{node}i" is its name in
    another network; None: the first node's host name."""
    charge: Charge = field(default_factory=Charge)
    """The table [charge]."""
    limits: Limits = field(default_factory=Limits)
    """The table [limits]."""
    cluster: Cluster = field(default_factory=Cluster)
    """The table [cluster]."""

    def __post_init__(self) -> None:
        _refuse_secrets(self, {**self.environment, **self.expanded})
        if not self.pools:
            raise ValueError("pools: empty; valid: one table [pools.NAME] or more")
        known = plugins.names("scheduler")
        if self.scheduler not in known:
            near = value_for(self.scheduler, "scheduler") or nearest(self.scheduler, known)
            answer = f"did you mean {near}?" if near else f"valid: {', '.join(known)}"
            raise ValueError(f"scheduler: no such scheduler: {self.scheduler}; {answer}")


def _refuse_secrets(table: Site | Pool, variables: Mapping[str, str]) -> None:
    """Refuse what looks like a secret: a site file is read by others, and copied into plans and scripts."""
    for name, value in variables.items():
        if looks_secret(name, value):
            raise ValueError(f"environment.{name}: looks like a secret, which others could read; valid: {NO_SECRETS}")
    for entry in fields(table):
        # The pools have been checked.
        if entry.name != "pools" and clean(to_json_object(getattr(table, entry.name)))[1]:
            raise ValueError(f"{entry.name}: looks like a secret, which others could read; valid: {NO_SECRETS}")


@dataclass(frozen=True)
class Place:
    """A site and one of its pools."""

    site: Site
    pool_name: str

    @property
    def pool(self) -> Pool:
        """The pool."""
        return self.site.pools[self.pool_name]

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of site and pool, as they are."""
        return {**self.site.environment, **self.pool.environment}

    @property
    def expanded(self) -> dict[str, str]:
        """The environment variables of site and pool that are expanded on the node."""
        return {**self.site.expanded, **self.pool.expanded}

    @property
    def image(self) -> str | None:
        """The container image of the pool; None: no container."""
        if self.site.scheduler != "kubernetes" and self.site.container.runtime == "none":
            return None
        return self.pool.image or self.site.container.images.get(self.pool.architecture)


def load_site(path: Path) -> Site:
    """Read and check a site file."""
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
    problem = Problem(text[:200], "no such site or site file", valid, near=near)
    return refusal(problem, next_step=None if near else "steelyard site list")


def site_folders() -> list[Path]:
    """Return the folders with site files, the user's own first."""
    own = os.environ.get(SITES_VARIABLE)
    folders = [Path(entry) for entry in own.split(":") if entry] if own else []
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return [*folders, home / "steelyard" / "sites", Path("/etc/steelyard/sites")]


def site_names() -> list[str]:
    """Return the names of the sites in these folders."""
    return sorted({path.stem for folder in site_folders() if folder.is_dir() for path in folder.glob("*.toml")})


def list_sites() -> list[dict[str, str]]:
    """Return a summary of each site. Of two with the same name the first one is used."""
    sites = []
    for path in (path for folder in site_folders() for path in sorted(folder.glob("*.toml"))):
        try:
            site = load_site(path)
            about = {"scheduler": site.scheduler, "pools": ", ".join(site.pools)}
        except SteelyardError:
            about = {"scheduler": "not valid", "pools": ""}
        sites.append({"site": path.stem, **about, "file": str(path)})
    return sites


def _file_of(text: str) -> Path | None:
    if text.endswith(".toml") or "/" in text:
        return Path(text) if Path(text).is_file() else None
    named = [folder / f"{text}.toml" for folder in site_folders()]
    return next((path for path in named if path.is_file()), None)
