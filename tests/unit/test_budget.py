"""A run whose budget is too short for a steady state extends itself within a limit, or says what it would need."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from conftest import make_spec
from steelyard.contracts.observe import PROGRESS_FILE, Stop
from steelyard.contracts.sim import SimTruth
from steelyard.contracts.spec import Budget
from steelyard.estimate.enough import STEPS_TO_JUDGE
from steelyard.estimate.fold import Fold
from steelyard.estimate.stop import StopRule
from steelyard.stats.steady import FEWEST, LEAD_REACH
from steelyard.worker.engine.blocks import crosscheck_steps

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec


def rule_of(max_seconds: float, max_extension: float, max_steps: int = 10_000) -> StopRule:
    return StopRule(
        min_steps=1000,
        min_seconds=0.0,
        rel_half_width=0.01,
        max_steps=max_steps,
        max_seconds=max_seconds,
        max_extension=max_extension,
    )


def step_through(rule: StopRule, times: list[float]) -> tuple[str | None, int, float | None]:
    """Measure step by step; return why it stopped, after how many steps, and the first time that was announced."""
    fold, announced, reason = Fold(), None, None
    for time_s in times:
        fold.extend(np.array([time_s]), np.ones(1))
        reason = rule.decide(fold, sum(times[: fold.steps]))
        announced = announced or rule.needed_s
        if reason is not None:
            break
    return reason, fold.steps, announced


def test_enough_steps_are_those_of_the_steady_state_and_its_slow_first_steps() -> None:
    assert STEPS_TO_JUDGE == FEWEST + LEAD_REACH


@pytest.mark.parametrize(
    ("times", "extension", "steps", "announced"),
    [
        ([1.0] * 99, 2.0, 50, None),  # enough without an extension
        ([2.5] * 99, 2.0, 28, 70.0),  # extended, and not further than needed
        ([2.5] * 99, 1.0, 20, 70.0),  # an extension is not allowed
        ([5.0] * 99, 2.0, 10, 140.0),  # the extension would not do: no time is spent on it
        ([30.0] * 99, 2.0, 2, 840.0),  # known after two steps that take half of the time
        ([20.0] + [1.0] * 99, 2.0, 31, None),  # a slow first step tells nothing
        ([60.0] * 99, 2.0, 1, 1680.0),
    ],
)
def test_a_limit_in_seconds(times: list[float], extension: float, steps: int, announced: float | None) -> None:
    reason, made, said = step_through(rule_of(50.0, extension), times)
    assert (reason, made) == ("max_seconds", steps)
    assert said == (None if announced is None else pytest.approx(announced))


def test_steps_that_become_slow_after_the_announcement_end_the_extension() -> None:
    rule = rule_of(50.0, 2.0)
    reason, steps, said = step_through(rule, [2.5] * 22 + [20.0] * 77)
    assert (reason, steps, said) == ("max_seconds", 24, pytest.approx(70.0))
    assert rule.limit_s == 50.0


def test_fewer_steps_may_be_requested() -> None:
    assert step_through(rule_of(50.0, 2.0, max_steps=5), [12.0] * 9) == ("max_steps", 5, pytest.approx(60.0))


@pytest.mark.parametrize(("ranks", "step_s", "steps", "extended_s"), [(1, 10.0, 28, 40.0), (3, 50.0, 5, 0.0)])
def test_a_simulated_run_records_that_it_was_extended(
    simulate: Callable[[RunSpec], RunRecord],
    tmp_path: Path,
    ranks: int,
    step_s: float,
    steps: int,
    extended_s: float,
) -> None:
    sim = SimTruth(step_time_s=step_s)
    record = simulate(make_spec(sim=sim, devices=ranks, crosscheck_steps=0, budget=Budget(max_seconds=240.0)))
    assert record.stop is not None
    assert (record.stop.reason, record.stop.steps) == ("max_seconds", steps)
    assert record.stop.extended_s == pytest.approx(extended_s)
    progress = json.loads((tmp_path / PROGRESS_FILE).read_text())
    assert progress.get("needed_s") == (None if extended_s else pytest.approx(28 * step_s))


@pytest.mark.parametrize(("step_s", "steps"), [(0.01, 32), (1.0, 12), (2.5, 4), (20.0, 0)])
def test_a_run_that_is_too_short_is_not_checked_for_longer_than_it_took(step_s: float, steps: int) -> None:
    budget = Budget(max_seconds=120.0)
    count = max(1, int(120.0 / step_s))
    stop = Stop(reason="max_seconds", steps=count, seconds=step_s * count, host_seconds=step_s * count)
    assert crosscheck_steps(32, stop, budget) == steps


@pytest.mark.parametrize(
    ("limit_s", "pace", "steps"), [(None, 1.0, 28), (340.0, 1.0, 24), (490.0, 1.0, 28), (5.0, 0.0, 28)]
)
def test_a_run_is_not_extended_beyond_its_time_limit(
    simulate: Callable[[RunSpec], RunRecord],
    monkeypatch: pytest.MonkeyPatch,
    limit_s: float | None,
    pace: float,
    steps: int,
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    sim, budget = SimTruth(step_time_s=10.0, wall_s_per_s=pace), Budget(max_seconds=240.0)
    record = simulate(make_spec(sim=sim, crosscheck_steps=0, budget=budget, time_limit_s=limit_s))
    assert record.stop is not None
    assert record.stop.steps == steps
