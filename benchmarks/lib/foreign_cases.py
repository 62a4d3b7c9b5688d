"""Hostile results folders: links at every place, forged campaign files, races, git repositories, archives."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tripwire import MARK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from foreign_folder import Genuine

STATUS: Final = (
    "status",
    "status STUDY",
    "status --wait",
    "status --cancel",
    "status --cancel, Kubernetes",
    "status --adopt",
)
SEND: Final = ("study --site --dry-run", "study --site", "study --site, Kubernetes")
READ: Final = (
    *(
        "show",
        "show STUDY",
        "show RUN",
        "show RUN --derive",
        "show --json",
        "compare",
        "scaling",
        "batch",
        "best",
        "energy",
    ),
    *("audit", "study --dry-run", "verify --history", "verify --no-run", "show ARCHIVED", "show ARCHIVED --derive"),
    *("query", "query QUESTION", "query --format parquet", "expect", "import --save"),
)
PAGES: Final = ("report", "pack", "audit --html", "suite report", "report --format csv")
MAKE: Final = (
    "run", "archive", "study", "study --again", "archive --drop-raw", "verify", "suite run", "import", "wrap",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One hostile folder and the verbs to try on it."""

    kind: str
    name: str
    plant: Callable[[Genuine], None]
    verbs: tuple[str, ...]
    own: bool = False
    """The user sent the campaigns; somebody who can write to the folder changed them."""
    cwd: str = ""
    """Below the work folder."""
    races: tuple[str, str] | None = None
    """A path in the results folder that is swapped, again and again, for a link to something elsewhere."""
    times: int = 1


# -- links and others at every place

# Names that the code may create, besides those of a genuine folder.
CREATED: Final = (
    "superseded", "superseded/s", "runs/n", "runs/run", "runs/recipe", "studies/x.json", "campaigns/n",
    "campaigns/c/lock", "campaigns/c/dry-run", "campaigns/c/0002",
    "campaigns/c/0001/ended.jsonl", "campaigns/c/0001/unsettled.json",
    "campaigns/c/0001/collected", "campaigns/c/0001/lock", "campaigns/c/0001/.plan.json",
    "campaigns/c/0001/jobs/000/1.done",
    "campaigns/c/0001/jobs/000/2.done", "campaigns/c/0001/jobs/000/2.out", "campaigns/c/0001/jobs/001/id",
    "campaigns/c/0001/jobs/001/trying", "campaigns/k/0001/ended.jsonl", "campaigns/k/0001/unsettled.json",
    "campaigns/k/0001/collected", "campaigns/k/0001/jobs/000/0.done", "campaigns/k/0001/jobs/000/0.given-up.json",
    "campaigns/k/0001/jobs/000/0.out", "campaigns/k/lock", "campaigns/k/dry-run",
    "{slurm_run}/raw/launch.json", "{slurm_run}/record.json", "{slurm_run}/raw/lease", "{slurm_run}/raw/progress.json",
    "{slurm_run}/raw/compiling", "{slurm_run}/raw/events-00001.jsonl", "{slurm_run}/raw/steps-00001.bin",
    "{kubernetes_run}/raw/launch.json", "{kubernetes_run}/record.json", "{kubernetes_run}/raw/steps-00000.bin",
    "{kubernetes_run}/raw/events-00000.jsonl", "{own_temporary}.plan.json", "campaigns/c/0001/{owner}.unsettled.json",
    "campaigns/c/{owner}.lock", "{slurm_run}/raw/{owner}.launch.json", "campaigns/c/0001/jobs/001/{owner}.trying",
)  # fmt: skip


def places(genuine: Genuine) -> list[str]:
    """Return one path for each kind of file that a folder has or may get."""
    results = genuine.sandbox.results
    found: dict[str, str] = {}
    for path in sorted(results.rglob("*")):
        name = str(path.relative_to(results))
        # The runs of recipes and suites are as others are.
        if re.match(r"runs/(?!s/|c/).+/", name):
            continue
        # One run per study, one file of each kind per folder of code.
        kind = re.sub(r"sim-[0-9a-f]{12}-r\d{4}", "RUN", name)
        kind = re.sub(r"worker/steelyard/.+", "worker/steelyard/FILE", kind)
        kind = re.sub(r"-[0-9a-f]{12}\.json", "-STUDY.json", kind)
        found.setdefault(kind, name)
    about = {
        "slurm_run": left(genuine.slurm, results),
        "kubernetes_run": left(genuine.kubernetes, results),
        "own_temporary": "campaigns/c/.",
        "owner": ".vm.1.1.1",
    }
    return [*found.values(), *(name.format(**about) for name in CREATED)]


def left(campaign: Path, results: Path) -> str:
    """Return a run that is not collected; of several, one that has ended."""
    runs = sorted((campaign / "runs").iterdir())
    ended = [run for run in runs if any((run / "raw").glob("events*"))]
    return str((ended or runs)[0].relative_to(results))


KINDS: Final = ("content", "bashrc", "folder", "dangling", "relative", "chain", "proc", "hard", "pipe", "socket")


def put(genuine: Genuine, name: str, kind: str) -> None:
    """Replace a path by a link or another kind of file."""
    sandbox = genuine.sandbox
    path = sandbox.results / name
    path.parent.mkdir(parents=True, exist_ok=True)
    planted = sandbox.elsewhere / "planted"
    if path.is_dir():
        shutil.copytree(path, planted, symlinks=True)
        shutil.rmtree(path)
    elif path.exists():
        shutil.copyfile(path, planted)
        path.unlink()
    else:
        planted.write_text("{}\n")
    targets = {
        "content": planted,
        "bashrc": sandbox.home / ".bashrc",
        "folder": sandbox.elsewhere / "folder0",
        "dangling": sandbox.elsewhere / "new",
        "relative": Path(os.path.relpath(planted, path.parent)),
        "proc": Path("/proc/self/cwd"),
    }
    if kind in targets:
        path.symlink_to(targets[kind])
    elif kind == "chain":
        (sandbox.scratch / "swap" / "link").symlink_to(planted)
        path.symlink_to(sandbox.scratch / "swap" / "link")
    elif kind == "hard":
        os.link(planted if planted.is_file() else sandbox.home / ".bashrc", path)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)


def links(genuine: Genuine) -> Iterator[Case]:
    """Several kinds at every place; each against the verbs that may reach it, in turn."""
    number = 0
    for turn, name in enumerate(places(genuine)):
        campaign = name.startswith("campaigns")
        # The content behind a link everywhere; of the other kinds, three at each place.
        for kind in (KINDS[0], *(KINDS[1 + (3 * turn + i) % (len(KINDS) - 1)] for i in range(3))):
            number += 1

            def plant(genuine: Genuine, name: str = name, kind: str = kind) -> None:
                put(genuine, name, kind)

            own = campaign and number % 2 == 0
            if own:
                verbs = ("status", "status STUDY", "status --cancel", *SEND[number // 2 % 3 :][:1])
            elif campaign:
                verbs = (*STATUS[number // 2 % 6 :][:2], "status", *SEND[number // 2 % 3 :][:1])
            else:
                verbs = (*[READ[(number + i) % len(READ)] for i in range(5)], STATUS[number % 3], SEND[number % 2])
                # It reads everything, and removes what it has read.
                verbs = (*verbs, *(("archive",) if number % 2 else ()))
            verbs = (*dict.fromkeys(verbs), *_costly(number, campaign=campaign))
            yield Case("link", f"{kind} at {name}", plant, verbs, own=own)


def _costly(number: int, *, campaign: bool) -> tuple[str, ...]:
    """Pages and runs take seconds: one in three folders of runs, one in eight of campaigns."""
    if number % (8 if campaign else 3):
        return ()
    every = (*PAGES, *MAKE)
    return (every[number // 3 % len(every)],)


# -- forged campaign files


def change(path: Path, make: Callable[[Any], Any]) -> None:
    """Change a JSON file."""
    path.write_text(json.dumps(make(json.loads(path.read_bytes()))))


def set_in(*keys: Any, value: Any) -> Callable[[Any], Any]:
    """Return a change of one value of a JSON document."""

    def make(document: Any) -> Any:
        inner = document
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        return document

    return make


def evil_script(path: Path) -> None:
    """Replace a script by somebody else's."""
    path.write_text(f"#!/bin/bash\n#SBATCH --job-name={MARK}\necho {MARK}\n")


def evil_pod(genuine: Genuine) -> list[dict[str, Any]]:
    """A privileged pod that mounts the node."""
    spec = {
        "hostPID": True,
        "containers": [{"name": MARK, "image": "evil", "securityContext": {"privileged": True}, "command": ["sh"]}],
        "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
    }
    plan = json.loads((genuine.kubernetes / "plan.json").read_bytes())
    labels = {"steelyard/campaign": plan["campaign"], "steelyard/job": "0", "steelyard/task": "0"}
    job = {"template": {"metadata": {"labels": labels}, "spec": spec}, "completions": 1}
    name = f"sy-{plan['campaign']}-000-0"
    return [{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": labels}, "spec": job}]


def forge_manifest(genuine: Genuine, *, forget: tuple[str, ...], sent: str | None) -> None:
    """Put somebody else's pod into a job, as if it had been partly created."""
    home = genuine.kubernetes / "jobs" / "000"
    (home / "manifest.json").write_text(json.dumps({"kind": "List", "items": evil_pod(genuine)}))
    for name in forget:
        (home / name).unlink(missing_ok=True)
    (home / "trying").write_text("vm.1.2.3\n")
    if sent is not None:
        (home / "sent").write_text(sent)


def forge_search(genuine: Genuine, target: str) -> None:
    """A search whose candidates were not begun: collecting it would remove them, here through a link."""
    plan = genuine.slurm / "plan.json"
    change(plan, set_in("jobs", 0, "kind", value="search"))
    folders = {"elsewhere": genuine.sandbox.elsewhere, "other": genuine.sandbox.other / "runs" / "theirs"}
    names = sorted(entry.name for entry in folders[target].iterdir())
    change(plan, set_in("jobs", 0, "tasks", value=[names]))
    shutil.rmtree(genuine.slurm / "runs")
    (genuine.slurm / "runs").symlink_to(folders[target])
    (genuine.slurm / "unsettled.json").write_text(json.dumps({"0.0.unknown": [0.0, 0], "0.0.ended": [0.0, 0]}))


def _nest(depth: int) -> str:
    return "[" * depth + "]" * depth


def _forged_ids() -> Iterator[tuple[str, bytes]]:
    yield from (
        ("--me", b"--me\n"),
        ("all users", b"--user=root\n"),
        ("a list", b"1,2,3\n"),
        ("another job", b"4242\n"),
    )
    yield from (
        ("not UTF-8", b"\xff\xfe\n"),
        ("long", b"9" * 100_000),
        ("another cluster", b"1;other\n"),
        ("lines", b"1\n--me\n"),
    )
    yield from (("escape", b"\x1b]0;x\x07 1\n"), ("a path", b"../../id\n"), ("zero", b"0\n"), ("nul", b"1\0002\n"))


_PLAN: Final[dict[str, tuple[tuple[Any, ...], Any]]] = {
    "a namespace of the system": (("site", "cluster", "namespace"), "kube-system"),
    "a namespace with a path": (("site", "cluster", "namespace"), "a/../../x"),
    "another context": (("site", "cluster", "context"), "production"),
    "the labels of another campaign": (("campaign",), "ffffffffffff"),
    "a campaign for every label": (("campaign",), "x"),
    "a python of somebody else": (("python",), f"/tmp/{MARK}"),
    "a module file": (("site", "modules", "init"), f"/tmp/{MARK}"),
    "an option of sbatch": (("site", "pools", "cpu", "options"), [f"--comment={MARK}"]),
    "a variable": (("site", "environment", "BASH_ENV"), f"/tmp/{MARK}"),
    "a run above the folder": (("jobs", 0, "tasks"), [["../../../elsewhere"]]),
    "a run with an absolute name": (("jobs", 0, "tasks"), [["/etc"]]),
    "a run named ..": (("jobs", 0, "tasks"), [[".."]]),
    "a run with a line": (("jobs", 0, "tasks"), [["a\nb"]]),
    "a run with an escape": (("jobs", 0, "tasks"), [["a\x1b[31m"]]),
    "a study above the folder": (("study",), "../../elsewhere"),
    "another study": (("study",), "s"),
    "a job's number": (("jobs", 0, "number"), 999),
    "a negative number": (("jobs", 0, "number"), -1),
    "another scheduler": (("site", "scheduler"), "kubernetes"),
    "an unknown scheduler": (("site", "scheduler"), f"{MARK}:run"),
    "a huge time": (("jobs", 0, "task_limit_s"), 10**300),
    "no time": (("created_at",), "x" * 1000),
    "the last year": (("created_at",), "0001-01-01T00:00:00+00:00"),
    "an image": (("image",), {"name": MARK, "reference": MARK, "architecture": None, "digest": None}),
    "a price": (("price", "charge"), 1e308),
}


def _plan_cases() -> Iterator[Case]:
    for what, (keys, value) in _PLAN.items():
        for own in (False, True):
            for name in ("c", "k"):

                def plant(genuine: Genuine, keys: tuple[Any, ...] = keys, value: Any = value, name: str = name) -> None:
                    plan = (genuine.slurm if name == "c" else genuine.kubernetes) / "plan.json"
                    with contextlib.suppress(KeyError, IndexError, TypeError):
                        change(plan, set_in(*keys, value=value))

                more = "" if name == "c" else ", Kubernetes"
                verbs = ("status", f"status --cancel{more}", f"study --site{more}")
                yield Case("plan", f"{name}: {what}{', after sending' if own else ''}", plant, verbs, own=own)


def _file_cases() -> Iterator[Case]:
    """Files of a campaign that say something else, as a folder of somebody else and as one's own."""
    deep, fill = _nest(100_000), '{"a":' * 50_000 + "1" + "}" * 50_000
    texts: dict[str, tuple[str, bytes]] = {
        f"id: {what}": ("campaigns/c/0001/jobs/000/id", text) for what, text in _forged_ids()
    }
    for what, text in {
        "nested": deep,
        "objects": fill,
        "Infinity": '{"0.1.unknown": [Infinity, Infinity]}',
        "a list": "[1]",
    }.items():
        texts[f"unsettled.json: {what}"] = ("campaigns/c/0001/unsettled.json", text.encode())
        texts[f"ended.jsonl: {what}"] = ("campaigns/c/0001/ended.jsonl", text.encode() + b"\n")
        texts[f"study.json: {what}"] = ("campaigns/c/0001/study.json", text.encode())
        texts[f"plan.json: {what}"] = ("campaigns/c/0001/plan.json", text.encode())
        texts[f"given up: {what}"] = ("campaigns/k/0001/jobs/000/0.given-up.json", text.encode())
        texts[f"manifest.json: {what}"] = ("campaigns/k/0001/jobs/000/manifest.json", text.encode())
        texts[f"studies: {what}"] = ("studies/s-000000000000.json", text.encode())
    for what, line in {
        "another folder": "../../../../elsewhere 0 1 2\n",
        "a folder from the root": "/etc 0 1 2\n",
        "no number": "x y z\n",
        "infinity": "sim 0 inf nan\n",
        "long": "x" * 1_000_000,
        "an escape": "\x1b[31m 0 1 2\n",
        "times": "sim-000000000000-r0000 0 1e300 1e308\n",
    }.items():
        texts[f"done: {what}"] = ("campaigns/c/0001/jobs/000/1.done", line.encode())
    texts["sent: many"] = ("campaigns/k/0001/jobs/000/sent", b"0\n1\n99999999999999999999\n-1\n")
    texts["server: another"] = ("campaigns/k/0001/jobs/000/server", b"https://evil.example\x1b[31m\n")
    texts["lock: an escape"] = ("campaigns/c/lock", b"host\x1b[31m.1.2.3\n")
    texts["ended.jsonl: a reason"] = (
        "campaigns/c/0001/ended.jsonl",
        b'{"run": "x", "code": "failed", "reason": "\\u001b[31m$(id)"}\n',
    )
    for what, (name, data) in texts.items():
        for own in (False, True):

            def plant(genuine: Genuine, name: str = name, data: bytes = data) -> None:
                path = genuine.sandbox.results / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)

            cancel = "status --cancel" if "/c/" in name or "studies" in name else "status --cancel, Kubernetes"
            send = "study --site" if "/c/" in name or "studies" in name else "study --site, Kubernetes"
            yield Case("file", f"{what}{', after sending' if own else ''}", plant, ("status", cancel, send), own=own)


def _scripts() -> Iterator[Case]:
    for name in ("job.sh", "node.sh", "tasks"):
        for own in (False, True):

            def script(genuine: Genuine, name: str = name) -> None:
                evil_script(genuine.slurm / "jobs" / "001" / name)

            verbs = ("study --site", "study --site --dry-run", "status", "status --cancel")
            yield Case(
                "script", f"{name} of a job that was not sent{', after sending' if own else ''}", script, verbs, own=own
            )
    yield from _code()


def _code() -> Iterator[Case]:
    for own in (False, True):

        def worker(genuine: Genuine) -> None:
            for campaign in (genuine.slurm, genuine.kubernetes):
                (campaign / "worker" / "steelyard" / "__init__.py").write_text(f'open("/tmp/{MARK}", "w")\n')

        yield Case("script", f"worker{', after sending' if own else ''}", worker, ("status", *SEND), own=own)

        def source(genuine: Genuine) -> None:
            """A spec of a job that was not sent names a private file as the user's workload."""
            private = genuine.sandbox.home / ".ssh" / "id_ed25519"
            for campaign in (genuine.slurm, genuine.kubernetes):
                for path in (campaign / "runs").glob("*/raw/spec.json"):
                    change(path, set_in("source", value={"path": str(private), "sha256": "0" * 64}))
                    change(path, set_in("workload", value=str(private)))
            for name in ("id", "trying", "sent", "server"):
                (genuine.kubernetes / "jobs" / "000" / name).unlink(missing_ok=True)

        yield Case(
            "script",
            f"a private file as workload{', after sending' if own else ''}",
            source,
            ("status", *SEND),
            own=own,
        )


def _pods() -> Iterator[Case]:
    forms: dict[str, tuple[tuple[str, ...], str | None]] = {
        "sent, no id": (("id", "server"), "0\n"),
        "trying, no id": (("id", "sent", "server"), None),
        "all kept": ((), None),
        "sent is empty": (("id",), ""),
        "another server": (("id",), "5\n"),
    }
    for what, (forget, sent) in forms.items():
        for own in (False, True):

            def plant(genuine: Genuine, forget: tuple[str, ...] = forget, sent: str | None = sent) -> None:
                forge_manifest(genuine, forget=forget, sent=sent)

            verbs = (
                "status",
                "status --wait",
                "status --cancel, Kubernetes",
                "study --site, Kubernetes",
                "status --adopt",
            )
            yield Case("pod", f"a privileged pod: {what}{', after sending' if own else ''}", plant, verbs, own=own)

    def clean(genuine: Genuine) -> None:
        """Nothing is left: closing the campaign would delete by the labels of the plan."""
        shutil.rmtree(genuine.kubernetes / "runs")
        (genuine.kubernetes / "runs").mkdir()
        change(genuine.kubernetes / "plan.json", set_in("campaign", value="ffffffffffff"))

    for own in (False, True):
        yield Case(
            "pod",
            f"cleaning by labels of somebody else{', after sending' if own else ''}",
            clean,
            ("status", "status --wait"),
            own=own,
        )


def _removing() -> Iterator[Case]:
    for own in (False, True):
        after = ", after sending" if own else ""
        for target in ("elsewhere", "other"):

            def search(genuine: Genuine, target: str = target) -> None:
                forge_search(genuine, target)

            yield Case(
                "removing",
                f"a search over {target}{after}",
                search,
                ("status", "status --wait", "study --site"),
                own=own,
            )

        def unsent(genuine: Genuine) -> None:
            """Cancelling removes the runs of a job that was not sent."""
            runs = genuine.slurm / "runs"
            for run in sorted(runs.iterdir()):
                shutil.rmtree(run)
                run.symlink_to(genuine.sandbox.elsewhere / "folder0")

        yield Case(
            "removing", f"runs that are links{after}", unsent, ("status --cancel", "study --site", "status"), own=own
        )

        def raw(genuine: Genuine) -> None:
            for run in sorted((genuine.slurm / "runs").iterdir()):
                shutil.rmtree(run / "raw")
                (run / "raw").symlink_to(genuine.sandbox.elsewhere / "folder1")

        yield Case(
            "removing",
            f"raw folders that are links{after}",
            raw,
            ("status --cancel", "study --site", "status"),
            own=own,
        )

        def dead(genuine: Genuine) -> None:
            """What a dead process left, as links and as a folder with links."""
            results = genuine.sandbox.results
            from steelyard.results.store import owner

            gone = owner().rpartition(".")[0] + ".1"
            (results / ".scratch" / f"{gone}.abcdefgh.run").symlink_to(genuine.sandbox.elsewhere)
            inner = results / ".scratch" / f"{gone}.ijklmnop.run2"
            inner.mkdir()
            (inner / "link").symlink_to(genuine.sandbox.elsewhere)
            for home in (genuine.slurm, genuine.slurm.parent, genuine.slurm / "jobs" / "000"):
                (home / f".{gone}.lock").symlink_to(genuine.sandbox.home / ".bashrc")
            (genuine.slurm.parent / "dry-run").symlink_to(genuine.sandbox.elsewhere)
            (genuine.slurm.parent / "0007").symlink_to(genuine.sandbox.elsewhere / "folder2")

        yield Case(
            "removing",
            f"what a dead process left{after}",
            dead,
            ("run", "study --site --dry-run", "study --site", "status"),
            own=own,
        )


_NAMES: Final = (
    b"..x", b"a\x1b[31mred", b"a\nb", b"a\rb", b"a\tb", b"\xff\xfe", b"-rf", b"--results", b"$(id)", b"`id`",
    b"a;id", b"x" * 250, "\u202eevil".encode(), b"\x07bell", b"a b", b"'\"", b"%s%n", b"{run}",
)  # fmt: skip


def _names() -> Iterator[Case]:
    for name in _NAMES:

        def plant(genuine: Genuine, name: bytes = name) -> None:
            results, text = genuine.sandbox.results, os.fsdecode(name)
            run = results / "runs" / "s" / genuine.run
            shutil.copytree(run, results / "runs" / "s" / text)
            shutil.copytree(run.parent, results / "runs" / text)
            shutil.copytree(genuine.slurm, results / "campaigns" / text / "0001")
            (run / "raw" / text).write_bytes(b"x")

        yield Case(
            "name",
            f"{name!r}",
            plant,
            ("show", "show STUDY", "show RUN --derive", "audit", "status", "best", "study --site"),
        )


def forged() -> Iterator[Case]:
    """Campaign files that somebody else wrote, or changed after they were sent."""
    for make in (_plan_cases, _file_cases, _scripts, _pods, _removing, _names, _runs):
        yield from make()


def _runs() -> Iterator[Case]:
    """Runs with values that no run has; in a campaign, the others must still be collected."""
    events = {
        "a nested line": _nest(100_000),
        "a nested object": '{"kind": ' * 20_000 + "1" + "}" * 20_000,
        "a number without end": '{"kind": "status", "code": "completed", "at": ' + "9" * 5000 + "}",
        "infinity": '{"kind": "phase", "at_s": Infinity}',
        "not UTF-8": "\udcff",
    }
    for what, text in events.items():
        for campaign in (False, True):

            def plant(genuine: Genuine, text: str = text, campaign: bool = campaign) -> None:
                home = genuine.sandbox.results / (
                    left(genuine.slurm, genuine.sandbox.results) if campaign else f"runs/s/{genuine.run}"
                )
                with (home / "raw" / "events-00000.jsonl").open("a", errors="surrogateescape") as file:
                    file.write(text + "\n")

            verbs = ("status", "study --site") if campaign else ("show RUN --derive", "show STUDY", "energy", "report")
            yield Case("run", f"{what}{', not collected' if campaign else ''}", plant, verbs, own=campaign)
    for what in ("spec.json", "record.json", "launch.json", "steps-00000.bin"):
        for data in (b"", b"\xff" * 1000, _nest(100_000).encode(), b"{}", b"null", b'{"a": 1e999}'):

            def broken(genuine: Genuine, what: str = what, data: bytes = data) -> None:
                home = genuine.sandbox.results / "runs" / "s" / genuine.run
                ((home / what) if what == "record.json" else (home / "raw" / what)).write_bytes(data)

            yield Case(
                "run",
                f"{what} is {data[:12]!r}",
                broken,
                ("show", "show RUN", "show RUN --derive", "best", "audit", "status"),
            )
