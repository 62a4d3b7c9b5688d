"""The step times of a run as a sparkline."""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from steelyard.derive.observations import StepSamples
from steelyard.errors import SteelyardError
from steelyard.terminal.drawing import shows_blocks, sparkline
from steelyard.terminal.text import OUTPUT_COLUMNS, WIDTH, seconds, wrapped

if TYPE_CHECKING:
    from pathlib import Path

    from steelyard.contracts.record import RunRecord
    from steelyard.derive.observations import Trace

MOST_COLUMNS: Final = 60
MOST_BYTES: Final = 200_000_000
"""Size of samples that can be read in about a second."""
HEADING: Final = "step time  "


def step_time_lines(raw: Path, record: RunRecord) -> list[str]:
    """Draw the step times of a run as a sparkline with its scale and its steady window, or say why it cannot be drawn.

    `raw`: the folder of the run's raw files.
    """
    try:
        samples = StepSamples(raw, record.spec.devices)
        if samples.size_bytes > MOST_BYTES:
            see = f"steelyard report {record.run_id}"
            return wrapped(f"{HEADING}not drawn: {samples.size_bytes / 1e6:,.0f} MB of samples; next: {see}")
        trace = samples.trace()
    except SteelyardError as error:
        return wrapped(f"{HEADING}cannot be read: {error.what}")
    return _draw_trace(trace, samples.steps, record) if len(trace.times) else []


def _draw_trace(trace: Trace, steps: int, record: RunRecord) -> list[str]:
    columns = max(1, min(MOST_COLUMNS, (OUTPUT_COLUMNS.get() or WIDTH) - len(HEADING) - 1, len(trace.times)))
    ends = [len(trace.times) * column // columns for column in range(columns + 1)]
    paces = [float(trace.times[first:last].mean()) / trace.steps_per_bin for first, last in pairwise(ends)]
    drawn = sparkline(paces, blocks=shows_blocks(sys.stdout.encoding, os.environ))
    lines = ["", HEADING + drawn.text]
    steady = record.steady is not None and record.steady.answer == "steady"
    if record.steady is not None and steady:
        # A mark below each column whose middle is in the window.
        middles = ((column + 0.5) * steps / columns for column in range(columns))
        inside = (record.steady.start_step <= middle < record.steady.stop_step for middle in middles)
        lines.append(" " * len(HEADING) + "".join("^" if marked else " " for marked in inside).rstrip())
    low, high = steps // columns, -(-steps // columns)
    about = f"{low:,}" if low == high else f"{low:,} or {high:,}"
    each = "one step" if steps == columns else f"the mean of {about} steps"
    cut = f" (values above {seconds(drawn.high)} are drawn at full height)" if drawn.cut else ""
    scale = f"lowest {seconds(drawn.low)}, highest {seconds(max(paces))}{cut}"
    legend = "; ^ = steady window" if steady else ""
    return lines + wrapped(f"1 character = {each}; {scale}{legend}", " " * len(HEADING), "")
