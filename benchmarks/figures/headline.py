"""[headline] No sentence names a best, a range, a knee or a "yes" that the table below it contradicts.

Random studies over one to three settings, with configurations that fail, that have errors, too few jobs, a trend or
noise, and energies of which some are doubtful. Records are built directly, without running anything. The sentences of
`best`, `batch`, `scaling`, `energy`, of the report's sections and of the pack are parsed by a reader that shares no
code with their maker (benchmarks/lib/headline_check.py), and compared with the rows of the tables below them, including
the unreliable ones. Planted contradictions show that the reader notices. The same reader checks tables that other
people published: their rows as a study, in which some entries are missing or failed, and `report --reference`.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from figure import arguments, at_least, at_most, finish
from headline_check import Shown, check_best, check_knee, check_scaling, check_spans, near, number, plain, read_table
from steelyard.analysis.batch import batch_curves
from steelyard.analysis.best import rank
from steelyard.analysis.energy import energy_cells
from steelyard.analysis.request import WorkPlan
from steelyard.analysis.scaling import scaling
from steelyard.analysis.summary import summarise
from steelyard.audit import documents
from steelyard.contracts.finding import Finding
from steelyard.contracts.observe import Environment, Status
from steelyard.contracts.record import Interval, Quantity, RunRecord, Steady, Validity
from steelyard.contracts.spec import RunSpec
from steelyard.errors import SteelyardError
from steelyard.inputs.scheme import find_scheme, scheme_names
from steelyard.report.audit.reference import reference_page
from steelyard.report.pack.build import gather, pack_page
from steelyard.report.page import FirstScreen, Table
from steelyard.report.study.curves import batch_section, heat_section, scaling_section
from steelyard.report.study.energy import energy_section
from steelyard.report.study.first import with_first_screen
from steelyard.report.study.overview import cells_section
from steelyard.report.study.subject import subject
from steelyard.results.store import ResultFolder
from steelyard.terminal.batch import curves_lines as batch_lines
from steelyard.terminal.best import ranking_lines
from steelyard.terminal.energy import energy_lines
from steelyard.terminal.scaling import curves_lines as scaling_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from steelyard.analysis.summary import CellSummary
    from steelyard.report.page import Page, Section

FIRST_SEED = 12_000_000
STUDIES = 2000
FACTORS: dict[str, tuple[Any, ...]] = {
    "batch": (8, 16, 32, 64, 128, 1024), "devices": (1, 2, 4, 8), "precision": ("bf16", "fp32"),
    "compile": ("default", "off"),
}  # fmt: skip
MOST = 12
LOST = ("out_of_memory", "failed", "time_limit")
STEADY = ("steady", "steady", "steady", "no steady state")
# Needs of a scheme that a provisional or unreliable curve does not meet.
OF_CURVES = {"scaling", "efficiency", "linear-plot"}


class Memory(ResultFolder):
    """A result folder with one study that is not on disk."""

    def __init__(self, records: Sequence[RunRecord]) -> None:
        super().__init__(Path("nowhere"))
        self._held = tuple(records)

    def studies(self) -> list[str]:
        """The only study."""
        return [self._held[0].spec.study]

    def records(self, study: str | None = None) -> Iterator[RunRecord]:
        """All records."""
        del study
        return iter(self._held)


# -- random studies


def rate_of(value: float, scope: Any, unit: str = "samples/s", window: Any = "steady") -> Quantity:
    return Quantity(value=value, unit=unit, scope=scope, window=window, aggregation="work over time")


def joules(value: float, verdict: Any, unit: str) -> Quantity:
    reasons = () if verdict == "valid" else ("the sensor is slow",)
    interval = Interval(low=0.97 * value, high=1.03 * value, method="sensor", covers="this job")
    validity = Validity(verdict=verdict, reasons=reasons, domains=("n1/gpu0",), coverage=1.0)
    return Quantity(
        value=value, unit=unit, scope="job", window="steady", aggregation="sum", interval=interval, validity=validity
    )


def record_of(
    settings: dict[str, Any], job: int, rate: float, *, status: Any = "completed", node: str = "n1", watts: float = 0.0,
    verdict: Any = "valid", findings: tuple[Finding, ...] = (), steady: Any = "steady", trend: float | None = None,
) -> RunRecord:  # fmt: skip
    """A record as `derive` makes it, as far as these sentences use it."""
    name = "-".join(f"{key}{value}" for key, value in settings.items())
    spec = RunSpec(
        run_id=f"{name}-r{job}", configuration=name, study="drawn", repeat=job, seed=job, workload="resnet50",
        device="cuda", **settings,
    )  # fmt: skip
    quantities = {
        "throughput": rate_of(rate, "job"),
        "throughput_per_device": rate_of(rate / spec.devices, "device"),
        "step_time_mean": rate_of(spec.step_samples / rate, "job", "s"),
    }
    if watts:
        quantities["energy_job"] = joules(watts * 20, verdict, "J")
        quantities["energy_per_sample"] = joules(watts / rate, verdict, "J/sample")
    done = status == "completed"
    return RunRecord(
        run_id=spec.run_id, spec=spec, status=Status(code=status, reason="" if done else "as drawn"), launch=None,
        environment=Environment(node=node, allocation=None, device="cuda", timing="events", facts={}), phases=(),
        stop=None, steady=Steady(answer=steady, start_step=0, stop_step=1000, reason="as drawn", trend=trend),
        crosscheck=None, steps_seen=1000, ranks_seen=spec.devices, seconds_measured=20.0,
        quantities=quantities if done else {}, findings=findings, raw=(), derived_by="benchmarks/figures/headline.py",
    )  # fmt: skip


def draw_study(seed: int) -> list[RunRecord]:
    rng = np.random.default_rng(FIRST_SEED + seed)
    names = sorted(map(str, rng.choice(list(FACTORS), size=int(rng.integers(1, 4)), replace=False)))
    values = {}
    for name in names:
        most = len(FACTORS[name])
        count = int(rng.integers(2, most + 1))
        values[name] = [FACTORS[name][n] for n in sorted(rng.choice(most, size=count, replace=False))]
    combinations = [dict(zip(names, each, strict=True)) for each in itertools.product(*values.values())][:MOST]
    fixed, watts = float(rng.uniform(4, 60)), float(rng.choice([0.0, 0.0, 300.0]))
    nodes = [f"n{n}" for n in range(int(rng.integers(1, 4)))]
    return [record for settings in combinations for record in _draw_cell(rng, settings, fixed, watts, nodes)]


def _draw_cell(
    rng: np.random.Generator, settings: dict[str, Any], fixed: float, watts: float, nodes: list[str]
) -> Iterator[RunRecord]:
    batch, ranks = settings.get("batch", 32), settings.get("devices", 1)
    truth = 1000 * batch / (fixed + batch) * ranks**0.92 * (1.4 if settings.get("precision") == "bf16" else 1.0)
    truth *= float(rng.uniform(0.97, 1.03))
    kind = str(rng.choice(["", "lost", "some lost", "errors", "trend"], p=[0.6, 0.12, 0.1, 0.1, 0.08]))
    cv, lost = float(rng.choice([0.0, 0.003, 0.02, 0.1])), rng.choice(LOST)
    wrong = Finding(code=str(rng.choice(["SY501", "SY601"])), severity="error", message="as drawn", fix="rerun")
    verdict = str(rng.choice(["valid", "valid", "valid", "doubtful", "invalid"]))
    for job in range(int(rng.choice([1, 2, 3, 3, 3, 4, 5]))):
        out = kind == "lost" or (kind == "some lost" and rng.random() < 0.5)
        yield record_of(
            settings, job, truth * float(np.exp(cv * rng.standard_normal())), node=str(rng.choice(nodes)),
            status=str(lost) if out else "completed", findings=(wrong,) if kind == "errors" and not out else (),
            steady=str(rng.choice(STEADY)), trend=0.03 + 0.001 * job if kind == "trend" else None,
            watts=watts * ranks, verdict=verdict,
        )  # fmt: skip


# -- what is read


def joined(lines: Sequence[str]) -> str:
    return " ".join(" ".join(lines).split())


def until_blank(lines: Sequence[str]) -> list[str]:
    """The first lines with text."""
    return list(itertools.takewhile(str.strip, itertools.dropwhile(lambda line: not line.strip(), lines)))


def best_problems(cells: list[CellSummary], by: Any) -> Iterator[str]:
    """`steelyard best`: each ranking has a sentence, a blank line and a table."""
    energies = energy_cells(cells, {}) if by == "energy" else []
    for ranking in rank(cells, by, energies=energies):
        lines = ranking_lines([ranking])
        rows = [
            Shown(row[1], number(row[3]), row[5].startswith("unreliable"))
            for row in read_table(lines)
        ]  # fmt: skip
        text = joined(until_blank(lines)).split(" next: ")[0]
        yield from check_best(text, rows, less=by in ("cost", "energy"))


def batch_problems(cells: list[CellSummary]) -> Iterator[str]:
    """`steelyard batch`: one part per curve."""
    for curve in batch_curves(cells):
        lines = batch_lines([curve])
        rows = [Shown(plain(row[0]), number(row[2]), row[-1] == "unreliable", tuple(row)) for row in read_table(lines)]
        yield from check_knee(joined(until_blank(lines)).split(" next: ")[0], rows)


def scaling_problems(cells: list[CellSummary]) -> Iterator[str]:
    """`steelyard scaling`: one part per curve."""
    for curve in scaling(cells):
        if curve.blocked:
            continue
        lines = scaling_lines([curve], "drawn")
        table = read_table(lines)
        rows = [Shown(row[0], number(row[2]), row[3] == "unreliable") for row in table]
        shares = {row[0]: share for row in table if (share := number(row[4])) is not None}
        yield from check_scaling(joined(lines), rows, shares)


def energy_problems(cells: list[CellSummary]) -> Iterator[str]:
    """`steelyard energy` with several configurations: its sentence against its table."""
    energies = energy_cells(cells, {})
    lines = energy_lines(energies, None)
    text = joined(until_blank(lines))
    if not re.search(r"Energy was measured for \d+ of \d+ configurations\. (?:Best|No)", text):
        return
    # The table of `best` has the same figures, and marks what is unreliable.
    rows = [
        Shown(row[1], number(row[3]), row[5].startswith("unreliable"))
        for row in read_table(ranking_lines(rank(cells, "energy", energies=energies)))
    ]
    yield from check_best(text, rows, less=True)


def tables_of(section: Section) -> list[Table]:
    found = [block if isinstance(block, Table) else getattr(block, "table", None) for block in section.blocks]
    return [table for table in found if table is not None]


def table_named(section: Section, name: str) -> list[tuple[str, ...]]:
    return next((texts(table) for table in tables_of(section) if table.name == name), [])


def texts(table: Table) -> list[tuple[str, ...]]:
    return [tuple(cell.text for cell in row) for row in table.rows]


def shown_rows(table: Table, column: str = "throughput of the job") -> list[Shown]:
    """Rows of a table whose first columns are the settings."""
    headings = [heading.name for heading in table.columns]
    place = headings.index(column)
    settings = min(place, headings.index("runs")) if "runs" in headings else place
    found = []
    for cells, row in zip(table.rows, texts(table), strict=True):
        parts = sorted((key, plain(text)) for key, text in zip(headings[:settings], row, strict=False))
        name = ", ".join(f"{key}={text}" for key, text in parts)
        unreliable = cells[place].unreliable or row[place].endswith(", unreliable")
        found.append(Shown(name, number(row[place]), unreliable, row))
    return found


def check_first(screen: FirstScreen, rows: list[Shown]) -> Iterator[str]:
    """Yield what is wrong with the large figures of the first screen: the best of these rows and its throughput."""
    figures = {figure.label: figure.value for figure in screen.figures}
    sound = [row.value for row in rows if row.value is not None and not row.unreliable]
    if ("Best configuration" in figures) != bool(sound):
        yield f"{len(sound)} reliable rows, but the first screen shows {', '.join(figures) or 'nothing'}"
    elif sound and not near(number(figures["Its throughput"]) or 0.0, max(sound)):
        yield f"the first screen shows {figures['Its throughput']}, but the best row has {max(sound)}"


def report_problems(cells: list[CellSummary]) -> Iterator[str]:
    """The sections of a report: their answers against their own tables."""
    entry, energies = subject("drawn", cells), energy_cells(cells, {})
    configurations = cells_section(entry, energies)
    rows = shown_rows(tables_of(configurations)[0])
    if len(cells) > 1:
        yield from check_first(with_first_screen([entry], {"drawn": energies}, [configurations])[0], rows)
    yield from check_spans(configurations.answer, rows)
    heat = heat_section(entry)
    if heat is not None:
        yield from check_best(heat.answer, shown_rows(tables_of(heat)[0]))
    batch = batch_section(entry)
    if batch is not None and "not reported" not in batch.answer:
        part = table_named(batch, "batch-throughput-data")
        yield from check_knee(
            batch.answer, [Shown(plain(row[0]), number(row[2]), row[2].endswith("unreliable"), row) for row in part]
        )
        yield from _check_curve(batch.answer, rows, "batch")
    curve = scaling_section(entry)
    if curve is not None and "not reported" not in curve.answer:
        part = table_named(curve, "scaling-throughput-data")
        yield from check_scaling(
            curve.answer, [Shown(row[0], number(row[2]), row[2].endswith("unreliable")) for row in part], {}
        )
        yield from _check_curve(curve.answer, rows, "devices")
    yield from _energy_section(entry, energies)


def _check_curve(answer: str, rows: Sequence[Shown], along: str) -> Iterator[str]:
    """The curve that is said to have the highest reliable throughput of all curves has it."""
    found = re.search(r"highest reliable throughput \(([^)]*)\)", answer)
    fixed = [frozenset(part for part in row.name.split(", ") if not part.startswith(along)) for row in rows]
    on_curves = [row for row, mine in zip(rows, fixed, strict=True) if fixed.count(mine) > 1]
    sound = [row for row in on_curves if row.value is not None and not row.unreliable]
    if found and sound:
        top = max(row.value or 0.0 for row in sound)
        of_curve = [row for row in sound if set(found[1].split(", ")) <= set(row.name.split(", "))]
        if not of_curve or not near(max(row.value or 0.0 for row in of_curve), top, 1e-9):
            yield f"curve {found[1]} does not have the highest reliable throughput"


def _energy_section(entry: Any, energies: Any) -> Iterator[str]:
    section = energy_section(ResultFolder(Path("nowhere")), entry, energies)
    found = (
        None if section is None else re.search(r"Best(?: reliable)?: (?!tied)([^;]+?) at ([\d.,e-]+)", section.answer)
    )
    if section is None or found is None:
        return
    table = next(table for table in tables_of(section) if table.name == "energy-work")
    place = [column.name for column in table.columns].index("per sample")
    for row in texts(table):
        if row[0] == found[1]:
            value = number(row[place])
            if value is None or not near(value, float(found[2].replace(",", ""))) or "valid" not in row[-1]:
                yield f"energy of {found[1]} is {row[place]}, {row[-1]}"
            return
    yield f"{found[1]} is not in the table of energies"


def pack_problems(records: list[RunRecord]) -> Iterator[str]:
    """The pack of one curve: its scaling, its base, and every 'yes' of the checklists."""
    first = records[0].spec
    kept = [record for record in records if (record.spec.batch, record.spec.precision, record.spec.compile)
            == (first.batch, first.precision, first.compile)]  # fmt: skip
    plan = WorkPlan(samples=1e9, trainings=10, devices=max(record.spec.devices for record in kept))
    try:
        page = pack_page(gather(Memory(kept), "drawn", plan, schemes=[find_scheme(name) for name in scheme_names()]))
    except SteelyardError:
        # Without any result there is no pack.
        return
    yield from page_problems(page)


def page_problems(page: Page) -> Iterator[str]:
    sections = {section.name: section for section in page.sections}
    scaled = sections["scaling"]
    part = table_named(scaled, "scaling-table")
    rows = [Shown(row[0], number(row[-1 if len(row) == 2 else 2]), "unreliable" in " ".join(row)) for row in part]
    if "Not shown" not in scaled.answer and "not reported" not in scaled.answer:
        yield from check_scaling(scaled.answer, rows, {})
    base = re.match(r"(\d+) devices?: ([\d.,]+)", sections["performance"].answer)
    of_base = [row for row in rows if base and row.name == base[1] and row.value is not None]
    for row in of_base:
        if base and not near(row.value or 0.0, float(base[2].replace(",", ""))):
            yield f"the base has {base[2]}, but its row {row.value}"
        if row.unreliable and not re.search("Unreliable|Do not use", sections["performance"].answer):
            yield "does not say that the base is unreliable"
    asked = re.search(r"Request: ([\d.,]+) device-hours", sections["device-hours"].answer)
    derived = {row[0]: row[3] for row in table_named(sections["device-hours"], "derivation")}
    if asked and "A" in derived and not near(number(derived["A"]) or 0.0, float(asked[1].replace(",", ""))):
        yield f"requests {asked[1]} device-hours, but the derivation has {derived['A']}"
    doubted = any(row.unreliable for row in rows) or "Provisional" in scaled.answer or "Not shown" in scaled.answer
    for name in scheme_names():
        needs = {demand.demand: set(demand.needs) for demand in find_scheme(name).scheme.demand}
        for demand, answered, *_ in table_named(sections[f"checklist-{name.lower()}"], f"checklist-{name.lower()}"):
            if answered == "yes" and doubted and needs.get(demand, set()) & OF_CURVES:
                yield f"'yes' to {demand!r}, but the scaling is unreliable"


def surfaces(records: list[RunRecord]) -> dict[str, list[str]]:
    """All problems of a study, by the place of the sentence."""
    cells = summarise(records)
    found: dict[str, list[str]] = {}
    for by in ("throughput", "efficiency", "cost", "energy"):
        found[f"best --by {by}"] = list(best_problems(cells, by))
    swept = {name for name in FACTORS if len({getattr(record.spec, name) for record in records}) > 1}
    if "batch" in swept:
        found["batch"] = list(batch_problems(cells))
    if "devices" in swept:
        with_curves = True
        try:
            found["scaling"] = list(scaling_problems(cells))
        except SteelyardError:
            # Fewer than two device counts have a result.
            with_curves = False
        if with_curves:
            found["pack"] = list(pack_problems(records))
    if any("energy_job" in record.quantities for record in records):
        found["energy"] = list(energy_problems(cells))
    found["report"] = list(report_problems(cells))
    return found


# -- does the reader notice?


def planted(records: list[RunRecord]) -> tuple[int, int]:
    """Change the table of `best` so that it contradicts the sentence; return how many are noticed, of how many."""
    cells = summarise(records)
    lines = ranking_lines(rank(cells)[:1])
    text = joined(until_blank(lines)).split(" next: ")[0]
    rows = [Shown(row[1], number(row[3]), row[5].startswith("unreliable")) for row in read_table(lines)]
    sound = [n for n, row in enumerate(rows) if row.value is not None and not row.unreliable]
    changes: list[tuple[int, dict[str, Any]]] = []
    if len(sound) > 1:
        changes.append((sound[-1], {"value": 2 * (rows[sound[0]].value or 0.0)}))
        changes.append((sound[0], {"unreliable": True}))
    if sound:
        changes.append((sound[0], {"value": 1.01 * (rows[sound[0]].value or 0.0)}))
    noticed = 0
    for place, change in changes:
        altered = [dataclasses.replace(row, **change) if n == place else row for n, row in enumerate(rows)]
        noticed += any(True for _ in check_best(text, altered))
    return noticed, len(changes)


# -- what other people published


def published() -> Iterator[tuple[str, list[RunRecord]]]:
    """Rows of the built-in documents as studies: one or three jobs each, and some entries missing or failed."""
    for name in documents.names():
        groups: dict[tuple[Any, ...], dict[tuple[int, int], float]] = {}
        for row in documents.load(name).rows:
            devices, batch = row.number("devices") or 1.0, row.number("batch")
            if batch is None and (whole := row.number("global_batch")) is not None:
                batch = whole / devices
            rate = row.figures.get("throughput")
            if batch and batch == int(batch) and rate is not None:
                about = (row.table, row.get("system"), row.get("model"), row.get("precision"), row.get("mode"))
                groups.setdefault(about, {}).setdefault((int(batch), int(devices)), rate.value)
        for about, rates in groups.items():
            if len(rates) > 2:
                for missing in range(len(rates)):
                    yield f"{name} {about[0]}", list(_as_study(rates, missing))


def _as_study(rates: dict[tuple[int, int], float], missing: int) -> Iterator[RunRecord]:
    varied = [len({key[n] for key in rates}) > 1 for n in range(2)]
    for place, ((batch, ranks), rate) in enumerate(rates.items()):
        settings = ({"batch": batch} if varied[0] else {}) | ({"devices": ranks} if varied[1] else {})
        status = LOST[missing % 3] if place == missing else "completed"
        for job in range(1 if place % 4 == 3 else 3):
            yield record_of(settings, job, rate * (1 + 0.002 * job), status=status)


def reference_problems() -> Iterator[str]:
    """Pages of `report --reference`: ranges of ratios, knees and tallies of claims against their tables."""
    for section in reference_page().sections:
        spans = re.findall(r"times as long: ([\d.,]+) to ([\d.,]+)\.", section.answer)
        tables = [table for table in tables_of(section) if "times as long" in [column.name for column in table.columns]]
        for (low, high), table in zip(spans, tables, strict=False):
            place = [column.name for column in table.columns].index("times as long")
            values = [value for row in texts(table) if (value := number(row[place])) is not None]
            if not (near(min(values), float(low), RATIO) and near(max(values), float(high), RATIO)):
                yield f"{section.name}: {low} to {high}, but the rows have {min(values)} to {max(values)}"
        swept = [table for table in tables_of(section) if table.columns[0].name in ("batch", "batch per device")]
        for last in re.findall(
            r"knee beyond the sweep: (?:batch|throughput still rises at batch) ([\d,]+)", section.answer
        ):
            ends = [max(number(row[0]) or 0.0 for row in texts(table)) for table in swept]
            if float(plain(last)) not in ends:
                yield f"{section.name}: the knee is beyond {last}, but the rows end at {ends}"
        tally = re.search(r"(\d+) of (\d+) claims? holds?", section.answer)
        verdicts = [row[1] for row in table_named(section, f"{section.name}-claims")]
        if tally and verdicts and (int(tally[1]), int(tally[2])) != (verdicts.count("holds"), len(verdicts)):
            yield f"{section.name}: {tally[0]}, but the rows have {Counter(verdicts)}"


RATIO = 5e-3


def read_study(seed: int) -> tuple[dict[str, list[str]], tuple[int, int]]:
    records = draw_study(seed)
    return surfaces(records), planted(records)


def main() -> None:
    options = arguments(__doc__)
    studies = 40 if options.quick else STUDIES
    read: Counter[str] = Counter()
    wrong = noticed = changed = 0
    with ProcessPoolExecutor(2) as pool:
        for seed, (found, (seen, made)) in enumerate(pool.map(read_study, range(studies), chunksize=5)):
            noticed, changed = noticed + seen, changed + made
            read.update(list(found))
            wrong += report(f"study {seed}", found)
    foreign, others = report("report", {"--reference": list(reference_problems())}), 0
    for name, records in itertools.islice(published(), 5 if options.quick else None):
        others += 1
        foreign += report(name, surfaces(records))
    print(f"  {studies} studies; answers read: {dict(read)}; {others} studies from published tables")
    finish([
        at_most("sentences that their table contradicts", wrong, "sentences", 0),
        at_most("the same for published tables", foreign, "sentences", 0),
        at_least("planted contradictions that the reader notices", 100 * noticed / max(1, changed), "%", 100),
    ])  # fmt: skip


def report(name: str, found: dict[str, list[str]]) -> int:
    """Print the problems, and return how many there are."""
    for place, problems in found.items():
        for problem in problems:
            print(f"  {name}, {place}: {problem}")
    return sum(map(len, found.values()))


if __name__ == "__main__":
    main()
