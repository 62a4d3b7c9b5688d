"""Run the tutorial as a new user would: install the wheel into a fresh environment and run every command of the page.

The wheel is built from the source. `pip install .` installs it with its dependencies into the environment that the page
makes. Only torch is shared with the current environment, because downloading it takes minutes; it goes to the end of
the path, so that installed packages come first. Needs the package index of `pip`.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from console import PageError, output, run_page

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "tutorial.md"


class Newcomer:
    """Run the commands of the page in a fresh environment."""

    def __init__(self, wheel: Path) -> None:
        self._wheel = wheel
        self._programs: Path | None = None

    def run(self, words: list[str], folder: Path) -> str:
        """Return what one command prints."""
        begin_s = time.monotonic()
        said = self._run(words, folder)
        print(f"{time.monotonic() - begin_s:6.1f} s  {' '.join(words)[:100]}", flush=True)
        return said

    def _run(self, words: list[str], folder: Path) -> str:
        match words:
            case ["python3", "-m", "venv", name]:
                subprocess.run([sys.executable, "-m", "venv", str(folder / name)], check=True)
                return ""
            case [".", script]:
                self._programs = (folder / script).parent
                return ""
            case ["pip", "install", what]:
                return self._install(what)
            case ["steelyard", *options] if self._programs is not None:
                path = f"{self._programs}{os.pathsep}{os.environ.get('PATH', '')}"
                program = [str(self._programs / "steelyard"), *options]
                return output(program, folder, " ".join(words), PATH=path, PYTHONPATH="")
        raise PageError(f"the fresh environment cannot run this command: {words}")

    def _install(self, what: str) -> str:
        assert self._programs is not None, "the page installs before it has an environment"
        if what == "torch":
            return self._lend_torch()
        command = [str(self._programs / "pip"), "install", "--quiet", f"{self._wheel}{what.removeprefix('.')}"]
        subprocess.run(command, check=True)
        return ""

    def _lend_torch(self) -> str:
        """Make the current torch importable in the fresh environment."""
        found = importlib.util.find_spec("torch")
        if found is None or found.origin is None:
            raise PageError("torch is not installed; next: pip install torch")
        assert self._programs is not None
        packages = next(self._programs.parent.glob("lib/python*/site-packages"))
        (packages / "lent-torch.pth").write_text(f"{Path(found.origin).parent.parent}\n", encoding="utf-8")
        return ""


def build(folder: Path) -> Path:
    """Build the packages of a release; return the wheel, which is made from the source package."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return next(folder.glob("steelyard-*.whl"))


def main() -> int:
    """Run the page and print where its output differs."""
    begin_s = time.monotonic()
    old = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as dist, tempfile.TemporaryDirectory() as folder:
        try:
            new = run_page(old, Path(folder), Newcomer(build(Path(dist))).run)
        except PageError as error:
            print(error, file=sys.stderr)
            return 1
    print(f"{time.monotonic() - begin_s:6.1f} s  in all")
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), "docs/tutorial.md", "as it was", lineterm=""))
    print("\n".join(lines), file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
