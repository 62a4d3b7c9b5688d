"""Which updates make a step, and which batches belong to it; with scripted calls instead of torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from steelyard.contracts import sample_files
from steelyard.worker.wrap.inject.steelyard_observer import readback
from steelyard.worker.wrap.inject.steelyard_observer import training as observer
from steelyard.worker.wrap.inject.steelyard_observer.clocks import EventClock, HostClock
from steelyard.worker.wrap.inject.steelyard_observer.observed import Fetched, Observed
from steelyard.worker.wrap.inject.steelyard_observer.readback import read_rank
from steelyard.worker.wrap.inject.steelyard_observer.training import SeenTraining, StopLimits, find_cycle

INJECT = Path(observer.__file__).parents[1]


class Loader:
    """Stands for an iterator of a DataLoader."""


class Tensor:
    """A batch that has a number of samples."""

    ndim = 1

    def __init__(self, samples: int) -> None:
        self.shape = (samples,)


class Parameter:
    class device:  # noqa: N801
        type = "cpu"


class Optimizer:
    def __init__(self, parameter: Any = None) -> None:
        self.param_groups = [{"params": [parameter or Parameter()]}]


class Module:
    def __init__(self, parameter: Any) -> None:
        self.parameter, self.training = parameter, True

    def parameters(self) -> Any:
        return iter([self.parameter])


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SeenTraining:
    # What is read back from torch is tested with torch.
    monkeypatch.setattr(observer, "read_settings", lambda _: {})
    monkeypatch.setattr(observer, "read_rank", lambda _: {"rank": 0, "world": 1, "device": "cpu"})
    monkeypatch.setattr(observer, "clock_of", lambda _: HostClock())
    monkeypatch.setattr(observer, "RankFiles", Rows)
    return SeenTraining(str(tmp_path), 0.0, StopLimits())


class Rows:
    """Keeps the rows that would be written."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []

    @classmethod
    def claim(cls, _training: SeenTraining) -> Rows:
        return cls()

    def write_about(self, training: SeenTraining, settings: Any, *, final: bool = False) -> None:
        pass

    def write_phases(self, phases: Any) -> None:
        pass

    def write_rows(self, rows: list[tuple[Any, ...]]) -> None:
        self.rows += rows


def fetch(training: SeenTraining, loader: Any, samples: int = 8) -> None:
    training.fetched(loader, training.fetch_begins(loader), [Tensor(samples)])


def backward(training: SeenTraining, times: int = 1) -> None:
    for _ in range(times):
        training.backward_begins()
        training.backward_ends()


def update(training: SeenTraining, optimizer: Optimizer, closures: int = 0, accumulation: int = 1) -> None:
    """Make an update; optionally one that calls a closure of some backward passes several times."""
    found = training.update_begins(optimizer, (optimizer, lambda: backward(training, accumulation)), {})
    for _ in range(closures):
        found[0][1]()
    training.update_ends(optimizer, (), {})


class Events:
    """A device whose queue is captured into a graph at times; then no event may be asked for anything."""

    def __init__(self) -> None:
        self.captures = False

    def is_current_stream_capturing(self) -> bool:
        return self.captures

    def Event(self, *, enable_timing: bool) -> Any:  # noqa: N802 -- as torch has it
        assert enable_timing
        return self

    def record(self) -> None:
        assert not self.captures

    def query(self) -> bool:
        assert not self.captures
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, _: Any) -> float:
        return 1.0


def samples_of(training: SeenTraining) -> list[int]:
    training.finish()
    assert not training.failed
    return [row[3] for row in training.files.rows]


@pytest.mark.parametrize(
    ("updates", "cycle", "irregular"),
    [("aaaa", "a", False), ("abab", "ab", False), ("ddddgddddg", "ddddg", False), ("abcabcab", "abc", False),
     ("aabaaab", "b", False), ("aab" + 9 * "a" + "baaaab", "b", True)],
)  # fmt: skip
def test_the_cycle_of_the_optimizers(updates: str, cycle: str, irregular: bool) -> None:
    assert find_cycle(list(updates)) == (tuple(cycle), irregular)


def test_accumulation_and_a_loader_that_is_one_batch_ahead(training: SeenTraining) -> None:
    optimizer, loader = Optimizer(), Loader()
    training.created(optimizer)
    fetch(training, loader, 1)
    for step in range(3):
        for micro in range(4):
            if (step, micro) != (2, 3):
                fetch(training, loader, 2 + 4 * step + micro)
            backward(training)
        update(training, optimizer)
    assert samples_of(training) == [1 + 2 + 3 + 4, 5 + 6 + 7 + 8, 9 + 10 + 11 + 12]
    assert training.micro_batches == {4: 3}


@pytest.mark.parametrize("accumulation", [1, 4])
def test_a_closure_that_is_called_several_times_works_on_the_same_batches(
    training: SeenTraining, accumulation: int
) -> None:
    optimizer, loader = Optimizer(), Loader()
    training.created(optimizer)
    for _ in range(3):
        for _ in range(accumulation):
            fetch(training, loader)
        update(training, optimizer, closures=5, accumulation=accumulation)
    assert (samples_of(training), training.micro_batches) == ([8 * accumulation] * 3, {accumulation: 3})


def test_two_optimizers_make_one_step(training: SeenTraining) -> None:
    first, second, loader = Optimizer(), Optimizer(), Loader()
    training.created(first)
    training.created(second)
    for _ in range(40):
        fetch(training, loader)
        for _ in range(3):
            backward(training, 2)
            update(training, first)
        backward(training)
        update(training, second)
    assert samples_of(training) == [8] * 40
    assert (training.updates, training.micro_batches) == (160, {1: 40})


def test_an_optimizer_that_appears_later(training: SeenTraining) -> None:
    first, second = Optimizer(), Optimizer()
    training.created(first)
    for _ in range(10):
        backward(training)
        update(training, first)
    for _ in range(10):
        backward(training)
        update(training, first)
        backward(training)
        update(training, second)
    assert len(samples_of(training)) == 20


def test_updates_inside_a_backward_pass(training: SeenTraining) -> None:
    optimizers, loader = [Optimizer() for _ in range(3)], Loader()
    for optimizer in optimizers:
        training.created(optimizer)
    for _ in range(5):
        fetch(training, loader)
        training.backward_begins()
        for optimizer in optimizers:
            update(training, optimizer)
        training.backward_ends()
    assert (samples_of(training), training.updates) == ([8] * 5, 15)


def test_an_update_without_a_backward_pass_ends_no_step(training: SeenTraining) -> None:
    optimizer = Optimizer()
    training.created(optimizer)
    update(training, optimizer)
    backward(training)
    update(training, optimizer)
    update(training, optimizer)
    assert (len(samples_of(training)), training.phantom) == (1, 2)


def test_an_update_that_failed_does_not_hide_the_next(training: SeenTraining) -> None:
    optimizer = Optimizer()
    training.created(optimizer)
    backward(training)
    training.update_begins(optimizer, (), {})
    for _ in range(3):
        backward(training)
        update(training, optimizer)
    assert len(samples_of(training)) == 3


def test_batches_of_an_evaluation_are_not_trained_on(training: SeenTraining) -> None:
    parameter, loader, other = Parameter(), Loader(), Loader()
    optimizer, module = Optimizer(parameter), Module(parameter)
    training.created(optimizer)
    for _ in range(4):
        fetch(training, loader)
        backward(training)
        update(training, optimizer)
        training.mode_set(module, False)
        fetch(training, other, 1000)
        training.mode_set(module, True)
    assert samples_of(training) == [8] * 4
    assert training.evaluation_s > 0


def test_modules_that_are_trained_in_evaluation_mode(training: SeenTraining) -> None:
    """Frozen normalisation: the training goes on although a module was set to evaluation."""
    parameter, loader = Parameter(), Loader()
    optimizer, module = Optimizer(parameter), Module(parameter)
    training.created(optimizer)
    for _ in range(10):
        if not training.evaluating:
            module.training = False
            training.mode_set(module, False)
        fetch(training, loader)
        backward(training)
        update(training, optimizer)
    assert samples_of(training) == [8] * 10


class Part(Tensor):
    """A part of a batch of texts; it must not be read if it is on a device."""

    ndim = 2

    def __init__(self, entries: Any, *, is_cpu: bool = True) -> None:
        self.entries, self.is_cpu = np.array(entries), is_cpu
        self.shape, self._version = self.entries.shape, 0

    def numel(self) -> int:
        return self.entries.size

    def is_inference(self) -> bool:
        return False

    def numpy(self) -> Any:
        assert self.is_cpu, "the program waits for its device"
        return self.entries


def test_masks_and_labels_are_read_together_and_never_from_a_device(training: SeenTraining) -> None:
    optimizer, loader = Optimizer(), Loader()
    training.created(optimizer)
    mask, labels, changed = Part([[1, 1, 0], [1, 0, 0]]), Part([[-100, 5, -100], [7, -100, -100]]), Part([[1] * 3] * 2)
    batches = [
        {"input_ids": mask, "attention_mask": mask, "labels": labels},
        {"input_ids": mask, "attention_mask": Part([[1] * 3] * 2, is_cpu=False), "labels": labels},
        {"input_ids": mask, "attention_mask": mask, "labels": changed},
    ]
    for batch in batches:
        training.fetched(loader, training.fetch_begins(loader), batch)
        changed._version += 1
        backward(training)
        update(training, optimizer)
    assert samples_of(training) == [2, 2, 2]
    # Tokens, labels and padding.
    assert [row[4:7] for row in training.files.rows] == [(3, 2, 3), (6, 2, None), (3, None, 3)]


def test_the_end_after_a_number_of_steps(training: SeenTraining) -> None:
    optimizer = Optimizer()
    training.limits = StopLimits(max_steps=3)
    training.created(optimizer)

    def train() -> None:
        for _ in range(10):
            backward(training)
            update(training, optimizer)

    with pytest.raises(SystemExit) as ended:
        train()
    assert (ended.value.code, len(training.files.rows), training.stopped) == (0, 3, True)


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "4"}, (3, 4)),
        # A batch script, and a step.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}, (0, 1)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}, (1, 2)),
    ],
)
def test_the_rank_of_a_process(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], place: tuple[int, int]
) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = read_rank(SeenTraining(".", 0.0, StopLimits()))
    assert (found["rank"], found["world"]) == place


def test_a_rank_is_kept_when_the_program_leaves_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """As programs do at their end that were started without the variables of a launcher."""

    class Group:
        initialized = True
        is_available = staticmethod(lambda: True)
        get_rank = staticmethod(lambda: 1)
        get_world_size = staticmethod(lambda: 2)

        @classmethod
        def is_initialized(cls) -> bool:
            return cls.initialized

    monkeypatch.setattr(readback, "_torch", lambda: SimpleNamespace(distributed=Group))
    training = SeenTraining(".", 0.0, StopLimits())
    before = read_rank(training)
    Group.initialized = False
    assert read_rank(training) == before == {"rank": 1, "world": 2, "device": "cpu"}


class Epoch(Loader):
    """An iterator over some data."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset


def test_batches_of_data_that_nothing_is_trained_on_are_an_evaluation(training: SeenTraining) -> None:
    """Also without `eval()`, as where a copy of the model is evaluated."""
    train, test, optimizer = object(), object(), Optimizer()
    for _ in range(2):
        epoch = Epoch(train)
        for _ in range(3):
            fetch(training, epoch)
            backward(training)
            update(training, optimizer)
        for _ in range(4):
            fetch(training, held := Epoch(test), samples=100)
            assert training.evaluating
    fetch(training, Epoch(train))
    assert not training.evaluating
    assert not held._steelyard_batches  # type: ignore[attr-defined]
    assert samples_of(training) == [8] * 6
    assert training.evaluation_s > 0.0
    assert training.evaluation_mode_s == 0.0


def test_other_data_that_is_trained_on_is_no_evaluation(training: SeenTraining) -> None:
    """A second data set, which is new in the second half."""
    optimizer = Optimizer()
    for dataset in (object(), object()):
        epoch = Epoch(dataset)
        for _ in range(3):
            fetch(training, epoch)
            backward(training)
            update(training, optimizer)
            assert not training.evaluating
    assert samples_of(training) == [8] * 6
    assert training.evaluation_s == 0.0
    assert all(row[2] > 0.0 for row in training.files.rows)


def test_a_mode_alone_is_no_proof_of_an_evaluation(training: SeenTraining) -> None:
    loader, parameter = Loader(), Parameter()
    optimizer = Optimizer(parameter)
    for _ in range(3):
        training.mode_set(Module(parameter), False)
        training.mode_set(Module(parameter), True)
        fetch(training, loader)
        backward(training)
        update(training, optimizer)
    training.finish()
    assert training.evaluation_mode_s == training.evaluation_s
    assert training.evaluation_s > 0.0


def test_a_first_mark_without_a_known_beginning_ends_no_step(training: SeenTraining) -> None:
    for _ in range(6):
        training.marked()
    assert samples_of(training) == [0] * 5


def test_an_update_that_is_captured_is_no_step(training: SeenTraining, monkeypatch: pytest.MonkeyPatch) -> None:
    device, optimizer, loader = Events(), Optimizer(), Loader()
    monkeypatch.setattr(observer, "clock_of", lambda _: EventClock(device))
    for captures in (False, False, True, False):
        fetch(training, loader)
        backward(training)
        device.captures = captures
        update(training, optimizer)
        device.captures = False
    assert (training.steps, training.updates, training.captures) == (3, 3, 1)
    training.finish()
    assert not training.failed


def test_an_error_of_the_observer_does_not_reach_the_program(training: SeenTraining, tmp_path: Path) -> None:
    training.fired = 1  # type: ignore[assignment]
    optimizer = Optimizer()
    backward(training)
    update(training, optimizer)
    assert training.failed
    assert "TypeError" in (tmp_path / "observer.log").read_text()
    update(training, optimizer)


# -- functions that are observed


def test_an_observed_function_has_no_line_of_ours_in_its_traceback() -> None:
    seen: list[object] = []

    def divide(one: float, other: float = 0.0) -> float:
        return one / other

    class Divider:
        method = Observed(lambda _self, *words: divide(*words), seen.append, seen.append)

    observed = Observed(divide, seen.append, seen.append)
    divider = Divider()
    assert (observed(6.0, other=3.0), divider.method(6.0, 2.0)) == (2.0, 3.0)
    assert seen == [None, None, divider, divider]
    for call in (observed, divider.method):
        with pytest.raises(ZeroDivisionError) as caught:
            call(1.0)
        assert not any("observed" in str(entry.path) for entry in caught.traceback)
    assert len(seen) == 8


def test_an_error_after_an_observed_call_waits_for_the_next() -> None:
    """The program is told to end, or the user interrupts it."""

    def ends(_owner: object) -> None:
        raise KeyboardInterrupt

    observed = Observed(abs, lambda _: None, ends)
    assert observed(-1) == 1
    with pytest.raises(KeyboardInterrupt):
        observed(-1)


def test_an_observed_iterator_shows_what_it_gives() -> None:
    seen: list[tuple[object, ...]] = []

    class Numbers:
        left = 2

        def __iter__(self) -> Numbers:
            return self

        def __next__(self) -> int:
            if not self.left:
                raise StopIteration
            self.left -= 1
            return 8 // self.left

    def took(*told: Any) -> Any:
        seen.append(told)
        return told[-1]

    observed: Any = Numbers
    observed.__next__ = Fetched(Numbers.__next__, lambda _owner: "begin", took)
    numbers = Numbers()
    with pytest.raises(ZeroDivisionError) as caught:
        list(numbers)
    assert seen == [(numbers, "begin", 8)]
    assert not any("observed" in str(entry.path) for entry in caught.traceback)
    assert list(numbers) == []


# -- the way in, with a real interpreter

SCRIPT = "import sys; print(sys.path, [n for n in sys.modules if n.startswith('steelyard')])"


def start(tmp_path: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    raw = tmp_path / "raw"
    raw.mkdir(exist_ok=True)
    variables = {"STEELYARD_WRAP": str(raw), "STEELYARD_WRAP_ZERO": "0", "PYTHONPATH": str(INJECT), **more}
    return subprocess.run(
        [sys.executable, *words], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )


def test_a_process_reports_in_and_searches_modules_as_before(tmp_path: Path) -> None:
    word = '"\\\n\u00e4\U0001f600\udcff'
    done = start(tmp_path, "-c", SCRIPT, word)
    assert done.returncode == 0, done.stderr
    assert str(INJECT) not in done.stdout.split("]")[0]
    line = json.loads((tmp_path / "raw" / "processes-00000.jsonl").read_text())
    assert line["argv"][1:] == ["-c", SCRIPT[:200], word]


def test_a_sitecustomize_of_the_user_runs_too(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("mine = 'here'; print('own')\n")
    path = f"{INJECT}{os.pathsep}{tmp_path / 'own'}"
    done = start(tmp_path, "-c", "import sitecustomize; print(sitecustomize.mine)", PYTHONPATH=path)
    assert done.stdout == "own\nhere\n", done.stderr


def test_an_isolated_interpreter_does_not_report_in(tmp_path: Path) -> None:
    assert start(tmp_path, "-I", "-c", "print(1)").stdout == "1\n"
    assert list((tmp_path / "raw").iterdir()) == []


def test_without_a_place_to_write_the_program_runs_as_before(tmp_path: Path) -> None:
    done = start(tmp_path, "-c", "print(1)", STEELYARD_WRAP=str(tmp_path / "missing"))
    assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", 0)


def test_files_have_the_format_of_the_worker(tmp_path: Path) -> None:
    from steelyard.worker.wrap.inject.steelyard_observer.files import RankFiles

    files = RankFiles(str(tmp_path), 3)
    files.write_rows([(1.0, 0.5, 0.1, 8, 100, None, 7, 2), (1.5, 0.25, 0.0, 4, 50, 40, None, 1)])
    files.write_rows([(2.0, 0.5, 0.0, 8, 0, None, None, 1)])
    chunks = list(sample_files.read_chunks(tmp_path / "steps-00003.bin", 0, 100, check=True))
    assert [(chunk.rank, chunk.first_step, chunk.steps) for chunk in chunks] == [(3, 0, 2), (3, 2, 1)]
    assert chunks[0].column("samples").tolist() == [8, 4]
    work = next(sample_files.read_chunks(tmp_path / "work-00003.bin", 0, 2, check=True)).table
    np.testing.assert_array_equal(work[2:], [[2, 1], [np.nan, 40], [7, np.nan], [100, 50]])


def test_a_program_without_torch_marks_its_steps(tmp_path: Path) -> None:
    code = "import steelyard\nfor _ in range(7):\n    steelyard.mark_step()\nprint(steelyard.mark_step())"
    done = start(tmp_path, "-c", code)
    assert (done.stdout, done.stderr) == ("None\n", "")
    assert sum(place.steps for place in sample_files.chunk_places(tmp_path / "raw" / "steps-00000.bin")) == 7
    events = [json.loads(line) for line in (tmp_path / "raw" / "events-00000.jsonl").read_text().splitlines()]
    assert [event["steps"] for event in events if event["kind"] == "wrapped"][-1] == 7


def test_steps_are_marked_where_steelyard_is_not_installed(tmp_path: Path) -> None:
    code = "import steelyard\nfor _ in range(7):\n    steelyard.mark_step()\nprint(dir(steelyard)[-1])"
    # Without the folders of installed packages; ours hides no other sitecustomize, and says so as Python expects.
    done = start(tmp_path, "-S", "-c", f"try: import sitecustomize\nexcept ImportError: pass\n{code}")
    assert (done.stdout, done.stderr) == ("mark_step\n", "")
    assert sum(place.steps for place in sample_files.chunk_places(tmp_path / "raw" / "steps-00000.bin")) == 6
