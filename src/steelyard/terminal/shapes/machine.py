"""What the verbs print about this machine, its sites, workloads and data sets."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from steelyard.contracts.accelerator import AcceleratorReport
from steelyard.inputs.site import Site


class CheckedData(TypedDict):
    """The result of one check."""

    name: str
    verdict: str
    found: str
    fix: str


class DoctorData(TypedDict):
    """Checks of this node."""

    shape: Literal["doctor/1"]
    checks: list[CheckedData]


class PoolCheckData(CheckedData):
    """The result of one check of a site."""

    pool: str


class SiteCheckData(TypedDict):
    """Checks of a site."""

    shape: Literal["site-check/1"]
    checks: list[PoolCheckData]


class ListedSiteData(TypedDict):
    """A site file."""

    site: str
    scheduler: str
    pools: str
    file: str


class SiteListData(TypedDict):
    """The site files, and the templates for new ones."""

    shape: Literal["site-list/1"]
    sites: list[ListedSiteData]
    templates: list[str]


class SiteNewData(TypedDict):
    """A site file that was written."""

    shape: Literal["site-new/1"]
    file: str


class SiteShowData(TypedDict):
    """A site, as its file describes it."""

    shape: Literal["site-show/1"]
    site: Site


class ProvedData(TypedDict):
    """A formula compared with the truth."""

    group: str
    what: str
    truth: str
    measured: str
    error: str
    holds: bool


class SelftestData(TypedDict):
    """The check of the arithmetic."""

    shape: Literal["selftest/1"]
    holds: bool
    seconds: float
    checks: list[ProvedData]


class SelftestAcceleratorData(TypedDict):
    """`steelyard selftest --accelerator`."""

    shape: Literal["selftest-accelerator/1"]
    report: AcceleratorReport


class SelftestHardwareData(TypedDict):
    """`steelyard selftest --hardware`."""

    shape: Literal["selftest-hardware/1"]
    verdict: str
    reasons: list[str]
    report: dict[str, Any] | None
    """What can be sent to others; null: there is no sensor."""


class MemoryData(TypedDict):
    """Memory of a model, in fp32."""

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    optimizer: str
    activation_bytes: int | None
    method: str


class PublishedSizeData(TypedDict):
    """The number of parameters in a publication."""

    parameters: float
    source: str


class WorkloadData(TypedDict):
    """A workload as it is counted in the catalogue."""

    title: str
    family: str
    modes: list[str]
    data: list[str]
    metric: str | None
    needs: list[str]
    extras: list[str]
    published: PublishedSizeData | None
    note: str | None
    reduced: dict[str, Any]
    """Options of the model at the size tiny."""
    options: dict[str, Any]
    parameters: int | None
    tokens_per_sample: int | None
    flops_per_sample: dict[str, float | None]
    flops_method: dict[str, str]
    memory: MemoryData | None
    given: NotRequired[dict[str, Any]]
    """Options that it was counted with."""


class WorkloadsData(TypedDict):
    """The workloads."""

    shape: Literal["workloads/1"]
    counted_with: dict[str, str]
    workloads: dict[str, WorkloadData]
    not_counted: list[str]


class WorkloadShowData(WorkloadData):
    """One workload."""

    shape: Literal["workloads-show/1"]
    name: str


class ListedFormatData(TypedDict):
    """A format of data sets."""

    name: str
    kind: str
    title: str
    needs: list[str]
    missing: list[str]


class DataListData(TypedDict):
    """The formats of data sets."""

    shape: Literal["data-list/1"]
    formats: list[ListedFormatData]


class DataShowData(TypedDict):
    """A format of data sets."""

    shape: Literal["data-show/1"]
    name: str
    kind: str
    title: str
    layout: str
    source: str
    needs: list[str]


class SplitData(TypedDict):
    """A part of a data set."""

    examples: int
    classes: int | None
    window: int | None
    decoded: int


class DataProblemData(TypedDict):
    """A problem of a data set."""

    split: str
    problem: str
    next: str


class DataCheckData(TypedDict):
    """What a data set holds, and its problems."""

    shape: Literal["data-check/1"]
    format: str
    path: str
    splits: dict[str, SplitData]
    files: int | None
    size_bytes: int | None
    identity: str | None
    problems: list[DataProblemData]
    next: str | None


class CompletionData(TypedDict):
    """The completion script of a shell."""

    shape: Literal["completion/1"]
    shell: str
    script: str
