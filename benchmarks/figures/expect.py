"""[expect] A 90 % band over machines covers a held-out machine in 87 to 93 % of fleets, and settings never mix.

Fleets of 3, 5, 10 and 30 machines are drawn from log-normal distributions of known spread, with one machine more that
is held out; every machine has one job or five. Without three machines there must be no band. Rows that differ in one
setting that matters must never be in one band. On material that is not ours, the built-in documents and the imported
public files, no two rows of a band may have a difference that the rules of `compare` call an error.
"""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path
from random import Random

from figure import Figure, arguments, at_least, at_most, between, finish
from steelyard.audit import documents
from steelyard.audit.expect import expect, group_key, machine_of, must
from steelyard.audit.foreign import read_results
from steelyard.rules.table.row import Amount, Pair, Row, Setting
from steelyard.rules.table.settings import blocks, differences

DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "imported"
SEED = 26
FLEETS, QUICK_FLEETS = 5000, 2000
SIZES = (3, 5, 10, 30)
SPREADS = (0.003, 0.03, 0.3)
JOBS = 5
METRIC = "throughput"
SETTINGS: dict[str, Setting] = {
    "accelerator": "A100", "devices": 1, "nodes": 1, "model": "resnet50", "mode": "train", "precision": "bf16",
    "batch": 64, "global_batch": 64, "dataset": "synthetic", "compile": "off", "parallel": "DDP",
}  # fmt: skip


def row(machine: int, value: float, **changed: Setting) -> Row:
    """Return a row of a machine."""
    settings = {**SETTINGS, "system": f"machine {machine}", **changed}
    return Row(f"row {machine}", settings, {METRIC: Amount(value, value, value, "samples/s")}, source=f"site {machine}")


def fleet(source: Random, machines: int, spread: float, jobs: int) -> list[Row]:
    """Return the jobs of some machines; the first machine is the one that is held out."""
    made = []
    for machine in range(machines):
        own = source.gauss(7.0, spread)
        made += [row(machine, math.exp(own + (source.gauss(0, spread / 4) if jobs > 1 else 0))) for _ in range(jobs)]
    return made


def covered(machines: int, fleets: int, jobs: int) -> float:
    """Return in how many of 100 fleets the held-out machine is inside."""
    inside = 0
    for number in range(fleets):
        source = Random(f"{SEED}:{machines}:{jobs}:{number}")
        rows = fleet(source, machines + 1, SPREADS[number % len(SPREADS)], jobs)
        held = rows[:jobs]
        value = math.exp(math.fsum(math.log(each.figures[METRIC].value) for each in held) / jobs)
        (found,) = expect(rows, {}, METRIC, value=value, own=held[0])
        if len(found.machines) != machines or found.band is None:
            raise AssertionError(f"{len(found.machines)} machines of {machines}")
        inside += found.answer == "inside"
    return 100 * inside / fleets


def too_few(fleets: int) -> int:
    """Return how many fleets of one or two machines got a band."""
    bands = 0
    for number in range(fleets):
        source = Random(f"{SEED}:few:{number}")
        found = expect(fleet(source, 1 + number % 2, 0.03, source.choice((1, JOBS))), {}, METRIC)
        bands += any(each.band is not None for each in found)
    return bands


def mixed(fleets: int) -> tuple[int, int]:
    """Return how many fleets had other settings beside them, and how many bands held a machine of those."""
    keys = [key for key in must(METRIC, row(0, 1.0)) if key != "model"]
    wrong = 0
    for number in range(fleets):
        source = Random(f"{SEED}:mixed:{number}")
        key = keys[number % len(keys)]
        # The first stated by both and different, the second stated by one only.
        other: dict[str, Setting] = {key: source.choice(("other", 7, True))}
        rows = fleet(source, source.randint(3, 6), 0.03, 1)
        rows += [row(100 + i, math.exp(source.gauss(9.0, 0.03)), **other) for i in range(source.randint(1, 5))]
        source.shuffle(rows)
        for found in expect(rows, {}, METRIC):
            kinds = {int(machine.name.split()[-1]) >= 100 for machine in found.machines}
            wrong += len(kinds) > 1
        own = next(each for each in rows if machine_of(each) == "machine 0")
        for found in expect(rows, {}, METRIC, value=own.figures[METRIC].value, own=own):
            wrong += key in own.settings and any(int(machine.name.split()[-1]) >= 100 for machine in found.machines)
    return fleets, wrong


def public_pairs() -> tuple[int, int]:
    """Return the pairs of rows of public data that share a band, and how many differ in what matters."""
    tables = [documents.load(name) for name in documents.names()]
    tables += [read_results([DATA]).table]
    rows = [each for table in tables for each in table.rows]
    groups: dict[object, list[Row]] = {}
    for each in rows:
        for metric in each.figures:
            groups.setdefault((metric, group_key(metric, each)), []).append(each)
    pairs = wrong = 0
    for (metric, _), group in groups.items():  # type: ignore[misc]
        for a, b in combinations(group, 2):
            pair = Pair(a, b, "machine", metric)
            pairs += 1
            wrong += any(found.key != "system" and blocks(pair, found) for found in differences(a, b))
    return pairs, wrong


def main() -> None:
    quick = arguments(__doc__).quick
    fleets = QUICK_FLEETS if quick else FLEETS
    few = 200 if quick else fleets
    figures: list[Figure] = []
    for machines in SIZES:
        # Many machines take longer.
        count = fleets if not quick or machines <= 5 else 300
        low, high = (87, 93) if count >= 2000 else (84, 96)
        figures.append(
            between(f"expect: {machines} machines, one job each", covered(machines, count, 1), "%", low, high)
        )
    jobs = 200 if quick else 2000
    share = covered(5, jobs, JOBS)
    figures.append(between("expect: 5 machines, five jobs each", share, "%", *((84, 96) if quick else (87, 93))))
    figures.append(at_most("expect: bands from fewer than three machines", too_few(few), "fleets", 0))
    tried, wrong = mixed(few)
    figures.append(at_least("expect: fleets beside others with another setting", tried, "fleets", few))
    figures.append(at_most("expect: bands that mix settings", wrong, "bands", 0))
    pairs, bad = public_pairs()
    figures.append(at_least("expect: pairs of public rows in one band", pairs, "pairs", 10))
    figures.append(at_most("expect: of these, different in what matters", bad, "pairs", 0))
    finish(figures)


if __name__ == "__main__":
    main()
