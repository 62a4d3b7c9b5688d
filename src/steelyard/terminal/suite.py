"""A suite as lines and as plain data: what it measures, states, chooses, needs and costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from steelyard.analysis.reached import reached
from steelyard.analysis.rows import scaled
from steelyard.contracts.base import to_json_object
from steelyard.extras import line_for_modules
from steelyard.inputs.cost import cost
from steelyard.inputs.study import label, written
from steelyard.inputs.suite import applies, data_formats, plan_part, recipe_names
from steelyard.numbers import short
from steelyard.rules.table.units import unit_of
from steelyard.terminal.drawing import duration, rounded
from steelyard.terminal.findings import command_line, merged, next_line, tally
from steelyard.terminal.tables import generation_lines, not_measured_as
from steelyard.terminal.text import capital, count_statuses, many, spec_notes, table, with_interval, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from steelyard.analysis.probe import StudyForecast
    from steelyard.analysis.summary import CellSummary
    from steelyard.inputs.study import Expansion
    from steelyard.inputs.suite import Choice, Deviation, NotRun, Planned, Reason, SettingSource, Size, SuiteFolder
    from steelyard.terminal.shapes.measure import LeftOutData, SuiteShowData

INDENT = "  "
COLUMNS = 100
"""Of the table of parts, whose titles are long."""
FOUND = ("hours", "failed")
"""Reasons that are found out by running."""
NAMED = 6
"""The most configurations of a part that a line names."""


@dataclass(frozen=True)
class SuiteShown:
    """A suite at one size, as `steelyard suite show` describes it."""

    suite_folder: SuiteFolder
    choice: Choice
    cited: str
    expansions: Mapping[str, Expansion]
    forecasts: Mapping[str, StudyForecast]
    left_out: Sequence[NotRun]
    missing: Mapping[str, Sequence[str]]
    """Modules that are missing here, each with the parts that need it."""


def suite_lines(shown: SuiteShown, settings: str, again: str) -> list[str]:
    """Describe a suite at one size: what it runs, needs and costs.

    `settings`: the command that lists where its settings come from; `again`: the command that runs it.
    """
    suite = shown.suite_folder.suite
    lines = wrapped(f"{suite.name}: {suite.title}", deeper="")
    lines += ["", *wrapped(suite.question, deeper="")]
    lines += ["", *wrapped(suite.about, deeper="")] if suite.about else []
    lines += ["", *wrapped(f"Document: {shown.cited}")] if shown.cited else []
    titles = {part.name: part.title for part in suite.part}
    rows = [
        [name, titles[name], str(len(expansion.cells)), str(len(expansion.runs)), _price(shown, name)]
        for name, expansion in shown.expansions.items()
    ]
    header = ["part", f"at size {shown.choice.size}", "configurations", "runs", "device-hours"]
    lines += ["", table(header, rows, COLUMNS)]
    lines += [line for text in left_out_lines(shown.left_out, shown.choice) for line in wrapped(text)]
    lines += _cost_lines(shown)
    if shown.missing:
        lines += ["", *wrapped(f"{capital(packages_line(shown.missing))}:"), INDENT + line_for_modules(shown.missing)]
    lines += _data_lines(shown)
    lines += _weights_lines(shown)
    lines += ["", *wrapped(_count_sources(shown)), INDENT + settings]
    checks = [f"steelyard verify {name}" for name in recipe_names(shown.suite_folder)]
    checks += [f"steelyard audit {suite.document}"] if shown.cited and "." not in suite.document else []
    lines += _section("The document's own figures and claims:", checks)
    return [*lines, "", next_line(again)]


def settings_lines(shown: SuiteShown) -> list[str]:
    """List how a suite differs from its document, and where its settings come from."""
    suite = shown.suite_folder.suite
    lines = wrapped(f"{suite.name}, size {shown.choice.size}: where its settings come from")
    different = [
        f"{', '.join(entry.parts) or 'all parts'} ({entry.about}): {entry.text}" for entry in _deviations(shown)
    ]
    lines += _section("Different from the document:", different)
    stated, chosen, common = _sources(shown)
    lines += _section(
        "Settings that the document states:",
        [f'{_named(entry)}: {entry.stated}, "{entry.words}"' for entry in stated],
    )
    lines += _section("Settings chosen here, and why:", [f"{_named(entry)}: {entry.why}" for entry in chosen])
    return lines + _section("As in every suite (--json tells why):", [", ".join(map(_named, common))])


def _count_sources(shown: SuiteShown) -> str:
    """Say how many settings are stated or chosen, and how many differences are known."""
    stated, chosen, _ = _sources(shown)
    counts = [(len(stated), "stated by the document"), (len(chosen), "chosen here, with a reason")]
    known = len(list(_deviations(shown)))
    listed = ", ".join(f"{count} {how}" for count, how in counts if count)
    return f"Settings: {listed}" + (f"; {many(known, 'known difference')} from it:" if known else ":")


def _deviations(shown: SuiteShown) -> Iterator[Deviation]:
    for entry in shown.suite_folder.suite.deviation:
        if not entry.parts or set(entry.parts) & set(shown.expansions):
            yield entry


def _data_lines(shown: SuiteShown) -> list[str]:
    """Say which data sets are read, and where to get them."""
    suite, choice = shown.suite_folder.suite, shown.choice
    used = {name for part in suite.part if part.name in shown.expansions for name in data_formats(suite, part)}
    used &= used if choice.synthetic else {*choice.data}
    entries = [
        f"{entry.format}: {entry.name}; {entry.get}" if choice.synthetic else f"{entry.format}: {entry.name}"
        for entry in suite.data
        if entry.format in used
    ]
    title = "Data sets that --data DIR reads from DIR/FORMAT; with --synthetic the input is generated:"
    if not choice.synthetic:
        title = "Data sets that are read from --data:"
    elif choice.data:
        title = "The input is generated; --data DIR reads from DIR/FORMAT instead:"
    return _section(title, entries)


def _weights_lines(shown: SuiteShown) -> list[str]:
    """Say which files with pre-trained weights are read, or could be."""
    suite, choice = shown.suite_folder.suite, shown.choice
    if choice.size == "tiny":
        return []
    parts = [part for part in suite.part if part.pretrained and part.name in shown.expansions]
    files = {str(planned.weights_file) for part in parts for planned in plan_part(suite, part, choice)}
    title = "Pre-trained weights that are read from --weights:"
    if not choice.weights:
        title = "Pre-trained weights that --weights DIR reads from DIR; without it, weights are random:"
    return _section(title, [", ".join(sorted(files & {*choice.weights} or files))] if files else [])


def left_out_lines(entries: Sequence[NotRun], choice: Choice) -> list[str]:
    """Name what does not run, in one line per reason; what was found out by running, in one line per part."""
    lines = []
    for entry in left_out_object([entry for entry in entries if entry.why not in FOUND], choice):
        text = f"left out, because {entry['reason']}"
        if entry["configurations"]:
            text += f": {many(entry['configurations'], 'configuration')}"
        if entry["devices"]:
            text += f" with {', '.join(map(str, entry['devices']))}"
        if entry["parts"]:
            text += f"; nothing is left of {', '.join(entry['parts'])}"
        lines.append(text)
    found = [entry for entry in entries if entry.why in FOUND]
    return lines + [
        f"left out, because {_reason(one.why, one.planned, choice)}: {name_configurations(one)}" for one in found
    ]


def name_configurations(entry: NotRun) -> str:
    """Name configurations of a part in one line."""
    if entry.whole:
        return f"all of {entry.part} ({many(len(entry.planned), 'configuration')})"
    names = _names(entry)
    if len(names) > NAMED + 1:
        names[NAMED:] = [f"{len(names) - NAMED} more (--json names them)"]
    return f"{entry.part}: {'; '.join(names)}"


def _names(entry: NotRun) -> list[str]:
    """Return the names of configurations, by what is different between those of their part."""
    labels = _labels([planned.settings for planned in entry.among])
    by_planned = dict(zip(map(id, entry.among), labels, strict=True))
    return [by_planned[id(planned)] for planned in entry.planned]


def left_out_object(entries: Sequence[NotRun], choice: Choice) -> list[LeftOutData]:
    """Return what does not run as plain data, by reason."""
    made: list[LeftOutData] = []
    for why in dict.fromkeys(entry.why for entry in entries):
        same = [entry for entry in entries if entry.why == why]
        planned = [each for entry in same for each in entry.planned]
        made.append(
            {
                "reason": _reason(why, planned, choice),
                "configurations": len(planned),
                "devices": sorted({each.get("devices") for each in planned}) if why == "devices" else [],
                "parts": [entry.part for entry in same if entry.whole],
                "named": {entry.part: _names(entry) for entry in same},
            }
        )
    return made


def _reason(why: Reason, planned: Sequence[Planned], choice: Choice) -> str:
    formats = ", ".join(sorted({each.reads for each in planned if each.reads}))
    if why == "devices":
        return choice.there.text if choice.there is not None else ""
    if why == "data":
        return f"--data has no {formats}"
    if why == "evaluation":
        return f"an evaluation needs a data set ({formats}, with --data DIR)"
    if why == "hours":
        return f"{duration(3600 * (choice.hours or 0))} is too short"
    if why == "failed":
        return "a run did not complete"
    return "the numbers of --devices allow no configuration"


def packages_line(missing: Mapping[str, Sequence[str]]) -> str:
    """Say which packages are missing, and which parts need them."""
    needed = "; ".join(f"{module} (for {', '.join(parts)})" for module, parts in missing.items())
    return f"not installed here: {needed}"


def _price(shown: SuiteShown, name: str) -> str:
    if name in shown.forecasts:
        return f"about {short(shown.forecasts[name].device_hours, 2)}"
    most = cost(shown.expansions[name]).device_hours
    return "unknown" if most is None else f"at most {short(most, 2)}"


def part_lines(expansion: Expansion, cells: Sequence[CellSummary], size: Size) -> list[str]:
    """Format the results of a part: one row per configuration, and how many findings there are.

    Figures of the size tiny are of reduced models, so its rows only say what runs.
    """
    by_name = {cell.name: cell for cell in cells}
    labels = _labels([planned.swept for planned in expansion.cells])
    rows = []
    for planned, named in zip(expansion.cells, labels, strict=True):
        cell = by_name.get(planned.name)
        if cell is None:
            rows.append([named, "no run", ""])
        elif size == "tiny":
            rows.append([named, count_statuses(cell.statuses), not_measured_as(cell.statuses) or "yes"])
        else:
            rows.append([named, count_statuses(cell.statuses), _reached(cell)])
    findings = [entry for cell in cells for entry in cell.findings]
    told = (
        f"{capital(tally(merged(findings, of=len(cells))))}: {command_line(f'steelyard show {expansion.study.name}')}"
    )
    lines = spec_notes(cell.spec for cell in expansion.cells)
    if size == "tiny":
        return [*lines, table(["configuration", "jobs", "runs"], rows), *wrapped(told)]
    lines.append(table(["configuration", "jobs", "reached"], rows))
    names = {planned.name: named for planned, named in zip(expansion.cells, labels, strict=True)}
    return [*lines, *generation_lines(cells, names), *wrapped(told)]


def _reached(cell: CellSummary) -> str:
    """Return the figure of a configuration with the unit that tables have, or why it is unknown."""
    amount = reached(cell)
    quantity = amount.quantity if amount is not None else None
    if amount is None or quantity is None:
        return with_interval(cell.throughput)
    known = unit_of(amount.unit)
    shown = scaled(amount, 1 / known[1] if known is not None else 1.0, quantity.scope).quantity
    return f"{with_interval(shown or quantity)} {amount.unit}"


def _labels(swept: Sequence[dict[str, Any]]) -> list[str]:
    """Return each configuration in one line, without settings that do not tell it from the others."""
    kept: list[str] = []
    for key in dict.fromkeys(key for settings in swept for key in settings):
        before, after = (len({str([one.get(name) for name in keys]) for one in swept}) for keys in (kept, [*kept, key]))
        if after > before:
            kept.append(key)
    return [label({key: one[key] for key in kept if key in one} or one) for one in swept]


def _sources(shown: SuiteShown) -> tuple[list[SettingSource], list[SettingSource], list[SettingSource]]:
    """Return the settings that the document states, those chosen by the suite, and those of all suites."""
    specs = {name: [cell.spec for cell in expansion.cells] for name, expansion in shown.expansions.items()}
    size, folder = shown.choice.size, shown.suite_folder
    sources = [entry for entry in folder.suite.setting if applies(entry, size, specs)]
    own = {entry.name for entry in folder.suite.setting}
    common = [
        entry
        for entry in folder.setting_sources()
        if entry.name not in own and entry.value is not None and applies(entry, size, specs)
    ]
    return [entry for entry in sources if entry.stated], [entry for entry in sources if entry.why], common


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
        "size": shown.choice.size,
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
        "left_out": left_out_object(shown.left_out, shown.choice),
        "missing": {module: list(parts) for module, parts in shown.missing.items()},
        "settings": [to_json_object(entry) for entry in shown.suite_folder.setting_sources()],
        "deviations": [to_json_object(entry) for entry in suite.deviation],
        "data": [to_json_object(entry) for entry in suite.data],
        "recipes": recipe_names(shown.suite_folder),
    }
