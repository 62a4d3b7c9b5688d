"""[pasted] Tables as people have them are read exactly, or refused by name; never with a wrong value.

Generated tables in five forms (Markdown, CSV, TSV, LaTeX, HTML) have headings from a list of real spellings, which the
reader does not know, with random units, number styles and missing cells. Each figure must be read with its value,
bounds that hold it, metric, precision and settings; what is not read must be named. Then a table with 10,000 lines is
audited as a command, and damaged tables must end in an answer or an InputError. Public tables are read as they are.
"""

from __future__ import annotations

import math
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from figure import arguments, at_least, at_most, finish, timed
from printed_tables import Table, make_table, spellings
from steelyard.audit.reading import parse_any
from steelyard.errors import InputError

if TYPE_CHECKING:
    from steelyard.audit.printed.read import TableReading

PRINTED = Path(__file__).parents[2] / "tests" / "data" / "printed"
PUBLIC = {
    "resnet50-a100.md": 15, "maskrcnn-v100.md": 12, "bert-pretraining-dgx2.md": 32, "bert-multinode.csv": 48,
    "llm-h100.csv": 88,
}  # fmt: skip
"""Public tables and their number of figures, counted by hand."""


def read_figures(reading: TableReading) -> dict[tuple[int, str, str], tuple[float, float, float]]:
    """Return every figure by line, precision of its group and metric."""
    found = {}
    for row in reading.table.rows:
        for metric, amount in row.figures.items():
            line = row.cells[metric][1]
            # A precision with a cell of its own is a setting; one without is that of the heading.
            precision = "" if "precision" in row.cells else str(row.get("precision") or "")
            found[line, precision, metric] = (amount.value, amount.low, amount.high)
    return found


def compare(table: Table) -> tuple[list[str], list[str]]:
    """Return wrong values, and figures that were not read; each not read must be named by the reader."""
    try:
        reading = parse_any(table.text, table.name)
    except InputError as error:
        return [], [f"whole table: {error}"]
    found, wrong = read_figures(reading), []
    for key, (value, low, high) in found.items():
        truth = table.figures.get(key)
        if truth is None or not math.isclose(value, truth, rel_tol=1e-9) or not low <= value <= high:
            wrong.append(f"{key}: {value} instead of {truth}")
    for row in reading.table.rows:
        line = next(iter(row.cells.values()))[1]
        for setting in row.settings:
            stated = table.settings.get((line, setting))
            own = row.settings[setting]
            same = str(own).lower() == str(stated).lower() if isinstance(own, str) else own == stated
            if setting in row.cells and not same:
                wrong.append(f"{setting} of line {line}: {own!r} instead of {stated!r}")
    missing = [f"{key}" for key in table.figures if key not in found]
    named = bool(reading.refused) or any(not meaning.known for meaning in reading.meanings)
    return wrong, [entry if named else f"silent: {entry}" for entry in missing]


def damage(text: str, rng: random.Random) -> str:
    """Return a text with a few random changes."""
    marks = "|&\\{}<>,;\t\n\"'%$^~0123456789.eE-+x±: \u202e\u00a0\x00[]()=@"
    for _ in range(rng.randrange(1, 12)):
        at = rng.randrange(len(text) + 1)
        kind = rng.randrange(5)
        if kind == 0:
            text = text[:at] + text[at + rng.randrange(1, 20) :]
        elif kind == 1:
            text = text[:at] + rng.choice(marks) * rng.choice((1, 1, 1, 3, 2000)) + text[at:]
        elif kind == 2:
            text = text[:at] + text[at : at + 200] * rng.choice((2, 30)) + text[at:]
        elif kind == 3:
            tag = rng.choice(
                ("<table>", "<td colspan=9999 rowspan=9999>", "\\begin{tabular}{l}", "\\multirow{9999}{*}{", "<tr>")
            )
            text = text[:at] + tag * rng.choice((1, 40)) + text[at:]
        else:
            text = text[:at]
    return text


def damaged(count: int, rng: random.Random) -> tuple[int, float]:
    """Return how many damaged tables ended in another error, and the longest time of one."""
    every, faults, longest = spellings(), 0, 0.0
    for _ in range(count):
        table = make_table(every, rng)
        text = damage(table.text, rng)
        begin_s = time.process_time()
        try:
            parse_any(text, rng.choice((table.name, "standard input", "x.md", "x.csv")))
        except InputError:
            pass
        except Exception as error:  # noqa: BLE001
            faults += 1
            print(f"{type(error).__name__}: {error}: {text[:300]!r}")
        longest = max(longest, time.process_time() - begin_s)
    return faults, longest


def large(lines: int) -> float:
    """Return the processor seconds of an audit of a large table, as a user runs it."""
    rng = random.Random(7)
    rows = [
        f"| {2 ** (line % 8)} | net{line // 8} | 32 | {rng.uniform(100, 9e4):,.1f} | {rng.uniform(1, 200):.2f} s |"
        for line in range(lines)
    ]
    head = ["| GPUs | Model | Batch size / GPU | Throughput (images/s) | Time per epoch |", "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.md"
        path.write_text("\n".join([*head, *rows]), encoding="utf-8")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-m", "steelyard.cli.main", "audit", str(path), "--brief"],
            capture_output=True,
            text=True,
            check=False,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if f"{lines:,} rows" not in done.stdout or "Traceback" in done.stderr:
        raise SystemExit(f"the large table was not read: {done.stdout[:500]} {done.stderr[:500]}")
    return seconds


def main() -> None:
    quick = arguments(__doc__).quick
    every = spellings()
    tables, wrong, exact, silent = 150 if quick else 2000, 0, 0, 0
    reasons: Counter[str] = Counter()
    used: set[str] = set()
    for seed in range(tables):
        table = make_table(every, random.Random(50_000 + seed))
        used.add(table.name)
        bad, missing = compare(table)
        wrong += len(bad)
        silent += sum(entry.startswith("silent") for entry in missing)
        exact += not bad and not missing
        if bad or missing:
            reasons[(bad + missing)[0][:90]] += 1
            if sum(reasons.values()) <= 12:
                print(f"{table.name}, seed {50_000 + seed}: {(bad + missing)[0][:160]}")
    faults, longest = damaged(400 if quick else 10_000, random.Random(99))
    public = 0
    for name, count in PUBLIC.items():
        reading = parse_any((PRINTED / name).read_text(encoding="utf-8"), name)
        read = sum(len(row.figures) for row in reading.table.rows)
        public += read == count and not reading.refused
        print(f"{name}: {read} of {count} figures")
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    finish(
        [
            at_least(
                "pasted: headings with the file they are from", sum(":" in entry.source for entry in every), "", 150
            ),
            at_least("pasted: tables read exactly", 100 * exact / tables, "%", 99),
            at_most("pasted: wrong values", wrong, "", 0),
            at_most("pasted: figures left out without a word", silent, "", 0),
            at_most("pasted: damaged tables with another error", faults, "", 0),
            timed("pasted: longest damaged table", longest, "s", 2, quick=quick),
            at_most("pasted: memory at most", peak_mb, "MB", 600),
            timed("pasted: 10,000 lines, whole command", large(10_000), "s", 5, quick=quick),
            at_least("pasted: public tables with every figure", public, "", len(PUBLIC)),
        ],
    )


if __name__ == "__main__":
    main()
