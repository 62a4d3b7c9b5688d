"""Read the output of a program, which may be anything, into the figures that it prints."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from steelyard.derive.printed.formats import chosen_formats

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.derive.printed.formats import FigurePattern, Kind, Over, Per, PrintedFormat, Told

MAX_BYTES = 4 << 20
MAX_LINE = 2000
MAX_LINES = 200_000
MAX_FIGURES = 100_000
MAX_SAME = 8
"""Figures of one pattern in one line."""
SHORTEST_LINE = len("1 it/s")
LARGEST = 1e30
_DIGIT = re.compile("[0-9]")
# Escapes of terminals: colours and cursor movements, titles, and the two-character ones.
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]{0,40}+[ -/]{0,8}+[@-~]|\][^\x07\x1b]{0,200}+(?:\x07|\x1b\\)?|[@-Z\\^_])")
_SUFFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "%": 1e-2, "TFLOP/s": 1e12}
_BATCH = ("batch", "microbatch", "micro-batch")
_ITERATION = ("it", "iter", "iteration")
_DEVICE = re.compile(r"(?i)(?:per|/)[ _-]?(?:gpu|device|chip|rank|core|worker|accelerator|ipu|tpu|npu|replica|process)")
_JOB = re.compile(r"(?i)\b(?:total|global|aggregated?|combined|all (?:gpus|devices|ranks))\b")
_MEAN = re.compile(r"(?i)\b(?:avg|average|mean|overall|final)\b")
_BEFORE, _AFTER = 30, 16
SHARE_UP_TO = 3.0
"""A utilisation without a percent sign is a share up to this value, and a percentage above it."""


@dataclass(frozen=True)
class PrintedFigure:
    """One figure of one line."""

    line: int
    """Line of the output, from 1; the states of a progress bar share a line."""
    step: int | None
    """Step that the line is about, if it tells."""
    kind: Kind
    value: float
    """In seconds, per second, or as a share."""
    low: float
    high: float
    """What rounds to the digits that were printed."""
    text: str
    """The number as printed, with its suffix."""
    unit: str
    scope: Told
    per: Per
    over: Over
    format: str


@dataclass(frozen=True)
class PrintedOutput:
    """The figures of an output, and what was not read of it."""

    figures: tuple[PrintedFigure, ...]
    lines: int
    long_lines: int
    """Lines that were too long to be read whole."""
    left_out: bool
    """There was more than is read."""


def read_output(content: bytes, name: str | None = None) -> PrintedOutput:
    """Return the figures in an output; `name`: of this format only."""
    formats = chosen_formats(name)
    figures: list[PrintedFigure] = []
    count = long_lines = 0
    left_out = len(content) > MAX_BYTES
    for number, (line, long) in output_lines(content[:MAX_BYTES]):
        if count == MAX_LINES or len(figures) >= MAX_FIGURES:
            left_out = True
            break
        count += 1
        long_lines += long
        figures += read_line(line, number, formats)
    return PrintedOutput(tuple(figures), count, long_lines, left_out)


def output_lines(content: bytes) -> Iterator[tuple[int, tuple[str, bool]]]:
    """Yield the lines that a terminal showed one after the other, with their number and whether they were cut."""
    start, number = 0, 1
    while start < len(content):
        end = content.find(b"\n", start)
        end = len(content) if end < 0 else end
        at = start
        while at < end:
            # A progress bar writes its states over each other.
            stop = content.find(b"\r", at, end)
            stop = end if stop < 0 else stop
            if stop > at:
                yield number, _readable(content[at : min(stop, at + 4 * MAX_LINE)], whole=stop - at)
            at = stop + 1
        start, number = end + 1, number + 1


def _readable(piece: bytes, whole: int) -> tuple[str, bool]:
    """Return a line without the escapes of terminals; of a long one the beginning, up to a whole word."""
    line = _ESCAPE.sub("", piece.decode("utf-8", "replace"))
    if len(line) <= MAX_LINE and whole == len(piece):
        return line, False
    return line[:MAX_LINE].rpartition(" ")[0], True


def read_line(line: str, number: int, formats: tuple[PrintedFormat, ...]) -> list[PrintedFigure]:
    """Return the figures of a line, by the first format that fits."""
    if len(line) < SHORTEST_LINE or not _DIGIT.search(line):
        return []
    for one in formats:
        # Most lines are of no format, so the first mark is tried before anything else.
        if (not one.marks or one.marks[0] in line) and one.has(line) and (figures := _figures(line, number, one)):
            return figures
    return []


def _figures(line: str, number: int, form: PrintedFormat) -> list[PrintedFigure]:
    taken: list[tuple[int, int]] = []
    rows: list[tuple[int, FigurePattern, re.Match[str], tuple[float, float, float]]] = []
    step: int | None = None
    small = line.lower()
    for pattern in form.figures:
        if (pattern.kind == "step" and step is not None) or pattern.word not in small:
            continue
        most = MAX_SAME if form.wording and not pattern.once else 1
        for match in islice(pattern.expression.finditer(line), most):
            start, end = match.span()
            # A label between two numbers belongs to one of them, which an earlier pattern has found.
            if form.wording and any(start < there_end and there < end for there, there_end in taken):
                continue
            value = _value(pattern, match.groupdict())
            if value is None:
                continue
            taken.append((start, end))
            rows.append((start, pattern, match, value))
            if pattern.kind == "step":
                step = int(value[0])
    if form.wording and not any(pattern.kind not in ("step", "loss") for _, pattern, _, _ in rows):
        return []
    rows.sort(key=lambda row: row[0])
    return [_figure(line, number, step, form, *row[1:]) for row in rows]


def _figure(
    line: str,
    number: int,
    step: int | None,
    form: PrintedFormat,
    pattern: FigurePattern,
    match: re.Match[str],
    value: tuple[float, float, float],
) -> PrintedFigure:
    scope, per, over = pattern.scope, pattern.per, pattern.over
    groups = match.groupdict()
    if form.wording:
        before, after = line[max(0, match.start() - _BEFORE) : match.start()], line[match.end() : match.end() + _AFTER]
        # Words before another figure are about that one.
        before = re.split(r"[|,;]|\d ", before)[-1]
        near = f"{before} {groups.get('label') or ''} {re.match(r'[^|,;:=]{0,16}', after)[0]}"  # type: ignore[index]
        scope = "device" if _DEVICE.search(near) else "job" if _JOB.search(near) else scope
        over = "run" if _MEAN.search(before) else over
        unit = (groups.get("per") or "").lower()
        per = "batch" if unit in _BATCH else "iteration" if unit in _ITERATION else per
    text = f"{groups['n']}{groups.get('k') or ''}"
    return PrintedFigure(number, step, pattern.kind, *value, text, pattern.unit, scope, per, over, form.name)


def _value(pattern: FigurePattern, groups: dict[str, str | None]) -> tuple[float, float, float] | None:
    """Return the value in its base unit and its bounds by rounding; None if it is no possible figure."""
    text = groups["n"] or ""
    if pattern.unit == "clock":
        seconds = 0
        for part in text.split(":"):
            seconds = 60 * seconds + int(part)
        # A clock is cut to whole seconds, not rounded.
        return float(seconds), float(seconds), seconds + 1.0
    value = float(text.replace(",", ""))
    if pattern.unit in ("count", "done"):
        return (value, value, value) if abs(value) < LARGEST else None
    if not 1 / LARGEST < value < LARGEST:
        return None
    # Half of what the last digit counts: 0.005 of 12.34, and 5 of 1.2e2.
    mantissa, _, power = text.lower().partition("e")
    half = 0.5 * 10.0 ** (int(power or 0) - len(mantissa.partition(".")[2]))
    if pattern.unit == "1/s":
        return 1 / value, 1 / (value + half), 1 / (value - half) if value > half else math.inf
    unit = groups.get("u") or groups.get("v") or pattern.unit
    if unit == "share or %":
        unit = "share" if value <= SHARE_UP_TO else "%"
    factor = _UNITS.get(unit.strip(), 1.0) * _SUFFIXES[groups.get("k") or ""]
    return value * factor, (value - half) * factor, (value + half) * factor
