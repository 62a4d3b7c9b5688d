"""Fresh clones of the last commit, and what its code is, for the scripts of this folder."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
# As in .ci/lib: compiled modules are kept.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
TEXT = re.compile(r"\.md$|^docs/gate\.json$|^docs/figures\.json$|^docs/pictures/")


def git(*words: str) -> str:
    """Return what git prints."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def code() -> str:
    """Return a hash of all files of the last commit but for text."""
    lines = [line for line in git("ls-tree", "-r", "HEAD").splitlines() if not TEXT.search(line.split("\t")[1])]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


@contextmanager
def clone() -> Iterator[Path]:
    """Make a fresh clone of the last commit, and delete it afterwards."""
    with tempfile.TemporaryDirectory(prefix="gate-") as name:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), name], check=True)
        yield Path(name)
