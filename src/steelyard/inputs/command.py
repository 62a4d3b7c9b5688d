"""The command that makes a run or a study again, from the settings of a run.

Findings name it, reports show it, and a path may be private: files of a run are named without their folder. Only the
command of a program keeps its paths, because without them it is another one; what is published leaves it out.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shlex
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.contracts.spec import RunSpec
from steelyard.contracts.wrap import DEVICES
from steelyard.inputs.catalogue import default_mode
from steelyard.inputs.study import chosen_settings, not_default, option_of
from steelyard.redact import redact

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

EXTEND = "--extend"
MAX_COMMAND = 1500
"""Longer commands are left out: nobody reads them, and two must fit into a finding."""
USUAL_BATCH = {"ceiling": 1}
"""The batch of a mode in which it is not that of the contract; `inputs.shorthand` sets it."""
# Settings of a program that `steelyard wrap` has options for.
_OF_WRAP = (
    "program.max_steps",
    "program.max_seconds",
    "program.samples_per_step",
    "program.figures",
    "time_limit_s",
)
# Settings that one option of `steelyard run` sets together with others.
_PLACE = re.compile(r"\{\{|\}\}|\{(\w+)\}")
_PRIVATE = re.compile(r"(^|=)(?:/|~)\S*/(?=[^/\s]+$)")
_FOLDER = re.compile(r"(?:^|[\s=:,;'\"(])(?:~|/[^\s/]+/)")
_TOGETHER = ("workload", "source", "data", "weights", "loader.place", "mode", "batch", "model")


def run_again(spec: RunSpec, changes: Mapping[str, Any] | None = None, *, repeats: int = 1) -> str:
    """Return the `steelyard run` or `steelyard wrap` command with the settings of a run, some of them changed.

    `changes`: new values by dotted name. Empty if no run can have these settings, if an option of the model is a path,
    if the command is too long, or if a program would have to be changed.
    """
    if spec.program is not None:
        own = {option_of(name): f"{value:g}" for name, value in (changes or {}).items() if name in _OF_WRAP}
        return wrap_again(spec, own, repeats=repeats) if len(own) == len(changes or {}) else ""
    try:
        spec = _changed(spec, changes or {})
    except ValueError:
        return ""
    if any(isinstance(value, str) and value.startswith(("/", "~")) for value in spec.model.values()):
        return ""
    words = ["steelyard", "run", *_name_workload(spec)]
    for setting in chosen_settings(spec):
        if not setting.startswith(_TOGETHER):
            words += _write(setting, attrgetter(setting)(spec))
    words += ["--study", spec.study] if spec.study != RunSpec.study else []
    return _join_words([*words, *(["--repeats", str(repeats)] if repeats > 1 else [])])


def extend(spec: RunSpec, changes: Mapping[str, Any] | None = None, *, repeats: int = 1) -> str:
    """Return the command that extends the study of a run; for a run without a study file, `run_again`.

    Empty for a study file that is not named: `run_again` would measure on this machine what was measured at a site.
    Empty too if the program of a study would have to be changed: `--extend` makes no longer jobs of it.
    """
    if "" in spec.study_arguments or (spec.program is not None and spec.study_arguments and changes):
        return ""
    if spec.study_arguments:
        return _join_words(["steelyard", *spec.study_arguments, EXTEND])
    return run_again(spec, changes, repeats=repeats)


def words_of(spec: RunSpec) -> list[str]:
    """Return the words of a program's command, with the values of its parameters; empty for a workload."""
    if spec.program is None:
        return []
    values: dict[str, Any] = {DEVICES: spec.devices, **spec.program.parameters}

    def fill(match: re.Match[str]) -> str:
        return str(values.get(match[1], match[0])) if match[1] else match[0][0]

    return [_PLACE.sub(fill, word) for word in spec.program.command]


def public_words(words: Iterable[str]) -> list[str]:
    """Return the words of a command without secrets and without the folders of absolute paths."""
    return [_PRIVATE.sub(r"\1", word) for word in (redact(word)[0] for word in words)]


def published_command(command: str) -> str:
    """Return a command as it may be published: empty if it names folders by their whole paths.

    They are private, and exist only where the command was typed.
    """
    return "" if _FOLDER.search(command) else command


def wrap_again(spec: RunSpec, options: Mapping[str, str] | None = None, *, repeats: int = 1) -> str:
    """Return the command that measures a program again; `options`: those to set, by name.

    Runs of a study are made again by extending it, unless an option must change: then the file must. Empty if the
    command is too long.
    """
    if spec.program is None or "" in spec.study_arguments or (spec.study_arguments and options):
        return ""
    if spec.study_arguments:
        return _join_words(["steelyard", *spec.study_arguments, EXTEND])
    chosen = {option_of(name): attrgetter(name)(spec) for name in _OF_WRAP}
    written = {
        name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in chosen.items() if value
    }
    written |= options or {}
    if spec.study != RunSpec.study:
        written["--study"] = spec.study
    if repeats > 1:
        written["--repeats"] = str(repeats)
    given = [word for pair in written.items() for word in pair]
    given += ["--second-pass"] if spec.program.second_pass else []
    # A command may hold a key.
    return _join_words(["steelyard", "wrap", *given, "--", *(redact(word)[0] for word in words_of(spec))])


def longer_limits(spec: RunSpec, max_seconds: float) -> dict[str, float]:
    """Return the changes that let a run measure for this many seconds; a time limit grows in proportion."""
    changes = {"budget.max_seconds": float(max_seconds)}
    if spec.time_limit_s is not None:
        changes["time_limit_s"] = float(math.ceil(spec.time_limit_s * max_seconds / spec.budget.max_seconds))
    return changes


def run_longer(spec: RunSpec, repeats: int) -> str:
    """Return the command for jobs of twice the length with the settings of a run."""
    budget = spec.budget
    if spec.program is not None:
        limits = {name: attrgetter(name)(spec) for name in ("program.max_steps", "program.max_seconds")}
        changes = {name: 2 * limit for name, limit in limits.items() if limit is not None}
        # One that runs to its end has the length that its author gave it.
        return extend(spec, changes, repeats=repeats) if changes else ""
    fields = ("epochs",) if budget.epochs is not None else ("min_steps", "min_seconds", "max_steps", "max_seconds")
    return extend(spec, {f"budget.{name}": 2 * getattr(budget, name) for name in fields}, repeats=repeats)


def join(*commands: str) -> str:
    """Return commands as one, each once."""
    return " && ".join(dict.fromkeys(filter(None, commands)))


def _join_words(words: list[str]) -> str:
    command = shlex.join(words)
    return command if len(command) <= MAX_COMMAND else ""


def _changed(contract: Any, changes: Mapping[str, Any]) -> Any:
    for name, value in changes.items():
        first, _, rest = name.partition(".")
        new = _changed(getattr(contract, first), {rest: value}) if rest else value
        contract = dataclasses.replace(contract, **{first: new})
    return contract


def _name_workload(spec: RunSpec) -> list[str]:
    """Return the workload, its mode, its model's options, its batch, its data and its weights."""
    source, data = spec.source, spec.data
    words = [spec.workload if source is None else f"{Path(source.path).name}:{source.function}"]
    if spec.mode != ("train" if source is not None else default_mode(spec.workload)):
        words += ["--mode", spec.mode]
    for name, value in spec.model.items():
        words += ["--model", f"{name}={_text(value)}"]
    if spec.batch != USUAL_BATCH.get(spec.mode, RunSpec.batch):
        words += ["--batch", str(spec.batch)]
    if data is not None:
        words += ["--data", f"{data.format}:{Path(data.path).name}"]
    elif spec.loader.place == "host" and spec.mode != "load":
        words += ["--data", "host"]
    if spec.weights is not None:
        words += ["--weights", Path(spec.weights).name]
    if spec.mode == "load" and not spec.loader.workers:
        # Without a count, several are tried.
        words += ["--loader-workers", "0"]
    return words


def _write(setting: str, value: Any) -> list[str]:
    option, _, key = option_of(setting).partition(" ")
    if key:
        return [option, f"{setting}={_text(value)}"]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is False:
        return [f"--no-{option.removeprefix('--')}"]
    return [option] if value is True else [option, value if isinstance(value, str) else json.dumps(value)]


def _text(value: Any) -> str:
    """Write a value after KEY=: as JSON, or as bare text if that is not read as JSON."""
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return value
    if isinstance(value, tuple):
        # Parts with their defaults need not be written.
        value = [not_default(part) if dataclasses.is_dataclass(part) else part for part in value]
    return json.dumps(value, separators=(",", ":"))
