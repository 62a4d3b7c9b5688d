"""Write the folder of a campaign: the code of the measured side, specs, scripts, README, plan.

A campaign carries the code that measures: what a site has installed, or installs later, does not matter.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from steelyard import nofollow
from steelyard.contracts.base import to_json_object
from steelyard.contracts.observe import SPEC_FILE
from steelyard.errors import SteelyardError
from steelyard.inputs.command import MAX_COMMAND
from steelyard.inputs.validate import MAX_SPEC_BYTES, read_bounded, read_inside
from steelyard.launch.campaign import PLAN_FILE
from steelyard.launch.registry import mask
from steelyard.launch.scripts.bash import quoted
from steelyard.launch.scripts.task import task_lines
from steelyard.redact import redact
from steelyard.results.store import flush_all, record_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from steelyard.contracts.spec import RunSpec
    from steelyard.inputs.study import Expansion
    from steelyard.launch.campaign import Campaign, JobArray, Plan, Scheduler

PACKAGE: Final = Path(__file__).resolve().parent.parent
MEASURED_SIDE: Final = ("worker", "contracts", "estimate", "data")
MEASURED_FILES: Final = (
    "__init__.py",
    "errors.py",
    "extras.py",
    "hostinfo.py",
    "hostload.py",
    "nofollow.py",
    "out_of_memory.py",
    "packed.py",
    "plugins.py",
    "redact.py",
    "version.py",
)
SOURCES: Final = (".py", ".json")
STUDY_FILE: Final = "study.json"
"""The study as parsed, and the swept values of each configuration."""
SPECS_FILE: Final = "specs"
MAX_STUDY_BYTES: Final = 1 << 24
MAX_JOB_FILE_BYTES: Final = 1 << 29
MAX_SOURCE_BYTES: Final = 1 << 24
MAX_ARGUMENTS: Final = 20


def stage(target: Path) -> str:
    """Copy the code of the measured side into a package below `target`; return its digest."""
    sources = [PACKAGE / name for name in MEASURED_FILES]
    for folder in MEASURED_SIDE:
        sources += (path for path in (PACKAGE / folder).rglob("*") if path.suffix in SOURCES)
    nofollow.make_folder(target)
    made = {target}
    for source in sorted(sources):
        path = target / source.relative_to(PACKAGE.parent)
        for above in reversed(path.parents):
            if above.is_relative_to(target) and above not in made:
                nofollow.make_folder(above)
                made.add(above)
        _create(path, source.read_bytes())
    return worker_digest(target)


def worker_digest(worker: Path) -> str:
    """Return one SHA-256 for all files below a folder: that of the sorted lines that sha256sum prints for them.

    A job computes the same before it starts the code. LinkError if there is a link.
    """
    lines = sorted(
        f"{_sha256(read_inside(path, MAX_SOURCE_BYTES))}  {path.relative_to(worker)}\n" for path in files_below(worker)
    )
    return _sha256("".join(lines).encode())


def files_below(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder, in order."""
    for name in nofollow.names(folder):
        if nofollow.is_folder(folder / name):
            yield from files_below(folder / name)
        else:
            yield folder / name


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _create(path: Path, data: bytes, *, executable: bool = False) -> None:
    with nofollow.open_file(path, "x") as file:
        if executable:
            mode = os.fstat(file.fileno()).st_mode
            os.fchmod(file.fileno(), stat.S_IMODE(mode | (mode & 0o444) >> 2))
        file.write(data)


def _for_us(plan: Plan) -> AbstractContextManager[None]:
    """Return a context for files with the site's environment variables, which may be secret."""
    place = plan.place
    return mask(0o077 if place.variables or place.expanded or plan.site.prologue else 0)


def write_specs(campaign: Path, specs: Iterable[RunSpec]) -> dict[str, str]:
    """Create a folder for each run with its spec and nothing else; return their SHA-256 by run id."""
    runs = campaign / "runs"
    nofollow.make_folder(runs)
    digests = {}
    written = []
    for spec in specs:
        raw, text = runs / spec.run_id / "raw", record_text(spec).encode()
        nofollow.make_folder(raw.parent)
        nofollow.make_folder(raw)
        _create(raw / SPEC_FILE, text)
        digests[spec.run_id] = _sha256(text)
        written.append(raw / SPEC_FILE)
    flush_all(written)
    return digests


def job_files(job: JobArray, specs: Mapping[str, str], rendered: Mapping[str, str]) -> dict[str, str]:
    """Return all files of a job. `specs`: SHA-256 of each spec."""
    runs = [run for task in job.tasks for run in task]
    return {
        "tasks": task_lines(job),
        SPECS_FILE: "".join(f"{specs[run]}  runs/{run}/raw/{SPEC_FILE}\n" for run in runs),
        **rendered,
    }


def write_job(campaign: Campaign, job: JobArray, files: Mapping[str, str]) -> dict[str, str]:
    """Write the files of a job; return the SHA-256 of each."""
    folder = campaign.job_folder(job)
    nofollow.make_folder(folder.parent, exist_ok=True)
    nofollow.make_folder(folder)
    with _for_us(campaign.plan):
        for name, text in files.items():
            _create(folder / name, text.encode(), executable=name.endswith(".sh"))
    return {name: _sha256(text.encode()) for name, text in files.items()}


def render_again(campaign: Campaign, job: JobArray, scheduler: Scheduler, digests: Mapping[str, str]) -> dict[str, str]:
    """Return the scripts of a job, made from its plan again; SteelyardError if one of its files has changed.

    `digests`: SHA-256 of its files when it was planned.
    """
    changed, why = next(_changed(campaign, job, digests), None), "was changed"
    rendered = {} if changed else scheduler.render(campaign, job)
    for name, text in rendered.items():
        if _sha256(text.encode()) != digests.get(name):
            changed = campaign.job_folder(job) / name
            why = f"was written by {campaign.plan.made_by}, and this version writes it differently"
    if changed is not None:
        raise SteelyardError(
            f"{changed} {why}: this job was not submitted; cancel the campaign, and submit the study again",
            next_step=f"steelyard status {campaign.plan.study} --cancel",
        )
    return rendered


def _changed(campaign: Campaign, job: JobArray, digests: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files of a job, the specs of its runs and the folder of the code if they have changed."""
    folder = campaign.job_folder(job)
    for name in (SPECS_FILE, *digests):
        if _sha256(read_inside(folder / name, MAX_JOB_FILE_BYTES)) != digests.get(name):
            yield folder / name
    for line in read_inside(folder / SPECS_FILE, MAX_JOB_FILE_BYTES).decode().splitlines():
        sha256, _, name = line.partition("  ")
        path = campaign.path / name
        # A run may have been withdrawn since.
        if nofollow.is_folder(path.parent) and _sha256(read_inside(path, MAX_SPEC_BYTES)) != sha256:
            yield path
    if worker_digest(campaign.path / "worker") != campaign.plan.worker_sha256:
        yield campaign.path / "worker"


def write_study(campaign: Path, expansion: Expansion, file: Path | None) -> None:
    """Write the study as parsed and, if it has a file, as written."""
    cells = {cell.name: cell.swept for cell in expansion.cells}
    arguments = expansion.cells[0].spec.study_arguments
    study = {"study": to_json_object(expansion.study), "configurations": cells, "arguments": arguments}
    _create(campaign / STUDY_FILE, record_text(study).encode())
    if file is not None:
        # Its settings have been checked, its comments have not.
        text = read_bounded(file, MAX_SPEC_BYTES).decode("utf-8", "replace")
        _create(campaign / "study.toml", redact(text)[0].encode())


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
        study = json.loads(read_inside(campaign / STUDY_FILE, MAX_STUDY_BYTES))
    except (SteelyardError, ValueError, RecursionError):
        return {}
    return study if isinstance(study, dict) else {}


def read_cells(campaign: Path) -> dict[str, dict[str, Any]]:
    """Return the swept values of each configuration by name; empty if the file cannot be read."""
    cells = _read_study(campaign).get("configurations")
    if not isinstance(cells, dict) or not all(isinstance(swept, dict) for swept in cells.values()):
        return {}
    return cells


def write_campaign_plan(campaign: Campaign, jobs: dict[str, dict[str, str]] | None) -> None:
    """Write the README, register the campaign and, last, write the plan: from now on the campaign counts.

    `jobs`: SHA-256 of the files of each job; None: a dry run, which is not registered.
    """
    text = record_text(campaign.plan).encode()
    _create(campaign.path / "README", _readme(campaign).encode())
    beside = campaign.path / f".{PLAN_FILE}"
    with _for_us(campaign.plan):
        _create(campaign.path / "site.json", record_text(campaign.plan.site).encode())
        _create(beside, text)
    flush_all([beside])
    if jobs is not None:
        campaign.registration.write(_sha256(text), jobs, nofollow.stat(campaign.path).st_uid)
    nofollow.move(beside, campaign.path / PLAN_FILE)
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
        study=plan.study,
        site=plan.site.name,
        pool=plan.pool,
        made_at=plan.created_at,
        made_by=plan.made_by,
        tasks=tasks,
        runs=runs,
        jobs=len(plan.jobs),
        rows=rows,
        charge=plan.price.charge,
        unit=plan.price.charge_unit,
        basis=plan.price.basis,
        sha256=plan.worker_sha256,
        by_hand=by_hand.format(path=quoted(str(campaign.path))),
    )


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
jobs/NNN/tasks  the run ids of each task, one line per task; the first line is task 0; specs: SHA-256 of their specs
jobs/NNN/job.sh what a task does; node.sh: what each node does for one run; manifest.json: the Kubernetes objects
runs/ID/raw     a run that is not collected yet: its spec and the files of its worker

{by_hand}
Collect the runs that have ended, and show the others:
  steelyard status {study}
"""
