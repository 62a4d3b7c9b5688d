"""What is said of a workload without building it: its family, what it needs, what it reads. Knows words, no model."""

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
    """Facts of one workload, for the catalogue. A workload of somebody else's needs none."""

    family: Family
    title: str
    needs: tuple[str, ...] = ()
    """Modules beside torch that it imports; each is an extra of the package."""
    data: tuple[str, ...] = ()
    """Formats of real data that it is usually trained on; it takes any of the same kind."""
    metric: str | None = None
    """Name of its quality metric."""
    modes: tuple[str, ...] = ("train", "infer", "load")
    """What can be done with it; the first is what happens when nothing is said."""
    reduced: dict[str, Any] = field(default_factory=dict)
    """Options that make it small enough for a test on two cores."""
    parameters: float | None = None
    """As published, at the full size that the defaults give."""
    source: str | None = None
    """Where that number is published."""
    note: str | None = None
    """What else must be known of its counts."""


def about(facts: About) -> Callable[[Build], Build]:
    """Put the facts on a build function."""

    def mark(build: Build) -> Build:
        build.about = facts  # type: ignore[attr-defined]
        return build

    return mark
