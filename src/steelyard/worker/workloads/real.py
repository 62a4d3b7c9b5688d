"""Real data for one rank: examples as micro-batches, in an order determined by the seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from steelyard import hostinfo, plugins
from steelyard.contracts.observe import DataFacts
from steelyard.data.form import extent, shuffled
from steelyard.errors import InputError, Problem, SteelyardError
from steelyard.worker.workloads.feed import RefusedBatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from steelyard.contracts.spec import RunSpec
    from steelyard.data.form import Examples, Format, Split, Tokens
    from steelyard.worker.workloads.batches import Piece
    from steelyard.worker.workloads.bundle import Task

ROOT = Path("/")
# Seeds of an epoch's and a sample's random generator: numpy takes 32 bits per word.
WORD = 0xFFFFFFFF


class TokenWindows:
    """Tokens as examples of one length."""

    def __init__(self, tokens: Tokens, length: int) -> None:
        self._tokens = tokens
        self._length = length
        self.classes = None

    def __len__(self) -> int:
        return self._tokens.count(self._length)

    def __getitem__(self, number: int) -> Any:
        return self._tokens.window(number, self._length)

    def order(self, source: random.Random) -> Sequence[int]:
        """Return a random order: windows are independent of each other."""
        return shuffled(len(self), source)

    def files(self) -> Iterable[Path]:
        """Return the files of the token sequence."""
        return self._tokens.files()


@dataclass(frozen=True)
class RealData:
    """A data set as one workload reads it."""

    form: Format
    root: Path
    task: Task
    train: Examples
    evaluation: Examples | None
    """Opened only if quality is measured."""

    def facts(self) -> DataFacts:
        """Return facts on the data. Looks at every file's size: once per run, on one rank."""
        files = list(self.train.files())
        if self.evaluation is not None:
            files += self.evaluation.files()
        measured = extent(self.root, files)
        memory = host_memory()
        mount = hostinfo.mount_of(self.root.resolve(), ROOT)
        return DataFacts(
            format=self.form.name,
            path=str(self.root),
            samples=len(self.train),
            evaluation_samples=None if self.evaluation is None else len(self.evaluation),
            files=measured.files,
            size_bytes=float(measured.size_bytes),
            identity=measured.identity,
            filesystem="unknown" if mount is None else mount.kind,
            memory_bytes=memory,
            fits_in_memory=None if memory is None else measured.size_bytes < memory,
        )


def open_format(spec: RunSpec) -> tuple[Format, Examples, Examples | None]:
    """Open the data set's splits before the model is built; tokens come as one long sequence."""
    assert spec.data is not None
    form: Format = plugins.load("data", spec.data.format)
    root = Path(spec.data.path)
    return form, _opened(form, root, "train"), _opened(form, root, "evaluation") if spec.quality is not None else None


def fit(form: Format, train: Any, evaluation: Any, task: Task | None, spec: RunSpec) -> RealData:
    """Return the data in the form of the workload's task; InputError if they do not match."""
    assert spec.data is not None
    root = Path(spec.data.path)
    if task is None or task.kind != form.kind:
        takes = "only synthetic data" if task is None else f"data of kind {task.kind}"
        formats = [name for name in plugins.BUILTIN["data"] if task and plugins.load("data", name).kind == task.kind]
        valid = "leave --data out" if task is None else ", ".join(formats)
        raise InputError(
            f"the workload {spec.workload} takes {takes}",
            problems=(Problem("data", f"{form.name} has data of kind {form.kind}", valid),),
        )
    if task.open is not None:
        task = task.open(root)
    if task.length is not None:
        train = TokenWindows(train, task.length)
        evaluation = None if evaluation is None else TokenWindows(evaluation, task.length)
    for name, split in (("training", train), ("evaluation", evaluation)):
        if split is not None and len(split) == 0:
            length = "" if task.length is None else f" of {task.length} tokens"
            raise InputError(f"{root} has no examples{length} in its {name} split")
    return RealData(form, root, task, train, evaluation)


def with_epochs(spec: RunSpec, data: RealData) -> RunSpec:
    """Return the spec with the size of the data set as its epoch, unless the spec has one."""
    if spec.epoch_samples is not None:
        return spec
    try:
        return replace(spec, epoch_samples=len(data.train))
    except ValueError as error:
        raise InputError(f"{data.root}: {error}", next_step="use a smaller --batch, or --last-batch pad") from None


class TrainingSplit:
    """The training split in random order, reshuffled each epoch; all ranks share one order and take turns in it.

    Inference reads it without augmentation.
    """

    learnable = True

    def __init__(self, data: RealData, spec: RunSpec) -> None:
        self.describes = data.form.name
        self._examples = data.train
        self._task = data.task
        self._augments = spec.mode != "infer"
        self._seed = spec.seed
        self._count = spec.epoch_samples or len(data.train)
        self._epoch = -1
        self._order: Sequence[int] = ()

    def __call__(self, number: int, piece: Piece) -> tuple[Any, Any]:  # noqa: ARG002 -- the piece is enough
        """Return the samples at a position in an epoch, each augmented with its own random generator."""
        if piece.epoch != self._epoch:
            self._order = self._examples.order(random.Random(f"{self._seed}:{piece.epoch}"))
            self._epoch = piece.epoch
        samples = []
        for place in range(piece.start, piece.start + piece.samples):
            place %= self._count
            source = np.random.default_rng((self._seed & WORD, self._seed >> 32, piece.epoch, place))
            example = self._examples[int(self._order[place % len(self._order)])]
            samples.append(self._task.prepare(example, self._augments, source))
        return self._task.collate(samples)


class EvaluationSplit(torch.utils.data.IterableDataset[Any]):
    """One rank's share of the evaluation split: every n-th example for n ranks, always the same ones, not augmented.

    Every rank gets the same number of batches, because some models wait for all ranks in a forward pass; a rank without
    examples gets an earlier batch again, which is not counted.
    """

    def __init__(self, data: RealData, spec: RunSpec, rank: int) -> None:
        assert data.evaluation is not None
        assert spec.quality is not None
        self._examples = data.evaluation
        self._task = data.task
        self._batch = spec.batch
        self._rank, self._ranks = rank, spec.devices
        self.samples = min(len(data.evaluation), spec.quality.samples or len(data.evaluation))
        self._batches = -(-self.samples // (spec.batch * spec.devices))

    def __iter__(self) -> Any:
        place = torch.utils.data.get_worker_info()
        first, stride = (0, 1) if place is None else (place.id, place.num_workers)
        return (self._made(number) for number in range(first, self._batches, stride))

    def _made(self, number: int) -> Any:
        own = range(self._rank, self.samples, self._ranks)
        chosen = own[number * self._batch : (number + 1) * self._batch]
        counts = bool(chosen)
        source = np.random.default_rng(0)
        try:
            samples = [
                self._task.prepare(self._examples[index], False, source)
                for index in chosen or own[: self._batch] or [0]
            ]
            return (*self._task.collate(samples), counts)
        except SteelyardError as error:
            return RefusedBatch(str(error))


def host_memory() -> float | None:
    """Return the host memory this job may use: all of it, or the control group's limit."""
    limit = hostinfo.memory_limit(hostinfo.control_groups("memory", ROOT))
    total = hostinfo.memory_table(ROOT).get("MemTotal")
    known = [float(value) for value in (limit, total) if value is not None]
    return min(known) if known else None


def _opened(form: Format, root: Path, split: Split) -> Examples:
    if not root.is_dir():
        raise InputError(f"{root} is not a folder", next_step=f"steelyard data show {form.name}")
    return form.open(root, split)
