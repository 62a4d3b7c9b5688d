"""[printed] Five published tables as printed: what the audit finds against a recomputation by hand.

The tables are in `tests/data/printed`, with their sources in its README.md and the recomputation in `expected.csv`.
Every expected finding must be given, for the right cell and with the right value; nothing else may be above a note.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from figure import arguments, at_least, at_most, finish
from steelyard.audit.check import check_table
from steelyard.audit.reading import read_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.finding import Finding
    from steelyard.rules.table.row import Row, RowTable

TABLES = Path(__file__).resolve().parents[2] / "tests" / "data" / "printed"


class Expected(NamedTuple):
    """A finding that a recomputation by hand gives."""

    file: str
    code: str
    """Codes that fit, separated by spaces."""
    row: dict[str, object]
    name: str = ""
    """The wrong figure or setting; empty: the finding is about the row."""
    printed: str = ""
    recomputed: float = 0.0


RATIO = "SY504 SY508"
FP32, MIXED, TF32, FP16 = ({"precision": name} for name in ("fp32", "mixed", "tf32", "fp16"))
EXPECTED = (
    Expected("resnet50-a100.md", RATIO, {"devices": 1, **MIXED}, "speedup_over_precision", "2.18", 3.230),
    Expected("resnet50-a100.md", RATIO, {"devices": 4, **MIXED}, "speedup", "3.97", 3.942),
    Expected("resnet50-a100.md", RATIO, {"devices": 4, **MIXED}, "speedup_over_precision", "3.24", 3.214),
    Expected("maskrcnn-v100.md", RATIO, {"devices": 8, "batch": 2, **FP32}, "speedup", "5.26", 5.885),
    Expected("maskrcnn-v100.md", RATIO, {"devices": 8, "batch": 4, **FP32}, "speedup", "6.67", 5.941),
    Expected("maskrcnn-v100.md", RATIO, {"devices": 8, "batch": 4, **MIXED}, "speedup", "4.03", 3.014),
    *(
        Expected("bert-pretraining-dgx2.md", "SY301", {"devices": count, "sequence_length": 128, **precision})
        for precision, counts in ((FP32, (4, 8, 16)), (MIXED, (4, 8)))
        for count in counts
    ),
    *(
        Expected(
            "bert-pretraining-dgx2.md", "SY509", {"devices": count, "sequence_length": 128, **FP32},
            "accumulation", printed, recomputed,
        )
        for count, printed, recomputed in ((1, "8192", 2048), (4, "2048", 512), (8, "1024", 256))
    ),
    *(
        Expected(
            "bert-multinode.csv", "SY509", {"nodes": nodes, "sequence_length": 128, **TF32},
            "batch", "126", 128,
        )
        for nodes in (1, 2, 4, 8, 16, 32)
    ),
    Expected(
        "bert-multinode.csv", "SY509", {"nodes": 4, "sequence_length": 128, **FP16}, "accumulation", "18", 8
    ),
)  # fmt: skip
TOLERANCE = 0.001


def is_of(row: Row, wanted: Expected) -> bool:
    return all(row.get(key) == value for key, value in wanted.row.items())


def fitting(table: RowTable, findings: list[Finding], wanted: Expected) -> Iterator[Finding]:
    """Yield the findings that say what is expected."""
    places = {row.place for row in table.rows if is_of(row, wanted)}
    for found in findings:
        if found.code not in wanted.code.split():
            continue
        if not wanted.name:
            if found.place in places:
                yield found
            continue
        for wrong in found.wrong:
            same = wrong.place in places and (wrong.name, wrong.printed) == (wanted.name, wanted.printed)
            value = float(wrong.recomputed.replace(",", "")) if wrong.recomputed else 0.0
            if same and abs(value / wanted.recomputed - 1) < TOLERANCE:
                yield found


def main() -> None:
    arguments(__doc__)
    given, other, seen = 0, 0, 0
    for path in sorted(TABLES.glob("*")):
        if path.name in ("README.md", "expected.csv"):
            continue
        table = read_table(path)
        findings = [found for found in check_table(table) if found.severity != "note"]
        notes = [found for found in check_table(table) if found.severity == "note"]
        seen += 1
        explained: set[int] = set()
        for wanted in EXPECTED:
            if wanted.file == path.name:
                fits = list(fitting(table, findings, wanted))
                given += bool(fits)
                explained |= {id(found) for found in fits}
                if not fits:
                    print(f"{path.name}: not found: {wanted}", file=sys.stderr)
        # A finding on several cells must not doubt one that is right.
        for found in findings:
            cells = [(wrong.place, wrong.name) for wrong in found.wrong]
            right = [cell for cell in cells if not any(_names(table, wanted, *cell) for wanted in EXPECTED)]
            if id(found) not in explained or right:
                other += 1
                print(f"{path.name}: not expected: {found.code} {found.place}: {found.message}", file=sys.stderr)
        for found in (*findings, *notes):
            print(f"{path.name}: {found.severity} {found.code} {found.place}: {found.message}", file=sys.stderr)
            print(f"    {found.evidence}", file=sys.stderr)
    finish(
        [
            at_least(f"printed: expected findings given, of {len(EXPECTED)}", given, "findings", len(EXPECTED)),
            at_most(f"printed: other findings above a note in {seen} tables", other, "findings", 0),
        ]
    )


def _names(table: RowTable, wanted: Expected, place: str, name: str) -> bool:
    rows = [row for row in table.rows if row.place == place]
    return wanted.file == table.name and wanted.name == name and any(is_of(row, wanted) for row in rows)


if __name__ == "__main__":
    main()
