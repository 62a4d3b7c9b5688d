"""Counting operations: exact where a formula gives the truth, unknown with a reason where it fails."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from steelyard.worker.engine.flops import count
from steelyard.worker.workloads import gpt, tiny, vision, wideresnet
from steelyard.worker.workloads.bundle import ModelBundle

if TYPE_CHECKING:
    from collections.abc import Callable


def of_module(module: Callable[[], nn.Module], inputs: Callable[[int], Any]) -> Callable[[], ModelBundle]:
    def make() -> ModelBundle:
        optimizer = partial(torch.optim.SGD, lr=0.1)
        return ModelBundle(
            module(), lambda output, _: output.sum(), optimizer, lambda n, _: (inputs(n), torch.zeros(n))
        )

    return make


def test_tiny_by_hand() -> None:
    forward = 2 * (64 * 64 + 64 * 64 + 64 * 10)
    facts = count(tiny.build, train=False)
    assert facts.flops_per_sample == forward
    assert facts.parameters == 2 * 65 * 64 + 65 * 10
    assert "meta" in facts.method
    # The first layer's inputs need no gradient.
    assert count(tiny.build, train=True).flops_per_sample == 3 * forward - 2 * 64 * 64


@pytest.mark.parametrize(("size", "sequence"), [("10M", 64), ("10M", 1024), ("117M", 1024), ("800M", 2048)])
def test_gpt_is_exact_and_training_is_three_times_as_much(size: str, sequence: int) -> None:
    shape = gpt.SIZES[size]
    closed = gpt.closed_flops(shape.layers, shape.width, sequence, 50257)
    make = partial(gpt.build, size, sequence)
    assert count(make, train=False).flops_per_sample == closed
    assert count(make, train=True).flops_per_sample == 3 * closed


def test_closed_flops_by_hand() -> None:
    # One layer, width 2, 3 tokens, 5 words: 3 x (24 x 4 + 4 x 2 x 3 + 2 x 2 x 5).
    assert gpt.closed_flops(1, 2, 3, 5) == 3 * (96 + 24 + 20)


def test_resnet50_is_near_the_published_count() -> None:
    forward = count(vision.resnet50, train=False).flops_per_sample
    assert forward == pytest.approx(2 * 4.089e9, rel=0.001)
    trained = count(vision.resnet50, train=True).flops_per_sample
    assert trained == 3 * forward - 2 * 112**2 * 64 * 3 * 49


def test_wideresnet() -> None:
    assert count(wideresnet.build, train=False).flops_per_sample == pytest.approx(10.487e9, rel=0.001)


def test_inputs_may_be_named_or_several() -> None:
    named = of_module(lambda: nn.Bilinear(4, 4, 2), lambda n: {"input1": torch.ones(n, 4), "input2": torch.ones(n, 4)})
    several = of_module(lambda: nn.Bilinear(4, 4, 2), lambda n: (torch.ones(n, 4), torch.ones(n, 4)))
    assert count(named, train=False) == count(several, train=False)
    assert count(named, train=False).parameters == 2 * 4 * 4 + 2


class ReadsValues(nn.Module):
    """Needs a value, which a meta tensor does not have; in its forward pass or while it is built."""

    def __init__(self, *, early: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.early = early
        if early:
            self.linear.weight.sum().item()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if not self.early:
            inputs.sum().item()
        return functional.relu(self.linear(inputs))


def test_a_model_that_reads_values_is_unknown_with_a_reason() -> None:
    facts = count(of_module(lambda: ReadsValues(early=False), lambda n: torch.ones(n, 4)), train=True)
    assert facts.flops_per_sample is None
    assert facts.parameters == 10
    assert facts.method.startswith("unknown: ")
    assert "meta" in facts.method


def test_a_model_that_reads_values_while_it_is_built_is_counted_all_the_same() -> None:
    facts = count(of_module(lambda: ReadsValues(early=True), lambda n: torch.ones(n, 4)), train=False)
    assert (facts.parameters, facts.flops_per_sample) == (10, 2 * 4 * 2)


def test_a_model_that_cannot_be_built_is_unknown_with_a_bounded_reason() -> None:
    def make() -> ModelBundle:
        raise ValueError("no\n" * 10_000)

    facts = count(make, train=True)
    assert facts.flops_per_sample is None
    assert facts.method.startswith("unknown: ValueError: no no")
    assert len(facts.method) < 400


def test_no_operator_known_is_unknown_and_not_zero() -> None:
    facts = count(of_module(nn.ReLU, lambda n: torch.ones(n, 4)), train=False)
    assert facts.flops_per_sample is None


def test_a_torch_without_the_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.flop_counter", None)
    facts = count(tiny.build, train=False)
    assert facts.flops_per_sample is None
    assert "flop_counter" in facts.method
    assert facts.parameters == 8970


def test_counting_leaves_random_numbers_and_settings_as_they_were() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    count(of_module(lambda: ReadsValues(early=True), lambda n: torch.rand(n, 4)), train=False)
    assert torch.equal(torch.rand(4), expected)
    assert torch.is_grad_enabled()
    assert torch.empty(1).device.type == "cpu"
