"""The second pass: a few steps of the program, launched again, in which operations and communication are counted.

Counting makes steps slower, so their times count nowhere. What goes wrong here is told and harms nothing: the program
has been measured before.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from .readback import read_rank

if TYPE_CHECKING:
    from collections.abc import Callable

    from .training import SeenTraining

# DDP arranges its buckets anew after its first step, and loaders fill their queues.
FIRST_STEPS = 3
PROFILED_STEPS = 3
COMMUNICATION = re.compile(r"nccl|rccl|oneccl|gloo:|c10d::|ucc:|mpi:", re.IGNORECASE)
# What the profiler notes on a host and is no work: marks, and the wait for communication.
NO_WORK = re.compile(r"ProfilerStep|Optimizer\.|DistributedDataParallel|autograd::|Backward\d*$|##|wait", re.IGNORECASE)
REASON_CHARACTERS = 300

Spans = list[tuple[float, float]]


class StepCounts:
    """Follows the steps of one rank: first ones, one that is counted, one to recover, and those that are profiled."""

    def __init__(self) -> None:
        self.flops: float | None = None
        self.recomputes = False
        self.communication_s: float | None = None
        self.exposed_s: float | None = None
        self.busy_s: float | None = None
        self.profiled = 0
        self.reason = "the program ended before its steps were counted"
        self._counter: Any = None
        self._profile: Any = None
        self._seen = 0

    def look(self, training: SeenTraining) -> bool:
        """Take in that an update has ended; return whether this pass has seen enough."""
        if training.steps == self._seen:
            return False
        self._seen = training.steps
        try:
            if self._profile is not None:
                self.profiled += 1
                if self.profiled == PROFILED_STEPS:
                    self._end_profile(training)
                    return True
            elif self._counter is not None:
                self._counter.__exit__(None, None, None)
                self.flops, self._counter = float(self._counter.get_total_flops()), None
            elif self.flops is not None:
                from torch.profiler import ProfilerActivity, profile

                device = getattr(ProfilerActivity, read_rank(training)["device"].upper(), ProfilerActivity.CPU)
                self._profile = profile(activities=[*dict.fromkeys((ProfilerActivity.CPU, device))])
                self._profile.start()
            elif training.steps >= FIRST_STEPS:
                from torch.utils.flop_counter import FlopCounterMode

                self._counter = FlopCounterMode(display=False, custom_mapping=missing_formulas())
                self._counter.__enter__()
        except Exception as error:  # noqa: BLE001 -- the program has been measured; nothing more can be counted
            self.reason = " ".join(f"{type(error).__name__}: {error}".split())[:REASON_CHARACTERS]
            return True
        return False

    def recomputation(self) -> None:
        """Note that activations are computed again in the backward pass, which the count includes."""
        self.recomputes = True

    def about(self, rank: int) -> dict[str, Any]:
        """Return what was counted, per step."""
        return {
            "rank": rank,
            "flops": self.flops,
            "recomputes": self.recomputes,
            "communication_s": self.communication_s,
            "exposed_comm_s": self.exposed_s,
            "busy_s": self.busy_s,
            "steps": self.profiled,
            "reason": self.reason,
        }

    def _end_profile(self, training: SeenTraining) -> None:
        import torch
        from torch._C._autograd import DeviceType

        profile, self._profile = self._profile, None
        device = read_rank(training)["device"]
        on_host = device == "cpu"
        if not on_host:
            getattr(torch, device).synchronize()
        profile.stop()
        communication: Spans = []
        work: Spans = []
        for event in profile.events() or ():
            if on_host is not (event.device_type == DeviceType.CPU):
                continue
            span = (event.time_range.start / 1e6, event.time_range.end / 1e6)
            if COMMUNICATION.search(event.name):
                communication.append(span)
            elif not NO_WORK.search(event.name):
                work.append(span)
        self.reason = ""
        if not work and not communication:
            # A device that torch's profiler does not know: the operations are counted nevertheless.
            return
        self.communication_s = covered_s(communication) / PROFILED_STEPS
        self.busy_s = None if on_host else covered_s(work) / PROFILED_STEPS
        self.exposed_s = (covered_s(communication + work) - covered_s(work)) / PROFILED_STEPS


def covered_s(spans: Spans) -> float:
    """Return the length of the union of spans."""
    total, reached = 0.0, -math.inf
    for begin, end in sorted(spans):
        if end > reached:
            total += end - max(begin, reached)
            reached = end
    return total


def missing_formulas() -> dict[Any, Callable[..., int]]:
    """Return formulas that torch's counter lacks on a CPU, or has wrong for grouped convolutions."""
    import torch
    from torch.utils import flop_counter

    count: Any = flop_counter

    def attention(query: Any, key: Any, value: Any, *_args: Any, **_more: Any) -> int:
        return int(count.sdpa_flop_count(query, key, value))

    def attention_backward(gradient: Any, query: Any, key: Any, value: Any, *_args: Any, **_more: Any) -> int:
        return int(count.sdpa_backward_flop_count(gradient, query, key, value))

    def convolution_backward(gradient: Any, inputs: Any, weight: Any, *args: Any, **_more: Any) -> int:
        transposed, wanted = args[4], args[7]
        forward = 2 * inputs[0] * math.prod((inputs if transposed else gradient)[2:]) * math.prod(weight)
        return int(forward * (bool(wanted[0]) + bool(wanted[1])))

    aten: Any = torch.ops.aten
    return {
        aten._scaled_dot_product_flash_attention_for_cpu: attention,  # noqa: SLF001 -- names of operators
        aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward,  # noqa: SLF001
        aten.convolution_backward: convolution_backward,
    }
