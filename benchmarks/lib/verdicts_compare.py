"""[verdicts_compare] `compare` refuses a ratio for every confounded pair of results and for no clean pair.

Machines are simulated: each gives three jobs through the real worker loop, sample files and derivation. From these,
records are made with the settings of real training runs (model, data, precision, batches, loader, devices,
compilation, software, nodes), both requested and effective. A pair starts as two runs that differ only in the factor
under study. A clean pair gets changes that a fair comparison may have if it discloses them; a confounded pair gets at
least one more that changes the work, the precision, the portions or the machine.

Which changes are which is defined here, in `TELLS` and `CONFOUNDS`, independently of the rules.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from figure import Figure, arguments, at_least, at_most, finish
from simjob import run_job
from steelyard.analysis.compare import compare
from steelyard.analysis.rows import row_of
from steelyard.analysis.summary import summarise
from steelyard.contracts.observe import DataFacts, DeviceFacts, Settings
from steelyard.contracts.sim import Noise, SimTruth
from steelyard.contracts.spec import Data, Loader, RunSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.record import RunRecord

SEED = 20_261_115
MACHINES = 6
JOBS = 3
PAIRS, QUICK_PAIRS = 1000, 400


@dataclass(frozen=True)
class Run:
    """The settings of one side: everything that a user can change between two runs."""

    machine: int = 0
    workload: str = "resnet50"
    layers: int | None = None
    mode: str = "train"
    precision: str = "bf16"
    optimizer: str = "SGD"
    learning_rate: float = 0.1
    batch: int = 32
    accumulation: int = 1
    devices: int = 1
    dataset: str | None = None
    last_batch: str = "drop"
    epoch_samples: int | None = None
    place: str = "host"
    workers: int = 4
    prefetch: int = 2
    pin_memory: bool = False
    compile: str = "off"
    channels_last: bool = False
    deterministic: bool = False
    numa: bool = False
    preset: str = "plain"
    threads: int = 8
    parallel: str = "ddp"
    torch: str = "2.9.0"
    driver: str = "570.1"
    nodes: tuple[str, ...] = ("n1", "n2", "n3")


def other(rng: random.Random, now: object, choices: tuple[object, ...]) -> object:
    """Return one of the choices other than the present one."""
    return rng.choice([choice for choice in choices if choice != now])


def changing(name: str, *choices: object) -> Callable[[random.Random, Run], Run]:
    """Return a change of one field to another of its values."""
    return lambda rng, run: replace(run, **{name: other(rng, getattr(run, name), choices)})  # type: ignore[arg-type]


def on_the_device(_rng: random.Random, run: Run) -> Run:
    """Data made once on the device instead of coming from the host, so that input is no longer measured."""
    return replace(run, place="device", workers=0, pin_memory=False, dataset=None)


def more_samples(rng: random.Random, run: Run) -> Run:
    """A batch that differs both per device and in the job."""
    return replace(run, batch=run.batch * rng.choice((3, 5, 7)))


def more_devices(rng: random.Random, run: Run) -> Run:
    """Another number of devices, with the same batch per device or the same global batch."""
    devices = run.devices * rng.choice((2, 4))
    return replace(run, devices=devices, batch=rng.choice((run.batch, run.batch * run.devices // devices)))


def portions(_rng: random.Random, run: Run) -> Run:
    """The same global batch on the same devices, in smaller portions."""
    return replace(run, batch=run.batch // 2, accumulation=2 * run.accumulation)


# A fair comparison may have these differences if it discloses them.
TELLS: dict[str, Callable[[random.Random, Run], Run]] = {
    "loader processes": lambda rng, run: replace(run, workers=run.workers + rng.choice((1, 4))),
    "prefetching": changing("prefetch", 2, 4, 8),
    "pinned memory": changing("pin_memory", True, False),
    "compilation": changing("compile", "off", "default", "max-autotune"),
    "memory layout": changing("channels_last", True, False),
    "deterministic algorithms": changing("deterministic", True, False),
    "binding": changing("numa", True, False),
    "preset": changing("preset", "plain", "tuned"),
    "threads": changing("threads", 4, 8, 16),
    "way to divide the work": changing("parallel", "ddp", "fsdp2"),
    "version of the framework": changing("torch", "2.8.0", "2.9.0", "2.10.0"),
    "driver": changing("driver", "550.5", "570.1", "580.2"),
    "nodes": changing("nodes", ("n1", "n2", "n3"), ("n4",), ("n5", "n6")),
    "learning rate": changing("learning_rate", 0.01, 0.1, 0.5),
    "samples in an epoch": changing("epoch_samples", 100_000, 200_000),
    "portions of one global batch": portions,
}
# With these changes the two runs do not do the same work.
CONFOUNDS: dict[str, Callable[[random.Random, Run], Run]] = {
    "machine": lambda rng, run: replace(run, machine=(run.machine + rng.randrange(1, MACHINES)) % MACHINES),
    "devices": more_devices,
    "model": changing("workload", "resnet50", "resnet152", "vit-l-16", "swin-b"),
    "size of the model": changing("layers", None, 12, 24),
    "training or inference": changing("mode", "train", "infer"),
    "last batch": changing("last_batch", "drop", "pad", "keep"),
    "data set": changing("dataset", None, "cifar100", "coco"),
    "files of the data set": changing("dataset", "folder-a", "folder-b"),
    "where data is made": on_the_device,
    "precision": changing("precision", "fp32", "tf32", "bf16", "fp16"),
    "optimizer": changing("optimizer", "SGD", "AdamW"),
    "batch": more_samples,
    "accumulation": lambda rng, run: replace(run, accumulation=run.accumulation * rng.choice((3, 5))),
}
# What each factor changes, and which other changes belong to the factor and do not confound.
FACTORS: dict[str, tuple[Callable[[random.Random, Run], Run], set[str]]] = {
    "system": (CONFOUNDS["machine"], {"machine", "devices"}),
    "devices": (more_devices, {"devices"}),
    "precision": (CONFOUNDS["precision"], {"precision"}),
    "batch": (more_samples, {"batch", "accumulation"}),
    "model": (CONFOUNDS["model"], {"model", "size of the model", "optimizer"}),
    "dataset": (changing("dataset", "cifar100", "coco"), {"data set", "files of the data set", "where data is made"}),
    "compile": (TELLS["compilation"], set()),
    "loader.workers": (TELLS["loader processes"], set()),
    "parallel": (TELLS["way to divide the work"], set()),
    "channels_last": (TELLS["memory layout"], set()),
    "framework": (TELLS["version of the framework"], {"optimizer"}),
}


def base(rng: random.Random, factor: str) -> Run:
    """A first run, of a kind in which the factor is visible."""
    several = factor == "parallel" or rng.random() < 0.5
    data = rng.choice(("cifar100", "folder-a", None)) if factor != "dataset" else "cifar100"
    return Run(
        machine=rng.randrange(MACHINES),
        workload=rng.choice(("resnet50", "vit-l-16")),
        precision=rng.choice(("fp32", "bf16", "fp16")),
        batch=rng.choice((32, 64, 256)),
        devices=rng.choice((2, 4)) if several else 1,
        dataset=data,
        workers=rng.choice((2, 8)),
        epoch_samples=50_000,
    )


def pair(rng: random.Random, *, confounded: bool) -> tuple[Run, Run, str, list[str]]:
    """Two runs, the factor, and what else was changed."""
    factor = rng.choice(list(FACTORS))
    change, excused = FACTORS[factor]
    first = base(rng, factor)
    second = change(rng, first)
    done = []
    for name in rng.sample(list(TELLS), rng.choice((0, 0, 1, 2, 3))):
        if _can_tell(name, factor, first, second):
            second = TELLS[name](rng, second)
            done.append(name)
    if confounded:
        open_to = [name for name in CONFOUNDS if name not in excused and _can_confound(name, first, second, done)]
        for name in rng.sample(open_to, rng.choice((1, 1, 2))):
            if _can_confound(name, first, second, done):
                second = CONFOUNDS[name](rng, second)
                done.append(name)
    return first, second, factor, done


def _can_tell(name: str, factor: str, first: Run, second: Run) -> bool:
    # Other portions of one batch need training with the same devices and batch.
    same = (first.batch, first.devices, first.accumulation) == (second.batch, second.devices, second.accumulation)
    return name != "portions of one global batch" or (same and factor != "batch")


def _can_confound(name: str, first: Run, second: Run, done: list[str]) -> bool:
    needs = {
        "training or inference": second.accumulation == first.accumulation == 1 and "accumulation" not in done,
        "accumulation": second.mode == "train" and "portions of one global batch" not in done,
        "batch": "portions of one global batch" not in done,
        "devices": "portions of one global batch" not in done and "batch" not in done,
        "files of the data set": first.dataset == "folder-a",
        "data set": first.dataset != "folder-a" and second.place == "host",
        "where data is made": second.dataset is None,
        "optimizer": second.mode == "train",
    }
    return needs.get(name, True)


# -- records of these runs


@cache
def jobs(machine: int) -> tuple[RunRecord, ...]:
    """Three simulated jobs of a machine."""
    truth = SimTruth(step_time_s=0.010 * 1.3**machine, noise=Noise(kind="normal", cv=0.02, between_jobs_cv=0.01))
    return tuple(run_job(truth, SEED + 100 * machine + number) for number in range(JOBS))


def records(run: Run, name: str) -> list[RunRecord]:
    """Return the records of this run."""
    return [_record(run, job, name, number) for number, job in enumerate(jobs(run.machine))]


def _record(run: Run, job: RunRecord, name: str, number: int) -> RunRecord:
    spec = RunSpec(
        run_id=f"{name}-{number}",
        study="pairs",
        configuration=name,
        repeat=number,
        workload=run.workload,
        mode=run.mode,  # type: ignore[arg-type]
        model={"layers": run.layers} if run.layers else {},
        device="cuda",
        devices=run.devices,
        batch=run.batch,
        accumulation=run.accumulation,
        learning_rate=run.learning_rate,
        precision=run.precision,  # type: ignore[arg-type]
        compile=run.compile,  # type: ignore[arg-type]
        channels_last=run.channels_last,
        parallel=run.parallel if run.last_batch != "keep" else "ddp",  # type: ignore[arg-type]
        deterministic=run.deterministic,
        threads=run.threads,
        numa=run.numa,
        preset=run.preset,  # type: ignore[arg-type]
        loader=Loader(
            place=run.place,  # type: ignore[arg-type]
            workers=run.workers,
            prefetch=run.prefetch,
            pin_memory=run.pin_memory,
        ),
        data=Data(format=_format(run), path="/data") if run.dataset else None,
        epoch_samples=run.epoch_samples,
        last_batch=run.last_batch,  # type: ignore[arg-type]
    )
    assert job.environment is not None
    facts = {**job.environment.facts, "torch.version": run.torch, "gpu0.driver": run.driver}
    node = run.nodes[number % len(run.nodes)]
    return replace(
        job,
        run_id=spec.run_id,
        spec=spec,
        environment=replace(job.environment, node=node, device="cuda", facts=facts),
        settings=Settings(values=_in_effect(run)),
        device=DeviceFacts(name=f"accelerator {run.machine}", model=f"Accelerator {run.machine}", dies=1),
        data=_data(run),
    )


def _in_effect(run: Run) -> dict[str, str]:
    """Return the effective settings, as the worker reports them."""
    products = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}[run.precision]
    kind = (
        "replicas" if run.mode == "infer" else {"ddp": "DistributedDataParallel", "fsdp2": "fully_shard"}[run.parallel]
    )
    values = {
        "devices": str(run.devices),
        "backend": "nccl" if run.devices > 1 else "none",
        "threads": str(run.threads),
        "deterministic": str(run.deterministic).lower(),
        "matmul_dtype": products,
        "float32_products": "tf32" if run.precision == "tf32" else "fp32",
        "parameter_dtype": "float32" if run.mode == "train" else products,
        "autocast": str(run.mode == "train" and products != "float32").lower(),
        "channels_last": str(run.channels_last).lower(),
        "parallel": kind if run.devices > 1 else "none",
        "compiled": str(run.compile != "off").lower(),
    }
    if run.mode == "train":
        values |= {"optimizer": run.optimizer, "learning_rate": f"{run.learning_rate:g}"}
    return values


def _format(run: Run) -> str:
    return "imagefolder" if run.dataset in ("folder-a", "folder-b") else str(run.dataset)


def _data(run: Run) -> DataFacts | None:
    if run.dataset is None:
        return None
    digest = {"cifar100": "a", "coco": "b", "folder-a": "c", "folder-b": "d"}[run.dataset] * 64
    return DataFacts(
        format=_format(run), path="/data", samples=50_000, files=3, size_bytes=1e9, identity=digest,
        filesystem="lustre", memory_bytes=None, fits_in_memory=None,
    )  # fmt: skip


# -- the figures


def verdict(first: Run, second: Run, factor: str) -> tuple[str, bool]:
    """Return the verdict of `compare`, and whether it gives a ratio."""
    rows = [row_of(summarise(records(run, name))[0]) for run, name in ((first, "a"), (second, "b"))]
    found = compare(rows[:1], rows[1:], factor=factor)
    return found.comparisons[0].verdict, found.made


def figures(*, quick: bool) -> list[Figure]:
    """Half of the pairs are clean, half are confounded."""
    rng = random.Random(SEED)
    missed: Counter[str] = Counter()
    blocked: Counter[str] = Counter()
    sides: Counter[bool] = Counter()
    for number in range(QUICK_PAIRS if quick else PAIRS):
        confounded = number % 2 == 0
        first, second, factor, done = pair(rng, confounded=confounded)
        said, ratio = verdict(first, second, factor)
        forbidden = said == "not comparable"
        if forbidden == ratio:
            raise RuntimeError(f"{said}, and a ratio is {'given' if ratio else 'missing'}")
        sides[confounded] += 1
        if confounded and not forbidden:
            missed[f"{factor}: {', '.join(done)}"] += 1
        if not confounded and forbidden:
            blocked[f"{factor}: {', '.join(done) or 'nothing else'}"] += 1
    for title, wrong in (("not blocked", missed), ("blocked", blocked)):
        for text, times in wrong.most_common(20):
            print(f"{title} {times}x: {text}", file=sys.stderr)
    caught = 100 * (1 - missed.total() / sides[True])
    return [
        at_least(f"verdicts: confounded pairs blocked, of {sides[True]}", caught, "%", 100),
        at_most(f"verdicts: clean pairs blocked, of {sides[False]}", 100 * blocked.total() / sides[False], "%", 0),
    ]


if __name__ == "__main__":
    finish(figures(quick=arguments(__doc__).quick))
