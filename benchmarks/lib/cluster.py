"""A real Slurm in a scratch folder: a controller and several slurmd on this machine, for tests and figures.

One guard process is the parent of every daemon and adopts all orphans; when its standard input closes, it ends every
process below it, so nothing is left. Intervals that sites set to minutes are seconds here; limits after which something
counts as failed are not, because a daemon on a busy machine takes its time.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from ports import port_block

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

PATIENCE_S: Final = 300.0
"""Ends a hang and judges nothing."""
LOOK_EVERY_S: Final = 0.05
PR_SET_CHILD_SUBREAPER: Final = 36

CONFIGURATION: Final = """\
ClusterName={name}
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation={scratch}/ctld
SlurmdSpoolDir={scratch}/spool/%n
SlurmctldPidFile={scratch}/ctld.pid
SlurmdPidFile={scratch}/slurmd-%n.pid
SlurmctldLogFile={scratch}/log/ctld.log
SlurmdLogFile={scratch}/log/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
SlurmdParameters=config_overrides
GresTypes=gpu
{settings}
NodeName={nodes} NodeHostname=localhost NodeAddr=127.0.0.1 Port={node_ports} CPUs={cpus} RealMemory={memory_mib} \
Gres=gpu:fake:{gpus} State=UNKNOWN
{partitions}
"""
SETTINGS: Final = {
    # Seconds instead of minutes, because tests wait for these.
    "SchedulerType": "sched/backfill",
    "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,sched_min_interval=10000,bf_interval=1,"
    "bf_max_job_test=50,default_queue_depth=200",
    "InactiveLimit": "0",
    "MinJobAge": "300",
    "MaxJobCount": "60000",
    "OverTimeLimit": "0",
    "CompleteWait": "0",
    "ResumeTimeout": "10",
    # For a machine that is busy with other things: nothing waits for these unless something is wrong.
    "KillWait": "30",
    "MessageTimeout": "60",
    "SlurmctldTimeout": "60",
    "BatchStartTimeout": "300",
    "GetEnvTimeout": "300",
    "UnkillableStepTimeout": "300",
}
DATABASE: Final = """\
AuthType=auth/munge
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
PidFile={scratch}/dbd.pid
LogFile={scratch}/log/dbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={storage_port}
StorageUser=root
StorageLoc=slurm
"""


class ClusterError(Exception):
    """The cluster did not respond in time; the message includes its logs."""


@dataclass
class Cluster:
    """Several "nodes" on this machine, each with its own slurmd, and their controller.

    Use as a context manager; with `variables` in the environment, Slurm commands use this cluster.
    """

    scratch: Path
    nodes: int = 4
    cpus: int = 2
    memory_mib: int = 4000
    gpus: int = 4
    accounting: bool = False
    """Whether to start slurmdbd and a database, which takes five more seconds."""
    array_size: int = 1001
    """Slurm's MaxArraySize: one more than the highest index."""
    min_job_age_s: int = 300
    """How long the controller remembers ended jobs; it checks every half minute."""
    node_timeout_s: int = 300
    """Slurm's SlurmdTimeout: how long a node may be silent before it has failed. Less only where nodes must fail."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Lines of slurm.conf to add or replace."""
    partitions: tuple[str, ...] = ("PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP",)
    name: str = "bench"
    _guard: subprocess.Popen[str] | None = None
    _storage_port: int = 0
    _held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that point Slurm commands to this cluster."""
        return {"SLURM_CONF": str(self.scratch / "slurm.conf")}

    @property
    def node_names(self) -> list[str]:
        """All nodes."""
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    def __enter__(self) -> Cluster:
        start_munge()
        self._write(self._held.enter_context(port_block()))
        own = Path(__file__).resolve()
        # Its own session: Ctrl-C reaches only this process, and its end reaches the guard.
        self._guard = subprocess.Popen(
            [sys.executable, str(own)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**clean_environment(), **self.variables},
        )
        try:
            if self.accounting:
                self._start_accounting()
            self.start("slurmctld", "-D")
            for name in self.node_names:
                self.start("slurmd", "-D", "-N", name)
            self.wait_for(lambda: self.idle() == self.nodes, "all nodes are idle")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End every process of the cluster, including jobs, and wait for them."""
        guard, self._guard = self._guard, None
        if guard is not None:
            for end in (guard.stdin, guard.stdout):
                if end is not None:
                    end.close()
            guard.wait(PATIENCE_S)
        self._held.close()

    def start(self, *command: str) -> int:
        """Start a daemon that runs until the cluster is stopped; return its process id."""
        if self._guard is None or self._guard.stdin is None or self._guard.stdout is None:
            raise ClusterError("the cluster is not running")
        log = self.scratch / "log" / f"{'-'.join(Path(word).name for word in command)[:60]}.err"
        print(json.dumps({"command": command, "log": str(log)}), file=self._guard.stdin, flush=True)
        return int(self._guard.stdout.readline())

    def run(self, *command: str, check: bool = True, cwd: Path | None = None) -> str:
        """Return the output of a Slurm command."""
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
            env={**clean_environment(), **self.variables},
            cwd=cwd,
        )
        if check and done.returncode:
            raise ClusterError(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def wait_for(self, condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
        """Poll until the condition holds."""
        end_s = time.monotonic() + patience_s
        while not condition():
            if time.monotonic() > end_s:
                raise ClusterError(f"not within {patience_s:g} s: {what}\n{self.logs()}")
            time.sleep(LOOK_EVERY_S)

    def wait_until_empty(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until nothing is queued or running."""
        self.wait_for(lambda: not self.queue(), "the queue is empty", patience_s)

    def idle(self) -> int:
        """How many nodes are idle."""
        text = self.run("sinfo", "--noheader", "--states=idle", "--format=%D", check=False)
        return sum(int(word) for word in text.split())

    def queue(self) -> list[str]:
        """Return `JOBID STATE` for each task or range of tasks that is queued, running or ending."""
        return self.run("squeue", "--noheader", "--format=%i %T").splitlines()

    def set_node(self, name: str, state: str, reason: str = "set by a test") -> None:
        """Set a node down or drain it, as an administrator does."""
        self.run("scontrol", "update", f"NodeName={name}", f"State={state}", f"Reason={reason}")

    def bring_back(self, name: str) -> None:
        """Resume a node and wait until it is idle; it may have come back by itself."""

        def idle() -> bool:
            state = self.run("sinfo", "--noheader", f"--nodes={name}", "--format=%T").split()[0]
            if state.startswith(("down", "drain")):
                self.run("scontrol", "update", f"NodeName={name}", "State=resume", check=False)
            return state == "idle"

        self.wait_for(idle, f"{name} is idle")

    def kill_node(self, name: str) -> None:
        """Kill slurmd and all its processes at once, like a power failure."""
        process = int((self.scratch / f"slurmd-{name}.pid").read_text())
        steps = [p for p in descendants(self.guard_pid) if _is_step_of(p, self.scratch / "log" / f"{name}.log")]
        for number in [process, *steps, *(d for step in steps for d in descendants(step))]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

    def end_now(self, job: str) -> None:
        """Make the time limit of a running job end now: Slurm limits are whole minutes, at least one."""
        # Not `now`: that is in the past, and refused, when the controller reads it a second later.
        self.run("scontrol", "update", f"JobId={job}", "EndTime=now+5")

    def logs(self, length: int = 1500) -> str:
        """Return the ends of all logs."""
        files = sorted((self.scratch / "log").glob("*.log"))
        return "\n".join(f"--- {file.name}\n{file.read_text(errors='replace')[-length:]}" for file in files)

    def site(self, **changes: Any) -> Path:
        """Write a site.toml for this cluster; `changes` replace or add keys, and tables are merged."""
        site: dict[str, Any] = {
            "name": self.name,
            "scheduler": "slurm",
            "python": sys.executable,
            # Every node is this machine; its host name may not resolve.
            "meeting_host": "127.0.0.1",
            "environment": {"GLOO_SOCKET_IFNAME": "lo"},
            "pools": {
                "cpu": {
                    "architecture": platform.machine(),
                    "devices_per_node": 1,
                    "device": "cpu",
                    "partition": "debug",
                    "cpus_per_node": 1,
                    "memory_per_node_mib": self.memory_mib // 2,
                }
            },
            "limits": {"array_size": self.array_size - 1, "max_submitted": 10_000, "setup_s": 300},
        }
        path = self.scratch / "site.toml"
        path.write_text("\n".join(_toml(_merged(site, changes))) + "\n", encoding="utf-8")
        return path

    @property
    def guard_pid(self) -> int:
        """Process id of the guard, the ancestor of all processes of the cluster."""
        if self._guard is None:
            raise ClusterError("the cluster is not running")
        return self._guard.pid

    def _write(self, ports: range) -> None:
        # Not above: the guard needs none of it, and it takes a while.
        from steelyard.launch.scripts.task import FIRST_PORT

        for name in ("ctld", "spool", "log", "dev"):
            (self.scratch / name).mkdir(parents=True, exist_ok=True)
        daemons = self.nodes + 3
        settings = SETTINGS | {
            "MinJobAge": str(self.min_job_age_s),
            "MaxArraySize": str(self.array_size),
            "SlurmdTimeout": str(self.node_timeout_s),
            # The ranks of a job meet at a port that is given by its id: one of ours, after those of the daemons.
            "FirstJobId": str(ports[daemons] - FIRST_PORT),
        }
        if self.accounting:
            settings |= {
                "AccountingStorageType": "accounting_storage/slurmdbd",
                "AccountingStorageHost": "127.0.0.1",
                "AccountingStoragePort": str(ports[1]),
                "AccountingStorageTRES": "gres/gpu",
            }
            self._write_accounting(ports[1], ports[2])
        settings |= self.settings
        text = CONFIGURATION.format(
            name=self.name,
            port=ports[0],
            scratch=self.scratch,
            settings="\n".join(f"{key}={value}" for key, value in settings.items()),
            nodes=f"n[1-{self.nodes}]",
            node_ports=f"[{','.join(str(port) for port in ports[3:daemons])}]",
            cpus=self.cpus,
            memory_mib=self.memory_mib,
            gpus=self.gpus,
            partitions="\n".join(self.partitions),
        )
        (self.scratch / "slurm.conf").write_text(text, encoding="utf-8")
        # Fake devices: links to /dev/null. Without files, nodes would drain.
        for number in range(self.gpus):
            device = self.scratch / "dev" / f"g{number}"
            if not device.exists():
                os.mknod(device, 0o600 | 0o020000, os.makedev(1, 3))
        line = f"NodeName=n[1-{self.nodes}] Name=gpu Type=fake File={self.scratch}/dev/g[0-{self.gpus - 1}]\n"
        (self.scratch / "gres.conf").write_text(line, encoding="utf-8")

    def _write_accounting(self, port: int, storage_port: int) -> None:
        text = DATABASE.format(port=port, scratch=self.scratch, storage_port=storage_port)
        path = self.scratch / "slurmdbd.conf"
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
        self._storage_port = storage_port

    def _start_accounting(self) -> None:
        data = self.scratch / "mariadb"
        data.mkdir()
        own = ["--no-defaults", f"--datadir={data}", "--user=root"]
        self.run("mariadb-install-db", *own, "--skip-test-db", "--auth-root-authentication-method=normal")
        place = [f"--port={self._storage_port}", "--bind-address=127.0.0.1", f"--socket={self.scratch}/mariadb.sock"]
        # No need to sync to disk: the data is not kept.
        fast = ["--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync", "--innodb-lock-wait-timeout=900"]
        self.start("mariadbd", *own, *place, *fast, f"--pid-file={self.scratch}/mariadb.pid", "--skip-name-resolve")
        query = ["mariadb", "--no-defaults", f"--socket={self.scratch}/mariadb.sock", "--user=root", "-e"]
        statement = "create user if not exists root@'127.0.0.1'; grant all on *.* to root@'127.0.0.1'"
        ready = self.scratch / "mariadb.sock"
        self.wait_for(ready.exists, "the database is up")
        self.run(*query, statement)
        self.start("slurmdbd", "-D")
        self.wait_for(lambda: self._accounts("list", "cluster"), "slurmdbd answers")
        self.run("sacctmgr", "-i", "add", "cluster", self.name)
        self.run("sacctmgr", "-i", "add", "account", "project", "Description=tests", "Organization=tests")
        self.run("sacctmgr", "-i", "add", "user", "root", "Account=project")

    def _accounts(self, *words: str) -> bool:
        command = ["sacctmgr", "-n", *words]
        environment = {**clean_environment(), **self.variables}
        return subprocess.run(command, capture_output=True, check=False, env=environment).returncode == 0


def clean_environment() -> dict[str, str]:
    """Return the environment without the Slurm variables of a surrounding allocation."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}


def start_munge() -> None:
    """Start munged if needed. All clusters on a machine share one, which keeps running."""
    if _munge_answers():
        return
    subprocess.run(["install", "-d", "-o", "munge", "-g", "munge", "/run/munge"], check=True)
    as_munge = ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged"]
    # Another cluster may start it at the same time, so only check that it answers.
    subprocess.run(as_munge, check=False, capture_output=True, timeout=PATIENCE_S)
    end_s = time.monotonic() + PATIENCE_S
    while not _munge_answers():
        if time.monotonic() > end_s:
            raise ClusterError("munged does not answer")
        time.sleep(LOOK_EVERY_S)


def _munge_answers() -> bool:
    done = subprocess.run(["munge", "-n"], check=False, capture_output=True, timeout=PATIENCE_S)
    return done.returncode == 0


def _merged(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = _merged(result[key], value) if both else value
    return {key: value for key, value in result.items() if value is not None}


def _toml(table: dict[str, Any], path: str = "") -> list[str]:
    """Write a table of strings, numbers, lists and tables as TOML; JSON strings are valid TOML."""
    lines = [f"{json.dumps(k)} = {json.dumps(v)}" for k, v in table.items() if not isinstance(v, dict)]
    for key, value in table.items():
        if isinstance(value, dict):
            inner = f"{path}{json.dumps(key)}"
            lines += [f"[{inner}]", *_toml(value, f"{inner}.")]
    return lines


# -- the guard ------------------------------------------------------------------------------------------------


def guard(orders: IO[str], answers: IO[str]) -> None:
    """Start the requested daemons, and end all of them when standard input closes."""
    # Job steps leave their parents; without this, init would adopt them.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for line in orders:
        order = json.loads(line)
        with Path(order["log"]).open("ab") as log:
            # Ignored signals are inherited: a daemon must be able to end by one.
            started = subprocess.Popen(
                order["command"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=_default_signals
            )
        with contextlib.suppress(BrokenPipeError):
            print(started.pid, file=answers, flush=True)
    while below := descendants(os.getpid()):
        for process in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.005)  # until the next look


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def descendants(process: int) -> list[int]:
    """Return all descendants of a process, including zombies."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name is in brackets and may contain anything; the parent is the second field after it.
                parent = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    ahead = [process]
    while ahead:
        below = children.get(ahead.pop(), [])
        found += below
        ahead += below
    return found


def _is_step_of(process: int, log: Path) -> bool:
    """Whether the process is a slurmstepd that writes to the log of this node."""
    with contextlib.suppress(OSError):
        if not Path(f"/proc/{process}/exe").readlink().name.startswith("slurmstepd"):
            return False
        return any(file.readlink() == log for file in Path(f"/proc/{process}/fd").iterdir())
    return False


if __name__ == "__main__":
    guard(sys.stdin, sys.stdout)
