"""The plan of a study, and the results of its searches for the largest batch, as lines and as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steelyard.contracts.base import to_json_object
from steelyard.inputs.cost import cost
from steelyard.inputs.study import label
from steelyard.inputs.templates import about, kinds
from steelyard.numbers import short
from steelyard.stats.ratio import MIN_JOBS
from steelyard.terminal.drawing import duration, rounded
from steelyard.terminal.findings import command_line, next_line
from steelyard.terminal.text import count_statuses, many, number, table, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.extension import Extension
    from steelyard.inputs.study import Expansion
    from steelyard.launch.search import SearchResult
    from steelyard.terminal.shapes.measure import SearchData, StudyExtensionData, StudyPlanData


def template_lines() -> list[str]:
    """List the templates of study files by the question that they answer."""
    lines = ["Templates for steelyard study new KIND:"]
    for kind in kinds("studies"):
        lines += wrapped(f"  {kind:<15}{about('studies', kind)}", deeper=" " * 17)
    return [*lines, "", "What a suite runs: steelyard study new --from-suite NAME"]


def search_lines(expansion: Expansion, searches: Sequence[SearchResult]) -> list[str]:
    """Format one row per search, and a line for each that was ended by another error."""
    rows = [
        [
            label(_settings(expansion, search)),
            "none" if search.largest_fitting is None else str(search.largest_fitting),
            "none" if search.smallest_out_of_memory is None else str(search.smallest_out_of_memory),
            str(search.tried),
        ]
        for search in searches
    ]
    lines = table(["search", "largest batch that fits", "smallest out of memory", "runs"], rows).splitlines()
    for search in searches:
        if search.failed is not None:
            lines += wrapped(f"The search ended early: {search.failed.run_id} (batch {search.failed.batch}) failed.")
            lines.append(next_line(f"steelyard show {search.failed.run_id}"))
    return lines


def searches_object(expansion: Expansion, searches: Sequence[SearchResult]) -> list[SearchData]:
    """Return the results of the searches as plain data."""
    return [
        {
            "settings": _settings(expansion, search),
            "largest_fitting": search.largest_fitting,
            "smallest_out_of_memory": search.smallest_out_of_memory,
            "tried": search.tried,
            "over": search.known.over,
            "ended_by": search.failed.run_id if search.failed is not None else None,
        }
        for search in searches
    ]


def plan_lines(expansion: Expansion, there: int, left: Expansion) -> list[str]:
    """List what a study would run and the maximum cost of what is left; `there`: how many runs are already done."""
    price = cost(left)
    rows = []
    if expansion.searches:
        cells = {cell.name: cell for cell in expansion.cells}
        for group in expansion.searches:
            first, last = group.runs[0], group.runs[-1]
            swept = {key: value for key, value in cells[first.configuration].swept.items() if key != "batch"}
            rows.append([label(swept), str(first.devices), f"{first.batch} to {last.batch}", str(group.most_tries)])
        lines = [table(["search", "devices", "batch", "runs at most"], rows), "", f"{many(there, 'run')} already done"]
    else:
        rows = [[label(cell.swept), str(cell.spec.devices), str(expansion.study.repeats)] for cell in expansion.cells]
        lines = [table(["configuration", "devices", "jobs"], rows), ""]
        runs = f"{many(len(expansion.runs), 'run')}, {there} already done"
        lines.append(f"{runs}; random order, seed {expansion.study.seed}")
    hours = "unknown" if price.device_hours is None else f"at most {short(price.device_hours, 3)} device-hours"
    return [*lines, *wrapped(f"Cost: {hours} ({price.basis})")]


def plan_object(expansion: Expansion, there: int, left: Expansion) -> StudyPlanData:
    """Return the plan as plain data."""
    study = expansion.study.name
    return {
        "shape": "study-plan/1",
        "study": study,
        "configurations": [
            {
                "configuration": label(cell.swept),
                "selection": f"{study}/{cell.name}",
                "settings": to_json_object(cell.swept),
            }
            for cell in expansion.cells
        ],
        "order": [spec.run_id for spec in expansion.runs],
        "done": there,
        "device_hours_at_most": cost(left).device_hours,
    }


def extension_lines(extension: Extension, again: str) -> list[str]:
    """List the jobs that a study still needs, why, and their price. `again`: the command of the study."""
    lines = []
    if extension.needs:
        heading = ["configuration", "more jobs", "each takes about", "why"]
        rows = [[label(need.cell.swept), str(need.jobs), duration(need.each_s), need.why] for need in extension.needs]
        # A program has no budget: it runs as long as before.
        if any(need.spec.program is None for need in extension.needs):
            heading.insert(2, "max_seconds")
            for row, need in zip(rows, extension.needs, strict=True):
                row.insert(2, f"{need.spec.budget.max_seconds:g} s" if need.spec.program is None else "-")
        lines = [table(heading, rows), ""]
        jobs = many(sum(need.jobs for need in extension.needs), "more job")
        time_s = sum(need.time_s for need in extension.needs)
        hours = number(sum(need.device_hours for need in extension.needs), 3)
        lines += wrapped(f"Price: {jobs}, about {rounded(time_s)}, {hours} device-hours, by the earlier jobs.")
        lines += wrapped("Jobs with a longer budget replace shorter ones in tables; the shorter ones are kept.")
    for cell, codes in extension.lost:
        fix = command_line(f"{again} --again {','.join(codes)}")
        lines += wrapped(f"{label(cell.swept)}: no job was measured ({count_statuses(codes)})")
        lines.append(f"  after removing the cause: {fix}")
    if not lines:
        lines = wrapped(
            f"Nothing to add: every configuration has {MIN_JOBS} jobs, none too short or with a trend. For longer "
            "jobs, raise budget.max_seconds in the study, or max_steps of its program."
        )
    return lines


def extension_object(extension: Extension, study: str) -> StudyExtensionData:
    """Return the jobs that a study still needs as plain data."""
    return {
        "shape": "study-extend/1",
        "needs": [
            {
                "configuration": label(need.cell.swept),
                "selection": f"{study}/{need.cell.name}",
                "jobs": need.jobs,
                "budget": to_json_object(need.spec.budget),
                "why": need.why,
                "seconds_each": need.each_s,
                "device_hours": need.device_hours,
            }
            for need in extension.needs
        ],
        "lost": [
            {"configuration": label(cell.swept), "selection": f"{study}/{cell.name}", "statuses": dict(codes)}
            for cell, codes in extension.lost
        ],
    }


def _settings(expansion: Expansion, search: SearchResult) -> dict[str, Any]:
    """Return the swept settings other than the batch."""
    cell = next(cell for cell in expansion.cells if cell.name == search.group.runs[0].configuration)
    return {key: value for key, value in cell.swept.items() if key != "batch"}
