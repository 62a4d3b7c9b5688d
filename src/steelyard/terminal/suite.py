"""Suites as lines and as plain data: the list, and what one measures, states, chooses, needs and costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steelyard.contracts.base import to_json_object
from steelyard.inputs.cost import cost
from steelyard.inputs.study import label
from steelyard.numbers import short
from steelyard.terminal.drawing import rounded
from steelyard.terminal.findings import command_line, merged, next_line, tally
from steelyard.terminal.text import capital, count_statuses, many, table, with_interval, wrapped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from steelyard.analysis.probe import StudyForecast
    from steelyard.analysis.summary import CellSummary
    from steelyard.inputs.study import Expansion
    from steelyard.inputs.suite import SettingSource, Size, Suite, SuiteFolder

INDENT = "  "


def suites_lines(found: Sequence[SuiteFolder]) -> list[str]:
    """List the suites."""
    rows = [[entry.suite.name, entry.suite.title, str(len(entry.suite.part))] for entry in found]
    return [table(["suite", "what it measures", "parts"], rows), "", next_line("steelyard suite show NAME")]


def suites_object(found: Sequence[SuiteFolder]) -> list[dict[str, Any]]:
    """Return the suites as plain data."""
    return [
        {"suite": entry.suite.name, "title": entry.suite.title, "document": entry.suite.document,
         "parts": [part.name for part in entry.suite.part]}
        for entry in found
    ]  # fmt: skip


def suite_lines(
    found: SuiteFolder,
    size: Size,
    cited: str,
    expansions: Mapping[str, Expansion],
    forecasts: Mapping[str, StudyForecast],
) -> list[str]:
    """Describe a suite at one size, with its cost."""
    suite = found.suite
    lines = wrapped(f"{suite.name}: {suite.title}", deeper="")
    lines += ["", *wrapped(suite.question, deeper="")]
    lines += ["", *wrapped(suite.about, deeper="")] if suite.about else []
    lines += ["", *wrapped(f"Document: {cited}")] if cited else []
    titles = {part.name: part.title for part in suite.part}
    rows = [
        [name, titles[name], str(len(expansion.cells)), str(len(expansion.runs)), expansion.study.name]
        for name, expansion in expansions.items()
    ]
    lines += ["", table(["part", f"at size {size}", "configurations", "runs", "study"], rows)]
    lines += _setting_lines(found, size, [*expansions])
    lines += _section(
        "Different from the document:",
        [entry.text for entry in suite.deviation if not entry.parts or set(entry.parts) & set(expansions)],
    )
    needed = [f"{entry.name} (format {entry.format}): {entry.get}" for entry in suite.data]
    lines += _section("Data (steelyard data show FORMAT; without --data DIR the input is synthetic):", needed)
    lines += ["", *_cost_lines(expansions, forecasts)]
    return [*lines, "", next_line(f"steelyard suite run {found.asked} --size {size}")]


def part_lines(expansion: Expansion, cells: Sequence[CellSummary]) -> list[str]:
    """Format the results of a part: one row per configuration, and how many findings there are."""
    found = {cell.cell: cell for cell in cells}
    labels = _labels([planned.swept for planned in expansion.cells])
    rows = []
    for planned, named in zip(expansion.cells, labels, strict=True):
        cell = found.get(planned.name)
        rate = with_interval(cell.throughput) if cell is not None else ""
        rows.append([named, count_statuses(cell.statuses) if cell is not None else "no run", rate])
    findings = [entry for cell in cells for entry in cell.findings]
    told = (
        f"{capital(tally(merged(findings, of=len(cells))))}: {command_line(f'steelyard show {expansion.study.name}')}"
    )
    return [table(["configuration", "runs", "throughput, samples/s"], rows), *wrapped(told)]


def _labels(swept: Sequence[dict[str, Any]]) -> list[str]:
    """Return each configuration in one line, without settings that do not tell it from the others."""
    kept: list[str] = []
    for key in dict.fromkeys(key for settings in swept for key in settings):
        before, after = (len({str([one.get(name) for name in keys]) for one in swept}) for keys in (kept, [*kept, key]))
        if after > before:
            kept.append(key)
    return [label({key: one[key] for key in kept if key in one} or one) for one in swept]


def _setting_lines(found: SuiteFolder, size: Size, parts: Sequence[str]) -> list[str]:
    sources = [
        entry for entry in found.suite.setting
        if (not entry.parts or set(entry.parts) & set(parts)) and (not entry.sizes or size in entry.sizes)
    ]  # fmt: skip
    stated = [f'{_named(entry)}: {entry.stated}, "{entry.words}"' for entry in sources if entry.stated]
    chosen = [f"{_named(entry)}: {entry.why}" for entry in sources if entry.why]
    return [
        *_section("Settings that the document states:", stated),
        *_section("Settings chosen here, and why:", chosen),
    ]


def _named(entry: SettingSource) -> str:
    values = entry.value if isinstance(entry.value, tuple) else () if entry.value is None else (entry.value,)
    named = f"{entry.name} = {', '.join(map(_written, values))}" if values else entry.name
    return f"{named} ({', '.join(entry.parts)})" if entry.parts else named


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _section(title: str, entries: Sequence[str]) -> list[str]:
    if not entries:
        return []
    return ["", *wrapped(title), *(line for text in entries for line in wrapped(f"{INDENT}{text}", deeper=INDENT * 2))]


def _cost_lines(expansions: Mapping[str, Expansion], forecasts: Mapping[str, StudyForecast]) -> list[str]:
    if forecasts:
        hours = sum(entry.device_hours for entry in forecasts.values())
        long_s = 3600 * sum(entry.hours for entry in forecasts.values())
        lines = wrapped(
            f"Cost: about {short(hours, 3)} device-hours, {rounded(long_s)} if one run follows the other, by short "
            "runs of each configuration."
        )
        lost = sum(len(entry.unknown) for entry in forecasts.values())
        return lines + (
            wrapped(f"{many(lost, 'configuration')} failed in the short run and are not counted.") if lost else []
        )
    prices = [cost(expansion).device_hours for expansion in expansions.values()]
    known = [price for price in prices if price is not None]
    most = f"at most {short(sum(known), 3)} device-hours" if len(known) == len(prices) else "unknown"
    why = (
        "from the budgets, without set-up" if len(known) == len(prices) else "whole trainings have no limit in seconds"
    )
    return wrapped(f"Cost: {most} ({why}); --probe predicts it from short runs.")


def suite_object(
    found: SuiteFolder,
    size: Size,
    cited: str,
    expansions: Mapping[str, Expansion],
    forecasts: Mapping[str, StudyForecast],
) -> dict[str, Any]:
    """Return the description of a suite as plain data."""
    suite: Suite = found.suite
    return {
        "suite": suite.name, "title": suite.title, "question": suite.question, "document": cited, "size": size,
        "parts": [
            {"part": name, "study": expansion.study.name, "configurations": len(expansion.cells),
             "runs": len(expansion.runs),
             "device_hours": forecasts[name].device_hours if name in forecasts else None,
             "device_hours_at_most": cost(expansion).device_hours}
            for name, expansion in expansions.items()
        ],
        "settings": [to_json_object(entry) for entry in found.setting_sources()],
        "deviations": [to_json_object(entry) for entry in suite.deviation],
        "data": [to_json_object(entry) for entry in suite.data],
    }  # fmt: skip
