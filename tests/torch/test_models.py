"""The workloads' models: their sizes, a step of each, their data, and rejected options."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch

from conftest import make_spec
from steelyard import plugins
from steelyard.errors import InputError
from steelyard.inputs.catalogue import load
from steelyard.worker.engine.flops import built_on_meta, count
from steelyard.worker.engine.torch_job import open_job
from steelyard.worker.measure.vendor import NvidiaSmi
from steelyard.worker.workloads import (
    bert,
    detection,
    gpt,
    llama,
    resnet_v2,
    segmentation,
    timm_models,
    tiny,
    vision,
    wideresnet,
)
from steelyard.worker.workloads.bundle import call

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.worker.workloads.bundle import ModelBundle

QUICK = (
    "tiny", "autoencoder", "gpt", "llama", "mobilenet-v3-small", "vit-l-32", "wideresnet28-10", "wideresnet-olivia",
)  # fmt: skip
LONG = pytest.mark.full("takes long: half a minute of large models")
MODELS = [
    pytest.param(name, marks=[] if name in QUICK else [LONG])
    for name, entry in load()["workloads"].items()
    if "infer" in entry["modes"] and name != "sim"
]
SMALL_GPT = partial(gpt.build, "custom", sequence=16, vocabulary=101, layers=2, heads=4, width=32)
SMALL: dict[str, Callable[[], ModelBundle]] = {
    "tiny": tiny.build,
    "gpt": SMALL_GPT,
    "wideresnet": wideresnet.build,
    "resnet50": partial(vision.resnet50, classes=10, resolution=64),
}


def parameters(bundle: ModelBundle) -> int:
    return sum(parameter.numel() for parameter in bundle.module.parameters())


def on_meta(make: Callable[[], ModelBundle]) -> ModelBundle:
    with torch.device("meta"):
        return make()


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[LONG] if name == "wideresnet" else []) for name in SMALL])
def test_a_step_of_training_and_of_inference(name: str) -> None:
    torch.manual_seed(0)
    bundle = SMALL[name]()
    inputs, target = bundle.batch(2, seeded(1))
    assert callable(bundle.optimizer)
    optimizer = bundle.optimizer(bundle.module.parameters())
    first = next(iter(bundle.module.parameters())).detach().clone()
    loss = bundle.loss(bundle.module.train()(inputs), target)
    loss.backward()
    assert all(parameter.grad is not None for parameter in bundle.module.parameters())
    optimizer.step()
    assert loss.isfinite()
    assert not torch.equal(first, next(iter(bundle.module.parameters())))
    with torch.no_grad():
        scores = bundle.module.eval()(inputs)
    assert scores.isfinite().all()
    assert bundle.loss(scores, target).isfinite()


@pytest.mark.usefixtures("torch_as_it_was")
@pytest.mark.parametrize("name", MODELS)
def test_every_model_infers_with_its_weights_cast_to_bf16(name: str) -> None:
    build = plugins.load("workload", name)
    spec = make_spec(workload=name, device="cpu", mode="infer", precision="bf16", batch=2, model=build.about.reduced)
    work = open_job(spec, NvidiaSmi()).build()[0]
    work.run(work.take())
    assert work.effective()["parameter_dtype"] == "bfloat16"
    work.close()


@pytest.mark.parametrize("name", SMALL)
def test_the_same_seed_gives_the_same_batch(name: str) -> None:
    bundle = on_meta(SMALL[name])
    inputs, target = bundle.batch(3, seeded(5))
    again, same = bundle.batch(3, seeded(5))
    other, _ = bundle.batch(3, seeded(6))
    assert len(inputs) == len(target) == 3
    assert torch.equal(inputs, again)
    assert torch.equal(target, same)
    assert not torch.equal(inputs, other)


def test_a_batch_is_on_the_cpu_for_any_default_device() -> None:
    for make in SMALL.values():
        bundle = on_meta(make)
        with torch.device("meta"):
            inputs, target = bundle.batch(1, seeded(0))
        assert inputs.device.type == target.device.type == "cpu"


@pytest.mark.parametrize("name", [name for name, entry in load()["workloads"].items() if entry["parameters"]])
def test_every_model_has_the_parameters_of_the_catalogue_and_trains(name: str) -> None:
    """Without values: the whole model is built, the reduced one also makes a training step."""
    build, entry = plugins.load("workload", name), load()["workloads"][name]
    assert parameters(built_on_meta(build)) == entry["parameters"]
    reduced = count(partial(build, **entry["reduced"]), train=True)
    assert reduced.flops_per_sample, reduced.method
    assert reduced.parameters <= entry["parameters"]


def test_wideresnet_has_36_5_million_parameters() -> None:
    assert parameters(on_meta(wideresnet.build)) == 36_536_884


def test_resnet50_has_the_published_parameters() -> None:
    assert parameters(on_meta(vision.resnet50)) == 25_557_032


def test_resnet50_v2_is_the_one_of_timm_but_for_its_strides_and_a_normalisation() -> None:
    """tf_cnn_benchmarks has the stride of a block in its first convolution, and normalises after the very first."""
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    ours = resnet_v2.build(classes=7, resolution=64).module.eval()
    theirs = timm.create_model("resnetv2_50", num_classes=7).eval()
    stem = ours.first_norm
    theirs.stem = torch.nn.Sequential(ours.first, stem, torch.nn.ReLU(), torch.nn.MaxPool2d(3, 2, 1))
    blocks = [block for stage in theirs.stages for block in stage.blocks]
    assert len(blocks) == len(ours.blocks) == 16
    for block, own in zip(blocks, ours.blocks, strict=True):
        block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride
        pairs = [(block.conv1, own.narrow), (block.conv2, own.middle), (block.conv3, own.widen)]
        pairs += [(block.norm1, own.norm1), (block.norm2, own.norm2), (block.norm3, own.norm3)]
        pairs += [(block.downsample.conv, own.shortcut)] if own.shortcut is not None else []
        for part, of_ours in pairs:
            part.load_state_dict(of_ours.state_dict())
    theirs.norm.load_state_dict(ours.norm.state_dict())
    theirs.head.fc.weight.data = ours.head.weight.data[:, :, None, None]
    theirs.head.fc.bias.data = ours.head.bias.data
    images = torch.randn(2, 3, 64, 64)
    assert torch.allclose(ours(images), theirs(images), atol=1e-4)


def test_deeplab_computes_at_an_eighth_of_the_images_side() -> None:
    module = segmentation.deeplab(classes=5, resolution=64, encoder="resnet18").module.eval()
    features = module.encoder(torch.randn(1, 3, 64, 128))
    assert [tuple(map_.shape[2:]) for map_ in features[-3:]] == [(8, 16)] * 3


@pytest.mark.parametrize("size", gpt.SIZES)
def test_every_gpt_builds_on_meta_with_about_as_many_parameters_as_its_name_says(size: str) -> None:
    named = float(size[:-1]) * {"M": 1e6, "B": 1e9}[size[-1]]
    bundle = on_meta(partial(gpt.build, size))
    assert all(parameter.is_meta for parameter in bundle.module.parameters())
    assert parameters(bundle) == pytest.approx(named, rel={"117M": 0.07, "800M": 0.15}.get(size, 0.03))


def test_gpt_117m_is_gpt2_small() -> None:
    assert parameters(on_meta(gpt.build)) == 124_439_808


def test_gpt_sees_no_later_token() -> None:
    torch.manual_seed(0)
    bundle = SMALL_GPT()
    tokens, target = bundle.batch(1, seeded(0))
    assert torch.equal(tokens[:, 1:], target[:, :-1])
    changed = tokens.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % 101
    with torch.no_grad():
        before, after = bundle.module(tokens), bundle.module(changed)
    assert torch.allclose(before[:, :9], after[:, :9], atol=1e-6)
    assert not torch.allclose(before[:, 9:], after[:, 9:], atol=1e-6)


# Parameters in the published weights (model pages on Hugging Face).
LLAMAS = {
    "1B": 1_235_814_400, "8B": 8_030_261_248, "7B": 6_738_415_616, "13B": 13_015_864_320, "70B": 68_976_648_192,
}  # fmt: skip


@pytest.mark.parametrize("size", llama.SIZES)
def test_the_shape_of_a_llama_gives_its_published_parameters(size: str) -> None:
    shape = llama.SIZES[size]
    keys_and_values = 2 * shape.width * shape.groups * shape.width // shape.heads
    layer = 2 * shape.width**2 + keys_and_values + 3 * shape.width * shape.hidden + 2 * shape.width
    embeddings = (1 if shape.tied else 2) * shape.vocabulary * shape.width
    assert embeddings + shape.layers * layer + shape.width == LLAMAS[size]


@pytest.mark.parametrize("workload", [gpt, llama])
def test_a_padded_vocabulary_changes_the_model_and_not_the_data(workload: Any) -> None:
    small: dict[str, Any] = {"layers": 1, "heads": 8, "width": 32, "sequence": 16, "vocabulary": 101}
    plain, padded = (workload.build(**small, vocabulary_multiple=multiple) for multiple in (1, 64))
    wide = workload.build(**{**small, "vocabulary": 128})
    assert parameters(plain) < parameters(padded) == parameters(wide)
    tokens, target = padded.batch(50, seeded(0))
    assert max(int(tokens.max()), int(target.max())) == 100
    assert torch.equal(tokens, plain.batch(50, seeded(0))[0])
    assert padded.module(tokens[:1]).shape[-1] == 128
    with pytest.raises(InputError, match="vocabulary_multiple: is 0"):
        workload.build(vocabulary_multiple=0)


def test_a_gpt_size_may_be_changed() -> None:
    wider = on_meta(partial(gpt.build, "10M", layers=1))
    assert len(wider.module.get_submodule("layers")._modules) == 1


def test_what_cannot_be_built_is_refused_with_what_is_valid() -> None:
    with pytest.raises(InputError, match=r"unknown size 3B.*10M, 25M, 117M.*175B, custom"):
        gpt.build("3B")
    with pytest.raises(InputError, match="heads: is missing"):
        gpt.build("custom", layers=2, width=32)
    with pytest.raises(InputError, match="width: is 32; valid: a multiple of the 5 heads"):
        gpt.build("custom", layers=2, heads=5, width=32)
    with pytest.raises(InputError, match=r"(?s)sequence: is 0.*vocabulary: is -1"):
        gpt.build("10M", sequence=0, vocabulary=-1)
    with pytest.raises(InputError, match=r"(?s)width: is 0.*depth: is 0"):
        tiny.build(0, 0)
    with pytest.raises(InputError, match="classes: is 0"):
        wideresnet.build(0)
    with pytest.raises(InputError, match="depth: is 12; valid: 10, 16"):
        wideresnet.build(depth=12)
    with pytest.raises(InputError, match="resolution: is 0"):
        vision.resnet50(resolution=0)
    with pytest.raises(InputError, match="resolution: is 225; valid: a multiple of 16"):
        vision.vit_l_16(resolution=225)
    with pytest.raises(InputError, match="width: is 100; valid: a multiple of 32"):
        vision.swin_t(width=100)
    with pytest.raises(InputError, match="unknown size 3B; valid: 1B, 8B"):
        llama.build("3B")
    with pytest.raises(InputError, match="heads: is 32; valid: a multiple of 3"):
        llama.build("1B", groups=3)
    with pytest.raises(InputError, match="width: is 100; valid: a multiple of 64"):
        bert.base(width=100)
    with pytest.raises(InputError, match="layers: is 1; valid: at least 2"):
        detection.deformable_detr(layers=1)
    with pytest.raises(InputError, match="unknown encoder resnet"):
        segmentation.deeplab(encoder="resnet")
    with pytest.raises(InputError, match=r"resnet5O; valid: .*resnet50"):
        timm_models.build("resnet5O")


def test_without_torchvision_the_error_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(InputError, match="next: pip install torchvision"):
        vision.resnet50()


@pytest.mark.parametrize(
    ("build", "library", "package"),
    [
        (timm_models.build, "timm", "timm"),
        (llama.build, "transformers", "transformers"),
        (bert.base, "transformers", "transformers"),
        (segmentation.segformer, "segmentation_models_pytorch", "segmentation-models-pytorch"),
    ],
)
def test_without_its_library_the_error_says_what_to_type(
    build: Callable[[], ModelBundle], library: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=rf"needs {library}(?s:.*)next: pip install '{package}>="):
        build()


def test_llama_makes_the_tokens_that_have_the_highest_scores() -> None:
    """With a cache the same result as without, where every token is computed again from all before it."""
    torch.manual_seed(0)
    bundle = llama.build(layers=2, width=64, heads=4, groups=2, hidden=128, sequence=16, vocabulary=101)
    assert bundle.generation is not None
    module = bundle.module.eval()
    prompts = torch.randint(101, (3, 7), generator=seeded(2))
    with torch.inference_mode():
        last, state = bundle.generation.prefill(module, prompts)
        made = [last]
        for _ in range(5):
            last, state = bundle.generation.decode(module, last, state)
            made.append(last)
        tokens = prompts
        for _ in range(6):
            tokens = torch.cat((tokens, module(tokens)[:, -1].argmax(dim=-1, keepdim=True)), dim=1)
    assert torch.equal(torch.cat(made, dim=1), tokens[:, 7:])


@pytest.mark.full("takes long: 14 s of a detector")
def test_a_detector_counts_the_same_with_values_and_without() -> None:
    """With all its regions; only counting works without values."""
    from torch.utils.flop_counter import FlopCounterMode

    torch.manual_seed(0)
    make = partial(detection.fasterrcnn, classes=5, resolution=64, boxes=2, regions=16, proposals=32)
    bundle = make()
    inputs, target = bundle.batch(2, seeded(0))
    with FlopCounterMode(display=False) as counter:
        bundle.loss(call(bundle.module.train(), inputs), target).backward()  # type: ignore[no-untyped-call]
    assert count(make, train=True).flops_per_sample == counter.get_total_flops() / 2


@pytest.mark.full("takes long: 4 s of a detector")
def test_a_detector_ignores_the_padding() -> None:
    torch.manual_seed(0)
    bundle = detection.deformable_detr(classes=5, resolution=64, boxes=2, width=32, depth=2, layers=2, queries=10)
    (pictures, sizes, boxes, labels), _ = bundle.batch(1, seeded(0))
    wide = torch.nn.functional.pad(boxes, (0, 0, 0, 3)), torch.nn.functional.pad(labels, (0, 3), value=-1)
    module = bundle.module.eval()
    module.training = True  # the loss, without stochastic depth
    assert torch.equal(module(pictures, sizes, boxes, labels), module(pictures, sizes, *wide))
    module.training = False
    found = module(pictures, sizes, boxes, labels)[0]
    assert found["boxes"].shape == (50, 4)
    assert bool((found["scores"].diff() <= 0).all())
    assert int(found["labels"].max()) < 5
