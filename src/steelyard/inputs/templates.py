"""Files to begin with that come with the package: of sites, and of studies by the question that they answer."""

from __future__ import annotations

import re
from importlib import resources
from typing import TYPE_CHECKING, Final, Literal

from steelyard.errors import InputError, Problem, nearest, refusal

if TYPE_CHECKING:
    from pathlib import Path

Of = Literal["sites", "studies"]
# What a template leaves to fill in; the last two are in lines that are commented out at first.
PLACEHOLDER: Final = re.compile(r"change-me|/path/to/|^NAME$", re.IGNORECASE)


def kinds(of: Of) -> list[str]:
    """Return the names of the templates."""
    folder = resources.files("steelyard") / of
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def about(of: Of, kind: str) -> str:
    """Return the first line of a template: what it is for."""
    return template(of, kind).partition("\n")[0].removeprefix("# ")


def template(of: Of, kind: str) -> str:
    """Return the text of a template; InputError for an unknown name."""
    known = kinds(of)
    if kind not in known:
        raise refusal(Problem(kind[:80], "no such template", ", ".join(known), near=nearest(kind, known)))
    return (resources.files("steelyard") / of / f"{kind}.toml").read_text(encoding="utf-8")


def write_new(path: Path, text: str, again: str) -> str:
    """Write a new file and return its name as a command takes it; InputError with the next step if it exists."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(f"{path} already exists", next_step=again) from None
    except FileNotFoundError:
        raise InputError(f"no folder {path.parent}", next_step=again) from None
    return f"./{path}" if str(path).startswith("-") else str(path)
