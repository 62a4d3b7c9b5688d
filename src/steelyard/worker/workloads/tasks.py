"""How examples of real data become the batches that a model takes. Knows kinds of examples, no model and no format.

Samples stay small until they are collated: pixels travel as bytes, and become normalised numbers at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from steelyard.data import images
from steelyard.errors import DamagedDataError, InputError
from steelyard.worker.workloads import metrics
from steelyard.worker.workloads.bundle import Task
from steelyard.worker.workloads.options import library

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from steelyard.data.form import Question

Random = np.random.Generator
MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)
"""Of ImageNet's red, green and blue, as torchvision gives them with its weights."""
IGNORED = 255
"""Pixels of a mask that count for nothing."""
PADDING = -1
"""In place of a label: there is no box."""
LONGEST = 1333 / 800
"""The long side of a picture for detection to its short one, at most."""
BORDER = 4
"""Pixels around a small picture before a part of it is cut out."""
SMALLEST_CUT = 0.5
"""Of the sides of a street picture, that a training cut shows."""
VOCABULARY_FILE = "vocab.txt"
QUESTION_TOKENS = 64


def classification(resolution: int, classes: int, *, padded: bool = False) -> Task:
    """Pictures to classes, cut as ImageNet is; `padded`: as CIFAR is, with a border around the whole picture."""
    cut = _padded_cut if padded else images.training_crop

    def prepare(example: Any, train: bool, source: Random) -> tuple[NDArray[np.uint8], int]:
        picture, label = example
        if train:
            return cut(picture, resolution, source), int(label)
        whole = _resized(picture, resolution, resolution) if padded else images.evaluation_crop(picture, resolution)
        return whole, int(label)

    def collate(samples: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.tensor([label for _, label in samples])
        _refuse(labels, classes, "label", "--model classes=N")
        return normalised(np.stack([picture for picture, _ in samples])), labels

    return Task("image-class", prepare, collate, partial(metrics.top1, classes))


def vectors(width: int, classes: int) -> Task:
    """Pictures as rows of `width` grey levels, for a model that knows no pictures."""

    def prepare(example: Any, train: bool, source: Random) -> tuple[NDArray[np.float32], int]:  # noqa: ARG001 -- a task's form
        picture, label = example
        pixels = np.asarray(picture, dtype=np.float32).ravel() / 127.5 - 1
        # As many equal runs of pixels as there are numbers; of a smaller picture some are used twice.
        edges = np.linspace(0, len(pixels), width + 1)[:-1].astype(np.int64)
        sizes = np.diff([*edges, len(pixels)]).clip(min=1)
        return (np.add.reduceat(pixels, edges) / sizes).astype(np.float32), int(label)

    def collate(samples: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.tensor([label for _, label in samples])
        _refuse(labels, classes, "label", f"data of {classes} classes at most")
        return torch.from_numpy(np.stack([row for row, _ in samples])), labels

    return Task("image-class", prepare, collate, partial(metrics.top1, classes))


def reconstruction(side: int) -> Task:
    """Grey pictures of one size, each its own target."""

    def prepare(example: Any, train: bool, source: Random) -> NDArray[np.uint8]:  # noqa: ARG001 -- a task's form
        return np.asarray(_picture(example[0]).convert("L").resize((side, side)), dtype=np.uint8)

    def collate(samples: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        pictures = torch.from_numpy(np.stack(samples))[:, None].float() / 255
        return pictures, pictures

    return Task("image-class", prepare, collate, metrics.mean_squared_error)


def segmentation(resolution: int, classes: int) -> Task:
    """Pictures twice as wide as high, and the class of each pixel.

    Trained on random parts, half to all of a side long, mirrored in half of all cases; evaluated on the whole picture
    at the model's size, with the mask brought to that size too.
    """
    size = (2 * resolution, resolution)

    def prepare(example: Any, train: bool, source: Random) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        picture, mask = _picture(example[0]), images.pillow().fromarray(np.asarray(example[1], dtype=np.uint8))
        width, height = picture.size
        box: tuple[float, float, float, float] = (0, 0, width, height)
        if train:
            share = source.uniform(SMALLEST_CUT, 1.0)
            wide, high = share * width, share * height
            left, top = source.uniform(0, width - wide), source.uniform(0, height - high)
            box = (left, top, left + wide, top + high)
        sampling = images.pillow().Resampling
        pixels = np.array(picture.resize(size, resample=sampling.BILINEAR, box=box))
        marked = np.array(mask.resize(size, resample=sampling.NEAREST, box=box))
        if train and source.random() < 0.5:
            pixels, marked = np.ascontiguousarray(pixels[:, ::-1]), np.ascontiguousarray(marked[:, ::-1])
        return pixels, marked

    def collate(samples: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        masks = torch.from_numpy(np.stack([mask for _, mask in samples])).long()
        _refuse(masks[masks != IGNORED], classes, "class of a pixel", "--model classes=N")
        return normalised(np.stack([picture for picture, _ in samples])), masks

    return Task("image-mask", prepare, collate, partial(metrics.mean_iou, classes))


def detection(resolution: int, classes: int, *, normalise: bool) -> Task:
    """Pictures and boxes, as `boxes_batch` packs them.

    The short side is brought to `resolution`, the long one to 1333 / 800 of that at most; no picture is cut.
    `normalise`: by ImageNet's mean and deviation, for a model that does not do so itself.
    """

    def prepare(example: Any, train: bool, source: Random) -> tuple[Any, Any, Any]:
        picture, boxes, labels = _picture(example[0]), np.array(example[1], np.float32).reshape(-1, 4), example[2]
        width, height = picture.size
        scale = min(resolution / min(width, height), LONGEST * resolution / max(width, height))
        wide, high = max(1, round(width * scale)), max(1, round(height * scale))
        pixels = np.array(picture.resize((wide, high), resample=images.pillow().Resampling.BILINEAR))
        boxes *= np.array([wide / width, high / height] * 2, np.float32)
        if train and source.random() < 0.5:
            pixels = np.ascontiguousarray(pixels[:, ::-1])
            boxes[:, [0, 2]] = wide - boxes[:, [2, 0]]
        # Detectors refuse boxes without an area.
        kept = (boxes[:, 2:] - boxes[:, :2]).min(axis=1, initial=np.inf) >= 1
        return pixels, boxes[kept], np.asarray(labels, np.int64)[kept]

    def collate(samples: Sequence[Any]) -> tuple[Any, Any]:
        pictures = [normalised(pixels[None], plain=not normalise)[0] for pixels, _, _ in samples]
        boxes = [torch.from_numpy(np.ascontiguousarray(found)) for _, found, _ in samples]
        labels = [torch.from_numpy(np.ascontiguousarray(found)) for _, _, found in samples]
        _refuse(torch.cat(labels), classes, "label", "--model classes=N")
        return boxes_batch(pictures, boxes, labels)

    return Task("image-boxes", prepare, collate, metrics.mean_average_precision)


def boxes_batch(
    pictures: list[torch.Tensor], boxes: list[torch.Tensor], labels: list[torch.Tensor]
) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    """Pictures and boxes of any size as tensors whose first dimension is the sample's number.

    Inputs: the pictures, padded below and to the right; their heights and widths; boxes; labels, PADDING where there is
    no box. The target has the boxes and labels again, for the metric.
    """
    sizes = torch.tensor([picture.shape[-2:] for picture in pictures])
    most = max(1, *(len(found) for found in labels))
    high, wide = sizes.amax(dim=0).tolist()
    whole = torch.zeros(len(pictures), 3, high, wide)
    all_boxes = torch.zeros(len(pictures), most, 4)
    all_labels = torch.full((len(pictures), most), PADDING, dtype=torch.int64)
    for number, picture in enumerate(pictures):
        whole[number, :, : picture.shape[-2], : picture.shape[-1]] = picture
        all_boxes[number, : len(boxes[number])] = boxes[number]
        all_labels[number, : len(labels[number])] = labels[number]
    return (whole, sizes, all_boxes, all_labels), {"boxes": all_boxes, "labels": all_labels}


def language(sequence: int, vocabulary: int | None = None) -> Task:
    """Windows of tokens; each is to be told from those before it."""

    def prepare(example: Any, train: bool, source: Random) -> NDArray[np.int64]:  # noqa: ARG001 -- a task's form
        return np.asarray(example, dtype=np.int64)

    def collate(samples: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.from_numpy(np.stack(samples))
        if vocabulary is not None:
            _refuse(tokens, vocabulary, "token", "--model vocabulary=N")
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return Task("tokens", prepare, collate, metrics.perplexity, length=sequence)


@dataclass(frozen=True)
class Asked:
    """What is needed to tell an answer's text from the places that a model points at."""

    number: str
    paragraph: str
    answers: tuple[str, ...]
    spans: NDArray[np.int64]
    """First character in the paragraph and the one behind the last, for each token; equal where it is none of it."""


def question_answering(sequence: int, vocabulary: int) -> Task:
    """Questions with their paragraphs as WordPieces; the vocabulary is `vocab.txt` in the data set's folder."""

    def closed(*_given: Any) -> Any:
        raise InputError("questions cannot be read before their vocabulary is opened")

    def collate(samples: Sequence[Any]) -> tuple[Any, Any]:
        def stacked(name: str) -> torch.Tensor:
            return torch.from_numpy(np.stack([sample[name] for sample in samples])).long()

        places = torch.tensor([sample["place"] for sample in samples])
        inputs = {"tokens": stacked("ids"), "kinds": stacked("types"), "mask": stacked("mask")}
        _refuse(inputs["tokens"], vocabulary, "token", "--model vocabulary=N")
        target = {"start": places[:, 0], "end": places[:, 1], "asked": [sample["asked"] for sample in samples]}
        return inputs, target

    task = Task("question-answer", closed, collate, metrics.exact_match_f1)
    return replace(task, open=lambda root: replace(task, prepare=_reader(root, sequence), open=None))


def _reader(root: Path, sequence: int) -> Callable[[Any, bool, Random], Any]:
    path = root / VOCABULARY_FILE
    if not path.is_file():
        raise InputError(
            f"{root} has no {VOCABULARY_FILE}: the WordPieces that the questions are cut into",
            next_step=f"copy the {VOCABULARY_FILE} of the BERT that is trained to {path}",
        )
    make = library("tokenizers", "transformers", "reading questions").BertWordPieceTokenizer
    try:
        plain, tokenizer = make(str(path), lowercase=True), make(str(path), lowercase=True)
    except Exception as error:  # noqa: BLE001 -- the library has no class of its own for a bad file
        raise DamagedDataError(f"{path} is no vocabulary of WordPieces: {str(error)[:200]}") from None
    tokenizer.enable_truncation(sequence, stride=sequence // 4, strategy="only_second")
    tokenizer.enable_padding(length=sequence)
    return partial(_prepare_question, plain, tokenizer, min(QUESTION_TOKENS, sequence // 4))


def _prepare_question(
    plain: Any, tokenizer: Any, longest: int, example: Question, train: bool, source: Random
) -> dict[str, Any]:
    """One window of the paragraph: in training one with the answer, in evaluation the first.

    A paragraph that does not fit in one window has several; almost all of SQuAD's fit in 384 tokens.
    """
    # A question may be long without end, and the paragraph must keep its place.
    offsets = plain.encode(example.question, add_special_tokens=False).offsets[:longest]
    first = tokenizer.encode(example.question[: offsets[-1][1] if offsets else 0], example.paragraph)
    windows = [first, *first.overflowing]
    found = [_place(window, example) for window in windows] if train else [(0, 0)]
    holding = [number for number, (_, end) in enumerate(found) if end]
    chosen = int(source.choice(holding)) if holding else 0
    window, (start, end) = windows[chosen], found[chosen]
    spans = [span if owner == 1 else (0, 0) for span, owner in zip(window.offsets, window.sequence_ids, strict=True)]
    answers = tuple(dict.fromkeys(text for text, _ in example.answers))
    return {
        "ids": np.array(window.ids),
        "types": np.array(window.type_ids),
        "mask": np.array(window.attention_mask),
        "place": (start, end),
        "asked": Asked(example.number, example.paragraph, answers, np.array(spans, dtype=np.int64)),
    }


def _place(window: Any, example: Question) -> tuple[int, int]:
    """First and last token of the first answer; twice 0, where the model is to point at nothing, if it is not there."""
    if not example.answers:
        return 0, 0
    text, begins = example.answers[0]
    # With two texts, places are asked of the second: the paragraph.
    start, end = window.char_to_token(begins, 1), window.char_to_token(begins + len(text) - 1, 1)
    return (0, 0) if start is None or end is None else (start, end)


def normalised(pictures: NDArray[np.uint8], *, plain: bool = False) -> torch.Tensor:
    """Pictures of bytes with their channels last as numbers with their channels first; `plain`: from 0 to 1."""
    numbers = torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous().float().div_(255)
    if plain:
        return numbers
    mean, deviation = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(DEVIATION).view(3, 1, 1)
    return numbers.sub_(mean).div_(deviation)


def _refuse(numbers: torch.Tensor, below: int, what: str, fix: str) -> None:
    """An index that a model has no place for would end a run on an accelerator without a word."""
    if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < below:
        wrong = int(numbers.max()) if int(numbers.max()) >= below else int(numbers.min())
        raise InputError(f"the data has a {what} of {wrong}; the model takes 0 to {below - 1}", next_step=fix)


def _picture(picture: Any) -> Any:
    """As Pillow's, in red, green and blue."""
    if isinstance(picture, np.ndarray):
        flat = picture.squeeze(2) if picture.shape[2:] == (1,) else picture
        return images.pillow().fromarray(np.ascontiguousarray(flat)).convert("RGB")
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def _resized(picture: Any, width: int, height: int) -> NDArray[np.uint8]:
    found = _picture(picture)
    if found.size != (width, height):
        found = found.resize((width, height), resample=images.pillow().Resampling.BILINEAR)
    return np.array(found, dtype=np.uint8)


def _padded_cut(picture: Any, size: int, source: Random) -> NDArray[np.uint8]:
    """A part as large as the whole picture, out of that with a black border; mirrored in half of all cases."""
    wide = np.pad(_resized(picture, size, size), ((BORDER, BORDER), (BORDER, BORDER), (0, 0)))
    top, left = source.integers(2 * BORDER + 1, size=2)
    cut = wide[top : top + size, left : left + size]
    return np.ascontiguousarray(cut[:, ::-1] if source.random() < 0.5 else cut)
