"""The packages that parts of steelyard need besides its own, and the command that installs them."""

from __future__ import annotations

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


def install_line(*extras: str) -> str:
    """Return the command that installs what these extras need.

    It names the packages, not `steelyard[EXTRA]`: that works only where pip finds steelyard, which may be installed
    from a folder or a wheel.
    """
    return " ".join(["pip install", *(f"'{package}'" for extra in extras for package in EXTRAS[extra])])
