"""Batches for one rank: made once on the device, or on the host for every step and moved. Knows no model."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from steelyard.worker.workloads.batches import Batch, batches
from steelyard.worker.workloads.recipe import each_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.spec import RunSpec
    from steelyard.worker.workloads.recipe import MakeBatch

# torch's generator on the CPU takes the low 32 bits of a seed and no more.
SEEDS = 1 << 32
# Odd, and near the golden section of all seeds: the sequences of any number of ranks begin far apart.
RANK_STRIDE = 0x9E3779B9


def batch_seed(seed: int, rank: int, number: int) -> int:
    """The seed of a rank's batch, so that anybody can make the same data."""
    return (seed + rank * RANK_STRIDE + number) % SEEDS


class Stream(IterableDataset[Any]):
    """A rank's batches without end, dealt over loader processes in turn, so that their order stays."""

    def __init__(self, make: MakeBatch, samples: int, seed: int, rank: int) -> None:
        self._make = make
        self._samples = samples
        self._seed = seed
        self._rank = rank

    def batch(self, number: int) -> tuple[Any, Any]:
        """One micro-batch by its number."""
        generator = torch.Generator().manual_seed(batch_seed(self._seed, self._rank, number))
        return self._make(self._samples, generator)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        place = get_worker_info()
        first, stride = (0, 1) if place is None else (place.id, place.num_workers)
        return (self.batch(number) for number in itertools.count(first, stride))


class Feed:
    """What a step takes: its count of samples, and its micro-batches on the device."""

    def __init__(self, spec: RunSpec, rank: int, device: torch.device, make: MakeBatch) -> None:
        self._micro = spec.batch
        self._whole = spec.batch * spec.accumulation
        self._plan = batches(spec, rank)
        self.device = device
        self._format = torch.channels_last if spec.channels_last else None
        stream = Stream(make, spec.batch, spec.seed, rank)
        self._loader: DataLoader[Any] | None = None
        self._pin = spec.loader.pin_memory and device.type != "cpu"
        # Known from the first batch: not every backend does what its loader is told. Only pinned memory may be copied
        # from while the host goes on.
        self._pinned: bool | None = None
        self._micro_batches: list[tuple[Any, Any]] = []
        if spec.loader.place == "device":
            self._micro_batches = [self._move(stream.batch(0))] * spec.accumulation
        else:
            workers = spec.loader.workers
            self._loader = DataLoader(
                stream,
                batch_size=None,
                num_workers=workers,
                prefetch_factor=spec.loader.prefetch if workers else None,
                pin_memory=self._pin,
                persistent_workers=workers > 0,
                # A loader draws a seed for its processes; from the model's randomness it would change the training.
                generator=torch.Generator(),
                # The other ways to start a process cannot hand over a batch maker that is a closure.
                multiprocessing_context="fork" if workers else None,
            )
            self._iterator = iter(self._loader)

    def take(self) -> tuple[Batch, list[tuple[Any, Any]]]:
        """The next step's samples; waits for the loader."""
        batch = next(self._plan)
        if self._loader is None:
            pieces = self._micro_batches
        else:
            needed = -(-batch.computed // self._micro)
            made = [next(self._iterator) for _ in range(needed)]
            if self._pinned is None:
                self._pinned = self._pin and _is_pinned(made[0])
            pieces = [self._move(piece) for piece in made]
        if batch.computed != self._whole:
            pieces = self._cut(pieces, batch.computed)
        return batch, pieces

    def example(self) -> tuple[Any, Any]:
        """A micro-batch that belongs to no step."""
        return self._micro_batches[0] if self._loader is None else self._move(self._loader.dataset.batch(0))  # type: ignore[attr-defined]

    def close(self) -> None:
        """End the loader's processes."""
        if self._loader is not None:
            del self._iterator
            self._loader = None

    def effective(self) -> dict[str, str]:
        """As the loader says it."""
        if self._loader is None:
            return {"data": "synthetic, on the device"}
        loader = self._loader
        return {
            "data": "synthetic, on the host",
            "loader_workers": str(loader.num_workers),
            "prefetch": str(loader.prefetch_factor),
            "pin_memory": str(bool(self._pinned)).lower(),
        }

    def _cut(self, pieces: list[tuple[Any, Any]], samples: int) -> list[tuple[Any, Any]]:
        """The micro-batches of a last, smaller step."""
        whole, rest = divmod(samples, self._micro)
        last = [each_tensor(pieces[whole], lambda tensor: tensor[:rest])] if rest else []
        return [*pieces[:whole], *last]

    def _move(self, data: Any) -> Any:
        return each_tensor(data, self._to_device)

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._format is not None and tensor.dim() == 4:
            return tensor.to(self.device, non_blocking=bool(self._pinned), memory_format=self._format)
        return tensor.to(self.device, non_blocking=bool(self._pinned))


def _is_pinned(data: Any) -> bool:
    """Whether the first tensor of a batch lies in pinned memory."""
    while isinstance(data, (tuple, list, dict)) and data:
        data = next(iter(data.values())) if isinstance(data, dict) else data[0]
    return isinstance(data, torch.Tensor) and data.is_pinned()
