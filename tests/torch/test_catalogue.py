"""The catalogue: its entry for every workload, that it is up to date, and the command that prints it."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from conftest import HANG_S
from steelyard import plugins
from steelyard.cli.main import main
from steelyard.errors import InputError
from steelyard.inputs.catalogue import count_workload, default_mode, load
from steelyard.worker import catalogue
from steelyard.worker.engine.flops import count
from steelyard.worker.engine.footprint import footprint
from steelyard.worker.workloads import llama, tiny, vision
from steelyard.worker.workloads.bundle import ModelBundle, call

if TYPE_CHECKING:
    from collections.abc import Callable

SHIPPED: dict[str, dict[str, Any]] = load()["workloads"]
MODELS = [name for name, entry in SHIPPED.items() if entry["parameters"] is not None]
# The rest is counted again by benchmarks/figures/catalogue.py.
LONG = [pytest.mark.full("takes long: 10 to 20 s of counting")]
QUICK = [
    "tiny",
    "autoencoder",
    "all-reduce",
    "sim",
    *(pytest.param(name, marks=LONG) for name in ("wideresnet28-10", "gpt", "mobilenet-v3-small")),
]


def test_the_file_has_every_workload_and_nothing_else() -> None:
    assert list(SHIPPED) == sorted(plugins.BUILTIN["workload"])
    assert set(plugins.BUILTIN["workload"]) - set(MODELS) == {
        "sim",
        *(name for name, entry in SHIPPED.items() if entry["family"] == "ceilings"),
    }


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_counted_and_near_its_published_size(name: str) -> None:
    entry = SHIPPED[name]
    assert entry["parameters"] == pytest.approx(entry["published"]["parameters"], rel=0.01)
    assert entry["published"]["source"]
    train, infer = entry["flops_per_sample"]["train"], entry["flops_per_sample"]["infer"]
    # Less than three times: the first layer's inputs need no gradient, and Faster R-CNN trains on fewer regions.
    assert 2.5 * infer < train <= 3 * infer
    memory = entry["memory"]
    assert memory["gradient_bytes"] <= memory["parameter_bytes"]
    # SGD keeps something only with momentum.
    shares = {"SGD": (0, 1), "AdamW": (2,)}[memory["optimizer"]]
    assert memory["optimizer_bytes"] in [share * memory["gradient_bytes"] for share in shares]
    assert memory["activation_bytes"] > 0
    assert entry["metric"]


def test_the_description_of_a_workload_is_true() -> None:
    extras = {"torch", "timm", "transformers", "segmentation"}
    for name, entry in SHIPPED.items():
        assert set(entry["extras"]) <= extras, name
        assert set(entry["data"]) <= set(plugins.BUILTIN["data"]), name
        assert set(entry["reduced"]) <= set(entry["options"]), name
        assert default_mode(name) == entry["modes"][0]
    assert default_mode("all-reduce") == "ceiling"
    assert default_mode("somebody-elses") == "train"


@pytest.mark.parametrize("name", QUICK)
def test_the_file_is_fresh(name: str) -> None:
    assert json.loads(json.dumps(catalogue.entry(name, {}))) == SHIPPED[name]


# -- counting


def of_module(module: nn.Module, *shape: int) -> Callable[[], ModelBundle]:
    optimizer = partial(torch.optim.SGD, lr=0.1)
    return lambda: ModelBundle(
        module, lambda output, _: output.sum(), optimizer, lambda n, _: (torch.ones(n, *shape), torch.zeros(n))
    )


@pytest.mark.parametrize(
    ("layer", "channels"),
    [
        (nn.Conv2d(8, 16, 3, groups=8, bias=False), 8),
        (nn.Conv2d(8, 16, 3, stride=2, groups=2, bias=False), 8),
        (nn.ConvTranspose2d(8, 4, 2, stride=2, groups=4, bias=False), 8),
    ],
)
def test_a_grouped_convolution_trains_with_three_times_its_forward_pass(layer: nn.Module, channels: int) -> None:
    """Except the gradient of its inputs; torch's own formula overcounts by the number of groups."""
    make = of_module(layer, channels, 9, 9)
    forward = count(make, train=False).flops_per_sample
    layer.requires_grad_(requires_grad=True)
    assert forward is not None
    assert count(make, train=True).flops_per_sample == 2 * forward


@pytest.mark.parametrize("size", [pytest.param("1B", marks=LONG), "8B", pytest.param("70B", marks=LONG)])
def test_llama_by_formula(size: str) -> None:
    make = partial(llama.build, size, sequence=64)
    closed = llama.closed_flops(llama.SIZES[size], 64)
    assert count(make, train=False).flops_per_sample == closed
    if size == "1B":
        found = count(make, train=True)
        assert found.flops_per_sample == 3 * closed
        assert "assumed true" in found.method


class Asking(nn.Module):
    """Needs values that meta tensors do not have."""

    def __init__(self, question: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.question = question

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.layer(inputs)
        return hidden if self.question(hidden) else hidden[:0]


def test_conditions_are_taken_to_hold_and_numbers_stay_unknown() -> None:
    said = count(of_module(Asking(lambda hidden: hidden.isfinite().all()), 4), train=False)
    assert (said.flops_per_sample, "assumed true" in said.method) == (2 * 4 * 4, True)
    asked = count(of_module(Asking(lambda hidden: hidden.sum().item() > 0), 4), train=False)
    assert asked.flops_per_sample is None
    assert asked.method.startswith("unknown: ")


def kept_on_the_cpu(bundle: ModelBundle, samples: int) -> int:
    """By autograd itself, with real tensors; each storage once, without parameters."""
    inputs, target = bundle.batch(samples, torch.Generator().manual_seed(0))
    known = {tensor.data_ptr() for tensor in (*bundle.module.parameters(), *bundle.module.buffers())}
    seen: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in known:
            seen[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = bundle.loss(call(bundle.module.train(), inputs), target)
    assert loss.isfinite()
    return sum(tensor.untyped_storage().nbytes() for tensor in seen.values())


@pytest.mark.parametrize("make", [tiny.build, partial(vision.resnet50, classes=10, resolution=64)])
def test_what_a_sample_keeps_is_what_autograd_keeps(make: Callable[[], ModelBundle]) -> None:
    found = footprint(make)
    assert found.activation_bytes is not None
    assert 2 * found.activation_bytes == pytest.approx(kept_on_the_cpu(make(), 2), rel=0.01)


def test_fused_attention_does_not_keep_its_scores() -> None:
    """Twice the length saves twice as much, although the scores are four times as many."""
    small: dict[str, Any] = {"layers": 1, "width": 64, "heads": 1, "groups": 1, "hidden": 64, "vocabulary": 32}
    short, long = (footprint(partial(llama.build, sequence=length, **small)) for length in (512, 1024))
    assert short.activation_bytes is not None
    assert long.activation_bytes is not None
    assert 1.95 < long.activation_bytes / short.activation_bytes < 2.05


def test_a_model_whose_forward_pass_cannot_be_counted() -> None:
    found = footprint(of_module(Asking(lambda hidden: hidden.sum().item() > 0), 4))
    assert found.activation_bytes is None
    assert found.method.startswith("unknown: ")
    assert found.parameter_bytes == 4 * 20


# -- the verb


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["workloads", *words]) == 0
    return capsys.readouterr().out


def test_the_list_fits_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_entry_points", lambda kind: {"somebody-elses": "a:b"})
    out = said(capsys)
    assert max(map(len, out.splitlines())) <= 120
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    assert set(SHIPPED) <= set(lines)
    assert "25,557,032" in lines["resnet50"]
    assert "not counted" in lines["somebody-elses"]
    found = json.loads(said(capsys, "--json"))
    assert (found["not_counted"], found["workloads"]) == (["somebody-elses"], SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_everything_about_one(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, name)
    assert max(map(len, out.splitlines())) <= 120
    assert SHIPPED[name]["title"] in out
    assert all(mode in out for mode in SHIPPED[name]["modes"])
    assert json.loads(said(capsys, name, "--json")) == {"shape": "workloads-show/1", "name": name, **SHIPPED[name]}


def test_other_options_are_counted_by_a_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workloads", "tiny", "--model", "width=32", "--model", "depth=1"]) == 0
    assert f"{33 * 32 + 33 * 10:,}" in capsys.readouterr().out


@pytest.mark.full("takes long: 6 s, another process that loads torch")
def test_an_unknown_option_is_refused_by_the_process_that_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workloads", "tiny", "--model", "wide=3"]) == 2
    assert "model.wide: unknown option; valid: width, depth" in capsys.readouterr().err


def test_what_is_refused_without_counting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workloads", "resnet51"]) == 2
    assert "did you mean resnet50?" in capsys.readouterr().err
    assert main(["workloads", "--model", "width=3"]) == 2
    assert main(["workloads", "tiny", "--model", "width"]) == 2


def test_a_process_without_an_answer_is_an_error_with_its_last_output(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess([], 1, b"", b"Traceback\nImportError: no torch here\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(InputError, match="tiny: cannot be counted on this machine: ImportError: no torch here"):
        count_workload("tiny", {})


def test_the_verb_needs_no_torch() -> None:
    code = "import sys\nsys.modules['torch'] = None\nfrom steelyard.cli.main import main\nsys.exit(main(['workloads']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=HANG_S)
    assert (done.returncode, "resnet50" in done.stdout) == (0, True), done.stderr
