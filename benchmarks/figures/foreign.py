"""[foreign] Somebody else's results folder is inert: no verb starts, contacts, changes or removes anything for it.

A genuine folder (simulated runs, some archived, a campaign on Slurm, one on Kubernetes, half collected) is changed in
hundreds of ways: links and other kinds of files at every place that a folder has or may get, forged campaign files,
races that swap a file for a link, hostile git repositories, archives unpacked with tar. Each verb runs as a process of
its own, with a home, programs and a Kubernetes API of ours; see benchmarks/lib/tripwire.py for what is watched. A case
fails if the tripwire saw anything, if anything outside changed, if a file elsewhere was read, if control characters or
a traceback were printed, or if it took over 30 s.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import multiprocessing
import pkgutil
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import steelyard
import steelyard.cli.main as cli
from figure import arguments, at_least, at_most, finish
from foreign_cases import MAKE, Case, forged, links
from foreign_folder import VERBS, Genuine, make
from foreign_places import archives, races, repositories, swapping
from simjob import memory_folder
from steelyard.cli.exit_codes import INVALID
from tripwire import under_strace

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTS = 2
RACES = 10
QUICK = {
    "link": 14, "plan": 4, "file": 5, "script": 2, "pod": 3, "removing": 4, "name": 2, "run": 2, "git": 2, "race": 1,
    "archive": 1,
}  # fmt: skip


@dataclass
class Tried:
    """One verb on one folder."""

    case: str
    kind: str
    verb: str
    wrong: list[str]
    seconds: float
    runs: int = 1


def warm_up() -> None:
    """Import what verbs import: it takes longer than most of them."""
    for found in pkgutil.walk_packages(steelyard.__path__, "steelyard."):
        if not found.name.startswith(("steelyard.worker", "steelyard.data")):
            with contextlib.suppress(ImportError):
                importlib.import_module(found.name)
    with contextlib.suppress(ImportError):
        importlib.import_module("kubernetes")


WARM = ("show STUDY", "show RUN --derive", "compare", "scaling", "best", "energy", "audit", "verify --no-run")


def use_once(genuine: Genuine) -> None:
    """Run verbs that only read in this process: what they prepare once, its children have."""
    from steelyard.launch.plan import load_campaign

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for name in WARM:
            cli.main(genuine.words(VERBS[name]))
        load_campaign(genuine.slurm)


def every(genuine: Genuine, *, times: int) -> Iterator[Case]:
    """All cases, in a fixed order."""
    yield from links(genuine)
    yield from forged()
    yield from repositories()
    yield from archives(genuine)
    yield from races(genuine, times)


def chosen(cases: list[Case], *, quick: bool) -> list[Case]:
    """All cases, or some of each kind, spread over the list."""
    if not quick:
        return cases
    kept: list[Case] = []
    for kind, count in QUICK.items():
        some = [case for case in cases if case.kind == kind]
        kept += [some[(2 * i + 1) * len(some) // (2 * count)] for i in range(count)]
    return kept


def try_case(genuine: Genuine, case: Case, *, quick: bool) -> Iterator[Tried]:
    """Run the verbs of a case. The folder is made again for a verb that may change it."""
    fresh = False
    for name in case.verbs[: 3 if quick else None]:
        verb = VERBS[name]
        if (case.own and verb.foreign_only) or (quick and verb.costly and name in MAKE and case.kind == "link"):
            continue
        wrong: list[str] = []
        begin_s = time.monotonic()
        for _ in range(case.times):
            if not fresh:
                genuine.restore(own=case.own)
                case.plant(genuine)
            cwd = genuine.sandbox.work / case.cwd
            with swapping(genuine, *case.races) if case.races else contextlib.nullcontext():
                sight = genuine.sandbox.run(verb, genuine.words(verb), own=case.own, still=case.races is None, cwd=cwd)
            wrong += sight.wrong
            # A race goes on in the same folder as long as nothing in it changed.
            fresh = not (verb.writes_results or case.own or sight.wrong or case.races)
            if wrong:
                break
        yield Tried(f"{case.kind}: {case.name}", case.kind, name, wrong, time.monotonic() - begin_s, case.times)


JOBS = {
    "a changed module": ("worker/steelyard/__init__.py", "open({target!r}, 'w')\n"),
    "a module beside it": ("worker/numpy.py", "open({target!r}, 'w')\n"),
    "a module of Python's start": ("worker/sitecustomize.py", "open({target!r}, 'w')\n"),
    "a module of users": ("worker/usercustomize.py", "open({target!r}, 'w')\n"),
    "a module in the package": ("worker/steelyard/worker/numpy.py", "open({target!r}, 'w')\n"),
    "a name of the library": ("worker/json.py", "open({target!r}, 'w')\n"),
    "a path file": ("worker/x.pth", "import os; open({target!r}, 'w')\n"),
    "node.sh": ("jobs/000/node.sh", "#!/bin/bash\necho x >{target}\n"),
    "a link to a module": ("worker/sitecustomize.py", None),
    "a link to a package": ("worker/steelyard", None),
}


def hide_behind_link(genuine: Genuine, path: Path, text: str) -> None:
    """Put code elsewhere, and a link to it into the campaign."""
    hidden = genuine.sandbox.work / "hidden"
    if path.is_dir():
        path.rename(hidden)
        (hidden / "__init__.py").write_text(text)
    else:
        hidden.write_text(text)
    path.symlink_to(hidden)


def try_jobs(genuine: Genuine, *, quick: bool) -> Iterator[Tried]:
    """A job that was sent starts after somebody changed the campaign: it must not run what it finds."""
    target = genuine.sandbox.elsewhere / "started"
    for what, (name, text) in list(JOBS.items())[: 1 if quick else None]:
        genuine.restore(own=True)
        script = (genuine.slurm / "jobs" / "000" / "job.sh").read_bytes()
        path = genuine.slurm / name
        if text is None:
            hide_behind_link(genuine, path, f"open({str(target)!r}, 'w')\n")
        else:
            path.write_text(text.format(target=str(target)))
        begin_s = time.monotonic()
        # Slurm keeps the script as it was submitted.
        words = ["/bin/bash", "-s", "2"]
        subprocess.run(
            words, input=script, env=genuine.sandbox.variables, cwd=genuine.slurm, capture_output=True, check=False
        )
        wrong = ["the job ran it"] if target.exists() else []
        yield Tried(f"job: {what}", "job", "job.sh", wrong, time.monotonic() - begin_s)


def part(number: int, root: Path, quick: bool, only: str | None) -> None:
    """Try every second case, in a sandbox of this process."""
    genuine = make(root / f"part{number}")
    use_once(genuine)
    tried: list[Tried] = []
    cases = chosen(list(every(genuine, times=4 if quick else RACES)), quick=quick)
    cases = [case for case in cases if only is None or re.search(only, f"{case.kind}: {case.name}")]
    # Every second case is of a kind that takes longer.
    random.Random(1).shuffle(cases)
    for case in cases[number::PARTS]:
        for done in try_case(genuine, case, quick=quick):
            tried.append(done)
            if done.wrong:
                print(f"{done.case} | {done.verb} | {'; '.join(done.wrong[:4])}", file=sys.stderr, flush=True)
    if number == 0 and only is None:
        tried += try_jobs(genuine, quick=quick)
    (root / f"{number}.json").write_text(json.dumps([asdict(done) for done in tried]))
    genuine.close()


def useless_verbs(genuine: Genuine) -> int:
    """Return how many verbs do not do their task on the genuine folder: refusing every folder would be no feat."""
    useless = 0
    for name, verb in VERBS.items():
        own = not verb.foreign_only
        genuine.restore(own=own)
        sight = genuine.sandbox.run(verb, genuine.words(verb), own=own)
        if sight.code == INVALID or sight.wrong:
            print(f"on the genuine folder: {name}: {sight.code} {sight.wrong[:2]} {sight.output}", file=sys.stderr)
            useless += 1
    return useless


def check_wires(root: Path) -> tuple[int, int]:
    """Show that each verb works, and that each wire is heard: do on purpose what no verb may do.

    Returns how many verbs do not work, and how many wires are not heard.
    """
    genuine = make(root / "wires")
    sandbox = genuine.sandbox
    useless = useless_verbs(genuine)
    verb = VERBS["show"]
    deeds = {
        "write": f"open({str(sandbox.elsewhere / 'new')!r}, 'w')",
        "append": f"open({str(sandbox.home / '.bashrc')!r}, 'a').write('x')",
        "remove": f"__import__('os').remove({str(sandbox.elsewhere / 'folder0' / 'file0.txt')!r})",
        "read": f"open({str(sandbox.home / '.ssh' / 'id_ed25519')!r}).read()",
        "folder": f"__import__('shutil').rmtree({str(sandbox.elsewhere)!r})",
        "start": "__import__('subprocess').run(['sbatch', 'x'])",
        "connect": "__import__('socket').create_connection(('127.0.0.1', 9))",
        "spawn": "__import__('os').posix_spawn('/bin/true', ['true'], {})",
        "handle": f"__import__('os').open('new', 65, dir_fd=__import__('os').open({str(sandbox.elsewhere)!r}, 0))",
        "results": f"open({str(sandbox.results / 'new')!r}, 'w')",
    }
    unheard = 0
    real = cli.main
    for what, text in deeds.items():
        genuine.restore(own=False)

        def deed(_words: list[str], text: str = text) -> int:
            with contextlib.suppress(OSError):
                eval(text)
            return 0

        cli.main = deed  # type: ignore[assignment]
        if not sandbox.run(verb, []).wrong:
            print(f"the tripwire does not hear: {what}", file=sys.stderr)
            unheard += 1
    cli.main = real
    genuine.close()
    return useless, unheard


STRACED = (
    "show RUN",
    "energy",
    "report",
    "query --format parquet",
    "archive",
    "import",
    "status",
    "study --site",
    "run",
)


def compare_with_strace(root: Path) -> tuple[int, int]:
    """Run commands that change something under strace: how many changes the system saw, and the audit hook did not."""
    if shutil.which("strace") is None:
        sys.exit("strace is needed: apt-get install strace")
    genuine = make(root / "strace")
    total = missed = 0
    for name in STRACED:
        genuine.restore(own=True)
        changes, unheard = under_strace(genuine.sandbox, genuine.words(VERBS[name]))
        total, missed = total + changes, missed + len(unheard)
        print(*(f"strace: {name}: not heard: {path}" for path in unheard), sep="\n", file=sys.stderr, end="")
    genuine.close()
    return total, missed


def main() -> None:
    options = arguments(
        __doc__, only={"metavar": "PATTERN", "help": "only cases whose name matches this regular expression"}
    )
    warm_up()
    begin_s = time.monotonic()
    fork = multiprocessing.get_context("fork")
    # Most of the time would go into copying the folder, thousands of times.
    with tempfile.TemporaryDirectory(prefix="sy-", dir=memory_folder()) as scratch:
        parts = [
            fork.Process(target=part, args=(number, Path(scratch), options.quick, options.only))
            for number in range(PARTS)
        ]
        for process in parts:
            process.start()
        useless, unheard = (0, 0) if options.quick or options.only else check_wires(Path(scratch))
        straced, missed = (0, 0) if options.quick or options.only else compare_with_strace(Path(scratch))
        for process in parts:
            process.join()
        if any(process.exitcode for process in parts):
            sys.exit("a part of the figure failed")
        files = [Path(scratch) / f"{number}.json" for number in range(PARTS)]
        tried = [Tried(**entry) for file in files for entry in json.loads(file.read_bytes())]
    folders = len({done.case for done in tried})
    failed = {done.case for done in tried if done.wrong}
    report(tried, failed, time.monotonic() - begin_s)
    seen = [reason for done in tried for reason in done.wrong]
    finish(
        [
            at_least("foreign: hostile folders", folders, "folders", 40 if options.quick else 300),
            at_least(
                "foreign: verbs", len({done.verb for done in tried}), "verbs", 10 if options.quick else len(VERBS)
            ),
            at_least("foreign: commands", sum(done.runs for done in tried), "commands", 100 if options.quick else 3000),
            at_most("foreign: folders that were not inert", len(failed), "folders", 0),
            at_most("foreign: programs, requests and connections", count(seen, "start|request|connect"), "events", 0),
            at_most("foreign: changes outside", count(seen, "outside|write|os\\.|shutil"), "events", 0),
            at_most("foreign: files elsewhere that were read", count(seen, "read|the content"), "events", 0),
            at_most("foreign: tracebacks", count(seen, "traceback"), "commands", 0),
            at_most("foreign: longest command", max(done.seconds / done.runs for done in tried), "s", 30),
            *(
                []
                if options.quick
                else [
                    at_most("foreign: verbs that do not work on the genuine folder", useless, "verbs", 0),
                    at_most("foreign: wires that do not hear", unheard, "wires", 0),
                    at_least("foreign: changes that strace saw in commands that make some", straced, "changes", 50),
                    at_most("foreign: of them not seen by the tripwire", missed, "changes", 0),
                ]
            ),
        ]
    )


def count(seen: list[str], pattern: str) -> int:
    return sum(re.match(pattern, reason) is not None for reason in seen)


def report(tried: list[Tried], failed: set[str], seconds: float) -> None:
    kinds = Counter(done.kind for done in tried)
    folders = Counter(kind for kind, _ in {(done.kind, done.case) for done in tried})
    wrong = Counter(name.partition(":")[0] for name in failed)
    for kind, commands in kinds.items():
        print(f"{kind:<9} {folders[kind]:>4} folders, {commands:>5} verbs on them, {wrong[kind]:>3} not inert")
    verbs = Counter(done.verb for done in tried if done.wrong)
    print("by verb: " + (", ".join(f"{name} {number}" for name, number in verbs.most_common()) or "none"))
    print(f"{seconds:.0f} s; again: python benchmarks/figures/foreign.py --only 'NAME OF THE CASE'")


if __name__ == "__main__":
    main()
