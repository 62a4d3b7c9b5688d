"""The truth a simulated accelerator is told to have. Every formula of the product is proven against these numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from steelyard.contracts.base import AtLeastOne, Bound, Contract, Count, Length, NotNegative, Positive

NoiseKind = Literal["none", "normal", "ar1", "lognormal", "pareto"]


@dataclass(frozen=True, kw_only=True)
class Noise(Contract):
    """Random factors on a step's compute time. Each has mean 1, so the scripted mean stays the true mean."""

    kind: NoiseKind = "none"
    cv: Annotated[float, Bound(ge=0, le=0.3)] = 0.01
    """Standard deviation over mean, for `normal` and `ar1`."""
    rho: Annotated[float, Bound(ge=0, lt=1)] = 0.8
    """Correlation of neighbouring steps, for `ar1`."""
    sigma: Annotated[float, Bound(ge=0, le=2)] = 0.5
    """Standard deviation of the logarithm, for `lognormal`."""
    alpha: Annotated[float, Bound(gt=1, le=100)] = 3.0
    """Tail index, for `pareto`; at 2 or below the variance is infinite."""
    between_jobs_cv: Annotated[float, Bound(ge=0, le=0.2)] = 0.0
    """Spread of a factor drawn once a job: another node, another allocation, another day."""
    walk_cv: Annotated[float, Bound(ge=0, le=0.05)] = 0.0
    """Spread of the increments of a random walk that the step time follows: no steady state."""
    shared: bool = False
    """All ranks see the same factors instead of independent ones."""


@dataclass(frozen=True, kw_only=True)
class Shape(Contract):
    """How the compute time changes over the steps of a job, without chance."""

    warmup_amplitude: NotNegative = 0.0
    """The first step is slower by this share; the excess decays exponentially."""
    warmup_steps: Positive = 1.0
    """Time constant of that decay, in steps."""
    compile_step_s: NotNegative = 0.0
    """Added to the first step: lazy compilation."""
    drift_per_step: Annotated[float, Bound(ge=0, le=1)] = 0.0
    """Share of the base time added with every step."""
    throttle_at_step: Count | None = None
    """From this step on the device is throttled."""
    throttle_factor: Annotated[float, Bound(ge=1, le=1000)] = 1.0
    spike_every: Count = 0
    """Every so many steps one is slower (a checkpoint, a garbage collection); 0: never."""
    spike_factor: Annotated[float, Bound(ge=1, le=1000)] = 1.0


@dataclass(frozen=True, kw_only=True)
class InputPipeline(Contract):
    """How fast one rank's loader delivers samples."""

    samples_per_s: Positive | None = None
    """None: data is always there."""
    prefetch_batches: AtLeastOne = 2
    epoch_restart_s: NotNegative = 0.0
    """Time the loader needs before the first batch of each epoch after the first."""


@dataclass(frozen=True, kw_only=True)
class Link(Contract):
    """Latency of one hop and bandwidth of the ring, for jobs of at least `from_ranks` ranks."""

    from_ranks: AtLeastOne = 1
    latency_s: NotNegative = 0.0
    bytes_per_s: Positive = 1e11


@dataclass(frozen=True, kw_only=True)
class Collective(Contract):
    """The gradient all-reduce after each optimizer step: a ring, none of it hidden behind compute."""

    message_bytes: Count = 0
    links: Annotated[tuple[Link, ...], Length(64)] = (Link(),)
    """The entry with the largest `from_ranks` that the job reaches applies: node boundaries, switches."""

    def seconds(self, ranks: int) -> float:
        """Ring all-reduce: 2(R-1) hops, each device sending 2(R-1)/R of the message."""
        fitting = [link for link in self.links if link.from_ranks <= ranks]
        if ranks == 1 or self.message_bytes == 0 or not fitting:
            return 0.0
        link = max(fitting, key=lambda entry: entry.from_ranks)
        hops = 2 * (ranks - 1)
        return hops * link.latency_s + hops / ranks * self.message_bytes / link.bytes_per_s


@dataclass(frozen=True, kw_only=True)
class Memory(Contract):
    """What fits on the device."""

    limit_bytes: Positive | None = None
    fixed_bytes: NotNegative = 0.0
    bytes_per_sample: NotNegative = 0.0


@dataclass(frozen=True, kw_only=True)
class Power(Contract):
    """What one simulated device draws, in watts, by what it does; and what is around it."""

    idle_w: NotNegative = 0.0
    compute_w: NotNegative = 0.0
    comm_w: NotNegative | None = None
    """While it communicates; None: as when idle."""
    compile_w: NotNegative | None = None
    """During the explicit compilation phase and what the first step compiles; None: as when idle."""
    host_w: NotNegative = 0.0
    """Of the host part of each node, all the time; modules of one node share it equally."""


@dataclass(frozen=True, kw_only=True)
class Sensor(Contract):
    """A simulated sensor on every domain of a scope: what it can tell, and what it gets wrong."""

    scope: Literal["die", "device", "module", "cpu", "node"] = "device"
    kind: Literal["counter", "gauge"] = "counter"
    resolution: NotNegative = 1e-3
    average_s: NotNegative = 0.0
    period_s: Positive = 0.1
    phase_s: NotNegative = 0.0
    seen_s: Positive | None = None
    wrap: Positive | None = None
    gain_error: Annotated[float, Bound(gt=-1, le=1)] = 0.0
    """The true gain minus 1: what is read is this share too high."""
    noise_w: NotNegative = 0.0
    drop_share: Annotated[float, Bound(ge=0, le=1)] = 0.0
    """Share of the readings that are lost."""
    frozen_after_s: NotNegative | None = None
    gain: Annotated[float, Bound(ge=0, lt=1)] = 0.05
    """The tolerance that the maker states; `gain_error` is the truth."""
    limit_w: Positive | None = None
    """The most that its domain may draw, as the maker states it."""


@dataclass(frozen=True, kw_only=True)
class Node(Contract):
    """How simulated devices sit on nodes."""

    devices_per_node: AtLeastOne | None = None
    """None: all ranks on one node."""
    dies_per_card: AtLeastOne = 1
    """More than 1: a rank is one die of a card, and a sensor of scope `device` reads the card."""
    modules: bool = False
    """Each device sits on a module with its own part of the host; a sensor of scope `module` reads both."""


@dataclass(frozen=True, kw_only=True)
class SimTruth(Contract):
    """Everything true about one simulated accelerator and the job on it."""

    step_time_s: Positive = 0.010
    """Compute time of one micro-batch, whatever its size."""
    sample_time_s: NotNegative = 0.0
    """Compute time added by each sample of it."""
    launch_s: NotNegative = 0.0
    """Host time to enqueue a step: small steps become bound by it."""
    setup_s: NotNegative = 0.0
    compile_s: NotNegative = 0.0
    """Duration of an explicit compilation phase before the first step."""
    noise: Noise = field(default_factory=Noise)
    shape: Shape = field(default_factory=Shape)
    input: InputPipeline = field(default_factory=InputPipeline)
    collective: Collective = field(default_factory=Collective)
    memory: Memory = field(default_factory=Memory)
    power: Power = field(default_factory=Power)
    sensors: Annotated[tuple[Sensor, ...], Length(16)] = ()
    """None: the simulated machine has no sensor."""
    node: Node = field(default_factory=Node)
    slow_rank: Count | None = None
    slow_factor: Annotated[float, Bound(ge=1, le=1000)] = 1.0
    """How much slower the slow rank computes."""
    event_scale: Annotated[float, Bound(gt=0, le=1000)] = 1.0
    """Device events report this multiple of the true time: a broken timer, for the cross-check to catch."""
    wall_s_per_s: Annotated[float, Bound(ge=0, le=1000)] = 0.0
    """Real seconds the worker lets pass for each simulated one; 0: as fast as it can."""
