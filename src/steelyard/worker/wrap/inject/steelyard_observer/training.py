"""The training of one process: which updates make a step, what it worked on, and when it ended.

A step ends with an update of the optimizer; with several optimizers, with the last update of their cycle. Backward
passes between two updates are its micro-batches. Evaluations and checkpoints are taken out of the step in which they
happen.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from .clocks import clock_of
from .files import RankFiles
from .observed import CountedClosure
from .readback import read_rank, read_settings
from .second import StepCounts
from .work import LARGE, TOGETHER, UNKNOWN, BatchWork, work_of

if TYPE_CHECKING:
    from collections.abc import Callable

FLUSH_S = 0.5
# Several optimizers: updates to look at before their cycle is taken as known, for at most these seconds.
LEARN_UPDATES, LEARN_S = 32, 30.0
LONGEST_CYCLE = 16
# Modules that are set to evaluation and trained on nevertheless, such as frozen normalisation.
FALSE_EVALUATIONS = 3
IN_BACKWARD = "backward"
MARKED = "mark"
EVALUATION, EVALUATION_MODE, CHECKPOINT = "evaluation", "evaluation mode", "checkpoint"
MARKS = (MARKED,)
MAX_PHASES = 5000
MAX_SIZES = 1000
# Batches that are fetched and never trained on, as in inference, must not fill the memory.
MAX_WAITING = 1 << 16


def _guarded(method: Any) -> Any:
    """Whatever is wrong with the observer must not reach the program: it is noted, and nothing more is observed.

    Methods that are called in every step have this written out: the call of a call costs a third of a microsecond.
    """

    @functools.wraps(method)
    def call(self: SeenTraining, *args: Any) -> Any:
        if self.failed:
            return None
        try:
            return method(self, *args)
        except Exception as error:  # noqa: BLE001 -- see above
            self.fail(error)
            return None

    return call


class StopLimits:
    """When to end the program; None: it runs to its end. The second pass ends when it has seen enough."""

    def __init__(
        self, max_steps: int | None = None, max_seconds: float | None = None, *, second_pass: bool = False
    ) -> None:
        self.max_steps = max_steps
        self.max_seconds = max_seconds
        self.second_pass = second_pass
        self.exist = max_steps is not None or max_seconds is not None or second_pass


class UpdatePart:
    """What happened since the update before, up to an update."""

    __slots__ = ("backwards", "fired_s", "key", "moment", "phases", "skipped", "waited_s", "waits", "works")

    def __init__(self) -> None:
        self.key: Any = None
        self.moment: Any = None
        self.fired_s = 0.0
        self.backwards = 0
        self.skipped = False
        self.works: list[BatchWork] = []
        # Seconds of the host, or moments of a device.
        self.waited_s = 0.0
        self.waits: list[tuple[Any, Any]] = []
        self.phases: tuple[tuple[str, Any, Any], ...] = ()

    def add_wait(self, begin: Any, end: Any) -> None:
        """Add that the program waited for a batch."""
        if type(end) is float and type(begin) is float:
            self.waited_s += end - begin
        else:
            self.waits.append((begin, end))


class SeenTraining:
    """Follows one process; its methods are called by the hooks."""

    # What every step touches is kept together: after the program's own work little of it is in the processor's cache.
    __slots__ = (
        "__dict__", "_busy_since_save", "_depth", "_fetched_from", "_flushed_s", "_inner", "_loader", "_now", "_open",
        "_part", "_seen", "_steps", "_unread", "_updating", "_within", "backwards", "clock", "closure_calls", "cycle",
        "evaluating", "failed", "fired", "firings", "first_s", "limits", "steps", "updates",
    )  # fmt: skip

    def __init__(self, raw: str, zero_s: float, limits: StopLimits) -> None:
        self.raw = raw
        self.zero_s = zero_s
        self.limits = limits
        self.begin_again()

    def begin_again(self) -> None:
        """Forget everything: nothing was seen of this process yet."""
        self.pid = os.getpid()
        self.failed = False
        self.notes: list[str] = []
        self.clock: Any = None
        # Before the first update the device is not known.
        self._now: Callable[[], Any] = time.monotonic
        self.files: Any = None
        self.refused = False
        self.place: tuple[int, int] | None = None
        """The last rank and world that torch told."""
        self.second = StepCounts() if self.limits.second_pass else None
        self.parallel = "none"
        self.autocast: Any = None
        self.model_config: Any = None
        self.evaluating = False
        self.firings = 0
        self.steps = self.updates = self.skipped = self.phantom = self.backwards = 0
        # By identity: the optimizers that exist, and those that have made an update.
        self.optimizers: dict[int, Any] = {}
        self.fired: dict[Any, Any] = {}
        self.first_loader: Any = None
        self.evaluation_s = self.evaluation_mode_s = self.checkpoint_s = 0.0
        self.micro_batches: Counter[int] = Counter()
        self.batches: Counter[int] = Counter()
        self.unknown_samples = self.unknown_tokens = self.known_tokens = 0
        self.two_loaders = self.captures = 0
        self.stopped = False
        self.cycle: Any = None
        self.in_backward = False
        self.irregular = False
        self.first_s: float | None = None
        self._trained: set[int] = set()
        self._trained_of = 0
        self._part = UpdatePart()
        self._open: list[UpdatePart] = []
        self._steps: deque[list[UpdatePart]] = deque()
        self._rows: list[tuple[Any, ...]] = []
        self._learning: list[UpdatePart] = []
        self._seen: dict[Any, int] = {}
        self._updating: list[int] = []
        self._depth = 0
        self.closure_calls = 0
        self._inner = False
        self._loader: Any = None
        self._fetched_from: list[Any] = []
        self._eval_begin: Any = None
        self._eval_module: Any = None
        self._within = 0
        self._eval_loaders: list[Any] = []
        self._eval_waits: list[tuple[Any, Any]] = []
        self._by_loader = False
        # By identity: the data sets whose batches a backward pass has followed.
        self._datasets: set[int] = set()
        self._learned = 0
        self._false_evaluations = 0
        self._saving = 0
        self._save_begin: Any = None
        self._busy_since_save = True
        self._previous: Any = None
        # The first step is written at once: a program that is killed early has trained nevertheless.
        self._flushed_s = -FLUSH_S
        self._told_steps = 0
        self.stop_at: int | None = None
        self._phases: list[tuple[str, float, float]] = []
        self._unread: list[BatchWork] = []

    def note(self, text: str) -> None:
        """Keep what went wrong in observing, for the record."""
        if len(self.notes) < 20:
            self.notes.append(text[:300])

    def fail(self, error: Exception) -> None:
        """Observe nothing more, because of an error of the observer."""
        if self.failed:
            return
        self.failed = True
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}" if trace else ""
        try:
            with open(os.path.join(self.raw, "observer.log"), "a", encoding="utf-8") as log:
                log.write(f"{self.pid}: {place}: {error!r}\n"[:1000])
        except OSError:
            pass

    # -- batches

    def fetch_begins(self, loader: Any) -> Any:
        """Return the moment at which the program asks for a batch."""
        try:
            if self.evaluating or loader is not self._loader:
                self._loader_asked(loader)
            if self.first_s is None:
                self.first_s = time.monotonic()
            self._busy_since_save = True
            return self._now()
        except Exception as error:  # noqa: BLE001 -- see _guarded
            return self.fail(error)

    def _loader_asked(self, loader: Any) -> None:
        """Begin or end an evaluation, if a batch of this loader tells that one begins or ends."""
        is_trained = id(getattr(loader, "_dataset", None)) in self._datasets
        if not self.evaluating:
            if self._datasets and not is_trained:
                # Nothing was trained on its data yet: a backward pass would show that it is no evaluation.
                self._begin_evaluation(None)
                self._by_loader = True
        elif not self._within and (loader is self._loader or (self._by_loader and is_trained)):
            # The training goes on: some libraries reset the mode of their modules later, or in a way of their own.
            self._end_evaluation()

    def fetched(self, loader: Any, begin: Any, batch: Any) -> None:
        """Take in a batch; it is worked on in a later backward pass, not always in the next one."""
        if self.failed:
            return
        try:
            end = self._now()
            waiting = getattr(loader, "_steelyard_batches", None)
            if waiting is None:
                waiting = loader._steelyard_batches = deque(maxlen=MAX_WAITING)  # noqa: SLF001 -- its own, and ends with it
            work = work_of(loader, batch)
            waiting.append(work)
            if self.evaluating:
                self._eval_loaders.append(loader)
                self._eval_waits.append((begin, end))
                return
            if self._loader is not loader:
                self._loader = loader
                # Not `or`: the length of an iterator may be an error.
                self.first_loader = loader if self.first_loader is None else self.first_loader
            if loader not in self._fetched_from:
                self._fetched_from.append(loader)
            self._part.add_wait(begin, end)
            if work.unread is not None:
                self._unread.append(work)
                if len(self._unread) >= TOGETHER or (work.tokens or 0) > LARGE:
                    self._read_works()
        except Exception as error:  # noqa: BLE001 -- see _guarded
            self.fail(error)

    def _read_works(self) -> None:
        """Count masks and labels of the last batches."""
        for work in self._unread:
            work.read()
        self._unread.clear()

    # -- backward passes

    def backward_begins(self, _owner: Any = None) -> None:
        """Count outermost passes only: recomputed activations start inner ones."""
        self._depth += 1
        if self._depth != 1 or self.failed:
            return
        try:
            self._busy_since_save = True
            if self.first_s is None:
                self.first_s = time.monotonic()
            if self.evaluating and not self._within:
                self._cancel_evaluation()
        except Exception as error:  # noqa: BLE001 -- see _guarded
            self.fail(error)

    def backward_ends(self, _owner: Any = None) -> None:
        """End a micro-batch; if the optimizers have stepped inside the pass, end the update."""
        self._depth -= 1
        if self._depth or self.failed:
            return
        try:
            self.backwards += 1
            # Some optimizers call a closure several times on the same batches.
            if not self._updating or self.closure_calls <= 1:
                part = self._part
                part.backwards += 1
                fetched_from = self._fetched_from
                if len(fetched_from) > 1:
                    self.two_loaders += 1
                if fetched_from:
                    if self._learned != id(fetched_from[-1]):
                        self._learned = id(fetched_from[-1])
                        self._datasets.update(id(getattr(one, "_dataset", None)) for one in fetched_from)
                    fetched_from.clear()
                # The oldest batch: some loaders run one batch ahead.
                waiting = getattr(self._loader, "_steelyard_batches", None)
                if waiting:
                    part.works.append(waiting.popleft())
            if self._inner:
                self._inner = False
                self._fire(IN_BACKWARD)
        except Exception as error:  # noqa: BLE001 -- see _guarded
            self.fail(error)

    # -- updates

    @_guarded
    def created(self, optimizer: Any) -> None:
        """Note an optimizer and the parameters that it trains, unless its making has failed."""
        if getattr(optimizer, "param_groups", None):
            self.optimizers[id(optimizer)] = optimizer

    def update_begins(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Begin an update; one of the same optimizer that never ended has failed.

        Return the arguments that it is to be called with instead of its own, or None.
        """
        key, updating = id(optimizer), self._updating
        if key in updating:
            updating.clear()
        updating.append(key)
        if len(updating) > 1:
            return None
        self._inner = self._depth > 0
        self.closure_calls = 0
        # The first argument is the optimizer.
        if len(args) > 1 and callable(args[1]):
            return (optimizer, CountedClosure(self, args[1]), *args[2:]), kwargs
        if kwargs and callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": CountedClosure(self, kwargs["closure"])}
        return None

    def update_ends(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """End an update; an optimizer inside another makes none of its own."""
        if self._updating:
            self._updating.pop()
        if self._updating or self.failed:
            return
        try:
            if self._inner:
                # The step ends with the backward pass.
                self.updates += 1
                self.in_backward = True
                self.optimizers.setdefault(id(optimizer), optimizer)
            else:
                self._fire(id(optimizer), optimizer)
        except Exception as error:  # noqa: BLE001 -- see _guarded
            self.fail(error)

    @_guarded
    def update_skipped(self, optimizer: Any) -> None:
        """End an update that a gradient scaler has left out."""
        self.skipped += 1
        self._part.skipped = True
        self._fire(id(optimizer), optimizer)

    @_guarded
    def marked(self) -> None:
        """End a step because the program says so; updates end none from now on."""
        if self.cycle != MARKS:
            self._settle()
            self.cycle = MARKS
        if self.first_s is None:
            # Nothing was seen before it: it ends a step whose beginning is not known, and begins the next.
            self.first_s = time.monotonic()
            return
        self.backwards += 1
        self._fire(MARKED)

    def _fire(self, key: Any, optimizer: Any = None) -> None:
        self.firings += 1
        if self.cycle == MARKS and key != MARKED:
            self.updates += 1
            return
        if self._seen.get(key, 0) == self.backwards and key != IN_BACKWARD:
            self.phantom += 1
            return
        self._seen[key] = self.backwards
        part = self._part
        if key not in self.fired:
            self._meet(key, optimizer)
        if self.clock.capturing():
            self.captures += 1
            return
        if key != IN_BACKWARD and not part.skipped:
            self.updates += 1
        part.key = key
        part.moment = self._now()
        part.fired_s = fired_s = time.monotonic()
        self._part = UpdatePart()
        cycle = self.cycle
        if cycle is None:
            self._learn(part)
        elif len(cycle) == 1 and key == cycle[0] and not self._open:
            # The usual case: each update of the only optimizer ends a step.
            self._steps.append([part])
            self.steps += 1
        else:
            self._take(part)
        if fired_s - self._flushed_s > FLUSH_S and threading.current_thread() is threading.main_thread():
            self.flush()
        if self.limits.exist:
            self._check_limits(fired_s)

    def _meet(self, key: Any, optimizer: Any) -> None:
        """Take in an optimizer that makes its first update."""
        self.fired[key] = optimizer
        if optimizer is not None:
            self.optimizers.setdefault(id(optimizer), optimizer)
        if self.clock is None:
            self.clock = clock_of(read_rank(self)["device"])
            self._now = self.clock.moment
        if self.cycle is not None and key != MARKED:
            # Another one than those whose cycle is known: look again.
            self._learning, self._open, self.cycle = self._open, [], None
        elif len(self.optimizers) <= 1 or key in (IN_BACKWARD, MARKED):
            self.cycle = (key,)

    # -- which updates make a step

    def _learn(self, part: UpdatePart) -> None:
        self._learning.append(part)
        seconds = part.fired_s - self._learning[0].fired_s
        if len(self._learning) >= LEARN_UPDATES or (seconds > LEARN_S and len(self._learning) > 1):
            self._settle()

    def _settle(self) -> None:
        """Decide the cycle of the optimizers from the updates so far, and take these in."""
        learned, self._learning = self._learning, []
        if not learned:
            return
        self.cycle, self.irregular = find_cycle([part.key for part in learned])
        for part in learned:
            self._take(part)

    def _take(self, part: UpdatePart) -> None:
        self._open.append(part)
        last = self.cycle[-1]
        if part.key == last and sum(one.key == last for one in self._open) >= self.cycle.count(last):
            self._steps.append(self._open)
            self._open = []
            self.steps += 1

    # -- evaluations and checkpoints

    @_guarded
    def mode_set(self, module: Any, mode: bool) -> None:
        """Begin or end an evaluation, if the module is trained. Called only if it differs from what was before."""
        if self._within or self._false_evaluations >= FALSE_EVALUATIONS or not self.optimizers:
            return
        parameter = next(module.parameters(), None)
        if parameter is None or id(parameter) not in self._trained_parameters():
            return
        if mode:
            self._end_evaluation()
        else:
            self._begin_evaluation(module)

    @_guarded
    def evaluation_begins(self) -> None:
        """Begin an evaluation by a method of a library that makes nothing else."""
        self._within += 1
        if not self.evaluating:
            self._begin_evaluation(None)

    @_guarded
    def evaluation_ends(self) -> None:
        """End it."""
        self._within -= 1
        if not self._within and self.evaluating:
            self._end_evaluation()

    def _begin_evaluation(self, module: Any) -> None:
        self.evaluating, self._by_loader = True, False
        self._eval_begin, self._eval_module = self._now(), module

    def _trained_parameters(self) -> set[int]:
        if len(self._trained) == 0 or self._trained_of != len(self.optimizers):
            self._trained_of = len(self.optimizers)
            self._trained = {
                id(parameter)
                for optimizer in self.optimizers.values()
                for group in optimizer.param_groups
                for parameter in group["params"]
            }
        return self._trained

    def _end_evaluation(self) -> None:
        self.evaluating = False
        for loader in self._eval_loaders:
            loader._steelyard_batches.clear()  # noqa: SLF001 -- ours
        # A mode alone is no proof: other programs collect their data in it.
        kind = EVALUATION if self._eval_loaders or self._eval_module is None else EVALUATION_MODE
        self._eval_loaders, self._eval_waits = [], []
        self._part.phases += ((kind, self._eval_begin, self._now()),)

    def _cancel_evaluation(self) -> None:
        """A backward pass: it was no evaluation, or its end was not seen."""
        self.evaluating = False
        self._false_evaluations += self._eval_module is not None and not self._eval_module.training
        if self._eval_loaders:
            self._loader = self._eval_loaders[-1]
            self._fetched_from.append(self._loader)
        for begin, end in self._eval_waits:
            self._part.add_wait(begin, end)
        self._eval_loaders, self._eval_waits = [], []

    @_guarded
    def checkpoint_begins(self) -> None:
        """Begin to write a checkpoint."""
        self._saving += 1
        if self._saving == 1:
            self._save_begin = self._now()

    @_guarded
    def checkpoint_ends(self) -> None:
        """End it. Files that are written one after the other are one checkpoint."""
        self._saving -= 1
        if self._saving or self.evaluating:
            return
        phases, begin = self._part.phases, self._save_begin
        if phases and phases[-1][0] == CHECKPOINT and not self._busy_since_save:
            begin, phases = phases[-1][1], phases[:-1]
        self._part.phases = (*phases, (CHECKPOINT, begin, self._now()))
        self._busy_since_save = False

    # -- the end

    def _check_limits(self, now_s: float) -> None:
        limits = self.limits
        if self.second is not None and self.second.look(self):
            self.stop()
        if limits.max_steps is not None and self._counted_steps() >= limits.max_steps:
            self.stop()
        if limits.max_seconds is None:
            return
        if self.stop_at is None:
            self.stop_at = self.files.agreed_stop(self, now_s) if self.files is not None else None
        if self.stop_at is not None and self.steps >= self.stop_at:
            self.stop()

    def _counted_steps(self) -> int:
        """Return the steps so far; while the cycle is not known, those of the cycle that the updates show."""
        if not self._learning or any(key not in self.fired for key in self.optimizers):
            return self.steps
        cycle, _ = find_cycle([part.key for part in self._learning])
        return self.steps + len(self._learning) // len(cycle)

    def stop(self) -> None:
        """End the program: the mean of its steps is known."""
        self.stopped = True
        self.finish()
        # Every rank ends after the same step, so none waits for another.
        raise SystemExit(0)

    # -- files

    def flush(self, *, final: bool = False) -> None:
        """Write the steps that have ended on the device."""
        self._flushed_s = time.monotonic()
        if self.pid != os.getpid() or self.clock is None or self.refused:
            return
        self._read_works()
        if final and self._steps:
            self.clock.wait(self._steps[-1][-1].moment)
        while self._steps and (final or self.clock.passed(self._steps[0][-1].moment)):
            self._rows.append(self._row(self._steps.popleft()))
        if not self._rows:
            return
        if self.files is None:
            self.files = RankFiles.claim(self)
            self.refused = self.files is None
            if self.refused:
                return
        if self.steps >= 10 * self._told_steps:
            self._told_steps = self.steps
            self.files.write_about(self, read_settings(self))
        self.files.write_rows(self._rows)
        self._rows = []
        self.files.write_phases(self._phases)
        self._phases = []

    @_guarded
    def write_steps(self) -> None:
        """Write the steps so far: another program may take the place of this one."""
        self.flush(final=True)

    @_guarded
    def finish(self) -> None:
        """Write everything: the process ends."""
        if self.pid != os.getpid() or self.clock is None:
            return
        if self._learning:
            self._settle()
        self.flush(final=True)
        if self.files is not None and not self.refused:
            self.files.write_about(self, read_settings(self), final=True)
            if self.second is not None:
                self.files.write_second(self.second)

    def _row(self, parts: list[UpdatePart]) -> tuple[Any, ...]:
        """Return start, length, wait, samples and the work of a step."""
        end, previous = parts[-1], self._previous
        self._previous = end
        if previous is None:
            # Before the first update the device was not known.
            begin_s = self.first_s or end.fired_s
            length_s = end.fired_s - begin_s
        else:
            begin_s = self.clock.at_s(previous.moment)
            length_s = self.clock.seconds(previous.moment, end.moment)
        wait_s = 0.0
        for part in parts:
            wait_s += part.waited_s
            for since, until in part.waits:
                wait_s += self._between(since, until)
            if part.phases:
                length_s -= self.take_out(part.phases)
        works = end.works if len(parts) == 1 else [work for part in parts for work in part.works]
        # With several optimizers each has batches and passes of its own; those before the last update count.
        micro = (len(works) if len(parts) == 1 else 0) or end.backwards
        self.micro_batches[micro] += 1
        return (begin_s - self.zero_s, max(length_s, 1e-9), max(wait_s, 0.0), *self._sums(works), micro)

    def take_out(self, phases: tuple[tuple[str, Any, Any], ...]) -> float:
        """Note the phases that happened within a step, and return their seconds."""
        total_s = 0.0
        for kind, since, until in phases:
            seconds = self._between(since, until)
            total_s += seconds
            if kind == CHECKPOINT:
                self.checkpoint_s += seconds
            else:
                self.evaluation_s += seconds
                self.evaluation_mode_s += seconds if kind == EVALUATION_MODE else 0.0
            if len(self._phases) < MAX_PHASES:
                at_s = since if isinstance(since, float) else self.clock.at_s(since)
                name = CHECKPOINT if kind == CHECKPOINT else EVALUATION
                self._phases.append((name, at_s - self.zero_s, at_s - self.zero_s + seconds))
        return total_s

    def _between(self, begin: Any, end: Any) -> Any:
        """Return the seconds between two moments; one of them may be from before the device was known."""
        if isinstance(begin, float) or isinstance(end, float):
            host = [moment if isinstance(moment, float) else moment[1] for moment in (begin, end)]
            return host[1] - host[0]
        return self.clock.seconds(begin, end)

    def _sums(self, works: list[BatchWork]) -> tuple[int, int, int | None, int | None]:
        total_samples = total_tokens = 0
        total_labels: int | None = 0
        total_padding: int | None = 0
        for work in works or (UNKNOWN,):
            samples, tokens, padding, labels = work.samples, work.tokens, work.padding, work.labels
            if samples is None:
                self.unknown_samples += 1
            else:
                total_samples += samples
                if samples in self.batches or len(self.batches) < MAX_SIZES:
                    self.batches[samples] += 1
            if tokens is None:
                self.unknown_tokens += 1
            else:
                self.known_tokens += 1
                total_tokens += tokens
            total_labels = None if total_labels is None or labels is None else total_labels + labels
            total_padding = None if total_padding is None or padding is None else total_padding + padding
        return total_samples, total_tokens, total_labels, total_padding


def find_cycle(keys: list[Any]) -> tuple[tuple[Any, ...], bool]:
    """Return the shortest cycle that the updates repeat, and whether they are irregular.

    If there is none, a step ends with the optimizer that steps least often.
    """
    for length in range(1, min(LONGEST_CYCLE, len(keys) // 2) + 1):
        if all(key == keys[at % length] for at, key in enumerate(keys)):
            return tuple(keys[:length]), False
    rarest = min(dict.fromkeys(keys), key=keys.count)
    # A program that ends early has not shown its cycle twice.
    return (rarest,), len(keys) > LONGEST_CYCLE
