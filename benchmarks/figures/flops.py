"""[flops] The operations counted on the meta device are correct.

The forward pass of ResNet-50 is compared with torchvision's published 4.089 billion multiply-adds (two operations
each), WideResNet-28-10 and Olivia's WideResNet with counts by hand, layer by layer, and GPT, training and inference at
several sizes and lengths, with the closed formula. Training an image network takes 3 times its forward pass minus the
unneeded gradient of the images, which is also counted by hand. Nothing is computed; the quick form only leaves out the
largest GPT.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from figure import Figure, arguments, at_most, finish
from steelyard.worker.engine.flops import count
from steelyard.worker.workloads import gpt, vision, wideresnet, wideresnet_olivia

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.worker.workloads.bundle import ModelBundle

RESNET50 = 2 * 4.089e9
"""torchvision, ResNet50_Weights.IMAGENET1K_V1, "GFLOPS 4.09": multiply-adds at 224 x 224, 4.089 in its metadata."""
RESNET50_FIRST = 2 * 112**2 * 64 * 3 * 7**2
WIDERESNET_FIRST = 2 * 32**2 * 16 * 3 * 3**2
VOCABULARY = 50257


def counted(make: Callable[[], ModelBundle], *, train: bool) -> float:
    facts = count(make, train=train)
    if facts.flops_per_sample is None:
        raise SystemExit(facts.method)
    return facts.flops_per_sample


def deviation(measured: float, expected: float) -> float:
    """Return the deviation in percent of the expected value."""
    return 100 * abs(measured / expected - 1)


def wideresnet_by_hand() -> float:
    """2 x pixels x outputs x inputs x 9 of every convolution, the three shortcuts of 1 x 1, and the head."""
    total = WIDERESNET_FIRST + 2 * 640 * 100
    for side, inputs, outputs in ((32, 16, 160), (16, 160, 320), (8, 320, 640)):
        total += 2 * side**2 * (9 * inputs * outputs + 7 * 9 * outputs**2 + inputs * outputs)
    return total


def olivia_by_hand() -> float:
    """The same for two blocks per width, the first of which has a shortcut of 1 x 1."""
    total = WIDERESNET_FIRST + 2 * 640 * 100
    for side, inputs, outputs in ((32, 16, 160), (16, 160, 320), (8, 320, 640)):
        total += 2 * side**2 * (9 * inputs * outputs + 3 * 9 * outputs**2 + inputs * outputs)
    return total


def of_images() -> list[Figure]:
    resnet, wide = counted(vision.resnet50, train=False), counted(wideresnet.build, train=False)
    olivia = counted(wideresnet_olivia.build, train=False)
    by_hand, olivia_hand = wideresnet_by_hand(), olivia_by_hand()
    trained = max(
        deviation(counted(vision.resnet50, train=True), 3 * resnet - RESNET50_FIRST),
        deviation(counted(wideresnet.build, train=True), 3 * by_hand - WIDERESNET_FIRST),
        deviation(counted(wideresnet_olivia.build, train=True), 3 * olivia_hand - WIDERESNET_FIRST),
    )
    print(f"ResNet-50 forward {resnet / 1e9:.4f} GFLOP, published {RESNET50 / 1e9:.3f}")
    print(f"WideResNet-28-10 forward {wide / 1e9:.4f} GFLOP, by hand {by_hand / 1e9:.4f}")
    print(f"Olivia's WideResNet forward {olivia / 1e9:.4f} GFLOP, by hand {olivia_hand / 1e9:.4f}")
    return [
        at_most("flops: ResNet-50 forward against the published count", deviation(resnet, RESNET50), "%", 2),
        at_most("flops: WideResNet-28-10 forward against a count by hand", deviation(wide, by_hand), "%", 0),
        at_most("flops: Olivia's WideResNet forward against a count by hand", deviation(olivia, olivia_hand), "%", 0),
        at_most("flops: training of all three against 3 times forward less the images' gradient", trained, "%", 0),
    ]


def of_gpt(cases: list[tuple[str, int]]) -> Figure:
    largest = 0.0
    for size, sequence in cases:
        shape = gpt.SIZES[size]
        closed = gpt.closed_flops(shape.layers, shape.width, sequence, VOCABULARY)
        make = partial(gpt.build, size, sequence, VOCABULARY)
        for train, times in ((False, 1), (True, 3)):
            largest = max(largest, deviation(counted(make, train=train), times * closed))
        print(f"GPT {size} of {sequence} tokens: forward {closed / 1e9:.1f} GFLOP by formula")
    return at_most("flops: GPT, training and inference, against the closed formula", largest, "%", 0)


def main() -> None:
    options = arguments(__doc__)
    cases = [(size, sequence) for size in ("10M", "117M", "800M") for sequence in (128, 1024, 2048)]
    if not options.quick:
        cases += [(size, 2048) for size in gpt.SIZES if (size, 2048) not in cases]
    finish([*of_images(), of_gpt(cases)])


if __name__ == "__main__":
    main()
