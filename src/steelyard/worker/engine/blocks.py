"""The main loop: blocks of steps on every rank until the budget is used up. Independent of device and file format."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING, get_args

import numpy as np

from steelyard.contracts.observe import CrossCheck, QueueFacts, Stop, StopReason
from steelyard.contracts.sample_files import COLUMNS
from steelyard.estimate.enough import STEPS_TO_JUDGE
from steelyard.estimate.fold import Fold
from steelyard.estimate.stop import StopRule
from steelyard.worker.measure.writer import write_progress

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from steelyard.contracts.spec import Budget, RunSpec
    from steelyard.worker.devices.device import EventCost
    from steelyard.worker.engine.between import Between
    from steelyard.worker.engine.job import Team
    from steelyard.worker.engine.timer import StepTimer
    from steelyard.worker.measure.writer import StepWriter

# A block's events and samples are kept in memory: about 400 bytes per step and rank.
BLOCK_STEPS_IN_MEMORY = 1 << 17
MAX_BLOCK_STEPS = 4096
# A block starts with an empty queue: what the host otherwise does while the device works on the step before delays its
# first step. Long enough that this costs little, short enough to respect a limit in seconds.
MAX_BLOCK_SECONDS = 20.0
PROGRESS_EVERY_S = 0.5
# Steps that are not counted after communication hooks are installed: DDP rebuilds its buckets.
SETTLING_STEPS = 2
# Steps at the start of the second pass that are not counted: a rank with a faster host needs some to get ahead.
LEADING_STEPS = 8
CROSSCHECK_S, CROSSCHECK_SHARE, CROSSCHECK_LEAST = 5.0, 0.1, 4
# Time that a run needs beyond its steps: the start of Python, which no clock here sees, and its end.
START_AND_END_S = 10.0
# The fewest cross-check steps, in all passes, in proportion to those of an extended run; and one slow step.
AFTER_SHARE = (4 * CROSSCHECK_LEAST + SETTLING_STEPS + 1) / STEPS_TO_JUDGE
REASONS: tuple[StopReason, ...] = get_args(StopReason)

_STEP_S, _SAMPLES = COLUMNS.index("step_s"), COLUMNS.index("samples")


class BlockLoop:
    """Run all ranks of this process. The first rank of process 0 decides when to stop, for all processes."""

    def __init__(
        self,
        spec: RunSpec,
        timers: list[StepTimer],
        writer: StepWriter,
        raw: Path,
        team: Team,
        beat: Callable[[], None],
        between: Between,
    ) -> None:
        self._timers = timers
        self._writer = writer
        self._raw = raw
        self._team = team
        self._beat = beat
        self._between = between
        budget, per_epoch = spec.budget, spec.steps_per_epoch
        self._epoch_steps = budget.epochs * per_epoch if budget.epochs and per_epoch else None
        self._rule = StopRule(
            min_steps=budget.min_steps,
            min_seconds=budget.min_seconds,
            rel_half_width=budget.rel_half_width,
            max_steps=budget.max_steps,
            max_seconds=budget.max_seconds,
            max_extension=_find_extension(spec, timers[0].device.now()),
        )
        self._fold = Fold()
        self._seconds = 0.0
        self._host_seconds = 0.0
        self._extended = False
        self._told_needed = False
        own = [timer.step_maker.block_steps or MAX_BLOCK_STEPS for timer in timers]
        self._block_limit = max(1, min(MAX_BLOCK_STEPS, BLOCK_STEPS_IN_MEMORY // len(timers), *own))
        # The watchdog sees only whole blocks.
        self._block_seconds = min(MAX_BLOCK_SECONDS, spec.hang_limit_s / 4)
        self._last_progress = time.monotonic()

    def run(self) -> Stop:
        """Run blocks until the stop rule or the budget ends the run."""
        # A block starts with an empty queue; setup and compilation may have left work in it.
        for timer in self._timers:
            timer.device.synchronize()
        self._between.begin()
        # No rank may wait inside its first step for another that was still being set up.
        (count,), reason = self._team.agree([1]), 0
        while count:
            count, reason = self.advance(count)
        self._between.finish()
        return Stop(
            reason=REASONS[reason],
            steps=self._fold.steps,
            seconds=self._seconds,
            host_seconds=self._host_seconds,
            extended_s=max(0.0, self._seconds - self._rule.max_seconds) if self._extended else 0.0,
        )

    def advance(self, count: int) -> tuple[int, int]:
        """Run one block; return the number of steps of the next one and, if that is 0, the index of the stop reason."""
        self._block(count)
        self._beat()
        done = self._fold.steps
        good_enough = self._between(done, last=self._epoch_steps is not None and done >= self._epoch_steps)
        upcoming = self._decide(good_enough=good_enough) if self._team.process == 0 else (0, 0)
        steps, reason = self._team.agree([*upcoming])
        return steps, reason

    def _decide(self, *, good_enough: bool) -> tuple[int, int]:
        reason: StopReason | None
        if good_enough:
            reason = "quality"
        elif self._epoch_steps is not None:
            reason = "epochs" if self._fold.steps >= self._epoch_steps else None
        else:
            reason = self._rule.decide(self._fold, self._seconds)  # type: ignore[assignment]
            self._extended |= reason is None and self._rule.limit_s > self._rule.max_seconds
        self._report_progress(last=reason is not None)
        return (self._next_block(), 0) if reason is None else (0, REASONS.index(reason))

    def _next_block(self) -> int:
        done = self._fold.steps
        whole = self._epoch_steps
        remaining = self._rule.steps_to_next_look(done) if whole is None else whole - done
        remaining = min(remaining, self._between.room(done) or remaining)
        # Growing from one step: early blocks quickly show how long a step takes, and there are few of them.
        count = min(remaining, max(1, 3 * done), self._block_limit)
        if self._seconds:
            seconds = self._block_seconds
            if whole is None:
                seconds = min(seconds, self._rule.limit_s - self._seconds)
            count = min(count, max(1, math.ceil(seconds * done / self._seconds)))
        return count

    def _block(self, count: int) -> None:
        decider = self._timers[0]
        begin_s = decider.device.now()
        for timer in self._timers:
            timer.issue(count)
        # Reading the events takes host time that is not part of the measurement.
        decider.device.synchronize()
        self._host_seconds += decider.device.now() - begin_s
        for timer in self._timers:
            table = timer.harvest()
            if timer is decider:
                block_s = float(table[_STEP_S].sum())
                self._fold.extend(table[_STEP_S], table[_SAMPLES])
            self._writer.write(timer.device.rank, table)
            timer.step_maker.after_block(table, self._raw)
        self._seconds += block_s
        self._writer.flush()
        decider.device.pause(block_s)

    def _report_progress(self, *, last: bool) -> None:
        now = time.monotonic()
        needed_s = self._rule.needed_s
        news = last or (needed_s is not None and not self._told_needed)
        if now - self._last_progress < PROGRESS_EVERY_S and not news:
            return
        self._last_progress = now
        progress = {"steps": float(self._fold.steps), "seconds": self._seconds}
        if self._rule.estimate is not None and math.isfinite(self._rule.estimate.rel_half_width):
            progress["rel_half_width"] = self._rule.estimate.rel_half_width
        if needed_s is not None:
            progress |= {"needed_s": needed_s, "limit_s": self._rule.limit_s}
            self._told_needed = True
        write_progress(self._raw, progress)


def _find_extension(spec: RunSpec, spent_s: float) -> float:
    """Return how far a run may extend itself. Its time limit would end a longer one without a result.

    `spent_s`: since the start of the run, on the device's clock.
    """
    most = spec.budget.max_extension
    # A simulated clock may be tied to the real one.
    pace = spec.sim.wall_s_per_s if spec.device_family == "sim" else 1.0
    if spec.time_limit_s is None or not pace:
        return most
    left_s = (spec.time_limit_s - START_AND_END_S) / pace - spent_s
    return min(most, max(1.0, left_s / (1 + AFTER_SHARE) / spec.budget.max_seconds))


def crosscheck_steps(wanted: int, stop: Stop, budget: Budget) -> int:
    """Return the number of cross-check steps: at most a tenth of the run's time or a few seconds.

    None after a run that is too short to be judged, if they would take longer than the run was allowed to.
    """
    allowed_s = max(CROSSCHECK_S, CROSSCHECK_SHARE * stop.seconds)
    if stop.steps < STEPS_TO_JUDGE and AFTER_SHARE * STEPS_TO_JUDGE * stop.seconds > budget.longest_s * stop.steps:
        return 0
    return min(wanted, max(CROSSCHECK_LEAST, int(allowed_s * stop.steps / stop.seconds)))


def crosscheck(timers: list[StepTimer], steps: int, beat: Callable[[], None]) -> CrossCheck:
    """Run the second pass, whose steps are not written to the sample file: observing them changes their times.

    First a block in which communication is timed, with the queue as full as in the measured steps, because only then
    do the parts of a step match. Then steps that are synchronised one by one.
    """
    for timer in timers:
        timer.watch_communication()
    _together(timers, SETTLING_STEPS)
    first = min(LEADING_STEPS, steps)
    parts = np.mean([table[:, first:].mean(axis=1) for table in _together(timers, first + steps)], axis=0)
    beat()
    values = np.zeros(steps)
    for step in range(steps):
        for timer in timers:
            timer.device.synchronize()
        begins = [timer.device.now() for timer in timers]
        for timer in timers:
            timer.issue(1)
        for timer, begin_s in zip(timers, begins, strict=True):
            timer.harvest()
            values[step] += (timer.device.now() - begin_s) / len(timers)
        beat()
    sem = float(values.std(ddof=1) / np.sqrt(steps)) if steps > 1 else 0.0
    known: dict[str, float | None] = {}
    for name in ("input_wait_s", "compute_s", "exposed_comm_s"):
        seconds = float(parts[COLUMNS.index(name)])
        # NaN means unknown. Clock resolution can make a part slightly negative.
        known[name] = max(0.0, seconds) if math.isfinite(seconds) else None
    return CrossCheck(steps=steps, mean_step_s=float(values.mean()), sem_step_s=sem, **known)


def led_share(timers: list[StepTimer]) -> float | None:
    """Return the share of the measured steps in which the host was ahead of its device; None: not asked."""
    asked = sum(timer.asked for timer in timers)
    return sum(timer.led for timer in timers) / asked if asked else None


def examine_queue(timers: list[StepTimer], cost: EventCost | None, steps: int, beat: Callable[[], None]) -> QueueFacts:
    """Return how the host kept the queues filled: from the measured steps, and from `steps` profiled ones."""
    # Before the profile, under which the host is slower.
    led = led_share(timers)
    seen = []
    if steps:
        seen = [timer.device.profile(partial(timer.issue, steps)) for timer in timers]
        for timer in timers:
            timer.harvest()
        beat()
    compute = [profile.compute_s for profile in seen if profile.compute_s is not None]
    waits = [profile.synchronisations for profile in seen if profile.synchronisations is not None]
    return QueueFacts(
        led_share=led,
        event_s=None if cost is None else cost.device_s,
        event_host_s=None if cost is None else cost.host_s,
        events_per_step=timers[0].step_maker.events_per_step,
        profiled_steps=steps,
        compute_s=sum(compute) / steps / len(seen) if compute and len(compute) == len(seen) else None,
        synchronisations=sum(waits) / steps / len(seen) if waits and len(waits) == len(seen) else None,
        reason=seen[0].reason if seen else "no steps were profiled",
    )


def _together(timers: list[StepTimer], steps: int) -> list[NDArray[np.float64]]:
    for timer in timers:
        timer.issue(steps)
    return [timer.harvest() for timer in timers]
