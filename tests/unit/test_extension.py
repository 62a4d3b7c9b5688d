"""What `study --extend` adds to a finished study, and which of its jobs count afterwards."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from steelyard.analysis.extension import find_extension
from steelyard.analysis.summary import labels, summarise
from steelyard.analysis.sweep import swept_settings
from steelyard.contracts.observe import Launch, Status
from steelyard.inputs.study import Study, expand
from steelyard.terminal.study import extension_lines, extension_object
from steelyard.terminal.tables import cells_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec
    from steelyard.inputs.study import Expansion

    Simulate = Callable[[RunSpec], RunRecord]

LAUNCH = Launch(launcher="local", host="h", command=("x",), started_at="2026-01-01T00:00:00Z", wall_s=1.0, exit_code=0)
LOST = Status(code="killed", reason="the worker was ended by signal 9")
GOOD, SLOW = 0.01, 20.0
"""Step times: 1,000 steps are done in 10 s; in 240 s there are 12 of 20 s."""


def study_of(repeats: int = 3, steps: tuple[float, ...] = (GOOD,), **run: Any) -> Expansion:
    settings = {"workload": "sim", "crosscheck_steps": 0, **run}
    return expand(Study(name="s", repeats=repeats, run=settings, sweep={"sim.step_time_s": steps}))


def made(simulate: Simulate, study: Expansion, lost: int = 0) -> list[RunRecord]:
    records = [simulate(spec) for spec in study.runs]
    return [dataclasses.replace(record, status=LOST) for record in records[:lost]] + records[lost:]


def test_a_study_that_is_complete_needs_nothing(simulate: Simulate) -> None:
    study = study_of()
    extension = find_extension(study, made(simulate, study))
    assert extension.needs == extension.lost == ()
    assert " ".join(" ".join(extension_lines(extension, "steelyard study s.toml")).split()) == (
        "Nothing to add: every configuration has 3 jobs, none too short or with a trend. For longer jobs, raise "
        "budget.max_seconds in the study, or max_steps of its program."
    )


@pytest.mark.parametrize(("repeats", "lost", "jobs", "first"), [(1, 0, 2, 1), (3, 1, 1, 3), (5, 3, 1, 5)])
def test_jobs_are_added_up_to_three(simulate: Simulate, repeats: int, lost: int, jobs: int, first: int) -> None:
    study = study_of(repeats)
    (need,) = find_extension(study, made(simulate, study, lost)).needs
    assert (need.jobs, need.first, need.why) == (jobs, first, f"{repeats - lost} of 3 jobs")
    assert need.spec.budget == study.cells[0].spec.budget


def test_a_configuration_without_a_measured_job_is_left_alone(simulate: Simulate) -> None:
    study = study_of()
    extension = find_extension(study, made(simulate, study, lost=3))
    assert extension.needs == ()
    assert extension_lines(extension, "steelyard study s.toml") == [
        "sim.step_time_s=0.01: no job was measured (3 killed)",
        "  after removing the cause: steelyard study s.toml --again killed",
    ]
    selection = f"{study.study.name}/{study.cells[0].name}"
    assert extension_object(extension, study.study.name)["lost"] == [
        {"configuration": "sim.step_time_s=0.01", "selection": selection, "statuses": {"killed": 3}},
    ]


def test_short_jobs_are_repeated_with_a_longer_budget_and_replaced_in_the_table(simulate: Simulate) -> None:
    study = study_of(2, (GOOD, SLOW))
    short = made(simulate, study)
    assert {record.steps_seen for record in short} == {1000, 12}
    extension = find_extension(study, short)
    few, slow = extension.needs
    assert (few.jobs, slow.jobs, slow.why) == (1, 3, "jobs too short (SY202)")
    # Twice the budget would not be enough for 28 steps of 20 s, with some room.
    assert slow.spec.budget.max_seconds == 1.25 * 28 * SLOW
    assert slow.spec.budget.min_steps == study.cells[1].spec.budget.min_steps
    further = extension.runs(study)
    assert sorted(spec.run_id for spec in further.runs) == sorted(
        [f"{few.cell.name}-r0002", *(f"{slow.cell.name}-r{number:04d}" for number in (2, 3, 4))]
    )
    assert len({spec.seed for spec in (*study.runs, *further.runs)}) == 8
    cells = summarise([*short, *made(simulate, further)])
    by_name = {cell.name: cell for cell in cells}
    assert [by_name[need.cell.name].shorter for need in (few, slow)] == [0, 2]
    assert {record.steps_seen for record in by_name[slow.cell.name].records} == {35}
    assert set(labels(cells).values()) == {"sim.step_time_s=0.01", "sim.step_time_s=20.0"}
    # The longer budget is not a setting that the study varies.
    assert swept_settings(cells) == {"sim.step_time_s": (GOOD, SLOW)}
    assert "sim.step_time_s=20.0: 2 shorter jobs not counted" in cells_lines(cells)


def test_an_extension_that_was_interrupted_continues_with_the_longer_budget(simulate: Simulate) -> None:
    study = study_of(3, (GOOD,), sim={"shape": {"drift_per_step": 0.00004}})
    short = made(simulate, study)
    extension = find_extension(study, short)
    first = dataclasses.replace(simulate(extension.runs(study).runs[0]), findings=())
    (need,) = find_extension(study, [*short, first]).needs
    assert (need.jobs, need.first, need.why) == (2, 4, "1 of 3 jobs")
    assert need.spec.budget == first.spec.budget


def test_longer_jobs_that_failed_do_not_hide_the_measured_ones(simulate: Simulate) -> None:
    study = study_of(3, (SLOW,))
    short = made(simulate, study)
    failed = made(simulate, find_extension(study, short).runs(study), lost=3)
    (cell,) = summarise([*short, *failed])
    assert (cell.statuses, cell.shorter) == ({"completed": 3, "killed": 3}, 0)


def test_jobs_with_a_trend_are_repeated_for_twice_their_steps(simulate: Simulate) -> None:
    study = study_of(3, (GOOD,), sim={"shape": {"drift_per_step": 0.00004}}, time_limit_s=600.0)
    short = made(simulate, study)
    assert short[0].stop is not None
    (need,) = find_extension(study, short).needs
    assert need.jobs == 3
    assert need.why.startswith("its jobs get slower by ")
    assert need.spec.budget.min_steps == 2 * short[0].stop.steps
    assert (need.spec.budget.max_seconds, need.spec.time_limit_s) == (480.0, 1200.0)
    assert simulate(need.spec).steps_seen >= 2 * short[0].steps_seen


def test_a_number_of_epochs_is_not_changed(simulate: Simulate) -> None:
    study = study_of(3, (SLOW,), budget={"epochs": 1}, epoch_samples=320)
    assert find_extension(study, made(simulate, study)).needs == ()


def test_the_price_is_taken_from_the_earlier_jobs(simulate: Simulate) -> None:
    study = study_of(1, (GOOD, SLOW), devices=4)
    records = []
    for record in made(simulate, study):
        launch = dataclasses.replace(LAUNCH, wall_s=record.seconds_measured + 30.0)
        records.append(dataclasses.replace(record, launch=launch))
    extension = find_extension(study, records)
    assert [need.each_s for need in extension.needs] == pytest.approx([40.0, 30.0 + 700.0])
    assert sum(need.device_hours for need in extension.needs) == pytest.approx(4 * (2 * 40 + 3 * 730) / 3600)
    assert "Price: 5 more jobs, about 38 min, 2.52 device-hours, by the earlier jobs." in extension_lines(extension, "")
