"""Ceilings of the links between devices: one collective by its size. Every result is known beforehand. Times nothing.

Sizes and bus factors are those of nccl-tests (doc/PERFORMANCE.md there): the message is what one rank sends in an
all-reduce, and the whole that is gathered or scattered in the other two. Bandwidth of the algorithm is message over
time; times the factor it is what crosses the busiest link, and can be held against the link's own.
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

# Memory for results that wait to be checked; each takes a place of its own, so that none is overwritten unseen.
# More of them make longer blocks. Of an accelerator's memory they take an eighth of what is free, up to a limit.
KEPT_BYTES, KEPT_BYTES_ACCELERATOR, KEPT_SHARE = 1 << 30, 4 << 30, 8
MAX_KEPT = 1024
# Integers up to here are exact in float32, and so are sums that stay below.
EXACT = 1 << 24
# For so many ranks that the sum of the long pattern would not be exact.
SHORT_PERIOD = 251


def _facts(title: str) -> About:
    return About(family="ceilings", title=title, modes=("ceiling",), reduced={"size_mb": 0.1})


@about(_facts("all-reduce"))
def all_reduce(size_mb: float = 64) -> Ceiling:
    """The sum over all ranks of `size_mb` megabytes of float32, on every rank."""
    return _ceiling(_AllReduce, size_mb)


@about(_facts("all-gather"))
def all_gather(size_mb: float = 64) -> Ceiling:
    """All ranks' parts of `size_mb` megabytes of float32 in all, on every rank."""
    return _ceiling(_AllGather, size_mb)


@about(_facts("reduce-scatter"))
def reduce_scatter(size_mb: float = 64) -> Ceiling:
    """The sum over all ranks of `size_mb` megabytes of float32, each rank with its own part of it."""
    return _ceiling(_ReduceScatter, size_mb)


def _ceiling(kind: type[_Collective], size_mb: float) -> Ceiling:
    elements_of(size_mb, FLOAT_BYTES)
    return Ceiling(lambda device, _number_format, repeats: kind(device, size_mb, repeats))


class _Collective(Work):
    """What the three share: places for results, the expected one, and the look at them."""

    def __init__(self, device: torch.device, size_mb: float, repeats: int) -> None:
        self.ranks = dist.get_world_size() if dist.is_initialized() else 1
        if self.ranks < 2:
            problem = Problem("ranks", f"is {self.ranks}", "at least 2")
            raise InputError("a collective needs somebody to exchange with", problems=(problem,), next_step="--nproc 2")
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
        """What this rank gives."""
        return self.given_by(self.rank, 0, self._elements)

    def given_by(self, rank: int, start: int, elements: int) -> torch.Tensor:
        """Part of what a rank gives."""
        return pattern(elements, self._device, rank, start, self._period)

    def sum_of_all(self, start: int, elements: int) -> torch.Tensor:
        """Part of the sum over the ranks; those that are a period apart give the same."""
        total = torch.zeros(elements, device=self._device)
        for rank in range(min(self.ranks, self._period)):
            total += self.given_by(rank, start, elements) * len(range(rank, self.ranks, self._period))
        return total

    def expect(self) -> torch.Tensor:
        """What this rank should get."""
        raise NotImplementedError

    def exchange(self, result: torch.Tensor) -> object:
        """The collective itself."""
        raise NotImplementedError

    def _step(self) -> None:
        place = self._places[self._used % len(self._places)]
        self._used += 1
        self.exchange(place)

    def _put_back(self) -> None:
        """Spoil the results, so that what is not exchanged is seen."""
        self._results[: self._used].fill_(math.nan)
        self._used = 0

    def _try(self) -> None:
        """Refuse what the backend has not."""
        try:
            self.step()
        except (RuntimeError, NotImplementedError) as error:
            text = " ".join(str(error).split())[:300]
            if not any(word in text for word in ("support", "implement")):
                raise
            raise InputError(
                f"the backend {dist.get_backend()!r} has no such collective on {self._device.type!r}: {text}",
                next_step="use another --backend, or all-reduce",
            ) from None
        self._put_back()

    def fault(self) -> str | None:
        """The first element of the first result that is not exactly as expected."""
        seen = min(self._used, len(self._places))
        expected = self._expected
        found = None
        if not torch.equal(self._results[:seen], expected.expand(seen, -1)):
            results = enumerate(self._places[:seen])
            number, found = next((n, wrong) for n, result in results if (wrong := differing(result, expected)))
            found += f", in result {number + 1} of {seen} since the last look"
        self._put_back()
        return found

    def effective(self) -> dict[str, str]:
        """What is exchanged, by what."""
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
        """The result takes the place of what is given: every place gets its input again."""
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
        # Newer releases have another name for it, and warn of this one.
        name = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
        self._reduce_scatter: Callable[..., Any] = getattr(dist, name)
        super().__init__(device, size_mb, repeats)
        self.bus_factor = (self.ranks - 1) / self.ranks

    def expect(self) -> torch.Tensor:
        part = self._elements // self.ranks
        return self.sum_of_all(self.rank * part, part)

    def exchange(self, result: torch.Tensor) -> object:
        return self._reduce_scatter(result, self._source)
