"""Recipes: a documented run or study, and the value that it should reach.

A recipe gives its run as settings (`run`), as a study file beside it (`study`), or as the documented command line
(`command`, a list of words). Only `steelyard run` and `steelyard study` are accepted. They are read for their settings
and not started as programs: a recipe is untrusted, and the output of another program has no known window and scope.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from steelyard.contracts.base import Bound, Contract, Length, Name, Positive, Text, to_json_object
from steelyard.contracts.spec import SCHEMA_VERSION, RunSpec
from steelyard.errors import Problem, nearest, refusal
from steelyard.inputs.places import HIDES, HOLDS, InputFile, tables_of
from steelyard.inputs.study import NOT_SET, Expansion, Options, Seed, Study, check_settings, expand, label, load_study
from steelyard.inputs.synonyms import STUDY as SYNONYMS
from steelyard.inputs.validate import (
    MAX_SPEC_BYTES,
    find_problems,
    near_file,
    parse_object,
    parse_toml,
    read_bounded,
    show_value,
)

if TYPE_CHECKING:
    from steelyard.inputs.study import Configuration

# With five jobs that vary by 2 %, a machine that is 5 % slower fails in 97 % of cases, and one that performs as
# documented in 0.1 %: see docs/decisions/0008-verify.md.
TOLERANCE = 0.03
# A recipe has at most 100 figures. All configurations of its study are expanded before those with a figure are chosen.
MAX_CELLS = 1000
MAX_RUNS = 100_000
MAX_SHOWN = 200

Side = Literal["both", "at least", "at most"]


@dataclass(frozen=True, kw_only=True)
class Expect(Contract):
    """A documented figure: a value with a tolerance, or the limits of a band."""

    metric: Name = "throughput"
    """A quantity of a run, as `steelyard show RUN_ID` lists them."""
    at: Annotated[dict[str, bool | int | float | Text], Length(20)] = field(default_factory=dict)
    """Settings of the configuration that the figure is documented for, such as batch = 256."""
    value: Positive | None = None
    """The documented value."""
    tolerance: Annotated[float, Bound(gt=0, lt=1)] | None = None
    """Allowed deviation as a share of the value; None: 0.03."""
    side: Side = "both"
    """Which deviations fail: both, or only values below (at least) or above (at most)."""
    low: Positive | None = None
    """Instead of a value: lower limit of the band."""
    high: Positive | None = None
    """Instead of a value: upper limit of the band."""
    unit: Text | None = None
    """Unit as in the record; another unit is refused."""

    def __post_init__(self) -> None:
        edges = self.low is not None or self.high is not None
        if (self.value is not None) == edges:
            raise ValueError(
                "value: give the documented value, or the limits of its band; valid: value, or low and high"
            )
        if edges and (self.tolerance is not None or self.side != "both"):
            raise ValueError("tolerance: low and high are a band already; valid: tolerance and side with a value")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"low: {self.low:g} is not below {self.high:g}; valid: low below high")
        low, high = self.edges()
        if low is not None and high is not None and low >= high:
            raise ValueError("tolerance: too small to leave a band around the value; valid: such as 0.03")

    def edges(self) -> tuple[float | None, float | None]:
        """Return the limits of the band; None: no limit on that side."""
        if self.value is None:
            return self.low, self.high
        share = TOLERANCE if self.tolerance is None else self.tolerance
        low = self.value * (1 - share) if self.side != "at most" else None
        high = self.value * (1 + share) if self.side != "at least" else None
        return low, high


@dataclass(frozen=True, kw_only=True)
class Recipe(Contract):
    """A recipe file."""

    schema_version: Literal[1] = SCHEMA_VERSION
    name: Annotated[str, Length(48, r"^[A-Za-z0-9][A-Za-z0-9_-]*$", "letters, digits, '_' and '-'")]
    title: Text = ""
    """One line on what is documented."""
    documents: Text = ""
    """Where it is documented: an address or a page."""
    jobs: Annotated[int, Bound(ge=3, le=1000)] = 5
    """Fresh launches per occasion."""
    level: Annotated[float, Bound(ge=0.5, le=0.9999)] = 0.95
    seed: Seed = 0
    run: Annotated[dict[str, Any], Length(100)] | None = field(default=None, metadata={HOLDS: RunSpec, HIDES: NOT_SET})
    """Settings as in a study file."""
    study: Text | None = None
    """A study file in the recipe's folder or below; `jobs` replaces its repeats."""
    command: Annotated[tuple[Text, ...], Length(200)] | None = None
    """`steelyard run` or `steelyard study` as a list of words."""
    expect: Annotated[tuple[Expect, ...], Length(100)]

    def __post_init__(self) -> None:
        if sum(given is not None for given in (self.run, self.study, self.command)) != 1:
            raise ValueError("run: give exactly one of them; valid: one of run, study and command")
        if not self.expect:
            raise ValueError("expect: empty; valid: one table [[expect]] or more")


def load_recipe(path: Path) -> Recipe:
    """Read and check a recipe file."""
    text = read_bounded(path, MAX_SPEC_BYTES)
    data = parse_toml(text, str(path))
    if isinstance(data.get("expect"), dict):
        # One figure may be written as a plain table.
        data["expect"] = [data["expect"]]
    document = InputFile(str(path), text, synonyms=SYNONYMS)
    problems = find_problems(Recipe, data, document)
    if isinstance(data.get("run"), dict):
        problems += check_settings(data["run"], document, Recipe, path.parent)
    if problems:
        raise refusal(*problems)
    return parse_object(Recipe, data, document)


def plan(recipe: Recipe, folder: Path, *, name: str, jobs: int, run: dict[str, Any] | None = None) -> Expansion:
    """Return the runs of the configurations that have a documented figure, as a study called `name`.

    `run` holds the settings of the recipe's command. `folder` is the recipe's folder; files that it names must be
    there or below.
    """
    settings: dict[str, Any] = {"run": run if run is not None else recipe.run or {}}
    place = folder
    if recipe.study is not None:
        path = _beside(folder, recipe.study, f"recipe {recipe.name}")
        settings, place = to_json_object(load_study(path)), path.parent
    data = {**settings, "name": name, "repeats": jobs, "seed": recipe.seed}
    study = parse_object(Study, data, f"recipe {recipe.name}")
    _refuse_many(study)
    # A command's settings are options; others are fields of a file.
    named = InputFile if run is None else Options
    source = named(f"recipe {recipe.name}", root=Study, at=("run",), synonyms=SYNONYMS)
    whole = expand(study, place, place=source)
    names = {cell_of(whole, expected).name for expected in recipe.expect}
    # Other configurations would cost time and decide nothing.
    cells = tuple(cell for cell in whole.cells if cell.name in names)
    return Expansion(whole.study, cells, tuple(spec for spec in whole.runs if spec.configuration in names))


def _beside(folder: Path, name: str, source: str) -> Path:
    """Return a file that a recipe names. A recipe is untrusted: files outside its folder are refused."""
    try:
        path = (folder / name).resolve()
        there = path.is_file()
    except (OSError, ValueError, RuntimeError):
        # Too long, with characters that no name may have, or a link to itself.
        problem = Problem(
            "study", "is not a file name", "a file beside the recipe", given=show_value(name), file=source
        )
        raise refusal(problem) from None
    if not path.is_relative_to(folder.resolve()):
        valid = "a file beside the recipe or below"
        raise refusal(Problem("study", "is outside the recipe's folder", valid, given=show_value(name), file=source))
    if not there:
        valid = "a study file beside the recipe or below"
        near = Path(near_file(path)).name if path.parent.is_dir() else ""
        raise refusal(Problem("study", "no such file", valid, given=show_value(name), near=near, file=source))
    return path


def _refuse_many(study: Study) -> None:
    cells = math.prod(len(values) for values in study.sweep.values()) * max(1, len(study.case))
    if cells > MAX_CELLS or cells * study.repeats > MAX_RUNS:
        problem = Problem(
            "study",
            f"{cells:,} configurations with {study.repeats:,} jobs each",
            f"at most {MAX_CELLS:,} configurations and {MAX_RUNS:,} jobs",
        )
        raise refusal(problem)


def cell_of(expansion: Expansion, expected: Expect) -> Configuration:
    """Return the one configuration that a figure is documented for."""
    matches = [cell for cell in expansion.cells if all(_has(cell, key, value) for key, value in expected.at.items())]
    if len(matches) == 1:
        return matches[0]
    swept = {key for cell in expansion.cells for key in cell.swept}
    unknown = [key for key in expected.at if not any(_setting(cell, key)[0] for cell in expansion.cells)]
    if unknown:
        near = nearest(unknown[0], swept or tables_of(RunSpec)[()])
        problem = Problem(f"expect.at.{unknown[0][:80]}", "no such setting", ", ".join(sorted(swept)), near=near)
        raise refusal(problem)
    asked = label(dict(expected.at))[:MAX_SHOWN] if expected.at else "no settings"
    cells = "; ".join(label(cell.swept)[:MAX_SHOWN] for cell in expansion.cells[:8])
    count = f"{asked} matches {len(matches)} of {len(expansion.cells)} configurations, not one"
    raise refusal(Problem("expect.at", count, f"settings of one of: {cells}"))


def _setting(cell: Configuration, key: str) -> tuple[bool, Any]:
    """Return whether a configuration has a setting, and its value."""
    value: Any = to_json_object(cell.spec)
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return False, None
        value = value[part]
    return True, value


def _has(cell: Configuration, key: str, value: Any) -> bool:
    _, there = _setting(cell, key)
    # In Python True is 1; in a recipe it is not.
    return bool(isinstance(there, bool) == isinstance(value, bool) and there == value)
