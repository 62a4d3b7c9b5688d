"""Suites: the studies of a published benchmark, ready to run, and how its document prints their results.

A suite is a folder with the file suite.toml. Those of the package are in `suites/`; a package adds one with the entry
point group `steelyard.suite`, whose value is the package with the file, and any other folder is named by its path.
"""

from __future__ import annotations

import copy
import math
import re
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from steelyard.contracts.base import AtLeastOne, Bound, Contract, Length, Name, Text
from steelyard.contracts.spec import SCHEMA_VERSION, RunSpec, count_replicas
from steelyard.errors import InputError, Problem, nearest, refusal
from steelyard.inputs.catalogue import load as catalogue
from steelyard.inputs.places import HIDES, HOLDS, InputFile
from steelyard.inputs.study import NOT_SET, Repeats, Seed, Study, assign, combinations, expand_listed, setting
from steelyard.inputs.suites import SUITE_FILE, suite_folder, suite_names
from steelyard.inputs.validate import MAX_SPEC_BYTES, find_problems, parse_object, parse_toml, read_bounded, show_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from steelyard.inputs.devices import PlaceDevices
    from steelyard.inputs.study import Expansion

MEASURING_FILE = "measuring.toml"
RECIPES = "recipes"
OWN_NAMES = ("data", "epochs", "epoch_steps", "global_batch", "most_batch")
"""Names of settings that only parts have."""
MAX_TABLES = 50
MAX_CONFIGURATIONS = 10_000
MAX_SETTINGS = 400

Size = Literal["full", "small", "tiny"]
"""full: as large as in the document; small: the same models and settings, for about an hour on one accelerator; tiny:
reduced models on generated data, for minutes on two CPU cores. Figures of different sizes are never compared."""
SIZES: tuple[Size, ...] = get_args(Size)
Reason = Literal["devices", "data", "evaluation", "numbers", "hours", "failed"]
"""Why configurations do not run. devices: they need more than there are; data: their data set is not in the user's
folder; evaluation: synthetic data has no accuracy; numbers: the part cannot have the numbers of devices asked for;
hours: they do not fit into the time that the user gives; failed: in such a time, one of their runs did not complete."""
REMOVES: tuple[Reason, ...] = ("numbers", "devices", "data", "evaluation")
"""The order in which reasons are looked at."""

About = Literal[
    "work", "data", "arithmetic", "batches", "devices", "amount", "input", "implementation", "tuning", "software",
    "environment", "evidence", "statement",
]  # fmt: skip
"""What a difference from a document is about, in the words of the roles in `rules.table.settings` where they fit."""

Settings = Annotated[dict[str, Any], Length(100)]
Sweep = Annotated[dict[str, tuple[Any, ...]], Length(20)]
Devices = Annotated[tuple[AtLeastOne, ...], Length(20)]
Id = Annotated[str, Length(30, r"^[a-z0-9][a-z0-9-]*$", "lower-case letters, digits and '-'")]


@dataclass(frozen=True, kw_only=True)
class SizeChange(Contract):
    """What a size changes."""

    run: Settings = field(default_factory=dict, metadata={HOLDS: RunSpec, HIDES: NOT_SET})
    """Settings that replace those of the part."""
    sweep: Sweep = field(default_factory=dict)
    """Lists that replace those of the part."""
    case: Settings = field(default_factory=dict)
    """Settings that replace those of every case."""
    only: Sweep = field(default_factory=dict)
    """Values of settings of cases: cases with other values are left out."""
    devices: Devices = ()
    """Numbers of devices, where the part sweeps over `devices`."""
    repeats: Repeats | None = None


@dataclass(frozen=True, kw_only=True)
class Part(Contract):
    """A study of a suite, as a study file has it, with a few more names for settings.

    `data` names only a format: its folder is the user's. `epochs` is the length of a whole training: a run of the size
    full trains as long, others only long enough to measure its speed. `global_batch` gives `accumulation` if `batch` is
    given too, and else `batch`; with `most_batch`, `batch` is the share of a device but at most this, and
    `accumulation` the rest. Combinations in which it cannot be divided are left out. `epoch_steps` gives
    `epoch_samples`: so many global batches.
    """

    name: Id
    title: Text
    repeats: Repeats | None = None
    run: Settings = field(default_factory=dict, metadata={HOLDS: RunSpec, HIDES: NOT_SET})
    sweep: Sweep = field(default_factory=dict)
    case: Annotated[tuple[Settings, ...], Length(200)] = ()
    """Settings that belong together, such as a data set and its length; each is run with every combination of the
    sweep."""
    least_devices: AtLeastOne = 1
    """The fewest devices that make sense, such as 2 for a collective."""
    usual_epochs: Annotated[tuple[AtLeastOne, ...], Length(2)] = ()
    """The fewest and the most epochs that are usual for such a training, if the document does not state how long it
    trained; where they come from is the reason of the setting `epochs`."""
    pretrained: bool = False
    """Whether the document begins with pre-trained weights. The user has them in a folder, as WORKLOAD.safetensors;
    without, and at the size tiny, weights are random."""
    small: SizeChange = field(default_factory=SizeChange)
    tiny: SizeChange = field(default_factory=SizeChange)

    def __post_init__(self) -> None:
        if len(self.usual_epochs) == 1 or list(self.usual_epochs) != sorted(self.usual_epochs):
            raise ValueError(f"usual_epochs: {list(self.usual_epochs)}; valid: the fewest and the most, as in [30, 90]")


@dataclass(frozen=True, kw_only=True)
class SettingSource(Contract):
    """Why a setting has its value: the document states it, or it was chosen."""

    name: Text
    """Dotted name of a run's setting, or of one of the part's own, such as epochs; model.*: any option of the model."""
    value: bool | int | float | Text | tuple[bool | int | float | Text, ...] | None = None
    """The value, or all values that occur; None: any, such as a seed."""
    parts: Annotated[tuple[Id, ...], Length(50)] = ()
    """The parts that this is about; empty: all."""
    sizes: Annotated[tuple[Size, ...], Length(3)] = ()
    """The sizes that this is about; empty: all."""
    stated: Text = ""
    """Place in the document."""
    words: Text = ""
    """The words at that place."""
    why: Text = ""
    """Reason for a value that the document does not state."""

    def __post_init__(self) -> None:
        if bool(self.stated) == bool(self.why) or bool(self.stated) != bool(self.words):
            raise ValueError("why: a setting is stated or chosen; valid: stated and words, or why")


@dataclass(frozen=True, kw_only=True)
class Deviation(Contract):
    """A known difference from the document, named beside every figure that it affects."""

    parts: Annotated[tuple[Id, ...], Length(50)] = ()
    """The parts that this is about; empty: all."""
    at: Settings = field(default_factory=dict)
    """Settings of the configurations; empty: all of these parts."""
    about: About
    """work: what is computed; data: the data set; arithmetic: precision and optimizer; batches: the batch sizes;
    devices: their number, and what each has of a model; amount: how long it trains; input: data loading;
    implementation: how the same work is computed, such as a compiler; tuning: switches for speed, such as binding;
    software: another framework or library; environment: the machine and the job; evidence: how the figure is measured;
    statement: words or figures of the document that cannot be right."""
    text: Text
    other_work: bool = False
    """Whether it is other work, so that no ratio is given."""
    implausible: bool = False
    """Whether the printed figure cannot be true with the usual length, so that no answer is given from it."""


@dataclass(frozen=True, kw_only=True)
class DataNeeded(Contract):
    """A data set of the document."""

    format: Name
    name: Text
    get: Text = ""
    """Where to get it."""
    tiny_samples: Annotated[int, Bound(ge=1, le=10_000)] = 64
    """Examples to generate for the size tiny."""


@dataclass(frozen=True, kw_only=True)
class PrintedTable(Contract):
    """A table or figure of the document, and the configurations of its rows."""

    name: Text
    """Name of the table in the document's rows; without rows of the document any name."""
    tables: Annotated[tuple[Text, ...], Length(50)] = ()
    """Names in the document's rows, if the table collects several; empty: its own name."""
    part: Id
    title: Text
    rows: Annotated[tuple[Text, ...], Length(20)]
    """Settings that name a printed row."""
    columns: Annotated[tuple[Text, ...], Length(20)] = ()
    """Settings that name a printed column; empty: one column per figure."""
    split: Text = ""
    """Setting that divides the table into (a), (b) and so on."""
    figures: Annotated[tuple[Text, ...], Length(20)]
    """Metrics in the order of print."""
    same: dict[str, dict[str, Settings]] = field(default_factory=dict)
    """Our settings for a value of the document: same.model.ResNet50 = { workload = "resnet50" }. "" is the value of a
    row that does not state it. The number of devices, batch sizes, workers and precision need none; {} compares none.
    `figure` names the figure of ours that a printed one stands for; the column `metric` may have it too."""
    chart: Literal["", "heat", "batch", "scaling", "factors"] = ""
    """What else to show of the part: a chart, or with `factors` what each of its settings changes. The axes of `heat`
    are the first two settings of rows and columns."""

    def __post_init__(self) -> None:
        if not self.rows or not self.figures:
            raise ValueError("rows: a table has rows and figures; valid: at least one of each")
        if self.chart == "heat" and len(self.rows) + len(self.columns) < 2:
            raise ValueError("chart: a heat map has two settings; valid: two rows, or a row and a column")


@dataclass(frozen=True, kw_only=True)
class PrintedRatio(Contract):
    """A ratio of two machines that the document states without the figures of the two.

    `steelyard suite report NAME --against RESULTS` shows it beside the ratio of two of the user's machines.
    """

    part: Id
    over: Text
    """The machine whose figure is divided."""
    base: Text
    """The machine that it is divided by."""
    figure: Text
    value: Annotated[float, Bound(gt=0, le=1e6)]
    at_most: bool = False
    """Whether the document states only that the ratio is not larger."""
    at: Settings = field(default_factory=dict)
    """Settings of both machines; where the number of devices was not measured, the largest that both have is taken."""
    over_at: Settings = field(default_factory=dict)
    """Settings of the first machine only."""
    base_at: Settings = field(default_factory=dict)
    """Settings of the second machine only."""
    place: Text
    words: Text
    """The words at that place."""
    unclear: Annotated[tuple[Text, ...], Length(10)] = ()
    """What the document leaves open; a condition of the answer."""

    def __post_init__(self) -> None:
        if self.over_at.keys() != self.base_at.keys():
            raise ValueError("over_at: not the same settings as base_at; valid: both tables with the same names")


@dataclass(frozen=True, kw_only=True)
class Suite(Contract):
    """A suite file."""

    schema_version: Literal[1] = SCHEMA_VERSION
    name: Id
    title: Text
    question: Text
    """What it answers, in one sentence."""
    about: Text = ""
    document: Text = ""
    """The document: a name of the built-in catalogue, or a table (CSV) in the folder of the suite; empty: none."""
    cite: Text = ""
    """Author, title, year and address, if the document is not of the catalogue."""
    seed: Seed = 0
    repeats: Repeats = 3
    """Fresh launches of each configuration."""
    run: Settings = field(default_factory=dict, metadata={HOLDS: RunSpec, HIDES: NOT_SET})
    """Settings that all parts share."""
    part: Annotated[tuple[Part, ...], Length(50)]
    table: Annotated[tuple[PrintedTable, ...], Length(MAX_TABLES)] = ()
    setting: Annotated[tuple[SettingSource, ...], Length(MAX_SETTINGS)] = ()
    deviation: Annotated[tuple[Deviation, ...], Length(100)] = ()
    ratio: Annotated[tuple[PrintedRatio, ...], Length(100)] = ()
    data: Annotated[tuple[DataNeeded, ...], Length(20)] = ()
    small: SizeChange = field(default_factory=SizeChange)
    tiny: SizeChange = field(default_factory=SizeChange)

    def __post_init__(self) -> None:
        names = [part.name for part in self.part]
        if not names or len(set(names)) < len(names):
            raise ValueError("part: empty, or two with one name; valid: one table [[part]] or more, each with its name")
        named = [(f"table {entry.name}", entry.part) for entry in self.table]
        named += [(f"a ratio of {entry.over}", entry.part) for entry in self.ratio]
        named += [("a deviation", part) for entry in self.deviation for part in entry.parts]
        named += [(f"setting {entry.name}", part) for entry in self.setting for part in entry.parts]
        for what, part in named:
            if part not in names:
                raise ValueError(f"part: {what} is about {part}; valid: {', '.join(names)}")


@dataclass(frozen=True)
class SuiteFolder:
    """A suite and its folder."""

    suite: Suite
    path: Path
    asked: str
    """What the user wrote: a name or a path."""

    def part(self, name: str) -> Part:
        """Return a part by its name."""
        named = next((part for part in self.suite.part if part.name == name), None)
        if named is None:
            names = [part.name for part in self.suite.part]
            near = nearest(name, names)
            problem = Problem(f"--part {name[:80]}", "no such part", ", ".join(names), near=near)
            raise refusal(problem, next_step=None if near else f"steelyard suite show {self.asked}")
        return named

    def setting_sources(self) -> tuple[SettingSource, ...]:
        """Return where each setting comes from: the suite's own entries, then those on how steelyard measures."""
        return (*self.suite.setting, *_measuring())


@dataclass(frozen=True)
class Planned:
    """A configuration of a suite."""

    part: Part
    settings: dict[str, Any]
    """What its case and its place in the sweep set, by dotted name, with the part's own names."""
    epochs: int | None
    """The length of a whole training."""
    run: dict[str, Any]
    """All settings of its runs."""
    data: str | None = None
    """Format of the data set of the document; the runs may use synthetic data instead."""

    def get(self, key: str) -> Any:
        """Return a setting by its dotted name, also those of the part's own names."""
        if key in self.settings:
            return self.settings[key]
        if key == "data":
            return self.data
        if key == "pretrained":
            return self.part.pretrained
        if key == "global_batch":
            replicas = count_replicas(self.get("parallel"), self.get("devices"))
            return self.get("batch") * self.get("accumulation") * replicas
        value: Any = self.run
        for name in key.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return value if value is not None else setting(RunSpec(run_id="x", configuration="x"), key)

    def has(self, wanted: Mapping[str, Any]) -> bool:
        """Return whether it has these settings, by dotted name."""
        return all(self.get(key) == value for key, value in wanted.items())

    @property
    def device_family(self) -> str:
        """As `RunSpec.device_family`; the settings are not checked yet."""
        simulated = self.get("device") == "auto" and self.get("workload") == "sim"
        return "sim" if simulated else str(self.get("device"))

    @property
    def reads(self) -> str | None:
        """Format of the data set that its runs read, if it is there."""
        return None if self.device_family == "sim" else self.data

    @property
    def weights_file(self) -> str | None:
        """Name of the file with the weights that the document begins with; None: none."""
        wanted = self.part.pretrained and self.device_family != "sim"
        return f"{self.get('workload')}.safetensors" if wanted else None


@dataclass(frozen=True)
class Choice:
    """What the user chooses, and what there is."""

    size: Size = "full"
    devices: tuple[int, ...] = ()
    """Numbers of devices instead of the suite's."""
    there: PlaceDevices | None = None
    """The devices that there are; None: any number."""
    data: Mapping[str, Path] = field(default_factory=dict)
    """Folders of data sets by format."""
    synthetic: bool = True
    """Whether configurations whose data set is not among these folders run on synthetic data."""
    weights: Mapping[str, Path] = field(default_factory=dict)
    """Files with pre-trained weights by name."""
    hours: float | None = None
    """How long all of it may take; None: any time."""


@dataclass(frozen=True)
class NotRun:
    """Configurations of a part that do not run, for one reason."""

    part: str
    why: Reason
    planned: tuple[Planned, ...] = ()
    whole: bool = True
    """Whether nothing of the part runs."""
    among: tuple[Planned, ...] = ()
    """All configurations of the part: what is different between them names each."""


# -- which suite is meant


def find_suite(text: str) -> SuiteFolder:
    """Return the suite with this name, or in this folder."""
    folder = Path(text).parent if text.endswith(f"/{SUITE_FILE}") else Path(text)
    if "/" not in text and not (folder / SUITE_FILE).is_file():
        folder = suite_folder(text)
    content = read_bounded(folder / SUITE_FILE, MAX_SPEC_BYTES)
    place = InputFile(str(folder / SUITE_FILE), content)
    data = parse_toml(content, place.source)
    problems = find_problems(Suite, data, place)
    if problems:
        raise refusal(*problems)
    return SuiteFolder(parse_object(Suite, data, place), folder, text)


def recipe_names(folder: SuiteFolder) -> list[str]:
    """Return the recipes of a suite, as `steelyard verify` takes them."""
    return list(_recipes(folder.path, folder.suite.name))


def _recipes(folder: Path, suite: str) -> dict[str, Path]:
    return {f"{suite}/{path.stem}": path for path in sorted((folder / RECIPES).glob("*.toml"))}


def find_recipe(text: str) -> Path | None:
    """Return the recipe with the name SUITE/RECIPE; None if the text is something else, such as the path of a file."""
    suite, slash, _ = text.partition("/")
    if not re.fullmatch(r"[a-z0-9-]{1,40}(/[a-z0-9-]{1,40})?", text) or Path(text).exists():
        return None
    known = suite_names()
    if suite not in known and (not slash or Path(suite).is_dir() or not nearest(suite, known)):
        return None
    recipes = _recipes(suite_folder(suite), suite)
    if text not in recipes:
        near = nearest(text, recipes) if slash else ""
        valid = ", ".join(recipes) or f"none; the suite {suite} has no recipes"
        raise refusal(Problem(text, "no such recipe", valid, near=near))
    return recipes[text]


@cache
def _measuring() -> tuple[SettingSource, ...]:
    content = (resources.files("steelyard") / "suites" / MEASURING_FILE).read_bytes()
    entries = parse_toml(content, MEASURING_FILE)["setting"]
    return tuple(parse_object(SettingSource, entry, MEASURING_FILE) for entry in entries)


def applies(entry: SettingSource, size: Size, specs: Mapping[str, Sequence[RunSpec]]) -> bool:
    """Return whether a run of these parts has the value that an entry is about. A part's own names always count."""
    if entry.sizes and size not in entry.sizes:
        return False
    runs = [spec for part, of_part in specs.items() if not entry.parts or part in entry.parts for spec in of_part]
    wanted = entry.value if isinstance(entry.value, tuple) else (entry.value,)
    if entry.value is None or entry.name in OWN_NAMES or entry.name.endswith("*"):
        return bool(runs)
    return any(setting_of(spec, entry.name) in wanted for spec in runs)


def setting_of(spec: RunSpec, key: str) -> Any:
    """Return a setting of a run by its dotted name, also the global batch."""
    return spec.step_samples if key == "global_batch" else setting(spec, key)


# -- what a suite runs


def study_name(suite: Suite, part: Part, size: Size) -> str:
    """Return the name of the study with the results of a part."""
    return f"{suite.name}-{part.name}-{size}"


def _changes(suite: Suite, part: Part, size: Size) -> list[SizeChange]:
    """Return what a size changes: in all parts, then in this one."""
    return [getattr(where, size) for where in (suite, part)] if size != "full" else []


def plan_part(suite: Suite, part: Part, choice: Choice) -> list[Planned]:
    """Return the configurations of a part; those whose global batch cannot be divided are left out."""
    changes = _changes(suite, part, choice.size)
    sweep = dict(part.sweep)
    for change in changes:
        sweep |= {key: values for key, values in change.sweep.items() if key in sweep or change is changes[-1]}
    devices = choice.devices or next((change.devices for change in reversed(changes) if change.devices), ())
    if devices and "devices" in sweep:
        sweep["devices"] = tuple(number for number in devices if number >= part.least_devices)
    count = math.prod(len(values) for values in sweep.values()) * max(1, len(part.case))
    if count > MAX_CONFIGURATIONS:
        raise refusal(Problem(part.name, f"{count:,} configurations", f"at most {MAX_CONFIGURATIONS:,} in one part"))
    made = []
    for case in part.case or ({},):
        if any(case[key] not in values for change in changes for key, values in change.only.items() if key in case):
            continue
        changed = dict(case)
        for change in changes:
            changed |= {key: value for key, value in change.case.items() if key in case or change is changes[-1]}
        for swept in combinations(sweep):
            planned = _plan(suite, part, changes, {**changed, **swept}, choice)
            if planned is not None:
                made.append(planned)
    return made


def _plan(
    suite: Suite, part: Part, changes: Sequence[SizeChange], settings: dict[str, Any], choice: Choice
) -> Planned | None:
    run = copy.deepcopy(suite.run)
    _merge(run, part.run)
    for change in changes:
        _merge(run, change.run)
    for key, value in settings.items():
        assign(run, key, value)
    _refuse_types(part, run)
    if choice.size == "tiny":
        # What the size, a case or the sweep sets is wanted as it is.
        own = {key: value for change in changes for key, value in change.run.get("model", {}).items()}
        own |= {key[len("model.") :]: value for key, value in settings.items() if key.startswith("model.")}
        reduced = catalogue()["workloads"].get(run.get("workload"), {}).get("reduced", {})
        run["model"] = {**run.get("model", {}), **reduced, **own}
    epochs = run.pop("epochs", None)
    if epochs is not None and choice.size == "full":
        run.setdefault("budget", {})["epochs"] = epochs
    if not _divide_batch(run):
        return None
    planned = Planned(part, settings, epochs, run, run.pop("data", None))
    if planned.reads is not None and planned.reads in choice.data:
        run["data"] = {"format": planned.reads, "path": str(choice.data[planned.reads])}
    if (file := planned.weights_file) is not None and file in choice.weights:
        run["weights"] = str(choice.weights[file])
    return planned


def _refuse_types(part: Part, run: dict[str, Any]) -> None:
    """Refuse what cannot be planned with; other types are checked with the settings of each run."""
    problems = [
        Problem(f"{part.name}.{name}", f"is {show_value(value)}", "a table" if kind is dict else "text")
        for name, kind in (("budget", dict), ("model", dict), ("workload", str), ("data", str))
        if not isinstance(value := run.get(name, kind()), kind)
    ]
    if problems:
        raise refusal(*problems)


def data_formats(suite: Suite, part: Part) -> set[str]:
    """Return the formats of the data sets of a part."""
    tables = ({**suite.run, **part.run}, *part.case)
    named = [table.get("data") for table in tables] + list(part.sweep.get("data", ()))
    return {name for name in named if isinstance(name, str)}


def why_left_out(planned: Planned, choice: Choice) -> Reason | None:
    """Return why a configuration cannot run with what the user chose and what there is; None: it can."""
    if planned.device_family not in ("cpu", "sim") and choice.there is not None:
        devices = planned.get("devices")
        if isinstance(devices, int) and not choice.there.suffice(devices):
            return "devices"
    if planned.reads is None or planned.reads in choice.data:
        return None
    if not choice.synthetic:
        return "data"
    return "evaluation" if "quality" in planned.run else None


def running(suite: Suite, part: Part, choice: Choice) -> list[Planned]:
    """Return the configurations of a part that run."""
    return [planned for planned in plan_part(suite, part, choice) if why_left_out(planned, choice) is None]


def left_out(suite: Suite, part: Part, choice: Choice) -> list[NotRun]:
    """Return what does not run of a part, by reason; empty: everything runs."""
    plan = plan_part(suite, part, choice)
    if not plan:
        return [NotRun(part.name, "numbers")]
    by_reason: dict[Reason, list[Planned]] = {}
    for planned in plan:
        if (why := why_left_out(planned, choice)) is not None:
            by_reason.setdefault(why, []).append(planned)
    whole = sum(map(len, by_reason.values())) == len(plan)
    # Fewer devices alone may leave something: then it is the data that is missing.
    last = max(by_reason, key=REMOVES.index, default="")
    among = tuple(plan)
    return [NotRun(part.name, why, tuple(some), whole and why == last, among) for why, some in by_reason.items()]


def counterpart(suite: Suite, planned: Planned, size: Size, plan: Sequence[Planned]) -> Planned | None:
    """Return the configuration of a size's plan for one of the size full; None: it is left out there.

    Only at the size tiny other values may be meant by those of the size full.
    """
    part, wanted = planned.part, dict(planned.settings)
    for change in _changes(suite, part, size):
        wanted |= {key: value for key, value in change.case.items() if key in wanted}
        lists = dict(change.sweep) | ({"devices": change.devices} if change.devices and "devices" in part.sweep else {})
        for key, values in lists.items() if size == "tiny" else ():
            if key in part.sweep and not set(values) <= set(part.sweep[key]):
                place = part.sweep[key].index(planned.settings[key])
                # Other values stand for those at their place: the second number of devices for the second one.
                wanted[key] = values[place] if place < len(values) else None
    return next((entry for entry in plan if entry.settings == wanted), None)


def differences(suite: Suite, planned: Planned) -> list[Deviation]:
    """Return how a configuration is known to differ from the document."""
    here = [entry for entry in suite.deviation if not entry.parts or planned.part.name in entry.parts]
    return [entry for entry in here if planned.has(entry.at)]


def _merge(settings: dict[str, Any], change: Mapping[str, Any]) -> None:
    for key, value in change.items():
        if isinstance(value, dict) and isinstance(settings.get(key), dict):
            _merge(settings[key], value)
        else:
            settings[key] = copy.deepcopy(value)


def _divide_batch(run: dict[str, Any]) -> bool:
    """Replace the global batch by batches per device, or micro-batches of a pipeline; False if it cannot be divided."""
    whole = run.pop("global_batch", None)
    if whole is None:
        return True
    ranks, steps, most = run.get("devices", 1), run.pop("epoch_steps", None), run.pop("most_batch", None)
    if most is not None and {"batch", "accumulation"} & run.keys():
        raise refusal(Problem("most_batch", "is given with batch or accumulation", "only one of the three"))
    each = run["batch"] if "batch" in run else run.get("accumulation", 1)
    for value in (whole, ranks, each, *(value for value in (steps, most) if value is not None)):
        if type(value) is not int or value < 1:
            raise refusal(Problem("global_batch", f"is computed with {value}", "integers of at least 1"))
    replicas = count_replicas(run.get("parallel", "ddp"), ranks)
    if most is not None:
        each = run["batch"] = max(1, min(most, whole // replicas))
    shared = replicas * each
    run["accumulation" if "batch" in run else "batch"] = whole // shared
    if steps is not None:
        run["epoch_samples"] = steps * whole
    return bool(whole >= shared and whole % shared == 0)


def expand_part(folder: SuiteFolder, part: Part, choice: Choice, *, arguments: tuple[str, ...] = ()) -> Expansion:
    """Return the runs of a part that can run, as a study."""
    suite = folder.suite
    changes = _changes(suite, part, choice.size)
    repeats = [part.repeats or suite.repeats, *(change.repeats for change in changes if change.repeats is not None)]
    study = Study(name=study_name(suite, part, choice.size), seed=suite.seed, repeats=repeats[-1])
    listed = [(planned.settings, planned.run) for planned in running(suite, part, choice)]
    if not listed:
        raise InputError(f"{part.name}: no configuration is possible with these devices and batch sizes")
    return expand_listed(study, listed, folder.path, arguments=arguments)
