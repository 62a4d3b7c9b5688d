"""Rank configurations: which is best, which are as good, which are unreliable, and which failed.

Every sentence that names a best configuration comes from here, so that no table contradicts it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from steelyard.analysis.ratios import LEVEL, RatioQuestion, ratios
from steelyard.analysis.rows import row_of, scaled
from steelyard.analysis.summary import labels, rated, why_longer
from steelyard.analysis.sweep import factor_of, swept_settings
from steelyard.contracts.observe import MEASURED
from steelyard.contracts.record import Quantity
from steelyard.estimate.student import student_t
from steelyard.inputs.command import extend, join, run_again, run_longer
from steelyard.rules.rule import check
from steelyard.rules.table.row import Pair
from steelyard.rules.table.settings import FOLLOWS, SETTINGS, alike, confounders, differences, keys_named, shown
from steelyard.stats.quotient import Estimate
from steelyard.stats.ratio import MIN_JOBS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from steelyard.analysis.energy import CellEnergy
    from steelyard.analysis.ratios import Ratio
    from steelyard.analysis.request import Tariff
    from steelyard.analysis.summary import CellSummary
    from steelyard.contracts.finding import Finding
    from steelyard.rules.table.row import Row

By = Literal["throughput", "efficiency", "cost", "energy"]
MILLION = 1e6
HOUR_S = 3600.0
# Other work or data is another question, even if the study varies it. Another machine or arithmetic is one only if the
# study does not vary it.
ALWAYS_APART = ("work", "data")
APART = ("system", "arithmetic")
WORSE = ("slower", "more")
# Rules on pairs that matter here. Settings are factors or groups; too few jobs and errors are reasons of one side.
FAMILIES = ("SY2", "SY6")
HANDLED = ("SY205", "SY207")
TREND = "SY211"
# Settings of a run that may be in effect without anybody having set them.
IN_EFFECT = ("batches", "weights", "training", "input", "implementation", "threads", "tuning", "software")
LONGEST_REASON = 120
MAX_RATIOS = 20_000
MAX_JOBS = 30


@dataclass(frozen=True)
class Ranked:
    """One configuration in a ranking."""

    cell: CellSummary
    name: str
    figure: Quantity
    """What is ranked, with its own CI; without a value if no job has it."""
    reasons: tuple[str, ...]
    """Why the figure is unreliable or missing; empty: it is reliable."""
    jobs: int
    """Number of jobs behind the figure."""
    relative: Estimate | None = None
    """The figure over that of the best; a CI only for reliable configurations."""
    tied: bool = False
    """Whether no difference from the best is shown; also for the best itself."""
    code: str = ""
    """The rule whose error took it out of the ranking; empty: the reasons are its own."""

    @property
    def reliable(self) -> bool:
        """Whether it is ranked."""
        return self.figure.value is not None and not self.reasons

    @property
    def remedy(self) -> str:
        """The command to go on with, if its figure is unreliable."""
        if self.cell.unreliable or self.code == TREND:
            return remedy(self.cell)
        return f"steelyard explain {self.code}" if self.code else f"steelyard energy {self.cell.study}"


@dataclass(frozen=True)
class Ranking:
    """Configurations that do the same work, best first."""

    by: By
    label: str
    """The settings that distinguish it from the other rankings of the selection; empty if it is the only one."""
    basis: str
    """What the figure is."""
    entries: tuple[Ranked, ...]
    """The reliable ones, best first; then the unreliable ones, best first; then those without a figure."""
    findings: tuple[Finding, ...] = ()
    """Warnings about the comparison with the best."""
    besides: tuple[str, ...] = ()
    """Settings in effect in which reliable configurations differ although nobody varied them, with both values."""

    @property
    def reliable(self) -> list[Ranked]:
        """The configurations that are ranked."""
        return [entry for entry in self.entries if entry.reliable]

    @property
    def unreliable(self) -> list[Ranked]:
        """The configurations with a figure that is unreliable."""
        return [entry for entry in self.entries if entry.figure.value is not None and entry.reasons]

    @property
    def lost(self) -> list[Ranked]:
        """The configurations without a figure."""
        return [entry for entry in self.entries if entry.figure.value is None]

    @property
    def best(self) -> Ranked | None:
        """The best of the reliable ones."""
        return next(iter(self.reliable), None)

    @property
    def tied(self) -> list[Ranked]:
        """The best, and those from which no difference is shown."""
        return [entry for entry in self.reliable if entry.tied]

    @property
    def following(self) -> Ranked | None:
        """The best of those that are clearly worse than the best."""
        return next((entry for entry in self.reliable if not entry.tied), None)

    @property
    def above(self) -> Ranked | None:
        """The best of the unreliable ones, if it measured better than the best or nothing is reliable."""
        first = next(iter(self.unreliable), None)
        if first is None or self.best is None:
            return first
        return first if _better(self.by, first.figure.value or 0.0, self.best.figure.value or 0.0) else None

    @property
    def next_step(self) -> str | None:
        """The command that would settle who is best; None if nothing is open, or more jobs would hardly help."""
        if (above := self.above) is not None:
            return above.remedy
        if self.best is None:
            measured = any(entry.cell.throughput.value is not None for entry in self.entries)
            # Runs that completed without an energy: the doctor says which sensors can be read.
            unmetered = self.by == "energy" and measured
            return "steelyard doctor" if unmetered else f"steelyard show {self.entries[0].cell.study}"
        needed = _jobs_to_part(self.tied, len(self.reliable)) if len(self.tied) > 1 else None
        cells = [entry.cell for entry in self.tied[:2]]
        # The jobs of a site run through its scheduler, and no command of one run does that.
        if needed is None or any("--site" in cell.spec.study_arguments for cell in cells):
            return None
        again = [(cell.records[0].spec, max(1, needed - _jobs(cell))) for cell in cells]
        return join(*(run_again(spec, repeats=count) for spec, count in again)) or None


def rank(
    cells: Sequence[CellSummary],
    by: By = "throughput",
    *,
    tariff: Tariff | None = None,
    energies: Sequence[CellEnergy] = (),
    rows: Mapping[str, Row] | None = None,
) -> list[Ranking]:
    """Rank configurations, the largest group that does the same work first.

    `tariff`: what the site charges, for `cost`; without it, cost is time on devices. `energies`: for `energy`. `rows`:
    those of the cells, if they are already made.
    """
    names, factors = labels(cells), _factors(cells)
    rows = {cell.name: row_of(cell) if rows is None else rows[cell.name] for cell in cells}
    measured = {entry.cell.name: entry for entry in energies}
    scopes = {name: entry.scope for name, entry in measured.items() if entry.main.value is not None}
    rankings = []
    groups = _groups(cells, rows, scopes)
    for label, group in groups:
        entries = []
        for cell in group:
            energy = measured.get(cell.name)
            figure, reasons = _figure(cell, rows[cell.name], by, tariff, energy)
            counts = energy.counts if energy is not None else {}
            jobs = counts.get(METRICS[by], 0) if by == "energy" else rated(cell.records)
            entries.append(Ranked(cell, names[cell.name], figure, reasons, jobs if figure.value is not None else 0))
        made = {cell.name: _row(rows[cell.name], by, tariff) for cell in group}
        ranking = _ranking(entries, made, by, label if len(groups) > 1 else "", _basis(by, tariff, group, scopes))
        rankings.append(replace(ranking, besides=_besides(ranking, made, factors)))
    return sorted(rankings, key=lambda ranking: (not ranking.reliable, -len(ranking.entries)))


def fastest_first(cells: Sequence[CellSummary]) -> list[CellSummary]:
    """Return the reliable configurations by throughput; if there are none, all that have a throughput."""
    known = sorted((cell for cell in cells if cell.throughput.value), key=lambda cell: -(cell.throughput.value or 0.0))
    return [cell for cell in known if not cell.unreliable] or known


def above(used: Sequence[CellSummary], cells: Sequence[CellSummary]) -> CellSummary | None:
    """Return the configuration with the highest throughput, if it is not among those that an answer rests on."""
    fastest = max(cells, key=lambda cell: cell.throughput.value or 0.0, default=None)
    if fastest is None or not used or any(fastest is cell for cell in used):
        return None
    most = max(cell.throughput.value or 0.0 for cell in used)
    return fastest if (fastest.throughput.value or 0.0) > most else None


def less_is_better(by: By) -> bool:
    """Return whether the lowest figure is the best."""
    return by in ("cost", "energy")


def _better(by: By, a: float, b: float) -> bool:
    return a < b if less_is_better(by) else a > b


def remedy(cell: CellSummary) -> str:
    """Return the command to go on with for an unreliable configuration.

    An error is explained. Otherwise it lacks jobs, or its jobs have a trend and must be longer.
    """
    codes = [finding.code for finding in cell.findings if finding.severity == "error"]
    if codes:
        return f"steelyard explain {codes[0]}"
    measured = [record for record in cell.records if record.status.code in MEASURED]
    spec = cell.records[0].spec
    # The file of a study outside the folder of the command is not named.
    show = f"steelyard show {cell.study}"
    if len(measured) < MIN_JOBS:
        return extend(spec, repeats=MIN_JOBS - len(measured)) or show
    # An extension would leave out a trend that shows only beside another configuration.
    vain = spec.study_arguments and why_longer(measured) is None
    return f"steelyard explain {TREND}" if vain else run_longer(spec, MIN_JOBS) or show


def _jobs(cell: CellSummary) -> int:
    return sum(record.status.code in MEASURED for record in cell.records)


def _jobs_to_part(entries: Sequence[Ranked], count: int) -> int | None:
    """Return how many jobs would part the first two of `count`, if difference and noise stay; None: too many."""
    relative, jobs = entries[1].relative, _jobs(entries[1].cell)
    far = None if relative is None else relative.low if relative.value < 1 else relative.high
    if relative is None or not far or relative.value == 1:
        return None
    level, half = _level(count), abs(math.log(far / relative.value))
    for more in range(jobs + 1, MAX_JOBS + 1):
        shrunk = student_t(level, 2.0 * more - 2) / student_t(level, 2.0 * jobs - 2) * math.sqrt(jobs / more)
        if half * shrunk < abs(math.log(relative.value)):
            return more
    return None


# -- what is ranked


def _figure(
    cell: CellSummary, row: Row, by: By, tariff: Tariff | None, energy: CellEnergy | None
) -> tuple[Quantity, tuple[str, ...]]:
    """Return the figure of a configuration, and why it is unreliable or missing."""
    if by == "energy":
        return _energy(cell, energy)
    rate = cell.throughput
    if rate.value is None:
        return rate, (_ended(cell),)
    if by == "throughput":
        return rate, cell.unreliable
    if by == "cost" and tariff is not None:
        charge = MILLION / HOUR_S * tariff.hourly(cell.records[0].spec.devices)
        return _inverse(rate, charge, f"{tariff.unit}s per million samples"), cell.unreliable
    whole, device = row.figures.get("throughput"), row.figures.get("throughput_per_device")
    if whole is None or device is None:
        why = "no throughput per device"
        return replace(rate, value=None, interval=None, reason=why), (why,)
    per_device = device.value / whole.value
    if by == "efficiency":
        return replace(_times(rate, per_device), scope="device"), cell.unreliable
    return _inverse(rate, MILLION / HOUR_S / per_device, "device-hours per million samples"), cell.unreliable


def _energy(cell: CellSummary, energy: CellEnergy | None) -> tuple[Quantity, tuple[str, ...]]:
    figure = energy.figures.get("energy_per_sample") if energy is not None else None
    if energy is None or figure is None or figure.value is None:
        why = energy.main.reason if energy is not None and energy.main.value is None else "no energy per sample"
        unknown = Quantity(value=None, unit="J/sample", scope="job", window="steady", aggregation="sum", reason=why)
        return unknown, (f"no energy: {why}" if cell.throughput.value is not None else _ended(cell),)
    doubts: tuple[str, ...] = ()
    if energy.verdict != "valid":
        reasons = figure.validity.reasons if figure.validity is not None else ()
        doubts = (": ".join((f"{energy.verdict} energy", *reasons[:1]))[:LONGEST_REASON],)
    if energy.left_out:
        doubts += (f"{len(energy.left_out)} of its jobs have no valid energy",)
    return figure, (*cell.unreliable, *doubts)


def _ended(cell: CellSummary) -> str:
    """Return how the runs ended, and why the first of them did."""
    counts = ", ".join(f"{count} {code.replace('_', ' ')}" for code, count in sorted(cell.statuses.items()))
    return ": ".join(filter(None, (counts, cell.records[0].status.reason[:LONGEST_REASON])))


def _times(quantity: Quantity, factor: float) -> Quantity:
    interval = quantity.interval.times(factor) if quantity.interval is not None else None
    assert quantity.value is not None
    return replace(quantity, value=quantity.value * factor, interval=interval)


def _inverse(quantity: Quantity, factor: float, unit: str) -> Quantity:
    """Return a factor over a rate; an upper bound that is missing becomes a lower bound of zero."""
    interval = quantity.interval.inverse(factor) if quantity.interval is not None else None
    assert quantity.value is not None
    return replace(quantity, value=factor / quantity.value, unit=unit, interval=interval)


METRICS: dict[By, str] = {
    "throughput": "throughput",
    "efficiency": "throughput_per_device",
    "cost": "throughput_per_device",
    "energy": "energy_per_sample",
}


def _row(row: Row, by: By, tariff: Tariff | None) -> Row:
    """Return the row to take ratios of: for a charge, the work per unit charged instead of that per device."""
    devices = row.number("devices")
    if by != "cost" or tariff is None or "throughput" not in row.figures or devices is None:
        return row
    return replace(row, figures={METRICS[by]: scaled(row.figures["throughput"], 1 / tariff.hourly(int(devices)))})


def _basis(by: By, tariff: Tariff | None, cells: Sequence[CellSummary], scopes: dict[str, str]) -> str:
    if by == "throughput":
        return "throughput of the whole job"
    if by == "efficiency":
        return "throughput per device"
    if by == "energy":
        measured = dict.fromkeys(scopes[cell.name] for cell in cells if cell.name in scopes)
        return f"energy per sample ({', '.join(measured) or 'not measured'})"
    if tariff is None:
        return "time on devices; no price is recorded: use --site"
    return f"charge of {tariff.source}"


# -- which configurations belong together


def _groups(
    cells: Sequence[CellSummary], rows: dict[str, Row], scopes: dict[str, str]
) -> list[tuple[str, list[CellSummary]]]:
    """Group configurations that do the same work. A run that ended early states less, and joins what it fits."""
    keys = _apart(cells)
    groups: dict[tuple[str, ...], list[CellSummary]] = {}
    lacking = {cell.name for cell in cells if cell.throughput.value is None or (scopes and cell.name not in scopes)}
    # Those with results first.
    for cell in sorted(cells, key=lambda cell: cell.name in lacking):
        row = rows[cell.name]
        mine = [row.get(key) for key in keys] + [scopes.get(cell.name)]
        if cell.name in lacking:
            fitting = (group for group in groups.values() if _fits(row, rows[group[0].name], keys))
            if (group := next(fitting, None)) is not None:
                group.append(cell)
                continue
        groups.setdefault(tuple(map(shown, mine)), []).append(cell)
    names = [*keys, "energy of"]
    differing = [n for n in range(len(names)) if len({key[n] for key in groups}) > 1]
    return [(", ".join(f"{names[n]} {key[n]}" for n in differing), group) for key, group in groups.items()]


def _apart(cells: Sequence[CellSummary]) -> list[str]:
    """Return the settings that keep configurations from being ranked together."""
    factors = _factors(cells)
    meant = {key for factor in factors for key in keys_named(factor)}
    meant |= {follows for key in meant for follows in FOLLOWS.get(key, ())}
    if meant & {"system", "accelerator"}:
        meant |= {key for key, role in SETTINGS.items() if role == "system"}
    return [
        key
        for key, role in SETTINGS.items()
        if role in ALWAYS_APART or (key not in meant and (role in APART or key == "loader.place"))
    ]


def _factors(cells: Sequence[CellSummary]) -> set[str]:
    """Return what the selection varies, as factors of a comparison."""
    return {factor for key in swept_settings(cells) if (factor := factor_of(key)) is not None}


def _besides(ranking: Ranking, rows: dict[str, Row], factors: set[str]) -> tuple[str, ...]:
    """Return what differs from the best although nobody varied it and it does not follow from what was varied."""
    if not ranking.reliable:
        return ()
    best, *others = (rows[entry.cell.name] for entry in ranking.reliable)
    besides: dict[str, str] = {}
    for row in others:
        differing = [confounders(Pair(best, row, factor)) for factor in factors] or [(*differences(best, row),)]
        for one in differing[0]:
            if one.role in IN_EFFECT and all(one in each for each in differing):
                besides.setdefault(one.key, str(one))
    return tuple(besides.values())


def _fits(row: Row, other: Row, keys: Iterable[str]) -> bool:
    stated = [(key, row.get(key), other.get(key)) for key in keys]
    return all(a is None or b is None or alike(key, a, b) != "different" for key, a, b in stated)


# -- the order


def _ranking(entries: list[Ranked], rows: dict[str, Row], by: By, label: str, basis: str) -> Ranking:
    reliable, expelled, findings = _comparable(_sorted([entry for entry in entries if entry.reliable], by), rows, by)
    reliable = _against_best(reliable, rows, by)
    own = [entry for entry in entries if entry.figure.value is not None and entry.reasons]
    unreliable = _sorted([*own, *expelled], by)
    if reliable and (base := reliable[0].figure.value):
        unreliable = [replace(one, relative=Estimate((one.figure.value or 0.0) / base)) for one in unreliable]
    lost = [entry for entry in entries if entry.figure.value is None]
    return Ranking(by, label, basis, (*reliable, *unreliable, *lost), findings)


def _sorted(entries: list[Ranked], by: By) -> list[Ranked]:
    sign = 1 if less_is_better(by) else -1
    return sorted(entries, key=lambda entry: sign * (entry.figure.value or 0.0))


def _comparable(
    entries: list[Ranked], rows: dict[str, Row], by: By
) -> tuple[list[Ranked], list[Ranked], tuple[Finding, ...]]:
    """Apply the rules on pairs with the best: return what stays in the ranking, what does not, and the warnings.

    An error of the best itself, such as a trend, takes the best out, and the next becomes the best.
    """
    expelled: list[Ranked] = []
    while entries:
        best, *others = entries
        checked = [(entry, _checked(entry, best, rows, METRICS[by])) for entry in others]
        place = rows[best.cell.name].place
        own = [one for _, telling in checked for one in telling if one.severity == "error" and one.place == place]
        if own:
            expelled.append(replace(best, reasons=(own[0].message,), code=own[0].code))
            entries = others
            continue
        entries = [best]
        for entry, telling in checked:
            if errors := [one for one in telling if one.severity == "error"]:
                reasons = tuple(f"not comparable with the best: {one.message}" for one in errors)
                expelled.append(replace(entry, reasons=reasons, code=errors[0].code))
            else:
                entries.append(entry)
        warnings = [one for _, telling in checked for one in telling if one.severity != "error"]
        return entries, expelled, tuple({one.code: replace(one, place="") for one in warnings}.values())
    return [], expelled, ()


def _checked(entry: Ranked, best: Ranked, rows: dict[str, Row], metric: str) -> list[Finding]:
    """Return the errors and warnings about the comparison of a configuration with the best."""
    findings = check("pair", Pair(rows[best.cell.name], rows[entry.cell.name], metric=metric))
    families = (*FAMILIES, "SY4") if metric == METRICS["energy"] else FAMILIES
    return [
        one for one in findings if one.code.startswith(families) and one.code not in HANDLED and one.severity != "note"
    ]


def _level(count: int) -> float:
    return 1 - (1 - LEVEL) / (count - 1)


def _against_best(entries: list[Ranked], rows: dict[str, Row], by: By) -> list[Ranked]:
    """Add how each configuration compares with the best, whichever that truly is.

    Multiple comparisons with the best (J. C. Hsu, 1996), with Bonferroni's inequality: the intervals of the true best
    against each of the k - 1 others hold together at 95 %, if each has a level of 1 - 0.05 / (k - 1). Then the true
    best is among those that are not clearly worse than the best measured one, and the union of the intervals against
    these contains the ratio to the true best. By definition nothing is better than that.
    """
    if len(entries) < 2:
        return [replace(entry, relative=Estimate(1.0), tied=True) for entry in entries]
    level, metric = _level(len(entries)), METRICS[by]
    own = [rows[entry.cell.name] for entry in entries]
    first = [None, *(_ratio(own[0], row, metric, level) for row in own[1:])]
    tied = [n for n, ratio in enumerate(first) if ratio is None or ratio.verdict not in WORSE]
    bounded = len(tied) * len(entries) <= MAX_RATIOS
    made = []
    for n, entry in enumerate(entries):
        against = [first[n] if m == 0 else _ratio(own[m], own[n], metric, level) for m in tied if m != n and bounded]
        value = (entry.figure.value or 0.0) / (entries[0].figure.value or 1.0)
        relative = _union(value, against, by, tied=n in tied)
        made.append(replace(entry, relative=relative, tied=n in tied))
    return made


def _ratio(a: Row, b: Row, metric: str, level: float) -> Ratio | None:
    candidates = ratios(a, b, metric, RatioQuestion(level), only_job=True)
    return next((ratio for ratio in candidates if ratio.answer != "none"), None)


def _ends(ratio: Ratio | None) -> tuple[float | None, float | None]:
    """Return the interval of a ratio; of a bound, only the end that is nearer to 1 counts."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return None, None
    if ratio.answer == "bound":
        return (ratio.low, None) if ratio.low > 1 else (None, ratio.high)
    return ratio.low, ratio.high


def _union(value: float, against: Sequence[Ratio | None], by: By, *, tied: bool) -> Estimate:
    if not against:
        return Estimate(value)
    ends = [_ends(ratio) for ratio in against]
    lows, highs = [low for low, _ in ends if low is not None], [high for _, high in ends if high is not None]
    low = min(lows) if lows and len(lows) == len(ends) else None
    high = max(highs) if highs and len(highs) == len(ends) else None
    if by == "cost":
        # Ratios are those of the work for the same charge.
        low, high = (None if high is None else 1 / high), (None if low is None else 1 / low)
    if less_is_better(by):
        low = 1.0 if tied else None if low is None else max(1.0, low)
    else:
        high = 1.0 if tied else None if high is None else min(1.0, high)
    # With nodes as the unit, the ratio over nodes may differ from that of the figures beside it.
    return Estimate(value, None if low is None else min(low, value), None if high is None else max(high, value))
