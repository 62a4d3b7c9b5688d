"""What fits of a suite into a limited time, on simulated devices whose runs move the clock."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from simulated_time import SimulatedTime
from steelyard.analysis.hours import TimedOffer, TimedPart, TimedSuite, choose
from steelyard.inputs.suite import Choice, expand_part, find_suite, running
from steelyard.results.store import ResultFolder

if TYPE_CHECKING:
    from pathlib import Path

    from steelyard.contracts.spec import RunSpec

SUITE = """
name = "timed"
title = "Timed"
question = "How fast?"
repeats = 3
run = { crosscheck_steps = 0, budget = { min_steps = 2, min_seconds = 20.0, max_seconds = %s, max_extension = 1.0 } }
[[part]]
name = "first"
title = "First"
sweep = { batch = [1, 2, 4] }
[[part]]
name = "second"
title = "Second"
sweep = { batch = [8, 16] }
"""
SETUP_S = 10.0


class Timed:
    """The suite above on a machine whose steps have the given lengths, by batch."""

    def __init__(
        self, path: Path, figures: dict[int, int], steps_s: dict[int, float], *, max_s: float = 20.0, broken: int = 0
    ) -> None:
        (path / "timed").mkdir(exist_ok=True)
        (path / "timed" / "suite.toml").write_text(SUITE % max_s)
        found, self.folder, self.parts = find_suite(str(path / "timed")), ResultFolder(path / "results"), []
        for part in found.suite.part:
            planned, made = running(found.suite, part, Choice()), expand_part(found, part, Choice())

            def timed(spec: RunSpec) -> RunSpec:
                return replace(spec, sim=replace(spec.sim, step_time_s=steps_s.get(spec.batch, 1.0), setup_s=SETUP_S))

            cells = tuple(replace(cell, spec=timed(cell.spec)) for cell in made.cells)
            expansion = replace(made, cells=cells, runs=tuple(map(timed, made.runs)))
            counts = tuple(figures[cell.spec.batch] for cell in cells)
            self.parts.append(TimedPart(part.name, expansion, tuple(planned), counts))
        cells = [cell for part in self.parts for cell in part.expansion.cells]
        self.broken = [cell.name for cell in cells if cell.spec.batch == broken]

    def run(self, end_s: float) -> tuple[TimedSuite, SimulatedTime]:
        """Run for a time."""
        time = SimulatedTime(self.folder, self.broken)
        suite = TimedSuite(self.folder, self.parts, end_s, time.clock)
        suite.run(time.make, lambda: None)
        return suite, time


def jobs(time: SimulatedTime, *, short: bool = False) -> list[int]:
    """The batches of the runs that started, in order."""
    return [spec.batch for _, spec in time.starts if spec.study.endswith("-probe") == short]


def left(suite: TimedSuite) -> dict[tuple[str, str], tuple[list[int], bool]]:
    """The batches that were left out, by part and reason, and whether they are all of the part."""
    entries = suite.left_out()
    return {(one.part, one.why): ([entry.get("batch") for entry in one.planned], one.whole) for one in entries}


FIGURES = {1: 1, 2: 0, 4: 3, 8: 2, 16: 1}


def test_most_figures_per_second_are_chosen_first() -> None:
    offers = [
        TimedOffer(("s", "slow"), 3, 300.0),
        TimedOffer(("s", "quick"), 2, 100.0),
        TimedOffer(("s", "none, quick"), 0, 10.0),
        TimedOffer(("s", "none"), 0, 20.0),
    ]
    assert [one.key[1] for one in choose(offers, 1000.0)] == ["quick", "slow", "none, quick", "none"]
    # What does not fit leaves its time to others.
    assert [one.key[1] for one in choose(offers, 125.0)] == ["quick", "none, quick"]
    assert choose(offers, 9.0) == []


def test_everything_runs_if_there_is_time(tmp_path: Path) -> None:
    timed = Timed(tmp_path, FIGURES, {})
    suite, time = timed.run(10_000.0)
    assert suite.left_out() == []
    assert suite.figures(suite.measured()) == 7
    # Nothing is gained by short runs if everything fits, and what belongs to no printed figure comes last.
    assert jobs(time, short=True) == []
    assert jobs(time)[-3:] == [2, 2, 2]
    assert sorted(jobs(time)[:6]) == [1, 1, 1, 4, 4, 4]
    assert jobs(time)[:6] != sorted(jobs(time)[:6]), "the runs of a part are in the study's order"
    # Again: it costs nothing.
    _, time = timed.run(10_000.0)
    assert (time.starts, time.now_s) == ([], 0.0)


def test_what_does_not_fit_is_left_out_with_all_its_jobs(tmp_path: Path) -> None:
    suite, time = Timed(tmp_path, FIGURES, {}).run(250.0)
    assert time.now_s <= 250.0
    assert {batch: jobs(time).count(batch) for batch in jobs(time)} == {4: 3, 8: 3}
    assert left(suite) == {
        ("first", "hours"): ([1, 2], False),
        ("second", "hours"): ([16], False),
    }
    # Later, without what is there.
    suite, time = Timed(tmp_path, FIGURES, {}).run(10_000.0)
    assert sorted(jobs(time)) == [1, 1, 1, 2, 2, 2, 16, 16, 16]
    assert left(suite) == {}


def test_nothing_starts_that_would_end_too_late(tmp_path: Path) -> None:
    suite, time = Timed(tmp_path, FIGURES, {}).run(60.0)
    assert time.starts == []
    assert [whole for _, whole in left(suite).values()] == [True, True]
    # The first run of all may take a minute and what its budget allows.
    assert suite.least_s() == 3 * 80.0


def test_short_runs_tell_what_is_quick(tmp_path: Path) -> None:
    """Two configurations have as many figures; one may measure for 500 s and takes them."""
    slow, quick = 20.0, 0.01
    timed = Timed(tmp_path, {1: 1, 2: 1, 4: 0, 8: 1, 16: 1}, {1: slow, 2: quick, 8: slow, 16: quick}, max_s=500.0)
    suite, time = timed.run(1_000.0)
    assert jobs(time, short=True)[:4] == [1, 2, 8, 16]
    assert jobs(time)[:6] == [2, 2, 2, 16, 16, 16]
    assert ("first", "hours") in left(suite)
    # Short runs are not made again.
    _, time = timed.run(1_000.0)
    assert jobs(time, short=True) == []


def test_short_runs_take_a_part_of_the_time_only(tmp_path: Path) -> None:
    timed = Timed(tmp_path, dict.fromkeys(FIGURES, 1), dict.fromkeys(FIGURES, 20.0), max_s=500.0)
    suite, time = timed.run(340.0)
    # Each takes 30 s, and the first may take 80. A quarter of 340 s is 85 s. Nothing fits, and of the 280 s that are
    # left then a quarter is 70 s.
    assert (jobs(time, short=True), jobs(time), time.now_s) == ([1, 2, 4, 8], [], 120.0)
    assert left(suite) == {("first", "hours"): ([1, 2, 4], True), ("second", "hours"): ([8, 16], True)}


def test_a_configuration_that_fails_is_named(tmp_path: Path) -> None:
    suite, time = Timed(tmp_path, FIGURES, {}, broken=4).run(10_000.0)
    assert jobs(time).count(4) == 1
    assert left(suite) == {("first", "failed"): ([4], False)}
    assert sorted(set(jobs(time))) == [1, 2, 4, 8, 16]


def test_a_run_that_takes_longer_than_predicted_moves_others_out(tmp_path: Path) -> None:
    """One step takes ten times as long as a budget allows, and the first choice has three configurations."""
    suite, time = Timed(tmp_path, dict.fromkeys(FIGURES, 1), dict.fromkeys(FIGURES, 200.0)).run(900.0)
    assert len(jobs(time)) == 3
    assert len(set(jobs(time))) == 1
    assert time.now_s == 3 * 210.0
    assert sorted(batch for batches, _ in left(suite).values() for batch in batches) == sorted(
        {*FIGURES} - {*jobs(time)}
    )


def test_without_a_document_all_configurations_count_alike(tmp_path: Path) -> None:
    timed = Timed(tmp_path, FIGURES, {})
    timed.parts = [replace(part, figures=None) for part in timed.parts]
    suite, time = timed.run(10_000.0)
    assert suite.figures(suite.measured()) is None
    assert sorted(jobs(time)[:9]) == [1, 1, 1, 2, 2, 2, 4, 4, 4]
    assert left(suite) == {}
