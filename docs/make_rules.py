"""Makes a page for every rule from its class, and the page that lists them; `--check` fails when one is not current."""

from __future__ import annotations

import sys
from pathlib import Path

from steelyard import plugins
from steelyard.rules.rule import SUBJECTS, rule
from steelyard.terminal.rule import index_page, page

FOLDER = Path(__file__).resolve().parent / "rules"


def pages() -> dict[str, str]:
    """Every page by its file's name. Rules of installed packages are documented there, not here."""
    made = {f"{code}.md": page(rule(code)) for subject in SUBJECTS for code in plugins.BUILTIN[f"{subject}_rule"]}
    return made | {"README.md": index_page()}


def main() -> int:
    """Write the pages, or say which are old."""
    made = pages()
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    if "--check" in sys.argv[1:]:
        old = sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))
        if old:
            print(f"not current: {', '.join(old)}; next: python docs/make_rules.py")
        return 1 if old else 0
    FOLDER.mkdir(exist_ok=True)
    for name in there.keys() - made.keys():
        (FOLDER / name).unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
