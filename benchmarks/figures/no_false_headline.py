"""[no_false_headline] No headline rests on a setting that differs and is not named.

Simulated studies vary one setting of threads, batch, accumulation, precision, loader workers and ranks. In most of
them a second one, which nobody varied, differs in effect between some configurations, and the step time depends on all
of them. The headlines of `scaling`, `batch`, `best`, `compare` and of the report are then read: every setting whose
value in effect differs between the configurations of a headline has to be named there. Which differ is found by code of
its own, from the JSON of the records. Intervals are compared with the simulated truth.

The full form adds real studies on this machine, made and read with the command line: two configurations, three jobs of
a second each, with threads left unset, set, or set by OMP_NUM_THREADS.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from figure import arguments, at_least, at_most, finish, slack_percent
from simjob import run_whole
from steelyard.analysis.batch import batch_curves
from steelyard.analysis.best import rank
from steelyard.analysis.compare import compare
from steelyard.analysis.rows import row_of
from steelyard.analysis.scaling import scaling
from steelyard.analysis.summary import summarise
from steelyard.contracts.observe import DeviceFacts, Settings
from steelyard.contracts.sim import Noise, SimTruth
from steelyard.contracts.spec import Budget, Loader, RunSpec
from steelyard.report.study.curves import batch_section, scaling_section
from steelyard.report.study.first import with_first_screen
from steelyard.report.study.overview import cells_section
from steelyard.report.study.subject import subject
from steelyard.results.store import record_text
from steelyard.terminal.batch import curves_lines as batch_lines
from steelyard.terminal.best import ranking_lines
from steelyard.terminal.compare import lines as compare_lines
from steelyard.terminal.scaling import curves_lines as scaling_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from steelyard.analysis.summary import CellSummary
    from steelyard.contracts.record import RunRecord

FIRST_SEED = 51_000_000
STUDIES, QUICK_STUDIES = 1000, 40
VALUES: dict[str, tuple[Any, ...]] = {
    "devices": (1, 2, 4, 8), "batch": (8, 32, 64, 256), "precision": ("fp32", "bf16"), "accumulation": (1, 2, 4),
    "workers": (1, 2, 4), "threads": (1, 2, 4, 8),
}  # fmt: skip
DEFAULTS = {"devices": 1, "batch": 32, "precision": "fp32", "accumulation": 1, "workers": 2, "threads": 4}
FACTORS = {"devices": "devices", "workers": "loader.workers", "accumulation": "accumulation"}
"""Names of factors in `compare`, where they are not those of the settings."""
WORDS = {
    "devices": r"devices=|devices \d", "threads": r"threads(=| \d+(\.0)? vs )", "precision": r"precision(=| \w+ vs )",
    "batch": r"batch=|batch \d+ vs |global_batch \d+ vs ",
    "accumulation": r"accumulation(=| \d+ vs )", "workers": r"workers=|loader.workers \d+ vs ",
}  # fmt: skip
"""How a headline names each setting: with its values."""
JOBS = 4
LEAST_COVERED_PERCENT, MOST_WRONG_PERCENT = 93.0, 5.0


@dataclass
class Seen:
    """What the headlines of some studies did."""

    headlines: Counter[str] = field(default_factory=Counter)
    unnamed: list[str] = field(default_factory=list)
    refused: int = 0
    intervals: int = 0
    covered: int = 0
    orders: int = 0
    wrong: int = 0

    def add(self, other: Seen) -> None:
        """Add what was seen elsewhere."""
        self.headlines += other.headlines
        self.unnamed += other.unnamed
        for name in ("refused", "intervals", "covered", "orders", "wrong"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def interval(self, low: float | None, high: float | None, truth: float) -> None:
        """Count an interval, and whether the truth is in it."""
        if low is not None and high is not None:
            self.intervals += 1
            self.covered += low <= truth <= high


# -- simulated studies


def rate_of(settings: dict[str, Any]) -> float:
    """Return the true samples per second of the job; every setting matters."""
    batch, ranks = settings["batch"], settings["devices"]
    rate = 400 * settings["threads"] ** 0.8 * batch / (24 + batch) * ranks**0.93
    rate *= 1.5 if settings["precision"] == "bf16" else 1.0
    return float(rate * settings["workers"] ** 0.3 * settings["accumulation"] ** 0.05)


def drawn(seed: int) -> tuple[str, str, list[dict[str, Any]]]:
    """Return the device family, the setting that is varied, and the settings in effect of each configuration."""
    rng = np.random.default_rng(seed)
    factor = str(rng.choice(list(VALUES)))
    count = int(rng.integers(2, len(VALUES[factor]) + 1))
    chosen = [VALUES[factor][n] for n in sorted(rng.choice(len(VALUES[factor]), size=count, replace=False))]
    found = [{**DEFAULTS, factor: value} for value in chosen]
    hidden = str(rng.choice([name for name in VALUES if name != factor]))
    if rng.random() < 0.6:
        other = rng.choice([n for n, value in enumerate(VALUES[hidden]) if value != DEFAULTS[hidden]])
        for n in rng.choice(count, size=int(rng.integers(1, count)), replace=False):
            found[n][hidden] = VALUES[hidden][other]
    return str(rng.choice(["cpu", "cuda"])), factor, found


def job(
    family: str, settings: dict[str, Any], number: int, rng: np.random.Generator, *, threads_set: bool
) -> RunRecord:
    """Simulate a job with these settings in effect."""
    micro = settings["batch"] * settings["devices"]
    rate = rate_of(settings) * float(np.exp(0.02 * rng.standard_normal()))
    name = "-".join(f"{key}{value}" for key, value in settings.items())
    spec = RunSpec(
        run_id=f"{name}-r{number}", configuration=name, study="drawn", repeat=number,
        seed=int(rng.integers(1 << 40)), batch=settings["batch"], devices=settings["devices"],
        accumulation=settings["accumulation"], crosscheck_steps=0,
        budget=Budget(min_steps=100, max_steps=100, min_seconds=0),
        sim=SimTruth(step_time_s=micro / rate, noise=Noise(kind="normal", cv=0.01, shared=True)),
    )  # fmt: skip
    record = run_whole(spec)
    kind = {"fp32": "float32", "bf16": "bfloat16"}[settings["precision"]]
    asked = replace(
        spec, device=family, workload="resnet50", sim=SimTruth(), precision=settings["precision"],
        loader=Loader(place="host", workers=settings["workers"]), threads=settings["threads"] if threads_set else None,
    )  # fmt: skip
    values = {"threads": str(settings["threads"]), "matmul_dtype": kind, "float32_products": "fp32"}
    assert record.environment is not None
    return replace(
        record, spec=asked, settings=Settings(values=values), device=DeviceFacts(name=family),
        environment=replace(record.environment, device=family, node=f"n{number % 3}"),
    )  # fmt: skip


# -- what is in effect, by code of its own


def in_effect(record: dict[str, Any]) -> dict[str, Any]:
    """Read the settings in effect from the JSON of a record."""
    spec, values = record["spec"], record["settings"]["values"]
    return {
        "devices": spec.get("devices", 1), "batch": spec.get("batch", 32), "accumulation": spec.get("accumulation", 1),
        "workers": spec.get("loader", {}).get("workers", 0), "threads": values["threads"],
        "precision": values["matmul_dtype"],
    }  # fmt: skip


def differing(cells: Sequence[CellSummary]) -> set[str]:
    """Return the settings in which the jobs of these configurations differ in effect."""
    found = [in_effect(json.loads(record_text(record))) for cell in cells for record in cell.records]
    return {key for key in found[0] if len({str(entry[key]) for entry in found}) > 1}


def unnamed(text: str, names: set[str], factor: str, cells: Sequence[CellSummary]) -> set[str]:
    """Return the settings that differ and that a text does not name, without the factor of the headline."""
    names = names - {factor}
    specs = [cell.records[0].spec for cell in cells]
    if factor == "devices" and len({spec.batch * spec.devices * spec.accumulation for spec in specs}) == 1:
        # Strong scaling, which the text says.
        names -= {"batch", "accumulation"} if "strong scaling" in text else set()
    return {name for name in names if not re.search(WORDS[name], text)}


# -- the headlines


def joined(lines: Sequence[str]) -> str:
    return " ".join(" ".join(lines).split())


def headlines(cells: list[CellSummary], factor: str, seen: Seen) -> Iterator[tuple[str, str, str, list[CellSummary]]]:
    """Yield each headline: who says it, its text, the setting that it is about, and its configurations."""
    truth = {cell.name: rate_of(settings_of(cell.name)) for cell in cells}
    by_name = {cell.name: cell for cell in cells}
    if factor == "devices":
        for curve in scaling(cells):
            if curve.blocked:
                seen.refused += 1
                continue
            last, base = curve.points[-1], curve.base
            seen.interval(last.speedup.low, last.speedup.high, truth[last.configuration] / truth[base.configuration])
            yield "scaling", joined(scaling_lines([curve], "drawn")), "devices", list(curve.cells)
    if factor == "batch":
        for knee in batch_curves(cells):
            if knee.knee is None:
                seen.refused += 1
                continue
            yield "batch", joined(batch_lines([knee])), "batch", [entry.cell for entry in knee.cells]
    for ranking in rank(cells):
        ranked = [by_name[entry.cell.name] for entry in ranking.reliable]
        if len(ranked) < 2:
            seen.refused += 1
            continue
        seen.orders += 1
        seen.wrong += len(ranking.tied) == 1 and truth[ranked[0].name] < max(truth[cell.name] for cell in ranked)
        yield "best", joined(ranking_lines([ranking])), "", ranked
    a, b = (row_of(cell) for cell in (cells[0], cells[-1]))
    (found,) = compare([a], [b], factor=FACTORS.get(factor, factor)).comparisons
    if found.ratios:
        ratio, true = found.ratios[0], truth[cells[-1].name] / truth[cells[0].name]
        seen.interval(ratio.low, ratio.high, true)
        seen.orders += 1
        seen.wrong += {"faster": true < 1, "slower": true > 1}.get(ratio.verdict, False)
        compared = compare([a], [b], factor=FACTORS.get(factor, factor))
        yield "compare", joined(compare_lines(compared, "A", "B")), factor, [cells[0], cells[-1]]
    else:
        seen.refused += 1
    entry = subject("drawn", cells)
    sections = [
        section for section in (cells_section(entry, ()), scaling_section(entry), batch_section(entry)) if section
    ]
    screen = with_first_screen([entry], {}, sections)[0]
    yield "report", " ".join(map(repr, (screen, *sections))), "", cells


def settings_of(name: str) -> dict[str, Any]:
    """Return the settings that the name of a configuration was made of."""
    found = {key: re.search(rf"{key}([a-z]*\d+)", name) for key in VALUES}
    return {
        key: (match[1] if key == "precision" else int(match[1])) for key, match in found.items() if match is not None
    }


def study(seed: int) -> Seen:
    """Draw and simulate a study, and read its headlines."""
    family, factor, configurations = drawn(seed)
    rng = np.random.default_rng(seed + 1)
    records = [
        job(family, settings, number, rng, threads_set=factor == "threads")
        for number in range(JOBS)
        for settings in configurations
    ]
    order = [cell.configuration for cell in (record.spec for record in records[: len(configurations)])]
    cells = sorted(summarise(records), key=lambda cell: order.index(cell.name))
    seen = Seen()
    for who, text, about, used in headlines(cells, factor, seen):
        seen.headlines[who] += 1
        names = differing(used)
        if missing := unnamed(text, names, about, used):
            seen.unnamed.append(f"{seed} {who} {family}, {factor} varied: {', '.join(sorted(missing))}: {text[:400]}")
    return seen


# -- real studies

REAL = [
    ("devices = [1, 2]", {}, "scaling"), ("devices = [1, 2]", {"OMP_NUM_THREADS": "1"}, "scaling"),
    ("devices = [1, 2]", {"OMP_NUM_THREADS": "2"}, "scaling"), ("devices = [1, 2]\nbatch = [64]", {}, "best"),
    ("batch = [8, 256]", {}, "batch"), ("batch = [8, 256]", {"OMP_NUM_THREADS": "1"}, "best"),
    ("precision = ['fp32', 'bf16']", {}, "best"), ("accumulation = [1, 4]", {}, "best"),
    ("threads = [1, 2]", {}, "best"), ("'loader.workers' = [1, 2]", {}, "best"),
    ("devices = [1, 2]\nthreads = [1]", {}, "scaling"), ("devices = [1, 2]\naccumulation = [2]", {}, "scaling"),
]  # fmt: skip
FILE = """name = "real"
repeats = 3
[run]
workload = "tiny"
device = "cpu"
loader = { place = "host" }
budget = { min_seconds = 1.0, max_seconds = 1.0 }
crosscheck_steps = 4
[sweep]
"""


def real(sweep: str, variables: dict[str, str], verb: str) -> Seen:
    """Run a study with the command line, and read two headlines about it."""
    seen = Seen()
    about = {"scaling": "devices", "batch": "batch"}.get(verb, "")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "real.toml").write_text(FILE + sweep + "\n", encoding="utf-8")
        kept = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}

        def steelyard(*words: str) -> str:
            command = [sys.executable, "-m", "steelyard.cli.main", *words]
            return subprocess.run(
                command, cwd=home, env={**kept, **variables}, capture_output=True, text=True, check=False
            ).stdout

        steelyard("study", "real.toml", "--results", "results")
        paths = sorted((home / "results" / "runs" / "real").glob("*/record.json"))
        found = [in_effect(json.loads(path.read_text(encoding="utf-8"))) for path in paths]
        names = {key for key in found[0] if len({str(entry[key]) for entry in found}) > 1}
        if len(paths) != 6 or not names:
            seen.unnamed.append(f"{sweep}: {len(paths)} of 6 runs, {names or 'nothing'} differs")
        for word in (verb, "best") if verb != "best" else ("best", "show"):
            text = joined(steelyard(word, "real", "--results", "results").splitlines())
            seen.headlines[f"real {word}"] += 1
            wanted = names - {about if word == verb else ""}
            if missing := [name for name in wanted if not re.search(WORDS[name], text)]:
                seen.unnamed.append(f"{sweep} {variables} {word}: {', '.join(missing)}: {text[:400]}")
    return seen


def main() -> None:
    """Count headlines in which a setting differs and is not named."""
    quick = arguments(__doc__).quick
    seen, real_seen = Seen(), Seen()
    studies = QUICK_STUDIES if quick else STUDIES
    with ProcessPoolExecutor(2) as pool:
        for one in pool.map(study, range(FIRST_SEED, FIRST_SEED + studies), chunksize=5):
            seen.add(one)
    for sweep, variables, verb in () if quick else REAL:
        real_seen.add(real(sweep, variables, verb))
    for text in (*seen.unnamed, *real_seen.unnamed):
        print(text, file=sys.stderr)
    print(f"{dict(seen.headlines + real_seen.headlines)}, {seen.refused} refused, {seen.intervals} intervals")
    covered = 100 * seen.covered / max(1, seen.intervals)
    least = LEAST_COVERED_PERCENT - slack_percent(LEAST_COVERED_PERCENT, max(1, seen.intervals), quick=quick)
    wrong = 100 * seen.wrong / max(1, seen.orders)
    most = MOST_WRONG_PERCENT + slack_percent(MOST_WRONG_PERCENT, max(1, seen.orders), quick=quick)
    figures = [
        at_most("no_false_headline: with a difference that is not named", len(seen.unnamed), "headlines", 0),
        at_least("no_false_headline: intervals that contain the truth", covered, "%", least),
        at_most("no_false_headline: wrong orders stated as shown", wrong, "%", most),
    ]
    if not quick:
        name = "no_false_headline: with a difference that is not named, real studies"
        figures.append(at_most(name, len(real_seen.unnamed), "headlines", 0))
    finish(figures)


if __name__ == "__main__":
    main()
