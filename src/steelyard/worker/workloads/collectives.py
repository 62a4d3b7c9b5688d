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
FORMATS = ("fp32", "fp16", "bf16")
EXACT = {torch.float32: 1 << 24, torch.float16: 1 << 11, torch.bfloat16: 1 << 8}
"""Integers up to here are exact in these formats, and so are sums up to here, in every order."""
PERIODS = {torch.float32: PERIOD, torch.float16: 251, torch.bfloat16: 31}
"""The numbers that are sent go from 1 to this prime. The sum of any eight of them is exact, or of any 2048 in fp32."""


def _facts(title: str) -> About:
    return About(family="ceilings", title=title, modes=("ceiling",), reduced={"size_mb": 0.1})


@about(_facts("all-reduce"))
def all_reduce(size_mb: float = 64) -> Ceiling:
    """Sum `size_mb` megabytes over all ranks, with the result on every rank; fp32, fp16 or bf16."""
    return _ceiling(_AllReduce, size_mb)


@about(_facts("all-gather"))
def all_gather(size_mb: float = 64) -> Ceiling:
    """Gather the parts of all ranks, `size_mb` megabytes in total, on every rank; fp32, fp16 or bf16."""
    return _ceiling(_AllGather, size_mb)


@about(_facts("reduce-scatter"))
def reduce_scatter(size_mb: float = 64) -> Ceiling:
    """Sum `size_mb` megabytes over all ranks, with one part of the result on each rank; fp32, fp16 or bf16."""
    return _ceiling(_ReduceScatter, size_mb)


def _ceiling(kind: type[_Collective], size_mb: float) -> Ceiling:
    elements_of(size_mb, FLOAT_BYTES)
    return Ceiling(lambda device, number_format, repeats: kind(device, size_mb, number_format, repeats), FORMATS)


def least_of_all(number: int, device: torch.device) -> int:
    """Return the smallest number of any rank."""
    least = torch.tensor([float(number)], device="cpu" if dist.get_backend() == "gloo" else device)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    return int(least.item())


class _Collective(Work):
    """Common part of the three: places for results, the expected result, and the check."""

    sums = True

    def __init__(self, device: torch.device, size_mb: float, number_format: torch.dtype, repeats: int) -> None:
        self.ranks = dist.get_world_size() if dist.is_initialized() else 1
        if self.ranks < 2:
            problem = Problem("devices", f"is {self.ranks}", "at least 2")
            raise InputError("a collective needs at least 2 devices", problems=(problem,), next_step="--devices 2")
        self.rank = dist.get_rank()
        self._device, self._format = device, number_format
        self._period = PERIODS[number_format]
        # With more ranks than that, each sends zeros between its numbers, at other positions than its neighbours.
        self._stride = math.ceil(self.ranks / (EXACT[number_format] // self._period)) if self.sums else 1
        itemsize = torch.finfo(number_format).bits // 8
        self._elements = elements_of(size_mb, itemsize, multiple=self.ranks)
        self.moved_bytes = float(self._elements * itemsize)
        self._source = self.own()
        self._expected = self.expect()
        free = getattr(getattr(torch, device.type, None), "mem_get_info", None)
        kept_bytes = KEPT_BYTES if free is None else min(KEPT_BYTES_ACCELERATOR, int(free()[0]) // KEPT_SHARE)
        # The ranks must keep the same number, and one of them may have less free memory.
        allowed = least_of_all(kept_bytes // (len(self._expected) * itemsize), device)
        self.kept_results = max(repeats, min(MAX_KEPT, allowed) // repeats * repeats)
        self._results = torch.empty(self.kept_results, len(self._expected), dtype=number_format, device=device)
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
        numbers = pattern(elements, self._device, rank, start, self._period).to(self._format)
        if self._stride == 1:
            return numbers
        kept = slice((-start - rank) % self._stride, None, self._stride)
        sent = torch.zeros_like(numbers)
        sent[kept] = numbers[kept]
        return sent

    def sum_of_all(self, start: int, elements: int) -> torch.Tensor:
        """Return a part of the sum over the ranks."""
        total = torch.zeros(elements, device=self._device)
        for rank in range(self.ranks):
            total += self.given_by(rank, start, elements)
        return total.to(self._format)

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
            # Gloo names only the scalar type that it does not know.
            if not any(word in text for word in ("support", "implement", "scalar type", "data type")):
                raise
            what = f"this collective in {str(self._format).removeprefix('torch.')} on {self._device.type}"
            raise InputError(
                f"the backend {dist.get_backend()} does not support {what}: {text}",
                next_step="use another --backend or --precision, or all-reduce",
            ) from None
        self._put_back()

    def fault(self) -> str | None:
        """Return the first element of the first result that is not exactly as expected."""
        seen = min(self._used, len(self._places))
        expected = self._expected
        fault = None
        if not torch.equal(self._results[:seen], expected.expand(seen, -1)):
            results = enumerate(self._places[:seen])
            number, fault = next((n, wrong) for n, result in results if (wrong := differing(result, expected)))
            fault += f", in result {number + 1} of {seen} since the last check"
        self._put_back()
        return fault

    def effective(self) -> dict[str, str]:
        """Return size, format and number of kept results."""
        return {
            "message_bytes": str(int(self.moved_bytes or 0)),
            "message_dtype": str(self._results.dtype).removeprefix("torch."),
            "results_kept": str(self.kept_results),
        }


class _AllReduce(_Collective):
    def __init__(self, device: torch.device, size_mb: float, number_format: torch.dtype, repeats: int) -> None:
        super().__init__(device, size_mb, number_format, repeats)
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
    sums = False

    def __init__(self, device: torch.device, size_mb: float, number_format: torch.dtype, repeats: int) -> None:
        super().__init__(device, size_mb, number_format, repeats)
        self.bus_factor = (self.ranks - 1) / self.ranks

    def own(self) -> torch.Tensor:
        return self.given_by(self.rank, 0, self._elements // self.ranks)

    def expect(self) -> torch.Tensor:
        part = self._elements // self.ranks
        return torch.cat([self.given_by(rank, 0, part) for rank in range(self.ranks)])

    def exchange(self, result: torch.Tensor) -> object:
        return dist.all_gather_into_tensor(result, self._source)


class _ReduceScatter(_Collective):
    def __init__(self, device: torch.device, size_mb: float, number_format: torch.dtype, repeats: int) -> None:
        # Newer releases have another name for it and warn about this one.
        name = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
        self._reduce_scatter: Callable[..., Any] = getattr(dist, name)
        super().__init__(device, size_mb, number_format, repeats)
        self.bus_factor = (self.ranks - 1) / self.ranks

    def expect(self) -> torch.Tensor:
        part = self._elements // self.ranks
        return self.sum_of_all(self.rank * part, part)

    def exchange(self, result: torch.Tensor) -> object:
        return self._reduce_scatter(result, self._source)
