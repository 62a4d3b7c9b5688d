"""The site templates that come with the package."""

from __future__ import annotations

import re
from importlib import resources
from typing import Final

from steelyard.errors import Problem, nearest, refusal

# What a template leaves to fill in; the last two are in lines that are commented out at first.
PLACEHOLDER: Final = re.compile(r"change-me|/path/to/|^NAME$", re.IGNORECASE)


def site_kinds() -> list[str]:
    """Return the names of the templates."""
    folder = resources.files("steelyard") / "sites"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def about(kind: str) -> str:
    """Return the first line of a template: what it is for."""
    return template(kind).partition("\n")[0].removeprefix("# ")


def template(kind: str) -> str:
    """Return the text of a template; InputError for an unknown name."""
    known = site_kinds()
    if kind not in known:
        raise refusal(Problem(kind[:80], "no such template", ", ".join(known), near=nearest(kind, known)))
    return (resources.files("steelyard") / "sites" / f"{kind}.toml").read_text(encoding="utf-8")
