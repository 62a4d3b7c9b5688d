"""Which suites there are. Their files are checked only when one is used, because that takes longer than a list may."""

from __future__ import annotations

import importlib.util
import tomllib
from dataclasses import dataclass
from pathlib import Path

from steelyard import plugins
from steelyard.errors import SteelyardError

SUITE_FILE = "suite.toml"


@dataclass(frozen=True)
class ListedSuite:
    """A suite in a list of all."""

    name: str
    title: str
    document: str
    parts: tuple[str, ...]


def suite_names() -> list[str]:
    """Return the names of the suites of this package and of installed ones."""
    return plugins.names("suite")


def suite_folder(name: str) -> Path:
    """Return the folder of an installed suite."""
    package = plugins.require("suite", name)
    try:
        spec = importlib.util.find_spec(package)
    except ImportError:
        spec = None
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not places:
        raise SteelyardError(f"the suite {name} is registered as {package}, which is not an installed package")
    return Path(places[0])


def list_suite(name: str) -> ListedSuite:
    """Return an installed suite as a list shows it; SteelyardError if its file cannot be read as one."""
    path = suite_folder(name) / SUITE_FILE
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        parts = tuple(str(part["name"]) for part in data["part"])
        return ListedSuite(str(data["name"]), str(data["title"]), str(data.get("document", "")), parts)
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise SteelyardError(f"{path} is not a suite file: {error}") from None
