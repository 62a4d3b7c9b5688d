"""Image classifiers of torchvision, without weights: nothing is downloaded.

The learning rate does not affect the work of a step. It is small because the labels of synthetic data are random: the
loss of a few samples stays near chance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from steelyard.worker.workloads import tasks
from steelyard.worker.workloads.about import About, about
from steelyard.worker.workloads.bundle import ModelBundle
from steelyard.worker.workloads.options import at_least, library, multiple_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from steelyard.worker.workloads.bundle import MakeBatch, MakeOptimizer

DATA = ("imagefolder", "webdataset", "food101", "cifar100", "cifar10")
SWIN_HEAD_WIDTH = 32
SWIN_WINDOW = 7


def facts(title: str, published: float, weights: str, **reduced: Any) -> About:
    """Return the description of a classifier whose parameters torchvision publishes with its weights."""
    return About(
        family="classification",
        title=title,
        needs=("torchvision",),
        data=DATA,
        metric="top-1",
        reduced={"classes": 10, "resolution": 64, **reduced},
        parameters=published,
        source=f"torchvision, {weights}, num_params",
    )


@about(facts("ResNet-50, ImageNet shapes", 25_557_032, "ResNet50_Weights.IMAGENET1K_V1"))
def resnet50(classes: int = 1000, resolution: int = 224) -> ModelBundle:
    """ResNet-50 as torchvision defines it (stride in the 3 x 3 convolution, also called version 1.5).

    With 1 or 2 samples the loss grows. With 2 samples of 32 pixels, where the last batch normalisations see one pixel
    per image, a larger learning rate gave NaN.
    """
    return _convolutional("resnet50", classes, resolution)


@about(facts("ResNet-152, ImageNet shapes", 60_192_808, "ResNet152_Weights.IMAGENET1K_V1"))
def resnet152(classes: int = 1000, resolution: int = 224) -> ModelBundle:
    """ResNet-152, built like ResNet-50."""
    return _convolutional("resnet152", classes, resolution)


@about(facts("EfficientNet-B0, ImageNet shapes", 5_288_548, "EfficientNet_B0_Weights.IMAGENET1K_V1"))
def efficientnet_b0(classes: int = 1000, resolution: int = 224) -> ModelBundle:
    """EfficientNet-B0 (arXiv 1905.11946)."""
    return _convolutional("efficientnet_b0", classes, resolution)


@about(facts("EfficientNet-B4 at 380 pixels", 19_341_616, "EfficientNet_B4_Weights.IMAGENET1K_V1"))
def efficientnet_b4(classes: int = 1000, resolution: int = 380) -> ModelBundle:
    """EfficientNet-B4 at its own resolution of 380 pixels."""
    return _convolutional("efficientnet_b4", classes, resolution)


@about(facts("MobileNetV3 small, ImageNet shapes", 2_542_856, "MobileNet_V3_Small_Weights.IMAGENET1K_V1"))
def mobilenet_v3_small(classes: int = 1000, resolution: int = 224) -> ModelBundle:
    """MobileNetV3 small (arXiv 1905.02244)."""
    return _convolutional("mobilenet_v3_small", classes, resolution)


@about(facts("MobileNetV3 large, ImageNet shapes", 5_483_032, "MobileNet_V3_Large_Weights.IMAGENET1K_V1"))
def mobilenet_v3_large(classes: int = 1000, resolution: int = 224) -> ModelBundle:
    """MobileNetV3 large."""
    return _convolutional("mobilenet_v3_large", classes, resolution)


SMALL_VIT = {"layers": 2, "width": 64, "heads": 4}


@about(facts("ViT-L/16", 304_326_632, "ViT_L_16_Weights.IMAGENET1K_V1", **SMALL_VIT))
def vit_l_16(
    classes: int = 1000, resolution: int = 224, layers: int = 24, width: int = 1024, heads: int = 16
) -> ModelBundle:
    """Vision transformer, large, with patches of 16 pixels (arXiv 2010.11929)."""
    return _vit("ViT-L/16", 16, classes, resolution, layers, width, heads)


@about(facts("ViT-L/32", 306_535_400, "ViT_L_32_Weights.IMAGENET1K_V1", **SMALL_VIT))
def vit_l_32(
    classes: int = 1000, resolution: int = 224, layers: int = 24, width: int = 1024, heads: int = 16
) -> ModelBundle:
    """Vision transformer, large, with patches of 32 pixels: a quarter of the tokens of ViT-L/16."""
    return _vit("ViT-L/32", 32, classes, resolution, layers, width, heads)


@about(facts("ViT-H/14", 632_045_800, "ViT_H_14_Weights.IMAGENET1K_SWAG_LINEAR_V1", **{**SMALL_VIT, "resolution": 56}))
def vit_h_14(
    classes: int = 1000, resolution: int = 224, layers: int = 32, width: int = 1280, heads: int = 16
) -> ModelBundle:
    """Vision transformer, huge, with patches of 14 pixels; at 518 pixels it has 633.5 million parameters."""
    return _vit("ViT-H/14", 14, classes, resolution, layers, width, heads)


SMALL_SWIN = {"layers": 2, "width": 32}


@about(facts("Swin-T", 28_288_354, "Swin_T_Weights.IMAGENET1K_V1", **SMALL_SWIN))
def swin_t(classes: int = 1000, resolution: int = 224, layers: int = 6, width: int = 96) -> ModelBundle:
    """Swin transformer, tiny (arXiv 2103.14030); `layers` are those of its third stage."""
    return _swin("Swin-T", 0.2, classes, resolution, layers, width)


@about(facts("Swin-B", 87_768_224, "Swin_B_Weights.IMAGENET1K_V1", **SMALL_SWIN))
def swin_b(classes: int = 1000, resolution: int = 224, layers: int = 18, width: int = 128) -> ModelBundle:
    """Swin transformer, base; `layers` are those of its third stage."""
    return _swin("Swin-B", 0.5, classes, resolution, layers, width)


def _models(what: str) -> Any:
    return library("torchvision.models", "torch", what)


def _convolutional(name: str, classes: int, resolution: int) -> ModelBundle:
    at_least(1, name, classes=classes, resolution=resolution)
    module = getattr(_models(name), name)(weights=None, num_classes=classes)
    return classifier(module, classes, resolution, momentum)


def _vit(what: str, patch: int, classes: int, resolution: int, layers: int, width: int, heads: int) -> ModelBundle:
    at_least(1, what, classes=classes, resolution=resolution, layers=layers, width=width, heads=heads)
    multiple_of(patch, what, resolution=resolution)
    multiple_of(heads, what, width=width)
    module = _models(what).VisionTransformer(
        image_size=resolution,
        patch_size=patch,
        num_layers=layers,
        num_heads=heads,
        hidden_dim=width,
        mlp_dim=4 * width,
        num_classes=classes,
    )
    return classifier(module, classes, resolution, adaptive)


def _swin(what: str, depth_drop: float, classes: int, resolution: int, layers: int, width: int) -> ModelBundle:
    at_least(1, what, classes=classes, layers=layers, width=width)
    at_least(32, what, resolution=resolution)
    multiple_of(SWIN_HEAD_WIDTH, what, width=width)
    heads = width // SWIN_HEAD_WIDTH
    module = _models(what).SwinTransformer(
        patch_size=[4, 4],
        embed_dim=width,
        depths=[2, 2, layers, 2],
        num_heads=[heads, 2 * heads, 4 * heads, 8 * heads],
        window_size=[SWIN_WINDOW, SWIN_WINDOW],
        stochastic_depth_prob=depth_drop,
        num_classes=classes,
    )
    return classifier(module, classes, resolution, adaptive)


def classifier(module: nn.Module, classes: int, resolution: int, optimizer: MakeOptimizer) -> ModelBundle:
    """Return the bundle of a classifier of images with three channels."""
    task = tasks.classification(resolution, classes)
    return ModelBundle(module, functional.cross_entropy, optimizer, images(classes, resolution), task)


def images(classes: int, resolution: int) -> MakeBatch:
    """Return a batch maker for noise images with random labels."""

    def batch(samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        made = torch.randn(samples, 3, resolution, resolution, generator=generator, device="cpu")
        return made, torch.randint(classes, (samples,), generator=generator, device="cpu")

    return batch


def momentum(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The usual optimizer for convolutional networks."""
    return torch.optim.SGD(parameters, lr=0.001, momentum=0.9, weight_decay=1e-4)


def adaptive(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The usual optimizer for transformers."""
    return torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.05)
