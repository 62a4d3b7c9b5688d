"""Rotary positions, recomputation and dropout of the GPT, each against a direct computation."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from steelyard.errors import InputError
from steelyard.worker.engine.flops import count
from steelyard.worker.engine.footprint import footprint
from steelyard.worker.workloads import gpt

SMALL: dict[str, Any] = {"size": "custom", "sequence": 16, "vocabulary": 101, "layers": 2, "heads": 2, "width": 32}


def test_rotary_positions_are_rotations_of_complex_numbers() -> None:
    """The two halves of a head as real and imaginary parts, multiplied by exp(i m theta)."""
    torch.manual_seed(0)
    heads = torch.randn(3, 2, 7, 8, dtype=torch.float64)
    positions = torch.tensor([0, 1, 2, 5, 9, 100, 2047])
    found = gpt.turned(heads, gpt.turn_of(positions, 8))
    theta = torch.tensor([10_000.0 ** (-2 * pair / 8) for pair in range(4)], dtype=torch.float64)
    angles = positions[:, None].double() * theta
    expected = torch.complex(heads[..., :4], heads[..., 4:]) * torch.polar(torch.ones_like(angles), angles)
    assert torch.allclose(found, torch.cat((expected.real, expected.imag), dim=-1), atol=2e-4)
    # The first position is not turned, and no length changes.
    assert torch.equal(found[:, :, 0], heads[:, :, 0])
    assert torch.allclose(found.norm(dim=-1), heads.norm(dim=-1), atol=1e-5)


def test_scores_of_rotary_positions_depend_only_on_the_distance() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, 16)

    def score(at: int, seen: int) -> float:
        turned = [
            gpt.turned(vector, gpt.turn_of(torch.tensor([place]), 16)) for vector, place in ((query, at), (key, seen))
        ]
        return float((turned[0] * turned[1]).sum())

    for distance in (0, 1, 7):
        found = [score(start + distance, start) for start in (0, 3, 20, 100)]
        assert found == pytest.approx([found[0]] * 4, abs=1e-4)
    assert score(7, 0) != pytest.approx(score(0, 0), abs=1e-2)


def test_rotary_positions_tell_two_orders_of_tokens_apart_and_have_no_parameters() -> None:
    torch.manual_seed(0)
    learned, rotary = (gpt.build(**SMALL, positions=positions).module for positions in gpt.POSITIONS)
    assert sum(p.numel() for p in learned.parameters()) - sum(p.numel() for p in rotary.parameters()) == 16 * 32
    rotary.eval()
    tokens = torch.tensor([[5, 6, 7, 8], [6, 5, 7, 8]])
    first, second = rotary(tokens)[:, -1]
    assert not torch.allclose(first, second, atol=1e-5)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("positions", gpt.POSITIONS)
def test_recomputation_changes_no_loss_and_no_gradient(positions: str, dropout: float, precision: torch.dtype) -> None:
    results = []
    for recompute in gpt.RECOMPUTE:
        torch.manual_seed(0)
        bundle = gpt.build(**SMALL, positions=positions, dropout=dropout, recompute=recompute)
        inputs, target = bundle.batch(3, torch.Generator().manual_seed(1))
        torch.manual_seed(2)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == torch.bfloat16):
            loss = bundle.loss(bundle.module(inputs), target)
        loss.backward()
        results.append([loss.detach(), *(parameter.grad for parameter in bundle.module.parameters())])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_recomputation_saves_memory_and_counts_no_further_operations() -> None:
    longer = {**SMALL, "sequence": 64}
    made = [partial(gpt.build, **longer, recompute=recompute) for recompute in gpt.RECOMPUTE]
    counted = [count(make, train=True) for make in made]
    closed = 3 * gpt.closed_flops(2, 32, 64, 101)
    assert [facts.flops_per_sample for facts in counted] == [closed] * 3
    kept = [footprint(make).activation_bytes for make in made]
    assert None not in kept
    assert kept == sorted(kept, reverse=True)  # type: ignore[type-var]
    assert len(set(kept)) == 3


def test_what_a_user_recomputes_is_counted_once_with_the_functions_own_options() -> None:
    class Twice(torch.nn.Linear):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            twice: torch.Tensor = torch.utils.checkpoint.checkpoint(
                self.scaled, given, scale=2.0, use_reentrant=False, preserve_rng_state=False
            )
            return twice

        def scaled(self, given: torch.Tensor, *, scale: float) -> torch.Tensor:
            return super().forward(given) * scale

    def make() -> Any:
        bundle = gpt.build(**SMALL)
        optimizer = partial(torch.optim.SGD, lr=0.1)
        batch = partial(lambda n, _: (torch.ones(n, 4), torch.ones(n, 2)))
        return type(bundle)(Twice(4, 2), torch.nn.functional.mse_loss, optimizer, batch)

    # Forward, and the gradient of the weights.
    assert count(make, train=True).flops_per_sample == 2 * 2 * 4 * 2


def test_dropout_is_only_in_training() -> None:
    bundle = gpt.build(**SMALL, dropout=0.5)
    tokens = torch.zeros(1, 8, dtype=torch.long)
    assert not torch.equal(bundle.module(tokens), bundle.module(tokens))
    bundle.module.eval()
    assert torch.equal(bundle.module(tokens), bundle.module(tokens))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"positions": "sine"}, r"(?s)positions: is sine.*learned, rotary"),
        ({"recompute": "full"}, r"(?s)recompute: is full.*none, attention, all"),
        ({"dropout": 1.0}, r"(?s)dropout: is 1.0.*from 0 to below 1"),
        ({"positions": "rotary", "heads": 32}, r"(?s)heads: are 1 wide.*even width"),
    ],
)
def test_other_options_are_refused_with_the_valid_ones(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        gpt.build(**{**SMALL, **options})
