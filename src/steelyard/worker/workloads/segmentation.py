"""Segmentation models of segmentation_models_pytorch, without weights: nothing is downloaded."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from steelyard.errors import InputError, Problem
from steelyard.worker.workloads import tasks
from steelyard.worker.workloads.about import About, about
from steelyard.worker.workloads.bundle import ModelBundle
from steelyard.worker.workloads.options import at_least, library, multiple_of
from steelyard.worker.workloads.tasks import IGNORED
from steelyard.worker.workloads.vision import adaptive, momentum

if TYPE_CHECKING:
    from steelyard.worker.workloads.bundle import MakeOptimizer

STRIDE = 32
"""Both models halve the image five times."""


def facts(title: str, published: float, source: str, encoder: str) -> About:
    """Return the description of a model for street scenes."""
    return About(
        family="segmentation",
        title=title,
        needs=("segmentation_models_pytorch",),
        data=("cityscapes",),
        metric="mIoU",
        reduced={"classes": 5, "resolution": 64, "encoder": encoder},
        parameters=published,
        source=source,
    )


@about(
    facts(
        "SegFormer with MiT-B4, 512 x 1024",
        60.8e6 + 0.53e6,
        "encoder 60.8 M: SegFormer, arXiv 2105.15203, table 1 (B4); the library's decoder of 256 channels: 0.53 M",
        "mit_b0",
    )
)
def segformer(classes: int = 19, resolution: int = 512, encoder: str = "mit_b4") -> ModelBundle:
    """SegFormer (arXiv 2105.15203); images are twice as wide as high.

    The library's decoder has 256 channels, as MMSegmentation's; the paper's B4 has 768: 64.1 million parameters instead
    of 61.4. The learning rate is small because the labels of synthetic data are random.
    """
    return _built("Segformer", classes, resolution, encoder, adaptive)


@about(
    facts(
        "DeepLabV3+ with ResNet-101, 512 x 1024",
        44_549_160 - 2_049_000 + 3.17e6,
        "encoder: torchvision, ResNet101_Weights.IMAGENET1K_V1, num_params, without its head; "
        "the library's decoder: 3.17 M",
        "resnet18",
    )
)
def deeplab(classes: int = 19, resolution: int = 512, encoder: str = "resnet101") -> ModelBundle:
    """DeepLabV3+ (arXiv 1802.02611) with output stride 8, as MMSegmentation has it; images are twice as wide as high.

    It batch-normalises the mean of each image, so training needs at least 2 samples.
    """
    return _built("DeepLabV3Plus", classes, resolution, encoder, momentum, encoder_output_stride=8)


def _built(
    kind: str, classes: int, resolution: int, encoder: str, optimizer: MakeOptimizer, **more: int
) -> ModelBundle:
    at_least(2, kind, classes=classes)
    at_least(STRIDE, kind, resolution=resolution)
    multiple_of(STRIDE, kind, resolution=resolution)
    models = library("segmentation_models_pytorch", "segmentation", f"the workload {kind}")
    if encoder not in models.encoders.get_encoder_names():
        problem = Problem("encoder", f"unknown encoder {encoder}", "resnet101, mit_b4 and others of the library")
        raise InputError(f"invalid option of {kind}", problems=(problem,))
    try:
        module = getattr(models, kind)(encoder, encoder_weights=None, classes=classes, **more)
    except (ValueError, TypeError) as error:
        problem = Problem("encoder", f"{encoder}: {error}"[:200], "resnet101, mit_b4")
        raise InputError(f"invalid option of {kind}", problems=(problem,)) from None

    def batch(samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        size = (resolution, 2 * resolution)
        images = torch.randn(samples, 3, *size, generator=generator, device="cpu")
        return images, torch.randint(classes, (samples, *size), generator=generator, device="cpu")

    return ModelBundle(
        module,
        partial(functional.cross_entropy, ignore_index=IGNORED),
        optimizer,
        batch,
        tasks.segmentation(resolution, classes),
        backbone=module.encoder,
    )
