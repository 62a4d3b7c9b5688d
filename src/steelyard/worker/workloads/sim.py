"""The workload of the simulated accelerator: a loader, computation and a gradient all-reduce."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from steelyard.worker.workloads.batches import Batch, batches
from steelyard.worker.workloads.step_maker import PROFILED_STEPS

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from steelyard.contracts.spec import RunSpec
    from steelyard.worker.devices.sim import SimDevice


class SimSteps:
    """What a training or inference job enqueues, step by step."""

    communicates = True
    learnable = False
    block_steps: int | None = None
    events_per_step = 2
    profiled_steps = PROFILED_STEPS

    def __init__(self, spec: RunSpec, device: SimDevice) -> None:
        truth = spec.sim
        self._device = device
        self._truth = truth
        self._micro = spec.batch
        self._synchronous = spec.exchanges_gradients
        self._stages = spec.devices // spec.replicas
        self._plan = batches(spec, device.rank)
        self._loader = _Loader(truth.input.samples_per_s, truth.input.prefetch_batches)
        self._first_step_s = truth.shape.compile_step_s
        device.wait_until(truth.setup_s)
        device.allocate(spec.batch)

    def compile(self) -> None:
        """Run the compilation phase."""
        if self._truth.compile_s:
            # The host waits as long as the device.
            self._device.compile(self._truth.compile_s)
            self._device.wait_until(self._device.host_s + self._truth.compile_s)

    def take(self) -> Batch:
        """Wait for the loader like a training loop."""
        batch, device = next(self._plan), self._device
        if batch.opens_epoch and self._truth.input.epoch_restart_s:
            # The device is idle before the step, as when a loop restarts its DataLoader workers.
            device.idle(self._truth.input.epoch_restart_s)
        device.wait_until(self._loader.take(batch.computed, device.host_s))
        return batch

    def run(self, batch: Batch) -> int:
        """Run one step: its micro-batches, then the collective."""
        device, truth = self._device, self._truth
        whole, rest = divmod(batch.computed, self._micro)
        micro_batches = whole + (1 if rest else 0)
        compute_s = micro_batches * truth.step_time_s + batch.computed * truth.sample_time_s
        # A stage of a pipeline has its part of the layers; it waits for the first micro-batch and for the last one.
        compute_s *= (1 + (self._stages - 1) / micro_batches) / self._stages
        if self._first_step_s:
            device.compile(self._first_step_s)
            self._first_step_s = 0.0
        device.work(compute_s * next(device.factors) * device.speed)
        if truth.launch_s:
            # Kernels start when launched: the computation ends with the last kernel or with the last launch.
            device.wait_until(device.host_s + truth.launch_s)
        computed = device.record()
        if self._synchronous:
            device.all_reduce()
        return computed

    def watch_communication(self) -> None:
        """Do nothing: simulated steps always record it."""

    def after_block(self, table: NDArray[np.float64], raw: Path) -> None:
        """Do nothing."""

    def last_loss(self) -> None:
        """Return None: nothing is trained."""

    def close(self) -> None:
        """Do nothing: nothing is open."""


class _Loader:
    """A pipeline that fills a bounded queue at a constant rate."""

    def __init__(self, samples_per_s: float | None, prefetch: int) -> None:
        self._rate = samples_per_s
        self._ready_s = 0.0
        self._taken: deque[float] = deque(maxlen=prefetch)

    def take(self, samples: int, now_s: float) -> float:
        """Return when the next batch of `samples`, requested at `now_s`, is available."""
        if self._rate is None:
            return now_s
        # Loading of a batch starts when the one before is done and the queue has room.
        full = len(self._taken) == self._taken.maxlen
        begun_s = max(self._ready_s, self._taken[0]) if full else self._ready_s
        self._ready_s = begun_s + samples / self._rate
        taken_s = max(now_s, self._ready_s)
        self._taken.append(taken_s)
        return taken_s
