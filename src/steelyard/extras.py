"""The packages that parts of steelyard need besides its own, and the command that installs them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

EXTRAS = {
    "torch": ("torch>=2.1", "torchvision>=0.16"),
    "images": ("pillow>=10.3",),
    "timm": ("timm>=1.0",),
    "transformers": ("transformers>=4.45",),
    "segmentation": ("segmentation-models-pytorch>=0.4",),
    "quality": ("torchmetrics>=1.4", "pycocotools>=2.0.7"),
    "nvidia": ("nvidia-ml-py>=12.535.133",),
    "kubernetes": ("kubernetes>=31.0",),
    "report": ("vl-convert-python>=1.7",),
    "archive": ("duckdb>=1.3",),
}
"""Those of pyproject.toml. The worker runs where the package is not installed, so it cannot ask for its metadata."""
MODULES = {
    "torch": "torch",
    "torchvision": "torch",
    "timm": "timm",
    "transformers": "transformers",
    "segmentation_models_pytorch": "segmentation",
    "PIL": "images",
    "torchmetrics": "quality",
}
"""Which extra installs a module; scipy is installed with the package."""


def install_line(*extras: str) -> str:
    """Return the command that installs what these extras need.

    It names the packages, not `steelyard[EXTRA]`: that works only where pip finds steelyard, which may be installed
    from a folder or a wheel.
    """
    return " ".join(["pip install", *(f"'{package}'" for extra in extras for package in EXTRAS[extra])])


def missing_modules(modules: Iterable[str]) -> list[str]:
    """Return the modules that this Python does not have, without importing any."""
    return [module for module in modules if find_spec(module) is None]


def line_for_modules(modules: Iterable[str]) -> str:
    """Return the command that installs these missing modules."""
    missing = list(modules)
    # Not the extra with torch for torchvision alone: it could replace the installed torch. Other packages may need
    # modules that no extra has.
    alone = [name for name in missing if name not in MODULES or (name == "torchvision" and "torch" not in missing)]
    extras = dict.fromkeys(MODULES[name] for name in missing if name not in alone)
    return " ".join([install_line(*extras), *alone])
