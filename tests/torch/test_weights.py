"""Weights from a file: exactly those of the model, and nothing else from a file of anybody."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch

from conftest import make_spec
from steelyard.analysis.rows import row_of
from steelyard.analysis.summary import summarise
from steelyard.contracts.spec import Budget, Loader
from steelyard.errors import InputError, SteelyardError
from steelyard.rules.table.settings import differences
from steelyard.worker.workloads import segmentation, tiny
from steelyard.worker.workloads import weights as module
from steelyard.worker.workloads.bundle import ModelBundle
from steelyard.worker.workloads.weights import load_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec

NAMES = {kind: name for name, kind in module.KINDS.items()}


def written(path: Path, tensors: dict[str, torch.Tensor], **header: Any) -> Path:
    """Write a file as the format describes it, with some entries of the header replaced."""
    entries: dict[str, Any] = {}
    data = b""
    for name, tensor in tensors.items():
        content = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.dim() else b"\0" * 8
        place = [len(data), len(data) + len(content)]
        entries[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
        data += content
    text = json.dumps({"__metadata__": {"format": "pt"}, **entries, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def other_tiny() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return tiny.build().module.state_dict()


def test_every_tensor_is_that_of_the_file(tmp_path: Path) -> None:
    tensors = other_tiny()
    path = written(tmp_path / "w", tensors)
    torch.manual_seed(0)
    bundle = tiny.build()
    assert load_weights(bundle, path) == hashlib.sha256(path.read_bytes()).hexdigest()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in bundle.module.state_dict().items())
    half = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    load_weights(bundle, written(tmp_path / "half", half))
    loaded = bundle.module.state_dict()
    assert all(torch.equal(tensor.float(), loaded[name]) for name, tensor in half.items())
    assert {tensor.dtype for tensor in loaded.values()} == {torch.float32}


def test_the_files_of_the_library_are_read(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch")
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(1)
    tensors = torchvision.models.resnet18().state_dict()
    library.save_file(tensors, tmp_path / "w")
    bundle = ModelBundle(torchvision.models.resnet18(), *[None] * 3)  # type: ignore[arg-type]
    load_weights(bundle, tmp_path / "w")
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in bundle.module.state_dict().items())


def test_a_backbone_takes_the_weights_of_a_classifier(tmp_path: Path) -> None:
    """Its head is not used, and files of older releases have no counters."""
    torchvision = pytest.importorskip("torchvision")
    pytest.importorskip("segmentation_models_pytorch")
    torch.manual_seed(1)
    tensors = torchvision.models.resnet18().state_dict()
    path = written(tmp_path / "w", {name: tensor for name, tensor in tensors.items() if tensor.dim()})
    bundle = segmentation.deeplab(classes=5, resolution=64, encoder="resnet18")
    load_weights(bundle, path)
    found = bundle.module.encoder.state_dict()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in found.items() if tensor.dim())
    assert len(found) == len(tensors) - 2
    fewer = {name: tensor for name, tensor in tensors.items() if tensor.dim() and name != "layer4.1.bn2.bias"}
    with pytest.raises(InputError, match=r"the file lacks layer4\.1\.bn2\.bias"):
        load_weights(bundle, written(tmp_path / "w", fewer))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"0.bias": None}, r"the file lacks 0\.bias"),
        (
            {"0.bias": None, "0.weight": None, "2.bias": None, "2.weight": None},
            r"the file lacks .*, 2\.weight and 1 more",
        ),
        ({"7.bias": torch.zeros(3)}, r"the model does not have 7\.bias"),
        ({"0.bias": torch.zeros(3)}, r"not as in the model: 0\.bias \(3 instead of 64\)"),
        ({"0.bias": torch.zeros(64, dtype=torch.int8)}, r"0\.bias \(torch\.int8 instead of torch\.float32\)"),
        ({"\x1b[31mred\n" + 500 * "x": torch.zeros(3)}, r"does not have \\x1b\[31mred\\nx{40}x*$"),
    ],
)
def test_other_weights_are_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    tensors = {name: tensor for name, tensor in {**other_tiny(), **change}.items() if tensor is not None}
    bundle = tiny.build()
    before = {name: tensor.clone() for name, tensor in bundle.module.state_dict().items()}
    with pytest.raises(InputError) as refused:
        load_weights(bundle, written(tmp_path / "w", tensors))
    assert "w does not have the weights of this model" in str(refused.value)
    assert any(re.search(says, problem.problem) and len(problem.problem) < 300 for problem in refused.value.problems)
    assert all(torch.equal(tensor, before[name]) for name, tensor in bundle.module.state_dict().items())


def replaced(name: str, **values: Any) -> dict[str, Any]:
    entry = {"dtype": "F32", "shape": [64], "data_offsets": [64 * 64 * 4, 64 * 65 * 4]}
    return {name: {**entry, **values}}


@pytest.mark.parametrize(
    "header",
    [
        replaced("0.bias", dtype="F7"),
        replaced("0.bias", shape=[-64]),
        replaced("0.bias", shape=[10**30]),
        replaced("0.bias", shape="64"),
        replaced("0.bias", shape=[64, *40 * [1]]),
        replaced("0.bias", data_offsets=[0, 256]),
        replaced("0.bias", data_offsets=[-256, 0]),
        replaced("0.bias", data_offsets=[10**12, 10**12 + 256]),
        {"0.bias": 5},
        {"0.bias": {}},
    ],
)
def test_a_header_that_does_not_describe_its_file_is_refused(tmp_path: Path, header: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"safetensors"):
        load_weights(tiny.build(), written(tmp_path / "w", other_tiny(), **header))


def test_what_is_no_such_file_is_refused_and_never_executed(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "executed"),)

    path, whole = tmp_path / "w", written(tmp_path / "whole", other_tiny()).read_bytes()
    contents = [
        pickle.dumps(Hostile()),
        b"",
        b"\x02",
        (2**62).to_bytes(8, "little") + whole[8:],
        (2).to_bytes(8, "little") + b"[]",
        (20).to_bytes(8, "little") + b"\xff" * 20,
        (40_000).to_bytes(8, "little") + b"[" * 40_000,
        whole[:-1],
        whole + b"\0",
    ]
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"safetensors"):
            load_weights(tiny.build(), path)
    assert not (tmp_path / "executed").exists()
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InputError, match=r"bytes, too many for this model"):
        load_weights(tiny.build(), path)
    os.mkfifo(tmp_path / "pipe")
    for place, says in (
        (tmp_path, "is not a file"),
        (tmp_path / "pipe", "is not a file"),
        (tmp_path / "no", "No such"),
    ):
        with pytest.raises(InputError, match=says):
            load_weights(tiny.build(), place)


def test_a_run_says_which_weights_it_began_with(
    tmp_path: Path, simulate: Callable[[RunSpec], RunRecord], torch_as_it_was: None
) -> None:
    path = written(tmp_path / "w", other_tiny())
    short = Budget(min_steps=4, max_steps=4, min_seconds=0)
    rows = []
    for given in (str(path), None):
        record = simulate(make_spec(workload="tiny", device="cpu", budget=short, weights=given))
        assert record.status.code == "completed", record.status
        assert record.settings is not None
        expected = "random" if given is None else hashlib.sha256(path.read_bytes()).hexdigest()
        assert record.settings.values["initial_weights"] == expected
        rows.append(row_of(summarise([record])[0]))
    assert [(one.key, one.role) for one in differences(*rows)] == [("initial_weights", "training")]


@pytest.mark.parametrize(
    "settings",
    [
        {"device": "sim"},
        {"device": "cpu", "workload": "tiny", "mode": "load", "loader": Loader(place="host")},
        {"device": "cpu", "workload": "matmul", "mode": "ceiling"},
    ],
)
def test_without_a_model_there_are_no_weights(settings: dict[str, Any]) -> None:
    with pytest.raises((ValueError, SteelyardError), match=r"weights: .* has no model"):
        make_spec(**settings, weights="/w")
