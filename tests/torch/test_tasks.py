"""From examples of real data to batches of the models, and the quality of their outputs."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from conftest import HANG_S
from steelyard import plugins
from steelyard.data.form import Question
from steelyard.errors import InputError
from steelyard.worker.workloads import metrics, tasks
from steelyard.worker.workloads.bundle import call, each_tensor

if TYPE_CHECKING:
    from pathlib import Path

    from steelyard.worker.workloads.bundle import ModelBundle, Task


def source(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def reduced(name: str, **options: Any) -> ModelBundle:
    build = plugins.load("workload", name)
    made: ModelBundle = build(**{**build.about.reduced, **options})
    return made


def opened(task: Task, root: Path) -> Task:
    return task if task.open is None else task.open(root)


# -- every workload reads the data that it lists

LONG = [pytest.mark.full("takes long: half a minute of large models")]
PAIRS = [
    ("tiny", "mnist", {}),
    ("tiny", "cifar10", {}),
    ("wideresnet28-10", "cifar100", {}),
    ("wideresnet-olivia", "cifar100", {}),
    ("vit-l-16", "cifar100", {}),
    pytest.param("resnet50", "imagefolder", {}, marks=LONG),
    *(pytest.param(name, "cifar100", {}, marks=LONG) for name in ("resnet50", "swin-t", "efficientnet-b0", "timm")),
    pytest.param("mobilenet-v3-small", "cifar10", {}, marks=LONG),
    ("autoencoder", "mnist", {}),
    pytest.param("fasterrcnn-r50-fpn", "coco", {"classes": 91}, marks=LONG),
    pytest.param("deformable-detr-swin-l", "coco", {"classes": 91}, marks=LONG),
    pytest.param("segformer-b4", "cityscapes", {"classes": 19}, marks=LONG),
    ("llama", "tokens", {"vocabulary": 50257}),
    ("bert-base", "squad", {"vocabulary": 30522}),
]


@pytest.mark.parametrize(("name", "data", "options"), PAIRS)
def test_a_step_and_an_evaluation_on_real_data(name: str, data: str, options: dict[str, Any], tmp_path: Path) -> None:
    form = plugins.load("data", data)
    form.make(tmp_path, 8, 1)
    torch.manual_seed(0)
    bundle = reduced(name, **options)
    assert bundle.task is not None
    assert bundle.task.kind == form.kind
    task = opened(bundle.task, tmp_path)
    examples = form.open(tmp_path, "train")
    if task.length is not None:
        found = [examples.window(number, task.length) for number in range(2)]
    else:
        found = [examples[number] for number in range(2)]
    inputs, target = task.collate([task.prepare(example, True, source(3)) for example in found])
    synthetic, _ = bundle.batch(2, torch.Generator().manual_seed(0))
    if bundle.task.kind != "image-boxes":
        assert shapes(inputs) == shapes(synthetic)
    loss = bundle.loss(call(bundle.module.train(), inputs), target)
    assert loss.isfinite()
    loss.backward()  # type: ignore[no-untyped-call]
    inputs, target = task.collate([task.prepare(example, False, source(3)) for example in found])
    assert task.metric is not None
    metric = task.metric()
    with torch.no_grad():
        # Moving to the device must leave the target complete.
        inputs, target = each_tensor((inputs, target), lambda tensor: tensor.to("cpu"))
        metric.update(call(bundle.module.eval(), inputs), target)
    assert metric.compute() >= 0
    assert metric.name == plugins.load("workload", name).about.metric


def shapes(data: Any) -> Any:
    found: list[Any] = []
    each_tensor(data, lambda tensor: found.append((tuple(tensor.shape), tensor.dtype)) or tensor)  # type: ignore[func-returns-value]
    return found


# -- images


def picture(height: int = 20, width: int = 30) -> Any:
    return source(1).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_pictures_are_normalised_as_torchvision_does() -> None:
    grey = np.full((1, 2, 2, 3), 255, dtype=np.uint8)
    expected = (torch.ones(3) - torch.tensor(tasks.MEAN)) / torch.tensor(tasks.DEVIATION)
    torch.testing.assert_close(tasks.normalised(grey)[0, :, 0, 0], expected)
    assert bool((tasks.normalised(grey, plain=True) == 1).all())


def test_randomness_comes_from_the_source_alone() -> None:
    task = tasks.classification(16, 10)
    shown = picture(40, 60)
    first, again, other = (task.prepare((shown, 3), True, source(seed))[0] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    whole, same = (task.prepare((shown, 3), False, source(seed))[0] for seed in (1, 2))
    assert np.array_equal(whole, same)
    assert whole.shape == (16, 16, 3)


def test_a_small_picture_is_enlarged_whole_as_torchvision_does() -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    small = picture(32, 32)
    enlarged = np.array(transforms.Resize((64, 64))(transforms.ToPILImage()(small)))
    task = tasks.classification(64, 100)
    assert np.array_equal(task.prepare((small, 99), False, source())[0], enlarged)
    cuts = [task.prepare((small, 99), True, source(seed))[0] for seed in range(8)]
    mirrored = [np.array_equal(cut, enlarged[:, ::-1]) for cut in cuts]
    assert {True, False} == set(mirrored)
    assert all(flipped or np.array_equal(cut, enlarged) for cut, flipped in zip(cuts, mirrored, strict=True))


def test_a_padded_cut_is_a_shifted_copy() -> None:
    small = picture(32, 32)
    task = tasks.classification(32, 10, padded=True)
    assert np.array_equal(task.prepare((small, 0), False, source())[0], small)
    for seed in range(8):
        cut, _ = task.prepare((small, 0), True, source(seed))
        assert cut.shape == small.shape
        wide = np.pad(small, ((4, 4), (4, 4), (0, 0)))
        places = [(top, left) for top in range(9) for left in range(9)]
        cuts = [wide[top : top + 32, left : left + 32] for top, left in places]
        assert any(np.array_equal(cut, one) or np.array_equal(cut[:, ::-1], one) for one in cuts)


def test_a_label_that_the_model_has_no_place_for_is_refused() -> None:
    task = tasks.classification(16, 10)
    with pytest.raises(InputError, match=r"(?s)a label of 10; the model takes 0 to 9.*--model classes=N"):
        task.collate([task.prepare((picture(), 10), True, source())])
    words = tasks.language(4, 100)
    with pytest.raises(InputError, match="a token of 100"):
        words.collate([np.array([1, 2, 3, 4, 100])])


def test_boxes_follow_their_picture() -> None:
    """A bright square stays inside its box in every augmentation."""
    dark = np.zeros((50, 100, 3), dtype=np.uint8)
    dark[10:30, 20:60] = 255
    example = (dark, np.array([[20, 10, 60, 30], [5, 5, 5.2, 40]], np.float32), np.array([7, 8]), 1)
    task = tasks.detection(80, 91, normalise=False)
    mirrored = set()
    for seed in range(6):
        pixels, boxes, labels = task.prepare(example, True, source(seed))
        # The long side is limited: 1333 / 800 of 80.
        assert pixels.shape == (67, 133, 3)
        assert labels.tolist() == [7]
        left, top, right, bottom = boxes[0].round().astype(int)
        inside = pixels[top + 2 : bottom - 2, left + 2 : right - 2]
        assert inside.min() > 200
        outside = pixels.astype(int).sum() - pixels[top - 2 : bottom + 2, left - 2 : right + 2].astype(int).sum()
        assert outside == 0
        mirrored.add(int(left))
    assert len(mirrored) == 2


def test_boxes_of_several_pictures_are_padded() -> None:
    pictures = [torch.ones(3, 4, 6), torch.ones(3, 5, 3)]
    boxes, labels = (
        [torch.tensor([[0.0, 0, 3, 3], [1, 1, 6, 4]]), torch.ones(0, 4)],
        [torch.tensor([3, 4]), torch.zeros(0, dtype=torch.int64)],
    )
    (whole, sizes, places, kinds), target = tasks.boxes_batch(pictures, boxes, labels)
    assert (whole.shape, sizes.tolist()) == ((2, 3, 5, 6), [[4, 6], [5, 3]])
    assert kinds.tolist() == [[3, 4], [tasks.PADDING, tasks.PADDING]]
    assert places[1].abs().sum() == 0
    assert float(whole.sum()) == 3 * (4 * 6 + 5 * 3)
    metric = metrics.mean_average_precision()
    exact = [{"boxes": place[:2], "scores": torch.ones(2), "labels": torch.tensor([3, 4])} for place in places]
    metric.update([exact[0], {name: column[:0] for name, column in exact[1].items()}], target)
    assert metric.compute() == pytest.approx(1.0)
    assert metric.others["map_50"] == pytest.approx(1.0)


def test_a_mask_keeps_its_classes_and_follows_its_picture() -> None:
    mask = np.full((64, 128), 255, dtype=np.uint8)
    mask[:, 64:] = 3
    bright = np.repeat(np.where(mask == 3, 255, 0)[:, :, None], 3, axis=2).astype(np.uint8)
    task = tasks.segmentation(32, 19)
    for seed in range(6):
        pixels, marked = task.prepare((bright, mask), True, source(seed))
        assert (pixels.shape, set(np.unique(marked)) <= {3, 255}) == ((32, 64, 3), True)
        # Except the edge, where the image is blurred and the mask is not.
        assert ((pixels[:, :, 0] > 127) == (marked == 3)).mean() > 0.97


# -- questions

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij", "##x", "who", "is", "the", "king", "of"]


@pytest.fixture
def reader(tmp_path: Path) -> Any:
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return partial(opened(tasks.question_answering(32, 1000), tmp_path).prepare)


def asked(paragraph: str, answer: str | None) -> Question:
    answers = () if answer is None else ((answer, paragraph.index(answer)),)
    return Question("q1", paragraph, "Who is the king?", answers)


def pointing_at(sample: dict[str, Any], place: tuple[int, int]) -> str:
    start, end = np.zeros(32, np.float32), np.zeros(32, np.float32)
    start[place[0]] = end[place[1]] = 9
    return metrics.answer_text(sample["asked"], start, end)


@pytest.mark.parametrize("answer", ["a", "c d", "the king of e"])
def test_the_place_of_an_answer_leads_back_to_its_text(reader: Any, answer: str) -> None:
    sample = reader(asked("a b c d is the king of e f", answer), True, source())
    assert pointing_at(sample, sample["place"]) == answer


def test_a_long_paragraph_shows_the_answer_in_training(reader: Any) -> None:
    long = " ".join("abcdefghij" * 6) + " the king"
    sample = reader(asked(long, "the king"), True, source())
    assert pointing_at(sample, sample["place"]) == "the king"
    assert sample["ids"].shape == (32,)
    # In evaluation the position is unknown.
    assert reader(asked(long, "the king"), False, source())["place"] == (0, 0)


def test_no_answer_is_the_first_token(reader: Any) -> None:
    sample = reader(asked("a b c", None), True, source())
    assert sample["place"] == (0, 0)
    assert pointing_at(sample, (0, 0)) == ""


def test_more_word_pieces_than_the_model_has_are_refused(tmp_path: Path, reader: Any) -> None:
    sample = reader(asked("a b c", "b"), True, source())
    largest = int(sample["ids"].max())
    tasks.question_answering(32, largest + 1).collate([sample])
    with pytest.raises(InputError, match=rf"the data has a token of {largest}; the model takes 0 to {largest - 1}"):
        tasks.question_answering(32, largest).collate([sample])


def test_a_folder_without_a_vocabulary(tmp_path: Path) -> None:
    task = tasks.question_answering(32, 1000)
    assert task.open is not None
    with pytest.raises(InputError, match=r"has no vocab.txt"):
        task.open(tmp_path)
    with pytest.raises(InputError, match="vocabulary must be opened"):
        task.prepare(None, True, source())


# -- metrics

GATHERED = """
import os, sys
import torch
import torch.distributed as dist
from steelyard.worker.workloads import metrics
from steelyard.worker.workloads.tasks import Asked
import numpy as np

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 2), rank=rank, world_size=2)

def close(metric, expected):
    found = metric.compute()
    assert abs(found - expected) < 1e-6, (metric.name, found, expected)

# The first rank has three samples, of which two are right; the second has one, which is wrong.
top = metrics.top1(4)
scores = torch.eye(4)[[0, 1, 2]] if rank == 0 else torch.eye(4)[[3]]
top.update(scores, torch.tensor([0, 1, 3]) if rank == 0 else torch.tensor([0]))
close(top, 0.5)

mse = metrics.mean_squared_error()
if rank == 0:  # the other has nothing to add
    mse.update(torch.zeros(2, 1, 2, 2), torch.full((2, 1, 2, 2), 3.0))
close(mse, 9.0)

words = metrics.perplexity()
words.update(torch.zeros(1, 5, 7), torch.full((1, 5), rank))
close(words, 7.0)

iou = metrics.mean_iou(2)
picture = torch.zeros(1, 2, 2, 2)
picture[:, 1] = 1.0  # everything is class 1
target = torch.tensor([[[1, 1], [255, 1]]]) if rank == 0 else torch.tensor([[[0, 1], [255, 255]]])
iou.update(picture, target)
close(iou, 0.5 * (0 + 4 / 5))

boxes = metrics.mean_average_precision()
square = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
place = torch.stack((square, square))[:1]
if rank == 0:
    found = [{"boxes": square, "scores": torch.tensor([0.9]), "labels": torch.tensor([1])}]
    boxes.update(found, {"boxes": place, "labels": torch.tensor([[1]])})
else:
    found = [{"boxes": square + 100, "scores": torch.tensor([0.8]), "labels": torch.tensor([2])}]
    boxes.update(found, {"boxes": place, "labels": torch.tensor([[2]])})
close(boxes, 0.5)
alone = metrics.mean_average_precision()
if rank == 0:
    alone.update([{"boxes": square, "scores": torch.tensor([0.9]), "labels": torch.tensor([1])}],
                 {"boxes": place, "labels": torch.tensor([[1]])})
close(alone, 1.0)

answers = metrics.exact_match_f1()
asked = Asked(str(rank), "red green blue", ("green",), np.array([[0, 0], [0, 3], [4, 9], [10, 14]]))
start, end = torch.zeros(1, 4), torch.zeros(1, 4)
start[0, 2] = 5.0
end[0, 2 if rank == 0 else 3] = 5.0  # "green", and "green blue"
answers.update((start, end), {"asked": (asked,)})
close(answers, (1 + 2 / 3) / 2)
assert abs(answers.others["exact_match"] - 0.5) < 1e-6, answers.others
# The metrics are what is tested. When the interpreter ends a thread of gloo may still run, which aborts the process.
dist.barrier()
os._exit(0)
"""


@pytest.mark.full("takes long: 40 s, two processes that load all libraries of metrics")
def test_metrics_add_up_over_ranks(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", GATHERED, str(tmp_path / "meeting")]
    common = {**os.environ, "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**common, "RANK": rank})
        for rank in ("0", "1")
    ]
    try:
        said = [process.communicate(timeout=HANG_S)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], said


def test_without_torchmetrics_the_error_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torchmetrics", "torchmetrics.text", "torchmetrics.detection"):
        monkeypatch.setitem(sys.modules, name, None)
    for make in (partial(metrics.top1, 3), metrics.perplexity, metrics.mean_average_precision, metrics.exact_match_f1):
        with pytest.raises(InputError, match="next: pip install 'torchmetrics>="):
            make()
