"""[suite_settings] Whether every setting of every suite has a source: words of its document, or a reason.

Each suite is expanded at every size. Every setting of every configuration needs an entry with its value, either with
the place in the document that states it or with the reason for choosing it. An entry for a setting or a value that no
configuration has is out of date. With --documents, a folder with the documents as text files, the words of each entry
must be in the text of the suite's document; line breaks, hyphens and case do not count.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

from figure import arguments, at_most, finish
from steelyard.audit.documents import provenances
from steelyard.inputs.suite import find_suite
from steelyard.inputs.suites import suite_names
from suite_sources import out_of_date, sources_of

if TYPE_CHECKING:
    from steelyard.inputs.suite import Suite
    from suite_sources import Explained


def folded(text: str) -> str:
    """Return a text without what two scans of one document print differently: spaces, hyphens, case, quotes."""
    return re.sub(r"[\s\u2010-\u201f'\"*-]", "", unicodedata.normalize("NFKC", text).casefold())


def texts_by_document(folder: Path) -> dict[str, list[str]]:
    """Return the texts of each document: files with its title, and files without any title, such as a second scan."""
    titles = {name: folded(entry.title) for name, entry in provenances().items()}
    texts = [folded(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.txt"))]
    untitled = [text for text in texts if not any(title in text for title in titles.values())]
    return {name: [text for text in texts if title in text] + untitled for name, title in titles.items()}


def not_in_document(suite: Suite, texts: list[str]) -> list[str]:
    return [
        f"{suite.name}, {entry.name} ({entry.stated}): {entry.words}"
        for entry in suite.setting
        if entry.stated and not any(folded(entry.words) in text for text in texts)
    ]


def main() -> None:
    options = arguments(
        __doc__,
        documents={"type": Path, "help": "folder with the documents as text files (*.txt)"},
        suites={"nargs": "+", "default": suite_names(), "help": "only these suites"},
    )
    texts = texts_by_document(options.documents) if options.documents else {}
    suites = [find_suite(name) for name in options.suites]
    every: list[Explained] = []
    lines: dict[str, list[str]] = {"no source": [], "out of date": [], "not in the document": []}
    for name, found in zip(options.suites, suites, strict=True):
        explained = sources_of(found)
        every += explained
        entries = [entry for _, entry in explained if entry is not None]
        lines["no source"] += [f"{name}, {setting}" for setting, entry in explained if entry is None]
        lines["out of date"] += [f"{name}, {line}" for line in out_of_date(found.suite.setting, explained)]
        if texts:
            lines["not in the document"] += not_in_document(found.suite, texts.get(found.suite.document, []))
        stated = sum(bool(entry.stated) for entry in entries)
        rest = len(explained) - len(entries)
        print(f"{name}: {stated} settings stated, {len(entries) - stated} chosen, {rest} without a source")
    if set(options.suites) == set(suite_names()):
        shared = suites[0].setting_sources()[len(suites[0].suite.setting) :]
        lines["out of date"] += [f"settings of all suites, {line}" for line in out_of_date(shared, every)]
    for what, listed in lines.items():
        for line in listed:
            print(f"{what}: {line}")
    figures = [
        at_most("suite_settings: settings without a source", len(lines["no source"]), "settings", 0),
        at_most("suite_settings: entries that no configuration needs", len(lines["out of date"]), "entries", 0),
    ]
    if texts:
        count = len(lines["not in the document"])
        figures.append(at_most("suite_settings: words that are not in the document", count, "entries", 0))
    finish(figures)


if __name__ == "__main__":
    main()
