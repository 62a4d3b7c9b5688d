"""A small model with delays of known length in loader, computation and communication; only for the figures.

The process group waits before every all-reduce, like a slow network.
"""

import os
import threading
import time

import torch
import torch.distributed as dist
from torch import nn

COMMUNICATION_S = float(os.environ.get("COMMUNICATION_S", "0"))


class SlowWork(dist._Work):
    """An all-reduce under way."""

    def __init__(self, reduce):
        super().__init__()
        self._future = torch.futures.Future()
        self._reduce = reduce
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        time.sleep(COMMUNICATION_S)
        self._future.set_result(self._reduce())

    def wait(self, timeout=None):
        """Until it is done."""
        self._future.wait()
        return True

    def get_future(self):
        """Of the reduced tensors."""
        return self._future


class SlowGroup(dist.ProcessGroup):
    """Gloo behind a slow network."""

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self._inner = dist.ProcessGroupGloo(store, rank, size, timeout)

    def allreduce(self, tensors, options=None):
        """Late by the delay."""

        def reduce():
            self._inner.allreduce(tensors, options or dist.AllreduceOptions()).wait()
            return tensors

        return SlowWork(reduce)

    def broadcast(self, tensors, options=None):
        """Unchanged."""
        return self._inner.broadcast(tensors, options or dist.BroadcastOptions())

    def allgather(self, outputs, inputs, options=None):
        """Unchanged."""
        return self._inner.allgather(outputs, inputs, options or dist.AllgatherOptions())

    def barrier(self, options=None):
        """Unchanged."""
        return self._inner.barrier(options or dist.BarrierOptions())

    def getBackendName(self):
        """As it is registered."""
        return "slow"


dist.Backend.register_backend("slow", SlowGroup, devices=["cpu"])


def build(compute_s: float = 0.0, loader_s: float = 0.0):
    """Delays in seconds per step."""

    class Net(nn.Module):
        """Waits, then computes a little."""

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(32, 10)

        def forward(self, x):
            """Of a batch of vectors."""
            time.sleep(compute_s)
            return self.layer(x)

    def batch(samples, generator):
        time.sleep(loader_s)
        return torch.randn(samples, 32, generator=generator), torch.randint(10, (samples,), generator=generator)

    return Net(), nn.functional.cross_entropy, lambda parameters: torch.optim.SGD(parameters, lr=0.01), batch
