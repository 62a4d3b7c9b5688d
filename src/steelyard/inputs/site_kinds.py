"""The kinds of site that a template is shipped for. Knows the files, not what is in them."""

from __future__ import annotations

import difflib
import re
from importlib import resources
from typing import Final

from steelyard.errors import InputError, Problem

# What a template leaves to fill in; the last two stand in lines that are comments at first.
PLACEHOLDER: Final = re.compile(r"change-me|/path/to/|^NAME$", re.IGNORECASE)


def site_kinds() -> list[str]:
    """Names of the templates."""
    folder = resources.files("steelyard") / "sites"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def about(kind: str) -> str:
    """What a template is for: its first line."""
    return template(kind).partition("\n")[0].removeprefix("# ")


def template(kind: str) -> str:
    """The text of one; InputError when there is none of that name."""
    known = site_kinds()
    if kind not in known:
        near = difflib.get_close_matches(kind, known, n=1)
        problem = Problem("KIND", f"no template is called {kind!r}", ", ".join(known))
        step = f"steelyard site new {near[0]}" if near else None
        raise InputError("the kind of site is not known", problems=(problem,), next_step=step)
    return (resources.files("steelyard") / "sites" / f"{kind}.toml").read_text(encoding="utf-8")
