"""A suite as lines and as plain data: what it measures, states, chooses, needs and costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from steelyard.contracts.base import to_json_object
from steelyard.inputs.cost import cost
from steelyard.inputs.study import label, written
from steelyard.inputs.suite import applies, recipe_names
from steelyard.numbers import short
from steelyard.terminal.drawing import rounded
from steelyard.terminal.findings import command_line, merged, next_line, tally
from steelyard.terminal.tables import generation_lines
from steelyard.terminal.text import capital, count_statuses, many, spec_notes, table, with_interval, wrapped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from steelyard.analysis.probe import StudyForecast
    from steelyard.analysis.summary import CellSummary
    from steelyard.inputs.study import Expansion
    from steelyard.inputs.suite import SettingSource, Size, SuiteFolder
    from steelyard.terminal.shapes.measure import SuiteShowData

INDENT = "  "


@dataclass(frozen=True)
class SuiteShown:
    """A suite at one size, as `steelyard suite show` describes it."""

    suite_folder: SuiteFolder
    size: Size
    cited: str
    expansions: Mapping[str, Expansion]
    forecasts: Mapping[str, StudyForecast]
    left_out: Mapping[str, str]
    """Parts that cannot run with what was chosen, with the reason."""


def suite_lines(shown: SuiteShown, again: str) -> list[str]:
    """Describe a suite at one size: what it runs and costs, then where its settings come from. `again`: to run it."""
    suite_folder, suite, size = shown.suite_folder, shown.suite_folder.suite, shown.size
    lines = wrapped(f"{suite.name}: {suite.title}", deeper="")
    lines += ["", *wrapped(suite.question, deeper="")]
    lines += ["", *wrapped(suite.about, deeper="")] if suite.about else []
    lines += ["", *wrapped(f"Document: {shown.cited}")] if shown.cited else []
    titles = {part.name: part.title for part in suite.part}
    rows = [
        [name, titles[name], str(len(expansion.cells)), str(len(expansion.runs)), _price(shown, name)]
        for name, expansion in shown.expansions.items()
    ]
    lines += ["", table(["part", f"at size {size}", "configurations", "runs", "device-hours"], rows)]
    lines += [line for name, reason in shown.left_out.items() for line in wrapped(f"{name}: left out: {reason}")]
    lines += _cost_lines(shown)
    needed = [f"{entry.name} (format {entry.format}): {entry.get}" for entry in suite.data]
    lines += _section("Data, in --data DIR as DIR/FORMAT; without it the input is synthetic:", needed)
    different = [
        f"{', '.join(entry.parts) or 'all parts'}: {entry.text}"
        for entry in suite.deviation
        if not entry.parts or set(entry.parts) & set(shown.expansions)
    ]
    lines += _section("Different from the document:", different)
    lines += _setting_lines(shown)
    checks = [f"steelyard verify {name}" for name in recipe_names(suite_folder)]
    checks += [f"steelyard audit {suite.document}"] if shown.cited and "." not in suite.document else []
    lines += _section("The document's own figures and claims:", checks)
    return [*lines, "", next_line(again)]


def _price(shown: SuiteShown, name: str) -> str:
    if name in shown.forecasts:
        return f"about {short(shown.forecasts[name].device_hours, 2)}"
    most = cost(shown.expansions[name]).device_hours
    return "unknown" if most is None else f"at most {short(most, 2)}"


def part_lines(expansion: Expansion, cells: Sequence[CellSummary]) -> list[str]:
    """Format the results of a part: one row per configuration, and how many findings there are."""
    by_name = {cell.name: cell for cell in cells}
    labels = _labels([planned.swept for planned in expansion.cells])
    rows = []
    for planned, named in zip(expansion.cells, labels, strict=True):
        cell = by_name.get(planned.name)
        rate = with_interval(cell.throughput) if cell is not None else ""
        rows.append([named, count_statuses(cell.statuses) if cell is not None else "no run", rate])
    findings = [entry for cell in cells for entry in cell.findings]
    told = (
        f"{capital(tally(merged(findings, of=len(cells))))}: {command_line(f'steelyard show {expansion.study.name}')}"
    )
    lines = spec_notes(cell.spec for cell in expansion.cells)
    lines.append(table(["configuration", "jobs", "throughput, samples/s"], rows))
    names = {planned.name: named for planned, named in zip(expansion.cells, labels, strict=True)}
    return [*lines, *generation_lines(cells, names), *wrapped(told)]


def _labels(swept: Sequence[dict[str, Any]]) -> list[str]:
    """Return each configuration in one line, without settings that do not tell it from the others."""
    kept: list[str] = []
    for key in dict.fromkeys(key for settings in swept for key in settings):
        before, after = (len({str([one.get(name) for name in keys]) for one in swept}) for keys in (kept, [*kept, key]))
        if after > before:
            kept.append(key)
    return [label({key: one[key] for key in kept if key in one} or one) for one in swept]


def _setting_lines(shown: SuiteShown) -> list[str]:
    specs = {name: [cell.spec for cell in expansion.cells] for name, expansion in shown.expansions.items()}
    sources = [entry for entry in shown.suite_folder.suite.setting if applies(entry, shown.size, specs)]
    stated = [f'{_named(entry)}: {entry.stated}, "{entry.words}"' for entry in sources if entry.stated]
    chosen = [f"{_named(entry)}: {entry.why}" for entry in sources if entry.why]
    own = {entry.name for entry in shown.suite_folder.suite.setting}
    common = [
        _named(entry)
        for entry in shown.suite_folder.setting_sources()
        if entry.name not in own and entry.value is not None and applies(entry, shown.size, specs)
    ]
    return [
        *_section("Settings that the document states:", stated),
        *_section("Settings chosen here, and why:", chosen),
        *_section("As in every suite (--json tells why):", [", ".join(common)]),
    ]


def _named(entry: SettingSource) -> str:
    values = entry.value if isinstance(entry.value, tuple) else () if entry.value is None else (entry.value,)
    named = f"{entry.name} = {', '.join(map(written, values))}" if values else entry.name
    return f"{named} ({', '.join(entry.parts)})" if entry.parts else named


def _section(title: str, entries: Sequence[str]) -> list[str]:
    if not entries:
        return []
    return ["", *wrapped(title), *(line for text in entries for line in wrapped(f"{INDENT}{text}", deeper=INDENT * 2))]


def _cost_lines(shown: SuiteShown) -> list[str]:
    if not shown.forecasts:
        return wrapped("Device-hours are those of the measured steps, without set-up; --probe predicts all of them.")
    hours = sum(entry.device_hours for entry in shown.forecasts.values())
    long_s = 3600 * sum(entry.hours for entry in shown.forecasts.values())
    lines = wrapped(
        f"About {short(hours, 3)} device-hours in all, {rounded(long_s)} if one run follows the other, by short runs "
        "of each configuration."
    )
    lost = sum(len(entry.unknown) for entry in shown.forecasts.values())
    return lines + (wrapped(f"{many(lost, 'configuration')} failed in the short run, not counted.") if lost else [])


def suite_object(shown: SuiteShown) -> SuiteShowData:
    """Return the description of a suite as plain data."""
    suite = shown.suite_folder.suite
    return {
        "shape": "suite-show/1",
        "suite": suite.name,
        "title": suite.title,
        "question": suite.question,
        "document": shown.cited,
        "size": shown.size,
        "parts": [
            {
                "part": name,
                "study": expansion.study.name,
                "configurations": len(expansion.cells),
                "runs": len(expansion.runs),
                "device_hours": shown.forecasts[name].device_hours if name in shown.forecasts else None,
                "device_hours_at_most": cost(expansion).device_hours,
            }
            for name, expansion in shown.expansions.items()
        ],
        "left_out": dict(shown.left_out),
        "settings": [to_json_object(entry) for entry in shown.suite_folder.setting_sources()],
        "deviations": [to_json_object(entry) for entry in suite.deviation],
        "data": [to_json_object(entry) for entry in suite.data],
        "recipes": recipe_names(shown.suite_folder),
    }
