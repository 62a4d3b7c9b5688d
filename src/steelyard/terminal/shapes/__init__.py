"""The documents that `--json` prints: which fields each has, and what they mean.

Every document names its shape and version, such as `scaling/1`. The version changes if a field is renamed, removed or
gets another meaning; new fields may appear without that. Figures are in base units (s, J, W, 1/s), sizes in bytes,
shares are parts of 1. Unknown is null, and so is the end of an interval that has none.

It is imported only for the schema of a verb, and for the types: pydantic takes its time.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from steelyard.terminal.shapes.checks import (
    AuditData,
    ExpectData,
    ExplainData,
    ExplainSettingsData,
    ImportedData,
    PackData,
    PackSchemesData,
)
from steelyard.terminal.shapes.common import ErrorData
from steelyard.terminal.shapes.machine import (
    CompletionData,
    DataCheckData,
    DataListData,
    DataShowData,
    DoctorData,
    SelftestAcceleratorData,
    SelftestData,
    SelftestHardwareData,
    SiteCheckData,
    SiteListData,
    SiteNewData,
    SiteShowData,
    WorkloadsData,
    WorkloadShowData,
)
from steelyard.terminal.shapes.measure import (
    RunData,
    RunLoadData,
    StatusAdoptData,
    StatusData,
    StudyExtensionData,
    StudyNewData,
    StudyPlanData,
    StudyRunData,
    StudySentData,
    StudyTemplatesData,
    SuiteListData,
    SuiteReportData,
    SuiteRunData,
    SuiteShowData,
    VerifyData,
    VerifyHistoryData,
    VerifyPlanData,
    WrapData,
)
from steelyard.terminal.shapes.results import (
    ArchivedData,
    BatchData,
    BestData,
    CompareData,
    EnergyData,
    QueryData,
    QueryListData,
    ReportData,
    ScalingData,
    ShowDerivedData,
    ShowRunData,
    ShowStudiesData,
    ShowStudyData,
)

DOCUMENTS: dict[str, tuple[type, ...]] = {
    "run": (RunData, RunLoadData),
    "wrap": (WrapData,),
    "study": (StudyRunData, StudyPlanData, StudyExtensionData, StudySentData, StudyTemplatesData, StudyNewData),
    "status": (StatusData, StatusAdoptData),
    "verify": (VerifyData, VerifyPlanData, VerifyHistoryData),
    "suite": (SuiteListData, SuiteShowData, SuiteRunData, SuiteReportData),
    "show": (ShowStudiesData, ShowStudyData, ShowRunData, ShowDerivedData),
    "compare": (CompareData,),
    "best": (BestData,),
    "scaling": (ScalingData,),
    "batch": (BatchData,),
    "energy": (EnergyData,),
    "report": (ReportData,),
    "query": (QueryData, QueryListData),
    "archive": (ArchivedData,),
    "audit": (AuditData,),
    "expect": (ExpectData,),
    "import": (ImportedData,),
    "pack": (PackData, PackSchemesData),
    "explain": (ExplainData, ExplainSettingsData),
    "doctor": (DoctorData,),
    "site": (SiteListData, SiteNewData, SiteShowData, SiteCheckData),
    "selftest": (SelftestData, SelftestAcceleratorData, SelftestHardwareData),
    "workloads": (WorkloadsData, WorkloadShowData),
    "data": (DataListData, DataShowData, DataCheckData),
    "completion": (CompletionData,),
}
"""The documents of each verb."""


def output_schema(verb: str) -> dict[str, Any]:
    """Return the JSON Schema of what a verb prints with --json."""
    whole: Any = reduce(or_, (*DOCUMENTS[verb], ErrorData))
    # The docstrings of fields are part of it; finding them in the source takes a moment.
    made: TypeAdapter[Any] = TypeAdapter(whole, config=ConfigDict(use_attribute_docstrings=True))
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"steelyard {verb} --json"}
    return {**about, **made.json_schema(mode="serialization")}
