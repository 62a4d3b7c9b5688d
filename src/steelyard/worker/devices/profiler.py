"""What a device did while some steps ran: torch's profiler for its kernels, torch's warnings for synchronisations."""

from __future__ import annotations

import contextlib
import re
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._C._autograd import DeviceType

from steelyard.worker.devices.device import Profile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# What is no computation: communication; copies from the host; and spans that are not work, such as marks of the program
# and of torch, and waiting. New releases say which are marks, older ones only by name.
_OTHER = re.compile(
    r"nccl|rccl|msccl|oneccl|hccl|HtoD|Host ?(to|->) ?Device|\bH2D|MemcpyH2D|\(M2D\)"
    r"|ProfilerStep|Optimizer\.|DistributedDataParallel|##|\w+ Sync\b|Stream Wait Event",
    re.IGNORECASE,
)
SYNCHRONISING = "called a synchronizing"
"""In the words of torch's warning. Another one, about the mode itself, has the second word only."""
REASON_CHARACTERS = 300


def profile(module: Any, kind: str, run: Callable[[], None]) -> Profile:
    """Run steps under torch's profiler, and with torch's warnings about synchronisations where it has them.

    Kernels take as long as without the profiler, but the host is slower: only the sum of their times is used.
    """
    with _synchronisations(module) as warned:
        events, reason = device_events(module, kind, run)
    return Profile(
        compute_s=None if events is None else covered_s([event[1:] for event in events if computes(event[0])]),
        synchronisations=None if warned is None else len(warned),
        reason=reason,
    )


def device_events(module: Any, kind: str, run: Callable[[], None]) -> tuple[list[tuple[str, float, float]] | None, str]:
    """Return name, begin and end in seconds of everything that the device did; or why it is unknown."""
    # ROCm is "cuda" here, too.
    activity = getattr(torch.profiler.ProfilerActivity, kind.upper(), None)
    if activity is None:
        run()
        return None, f"torch {torch.__version__} has no profiler for {kind}"
    begun = done = False
    try:
        with torch.profiler.profile(activities=[activity]) as seen:
            begun = True
            run()
            module.synchronize()
            done = True
        events = [
            (event.name, event.time_range.start / 1e6, event.time_range.end / 1e6)
            for event in seen.events() or ()
            if event.device_type != DeviceType.CPU and not _is_mark(event)
        ]
    except Exception as error:
        if begun and not done:
            # The step itself failed.
            raise
        if not begun:
            run()
        what = "failed" if done else "cannot start"
        return None, " ".join(f"the profiler {what}: {error}".split())[:REASON_CHARACTERS]
    if not events:
        return None, "the profiler saw no kernel: the vendor's profiling library is missing or not permitted here"
    return events, ""


def _is_mark(event: Any) -> bool:
    """Whether an event of the profiler is a mark around others, which may span gaps."""
    annotated = getattr(event, "is_user_annotation", False)
    return bool(annotated) or "annotation" in str(getattr(event, "activity_type", "")).lower()


def computes(name: str) -> bool:
    """Whether a span of this name is computation."""
    return _OTHER.search(name) is None


@contextlib.contextmanager
def _synchronisations(module: Any) -> Iterator[list[warnings.WarningMessage] | None]:
    """Collect torch's warnings about calls that make the host wait; None: this backend has no such warnings."""
    mode = getattr(module, "set_sync_debug_mode", None)
    if mode is None:
        yield None
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warned: list[warnings.WarningMessage] = []
        mode("warn")
        try:
            yield warned
        finally:
            mode("default")
            warned += [warning for warning in caught if SYNCHRONISING in str(warning.message)]


def covered_s(spans: Sequence[tuple[float, float]]) -> float:
    """Return the length of the union of spans: kernels of several streams overlap."""
    if not spans:
        return 0.0
    starts, ends = np.asarray(sorted(spans), dtype=np.float64).T
    # What a span adds begins where all earlier ones have ended.
    ended = np.maximum.accumulate(ends)
    begins = np.maximum(starts, np.concatenate([starts[:1], ended[:-1]]))
    return float(np.maximum(0.0, ends - begins).sum())
