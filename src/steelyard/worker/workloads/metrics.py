"""Quality metrics from torchmetrics, which aggregates over ranks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import functional

from steelyard.worker.workloads.options import library

if TYPE_CHECKING:
    from collections.abc import Callable

IGNORED = 255
LONGEST_ANSWER = 30
"""In tokens, as in the evaluation of BERT on SQuAD."""
ACCELERATORS = {"nccl": "cuda", "xccl": "xpu", "hccl": "hpu"}
"""The only devices on which a backend's collectives work."""


class FromLibrary:
    """A torchmetrics metric with the engine's interface."""

    def __init__(
        self,
        name: str,
        better: Literal["higher", "lower"],
        metric: Any,
        arrange: Callable[[Any, Any], tuple[Any, Any]],
        pick: str | None = None,
        scale: float = 1.0,
        finish: Callable[[float], float] = float,
    ) -> None:
        self.name = name
        self.better = better
        self._metric = metric
        self._arrange = arrange
        self._pick = pick
        self._scale = scale
        self._finish = finish
        self.others: dict[str, float] = {}
        """Other values that the library computed; set by `compute`."""
        self._device = _collective_device()
        if self._device is not None:
            # Before the first output: a rank without samples takes part in the sum, too.
            self._metric = self._metric.to(self._device)

    def update(self, output: Any, target: Any) -> None:
        """Add one batch."""
        if self._device is None:
            first = output
            while not isinstance(first, torch.Tensor):
                first = next(iter(first.values())) if isinstance(first, dict) else first[0]
            self._device = first.device
            self._metric = self._metric.to(self._device)
        predicted, wanted = self._arrange(output, target)
        self._metric.update(predicted, wanted)

    def compute(self) -> float:
        """Return the value over all ranks."""
        result = self._metric.compute()
        if self._pick is None:
            return self._finish(float(result) * self._scale)
        # Skip tensors, such as counts per class.
        numbers = {name: value for name, value in result.items() if getattr(value, "numel", lambda: 1)() == 1}
        self.others = {name: float(value) * self._scale for name, value in numbers.items() if name != self._pick}
        return float(result[self._pick]) * self._scale


class Boxes:
    """Average precision of boxes.

    torchmetrics 1.9 drops images if ranks have different numbers of them, so the boxes of all ranks are gathered here
    and the library computes on all of them.
    """

    name = "mAP"
    better: Literal["higher", "lower"] = "higher"

    def __init__(self) -> None:
        make = library("torchmetrics.detection", "quality", "measuring quality").MeanAveragePrecision
        # Both compute the same; use the one that is installed.
        backend = "faster_coco_eval"
        try:
            __import__(backend)
        except ImportError:
            backend = "pycocotools"
            library(backend, "quality", "measuring the quality of detection")
        self._metric = make(iou_type="bbox", backend=backend, sync_on_compute=False)
        # COCO counts 100 boxes per image, and the models return no more.
        self._metric.warn_on_many_detections = False
        self.others: dict[str, float] = {}
        """Other values that the library computed; set by `compute`."""
        self._found: list[torch.Tensor] = []
        self._wanted: list[torch.Tensor] = []

    def update(self, output: Any, target: Any) -> None:
        """Store one batch's boxes on the host: predictions with scores, targets without padding."""
        for one in output:
            columns = (one["boxes"], one["scores"][:, None], one["labels"][:, None])
            self._found.append(torch.cat([column.detach().float().cpu() for column in columns], dim=1))
        for boxes, labels in zip(target["boxes"].float().cpu(), target["labels"].cpu(), strict=True):
            real = labels >= 0
            self._wanted.append(torch.cat((boxes[real], labels[real][:, None].float()), dim=1))

    def compute(self) -> float:
        """Return the value over all ranks."""
        detected, wanted = _everybodys(self._found, 6), _everybodys(self._wanted, 5)
        self._metric.reset()
        self._metric.update(
            [{"boxes": rows[:, :4], "scores": rows[:, 4], "labels": rows[:, 5].long()} for rows in detected],
            [{"boxes": rows[:, :4], "labels": rows[:, 4].long()} for rows in wanted],
        )
        numbers = {name: float(value) for name, value in self._metric.compute().items() if value.numel() == 1}
        self.others = {name: value for name, value in numbers.items() if name != "map"}
        return numbers["map"]


def _everybodys(tables: list[torch.Tensor], width: int) -> list[torch.Tensor]:
    """Return the tables of all ranks, in the order of ranks."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return tables
    gather = library("torchmetrics.utilities.distributed", "quality", "measuring quality").gather_all_tensors
    device = _collective_device() or torch.device("cpu")
    # One extra row, so that a rank without any has something to send.
    sizes = torch.tensor([0, *(len(table) for table in tables)], device=device)
    rows = torch.cat([torch.zeros(1, width), *tables]).to(device)
    both = zip(gather(sizes), gather(rows), strict=True)
    return [part for counts, table in both for part in table[1:].cpu().split(counts[1:].tolist())]


def _collective_device() -> torch.device | None:
    """Return the device that the ranks' backend requires, or None."""
    backend = dist.get_backend() if dist.is_available() and dist.is_initialized() else "gloo"
    return torch.device(ACCELERATORS[backend]) if backend in ACCELERATORS else None


def top1(classes: int) -> FromLibrary:
    """Share of samples whose highest score is that of their class."""
    metric = _library().classification.MulticlassAccuracy(num_classes=classes, average="micro")
    return FromLibrary("top-1", "higher", metric, lambda output, target: (output.float(), target))


def mean_iou(classes: int) -> FromLibrary:
    """Mean over classes of intersection over union, over all pixels; pixels of 255 are ignored."""
    metric = _library().classification.MulticlassJaccardIndex(num_classes=classes, ignore_index=IGNORED)
    return FromLibrary("mIoU", "higher", metric, lambda output, target: (output.argmax(dim=1), target))


def perplexity() -> FromLibrary:
    """The exponential of the mean loss per token.

    Uses the library's mean, not its perplexity, which takes the logarithm of a softmax: one confident miss among
    millions of tokens would make it infinite.
    """
    metric = _library().MeanMetric(nan_strategy=math.nan)

    def losses(output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, int]:
        return functional.cross_entropy(output.float().flatten(0, 1), target.flatten()), target.numel()

    def exponential(value: float) -> float:
        try:
            return math.exp(value)
        except OverflowError:
            return math.inf

    return FromLibrary("perplexity", "lower", metric, losses, finish=exponential)


def mean_squared_error() -> FromLibrary:
    """Mean squared difference over all elements."""
    metric = _library().MeanSquaredError()
    return FromLibrary("mse", "lower", metric, lambda output, target: (output.float().flatten(), target.flatten()))


def mean_average_precision() -> Boxes:
    """COCO's mean average precision over IoU thresholds from 0.50 to 0.95."""
    return Boxes()


def exact_match_f1() -> FromLibrary:
    """F1 over the words of the answers, as in SQuAD's own script; `others` has the share of exact matches."""
    metric = library("torchmetrics.text", "quality", "measuring quality").SQuAD()
    # The library returns percent.
    return FromLibrary("F1", "higher", metric, _answers, pick="f1", scale=0.01)


def _library() -> Any:
    return library("torchmetrics", "quality", "measuring quality")


def _answers(output: Any, target: Any) -> tuple[Any, Any]:
    """Return the predicted texts and the expected ones."""
    starts, ends = (scores.float().cpu().numpy() for scores in output)
    predicted, wanted = [], []
    for asked, start, end in zip(target["asked"], starts, ends, strict=True):
        predicted.append({"id": asked.number, "prediction_text": answer_text(asked, start, end)})
        texts = list(asked.answers) or [""]
        wanted.append({"id": asked.number, "answers": {"text": texts, "answer_start": [0] * len(texts)}})
    return predicted, wanted


def answer_text(asked: Any, start: Any, end: Any) -> str:
    """Return the span with the highest sum of scores; empty if the first token (no answer) scores higher."""
    places = np.flatnonzero(asked.spans[:, 1] > asked.spans[:, 0])
    if not len(places):
        return ""
    sums = start[places][:, None] + end[places][None, :]
    possible = np.triu(np.ones_like(sums, dtype=bool)) & ~np.triu(np.ones_like(sums, dtype=bool), LONGEST_ANSWER)
    sums = np.where(possible, sums, -np.inf)
    first, last = np.unravel_index(int(sums.argmax()), sums.shape)
    if start[0] + end[0] > sums[first, last]:
        return ""
    return str(asked.paragraph[asked.spans[places[first], 0] : asked.spans[places[last], 1]])
