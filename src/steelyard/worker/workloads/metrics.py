"""How good a model's outputs are, by torchmetrics, which adds up over ranks. Knows outputs and targets, no model."""

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
"""Tokens; as in the evaluation of BERT on SQuAD."""
ACCELERATORS = {"nccl": "cuda", "xccl": "xpu", "hccl": "hpu"}
"""Devices on which a backend's collectives work, and nowhere else."""


class Wrapped:
    """A metric of torchmetrics as the engine wants it."""

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
        """After `compute`: what the library computed beside it."""
        self._device = _collective_device()
        if self._device is not None:
            # Before any output is there: a rank without samples takes part in the sum, too.
            self._metric = self._metric.to(self._device)

    def update(self, output: Any, target: Any) -> None:
        """Take in one batch."""
        if self._device is None:
            first = output
            while not isinstance(first, torch.Tensor):
                first = next(iter(first.values())) if isinstance(first, dict) else first[0]
            self._device = first.device
            self._metric = self._metric.to(self._device)
        predicted, wanted = self._arrange(output, target)
        self._metric.update(predicted, wanted)

    def compute(self) -> float:
        """Over all ranks."""
        found = self._metric.compute()
        if self._pick is None:
            return self._finish(float(found) * self._scale)
        # Counts of classes and the like are no numbers of their own.
        numbers = {name: value for name, value in found.items() if getattr(value, "numel", lambda: 1)() == 1}
        self.others = {name: float(value) * self._scale for name, value in numbers.items() if name != self._pick}
        return float(found[self._pick]) * self._scale


class Boxes:
    """Average precision of boxes.

    The library drops pictures where ranks have seen different numbers of them (torchmetrics 1.9), so each rank's boxes
    are gathered here, and the library computes on all of them.
    """

    name = "mAP"
    better: Literal["higher", "lower"] = "higher"

    def __init__(self) -> None:
        make = library("torchmetrics.detection", "quality", "measuring quality").MeanAveragePrecision
        # Either computes the same; the one that is there.
        backend = "faster_coco_eval"
        try:
            __import__(backend)
        except ImportError:
            backend = "pycocotools"
            library(backend, "quality", "measuring the quality of detection")
        self._metric = make(iou_type="bbox", backend=backend, sync_on_compute=False)
        # COCO counts 100 boxes an image, and models give no more.
        self._metric.warn_on_many_detections = False
        self.others: dict[str, float] = {}
        """After `compute`: what the library computed beside it."""
        self._found: list[torch.Tensor] = []
        self._wanted: list[torch.Tensor] = []

    def update(self, output: Any, target: Any) -> None:
        """Keep one batch's boxes, on the host: those found with scores, those wanted without their padding."""
        for one in output:
            columns = (one["boxes"], one["scores"][:, None], one["labels"][:, None])
            self._found.append(torch.cat([column.detach().float().cpu() for column in columns], dim=1))
        for boxes, labels in zip(target["boxes"].float().cpu(), target["labels"].cpu(), strict=True):
            real = labels >= 0
            self._wanted.append(torch.cat((boxes[real], labels[real][:, None].float()), dim=1))

    def compute(self) -> float:
        """Over all ranks."""
        found, wanted = _everybodys(self._found, 6), _everybodys(self._wanted, 5)
        self._metric.reset()
        self._metric.update(
            [{"boxes": rows[:, :4], "scores": rows[:, 4], "labels": rows[:, 5].long()} for rows in found],
            [{"boxes": rows[:, :4], "labels": rows[:, 4].long()} for rows in wanted],
        )
        numbers = {name: float(value) for name, value in self._metric.compute().items() if value.numel() == 1}
        self.others = {name: value for name, value in numbers.items() if name != "map"}
        return numbers["map"]


def _everybodys(tables: list[torch.Tensor], width: int) -> list[torch.Tensor]:
    """The tables of all ranks, those of one after those of the other."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return tables
    gather = library("torchmetrics.utilities.distributed", "quality", "measuring quality").gather_all_tensors
    device = _collective_device() or torch.device("cpu")
    # One row more than there are, so that a rank without any has something to send.
    sizes = torch.tensor([0, *(len(table) for table in tables)], device=device)
    rows = torch.cat([torch.zeros(1, width), *tables]).to(device)
    both = zip(gather(sizes), gather(rows), strict=True)
    return [part for counts, table in both for part in table[1:].cpu().split(counts[1:].tolist())]


def _collective_device() -> torch.device | None:
    """Where the ranks' backend takes tensors; None: anywhere."""
    backend = dist.get_backend() if dist.is_available() and dist.is_initialized() else "gloo"
    return torch.device(ACCELERATORS[backend]) if backend in ACCELERATORS else None


def top1(classes: int) -> Wrapped:
    """Share of samples whose highest score is that of their class."""
    metric = _library().classification.MulticlassAccuracy(num_classes=classes, average="micro")
    return Wrapped("top-1", "higher", metric, lambda output, target: (output.float(), target))


def mean_iou(classes: int) -> Wrapped:
    """Mean over classes of intersection over union, each over all pixels; pixels of 255 do not count."""
    metric = _library().classification.MulticlassJaccardIndex(num_classes=classes, ignore_index=IGNORED)
    return Wrapped("mIoU", "higher", metric, lambda output, target: (output.argmax(dim=1), target))


def perplexity() -> Wrapped:
    """The exponential of the mean loss of a token.

    Of the library's sums, not by its perplexity: that takes the logarithm of a softmax, in which one confident miss
    among millions of tokens makes the whole infinite.
    """
    metric = _library().MeanMetric(nan_strategy=math.nan)

    def losses(output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, int]:
        return functional.cross_entropy(output.float().flatten(0, 1), target.flatten()), target.numel()

    def exponential(value: float) -> float:
        try:
            return math.exp(value)
        except OverflowError:
            return math.inf

    return Wrapped("perplexity", "lower", metric, losses, finish=exponential)


def mean_squared_error() -> Wrapped:
    """Mean over all numbers of the squared difference."""
    metric = _library().MeanSquaredError()
    return Wrapped("mse", "lower", metric, lambda output, target: (output.float().flatten(), target.flatten()))


def mean_average_precision() -> Boxes:
    """COCO's mean average precision over intersections of 0.50 to 0.95."""
    return Boxes()


def exact_match_f1() -> Wrapped:
    """F1 of the answers' words, as SQuAD's own script; `others` has the share of exact matches."""
    metric = library("torchmetrics.text", "quality", "measuring quality").SQuAD()
    # It gives percent.
    return Wrapped("F1", "higher", metric, _answers, pick="f1", scale=0.01)


def _library() -> Any:
    return library("torchmetrics", "quality", "measuring quality")


def _answers(output: Any, target: Any) -> tuple[Any, Any]:
    """The texts that the highest scores point at, and those wanted."""
    starts, ends = (scores.float().cpu().numpy() for scores in output)
    predicted, wanted = [], []
    for asked, start, end in zip(target["asked"], starts, ends, strict=True):
        predicted.append({"id": asked.number, "prediction_text": answer_text(asked, start, end)})
        texts = list(asked.answers) or [""]
        wanted.append({"id": asked.number, "answers": {"text": texts, "answer_start": [0] * len(texts)}})
    return predicted, wanted


def answer_text(asked: Any, start: Any, end: Any) -> str:
    """The part of the paragraph with the highest sum of scores; none where the first token, that of no answer, wins."""
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
