"""[suite_hours] What `suite run --hours 1` measures on simulated machines, and whether it keeps to the hour.

50 machines with 1, 4 and 8 devices run every suite that has a document, size small, on generated data. The fastest is
30 times as fast as the slowest, and set-ups take 3 s to 3 minutes. Some configurations mislead their short run: slow
first steps, or a device that is throttled after it. Some are out of memory or fail. Time is simulated.

- Late: machines on which a suite ends later than an hour plus its longest run, and runs that start after the hour.
- Named: configurations without all their jobs that are not among those left out.
- Printed figures whose configurations have all their jobs, beside those of runs in the order of the file until the hour
  is over, as somebody would do it by hand.
"""

from __future__ import annotations

import random
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from figure import arguments, at_least, at_most, finish
from simjob import memory_folder
from simulated_time import SimulatedTime, time_of
from steelyard.analysis.hours import TimedPart, TimedSuite
from steelyard.contracts.observe import MEASURED
from steelyard.contracts.sim import Memory, Noise, Shape, SimTruth
from steelyard.inputs.devices import PlaceDevices
from steelyard.inputs.suite import Choice, expand_part, find_suite, running
from steelyard.report.suite.beside import SuiteResults
from steelyard.results.store import ResultFolder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.spec import RunSpec
    from steelyard.inputs.study import Expansion
    from steelyard.inputs.suite import SuiteFolder

SUITES = ("nrp", "aces", "olivia", "caraml")
MACHINES, QUICK_MACHINES = 50, 4
DEVICES = (1, 4, 8)
HOUR_S = 3600.0


class Machine:
    """A simulated machine: its speed, and what its clock shows."""

    def __init__(self, number: int) -> None:
        chance = random.Random(number)
        self.number, self.devices = number, DEVICES[number % len(DEVICES)]
        self.slower = 30 ** chance.random()
        self.setup_s = 3 * 20 ** chance.random() * (3 if number % 10 == 0 else 1)

    def truth(self, spec: RunSpec) -> SimTruth | None:
        """Return how fast a configuration is; None: it fails."""
        chance = random.Random(f"{self.number} {spec.configuration}")
        job = random.Random(f"{self.number} {spec.study} {spec.run_id}")
        step_s = (0.02 + 0.0005 * spec.batch * spec.accumulation) * self.slower * chance.uniform(0.5, 2.0)
        kind = chance.choices(("as it seems", "slow first", "throttled", "memory", "fails"), (75, 12, 7, 3, 3))[0]
        if kind == "fails":
            return None
        shape = Shape()
        if kind == "slow first":
            shape = Shape(compile_step_s=chance.uniform(5, 60), warmup_amplitude=3.0, warmup_steps=5.0)
        elif kind == "throttled":
            shape = Shape(throttle_at_step=20, throttle_factor=3.0)
        return SimTruth(
            step_time_s=step_s, setup_s=self.setup_s * chance.uniform(0.7, 1.5) * job.uniform(0.8, 1.4), shape=shape,
            noise=Noise(kind="normal", cv=0.02, between_jobs_cv=0.05),
            memory=Memory(limit_bytes=1.0, fixed_bytes=2.0) if kind == "memory" else Memory(),
        )  # fmt: skip


@dataclass(frozen=True)
class Told:
    """What a suite did in an hour on a machine."""

    over_s: float
    """By how much it took longer than the hour; negative: it ended before."""
    longest_s: float
    late: int
    left_out: int
    unnamed: int
    figures: int
    in_order: int
    """The figures of runs in the order of the file."""
    possible: int


def parts_of(found: SuiteFolder, machine: Machine, folder: ResultFolder) -> Iterator[TimedPart]:
    """Yield the parts of a suite that can run, with the machine's speed in their settings."""
    choice = Choice("small", there=PlaceDevices("a simulated machine", machine.devices))
    for part in found.suite.part:
        planned = running(found.suite, part, choice)
        if planned:
            counts = SuiteResults(folder, found, "small").count_figures(planned)
            made = simulated(expand_part(found, part, choice), machine)
            yield TimedPart(part.name, made, tuple(planned), tuple(counts))


def simulated(expansion: Expansion, machine: Machine) -> Expansion:
    """Return a study on a simulated machine."""

    def change(spec: RunSpec) -> RunSpec:
        return replace(spec, device="sim", sim=machine.truth(spec) or SimTruth(), crosscheck_steps=0, data=None)

    cells = tuple(replace(cell, spec=change(cell.spec)) for cell in expansion.cells)
    return replace(expansion, cells=cells, runs=tuple(map(change, expansion.runs)))


def measure(name: str, number: int) -> Told:
    """Run a suite for an hour on a machine."""
    found, machine = find_suite(name), Machine(number)
    with tempfile.TemporaryDirectory(dir=memory_folder()) as scratch:
        folder = ResultFolder(Path(scratch))
        parts = list(parts_of(found, machine, folder))
        broken = {spec.configuration for part in parts for spec in part.expansion.runs if machine.truth(spec) is None}
        time = SimulatedTime(folder, broken)
        suite = TimedSuite(folder, parts, HOUR_S, time.clock)
        suite.run(time.make, lambda: None)
        named = {(entry.part, str(planned.settings)) for entry in suite.left_out() for planned in entry.planned}
        incomplete = {
            (part.name, str(planned.settings))
            for part in parts
            for planned, cell in zip(part.planned, part.expansion.cells, strict=True)
            if not all(folder.has(spec) for spec in part.expansion.runs if spec.configuration == cell.name)
        }
        return Told(
            over_s=time.now_s - HOUR_S,
            longest_s=time.longest_s,
            late=sum(start_s > HOUR_S for start_s, _ in time.starts),
            left_out=len(named),
            unnamed=len(incomplete - named),
            figures=suite.figures(suite.measured()) or 0,
            in_order=in_order(parts, folder, SimulatedTime(folder, broken)),
            possible=suite.figures(suite.keys) or 0,
        )


def in_order(parts: list[TimedPart], folder: ResultFolder, time: SimulatedTime) -> int:
    """Return the printed figures of configurations with all jobs, if runs are made in the order of the file.

    One job of a configuration tells how long the others take.
    """
    spent_s, figures = 0.0, 0
    for part in parts:
        records = {record.spec.configuration: record for record in folder.records(part.expansion.study.name)}
        left = {cell.name: part.expansion.study.repeats for cell in part.expansion.cells}
        for spec in part.expansion.runs:
            if spent_s >= HOUR_S:
                break
            if spec.configuration not in records:
                made = time.make(part.name, replace(part.expansion, runs=(spec,)), lambda _: True).made
                records[spec.configuration] = made[0]
            record = records[spec.configuration]
            spent_s += time_of(record)
            left[spec.configuration] -= record.status.code in MEASURED
        counts = part.figures or ()
        figures += sum(count for cell, count in zip(part.expansion.cells, counts, strict=True) if not left[cell.name])
    return figures


def main() -> None:
    options = arguments(__doc__)
    machines = QUICK_MACHINES if options.quick else MACHINES
    cases = [(name, number) for number in range(machines) for name in SUITES]
    if options.quick:
        # Each machine runs another suite.
        cases = cases[:: len(SUITES) + 1]
    with ProcessPoolExecutor(2) as pool:
        told = list(pool.map(measure, *zip(*cases, strict=True)))
    for name in SUITES:
        some = [one for (suite, _), one in zip(cases, told, strict=True) if suite == name]
        whole, mine, plain = (sum(getattr(one, key) for one in some) for key in ("possible", "figures", "in_order"))
        left = sum(one.left_out for one in some)
        print(f"{name}: {mine} of {whole} printed figures, {plain} in the order of the file; {left} left out")
    over = sorted(one.over_s for one in told)
    print(
        f"ends at most {max(over):.0f} s after the hour; {sum(each > 0 for each in over)} of {len(over)} end after it"
    )
    whole = sum(one.possible for one in told)
    late = {number for (_, number), one in zip(cases, told, strict=True) if one.over_s > one.longest_s}
    finish(
        [
            at_most("suite_hours: machines later than an hour plus one run", len(late), f"of {machines}", 0),
            at_most("suite_hours: runs that start after the hour", sum(one.late for one in told), "runs", 0),
            at_most("suite_hours: left out and not named", sum(one.unnamed for one in told), "configurations", 0),
            at_least(
                "suite_hours: printed figures measured",
                100 * sum(one.figures for one in told) / whole,
                f"% of {whole}",
                100 * sum(one.in_order for one in told) / whole,
            ),
        ]
    )


if __name__ == "__main__":
    main()
