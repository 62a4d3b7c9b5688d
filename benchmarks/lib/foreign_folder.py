"""A genuine results folder, to plant things in: simulated runs, some of them archived, an imported table, a campaign on
Slurm and one on Kubernetes.

The Slurm campaign is half collected, has a task that ended and was not collected, and a job that was not submitted:
the queue was full. The pods of the Kubernetes campaign have ended, and nothing of it is collected.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from simjob import run_spec
from steelyard.audit.foreign import keep, read_results
from steelyard.cli.exit_codes import INVALID
from steelyard.contracts.observe import Status
from steelyard.inputs.study import expand, load_study
from steelyard.results.fold import archive
from steelyard.results.store import ResultFolder
from tripwire import Api, Sandbox, Verb

BUDGET: Final = "crosscheck_steps = 0\nbudget = { min_steps = 60, max_steps = 60, min_seconds = 0.0 }\n"
SENSOR: Final = (
    'sim = { power = { idle_w = 90.0, compute_w = 400.0 }, sensors = [{ kind = "counter", period_s = 0.01 }] }\n'
)
STUDIES: Final = {
    "s": f'name = "s"\nrepeats = 2\n[run]\nworkload = "sim"\n{BUDGET}{SENSOR}'
    "[sweep]\nbatch = [8, 16]\ndevices = [1, 2]\n",
    "c": f'name = "c"\nrepeats = 2\n[run]\nworkload = "sim"\n{BUDGET}'
    "[sweep]\nbatch = [8, 16]\ntime_limit_s = [30.0, 90.0]\n",
    "k": f'name = "k"\nrepeats = 2\n[run]\nworkload = "sim"\n{BUDGET}',
    "a": f'name = "a"\nrepeats = 2\n[run]\nworkload = "sim"\nbatch = 64\n{BUDGET}',
    "f": f'name = "f"\nrepeats = 1\n[run]\nworkload = "sim"\nbatch = 128\n{BUDGET}',
    "n": f'name = "n"\nrepeats = 1\n[run]\nworkload = "sim"\n{BUDGET}',
}
SITES: Final = {
    "slurm": """name = "cluster"\nscheduler = "slurm"\npython = "{python}"
[pools.cpu]\narchitecture = "x86_64"\ndevices_per_node = 1\ndevice = "cpu"\npartition = "debug"
[limits]\narray_size = 1000\nmax_submitted = 10000\nsetup_s = 60\n""",
    "kubernetes": """name = "platform"\nscheduler = "kubernetes"
container = {{ images = {{ x86_64 = "registry.example/torch@sha256:{digest}" }} }}
cluster = {{ namespace = "bench", jobset = false }}
[pools.cpu]\narchitecture = "x86_64"\ndevices_per_node = 1\n""",
}
RECIPE: Final = """name = "recipe"\ntitle = "simulated"\ndocuments = "this file"\n[run]\nworkload = "sim"\nbatch = 32
crosscheck_steps = 0\nbudget = { min_steps = 20, max_steps = 20, min_seconds = 0.0 }
[expect]\nvalue = 3200.0\ntolerance = 0.03\nunit = "samples/s"\n"""
SUITE: Final = Path(__file__).resolve().parents[2] / "docs" / "examples" / "suites" / "node-a"
TABLE: Final = Path(__file__).resolve().parents[2] / "tests" / "data" / "imported" / "jube-caraml.csv"
_PROGRAM: Final = (sys.executable, "-c", "print('an ordinary program')")
_AT: Final = ("--results", "{results}")
_RUN: Final = ("run", "sim", "--min-steps", "20", "--max-steps", "20", "--min-seconds", "0", "--repeats", "1")
VERBS: Final = {
    verb.name: verb
    for verb in (
        Verb("show", ("show", *_AT)),
        Verb("show STUDY", ("show", "s", *_AT)),
        Verb("show RUN", ("show", "{run}", *_AT)),
        Verb("show RUN --derive", ("show", "{run}", "--derive", *_AT)),
        Verb("show ARCHIVED", ("show", "{archived}", *_AT)),
        Verb("show ARCHIVED --derive", ("show", "{archived}", "--derive", *_AT)),
        Verb("show --json", ("show", "c", "--json", *_AT)),
        Verb("compare", ("compare", "s:batch=8,devices=1", "s:batch=16,devices=1", *_AT)),
        Verb("scaling", ("scaling", "s:batch=8", *_AT)),
        Verb("batch", ("batch", "s:devices=1", *_AT)),
        Verb("best", ("best", "s", *_AT)),
        Verb("energy", ("energy", "s", *_AT)),
        Verb("audit", ("audit", "s", *_AT)),
        Verb("query", ("query", "select * from runs", *_AT)),
        Verb("query QUESTION", ("query", "slow-nodes", *_AT)),
        Verb("query --format parquet", ("query", "select * from settings", "-o", "{out}/x.parquet", *_AT)),
        Verb("expect", ("expect", "resnet50", "--device", "A100", "--value", "2130", *_AT)),
        Verb("import --save", ("import", "{table}", "--save", "{out}/table.csv", *_AT)),
        Verb("status", ("status", *_AT)),
        Verb("status STUDY", ("status", "c", "--json", *_AT)),
        Verb("status --wait", ("status", "--wait", *_AT), foreign_only=True),
        Verb("status --cancel", ("status", "c", "--cancel", *_AT)),
        Verb("status --cancel, Kubernetes", ("status", "k", "--cancel", *_AT)),
        Verb("status --adopt", ("status", "c", "--adopt", *_AT)),
        Verb("study --dry-run", ("study", "{work}/s.toml", "--dry-run", *_AT)),
        Verb("verify --history", ("verify", "{work}/recipe.toml", "--history", *_AT)),
        Verb("verify --no-run", ("verify", "{work}/recipe.toml", "--no-run", *_AT)),
        Verb(
            "suite report",
            ("suite", "report", "{suite}", "--size", "tiny", "-o", "{out}/suite.html", *_AT),
            costly=True,
        ),
        Verb("report", ("report", "s", "-o", "{out}/report.html", *_AT), costly=True),
        Verb("report --format csv", ("report", "s", "--format", "csv", "-o", "{out}/csv", *_AT), costly=True),
        Verb(
            "pack",
            (
                "pack",
                "s:batch=8",
                "-o",
                "{out}/pack",
                "--scheme",
                "nairr",
                "--samples",
                "1000000",
                "--devices",
                "2",
                *_AT,
            ),
            costly=True,
        ),
        Verb("audit --html", ("audit", "s", "--html", "{out}/audit.html", *_AT), costly=True),
        Verb("run", (*_RUN, *_AT), writes_results=True, starts_worker=True, costly=True),
        Verb("study", ("study", "{work}/n.toml", *_AT), writes_results=True, starts_worker=True, costly=True),
        Verb(
            "study --again",
            ("study", "{work}/f.toml", "--again", "failed", *_AT),
            writes_results=True,
            starts_worker=True,
            costly=True,
        ),
        Verb(
            "verify",
            ("verify", "{work}/recipe.toml", "--jobs", "2", *_AT),
            writes_results=True,
            starts_worker=True,
            costly=True,
        ),
        Verb("archive", ("archive", *_AT), writes_results=True),
        Verb("archive --drop-raw", ("archive", "--drop-raw", "0", *_AT), writes_results=True),
        Verb("import", ("import", "{table}", *_AT), writes_results=True),
        Verb(
            "wrap",
            ("wrap", *_AT, "--", *_PROGRAM),
            writes_results=True,
            starts_worker=True,
            costly=True,
            program=_PROGRAM,
        ),
        Verb(
            "suite run",
            ("suite", "run", "{suite}", "--size", "small", *_AT),
            writes_results=True,
            starts_worker=True,
            costly=True,
        ),
        Verb(
            "study --site --dry-run",
            ("study", "{work}/c.toml", "--site", "{work}/slurm.toml", "--dry-run", *_AT),
            writes_results=True,
            asks_site=True,
        ),
        Verb(
            "study --site",
            ("study", "{work}/c.toml", "--site", "{work}/slurm.toml", *_AT),
            writes_results=True,
            asks_site=True,
        ),
        Verb(
            "study --site, Kubernetes",
            ("study", "{work}/k.toml", "--site", "{work}/kubernetes.toml", *_AT),
            writes_results=True,
            asks_site=True,
        ),
    )
}


@dataclass
class Genuine:
    """The folder as its owner has it, and the owner's own state."""

    sandbox: Sandbox
    kept: Path
    run: str
    """A run of the study s."""
    archived: str
    """A run of the study a, whose runs are archived."""
    campaigns: tuple[str, ...]
    """The random names of the campaigns."""
    inodes: dict[str, int]
    """Of the folders of campaigns, when the state was written."""

    @property
    def slurm(self) -> Path:
        """The Slurm campaign."""
        return self.sandbox.results / "campaigns" / "c" / "0001"

    @property
    def kubernetes(self) -> Path:
        """The Kubernetes campaign."""
        return self.sandbox.results / "campaigns" / "k" / "0001"

    def restore(self, *, own: bool) -> None:
        """Put everything back. `own`: this user sent the campaigns; else the folder is somebody else's."""
        sandbox = self.sandbox
        for name, path in (("work", sandbox.work), ("state", sandbox.state)):
            subprocess.run(["rm", "-rf", path], check=True)
            if name == "work" or own:
                subprocess.run(["cp", "-a", self.kept / name, path], check=True)
            else:
                path.mkdir()
        if own:
            self._same_folders()
        for path in (sandbox.out, sandbox.scratch / "swap"):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
        sandbox.full.unlink(missing_ok=True)
        sandbox.plant_canaries()
        if sandbox.api is not None:
            sandbox.api.ask("reset")

    def _same_folders(self) -> None:
        """Let the user's state name the copies: it knows folders by their numbers in the file system."""
        for name, number in self.inodes.items():
            now = (self.sandbox.work / name).stat().st_ino
            for path in self.sandbox.state.rglob("*.json"):
                path.write_text(re.sub(rf"\b{number}\b", str(now), path.read_text()))

    def close(self) -> None:
        """End the processes of the sandbox."""
        if self.sandbox.api is not None:
            self.sandbox.api.process.terminate()

    def words(self, verb: Verb) -> list[str]:
        """The command line of a verb."""
        sandbox = self.sandbox
        places = {
            "results": sandbox.results, "work": sandbox.work, "out": sandbox.out, "run": self.run,
            "archived": self.archived, "suite": SUITE, "table": TABLE,
        }  # fmt: skip
        return [word.format(**places) for word in verb.words]


def make(root: Path) -> Genuine:
    """Make the folder, with the commands that a user types."""
    sandbox = Sandbox(root)
    sandbox.api = Api(sandbox)
    work = sandbox.work
    for name, text in STUDIES.items():
        (work / f"{name}.toml").write_text(text)
    for name, text in SITES.items():
        (work / f"{name}.toml").write_text(text.format(python=sys.executable, digest="ab" * 32))
    (work / "recipe.toml").write_text(RECIPE)
    results = ResultFolder(sandbox.results)
    archived = [run_spec(results, spec) for spec in expand(load_study(work / "a.toml"), work).runs]
    archive(results)
    keep(results, read_results([TABLE]))
    runs = [run_spec(results, spec) for spec in expand(load_study(work / "s.toml"), work).runs]
    for spec in expand(load_study(work / "f.toml"), work).runs:
        run_spec(results, spec, lambda record: replace(record, status=Status(code="failed", reason="it failed")))

    def command(*words: str) -> None:
        line = [*(word.format(work=work, suite=SUITE) for word in words), "--results", str(sandbox.results)]
        seen = sandbox.run(Verb(words[0], words), line, own=True)
        if seen.code == INVALID:
            raise RuntimeError(f"{words}: {seen.output}")

    command(*VERBS["verify"].words[:-2])
    command("suite", "run", "{suite}", "--size", "tiny")
    sandbox.more["TRIPWIRE_ONE"] = "yes"
    command("study", str(work / "c.toml"), "--site", str(work / "slurm.toml"))
    sandbox.more.clear()
    command("study", str(work / "k.toml"), "--site", str(work / "kubernetes.toml"))
    slurm = sandbox.results / "campaigns" / "c" / "0001"
    for task in ("0", "1"):
        if task == "1":
            command("status", "c")
        script = ["bash", str(slurm / "jobs" / "000" / "job.sh"), task]
        subprocess.run(script, env=sandbox.variables, check=True, capture_output=True, cwd=work)
    sandbox.api.ask("run")
    sandbox.api.ask("keep")
    kept = root.with_name(f"{root.name}-kept")
    for name, path in (("work", work), ("state", sandbox.state)):
        shutil.copytree(path, kept / name, symlinks=True)
    plans = sorted(sandbox.results.glob("campaigns/*/*/plan.json"))
    names = tuple(json.loads(path.read_bytes())["campaign"] for path in plans)
    sandbox.campaigns = names
    ids = [*sandbox.state.rglob("000.id"), slurm / "jobs" / "000" / "id"]
    sandbox.job = "|".join(path.read_text().partition(";")[0].strip() for path in ids if path.exists())
    inodes = {str(path.parent.relative_to(work)): path.parent.stat().st_ino for path in plans}
    return Genuine(sandbox, kept, runs[0].run_id, archived[0].run_id, names, inodes)
