"""What the verbs print that measure: run, wrap, study, status, verify, suite."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Discriminator
from typing_extensions import TypedDict

from steelyard.contracts.finding import Finding
from steelyard.contracts.record import RunRecord
from steelyard.contracts.spec import Budget
from steelyard.inputs.recipe import Expect
from steelyard.inputs.suite import DataNeeded, Deviation, SettingSource
from steelyard.launch.campaign import Price, RunShape
from steelyard.terminal.shapes.common import Counts, FigureData, Settings, ShownConfigurationData


class ExpectedData(TypedDict):
    """The band of a figure on comparable machines."""

    answer: str
    """inside, below, above, band (no value was given), or no comparable data."""
    metric: NotRequired[str]
    value: NotRequired[float | None]
    unit: NotRequired[str]
    """As printed; `value` and `band` are in base units."""
    band: NotRequired[BandData | None]
    machines: NotRequired[list[KnownMachineData]]
    settings: NotRequired[Settings]
    unknown: NotRequired[list[str]]
    """Settings that some of the machines do not state."""


class BandData(TypedDict):
    """Limits of a figure; null: no limit on that side."""

    low: float | None
    high: float | None
    level: NotRequired[float]


class KnownMachineData(TypedDict):
    """A machine with a known figure."""

    name: str
    value: float
    figures: int
    source: str


class RunData(TypedDict):
    """What `steelyard run` measured."""

    shape: Literal["run/1"]
    configurations: list[ShownConfigurationData]
    expected: list[ExpectedData]
    """What machines like this one reach, for each configuration that was measured on a real device."""
    runs: list[RunRecord]


class ForecastData(TypedDict):
    """What a full run with this pipeline would do."""

    bound: str
    wait_share: float
    samples_per_s_at_most: float


class PipelineData(TypedDict):
    """An input pipeline alone."""

    workers: int
    pipeline: FigureData
    forecast: ForecastData | None


class RunLoadData(TypedDict):
    """`steelyard run --mode load`: the model alone, and the input pipeline alone for several numbers of workers."""

    shape: Literal["run-load/1"]
    model_alone: FigureData
    pipelines: list[PipelineData]


class WrapData(TypedDict):
    """What `steelyard wrap` measured. It is printed to standard error: standard output is the program's."""

    shape: Literal["wrap/1"]
    configurations: list[ShownConfigurationData]
    runs: list[RunRecord]


class SearchData(TypedDict):
    """The search for the largest batch that fits."""

    settings: dict[str, Any]
    """The varied settings other than the batch."""
    largest_fitting: int | None
    smallest_out_of_memory: int | None
    tried: int
    over: bool
    ended_by: str | None
    """The run whose failure for another reason ended the search."""


class StudyRunData(TypedDict):
    """What a study measured, in this call and before."""

    shape: Literal["study/1"]
    made: int
    """Runs made now."""
    skipped: int
    """Runs that were made before."""
    configurations: list[ShownConfigurationData]
    searches: list[SearchData]


class StudyTemplatesData(TypedDict):
    """`steelyard study new`: the templates."""

    shape: Literal["study-templates/1"]
    templates: list[str]


class StudyNewData(TypedDict):
    """`steelyard study new KIND`: the file that was written."""

    shape: Literal["study-new/1"]
    file: str


class PlannedConfigurationData(TypedDict):
    """A configuration that a study would run."""

    configuration: str
    selection: str
    settings: dict[str, Any]


class StudyPlanData(TypedDict):
    """`steelyard study --dry-run`: what would run here."""

    shape: Literal["study-plan/1"]
    study: str
    configurations: list[PlannedConfigurationData]
    order: list[str]
    """Ids of the runs, in the order of their execution."""
    done: int
    """Runs that have a result."""
    device_hours_at_most: float | None


class NeedData(TypedDict):
    """Further jobs of a configuration."""

    configuration: str
    selection: str
    jobs: int
    budget: Budget
    why: str
    seconds_each: float
    device_hours: float


class LostData(TypedDict):
    """A configuration of which no job was measured."""

    configuration: str
    selection: str
    statuses: Counts


class StudyExtensionData(TypedDict):
    """`steelyard study --extend --dry-run`: jobs that a study still needs."""

    shape: Literal["study-extend/1"]
    needs: list[NeedData]
    lost: list[LostData]


class SubmittedJobData(TypedDict):
    """A job of a campaign."""

    id: str | None
    kind: str
    tasks: int
    runs: int
    layout: RunShape
    task_limit_s: float
    folder: str


class CampaignData(TypedDict):
    """The jobs of a study at a site."""

    study: str
    campaign: str
    site: str
    pool: str
    price: Price
    jobs: list[SubmittedJobData]


class StudySentData(TypedDict):
    """`steelyard study --site`: what was submitted, or with --dry-run would be."""

    shape: Literal["study-sent/1"]
    dry_run: bool
    sent: CampaignData | None
    """null: there was nothing to submit."""
    under_way: int
    """Runs that wait or run."""
    left_over: int
    """Runs for which the queue has no room."""
    queue_full: str
    """What the scheduler says about that."""


StudyData = Annotated[StudyRunData | StudyPlanData | StudyExtensionData | StudySentData, Discriminator("shape")]


class CauseData(TypedDict):
    """Why runs did not complete."""

    status: str
    reason: str
    runs: int


class CountedConfigurationData(TypedDict):
    """A configuration of a submitted study."""

    configuration: str
    selection: str
    statuses: Counts


class CampaignStatusData(TypedDict):
    """A campaign of a submitted study."""

    path: str
    site: str
    pool: str
    jobs: int
    tasks: int
    runs: int
    left: int
    """Runs that are not collected."""
    withdrawn: int
    """Runs that were cancelled before they were submitted."""
    vanished: int
    """Runs without a record whose folders are gone."""
    ids: list[str]
    """The scheduler's ids of the jobs that still have runs to collect."""


class SubmittedStudyData(TypedDict):
    """The status of a submitted study."""

    study: str
    open: int
    """Runs without a record."""
    collected: int
    """Runs collected now."""
    totals: Counts
    configurations: list[CountedConfigurationData]
    causes: list[CauseData]
    too_short: list[str]
    waits_for: Counts
    halted: Counts
    """Why tasks that have started do not go on."""
    campaigns: list[CampaignStatusData]
    not_ours: dict[str, str]
    """Open campaigns of somebody else, with their user."""
    problems: list[str]


class StatusData(TypedDict):
    """The status of submitted studies."""

    shape: Literal["status/1"]
    studies: list[SubmittedStudyData]


class TakeoverData(TypedDict):
    """What taking over a campaign would do."""

    campaign: str
    owner: str
    scheduler: str
    site: str
    pool: str
    ids: list[str]
    collected: int
    not_submitted: int
    deleted: str


class StatusAdoptData(TypedDict):
    """`steelyard status --adopt`: what it would do."""

    shape: Literal["status-adopt/1"]
    adopt: str
    """The word to give to --adopt."""
    campaigns: list[TakeoverData]


class FigureVerdictData(TypedDict):
    """A documented figure and its verdict."""

    expect: Expect
    band: BandData
    configuration: str
    selection: str
    verdict: str
    why: str
    figure: FigureData
    needed_jobs: int | None
    """Further jobs for a verdict if figure and spread stay; null: there is one, or more than can be made."""
    more_jobs: int | None
    """Jobs to add next."""
    busy: int
    """Jobs on a busy machine."""
    not_steady: int
    statuses: Counts
    runs: list[str]


class VerifyData(TypedDict):
    """The verdict of a recipe."""

    shape: Literal["verify/1"]
    recipe: str
    occasion: str
    verdict: Literal["pass", "fail", "cannot tell"]
    figures: list[FigureVerdictData]


class PlannedFigureData(TypedDict):
    """A figure that a recipe would judge."""

    configuration: str
    expect: Expect
    band: BandData


class VerifyPlanData(TypedDict):
    """`steelyard verify --dry-run`: what it would run."""

    shape: Literal["verify-plan/1"]
    recipe: str
    jobs: int
    runs: int
    figures: list[PlannedFigureData]
    device_hours_at_most: float | None


class OccasionData(TypedDict):
    """A figure on one occasion."""

    study: str
    started_at: str
    values: list[float]
    verdict: str
    figure: FigureData


class ChangedFactsData(TypedDict):
    """A change in a history, and facts of the environment that changed with it."""

    index: int
    """The first occasion after the change."""
    earliest: int
    latest: int
    before: float
    after: float
    p_value: float
    unit: str
    facts: dict[str, list[str]]


class FigureHistoryData(TypedDict):
    """A documented figure over time."""

    expect: Expect
    unit: str
    other_settings: int
    occasions: list[OccasionData]
    changes: list[ChangedFactsData]
    findings: list[Finding]


class VerifyHistoryData(TypedDict):
    """`steelyard verify --history`."""

    shape: Literal["verify-history/1"]
    recipe: str
    histories: list[FigureHistoryData]


class ListedSuiteData(TypedDict):
    """A suite."""

    suite: str
    title: str
    document: str
    parts: list[str]


class SuiteListData(TypedDict):
    """The suites."""

    shape: Literal["suite-list/1"]
    suites: list[ListedSuiteData]


class SuitePartData(TypedDict):
    """A part of a suite at one size."""

    part: str
    study: str
    configurations: int
    runs: int
    device_hours: float | None
    device_hours_at_most: float | None


class LeftOutData(TypedDict):
    """Configurations of a suite that do not run, for one reason."""

    reason: str
    configurations: int
    devices: list[int]
    """The numbers of devices that there are not."""
    parts: list[str]
    """Parts of which nothing runs."""
    named: dict[str, list[str]]
    """The settings of each configuration, by part."""


class SuiteShowData(TypedDict):
    """What a suite measures, at one size."""

    shape: Literal["suite-show/1"]
    suite: str
    title: str
    question: str
    document: str
    size: str
    parts: list[SuitePartData]
    left_out: list[LeftOutData]
    missing: dict[str, list[str]]
    """Modules that are missing here, each with the parts that need it."""
    settings: list[SettingSource]
    deviations: list[Deviation]
    data: list[DataNeeded]
    recipes: list[str]


class SuiteRunData(TypedDict):
    """What a suite measured, by part."""

    shape: Literal["suite-run/1"]
    parts: dict[str, StudyData]
    left_out: list[LeftOutData]


class SectionData(TypedDict):
    """A section of a page."""

    name: str
    title: str
    answer: str


class ColumnData(TypedDict):
    """A column of a table."""

    name: str
    unit: str


class CellData(TypedDict):
    """An entry of a table."""

    text: str
    value: NotRequired[str | int | float]
    """For machines: in full, such as conditions whose letters are the text."""
    low: NotRequired[float]
    high: NotRequired[float]
    runs: NotRequired[list[str]]
    codes: NotRequired[list[str]]
    """Codes of the findings that apply to it."""


class TableData(TypedDict):
    """A table of a report."""

    name: str
    title: str
    columns: list[ColumnData]
    rows: list[list[CellData]]
    notes: list[str]


class SuiteReportData(TypedDict):
    """The report of a suite that was written."""

    shape: Literal["suite-report/1"]
    path: str
    title: str
    sections: list[SectionData]
    answers: list[TableData]
    """What the printed figures say about ours. The first column is the kind of answer, the last one its conditions."""
