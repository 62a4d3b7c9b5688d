"""Split an epoch into steps, a step into the shares of ranks, and a share into micro-batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.spec import RunSpec


@dataclass(frozen=True)
class Batch:
    """What one rank does in one step."""

    samples: int
    """Real samples, which throughput counts. The ranks of a pipeline compute the same ones; each counts its share."""
    computed: int
    """Samples the device computes, including padding."""
    opens_epoch: bool
    """First step of an epoch, except the first epoch."""


def share(samples: int, part: int, parts: int) -> int:
    """Return the size of one of several parts, as equal as possible; the first ones have one sample more."""
    return samples // parts + (part < samples % parts)


def replica_of(spec: RunSpec, rank: int) -> int:
    """Return which of the job's shares of samples a rank computes."""
    return 0 if spec.parallel == "pipeline" else rank


def batches(spec: RunSpec, rank: int) -> Iterator[Batch]:
    """Yield one rank's steps, epoch after epoch, without end."""
    replica, replicas = replica_of(spec, rank), spec.replicas
    stage, stages = rank // replicas, spec.devices // replicas
    whole = spec.batch * spec.accumulation
    full = Batch(share(whole, stage, stages), whole, opens_epoch=False)
    if spec.epoch_samples is None:
        while True:
            yield full
    full_steps, rest = divmod(spec.epoch_samples, spec.step_samples)
    last = None
    if rest and spec.last_batch != "drop":
        own = share(rest, replica, replicas)
        last = Batch(share(own, stage, stages), whole if spec.last_batch == "pad" else own, opens_epoch=False)
    opens_epoch = False
    while True:
        for step in range(full_steps):
            yield replace(full, opens_epoch=True) if opens_epoch and step == 0 else full
        if last is not None:
            yield replace(last, opens_epoch=opens_epoch and full_steps == 0)
        opens_epoch = True


@dataclass(frozen=True)
class Piece:
    """One rank's micro-batch as a position in an epoch."""

    epoch: int
    start: int
    """Where in the epoch its samples start."""
    samples: int
    """With padding it extends into another rank's share, and past the end of the epoch to its start."""


def pieces(spec: RunSpec, rank: int) -> Iterator[Piece]:
    """Yield one rank's micro-batches in order, matching the steps of `batches`."""
    replica, whole = replica_of(spec, rank), spec.batch * spec.accumulation
    steps_per_epoch = spec.steps_per_epoch
    for number, batch in enumerate(batches(spec, rank)):
        epoch, step = (0, number) if steps_per_epoch is None else divmod(number, steps_per_epoch)
        first = step * spec.step_samples
        if spec.epoch_samples is not None and first + spec.step_samples > spec.epoch_samples:
            # The last, partial step is distributed evenly; the first ranks have one more.
            least, more = divmod(spec.epoch_samples % spec.step_samples, spec.replicas)
            first += replica * least + min(replica, more)
        else:
            first += replica * whole
        done = 0
        while done < batch.computed:
            size = min(spec.batch, batch.computed - done)
            yield Piece(epoch, first + done, size)
            done += size
