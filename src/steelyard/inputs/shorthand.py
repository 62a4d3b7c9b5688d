"""Short forms and defaults in a run's settings, written out in full."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from steelyard import plugins
from steelyard.contracts.wrap import program_name
from steelyard.errors import Problem, nearest, refusal
from steelyard.inputs.catalogue import default_mode

SYNTHETIC = ("device", "host")


def spell_out(settings: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    """Return the settings with data as format and absolute path, and with the workload's usual mode.

    `data` is "device" or "host" for synthetic data, or FORMAT:PATH; a relative path begins at `folder`, also that of
    `weights`.
    """
    settings = _spell_out_paths(dict(settings), folder)
    mode = settings.get("mode")
    if mode is None and isinstance(settings.get("workload"), str) and "source" not in settings:
        usual = default_mode(settings["workload"])
        if usual != "train":
            mode = settings["mode"] = usual
    if mode == "ceiling":
        # In this mode a batch is how often the work is repeated in one step.
        settings.setdefault("batch", 1)
    if mode == "load":
        _place(settings, "host")
    return settings


def _spell_out_paths(settings: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    data = settings.get("data")
    if isinstance(data, str):
        settings.pop("data")
        if data in SYNTHETIC:
            _place(settings, data)
        else:
            name, colon, path = data.partition(":")
            if not colon or not path:
                raise refusal(_bad_data(data))
            settings["data"] = {"format": name, "path": path}
    if isinstance(settings.get("data"), dict):
        chosen = settings["data"] = dict(settings["data"])
        if isinstance(chosen.get("path"), str):
            chosen["path"] = _absolute(chosen["path"], "data.path", folder)
        _place(settings, "host")
    if isinstance(settings.get("weights"), str):
        settings["weights"] = _absolute(settings["weights"], "weights", folder)
    return settings


def split_command(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with the command of a program as words, split like a shell does, and its name as workload."""
    program = settings.get("program")
    if not isinstance(program, dict) or "command" not in program:
        return settings
    command = program["command"]
    if isinstance(command, str):
        try:
            command = shlex.split(command)
        except ValueError as error:
            raise refusal(Problem("program.command", f"{error}", "words with closed quotes, or a list")) from None
    settings = {**settings, "program": {**program, "command": command}}
    if isinstance(command, list) and command and all(isinstance(word, str) for word in command):
        settings.setdefault("workload", program_name(command))
    return settings


def _bad_data(data: str) -> Problem:
    formats = plugins.names("data")
    near = {"synthetic": "device", "gpu": "device", "cuda": "device", "random": "device", "cpu": "host"}.get(data, "")
    near = near or nearest(data, SYNTHETIC) or (f"{name}:PATH" if (name := nearest(data, formats)) else "")
    valid = f"device, host, or FORMAT:PATH with a format of {', '.join(formats)}"
    return Problem("data", "must be device, host or FORMAT:PATH", valid, given=json.dumps(data[:60]), near=near)


def _absolute(path: str, setting: str, folder: Path | None) -> str:
    try:
        return str(((folder or Path()) / Path(path).expanduser()).absolute())
    except RuntimeError:
        raise refusal(Problem(setting, "no such user", "a path", given=json.dumps(path[:60]))) from None


def _place(settings: dict[str, Any], place: str) -> None:
    loader = settings.get("loader", {})
    if isinstance(loader, dict) and "place" not in loader:
        settings["loader"] = {**loader, "place": place}
