"""The network of the guide "PyTorch on Olivia": its layers, its training and its data, as described."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from steelyard.errors import InputError
from steelyard.worker.engine.flops import built_on_meta, count
from steelyard.worker.workloads import wideresnet_olivia
from steelyard.worker.workloads.bundle import call

# First convolution with its normalisation, six blocks, linear layer.
PARAMETERS = (464, 256_800, 461_440, 1_435_200, 1_844_480, 5_737_600, 7_375_360, 64_100)


def test_every_part_has_the_parameters_that_follow_from_its_description() -> None:
    module = built_on_meta(wideresnet_olivia.build).module
    counts = [sum(parameter.numel() for parameter in layer.parameters()) for layer in module.children()]
    assert [sum(counts[:3]), *(number for number in counts[3:] if number)] == list(PARAMETERS)
    assert sum(counts) == sum(PARAMETERS) == 17_175_444


def test_its_operations_by_hand() -> None:
    first, last = 2 * 32**2 * 16 * 3 * 9, 2 * 640 * 100
    widths = ((32, 16, 160), (16, 160, 320), (8, 320, 640))
    blocks = sum(2 * side**2 * (10 * inputs * outputs + 27 * outputs**2) for side, inputs, outputs in widths)
    forward = first + blocks + last
    assert count(wideresnet_olivia.build, train=False).flops_per_sample == forward == 4_824_462_336
    assert count(wideresnet_olivia.build, train=True).flops_per_sample == 3 * forward - first


def test_nothing_comes_after_the_sum_of_a_block() -> None:
    torch.manual_seed(0)
    block = wideresnet_olivia.OliviaBlock(4, 4).eval()
    images = torch.randn(2, 4, 8, 8)
    last = block.path[-2]
    assert isinstance(last, torch.nn.BatchNorm2d)
    assert last.running_mean is not None
    last.running_mean.fill_(1e6)
    # The path is zero after its activation, so that the block returns its input with the signs that it had.
    assert torch.equal(block(images), images)
    assert bool((images < 0).any())


def test_a_step_of_its_training_is_plain_descent() -> None:
    torch.manual_seed(0)
    bundle = wideresnet_olivia.build(classes=10, widen=1)
    assert callable(bundle.optimizer)
    (group,) = bundle.optimizer(bundle.module.parameters()).param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.01, 0, 0)
    assert [layer.p for layer in bundle.module.modules() if isinstance(layer, torch.nn.Dropout)] == [0.01] * 6
    inputs, target = bundle.batch(3, torch.Generator().manual_seed(0))
    scores = call(bundle.module, inputs)
    assert scores.shape == (3, 10)
    assert torch.equal(bundle.loss(scores, target), torch.nn.functional.cross_entropy(scores, target))


def test_its_pictures_are_normalised_with_the_colours_of_cifar_100_and_cropped_for_validation_too() -> None:
    task = wideresnet_olivia.build(widen=1).task
    assert task is not None
    white = np.full((32, 32, 3), 255, dtype=np.uint8)
    expected = [(1 - mean) / off for mean, off in ((0.5071, 0.2675), (0.4867, 0.2565), (0.4408, 0.2761))]
    for train in (True, False):
        samples = [task.prepare((white, 99), train, np.random.default_rng(seed)) for seed in range(20)]
        pictures, labels = task.collate(samples)
        torch.testing.assert_close(pictures.amax(dim=(0, 2, 3)), torch.tensor(expected))
        # 32 pixels out of 40, with a black border.
        assert len(pictures[:, 0].unique()) == 2
        assert labels.tolist() == [99] * 20


def test_on_several_devices_the_guide_adds_momentum_and_decay() -> None:
    bundle = wideresnet_olivia.build(widen=1, momentum=0.9, weight_decay=0.0005)
    assert callable(bundle.optimizer)
    (group,) = bundle.optimizer(bundle.module.parameters()).param_groups
    assert (group["momentum"], group["weight_decay"]) == (0.9, 0.0005)
    with pytest.raises(InputError, match=r"momentum: is -0\.1; valid: at least 0"):
        wideresnet_olivia.build(widen=1, momentum=-0.1)
