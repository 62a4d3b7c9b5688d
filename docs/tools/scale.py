"""Calculate the tables of the page on scale from measured figures and stated assumptions.

Every line of a table says whether its number was measured, assumed, or calculated from the lines above it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

DAYS = 365
SEGMENT_RUNS, SEGMENT_FILES = 4096, 6


@dataclass
class Sheet:
    """Lines of one calculation."""

    rows: list[str] = field(default_factory=list)

    def line(self, what: str, value: float, unit: str, how: str) -> float:
        """Add one line and return its value, for the lines below."""
        self.rows.append(f"| {what} | {f'{_shown(value)} {unit}'.strip()} | {how} |")
        return value

    def table(self) -> str:
        """Return the lines as a Markdown table."""
        return "\n".join(["| what | how much | how |", "| --- | ---: | --- |", *self.rows])


def _shown(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:,.3g} million"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def facility(figures: dict[str, float]) -> str:
    """A national facility: verification of every node every night, and the studies of its users."""
    sheet, job = Sheet(), "simulated, 8 devices with sensors"
    nodes = sheet.line("nodes, of 8 devices", 1000, "", "assumed")
    nightly = sheet.line("verification", nodes * 5, "runs per day", "5 jobs per node and night")
    users = sheet.line("users' studies", 1000, "runs per day", "assumed: 50 groups, 20 runs each")
    runs = sheet.line("together", (nightly + users) * DAYS, "runs per year", "sum x 365")
    record = sheet.line("record of a job", figures[f"at_rest: record, {job}"], "kB", "measured")
    sheet.line("records", runs * record / 1e6, "GB per year", "runs x record")
    short = sheet.line("raw files of 100 steps", figures[f"at_rest: raw files of 100 steps, {job}"], "kB", "measured")
    step = sheet.line(
        "raw samples", figures["at_rest: raw bytes of a step and rank"], "bytes per step and rank", "measured"
    )
    raw = sheet.line("raw files of a job", short + 1900 * 8 * step / 1e3, "kB", "with 1,900 more steps x 8 ranks")
    sheet.line("raw files", runs * raw / 1e9, "TB per year", "runs x raw files")
    files = sheet.line("files of a run", figures[f"at_rest: files, {job}"], "", "measured")
    sheet.line("files", runs * files, "per year", "runs x files: **too many** for quotas; hence `archive`")
    rate = figures["at_rest: records read in a second of one processor"]
    sheet.line("records read", rate, "per second", "measured, one processor")
    sheet.line("to read a year", runs / rate / 60, "minutes", "**too slow** for a question; hence `query`")
    per_run = SEGMENT_FILES / SEGMENT_RUNS
    sheet.line("files when archived", runs * per_run, "per year", "6 files per segment of 4,096 runs")
    return sheet.table()


def registry(figures: dict[str, float]) -> str:
    """A public registry: records of many contributors, without raw files."""
    sheet = Sheet()
    people = sheet.line("contributors", 10_000, "", "assumed")
    records = sheet.line("records", people * 100, "per year", "assumed: 100 each")
    size = sheet.line("record", figures["at_rest: record, training on the CPU, 2 ranks"], "kB", "measured")
    sheet.line("records", records * size / 1e6, "GB per year", "records x size")
    packed = sheet.line("compressed", figures["at_rest: record of the training, compressed"], "kB", "measured, alone")
    sheet.line("records, compressed", records * packed / 1e6, "GB per year", "records x size")
    arriving = sheet.line("submissions", records / DAYS / 86_400, "per second", "mean of a year")
    sheet.line("busiest hour", arriving * 100, "per second", "assumed: 100 times the mean")
    rate = figures["at_rest: records read in a second of one processor"]
    sheet.line("validated", rate, "per second", "measured, one processor")
    views = sheet.line("readers", 100_000, "queries per day", "assumed")
    sheet.line("busiest hour", views / 86_400 * 10, "per second", "assumed: 10 times the mean; static files")
    return sheet.table()
