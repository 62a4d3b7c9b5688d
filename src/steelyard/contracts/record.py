"""RunRecord: the derived results of one run. Every number has unit, scope, window and aggregation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from steelyard.contracts.base import Bound, Contract, Count, Length, Name, NotNegative, Share, Text
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
    Settings,
    Status,
    Stop,
)
from steelyard.contracts.spec import SCHEMA_VERSION, RunSpec

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
Aggregation = Literal["work over time", "mean", "p50", "p90", "p95", "p99", "sum", "max", "last", "share of time"]
SteadyAnswer = Literal["steady", "warming up throughout", "slowing down", "no steady state"]
Severity = Literal["error", "warning", "note"]


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

    @property
    def top(self) -> float:
        """Return the upper end; infinity if there is none."""
        return math.inf if self.high is None else self.high


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
class Finding(Contract):
    """An error, warning or note about the results."""

    code: Annotated[str, Length(8, r"^SY[0-9]{3}$")]
    severity: Severity
    message: Text
    fix: Text
    """What to do, in one sentence."""
    command: Text = ""
    """The command that does it; empty: no command can."""
    place: Text = ""
    """Row of a table or side of a comparison; empty: the record itself."""
    evidence: Text = ""
    """The numbers behind it."""


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
    launch: Launch | None
    environment: Environment | None
    load: Annotated[tuple[HostLoad, ...], Length(20_000)] = ()
    """How busy each node was; empty: simulated, or unknown."""
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
    stop: Stop | None
    steady: Steady | None
    crosscheck: CrossCheck | None
    steps_seen: Count
    """Steps with samples from every rank."""
    ranks_seen: Count
    seconds_measured: NotNegative
    quantities: Annotated[dict[str, Quantity], Length(1000)]
    findings: Annotated[tuple[Finding, ...], Length(1000)]
    raw: Annotated[tuple[RawFile, ...], Length(100_000)]
    derived_by: Text
