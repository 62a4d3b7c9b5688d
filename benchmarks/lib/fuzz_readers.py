"""Every reader of files, in one line each: its name, the form of its files, valid ones to begin with, and the call.

tests/heavy/test_fuzz.py fails if a module of the package reads something and none of these calls it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from subprocess import CompletedProcess
from typing import TYPE_CHECKING, Any
from unittest import mock

import duckdb

from fuzz_seeds import STUDY, Told
from steelyard import open_results, plugins
from steelyard.analysis import meters
from steelyard.audit import documents
from steelyard.audit.expect import expect, known_rows
from steelyard.audit.foreign import read_results
from steelyard.audit.sentences.read import judge_sentences
from steelyard.audit.subject import audit
from steelyard.audit.table import read_platforms
from steelyard.cli.main import main as steelyard
from steelyard.contracts.observe import Scheduled
from steelyard.contracts.record import RunRecord
from steelyard.derive.printed.level import summarize
from steelyard.derive.printed.reader import read_output
from steelyard.derive.record import derive
from steelyard.errors import SteelyardError, printable
from steelyard.inputs.data_set import check_data
from steelyard.inputs.recipe import load_recipe, plan
from steelyard.inputs.scheme import find_scheme
from steelyard.inputs.site import find_place, load_site
from steelyard.inputs.source import defined_names, read_source
from steelyard.inputs.study import expand, load_study
from steelyard.inputs.suite import find_suite
from steelyard.inputs.validate import MAX_SPEC_BYTES, parse_json, parse_toml, read_bounded
from steelyard.launch.adopt import adopt, digest_of, find_takeovers
from steelyard.launch.follow import StudyStatus, look
from steelyard.launch.images import image, oci, sif
from steelyard.launch.kubernetes import events, logs
from steelyard.launch.kubernetes.scheduler import Kubernetes, read_held
from steelyard.launch.plan import load_campaign
from steelyard.launch.slurm import check as slurm_check
from steelyard.launch.slurm import states
from steelyard.results.store import ResultFolder, read_progress, read_record, record_text
from steelyard.terminal.status import status_lines, status_object

if TYPE_CHECKING:
    from collections.abc import Callable

    from fuzz_mutate import Form

NOW_S = 1794750000.0
ENDED: Any = Told
"""A scheduler; it has only what collecting needs."""
MAX_ANSWER = 1 << 22
"""The most that is taken from a command or from the network; those who ask have such a limit."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class Reader:
    """A kind of file and what reads it."""

    name: str
    form: Form
    files: str
    """Pattern of the valid files below the folder of `make_seeds`."""
    read: Callable[[Path], object]
    """Takes the path of the changed file; the other files beside it are as they were."""
    weight: int = 10
    """How often, relative to the others."""
    changes: str = ""
    """The folder that the call changes; it gets a fresh copy."""


class UnclearError(Exception):
    """A command printed what it must not."""


def head(path: Path) -> bytes:
    """Return an answer of another program, which is here in a file."""
    with path.open("rb") as file:
        return file.read(MAX_ANSWER)


def verb(*words: str) -> None:
    """Run a command as a user does, who sees the output on a terminal."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace")
    # Charts are left out: the library that draws them takes seconds, and gets only what passed our readers.
    without = mock.patch.dict(sys.modules, {"vl_convert": None})
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), without:
        code = steelyard(list(words))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if code not in (0, 1, 2):
        raise UnclearError(f"exit code {code}")
    for stream in (out, err):
        stream.seek(0)
        said = stream.read()
        if found := CONTROL.search(said):
            raise UnclearError(f"control character in the output: {said[max(0, found.start() - 60) : found.end()]!r}")


def whole_record(raw: Path) -> None:
    """Derive a record, and write and read it as the results folder does."""
    text = record_text(derive(raw))
    parse_json(RunRecord, text, "the record")


def audit_file(path: Path) -> None:
    """Audit a table, claims or a record."""
    audit(str(path), ResultFolder(path.parent))


def sentences(path: Path) -> None:
    """Judge each line as a claim about a table of the catalogue."""
    table = documents.load("nrp-gh200")
    with path.open("rb") as file:
        text = file.read(MAX_ANSWER).decode("utf-8", "replace")
    for line in text.splitlines()[:20]:
        with contextlib.suppress(SteelyardError):
            judge_sentences([line], table)


def examine(path: Path) -> None:
    """Read a record and run all rules on it."""
    read_record(path)
    audit_file(path)


def foreign(path: Path) -> None:
    """Import results of others, and ask what they make of one of their figures."""
    rows = read_results([path]).table.rows
    for metric in rows[0].figures:
        expect(rows, {}, metric, value=1.0, own=rows[0])
        expect(rows, {}, metric, value=1.0)


def own_fleet(path: Path) -> None:
    """Read own results and kept tables as machines to compare with."""
    results = ResultFolder(next(p for p in path.parents if p.name == "results"))
    for model in ("sim", "resnet50"):
        expect(known_rows(results, model), {}, "throughput", value=1.0)


def in_results(*words: str) -> Callable[[Path], object]:
    """Run a verb on the results folder of a changed file; OUT stands for a new path to write to."""

    def read(path: Path) -> None:
        results = next(p for p in path.parents if p.name == "results")
        with tempfile.TemporaryDirectory(dir=results.parent) as folder:
            verb(*(word.replace("OUT", f"{folder}/out") for word in words), "--results", str(results))

    return read


def open_tables(path: Path) -> None:
    """Ask an archive in this process, as somebody does in Python."""
    with (
        contextlib.suppress(duckdb.Error),
        open_results(next(p for p in path.parents if p.name == "results")) as opened,
    ):
        opened.query("select count(*) from runs").fetchall()


def in_campaign(path: Path) -> None:
    """Look at somebody else's campaign, take it over, and collect what has ended."""
    results = ResultFolder(next(p.parent for p in path.parents if p.name == "campaigns"))
    with mock.patch.dict(os.environ, {"XDG_STATE_HOME": str(results.root / "state")}):
        told(look(results, STUDY, ENDED))
        if found := find_takeovers(results, STUDY, ENDED):
            adopt(results, STUDY, digest_of(found), ENDED)
            told(look(results, STUDY, ENDED))


def told(status: StudyStatus) -> None:
    """Show a status as `steelyard status` does."""
    json.dumps(status_object(status))
    "\n".join(status_lines(status, verbose=True)).encode()


def in_kubernetes(path: Path) -> None:
    """Read what only campaigns on Kubernetes have; no cluster is queried."""
    campaign = load_campaign(next(p for p in path.parents if (p / "plan.json").exists()))
    scheduler = Kubernetes(lambda: NOW_S)
    for job in campaign.plan.jobs:
        for task in range(len(job.tasks)):
            with contextlib.suppress(SteelyardError):
                scheduler._bring(campaign, job, task, [])  # noqa: SLF001
                scheduler._first_failure_s(campaign, job, task)  # noqa: SLF001
                read_held(campaign, job)
                scheduler._state(campaign, job, task, events.Seen(None, gone=True), "")  # noqa: SLF001


def pod_log(path: Path) -> None:
    """Read a pod's log into the folders of its runs."""
    campaign = load_campaign(path.parent)
    for job in campaign.plan.jobs:
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch, path.open("rb") as file:
            reader = logs.LogReader(job.tasks[0], Path(scratch), MAX_ANSWER, logs.PodLog(0, "n1"))
            chunks = islice(iter(partial(file.read, 1 << 16), b""), MAX_ANSWER >> 16)
            pod = reader.read(logs.bounded_lines(chunks))
            logs.lay_down(campaign, job, 0, [pod])


def task_states(path: Path) -> None:
    """Read the queue and accounting of Slurm, and work out the state of tasks."""
    said = head(path).decode("utf-8", "replace")
    traces = states.Traces(path.with_name("task.out"), path, 2)
    if path.name == "exit_codes.txt":
        states.read_exit_codes(said)
        return
    lines = states.read_squeue(said) if path.name == "squeue.txt" else states.read_sacct(said)
    for (_, task), line in list(lines.items())[:100]:
        found = states.state_of(line, line, traces, task, 60.0)
        _sound(found.said if found else None)


def _sound(said: Scheduled | None) -> None:
    """What is kept of an answer must be readable later."""
    if said is not None:
        parse_json(Scheduled, record_text(said), "the answer")


def cluster_check(path: Path) -> None:
    """Check a site by what scontrol prints."""
    place = find_place(str(path.parents[1] / "inputs/sites/slurm-nvidia.toml"))
    files = {"node": "node.txt", "partition": "partition.txt", "config": "config.txt"}

    def call(words: list[str]) -> CompletedProcess[str]:
        file = path.with_name(files.get(words[-1], "sacct.txt"))
        return CompletedProcess(words, 0, head(file).decode("utf-8", "replace"), "")

    for check in slurm_check.checks(place, call):  # type: ignore[arg-type]
        printable(check.found)


def cluster_objects(path: Path) -> None:
    """Work out the state of a task from objects of the Kubernetes API."""
    text = head(path)
    try:
        # As the client of the API does; what is not an object is refused there.
        seen = json.loads(text)
    except (ValueError, RecursionError):
        return
    if not isinstance(seen, dict):
        return

    def objects(name: str) -> list[Any]:
        return [one for one in value if isinstance(one, dict)] if isinstance(value := seen.get(name), list) else []

    job = seen.get("job")
    for pod in objects("pods"):
        events.index_of(pod)
        events.place_of(pod)
        events.ended_s(pod)
    whole = events.Seen(job if isinstance(job, dict) else None, objects("pods"), objects("events"))
    events.is_stuck(whole, NOW_S)
    state, _ = events.state_of(whole, NOW_S)
    _sound(state.said)


def layout(path: Path) -> None:
    """Choose an image of an OCI layout."""
    folder = next((p for p in path.parents if p.name == "layout"), path)
    with oci.open_layout(folder) as found:
        if found is not None:
            oci.choose(oci.images_in(found, "v1", "image"), "x86_64", "image")


def inspection(path: Path) -> None:
    """Read what container tools print about an image."""
    text = head(path)
    oci.architecture_of_config(text, "image")
    if (found := oci.images_of_raw(text, "image")) is not None:
        oci.choose(found, "x86_64", "image")
    image._read_inspection(json.loads(text))  # noqa: SLF001


def data_set(path: Path) -> None:
    """Check a data set as `steelyard data check` does."""
    root = next(p for p in path.parents if p.parent.name == "data")
    check_data(plugins.load("data", root.name), root, every=True)


def recipe(path: Path) -> None:
    made = load_recipe(path)
    if made.command is None:
        plan(made, path.parent, name="x", jobs=1)


def site(path: Path) -> None:
    load_site(path)
    verb("site", "show", str(path))


def small_study(path: Path) -> None:
    """Read a study, and make its runs if they are few; a million takes as long as it takes."""
    study = load_study(path)
    count = study.repeats
    for values in study.sweep.values():
        count *= len(values)
    if count < 1000:
        expand(study, path.parent)


def own_workload(path: Path) -> None:
    defined_names(read_source(path, path.name), path.name)


def public_json(path: Path) -> None:
    parse_json(RunRecord, read_bounded(path, MAX_SPEC_BYTES), str(path))


def public_toml(path: Path) -> None:
    parse_toml(read_bounded(path, MAX_SPEC_BYTES), str(path))


def meter(path: Path) -> None:
    series = meters.read_meter(path)
    meters.meter_energy(series, 1794744010.0, 1794744050.0, scope="node")


def _raw(name: str, form: Form, files: str, weight: int = 40) -> Reader:
    return Reader(name, form, f"raw/*/{files}", lambda path: whole_record(path.parent), weight)


_ONE = f"{STUDY}:devices=1"
_PAIR = (f"{_ONE},batch=8", f"{_ONE},batch=16", "--force")
_PLAN = ("--samples", "1000000", "--devices", "4", "--charge", "1 SU/device-hour", "--node-devices", "4")
_RECORD = f"results/runs/{STUDY}/*/record.json"
_CAMPAIGN = f"slurm/campaigns/{STUDY}/0001"
READERS: tuple[Reader, ...] = (
    _raw("spec", "json", "spec.json", 25),
    _raw("launch", "json", "launch.json"),
    _raw("events", "jsonl", "events-*.jsonl", 50),
    _raw("steps", "steps", "steps-*.bin", 50),
    _raw("tokens", "steps", "tokens-*.bin"),
    _raw("sensors", "jsonl", "sensors-*.jsonl", 6),
    _raw("power", "power", "power-*.bin", 6),
    _raw("conditions", "state", "conditions-*.bin", 4),
    _raw("worker-log", "text", "worker.log", 4),
    _raw("program-end", "json", "program-*.json"),
    _raw("program-processes", "jsonl", "processes-*.jsonl"),
    _raw("program-work", "steps", "work-*.bin"),
    Reader("program-events", "jsonl", "raw/program/events-*.jsonl", lambda path: whole_record(path.parent), 40),
    Reader("program-spec", "json", "raw/program/spec.json", lambda path: whole_record(path.parent)),
    Reader("progress", "json", "raw/*/progress.json", lambda path: read_progress(path.parent)),
    Reader("record", "json", _RECORD, examine, 60),
    Reader("record-expect", "json", _RECORD, own_fleet, 6),
    Reader("record-show", "json", _RECORD, in_results("show", STUDY), 2),
    Reader("record-compare", "json", _RECORD, in_results("compare", *_PAIR), 2),
    Reader("record-energy", "json", _RECORD, in_results("energy", STUDY), 2),
    Reader("record-scaling", "json", _RECORD, in_results("scaling", f"{STUDY}:batch=8"), 2),
    Reader("record-batch", "json", _RECORD, in_results("batch", _ONE), 2),
    Reader("record-best", "json", _RECORD, in_results("best", STUDY), 2),
    Reader("record-report", "json", _RECORD, in_results("report", STUDY, "-o", "OUT.html"), 1),
    Reader("record-reports", "json", _RECORD, in_results("report", *_PAIR[:2], "-o", "OUT.html"), 1),
    Reader("record-pack", "json", _RECORD, in_results("pack", f"{STUDY}:batch=8", *_PLAN, "-o", "OUT"), 1),
    Reader("study", "toml", "inputs/studies/*.toml", small_study, 40),
    Reader("own-workload", "text", "inputs/studies/own.py", own_workload),
    Reader("recipe", "toml", "inputs/recipes/*[!y].toml", recipe, 20),
    Reader("site", "toml", "inputs/sites/*.toml", site, 3),
    Reader("scheme", "toml", "inputs/schemes/*.toml", lambda path: find_scheme(str(path))),
    Reader("suite", "toml", "inputs/suites/*/suite.toml", lambda path: find_suite(str(path.parent)), 20),
    Reader("claims", "toml", "inputs/tables/claims.toml", audit_file, 6),
    Reader("table", "csv", "inputs/tables/*-*.csv", audit_file, 80),
    Reader("table-toml", "toml", "inputs/tables/own.toml", audit_file, 20),
    Reader("sentences", "text", "inputs/sentences.txt", sentences, 6),
    Reader("table-printed", "text", "inputs/printed/*.*", audit_file, 60),
    Reader("platforms", "csv", "inputs/tables/platforms.csv", read_platforms, 20),
    Reader("imported-json", "json", "inputs/imported/**/*.json", foreign, 20),
    Reader("imported-lines", "jsonl", "inputs/imported/*.jsonl", foreign, 6),
    Reader("imported-table", "csv", "inputs/imported/*.csv", foreign, 10),
    Reader("imported-log", "text", "inputs/imported/**/[mnr]*.[lt]*[gt]", foreign, 20),
    Reader("to-archive", "json", "results/runs/**/record.json", in_results("archive"), 2, "results"),
    Reader("to-query", "json", "results/runs/**/record.json", in_results("query", "studies"), 2),
    Reader("archive-index", "text", "archived/results/archive/*/index", in_results("show"), 4),
    Reader("archive-files", "tar", "archived/results/archive/*/runs.tar", in_results("show", STUDY), 4),
    Reader("archive-table", "binary", "archived/results/archive/*/*.parquet", open_tables, 4),
    Reader("imported-kept", "csv", "results/imported/*.csv", own_fleet, 10),
    Reader("meter", "csv", "inputs/meter.csv", meter),
    Reader("sacct-energy", "csv", "inputs/sacct.txt", lambda path: meters.read_slurm(path, plugin="ipmi")),
    Reader("plan", "json", f"{_CAMPAIGN}/plan.json", in_campaign, 6, "slurm"),
    Reader("campaign-study", "json", f"{_CAMPAIGN}/study.json", in_campaign, 2, "slurm"),
    Reader("unsettled", "json", f"{_CAMPAIGN}/unsettled.json", in_campaign, 2, "slurm"),
    Reader("ended", "jsonl", f"{_CAMPAIGN}/ended.jsonl", in_campaign, 2, "slurm"),
    Reader("done", "text", f"{_CAMPAIGN}/jobs/000/0.done", in_campaign, 2, "slurm"),
    Reader("output", "text", f"{_CAMPAIGN}/jobs/000/0.out", in_campaign, 1, "slurm"),
    Reader("id", "text", f"{_CAMPAIGN}/jobs/000/id", in_campaign, 2, "slurm"),
    Reader("campaign-raw", "jsonl", f"{_CAMPAIGN}/runs/*/raw/[els]*[enl]", in_campaign, 2, "slurm"),
    Reader("sent", "text", f"kubernetes/campaigns/{STUDY}/0001/jobs/000/sent", in_kubernetes),
    Reader("held-back", "text", f"kubernetes/campaigns/{STUDY}/0001/jobs/000/held-back", in_kubernetes),
    Reader("unread", "text", f"kubernetes/campaigns/{STUDY}/0001/jobs/000/0.unread", in_kubernetes),
    Reader("log-copy", "text", f"kubernetes/campaigns/{STUDY}/0001/jobs/000/0.0.*.log", in_kubernetes, 5, "kubernetes"),
    Reader("given-up", "json", f"kubernetes/campaigns/{STUDY}/0001/jobs/000/0.given-up", in_kubernetes),
    Reader("pod-log", "podlog", f"kubernetes/campaigns/{STUDY}/0001/log", pod_log, 25, "kubernetes"),
    Reader("slurm-answers", "csv", "answers/[se]*.txt", task_states, 60),
    Reader("slurm-cluster", "text", "answers/[ncp]*.txt", cluster_check, 20),
    Reader("kubernetes-objects", "json", "answers/seen.json", cluster_objects, 60),
    Reader("image-sif", "binary", "images/*.sif", sif.sif_architecture, 20),
    Reader("image-layout", "json", "images/layout/**/*", layout, 20),
    Reader("image-tar", "tar", "images/layout.tar", layout, 20),
    Reader("image-inspection", "json", "answers/inspection.json", inspection, 10),
    Reader("data-cifar", "binary", "data/cifar*/*/*.bin", data_set, 4),
    Reader("data-mnist", "binary", "data/mnist/**/*ubyte", data_set, 10),
    Reader("data-pictures", "binary", "data/[ifc]*/**/*.[jJ]*[gG]", data_set, 10),
    Reader("data-masks", "png", "data/cityscapes/**/*.png", data_set, 10),
    Reader("data-names", "text", "data/food101/food-101/meta/*.txt", data_set, 6),
    Reader("data-coco", "json", "data/coco/annotations/*.json", data_set, 20),
    Reader("data-squad", "json", "data/squad/*.json", data_set, 20),
    Reader("data-shards", "tar", "data/webdataset/*/*.tar", data_set, 20),
    Reader("data-tokens", "binary", "data/tokens/*.idx", data_set, 20),
    Reader("data-tokens-meta", "json", "data/tokens/meta.json", data_set, 6),
    Reader("public-toml", "toml", "public/toml/*", public_toml, 80),
    Reader("public-json", "json", "public/json/*", public_json, 60),
    Reader("public-table", "csv", "public/csv/*", audit_file, 40),
    Reader("program-output", "text", "output/*.txt", lambda path: summarize(read_output(head(path))), 20),
)  # fmt: skip
