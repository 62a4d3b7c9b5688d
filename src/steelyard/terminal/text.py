"""Tables, wrapped text and numbers, as plain text for a terminal."""

from __future__ import annotations

import re
import textwrap
from contextvars import ContextVar
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from steelyard import numbers
from steelyard.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from steelyard.contracts.record import Interval, Quantity, RunRecord
    from steelyard.contracts.spec import RunSpec

OUTPUT_COLUMNS: ContextVar[int | None] = ContextVar("OUTPUT_COLUMNS", default=None)
"""Columns of the terminal that is written to; None for a file or a pipe, where table rows are not wrapped."""
RESULTS: ContextVar[str | None] = ContextVar("RESULTS", default=None)
"""The results folder to name in commands; None: the usual one."""
DIGITS: Final = 5
WIDTH: Final = 80
"""Columns of text, even on a wider terminal."""
LEAST_WIDTH: Final = 20
"""Text is not wrapped to fewer columns than this: its indents would fill the line."""
SIMULATED: Final = "Simulated: the results come from a scripted device; no accelerator was measured."
NUMBER: Final = re.compile(r"[+-]?[\d,.]+(e[+-]?\d+)?( ?[A-Za-z%]{1,3})?")


def table(header: Sequence[str], rows: Sequence[Sequence[str]], most: int | None = None) -> str:
    """Format a table, numbers to the right; a row that is too wide for the terminal becomes a block of lines.

    `most`: columns that it takes at most, also in a file or a pipe.
    """
    header, *rows = [[printable(cell) for cell in row] for row in (header, *rows)]
    columns = [[row[i] for row in rows] for i in range(len(header))]
    numeric = [bool(cells) and all(cell in ("", "-") or NUMBER.fullmatch(cell) for cell in cells) for cells in columns]
    widths = [max(map(columns_of, (heading, *cells))) for heading, cells in zip(header, columns, strict=True)]
    terminal = min(filter(None, (OUTPUT_COLUMNS.get(), most)), default=None)
    if terminal is not None:
        # Lines break between words only, and never inside a number.
        least = [
            max(map(columns_of, [*heading.split(), *(cells if number else " ".join(cells).split())]), default=1)
            for heading, cells, number in zip(header, columns, numeric, strict=True)
        ]
        room = terminal - 2 * (len(header) - 1)
        if sum(least) > room:
            return "\n".join(_block(header, row) for row in rows)
        while sum(widths) > room:
            widest = max((width, i) for i, width in enumerate(widths) if width > least[i])[1]
            widths[widest] -= 1
    rules = ["-" * width for width in widths]
    folded = [[_fold(cell, width) for cell, width in zip(row, widths, strict=True)] for row in (header, rules, *rows)]
    tallest = max(map(len, folded[0]))
    # A heading is directly above its rule.
    folded[0] = [[""] * (tallest - len(lines)) + lines for lines in folded[0]]
    shown = []
    for cells in folded:
        for line in zip_longest(*cells, fillvalue=""):
            padded = [
                " " * (width - columns_of(text)) + text if number else text + " " * (width - columns_of(text))
                for text, number, width in zip(line, numeric, widths, strict=True)
            ]
            shown.append("  ".join(padded).rstrip())
    return "\n".join(shown)


def columns_of(text: str) -> int:
    """Return how many columns text takes on a terminal."""
    if text.isascii():
        return len(text)
    # Imported late: most text does without.
    from rich.cells import cell_len

    return cell_len(text)


def _fold(cell: str, width: int) -> list[str]:
    """Break a cell between words into lines of at most this width; no word is wider."""
    if columns_of(cell) <= width:
        return [cell]
    lines = [""]
    for word in cell.split():
        if not lines[-1]:
            lines[-1] = word
        elif columns_of(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _block(header: Sequence[str], row: Sequence[str]) -> str:
    """A row of a table as its first cell and, below it, the others with their headings."""
    columns = OUTPUT_COLUMNS.get() or WIDTH
    pairs = [f"{heading}: {cell}" if heading else cell for heading, cell in zip(header, row, strict=True)]
    title = pairs[0] if NUMBER.fullmatch(row[0]) else row[0]
    shown = [pair for pair, cell in zip(pairs[1:], row[1:], strict=True) if cell not in ("", "-")]
    # Lines break between pairs where they can.
    kept = [pair.replace(" ", "\u00a0") if len(pair) < columns - 4 else pair for pair in shown]
    lines = [*wrapped(title), *wrapped("; ".join(kept), "  ", "")]
    return "\n".join(lines).replace("\u00a0", " ")


def wrapped(text: str, indent: str = "", deeper: str = "  ") -> list[str]:
    """Wrap text to the terminal's width, at most WIDTH; lines after the first are indented by `deeper` more.

    Names of rules contain hyphens and are searched for, and paths are copied: no line breaks inside a word.
    """
    columns = min(WIDTH, OUTPUT_COLUMNS.get() or WIDTH)
    lines = textwrap.wrap(
        # Nor between a number and its percent sign.
        re.sub(r"(?<=\d) %", "\u00a0%", printable(text)),
        max(columns, LEAST_WIDTH),
        initial_indent=indent,
        subsequent_indent=indent + deeper,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [line.replace("\u00a0%", " %") for line in lines]


def number(value: float, digits: int = DIGITS) -> str:
    """Format a number with `digits` significant digits and separated thousands, without an exponent where possible."""
    return numbers.number(value, digits, plain_below=9)


def seconds(value: float) -> str:
    """Format a duration in s, ms, us or ns."""
    return numbers.seconds(value, DIGITS)


def with_interval(quantity: Quantity) -> str:
    """Format a quantity as its value and interval, or as the reason why it is unknown."""
    if quantity.value is None:
        return f"unknown: {quantity.reason}"
    if quantity.interval is None:
        return number(quantity.value)
    return f"{number(quantity.value)} {brackets(quantity.interval)}"


def brackets(interval: Interval, digits: int = 5) -> str:
    """Format an interval as `[95.1, 103]`, or `[at least 95.1]`, with a ~ if it is approximate."""
    low, high = number(interval.low, digits), interval.high
    text = f"[at least {low}]" if high is None else f"[{low}, {number(high, digits)}]"
    return text + (" ~" if interval.approximate else "")


WITHOUT_GAIN = (
    "without gain = without the tolerance that the makers of the sensors state, which is the same in all runs on the "
    "same sensors"
)


def without_gain(quantity: Quantity, digits: int = 5) -> str:
    """Format the interval of an energy without the gain of the sensors; empty if it is not known apart."""
    interval = quantity.interval
    if interval is None or interval.low_without_gain is None or interval.high_without_gain is None:
        return ""
    return f"[{number(interval.low_without_gain, digits)}, {number(interval.high_without_gain, digits)}]"


def interval_notes(intervals: Iterable[tuple[Interval | None, Sequence[RunRecord]]]) -> list[str]:
    """Explain the brackets and the ~ of a table. Each interval comes with the jobs that it was computed from."""
    shown = [(interval, jobs) for interval, jobs in intervals if interval is not None]
    if not shown:
        return []
    counts = sorted({len(jobs) for _, jobs in shown})
    nodes = {job.environment.node for _, jobs in shown for job in jobs if job.environment}
    over = many(counts[0], "job") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} jobs"
    where = f", all on node {nodes.pop()}" if len(nodes) == 1 else f" on {len(nodes)} nodes" if nodes else ""
    if counts == [1]:
        over, where = "the steps of one job", "; other jobs may differ"
    more = "; includes the sensors' uncertainty" if any(interval.from_sensors for interval, _ in shown) else ""
    lines = wrapped(f"[ ] = {100 * shown[0][0].level:g} % CI over {over}{where}{more}")
    for reason in dict.fromkeys(reason for interval, _ in shown for reason in interval.approximate):
        lines += wrapped(f"~ = approximate: {reason}")
    return lines + spec_notes(job.spec for _, jobs in shown for job in jobs)


def spec_notes(specs: Iterable[RunSpec]) -> list[str]:
    """Say that the runs are simulated if the workload's name does not, and that all are tuned."""
    every = list(specs)
    lines = wrapped(SIMULATED) if any(spec.device_family == "sim" != spec.workload for spec in every) else []
    return lines + wrapped(tuned_note(every))


def tuned_note(specs: Iterable[RunSpec]) -> str:
    """Return the preset of the runs behind a table; empty if it is the default, or if the configurations name it."""
    presets = {spec.preset for spec in specs}
    return f"preset: {presets.pop()}" if len(presets) == 1 and presets != {"plain"} else ""


def capital(text: str) -> str:
    """Capitalise the first letter."""
    return text[:1].upper() + text[1:]


def sentence(text: str) -> str:
    """Capitalise the first letter and end with a full stop."""
    text = text.strip()
    return capital(text) + ("" if text.endswith((".", "?", "!", ":")) or not text else ".")


def many(count: int, what: str) -> str:
    """Format a count of things: 1 job, 2 jobs."""
    return f"{count} {what}" + ("" if count == 1 else "s")


def shortened(names: Sequence[str], shown: int = 4) -> str:
    """List the first names and count the others."""
    listed = list(dict.fromkeys(name for name in names if name))
    more = f" and {len(listed) - shown:,} more" if len(listed) > shown else ""
    return "; ".join(listed[:shown]) + more


def count_statuses(statuses: Mapping[str, int]) -> str:
    """Format the number of runs with each status: 2 completed, 1 failed."""
    return ", ".join(f"{count} {code}" for code, count in sorted(statuses.items()))
