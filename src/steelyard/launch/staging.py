"""Write the folder of a campaign: the code of the measured side, specs, scripts, README, plan.

A campaign carries the code that measures: what a site has installed, or installs later, does not matter.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from steelyard.contracts.base import to_json_object
from steelyard.contracts.observe import SPEC_FILE
from steelyard.errors import SteelyardError
from steelyard.inputs.command import MAX_COMMAND
from steelyard.inputs.validate import read_bounded
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
MEASURED_FILES: Final = ("__init__.py", "errors.py", "hostinfo.py", "hostload.py", "plugins.py", "version.py")
SOURCES: Final = (".py", ".json")
STUDY_FILE: Final = "study.json"
"""The study as parsed, and the swept values of each configuration."""
MAX_STUDY_BYTES: Final = 1 << 28
MAX_ARGUMENTS: Final = 20


def stage(target: Path) -> str:
    """Copy the code of the measured side into a package below `target`; return its SHA-256 over names and contents."""
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
    """Create a folder for each run with its spec and nothing else: there may be many thousands."""
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
    """Write the scripts of a job and the run ids of each of its tasks."""
    folder = campaign.job_folder(job)
    folder.mkdir(parents=True)
    tasks = "".join(" ".join(runs) + "\n" for runs in job.tasks)
    for name, text in {"tasks": tasks, **files}.items():
        (folder / name).write_text(text, encoding="utf-8")
        if name.endswith(".sh"):
            (folder / name).chmod(0o755)


def write_study(campaign: Path, expansion: Expansion, file: Path | None) -> None:
    """Write the study as parsed and, if it has a file, as written."""
    cells = {cell.name: cell.swept for cell in expansion.cells}
    arguments = expansion.cells[0].spec.study_arguments
    study = {"study": to_json_object(expansion.study), "configurations": cells, "arguments": arguments}
    write_json(campaign / STUDY_FILE, study)
    if file is not None:
        shutil.copyfile(file, campaign / "study.toml")


def read_arguments(campaign: Path) -> tuple[str, ...]:
    """Return the command of the study after `steelyard`; empty if it is not known."""
    words = _read_study(campaign).get("arguments")
    if not isinstance(words, list) or len(words) > MAX_ARGUMENTS or not all(isinstance(word, str) for word in words):
        return ()
    if words[:1] not in (["study"], ["suite"]):
        return ()
    return tuple(words) if all(words) and sum(map(len, words)) <= MAX_COMMAND else ()


def _read_study(campaign: Path) -> dict[str, Any]:
    try:
        study = json.loads(read_bounded(campaign / STUDY_FILE, MAX_STUDY_BYTES))
    except (SteelyardError, ValueError, RecursionError):
        return {}
    return study if isinstance(study, dict) else {}


def read_cells(campaign: Path) -> dict[str, dict[str, Any]]:
    """Return the swept values of each configuration by name; empty if the file cannot be read."""
    cells = _read_study(campaign).get("configurations")
    if not isinstance(cells, dict) or not all(isinstance(swept, dict) for swept in cells.values()):
        return {}
    return cells


def write_campaign_plan(campaign: Campaign) -> None:
    """Write the README and, last, the plan: from now on the campaign counts."""
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
    kinds = {"runs": "one launch per run", "packed": "one process per task", "search": "one search per task"}
    rows = "\n".join(
        f"  jobs/{campaign.job_folder(job).name}  {len(job.tasks)} tasks ({kinds[job.kind]}), each on {job.shape.nodes}"
        f" node(s) with {job.shape.processes_per_node} process(es) per node, time limit {job.task_limit_s} s"
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
Run it by hand. A script does the same as under the scheduler; a run that was started is never started again:
  bash {path}/jobs/000/job.sh 0       task 0, on this machine (inside an allocation if it needs several nodes)
  bash {path}/jobs/000/node.sh RAW    what job.sh starts on each node for the run in the folder RAW"""
BY_HAND_KUBERNETES: Final = """\
Run it by hand:
  bash {path}/jobs/000/job.sh         create all objects in manifest.json beside it: every task of the job"""
README: Final = """A campaign: what one command submitted to a site. The results can be read without it.

study {study}, site {site}, pool {pool}; planned {made_at} by {made_by}
{runs} runs in {tasks} tasks of {jobs} jobs; at most {charge:.4g} {unit}s
({basis})

{rows}

plan.json       all of the above for programs: jobs, tasks, run ids, limits, image, price
study.json      the study as parsed; study.toml: as written; site.json: the site
worker/         the code that measures, as submitted (SHA-256 {sha256})
jobs/NNN/tasks  the run ids of each task, one line per task; the first line is task 0
jobs/NNN/job.sh what a task does; node.sh: what each node does for one run; manifest.json: the Kubernetes objects
runs/ID/raw     a run that is not collected yet: its spec and the files of its worker

{by_hand}
Collect the runs that have ended, and show the others:
  steelyard status {study}
"""
