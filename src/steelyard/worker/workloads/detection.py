"""Object detectors of torchvision and transformers, without weights: nothing is downloaded.

Both take images and boxes as `tasks.boxes_batch` packs them, and return a loss in training and boxes otherwise.
"""

from __future__ import annotations

import contextlib
import importlib.util
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from steelyard.errors import InputError
from steelyard.worker.workloads import tasks
from steelyard.worker.workloads.about import About, about
from steelyard.worker.workloads.bundle import ModelBundle
from steelyard.worker.workloads.options import at_least, library, multiple_of

if TYPE_CHECKING:
    from steelyard.worker.workloads.bundle import MakeBatch

SMALLEST = 32
SWIN_DEPTHS = (2, 2, 18, 2)
SWIN_WINDOW = 12
SWIN_HEAD_WIDTH = 32
DETECTIONS = 100
"""Maximum number of boxes per image: COCO's metric counts no more."""

Detections = list[dict[str, torch.Tensor]]


@about(
    About(
        family="detection",
        title="Faster R-CNN with ResNet-50 and feature pyramid",
        needs=("torchvision",),
        data=("coco",),
        metric="mAP",
        reduced={"classes": 5, "resolution": 64, "boxes": 2, "regions": 16, "proposals": 32},
        parameters=41_755_286,
        source="torchvision, FasterRCNN_ResNet50_FPN_Weights.COCO_V1, num_params; without weights it has 53,120 more, "
        "because its batch normalisations are not frozen",
        note="FLOPs assume the maximum number of regions per image; the actual number depends on the data",
    )
)
def fasterrcnn(
    classes: int = 91, resolution: int = 800, boxes: int = 8, regions: int = 512, proposals: int = 1000
) -> ModelBundle:
    """Faster R-CNN of torchvision; class 0 is the background.

    `regions` is the number per image that trains the head; `proposals` the number that the first stage keeps in
    inference (twice as many in training). Synthetic images are square, with `boxes` boxes each. The learning rate is
    small because the boxes are random.
    """
    at_least(2, "Faster R-CNN", classes=classes)
    at_least(1, "Faster R-CNN", boxes=boxes, regions=regions, proposals=proposals)
    at_least(SMALLEST, "Faster R-CNN", resolution=resolution)
    make = library("torchvision.models.detection", "torch", "the workload fasterrcnn").fasterrcnn_resnet50_fpn
    inner = make(
        weights=None,
        weights_backbone=None,
        num_classes=classes,
        min_size=resolution,
        max_size=round(tasks.LONGEST * resolution),
        box_batch_size_per_image=regions,
        box_detections_per_img=DETECTIONS,
        rpn_post_nms_top_n_test=proposals,
        rpn_post_nms_top_n_train=2 * proposals,
    )
    task = tasks.detection(resolution, classes, normalise=False)
    module = FasterRcnn(inner, regions, proposals)
    return ModelBundle(
        module,
        _loss,
        partial(torch.optim.SGD, lr=0.001, momentum=0.9, weight_decay=1e-4),
        _batch(classes, resolution, boxes, first=1),
        task,
    )


@about(
    About(
        family="detection",
        title="Deformable DETR with Swin-L",
        needs=("transformers", "scipy"),
        data=("coco",),
        metric="mAP",
        reduced={"classes": 5, "resolution": 64, "boxes": 2, "width": 32, "depth": 2, "layers": 2, "queries": 10},
        parameters=197e6 - 1.54e6 + 40e6 - 23.5e6 - 5.64e6 + 4.23e6,
        source="sum of Swin-L 197M (arXiv 2103.14030, table 1) without its head (1.54 M) and Deformable DETR 40M "
        "(arXiv 2010.04159, table 1) without its ResNet-50 (23.5 M), with projections from 384, 768 and 1536 channels "
        "(4.23 M) in place of those from 512, 1024 and 2048 (5.64 M)",
    )
)
def deformable_detr(
    classes: int = 91,
    resolution: int = 800,
    boxes: int = 8,
    width: int = 192,
    depth: int = 18,
    layers: int = 6,
    queries: int = 300,
) -> ModelBundle:
    """Deformable DETR (arXiv 2010.04159) of transformers on a Swin transformer (arXiv 2103.14030).

    `width` and `depth` are those of the Swin: of its first and third stage. `layers` is the number in the encoder and
    in the decoder, whose layers each have a loss, as in the paper. Boxes are matched on the host by scipy.
    """
    at_least(1, "Deformable DETR", classes=classes, boxes=boxes, depth=depth, queries=queries)
    # The layers share one head; the library cannot tie a single layer to itself.
    at_least(2, "Deformable DETR", layers=layers)
    at_least(SMALLEST, "Deformable DETR", resolution=resolution, width=width)
    multiple_of(SWIN_HEAD_WIDTH, "Deformable DETR", width=width)
    inner = _deformable(classes, width, depth, layers, queries)
    task = tasks.detection(resolution, classes, normalise=True)
    return ModelBundle(
        DeformableDetr(inner),
        _loss,
        partial(torch.optim.AdamW, lr=2e-5, weight_decay=1e-4),
        _batch(classes, resolution, boxes, first=0),
        task,
    )


def _deformable(classes: int, width: int, depth: int, layers: int, queries: int) -> Any:
    transformers = library("transformers", "transformers", "the workload deformable-detr")
    if importlib.util.find_spec("scipy") is None:
        raise InputError("Deformable DETR needs scipy to match boxes", next_step="pip install scipy")
    heads = width // SWIN_HEAD_WIDTH
    swin = transformers.SwinConfig(
        embed_dim=width,
        depths=[*SWIN_DEPTHS[:2], depth, SWIN_DEPTHS[3]],
        num_heads=[heads, 2 * heads, 4 * heads, 8 * heads],
        window_size=SWIN_WINDOW,
        image_size=384,
        out_features=["stage2", "stage3", "stage4"],
    )
    config = transformers.DeformableDetrConfig(
        backbone_config=swin,
        backbone=None,
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        num_labels=classes,
        num_queries=queries,
        encoder_layers=layers,
        decoder_layers=layers,
        auxiliary_loss=True,
    )
    inner = transformers.DeformableDetrForObjectDetection(config)
    for name, parameter in inner.named_parameters():
        # The Swin's last norm is for classification: no output passes through it, and data-parallel training would wait
        # for its gradient.
        if ".swin.layernorm." in name:
            parameter.requires_grad_(requires_grad=False)
    return inner


def _batch(classes: int, resolution: int, boxes: int, *, first: int) -> MakeBatch:
    """Return a batch maker for noise images with random boxes; `first` is the lowest object class."""

    def batch(samples: int, generator: torch.Generator) -> tuple[Any, Any]:
        pictures = torch.rand(samples, 3, resolution, resolution, generator=generator, device="cpu")
        corners = torch.rand(samples, boxes, 2, generator=generator, device="cpu") * 0.7
        sides = 0.05 + torch.rand(samples, boxes, 2, generator=generator, device="cpu") * 0.25
        places = torch.cat((corners, corners + sides), dim=2) * resolution
        labels = torch.randint(first, classes, (samples, boxes), generator=generator, device="cpu")
        sizes = torch.full((samples, 2), resolution, dtype=torch.int64, device="cpu")
        return (pictures, sizes, places, labels), {"boxes": places, "labels": labels}

    return batch


def _loss(output: Any, _target: Any) -> torch.Tensor:
    """Return the model's own loss, which it computed from the boxes."""
    loss: torch.Tensor = output
    return loss


class FasterRcnn(nn.Module):
    """The library's model, with its losses summed."""

    def __init__(self, inner: Any, regions: int, proposals: int) -> None:
        super().__init__()
        self.inner = inner
        self._regions = regions
        self._proposals = proposals

    def forward(
        self, pictures: torch.Tensor, sizes: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor | Detections:
        """Return the sum of its four losses in training; otherwise boxes, scores and labels of each image."""
        if pictures.is_meta:
            return self._without_values(pictures)
        cut = [picture[:, :high, :wide] for picture, (high, wide) in zip(pictures, sizes.tolist(), strict=True)]
        if not self.training:
            # torchvision's operators on boxes have no short formats; inside autocast they compute in fp32. Weights
            # that are short already are not cast again.
            short = pictures.dtype in (torch.bfloat16, torch.float16)
            with torch.autocast(pictures.device.type, pictures.dtype) if short else contextlib.nullcontext():
                detections: Detections = self.inner(cut)
            return detections
        real = [row != tasks.PADDING for row in labels]
        targets = [
            {"boxes": place[kept], "labels": label[kept]}
            for place, label, kept in zip(boxes, labels, real, strict=True)
        ]
        losses: dict[str, torch.Tensor] = self.inner(cut, targets)
        return torch.stack(list(losses.values())).sum()

    def _without_values(self, pictures: torch.Tensor) -> torch.Tensor:
        """Run the same layers on tensors without values, with the maximum number of regions per image.

        Used for counting. Selecting regions and the losses are not matrix products.
        """
        align = library("torchvision.ops", "torch", "the workload fasterrcnn").roi_align
        features = list(self.inner.backbone(pictures).values())
        scores, shifts = self.inner.rpn.head(features)
        chosen = len(pictures) * (self._regions if self.training else self._proposals)
        cut = align(features[0], torch.zeros(chosen, 5, device="meta"), self.inner.roi_heads.box_roi_pool.output_size)
        outputs = self.inner.roi_heads.box_predictor(self.inner.roi_heads.box_head(cut))
        return torch.stack([part.sum() for part in (*scores, *shifts, *outputs)]).sum()


class DeformableDetr(nn.Module):
    """The library's model: its loss in training, otherwise its best boxes."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(
        self, pictures: torch.Tensor, sizes: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor | Detections:
        """Return the loss in training; otherwise boxes, scores and labels of each image."""
        high, wide = pictures.shape[-2:]
        rows = torch.arange(high, device=pictures.device)[:, None] < sizes[:, :1, None]
        columns = torch.arange(wide, device=pictures.device)[None, :] < sizes[:, 1:, None]
        mask = (rows & columns).long()
        if not self.training:
            output = self.inner(pixel_values=pictures, pixel_mask=mask)
            return _best(output.logits.float(), output.pred_boxes.float(), sizes)
        if pictures.is_meta:
            # For counting: boxes cannot be matched without values. Neither that nor the loss is a matrix product, and
            # gradients take the same path from any sum of the outputs.
            output = self.inner(pixel_values=pictures, pixel_mask=mask)
            return torch.stack((output.logits.sum(), output.pred_boxes.sum())).sum()
        wanted = _relative(boxes, labels, sizes)
        loss: torch.Tensor = self.inner(pixel_values=pictures, pixel_mask=mask, labels=wanted).loss
        return loss


def _relative(boxes: torch.Tensor, labels: torch.Tensor, sizes: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    """Return boxes as centre and size relative to the image, as the model learns them."""
    places = boxes / sizes.flip(1).repeat(1, 2)[:, None]
    middles, sides = (places[..., :2] + places[..., 2:]) / 2, places[..., 2:] - places[..., :2]
    whole = torch.cat((middles, sides), dim=2)
    kept = [row != tasks.PADDING for row in labels]
    return [
        {"class_labels": label[real], "boxes": place[real]}
        for label, place, real in zip(labels, whole, kept, strict=True)
    ]


def _best(scores: torch.Tensor, boxes: torch.Tensor, sizes: torch.Tensor) -> Detections:
    """Return the best-scored boxes over all queries and classes, in pixels."""
    classes = scores.shape[-1]
    each = scores.sigmoid().flatten(1)
    highest, place = each.topk(min(DETECTIONS, each.shape[1]), dim=1)
    chosen = boxes.gather(1, (place // classes)[..., None].expand(-1, -1, 4))
    corners = torch.cat((chosen[..., :2] - chosen[..., 2:] / 2, chosen[..., :2] + chosen[..., 2:] / 2), dim=2)
    pixels = corners * sizes.flip(1).repeat(1, 2)[:, None]
    return [
        {"boxes": box, "scores": score, "labels": label}
        for box, score, label in zip(pixels, highest, place % classes, strict=True)
    ]
