"""A scaling analysis as lines and as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.analysis.best import remedy
from steelyard.analysis.loss import FACTORS
from steelyard.analysis.rows import chosen_names
from steelyard.analysis.scaling import USABLE_ERROR_PERCENT
from steelyard.analysis.summary import labels
from steelyard.contracts.base import to_json_object
from steelyard.contracts.observe import MEASURED
from steelyard.numbers import change
from steelyard.stats.ratio import MIN_JOBS
from steelyard.stats.scaling_fit import CurveFit, Refused
from steelyard.terminal.findings import command_line, finding_lines, findings_object, next_line, tally_lines
from steelyard.terminal.plain import configuration_object, estimate_object
from steelyard.terminal.text import brackets, number, seconds, spec_notes, table, with_interval, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.loss import Factor
    from steelyard.analysis.scaling import Point, Scaling
    from steelyard.contracts.record import Quantity
    from steelyard.stats.quotient import Estimate
    from steelyard.terminal.shapes.common import FigureData
    from steelyard.terminal.shapes.results import FitData, RatiosData, ScalingCurveData

KINDS = {
    "strong": "strong scaling: constant batch per job",
    "weak": "weak scaling: constant batch per device",
    "neither": "neither strong nor weak scaling: both batches change",
    "unknown": "strong or weak scaling: unknown",
}
HEADINGS = {"input": "input", "balance": "balance", "communication": "communication", "computation": "computation"}
# A factor this close to 1 is not worth mentioning.
NOTHING_LOST = 0.995
OWN_LOSS = 0.98
NOTICED = 1.05
# An interval wider than this share of its value is not symmetric.
WIDE = 0.2


def curves_lines(curves: Sequence[Scaling], name: str) -> list[str]:
    """Format a table of the curves with their answers, if there are several, then each curve."""
    lines: list[str] = []
    if len(curves) > 1:
        lines += wrapped(f"{len(curves)} curves over devices, one for each combination of the other settings.")
        rows = []
        for curve in curves:
            last = curve.points[-1]
            ratios = ["not reported", "not reported"]
            if not curve.blocked:
                ratios = [_interval(last.speedup, 3), _interval(last.split.total.scaled(100), 3)]
            enough = "-" if curve.blocked or curve.enough is None else str(curve.enough.devices)
            rows.append([curve.label, str(curve.base.devices), str(last.devices), *ratios, enough])
        bar = f"most devices with {100 * curves[0].threshold:g} %"
        lines += table(["curve", "base", "largest", "speed-up", "efficiency, %", bar], rows).splitlines()
    for curve in curves:
        lines += [*([""] if len(curves) > 1 else []), *scaling_lines(curve, name)]
    return lines


def scaling_lines(curve: Scaling, name: str) -> list[str]:
    """Format the answer, then the figures, where to stop, the models and the findings."""
    about = f" ({curve.label})" if curve.label else ""
    heading = _wrapped(f"{name}{about}: {KINDS[curve.kind]}")
    heading += spec_notes(cell.spec for cell in curve.cells)
    if (step := next_step(curve)) is not None:
        heading.append(next_line(step))
    if curve.blocked:
        lines = [*_wrapped("Speed-up not reported until the errors below are fixed."), *heading]
        rows = [[str(point.devices), str(point.jobs), with_interval(point.throughput)] for point in curve.points]
        lines += ["", *table(["devices", "jobs", f"throughput, {curve.base.throughput.unit}"], rows).splitlines()]
    else:
        lines = [*_wrapped(answer(curve)), *heading]
        lines += ["", *_figures(curve), "", *_loss(curve)]
        for texts in (where_to_stop(curve), models(curve)):
            lines += ["", *(line for text in texts for line in _wrapped(text))]
    lines += [line for count, ended in curve.missing for line in _wrapped(f"{_devices(count)}: no result: {ended}")]
    lines += (
        _wrapped(f"Not shown, no other device count with these settings: {'; '.join(curve.alone)}.")
        if curve.alone
        else []
    )
    return [*lines, "", *finding_lines(curve.findings), *([""] if curve.findings else []), *tally_lines(curve.findings)]


def next_step(curve: Scaling) -> str | None:
    """Return the command that would make the whole curve reliable; None if it is, or errors come first."""
    if curve.blocked or not (curve.provisional or curve.aside):
        return None
    cells = curve.aside or [cell for cell in curve.cells if cell.unreliable]
    return remedy(cells[0])


def answer(curve: Scaling) -> str:
    """Say how far it scales, what the largest loss is, and which configurations are unreliable."""
    text = _scales(curve)
    if curve.provisional:
        text += f" Provisional, because fewer than two device counts are reliable: {'; '.join(curve.provisional)}."
    elif curve.doubts:
        text += " Provisional until the cause is known."
    for cell in curve.aside:
        verb = "is" if cell.records[0].spec.devices == 1 else "are"
        text += (
            f" {_devices(cell.records[0].spec.devices)} {verb} unreliable and not used: {'; '.join(cell.unreliable)}."
        )
    return text


def _scales(curve: Scaling) -> str:
    last, base = curve.points[-1], curve.base
    reach = f"{_interval(last.speedup, 3)} times the throughput of {_devices(base.devices)}"
    text = f"{_devices(last.devices)} give {reach}, an efficiency of {_percent(last.split.total)}"
    if curve.above:
        # Whatever was gained hides what was lost.
        cause = f"besides the devices, {'; '.join(curve.besides)}" if curve.besides else "the cause is not known"
        return f"{text}. More than 100 % is not plausible: {cause}."
    known = [(factor, factor.change.value) for factor in last.split.factors if factor.change is not None]
    rest = last.split.rest
    if not known and last.split.total.value < NOTHING_LOST:
        return f"{text}. These records do not show where the rest is lost."
    if rest is not None:
        *others, final = [FACTORS[name] for name in last.split.rest_is]
        lost = f"{', '.join(others)} or {final}" if others else final
        known_worst = min((value for _, value in known), default=1.0)
        if rest.value < known_worst:
            apart = "; these records do not separate them" if len(last.split.rest_is) > 1 else ""
            return f"{text}. The largest loss is {lost}{apart}." if rest.value < NOTHING_LOST else f"{text}."
    worst = min(known, key=lambda entry: entry[1], default=None)
    if worst is None or worst[1] >= NOTHING_LOST:
        return f"{text}. There is no notable loss."
    return f"{text}. The largest loss is {FACTORS[worst[0].name]}: {100 * (1 - worst[1]):.1f} %."


def _figures(curve: Scaling) -> list[str]:
    base = curve.base
    unit, largest = base.throughput.unit, max(point.throughput.value or 0.0 for point in curve.points)
    # Large rates in thousands or millions, so that the table stays narrow.
    factor, prefix = next(((f, p) for f, p in ((1e6, "M"), (1e3, "k")) if largest >= 100 * f), (1.0, ""))
    unit = prefix + unit
    rows = []
    for point in curve.points:
        speedup, efficiency = "1", "100"
        if point is not base:
            speedup, efficiency = _interval(point.speedup, 3), _interval(point.split.total.scaled(100), 3)
        rows.append([str(point.devices), str(point.jobs), _rate(point.throughput, factor), speedup, efficiency])
    for cell in curve.aside:
        measured = sum(record.status.code in MEASURED for record in cell.records)
        rates = _rate(cell.throughput, factor)
        rows.append([str(cell.records[0].spec.devices), str(measured), rates, "unreliable", "unreliable"])
    rows.sort(key=lambda row: int(row[0]))
    lines = table(["devices", "jobs", unit, "speed-up", "efficiency, %"], rows).splitlines()
    jobs = f"{base.jobs} jobs" if base.jobs != 1 else "1 job"
    lines += _wrapped(f"Base: {_devices(base.devices)} at {_rate(base.throughput, factor)} {unit}, {jobs}.")
    if base.devices > 1:
        lines += _wrapped(f"These efficiencies do not include the loss from 1 to {base.devices} devices.")
    few = [str(point.devices) for point in curve.points if point.jobs < MIN_JOBS]
    if few:
        text = f"No CI for ratios with fewer than {MIN_JOBS} jobs: {_devices(', '.join(few))}."
        alone = any(point.jobs == 1 for point in curve.points)
        lines += _wrapped(text + (" The CI of a single job is over its steps; other jobs may differ." if alone else ""))
    if any(point.split.total.low is not None and point is not base for point in curve.points):
        lines += _wrapped("[ ] = 95 % CI from the spread between jobs")
    shown = [cell.throughput.interval for cell in (*curve.cells, *curve.aside)]
    for reason in dict.fromkeys(reason for interval in shown if interval for reason in interval.approximate):
        lines += _wrapped(f"~ = approximate: {reason}")
    return lines


def _loss(curve: Scaling) -> list[str]:
    """Format the factors of the efficiency; unknown ones are combined in the column rest."""
    others = [point for point in curve.points if point is not curve.base]
    known = [name for name in FACTORS if any(_factor(point, name).change is not None for point in others)]
    rest = any(point.split.rest is not None for point in others)
    rows = []
    for point in others:
        cells = [_half(_factor(point, name).change) for name in known]
        cells += [_half(point.split.rest)] if rest else []
        rows.append([str(point.devices), *cells, _half(point.split.total)])
    header = ["devices", *(HEADINGS[name] for name in known), *(["rest"] if rest else []), "efficiency"]
    lines = ["Efficiency = product of these factors, in % of the base"]
    lines += table(header, rows).splitlines()
    return lines + _about_factors(curve, others, rest=rest)


def _about_factors(curve: Scaling, others: list[Point], *, rest: bool) -> list[str]:
    told = [name for name in FACTORS if any(_factor(point, name).change is not None for point in others)]
    losses = "; ".join(f"{HEADINGS[name]}: {FACTORS[name]}" for name in told)
    lines = _wrapped("Below 100 = more loss than at the base." + (f" {losses}." if losses else ""))
    if rest:
        parts = [HEADINGS[name] for name in FACTORS if any(name in point.split.rest_is for point in others)]
        reasons = dict.fromkeys(f.reason for point in others for f in point.split.factors if f.reason)
        lines += _wrapped(f"rest = {' x '.join(parts)}: {'; '.join(filter(None, reasons))}.")
    for point in others:
        if point.slowest is not None and point.slowest > NOTICED:
            longer = f"{change(point.slowest - 1)} longer than the mean"
            lines += _wrapped(f"{_devices(point.devices)}: the slowest computes {longer}.")
    own = [f for f in curve.base.split.factors if f.own is not None and f.own < OWN_LOSS]
    if own:
        words = " and ".join(f"{100 * (1 - (f.own or 1)):.1f} % to {FACTORS[f.name]}" for f in own)
        lines += _wrapped(f"The base itself loses {words}; a factor above 100 means a smaller loss.")
    if any(point.from_crosscheck for point in curve.points):
        lines += _wrapped("Communication was measured in the cross-check pass only: a few steps of each job.")
    balance = [point for point in others if _factor(point, "balance").change is not None]
    if any(point.from_crosscheck and point.devices > 1 for point in balance):
        lines += _wrapped(
            "Balance compares means over this pass: if different devices are late at different steps, waiting for them "
            "counts as communication."
        )
    return lines


def where_to_stop(curve: Scaling) -> list[str]:
    """List a heading, the return of more devices, and the largest count that is efficient enough."""
    texts = ["Return of more devices (100 % = as much throughput per device as before)"]
    for entry in curve.returns:
        share, said = entry.share, ""
        if share.value < 0:
            shown = share.high is None or share.high < 0
            said = ": the job gets slower" if shown else ": no gain shown"
        texts.append(f"{entry.devices} to {_devices(entry.following)}: {_percent(share, 2)}{said}")
    bar, enough = f"{100 * curve.threshold:g} %", curve.enough
    if enough is None:
        return [*texts, f"No device count has an efficiency of at least {bar}."]
    reached = "the base" if enough is curve.base else _percent(enough.split.total)
    after = [point for point in curve.points if point.devices > enough.devices]
    largest = "" if after else ", the largest count measured"
    text = f"Largest device count with at least {bar} efficiency: {_devices(enough.devices)}{largest} ({reached})."
    if after:
        text += f" {_devices(after[0].devices)} reach {_percent(after[0].split.total)}."
    before = [point for point in curve.points if point.devices < enough.devices]
    if below := [point for point in before if point.split.total.value < curve.threshold]:
        named = ", ".join(str(point.devices) for point in below)
        text += f" But {named} {'is' if len(below) == 1 else 'are'} below {bar}."
    unsure = [
        point
        for point in curve.points
        if point.split.total.low is not None
        and point.split.total.high is not None
        and point.split.total.low < curve.threshold <= point.split.total.high
    ]
    if unsure:
        named = _devices(", ".join(str(point.devices) for point in unsure))
        text += f" The CI of {named} includes {bar}: run more jobs to decide."
    return [*texts, text]


def models(curve: Scaling) -> list[str]:
    """List a heading, each model with its error, and the projections; no heading if no model was fitted."""
    texts = ["Models"] if curve.fits else []
    for fit in curve.fits:
        if not isinstance(fit, CurveFit):
            texts.append(f"{fit.name}: not fitted: {fit.reason}")
            continue
        parts = []
        for entry in fit.parameters:
            if entry.unit == "s":
                bounds = f"{seconds(entry.value)} [{seconds(entry.low)}, {seconds(entry.high)}]"
            else:
                bounds = f"{100 * entry.value:.1f} % [{100 * entry.low:.1f}, {100 * entry.high:.1f}]"
            parts.append(f"{entry.name} {bounds}")
        text = f"{fit.name}: {', '.join(parts)}; cross-validation error up to {number(fit.error_percent, 2)} %"
        texts.append(text if fit.error_percent <= USABLE_ERROR_PERCENT else f"{text}, too large for a projection")
    if not curve.projections:
        fitted = any(isinstance(fit, CurveFit) for fit in curve.fits)
        reason = "no model is good enough" if fitted else "no model was fitted"
        texts.append(f"No projection to {_devices(curve.projected_to)}: {reason}.")
    texts += [
        f"Projected to {_devices(entry.devices)} by {entry.model}: {number(entry.throughput, 4)} "
        f"{curve.base.throughput.unit}, {number(entry.speedup, 4)} times the base, "
        f"{100 * entry.efficiency:.0f} % efficiency"
        for entry in curve.projections
    ]
    return texts


def _factor(point: Point, name: str) -> Factor:
    return next(factor for factor in point.split.factors if factor.name == name)


def _devices(count: int | str) -> str:
    return "1 device" if str(count) == "1" else f"{count} devices"


def _rate(quantity: Quantity, factor: float) -> str:
    text, interval = number((quantity.value or 0.0) / factor, 4), quantity.interval
    if interval is None:
        return text
    return f"{text} {brackets(interval.times(1 / factor), 4)}"


def _interval(estimate: Estimate, digits: int = 4) -> str:
    text = number(estimate.value, digits)
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{number(estimate.low, digits)}, {number(estimate.high, digits)}]"


def _percent(estimate: Estimate, digits: int = 3) -> str:
    scaled = estimate.scaled(100)
    if scaled.low is None or scaled.high is None:
        return f"{number(scaled.value, digits)} %"
    return f"{number(scaled.value, digits)} % [{number(scaled.low, digits)}, {number(scaled.high, digits)}]"


def _half(estimate: Estimate | None) -> str:
    """Format a percentage with half of its interval, or with both ends if the interval is wide."""
    if estimate is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return f"{100 * estimate.value:.1f}"
    if estimate.high - estimate.low > WIDE * estimate.value:
        return f"{100 * estimate.value:.0f} [{100 * estimate.low:.0f}, {100 * estimate.high:.0f}]"
    return f"{100 * estimate.value:.1f} ±{50 * (estimate.high - estimate.low):.1f}"


def _wrapped(text: str) -> list[str]:
    # A number keeps its percent sign on its line.
    lines = wrapped(text.replace(" %", "\u00a0%"))
    return [line.replace("\u00a0", " ") for line in lines]


def scaling_object(curve: Scaling) -> ScalingCurveData:
    """Return a curve as plain data, without ratios if it has errors."""
    cells = [*curve.cells, *curve.aside]
    names, chosen = labels(cells), chosen_names(cell.spec for cell in cells)
    by_name = {cell.name: cell for cell in cells}
    jobs = {point.devices: point.jobs for point in curve.points}
    valid = not curve.blocked
    return {
        "label": curve.label,
        "answer": answer(curve) if valid else None,
        "next": command_line(step) if (step := next_step(curve)) is not None else None,
        "kind": curve.kind,
        "declared": curve.declared,
        "blocked": curve.blocked,
        "base_devices": curve.base.devices,
        "points": [
            {
                **configuration_object(by_name[point.configuration], names[point.configuration], chosen),
                **_point_object(point, curve.base, valid=valid),
            }
            for point in curve.points
        ],
        "threshold": curve.threshold,
        "enough_devices": curve.enough.devices if valid and curve.enough else None,
        "returns": [
            {
                "devices": entry.devices,
                "following": entry.following,
                "share": estimate_object(entry.share, jobs[entry.devices] + jobs[entry.following]),
            }
            for entry in curve.returns
            if valid
        ],
        "fits": [_fit_object(fit) for fit in curve.fits if valid],
        "projections": [
            {
                "model": entry.model,
                "devices": entry.devices,
                "throughput": entry.throughput,
                "speedup": entry.speedup,
                "efficiency": entry.efficiency,
            }
            for entry in curve.projections
            if valid
        ],
        "alone": list(curve.alone),
        "provisional": list(curve.provisional),
        "unreliable": [
            {**configuration_object(cell, names[cell.name], chosen), "devices": cell.spec.devices}
            for cell in curve.aside
        ],
        "missing": [{"devices": count, "ended": ended} for count, ended in curve.missing],
        "findings": findings_object(curve.findings),
    }


def _fit_object(fit: CurveFit | Refused) -> FitData:
    if not isinstance(fit, CurveFit):
        return {"name": fit.name, "refused": fit.reason, "parameters": [], "points": 0, "error_percent": None}
    parameters = [to_json_object(entry) for entry in fit.parameters]
    return {
        "name": fit.name,
        "refused": None,
        "parameters": parameters,
        "points": fit.points,
        "error_percent": fit.error_percent,
    }


def _point_object(point: Point, base: Point, *, valid: bool) -> RatiosData:
    jobs = point.jobs if point is base else point.jobs + base.jobs

    def ratio(estimate: Estimate | None) -> FigureData | None:
        return estimate_object(estimate, jobs) if valid and estimate is not None else None

    return {
        "devices": point.devices,
        "speedup": ratio(point.speedup),
        "efficiency": ratio(point.split.total),
        "factors": {
            factor.name: {"change": ratio(factor.change), "own": factor.own, "reason": factor.reason}
            for factor in point.split.factors
            if valid
        },
        "rest": ratio(point.split.rest),
        "rest_is": list(point.split.rest_is),
        "slowest_over_mean": point.slowest,
        "from_crosscheck": point.from_crosscheck,
    }
