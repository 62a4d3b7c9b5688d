"""Data sets: the registered formats, and the check of a folder."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard import plugins
from steelyard.data.form import Extent, Format, Split, extent
from steelyard.errors import Problem, SteelyardError, refusal
from steelyard.extras import missing_modules
from steelyard.inputs.validate import near_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SPLITS: tuple[Split, ...] = ("train", "evaluation")
SAMPLED = 200
# Nobody fixes more damaged files one by one.
MOST_PROBLEMS = 1000
# Tokens have no examples; windows of this length are checked instead.
WINDOW = 128
# A workload that uses the data: by format, or else by kind.
WORKLOADS = {
    "cifar10": "wideresnet28-10",
    "cifar100": "wideresnet28-10",
    "mnist": "autoencoder",
    "image-class": "resnet50",
    "image-boxes": "fasterrcnn-r50-fpn",
    "image-mask": "deeplabv3plus-r101",
    "tokens": "gpt",
    "question-answer": "bert-base",
}


def list_formats() -> list[dict[str, Any]]:
    """Return every format with the modules that it needs and those that are missing."""
    rows: list[dict[str, Any]] = []
    for name in plugins.names("data"):
        try:
            form: Format = plugins.load("data", name)
        except (ImportError, AttributeError) as error:
            # A broken format of another package must not hide the others.
            rows.append({"name": name, "kind": "", "title": f"cannot be loaded: {error}", "needs": [], "missing": []})
            continue
        missing = missing_modules(form.needs)
        rows.append(
            {"name": name, "kind": form.kind, "title": form.title, "needs": list(form.needs), "missing": missing}
        )
    return rows


def find_data(text: str) -> tuple[Format, Path]:
    """Return the format and folder of FORMAT:PATH."""
    name, colon, path = text.partition(":")
    if not colon or not path:
        raise refusal(
            Problem(text[:200], "must be FORMAT:PATH, such as cifar100:/data/cifar"), next_step="steelyard data"
        )
    form: Format = plugins.load("data", name)
    root = Path(path)
    if not root.is_dir():
        near = near_file(root) if not root.exists() else ""
        problem = Problem(path, "is not a folder" if root.exists() else "no such folder", near=near)
        raise refusal(problem, next_step=None if near else f"steelyard data make {name} {shlex.quote(path)}")
    return form, root


def require_empty(path: Path) -> None:
    """Refuse a folder that is not empty."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise refusal(Problem(str(path), "is not empty", "an empty folder, or one that does not exist yet"))


def check_data(form: Format, root: Path, *, every: bool) -> dict[str, Any]:
    """Check both splits of a data set; return sizes, identity and problems."""
    splits: dict[str, Any] = {}
    problems: list[dict[str, str]] = []
    files: list[Path] = []
    for split in SPLITS:
        with _note_problems(problems, split):
            examples: Any = form.open(root, split)
            length = None if form.kind != "tokens" else WINDOW if examples.count(WINDOW) else 1
            count = len(examples) if length is None else examples.count(length)
            looked: Sequence[int] = range(count)
            if not every and count > SAMPLED:
                # Evenly, with the first and the last.
                looked = [place * (count - 1) // (SAMPLED - 1) for place in range(SAMPLED)]
            splits[split] = {
                "examples": count,
                "classes": getattr(examples, "classes", None),
                "window": length,
                "decoded": len(looked),
            }
            files += examples.files()
            for place in looked:
                if len(problems) >= MOST_PROBLEMS:
                    break
                with _note_problems(problems, split):
                    examples[place] if length is None else examples.window(place, length)
    whole: Extent | None = None
    with _note_problems(problems, "files"):
        whole = extent(root, files)
    workload = WORKLOADS.get(form.name) or WORKLOADS.get(form.kind, "WORKLOAD")
    command = f"steelyard run {workload} --data {shlex.quote(f'{form.name}:{root}')}"
    return {
        "format": form.name,
        "path": str(root),
        "splits": splits,
        "files": None if whole is None else whole.files,
        "size_bytes": None if whole is None else whole.size_bytes,
        "identity": None if whole is None else whole.identity,
        "problems": problems,
        "next": None if problems else command,
    }


@contextlib.contextmanager
def _note_problems(problems: list[dict[str, str]], split: str) -> Iterator[None]:
    """Turn errors into entries of the report and continue the check."""
    try:
        yield
    except SteelyardError as error:
        problems.append({"split": split, "problem": "; ".join(error.lines), "next": error.next_step or ""})
    except OSError as error:
        problems.append({"split": split, "problem": f"{error.filename}: {error.strerror}", "next": ""})
