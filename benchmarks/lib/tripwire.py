"""A sandbox in which verbs run as processes of their own, and a tripwire on all that they do outside of their task.

Four wires: an audit hook in the process and in every Python process that it starts; stand-ins for the programs that a
hostile folder would like to start; a Kubernetes API of our own that writes every request down; and a comparison of
everything outside of the results folder, before and after, by content, mode and name.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib.util
import json
import multiprocessing
import os
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tripwire_hook.sitecustomize import TRIPWIRE, is_device

MARK: Final = "FOREIGN-MARK"
"""In everything that somebody else wants to have started, created or sent."""
SECRET: Final = "CANARY-CONTENT-7f3a"
LIMIT_S: Final = 30.0
HOOK: Final = Path(__file__).parent / "tripwire_hook"
PLATFORM: Final = Path(__file__).resolve().parents[2] / "tests" / "kubernetes" / "platform_kubernetes.py"
PROGRAMS: Final = (
    *(
        "sbatch",
        "scancel",
        "squeue",
        "sacct",
        "sacctmgr",
        "scontrol",
        "sinfo",
        "srun",
        "salloc",
        "kubectl",
        "apptainer",
    ),
    *(
        "singularity",
        "skopeo",
        "docker",
        "podman",
        "ssh",
        "scp",
        "curl",
        "wget",
        "nc",
        "sh",
        "bash",
        "pdflatex",
        "xdg-open",
        "less",
    ),
)
CONTROL: Final = frozenset({*range(9), 11, 12, *range(14, 32), 127})
_SLURM: Final = r"""#!/bin/bash
name=${0##*/}
printf '%s\n' "$name $(printf '%q ' "$@")" >>"$TRIPWIRE_STARTED"
case $name in
  scontrol)
    case "$*" in
      *config*) printf '%s\n' 'ClusterName = bench' 'SLURM_VERSION = 23.11.4' 'MaxArraySize = 1001' ;;
      *partition*) echo "PartitionName=debug Default=YES State=UP TotalNodes=2 MaxTime=UNLIMITED MaxNodes=UNLIMITED" ;;
      *node*) echo "NodeName=n1 Arch=x86_64 CPUTot=8 RealMemory=64000 State=IDLE Partitions=debug Gres=(null)" ;;
    esac ;;
  sacct) echo 'Slurm accounting storage is disabled' >&2; exit 1 ;;
  sbatch)
    case "$*" in *--test-only*) exit 0 ;; esac
    # What would be queued: the options and the whole script.
    for word in "$@"; do [[ -f $word ]] && sed 's/^/script /' "$word" >>"$TRIPWIRE_STARTED"; done
    if [[ -e $TRIPWIRE_FULL ]]; then echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1; fi
    [[ $TRIPWIRE_ONE ]] && touch "$TRIPWIRE_FULL"
    echo "$((1000 + RANDOM))" ;;
  docker | podman | skopeo | apptainer | singularity | curl | wget) exit 1 ;;
  srun) while [[ $1 == --* ]]; do shift; done; exec "$@" ;;
  sh | bash) exec /bin/"$name" "$@" ;;
esac
exit 0
"""
_GIT: Final = '#!/bin/bash\nprintf "%s\\n" "git $(printf "%q " "$@")" >>"$TRIPWIRE_STARTED"\nexec /usr/bin/git "$@"\n'
_MARKER: Final = f'#!/bin/bash\necho "{MARK} $0 $*" >>"$TRIPWIRE_STARTED"\ncat 2>/dev/null\nexit 0\n'


@dataclass(frozen=True)
class Verb:
    """A command line, and what it may do."""

    name: str
    words: tuple[str, ...]
    """With {results}, {work}, {out}, {run} and others in place of paths."""
    writes_results: bool = False
    starts_worker: bool = False
    asks_site: bool = False
    """The user names a site: its queries, and new jobs of the user's own, are what was asked for."""
    foreign_only: bool = False
    """It would wait for the user's own jobs."""
    costly: bool = False
    program: tuple[str, ...] = ()
    """The user's own program, which the command line names."""


@dataclass
class Sight:
    """What one command did."""

    wrong: list[str] = field(default_factory=list)
    output: str = ""
    code: int = 0
    seconds: float = 0.0


class Sandbox:
    """A home, a results folder, canaries outside of it, and stand-ins for programs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home, self.work, self.out = root / "home", root / "work", root / "out"
        self.results, self.elsewhere, self.other = self.work / "results", root / "elsewhere", root / "other"
        self.state, self.scratch = root / "state", root / "scratch"
        self.bin, self.log, self.started = root / "bin", root / "tripwire.log", root / "started.log"
        self.full = root / "queue-is-full"
        for folder in (self.home, self.work, self.out, self.elsewhere, self.other, self.state, self.scratch, self.bin):
            folder.mkdir(parents=True)
        for name in PROGRAMS:
            self._program(name, _SLURM)
        self._program("git", _GIT)
        self.marker = self._program("marker", _MARKER)
        self.api: Api | None = None
        self.campaigns: tuple[str, ...] = ()
        """Names of the user's own campaigns."""
        self.job = ""
        """The user's own jobs, with | between."""
        self.more: dict[str, str] = {}
        """More variables."""
        self.plant_canaries()

    def _program(self, name: str, text: str) -> Path:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def plant_canaries(self) -> None:
        """Write what nobody may read, change or remove."""
        for folder in (self.home, self.elsewhere, self.other):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        for name in (".bashrc", ".profile", ".ssh/authorized_keys", ".ssh/id_ed25519", ".local/bin/tool"):
            path = self.home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"# {SECRET} {name}\n")
        (self.home / ".ssh" / "id_ed25519").chmod(0o600)
        for number in range(12):
            path = self.elsewhere / f"folder{number % 3}" / f"file{number}.txt"
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"{SECRET} {number}\n")
        run = self.other / "runs" / "theirs" / "sim-aaaaaaaaaaaa-r0000"
        (run / "raw").mkdir(parents=True)
        (run / "record.json").write_text(f'{{"{SECRET}": 1}}')

    @property
    def variables(self) -> dict[str, str]:
        """The environment of the commands."""
        kept = {name: os.environ[name] for name in ("LANG", "LC_ALL", "VIRTUAL_ENV") if name in os.environ}
        return kept | {
            "HOME": str(self.home), "XDG_STATE_HOME": str(self.state), "XDG_CACHE_HOME": str(self.scratch / "cache"),
            "PATH": f"{self.bin}:{os.environ['PATH']}", "TMPDIR": str(self.scratch), "USER": "tripwire",
            "MPLCONFIGDIR": str(self.scratch / "mpl"), "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1",
            "TRIPWIRE_STARTED": str(self.started), "TRIPWIRE_FULL": str(self.full),
            "PYTHONPATH": ":".join(filter(None, (str(HOOK), os.environ.get("PYTHONPATH")))),
            "KUBECONFIG": str(self.root / "kubeconfig"), "COLUMNS": "100", "NO_PROXY": "*", "no_proxy": "*",
            "GIT_CONFIG_NOSYSTEM": "1",
            **self.more,
        }  # fmt: skip

    # -- before and after

    def canaries(self) -> dict[str, str]:
        """Everything outside of the results folder, by content, mode and name."""
        found: dict[str, str] = {}
        for top in (self.home, self.elsewhere, self.other, self.bin):
            for folder, folders, files in os.walk(top):
                for name in (*folders, *files):
                    found[os.path.join(folder, name)] = _content(os.path.join(folder, name))
        return found | {f"{self.root}/{name}": "" for name in os.listdir(self.root)}

    def inside(self) -> dict[str, tuple[int, ...]]:
        """Everything in the results folder, as the file system reports it."""
        found: dict[str, tuple[int, ...]] = {}
        for folder, folders, files in os.walk(self.work):
            for name in (*folders, *files):
                path = os.path.join(folder, name)
                # During a race it may be gone.
                with contextlib.suppress(FileNotFoundError):
                    about = os.lstat(path)
                    found[path] = (about.st_mode, about.st_size, about.st_mtime_ns, about.st_ino)
        return found

    # -- one command

    def run(
        self, verb: Verb, words: list[str], *, own: bool = False, still: bool = True, cwd: Path | None = None
    ) -> Sight:
        """Run a verb in a process of its own. `own`: of campaigns that this user sent. `still`: nobody else writes."""
        for path in (self.log, self.started):
            path.write_bytes(b"")
        if self.api is not None:
            self.api.ask("take")
        before, inside = self.canaries(), self.inside()
        begin_s = time.monotonic()
        sight = self._fork(verb, words, own=own, cwd=cwd or self.work)
        sight.seconds = time.monotonic() - begin_s
        sight.wrong += self._seen(verb, own=own)
        after = self.canaries()
        changed = [path for path in sorted(before.keys() | after.keys()) if before.get(path) != after.get(path)]
        sight.wrong += [f"outside changed: {path}" for path in changed[:5]]
        if still and not (verb.writes_results or own):
            now = self.inside()
            touched = [path for path in sorted(inside.keys() | now.keys()) if inside.get(path) != now.get(path)]
            sight.wrong += [f"results changed: {path}" for path in touched[:5]]
        if SECRET in sight.output:
            sight.wrong.append("the content of a file elsewhere was printed")
        return sight

    def _allowed(self, verb: Verb, *, own: bool) -> tuple[str, ...]:
        places = [self.out, self.scratch, self.log, self.started]
        if verb.writes_results or own:
            places += [self.results, self.state]
        return tuple(str(place) for place in places)

    def _fork(self, verb: Verb, words: list[str], *, own: bool, cwd: Path) -> Sight:
        allowed = self._allowed(verb, own=own)
        secret = tuple(str(path) for path in (self.elsewhere, self.other, self.home / ".ssh", self.home / ".bashrc"))
        told = {"log": str(self.log), "allowed": allowed, "secret": secret}
        output = self.root / "output.txt"
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            self._child(words, {**self.variables, "TRIPWIRE": json.dumps(told)}, output, cwd, told)
        sight = Sight()
        handle = os.pidfd_open(child)
        if not select.select([handle], [], [], LIMIT_S)[0]:
            sight.wrong.append(f"took over {LIMIT_S:g} s")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        sight.code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.close(handle)
        text = output.read_bytes()
        sight.output = text.decode("utf-8", "replace")
        if b"Traceback (most recent call last)" in text:
            lines = sight.output.strip().splitlines()
            place = [line.strip() for line in lines if line.lstrip().startswith("File ")][-1:]
            sight.wrong.append(f"traceback: {' '.join([lines[-1][:150], *place])}")
        if CONTROL.intersection(text):
            sight.wrong.append("control characters were printed")
        output.unlink()
        return sight

    def _child(
        self, words: list[str], variables: dict[str, str], output: Path, cwd: Path, told: dict[str, Any]
    ) -> None:
        code = 99
        try:
            os.setsid()
            handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            # A test runner has replaced them.
            sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            os.environ.clear()
            os.environ.update(variables)
            # As the variable says, which Python reads only when it starts.
            sys.dont_write_bytecode = True
            os.chdir(cwd)
            tempfile.tempdir = None
            from steelyard.cli.main import main

            TRIPWIRE.arm(**told)
            try:
                code = main(words)
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            except BaseException:  # noqa: BLE001 -- a traceback is what is looked for
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def _seen(self, verb: Verb, *, own: bool) -> list[str]:
        wrong = []
        site = verb.asks_site or own
        for line in self.log.read_text(encoding="utf-8").splitlines():
            seen = json.loads(line)
            what, about = seen["what"], seen["about"]
            if what == "start" and (self._may_start(verb, about) or site):
                continue
            if what == "connect" and (site or verb.starts_worker) and about[0] in ("127.0.0.1", "localhost"):
                continue
            wrong.append(f"{what}: {about}"[:300])
        for line in self.started.read_text(encoding="utf-8", errors="replace").splitlines():
            program = line.split(" ", 1)[0]
            asked = site and program in (
                "scontrol",
                "squeue",
                "sacct",
                "sacctmgr",
                "sinfo",
                "sbatch",
                "script",
                "skopeo",
            )
            asked = asked or (own and program == "scancel" and line.split()[1] in self.job.split("|"))
            quiet = program == "git" and verb.starts_worker
            if MARK in line or not (asked or quiet or (program in ("sh", "bash") and verb.starts_worker)):
                wrong.append(f"started: {line[:200]}")
        if self.api is not None:
            wrong += [f"request: {line}" for line in self.api.ask("take") if not site or self._is_hostile(line)]
        return wrong

    def _may_start(self, verb: Verb, words: list[str]) -> bool:
        worker = words[:1] == [sys.executable] and any(word.startswith("steelyard.worker") for word in words)
        asked = tuple(words) == verb.program or Path(words[0]).name in ("git", "nvidia-smi", "rocm-smi", "lscpu")
        return verb.starts_worker and (worker or asked)

    def _is_hostile(self, request: str) -> bool:
        """Return whether a request carries what somebody else planted, or deletes what is not the user's own."""
        other = request.startswith("DELETE") and not any(name in request for name in self.campaigns)
        return other or MARK in request or SECRET in request


def _content(path: str) -> str:
    about = os.lstat(path)
    if stat.S_ISLNK(about.st_mode):
        return f"link {os.readlink(path)}"
    kind = f"{about.st_mode:o}"
    if stat.S_ISREG(about.st_mode):
        with open(path, "rb") as file:
            return f"{kind} {hashlib.sha256(file.read()).hexdigest()}"
    return kind


# -- the Kubernetes API


class Api:
    """A Kubernetes API in a process of its own."""

    def __init__(self, sandbox: Sandbox) -> None:
        ready = multiprocessing.get_context("fork").Queue()
        self.process = multiprocessing.get_context("fork").Process(target=_serve, args=(ready, sandbox), daemon=True)
        self.process.start()
        self.port: int = ready.get()

    def ask(self, word: str) -> list[str]:
        """Control it. take: return the new requests; keep, reset: the state of the platform; run: start its pods."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/control/{word}", timeout=120) as answer:
            found: list[str] = json.load(answer)
            return found


def _serve(ready: Any, sandbox: Sandbox) -> None:
    spec = importlib.util.spec_from_file_location("platform_kubernetes", PLATFORM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class Watched(module.Platform):  # type: ignore[name-defined,misc]
        """A platform with a few more paths, for the figure."""

        kept: tuple[Any, Any] = ({}, {})
        things: Any
        logs: Any

        def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
            if not path.startswith("/control/"):
                answer: tuple[int, Any] = super().answer(method, path, query, body)
                return answer
            word = path.rpartition("/")[2]
            taken = [f"{m} {p} {q} {json.dumps(b)}" for m, p, q, b in self.requests if not p.startswith("/control/")]
            if word == "take":
                self.requests.clear()
            elif word == "keep":
                self.kept = copy.deepcopy((self.things, self.logs))
            elif word == "reset":
                self.things, self.logs = copy.deepcopy(self.kept)
            elif word == "run":
                self.run_all(sandbox.root / "pods")
            return 200, taken

    with Watched() as platform:
        platform.kubeconfig(sandbox.root / "kubeconfig")
        ready.put(platform.server.server_port)
        signal.pause()


# -- the system's own view

_CALLS: Final = (
    "openat,open,creat,rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat,link,linkat,symlink,symlinkat,"
    "chmod,fchmodat,chown,lchown,fchownat,truncate,connect,execve"
)
_LINE: Final = re.compile(r"\d+ +(?P<call>\w+)\((?P<words>.*)\) += (?P<answer>\d+)(?:<(?P<opened>[^>]*)>)?$")
_NAMED: Final = re.compile(r'(?:(?:AT_FDCWD|\d+)<(?P<folder>[^>]*)>, )?"(?P<name>(?:[^"\\]|\\.)*)"')
_WRITES: Final = re.compile(r"O_(WRONLY|RDWR|CREAT|TRUNC|APPEND)")


def under_strace(sandbox: Sandbox, words: list[str]) -> tuple[int, list[str]]:
    """Run a command under strace; return how many changes it saw, and those that the audit hook did not report."""
    for path in (sandbox.log, sandbox.started):
        path.write_bytes(b"")
    trace = sandbox.root / "strace"
    told = json.dumps({"log": str(sandbox.log), "allowed": [], "secret": []})
    line = ["strace", "-f", "-y", "-s", "4096", "-o", str(trace), "-e", f"trace={_CALLS}"]
    subprocess.run(
        [*line, sys.executable, "-m", "steelyard.cli.main", *words],
        env={**sandbox.variables, "TRIPWIRE": told},
        cwd=sandbox.work,
        capture_output=True,
        check=False,
        timeout=300,
    )
    seen = [json.loads(entry) for entry in sandbox.log.read_text().splitlines()]
    heard = {"connect" if entry["what"] == "connect" else str(entry["about"]) for entry in seen}
    # Of a tree that is removed the hook names the top.
    trees = tuple(f"{entry['about']}/" for entry in seen if entry["what"] == "shutil.rmtree")
    changes = {found for text in trace.read_text(errors="replace").splitlines() if (found := _change(text, sandbox))}
    trace.unlink()
    return len(changes), sorted(what for what in changes if what not in heard and not what.startswith(trees))


def _change(text: str, sandbox: Sandbox) -> str | None:
    """Return the path that a system call changed, or None."""
    found = _LINE.match(text)
    if found is None or found["call"] == "execve":
        return None
    if found["call"] == "connect":
        return None if "AF_UNIX" in text else "connect"
    if found["call"] in ("openat", "open", "creat"):
        path = found["opened"] if _WRITES.search(found["words"]) and "O_PATH" not in found["words"] else None
    else:
        named = list(_NAMED.finditer(found["words"]))
        path = os.path.join(named[-1]["folder"] or str(sandbox.work), named[-1]["name"]) if named else None
    ours = (str(sandbox.log), str(sandbox.started), str(sandbox.full), "/proc/")
    skipped = path is None or path.startswith(ours) or is_device(path) or path.endswith("(deleted)")
    return None if skipped else path
