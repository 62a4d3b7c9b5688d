"""Build the command line that starts a command in a container, and check it.

Apptainer, Podman and Docker are run by tests. Singularity and podman-hpc have the command lines of Apptainer and
Podman; Shifter and Pyxis are written from their documentation. None of these four was run by us.

A vendor's image is used unchanged: nothing is installed into it, its root and our worker are mounted read-only, and
its environment stays, except for the variables of the run.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from steelyard.doctor.node import Check
from steelyard.errors import InputError
from steelyard.launch.images.image import check_image
from steelyard.launch.scripts.bash import Raw, Word

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from steelyard.inputs.site import Container, Place
    from steelyard.launch.campaign import Plan

TIMEOUT_SLACK_S: Final = 120
"""How long after the limit of the longest task Podman ends a leftover container by itself."""
SCRATCH: Final = "/tmp"  # noqa: S108 -- inside the container

# Commas and colons separate the fields of a mount; quotes and backslashes mean different things to each runtime.
_MOUNTABLE = re.compile(r'[^\x00-\x1f\x7f:,"\\]+')
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

# Always set inside: packages in a home folder would take precedence over the image's own.
_OWN: Final = {"PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1", "USER": "steelyard", "LOGNAME": "steelyard"}

# Recorded if set, as without a container.
_ALSO: Final = ("CUDA_DEVICE_ORDER", "SLURM_JOB_PARTITION", "SLURM_JOB_QOS", "SLURM_CPUS_PER_TASK", "SLURM_NNODES")

# Our folder comes first, and the image's own PYTHONPATH stays. The first argument is the path to add.
_INSIDE = 'export PYTHONPATH="$1${PYTHONPATH:+:$PYTHONPATH}"; shift; '
# A container of Podman or Docker is not a child of the process that starts it: killing that process, as a scheduler
# does, would leave the container running. Its standard input is a lifeline: it ends with the process that started the
# container, and then the first process inside ends, and with it all others.
_LIFELINE = 'exec "$@" 0<> <(:)'
_INSIDE_WATCHED = (
    _INSIDE
    + 'exec 3<&0; "$@" & child=$!; trap \'kill -TERM "$child"\' TERM INT; trap \'kill -KILL "$child"; exit 129\' HUP; '
    + '(cat <&3 >/dev/null; kill -HUP $$) & wait "$child"; code=$?; '
    + 'while kill -0 "$child" 2>/dev/null; do wait "$child"; code=$?; done; exit "$code"'
)
# Apptainer shares /tmp with the host: each start gets its own home in it, which is removed afterwards, to keep
# compiled files of one run from the next. The shell stays to do that; a signal ends the command, not the shell.
_INSIDE_HOME = (
    'HOME=$(mktemp -d) || exit; export HOME TMPDIR="$HOME"; trap \'rm -rf "$HOME"\' EXIT; trap : TERM INT; '
    + _INSIDE
    + '"$@"'
)
# Apptainer takes variables for the container under another name. Values are looked up at the start; a variable that
# is not set stays unset. The first argument is the number of names that follow.
_OUTSIDE = (
    "unset APPTAINERENV_PYTHONPATH; n=$1; shift; "
    'while ((n-- > 0)); do [[ -v $1 ]] && export "APPTAINERENV_$1=${!1}"; shift; done; exec "$@"'
)
PREFIXES: Final = {"apptainer": "APPTAINERENV_", "singularity": "SINGULARITYENV_"}
"""Before the names of variables that the runtime sets only inside."""
# Evaluated on the node, because only the node knows which it has.
_FABRIC_DEVICES = Raw("$(ls -d /dev/infiniband /dev/hfi1* /dev/cxi* 2>/dev/null | sed 's/^/--device=/')")
_USER = Raw('--user="$(id -u):$(id -g)"')


def run_words(plan: Plan, campaign: Path, variables: Sequence[str]) -> list[Word]:
    """Return the command line before a command in the container; empty without a container.

    `variables` are names: their values are taken from the environment at the start.
    """
    container = plan.site.container
    if plan.image is None or container.runtime in ("none", "pyxis"):
        return []
    names = [name for name in dict.fromkeys([*variables, *_ALSO]) if name != "PYTHONPATH"]
    for name in names:
        if not _VARIABLE.fullmatch(name):
            raise InputError(f'"{name}" is not a valid variable name', next_step="use letters, digits and _")
    words = _RUNTIMES[container.runtime](plan, campaign, names)
    inside = {"apptainer": _INSIDE_HOME, "shifter": _INSIDE + 'exec "$@"'}.get(container.family, _INSIDE_WATCHED)
    given = {**plan.site.environment, **plan.place.pool.environment}.get("PYTHONPATH")
    path = f"{campaign / 'worker'}" if given is None else f"{campaign / 'worker'}:{given}"
    return [*words, "/bin/sh", "-c", inside, "sh", path]


def _apptainer(plan: Plan, campaign: Path, names: list[str]) -> list[Word]:
    assert plan.image is not None
    container = plan.site.container
    # Without `--no-eval` a shell inside would execute `$(...)` in the values of variables.
    words: list[Word] = [container.runtime, "exec", "--cleanenv", "--no-eval", "--no-home"]
    words += [Raw('--bind="${TMPDIR:-/tmp}":/tmp')]
    for source, target, writable in _mounts(plan, campaign):
        words.append(f"--bind={source}:{target}{'' if writable else ':ro'}")
    words += _set_inside(plan, names, _OWN)
    words += {"nvidia": ["--nv"], "amd": ["--rocm"]}.get(container.devices, [])
    words += [f"--pwd={campaign}", *container.options, plan.image.reference]
    outside = _OUTSIDE.replace(PREFIXES["apptainer"], PREFIXES[container.runtime])
    return ["bash", "-c", outside, "bash", str(len(names)), *names, *words]


def _podman(plan: Plan, campaign: Path, names: list[str]) -> list[Word]:
    assert plan.image is not None
    longest_s = max((job.task_limit_s for job in plan.jobs), default=0) + TIMEOUT_SLACK_S
    # Root inside is the user who starts it, unless root does; limits of memory and files are those of the job.
    words = _oci(plan, campaign, names, {"user": "--user=0:0", "timeout": f"--timeout={longest_s}"})
    runtime = plan.site.container.runtime
    nvidia = "--gpu" if runtime == "podman-hpc" else "--device=nvidia.com/gpu=all"
    words += {"nvidia": [nvidia]}.get(plan.site.container.devices, [])
    reference = plan.image.reference
    if reference.startswith("/"):
        # A folder with a root file system; writes that make it a container's root go into an overlay.
        words += ["--rootfs", f"{_mountable(reference)}:O"]
    else:
        words.append(reference)
    return ["bash", "-c", _LIFELINE, "bash", runtime, *words]


def _docker(plan: Plan, campaign: Path, names: list[str]) -> list[Word]:
    assert plan.image is not None
    # The daemon would start it as root and with its own limits.
    words = [*_oci(plan, campaign, names, {"user": _USER}), "--ulimit=memlock=-1:-1"]
    devices: dict[str, Word] = {"nvidia": "--gpus=all", "amd": Raw('--group-add="$(stat -c %g /dev/kfd)"')}
    if plan.site.container.devices in devices:
        words.append(devices[plan.site.container.devices])
    return ["bash", "-c", _LIFELINE, "bash", "docker", *words, plan.image.reference]


def _shifter(plan: Plan, campaign: Path, names: list[str]) -> list[Word]:  # noqa: ARG001 -- it keeps all variables
    assert plan.image is not None
    container = plan.site.container
    words: list[Word] = ["shifter", f"--image={plan.image.reference}"]
    for source, target, writable in _mounts(plan, campaign):
        words.append(f"--volume={source}:{target}{'' if writable else ':ro'}")
    words += ["--module=gpu"] if container.devices == "nvidia" and not _given(container, "--module") else []
    return [*words, *container.options]


def srun_container(plan: Plan, campaign: Path) -> list[Word]:
    """Return the options with which srun starts its tasks in a container, where a plugin of Slurm does (Pyxis)."""
    container = plan.site.container
    if plan.image is None or container.runtime != "pyxis":
        return []
    mounts = ",".join(
        f"{source}:{target}{'' if writable else ':ro'}" for source, target, writable in _mounts(plan, campaign)
    )
    ours = [f"--container-image={plan.image.reference}", f"--container-mounts={mounts}"]
    ours += [f"--container-workdir={campaign}", "--container-readonly", "--no-container-mount-home"]
    ours += ["--no-container-entrypoint"]
    return [*(word for word in ours if not _given(container, word.partition("=")[0])), *container.options]


def _given(container: Container, name: str) -> bool:
    return any(option.partition("=")[0] == name for option in container.options)


_RUNTIMES: Final[dict[str, Callable[[Plan, Path, list[str]], list[Word]]]] = {
    "apptainer": _apptainer,
    "singularity": _apptainer,
    "podman": _podman,
    "podman-hpc": _podman,
    "docker": _docker,
    "shifter": _shifter,
}


def _oci(plan: Plan, campaign: Path, names: list[str], more: dict[str, Word]) -> list[Word]:
    """Return the options common to Podman and Docker. A site's own option replaces ours with the same name."""
    container = plan.site.container
    ours: dict[str, Word] = {
        "read-only": "--read-only",
        # Nodes connect by the host's addresses, without a bridge between them and the fabric.
        "network": "--network=host",
        # Loader processes and collectives exchange batches in shared memory.
        "ipc": "--ipc=host",
        # The record of a run names its node.
        "uts": "--uts=host",
        "workdir": f"--workdir={campaign}",
        "log-driver": "--log-driver=none",
        **more,
    }
    if plan.place.pool.start == "tasks":
        # Each rank has its own container; devices share memory only between processes that see each other.
        ours["pid"] = "--pid=host"
    given = {option[2:].partition("=")[0] for option in container.options}
    words: list[Word] = ["run", "--rm", "--interactive", *(word for name, word in ours.items() if name not in given)]
    # Shared file systems cannot be labelled for SELinux.
    words += ["--security-opt=label=disable", f"--tmpfs={SCRATCH}:rw,exec,nosuid,nodev,mode=1777"]
    for source, target, writable in _mounts(plan, campaign):
        words.append(f"--mount=type=bind,source={source},target={target}{'' if writable else ',readonly'}")
    words += [f"--env={name}" for name in names]
    words += _set_inside(plan, names, {"HOME": SCRATCH, "TMPDIR": SCRATCH, **_OWN})
    if container.devices == "amd":
        words.append("--device=/dev/kfd")
    if container.devices in ("amd", "intel"):
        words.append("--device=/dev/dri")
    return [*words, _FABRIC_DEVICES, *container.options]


def _set_inside(plan: Plan, names: list[str], values: dict[str, str]) -> list[str]:
    """Return options for our own values that the site has not set."""
    given = {*names, *plan.site.environment, *plan.place.pool.environment}
    return [f"--env={name}={value}" for name, value in values.items() if name not in given]


def _mounts(plan: Plan, campaign: Path) -> Iterator[tuple[str, str, bool]]:
    """Yield source, target and whether it is writable; ours last, to keep others from hiding them."""
    for mount in plan.site.container.mounts:
        yield _mountable(mount.source), _mountable(mount.target or mount.source), mount.writable
    if plan.folder is not None:
        # A program finds and leaves its files where it would without a container.
        yield _mountable(plan.folder), _mountable(plan.folder), True
    folder = _mountable(str(campaign))
    yield folder, folder, True
    yield f"{folder}/worker", f"{folder}/worker", False


def _mountable(path: str) -> str:
    if _MOUNTABLE.fullmatch(path):
        return path
    raise InputError(
        f"the path {path} cannot be mounted into a container",
        next_step='use a path without : , " \\ and control characters, such as another folder with --results',
    )


# -- checks ------------------------------------------------------------------------------------------------------


_DEVICE_OPTIONS = re.compile(r"--(nv|nvccli|rocm|gpus?|device|runtime|module)(=|$)")


def container_checks(place: Place) -> Iterator[Check]:
    """Find problems of the container that would stop or spoil a run."""
    container = place.site.container
    if container.runtime == "none" and place.image is None:
        return
    yield check_image(place)
    if container.runtime == "none":
        return
    if container.runtime == "pyxis":
        said = "Pyxis, a plugin of Slurm, starts the container on the nodes: not checked"
        yield Check("container", "note", said, "srun --help | grep container-image")
    elif shutil.which(container.runtime) is None:
        said = f"{container.runtime} is not installed on this machine (the nodes need it): torch not checked"
        yield Check("container", "note", said, f"on a node: {container.runtime} --version")
    has_devices = place.pool.gpus is not None or place.pool.device not in ("auto", "cpu")
    given = container.devices != "none" or any(_DEVICE_OPTIONS.match(option) for option in container.options)
    # With Pyxis the hooks of enroot pass the devices of the job.
    if has_devices and not given and container.runtime != "pyxis":
        yield Check(
            "container devices",
            "wrong",
            "the nodes have devices, but the container gets none: runs would use the CPU or fail",
            'devices = "nvidia", "amd" or "intel" in [container]',
        )
    for mount in container.mounts:
        if Path(mount.source).exists():
            yield Check("container mount", "ok", mount.source)
        else:
            said = f"{mount.source} does not exist on this machine; the nodes need it"
            yield Check("container mount", "note", said, f"on a node: ls {mount.source}")
    if place.site.scheduler == "slurm" and container.family in ("podman", "docker"):
        yield _check_limits(place)


def _check_limits(place: Place) -> Check:
    """Check whether Slurm's limits apply to a container that is not a child of the job."""
    container, name = place.site.container, "container limits"
    if container.family == "podman" and "--cgroups=disabled" in container.options:
        return Check(name, "ok", "the container stays in the job's control group")
    fix = 'options = ["--cgroups=disabled"] with the runtime crun' if container.family == "podman" else "use Apptainer"
    said = f"{container.runtime} leaves the job's control group: Slurm does not limit or count the container's memory"
    if place.pool.gpus is not None and not place.pool.exclusive:
        # Slurm counts a job's devices from 0 inside its control group: outside, 0 is also another job's.
        shared = f"{said}, and two jobs on one node would measure on the same device"
        return Check(name, "wrong", shared, f"exclusive = true in the pool, or {fix}")
    return Check(name, "note", said, fix)
