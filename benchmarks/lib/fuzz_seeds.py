"""Valid files of every kind that steelyard reads, made by steelyard itself where it writes them, for the figure `fuzz`.

Also public files that are not ours: the TOML test suite that comes with Python, and JSON and CSV files of installed
packages.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import struct
import sysconfig
import tarfile
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from simjob import run_spec
from steelyard import plugins
from steelyard.audit.foreign import keep, read_results
from steelyard.contracts import observe
from steelyard.contracts.observe import SPEC_FILE, Scheduled
from steelyard.contracts.sim import Collective, Link, Node, Noise, Power, Sensor, SimTruth, State
from steelyard.contracts.spec import Budget, RunSpec
from steelyard.contracts.wrap import WORK_PATTERN, Program, ProgramEnd, SecondPass, Wrapped
from steelyard.derive.printed.formats import known_formats
from steelyard.inputs.site import Place, Site
from steelyard.inputs.study import Study, expand
from steelyard.inputs.validate import parse_object
from steelyard.launch.campaign import Campaign, JobArray, TaskState
from steelyard.launch.kubernetes.scheduler import Kubernetes
from steelyard.launch.plan import make_campaign
from steelyard.launch.slurm.scheduler import Slurm
from steelyard.results.fold import archive
from steelyard.results.store import ResultFolder, record_text, write_json
from steelyard.worker.engine.run import run_directory
from steelyard.worker.measure.writer import EventLog, StepWriter
from steelyard.worker.pod import Shipper

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "steelyard"
IMPORTED = ROOT / "tests" / "data" / "imported"
STUDY = "s"
MAX_SEED_BYTES = 64_000
PUBLIC_FILES = 50
FEW_STEPS = {"min_steps": 40, "max_steps": 40, "min_seconds": 0.0}


def make_seeds(root: Path) -> None:
    """Write all files below a new folder."""
    root.mkdir()
    _results(root / "results")
    _raw(root / "raw")
    _inputs(root / "inputs")
    _campaign(root / "slurm", "slurm")
    _campaign(root / "kubernetes", "kubernetes")
    _answers(root / "answers")
    _images(root / "images")
    _data(root / "data")
    _public(root / "public")
    _output(root / "output")


# -- runs

SENSORS = (Sensor(period_s=0.1, resolution=1e-6), Sensor(kind="gauge", average_s=0.1), Sensor(scope="cpu"))
TRUTH = SimTruth(
    step_time_s=0.02, setup_s=1.0, compile_s=1.0, noise=Noise(cv=0.05), sensors=SENSORS,
    power=Power(idle_w=60.0, compute_w=350.0, host_w=200.0),
    collective=Collective(message_bytes=10**7, links=(Link(bytes_per_s=1e10),)),
    states=(State(clock_mhz=1500, temperature_c=60, limit_w=400), State(from_s=2, clock_mhz=1300, thermal=0.2)),
    node=Node(devices_per_node=2),
)  # fmt: skip


def _results(folder: Path) -> None:
    """A study over batch and ranks, with its records."""
    results = ResultFolder(folder)
    for ranks, batch in ((1, 8), (1, 16), (1, 32), (2, 8), (4, 8)):
        for repeat in range(3):
            name = f"ranks{ranks}-batch{batch}"
            spec = RunSpec(
                run_id=f"{name}-r{repeat:04d}", study=STUDY, configuration=name, repeat=repeat, seed=repeat,
                devices=ranks, batch=batch, budget=Budget(min_steps=60, max_steps=60), sim=TRUTH,
            )  # fmt: skip
            run_spec(results, spec)
    results.open_study(STUDY)
    keep(results, read_results([IMPORTED / "jube-caraml.csv", IMPORTED / "milabench-summary.json"]))
    packed = folder.parent / "archived" / "results"
    shutil.copytree(folder, packed)
    archive(ResultFolder(packed))


def _raw(folder: Path) -> None:
    """Raw files of single runs: two nodes with sensors, one rank without, epochs, and a generating run."""
    budget = Budget(min_steps=60, max_steps=60)
    specs = {
        "nodes": RunSpec(run_id="run", configuration="c", devices=4, budget=budget, sim=TRUTH),
        "plain": RunSpec(run_id="run", configuration="c", budget=budget, crosscheck_steps=8),
        "epochs": RunSpec(run_id="run", configuration="c", epoch_samples=320, budget=Budget(epochs=4)),
    }
    for name, spec in specs.items():
        raw = folder / name
        raw.mkdir(parents=True)
        (raw / SPEC_FILE).write_text(record_text(spec), encoding="utf-8")
        run_directory(raw)
        (raw / observe.LAUNCH_FILE).write_text(record_text(_launch()), encoding="utf-8")
        (raw / observe.WORKER_LOG).write_bytes(b"a line\n" * 20)
    _generating(folder / "tokens")
    _program(folder / "program")


def _launch() -> observe.Launch:
    said = Scheduled(
        scheduler="slurm", job="7_0", state="FAILED", cause="failed", reason="it failed", nodes=("n1", "n2"),
        evidence={"exit_code": 1}, queued_at="2026-11-15T11:59:00+00:00", started_at="2026-11-15T12:00:00+00:00",
        elapsed_s=20.0, energy_j=1e5, runs=2,
    )  # fmt: skip
    return observe.Launch(
        launcher="slurm", host="n1", command=("bash", "job.sh"), started_at="2026-11-15T12:00:00+00:00", wall_s=20.0,
        exit_code=0, scheduled=said,
    )  # fmt: skip


def _generating(raw: Path) -> None:
    """Files as a generating run leaves them, without torch."""
    raw.mkdir()
    spec = RunSpec(run_id="run", configuration="c", workload="gpt", mode="generate", device="cpu", batch=4)
    (raw / SPEC_FILE).write_text(record_text(spec), encoding="utf-8")
    for pattern, count in ((observe.STEPS_PATTERN, 60), (observe.TOKENS_PATTERN, 240)):
        writer = StepWriter(raw, 0, pattern)
        step_s = 0.01 + 0.001 * np.arange(count) / count
        start_s = np.concatenate([[0.0], np.cumsum(step_s)[:-1]])
        writer.write(0, np.stack([start_s, step_s, 0 * step_s, step_s, 0 * step_s, 0 * step_s + 4]))
        writer.close()
    log = EventLog(raw, 0)
    log.write("settings", observe.Settings(values={"prompt_tokens": "100", "new_tokens": "4"}))
    log.end(observe.Status(code="completed"))


def _program(raw: Path) -> None:
    """Files as a wrapped program of two ranks leaves them, without torch."""
    raw.mkdir()
    program = Program(command=("torchrun", "train.py", "--batch", "{batch}"), parameters={"batch": 8}, max_steps=60)
    spec = RunSpec(run_id="run", configuration="c", workload="train", program=program)
    (raw / SPEC_FILE).write_text(record_text(spec), encoding="utf-8")
    end = ProgramEnd(
        exit_code=1, start_s=0.0, wall_s=9.0, cpu_s=17.0, peak_rss_bytes=1e9, output_bytes=7, ended_by="itself"
    )
    (raw / "program-00000.json").write_text(record_text(end), encoding="utf-8")
    (raw / observe.WORKER_LOG).write_bytes(b"ValueError: a line\n")
    told = [{"pid": 7 + rank, "ppid": 1, "argv": ["train.py"], "rank": rank, "world": 2} for rank in (0, 1)]
    (raw / "processes-00000.jsonl").write_text("".join(json.dumps(one) + "\n" for one in told))
    values = {"precision": "bf16", "compile": "on", "parallel": "ddp", "loader.workers": "2"}
    values["loader.pin_memory"] = "True"
    for rank in (0, 1):
        step_s = 0.01 + 0.001 * np.arange(60) / 60
        start_s = np.concatenate([[0.0], np.cumsum(step_s)[:-1]])
        for pattern, columns in ((observe.STEPS_PATTERN, (0, np.nan, np.nan, 8)), (WORK_PATTERN, (1, 9, 2, 16))):
            writer = StepWriter(raw, rank, pattern)
            writer.write(rank, np.stack([start_s, step_s, *(0 * step_s + one for one in columns)]))
            writer.close()
        log = EventLog(raw, rank)
        log.write("settings", observe.Settings(values=values))
        seen = Wrapped(
            rank=rank, world=2, device="cpu", timing="host clock", steps=60, updates=60, batch=8, accumulation=1,
            samples_known=True, tokens_known=True,
        )  # fmt: skip
        log.write("wrapped", seen)
        log.write("second", SecondPass(rank=rank, flops=1e9, communication_s=0.003, exposed_comm_s=0.002, steps=3))
        log.end(observe.Status(code="completed"))


# -- what people write

OWN_TABLE = """
[table]
title = "Training of a residual network"
url = "https://example.org/paper"
source = "example"
table = "3"
system = "POD16"
model = "ResNet50"

[[platform]]
name = "POD16"
accelerator = "an accelerator"
devices_per_node = 16
power_limit_w = 300
power_scope = "device"

[[row]]
devices = 1
batch = 20
figures = { throughput = "2130 images/s", train_time = "719.4 s" }

[[row]]
devices = 2
batch = 20
note = "two replicas"
figures = { throughput = "3895 images/s", train_time = "393.4 s" }

[[row]]
devices = 4
batch = 64
figures = { throughput = "OOM" }
"""

PRINTED = {
    "own.tex": r"""\begin{table}\caption{Throughput in img/s}\begin{tabular}{lrr}\toprule
\multirow{2}{*}{\# GPUs} & \multicolumn{2}{c}{Throughput} \\ & FP32 & \textbf{mixed} \\ \midrule
1 & 1{,}000 & $2\,000 \pm 3$ \\ 8 & 7.9k$^{*}$ & 15500 \\ \bottomrule\end{tabular}\end{table}""",
    "own.html": "<table><caption>Runs</caption><tr><th rowspan=2>GPUs<th colspan=2>Throughput (img/s)"
    "<tr><th>FP32<th>AMP<tr><td>1<td>1,000<td>2000 &plusmn; 3<tr><td>8<td>7.9k<sup>1</sup><td><b>15500</b></table>",
}


def _inputs(folder: Path) -> None:
    sources = {
        "sites": PACKAGE / "sites", "schemes": PACKAGE / "schemes", "tables": PACKAGE / "reference",
        "printed": ROOT / "tests/data/printed",
        "studies": PACKAGE / "studies", "recipes": ROOT / "docs/examples/recipes",
    }  # fmt: skip
    for name, source in sources.items():
        shutil.copytree(source, folder / name)
    for suite in ("caraml", "nrp", "site_acceptance", "olivia", "aces"):
        shutil.copytree(PACKAGE / "suites" / suite, folder / "suites" / suite)
    shutil.copytree(ROOT / "docs/examples/suites", folder / "suites", dirs_exist_ok=True)
    (folder / "studies" / "own.toml").write_text(
        'name = "own"\nrepeats = 2\n[run]\nworkload = "./own.py:build"\n[sweep]\nbatch = [1, 2]\n'
    )
    (folder / "studies" / "own.py").write_text(
        "import torch\n\nWIDTH: int = 8\n\n\ndef build(width=WIDTH, *, depth=2):\n"
        "    if depth:\n        width += 1\n    return torch.nn.Linear(width, width), lambda: torch.rand(4, width)\n"
    )
    shutil.copytree(IMPORTED, folder / "imported", ignore=shutil.ignore_patterns("expected.csv"))
    (folder / "tables" / "own.toml").write_text(OWN_TABLE)
    (folder / "printed" / "README.md").unlink()
    (folder / "printed" / "expected.csv").unlink()
    for name, text in PRINTED.items():
        (folder / "printed" / name).write_text(text)
    (folder / "sentences.txt").write_text(
        "GH200 is 32.3 % faster than 1xA100 on ResNet50, CIFAR-100\n4xA100 is up to 3.6x faster than GH200\n"
        "92 % efficiency on 4 GPUs with ResNet50\nscales linearly to 4 on ViT-H\n36.67 images/s per GPU\n"
    )
    (folder / "meter.csv").write_text(
        "timestamp,power_w\n" + "".join(f"{1794744000 + second}.5,{400 + second % 7}\n" for second in range(60))
    )
    (folder / "sacct.txt").write_text(
        "JobIDRaw|Start|End|ConsumedEnergyRaw\n71|1794744000|1794744060|24000\n71.0|1794744000|Unknown|\n"
    )


# -- campaigns


class Told:
    """A scheduler that only says that every task has ended."""

    name = "slurm"

    def __init__(self, _name: str = "slurm") -> None:
        self.render = Slurm().render

    def is_id(self, _campaign: Campaign, _job: JobArray, text: str) -> bool:
        """Accept the ids that Slurm has."""
        return text.isdecimal()

    def removed(self, _campaign: Campaign) -> str:
        """Remove nothing."""
        return ""

    def find(self, _campaign: Campaign, _jobs: Any) -> dict[int, str]:
        """Find nothing."""
        return {}

    def poll(self, _campaign: Campaign, jobs: Any) -> dict[tuple[int, int], TaskState]:
        """Say that every task has ended."""
        said = Scheduled(scheduler="slurm", job="7_0", state="COMPLETED")
        return {(job.number, task): TaskState("ended", said) for job in jobs for task in range(len(job.tasks))}

    def fetch(self, campaign: Campaign, job: JobArray, task: int) -> str:  # noqa: ARG002
        """Copy nothing."""
        return ""

    def clean(self, campaign: Campaign, jobs: Any) -> None:
        """Remove nothing."""


def _campaign(folder: Path, scheduler: str) -> None:
    """A campaign of three runs that have ended and are not collected, and one collected before."""
    nodes: dict[str, Any] = {"architecture": "x86_64", "devices_per_node": 2, "device": "cpu"}
    more: dict[str, Any] = {}
    if scheduler == "kubernetes":
        nodes |= {"cpus_per_node": 8, "memory_per_node_mib": 65536, "resource": "nvidia.com/gpu"}
        more = {"cluster": {"jobset": False}, "container": {"images": {"x86_64": "registry.example/torch:1"}}}
    about = {"name": "site", "scheduler": scheduler, "pools": {"cpu": nodes}, **more}
    place = Place(parse_object(Site, about, "a site"), "cpu")
    run = {"workload": "sim", "budget": FEW_STEPS, "crosscheck_steps": 0}
    study = parse_object(Study, {"name": STUDY, "run": run, "repeats": 3}, "a study")
    made = make_campaign(ResultFolder(folder), expand(study), place, Kubernetes() if more else Slurm())
    assert made is not None
    shutil.rmtree(made.path / "worker")
    (job,) = made.plan.jobs
    home = made.job_folder(job)
    with (made.path / "log").open("wb") as log, tempfile.TemporaryDirectory() as scratch:
        shipper = Shipper(log, 1 << 20)
        shipper.write("pod", "0123456789abcdef", 0)
        for index, run_id in enumerate(job.tasks[0]):
            raw = made.raw(run_id)
            run_directory(raw)
            (raw / observe.LEASE_FILE).write_text("n1\n")
            shipper.write("begin", index, run_id, "1794744000.123")
            shipper.ship(index, raw, 3 - index, Path(scratch))
            shipper.write("end", index, run_id, 0, "1794744000.123", "1794744002.123", 0)
            with (home / "0.done").open("a") as done:
                done.write(f"{run_id} 0 1794744000.123 1794744002.123\n")
        shipper.write("all", 3, shipper.lines)
    (home / "0.out").write_text("some output\n")
    (home / "id").write_text("7\n")
    (made.path / "unsettled.json").write_text('{"0.0.unknown": [1794744000.5, 1794744000000000000]}')
    line = {"run": job.tasks[0][0], "code": "completed", "reason": "", "short": "SY201 short"}
    (made.path / "ended.jsonl").write_text(json.dumps(line) + "\n" + json.dumps({**line, "code": "failed"}) + "\n")
    if more:
        (home / "sent").write_text("0\n")
        (home / "server").write_text("https://example.org:6443\n")
        (home / "held-back").write_text("exceeded quota: pods\n")
        (home / "0.unread").write_text("1794744000.5\n")
        lines = (made.path / "log").read_bytes().splitlines(keepends=True)
        times = (f"2026-11-15T12:00:00.{number:09d}Z ".encode() for number in range(len(lines)))
        (home / "0.0.0123456789abcdef.log").write_bytes(b"".join(a + b for a, b in zip(times, lines, strict=True)))
        write_json(home / "0.given-up", {"scheduler": "kubernetes", "job": "j", "state": "Stuck", "reason": "r"})


# -- what schedulers and container tools answer


def _answers(folder: Path) -> None:
    folder.mkdir()
    line = "{}|{}|{}|None|n[1-3,7]|2026-11-15T12:00:00|2026-11-15T12:01:00|1-02:03:04|name\n"
    squeue = [line.format(job, task, state) for job, task, state in (
        (7, "0-3:2%1", "PENDING"), (8, "N/A", "RUNNING"), (9, "1,4-6", "FAILED"), (10, "0", "TIMEOUT"))]  # fmt: skip
    (folder / "squeue.txt").write_text("".join(squeue))
    (folder / "exit_codes.txt").write_text("7 0 256\n8 N/A 0\n9 1-3 9\n")
    row = "{}|{}|1:0|n[01-03],login|2026-11-15T12:00:00|2026-11-15T12:01:00|60|1000|00:01:10|name\n"
    (folder / "sacct.txt").write_text(
        row.format("7_[0-3]", "CANCELLED by 1000") + row.format("8_0", "COMPLETED") + row.format("9", "NODE_FAIL")
    )
    (folder / "node.txt").write_text(
        "NodeName=n1 Arch=x86_64 CPUTot=64 Gres=gpu:a100:4(S:0-1) RealMemory=512000 State=IDLE+CLOUD Partitions=debug\n"
        "NodeName=n2 Arch=aarch64 CPUTot=64 Gres=gpu:4 RealMemory=512000 State=IDLE+POWERED_DOWN Partitions=debug,x\n"
    )
    (folder / "config.txt").write_text(
        "ClusterName             = bench\nSLURM_VERSION           = 23.11.4\nMaxArraySize            = 1001\n"
        "AccountingStorageType   = accounting_storage/slurmdbd\n"
    )
    (folder / "partition.txt").write_text(
        "PartitionName=debug MaxTime=1-00:00:00 MaxNodes=4 State=UP TotalNodes=4 DefMemPerCPU=100\n"
    )
    (folder / "seen.json").write_text(json.dumps(_seen()))
    (folder / "inspection.json").write_text(
        json.dumps({"Id": "sha256:" + "a" * 64, "Architecture": "amd64", "Digest": "sha256:" + "b" * 64,
                    "RepoDigests": ["registry.example/torch@sha256:" + "b" * 64]})
    )  # fmt: skip
    (folder / "task.out").write_text(
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-15T12:00:00 DUE TO TIME LIMIT ***\n"
    )


def _seen() -> dict[str, Any]:
    """A Job with pods and events, as the API of Kubernetes has them."""
    metadata = {
        "name": "s-abc-0-0", "creationTimestamp": "2026-11-15T12:00:00Z", "resourceVersion": "7",
        "labels": {"steelyard.io/job": "0", "steelyard.io/task": "0", "batch.kubernetes.io/job-completion-index": "0"},
        "annotations": {"batch.kubernetes.io/job-completion-index": "0"},
    }  # fmt: skip
    conditions = [
        {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "m",
         "lastTransitionTime": "2026-11-15T12:05:00Z"},
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes",
         "lastTransitionTime": "2026-11-15T12:00:01Z"},
        {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "m"},
    ]  # fmt: skip
    end = {
        "exitCode": 137, "reason": "OOMKilled", "message": "killed\n#steelyard x\n", "signal": 9,
        "startedAt": "2026-11-15T12:01:00Z", "finishedAt": "2026-11-15T12:02:00Z",
    }  # fmt: skip
    container = {"name": "steelyard", "image": "registry.example/torch:1", "imageID": "x@sha256:" + "a" * 64}
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    pods = [
        {"metadata": metadata, "spec": {"nodeName": "n1"},
         "status": {"phase": phase, "reason": reason, "message": "m", "conditions": conditions,
                    "startTime": "2026-11-15T12:00:30Z", "containerStatuses": [{**container, "state": state}]}}
        for phase, reason, state in (
            ("Failed", "Evicted", {"terminated": end}), ("Pending", None, waiting),
            ("Running", None, {"running": {"startedAt": "2026-11-15T12:01:00Z"}}),
        )
    ]  # fmt: skip
    events = [
        {"metadata": metadata, "reason": "FailedScheduling", "message": "no room", "type": "Warning", "count": 3,
         "involvedObject": {"name": "s-abc-0-0"}, "lastTimestamp": "2026-11-15T12:03:00Z"},
    ]  # fmt: skip
    status = {"conditions": conditions, "failed": 1, "active": 0, "startTime": "2026-11-15T12:00:01Z"}
    job = {"metadata": metadata, "spec": {"suspend": False, "completions": 1}, "status": status}
    return {"job": job, "pods": pods, "events": events}


# -- container images


def _images(folder: Path) -> None:
    folder.mkdir()
    header = struct.pack(
        "<32s10s3s3s16s8q", b"#!/usr/bin/env run-singularity\n", b"SIF_MAGIC\0", b"01", b"02", b"",
        0, 0, 0, 1, 128, 585, 1000, 24,
    )  # fmt: skip
    extra = struct.pack("<ii3s", 1, 2, b"02")
    part = struct.pack("<i?III7q128s384s", 0x4004, True, 1, 1, 0, 1000, 24, 24, 0, 0, 0, 0, b"", extra)
    (folder / "image.sif").write_bytes((header + part).ljust(1024, b"\0"))
    layout = folder / "layout"
    (layout / "blobs/sha256").mkdir(parents=True)
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    def blob(document: Any) -> str:
        content = json.dumps(document).encode()
        name = hashlib.sha256(content).hexdigest()
        (layout / "blobs/sha256" / name).write_bytes(content)
        return f"sha256:{name}"

    entries = []
    for go in ("amd64", "arm64"):
        config = {"digest": blob({"architecture": go, "os": "linux"}), "size": 1}
        manifest = blob({"schemaVersion": 2, "config": config, "layers": []})
        entries.append({"digest": manifest, "platform": {"architecture": go, "os": "linux"}})
    index = blob({"schemaVersion": 2, "manifests": entries})
    top = {"digest": index, "annotations": {"org.opencontainers.image.ref.name": "v1"}}
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [top, *entries]}))
    with tarfile.open(folder / "layout.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(path for path in layout.rglob("*") if path.is_file()):
            member = tarfile.TarInfo(str(path.relative_to(layout)))
            member.size = path.stat().st_size
            archive.addfile(member, io.BytesIO(path.read_bytes()))


# -- data sets, and files that are not ours


def _data(folder: Path) -> None:
    for name in plugins.names("data"):
        (folder / name).mkdir(parents=True)
        plugins.load("data", name).make(folder / name, 6, 1)


def _public(folder: Path) -> None:
    packages = Path(np.__file__).parents[1]
    sources = {
        "toml": Path(sysconfig.get_path("stdlib")) / "test" / "test_tomllib" / "data",
        "json": packages / "jsonschema_specifications", "csv": packages / "numpy",
    }  # fmt: skip
    # In case that the packages have none.
    ours = {"toml": "pyproject.toml", "json": "docs/figures.json", "csv": "src/steelyard/reference/caraml.csv"}
    for kind, source in sources.items():
        (folder / kind).mkdir(parents=True)
        shutil.copy(ROOT / ours[kind], folder / kind / f"ours.{kind}")
        small = (path for path in sorted(source.rglob(f"*.{kind}")) if path.stat().st_size < MAX_SEED_BYTES)
        for number, path in enumerate(islice(small, PUBLIC_FILES)):
            shutil.copy(path, folder / kind / f"{number}.{kind}")


# -- what programs print


def _output(folder: Path) -> None:
    """The example lines of all formats, as log lines and as the states of a progress bar."""
    folder.mkdir()
    lines = [example.line for form in known_formats() for example in form.example]
    for name, between in (("lines.txt", "\n"), ("bar.txt", "\x1b[A\r")):
        (folder / name).write_text(between.join(lines), encoding="utf-8")
