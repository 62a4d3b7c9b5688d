"""Studies: a sweep over settings, expanded into runs in a random, recorded order. Knows names, not machines."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from steelyard import plugins
from steelyard.contracts.base import Bound, Contract, Length, Name, to_json_object
from steelyard.contracts.spec import SCHEMA_VERSION, RunSpec
from steelyard.errors import InputError, Problem
from steelyard.inputs.search import Search, SearchGroup
from steelyard.inputs.shorthand import spell_out
from steelyard.inputs.source import find_source, workload_name
from steelyard.inputs.validate import MAX_SPEC_BYTES, parse_object, parse_toml, read_bounded

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.spec import Source

MAX_RUNS = 1_000_000

# Set by the study for each run; a file may not set them.
IDENTITY = ("schema_version", "run_id", "study", "configuration", "repeat", "seed")

Repeats = Annotated[int, Bound(ge=1, le=10_000)]
Seed = Annotated[int, Bound(ge=0, lt=2**63)]


@dataclass(frozen=True, kw_only=True)
class Study(Contract):
    """A study file: settings shared by all runs, and lists of values to sweep over."""

    schema_version: Literal[1] = SCHEMA_VERSION
    name: Name
    seed: Seed = 0
    """Decides the order of the runs and every run's own seed."""
    repeats: Repeats = 5
    """Fresh launches of each cell."""
    run: dict[str, Any] = field(default_factory=dict)
    """Settings of a RunSpec that all runs share."""
    sweep: Annotated[dict[str, tuple[Any, ...]], Length(20)] = field(default_factory=dict)
    """Settings (nested ones as "sim.step_time_s") with the list of values to try; all combinations are run."""
    search: Search | None = None
    """Seek the largest batch that fits, for each combination; every batch is tried once, whatever `repeats` says."""


@dataclass(frozen=True)
class Configuration:
    """One combination of swept settings."""

    name: str
    swept: dict[str, Any]
    spec: RunSpec
    """The settings; its identity is that of the first repeat."""


@dataclass(frozen=True)
class Expansion:
    """A study spelled out: its cells, and its runs in the order in which they will be made."""

    study: Study
    cells: tuple[Configuration, ...]
    runs: tuple[RunSpec, ...]
    searches: tuple[SearchGroup, ...] = ()
    """Runs of which only some are made: those that a search comes to. They are not among `runs`."""


def load_study(path: Path) -> Study:
    """Read and validate a study file."""
    return parse_object(Study, parse_toml(read_bounded(path, MAX_SPEC_BYTES), str(path)), str(path))


def expand(study: Study, folder: Path | None = None) -> Expansion:
    """All runs, each repeat a random permutation of all cells: no cell sits at one end of a drifting day.

    `folder` is where the study's file lies: a user's own workload must lie there or below.
    """
    for values in study.sweep.values():
        if not values:
            raise InputError(
                "a sweep has no values", problems=(Problem("sweep", "an empty list", "one value or more"),)
            )
    batches = _candidates(study)
    count = study.repeats if not batches else len(batches)
    for values in study.sweep.values():
        count *= len(values)
    if count > MAX_RUNS:
        problem = Problem("sweep", f"{count} runs", f"at most {MAX_RUNS} runs in one study")
        raise InputError("the study is too large", problems=(problem,))
    # The batch last: the candidates of one search are then neighbours, in rising order.
    spread = dataclasses.replace(study, sweep={**study.sweep, "batch": batches}) if batches else study
    cells = _cells(spread, lambda text: find_source(text, folder, below=folder), folder)
    if batches:
        # One search for each combination of the sweep, in random order.
        starts = range(0, len(cells), len(batches))
        groups = [SearchGroup(tuple(cell.spec for cell in cells[at : at + len(batches)])) for at in starts]
        random.Random(f"{study.seed}:search").shuffle(groups)
        return Expansion(study, tuple(cells), (), tuple(groups))
    runs = []
    for repeat in range(study.repeats):
        order = list(cells)
        random.Random(f"{study.seed}:{repeat}").shuffle(order)
        runs += [_with_identity(cell.spec, study, cell.name, repeat) for cell in order]
    return Expansion(study, tuple(cells), tuple(runs))


def _candidates(study: Study) -> tuple[int, ...]:
    """The batches that a search may try; none without one."""
    if study.search is None:
        return ()
    problems = tuple(
        Problem(f"{table}.batch", "is what the search seeks", "leave it out, or leave out [search]")
        for table, settings in (("run", study.run), ("sweep", study.sweep))
        if "batch" in settings
    )
    if problems:
        raise InputError(f"study {study.name} is not valid", problems=problems)
    return study.search.batches


def _cells(study: Study, find: Callable[[str], Source | None], folder: Path | None) -> list[Configuration]:
    cells: dict[str, Configuration] = {}
    for values in itertools.product(*study.sweep.values()):
        swept = dict(zip(study.sweep, values, strict=True))
        settings = json.loads(json.dumps(study.run))
        for key, value in swept.items():
            assign(settings, key, value)
        where = "study " + study.name + (" at " + label(swept) if swept else "")
        _refuse_identity(settings, where)
        source = find(str(settings.get("workload", "")))
        if source is not None:
            settings |= {"workload": workload_name(source), "source": to_json_object(source)}
        settings = spell_out(settings, folder)
        spec = parse_object(RunSpec, {**settings, "run_id": "x", "configuration": "x"}, where)
        name = cell_name(spec)
        if name in cells:
            problem = Problem("sweep", f"{label(swept)} repeats {label(cells[name].swept)}", "each combination once")
            raise InputError("two cells of the sweep are the same", problems=(problem,))
        cells[name] = Configuration(name, swept, _with_identity(spec, study, name, 0))
    return list(cells.values())


def label(swept: dict[str, Any]) -> str:
    """The swept settings in one line."""
    return ", ".join(f"{key}={value}" for key, value in swept.items()) or "(one cell)"


def cell_name(spec: RunSpec) -> str:
    """A name that depends on the settings alone; of a user's own workload, on what the file says, not where it lies.

    Settings at their default are left out, so that a field added to RunSpec later renames no existing cell.
    """
    chosen = {key: value for key, value in chosen_settings(spec).items() if key != "source.path"}
    digest = hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()
    return f"{spec.workload[:30]}-{digest[:12]}"


def chosen_settings(spec: RunSpec) -> dict[str, Any]:
    """What was asked of the run beyond the defaults, nested settings under their dotted names."""
    return {key: value for key, value in _not_default(spec).items() if key not in IDENTITY}


def single_run(
    settings: dict[str, Any], *, study: str, seed: int, repeats: int, taken: Callable[[str], set[str]]
) -> Expansion:
    """The study that `steelyard run` is: one cell, with repeats numbered on from those `taken` says there are."""
    data = {"name": study, "seed": seed, "repeats": repeats, "run": settings}
    checked = parse_object(Study, data, "the run's settings")
    cell = _cells(checked, lambda text: find_source(text, Path(), below=None), Path())[0]
    pattern = re.compile(re.escape(cell.name) + r"-r(\d+)")
    there = [int(found[1]) for name in taken(checked.name) if (found := pattern.fullmatch(name))]
    first = max(there, default=-1) + 1
    runs = [_with_identity(cell.spec, checked, cell.name, first + n) for n in range(checked.repeats)]
    return Expansion(checked, (cell,), tuple(runs))


def run_id(cell: str, repeat: int) -> str:
    """A run's name within its study."""
    return f"{cell}-r{repeat:04d}"


def assign(settings: dict[str, Any], key: str, value: Any) -> None:
    """Set a nested setting by its dotted name."""
    *outer, last = key.split(".")
    table = settings
    for name in outer:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            problem = Problem(key, f"{name} is not a table", "a setting of a RunSpec, such as sim.step_time_s")
            raise InputError("a setting cannot be set", problems=(problem,))
    table[last] = value


def _not_default(contract: Any, prefix: str = "") -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for entry in dataclasses.fields(contract):
        value = getattr(contract, entry.name)
        default = entry.default_factory() if callable(entry.default_factory) else entry.default
        if value == default:
            continue
        if dataclasses.is_dataclass(value):
            kept |= _not_default(value, f"{prefix}{entry.name}.")
        else:
            kept[prefix + entry.name] = to_json_object(value)
    return kept


def require_registered(expansion: Expansion) -> None:
    """Refuse unknown workloads, devices and data formats before anything is launched."""
    for cell in expansion.cells:
        if cell.spec.source is None:
            plugins.require("workload", cell.spec.workload)
        plugins.require("device", cell.spec.device)
        if cell.spec.data is not None:
            plugins.require("data", cell.spec.data.format)


def _with_identity(spec: RunSpec, study: Study, cell: str, repeat: int) -> RunSpec:
    name = run_id(cell, repeat)
    digest = hashlib.sha256(f"{study.seed}:{study.name}:{name}".encode()).digest()
    seed = int.from_bytes(digest[:8], "big") >> 1
    return dataclasses.replace(spec, run_id=name, study=study.name, configuration=cell, repeat=repeat, seed=seed)


def _refuse_identity(settings: dict[str, Any], where: str) -> None:
    problems = tuple(
        Problem(f"run.{name}", "is set by the study itself", "leave it out")
        for name in (*IDENTITY, "source")
        if name in settings
    )
    if problems:
        raise InputError(f"{where} is not valid", problems=problems)
