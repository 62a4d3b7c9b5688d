"""The plan, verdict and history of a recipe, as lines and as plain data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from steelyard.analysis.verify import price
from steelyard.contracts.base import to_json_object
from steelyard.errors import printable
from steelyard.inputs.cost import cost
from steelyard.inputs.recipe import cell_of
from steelyard.inputs.study import label
from steelyard.numbers import change, short
from steelyard.stats.band import MAX_NEEDED, Band
from steelyard.terminal.drawing import rounded
from steelyard.terminal.findings import finding_lines, findings_object, next_line
from steelyard.terminal.plain import number_object
from steelyard.terminal.text import many, number, sentence, table, tuned_note, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.verify import FigureVerdict, History
    from steelyard.inputs.recipe import Recipe
    from steelyard.inputs.study import Expansion
    from steelyard.stats.band import BandJudgement
    from steelyard.terminal.shapes.common import FigureData
    from steelyard.terminal.shapes.measure import BandData, FigureHistoryData, FigureVerdictData, VerifyPlanData

MAX_UNIT = 40
MAX_CELL = 200


def verdict_lines(recipe: Recipe, outcomes: Sequence[FigureVerdict], *, again: str, study: str) -> list[str]:
    """Format the verdict on each figure, then its jobs. `again`: the command that verifies this recipe."""
    lines = []
    for outcome in outcomes:
        texts = [*_outcome_lines(recipe, outcome), *_open_lines(outcome, outcomes)]
        lines += [line for text in texts for line in wrapped(text)]
    more = max((outcome.more_jobs or 0 for outcome in outcomes), default=0)
    if more:
        lines.append(next_line(f"{again} --more {more}"))
    elif any(outcome.verdict == "cannot tell" and not outcome.open for outcome in outcomes):
        lines.append(next_line(again))
    for outcome in outcomes:
        if outcome.records:
            heading = ["job", "status", _with_unit(outcome.expect.metric, outcome.unit), "node", "started at (UTC)"]
            lines += ["", *table(heading, _job_rows(outcome)).splitlines()]
    lines += wrapped(tuned_note(record.spec for outcome in outcomes for record in outcome.records))
    lines += wrapped(f"Study: {study}")
    return lines + (wrapped(f"Documented in: {recipe.documents}") if recipe.documents else [])


def _outcome_lines(recipe: Recipe, outcome: FigureVerdict) -> list[str]:
    judgement, expected = outcome.judgement, outcome.expect
    subject = recipe.name + (f" at {label(dict(expected.at))}" if expected.at else "")
    if judgement is None:
        return [f"{outcome.verdict.upper()}: {subject}: {outcome.why}"]
    unit = "" if outcome.unit == "1" else outcome.unit
    value = f"{expected.metric} {number(judgement.value)} {_brackets(judgement.low, judgement.high)}{unit}".rstrip()
    against = f"expected {band_words(outcome.band)}"
    if expected.value is not None:
        off = _change(judgement.value / expected.value, "above", "below")
        against += f"; {off} the documented {number(expected.value)}"
    lines = [f"{outcome.verdict.upper()}: {subject}: {value}; {against}", sentence(outcome.why)]
    if outcome.busy:
        lines.append(
            f"{outcome.busy} of {many(judgement.jobs, 'job')} ran while other processes used the CPUs (SY609). If that "
            "is not usual here, verify again when the machine is quiet; what runs now: steelyard doctor"
        )
    if outcome.not_steady:
        lines.append(
            f"{outcome.not_steady} of {many(judgement.jobs, 'job')} had no steady state (SY201); the interval covers "
            "how jobs differ, but longer jobs may have another pace."
        )
    if judgement.low is not None:
        spread = "" if judgement.spread is None else f"; jobs vary by {change(judgement.spread)}"
        nodes = {record.environment.node for record in outcome.records if record.environment}
        where = f", all on node {nodes.pop()}" if len(nodes) == 1 else f" on {len(nodes)} nodes" if nodes else ""
        lines.append(f"[ ] = {100 * judgement.level:g} % CI over {judgement.jobs} jobs{where}{spread}")
    return lines


def _open_lines(outcome: FigureVerdict, outcomes: Sequence[FigureVerdict]) -> list[str]:
    """Say what further jobs would cost; if too many are needed, also why, and which band the jobs there are decide."""
    judgement = outcome.open
    if judgement is None:
        return []
    if outcome.more_jobs:
        enough = "should" if judgement.needed is not None and judgement.needed <= outcome.more_jobs else "may"
        more = many(outcome.more_jobs, "more job")
        quiet = " on a quiet machine" if outcome.busy else ""
        return [f"{more}{quiet} {enough} be enough{_price_words(outcomes, outcome.more_jobs)}."]
    needed = f"more than {MAX_NEEDED:,}" if judgement.needed is None else f"about {judgement.needed:,}"
    cost = "" if judgement.needed is None else _price_words(outcomes, judgement.needed)
    vary = f"jobs vary by {change(judgement.spread)}, and " if judgement.spread is not None else ""
    distance = outcome.band.distance(judgement.value) / judgement.value if judgement.value else 0.0
    inside = outcome.band.holds(judgement.value) or outcome.band.documented is None
    end = "the edge of the band" if inside else "the documented figure"
    reason = f"The reason: {vary}the figure is {change(distance)} from {end}."
    return [
        f"More jobs are not suggested: {needed} would be needed{cost}. {reason}",
        *_decidable(outcome, judgement),
        "Jobs vary less on an idle machine, and the longer they are.",
    ]


def _price_words(outcomes: Sequence[FigureVerdict], jobs: int) -> str:
    known = price(outcomes, jobs)
    if known is None:
        return ""
    hours = "" if known.device_hours is None else f", {number(known.device_hours, 2)} device-hours"
    return f" (about {rounded(known.wall_s)}{hours})"


def _decidable(outcome: FigureVerdict, judgement: BandJudgement) -> list[str]:
    """Name the bands that the jobs there are would pass and fail."""
    low, high, band, documented = judgement.low, judgement.high, outcome.band, outcome.expect.value
    if low is None or high is None or (band.high is not None and not math.isfinite(high)):
        return []
    ends = [f"{number(low)} or less"] if band.low is not None else []
    ends += [f"{number(high)} or more"] if band.high is not None else []
    text = f"These {judgement.jobs} jobs pass if the band ends at {' and '.join(ends)}"
    if documented is not None:
        # Rounded up, so that the tolerance printed is wide enough.
        off = [1 - low / documented] * (band.low is not None) + [high / documented - 1] * (band.high is not None)
        tolerance = math.ceil(1000 * max(off)) / 1000
        text += f" (tolerance = {tolerance:g})" if tolerance < 1 else ""
        narrow = math.floor(1000 * abs(judgement.value / documented - 1)) / 1000
        if not low <= documented <= high and narrow > 0:
            text += f"; they fail with tolerance = {narrow:g}"
    return [f"{text}."]


def _change(ratio: float, up: str, down: str, factor: str = "") -> str:
    """Format a ratio as a change, such as `5 % above`; a large one as `3.5x`, followed by `factor`."""
    text = change(abs(ratio - 1))
    return f"{text}{factor}" if text.endswith("x") else f"{text} {up if ratio > 1 else down}"


def _brackets(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return ""
    return f"[{number(low)}, {number(high) if math.isfinite(high) else 'no limit'}] "


def band_words(band: Band) -> str:
    """`95 to 105`, `at least 95`."""
    if band.low is not None and band.high is not None:
        return f"{number(band.low)} to {number(band.high)}"
    edge = band.low if band.low is not None else band.high
    assert edge is not None
    return f"{'at least' if band.low is not None else 'at most'} {number(edge)}"


def _with_unit(what: str, unit: str) -> str:
    """Format the heading of a column; the unit comes from an untrusted file."""
    return printable(f"{what}, {unit[:MAX_UNIT]}" if unit and unit != "1" else what)


def _job_rows(outcome: FigureVerdict) -> list[list[str]]:
    rows = []
    for record in outcome.records:
        quantity = record.quantities.get(outcome.expect.metric)
        value = quantity.value if quantity is not None else None
        node = record.environment.node if record.environment else "-"
        started = record.launch.started_at[:19].replace("T", " ") if record.launch else "-"
        shown = "-" if value is None else number(value)
        rows.append([str(record.spec.repeat), record.status.code, shown, node, started])
    return rows


def plan_lines(recipe: Recipe, expansion: Expansion) -> list[str]:
    """List what would be run, and the expected figures."""
    price = cost(expansion)
    hours = "unknown" if price.device_hours is None else f"at most {short(price.device_hours, 3)} device-hours"
    cells = many(len(expansion.cells), "configuration")
    runs = f"{many(len(expansion.runs), 'run')}: {cells}, {many(expansion.study.repeats, 'job')} each"
    rows = [
        [
            label(cell_of(expansion, expected).swept)[:MAX_CELL],
            expected.metric,
            band_words(Band(*expected.edges())),
            (expected.unit or "")[:MAX_UNIT],
        ]
        for expected in recipe.expect
    ]
    return [
        *wrapped(f"{recipe.name}: {recipe.title}".rstrip(": ")),
        *wrapped(f"{runs}. Cost: {hours} ({price.basis})"),
        "",
        *table(["configuration", "figure", "expected", "unit"], rows).splitlines(),
    ]


def plan_object(recipe: Recipe, expansion: Expansion) -> VerifyPlanData:
    """Return the plan as plain data."""
    return {
        "shape": "verify-plan/1",
        "recipe": recipe.name,
        "jobs": expansion.study.repeats,
        "runs": len(expansion.runs),
        "figures": [
            {
                "configuration": label(cell_of(expansion, expected).swept),
                "expect": to_json_object(expected),
                "band": _band(Band(*expected.edges())),
            }
            for expected in recipe.expect
        ],
        "device_hours_at_most": cost(expansion).device_hours,
    }


def history_lines(recipe: Recipe, entry: History) -> list[str]:
    """Format whether and when a figure changed, then every occasion."""
    where = f" at {label(dict(entry.expect.at))}" if entry.expect.at else ""
    head = f"{recipe.name}{where}: {entry.expect.metric} on {many(len(entry.occasions), 'occasion')}"
    left_out = []
    if entry.other_settings:
        left_out = wrapped(f"Not shown: {many(entry.other_settings, 'occasion')} with other settings.")
    if not entry.occasions:
        return [*wrapped(f"{head}: not run yet with these settings"), *left_out]
    measured = [occasion for occasion in entry.occasions if occasion.values]
    changed = {measured[step.change.index].study: step.change.ratio for step in entry.steps}
    said = "no change shown" if len(measured) > 1 else "a change needs two measured occasions"
    if changed:
        days = {occasion.study: occasion.started_at[:10] for occasion in measured}
        said = "; ".join(
            f"{_change(ratio, 'higher', 'lower', ' as high')} since {days[study]}" for study, ratio in changed.items()
        )
    heading = ["started at (UTC)", "jobs", _with_unit("figure", entry.unit), "verdict", "change"]
    lines = [*wrapped(f"{head}: {said}"), "", *table(heading, _history_rows(entry, changed)).splitlines(), *left_out]
    return lines + (["", *finding_lines(entry.findings)] if entry.findings else [])


def _history_rows(entry: History, changed: dict[str, float]) -> list[list[str]]:
    """Make one row per occasion. `changed`: the factor by which the figure changed, by study."""
    rows = []
    for occasion in entry.occasions:
        judgement = occasion.outcome.judgement
        figure = "-" if judgement is None else f"{number(judgement.value)} {_brackets(judgement.low, judgement.high)}"
        step = _change(changed[occasion.study], "higher", "lower") if occasion.study in changed else ""
        started = occasion.started_at[:16].replace("T", " ")
        rows.append([started, str(len(occasion.values)), figure.rstrip(), occasion.outcome.verdict, step])
    return rows


def outcomes_object(outcomes: Sequence[FigureVerdict], study: str) -> list[FigureVerdictData]:
    """Return the judged figures as plain data; `study`: the one of this occasion."""
    return [
        {
            "expect": to_json_object(outcome.expect),
            "band": _band(outcome.band),
            "configuration": label(outcome.expect.at),
            "selection": f"{study}/{outcome.configuration}",
            "verdict": outcome.verdict,
            "why": outcome.why,
            "figure": _judged(outcome),
            "needed_jobs": outcome.judgement.needed if outcome.judgement is not None else None,
            "more_jobs": outcome.more_jobs,
            "busy": outcome.busy,
            "not_steady": outcome.not_steady,
            "statuses": outcome.statuses,
            "runs": [record.run_id for record in outcome.records],
        }
        for outcome in outcomes
    ]


def history_object(entry: History) -> FigureHistoryData:
    """Return a history as plain data."""
    return {
        "expect": to_json_object(entry.expect),
        "unit": entry.unit,
        "other_settings": entry.other_settings,
        "occasions": [
            {
                "study": occasion.study,
                "started_at": occasion.started_at,
                "values": list(occasion.values),
                "verdict": occasion.outcome.verdict,
                "figure": _judged(occasion.outcome),
            }
            for occasion in entry.occasions
        ],
        "changes": [to_json_object(step.change) | {"facts": to_json_object(step.facts)} for step in entry.steps],
        "findings": findings_object(entry.findings),
    }


def _band(band: Band) -> BandData:
    return {"low": band.low, "high": band.high}


def _judged(outcome: FigureVerdict) -> FigureData:
    """Return the figure that was compared with a band."""
    judgement = outcome.judgement
    if judgement is None:
        return number_object(None, None, None, None, unit=outcome.unit, jobs=0) | {"reason": outcome.why}
    return number_object(
        judgement.value, judgement.low, judgement.high, judgement.level, unit=outcome.unit, jobs=judgement.jobs
    )
