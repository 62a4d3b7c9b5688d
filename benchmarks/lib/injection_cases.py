"""Random campaigns with hostile values, and checks of what arrives when bash runs their scripts."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hypothesis import strategies as st

from steelyard.contracts.base import NAME_PATTERN
from steelyard.contracts.observe import SPEC_FILE
from steelyard.errors import InputError
from steelyard.inputs.site import Pool, Site
from steelyard.inputs.study import Study
from steelyard.inputs.validate import parse_object
from steelyard.launch.campaign import Campaign, Image, JobArray, JobKind, Plan, Price, RunShape
from steelyard.launch.kubernetes.manifests import Code, Content, manifest, task_name
from steelyard.launch.scripts.bash import Raw, Word
from steelyard.launch.scripts.container import run_words
from steelyard.launch.scripts.task import PLACE_VARIABLES, task_script
from steelyard.launch.slurm.request import sbatch_lines, start_words
from steelyard.launch.slurm.scheduler import Slurm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

CANARY = "injected"
RUN_S = 60
WORKER_SHA256 = hashlib.sha256(f"{hashlib.sha256().hexdigest()}  a\n".encode()).hexdigest()
"""The digest of a worker of one empty file."""
COMMANDS = ("srun", "module", "podman", "docker", "apptainer", "python", "python3")
SHAPES = {"one": (1, 1), "node": (1, 2), "nodes": (2, 2)}

# Shell text; CANARY is created if a shell runs it.
TRICKS = (
    "$(touch CANARY)", "`touch CANARY`", "; touch CANARY;", "'; touch CANARY; '", '"; touch CANARY; "',
    "\ntouch CANARY\n", "\r\ntouch CANARY\r\n", "| touch CANARY", "&& touch CANARY", "& touch CANARY &", "> CANARY",
    "$(>CANARY)", "<(touch CANARY)", "${x:=$(touch CANARY)}", "$((a[$(touch CANARY)]))", "\\'; touch CANARY #",
    "$'\\'; touch CANARY #", "#SBATCH --wrap='touch CANARY'", "\n#SBATCH --export=NONE\n", "\\\ntouch CANARY",
    "{touch,CANARY}", "-", "--", "-rf", "--help", "-c touch${IFS}CANARY", "~", "*", "?", "[a-z]", "!", "!!", "%s%n",
    "a=b", "A=$(touch CANARY)", "", " ", "\t", "'", '"', "\\", "$", "$IFS", "${HOME}", "$1", "$@", "é", "\u2028",
    "\x7f", "\x01", "time", "if", "{", "}", "EOF\ntouch CANARY", "/bin/sh", ":", ",",
)  # fmt: skip
# Variables that bash or a library uses, names that a script might use, and harmless ones.
VARIABLES = (
    "NCCL_SOCKET_IFNAME", "FI_PROVIDER", "A", "IFS", "BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "PS4", "UID", "RANDOM",
    "SECONDS", "HOSTNAME", "HOME", "TMPDIR", "LC_ALL", "LANG", "POSIXLY_CORRECT", "CDPATH", "GLOBIGNORE", "HISTFILE",
    "PYTHONPATH", "PYTHONSTARTUP", "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "raw", "run", "runs", "task", "job",
    "campaign", "start", "told", "child", "code", "threads", "cpus", "n", "i", "x", "name", "RANK", "MASTER_ADDR",
    "SLURM_JOB_ID",
)  # fmt: skip

ASKED = ("partition", "account", "qos", "constraint", "reservation", "gpus", "options")


def texts(max_size: int = 60) -> st.SearchStrategy[str]:
    """Tricks and characters in any order; CANARY is replaced later."""
    pieces = st.one_of(st.sampled_from(TRICKS), st.text(st.characters(codec="utf-8"), max_size=8))
    return st.lists(pieces, max_size=3).map("".join).map(lambda text: text[:max_size])


def components() -> st.SearchStrategy[str]:
    """A folder name: any bytes except NUL and slash."""
    odd = st.binary(max_size=6).map(os.fsdecode)
    whole = st.tuples(texts(), st.one_of(st.just(""), odd)).map("".join)
    return whole.map(lambda text: text.replace("/", "").replace("\0", "") or "x").filter(lambda t: t not in (".", ".."))


@dataclass(frozen=True)
class Case:
    """Untrusted values of a campaign."""

    study: str
    folder: str
    python: str
    environment: dict[str, str]
    modules: tuple[str, ...]
    init: str | None
    image: str
    mounts: tuple[str, ...]
    options: tuple[str, ...]
    meeting_host: str | None
    arguments: tuple[str, ...]
    """Of what starts a command on every node."""
    runtime: str
    kind: JobKind
    shape: str
    start: str
    threads: int | None
    by_hand: bool
    asked: dict[str, str]
    """Of Slurm."""


def cases() -> st.SearchStrategy[Case]:
    """Any campaign."""
    harmless = st.sampled_from(["plain", "a b", "it's", "x"])
    mostly = st.one_of(st.just("plain"), texts())
    return st.builds(
        Case,
        study=st.one_of(harmless, texts(), st.from_regex(NAME_PATTERN, fullmatch=True)),
        folder=st.one_of(components(), harmless),
        python=components(),
        environment=st.dictionaries(st.one_of(st.sampled_from(VARIABLES), texts(10)), texts(), max_size=4),
        modules=st.lists(st.one_of(st.just("cuda/12.4"), texts()), max_size=2).map(tuple),
        init=st.one_of(st.none(), components()),
        image=st.one_of(st.just("docker.io/a/b:1"), texts()),
        mounts=st.lists(components(), max_size=2).map(tuple),
        options=st.lists(st.one_of(st.just("--shm-size=1g"), texts()), max_size=1).map(tuple),
        meeting_host=st.one_of(st.none(), mostly),
        arguments=st.lists(texts(), max_size=3).map(tuple),
        runtime=st.sampled_from(["none", "none", "podman", "docker", "apptainer"]),
        kind=st.sampled_from(["runs", "runs", "packed", "search"]),
        shape=st.sampled_from(list(SHAPES)),
        start=st.sampled_from(["torchrun", "tasks"]),
        threads=st.sampled_from([None, 3]),
        by_hand=st.booleans(),
        asked=st.dictionaries(
            st.sampled_from(ASKED), st.one_of(st.sampled_from(["long", "a100&ib"]), texts()), max_size=2
        ),
    )


# -- stubs -------------------------------------------------------------------------------------------------------

# `sh` ignores BASH_ENV. The stub sets no variables, because any of them may be checked.
_STUB = """#!/bin/sh
printf '%s\\0' "$@" >{record}/{kind}.$$.argv
/bin/cat /proc/$$/environ >{record}/{kind}.$$.env
{then}
"""
# Like a starter or a container, run what follows the own arguments.
_THEN = {
    "srun": 'while [ "$#" -gt 0 ] && ! [ "$2/" = "$(/bin/cat {record}/../node; echo /)" ]; do shift; done; exec "$@"',
    "apptainer": 'while [ "$#" -gt 0 ] && ! [ "$1 $2" = "/bin/sh -c" ]; do shift; done; exec "$@"',
}
# Their inner shell waits for the end of the container, which a stub does not have: start the words after it.
_THEN["podman"] = _THEN["docker"] = _THEN["apptainer"].replace("exec", "shift 5; exec")


class Bench:
    """Stubs and a folder for campaigns, shared by many cases."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.record = scratch / "record"
        self.stubs = scratch / "bin"
        self.canaries = scratch / "canaries"
        self.work = scratch / "work"
        for folder in (self.record, self.stubs, self.canaries):
            folder.mkdir(parents=True)
        for kind in COMMANDS:
            path = self.stubs / kind
            path.write_text(
                _STUB.format(record=self.record, kind=kind, then=_THEN.get(kind, "").format(record=self.record)),
                encoding="utf-8",
            )
            path.chmod(0o755)

    def filled(self, text: str) -> str:
        """Put the path of the canary file into a trick."""
        return text.replace("CANARY", str(self.canaries / CANARY)).replace("\0", "")

    def component(self, text: str) -> str:
        """Put the canary into a folder name, which has no slash: the file would be created in the current folder."""
        short = os.fsencode(text.replace("CANARY", CANARY))[:150]
        return os.fsdecode(short)

    def clear(self) -> None:
        """Reset for the next case."""
        for folder in (self.record, self.work):
            shutil.rmtree(os.fsencode(folder), ignore_errors=True)
            folder.mkdir()

    def called(self, kind: str) -> list[tuple[list[str], dict[str, str]]]:
        """Return arguments and environment of each call of a command."""
        calls = []
        for path in sorted(self.record.glob(f"{kind}.*.argv"), key=lambda path: path.stat().st_mtime_ns):
            variables = (entry.split(b"=", 1) for entry in path.with_suffix(".env").read_bytes().split(b"\0") if entry)
            words = [os.fsdecode(word) for word in path.read_bytes().split(b"\0")[:-1]]
            calls.append((words, {os.fsdecode(pair[0]): os.fsdecode(pair[-1]) for pair in variables}))
        return calls


@dataclass
class Outcome:
    """Result of one case."""

    refused: int = 0
    """Values that the contracts refuse; the case runs without them."""
    impossible: bool = False
    """The campaign as a whole is refused."""
    values: int = 0
    """Number of values checked where they arrive."""
    changed: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    """Files that should not exist."""

    def same(self, what: str, got: object, wanted: object) -> None:
        """Count a value, and record it if it changed."""
        self.values += 1
        if got != wanted:
            self.changed.append(f"{what}: {got!r} instead of {wanted!r}")


# -- one case ----------------------------------------------------------------------------------------------------


def check(bench: Bench, case: Case) -> Outcome:
    """Render the case, run it, and check what arrived."""
    bench.clear()
    outcome = Outcome()
    try:
        campaign = _campaign(bench, case, outcome)
        job = campaign.plan.jobs[0]
        start = ["srun", *(bench.filled(word) for word in case.arguments)]
        scripts = Slurm().render(campaign, job)
        if case.arguments:
            # For Slurm, all arguments of srun are ours.
            scripts["job.sh"] = task_script(
                campaign, job, scripts["node.sh"], head=sbatch_lines(campaign, job), start=start
            )
        else:
            start = [str(word) for word in start_words(campaign, job)]
        _look_at_manifest(outcome, campaign, job)
    except InputError:
        outcome.impossible = True
        return outcome
    _write(bench, campaign, job, scripts)
    by_hand = case.by_hand and job.shape.nodes == 1 and case.start == "torchrun"
    done = _run(bench, campaign, job, by_hand=by_hand)
    if done.returncode != 0:
        outcome.changed.append(f"exit code {done.returncode}: {done.stderr[-300:]!r}")
    if start and not by_hand:
        _look_at_start(outcome, bench, campaign, job, start)
    _look_at_head(outcome, campaign, scripts["job.sh"])
    _look_at_modules(outcome, bench, campaign)
    _look_at_container(outcome, bench, campaign, job)
    _look_at_worker(outcome, bench, campaign, job)
    _look_for_files(outcome, bench, campaign, job)
    return outcome


def _campaign(bench: Bench, case: Case, outcome: Outcome) -> Campaign:
    home = bench.work / bench.component(case.folder)
    study = _taken(outcome, lambda: parse_object(Study, {"name": bench.filled(case.study)}, "").name) or "study"
    site = _site(bench, case, outcome)
    nodes, processes = SHAPES[case.shape] if case.kind == "runs" else SHAPES["one"]
    shape = RunShape(
        nodes=nodes, processes_per_node=processes, devices_per_node=0, threads=case.threads, sharing=processes,
        run_limit_s=RUN_S,
    )  # fmt: skip
    runs = ("r-0001", "r-0002")
    job = JobArray(
        number=0, name="sy-0", kind=case.kind, shape=shape, task_limit_s=10 * RUN_S, tasks=(("other",), runs)
    )
    image = None
    if case.runtime != "none" and site.container.images:
        name = site.container.images["x86_64"]
        image = Image(name=name, reference=name, architecture=None, digest=None)
    python = "python3" if image else str(bench.work / "python" / bench.component(case.python))
    price = Price(device_hours=0, node_hours=0, charge=0, charge_unit="", expected_s=None, basis="")
    plan = Plan(
        study=study, campaign="0" * 12, created_at="", made_by="", site=site, pool="p", image=image,
        worker_sha256=WORKER_SHA256, python=python, jobs=(job,), price=price,
    )  # fmt: skip
    return Campaign(home, plan)


def _taken(outcome: Outcome, read: Callable[[], T]) -> T | None:
    """Return the value as the contract reads it, or None if it refuses it."""
    try:
        return read()
    except InputError:
        outcome.refused += 1
        return None


def _site(bench: Bench, case: Case, outcome: Outcome) -> Site:
    """Return the site with all values that its contract accepts, each tried alone."""
    pool: dict[str, Any] = {"architecture": "x86_64", "devices_per_node": 2, "start": case.start}
    for name, text in case.asked.items():
        wider = {**pool, name: [bench.filled(text)] if name == "options" else bench.filled(text)}
        if _taken(outcome, partial(parse_object, Pool, wider, "")) is not None:
            pool = wider
    site: dict[str, Any] = {"name": "site", "scheduler": "slurm", "pools": {"p": pool}}

    def add(table: str, key: str, value: Any) -> None:
        inside = site.get(table, {}) if table else site
        before = inside.get(key)
        added = [*before, *value] if isinstance(before, list) else value
        changed = {**site, table: {**inside, key: added}} if table else {**site, key: added}
        if _taken(outcome, lambda: parse_object(Site, changed, "")) is not None:
            site.update(changed)

    for table, key, value in _site_values(bench, case):
        add(table, key, value)
    return parse_object(Site, site, "")


def _site_values(bench: Bench, case: Case) -> Iterator[tuple[str, str, Any]]:
    for name, text in case.environment.items():
        yield "environment", bench.filled(name), bench.filled(text)
    for name in case.modules:
        yield "modules", "load", [bench.filled(name)]
    if case.init is not None:
        yield "modules", "init", str(bench.work / "init" / bench.component(case.init))
    if case.meeting_host is not None:
        yield "", "meeting_host", bench.filled(case.meeting_host)
    yield "container", "runtime", case.runtime
    yield "container", "images", {"x86_64": bench.filled(case.image)}
    for name in case.mounts:
        yield "container", "mounts", [{"source": f"/{bench.component(name)}"}]
    for option in case.options:
        yield "container", "options", [bench.filled(option)]


def _write(bench: Bench, campaign: Campaign, job: JobArray, scripts: dict[str, str]) -> None:
    folder = campaign.job_folder(job)
    folder.mkdir(parents=True)
    tasks = "".join(" ".join(task) + "\n" for task in job.tasks)
    for name, text in {**scripts, "tasks": tasks}.items():
        (folder / name).write_text(text, encoding="utf-8")
    (campaign.path / "worker").mkdir()
    (campaign.path / "worker" / "a").touch()
    for number, run_id in enumerate(job.tasks[1]):
        campaign.raw(run_id).mkdir(parents=True)
        (campaign.raw(run_id) / SPEC_FILE).write_text(f'{{\n "batch": {1 + number}\n}}\n', encoding="utf-8")
    # With an end that `$( )` does not strip.
    (bench.scratch / "node").write_bytes(os.fsencode(folder / "node.sh"))
    for name, source in (("python", bench.stubs / "python"), ("init", None)):
        (bench.work / name).mkdir(exist_ok=True)
        path = Path(campaign.plan.python if name == "python" else campaign.plan.site.modules.init or "/dev/null")
        if source is not None and path.is_absolute():
            path.symlink_to(source)
        elif source is None and path.parent == bench.work / "init":
            path.write_text(f": >{bench.record}/sourced\n", encoding="utf-8")


def _run(bench: Bench, campaign: Campaign, job: JobArray, *, by_hand: bool) -> subprocess.CompletedProcess[bytes]:
    variables = {"PATH": f"{bench.stubs}:/usr/bin:/bin", "HOME": str(bench.work)}
    words = ["bash", str(campaign.job_folder(job) / "job.sh")]
    if by_hand:
        words.append("1")
    else:
        variables |= {
            "SLURM_JOB_ID": "20017",
            "SLURM_ARRAY_TASK_ID": "1",
            "SLURM_NODEID": "0",
            "SLURM_CPUS_ON_NODE": "2",
        }
    return subprocess.run(words, cwd=bench.canaries, env=variables, stdin=subprocess.DEVNULL, capture_output=True,
                          timeout=RUN_S, check=False)  # fmt: skip


def _look_at_start(outcome: Outcome, bench: Bench, campaign: Campaign, job: JobArray, start: list[str]) -> None:
    node = str(campaign.job_folder(job) / "node.sh")
    wanted = [[*start[1:], "bash", node, first] for first in _firsts(campaign, job)]
    outcome.same("what starts a run", [words for words, _ in bench.called("srun")], wanted)


def _firsts(campaign: Campaign, job: JobArray) -> list[str]:
    """Return the arguments of node.sh for each start."""
    return ["1"] if job.kind == "packed" else [str(campaign.raw(run_id)) for run_id in job.tasks[1]]


def _look_at_head(outcome: Outcome, campaign: Campaign, script: str) -> None:
    """Check the Slurm directives. Slurm reads them up to the first command and splits them like a shell."""
    pool, lines = campaign.plan.place.pool, script.split("\n")[1:]
    told = list(itertools.takewhile(lambda text: text.startswith("#SBATCH "), lines))
    outcome.same("lines for Slurm elsewhere", sum("#SBATCH" in text[:9] for text in lines[len(told) :]), 0)
    words = [shlex.split(text, comments=True)[0:] for text in (entry.removeprefix("#SBATCH ") for entry in told)]
    outcome.same("one word per line", [len(entry) for entry in words], [1] * len(told))
    flat = [word for entry in words for word in entry]
    for name in ("partition", "account", "qos", "constraint", "reservation"):
        if (value := getattr(pool, name)) is not None:
            outcome.same(name, [word for word in flat if word.startswith(f"--{name}=")][0:1], [f"--{name}={value}"])
    outcome.same("more options", flat[len(flat) - len(pool.options) :], list(pool.options))


def _look_at_manifest(outcome: Outcome, campaign: Campaign, job: JobArray) -> None:
    """Return what Kubernetes would start, after it has expanded references."""
    if campaign.plan.image is None:
        return
    specs: dict[str, dict[str, Any]] = {run_id: {} for task in job.tasks for run_id in task}
    if job.kind == "search" and job.shape.nodes > 1:
        return
    whole = manifest(campaign.plan, job, Content(Code(b"", ""), specs), jobset=False)
    pods = [item["spec"]["template"]["spec"] for item in whole["items"] if item["kind"] == "Job"]
    for task, container in ((task, container) for task, pod in enumerate(pods) for container in pod["containers"]):
        outcome.same("image", container["image"], campaign.plan.image.reference)
        outcome.same("first word", _expanded(container["command"][0]), campaign.plan.python)
        arrived = {entry["name"]: _expanded(entry["value"]) for entry in container["env"] if "value" in entry}
        allocation = {"STEELYARD_ALLOCATION": task_name(campaign.plan, job, task)}
        outcome.same("variables of a pod", arrived, {**campaign.plan.site.environment, **allocation})


def _expanded(text: str) -> str:
    """`$(NAME)` is a reference, `$$` a dollar; all else is itself. (Kubernetes: define an environment variable.)"""
    return re.sub(r"\$\$|\$\([^)]*\)", lambda found: "$" if found.group() == "$$" else "", text)


def _look_at_modules(outcome: Outcome, bench: Bench, campaign: Campaign) -> None:
    modules = campaign.plan.site.modules
    if modules.load:
        outcome.same("modules", [words for words, _ in bench.called("module")], [["load", *modules.load]])
    if modules.init is not None:
        outcome.same("sourced", (bench.record / "sourced").exists(), modules.init.startswith(f"{bench.work}/init/"))


def _look_at_container(outcome: Outcome, bench: Bench, campaign: Campaign, job: JobArray) -> None:
    """Check that every word of the container command is in its place; expansions may be anything."""
    if campaign.plan.image is None:
        return
    runtime = campaign.plan.site.container.runtime
    words = run_words(campaign.plan, campaign.path, [*_given(campaign), *PLACE_VARIABLES])
    first = words.index(runtime)
    calls = bench.called(runtime)
    outcome.same("starts of a container", len(calls), len(_firsts(campaign, job)))
    for got, variables in calls:
        outcome.same("words of the container", _missing(got, words[first + 1 :]), [])
        _look_at_variables(outcome, campaign, variables, "APPTAINERENV_" if runtime == "apptainer" else "")


def _missing(got: list[str], wanted: list[Word]) -> list[str]:
    """Return the words that do not follow those before them."""
    place, missing = 0, []
    for word in wanted:
        if isinstance(word, Raw):
            continue
        try:
            place = got.index(word, place) + 1
        except ValueError:
            # The names also include our own variables.
            if not word.startswith("--env="):
                missing.append(word)
    return missing


def _given(campaign: Campaign) -> dict[str, str]:
    """Return the variables of the site that must arrive unchanged, without those that steelyard sets itself."""
    threads = campaign.plan.jobs[0].shape.threads
    ours = {"PYTHONPATH", "PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE", *(["OMP_NUM_THREADS"] if threads else [])}
    if campaign.plan.place.pool.start == "tasks":
        ours |= {"MASTER_ADDR", "MASTER_PORT"}
    return {name: value for name, value in campaign.plan.site.environment.items() if name not in ours}


def _look_at_worker(outcome: Outcome, bench: Bench, campaign: Campaign, job: JobArray) -> None:
    calls = [*bench.called("python"), *bench.called("python3")]
    outcome.same("starts of Python", len(calls), len(_firsts(campaign, job)))
    worker = str(campaign.path / "worker")
    given = campaign.plan.site.environment.get("PYTHONPATH")
    for (got, variables), first in zip(calls, _firsts(campaign, job), strict=False):
        outcome.same("arguments", got, _arguments(campaign, job, first))
        path = worker if given is None else f"{worker}:{given}"
        inside = variables.get("PYTHONPATH", "")
        if campaign.plan.site.container.runtime == "apptainer" and campaign.plan.image:
            # Put before that of the image, which with a stub is that of the node.
            outcome.same("PYTHONPATH", inside[: len(path)], path)
        elif campaign.plan.image is None:
            outcome.same("PYTHONPATH", inside, path)
        if campaign.plan.image is None:
            _look_at_variables(outcome, campaign, variables, "")


def _look_at_variables(outcome: Outcome, campaign: Campaign, variables: dict[str, str], prefix: str) -> None:
    for name, value in _given(campaign).items():
        outcome.same(f"variable {name}", variables.get(prefix + name), value)


def _arguments(campaign: Campaign, job: JobArray, first: str) -> list[str]:
    """Return the expected arguments of Python."""
    folder, worker = str(campaign.job_folder(job)), ["-m", "steelyard.worker"]
    if job.kind == "packed":
        return [*worker, "--lease", "--done", f"{folder}/1.done", "--task", f"{folder}/tasks", "1"]
    nodes, processes = job.shape.nodes, job.shape.processes_per_node
    if nodes * processes == 1:
        return [*worker, first]
    if campaign.plan.place.pool.start == "tasks":
        return [*worker, first, "--ranks-from", "slurm"]
    meeting = ["--standalone"]
    if nodes > 1:
        host = campaign.plan.site.meeting_host or ""
        meeting = [f"--nnodes={nodes}", "--node-rank=0", "--rdzv-backend=static", f"--master-addr={host}"]
        meeting += [f"--master-port={10_000 + 17}"]
    torchrun = ["-m", "torch.distributed.run", f"--log-dir={first}/torchrun", *meeting]
    return [*torchrun, f"--nproc-per-node={processes}", "--no-python", campaign.plan.python, *worker, first]


def _look_for_files(outcome: Outcome, bench: Bench, campaign: Campaign, job: JobArray) -> None:
    """Check that only expected files exist: ours, those of a task and those of the stubs."""
    folder = campaign.job_folder(job)
    mine = {folder / name for name in ("job.sh", "node.sh", "tasks", "1.done")} | {campaign.path / "worker" / "a"}
    for run_id in job.tasks[1]:
        mine |= {campaign.raw(run_id) / name for name in (SPEC_FILE, "lease", "worker.log")}
    mine |= {Path(campaign.plan.python), Path(campaign.plan.site.modules.init or "/")}
    everywhere = [*_files(bench.canaries), *_files(bench.work), *_files(bench.stubs)]
    stubs = {bench.stubs / kind for kind in COMMANDS}
    outcome.made += [repr(path) for path in everywhere if path not in mine | stubs]
    for path in _files(bench.canaries):
        path.unlink()


def _files(folder: Path) -> list[Path]:
    return [Path(where) / name for where, _, names in os.walk(folder) for name in names]
