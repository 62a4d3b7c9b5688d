"""The experiments of the documents with a suite, and whether the suites run them as stated.

Each entry of experiments.toml has what its document states and the configurations that run it. The state follows from
the suite:

- missing: one of these configurations does not exist at the size full;
- substitute: one of them has another network, a known difference about work that is marked as other work;
- partly: a stated setting has other values, or a known difference is about a kind of setting that is stated;
- as stated: none of these. Another framework and what the document leaves open do not count.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.inputs.study import combinations
from steelyard.inputs.suite import Choice, differences, find_suite, plan_part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.inputs.suite import Planned, Suite

DATA = Path(__file__).with_name("experiments.toml")
STATES = ("as stated", "partly", "substitute", "missing")
PART = "part"
NOT_SET = "none"
"""The stated value of a setting that has none here, such as the data set of synthetic data."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """An experiment of a document."""

    id: str
    suite: str
    place: str
    name: str
    stated: str
    """What the document states, in short."""
    printed: str
    on: str
    settings: dict[str, dict[str, Any]]
    """What the document states as settings of ours, by the kinds that a difference is about."""
    runs: list[dict[str, Any]]
    """The configurations that run it: a part, and the values of settings; each combination of them has to exist."""
    state: str
    differs: list[str] = field(default_factory=list)
    """The kinds of settings that are not as stated."""
    unlike: list[str] = field(default_factory=list)
    """The stated settings that no run can have yet."""
    note: str = ""


@dataclass(frozen=True)
class Found:
    """What follows from the suite."""

    configurations: int
    absent: tuple[str, ...]
    """Configurations that do not exist."""
    unlike: dict[str, str]
    """What runs instead of stated settings, by their names."""
    differs: tuple[str, ...]
    state: str


@cache
def experiments() -> tuple[Experiment, ...]:
    """Return all experiments."""
    return tuple(Experiment(**entry) for entry in tomllib.loads(DATA.read_text(encoding="utf-8"))["experiment"])


def suites() -> dict[str, Suite]:
    """Return the suites of the experiments by name."""
    return {name: find_suite(name).suite for name in dict.fromkeys(one.suite for one in experiments())}


def derive(experiment: Experiment, suite: Suite) -> Found:
    """Return what the suite runs of an experiment."""
    wanted = list(_wanted(experiment))
    by_place = [(name, values, _matching(suite, name, values)) for name, values in wanted]
    planned = [one for *_, matching in by_place for one in matching]
    absent = tuple(f"{name} {values}" for name, values, matching in by_place if not matching)
    unlike = list(_unlike(experiment, planned)) if planned else []
    known = [entry for one in planned for entry in differences(suite, one)]
    kinds = {kind for kind, *_ in unlike} | {entry.about for entry in known if entry.about in experiment.settings}
    if absent:
        state = "missing"
    elif any(entry.other_work and entry.about == "work" for entry in known):
        state = "substitute"
    else:
        state = "partly" if kinds else "as stated"
    return Found(len(planned), absent, {name: text for _, name, text in unlike}, tuple(sorted(kinds)), state)


def problems(experiment: Experiment, found: Found) -> list[str]:
    """Return what the data file says otherwise than the suite."""
    listed = [f"no configuration {text}" for text in found.absent]
    listed += [f"{name}: {text}" for name, text in found.unlike.items() if name not in experiment.unlike]
    listed += [f"{name}: runs as stated" for name in experiment.unlike if name not in found.unlike]
    if experiment.state != found.state:
        listed.append(f"state {experiment.state}, but by the suite {found.state}")
    if sorted(experiment.differs) != list(found.differs):
        said, derived = (", ".join(names) or "nothing" for names in (sorted(experiment.differs), found.differs))
        listed.append(f"{said} differs, but by the suite {derived}")
    return [f"{experiment.id}: {text}" for text in listed]


def _wanted(experiment: Experiment) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the part and the settings of each configuration that runs it."""
    for entry in experiment.runs:
        sweep = {key: value if isinstance(value, list) else [value] for key, value in entry.items() if key != PART}
        yield from ((entry[PART], values) for values in combinations(sweep))


def _matching(suite: Suite, name: str, values: dict[str, Any]) -> list[Planned]:
    part = next((one for one in suite.part if one.name == name), None)
    return [one for one in plan_part(suite, part, Choice()) if one.has(values)] if part is not None else []


def _unlike(experiment: Experiment, planned: list[Planned]) -> Iterator[tuple[str, str, str]]:
    """Yield the kind and name of each stated setting that has other values in these configurations, and which."""
    for kind, settings in experiment.settings.items():
        for key, value in settings.items():
            stated = value if isinstance(value, list) else [value]
            run = [NOT_SET if (has := one.get(key)) is None else has for one in planned]
            if set(stated) != set(run):
                yield kind, key, f"stated {_listed(stated)}, run {_listed(run)}"


def _listed(values: list[Any]) -> str:
    return ", ".join(sorted({str(value) for value in values}, key=lambda text: (len(text), text)))
