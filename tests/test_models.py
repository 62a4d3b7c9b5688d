"""The workloads' models: their sizes, a step of each, their data, and what they refuse."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest
import torch

from steelyard.errors import InputError
from steelyard.worker.workloads import gpt, tiny, vision, wideresnet

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.worker.workloads.recipe import Recipe

SMALL_GPT = partial(gpt.build, "custom", sequence=16, vocabulary=101, layers=2, heads=4, width=32)
SMALL: dict[str, Callable[[], Recipe]] = {
    "tiny": tiny.build,
    "gpt": SMALL_GPT,
    "wideresnet": wideresnet.build,
    "resnet50": partial(vision.resnet50, classes=10, resolution=64),
}


def parameters(recipe: Recipe) -> int:
    return sum(parameter.numel() for parameter in recipe.module.parameters())


def on_meta(make: Callable[[], Recipe]) -> Recipe:
    with torch.device("meta"):
        return make()


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", SMALL)
def test_a_step_of_training_and_of_inference(name: str) -> None:
    torch.manual_seed(0)
    recipe = SMALL[name]()
    inputs, target = recipe.batch(2, seeded(1))
    assert callable(recipe.optimizer)
    optimizer = recipe.optimizer(recipe.module.parameters())
    first = next(iter(recipe.module.parameters())).detach().clone()
    loss = recipe.loss(recipe.module.train()(inputs), target)
    loss.backward()
    assert all(parameter.grad is not None for parameter in recipe.module.parameters())
    optimizer.step()
    assert loss.isfinite()
    assert not torch.equal(first, next(iter(recipe.module.parameters())))
    with torch.no_grad():
        scores = recipe.module.eval()(inputs)
    assert scores.isfinite().all()
    assert recipe.loss(scores, target).isfinite()


@pytest.mark.parametrize("name", SMALL)
def test_the_same_seed_gives_the_same_batch(name: str) -> None:
    recipe = on_meta(SMALL[name])
    inputs, target = recipe.batch(3, seeded(5))
    again, same = recipe.batch(3, seeded(5))
    other, _ = recipe.batch(3, seeded(6))
    assert len(inputs) == len(target) == 3
    assert torch.equal(inputs, again)
    assert torch.equal(target, same)
    assert not torch.equal(inputs, other)


def test_a_batch_is_on_the_cpu_whatever_the_default_device() -> None:
    for make in SMALL.values():
        recipe = on_meta(make)
        with torch.device("meta"):
            inputs, target = recipe.batch(1, seeded(0))
        assert inputs.device.type == target.device.type == "cpu"


def test_wideresnet_has_36_5_million_parameters() -> None:
    assert parameters(on_meta(wideresnet.build)) == 36_536_884


def test_resnet50_has_the_published_parameters() -> None:
    assert parameters(on_meta(vision.resnet50)) == 25_557_032


@pytest.mark.parametrize("size", gpt.SIZES)
def test_every_gpt_builds_on_meta_with_about_as_many_parameters_as_its_name_says(size: str) -> None:
    named = float(size[:-1]) * {"M": 1e6, "B": 1e9}[size[-1]]
    recipe = on_meta(partial(gpt.build, size))
    assert all(parameter.is_meta for parameter in recipe.module.parameters())
    assert parameters(recipe) == pytest.approx(named, rel={"117M": 0.07, "800M": 0.15}.get(size, 0.03))


def test_gpt_117m_is_gpt2_small() -> None:
    assert parameters(on_meta(gpt.build)) == 124_439_808


def test_gpt_sees_no_later_token() -> None:
    torch.manual_seed(0)
    recipe = SMALL_GPT()
    tokens, target = recipe.batch(1, seeded(0))
    assert torch.equal(tokens[:, 1:], target[:, :-1])
    changed = tokens.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % 101
    with torch.no_grad():
        before, after = recipe.module(tokens), recipe.module(changed)
    assert torch.allclose(before[:, :9], after[:, :9], atol=1e-6)
    assert not torch.allclose(before[:, 9:], after[:, 9:], atol=1e-6)


def test_a_gpt_size_may_be_changed() -> None:
    wider = on_meta(partial(gpt.build, "10M", layers=1))
    assert len(wider.module.get_submodule("layers")._modules) == 1


def test_what_cannot_be_built_is_refused_with_what_is_valid() -> None:
    with pytest.raises(InputError, match=r"no size is called '3B'.*10M, 25M, 117M.*175B, custom"):
        gpt.build("3B")
    with pytest.raises(InputError, match="heads: is not given"):
        gpt.build("custom", layers=2, width=32)
    with pytest.raises(InputError, match="width: is 32; valid: a multiple of the 5 heads"):
        gpt.build("custom", layers=2, heads=5, width=32)
    with pytest.raises(InputError, match=r"(?s)sequence: is 0.*vocabulary: is -1"):
        gpt.build("10M", sequence=0, vocabulary=-1)
    with pytest.raises(InputError, match=r"(?s)width: is 0.*depth: is 0"):
        tiny.build(0, 0)
    with pytest.raises(InputError, match="classes: is 0"):
        wideresnet.build(0)
    with pytest.raises(InputError, match="resolution: is 0"):
        vision.resnet50(resolution=0)


def test_without_torchvision_the_error_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(InputError, match="next: pip install torchvision"):
        vision.resnet50()
