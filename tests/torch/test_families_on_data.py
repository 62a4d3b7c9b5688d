"""Every family reads its real format, trains on it and is evaluated with its metric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from conftest import make_spec
from steelyard import plugins
from steelyard.contracts.spec import Budget, Data, Loader, Quality
from steelyard.inputs.validate import parse_json
from steelyard.results.store import record_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec

pytestmark = pytest.mark.usefixtures("torch_as_it_was")

LONG = [pytest.mark.full("takes long: more than a minute of large models")]
CASES = [
    pytest.param("mobilenet-v3-small", "imagefolder", "top-1", marks=LONG),
    pytest.param("efficientnet-b0", "food101", "top-1", marks=LONG),
    pytest.param("timm", "webdataset", "top-1", marks=LONG),
    ("wideresnet28-10", "cifar100", "top-1"),
    pytest.param("resnet50", "cifar100", "top-1", marks=LONG),
    ("autoencoder", "mnist", "mse"),
    pytest.param("fasterrcnn-r50-fpn", "coco", "mAP", marks=LONG),
    pytest.param("deformable-detr-swin-l", "coco", "mAP", marks=LONG),
    pytest.param("segformer-b4", "cityscapes", "mIoU", marks=LONG),
    pytest.param("deeplabv3plus-r101", "cityscapes", "mIoU", marks=LONG),
    ("gpt", "tokens", "perplexity"),
    ("llama", "tokens", "perplexity"),
    ("bert-base", "squad", "F1"),
]


@pytest.mark.parametrize(("workload", "form", "metric"), CASES)
def test_a_family_on_its_own_format(
    workload: str, form: str, metric: str, tmp_path: Path, simulate: Callable[[RunSpec], RunRecord]
) -> None:
    root = tmp_path / "data"
    plugins.load("data", form).make(root, 16, 0)
    build = plugins.load("workload", workload)
    options: dict[str, Any] = {name: value for name, value in build.about.reduced.items() if name != "classes"}
    if form == "tokens":
        # The bytes, and the end of a document.
        options["vocabulary"] = 257
    record = simulate(
        make_spec(
            workload=workload,
            device="cpu",
            batch=2,
            threads=2,
            model=options,
            data=Data(format=form, path=str(root)),
            loader=Loader(place="host"),
            epoch_samples=6,
            budget=Budget(epochs=1),
            quality=Quality(samples=4),
            crosscheck_steps=0,
        )
    )
    assert record.status.code == "completed", record.status
    assert record.data is not None
    assert (record.data.format, record.steps_seen) == (form, 3)
    (found,) = record.evaluations
    assert metric.lower() in found.metric.lower()
    assert found.metric == build.about.metric
    assert found.value is not None
    assert record.loss is not None
    assert None not in record.loss.values
    assert parse_json(type(record), record_text(record), "again") == record
