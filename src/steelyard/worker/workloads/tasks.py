"""Turn examples of real data into the batches of a model.

Samples stay small until they are collated: pixels stay bytes, and are normalised at the end.
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
Colours = tuple[float, float, float]
"""A number for red, green and blue."""
MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's red, green and blue, as in torchvision's weights."""
IGNORED = 255
"""Mask pixels that are ignored."""
PADDING = -1
"""Label of a padding box."""
LONGEST = 1333 / 800
"""Maximum ratio of the long side of an image to its short side, for detection."""
BORDER = 4
"""Pixels added around a small image before cropping."""
SMALL_SIDE = 32
"""Images of at most this size (CIFAR) are enlarged whole: a random part of one has too few pixels for a class."""
SMALLEST_CUT = 0.5
"""Smallest training crop of a street scene, relative to its sides."""
VOCABULARY_FILE = "vocab.txt"
QUESTION_TOKENS = 64


def classification(
    resolution: int, classes: int, *, padded: bool = False, mean: Colours = MEAN, deviation: Colours = DEVIATION
) -> Task:
    """Images to classes, cropped as for ImageNet; small ones are enlarged to the resolution and mirrored instead.

    `padded`: as for CIFAR, with a border around the image.
    """

    def prepare(example: Any, train: bool, source: Random) -> tuple[NDArray[np.uint8], int]:
        picture, label = _picture(example[0]), int(example[1])
        small = max(picture.size) <= SMALL_SIDE
        if not train:
            whole = padded or small
            made = _resized(picture, resolution, resolution) if whole else images.evaluation_crop(picture, resolution)
        elif padded:
            made = _padded_cut(picture, resolution, source)
        elif small:
            made = _mirrored(_resized(picture, resolution, resolution), source)
        else:
            made = images.training_crop(picture, resolution, source)
        return made, label

    def collate(samples: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.tensor([label for _, label in samples])
        _refuse(labels, classes, "label", "--model classes=N")
        return normalised(np.stack([picture for picture, _ in samples]), mean, deviation), labels

    return Task("image-class", prepare, collate, partial(metrics.top1, classes))


def vectors(width: int, classes: int) -> Task:
    """Images as vectors of `width` grey levels, for a model without image input."""

    def prepare(example: Any, train: bool, source: Random) -> tuple[NDArray[np.float32], int]:  # noqa: ARG001 -- a task's form
        picture, label = example
        pixels = np.asarray(picture, dtype=np.float32).ravel() / 127.5 - 1
        # Average over `width` equal runs of pixels; in a smaller image some pixels are used twice.
        edges = np.linspace(0, len(pixels), width + 1)[:-1].astype(np.int64)
        sizes = np.diff([*edges, len(pixels)]).clip(min=1)
        return (np.add.reduceat(pixels, edges) / sizes).astype(np.float32), int(label)

    def collate(samples: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.tensor([label for _, label in samples])
        _refuse(labels, classes, "label", f"data of {classes} classes at most")
        return torch.from_numpy(np.stack([row for row, _ in samples])), labels

    return Task("image-class", prepare, collate, partial(metrics.top1, classes))


def reconstruction(side: int) -> Task:
    """Grey images of one size, each its own target."""

    def prepare(example: Any, train: bool, source: Random) -> NDArray[np.uint8]:  # noqa: ARG001 -- a task's form
        return np.asarray(_picture(example[0]).convert("L").resize((side, side)), dtype=np.uint8)

    def collate(samples: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        pictures = torch.from_numpy(np.stack(samples))[:, None].float() / 255
        return pictures, pictures

    return Task("image-class", prepare, collate, metrics.mean_squared_error)


def segmentation(resolution: int, classes: int) -> Task:
    """Images twice as wide as high, and the class of each pixel.

    Training uses random crops of half to full size, mirrored in half of all cases. Evaluation uses the whole image
    and mask, resized to the model's size.
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
    """Images and boxes, as `boxes_batch` packs them.

    The short side is resized to `resolution`, the long one to at most 1333 / 800 of that; images are not cropped.
    `normalise`: apply ImageNet's mean and standard deviation, for a model that does not do so itself.
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
        # Detectors reject boxes without an area.
        kept = (boxes[:, 2:] - boxes[:, :2]).min(axis=1, initial=np.inf) >= 1
        return pixels, boxes[kept], np.asarray(labels, np.int64)[kept]

    def collate(samples: Sequence[Any]) -> tuple[Any, Any]:
        pictures = [normalised(pixels[None], plain=not normalise)[0] for pixels, _, _ in samples]
        boxes = [torch.from_numpy(np.ascontiguousarray(each)) for _, each, _ in samples]
        labels = [torch.from_numpy(np.ascontiguousarray(each)) for _, _, each in samples]
        _refuse(torch.cat(labels), classes, "label", "--model classes=N")
        return boxes_batch(pictures, boxes, labels)

    return Task("image-boxes", prepare, collate, metrics.mean_average_precision)


def boxes_batch(
    pictures: list[torch.Tensor], boxes: list[torch.Tensor], labels: list[torch.Tensor]
) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    """Return images and boxes of any size as tensors whose first dimension is the sample.

    Inputs: the images, padded below and to the right; their heights and widths; boxes; labels, with PADDING for padding
    boxes. The target has the boxes and labels again, for the metric.
    """
    sizes = torch.tensor([picture.shape[-2:] for picture in pictures])
    most = max(1, *(len(each) for each in labels))
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
    """Windows of tokens; each token is predicted from those before it."""

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
    """What is needed to get an answer's text from the positions that a model predicts."""

    number: str
    paragraph: str
    answers: tuple[str, ...]
    spans: NDArray[np.int64]
    """First character in the paragraph and the one after the last, per token; equal for tokens outside it."""


def question_answering(sequence: int, vocabulary: int) -> Task:
    """Questions with their paragraphs as WordPieces; the vocabulary is `vocab.txt` in the data set's folder."""

    def closed(*_given: Any) -> Any:
        raise InputError("the vocabulary must be opened before questions are read")

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
            f"{root} has no {VOCABULARY_FILE} (the WordPiece vocabulary)",
            next_step=f"copy the {VOCABULARY_FILE} of your BERT model to {path}",
        )
    make = library("tokenizers", "transformers", "reading questions").BertWordPieceTokenizer
    try:
        plain, tokenizer = make(str(path), lowercase=True), make(str(path), lowercase=True)
    except Exception as error:  # noqa: BLE001 -- the library has no error class for a bad file
        raise DamagedDataError(f"{path} is not a WordPiece vocabulary: {str(error)[:200]}") from None
    tokenizer.enable_truncation(sequence, stride=sequence // 4, strategy="only_second")
    tokenizer.enable_padding(length=sequence)
    return partial(_prepare_question, plain, tokenizer, min(QUESTION_TOKENS, sequence // 4))


def _prepare_question(
    plain: Any, tokenizer: Any, longest: int, example: Question, train: bool, source: Random
) -> dict[str, Any]:
    """Return one window of the paragraph: in training one with the answer, in evaluation the first.

    A paragraph that does not fit in one window has several; almost all of SQuAD's fit in 384 tokens.
    """
    # Limit the length of the question, so that the paragraph keeps its room.
    offsets = plain.encode(example.question, add_special_tokens=False).offsets[:longest]
    first = tokenizer.encode(example.question[: offsets[-1][1] if offsets else 0], example.paragraph)
    windows = [first, *first.overflowing]
    places = [_place(window, example) for window in windows] if train else [(0, 0)]
    holding = [number for number, (_, end) in enumerate(places) if end]
    chosen = int(source.choice(holding)) if holding else 0
    window, (start, end) = windows[chosen], places[chosen]
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
    """Return first and last token of the first answer; (0, 0), which means no answer, if it is not in the window."""
    if not example.answers:
        return 0, 0
    text, begins = example.answers[0]
    # With two texts, positions refer to the second: the paragraph.
    start, end = window.char_to_token(begins, 1), window.char_to_token(begins + len(text) - 1, 1)
    return (0, 0) if start is None or end is None else (start, end)


def normalised(
    pictures: NDArray[np.uint8], mean: Colours = MEAN, deviation: Colours = DEVIATION, *, plain: bool = False
) -> torch.Tensor:
    """Convert images from bytes (channels last) to floats (channels first); `plain`: from 0 to 1, not normalised."""
    numbers = torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous().float().div_(255)
    if plain:
        return numbers
    return numbers.sub_(torch.tensor(mean).view(3, 1, 1)).div_(torch.tensor(deviation).view(3, 1, 1))


def _refuse(numbers: torch.Tensor, below: int, what: str, fix: str) -> None:
    """Reject an index outside the model's range: on an accelerator it would end the run without a clear error."""
    if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < below:
        wrong = int(numbers.max()) if int(numbers.max()) >= below else int(numbers.min())
        raise InputError(f"the data has a {what} of {wrong}; the model takes 0 to {below - 1}", next_step=fix)


def _picture(picture: Any) -> Any:
    """Return a Pillow image in RGB."""
    if isinstance(picture, np.ndarray):
        flat = picture.squeeze(2) if picture.shape[2:] == (1,) else picture
        return images.pillow().fromarray(np.ascontiguousarray(flat)).convert("RGB")
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def _resized(picture: Any, width: int, height: int) -> NDArray[np.uint8]:
    image = _picture(picture)
    if image.size != (width, height):
        image = image.resize((width, height), resample=images.pillow().Resampling.BILINEAR)
    return np.array(image, dtype=np.uint8)


def _padded_cut(picture: Any, size: int, source: Random) -> NDArray[np.uint8]:
    """Return a crop with the size of the image, taken after adding a black border; mirrored in half of all cases."""
    wide = np.pad(_resized(picture, size, size), ((BORDER, BORDER), (BORDER, BORDER), (0, 0)))
    top, left = source.integers(2 * BORDER + 1, size=2)
    return _mirrored(wide[top : top + size, left : left + size], source)


def _mirrored(picture: NDArray[np.uint8], source: Random) -> NDArray[np.uint8]:
    """Return the image mirrored in half of all cases."""
    return np.ascontiguousarray(picture[:, ::-1] if source.random() < 0.5 else picture)
