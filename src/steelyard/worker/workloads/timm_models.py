"""Any image classifier of timm by name, without weights: nothing is downloaded."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from steelyard.errors import InputError, Problem
from steelyard.worker.workloads.about import About, about
from steelyard.worker.workloads.options import at_least, library
from steelyard.worker.workloads.vision import DATA, adaptive, classifier

if TYPE_CHECKING:
    from steelyard.worker.workloads.bundle import ModelBundle

NEAR = 5


@about(
    About(
        family="classification",
        title="any timm model: --model name=NAME",
        needs=("timm", "torchvision"),
        data=DATA,
        metric="top-1",
        reduced={"name": "convnext_atto", "classes": 10, "resolution": 64},
        parameters=89e6,
        source="ConvNeXt-B (the default): arXiv 2201.03545, table 1",
    )
)
def build(name: str = "convnext_base", classes: int = 1000, resolution: int | None = None) -> ModelBundle:
    """Build the model with that name, at its own or another resolution.

    Always uses AdamW: timm does not list what each model was trained with, and it hardly affects the work of a step.
    The learning rate is small because the labels of synthetic data are random.
    """
    timm = library("timm", "timm", "the workload timm")
    plain = name.partition(".")[0]
    if not timm.is_model(plain):
        near = difflib.get_close_matches(plain, timm.list_models(), n=NEAR)
        valid = ", ".join(near) if near else "a name from timm.list_models()"
        problem = Problem("name", f"unknown model {name}", valid)
        raise InputError("timm has no such model", problems=(problem,))
    at_least(1, name, classes=classes, resolution=resolution)
    own = timm.get_pretrained_cfg(name)
    side = resolution or int(own.input_size[-1] if own is not None else 224)
    # Transformers are built for one size; convolutional networks accept any and have no such option.
    sized = {"img_size": side} if own is not None and own.fixed_input_size and resolution is not None else {}
    try:
        module = timm.create_model(name, pretrained=False, num_classes=classes, **sized)
    except TypeError as error:
        problem = Problem("resolution", str(error)[:200], f"{int(own.input_size[-1])}, its own size")
        raise InputError(f"invalid option of {name}", problems=(problem,)) from None
    return classifier(module, classes, side, adaptive)
