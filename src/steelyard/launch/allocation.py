"""AllocationLauncher: runs on the nodes of the current Slurm allocation. Queues nothing.

Each run is a job step of its own, with one torchrun per node. The step cannot outlive us: its standard input is ours,
and it is cancelled by name where srun could not end it.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from steelyard import hostinfo
from steelyard.contracts import observe
from steelyard.contracts.wrap import HOST_VARIABLE, NODE_VARIABLE, NODES_VARIABLE, PORT_VARIABLE
from steelyard.doctor.load import Look
from steelyard.errors import InputError, Problem, SteelyardError, printable
from steelyard.hostinfo import parse_cpus
from steelyard.inputs.devices import PlaceDevices
from steelyard.launch.local import MARK, PROCESSES_PER_CPU, TORCHRUN_LOGS, Child, LocalLauncher
from steelyard.launch.slurm.output import cause_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from steelyard.contracts.spec import RunSpec
    from steelyard.launch.local_study import Launcher

ROOT: Final = Path("/")
ANSWER_LIMIT_S: Final = 30.0
"""Time limit for an answer of Slurm's commands; a busy controller takes seconds."""
END_LIMIT_S: Final = 60.0
LOOK_AGAIN_S: Final = 0.1
LOG_TAIL_BYTES: Final = 100_000
SHOWN_NODES: Final = 4
MAX_NODELIST: Final = 2000
# Below the ports that systems assign by themselves.
PORTS: Final = range(20_000, 30_000)
# What the allocation requested for its own tasks: srun would apply it to our steps.
STEP_WISHES: Final = re.compile(
    r"SLURM_(GPUS|GPUS_PER_.*|NTASKS|NPROCS|NTASKS_PER_.*|TASKS_PER_NODE|CPUS_PER_.*|MEM_PER_.*|TRES_PER_.*|GRES"
    r"|GPU_BIND|CPU_BIND.*|MEM_BIND.*|HINT|THREADS_PER_CORE|DISTRIBUTION|EXCLUSIVE|EXACT|WHOLE|EXPORT_ENV|STEP_.*"
    r"|STEPID|PTY_.*|OVERCOMMIT|NNODES|NODELIST|NODEID|PROCID|LOCALID|GTIDS)|SRUN_.*"
)
# Each node takes its rank from Slurm; the rest are arguments, to keep the shell from reading user input.
ON_EACH_NODE: Final = 'python=$1; shift; exec "$python" -P -m torch.distributed.run --node-rank="$SLURM_NODEID" "$@"'
# A program is started once on each node.
PROGRAM_ON_EACH_NODE: Final = f'export {NODE_VARIABLE}="$SLURM_NODEID"; exec "$@"'
PROBE: Final = (
    '[ -f "$1" ] || echo "steelyard-probe $SLURMD_NODENAME results"; '
    '"$2" -P -c "import steelyard" >/dev/null 2>&1 || echo "steelyard-probe $SLURMD_NODENAME python"'
)


@dataclass(frozen=True)
class Layout:
    """The nodes of the allocation that a run uses, and its processes on each."""

    nodes: tuple[str, ...]
    processes_per_node: int
    devices_per_node: int
    """Devices that the step requests; 0: none."""


@dataclass(frozen=True)
class Allocation:
    """The resources of the Slurm job we are in; if its nodes differ, those of the smallest."""

    job: str
    nodes: tuple[str, ...]
    tasks_per_node: int
    cpus_per_node: int
    devices_per_node: int
    """0: Slurm has allocated none."""
    here: str | None
    """The name of this node; None: another machine, such as a login node."""

    @property
    def is_this_host(self) -> bool:
        """Whether this machine is the only node."""
        return self.nodes == (self.here,)

    def layout(self, spec: RunSpec) -> Layout:
        """Return how a run is spread over the nodes; InputError with the valid numbers of ranks if it does not fit."""
        if spec.program is not None and spec.devices == 1:
            # How many ranks it starts is not known.
            return Layout(self.nodes[:1], 1, 0 if spec.device_family == "cpu" else self.devices_per_node)
        if spec.program is not None:
            spread = self.layout(replace(spec, program=None))
            return replace(spread, processes_per_node=1)
        if spec.processes == 1:
            devices = 1 if self.devices_per_node and spec.device_family not in ("cpu", "sim") else 0
            return Layout(self.nodes[:1], 1, devices)
        if self.devices_per_node and spec.device_family != "cpu":
            each = self.devices_per_node
            if (nodes := self._filled(spec.devices, each)) is not None:
                per_node = spec.devices // nodes
                return Layout(self.nodes[:nodes], per_node, per_node)
            wish = f"--nodes={-(-spec.devices // each)} --gpus-per-node={each}"
            raise self._refusal(spec.devices, each, f"{each} device(s)", wish)
        # By tasks, as the user requested them; else evenly over all nodes, as long as each rank has a CPU.
        ranks = spec.devices
        nodes = self._filled(ranks, self.tasks_per_node)
        if nodes is None and ranks % len(self.nodes) == 0 and ranks // len(self.nodes) <= self.cpus_per_node:
            nodes = len(self.nodes)
        if nodes is None:
            held = f"{self.tasks_per_node} task(s) and {self.cpus_per_node} CPU(s)"
            wish = f"--nodes={len(self.nodes)} --ntasks-per-node={-(-ranks // len(self.nodes))}"
            raise self._refusal(ranks, self.tasks_per_node, held, wish)
        return Layout(self.nodes[:nodes], ranks // nodes, 0)

    def _filled(self, ranks: int, each: int) -> int | None:
        """Return how many nodes these ranks fill: part of one, or several whole ones."""
        if ranks <= each:
            return 1
        whole = ranks // each
        return whole if ranks % each == 0 and whole <= len(self.nodes) else None

    def _refusal(self, ranks: int, each: int, held: str, wish: str) -> InputError:
        several = [str(each * count) for count in range(2, len(self.nodes) + 1)]
        shown = [*several[:3], "...", several[-1]] if len(several) > 4 else several
        fits = ", ".join(["1" if each == 1 else f"1 to {each}", *shown])
        problem = Problem("devices", f"{ranks} on {self._counted()} with {held} each", fits)
        step = f"salloc {wish} ..., or devices that fit"
        return InputError(f"the run does not fit the Slurm allocation {self.job}", problems=(problem,), next_step=step)

    def _counted(self) -> str:
        return "1 node" if len(self.nodes) == 1 else f"{len(self.nodes)} nodes"

    def describe(self) -> str:
        """Describe the allocation for a person."""
        names = ", ".join(self.nodes[:SHOWN_NODES]) + (", ..." if len(self.nodes) > SHOWN_NODES else "")
        held = f"{self.devices_per_node} device(s)" if self.devices_per_node else f"{self.tasks_per_node} task(s)"
        how = "runs start on this node" if self.is_this_host else "runs start on these nodes with srun"
        return f"inside Slurm allocation {self.job}: {self._counted()} ({names}) with {held} each; {how}"


@dataclass(frozen=True)
class Whereabouts:
    """The launcher for the place where this process runs."""

    launcher: Launcher
    message: str = ""
    """For a person; empty if there is nothing to report."""


def launcher_here(say: Callable[[str], None], specs: Iterable[RunSpec]) -> Launcher:
    """Return the launcher for this place; `say` receives messages about the place, such as that it is busy."""
    place = whereabouts(os.environ)
    if place.message:
        say(place.message)
    # A simulated clock does not depend on the machine.
    if isinstance(place.launcher, LocalLauncher) and any(spec.device_family != "sim" for spec in specs):
        look = Look()
        # Said when the first run has been going on for a moment: a look before it would delay it.
        place.launcher.once_started = lambda: say(line) if (line := look.busy_line()) else None
    return place.launcher


def whereabouts(variables: Mapping[str, str]) -> Whereabouts:
    """Find out where we are: use the nodes of an allocation; in a pod, or as one of several tasks, this machine."""
    job = variables.get("SLURM_JOB_ID")
    if job and MARK not in variables:
        tasks = variables.get("SLURM_STEP_NUM_TASKS", "1")
        # A shell with a terminal is one process, even if its step has several tasks.
        if tasks != "1" and "SLURM_PTY_PORT" not in variables:
            message = (
                f"one of {tasks} tasks of a step of Slurm job {job}: each task measures its own machine; to use them "
                "together, start steelyard once, without srun"
            )
            return Whereabouts(LocalLauncher(), message)
        try:
            allocation = read_allocation(variables)
        except SteelyardError as error:
            message = f"inside Slurm job {job}, but {error.what}: runs start on this machine only"
            return Whereabouts(LocalLauncher(), message)
        return Whereabouts(AllocationLauncher(allocation), allocation.describe())
    if "KUBERNETES_SERVICE_HOST" in variables:
        return Whereabouts(LocalLauncher(), "inside a Kubernetes pod: runs start in this pod")
    return Whereabouts(LocalLauncher())


def devices_here() -> PlaceDevices | None:
    """Return the devices of the place where runs start; None: unknown."""
    launcher = whereabouts(os.environ).launcher
    if isinstance(launcher, AllocationLauncher):
        allocation = launcher.allocation
        if allocation.devices_per_node:
            return PlaceDevices(f"Slurm job {allocation.job}", allocation.devices_per_node, len(allocation.nodes))
        if not allocation.is_this_host:
            return None
    return PlaceDevices("this machine", hostinfo.usable_accelerators(ROOT, os.environ))


def read_allocation(variables: Mapping[str, str]) -> Allocation:
    """Query Slurm for the allocation that the environment names; two calls."""
    job = variables["SLURM_JOB_ID"]
    nodes = tuple(_ask(["scontrol", "show", "hostnames", variables.get("SLURM_JOB_NODELIST", "")], variables).split())
    text = _ask(["scontrol", "--details", "--oneliner", "show", "job", job], variables)
    if not nodes:
        raise SteelyardError("Slurm lists no nodes for it")
    shares = re.findall(r"\sNodes=\S+ CPU_IDs=(\S*) Mem=\S* GRES=(\S*)", text)
    tasks = re.search(r"\bNumTasks=(\d{1,7})", text)
    given = variables.get("SLURM_GPUS_ON_NODE", "")
    host = socket.gethostname()
    names = (variables.get("SLURMD_NODENAME"), host, host.partition(".")[0])
    return Allocation(
        job=job,
        nodes=nodes,
        tasks_per_node=max(1, int(tasks[1]) // len(nodes)) if tasks else 1,
        cpus_per_node=max(1, min((len(parse_cpus(cpus)) for cpus, _ in shares), default=1)),
        # A step of one task may have fewer than the job.
        devices_per_node=min((_count_gpus(gres) for _, gres in shares), default=int(given) if given.isdigit() else 0),
        here=next((name for name in names if name in nodes), None),
    )


def _count_gpus(gres: str) -> int:
    """Count the GPUs of a node in Slurm's notation: gpu:2(IDX:0-1), gpu:a100:2(IDX:0-1), a comma list, or nothing."""
    groups = re.findall(r"\bgpu(?::[^:,()]+)??(?::(\d+))?\((?:IDX:)?([\d,-]*)\)", gres)
    return sum(int(count) if count else len(parse_cpus(indices)) for count, indices in groups)


class AllocationLauncher(LocalLauncher):
    """Runs on the nodes of the allocation, one at a time, each in a step of its own."""

    name = "allocation"

    def __init__(self, allocation: Allocation) -> None:
        super().__init__()
        self.allocation = allocation
        self._seen: set[str] = set()
        """Nodes that are known to see our files."""
        self._step = ""

    def shows(self, spec: RunSpec) -> bool:
        """Another node has no terminal of ours: the output is in the log of the run."""
        return super().shows(spec) and self.allocation.is_this_host

    def admit(self, spec: RunSpec) -> None:
        """Raise InputError for a run that does not fit the allocation."""
        layout = self.allocation.layout(spec)
        wanted = layout.processes_per_node * (1 + spec.loader.workers)
        limit = PROCESSES_PER_CPU * max(self.allocation.cpus_per_node, layout.processes_per_node)
        if wanted > limit:
            raise InputError(
                f"{layout.processes_per_node} devices with {spec.loader.workers} loader workers each are {wanted} "
                "processes on a node",
                next_step=f"use at most {limit} on a node",
            )

    def command(self, spec: RunSpec, raw: Path) -> list[str]:
        """Return the srun command, with one worker or one torchrun per node."""
        layout = self.allocation.layout(spec)
        # Where our current folder does not exist, Slurm starts tasks in another.
        raw = raw.absolute()
        worker = [sys.executable, "-P", "-m", "steelyard.worker", str(raw), "--lifeline"]
        if spec.program is not None and len(layout.nodes) > 1:
            host, port = self._meeting(layout)
            told = [f"{NODES_VARIABLE}={len(layout.nodes)}", f"{HOST_VARIABLE}={host}", f"{PORT_VARIABLE}={port}"]
            return [*self._srun(layout), "env", *told, "bash", "-c", PROGRAM_ON_EACH_NODE, "steelyard", *worker]
        if spec.processes == 1:
            return [*self._srun(layout), *worker]
        ranks = [f"--nproc-per-node={layout.processes_per_node}", f"--log-dir={raw / TORCHRUN_LOGS}"]
        meeting = ["--standalone"]
        if len(layout.nodes) > 1:
            host, port = self._meeting(layout)
            meeting = [f"--nnodes={len(layout.nodes)}", "--rdzv-backend=static"]
            meeting += [f"--master-addr={host}", f"--master-port={port}"]
        node = ["bash", "-c", ON_EACH_NODE, "steelyard", sys.executable]
        return [*self._srun(layout), *node, *meeting, *ranks, "--no-python", *worker]

    def _meeting(self, layout: Layout) -> tuple[str, str]:
        """Return where the nodes meet: the address by which Slurm itself reaches the first node, and a port there."""
        host = os.environ.get(HOST_VARIABLE)
        if not host:
            text = _ask(["scontrol", "--oneliner", "show", "node", layout.nodes[0]], os.environ)
            match = re.search(r"\bNodeAddr=(\S+)", text)
            host = match[1] if match else layout.nodes[0]
        return host, os.environ.get(PORT_VARIABLE) or str(secrets.choice(PORTS))

    def environment(self, spec: RunSpec) -> dict[str, str]:
        """Return the variables to add to our environment; what the user has set stays."""
        layout = self.allocation.layout(spec)
        added = {} if spec.program is not None else {"PYTHONSAFEPATH": "1"}
        added |= self.threads(spec)
        if spec.processes > 1 and len(layout.nodes) == 1:
            # All ranks are on one machine; a host name that cannot be resolved must not matter.
            added["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
        return added

    def shared(self, spec: RunSpec) -> tuple[int, int | None]:
        """Return how many ranks share the CPUs of a node: its devices, or the ranks of the study's largest run there.

        A step sees all CPUs of a node, which need not all be ours.
        """
        layout, cpus = self.allocation.layout(spec), self.allocation.cpus_per_node
        if layout.devices_per_node:
            return self.allocation.devices_per_node, cpus
        with suppress(InputError):
            most = self.allocation.layout(replace(spec, devices=spec.most_devices or spec.devices))
            return max(layout.processes_per_node, most.processes_per_node), cpus
        # The largest run does not fit here, so that this one is not compared with it.
        return layout.processes_per_node, cpus

    def inherited(self) -> dict[str, str]:
        """Return our environment without what the allocation requested for its own tasks."""
        return {name: value for name, value in super().inherited().items() if not STEP_WISHES.fullmatch(name)}

    def run(self, spec: RunSpec, raw: Path, tick: Callable[[], None]) -> observe.Launch:
        """Start a step, wait for it, and end it whatever happens to us; on this machine alone no step is needed."""
        layout = self.allocation.layout(spec)
        if self.allocation.is_this_host:
            here = LocalLauncher(show=self.show)
            here.signals = self.signals
            return here.run(spec, raw, tick)
        self._require_seen(layout, raw)
        self._step = f"steelyard-{secrets.token_hex(6)}"
        launch = super().run(spec, raw, tick)
        return self._add_scheduled(launch, layout, raw / observe.WORKER_LOG)

    def end(self, process: Child, mark: str, *, ended: bool) -> None:
        """Leave nothing of the step running on any node: srun may have been killed before it could end it."""
        super().end(process, mark, ended=ended)
        if process.returncode == 0:
            return
        deadline_s = time.monotonic() + END_LIMIT_S
        ask = ["squeue", "--steps", f"--jobs={self.allocation.job}", "--noheader", "--format=%i %j"]
        while time.monotonic() < deadline_s:
            steps = [line.split() for line in _try(ask).splitlines()]
            left = [words[0] for words in steps if words[1:] == [self._step]]
            if not left:
                return
            _try(["scancel", "--signal=KILL", *left])
            # Poll until it is gone; Slurm has nothing to wait on.
            time.sleep(LOOK_AGAIN_S)

    def _srun(self, layout: Layout) -> list[str]:
        """Return srun's arguments for a step on exactly these nodes, beside our own shell, with all their CPUs."""
        count, nodes = len(layout.nodes), ",".join(layout.nodes)
        if len(nodes) > MAX_NODELIST:
            # Slurm's short notation, which fits into a record.
            nodes = _ask(["scontrol", "show", "hostlist", nodes], os.environ).strip()
        devices = f"gpu:{layout.devices_per_node}" if layout.devices_per_node else "none"
        return [
            "srun",
            f"--jobid={self.allocation.job}",
            f"--job-name={self._step or 'steelyard'}",
            "--overlap",
            f"--nodes={count}",
            f"--ntasks={count}",
            "--ntasks-per-node=1",
            f"--nodelist={nodes}",
            f"--gres={devices}",
            "--mem=0",
            "--cpu-bind=none",
            "--export=ALL",
            "--kill-on-bad-exit=1",
        ]

    def _require_seen(self, layout: Layout, raw: Path) -> None:
        """Check that the nodes see the result folder and this Python; once per node, because it takes a step."""
        if self._seen.issuperset(layout.nodes):
            return
        words = ["bash", "-c", PROBE, "steelyard", str((raw / observe.SPEC_FILE).absolute()), sys.executable]
        text = _ask([*self._srun(layout), *words], {**self.inherited(), MARK: "probe"}, limit_s=10 * ANSWER_LIMIT_S)
        blind = re.findall(r"^steelyard-probe (\S+) (results|python)$", text, re.MULTILINE)
        results, python = ([name for name, what in blind if what == kind] for kind in ("results", "python"))
        problems = []
        if results:
            valid = "a folder on a file system that all nodes share (--results)"
            problems.append(Problem("--results", f"not seen from {', '.join(results[:SHOWN_NODES])}", valid))
        if python:
            valid = "an environment with steelyard on a shared file system, for the nodes' architecture"
            problems.append(
                Problem("python", f"{sys.executable} does not run on {', '.join(python[:SHOWN_NODES])}", valid)
            )
        if problems:
            raise InputError("the nodes of the allocation cannot run this", problems=tuple(problems))
        self._seen.update(layout.nodes)

    def _add_scheduled(self, launch: observe.Launch, layout: Layout, log: Path) -> observe.Launch:
        """Add the allocation, its nodes and, if Slurm ended the run, its reason."""
        state, word = "RUNNING", None
        if launch.exit_code not in (0, None):
            state = _try(["squeue", f"--jobs={self.allocation.job}", "--noheader", "--format=%T"]).strip() or "GONE"
            with log.open("rb") as file:
                file.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
                word = cause_in(file.read(LOG_TAIL_BYTES).decode("utf-8", "replace"))
        said = observe.Scheduled(
            scheduler="slurm",
            job=self.allocation.job,
            state=printable(state)[:100],
            cause=word[0] if word else None,
            reason=f"Slurm says: {printable(word[1])}" if word else "",
            nodes=layout.nodes,
        )
        return replace(launch, scheduled=said)


def _ask(command: list[str], variables: Mapping[str, str], limit_s: float = ANSWER_LIMIT_S) -> str:
    """Return the output of a Slurm command; SteelyardError with its own message if it fails."""
    try:
        done = subprocess.run(
            command,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except OSError as error:
        raise SteelyardError(f"{command[0]} cannot be started ({error.strerror})") from None
    except subprocess.TimeoutExpired:
        raise SteelyardError(f"{command[0]} gave no answer in {limit_s:g} s") from None
    if done.returncode:
        said = " ".join(done.stderr.split())[:300] or f"exit code {done.returncode}"
        raise SteelyardError(f"{command[0]} says: {printable(said)}")
    return done.stdout


def _try(command: list[str]) -> str:
    """Return the output of a Slurm command, or nothing if it fails: the job may be over."""
    try:
        return _ask(command, os.environ)
    except SteelyardError:
        return ""
