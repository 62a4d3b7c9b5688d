"""RunRecord: the derived results of one run. Every number has unit, scope, window and aggregation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from steelyard.contracts.base import AtLeastOne, Bound, Contract, Count, Length, Name, NotNegative, Share, Text
from steelyard.contracts.finding import Finding
from steelyard.contracts.observe import (
    CrossCheck,
    DataFacts,
    DeviceFacts,
    Environment,
    Evaluation,
    Launch,
    LossTrace,
    MemoryPeak,
    ModelFacts,
    Phase,
    QueueFacts,
    Settings,
    Status,
    Stop,
)
from steelyard.contracts.spec import SCHEMA_VERSION, RunSpec
from steelyard.contracts.wrap import ProgramEnd

Scope = Literal["die", "device", "module", "node", "rank", "job"]
Window = Literal[
    "setup",
    "data",
    "compile",
    "first step",
    "first epoch",
    "later epochs",
    "warmup",
    "steady",
    "after start-up",
    "all steps",
    "to quality",
    "evaluation",
    "crosscheck",
    "run",
]
Aggregation = Literal[
    "work over time", "mean", "p50", "p90", "p95", "p99", "sum", "min", "max", "last", "share of time", "share of work"
]
SteadyAnswer = Literal["steady", "warming up throughout", "slowing down", "no steady state"]
METHOD_OF_SENSORS = "resolution, timing and stated gain of the sensors"
LARGEST = 1e60
"""Beyond any real result, and small enough that no calculation with results overflows; so is 1 / LARGEST."""


def possible(value: float | None) -> bool:
    """Return whether a result can have this value."""
    return value is None or value == 0 or 1 / LARGEST <= abs(value) <= LARGEST


@dataclass(frozen=True, kw_only=True)
class Interval(Contract):
    """A confidence interval, what it covers, and why it may be only approximate."""

    low: float
    high: float | None
    """None: there is no upper bound, and `low` is a bound at the level on its own side."""
    level: Annotated[float, Bound(gt=0, lt=1)] = 0.95
    method: Text
    covers: Text
    """What the interval covers: this job, this node, or jobs across nodes."""
    approximate: Annotated[tuple[Text, ...], Length(20)] = ()
    """Reasons why the interval is approximate; empty: its coverage has been verified."""
    low_without_gain: float | None = None
    """Energy: the interval without the tolerance that the makers of the sensors state (gain). That error is the same in
    every run on the same sensors, so it does not matter for their ratio. None: not an energy, or not known."""
    high_without_gain: float | None = None

    def __post_init__(self) -> None:
        if not all(map(possible, (self.low, self.high, self.low_without_gain, self.high_without_gain))):
            raise ValueError(f"low: an end of the interval is out of range; valid: up to {LARGEST:g}")

    @property
    def from_sensors(self) -> bool:
        """Whether the interval allows for what the sensors of an energy can be wrong by."""
        return self.method == METHOD_OF_SENSORS or self.low_without_gain is not None

    @property
    def top(self) -> float:
        """Return the upper end; infinity if there is none."""
        return math.inf if self.high is None else self.high

    @property
    def gain(self) -> float | None:
        """Return the part of the half-width that comes from gain; None if it is not known."""
        if self.high is None or self.low_without_gain is None or self.high_without_gain is None:
            return None
        return (self.high - self.low - (self.high_without_gain - self.low_without_gain)) / 2

    def times(self, factor: float) -> Interval:
        """Return the interval of the value multiplied by a number above 0."""

        def scaled(end: float | None) -> float | None:
            return None if end is None else end * factor

        return replace(
            self,
            low=self.low * factor,
            high=scaled(self.high),
            low_without_gain=scaled(self.low_without_gain),
            high_without_gain=scaled(self.high_without_gain),
        )

    def inverse(self, over: float) -> Interval:
        """Return the interval of `over` divided by a value above 0; of an end at or below 0 there is no bound."""

        def turned(end: float | None) -> float | None:
            return over / end if end is not None and end > 0 else None

        return replace(
            self,
            # In a record of somebody else the upper end may be the lower one.
            low=turned(self.top) or 0.0,
            high=turned(self.low),
            low_without_gain=turned(self.high_without_gain),
            high_without_gain=turned(self.low_without_gain),
        )


# Reasons for doubt of an energy that have a rule of their own, by their beginning.
DISAGREES = "counter against integral: "
DEVICES = "devices: "
SAMPLER = "sampler: "
HOLDS_HOST = "holds more than the accelerators: "
SPECIAL_REASONS = (DISAGREES, DEVICES, SAMPLER, HOLDS_HOST)


@dataclass(frozen=True, kw_only=True)
class Validity(Contract):
    """Whether an energy value is valid, and why not."""

    verdict: Literal["valid", "doubtful", "invalid"]
    reasons: Annotated[tuple[Text, ...], Length(50)] = ()
    """Reasons for doubt; empty: none."""
    channels: Annotated[tuple[Text, ...], Length(10_000)] = ()
    """Channels that were read: node and channel."""
    domains: Annotated[tuple[Text, ...], Length(10_000)] = ()
    """Domains that were counted, each once: node and domain."""
    coverage: Annotated[float, Bound(ge=0, le=1)] | None = None
    largest_gap_s: NotNegative | None = None


@dataclass(frozen=True, kw_only=True)
class Quantity(Contract):
    """A measured number, or the reason why it is unknown."""

    value: float | None
    unit: Text
    scope: Scope
    window: Window
    aggregation: Aggregation
    interval: Interval | None = None
    reason: Text | None = None
    """Why the value is unknown."""
    validity: Validity | None = None
    """Energy and power: whether the value is valid."""

    def __post_init__(self) -> None:
        if (self.value is None) == (self.reason is None):
            raise ValueError("value: must be a number, or null with a reason; valid: exactly one of value and reason")
        if not possible(self.value):
            raise ValueError(f"value: out of range; valid: up to {LARGEST:g}")


@dataclass(frozen=True, kw_only=True)
class Steady(Contract):
    """The steps that the results are taken from, and the reason."""

    answer: SteadyAnswer
    start_step: Count
    stop_step: Count
    """First step after the window."""
    reason: Text
    trend: float | None = None
    """Change of the log step time from the first third of the steps to the last, without the slow first steps; above 0
    the job got slower. None: too few steps."""
    change_steps: Annotated[tuple[Count, ...], Length(5000)] = ()


@dataclass(frozen=True, kw_only=True)
class LoadShares(Contract):
    """How busy a node was in a part of the run, from counters of its kernel. None: the kernel does not tell."""

    seconds: NotNegative
    load_average: NotNegative | None = None
    """Tasks that run or wait to run, averaged over the last minute of this part."""
    own_cpus: NotNegative | None = None
    """CPUs that the run used on average, on this node."""
    other_cpus: NotNegative | None = None
    """CPUs that other processes used on average, of those that the run may use."""
    steal_share: Share | None = None
    """Share of the CPU time that the hypervisor gave to other machines."""
    throttled_share: Share | None = None
    """Share of the scheduling periods in which a CPU quota stopped the run; None also without a quota."""
    cpu_wait_share: Share | None = None
    """Share of the time in which some task of the node waited for a CPU."""
    memory_wait_share: Share | None = None
    io_wait_share: Share | None = None


@dataclass(frozen=True, kw_only=True)
class HostLoad(Contract):
    """How busy one node of the job was. A simulated run has none: its clock does not depend on the machine."""

    node: Text
    cpus: Count
    """CPUs that the job may use there."""
    before: LoadShares | None = None
    """From the start of the run to its first step."""
    during: LoadShares | None = None
    """While steps were measured."""
    device_processes: Count | None = None
    """Processes on the job's most used device while steps were measured, with the run's own; None: unknown."""


@dataclass(frozen=True, kw_only=True)
class DeviceConditions(Contract):
    """The state of one device in the window of the throughput. None: unknown, and `unknown` has the reason."""

    node: Text
    device: Text
    """As the sensors name it, such as gpu0 or amd0.die1."""
    backend: Name
    readings: Count
    """Readings in the window, one a second."""
    clock_mhz: NotNegative | None = None
    """Mean clock."""
    clock_highest_mhz: NotNegative | None = None
    """Highest clock that was read in the whole run."""
    clock_limit_mhz: NotNegative | None = None
    """Highest clock that the device supports."""
    memory_clock_mhz: NotNegative | None = None
    """Mean clock of its memory."""
    temperature_c: float | None = None
    """Highest temperature."""
    memory_temperature_c: float | None = None
    """Highest temperature of its memory."""
    power_capped: Share | None = None
    """Share of the time in which a power limit held the clock back."""
    thermal: Share | None = None
    """Share of the time in which the temperature did."""
    hardware: Share | None = None
    """Share of the time in which the hardware slowed itself down, for example by a power brake."""
    setting: Share | None = None
    """Share of the time in which a clock that somebody set did."""
    idle: Share | None = None
    """Share of the time in which the clock was low because there was nothing to do."""
    corrected: Count | None = None
    """Corrected ECC errors in the whole run."""
    uncorrected: Count | None = None
    """Uncorrected ECC errors in the whole run."""
    limit_w: NotNegative | None = None
    """Lowest power limit."""
    default_limit_w: NotNegative | None = None
    """Power limit as the maker set it."""
    unknown: Annotated[dict[str, Text], Length(32)]
    """Why fields are unknown."""


WrapLevel = Literal[0, 1, 2, 3]
"""How much was seen of a program: 0: only its processes; 1: figures that it prints; 2: its steps, by hooks; 3: also its
communication."""


@dataclass(frozen=True, kw_only=True)
class WrappedRun(Contract):
    """What was seen of a program that was measured without a change. The spec has the settings that were read back."""

    level: WrapLevel
    processes: Count
    """Python processes that reported in."""
    world: AtLeastOne | None = None
    """Ranks of the program; None: none has reported in."""
    devices_asked: AtLeastOne | None = None
    """Devices that the study or the user asked for; None: one, or nobody asked."""
    ranks_reported: Count = 0
    """Ranks that reported their training."""
    steps: Count = 0
    """Of the ranks' counts of steps, updates and so on, the largest: ranks that train together have the same."""
    updates: Count = 0
    skipped_updates: Count = 0
    phantom_updates: Count = 0
    optimizers: Count = 0
    backwards: Count = 0
    accumulation: AtLeastOne | None = None
    """Micro-batches per step; None: unknown, or not always the same on every rank."""
    batch: AtLeastOne | None = None
    """Samples per micro-batch; None: the same."""
    step_reason: Text = ""
    """Why the steps are unknown or uncertain."""
    samples: Literal["seen", "stated", "unknown"] = "unknown"
    """Whether the samples of a step were seen, or only stated by the user (`program.samples_per_step`)."""
    samples_reason: Text = ""
    """Why they were not seen."""
    tokens_known: bool = False
    tokens_reason: Text = ""
    evaluation_s: NotNegative = 0.0
    """Time of evaluations and of checkpoints, which belongs to no step; of the rank with the most."""
    evaluation_mode_s: NotNegative = 0.0
    """The part of `evaluation_s` of which only the mode of the model tells that it is one."""
    checkpoint_s: NotNegative = 0.0
    flops_per_step: NotNegative | None = None
    """Floating-point operations of a step of the whole job, counted in the second pass; None: not counted."""
    exposed_comm_s: NotNegative | None = None
    """Time of a step in which a rank only communicates, in the second pass; the mean of the ranks."""
    busy_s: NotNegative | None = None
    """Time of a step in which the device computes, the same; None: the host itself computes."""
    second_reason: Text = ""
    """Why the second pass counted nothing, or not everything."""
    unknown: Annotated[dict[str, Text], Length(50)]
    """Settings that could not be read back, with the reason. The spec has their defaults, which mean nothing."""
    end: ProgramEnd | None = None
    """How the command ended; with several nodes, on the one that ended worst. None: it left no trace of its end."""


@dataclass(frozen=True, kw_only=True)
class PrintedClaim(Contract):
    """A figure that a program prints, beside what was measured."""

    kind: Name
    """step_time, samples_per_s, tokens_per_s, mfu and so on."""
    format: Name
    """Format of the lines that it is in."""
    lines: Count
    """Lines of the output that it is the mean of."""
    value: NotNegative
    """In seconds, per second, or as a share."""
    verdict: Literal["agrees", "differs", "unknown"]
    measured: NotNegative | None = None
    factor: NotNegative | None = None
    """Printed over measured; if a known mistake explains it, the factor of that mistake."""
    causes: Annotated[tuple[Text, ...], Length(20)] = ()
    """Known mistakes that explain the factor; several if they explain it equally well."""
    by_definition: bool = False
    """The format is known to count something else, such as the first step: no mistake of this program."""
    sentence: Text


@dataclass(frozen=True, kw_only=True)
class RawFile(Contract):
    """A raw file that the record was derived from."""

    name: Text
    bytes: Count
    sha256: Annotated[str, Length(64, r"^[0-9a-f]{64}$")]


@dataclass(frozen=True, kw_only=True)
class RunRecord(Contract):
    """The record of one run. It can be derived again from the raw files beside it."""

    schema_version: Literal[1] = SCHEMA_VERSION
    run_id: Name
    spec: RunSpec
    status: Status
    wrapped: WrappedRun | None = None
    """What was seen of the user's program; None: a workload."""
    launch: Launch | None
    environment: Environment | None
    load: Annotated[tuple[HostLoad, ...], Length(20_000)] = ()
    """How busy each node was; empty: simulated, or unknown."""
    conditions: Annotated[tuple[DeviceConditions, ...], Length(1024)] = ()
    """The state of the job's devices; of many only those with the lowest clock. Empty: unknown, or no accelerator."""
    settings: Settings | None = None
    """Settings in effect, as read back by the worker."""
    device: DeviceFacts | None = None
    model: ModelFacts | None = None
    memory: MemoryPeak | None = None
    data: DataFacts | None = None
    """None: synthetic data."""
    loss: LossTrace | None = None
    evaluations: Annotated[tuple[Evaluation, ...], Length(10_000)] = ()
    phases: Annotated[tuple[Phase, ...], Length(20_000)]
    printed: Annotated[tuple[PrintedClaim, ...], Length(100)] = ()
    """Figures that the program prints; empty for a workload."""
    stop: Stop | None
    steady: Steady | None
    crosscheck: CrossCheck | None
    crosscheck_failure: Text | None = None
    """Why the second pass failed after the measurement; None: it did not."""
    queue: QueueFacts | None = None
    """How the host of the first rank kept its device busy; None: unknown, or the host itself computes."""
    steps_seen: Count
    """Steps with samples from every rank."""
    ranks_seen: Count
    seconds_measured: NotNegative
    quantities: Annotated[dict[str, Quantity], Length(1000)]
    findings: Annotated[tuple[Finding, ...], Length(1000)]
    raw: Annotated[tuple[RawFile, ...], Length(100_000)]
    redacted: Count = 0
    """Texts that looked like secrets and were replaced by [redacted]."""
    derived_by: Text

    def __post_init__(self) -> None:
        # Everything divides by them.
        for name in ("step_time_mean", "throughput", "throughput_per_device"):
            quantity = self.quantities.get(name)
            if quantity is not None and quantity.value is not None and quantity.value <= 0:
                raise ValueError(f"quantities.{name}.value: must be positive; valid: a number above 0")
