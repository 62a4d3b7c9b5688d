"""A ranking of configurations as a sentence, as lines and as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.analysis.best import above, fastest_first, less_is_better
from steelyard.analysis.rows import chosen_names
from steelyard.contracts.observe import MEASURED
from steelyard.numbers import change
from steelyard.terminal.findings import command_line, finding_lines, findings_object, next_line
from steelyard.terminal.plain import (
    configuration_object,
    estimate_object,
    figure_object,
    selection_of,
)
from steelyard.terminal.ratios import FEW_TIMES
from steelyard.terminal.text import (
    capital,
    count_statuses,
    interval_notes,
    many,
    number,
    sentence,
    table,
    with_interval,
    wrapped,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from steelyard.analysis.best import By, Ranked, Ranking
    from steelyard.analysis.summary import CellSummary
    from steelyard.contracts.record import Quantity
    from steelyard.stats.quotient import Estimate
    from steelyard.terminal.shapes.results import RankingData

HEADINGS: dict[By, str] = {
    "throughput": "throughput",
    "efficiency": "throughput per device",
    "cost": "cost",
    "energy": "energy",
}
DIGITS = 4
SHOWN_TIED = 3
SHOWN_RANKINGS = 3


def ranking_lines(rankings: Sequence[Ranking]) -> list[str]:
    """Format each ranking: the answer, then every configuration, and the command that would settle what is open."""
    lines: list[str] = []
    if len(rankings) > 1:
        lines += wrapped(f"{len(rankings)} groups of configurations do different work and are ranked separately.")
    for ranking in rankings:
        lines += ["", *wrapped(f"{capital(ranking.label)}:")] if ranking.label else []
        lines += wrapped(sentence(headline(ranking)), deeper="")
        if ranking.next_step is not None:
            lines.append(next_line(ranking.next_step))
        lines += ["", *_table(ranking)]
        if ranking.findings:
            lines += ["", *finding_lines(ranking.findings)]
    return lines


def headline(ranking: Ranking) -> str:
    """Name the best configuration, what it is compared with, and what may be better but is unreliable."""
    best, following, higher = ranking.best, ranking.following, ranking.above
    if best is None:
        return _none_reliable(ranking)
    text = "Best reliable: " if ranking.unreliable else "Best: "
    inside = _counted(ranking)
    if len(ranking.tied) > 1:
        text += f"tied, no difference shown: {_listed(ranking.tied)}"
    else:
        text += f"{best.name} at {_plain(best)}"
        inside = [*_interval(best), *inside]
    text += f" ({'; '.join(inside)})" if inside else ""
    if following is not None and len(ranking.tied) == 1:
        text += f"; {_compared(ranking.by, following)}"
    if higher is not None and higher.relative is not None:
        text += f"; {_but(higher.name, higher.figure, higher.relative.value, higher.reasons)}"
    return text + _besides(ranking)


def _besides(ranking: Ranking) -> str:
    return f"; these differ although nobody varied them: {', '.join(ranking.besides)}" if ranking.besides else ""


def verdict(ranking: Ranking) -> str:
    """Name the best configuration in one short sentence, without its figures; for a page that shows them beside it."""
    best, following, tied = ranking.best, ranking.following, len(ranking.tied)
    if best is None:
        return _none_reliable(ranking)
    alone = len(ranking.entries) == 1
    if alone:
        return f"{best.name}: a reliable result"
    if tied > 1:
        text = f"{many(tied, 'configuration')} of {len(ranking.entries)} are tied for best: no difference is shown"
        return text + _besides(ranking)
    text = f"best: {best.name}"
    if following is not None:
        text += f", {_compared(ranking.by, following)}"
    elif ranking.above is not None:
        text += f"; {ranking.above.name} measured more, but is unreliable"
    return text + _besides(ranking)


def above_words(name: str, higher: CellSummary, used: Sequence[CellSummary]) -> str:
    """Say that an unreliable configuration measured a higher throughput than those that an answer rests on."""
    most = max(cell.throughput.value or 0.0 for cell in used)
    return _but(name, higher.throughput, (higher.throughput.value or 0.0) / most, higher.unreliable)


def unreliable_notes(cells: Sequence[CellSummary], names: Mapping[str, str]) -> list[str]:
    """List the configurations with an unreliable figure, one line per reason."""
    reasons: dict[str, list[str]] = {}
    for cell in cells:
        if cell.throughput.value is not None and cell.unreliable:
            reasons.setdefault("; ".join(cell.unreliable), []).append(names[cell.name])
    return [line for reason, named in reasons.items() for line in wrapped(f"unreliable: {'; '.join(named)}: {reason}")]


def extremes(cells: Sequence[CellSummary], names: Mapping[str, str]) -> str:
    """Name the fastest and the slowest configuration, and one that measured more but is unreliable."""
    measured = fastest_first(cells)
    if not measured:
        return "No configuration has a result."
    ends = [f"{names[cell.name]} at {_rate(cell)}" for cell in (measured[0], measured[-1])]
    if measured[0].unreliable:
        return f"No configuration is reliable. Measured: {' to '.join(dict.fromkeys(ends))}."
    unreliable = any(cell.unreliable for cell in cells if cell.throughput.value is not None)
    word = " reliable" if unreliable else ""
    text = f"Fastest{word}: {ends[0]}. Slowest{word}: {ends[1]}." if len(measured) > 1 else f"One result: {ends[0]}."
    if (higher := above(measured, cells)) is not None:
        text += f" {sentence(above_words(names[higher.name], higher, measured))}"
    return text


def _rate(cell: CellSummary) -> str:
    return f"{with_interval(cell.throughput)} {cell.throughput.unit}"


def _but(name: str, figure: Quantity, relative: float, reasons: Sequence[str]) -> str:
    word = "as much" if relative >= FEW_TIMES else "higher" if relative > 1 else "lower"
    measured = f"{number(figure.value or 0.0, DIGITS)} {_unit(figure)}"
    return f"{name} measured {change(abs(relative - 1))} {word}, {measured}, but is unreliable: {'; '.join(reasons)}"


def answers(rankings: Sequence[Ranking]) -> str:
    """Answer for all rankings of a selection, in one sentence each."""
    said = [
        sentence(f"{ranking.label}: {headline(ranking)}" if ranking.label else headline(ranking))
        for ranking in rankings[:SHOWN_RANKINGS]
    ]
    more = len(rankings) - SHOWN_RANKINGS
    return " ".join(said) + (f" {more} more groups do other work." if more > 0 else "")


def _none_reliable(ranking: Ranking) -> str:
    """Say that nothing is reliable, and what measured best unless its errors make that figure invalid."""
    count, first = len(ranking.entries), ranking.above
    if first is None:
        reasons = dict.fromkeys("; ".join(entry.reasons) for entry in ranking.entries)
        return f"no best: {_of(count)} has {_sought(ranking)} ({'; '.join(list(reasons)[:SHOWN_TIED])})"
    text = f"no reliable best: {_of(count)} is {'unreliable' if count == 1 else 'reliable'}"
    if any(finding.severity == "error" for finding in first.cell.findings):
        return f"{text}: {'; '.join(first.reasons)}"
    word = "lowest" if less_is_better(ranking.by) else "highest"
    which = "" if len(ranking.unreliable) == 1 else f" {word}"
    if count == 1:
        return f"{text}, {_plain(first)}: {'; '.join(first.reasons)}"
    return f"{text}; {first.name} measured{which} {_plain(first)}, but is unreliable: {'; '.join(first.reasons)}"


def _of(count: int) -> str:
    return "the only configuration" if count == 1 else f"none of {count} configurations"


def _counted(ranking: Ranking) -> list[str]:
    """Say how many configurations are reliable, if not all with a result are, and how many have none."""
    parts = []
    if ranking.unreliable:
        verb = "is" if len(ranking.reliable) == 1 else "are"
        parts.append(f"{len(ranking.reliable)} of {len(ranking.entries)} configurations {verb} reliable")
    if ranking.lost:
        parts.append(f"{many(len(ranking.lost), 'configuration')} without {_sought(ranking)}")
    return parts


def _sought(ranking: Ranking) -> str:
    """Name what a configuration without a figure lacks: runs that completed may have no energy."""
    return "an energy" if ranking.by == "energy" else "a result"


def _listed(tied: Sequence[Ranked]) -> str:
    more = len(tied) - SHOWN_TIED
    shown = "; ".join(f"{entry.name} at {_plain(entry)}" for entry in tied[:SHOWN_TIED])
    return f"{shown}; and {many(more, 'other')}" if more > 0 else shown


def _plain(entry: Ranked) -> str:
    return f"{number(entry.figure.value or 0.0, DIGITS)} {_unit(entry.figure)}"


def _interval(entry: Ranked) -> list[str]:
    interval = entry.figure.interval
    if interval is None:
        return []
    low = number(interval.low, DIGITS)
    bounds = f"at least {low}" if interval.high is None else f"{low} to {number(interval.high, DIGITS)}"
    return [f"{100 * interval.level:g} % CI {bounds}"]


def _compared(by: By, following: Ranked) -> str:
    """Compare the best with the next: how many times as fast it is, or how much more the next needs."""
    assert following.relative is not None
    value, low, high = following.relative.value, following.relative.low, following.relative.high
    if not less_is_better(by):
        value, low, high = 1 / value, 1 / high if high else None, 1 / low if low else None
    bounds = ""
    if low is not None:
        bounds = f" (95 % CI {number(low, 3)} to {number(high, 3)})" if high else f" (at least {number(low, 3)})"
    words = {
        "throughput": "{} times as fast as the next, {}",
        "efficiency": "{} times as much per device as the next, {}",
        "cost": "the next, {1}, costs {0} times as much",
        "energy": "the next, {1}, needs {0} times as much",
    }
    return words[by].format(number(value, 3), following.name) + bounds


def _unit(figure: Quantity) -> str:
    return f"{figure.unit} per device" if figure.scope == "device" else figure.unit


def _table(ranking: Ranking) -> list[str]:
    units = [entry.figure.unit for entry in ranking.entries if entry.figure.value is not None]
    figure = ", ".join((HEADINGS[ranking.by], *units[:1]))
    heading = ["rank", "configuration", "jobs", figure, "relative to the best", "remarks"]
    places = {id(entry): place for place, entry in enumerate(ranking.reliable, 1)}
    rows = [
        [
            str(places.get(id(entry), "-")),
            entry.name,
            count_statuses(entry.cell.statuses),
            "-" if entry.figure.value is None else with_interval(entry.figure),
            "-" if entry.relative is None else _relative(entry.relative),
            _remarks(ranking, entry),
        ]
        for entry in ranking.entries
    ]
    lines = table(heading, rows).splitlines()
    lines += wrapped(f"Ranked by {ranking.basis}.")
    lines += interval_notes(
        (entry.figure.interval, [record for record in entry.cell.records if record.status.code in MEASURED])
        for entry in ranking.entries
    )
    if len(ranking.reliable) > 1:
        lines += wrapped(
            f"relative to the best = 95 % CI for all {len(ranking.reliable)} reliable configurations together, with "
            "the choice of the best (Hsu)"
        )
    return lines


def _remarks(ranking: Ranking, entry: Ranked) -> str:
    if entry.figure.value is None:
        return "; ".join(entry.reasons)
    if entry.reasons:
        return f"unreliable: {'; '.join(entry.reasons)}"
    if entry is ranking.best:
        return "best"
    return "tied with the best: no difference shown" if entry.tied else ""


def _relative(relative: Estimate) -> str:
    low, high = (None if end is None else number(end, 3) for end in (relative.low, relative.high))
    bounds = f"[{low}, {high}]" if low and high else f"[at least {low}]" if low else f"[at most {high}]"
    return f"{number(relative.value, 3)} {bounds}" if low or high else number(relative.value, 3)


def ranking_object(ranking: Ranking) -> RankingData:
    """Return a ranking as plain data."""
    places = {id(entry): place for place, entry in enumerate(ranking.reliable, 1)}
    chosen = chosen_names(entry.cell.spec for entry in ranking.entries)
    return {
        "by": ranking.by,
        "group": ranking.label,
        "basis": ranking.basis,
        "answer": headline(ranking),
        "next": command_line(ranking.next_step) if ranking.next_step is not None else None,
        "best": None if ranking.best is None else selection_of(ranking.best.cell),
        "configurations": [
            {
                **configuration_object(entry.cell, entry.name, chosen),
                "rank": places.get(id(entry)),
                "figure": figure_object(entry.figure, entry.jobs),
                "reliable": entry.reliable,
                "reasons": list(entry.reasons),
                "relative": None
                if entry.relative is None
                else estimate_object(entry.relative, _behind(entry, ranking)),
                "tied": entry.tied,
            }
            for entry in ranking.entries
        ],
        "findings": findings_object(ranking.findings),
    }


def _behind(entry: Ranked, ranking: Ranking) -> int:
    """Return the number of jobs on both sides of a ratio to the best."""
    return entry.jobs if entry is ranking.best or ranking.best is None else entry.jobs + ranking.best.jobs
