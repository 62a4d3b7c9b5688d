"""A real Slurm in a scratch folder: a controller and several slurmd of this machine, for tests and figures.

Quick to start, certain to stop: one guard process is the parent of every daemon and the one to which all their
orphans fall; when its standard input closes, however that happens, it ends every process below it. Answers are quick
rather than gentle: what a site sets to minutes is a second here.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

PATIENCE_S: Final = 60.0
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
# Seconds where sites have minutes: tests wait for these.
QUICK: Final = {
    "SchedulerType": "sched/backfill",
    "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,sched_min_interval=10000,bf_interval=1,"
    "bf_max_job_test=50,default_queue_depth=200",
    "KillWait": "2",
    "InactiveLimit": "0",
    "MinJobAge": "300",
    "MaxJobCount": "60000",
    "OverTimeLimit": "0",
    "SlurmdTimeout": "5",
    "SlurmctldTimeout": "5",
    "MessageTimeout": "10",
    "CompleteWait": "0",
    "ResumeTimeout": "10",
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
    """The cluster does not do what it was asked to in time; with what its logs say."""


@dataclass
class Cluster:
    """Several "nodes" of this machine, each a slurmd of its own, and their controller.

    Use as a context manager; `variables` makes Slurm's commands speak to it.
    """

    scratch: Path
    nodes: int = 4
    cpus: int = 2
    memory_mib: int = 4000
    gpus: int = 4
    accounting: bool = False
    """With slurmdbd and a database of its own: five seconds more to start."""
    array_size: int = 1001
    """Slurm's MaxArraySize: one more than the highest index."""
    min_job_age_s: int = 300
    """How long the controller remembers what has ended; it looks every half minute."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """More lines of slurm.conf, or others."""
    partitions: tuple[str, ...] = ("PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP",)
    name: str = "bench"
    _guard: subprocess.Popen[str] | None = None
    _storage_port: int = 0

    @property
    def variables(self) -> dict[str, str]:
        """Of the environment: what tells Slurm's commands about this cluster."""
        return {"SLURM_CONF": str(self.scratch / "slurm.conf")}

    @property
    def node_names(self) -> list[str]:
        """All nodes."""
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    def __enter__(self) -> Cluster:
        start_munge()
        self._write()
        own = Path(__file__).resolve()
        # A session of its own: Ctrl-C in a terminal reaches us, and our end reaches the guard.
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
        """End every process of the cluster, jobs too; when this returns they are gone."""
        guard, self._guard = self._guard, None
        if guard is not None:
            for end in (guard.stdin, guard.stdout):
                if end is not None:
                    end.close()
            guard.wait(PATIENCE_S)

    def start(self, *command: str) -> int:
        """Start a daemon that lives until the cluster is stopped; its process id."""
        if self._guard is None or self._guard.stdin is None or self._guard.stdout is None:
            raise ClusterError("the cluster is not running")
        log = self.scratch / "log" / f"{'-'.join(Path(word).name for word in command)[:60]}.err"
        print(json.dumps({"command": command, "log": str(log)}), file=self._guard.stdin, flush=True)
        return int(self._guard.stdout.readline())

    def run(self, *command: str, check: bool = True, cwd: Path | None = None) -> str:
        """What a command of Slurm prints."""
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
        """Look until it holds."""
        end_s = time.monotonic() + patience_s
        while not condition():
            if time.monotonic() > end_s:
                raise ClusterError(f"not within {patience_s:g} s: {what}\n{self.logs()}")
            time.sleep(LOOK_EVERY_S)

    def wait_until_empty(self, patience_s: float = PATIENCE_S) -> None:
        """Until nothing is queued or running."""
        self.wait_for(lambda: not self.queue(), "the queue is empty", patience_s)

    def idle(self) -> int:
        """How many nodes are idle."""
        text = self.run("sinfo", "--noheader", "--states=idle", "--format=%D", check=False)
        return sum(int(word) for word in text.split())

    def queue(self) -> list[str]:
        """What is queued, running or ending: one `JOBID STATE` a task or range of tasks."""
        return self.run("squeue", "--noheader", "--format=%i %T").splitlines()

    def set_node(self, name: str, state: str, reason: str = "set by a test") -> None:
        """By hand of an administrator: down or drain."""
        self.run("scontrol", "update", f"NodeName={name}", f"State={state}", f"Reason={reason}")

    def bring_back(self, name: str) -> None:
        """Until a node that was set down or drained is idle; it may have come back by itself."""

        def idle() -> bool:
            state = self.run("sinfo", "--noheader", f"--nodes={name}", "--format=%T").split()[0]
            if state.startswith(("down", "drain")):
                self.run("scontrol", "update", f"NodeName={name}", "State=resume", check=False)
            return state == "idle"

        self.wait_for(idle, f"{name} is idle")

    def kill_node(self, name: str) -> None:
        """As when its power goes: slurmd and all it started is gone at once, and says nothing."""
        process = int((self.scratch / f"slurmd-{name}.pid").read_text())
        steps = [p for p in descendants(self.guard_pid) if _is_step_of(p, self.scratch / "log" / f"{name}.log")]
        for number in [process, *steps, *(d for step in steps for d in descendants(step))]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

    def end_now(self, job: str) -> None:
        """Move the end that a running job's time limit sets to now: limits are whole minutes, at least one."""
        self.run("scontrol", "update", f"JobId={job}", "EndTime=now")

    def logs(self, length: int = 1500) -> str:
        """The ends of all logs."""
        files = sorted((self.scratch / "log").glob("*.log"))
        return "\n".join(f"--- {file.name}\n{file.read_text(errors='replace')[-length:]}" for file in files)

    def site(self, **changes: Any) -> Path:
        """A site.toml for this cluster; `changes` replace or extend its keys, tables are merged."""
        site: dict[str, Any] = {
            "name": self.name,
            "scheduler": "slurm",
            "python": sys.executable,
            # Every node is this machine; its host name need not resolve.
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
            "limits": {"array_size": self.array_size - 1, "max_submitted": 10_000, "setup_s": 60},
        }
        path = self.scratch / "site.toml"
        path.write_text("\n".join(_toml(_merged(site, changes))) + "\n", encoding="utf-8")
        return path

    @property
    def guard_pid(self) -> int:
        """Of the process that everything of this cluster is below."""
        if self._guard is None:
            raise ClusterError("the cluster is not running")
        return self._guard.pid

    def _write(self) -> None:
        for name in ("ctld", "spool", "log", "dev"):
            (self.scratch / name).mkdir(parents=True, exist_ok=True)
        ports = _free_ports(self.nodes + 3)
        settings = {**QUICK, "MinJobAge": str(self.min_job_age_s), "MaxArraySize": str(self.array_size)}
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
            node_ports=f"[{','.join(str(port) for port in ports[3:])}]",
            cpus=self.cpus,
            memory_mib=self.memory_mib,
            gpus=self.gpus,
            partitions="\n".join(self.partitions),
        )
        (self.scratch / "slurm.conf").write_text(text, encoding="utf-8")
        # Devices that are not there: /dev/null by other names. Without files nodes would drain.
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
        # Nothing here outlives the cluster: no need to wait for the disk.
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
    """Ours without what an allocation that we may be in has set."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}


def start_munge() -> None:
    """All clusters of a machine share one munged, which stays."""
    if _munge_answers():
        return
    subprocess.run(["install", "-d", "-o", "munge", "-g", "munge", "/run/munge"], check=True)
    as_munge = ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged"]
    # Another cluster may be doing the same now: only the answer counts.
    subprocess.run(as_munge, check=False, capture_output=True, timeout=PATIENCE_S)
    end_s = time.monotonic() + PATIENCE_S
    while not _munge_answers():
        if time.monotonic() > end_s:
            raise ClusterError("munged does not answer")
        time.sleep(LOOK_EVERY_S)


def _munge_answers() -> bool:
    done = subprocess.run(["munge", "-n"], check=False, capture_output=True, timeout=PATIENCE_S)
    return done.returncode == 0


def _free_ports(count: int) -> list[int]:
    """All held at one time, so that none is given twice."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def _merged(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = _merged(result[key], value) if both else value
    return {key: value for key, value in result.items() if value is not None}


def _toml(table: dict[str, Any], path: str = "") -> list[str]:
    """A table of strings, numbers, lists and tables; a JSON string is a TOML string."""
    lines = [f"{json.dumps(k)} = {json.dumps(v)}" for k, v in table.items() if not isinstance(v, dict)]
    for key, value in table.items():
        if isinstance(value, dict):
            inner = f"{path}{json.dumps(key)}"
            lines += [f"[{inner}]", *_toml(value, f"{inner}.")]
    return lines


# -- the guard ------------------------------------------------------------------------------------------------


def guard(orders: IO[str], answers: IO[str]) -> None:
    """Start what it is told to, and end all of it when the orders end."""
    # Steps leave their parents; without this they would fall to the first process of the machine.
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
    """Every process below one, those that have ended and were not waited for among them."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name stands in brackets and may hold anything; the parent is the second word after it.
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
    """Whether it is a slurmstepd that writes into this node's log."""
    with contextlib.suppress(OSError):
        if not Path(f"/proc/{process}/exe").readlink().name.startswith("slurmstepd"):
            return False
        return any(file.readlink() == log for file in Path(f"/proc/{process}/fd").iterdir())
    return False


if __name__ == "__main__":
    guard(sys.stdin, sys.stdout)
