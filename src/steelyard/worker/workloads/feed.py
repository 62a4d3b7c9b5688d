"""Batches for one rank: a few made on the device that take turns, or loaded on the host for every step and copied."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from steelyard.errors import DamagedDataError, SteelyardError
from steelyard.worker.workloads.batches import Batch, Piece, batches, pieces, replica_of, share
from steelyard.worker.workloads.bundle import each_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.spec import RunSpec
    from steelyard.worker.workloads.bundle import MakeBatch

# torch's CPU generator uses only the low 32 bits of a seed.
SEEDS = 1 << 32
# Odd, and near the golden ratio of the seed range: the sequences of any number of ranks start far apart.
RANK_STRIDE = 0x9E3779B9
BATCHES = 4
"""Micro-batches on the device that take turns. A single one could stay in a cache."""
MEMORY_SHARE = 0.02
"""The most of a device's memory that they may take together; at least one is made."""


def batch_seed(seed: int, rank: int, number: int) -> int:
    """Return the seed of a rank's batch, so that the data is reproducible."""
    return (seed + rank * RANK_STRIDE + number) % SEEDS


class Read(Protocol):
    """Source of micro-batches. Also called in DataLoader workers."""

    describes: str
    """What it reads, for the record."""
    learnable: bool

    def __call__(self, number: int, piece: Piece) -> tuple[Any, Any]:
        """Return the rank's micro-batch `number`, at position `piece` of the epoch: inputs and target on the CPU."""


class Synthetic:
    """Micro-batches from a workload's batch maker, each from its own seed."""

    describes = "synthetic"
    learnable = False

    def __init__(self, make: MakeBatch, seed: int, rank: int) -> None:
        self._make = make
        self._seed = seed
        self._rank = rank

    def __call__(self, number: int, piece: Piece) -> tuple[Any, Any]:
        """Return the rank's micro-batch `number`."""
        generator = torch.Generator().manual_seed(batch_seed(self._seed, self._rank, number))
        return self._make(piece.samples, generator)


@dataclass(frozen=True)
class RefusedBatch:
    """Replaces a micro-batch that failed, with the reason. An exception would be wrapped in a DataLoader traceback."""

    reason: str


class Stream(IterableDataset[Any]):
    """A rank's endless micro-batches, distributed over DataLoader workers in turn, so that their order is kept."""

    def __init__(self, read: Read, spec: RunSpec, rank: int) -> None:
        self.read = read
        self._spec = spec
        self._rank = rank

    def __iter__(self) -> Iterator[Any]:
        place = get_worker_info()
        first, stride = (0, 1) if place is None else (place.id, place.num_workers)
        for number, piece in itertools.islice(enumerate(pieces(self._spec, self._rank)), first, None, stride):
            try:
                made = self.read(number, piece)
            except SteelyardError as error:
                yield RefusedBatch(str(error))
                return
            yield made


class Feed:
    """What a step takes: its number of samples, and its micro-batches on the device."""

    def __init__(
        self,
        spec: RunSpec,
        rank: int,
        device: torch.device,
        make: MakeBatch,
        real: Read | None = None,
        memory: float | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """`memory`: the size of the device's memory in bytes; None: the host's."""
        self._micro = spec.batch
        self._plan = batches(spec, rank)
        self.device = device
        self._dtype = dtype
        self._format = torch.channels_last if spec.channels_last else None
        self._read = real or Synthetic(make, spec.seed, replica_of(spec, rank))
        self._loader: DataLoader[Any] | None = None
        self._pin = spec.loader.pin_memory is not False and device.type != "cpu"
        # Known from the first batch: not every backend pins when asked to. Only copies from pinned memory can be
        # asynchronous.
        self._pinned: bool | None = None
        self._turns: dict[int, Iterator[tuple[Any, Any]]] = {}
        self.references: frozenset[int] = frozenset()
        """`id` of the inputs of one micro-batch of each size, if they repeat: its loss shows the training."""
        self._first: tuple[Any, Any] | None = None
        self._count = 0
        if spec.loader.place == "device":
            sizes = [spec.batch]
            if spec.epoch_samples is not None and spec.last_batch == "keep":
                # The last micro-batch of an epoch may be smaller than the others.
                last = share(spec.epoch_samples % spec.step_samples, replica_of(spec, rank), spec.replicas)
                sizes += {last % spec.batch} - {0, spec.batch}
            self._first = self._made(0, spec.batch)
            self._count = rotation(self._first, memory)
            made = {size: self._in_turn(size) for size in sizes}
            self.references = frozenset(id(entries[0][0]) for entries in made.values())
            self._turns = {size: itertools.cycle(entries) for size, entries in made.items()}
        else:
            self._loader = loader_of(Stream(self._read, spec, rank), spec, pin=self._pin)
            self._iterator = iter(self._loader)
        self.learnable = self._read.learnable or self._loader is None
        """Whether the loss can fall: not with random labels, unless they repeat."""

    def _in_turn(self, size: int) -> list[tuple[Any, Any]]:
        """Return the micro-batches of a size that take turns: those with the first numbers."""
        first = self._first if self._first is not None and size == self._micro else self._made(0, size)
        return [first, *(self._made(number, size) for number in range(1, self._count))]

    def _made(self, number: int, size: int) -> tuple[Any, Any]:
        return self._move(self._read(number, Piece(0, 0, size)))  # type: ignore[no-any-return]

    def take(self) -> tuple[Batch, list[tuple[Any, Any]]]:
        """Return the next step's samples; waits for the loader."""
        batch = next(self._plan)
        if self._loader is None:
            return batch, self._part(batch.computed)
        made = [next(self._iterator) for _ in range(-(-batch.computed // self._micro))]
        if self._pinned is None:
            self._pinned = self._pin and _is_pinned(made[0])
        return batch, [self._move(received(piece)) for piece in made]

    def _part(self, samples: int) -> list[tuple[Any, Any]]:
        """Return the next micro-batches on the device for a step with this many samples."""
        whole, rest = divmod(samples, self._micro)
        turns = self._turns[self._micro]
        return [next(turns) for _ in range(whole)] + ([next(self._turns[rest])] if rest else [])

    def example(self) -> tuple[Any, Any]:
        """Return a micro-batch that belongs to no step."""
        return self._first if self._first is not None else self._made(0, self._micro)

    def close(self) -> None:
        """Stop the DataLoader workers."""
        if self._loader is not None:
            del self._iterator
            self._loader = None

    def effective(self) -> dict[str, str]:
        """Return the settings of the loader."""
        if self._loader is None:
            return {"data": f"{self._read.describes}, on the device", "batches_in_turn": str(self._count)}
        loader = self._loader
        return {
            "data": f"{self._read.describes}, on the host",
            "loader.workers": str(loader.num_workers),
            "loader.prefetch": str(loader.prefetch_factor),
            "loader.pin_memory": str(bool(self._pinned)).lower(),
        }

    def _move(self, data: Any) -> Any:
        return each_tensor(data, self._to_device)

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._format is not None and tensor.dim() == 4:
            tensor = tensor.to(self.device, non_blocking=bool(self._pinned), memory_format=self._format)
        else:
            tensor = tensor.to(self.device, non_blocking=bool(self._pinned))
        # On the device: cast on the host, a copy would not be asynchronous.
        return tensor.to(self._dtype) if self._dtype is not None and tensor.is_floating_point() else tensor


def rotation(batch: Any, memory: float | None) -> int:
    """Return how many micro-batches of this size take turns on the device."""
    sizes: list[int] = []
    each_tensor(batch, lambda tensor: sizes.append(tensor.nbytes) or tensor)  # type: ignore[func-returns-value]
    room = memory or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(BATCHES, int(MEMORY_SHARE * room / max(1, sum(sizes)))))


def loader_of(stream: IterableDataset[Any], spec: RunSpec, *, pin: bool) -> DataLoader[Any]:
    """Return a DataLoader with the settings of the spec, for a stream of whole micro-batches."""
    workers = spec.loader.workers
    return DataLoader(
        stream,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=spec.loader.prefetch if workers else None,
        pin_memory=pin,
        persistent_workers=workers > 0,
        # A DataLoader draws a seed for its workers; from the global generator this would change the training.
        generator=torch.Generator(),
        # Other start methods cannot pass a batch maker that is a closure.
        multiprocessing_context="fork" if workers else None,
    )


def received(made: Any) -> Any:
    """Return a micro-batch from a loader; DamagedDataError if it could not be loaded."""
    if isinstance(made, RefusedBatch):
        raise DamagedDataError(made.reason)
    return made


def _is_pinned(data: Any) -> bool:
    """Whether the first tensor of a batch is in pinned memory."""
    while isinstance(data, (tuple, list, dict)) and data:
        data = next(iter(data.values())) if isinstance(data, dict) else data[0]
    return isinstance(data, torch.Tensor) and data.is_pinned()
