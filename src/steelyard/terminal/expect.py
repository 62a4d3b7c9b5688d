"""What is expected of a figure, and what was imported, as lines and as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.errors import printable
from steelyard.rules.table.settings import SETTINGS, shown
from steelyard.rules.table.units import unit_of
from steelyard.stats.prediction import MIN_MACHINES
from steelyard.terminal.text import many, number, shortened, table, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from steelyard.audit.expect import Expected
    from steelyard.audit.foreign import Imported
    from steelyard.rules.table.row import Row
    from steelyard.terminal.shapes.checks import ImportedData
    from steelyard.terminal.shapes.measure import ExpectedData

SHOWN = 20
NO_DATA = "No comparable data"
# Settings that say little to a reader, or that all rows of a kind share.
QUIET = ("device_scope", "dies", "last_batch", "data_identity", "serving")


def expect_lines(expected: Sequence[Expected], known: Sequence[Row], what: str, metric: str) -> list[str]:
    """Format the answers to a question, or what there is instead."""
    if not expected:
        return _instead(known, what, metric)
    if len(expected) == 1:
        return [*_told(expected[0]), *wrapped(f"with {_settings(expected[0], SETTINGS)}", "  ", "")]
    told = [key for key in SETTINGS if key not in QUIET and any(key in entry.settings for entry in expected)]
    apart = [key for key in told if len({shown(entry.settings.get(key)) for entry in expected}) > 1]
    lines = wrapped(f"{metric} with {_settings(expected[0], [key for key in told if key not in apart])}:")
    rows = []
    for entry in expected[:SHOWN]:
        cells = [shown(entry.settings[key]) if key in entry.settings else "-" for key in apart]
        rows.append([*cells, str(len(entry.machines)), *_cells(entry), shortened(entry.sources, 2)])
    lines += [
        "",
        table([*apart, "machines", *([] if expected[0].value is None else ["yours"]), "90 % lie in", "from"], rows),
    ]
    if len(expected) > SHOWN:
        lines.append(
            f"and {many(len(expected) - SHOWN, 'other combination')} of settings; state more to narrow it down"
        )
    if not any(entry.band for entry in expected):
        lines += wrapped(f"A band needs {MIN_MACHINES} machines with the same settings.")
    return lines


def _cells(expected: Expected) -> list[str]:
    """Return whether a figure is inside, if there is one, and the band, or the figures that are too few for one."""
    band = expected.band
    place = [] if expected.value is None else ["-" if band is None else expected.answer]
    if band is None:
        return [*place, f"only {', '.join(_amount(expected, machine.value) for machine in expected.machines)}"]
    return [*place, f"{_number(expected, band.low)} to {_amount(expected, band.high)}"]


def run_line(expected: Expected | None) -> list[str]:
    """Say in one paragraph whether the figure of a run is normal."""
    if expected is None:
        return wrapped(f"{NO_DATA} to say whether this is normal (steelyard import adds results of others).")
    return _told(expected)


def _told(expected: Expected) -> list[str]:
    machines = many(len(expected.machines), "comparable machine")
    where = f"from {shortened(expected.sources)}"
    if expected.band is None:
        listed = ", ".join(f"{machine.name} {_amount(expected, machine.value)}" for machine in expected.machines)
        return wrapped(
            f"{expected.metric}: only {machines} ({listed}; {where}). A band needs {MIN_MACHINES}, so there is none."
        )
    band = expected.band
    text = (
        f"{expected.metric}: {_number(expected, band.low)} to {_amount(expected, band.high)} is where "
        f"{100 * band.level:.0f} % of comparable machines lie ({many(band.machines, 'machine')}, {where})."
    )
    if expected.value is not None:
        place = {"inside": "inside", "below": "below the band", "above": "above the band"}[expected.answer]
        text = f"{_amount(expected, expected.value)} is {place}. {text}"
    if expected.unknown:
        text += f" Not stated by them: {shortened(expected.unknown)}."
    return wrapped(text)


def _instead(known: Sequence[Row], what: str, metric: str) -> list[str]:
    """Say which data there is for the workload."""
    if not known:
        return wrapped(f"{NO_DATA}: there are no figures for {what}. steelyard import adds results of others.")
    metrics = sorted({name for row in known for name in row.figures})
    if metric not in metrics:
        return wrapped(f"{NO_DATA}: no {metric} of {what}. Known: {', '.join(metrics)} (--metric).")
    having = [row for row in known if metric in row.figures]
    parts = []
    for key in ("accelerator", "batch", "precision", "devices"):
        values = sorted({shown(row.get(key)) for row in having})
        parts.append(f"{key} {shortened(values, 6)}")
    return wrapped(f"{NO_DATA}: no {metric} of {what} with these settings. Known: {'; '.join(parts)}.")


def _settings(expected: Expected, keys: Iterable[str]) -> str:
    stated = [key for key in keys if key in expected.settings and key not in QUIET]
    return ", ".join(f"{key} {shown(expected.settings[key])}" for key in stated)


def _number(expected: Expected, value: float) -> str:
    known = unit_of(expected.unit)
    return number(value / known[1] if known else value)


def _amount(expected: Expected, value: float) -> str:
    return f"{_number(expected, value)} {expected.unit}".strip()


def expected_object(expected: Expected | None) -> ExpectedData:
    """Return an answer as plain data, in base units; None: there is no comparable data."""
    if expected is None:
        return {"answer": NO_DATA.lower()}
    band = expected.band
    return {
        "metric": expected.metric,
        "answer": expected.answer,
        "value": expected.value,
        "unit": expected.unit,
        "band": None if band is None else {"low": band.low, "high": band.high, "level": band.level},
        "machines": [
            {"name": machine.name, "value": machine.value, "figures": machine.figures, "source": machine.source}
            for machine in expected.machines
        ],
        "settings": dict(expected.settings),
        "unknown": list(expected.unknown),
    }


def imported_lines(imported: Imported, place: Path) -> list[str]:
    """Say what was read, what was left out, and where it is now."""
    rows = [[file.name, file.format, str(file.figures)] for file in imported.files[:SHOWN]]
    lines = [table(["file", "format", "figures"], rows)]
    if len(imported.files) > len(rows):
        lines.append(f"and {many(len(imported.files) - len(rows), 'other file')}")
    for reason, count in imported.left_out.items():
        lines += wrapped(f"left out: {many(count, 'value')}: {printable(reason)}")
    if imported.skipped:
        lines.append(f"skipped: {many(imported.skipped, 'file')} in no known format")
    lines += wrapped(f"{many(len(imported.table.rows), 'row')} in {place}")
    return lines


def imported_object(imported: Imported, place: Path) -> ImportedData:
    """Return the same as plain data."""
    return {
        "shape": "import/1",
        "files": [{"name": file.name, "format": file.format, "figures": file.figures} for file in imported.files],
        "rows": len(imported.table.rows),
        "left_out": dict(imported.left_out),
        "skipped": imported.skipped,
        "table": str(place),
    }
