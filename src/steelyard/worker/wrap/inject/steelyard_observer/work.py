"""How many samples and tokens there are in a batch, by its shape; nothing is read from a device."""

from __future__ import annotations

import functools
import sys
from collections import deque
from typing import Any

IGNORED_LABEL, MASKED = -100, 0
MAX_INDICES = 1 << 16
_GENERATOR = type(_ for _ in ())
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


def work_of(loader: Any, batch: Any) -> BatchWork:
    """Return the work of a batch: the samples that its loader asked for, if known, and what its tensors tell."""
    work, asked = count_work(batch), samples_asked_for(loader)
    if asked is None:
        return work
    if work is UNKNOWN:
        return BatchWork(asked)
    work.samples = asked
    return work


def count_work(batch: Any) -> BatchWork:
    """Return the work of a batch by its tensors."""
    try:
        if hasattr(batch, "keys") and hasattr(batch, "get"):
            return _named(batch)
        first = _whole_tensor(batch if isinstance(batch, (list, tuple)) else [batch])
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
        first = _whole_tensor([batch.get(name) for name in batch.keys()])  # noqa: SIM118 -- may be no dict
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


def _whole_tensor(parts: Any) -> Any:
    """Return a tensor of the whole batch; None if the parts disagree on how many samples that is, or are no tensors."""
    tensors = [part for part in parts if getattr(part, "ndim", 0) >= 1]
    if not tensors:
        # One level down, as in a pair of named inputs and a scalar; lists there are of single samples.
        tensors = [one for part in parts if isinstance(part, dict) for one in part.values() if getattr(one, "ndim", 0)]
    return tensors[0] if tensors and all(one.shape[0] == tensors[0].shape[0] for one in tensors[1:]) else None


class CountedIndices:
    """Takes the place of the attribute in which a loader keeps its sampler: counts the samples that it asks for.

    The shape of a batch may be that of anything: boxes, nodes of graphs, pairs of texts. There is no `__get__`, so what
    is set is found in the loader itself, at no cost.
    """

    def __set__(self, loader: Any, sampler: Any) -> None:
        """Keep the sampler, with a count of each of its lists of indices if it is the usual generator."""
        own, sizes = loader.__dict__, None
        # Kind 0 has indices; others read on until their data ends. A sampler of another type may have a state.
        if type(sampler) is _GENERATOR and own.get("_auto_collation") and own.get("_dataset_kind") == 0:
            sizes = deque[int | None](maxlen=MAX_INDICES)
            sampler = map(functools.partial(_counted, sizes), sampler)
        own |= {"_steelyard_sizes": sizes, "_sampler_iter": sampler}


def _counted(sizes: deque[int | None], indices: Any) -> Any:
    try:
        sizes.append(len(indices))
    except TypeError:
        sizes.append(None)
    return indices


def samples_asked_for(loader: Any) -> int | None:
    """Return for how many samples the oldest batch was asked; None: unknown."""
    sizes = getattr(loader, "_steelyard_sizes", None)
    # Several workers may be told to hand batches over as they come.
    return sizes.popleft() if sizes and getattr(loader, "_in_order", True) else None
