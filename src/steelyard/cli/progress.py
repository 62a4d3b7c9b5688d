"""Live progress on standard error: one line that changes on a terminal, one line a run elsewhere."""

import sys
from pathlib import Path

from steelyard.analysis.summary import MEASURED
from steelyard.contracts.record import RunRecord
from steelyard.contracts.spec import RunSpec
from steelyard.errors import printable
from steelyard.report.text import seconds, with_interval
from steelyard.results.store import read_progress


class Progress:
    """Says which run is being made, how far it is, and how each ended."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._line = ""

    def begin(self, spec: RunSpec, done: int, total: int) -> None:
        """A run starts."""
        self._line = f"[{done + 1}/{total}] {spec.run_id}"
        self._show("starting")

    def tick(self, raw: Path) -> None:
        """A run goes on."""
        progress = read_progress(raw)
        if progress:
            width = progress.get("rel_half_width")
            precision = "" if width is None else f", mean known within {100 * width:.2g} %"
            self._show(f"{progress['steps']:,.0f} steps, {progress['seconds']:,.1f} s measured{precision}")

    def end(self, record: RunRecord, done: int, total: int) -> None:
        """A run has its record."""
        if self._live:
            sys.stderr.write("\r\x1b[K")
        rate = record.quantities.get("throughput_job")
        if record.status.code in MEASURED and rate is not None:
            text = f"{with_interval(rate)} {rate.unit}, {record.steps_seen:,} steps of {_step(record)}"
        else:
            text = f"{record.status.code}: {record.status.reason}"
        if record.status.code == "not_converged":
            text += f"; not converged: {record.status.reason}"
        print(f"[{done}/{total}] {record.run_id}: {printable(text)}", file=sys.stderr, flush=True)

    def _show(self, text: str) -> None:
        if self._live:
            sys.stderr.write(f"\r\x1b[K{self._line}: {text}")
            sys.stderr.flush()


def _step(record: RunRecord) -> str:
    mean = record.quantities["step_time_mean"].value
    return seconds(mean) if mean is not None else "unknown length"
