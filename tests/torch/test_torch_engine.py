"""The PyTorch engine: its data, steps, settings and ranks."""

from __future__ import annotations

import gc
import itertools
import json
import os
import re
import sys
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from casts import Casts
from conftest import make_spec
from steelyard import plugins
from steelyard.cli.main import main
from steelyard.contracts import threads
from steelyard.contracts.spec import Budget, Loader
from steelyard.errors import InputError
from steelyard.worker.engine import steps
from steelyard.worker.engine.optimizers import kernel_of, optimizer
from steelyard.worker.engine.parallel import Parallel
from steelyard.worker.engine.pipeline import stage_of
from steelyard.worker.engine.precision import Precision
from steelyard.worker.engine.steps import Inference, Training
from steelyard.worker.engine.torch_job import open_job
from steelyard.worker.measure.vendor import NvidiaSmi
from steelyard.worker.workloads import gpt
from steelyard.worker.workloads.bundle import ModelBundle
from steelyard.worker.workloads.feed import Feed, batch_seed, rotation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec

pytestmark = pytest.mark.usefixtures("torch_as_it_was")

CPU = torch.device("cpu")
SHORT = Budget(min_steps=20, max_steps=20, min_seconds=0)


SMALL_GPT = {
    "size": "custom", "sequence": 16, "vocabulary": 101, "layers": 1, "heads": 2, "width": 16, "prompt": 12,
    "new_tokens": 4,
}  # fmt: skip


def spec_of(**settings: Any) -> RunSpec:
    return make_spec(**{"workload": "tiny", "device": "cpu", "budget": SHORT, **settings})


# -- data


def vectors(samples: int, generator: torch.Generator) -> tuple[Any, Any]:
    return torch.randn(samples, 3, generator=generator), torch.randint(9, (samples,), generator=generator)


def images(samples: int, generator: torch.Generator) -> tuple[Any, Any]:
    picture = torch.randn(samples, 3, 4, 5, generator=generator)
    return {"picture": picture, "weights": [picture.mean(dim=(1, 2, 3)), "plain"]}, torch.zeros(samples)


def taken(spec: RunSpec, count: int, make: Any = vectors, rank: int = 0) -> list[tuple[Any, list[Any]]]:
    feed = Feed(spec, rank, CPU, make)
    try:
        return [feed.take() for _ in range(count)]
    finally:
        feed.close()


def flat(steps_taken: list[tuple[Any, list[Any]]]) -> list[torch.Tensor]:
    return [tensor for _, pieces in steps_taken for piece in pieces for tensor in piece]


def same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))


def test_batches_on_the_device_take_turns_within_a_share_of_memory() -> None:
    batch = vectors(4, torch.Generator())
    size = 4 * (3 * 4 + 8)
    assert [rotation(batch, memory * size) for memory in (1, 99, 101, 199, 201, 1000)] == [1, 1, 2, 3, 4, 4]
    feed = Feed(spec_of(batch=4), 0, CPU, vectors, memory=101 * size)
    assert feed.effective() == {"data": "synthetic, on the device", "batches_in_turn": "2"}
    first, second, again = (feed.take()[1][0][0] for _ in range(3))
    assert first is again
    assert not torch.equal(first, second)
    assert feed.learnable


def test_the_recorded_loss_is_that_of_one_batch() -> None:
    """The losses of different batches differ by more than a short training changes them."""
    torch.manual_seed(0)
    spec = spec_of(batch=4, learning_rate=1e-4)
    work = training(spec, nn.Linear(3, 9))
    found = []
    for _ in range(20):
        work.run(work.take())
        found.append(work.last_loss())
    assert found == [value for value in found[::4] for _ in range(4)]
    assert found[::4] == sorted(found[::4], reverse=True)
    assert len(set(found)) == 5


@pytest.mark.parametrize(("asked", "kind", "pin"), [(None, "meta", True), (False, "meta", False), (None, "cpu", False)])
def test_host_memory_is_pinned_for_accelerators(
    asked: bool | None, kind: str, pin: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = []
    monkeypatch.setattr("steelyard.worker.workloads.feed.loader_of", lambda *_args, pin: pins.append(pin) or [])
    Feed(spec_of(loader=Loader(place="host", pin_memory=asked)), 0, torch.device(kind), vectors)
    assert pins == [pin]


def test_the_seed_decides_the_data_and_loader_processes_keep_its_order() -> None:
    def host(workers: int, seed: int = 5, rank: int = 0) -> list[torch.Tensor]:
        loader = Loader(place="host", workers=workers, prefetch=3)
        return flat(taken(spec_of(seed=seed, loader=loader, batch=4, accumulation=3), 3, rank=rank))

    alone = host(0)
    assert len(alone) == 2 * 3 * 3
    assert same(alone, host(0))
    assert same(alone, host(2))
    expected = [vectors(4, torch.Generator().manual_seed(batch_seed(5, 0, number))) for number in range(9)]
    assert same(alone, [tensor for pair in expected for tensor in pair])
    assert not same(alone, host(0, seed=6))
    assert not same(alone, host(0, rank=1))
    assert not torch.equal(alone[0], alone[2])
    on_device = flat(taken(spec_of(seed=5, batch=4, accumulation=3), 2))
    # The first four micro-batches of the stream take turns, also from one step to the next.
    assert same(on_device, alone[:8] + alone[:4])


def test_no_two_ranks_see_the_same_data() -> None:
    """torch's CPU generator uses only the low 32 bits of a seed, in which ranks must differ."""
    firsts = sorted({batch_seed(2**63 - 1, rank, 0) for rank in range(65_536)})
    assert len(firsts) == 65_536
    assert 0 <= firsts[0] < firsts[-1] < 2**32
    # One rank's data must not follow closely on another's either.
    assert min(b - a for a, b in itertools.pairwise(firsts)) > 20_000
    first, second = (taken(spec_of(devices=2), 1, rank=rank)[0][1][0][0] for rank in (0, 1))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("loader", [Loader(), Loader(place="host"), Loader(place="host", workers=2)])
def test_loading_leaves_the_models_randomness_alone(loader: Loader) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    taken(spec_of(loader=loader), 3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("place", ["device", "host"])
@pytest.mark.parametrize(
    ("last_batch", "samples", "sizes"),
    [
        ("drop", [8, 8, 8, 8], [[4, 4]] * 4),
        ("pad", [8, 8, 7, 8], [[4, 4]] * 4),
        ("keep", [8, 8, 7, 8], [[4, 4], [4, 4], [4, 3], [4, 4]]),
    ],
)
def test_the_last_step_of_an_epoch(place: Any, last_batch: Any, samples: list[int], sizes: list[list[int]]) -> None:
    settings = {"batch": 4, "accumulation": 2, "last_batch": last_batch, "loader": Loader(place=place)}
    found = taken(spec_of(epoch_samples=23, **settings), 4)
    assert [batch.samples for batch, _ in found] == samples
    assert [[len(inputs) for inputs, _ in pieces] for _, pieces in found] == sizes
    assert [[len(target) for _, target in pieces] for _, pieces in found] == sizes
    opening = 2 if last_batch == "drop" else 3
    assert [batch.opens_epoch for batch, _ in found] == [number == opening for number in range(4)]


@pytest.mark.parametrize("place", ["device", "host"])
def test_a_last_step_smaller_than_a_micro_batch(place: Any) -> None:
    loader = Loader(place=place)
    found = taken(spec_of(epoch_samples=19, batch=4, accumulation=2, last_batch="keep", loader=loader), 3)
    assert [[len(inputs) for inputs, _ in pieces] for _, pieces in found] == [[4, 4], [4, 4], [3]]
    if place == "host":
        # It has used one micro-batch of the loader, not two.
        assert torch.equal(found[2][1][0][0], vectors(3, torch.Generator().manual_seed(4))[0])


@pytest.mark.parametrize("place", ["device", "host"])
def test_an_epoch_smaller_than_a_micro_batch(place: Any) -> None:
    found = taken(spec_of(epoch_samples=10, batch=32, last_batch="keep", loader=Loader(place=place)), 2)
    assert [[len(inputs) for inputs, _ in pieces] for _, pieces in found] == [[10], [10]]


@pytest.mark.parametrize("place", ["device", "host"])
def test_channels_last_reaches_every_image_and_nothing_else(place: Any) -> None:
    spec = spec_of(channels_last=True, batch=2, loader=Loader(place=place))
    inputs, target = taken(spec, 1, images)[0][1][0]
    assert inputs["picture"].is_contiguous(memory_format=torch.channels_last)
    assert not inputs["picture"].is_contiguous()
    assert inputs["weights"][0].shape == target.shape == (2,)
    assert inputs["weights"][1] == "plain"
    assert taken(spec_of(batch=2), 1, images)[0][1][0][0]["picture"].is_contiguous()


# -- steps


class Noisy(nn.Module):
    """With a buffer that changes in every pass, and randomness."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(16, 9)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.last(self.drop(torch.relu(self.norm(self.first(inputs)))))
        return hidden


def plain_sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


def training(spec: RunSpec, module: nn.Module, make: Any = vectors) -> Training:
    bundle = ModelBundle(module, functional.cross_entropy, plain_sgd, make)
    parallel = Parallel(spec, CPU, lambda: 0.0)
    return Training(spec, Feed(spec, 0, CPU, make), parallel.wrap(module), bundle, Precision(spec, CPU), parallel)


@pytest.mark.parametrize(("epoch_samples", "last"), [(None, [4, 4, 4]), (30, [4, 2]), (29, [4, 1])])
def test_accumulation_gives_the_gradient_of_the_whole_step(epoch_samples: int | None, last: list[int]) -> None:
    """Also for a smaller last step, whose micro-batches have different sizes."""
    torch.manual_seed(0)
    module = nn.Linear(3, 9)
    host = Loader(place="host")
    spec = spec_of(batch=4, accumulation=3, epoch_samples=epoch_samples, last_batch="keep", loader=host)
    work = training(spec, module)
    for _ in range(2):
        work.run(work.take())
    before = {name: value.detach().clone() for name, value in module.named_parameters()}
    work.run(work.take())

    seeds = [batch_seed(spec.seed, 0, 6 + number) for number in range(len(last))]
    made = [vectors(size, torch.Generator().manual_seed(seed)) for seed, size in zip(seeds, last, strict=True)]
    inputs, target = torch.cat([x for x, _ in made]), torch.cat([y for _, y in made])
    weight, bias = before["weight"].requires_grad_(), before["bias"].requires_grad_()
    functional.cross_entropy(inputs @ weight.T + bias, target).backward()
    for name, old in (("weight", weight), ("bias", bias)):
        assert old.grad is not None
        torch.testing.assert_close(module.get_parameter(name).detach(), (old - old.grad).detach())
    with torch.no_grad():
        loss = functional.cross_entropy(inputs[-last[-1] :] @ weight.T + bias, target[-last[-1] :])
    assert work.last_loss() == pytest.approx(float(loss), rel=1e-5)


@pytest.mark.full("takes long: a minute of compilation")
def test_compiling_trains_nothing() -> None:
    torch.manual_seed(0)
    module = Noisy()
    work = training(spec_of(compile="default", batch=4), module)
    values = {name: value.clone() for name, value in module.state_dict().items()}
    assert {"norm.running_mean", "norm.num_batches_tracked", "first.weight"} <= values.keys()
    state = torch.get_rng_state()
    work.compile()
    assert all(torch.equal(value, values[name]) for name, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    graphs = int(work.effective()["compiled_graphs"])
    assert graphs >= 1
    for _ in range(3):
        work.run(work.take())
    effective = work.effective()
    assert (effective["compiled"], effective["compiled_graphs"]) == ("true", str(graphs))
    assert int(module.norm.num_batches_tracked or 0) == 3
    assert not torch.equal(module.first.weight, values["first.weight"])


def test_compiling_leaves_the_devices_own_randomness_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[torch.Tensor] = []
    monkeypatch.setattr(torch.xpu, "get_rng_state", lambda: torch.tensor([7]))
    monkeypatch.setattr(torch.xpu, "set_rng_state", kept.append)
    for put_back, state in steps._random_states("xpu"):
        put_back(state)
    assert [state.tolist() for state in kept] == [[7]]


def test_inputs_may_be_named_or_several() -> None:
    def run(inputs: Any) -> list[tuple[int, ...]]:
        shapes: list[tuple[int, ...]] = []

        class Two(nn.Module):
            def forward(self, input1: torch.Tensor, input2: torch.Tensor) -> torch.Tensor:
                shapes.append((*input1.shape, *input2.shape, int(torch.is_inference_mode_enabled())))
                return input1

        spec = spec_of(mode="infer", batch=2, epoch_samples=3, last_batch="keep")
        feed = Feed(spec, 0, CPU, lambda samples, _: (inputs(torch.ones(samples, 1)), None))
        work = Inference(spec, feed, Two(), Precision(spec, CPU))
        for _ in range(2):
            work.run(work.take())
        # A model may have no parameters at all.
        assert work.effective()["parallel"] == "replicas"
        return shapes

    expected = [(2, 1, 2, 1, 1), (1, 1, 1, 1, 1)]
    assert run(lambda x: (x, x)) == run(lambda x: [x, x]) == run(lambda x: {"input2": x, "input1": x}) == expected


@pytest.mark.parametrize("place", ["device", "host"])
def test_inference_in_a_short_format_casts_weights_buffers_and_inputs_once(place: Any) -> None:
    spec = spec_of(mode="infer", precision="bf16", batch=2, loader=Loader(place=place))
    precision = Precision(spec, CPU)
    assert (precision.weights, precision.autocasts) == (torch.bfloat16, False)
    feed = Feed(spec, 0, CPU, images, dtype=precision.weights)
    inputs, _ = feed.take()[1][0]
    assert (inputs["picture"].dtype, inputs["weights"][0].dtype, inputs["weights"][1]) == (
        torch.bfloat16, torch.bfloat16, "plain",
    )  # fmt: skip
    # Labels and tokens stay whole numbers; training and --autocast leave the inputs as they are.
    assert Feed(spec, 0, CPU, vectors, dtype=precision.weights).take()[1][0][1].dtype == torch.int64
    for other in (spec_of(precision="bf16"), spec_of(precision="bf16", mode="infer", autocast=True)):
        found = Precision(other, CPU)
        assert (found.weights, found.autocasts) == (None, True)


SMALL_GPT = {
    "size": "custom", "sequence": 24, "vocabulary": 97, "layers": 2, "heads": 2, "width": 32, "prompt": 8,
    "new_tokens": 8,
}  # fmt: skip


@pytest.mark.parametrize("mode", ["infer", "generate"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_no_weight_is_cast_after_set_up_unless_autocast_is_asked_for(mode: Any, precision: Any) -> None:
    def count(**settings: Any) -> int:
        spec = spec_of(workload="gpt", mode=mode, precision=precision, batch=2, model=SMALL_GPT, **settings)
        work = open_job(spec, NvidiaSmi()).build()[0]
        work.run(work.take())
        with Casts(work._module) as casts:  # type: ignore[union-attr]
            work.run(work.take())
        work.close()
        return casts.count

    assert count() == 0
    # torch keeps no cast weights in inference mode: every token casts them again.
    assert count(autocast=True) >= (8 if mode == "generate" else 1) * 8


def test_all_formats_of_the_weights_are_told() -> None:
    spec = spec_of(mode="infer", batch=1)
    module = nn.Sequential(nn.Linear(3, 1).to(torch.bfloat16), nn.Linear(3, 5))
    work = Inference(spec, Feed(spec, 0, CPU, vectors), module, Precision(spec, CPU))
    assert work.effective()["parameter_dtype"] == "float32, bfloat16"


@pytest.mark.parametrize(
    ("layers", "asked", "told"),
    [
        ([nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3)], True, "true"),
        ([nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3)], False, "false"),
        ([nn.Conv2d(3, 4, 1)], True, None),
        ([nn.Linear(5, 5)], True, None),
    ],
)
def test_channels_last_is_read_from_parameters_that_can_tell(
    layers: list[nn.Module], asked: bool, told: str | None
) -> None:
    module = nn.Sequential(*layers)
    if asked:
        module = module.to(memory_format=torch.channels_last)
    spec = spec_of(mode="infer", batch=1, channels_last=asked)
    work = Inference(spec, Feed(spec, 0, CPU, images), module, Precision(spec, CPU))
    assert work.effective().get("channels_last") == told


# -- optimizers


def made_by(make: Any, **settings: Any) -> tuple[torch.optim.Optimizer, str]:
    module = nn.Linear(3, 9)
    bundle = ModelBundle(
        module, functional.cross_entropy, make(module) if settings.pop("finished", 0) else make, vectors
    )
    return optimizer(spec_of(**settings), bundle, module, sharded=False)


def test_an_optimizer_keeps_its_settings_in_another_implementation() -> None:
    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        weight, bias = parameters
        groups = [{"params": [weight]}, {"params": [bias], "weight_decay": 0.0, "lr": 0.5}]
        return torch.optim.AdamW(groups, lr=0.25, betas=(0.5, 0.75), weight_decay=0.125)

    plain, _ = made_by(make)
    for kernel in ("foreach", "fused"):
        found, note = made_by(make, optimizer_kernel=kernel)
        assert (type(found), note, kernel_of(found)) == (torch.optim.AdamW, "", kernel)
        for group, before in zip(found.param_groups, plain.param_groups, strict=True):
            names = [name for name in before if name not in ("params", "foreach", "fused")]
            assert {name: group[name] for name in names} == {name: before[name] for name in names}
    assert kernel_of(plain) == "for-loop"


def test_an_implementation_that_does_not_exist_is_refused_by_name_and_left_out_of_a_preset() -> None:
    def rprop(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Rprop(parameters)

    with pytest.raises(InputError, match=r"(?s)cannot be fused: Rprop has no such implementation.*valid: default"):
        made_by(rprop, optimizer_kernel="fused")
    found, note = made_by(rprop, preset="tuned")
    assert (kernel_of(found), note) == ("for-loop", "not fused: Rprop has no such implementation")
    finished = {"finished": 1, "make": lambda module: torch.optim.SGD(module.parameters(), lr=1.0)}
    assert made_by(**finished, preset="tuned")[1] == "not fused: the workload returns a finished optimizer"


def test_a_device_without_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: Any, **_settings: Any) -> None:
        raise RuntimeError("`fused=True` requires all the params to be on\n a supported device")

    monkeypatch.setattr(torch.optim.SGD, "step", refuse)
    assert made_by(plain_sgd, preset="tuned")[1] == (
        "not fused: `fused=True` requires all the params to be on a supported device"
    )


# -- settings of a run, read back


@pytest.mark.parametrize(
    ("settings", "effect"),
    [
        ({"precision": "bf16"}, {"matmul_dtype": "bfloat16", "parameter_dtype": "float32", "autocast": "true"}),
        ({"mode": "infer"}, {"matmul_dtype": "float32", "parameter_dtype": "float32", "autocast": "false"}),
        (
            {"precision": "bf16", "mode": "infer"},
            {"matmul_dtype": "bfloat16", "parameter_dtype": "bfloat16", "autocast": "false"},
        ),
        (
            {"precision": "bf16", "mode": "infer", "autocast": True},
            {"matmul_dtype": "bfloat16", "parameter_dtype": "float32", "autocast": "true"},
        ),
        ({"precision": "fp16"}, {"matmul_dtype": "float16", "loss_scale": "65536"}),
        ({"precision": "fp16", "mode": "infer"}, {"matmul_dtype": "float16", "parallel": "replicas"}),
        ({"deterministic": True, "seed": 11}, {"deterministic": "true", "seed": "11", "cudnn_benchmark": "false"}),
        ({"threads": 1}, {"threads": "1", "matmul_dtype": "float32", "float32_matmul_precision": "highest"}),
        (
            {"loader": Loader(place="host", workers=2, prefetch=3), "accumulation": 2},
            {"loader.workers": "2", "loader.prefetch": "3", "data": "synthetic, on the host", "compiled": "false"},
        ),
        ({"parallel": "fsdp2"}, {"parallel": "fully_shard", "devices": "1", "backend": "gloo"}),
        ({"parallel": "independent"}, {"parallel": "none", "devices": "1", "backend": "none"}),
        (
            {},
            {
                "preset": "plain",
                "cudnn_benchmark": "false",
                "optimizer_kernel": "for-loop",
                "optimizer_kernel_note": None,
                "batches_in_turn": "4",
                "attention": None,
                "numa_bound": "no (a run on the CPU is bound only on request)",
            },
        ),
        (
            {"preset": "tuned"},
            {"preset": "tuned", "cudnn_benchmark": "true", "optimizer_kernel": "fused", "optimizer_kernel_note": None},
        ),
        ({"preset": "tuned", "precision": "fp16"}, {"optimizer_kernel": "fused", "loss_scale": "65536"}),
        # A preset falls back where torch has no such kernel.
        ({"preset": "tuned", "parallel": "fsdp2"}, {"optimizer_kernel": "for-loop", "parallel": "fully_shard"}),
        ({"preset": "tuned", "deterministic": True}, {"cudnn_benchmark": "false", "optimizer_kernel": "fused"}),
        ({"preset": "tuned", "optimizer_kernel": "default"}, {"optimizer_kernel": "for-loop"}),
        ({"optimizer_kernel": "foreach", "cudnn_benchmark": True}, {"optimizer_kernel": "foreach"}),
        ({"workload": "gpt", "batch": 2, "model": SMALL_GPT}, {"attention": "flash", "optimizer": "AdamW"}),
        ({"workload": "gpt", "batch": 2, "model": SMALL_GPT, "attention": "math"}, {"attention": "math"}),
        ({"workload": "gpt", "batch": 2, "model": SMALL_GPT, "mode": "generate"}, {"attention": "flash"}),
    ],
)
def test_settings_are_read_back(
    settings: dict[str, Any], effect: dict[str, str], simulate: Callable[[RunSpec], RunRecord]
) -> None:
    record = simulate(spec_of(crosscheck_steps=4, **settings))
    assert record.status.code == "completed", record.status
    assert record.settings is not None
    assert {name: record.settings.values.get(name) for name in effect} == effect
    assert "SY101" not in [finding.code for finding in record.findings]
    assert record.steps_seen == 20
    assert record.quantities["exposed_comm_share"].value == (None if settings.get("parallel") == "fsdp2" else 0.0)
    if settings.get("mode", "train") == "train":
        assert record.model is not None
        assert 0 < float(record.model.last_loss or "nan") < 10


def test_threads_that_nobody_set_are_a_share_of_the_cores(
    simulate: Callable[[RunSpec], RunRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(threads.hostinfo, "cores", lambda cpus, _: len(cpus))
    try:
        for word, expected in (("/1", 4), ("/2", 2), ("", 3)):
            torch.set_num_threads(3)
            monkeypatch.setenv(threads.SHARE, word)
            record = simulate(spec_of(crosscheck_steps=0))
            assert record.settings is not None
            assert record.settings.values["threads"] == str(expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"precision": "tf32"},
            "tf32 needs an accelerator with matrix units; .* next: use --precision fp32 or bf16",
        ),
        (
            {"precision": "fp16", "parallel": "fsdp2"},
            "fp16 with a GradScaler does not support fsdp2; next: use --precision bf16",
        ),
        ({"channels_last": True, "parallel": "fsdp2"}, "channels_last memory format; next: leave --channels-last out"),
        ({"devices": 2}, "the run needs 2 processes, one for each device; 1 started"),
        (
            {"model": {"wide": 3, "deep": 1}},
            "model.wide: unknown option; valid: width, depth; model.deep: unknown option",
        ),
        ({"model": {"width": 0}}, "width: is 0; valid: at least 1"),
        ({"attention": "flash"}, "tiny does not call scaled_dot_product_attention"),
        (
            {"workload": "gpt", "model": SMALL_GPT, "attention": "efficient"},
            "has no efficient attention for this model in float32 on the device cpu",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_before_the_ranks_meet(
    settings: dict[str, Any], words: str, simulate: Callable[[RunSpec], RunRecord]
) -> None:
    status = simulate(spec_of(**settings)).status
    assert status.code == "refused"
    assert re.search(words, status.reason), status.reason
    assert not dist.is_initialized()


def test_a_torch_that_cannot_cast_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, torch before 2.3 supports only bf16, and has GradScaler for CUDA only."""

    def refuse(*_args: Any, **_settings: Any) -> Any:
        raise RuntimeError("Currently, AutocastCPU only support Bfloat16")

    monkeypatch.setattr(torch, "autocast", refuse)
    with pytest.raises(
        InputError, match=r"(?s)does not support autocast to fp16 on the device cpu.*use --precision bf16"
    ):
        Precision(spec_of(precision="fp16", mode="infer", autocast=True), CPU)
    monkeypatch.setattr(torch.Tensor, "__matmul__", refuse)
    with pytest.raises(InputError, match="does not support matrix products in fp16 on the device cpu"):
        Precision(spec_of(precision="fp16", mode="infer"), CPU)
    monkeypatch.delattr(torch.amp, "GradScaler")
    with pytest.raises(InputError, match=r"(?s)has GradScaler for CUDA only.*use --precision bf16"):
        Precision(spec_of(precision="fp16"), CPU)


def test_an_optimizer_that_holds_what_sharding_replaces(
    simulate: Callable[[RunSpec], RunRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(plugins.BUILTIN["workload"], "tiny", "test_torch_engine:with_optimizer")
    assert simulate(spec_of()).status.code == "completed"
    status = simulate(spec_of(parallel="fsdp2")).status
    assert status.code == "refused"
    assert "return a function that creates the optimizer" in status.reason


def with_optimizer() -> tuple[Any, ...]:
    module = nn.Linear(3, 9)
    return module, functional.cross_entropy, torch.optim.SGD(module.parameters(), lr=0.1), vectors


# -- more than one rank


@pytest.fixture
def team_of_one() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("preset", "views"), [("plain", "false"), ("tuned", "true")])
@pytest.mark.usefixtures("team_of_one")
def test_watching_communication_changes_no_gradient_and_keeps_no_second_dress(preset: str, views: str) -> None:
    marks: list[str] = []
    spec = spec_of(devices=2, preset=preset)
    parallel = Parallel(spec, CPU, lambda: marks.append("ready") or len(marks))  # type: ignore[func-returns-value]
    module = nn.Linear(3, 9)
    bundle = ModelBundle(module, functional.cross_entropy, plain_sgd, vectors)
    wrapped = [parallel.wrap(module)]
    dress = weakref.ref(wrapped[0])
    # In most releases of torch there is such a reference cycle.
    wrapped[0].__dict__["ring"] = wrapped[0]
    feed = Feed(spec, 0, CPU, vectors)
    work = Training(spec, feed, wrapped.pop(), bundle, Precision(spec, CPU), parallel)
    assert work.effective()["parallel"] == "DistributedDataParallel"
    assert work.effective()["gradient_as_bucket_view"] == views
    assert work.run(work.take()) is None
    gc.disable()
    try:
        work.watch_communication()
        assert dress() is None
    finally:
        gc.enable()
    assert work.run(work.take()) == (1, 2)
    weight, bias = (parameter.detach().clone().requires_grad_() for parameter in module.parameters())
    assert work.run(work.take()) == (3, 4)
    inputs, target = vectors(spec.batch, torch.Generator().manual_seed(batch_seed(spec.seed, 0, 2)))
    functional.cross_entropy(inputs @ weight.T + bias, target).backward()
    assert weight.grad is not None
    torch.testing.assert_close(module.weight.detach(), weight.detach() - weight.grad)


RunRecordJson = dict[str, Any]


@pytest.fixture
def results(tmp_path: Path) -> str:
    return str(tmp_path / "results")


def run_json(
    capfd: pytest.CaptureFixture[str], results: str, *words: str, workload: str = "tiny", devices: int = 2
) -> RunRecordJson:
    short = ["--device", "cpu", "--devices", str(devices), "--min-steps", "20", "--max-steps", "20"]
    short += ["--min-seconds", "0"]
    code = main(["run", workload, *words, *short, "--results", results, "--json"])
    out = capfd.readouterr()
    assert code == 0, out.out[-3000:] + out.err
    found: RunRecordJson = json.loads(out.out)["runs"][0]
    assert found["status"]["code"] == "completed"
    assert (found["ranks_seen"], found["steps_seen"]) == (devices, 20)
    assert (found["settings"]["values"]["devices"], found["settings"]["values"]["backend"]) == (str(devices), "gloo")
    assert not {"SY101", "SY601"} & {finding["code"] for finding in found["findings"]}
    quantities = found["quantities"]
    assert quantities["throughput"]["value"] == pytest.approx(devices * quantities["throughput_per_device"]["value"])
    assert found["memory"]["peak_bytes"] > 1e7
    return found


def shares(record: RunRecordJson) -> list[dict[str, Any]]:
    return [record["quantities"][f"{name}_share"] for name in ("input_wait", "compute", "exposed_comm")]


def test_two_ranks_train_together(
    capfd: pytest.CaptureFixture[str], results: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = run_json(capfd, results, "--accumulation", "2", "--data", "host", "--precision", "bf16")
    assert record["settings"]["values"]["parallel"] == "DistributedDataParallel"
    assert record["settings"]["values"]["matmul_dtype"] == "bfloat16"
    monkeypatch.setenv(threads.SHARE, "/2")
    assert record["settings"]["values"]["threads"] == str(threads.share())
    assert [share["window"] == "crosscheck" for share in shares(record)] == [False, True, True]
    assert sum(share["value"] for share in shares(record)) == pytest.approx(1)
    assert 0 < shares(record)[2]["value"] < 1
    assert record["crosscheck"]["exposed_comm_s"] > 0
    assert {file["name"] for file in record["raw"]} >= {"events-00001.jsonl", "steps-00001.bin", "worker.log"}


FEW_LAYERS = {"size": "custom", "sequence": 16, "vocabulary": 101, "layers": 5, "heads": 2, "width": 16}


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.full("more ranks"))])
@pytest.mark.parametrize("devices", [2, pytest.param(4, marks=pytest.mark.full("more ranks"))])
def test_a_pipeline_trains_the_whole_model(
    devices: int,
    precision: Any,
    capfd: pytest.CaptureFixture[str],
    results: str,
    simulate: Callable[[RunSpec], RunRecord],
) -> None:
    """Its loss after 20 steps is that of one rank with the same seed, also of the weights that two stages share."""
    words = [word for key, value in FEW_LAYERS.items() for word in ("--model", f"{key}={value}")]
    words += ["--parallel", "pipeline", "--batch", "2", "--accumulation", "6", "--learning-rate", "0.01"]
    record = run_json(capfd, results, *words, "--precision", precision, workload="gpt", devices=devices)
    values = record["settings"]["values"]
    assert (values["parallel"], values["stages"], values["parameter_dtype"]) == ("pipeline", str(devices), "float32")
    step_s = record["quantities"]["step_time_mean"]["value"]
    assert record["quantities"]["throughput"]["value"] == pytest.approx(2 * 6 / step_s)
    assert shares(record)[2]["value"] is None
    whole = simulate(
        spec_of(
            workload="gpt",
            model=FEW_LAYERS,
            batch=2,
            accumulation=6,
            learning_rate=0.01,
            precision=precision,
            seed=record["spec"]["seed"],
            threads=1,
            crosscheck_steps=0,
        )
    )
    assert whole.model is not None
    assert whole.model.parameters == record["model"]["parameters"]
    close = 1e-5 if precision == "fp32" else 1e-2
    assert float(record["model"]["last_loss"]) == pytest.approx(float(whole.model.last_loss or "nan"), abs=close)


def test_the_stages_of_a_pipeline_are_parts_of_the_model() -> None:
    bundle = gpt.build(**{**FEW_LAYERS, "layers": 7})
    assert bundle.stages is not None
    stages = bundle.stages(3)
    assert [len(stage.layers) for stage in stages] == [3, 2, 2]
    parts = [list(stage.parameters()) for stage in stages]
    assert {id(own) for part in parts for own in part} == {id(own) for own in bundle.module.parameters()}
    # The embeddings are also the head.
    assert sum(map(len, parts)) == len(list(bundle.module.parameters())) + 1
    tokens = bundle.batch(2, torch.Generator())[0]
    torch.testing.assert_close(stages[2](stages[1](stages[0](tokens))), bundle.module(tokens), rtol=0, atol=0)
    with pytest.raises(InputError, match="7 layers cannot be divided over a pipeline of 8 devices"):
        bundle.stages(8)


def test_a_pipeline_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(devices=2, parallel="pipeline", accumulation=2)
    with pytest.raises(InputError, match="the workload tiny cannot be divided"):
        stage_of(ModelBundle(nn.Linear(3, 9), functional.cross_entropy, torch.optim.SGD, vectors), spec, 0)
    monkeypatch.setitem(sys.modules, "torch.distributed.pipelining", None)
    with pytest.raises(InputError, match=r"torch 2\.7 or newer"):
        Parallel(spec, CPU, lambda: None)


@pytest.mark.parametrize("place", ["device", "host"])
def test_all_stages_of_a_pipeline_take_the_same_samples(place: Any) -> None:
    settings = {"devices": 3, "parallel": "pipeline", "batch": 4, "accumulation": 4, "last_batch": "pad"}
    spec = spec_of(epoch_samples=37, loader=Loader(place=place), **settings)
    ranks = [taken(spec, 4, rank=rank) for rank in range(3)]
    assert same(flat(ranks[0]), flat(ranks[1]))
    assert same(flat(ranks[0]), flat(ranks[2]))
    # Each counts its share of the real ones; the last step of an epoch has 5.
    assert [[batch.samples for batch, _ in rank] for rank in ranks] == [[6, 6, 2, 6], [5, 5, 2, 5], [5, 5, 1, 5]]
    assert {batch.computed for rank in ranks for batch, _ in rank} == {16}


@pytest.mark.full("takes long: 12 s, two more ranks")
def test_two_ranks_share_the_parameters(capfd: pytest.CaptureFixture[str], results: str) -> None:
    record = run_json(capfd, results, "--parallel", "fsdp2", "--precision", "bf16", "--accumulation", "2")
    values = record["settings"]["values"]
    assert (values["parallel"], values["matmul_dtype"]) == ("fully_shard", "bfloat16")
    assert shares(record)[2]["value"] is None
    assert "computation and communication cannot be separated" in shares(record)[2]["reason"]
    # Counted before it was sharded.
    assert record["model"]["parameters"] == 8970


# Writes down the parameters after 15 steps, and which collectives the steps used.
WITNESS = """
import json
import os
from pathlib import Path
import torch

steps, first, recorder = 0, None, torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])

def batch(samples, generator):
    return torch.randn(samples, 4, generator=generator), torch.randn(samples, 1, generator=generator)

def build(folder: str):
    module = torch.nn.Linear(4, 1)

    def loss(output, target):
        global steps, first
        steps += 1
        if steps == 1:
            first = module.weight.tolist()
            recorder.start()
        if steps == 15:
            recorder.stop()
            used = sorted({event.name for event in recorder.events() if "reduce" in event.name.lower()})
            told = {"first": first, "last": module.weight.tolist(), "used": used}
            Path(folder, os.environ["RANK"] + ".json").write_text(json.dumps(told))
        return torch.nn.functional.mse_loss(output, target)

    return module, loss, lambda parameters: torch.optim.SGD(parameters, lr=0.1), batch
"""


@pytest.mark.parametrize(
    "parallel",
    ["ddp", pytest.param("independent", marks=pytest.mark.full("takes long: 9 s, two more ranks"))],
)
def test_two_ranks_train_each_its_own_model(
    parallel: str, capfd: pytest.CaptureFixture[str], results: str, tmp_path: Path
) -> None:
    (tmp_path / "witness.py").write_text(WITNESS)
    words = ["--model", f"folder={tmp_path}", "--parallel", parallel, "--data", "host"]
    record = run_json(capfd, results, *words, workload=f"{tmp_path / 'witness.py'}:build")
    one, two = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    apart = parallel == "independent"
    assert record["settings"]["values"]["parallel"] == ("independent" if apart else "DistributedDataParallel")
    assert (one["first"] != two["first"], one["last"] != two["last"]) == (apart, apart)
    assert one["first"] != one["last"]
    # With DDP the same witness sees the exchange.
    assert ("gloo:all_reduce" not in one["used"], "gloo:all_reduce" not in two["used"]) == (apart, apart), one
    assert (shares(record)[2]["value"] == 0) == apart


@pytest.mark.full("takes long: 9 s, two more ranks")
def test_two_ranks_infer_each_for_itself(capfd: pytest.CaptureFixture[str], results: str) -> None:
    words = ["--mode", "infer", "--epoch-samples", "70", "--last-batch", "keep"]
    record = run_json(capfd, results, *words, "--batch", "16")
    assert record["settings"]["values"]["parallel"] == "replicas"
    assert shares(record)[2]["value"] == 0
    assert shares(record)[2]["window"] != "crosscheck"
    assert record["model"]["last_loss"] is None
