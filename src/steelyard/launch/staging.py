"""Writes a campaign's folder: the measured side's code, specs, scripts, README, plan. Knows no scheduler.

A campaign carries the code that measures, so that what a site has installed, or installs later, changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from steelyard.contracts.base import to_json_object
from steelyard.contracts.observe import SPEC_FILE
from steelyard.launch.campaign import PLAN_FILE
from steelyard.launch.scripts.bash import quoted
from steelyard.results.store import flush_all, record_text, write_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from steelyard.contracts.spec import RunSpec
    from steelyard.inputs.study import Expansion
    from steelyard.launch.campaign import Campaign, JobArray

PACKAGE: Final = Path(__file__).resolve().parent.parent
MEASURED_SIDE: Final = ("worker", "contracts", "estimate", "data")
MEASURED_FILES: Final = ("__init__.py", "errors.py", "hostinfo.py", "plugins.py", "version.py")
SOURCES: Final = (".py", ".json")
STUDY_FILE: Final = "study.json"
"""The study as it was understood, and what each cell is."""


def stage(target: Path) -> str:
    """Copy the measured side's code into a package below `target`; its SHA-256 over names and contents."""
    digest = hashlib.sha256()
    sources = [PACKAGE / name for name in MEASURED_FILES]
    for folder in MEASURED_SIDE:
        sources += (path for path in (PACKAGE / folder).rglob("*") if path.suffix in SOURCES)
    for source in sorted(sources):
        name = source.relative_to(PACKAGE.parent)
        text = source.read_bytes()
        digest.update(f"{name.as_posix()}\0{len(text)}\0".encode() + text)
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(text)
    return digest.hexdigest()


def write_specs(campaign: Path, specs: Iterable[RunSpec]) -> None:
    """A folder for each run, with its spec; nothing else is laid by, for there may be many thousands."""
    runs = campaign / "runs"
    runs.mkdir()
    written = []
    for spec in specs:
        raw = runs / spec.run_id / "raw"
        raw.mkdir(parents=True)
        (raw / SPEC_FILE).write_text(record_text(spec), encoding="utf-8")
        written.append(raw / SPEC_FILE)
    flush_all(written)


def write_job(campaign: Campaign, job: JobArray, files: Mapping[str, str]) -> None:
    """The scripts of a job, and which runs each of its tasks makes."""
    folder = campaign.job_folder(job)
    folder.mkdir(parents=True)
    tasks = "".join(" ".join(runs) + "\n" for runs in job.tasks)
    for name, text in {"tasks": tasks, **files}.items():
        (folder / name).write_text(text, encoding="utf-8")
        if name.endswith(".sh"):
            (folder / name).chmod(0o755)


def write_study(campaign: Path, expansion: Expansion, file: Path | None) -> None:
    """What was asked for, as it was understood and, where there is a file, as it was written."""
    cells = {cell.name: cell.swept for cell in expansion.cells}
    write_json(campaign / STUDY_FILE, {"study": to_json_object(expansion.study), "configurations": cells})
    if file is not None:
        shutil.copyfile(file, campaign / "study.toml")


def read_cells(campaign: Path) -> dict[str, dict[str, Any]]:
    """What was swept, by the names of the cells; empty where nobody can tell any more."""
    try:
        cells = json.loads((campaign / STUDY_FILE).read_bytes())["configurations"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    good = isinstance(cells, dict) and all(isinstance(swept, dict) for swept in cells.values())
    return cells if good else {}


def write_campaign_plan(campaign: Campaign) -> None:
    """The last file of a campaign: from now on it counts."""
    write_json(campaign.path / "site.json", campaign.plan.site)
    (campaign.path / "README").write_text(_readme(campaign), encoding="utf-8")
    beside = campaign.path / f".{PLAN_FILE}"
    write_json(beside, campaign.plan)
    beside.replace(campaign.path / PLAN_FILE)
    flush_all([campaign.path])


def _readme(campaign: Campaign) -> str:
    plan = campaign.plan
    tasks = sum(len(job.tasks) for job in plan.jobs)
    runs = sum(len(task) for job in plan.jobs for task in job.tasks)
    kinds = {"runs": "one launch a run", "packed": "one process a task", "search": "a search a task"}
    rows = "\n".join(
        f"  jobs/{campaign.job_folder(job).name}  {len(job.tasks)} tasks ({kinds[job.kind]}), each on {job.shape.nodes}"
        f" node(s) with {job.shape.processes_per_node} process(es) a node, at most {job.task_limit_s} s"
        for job in plan.jobs
    )
    by_hand = BY_HAND_KUBERNETES if plan.site.scheduler == "kubernetes" else BY_HAND
    return README.format(
        study=plan.study, site=plan.site.name, pool=plan.pool, made_at=plan.created_at,
        made_by=plan.made_by, tasks=tasks, runs=runs, jobs=len(plan.jobs), rows=rows, charge=plan.price.charge,
        unit=plan.price.charge_unit, basis=plan.price.basis, sha256=plan.worker_sha256,
        by_hand=by_hand.format(path=quoted(str(campaign.path))),
    )  # fmt: skip


BY_HAND: Final = """\
By hand. A script does what the scheduler would have it do; a run that has begun is never begun again:
  bash {path}/jobs/000/job.sh 0       task 0, here (inside an allocation where it needs several nodes)
  bash {path}/jobs/000/node.sh RAW    what job.sh starts on each node for the run in the folder RAW"""
BY_HAND_KUBERNETES: Final = """\
By hand:
  bash {path}/jobs/000/job.sh         creates all that is in manifest.json beside it: every task of the job"""
README: Final = """A campaign: what one command sent to a site. Nothing here is needed to read the results.

study {study}, site {site}, pool {pool}; planned {made_at} by {made_by}
{runs} runs in {tasks} tasks of {jobs} jobs; at most {charge:.4g} {unit}s
({basis})

{rows}

plan.json       all of the above for programs: jobs, tasks, run ids, limits, image, price
study.json      the study as it was understood; study.toml: as it was written; site.json: the site
worker/         the code that measures, as it was sent (SHA-256 {sha256})
jobs/NNN/tasks  the ids of the runs of each task, a line a task; the first line is task 0
jobs/NNN/job.sh what a task does; node.sh: what each node does for one run; manifest.json: what Kubernetes is given
runs/ID/raw     a run that is not collected yet: its spec and what its worker has written

{by_hand}
Collect what has ended, and see what has not:
  steelyard status {study}
"""
