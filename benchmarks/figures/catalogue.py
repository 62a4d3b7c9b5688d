"""[catalogue] The workloads match the published models, and the shipped catalogue matches a fresh count.

Every registered model at full size: its parameters are compared with the published number, whose source is printed.
Where torchvision publishes operations, the forward pass is compared too. GPT and Llama at several sizes: parameters are
compared with their configurations or the authors' numbers. Then the whole catalogue is counted again and compared with
the shipped file, entry by entry. Models are built on the meta device, without computing. The quick form leaves out
sizes above 20 billion, and takes the slowest counts from the shipped file.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from figure import Figure, arguments, at_most, finish
from steelyard import plugins
from steelyard.inputs.catalogue import load
from steelyard.worker.catalogue import entry, ours
from steelyard.worker.engine.flops import built_on_meta
from steelyard.worker.workloads import gpt, llama

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.worker.workloads.bundle import ModelBundle

WITHOUT_MODEL = "ceilings"
MULTIPLY_ADDS = {
    "resnet50": 4.089,
    "resnet152": 11.514,
    "vit-l-16": 61.555,
    "vit-l-32": 15.378,
    "vit-h-14": 167.295,
    "swin-t": 4.491,
    "swin-b": 15.431,
    "efficientnet-b0": 0.386,
    "efficientnet-b4": 4.394,
    "mobilenet-v3-small": 0.057,
    "mobilenet-v3-large": 0.217,
    "fasterrcnn-r50-fpn": 134.38,
}
"""Billions, of one forward pass: torchvision's metadata of the weights, `_ops`."""
SLOW = ("segformer-b4", "deformable-detr-swin-l", "resnet152", "timm")
LARGE = 20e9


def parameters(make: Callable[[], ModelBundle]) -> int:
    return sum(parameter.numel() for parameter in built_on_meta(make).module.parameters())


def deviation(found: float, published: float) -> float:
    """In percent."""
    return 100 * abs(found / published - 1)


def of_parameters(fresh: dict[str, dict[str, Any]]) -> list[Figure]:
    largest, missing = 0.0, 0
    for name, found in fresh.items():
        if found["family"] == WITHOUT_MODEL or name == "sim":
            continue
        published = found["published"]
        if published is None or found["parameters"] is None or None in found["flops_per_sample"].values():
            print(f"{name}: MISSING {found['flops_method']}")
            missing += 1
            continue
        off = deviation(found["parameters"], published["parameters"])
        largest = max(largest, off)
        print(f"{name}: {found['parameters']:,}, published {published['parameters']:,.0f} ({off:.3f} %)")
        print(f"    {published['source']}")
    return [
        at_most("catalogue: parameters against the published figures", largest, "%", 1),
        at_most("catalogue: models without a count or a published figure", missing, "models", 0),
    ]


def of_operations(fresh: dict[str, dict[str, Any]]) -> Figure:
    """Rounded to a thousandth of a billion: the smallest network's figure has two digits."""
    largest = 0.0
    for name, published in MULTIPLY_ADDS.items():
        found = fresh[name]["flops_per_sample"]["infer"] / 2e9
        off = max(0.0, abs(found - published) - 0.0005) / published * 100
        largest = max(largest, off)
        print(f"{name}: {found:.3f} billion multiply-adds forward, published {published}")
    return at_most("catalogue: forward passes against torchvision's published operations", largest, "%", 1)


def of_sizes(*, quick: bool) -> list[Figure]:
    published = {size: number for size, (number, _) in llama.PUBLISHED.items() if number < LARGE or not quick}
    of_llama = 0.0
    for size, number in published.items():
        found = parameters(partial(llama.build, size))
        of_llama = max(of_llama, deviation(found, number))
        print(f"Llama {size}: {found:,}, published {number:,.0f}\n    {llama.PUBLISHED[size][1]}")
    of_gpt = 0.0
    for size in ("117M", "800M", "13B"):
        shape, vocabulary, sequence = gpt.SIZES[size], 50257, 1024
        closed = shape.layers * (12 * shape.width**2 + 13 * shape.width)
        closed += (vocabulary + sequence + 2) * shape.width
        of_gpt = max(of_gpt, deviation(parameters(partial(gpt.build, size, sequence, vocabulary)), closed))
        print(f"GPT {size}: {closed:,} by its configuration")
    return [
        at_most("catalogue: Llama's parameters against the published figures", of_llama, "%", 1),
        at_most("catalogue: GPT's parameters against the closed formula of its configuration", of_gpt, "%", 0),
    ]


def differing(fresh: dict[str, dict[str, Any]]) -> Figure:
    """Count entries of the shipped file that differ from a fresh count, or that only one of them has."""
    shipped = load()["workloads"]
    wrong = 0
    for name in sorted({*shipped, *ours()}):
        if name in fresh and shipped.get(name) != json.loads(json.dumps(fresh[name])):
            print(f"{name}: the shipped entry differs; to update it: python -m steelyard.worker.catalogue --write")
            wrong += 1
        elif name not in plugins.BUILTIN["workload"] or name not in shipped:
            wrong += 1
    return at_most("catalogue: shipped entries that differ from a fresh count", wrong, "entries", 0)


def main() -> None:
    options = arguments(__doc__)
    fresh = {name: entry(name, {}) for name in ours() if not (options.quick and name in SLOW)}
    whole = {**load()["workloads"], **fresh}
    finish([*of_parameters(whole), of_operations(whole), *of_sizes(quick=options.quick), differing(fresh)])


if __name__ == "__main__":
    main()
