"""How many samples and tokens there are in a batch, by its shape; nothing is read from a device."""

from __future__ import annotations

import sys
from typing import Any

IGNORED_LABEL, MASKED = -100, 0
DEPTH = 3
# Batches whose masks and labels are read together, which takes a fraction of the time. A large batch does not wait.
TOGETHER, LARGE = 16, 1 << 16


class BatchWork:
    """The work of one batch; None: unknown. The entries of `unread` are counted later."""

    __slots__ = ("labels", "padding", "samples", "tokens", "unread")

    def __init__(self, samples: int | None = None, tokens: int | None = None, unread: Any = None) -> None:
        self.samples = samples
        self.tokens = tokens
        self.padding: int | None = None
        self.labels: int | None = None
        self.unread = unread

    def read(self) -> None:
        """Count tokens without padding, and labels."""
        mask, labels = self.unread
        self.unread = None
        real = _others(mask, MASKED)
        self.labels = _others(labels, IGNORED_LABEL)
        if real is not None and self.tokens is not None:
            self.padding = self.tokens - real
            self.tokens = real


UNKNOWN = BatchWork()


def count_work(batch: Any) -> BatchWork:
    """Return the work of a batch as a loader gave it."""
    try:
        if hasattr(batch, "keys") and hasattr(batch, "get"):
            return _named(batch)
        first = batch[0] if type(batch) is list and batch else None
        if getattr(first, "ndim", 0) < 1:
            # Not the usual list of tensors.
            first = _first_tensor(batch, DEPTH)
        if first is None:
            return UNKNOWN
        shape = first.shape
        if len(shape) == 2 and isinstance(batch, (list, tuple)) and len(batch) == 2 and not first.is_floating_point():
            targets = batch[1]
            # Token numbers and the next ones: integers of the same shape, (samples, length).
            if getattr(targets, "shape", None) == shape and not targets.is_floating_point():
                return BatchWork(shape[0], first.numel(), (None, _readable(targets, shape)))
        return BatchWork(shape[0])
    except Exception:  # noqa: BLE001 -- a batch can be anything
        return UNKNOWN


def _named(batch: Any) -> BatchWork:
    """Return the work of a batch whose parts have names, as tokenizers give them."""
    words = batch.get("input_ids")
    if words is None or getattr(words, "ndim", 0) != 2:
        first = _first_tensor([batch.get(name) for name in batch.keys()], DEPTH)  # noqa: SIM118 -- may be no dict
        return UNKNOWN if first is None else BatchWork(first.shape[0])
    shape = words.shape
    unread = [_readable(batch.get(name), shape) for name in ("attention_mask", "labels")]
    return BatchWork(shape[0], words.numel(), unread)


def _readable(part: Any, shape: Any) -> tuple[Any, int] | None:
    """Return a part of that shape and how often it was changed; None if it cannot be read without waiting."""
    if not getattr(part, "is_cpu", False) or part.shape != shape or part.is_inference():
        return None
    return part, part._version  # noqa: SLF001 -- torch has no other name for it


def _others(readable: tuple[Any, int] | None, value: int) -> int | None:
    """Count the entries that are not `value`; None if they were changed since, so that it is not known when."""
    if readable is None or readable[0]._version != readable[1]:  # noqa: SLF001 -- see above
        return None
    part = readable[0]
    try:
        # For a batch this is several times as fast as torch.
        entries = part.numpy()
        return int(sys.modules["numpy"].count_nonzero(entries != value if value else entries))
    except (KeyError, RuntimeError, TypeError):
        return int((part != value).sum())


def _first_tensor(value: Any, depth: int) -> Any:
    if depth and isinstance(value, dict):
        value = list(value.values())
    if depth and isinstance(value, (list, tuple)):
        for part in value:
            tensor = _first_tensor(part, depth - 1)
            if tensor is not None:
                return tensor
        return None
    return value if getattr(value, "ndim", 0) >= 1 else None
