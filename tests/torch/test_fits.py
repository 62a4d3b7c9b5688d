"""Models that are too large are refused with the arithmetic before a process group or a model exists."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from conftest import make_spec
from steelyard import plugins
from steelyard.contracts.spec import Loader
from steelyard.errors import InputError
from steelyard.worker.engine import fits
from steelyard.worker.workloads import gpt

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec

pytestmark = pytest.mark.usefixtures("torch_as_it_was")


def device(memory: float | None, kind: str = "cuda") -> Any:
    return SimpleNamespace(device=torch.device(kind), memory_bytes=lambda: memory, name=lambda: "H100")


def refusal(spec: RunSpec, room: float, where: Any, ranks: int, monkeypatch: pytest.MonkeyPatch) -> str | None:
    monkeypatch.setattr(fits, "host_room", lambda: (room * fits.GIB, "free on this node:"))
    try:
        fits.refuse_too_large(spec, where, ranks)
    except InputError as error:
        return str(error)
    return None


def large(size: str, **settings: Any) -> RunSpec:
    return make_spec(workload="gpt", model={"size": size}, device="cuda", **settings)


def test_the_largest_model_is_refused_before_anything_is_started(
    simulate: Callable[[RunSpec], RunRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **_named: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(fits, "host_room", lambda: (64 * fits.GIB, "free on this node:"))
    monkeypatch.setattr(dist, "init_process_group", never)
    monkeypatch.setattr("steelyard.worker.engine.torch_job.TorchJob.build", never)
    status = simulate(make_spec(workload="gpt", model={"size": "175B"}, device="cpu")).status
    assert status.code == "refused"
    assert "gpt with 174.6 billion parameters does not fit" in status.reason
    # 4 bytes each for weights and gradients, 8 for AdamW.
    sums = "needs 2,602 GiB (650 GiB weights + 650 GiB gradients + 1,301 GiB state of AdamW)"
    assert sums in status.reason
    assert "--model size=" in status.reason


def test_memory_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    h100 = device(80 * fits.GIB)
    words = refusal(large("6.7B"), 1000, h100, 1, monkeypatch)
    assert words is not None
    sums = "25 GiB weights + 25 GiB gradients + 50 GiB state of AdamW"
    assert f"device memory: needs 99 GiB ({sums}); H100 has 80 GiB" in words
    assert "host memory" not in words
    assert words.endswith("next: --parallel fsdp2 on more than 2 devices, or "
                          "--model size=1.3B or smaller; activations come on top")  # fmt: skip
    assert refusal(large("6.7B", parallel="fsdp2", devices=2), 1000, h100, 2, monkeypatch) is None
    assert refusal(large("6.7B", mode="infer"), 1000, h100, 1, monkeypatch) is None
    words = refusal(large("30B", mode="infer"), 1000, h100, 1, monkeypatch)
    assert words is not None
    assert "needs 112 GiB (weights); H100 has 80 GiB" in words
    assert refusal(large("30B", mode="infer", precision="bf16"), 1000, h100, 1, monkeypatch) is None
    assert refusal(large("6.7B"), 1000, device(None), 1, monkeypatch) is None


def test_every_rank_builds_the_whole_model_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = large("66B", parallel="fsdp2", devices=64)
    words = refusal(spec, 960, device(80 * fits.GIB), 8, monkeypatch)
    assert words is not None
    assert "host memory: needs 1,958 GiB (8 ranks x 245 GiB weights in fp32); free on this node: 960 GiB" in words
    assert "device memory" not in words
    assert "at most 3 devices per node, or --model size=13B or smaller; activations come on top" in words
    assert refusal(spec, 960, device(80 * fits.GIB), 3, monkeypatch) is None


def test_small_and_unknown_models_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting takes seconds, which the first step would wait for."""

    def never(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(fits, "_counted", never)
    for spec in (
        make_spec(workload="tiny"),
        make_spec(workload="gpt"),
        large("800M"),
        make_spec(workload="gpt", model={"size": "custom", "layers": 24, "width": 1024, "heads": 16}),
        make_spec(workload="gpt", model={"size": "175B"}, mode="load", loader=Loader(place="host")),
    ):
        assert refusal(spec, 0.0, device(0.0), 1, monkeypatch) is None
    shape = {"size": "custom", "layers": 96, "width": 12288, "heads": 96}
    with pytest.raises(AssertionError):
        refusal(make_spec(workload="gpt", model=shape), 0.0, device(0.0), 1, monkeypatch)


def test_options_that_cannot_be_built_are_for_others_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec(workload="gpt", model={"size": "175B", "colour": "red"})
    assert refusal(spec, 0.0, device(0.0), 1, monkeypatch) is None


def test_the_names_of_sizes_say_what_they_are() -> None:
    build = plugins.load("workload", "gpt")
    for size, shape in gpt.SIZES.items():
        assert fits._roughly(build, {"size": size}) == fits.named_parameters(size) > 0
        if shape.width > 4096:
            counted = 12 * shape.layers * shape.width**2
            assert fits.named_parameters(size) == pytest.approx(counted, rel=0.05)
    assert fits.named_parameters("custom") == 0
