"""Schemes for computing time: what each application form demands of a benchmark, as data.

A site can write its own file. Files are searched in the folders of STEELYARD_SCHEMES, ~/.config/steelyard/schemes and
/etc/steelyard/schemes, then in the package.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Annotated, Final, Literal

from steelyard.contracts.base import Bound, Contract, Length, NotNegative, Positive
from steelyard.errors import Problem, nearest, refusal
from steelyard.inputs.places import InputFile
from steelyard.inputs.validate import MAX_SPEC_BYTES, parse_object, parse_toml, read_bounded

SCHEMES_VARIABLE: Final = "STEELYARD_SCHEMES"
MAX_FILES: Final = 500

Need = Literal[
    "pilot",
    "timings",
    "base",
    "scaling",
    "strong",
    "weak",
    "efficiency",
    "one-and-two",
    "largest-job",
    "linear-plot",
    "device",
    "device-hours",
    "uncertainty",
    "overhead",
    "buffer",
    "charge",
    "utilisation",
    "device-use",
    "energy",
    "software",
    "hardware",
    "production-input",
    "yours",
]
"""What a demand needs from a study and a plan; `yours`: text that the applicant must write."""
Short = Annotated[str, Length(300)]
Words = Annotated[str, Length(2000)]
Id = Annotated[str, Length(40, r"^[a-z0-9][a-z0-9-]*$")]


@dataclass(frozen=True, kw_only=True)
class Buffer(Contract):
    """What to request beyond the computed need, in per cent of it."""

    low_percent: NotNegative
    high_percent: NotNegative

    def __post_init__(self) -> None:
        if self.high_percent < self.low_percent:
            raise ValueError("high_percent: below low_percent; valid: the same or more")


@dataclass(frozen=True, kw_only=True)
class Demand(Contract):
    """One demand of a form."""

    id: Id
    demand: Words
    """The demand in one sentence."""
    needs: Annotated[tuple[Need, ...], Length(20)]
    """All of these are needed to meet it."""
    advice: Words = ""
    """What to do if it is not met."""


@dataclass(frozen=True, kw_only=True)
class Scheme(Contract):
    """A scheme."""

    schema_version: Annotated[int, Bound(ge=1, le=1)] = 1
    title: Short
    where: Short = ""
    """Country or organisation."""
    source: Short
    """Page or document that this is taken from."""
    address: Annotated[str, Length(500, r"^(https?://\S+)?$")] = ""
    """Address of the source; empty: unknown."""
    seen: Annotated[int, Bound(ge=1990, le=2200)]
    """Year in which the source was read."""
    state: Literal["current", "historic"] = "current"
    about: Words = ""
    page_limit: Positive | None = None
    """Page limit of the performance part; None: unknown."""
    axes: Literal["linear", "any"] = "any"
    """Axes that plots must have."""
    buffer: Buffer | None = None
    demand: Annotated[tuple[Demand, ...], Length(100)]

    def __post_init__(self) -> None:
        ids = [entry.id for entry in self.demand]
        if not ids or len(set(ids)) < len(ids):
            raise ValueError(
                "demand: empty, or two with the same id; valid: one table [[demand]] or more, each with its own id"
            )


@dataclass(frozen=True)
class SchemeFile:
    """A scheme and the place of its file."""

    name: str
    scheme: Scheme
    place: str


def scheme_folders() -> list[Path]:
    """Return the folders with the user's own schemes."""
    named = os.environ.get(SCHEMES_VARIABLE)
    folders = [Path(entry) for entry in named.split(":") if entry] if named else []
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return [*folders, home / "steelyard" / "schemes", Path("/etc/steelyard/schemes")]


def scheme_names() -> list[str]:
    """Return the names of all schemes."""
    return sorted({*_own(), *_shipped()})


def find_scheme(text: str) -> SchemeFile:
    """Return the scheme with this name or file; InputError lists the known ones."""
    if text.endswith(".toml") or "/" in text:
        return SchemeFile(Path(text).stem, _parsed(read_bounded(Path(text), MAX_SPEC_BYTES), text), text)
    own = _own().get(text)
    if own is not None:
        return SchemeFile(text, _parsed(read_bounded(own, MAX_SPEC_BYTES), str(own)), str(own))
    if text in _shipped():
        content = (resources.files("steelyard") / "schemes" / f"{text}.toml").read_bytes()
        return SchemeFile(text, _parsed(content, f"the built-in scheme {text}"), "built in")
    near = nearest(text, scheme_names())
    problem = Problem(f"--scheme {text[:80]}", "no such scheme", f"{', '.join(scheme_names())}, or a file", near=near)
    raise refusal(problem, next_step=None if near else "steelyard pack --schemes")


def _parsed(content: bytes, source: str) -> Scheme:
    return parse_object(Scheme, parse_toml(content, source), InputFile(source, content))


def _own() -> dict[str, Path]:
    files: dict[str, Path] = {}
    for folder in scheme_folders():
        if folder.is_dir():
            for path in sorted(islice(folder.glob("*.toml"), MAX_FILES)):
                files.setdefault(path.stem, path)
    return files


def _shipped() -> list[str]:
    folder = resources.files("steelyard") / "schemes"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))
