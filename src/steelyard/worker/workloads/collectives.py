"""Ceilings of the links between devices: one collective of a given size, whose correct result is known.

Sizes and bus factors are those of nccl-tests (doc/PERFORMANCE.md there): the message is what one rank sends in an
all-reduce, and the total that is gathered or scattered in the other two. Algorithm bandwidth is message size divided by
time. Multiplied by the bus factor it can be compared with the bandwidth of the busiest link.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from steelyard.errors import InputError, Problem
from steelyard.worker.workloads.about import About, about
from steelyard.worker.workloads.ceiling import Ceiling, Work, elements_of
from steelyard.worker.workloads.ceilings import FLOAT_BYTES, PERIOD, differing, pattern

if TYPE_CHECKING:
    from collections.abc import Callable

# Memory for results that wait to be checked; each has its own place, so that none is overwritten unchecked. More of
# them allow longer blocks. On an accelerator: an eighth of the free memory, up to a limit.
KEPT_BYTES, KEPT_BYTES_ACCELERATOR, KEPT_SHARE = 1 << 30, 4 << 30, 8
MAX_KEPT = 1024
# Integers up to here are exact in float32, and so are sums below it.
EXACT = 1 << 24
# Used if there are too many ranks for exact sums of the long pattern.
SHORT_PERIOD = 251


def _facts(title: str) -> About:
    return About(family="ceilings", title=title, modes=("ceiling",), reduced={"size_mb": 0.1})


@about(_facts("all-reduce"))
def all_reduce(size_mb: float = 64) -> Ceiling:
    """Sum `size_mb` megabytes of float32 over all ranks, with the result on every rank."""
    return _ceiling(_AllReduce, size_mb)


@about(_facts("all-gather"))
def all_gather(size_mb: float = 64) -> Ceiling:
    """Gather the parts of all ranks, `size_mb` megabytes of float32 in total, on every rank."""
    return _ceiling(_AllGather, size_mb)


@about(_facts("reduce-scatter"))
def reduce_scatter(size_mb: float = 64) -> Ceiling:
    """Sum `size_mb` megabytes of float32 over all ranks, with one part of the result on each rank."""
    return _ceiling(_ReduceScatter, size_mb)


def _ceiling(kind: type[_Collective], size_mb: float) -> Ceiling:
    elements_of(size_mb, FLOAT_BYTES)
    return Ceiling(lambda device, _number_format, repeats: kind(device, size_mb, repeats))


class _Collective(Work):
    """Common part of the three: places for results, the expected result, and the check."""

    def __init__(self, device: torch.device, size_mb: float, repeats: int) -> None:
        self.ranks = dist.get_world_size() if dist.is_initialized() else 1
        if self.ranks < 2:
            problem = Problem("ranks", f"is {self.ranks}", "at least 2")
            raise InputError("a collective needs at least 2 ranks", problems=(problem,), next_step="--nproc 2")
        self.rank = dist.get_rank()
        self._period = PERIOD if self.ranks * PERIOD <= EXACT else SHORT_PERIOD
        self._device = device
        self._elements = elements_of(size_mb, FLOAT_BYTES, multiple=self.ranks)
        self.moved_bytes = float(self._elements * FLOAT_BYTES)
        self._source = self.own()
        self._expected = self.expect()
        free = getattr(getattr(torch, device.type, None), "mem_get_info", None)
        kept_bytes = KEPT_BYTES if free is None else min(KEPT_BYTES_ACCELERATOR, int(free()[0]) // KEPT_SHARE)
        allowed = kept_bytes // (len(self._expected) * FLOAT_BYTES)
        self.kept_results = max(repeats, min(MAX_KEPT, allowed) // repeats * repeats)
        self._results = torch.empty(self.kept_results, len(self._expected), device=device)
        self._places = list(self._results)
        self._used = self.kept_results
        self._put_back()
        self.step = self._step
        self._try()

    def own(self) -> torch.Tensor:
        """Return what this rank sends."""
        return self.given_by(self.rank, 0, self._elements)

    def given_by(self, rank: int, start: int, elements: int) -> torch.Tensor:
        """Return a part of what a rank sends."""
        return pattern(elements, self._device, rank, start, self._period)

    def sum_of_all(self, start: int, elements: int) -> torch.Tensor:
        """Return a part of the sum over the ranks; ranks that are a period apart send the same."""
        total = torch.zeros(elements, device=self._device)
        for rank in range(min(self.ranks, self._period)):
            total += self.given_by(rank, start, elements) * len(range(rank, self.ranks, self._period))
        return total

    def expect(self) -> torch.Tensor:
        """Return what this rank should receive."""
        raise NotImplementedError

    def exchange(self, result: torch.Tensor) -> object:
        """Run the collective."""
        raise NotImplementedError

    def _step(self) -> None:
        place = self._places[self._used % len(self._places)]
        self._used += 1
        self.exchange(place)

    def _put_back(self) -> None:
        """Overwrite the results, so that a missing exchange is detected."""
        self._results[: self._used].fill_(math.nan)
        self._used = 0

    def _try(self) -> None:
        """Raise InputError if the backend does not support the collective."""
        try:
            self.step()
        except (RuntimeError, NotImplementedError) as error:
            text = " ".join(str(error).split())[:300]
            if not any(word in text for word in ("support", "implement")):
                raise
            raise InputError(
                f"the backend {dist.get_backend()!r} does not support this collective on {self._device.type!r}: {text}",
                next_step="use another --backend, or all-reduce",
            ) from None
        self._put_back()

    def fault(self) -> str | None:
        """Return the first element of the first result that is not exactly as expected."""
        seen = min(self._used, len(self._places))
        expected = self._expected
        found = None
        if not torch.equal(self._results[:seen], expected.expand(seen, -1)):
            results = enumerate(self._places[:seen])
            number, found = next((n, wrong) for n, result in results if (wrong := differing(result, expected)))
            found += f", in result {number + 1} of {seen} since the last check"
        self._put_back()
        return found

    def effective(self) -> dict[str, str]:
        """Return size, format and number of kept results."""
        return {
            "message_bytes": str(int(self.moved_bytes or 0)),
            "message_dtype": str(self._results.dtype).removeprefix("torch."),
            "results_kept": str(self.kept_results),
        }


class _AllReduce(_Collective):
    def __init__(self, device: torch.device, size_mb: float, repeats: int) -> None:
        super().__init__(device, size_mb, repeats)
        self.bus_factor = 2 * (self.ranks - 1) / self.ranks

    def expect(self) -> torch.Tensor:
        return self.sum_of_all(0, self._elements)

    def exchange(self, result: torch.Tensor) -> object:
        return dist.all_reduce(result)

    def _put_back(self) -> None:
        """Restore the input of every place, which an all-reduce overwrites with its result."""
        self._results[: self._used].copy_(self._source.expand(min(self._used, len(self._places)), -1))
        self._used = 0


class _AllGather(_Collective):
    def __init__(self, device: torch.device, size_mb: float, repeats: int) -> None:
        super().__init__(device, size_mb, repeats)
        self.bus_factor = (self.ranks - 1) / self.ranks

    def own(self) -> torch.Tensor:
        return self.given_by(self.rank, 0, self._elements // self.ranks)

    def expect(self) -> torch.Tensor:
        part = self._elements // self.ranks
        return torch.cat([self.given_by(rank, 0, part) for rank in range(self.ranks)])

    def exchange(self, result: torch.Tensor) -> object:
        return dist.all_gather_into_tensor(result, self._source)


class _ReduceScatter(_Collective):
    def __init__(self, device: torch.device, size_mb: float, repeats: int) -> None:
        # Newer releases have another name for it and warn about this one.
        name = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
        self._reduce_scatter: Callable[..., Any] = getattr(dist, name)
        super().__init__(device, size_mb, repeats)
        self.bus_factor = (self.ranks - 1) / self.ranks

    def expect(self) -> torch.Tensor:
        part = self._elements // self.ranks
        return self.sum_of_all(self.rank * part, part)

    def exchange(self, result: torch.Tensor) -> object:
        return self._reduce_scatter(result, self._source)
