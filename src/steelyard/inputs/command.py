"""The command that makes a run or a study again, from the settings of a run.

Findings name it, reports show it, and a path may be private: files of a run are named without their folder.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.contracts.spec import RunSpec
from steelyard.inputs.catalogue import default_mode
from steelyard.inputs.study import chosen_settings, not_default, option_of

if TYPE_CHECKING:
    from collections.abc import Mapping

EXTEND = "--extend"
MAX_COMMAND = 1500
"""Longer commands are left out: nobody reads them, and two must fit into a finding."""
USUAL_BATCH = {"ceiling": 1}
"""The batch of a mode in which it is not that of the contract; `inputs.shorthand` sets it."""
# Settings that one option of `steelyard run` sets together with others.
_TOGETHER = ("workload", "source", "data", "loader.place", "mode", "batch", "model")


def run_again(spec: RunSpec, changes: Mapping[str, Any] | None = None, *, repeats: int = 1) -> str:
    """Return the `steelyard run` command with the settings of a run, some of them changed.

    `changes`: new values by dotted name. Empty if no run can have these settings, if an option of the model is a path,
    or if the command is too long.
    """
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
    """
    if "" in spec.study_arguments:
        return ""
    if spec.study_arguments:
        return _join_words(["steelyard", *spec.study_arguments, EXTEND])
    return run_again(spec, changes, repeats=repeats)


def longer_limits(spec: RunSpec, max_seconds: float) -> dict[str, float]:
    """Return the changes that let a run measure for this many seconds; a time limit grows in proportion."""
    changes = {"budget.max_seconds": float(max_seconds)}
    if spec.time_limit_s is not None:
        changes["time_limit_s"] = float(math.ceil(spec.time_limit_s * max_seconds / spec.budget.max_seconds))
    return changes


def run_longer(spec: RunSpec, repeats: int) -> str:
    """Return the command for jobs of twice the length with the settings of a run."""
    budget = spec.budget
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
    """Return the workload, its mode, its model's options, its batch and its data."""
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
