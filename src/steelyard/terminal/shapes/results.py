"""What the verbs print that show and analyse results."""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import TypedDict

from steelyard.contracts.finding import Finding
from steelyard.contracts.record import RunRecord
from steelyard.terminal.shapes.common import ConfigurationData, FigureData, Settings, ShownConfigurationData
from steelyard.terminal.shapes.measure import SectionData


class ListedStudyData(TypedDict):
    """A study with results."""

    study: str
    configurations: int
    runs: int
    completed: int


class ShowStudiesData(TypedDict):
    """`steelyard show`: all studies."""

    shape: Literal["show-studies/1"]
    studies: list[ListedStudyData]


class ShowStudyData(TypedDict):
    """`steelyard show STUDY`, or another selection: configurations."""

    shape: Literal["show-study/1"]
    study: str
    configurations: list[ShownConfigurationData]


class ShowRunData(TypedDict):
    """`steelyard show RUN_ID`: the record as it is stored, of every run with this id."""

    shape: Literal["show-run/1"]
    runs: list[RunRecord]


class DerivedRunData(TypedDict):
    """A record derived again from its raw files."""

    path: str
    same: bool
    record: RunRecord


class ShowDerivedData(TypedDict):
    """`steelyard show RUN_ID --derive`."""

    shape: Literal["show-derived/1"]
    runs: list[DerivedRunData]


class SideData(TypedDict):
    """One side of a comparison."""

    place: str
    """The configuration, or the place in a document."""
    settings: Settings
    figure: FigureData


class RatioData(FigureData):
    """A figure of B over that of A. `jobs` are those of both sides."""

    metric: str
    of: str
    """job, device, module, node or watt."""
    a: float
    b: float
    figure_unit: str
    verdict: str
    percent_faster: float | None
    """B does this many percent more work in the same time than A."""
    jobs_a: int
    jobs_b: int
    answer: str
    """bound: only the end of the interval that is nearer to 1 counts."""
    allows: list[str]
    """What the interval allows for besides the spread."""
    margin: float | None
    findings: list[Finding]


class ComparedPairData(TypedDict):
    """One row of each side, compared."""

    how: str
    """Why these two belong together."""
    factor: str
    metric: str
    verdict: str
    a: SideData
    b: SideData
    findings: list[Finding]
    ratios: list[RatioData]
    """Empty if there are errors."""
    forced: bool
    chosen_from: list[int]
    """From how many rows of each side the best were taken."""
    chosen: list[str]
    """Settings that each side chose for itself."""
    shared: list[str]


class CompareData(TypedDict):
    """The comparison of B with its base A."""

    shape: Literal["compare/1"]
    a: str
    b: str
    factor: str
    inferred: bool
    """Whether the factor was not given, but is the only setting that differs."""
    metric: str
    comparisons: list[ComparedPairData]
    left_out: list[str]


class FactorData(TypedDict):
    """A factor of the efficiency."""

    change: FigureData | None
    """Relative to the base; null: unknown."""
    own: float | None
    """Of this configuration alone."""
    reason: str | None


class RatiosData(TypedDict):
    """What is relative to the base of a curve; null if the curve has errors."""

    devices: int
    speedup: FigureData | None
    efficiency: FigureData | None
    factors: dict[str, FactorData]
    """What the efficiency is the product of."""
    rest: FigureData | None
    rest_is: list[str]
    slowest_over_mean: float | None
    """Computation of the slowest rank over the mean of all ranks."""
    from_crosscheck: bool


class ScalingPointData(ConfigurationData, RatiosData):
    """One number of devices on a curve."""


class UnreliablePointData(ConfigurationData):
    """A number of devices that is not on the curve."""

    devices: int


class MissingPointData(TypedDict):
    """A number of devices without a figure."""

    devices: int
    ended: str


class ReturnedData(TypedDict):
    """What further devices add."""

    devices: int
    following: int
    share: FigureData
    """Share of what they would add at the rate of the devices before them."""


class FitParameterData(TypedDict):
    """A parameter of a model."""

    name: str
    value: float
    low: float | None
    high: float | None
    unit: str


class FitData(TypedDict):
    """A model of the curve, or why it was not fitted."""

    name: str
    refused: str | None
    parameters: list[FitParameterData]
    points: int
    error_percent: float | None


class ProjectionData(TypedDict):
    """What a fit says about more devices."""

    model: str
    devices: int
    throughput: float
    speedup: float
    efficiency: float


class ScalingCurveData(TypedDict):
    """Throughput over the number of devices."""

    label: str
    """The settings that distinguish it from the other curves."""
    answer: str | None
    next: str | None
    """A command that leads on."""
    kind: str
    declared: bool
    blocked: bool
    """Whether errors leave no speed-up to report."""
    base_devices: int
    points: list[ScalingPointData]
    threshold: float
    enough_devices: int | None
    """The largest number of devices whose efficiency is at least the threshold."""
    returns: list[ReturnedData]
    fits: list[FitData]
    projections: list[ProjectionData]
    alone: list[str]
    """Configurations that are on no curve."""
    provisional: list[str]
    unreliable: list[UnreliablePointData]
    missing: list[MissingPointData]
    findings: list[Finding]


class ScalingData(TypedDict):
    """How a job scales over devices."""

    shape: Literal["scaling/1"]
    curves: list[ScalingCurveData]


class BatchPointData(ConfigurationData):
    """One batch size of a curve."""

    batch: int
    """Per device and micro-batch."""
    of_asymptote: float | None
    used: bool
    """Whether the knee rests on it."""
    memory_peak_bytes: float | None


class KneeData(TypedDict):
    """The smallest batch that reaches a share of the highest possible throughput."""

    answer: str
    share: float
    value: float | None
    low: float | None
    high: float | None
    level: float
    unbounded: bool
    """Whether the interval has no upper end."""
    method: str
    asymptote: float | None
    fixed_s: float | None
    """Fixed time per step."""
    sample_s: float | None
    misfit: float | None
    from_batch: float | None
    reason: str


class BatchCurveData(TypedDict):
    """Throughput over the batch size."""

    label: str
    answer: str
    next: str | None
    alone: list[str]
    knee: KneeData | None
    """null: not reported because of errors."""
    asymptote_samples_per_s: float | None
    smallest_reaching: int | None
    """The smallest measured batch at or above the knee."""
    largest_fitting: int | None
    smallest_out_of_memory: int | None
    configurations: list[BatchPointData]
    findings: list[Finding]


class BatchData(TypedDict):
    """The knee of batch-size sweeps, and the largest batches that fit."""

    shape: Literal["batch/1"]
    curves: list[BatchCurveData]


class RankedConfigurationData(ConfigurationData):
    """A configuration in a ranking."""

    rank: int | None
    """null: not ranked."""
    figure: FigureData
    """What is ranked."""
    reliable: bool
    reasons: list[str]
    relative: FigureData | None
    """The figure over that of the best."""
    tied: bool
    """Whether no difference from the best is shown."""


class RankingData(TypedDict):
    """Configurations that do the same work, best first."""

    by: str
    group: str
    """The settings that distinguish it from the other rankings."""
    basis: str
    answer: str
    next: str | None
    best: str | None
    """Selects the best configuration on the command line."""
    configurations: list[RankedConfigurationData]
    findings: list[Finding]


class BestData(TypedDict):
    """Rankings of the configurations of a study."""

    shape: Literal["best/1"]
    rankings: list[RankingData]


class LeftOutJobData(TypedDict):
    """A job whose energy is left out of the means."""

    run_id: str
    reason: str


class EnergyConfigurationData(ConfigurationData):
    """The energy of a configuration."""

    verdict: str
    scope: str
    """What was measured."""
    energy_jobs: int
    """Jobs in the means."""
    left_out: list[LeftOutJobData]
    figures: dict[str, FigureData]


class ShownTraceData(TypedDict):
    """The power over time that can be drawn."""

    run_id: str
    domains: list[str]
    notes: list[str]
    held: list[str]


class MeterData(TypedDict):
    """A comparison with another meter."""

    answer: str
    reasons: list[str]
    ratio: float | None
    """Its joules over ours."""
    difference_w: float | None
    """How much higher its mean power is."""


class EnergyData(TypedDict):
    """The energy of results."""

    shape: Literal["energy/1"]
    configurations: list[EnergyConfigurationData]
    trace: ShownTraceData | None
    meters: dict[str, MeterData]
    """By the name of the meter."""


class ReportData(TypedDict):
    """A report that was written."""

    shape: Literal["report/1"]
    path: str
    files: int
    size_bytes: int
    format: str
    title: str
    sections: list[SectionData]


class QuestionData(TypedDict):
    """A query with a name."""

    text: str
    sql: str


class QueryData(TypedDict):
    """The answer of a query."""

    shape: Literal["query/1"]
    rows: list[dict[str, Any]]
    """Each with the columns of the query."""


class QueryListData(TypedDict):
    """`steelyard query --list`."""

    shape: Literal["query-list/1"]
    questions: dict[str, QuestionData]
    tables: dict[str, list[str]]


class ArchivedData(TypedDict):
    """What `steelyard archive` did."""

    shape: Literal["archive/1"]
    runs: int
    segments: int
    bytes: int
    merged: int
    """Segments that were replaced."""
    waiting: dict[str, str]
    """Studies that were left alone, and why."""
    left: list[str]
    """Runs that were left where they are, and why."""
