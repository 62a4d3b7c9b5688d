"""The true behaviour of a simulated accelerator. The formulas of the product are tested against these numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from steelyard.contracts.base import AtLeastOne, Bound, Contract, Count, Length, NotNegative, Positive, Share

NoiseKind = Literal["none", "normal", "ar1", "lognormal", "pareto"]


@dataclass(frozen=True, kw_only=True)
class Noise(Contract):
    """Random factors on a step's compute time. Each has mean 1, so they do not change the true mean."""

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
    """Spread of a factor drawn once per job: another node, allocation or day."""
    walk_cv: Annotated[float, Bound(ge=0, le=0.05)] = 0.0
    """Spread of the increments of a random walk of the step time; gives no steady state."""
    shared: bool = False
    """All ranks have the same factors instead of independent ones."""


@dataclass(frozen=True, kw_only=True)
class Shape(Contract):
    """How the compute time changes over the steps of a job, apart from noise."""

    warmup_amplitude: NotNegative = 0.0
    """The first step is slower by this share; the excess decays exponentially."""
    warmup_steps: Positive = 1.0
    """Time constant of that decay, in steps."""
    compile_step_s: NotNegative = 0.0
    """Added to the first step: lazy compilation."""
    drift_per_step: Annotated[float, Bound(ge=0, le=1)] = 0.0
    """Share of the base time added by each step."""
    throttle_at_step: Count | None = None
    """From this step on the device is throttled."""
    throttle_factor: Annotated[float, Bound(ge=1, le=1000)] = 1.0
    spike_every: Count = 0
    """One of this many steps is slower (a checkpoint, a garbage collection); 0: none."""
    spike_factor: Annotated[float, Bound(ge=1, le=1000)] = 1.0


@dataclass(frozen=True, kw_only=True)
class InputPipeline(Contract):
    """How fast one rank's loader delivers samples."""

    samples_per_s: Positive | None = None
    """None: no limit."""
    prefetch_batches: AtLeastOne = 2
    epoch_restart_s: NotNegative = 0.0
    """Time before the first batch of each epoch but the first."""


@dataclass(frozen=True, kw_only=True)
class Link(Contract):
    """Latency of one hop and bandwidth of the ring, for jobs of at least `from_ranks` ranks."""

    from_ranks: AtLeastOne = 1
    latency_s: NotNegative = 0.0
    bytes_per_s: Positive = 1e11


@dataclass(frozen=True, kw_only=True)
class Collective(Contract):
    """The gradient all-reduce after each optimizer step: a ring, not overlapped with compute."""

    message_bytes: Count = 0
    links: Annotated[tuple[Link, ...], Length(64)] = (Link(),)
    """The entry with the largest `from_ranks` that the job reaches applies."""

    def seconds(self, ranks: int) -> float:
        """Return the time of a ring all-reduce: 2(R-1) hops, each device sends 2(R-1)/R of the message."""
        fitting = [link for link in self.links if link.from_ranks <= ranks]
        if ranks == 1 or self.message_bytes == 0 or not fitting:
            return 0.0
        link = max(fitting, key=lambda entry: entry.from_ranks)
        hops = 2 * (ranks - 1)
        return hops * link.latency_s + hops / ranks * self.message_bytes / link.bytes_per_s


@dataclass(frozen=True, kw_only=True)
class Memory(Contract):
    """Memory of the device."""

    limit_bytes: Positive | None = None
    fixed_bytes: NotNegative = 0.0
    bytes_per_sample: NotNegative = 0.0


@dataclass(frozen=True, kw_only=True)
class Power(Contract):
    """Power of one simulated device in each state, and of its host."""

    idle_w: NotNegative = 0.0
    compute_w: NotNegative = 0.0
    comm_w: NotNegative | None = None
    """During communication; None: idle_w."""
    compile_w: NotNegative | None = None
    """During compilation; None: idle_w."""
    host_w: NotNegative = 0.0
    """Of each node's host, all the time; modules of one node share it equally."""


@dataclass(frozen=True, kw_only=True)
class Sensor(Contract):
    """A simulated sensor on every domain of a scope, with its errors."""

    scope: Literal["die", "device", "module", "cpu", "node"] = "device"
    kind: Literal["counter", "gauge"] = "counter"
    resolution: NotNegative = 1e-3
    average_s: NotNegative = 0.0
    period_s: Positive = 0.1
    phase_s: NotNegative = 0.0
    seen_s: Positive | None = None
    wrap: Positive | None = None
    gain_error: Annotated[float, Bound(gt=-1, le=1)] = 0.0
    """Share by which readings are too high."""
    noise_w: NotNegative = 0.0
    drop_share: Annotated[float, Bound(ge=0, le=1)] = 0.0
    """Share of the readings that are lost."""
    frozen_after_s: NotNegative | None = None
    gain: Annotated[float, Bound(ge=0, lt=1)] = 0.05
    """Tolerance stated by the maker; `gain_error` is the true error."""
    limit_w: Positive | None = None
    """Power limit stated by the maker."""


@dataclass(frozen=True, kw_only=True)
class State(Contract):
    """State of the simulated devices from a time on. None: the device does not report it."""

    from_s: NotNegative = 0.0
    rank: Count | None = None
    """The device of this rank; None: all devices."""
    clock_mhz: NotNegative | None = None
    memory_clock_mhz: NotNegative | None = None
    temperature_c: float | None = None
    power_capped: Share | None = None
    thermal: Share | None = None
    hardware: Share | None = None
    corrected: Count | None = None
    uncorrected: Count | None = None
    limit_w: Positive | None = None
    default_limit_w: Positive | None = None
    """Of the first state of a device; constant."""


@dataclass(frozen=True, kw_only=True)
class Node(Contract):
    """How simulated devices are placed on nodes."""

    devices_per_node: AtLeastOne | None = None
    """None: all ranks on one node."""
    dies_per_card: AtLeastOne = 1
    """More than 1: a rank is one die of a card, and a sensor of scope `device` reads the card."""
    modules: bool = False
    """Each device is on a module with its own part of the host; a sensor of scope `module` reads both."""


@dataclass(frozen=True, kw_only=True)
class SimTruth(Contract):
    """A simulated accelerator and the job on it."""

    step_time_s: Positive = 0.010
    """Compute time of a micro-batch, without the part that depends on its size."""
    sample_time_s: NotNegative = 0.0
    """Compute time added by each sample."""
    launch_s: NotNegative = 0.0
    """Host time to enqueue a step."""
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
    """Empty: no sensor."""
    states: Annotated[tuple[State, ...], Length(64)] = ()
    """What the sensors report of the devices' state, in order of time; it has no effect on the step times."""
    node: Node = field(default_factory=Node)
    slow_rank: Count | None = None
    slow_factor: Annotated[float, Bound(ge=1, le=1000)] = 1.0
    """How many times slower the slow rank computes."""
    event_scale: Annotated[float, Bound(gt=0, le=1000)] = 1.0
    """Device events report this multiple of the true time, as a broken timer would."""
    wall_s_per_s: Annotated[float, Bound(ge=0, le=1000)] = 0.0
    """Real seconds per simulated second; 0: as fast as possible."""
