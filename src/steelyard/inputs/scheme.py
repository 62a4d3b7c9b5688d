"""Schemes of computing time: what each form demands of a benchmark, as data. Knows the form and where files are.

What a demand needs of a study is named here by one word; whether a study gives it is for others to say. A site writes
its own file: the folders that STEELYARD_SCHEMES names, ~/.config/steelyard/schemes and /etc/steelyard/schemes are
looked into before those that come with the package.
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
from steelyard.inputs.places import Document
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
"""What can be looked up in a study and a plan; `yours`: what no measurement tells, and a person must write."""
Short = Annotated[str, Length(300)]
Words = Annotated[str, Length(2000)]
Id = Annotated[str, Length(40, r"^[a-z0-9][a-z0-9-]*$")]


@dataclass(frozen=True, kw_only=True)
class Buffer(Contract):
    """What is to be asked for beyond what was worked out, in per cent of it."""

    low_percent: NotNegative
    high_percent: NotNegative

    def __post_init__(self) -> None:
        if self.high_percent < self.low_percent:
            raise ValueError("high_percent: below low_percent; valid: the same or more")


@dataclass(frozen=True, kw_only=True)
class Demand(Contract):
    """One thing that a form asks for."""

    id: Id
    demand: Words
    """In a sentence, in words of one's own."""
    needs: Annotated[tuple[Need, ...], Length(20)]
    """All of these answer it."""
    advice: Words = ""
    """What to do where it is not answered, if that is more than the study can say."""


@dataclass(frozen=True, kw_only=True)
class Scheme(Contract):
    """One scheme."""

    schema_version: Annotated[int, Bound(ge=1, le=1)] = 1
    title: Short
    where: Short = ""
    """Country, or who runs it."""
    source: Short
    """Which page or document was read."""
    address: Annotated[str, Length(500, r"^(https?://\S+)?$")] = ""
    """Empty: not known."""
    seen: Annotated[int, Bound(ge=1990, le=2200)]
    """The year in which the text was seen: forms change."""
    state: Literal["current", "historic"] = "current"
    about: Words = ""
    page_limit: Positive | None = None
    """Pages of the part on performance; None: no limit is known."""
    axes: Literal["linear", "any"] = "any"
    """How plots are to be drawn. Ours are linear whatever is asked."""
    buffer: Buffer | None = None
    demand: Annotated[tuple[Demand, ...], Length(100)]

    def __post_init__(self) -> None:
        ids = [entry.id for entry in self.demand]
        if not ids or len(set(ids)) < len(ids):
            raise ValueError(
                "demand: none, or two of one id; valid: one table [[demand]] or more, each with its own id"
            )


@dataclass(frozen=True)
class SchemeFile:
    """A scheme and where its file is."""

    name: str
    scheme: Scheme
    place: str


def scheme_folders() -> list[Path]:
    """Where schemes of one's own are looked for."""
    named = os.environ.get(SCHEMES_VARIABLE)
    folders = [Path(entry) for entry in named.split(":") if entry] if named else []
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return [*folders, home / "steelyard" / "schemes", Path("/etc/steelyard/schemes")]


def scheme_names() -> list[str]:
    """Schemes that can be named."""
    return sorted({*_own(), *_shipped()})


def find_scheme(text: str) -> SchemeFile:
    """The scheme of a name or a file; InputError says which there are."""
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
    return parse_object(Scheme, parse_toml(content, source), Document(source, content))


def _own() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for folder in scheme_folders():
        if folder.is_dir():
            for path in sorted(islice(folder.glob("*.toml"), MAX_FILES)):
                found.setdefault(path.stem, path)
    return found


def _shipped() -> list[str]:
    folder = resources.files("steelyard") / "schemes"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))
