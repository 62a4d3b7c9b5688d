"""[import] Every figure of every importer's public examples is read exactly, and no malformed file ends in a traceback.

The examples in tests/data/imported have the form and the figures of public files; each importer names them. Every
figure must have the digits and the unit that `expected.csv` lists, and every value must occur in its file as it is.
Then each example is changed at random, as the figure `fuzz` does, and read: it may give a table or an error of ours.
"""

from __future__ import annotations

import csv
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from random import Random

from figure import arguments, at_least, at_most, finish
from fuzz_mutate import Form, mutate
from simjob import memory_folder
from steelyard import plugins
from steelyard.audit.foreign import importers, read_results
from steelyard.errors import SteelyardError

DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "imported"
SEED = 26
CASES, QUICK_CASES = 10_000, 40
MAX_BYTES = 1 << 14
FORMS: dict[str, Form] = {".json": "json", ".jsonl": "jsonl", ".csv": "csv"}
DERIVED = ("train_time",)
"""Differences of two printed times; all others must be in the file as they are."""


def format_of(name: str) -> str:
    """Return the format of an example: its name or its folder begins with it."""
    return name.partition("/")[0].partition("-")[0]


def exact() -> tuple[int, int]:
    """Return how many figures were read, and how many are wrong, missing or too many."""
    with (DATA / "expected.csv").open(encoding="utf-8", newline="") as file:
        expected = Counter((row["file"], row["metric"], row["value"], row["unit"]) for row in csv.DictReader(file))
    found: Counter[tuple[str, str, str, str]] = Counter()
    wrong = 0
    for name in sorted({name for name, *_ in expected}):
        text = (DATA / name).read_text(encoding="utf-8")
        table = read_results([DATA / name], form=format_of(name)).table
        for row in table.rows:
            for metric, amount in row.figures.items():
                found[name, metric, amount.text, amount.unit] += 1
                wrong += metric not in DERIVED and amount.text not in text
    return found.total(), wrong + (expected - found).total() + (found - expected).total()


def tracebacks(cases: int) -> tuple[int, int]:
    """Return the fewest changed files that an importer read, and how many ended in another error than ours."""
    failures = 0
    examples = [path for path in sorted(DATA.rglob("*")) if path.is_file() and path.name != "expected.csv"]
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        place = Path(folder) / "results"
        for name in plugins.BUILTIN["importer"]:
            own = [path for path in examples if format_of(path.relative_to(DATA).as_posix()) == name]
            seeds = [path.read_bytes() for path in own]
            for number in range(cases):
                source = Random(f"{SEED}:{name}:{number}")
                at = source.randrange(len(own))
                changed = mutate(FORMS.get(own[at].suffix, "text"), seeds[at], seeds, source).data
                place.write_bytes(changed[:MAX_BYTES])
                try:
                    read_results([place], form=name if source.random() < 0.7 else None)
                except SteelyardError:
                    pass
                except Exception:  # noqa: BLE001
                    failures += 1
                    print(f"{name} {number}\n{traceback.format_exc(limit=-4)}", file=sys.stderr)
    return cases, failures


def main() -> None:
    options = arguments(__doc__, cases={"type": int, "help": "malformed files of each importer"})
    figures, wrong = exact()
    cases = options.cases or (QUICK_CASES if options.quick else CASES)
    read, failures = tracebacks(cases)
    finish(
        [
            at_least("import_exact: importers", len(importers()), "formats", 8),
            at_least("import_exact: figures of public files", figures, "figures", 120),
            at_most("import_exact: figures that are not exact", wrong, "figures", 0),
            at_least("import_exact: malformed files of each importer", read, "files", cases),
            at_most("import_exact: tracebacks", failures, "files", 0),
        ]
    )


if __name__ == "__main__":
    main()
