"""RunSpec: everything one run is asked to do. Knows what may be asked, not how it is done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from steelyard.contracts.base import AtLeastOne, Bound, Contract, Count, Name, NotNegative, Positive
from steelyard.contracts.sim import SimTruth

SCHEMA_VERSION: Final = 1

Mode = Literal["train", "infer"]
LastBatch = Literal["drop", "pad", "keep"]


@dataclass(frozen=True, kw_only=True)
class Budget(Contract):
    """When a run has measured enough: all three minima, or any cap."""

    min_steps: AtLeastOne = 1000
    """Steps after warm-up. Below 900 the interval is only approximate; 1,000 leave room for a few slow first steps."""
    min_seconds: NotNegative = 5.0
    rel_half_width: Positive = 0.01
    """Half-width of the 95 % interval of the mean step time, over the mean."""
    max_steps: AtLeastOne = 20_000
    max_seconds: Positive = 600.0
    epochs: AtLeastOne | None = None
    """Run exactly so many epochs instead; needs `epoch_samples`."""


@dataclass(frozen=True, kw_only=True)
class RunSpec(Contract):
    """One run: one fresh launch of one workload with one set of settings."""

    schema_version: Literal[1] = SCHEMA_VERSION
    run_id: Name
    study: Name = "adhoc"
    cell: Name
    """Names the settings: runs of one cell are repeats of each other."""
    repeat: Count = 0
    seed: Annotated[int, Bound(ge=0, lt=2**63)] = 0
    workload: Name = "sim"
    mode: Mode = "train"
    device: Name = "sim"
    ranks: Annotated[int, Bound(ge=1, le=65_536)] = 1
    batch: Annotated[int, Bound(ge=1, le=10**9)] = 32
    """Samples a device takes in one micro-batch."""
    accumulation: Annotated[int, Bound(ge=1, le=10**6)] = 1
    """Micro-batches to one optimizer step; training only."""
    epoch_samples: AtLeastOne | None = None
    """Samples in one epoch of the whole job; None: the data never ends."""
    last_batch: LastBatch = "drop"
    """A last step without enough samples: dropped, padded (computed whole, real samples counted) or kept small."""
    crosscheck_steps: Annotated[int, Bound(ge=0, le=10_000)] = 32
    """Steps of the second pass that synchronises after each one."""
    time_limit_s: Positive | None = None
    """Wall-clock limit after which the launcher ends the run."""
    budget: Budget = field(default_factory=Budget)
    sim: SimTruth = field(default_factory=SimTruth)

    def __post_init__(self) -> None:
        if self.mode == "infer" and self.accumulation != 1:
            raise ValueError("accumulation: inference has no optimizer step to accumulate for; valid: 1")
        if self.budget.epochs is not None and self.epoch_samples is None:
            raise ValueError("epoch_samples: a budget in epochs needs it; valid: an integer of at least 1")
        if self.last_batch == "drop" and self.epoch_samples is not None and self.epoch_samples < self.step_samples:
            raise ValueError(
                f"epoch_samples: {self.epoch_samples} do not fill one step of {self.step_samples}, and the last "
                f"partial batch is dropped; valid: at least {self.step_samples}, or last_batch 'pad' or 'keep'"
            )

        rest = self.epoch_samples % self.step_samples if self.epoch_samples is not None else 0
        if self.last_batch == "keep" and 0 < rest < self.ranks:
            raise ValueError(
                f"epoch_samples: the last step of an epoch has {rest} samples for {self.ranks} ranks, so that some "
                "would have none; valid: another number, or last_batch 'drop' or 'pad'"
            )

    @property
    def step_samples(self) -> int:
        """Samples the whole job takes in one full step."""
        return self.batch * self.accumulation * self.ranks

    @property
    def steps_per_epoch(self) -> int | None:
        """Steps of one epoch; None when the data never ends."""
        if self.epoch_samples is None:
            return None
        whole, rest = divmod(self.epoch_samples, self.step_samples)
        return whole + (1 if rest and self.last_batch != "drop" else 0)
