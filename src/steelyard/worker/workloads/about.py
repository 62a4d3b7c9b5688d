"""Description of a workload without building it: its family, what it needs and what it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

Build = TypeVar("Build", bound=Callable[..., Any])

Family = Literal[
    "classification",
    "detection",
    "segmentation",
    "language",
    "question answering",
    "reconstruction",
    "ceilings",
    "test",
]


@dataclass(frozen=True)
class About:
    """Description of one workload for the catalogue. Optional for third-party workloads."""

    family: Family
    title: str
    needs: tuple[str, ...] = ()
    """Modules it imports besides torch; each is an extra of the package."""
    data: tuple[str, ...] = ()
    """Formats of real data that it is usually trained on; it accepts others of the same kind."""
    metric: str | None = None
    """Name of its quality metric."""
    modes: tuple[str, ...] = ("train", "infer", "load")
    """Supported modes; the first is the default."""
    reduced: dict[str, Any] = field(default_factory=dict)
    """Options for a test on two cores."""
    parameters: float | None = None
    """Published number of parameters for the default options."""
    source: str | None = None
    """Where that number is published."""
    note: str | None = None
    """Remarks on its counts."""


def about(facts: About) -> Callable[[Build], Build]:
    """Attach the description to a build function."""

    def mark(build: Build) -> Build:
        build.about = facts  # type: ignore[attr-defined]
        return build

    return mark
