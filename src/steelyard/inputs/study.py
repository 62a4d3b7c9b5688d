"""Studies: a sweep over settings, expanded into runs in a random, recorded order."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import random
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from steelyard import plugins
from steelyard.contracts.base import Bound, Contract, Length, Name, to_json_object
from steelyard.contracts.spec import SCHEMA_VERSION, Budget, RunSpec
from steelyard.contracts.wrap import PLACES, placeholders
from steelyard.errors import SHOWN_PROBLEMS, InputError, Problem, nearest, refusal
from steelyard.inputs.catalogue import usual_options
from steelyard.inputs.places import HIDES, HOLDS, InputFile, Where, dotted
from steelyard.inputs.search import Search, SearchGroup
from steelyard.inputs.shorthand import spell_out, split_command
from steelyard.inputs.source import find_source, parameters, workload_name
from steelyard.inputs.synonyms import STUDY as SYNONYMS
from steelyard.inputs.validate import (
    MAX_SPEC_BYTES,
    find_problems,
    parse_object,
    parse_toml,
    read_bounded,
    show_value,
    to_json,
)
from steelyard.redact import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from steelyard.contracts.spec import Source

MAX_RUNS = 1_000_000
# Values of a sweep that are checked before combinations are.
MAX_CHECKED = 2000

# Set by the study for each run; a file may not set them.
IDENTITY = ("schema_version", "run_id", "study", "study_arguments", "most_devices", "configuration", "repeat", "seed")
NOT_SET = (*IDENTITY, "source")
# What a program may have beside its command; everything else is up to the program itself.
BESIDE_PROGRAM = ("program", "workload", "device", "devices", "time_limit_s", "energy")

Repeats = Annotated[int, Bound(ge=1, le=10_000)]
Seed = Annotated[int, Bound(ge=0, lt=2**63)]


@dataclass(frozen=True, kw_only=True)
class Study(Contract):
    """A study file: shared settings, and lists of values to sweep over."""

    schema_version: Literal[1] = SCHEMA_VERSION
    name: Name
    """Name of the study; results are kept under it."""
    seed: Seed = 0
    """Random seed: decides the order of the runs and the seed of each run."""
    repeats: Repeats = 5
    """Fresh launches of each configuration."""
    run: dict[str, Any] = field(default_factory=dict, metadata={HOLDS: RunSpec, HIDES: NOT_SET})
    """Settings that all runs share."""
    sweep: Annotated[dict[str, tuple[Any, ...]], Length(20)] = field(default_factory=dict)
    """Settings with the list of values to try; all combinations are run. Nested settings: "sim.step_time_s"."""
    case: Annotated[tuple[dict[str, Any], ...], Length(200)] = ()
    """Settings that belong together, such as devices and accumulation; each is run with every combination of the
    sweep."""
    search: Search | None = None
    """Search for the largest batch that fits, for each combination. Every batch is tried once; `repeats` is ignored."""


@dataclass(frozen=True)
class Configuration:
    """One combination of swept settings."""

    name: str
    swept: dict[str, Any]
    spec: RunSpec
    """The settings; its identity is that of the first repeat."""


@dataclass(frozen=True)
class Expansion:
    """An expanded study: its configurations, and its runs in the order of execution."""

    study: Study
    cells: tuple[Configuration, ...]
    runs: tuple[RunSpec, ...]
    searches: tuple[SearchGroup, ...] = ()
    """Candidates of searches, of which only some are run. They are not in `runs`."""


@dataclass(frozen=True)
class SweptFile(InputFile):
    """The settings of runs in a file: those of a table, with values of the sweep in place of some."""

    swept: tuple[str, ...] = ()
    """Settings that the sweep or a case replaces."""
    case: tuple[int, tuple[str, ...]] | None = None
    """The number of the case, and which of these settings are its own."""

    def problem(self, where: Where, problem: str, **more: Any) -> Problem:
        """Return a problem with this place: in the sweep or the case, if the value comes from there."""
        key = next((key for key in self.swept if _overlap(tuple(key.split(".")), where)), None)
        if key is None:
            if more.get("given", "").startswith("[") and not more.get("near"):
                problem = f"{problem}; put lists of values to try in [sweep]"
            return super().problem(where, problem, **more)
        table: Where = ("sweep",)
        if self.case is not None and key in self.case[1]:
            table = ("case", self.case[0])
        place = dataclasses.replace(self, at=(), swept=())
        return super(SweptFile, place).problem((*table, key, *where[len(key.split(".")) :]), problem, **more)

    def misplaced(self, where: Where, path: tuple[str, ...]) -> Problem:
        """Return the problem of a field that belongs in another table; a sweep names that by dots."""
        if any(_overlap(tuple(key.split(".")), where) for key in self.swept) and path[0] == "run":
            return self.problem(where, "no such setting", near=".".join(path[1:]))
        return super().misplaced(where, path)


def _overlap(key: tuple[str, ...], where: Where) -> bool:
    return where[: len(key)] == key or key[: len(where)] == where


@dataclass(frozen=True)
class Options(InputFile):
    """The settings of a run on the command line."""

    def problem(self, where: Where, problem: str, **more: Any) -> Problem:
        """Return a problem with the option that sets this."""
        option = option_of(dotted(where))
        more["given"] = more.get("given", "").strip('"')
        if option == "WORKLOAD" and more["given"]:
            option, more["given"] = more["given"], ""
        return Problem(option, problem, file=self.source, **more)

    def unknown(self, cls: type, where: Where, value: Any) -> Problem:
        """Return the problem of a setting that does not exist, with the name that `--set` takes."""
        fault = super().unknown(cls, where, value)
        near = fault.near
        if near and "." not in near and not near.startswith("--") and len(where) > 1:
            near = dotted((*where[:-1], near))
        problem = fault.problem.replace("no such field", "no such setting")
        return Problem(f"--set {dotted(where)}", problem, near=near, file=self.source)

    def misplaced(self, where: Where, path: tuple[str, ...]) -> Problem:
        """Return the problem of a setting that has another dotted name."""
        near = ".".join(path).removeprefix("run.") if len(path) > 1 else option_of(path[0])
        return Problem(f"--set {dotted(where)}", "no such setting", near=near, file=self.source)

    def write_name(self, path: str, table: tuple[str, ...]) -> str:
        """Return the option or the dotted name of a setting."""
        return super().write_name(path, table) if path.startswith("run.") else option_of(path)


# Settings whose option has another name, and tables whose fields have options of their own names.
_RENAMED = {
    "loader.workers": "--loader-workers",
    "loader.prefetch": "--prefetch",
    "loader.pin_memory": "--pin-memory",
    "quality": "--target",
    "quality.target": "--target",
    "quality.every_epochs": "--evaluate-every",
    "program": "COMMAND",
    "program.command": "COMMAND",
    "program.max_steps": "--max-steps",
    "program.max_seconds": "--max-seconds",
    "program.samples_per_step": "--samples-per-step",
    "program.figures": "--figures",
    "program.second_pass": "--second-pass",
    "workload": "WORKLOAD",
    "loader.place": "--data",
    "data.path": "--data",
    "data.format": "--data",
    "name": "--study",
}
_WITH_OPTION = (
    "device", "mode", "devices", "batch", "accumulation", "learning_rate", "precision", "compile", "parallel",
    "backend", "threads", "epoch_samples", "last_batch", "time_limit_s", "hang_limit_s", "channels_last",
    "deterministic", "numa", "preset", "cudnn_benchmark", "optimizer_kernel", "gradient_as_bucket_view", "attention",
    "autocast", "kv_cache", "graphs", "data", "repeats", "seed", "study", "min_steps", "min_seconds", "rel_half_width",
    "max_steps", "max_seconds", "max_extension", "epochs",
)  # fmt: skip


def option_of(setting: str) -> str:
    """Return how `steelyard run` takes a setting."""
    last = setting.removeprefix("budget.")
    if setting in _RENAMED or last in _WITH_OPTION:
        return _RENAMED.get(setting) or f"--{last.replace('_', '-')}"
    return f"--model {setting.removeprefix('model.')}" if setting.startswith("model.") else f"--set {setting}"


def load_study(path: Path) -> Study:
    """Read and check a study file: its fields, and each value of its run and its sweep."""
    text = read_bounded(path, MAX_SPEC_BYTES)
    data = parse_toml(text, str(path))
    document = InputFile(str(path), text, synonyms=SYNONYMS)
    if isinstance(data.get("case"), dict):
        raise refusal(document.problem(("case",), "is one table", valid="[[case]], once for each case"))
    if isinstance(data.get("case"), list):
        data["case"] = [by_dotted_name(case) if isinstance(case, dict) else case for case in data["case"]]
    problems = find_problems(Study, data, document)
    run, sweep, cases = data.get("run", {}), data.get("sweep", {}), data.get("case", [])
    if isinstance(run, dict) and isinstance(sweep, dict) and isinstance(cases, list):
        sweep = {key: values for key, values in sweep.items() if isinstance(values, list) and values}
        cases = [case if isinstance(case, dict) else {} for case in cases]
        problems += check_settings(run, document, Study, path.parent, sweep, cases)
    if problems:
        # A value that no setting can have is found twice.
        raise refusal(*{str(problem): problem for problem in problems}.values())
    study = parse_object(Study, data, document)
    _refuse_contradictions(study, document)
    return study


def by_dotted_name(settings: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Return settings by dotted names, as a sweep has them. Without quotes, dots make tables: `sim.step_time_s = 1`."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= by_dotted_name(value, f"{above}{key}.") if isinstance(value, dict) else {above + key: value}
    return flat


def _refuse_contradictions(study: Study, document: InputFile) -> None:
    problems = [
        document.problem(("sweep", key), "the list is empty", valid="one value or more")
        for key, values in study.sweep.items()
        if not values
    ]
    cases: list[tuple[Where, dict[str, Any]]] = [(("case", number), case) for number, case in enumerate(study.case)]
    problems += [document.problem(table, "is empty", valid="one setting or more") for table, case in cases if not case]
    problems += [
        document.problem((*table, key), "is swept, too", valid="in the case, or in [sweep]")
        for table, case in cases
        for key in case
        if key in study.sweep
    ]
    problems += [
        document.problem((*table, "batch"), "the search sets it", valid="leave it out, or leave out [search]")
        for table, settings in ((("run",), study.run), (("sweep",), study.sweep), *cases)
        if study.search is not None and "batch" in settings
    ]
    if problems:
        raise refusal(*problems)


def check_settings(
    run: dict[str, Any],
    document: InputFile,
    root: type,
    folder: Path,
    sweep: dict[str, list[Any]] | None = None,
    cases: Sequence[dict[str, Any]] = (),
) -> tuple[Problem, ...]:
    """Return what is wrong with the settings of a file: every case and value of the sweep, each with the first others.

    Combinations are not tried here: a study may have a million.
    """
    sweep = sweep or {}
    first = {key: values[0] for key, values in sweep.items()}
    choices = [(number, {**case, **first}) for number, case in enumerate(cases or ({},))]
    choices += [(0, {**choices[0][1], key: value}) for key, values in sweep.items() for value in values[1:]]
    problems: dict[str, Problem] = {}
    for number, swept in choices[:MAX_CHECKED]:
        case = (number, tuple(cases[number])) if cases else None
        place = SweptFile(document.source, document.text, root, ("run",), document.synonyms, tuple(swept), case)
        try:
            spec = _spec(run, swept, place, folder, lambda text: find_source(text, folder, below=folder))
            _refuse_names(spec, place)
        except InputError as error:
            problems |= {str(problem): problem for problem in error.problems}
        if len(problems) > SHOWN_PROBLEMS:
            break
    return tuple(problems.values())


def _spec(
    run: dict[str, Any],
    swept: dict[str, Any],
    place: InputFile,
    folder: Path | None,
    find: Callable[[str], Source | None],
) -> RunSpec:
    """Return the spec of one combination, without its identity; InputError names every bad setting."""
    settings = json.loads(to_json(run, place))
    try:
        settings = split_command(settings)
        for key, value in swept.items():
            assign(settings, f"program.parameters.{key}" if key in _parameters(settings) else key, value)
        # A swept command is split only now.
        settings = split_command(settings)
        _refuse_identity(settings)
        if "program" in settings:
            _refuse_beside_program(settings)
        else:
            workload = settings.get("workload", "")
            source = find(workload) if isinstance(workload, str) else None
            if source is not None:
                settings |= {"workload": workload_name(source), "source": to_json_object(source)}
            settings = spell_out(settings, folder)
    except InputError as error:
        raise refusal(*(_placed(problem, place) for problem in error.problems), next_step=error.next_step) from None
    return parse_object(RunSpec, {**settings, "run_id": "x", "configuration": "x"}, place)


def _parameters(settings: dict[str, Any]) -> set[str | None]:
    """Return the placeholders of the command of a program that a sweep sets by their names alone."""
    program = settings.get("program")
    words = program.get("command") if isinstance(program, dict) else None
    names = placeholders(word for word in words if isinstance(word, str)) if isinstance(words, list) else {}
    return {*names} - {*PLACES, None}


def _refuse_beside_program(settings: dict[str, Any]) -> None:
    """Refuse settings that no program obeys: a record would state what nobody measured.

    A misspelt placeholder goes first: the parameter that it was for then looks like a setting.
    """
    ours = [name for name in settings if name not in BESIDE_PROGRAM]
    program = settings["program"]
    given = program.get("parameters", {}) if isinstance(program, dict) else {}
    for name in sorted(map(str, _parameters(settings))) if ours and isinstance(given, dict) else ():
        if name not in given:
            meant, known = nearest(name, ours), ", ".join(f"{{{one}}}" for one in (*PLACES, *given, *ours))
            near = f"{{{meant}}}" if meant else ""
            raise refusal(Problem("program.command", f"{{{name}}} stands for nothing", known, near=near))
    valid = "leave it out, or write it in the command; a program may have " + ", ".join(BESIDE_PROGRAM[2:])
    problems = [Problem(name, "is not applied to a program", valid) for name in settings if name not in BESIDE_PROGRAM]
    if problems:
        raise refusal(*problems)


def _placed(problem: Problem, place: InputFile) -> Problem:
    """Return a problem found in the settings as a problem of their file or options."""
    more = {name: getattr(problem, name) for name in ("valid", "near", "given", "listed")}
    return place.problem(tuple(problem.field.split(".")), problem.problem, **more)


def _refuse_names(spec: RunSpec, place: InputFile) -> None:
    """Refuse a workload, device family or data format that is not registered, and unknown options of the model."""
    named = [("device", "device", spec.device)]
    if spec.source is None and spec.program is None:
        named.insert(0, ("workload", "workload", spec.workload))
    if spec.data is not None:
        named.append(("data", "data.format", spec.data.format))
    problems = []
    for kind, setting, name in named:
        if not plugins.has(kind, name):
            problem = plugins.unknown(kind, name, plugins.names(kind)).problems[0]
            problems.append(_placed(dataclasses.replace(problem, field=setting, given=show_value(name)), place))
    problems += _bad_options(spec, place)
    if problems:
        raise refusal(*problems)


def _bad_options(spec: RunSpec, place: InputFile) -> list[Problem]:
    """Return the options that the workload's model does not take, as far as that is known before it is built."""
    known = parameters(spec.source) if spec.source is not None else usual_options(spec.workload)
    problems: list[Problem] = []
    if known is None or spec.program is not None:
        return problems
    for option, value in spec.model.items():
        where = ("model", option)
        usual = known.get(option)
        if option not in known:
            near = nearest(option, known)
            problems.append(place.problem(where, "no such option", valid=", ".join(known) or "none", near=near))
        elif usual is not None and isinstance(usual, str) != isinstance(value, str):
            form = "text" if isinstance(usual, str) else "a number or true/false"
            problem = f"must be {form}, such as {show_value(usual)}"
            problems.append(place.problem(where, problem, given=show_value(value)))
    return problems


def expand(
    study: Study, folder: Path | None = None, *, place: InputFile | None = None, arguments: tuple[str, ...] = ()
) -> Expansion:
    """Return all runs. Each repeat is a random permutation of all configurations, so that drift does not favour one.

    `folder` is the folder of the study's file: a user's own workload must be there or below. `place` names the source
    of the settings in errors. `arguments`: those of `steelyard study` that name the file and its site.
    """
    _refuse_contradictions(study, InputFile(f"study {study.name}"))
    batches = study.search.batches if study.search is not None else ()
    count = (study.repeats if not batches else len(batches)) * max(1, len(study.case))
    for values in study.sweep.values():
        count *= len(values)
    _refuse_many_runs(count)
    # The batch last: the candidates of one search are then adjacent, in rising order.
    spread = dataclasses.replace(study, sweep={**study.sweep, "batch": batches}) if batches else study
    place = place or InputFile(f"study {study.name}", root=Study, at=("run",), synonyms=SYNONYMS)
    if not isinstance(place, Options):
        cased = {key: None for case in study.case for key in case}
        place = SweptFile(place.source, b"", place.root, place.at, place.synonyms, (*cased, *spread.sweep))
    told = ({**case, **swept} for case in study.case or ({},) for swept in combinations(spread.sweep))
    cells = _cells(study, ((swept, study.run, swept) for swept in told), place, folder, arguments)
    if batches:
        # One search for each combination of cases and sweep, in random order.
        starts = range(0, len(cells), len(batches))
        groups = [SearchGroup(tuple(cell.spec for cell in cells[at : at + len(batches)])) for at in starts]
        random.Random(f"{study.seed}:search").shuffle(groups)
        return Expansion(study, tuple(cells), (), tuple(groups))
    return _in_random_order(study, cells)


def expand_listed(
    study: Study,
    listed: Sequence[tuple[dict[str, Any], dict[str, Any]]],
    folder: Path,
    *,
    arguments: tuple[str, ...] = (),
) -> Expansion:
    """Return all runs of a study whose configurations are listed: what tells each apart, and all its settings."""
    _refuse_many_runs(study.repeats * len(listed))
    place = InputFile(f"study {study.name}", root=Study, at=("run",), synonyms=SYNONYMS)
    cells = _cells(study, ((told, run, {}) for told, run in listed), place, folder, arguments)
    return _in_random_order(study, cells)


def _refuse_many_runs(count: int) -> None:
    if count > MAX_RUNS:
        raise refusal(Problem("sweep", f"{count:,} runs", f"at most {MAX_RUNS:,} runs in one study"))


def _in_random_order(study: Study, cells: Sequence[Configuration]) -> Expansion:
    runs = []
    for repeat in range(study.repeats):
        order = list(cells)
        random.Random(f"{study.seed}:{repeat}").shuffle(order)
        runs += [_with_identity(cell.spec, study, cell.name, repeat) for cell in order]
    return Expansion(study, tuple(cells), tuple(runs))


def combinations(sweep: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yield every combination of the values of a sweep."""
    for values in itertools.product(*sweep.values()):
        yield dict(zip(sweep, values, strict=True))


def further_runs(expansion: Expansion, wanted: Sequence[tuple[RunSpec, int, int]]) -> Expansion:
    """Return the study with other runs, in random order: of each spec, this many repeats from this number on."""
    study, runs = expansion.study, []
    for turn in range(max((count for _, _, count in wanted), default=0)):
        order = [(spec, first + turn) for spec, first, count in wanted if turn < count]
        random.Random(f"{study.seed}:further:{order[0][1]}").shuffle(order)
        runs += [_with_identity(spec, study, spec.configuration, repeat) for spec, repeat in order]
    return dataclasses.replace(expansion, runs=tuple(runs))


def _cells(
    study: Study,
    listed: Iterable[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]],
    place: InputFile,
    folder: Path | None,
    arguments: tuple[str, ...] = (),
    *,
    anywhere: bool = False,
) -> list[Configuration]:
    """Return configurations from what tells each apart, its settings, and settings that replace some of these.

    `anywhere`: a user's own workload need not be below the folder.
    """
    cells: dict[str, Configuration] = {}
    _refuse_secrets(study, InputFile())
    below = None if anywhere else folder
    for told, run, swept in listed:
        made = _spec(run, swept, place, folder, lambda text: find_source(text, folder, below=below))
        _refuse_secrets(made, place)
        spec = dataclasses.replace(made, study_arguments=tuple(clean(arguments)[0]))
        name = cell_name(spec)
        if name in cells:
            problem = f"{label(told)} and {label(cells[name].swept)} are the same configuration"
            where = ("case" if study.case else "sweep",)
            raise refusal(dataclasses.replace(place, at=()).problem(where, problem, valid="each combination once"))
        cells[name] = Configuration(name, told, _with_identity(spec, study, name, 0))
    most = max((cell.spec.devices for cell in cells.values()), default=1)
    return [
        dataclasses.replace(cell, spec=dataclasses.replace(cell.spec, most_devices=most))
        if cell.spec.devices < most
        else cell
        for cell in cells.values()
    ]


def _refuse_secrets(settings: Study | RunSpec, place: InputFile) -> None:
    """Refuse settings that look like secrets: they are needed as they are, and people publish what is recorded."""
    for key, value in not_default(settings).items():
        # Those of a study are checked with each of its runs.
        if key not in ("run", "sweep", "case") and clean({key: value})[1]:
            problem = "looks like a secret, and the settings of a run are recorded"
            valid = "a file or folder with another name"
            if key.startswith("program."):
                valid = "a file or an environment variable that the program reads"
            raise refusal(place.problem(tuple(key.split(".")), problem, valid=valid))


def label(swept: dict[str, Any]) -> str:
    """Return the swept settings in one line."""
    return ", ".join(f"{key}={written(value)}" for key, value in swept.items()) or "(no sweep)"


def written(value: Any) -> str:
    """Return the value of a setting as in a study file: true, not True."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def cell_name(spec: RunSpec) -> str:
    """Return a name that depends only on the settings; for a user's workload on the content of its file, not its path.

    Settings with their default are left out, so that a new field of RunSpec does not change existing names.
    """
    chosen = {key: value for key, value in chosen_settings(spec).items() if key != "source.path"}
    digest = hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()
    return f"{spec.workload[:30]}-{digest[:12]}"


def chosen_settings(spec: RunSpec) -> dict[str, Any]:
    """Return the settings that differ from their defaults; nested ones have dotted names."""
    return {key: value for key, value in not_default(spec).items() if key not in IDENTITY}


def single_run(
    settings: dict[str, Any], *, study: str, seed: int, repeats: int, taken: Callable[[str], set[str]]
) -> Expansion:
    """Return the study of `steelyard run`: one configuration, repeats numbered after those that `taken` returns."""
    data = {"name": study, "seed": seed, "repeats": repeats, "run": settings}
    place = Options(root=Study, at=("run",), synonyms=SYNONYMS)
    checked = parse_object(Study, data, dataclasses.replace(place, at=()))
    (cell,) = _cells(checked, [({}, checked.run, {})], place, Path(), anywhere=True)
    _refuse_names(cell.spec, place)
    if cell.spec.budget.epochs is None:
        # How long it is measured is no setting of the work: a longer run is one more job of its configuration.
        name = cell_name(dataclasses.replace(cell.spec, budget=Budget(), time_limit_s=None))
        cell = dataclasses.replace(cell, name=name, spec=_with_identity(cell.spec, checked, name, 0))
    pattern = re.compile(re.escape(cell.name) + r"-r(\d+)")
    there = [int(match[1]) for name in taken(checked.name) if (match := pattern.fullmatch(name))]
    first = max(there, default=-1) + 1
    runs = [_with_identity(cell.spec, checked, cell.name, first + n) for n in range(checked.repeats)]
    return Expansion(checked, (cell,), tuple(runs))


def run_id(cell: str, repeat: int) -> str:
    """Return the id of a run within its study."""
    return f"{cell}-r{repeat:04d}"


def configuration_of(run: str) -> str:
    """Return the name of the configuration in the id of a run."""
    return run.rpartition("-r")[0]


def assign(settings: dict[str, Any], key: str, value: Any) -> None:
    """Set a nested setting by its dotted name."""
    *outer, last = key.split(".")
    table = settings
    for name in outer:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise refusal(Problem(key, f"{name} is not a table", "a setting such as sim.step_time_s"))
    table[last] = value


def setting(spec: RunSpec, key: str, missing: Any = None) -> Any:
    """Return a setting of a spec by its dotted name, or `missing`; of a program also a parameter by its name alone."""
    if spec.program is not None and key in spec.program.parameters and not hasattr(spec, key):
        return spec.program.parameters[key]
    value: Any = spec
    for name in key.split("."):
        value = value.get(name, missing) if isinstance(value, dict) else getattr(value, name, missing)
    return value


def not_default(contract: Any, prefix: str = "") -> dict[str, Any]:
    """Return the fields that differ from their defaults; nested ones have dotted names."""
    kept: dict[str, Any] = {}
    for name, default in defaults(contract.__class__):
        value = getattr(contract, name)
        if value == default:
            continue
        if dataclasses.is_dataclass(value):
            kept |= not_default(value, f"{prefix}{name}.")
        else:
            kept[prefix + name] = to_json_object(value)
    return kept


@cache
def defaults(contract: type) -> tuple[tuple[str, Any], ...]:
    """Return the fields of a contract with their defaults, only to compare with."""
    return tuple(
        (entry.name, entry.default_factory() if callable(entry.default_factory) else entry.default)
        for entry in dataclasses.fields(contract)
    )


def require_registered(expansion: Expansion) -> None:
    """Refuse unknown workloads, devices and data formats before anything is launched."""
    for cell in expansion.cells:
        _refuse_names(cell.spec, InputFile())


def _with_identity(spec: RunSpec, study: Study, cell: str, repeat: int) -> RunSpec:
    name = run_id(cell, repeat)
    digest = hashlib.sha256(f"{study.seed}:{study.name}:{name}".encode()).digest()
    seed = int.from_bytes(digest[:8], "big") >> 1
    return dataclasses.replace(spec, run_id=name, study=study.name, configuration=cell, repeat=repeat, seed=seed)


def _refuse_identity(settings: dict[str, Any]) -> None:
    problems = []
    for name in NOT_SET:
        if name in settings:
            top = name in ("seed", "schema_version")
            problems.append(
                Problem(name, "belongs at the top of the file" if top else "is set by steelyard; leave it out")
            )
    if problems:
        raise refusal(*problems)
