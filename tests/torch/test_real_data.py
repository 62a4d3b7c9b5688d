"""Real data in training: every sample once per epoch, for any number of ranks and DataLoader workers."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from conftest import make_spec
from scripted_clock import TICK_S, script_the_clock
from steelyard import plugins
from steelyard.analysis.bound import forecast
from steelyard.cli.main import main
from steelyard.cli.options.run import LOAD_BUDGET
from steelyard.contracts.observe import LossTrace
from steelyard.contracts.record import Interval, Quantity
from steelyard.contracts.spec import Budget, Data, Loader, Quality
from steelyard.data.form import Extent, extent, shuffled
from steelyard.errors import DamagedDataError, InputError
from steelyard.rules.plausibility.runs import DoesNotLearn, RanAway
from steelyard.worker.workloads.bundle import Task
from steelyard.worker.workloads.feed import Feed
from steelyard.worker.workloads.real import EvaluationSplit, RealData, TrainingSplit, fit, with_epochs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec

pytestmark = pytest.mark.usefixtures("torch_as_it_was")
CPU = torch.device("cpu")


class Numbers:
    """Examples that are their own numbers."""

    classes = None

    def __init__(self, count: int, damaged: int | None = None) -> None:
        self._count, self._damaged = count, damaged

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> int:
        if number == self._damaged:
            raise DamagedDataError(f"number-{number}.jpg: begins like a pickle")
        return number

    def order(self, source: random.Random) -> Sequence[int]:
        return shuffled(self._count, source)

    def files(self) -> list[Path]:
        return []


def prepare(example: int, train: bool, source: np.random.Generator) -> tuple[int, float]:
    return example, float(source.random()) if train else 0.0


def collate(samples: Sequence[tuple[int, float]]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([n for n, _ in samples]), torch.tensor([d for _, d in samples], dtype=torch.float64)


def data(count: int, **more: Any) -> RealData:
    form: Any = SimpleNamespace(name="numbers", kind="image-class")
    return RealData(form, Path("/nowhere"), Task("image-class", prepare, collate), Numbers(count, **more), None)


def spec_of(count: int, **settings: Any) -> RunSpec:
    loader = Loader(place="host", workers=settings.pop("workers", 0))
    base = make_spec(
        workload="tiny", device="cpu", data=Data(format="numbers", path="/nowhere"), loader=loader, **settings
    )
    return with_epochs(base, data(count))


def taken(spec: RunSpec, steps: int, count: int, rank: int = 0, **more: Any) -> list[list[tuple[int, float]]]:
    feed = Feed(spec, rank, CPU, None, TrainingSplit(data(count, **more), spec))  # type: ignore[arg-type]
    try:
        found = []
        for _ in range(steps):
            batch, pieces = feed.take()
            pairs = [pair for x, d in pieces for pair in zip(x.tolist(), d.tolist(), strict=True)]
            assert len(pairs) == batch.computed
            found.append(pairs)
        return found
    finally:
        feed.close()


@pytest.mark.parametrize(("ranks", "accumulation", "last_batch"), [(1, 1, "keep"), (2, 1, "keep"), (3, 2, "keep")])
def test_every_sample_comes_once_an_epoch(ranks: int, accumulation: int, last_batch: Any) -> None:
    count = 103
    spec = spec_of(count, devices=ranks, batch=4, accumulation=accumulation, last_batch=last_batch)
    steps = spec.steps_per_epoch
    assert steps is not None
    epochs: list[list[int]] = [[], []]
    for rank in range(ranks):
        found = taken(spec, 2 * steps, count, rank)
        for step, pairs in enumerate(found):
            epochs[step // steps] += [number for number, _ in pairs]
    assert all(Counter(epoch) == Counter(range(count)) for epoch in epochs)
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize(("last_batch", "computed"), [("drop", 96), ("pad", 104)])
def test_a_dropped_rest_is_missing_and_a_padded_one_is_real_data(last_batch: Any, computed: int) -> None:
    spec = spec_of(103, devices=2, batch=4, last_batch=last_batch)
    steps = spec.steps_per_epoch
    assert steps is not None
    seen = Counter(n for rank in (0, 1) for pairs in taken(spec, steps, 103, rank) for n, _ in pairs)
    assert seen.total() == computed
    if last_batch == "drop":
        assert set(seen.values()) == {1}
    else:
        assert set(seen) == set(range(103))


def test_the_seed_decides_order_and_augmentation_and_loader_processes_change_neither() -> None:
    def read(workers: int, seed: int) -> list[list[tuple[int, float]]]:
        return taken(spec_of(50, batch=4, seed=seed, workers=workers, last_batch="keep"), 30, 50)

    alone = read(0, 7)
    assert alone == read(0, 7) == read(2, 7)
    assert alone != read(0, 8)
    assert len({draw for pairs in alone for _, draw in pairs}) == sum(map(len, alone))


def test_an_epoch_may_be_shorter_or_longer_than_the_data() -> None:
    short = dataclasses.replace(spec_of(50, batch=5), epoch_samples=20)
    assert len({n for pairs in taken(short, 4, 50) for n, _ in pairs}) == 20
    long = dataclasses.replace(spec_of(50, batch=5), epoch_samples=60)
    assert Counter(n for pairs in taken(long, 12, 50) for n, _ in pairs).total() == 60


def test_inference_reads_without_augmentation() -> None:
    assert {draw for pairs in taken(spec_of(20, batch=4, mode="infer"), 5, 20) for _, draw in pairs} == {0.0}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_file_ends_the_reading_with_its_name(workers: int) -> None:
    with pytest.raises(DamagedDataError, match=r"^number-3\.jpg: begins like a pickle$"):
        taken(spec_of(20, batch=4, workers=workers), 5, 20, damaged=3)


def test_a_data_set_that_fills_no_step_is_refused() -> None:
    with pytest.raises(InputError, match=r"(?s)epoch_samples: 3 are less than one step .8 samples..*--last-batch pad"):
        spec_of(3, batch=8)


@pytest.mark.parametrize(("count", "limit", "ranks"), [(21, None, 1), (21, None, 2), (5, None, 4), (21, 10, 2)])
def test_every_evaluation_sample_counts_once_and_all_ranks_have_as_many_batches(
    count: int, limit: int | None, ranks: int
) -> None:
    spec = spec_of(40, devices=ranks, batch=3, budget=Budget(epochs=1), quality=Quality(samples=limit))
    real = dataclasses.replace(data(40), evaluation=Numbers(count))
    shares = [list(EvaluationSplit(real, spec, rank)) for rank in range(ranks)]
    assert len({len(share) for share in shares}) == 1
    counted = [n for share in shares for inputs, _, counts in share if counts for n in inputs.tolist()]
    assert sorted(counted) == list(range(limit or count))


def test_a_split_without_examples_is_refused() -> None:
    form: Any = SimpleNamespace(name="numbers", kind="image-class")
    with pytest.raises(InputError, match="no examples in its evaluation split"):
        fit(form, Numbers(3), Numbers(0), data(1).task, spec_of(40))
    with pytest.raises(InputError, match="no examples in its training split"):
        fit(form, Numbers(0), None, data(1).task, spec_of(40))


def test_the_identity_depends_on_names_and_sizes_alone(tmp_path: Path) -> None:
    def made(name: str, **files: bytes) -> Extent:
        root = tmp_path / name
        root.mkdir()
        for file, content in files.items():
            (root / file).write_bytes(content)
        # In any order, with one of them twice.
        return extent(root, [*sorted(root.iterdir(), reverse=True), next(root.iterdir())])

    first = made("first", a=b"12", b=b"345")
    assert (first.files, first.size_bytes) == (2, 5)
    assert first == made("second", a=b"99", b=b"000")
    assert first != made("third", a=b"12", b=b"3456")
    assert first != made("fourth", a=b"12", c=b"345")
    with pytest.raises(DamagedDataError, match=r"gone: No such file"):
        extent(tmp_path, [tmp_path / "gone"])


def test_data_of_another_kind_is_refused() -> None:
    spec = spec_of(40)
    form: Any = SimpleNamespace(name="numbers", kind="tokens")
    with pytest.raises(InputError, match=r"(?s)takes data of kind image-class.*cifar100.*imagefolder"):
        fit(form, Numbers(3), None, data(1).task, spec)
    with pytest.raises(InputError, match="takes only synthetic data"):
        fit(form, Numbers(3), None, None, spec)


# -- through the whole worker

MY = """
import torch
from torch import nn
from steelyard.worker.workloads.bundle import ModelBundle, Task

def prepare(example, train, source):
    picture, label = example
    return torch.from_numpy(picture.copy()).permute(2, 0, 1).float() / 255 - 0.5, label

def collate(samples):
    return torch.stack([x for x, _ in samples]), torch.tensor([int(y) for _, y in samples])

class Correct:
    name, better = "top-1", "higher"

    def __init__(self):
        self.right = self.all = 0

    def update(self, output, target):
        self.right += int((output.argmax(1) == target).sum())
        self.all += len(target)

    def compute(self):
        import torch.distributed as dist
        counts = torch.tensor([self.right, self.all])
        if dist.is_initialized():
            dist.all_reduce(counts)
        return float(counts[0] / counts[1])

def batch(samples, generator):
    return torch.randn(samples, 3, 32, 32, generator=generator), torch.randint(10, (samples,), generator=generator)

def build(classes: int = 10, rate: float = 0.02):
    layers = [nn.Conv2d(3, 16, 5, 2), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()]
    return ModelBundle(
        nn.Sequential(*layers, nn.Linear(256, classes)),
        nn.functional.cross_entropy,
        lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=0.9),
        batch,
        Task("image-class", prepare, collate, Correct),
    )
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my.py").write_text(MY)
    plugins.load("data", "cifar10").make(tmp_path / "c10", 320, 0)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> int:
    return main(["run", "./my.py:build", "--device", "cpu", "--threads", "1", "--data", "cifar10:c10", *words])


def records(place: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(place.glob("steelyard-results/**/record.json"))]


def as_figure(quantity: dict[str, Any]) -> dict[str, Any]:
    """A quantity of a record as every verb prints that of one job."""
    interval = quantity["interval"] or {"approximate": []}
    return {
        **{name: interval.get(name) for name in ("low", "high", "level", "approximate", "method")},
        **{name: quantity[name] for name in ("value", "unit", "reason", "scope", "window", "validity")},
        "jobs": 1,
    }


def test_a_run_says_which_data_it_read(place: Path) -> None:
    assert run("--batch", "20", "--epochs", "3") == 0
    (record,) = records(place)
    facts = record["data"]
    assert facts["format"] == "cifar10"
    assert facts["samples"] == 320
    assert facts["fits_in_memory"] is True
    assert facts["size_bytes"] == sum(path.stat().st_size for path in (place / "c10").rglob("data_batch_*.bin"))
    assert len(facts["identity"]) == 64
    assert record["settings"]["values"]["data"] == "cifar10, on the host"
    assert record["stop"]["reason"] == "epochs"
    assert record["steps_seen"] == 3 * 16
    first, later = (record["quantities"][f"{name}_time"]["value"] for name in ("first_epoch", "later_epochs"))
    assert first > 0
    assert later > 0
    assert first + 2 * later == pytest.approx(record["stop"]["seconds"], rel=1e-6)
    trace = record["loss"]
    assert trace["learnable"] is True
    assert trace["steps"][-1] == 48
    assert {phase["name"] for phase in record["phases"]} >= {"setup", "data", "compile", "steps"}


def test_a_quality_that_is_reached_ends_the_training(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Any model reaches 0: the first evaluation ends the run, whatever was learnt."""
    assert run("--batch", "20", "--epochs", "3", "--target", "0") == 0
    (record,) = records(place)
    assert (record["status"]["code"], record["stop"]["reason"]) == ("completed", "quality")
    assert record["steps_seen"] == 16
    (only,) = record["evaluations"]
    assert (only["epoch"], only["samples"]) == (1, 80)
    assert record["quantities"]["time_to_quality"]["value"] == only["at_s"]
    assert record["quantities"]["epochs_to_quality"]["value"] == 1
    # The evaluation is part of it.
    assert only["at_s"] >= record["stop"]["seconds"] + only["seconds"]
    assert "time to top-1 0:" in capsys.readouterr().out


@pytest.mark.full(
    "three trainings to 0.9: how many epochs they need, and whether they get there, is up to the processor"
)
def test_training_to_a_quality_ends_when_it_is_reached(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--batch", "20", "--epochs", "40", "--target", "0.9", "--repeats", "3") == 0
    found = records(place)
    assert len({record["spec"]["seed"] for record in found}) == 3
    for record in found:
        assert record["status"]["code"] == "completed"
        assert record["stop"]["reason"] == "quality"
        last = record["evaluations"][-1]
        assert last["value"] >= 0.9 > max([e["value"] for e in record["evaluations"][:-1]], default=0)
        assert last["samples"] == 80
        assert record["quantities"]["time_to_quality"]["value"] == last["at_s"]
        assert record["quantities"]["epochs_to_quality"]["value"] == len(record["evaluations"]) == last["epoch"]
        # From the first step on, including evaluations.
        steps = next(phase for phase in record["phases"] if phase["name"] == "steps")
        assert last["at_s"] <= steps["end_s"] - steps["start_s"]
        assert last["at_s"] >= record["stop"]["seconds"] + last["seconds"]
    out = capsys.readouterr().out
    assert "time to top-1 0.9:" in out
    assert re.search(r"^job .* top-1 +to quality +epochs", out, re.MULTILINE)
    assert "3 jobs with different seeds" in " ".join(out.split())


def test_a_quality_that_is_not_reached_is_a_status(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--batch", "20", "--epochs", "3", "--target", "1.5", "--evaluate-every", "2") == 1
    (record,) = records(place)
    assert record["status"]["code"] == "not_converged"
    assert [e["epoch"] for e in record["evaluations"]] == [2, 3]
    reached = record["quantities"]["time_to_quality"]
    assert reached["value"] is None
    assert "1.5 was not reached within 3 epochs; after 3 it is" in reached["reason"]
    captured = capsys.readouterr()
    assert "0 of 1 jobs reached the quality 1.5" in captured.out
    assert "samples/s, 48 steps" in captured.err


@pytest.mark.full("takes long: 12 s, two more ranks")
def test_two_ranks_share_the_data_and_judge_together(place: Path) -> None:
    assert run("--batch", "10", "--epochs", "2", "--evaluate-every", "1", "--devices", "2") == 0
    (record,) = records(place)
    assert record["steps_seen"] == 2 * 16
    assert [e["samples"] for e in record["evaluations"]] == [80, 80]
    assert all(0 <= e["value"] <= 1 for e in record["evaluations"])


def test_two_ranks_that_do_not_converge_end_in_order(place: Path) -> None:
    """torchrun would end the other ranks early if one exits with a code other than 0."""
    assert run("--batch", "10", "--epochs", "1", "--target", "1.5", "--devices", "2") == 1
    (record,) = records(place)
    assert record["status"]["code"] == "not_converged"
    # Half of the samples on each rank.
    assert (record["steps_seen"], [e["samples"] for e in record["evaluations"]]) == (16, [80])
    assert record["model"]["flops_per_sample"] > 0
    assert record["quantities"]["throughput"]["value"] > 0


def test_the_pipeline_alone_runs_no_model(
    place: Path, simulate: Callable[[RunSpec], RunRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted, take = script_the_clock(monkeypatch), Feed.take

    def slowly(feed: Feed) -> Any:
        # A reading of the clock takes the ninth tick.
        scripted.now_s += 8 * TICK_S
        return take(feed)

    def never(*_given: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(Feed, "take", slowly)
    data, budget = Data(format="cifar10", path=str(place / "c10")), Budget(min_steps=40, max_steps=40, min_seconds=0)
    spec = make_spec(
        workload="tiny", device="cpu", mode="load", batch=20, data=data, loader=Loader(place="host"), budget=budget
    )
    with torch.nn.modules.module.register_module_forward_hook(never):
        record = simulate(spec)
    assert (record.status.code, record.steps_seen, record.loss) == ("completed", 40, None), record.status
    assert record.model is not None
    assert record.model.flops_per_sample is None
    assert record.quantities["model_flops_utilisation"].value is None
    # A step is the wait for its data, and the reading at its end.
    assert record.quantities["input_wait_share"].value == pytest.approx(0.9)
    assert record.quantities["throughput"].value == pytest.approx(20 / (10 * TICK_S))


@pytest.mark.full("takes long: three runs, 20 s")
def test_pipelines_next_to_their_model(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rates are real, and differ from run to run; the forecasts must follow from them."""
    budget = ["--max-steps", "60", "--min-seconds", "0", "--batch", "20", "--json"]
    # Epochs and a quality target are for training, not for a rate.
    training = ["--epochs", "2", "--target", "0.9"]
    assert run("--mode", "load", "--loader-workers", "0,1", *budget, *training) == 0
    told = json.loads(capsys.readouterr().out)
    made = {(record["spec"]["mode"], record["spec"]["loader"]["workers"]): record for record in records(place)}
    assert set(made) == {("train", 0), ("load", 0), ("load", 1)}
    assert {(record["spec"]["budget"]["epochs"], record["spec"]["quality"]) for record in made.values()} == {
        (None, None)
    }
    assert made["train", 0]["spec"]["data"] is None
    assert told["model_alone"] == as_figure(made["train", 0]["quantities"]["throughput"])
    assert [row["workers"] for row in told["pipelines"]] == [0, 1]
    for row in told["pipelines"]:
        assert row["pipeline"] == as_figure(made["load", row["workers"]]["quantities"]["throughput"])
        pipeline, model = row["pipeline"]["value"], told["model_alone"]["value"]
        # One process does one after the other; a loader process works meanwhile.
        waits = max(0.0, 1 - pipeline / model) if row["workers"] else model / (model + pipeline)
        assert row["forecast"]["wait_share"] == pytest.approx(waits)
        assert row["forecast"]["samples_per_s_at_most"] == pytest.approx(model * (1 - waits))
        assert row["forecast"]["bound"] in ("cannot tell", "input-bound" if waits > 0.1 else "compute-bound")


def test_the_table_of_pipelines(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which settings are measured, and the answer for known rates."""
    model = (990.0, 1000.0, 1010.0)
    pipelines = {0: (2900.0, 3000.0, 3100.0), 1: (850.0, 900.0, 950.0), 2: (2900.0, 3000.0, 3100.0)}
    asked: list[dict[str, Any]] = []

    def measure(_arguments: Any, _folder: Any, chosen: dict[str, Any]) -> list[Any]:
        asked.append(chosen)
        low, value, high = pipelines[chosen["loader"]["workers"]] if "loader" in chosen else model
        interval = Interval(low=low, high=high, method="m", covers="this job")
        of_job: Any = {"scope": "job", "window": "steady", "aggregation": "work over time"}
        rate = Quantity(value=value, unit="samples/s", interval=interval, **of_job)
        status, quantities = SimpleNamespace(code="completed"), {"throughput": rate}
        return [SimpleNamespace(status=status, quantities=quantities, environment=None)]

    monkeypatch.setattr("steelyard.cli.run.measure", measure)
    # Epochs and a quality target are for training, not for a rate.
    assert run("--mode", "load", "--epochs", "2", "--target", "0.9") == 0
    assert [chosen["budget"] for chosen in asked] == [LOAD_BUDGET] * 4
    assert [set(chosen) & {"data", "loader", "mode", "quality"} for chosen in asked] == [
        set(), *[{"data", "loader", "mode"}] * 3,
    ]  # fmt: skip
    rows = [re.split(r"  +", line.strip()) for line in capsys.readouterr().out.splitlines()]
    # One process does one after the other; loader processes work meanwhile.
    assert [(row[0], *row[2:]) for row in rows if row[0] in ("0", "1", "2")] == [
        ("0", "input-bound", "25 %", "750.00"),
        ("1", "cannot tell", "10 %", "900.00"),
        ("2", "compute-bound", "0 %", "1,000.0"),
    ]


def test_a_damaged_data_set_ends_the_run_with_its_file(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    victim = next((place / "c10").rglob("data_batch_1.bin"))
    victim.write_bytes(victim.read_bytes()[:-100])
    assert run("--batch", "20", "--epochs", "1") == 2
    said = capsys.readouterr().err
    assert "data_batch_1.bin" in said
    assert "Traceback" not in said
    assert not records(place)


def test_too_few_classes_are_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--model", "classes=3") == 2
    assert "the data has 10" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--data", "nothing:/tmp"], "no such data format"),
        (["--data", "cifar10"], "FORMAT:PATH"),
        (["--data", "cifar10:/does/not/exist"], "is not a folder"),
        (
            ["--data", "device", "--target", "0.5", "--epochs", "2"],
            "--target: needs training on real data",
        ),
        (["--data", "cifar10:c10", "--target", "0.5"], "budget.epochs"),
        (["--data", "cifar10:~nobody-of-that-name/x"], "no such user"),
        (["--data", "cifar10:c10", "--epochs", "90000", "--target", "0.5"], "at most 9000 evaluations"),
    ],
)
def test_what_cannot_be_is_refused(
    place: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything starts, or by the worker."""
    assert main(["run", "./my.py:build", "--device", "cpu", *words]) == 2
    captured = capsys.readouterr()
    assert says in captured.out + captured.err


def test_simulated_epochs_have_their_scripted_length(simulate: Callable[[RunSpec], RunRecord]) -> None:
    """The first epoch includes the compilation in its first step; later ones wait for the restart of the loader."""
    spec = make_spec(batch=10, epoch_samples=200, budget=Budget(epochs=5))
    shape = dataclasses.replace(spec.sim.shape, compile_step_s=1.5)
    feed = dataclasses.replace(spec.sim.input, epoch_restart_s=0.25)
    noise = dataclasses.replace(spec.sim.noise, cv=0.0)
    sim = dataclasses.replace(spec.sim, step_time_s=0.01, sample_time_s=0.0, shape=shape, input=feed, noise=noise)
    record = simulate(dataclasses.replace(spec, sim=sim))
    value = {name: quantity.value for name, quantity in record.quantities.items()}
    assert value["first_epoch_time"] == pytest.approx(20 * 0.01 + 1.5, rel=1e-9)
    assert value["later_epochs_time"] == pytest.approx(20 * 0.01 + 0.25, rel=1e-9)
    assert value["first_epoch_throughput"] == pytest.approx(200 / 1.7, rel=1e-9)
    assert value["later_epochs_throughput"] == pytest.approx(200 / 0.45, rel=1e-9)
    assert "SY204" in {found.code for found in record.findings}


def test_a_simulated_job_reads_no_data() -> None:
    with pytest.raises(ValueError, match="the simulated device reads no data"):
        make_spec(data=Data(format="mnist", path="/x"), loader=Loader(place="host"))


def traced(losses: list[float | None], *, learnable: bool = True) -> set[str]:
    """Return the codes of the findings in a record with these losses."""
    trace = LossTrace(steps=tuple(20 * (n + 1) for n in range(len(losses))), values=tuple(losses), learnable=learnable)
    record: Any = SimpleNamespace(loss=trace, model=None, spec=make_spec(), settings=None)
    return {found.code for rule in (RanAway(), DoesNotLearn()) for found in rule.check(record)}


def test_a_loss_that_does_not_fall_is_found() -> None:
    noise = random.Random(0)
    falling = [3.0 - 0.02 * n + noise.gauss(0, 0.05) for n in range(60)]
    standing = [3.0 + noise.gauss(0, 0.05) for _ in range(60)]
    assert traced(falling) == set()
    assert traced(falling[::-1]) == {"SY702"}
    assert traced([3.0, 2.0, 1.0] + [0.0] * 40) == set()
    assert traced([*falling[:20], None, *falling[20:]]) == {"SY701"}
    # Random labels that are new in each step cannot be learnt, but a rise of the loss is still reported.
    assert traced(standing, learnable=False) == set()
    assert traced(falling[::-1], learnable=False) == {"SY702"}
    # With few losses, a trend shows only if it is larger than their noise.
    assert traced(standing[:8]) == set()
    slow = [[3.0 - 0.004 * n + noise.gauss(0, 0.05) for n in range(12)] for _ in range(200)]
    assert sum(bool(traced(list(losses))) for losses in slow) <= 4


@pytest.mark.parametrize(
    ("pipeline", "device", "overlaps", "bound", "wait"),
    [
        (100.0, 50.0, True, "compute-bound", 0.0),
        (50.0, 100.0, True, "input-bound", 0.5),
        (100.0, 100.0, False, "input-bound", 0.5),
        (1900.0, 100.0, False, "compute-bound", 0.05),
    ],
)
def test_the_forecast(pipeline: float, device: float, overlaps: bool, bound: str, wait: float) -> None:
    def rate(value: float) -> Quantity:
        return Quantity(value=value, unit="samples/s", scope="job", window="steady", aggregation="work over time")

    found = forecast(rate(pipeline), rate(device), overlaps=overlaps)
    assert found is not None
    assert (found.bound, found.wait_share) == (bound, pytest.approx(wait))
    together = 1 / pipeline + 1 / device
    assert found.rate == pytest.approx(min(pipeline, device) if overlaps else 1 / together)
