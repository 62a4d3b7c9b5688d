"""What people may leave out or write short in a run's settings, spelled out. Knows settings as plain data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from steelyard import plugins
from steelyard.errors import InputError, Problem
from steelyard.inputs.catalogue import default_mode

SYNTHETIC = ("device", "host")


def spell_out(settings: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    """The settings with data as format and absolute path, and with the mode that the workload is usually run in.

    `data` is "device" or "host" for synthetic data, or FORMAT:PATH; a relative path begins at `folder`.
    """
    settings = dict(settings)
    data = settings.get("data")
    if isinstance(data, str):
        settings.pop("data")
        if data in SYNTHETIC:
            _place(settings, data)
        else:
            name, colon, path = data.partition(":")
            if not colon or not path:
                valid = "device, host, or FORMAT:PATH with a format of " + ", ".join(plugins.names("data"))
                problem = Problem("data", f"{data[:100]!r} names none", valid)
                raise InputError("the data is not valid", problems=(problem,))
            settings["data"] = {"format": name, "path": path}
    if isinstance(settings.get("data"), dict):
        chosen = settings["data"] = dict(settings["data"])
        if isinstance(chosen.get("path"), str):
            chosen["path"] = str(((folder or Path()) / _expand_home(chosen["path"])).absolute())
        _place(settings, "host")
    mode = settings.get("mode")
    if mode is None and isinstance(settings.get("workload"), str) and "source" not in settings:
        usual = default_mode(settings["workload"])
        if usual != "train":
            mode = settings["mode"] = usual
    if mode == "ceiling":
        # There a batch is how often the work is repeated in one step.
        settings.setdefault("batch", 1)
    if mode == "load":
        _place(settings, "host")
    return settings


def _expand_home(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        problem = Problem("data.path", f"{path[:100]!r} names nobody's home", "a folder")
        raise InputError("the data is not valid", problems=(problem,)) from None


def _place(settings: dict[str, Any], place: str) -> None:
    loader = settings.get("loader", {})
    if isinstance(loader, dict) and "place" not in loader:
        settings["loader"] = {**loader, "place": place}
