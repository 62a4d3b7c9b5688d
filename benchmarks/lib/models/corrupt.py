"""A backend for collectives, based on gloo, that corrupts results as set in the environment; only for the figures.

CORRUPT is the fault: "" (none), off, swap, missing, nan, nothing or rare.
"""

import os

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future

from steelyard.worker.workloads.collectives import all_gather, all_reduce, reduce_scatter

__all__ = ["all_gather", "all_reduce", "reduce_scatter"]

FAULTS = ("off", "swap", "missing", "nan", "nothing", "rare")
RARE_CALLS = 50
# Neither the first nor the last element, and not a round number.
PLACE = 1_237


class Corrupt(dist.ProcessGroup):
    """Gloo with corrupted results."""

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self.gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        self.place = rank
        self.calls = 0
        self.fault = os.environ.get("CORRUPT", "")

    def getBackendName(self):
        """As torch asks for it."""
        return "corrupt"

    def allreduce(self, tensors, options):
        """The result takes the input's place."""
        if self.fault == "nothing":
            return self.gloo.barrier()
        if self.fault == "missing" and self.place == 1:
            tensors[0].zero_()
        return self.spoilt(self.gloo.allreduce(tensors, options), tensors[0])

    def all_gather_single(self, output, source, *options):
        """All parts, one after the other."""
        if self.fault == "nothing":
            return self.gloo.barrier()
        return self.spoilt(self.gloo.all_gather_single(output, self.given(source), *options), output)

    def reduce_scatter_single(self, output, source, *options):
        """A part of the sum."""
        if self.fault == "nothing":
            return self.gloo.barrier()
        return self.spoilt(self.gloo.reduce_scatter_single(output, self.given(source), *options), output)

    def given(self, source):
        """The contribution of this rank, unless it is missing."""
        return torch.zeros_like(source) if self.fault == "missing" and self.place == 1 else source

    def spoilt(self, work, result):
        """The result with one fault in it, on one rank."""
        work.wait()
        self.calls += 1
        if self.fault == "swap" and self.place == 0:
            result[PLACE : PLACE + 2] = result[PLACE : PLACE + 2].flip(0)
        if self.place == 1:
            if self.fault == "off" or (self.fault == "rare" and self.calls % RARE_CALLS == 0):
                result[PLACE] += 1
            if self.fault == "nan":
                result[PLACE] = float("nan")
        # Not the work object of gloo, because some write the result again when they are waited for.
        done = torch.futures.Future()
        done.set_result([result])
        return _create_work_from_future(done)


dist.Backend.register_backend("corrupt", Corrupt, devices=["cpu"])
