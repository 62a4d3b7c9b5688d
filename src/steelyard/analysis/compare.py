"""Compare two sides: the verdict first, then findings, then ratios; no ratios if there are errors.

Rows are paired by equal settings, and the best of each side with each other. A side is one row or more, from any
source.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from steelyard import plugins
from steelyard.analysis.ratios import Ratio, RatioQuestion, ratios, sense
from steelyard.errors import InputError, Problem, nearest, refusal
from steelyard.inputs import synonyms
from steelyard.rules.rule import check
from steelyard.rules.table.row import Pair
from steelyard.rules.table.settings import (
    OPTION,
    SETTINGS,
    TUNABLE,
    alike,
    blocking,
    confounders,
    differences,
    keys_named,
    meant_to_differ,
    shown,
)
from steelyard.stats.ratio import MIN_JOBS, shown_trend, too_large

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.contracts.finding import Finding
    from steelyard.rules.table.row import Row

Verdict = Literal["comparable", "comparable with warnings", "only a bound", "not comparable"]
How = Literal["as selected", "equal settings", "best against best", "nearest settings"]

# Names of options of `steelyard run` and fields of a spec.
# Names of a study for what a row names otherwise, because its machine, model or data may be somebody else's.
NAMED_OTHERWISE = {
    "workload": "model",
    "device": "system",
    "data.format": "dataset",
    "data.path": "dataset",
    "sim.input.samples_per_s": "input_rate",
    "sim.collective.message_bytes": "model_options",
    "sim.memory.bytes_per_sample": "model_options",
    "sim.memory.fixed_bytes": "model_options",
}
# Settings that group rows by the same work before the best of a side is taken.
GROUPED = ("work", "data", "amount", "arithmetic", "training")
# Settings that people do not choose for a run.
UNCHOSEN = ("system", "software", "environment", "evidence")
# The rule on trends: a difference that is larger than the trend is still shown by a bound.
TREND = "SY211"
UNCHANGED = "SY111"
OF_SETTINGS = "SY1"
# Factors that need not be given if nothing else differs. Another model or other data is other work: never these.
INFERRED = ("batch", "accumulation", "precision", "input", "implementation", "devices")
MAX_ROWS = 5000
MAX_PAIRS = 10_000
MAX_SAME = 100


@dataclass(frozen=True)
class Comparison:
    """The comparison of one row of each side."""

    how: How
    a: Row
    b: Row
    factor: str
    metric: str
    verdict: Verdict
    findings: tuple[Finding, ...]
    ratios: tuple[Ratio, ...]
    """Empty if there are errors, unless forced; each carries the findings."""
    forced: bool
    chosen_from: tuple[int, int] = (1, 1)
    """From how many rows of each side the best were taken."""
    chosen: tuple[str, ...] = ()
    """Settings that each side chose for itself."""
    shared: tuple[str, ...] = ()
    """The common settings of both rows, if there are several comparisons."""


@dataclass(frozen=True)
class Compared:
    """The result of comparing two selections."""

    factor: str
    metric: str
    comparisons: tuple[Comparison, ...]
    left_out: tuple[str, ...]
    """Rows without a figure or a partner, with the reason."""
    inferred: bool = False
    """Whether the factor was not given, but is the only setting that differs."""

    @property
    def made(self) -> bool:
        """Whether there is a ratio."""
        return any(entry.ratios for entry in self.comparisons)

    @property
    def answers(self) -> bool:
        """Whether there is a ratio in which the factor differs."""
        return any(entry.ratios and _is_only_difference(entry) for entry in self.comparisons)


def _is_only_difference(entry: Comparison) -> bool:
    """Return whether the factor differs, and no other setting that makes a ratio meaningless."""
    about_settings = [one for one in entry.findings if one.code.startswith(OF_SETTINGS)]
    return all(one.code != UNCHANGED and one.severity != "error" for one in about_settings)


def compare(
    a: Sequence[Row],
    b: Sequence[Row],
    *,
    factor: str | None = "system",
    metric: str = "throughput",
    force: bool = False,
    asked: RatioQuestion = RatioQuestion(),  # noqa: B008
) -> Compared:
    """Compare B with A, the base. With several rows per side: equal settings, and also best against best.

    `factor`: the setting that may differ; None: the machine, or one of `INFERRED` if nothing else differs.
    """
    if factor is None:
        usual = compare(a, b, metric=metric, asked=asked)
        names = () if any(map(_is_only_difference, usual.comparisons)) else INFERRED
        tried = [compare(a, b, factor=name, metric=metric, asked=asked) for name in names]
        fitting = [one for one in tried if any(map(_is_only_difference, one.comparisons))]
        # With several configurations per side, pairs may differ in something else: who selects by the batch means it.
        fitting = [one for one in fitting if _separates(one.factor, a, b)] or fitting
        if len({SETTINGS.get(one.factor, one.factor) for one in fitting}) == 1:
            # Of batch and accumulation, which may change against each other, the batch.
            return replace(fitting[0], inferred=True)
        return compare(a, b, metric=metric, force=force, asked=asked) if force else usual
    factor = require_factor(factor)
    judge = partial(_judge, force=force, asked=asked)
    left_out: list[str] = []
    first, second = _with_figure(a, b, metric, left_out)
    _require_option(factor, (*first, *second))
    if len(first) == len(second) and all(map(_same_row, first, second)):
        what = "the same configuration" if len(first) == 1 else f"the same {len(first)} configurations"
        problem = Problem("selection", f"both sides are {what}", "two configurations, rows or runs that differ")
        raise InputError("there is nothing to compare", problems=(problem,))
    if len(first) == len(second) == 1:
        made = [judge("as selected", Pair(first[0], second[0], factor, metric))]
        return Compared(factor, metric, tuple(made), tuple(left_out))
    made = [judge(how, pair) for how, pair in _partners(first, second, factor, metric, left_out)]
    made += [
        replace(
            judge("best against best", pair, counts=counts),
            chosen_from=counts,
            chosen=tuple(key for key in SETTINGS if key in pair.tuned),
        )
        for pair, counts in _best_pairs(first, second, factor, metric)
    ]
    if not made:
        _require_few(len(first), len(second), exact=False)
        # The pair with the fewest errors, to show its reasons.
        pairs = [Pair(one, other, factor, metric) for one in first for other in second if not _same_row(one, other)]
        nearest = min(pairs, key=lambda pair: (len(blocking(pair)), len(confounders(pair))))
        made = [judge("nearest settings", nearest)]
        told = tuple(f"{row.place} (" for row in (nearest.a, nearest.b))
        left_out = [text for text in left_out if not text.startswith(told)]
    return Compared(factor, metric, tuple(_tell_apart(made)), tuple(left_out))


def _separates(factor: str, a: Sequence[Row], b: Sequence[Row]) -> bool:
    """Return whether every row of A differs from every row of B in the factor."""
    return any(
        {shown(row.get(key)) for row in a}.isdisjoint(shown(row.get(key)) for row in b) for key in keys_named(factor)
    )


def require_factor(name: str) -> str:
    """Return a setting, an option of the model or a group of settings; InputError for anything else."""
    if name.startswith(OPTION) and len(name) > len(OPTION):
        return name
    name = NAMED_OTHERWISE.get(name, name)
    settings = [key for key, role in SETTINGS.items() if role != "evidence"]
    known = list(dict.fromkeys([*settings, *(SETTINGS[key] for key in settings)]))
    if name not in known:
        raise plugins.unknown("factor", name, known, synonyms.setting_for(name, known))
    return name


def _require_option(factor: str, rows: Sequence[Row]) -> None:
    """Raise InputError if the factor is an option of the model that no row has."""
    stated = {part.partition("=")[0] for row in rows for part in shown(row.get("model_options")).split(", ")}
    known = sorted(f"{OPTION}{key}" for key in stated if key not in ("", "none", "unknown"))
    if factor.startswith(OPTION) and factor not in known:
        raise plugins.unknown("factor", factor, known or ["a setting that the rows state"])


def _with_figure(a: Sequence[Row], b: Sequence[Row], metric: str, left_out: list[str]) -> tuple[list[Row], list[Row]]:
    sides: list[list[Row]] = []
    for name, rows in (("A", a), ("B", b)):
        having = [row for row in rows if metric in row.figures]
        for row in rows:
            if metric not in row.figures:
                why = f"no {metric}"
                if row.status != "completed":
                    why += f", the runs ended as {row.status}"
                elif jobs := row.get("jobs"):
                    why += f" in one or more of its {shown(jobs)} jobs"
                left_out.append(f"{row.place} ({name}): {why}")
        sides.append(having)
    known = sorted({name for row in (*a, *b) for name in row.figures})
    if metric not in known and (near := nearest(metric, known)):
        raise refusal(Problem("--metric", "no such figure", ", ".join(known), given=metric[:80], near=near))
    if not all(sides):
        common = set.intersection(*({m for row in rows for m in row.figures} for rows in (a, b)))
        problem = Problem("metric", "; ".join(left_out[:3]), ", ".join(sorted(common)) or "no metric is on both sides")
        next_step = f"--metric {min(common)}" if len(common) == 1 else None
        raise InputError(f"there is no {metric} on both sides", problems=(problem,), next_step=next_step)
    return sides[0], sides[1]


def _judge(how: How, pair: Pair, *, force: bool, asked: RatioQuestion, counts: tuple[int, int] = (1, 1)) -> Comparison:
    """Judge one pair, and compute its ratios if the verdict allows."""
    findings = check("pair", pair)
    severe = {finding.severity for finding in findings}
    errors = {finding.code for finding in findings if finding.severity == "error"}
    made: list[Ratio] = []
    if errors <= {TREND} or force:
        attached = tuple(finding for finding in findings if finding.severity != "note")
        # Any of these pairs might have been the best one. If all their intervals hold together, that of the chosen
        # pair holds as well (Bonferroni).
        level = 1 - (1 - asked.level) / (counts[0] * counts[1])
        computed = ratios(pair.a, pair.b, pair.metric, replace(asked, level=level))
        # With a trend above the limit only a bound is valid.
        valid = ("bound",) if errors and not force else ("ratio", "bound", "none")
        made = [replace(ratio, findings=attached) for ratio in computed if ratio.answer in valid]
    verdict: Verdict = "comparable"
    if errors:
        bound = errors == {TREND} and any(ratio.answer == "bound" for ratio in made)
        verdict = "only a bound" if bound else "not comparable"
    elif "warning" in severe:
        verdict = "comparable with warnings"
    if not made:
        # Warnings may mention the ratio, which is not shown.
        findings = tuple(
            finding if finding.severity == "error" else replace(finding, evidence="") for finding in findings
        )
    forced = force and verdict == "not comparable"
    return Comparison(how, pair.a, pair.b, pair.factor, pair.metric, verdict, findings, tuple(made), forced)


# -- which rows belong together


def _partners(a: list[Row], b: list[Row], factor: str, metric: str, left_out: list[str]) -> list[tuple[How, Pair]]:
    """Return comparable rows, each used once; those that differ only in the factor come first."""
    taken: list[tuple[int, How, Pair]] = []
    used_a: set[int] = set()
    used_b: set[int] = set()
    for exact in (True, False):
        rest_a = [i for i in range(len(a)) if i not in used_a]
        rest_b = [j for j in range(len(b)) if j not in used_b]
        _require_few(len(rest_a), len(rest_b), exact=exact)
        tried = _pair_exactly(a, b, factor) if exact else ((i, j) for i in rest_a for j in rest_b)
        near: list[tuple[int, int, int, int]] = []
        for i, j in tried:
            pair = Pair(a[i], b[j], factor, metric)
            if not _same_row(a[i], b[j]) and not blocking(pair):
                # Settings that people choose, beside the factor, in which the two differ.
                told = sum(entry.role not in ("software", "environment") for entry in confounders(pair))
                distance = sum(entry.role in ("size", "batches") for entry in differences(pair.a, pair.b))
                near.append((told, distance, i, j))
        for told, _, i, j in sorted(near):
            if i not in used_a and j not in used_b:
                used_a.add(i)
                used_b.add(j)
                taken.append((i, "nearest settings" if told else "equal settings", Pair(a[i], b[j], factor, metric)))
    for name, rows, used in (("A", a, used_a), ("B", b, used_b)):
        left_out += [f"{row.place} ({name}): no partner to compare with" for i, row in enumerate(rows) if i not in used]
    return [(how, pair) for _, how, pair in sorted(taken, key=lambda entry: (entry[1], entry[0]))]


def _require_few(a: int, b: int, *, exact: bool) -> None:
    if a * b > (MAX_ROWS**2 if exact else MAX_PAIRS):
        problem = Problem("selection", f"{a} x {b} rows", f"at most {MAX_PAIRS} pairs of rows with unequal settings")
        raise InputError("the selection is too large", problems=(problem,), next_step="select fewer: STUDY:key=value")


def _pair_exactly(a: list[Row], b: list[Row], factor: str) -> list[tuple[int, int]]:
    """Return pairs of rows with equal settings, except for the factor and the machine.

    No other pair can be nearer: these are taken first, without trying every pair.
    """
    named = keys_named(factor)
    keys = [key for key, role in SETTINGS.items() if role not in UNCHOSEN and key not in named]
    there: dict[tuple[str, ...], list[int]] = {}
    for j, row in enumerate(b):
        there.setdefault(tuple(shown(row.get(key)) for key in keys), []).append(j)
    matches = [(i, there.get(tuple(shown(row.get(key)) for key in keys), [])) for i, row in enumerate(a)]
    return [(i, j) for i, same in matches for j in same[:MAX_SAME]]


def _same_row(a: Row, b: Row) -> bool:
    return (a.source, a.table, a.place) == (b.source, b.table, b.place)


def _best_pairs(a: list[Row], b: list[Row], factor: str, metric: str) -> list[tuple[Pair, tuple[int, int]]]:
    """Return the best row of each side per group of the same work, if both sides had a choice."""
    if sense(a[0].figures[metric].unit) == "other":
        # For a share or memory it is unknown whether more is better.
        return []
    meant = meant_to_differ(Pair(a[0], b[0], factor, metric))
    sizes = [] if meant & {"devices"} and factor in ("devices", "nodes", "size") else ["devices", "nodes"]
    for extra in (sizes, []):
        keys = [key for key, role in SETTINGS.items() if role in GROUPED and key not in meant] + extra
        groups_a, groups_b = _groups(a, keys), _groups(b, keys)
        common = [key for key in groups_a if key in groups_b]
        if common:
            break
    pairs = []
    for key in common:
        rows_a, rows_b = groups_a[key], groups_b[key]
        if len(rows_a) > 1 and len(rows_b) > 1:
            # A setting that only one side varied does not count as chosen.
            tuned = _varied(rows_a) & _varied(rows_b)
            pair = Pair(_best(rows_a, metric), _best(rows_b, metric), factor, metric, tuned)
            pairs.append((pair, (len(rows_a), len(rows_b))))
    return pairs


def _groups(rows: list[Row], keys: list[str]) -> dict[tuple[str, ...], list[Row]]:
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(shown(row.get(key)).casefold() for key in keys), []).append(row)
    return groups


def _varied(rows: list[Row]) -> frozenset[str]:
    """Return settings of which a side tried several values, and which it may choose for itself."""
    return frozenset(
        key for key, role in SETTINGS.items() if role in TUNABLE and len({shown(row.get(key)) for row in rows}) > 1
    )


def _best(rows: list[Row], metric: str) -> Row:
    """Return the best of the reliable rows; of all rows if none is reliable, as in published tables."""
    more = sense(rows[0].figures[metric].unit) == "rate"
    reliable = [row for row in rows if row.get("findings") is None and len(row.jobs) >= MIN_JOBS]
    reliable = [row for row in reliable if not too_large(shown_trend(row.jobs))]
    return (max if more else min)(reliable or rows, key=lambda row: row.figures[metric].value)


def _same_value(entry: Comparison, key: str) -> bool:
    a, b = entry.a.get(key), entry.b.get(key)
    return a is not None and b is not None and alike(key, a, b) == "same"


def _distinct(rows: Sequence[Row], keys: Sequence[str]) -> int:
    return len({tuple(shown(row.get(key)) for key in keys) for row in rows})


def _tell_apart(made: list[Comparison]) -> list[Comparison]:
    """Add the settings that distinguish the comparisons."""
    rows = [entry.a for entry in made if entry.how != "best against best"]
    keys = [
        key
        for key, role in SETTINGS.items()
        if role not in ("evidence", "environment") and len({shown(row.get(key)) for row in rows}) > 1
    ]
    # As few as tell all of them apart; those that both sides share say most.
    keys.sort(key=lambda key: any(not _same_value(entry, key) for entry in made))
    needed: list[str] = []
    for key in keys:
        if _distinct(rows, [*needed, key]) > _distinct(rows, needed):
            needed.append(key)
    apart = []
    for entry in made:
        if entry.how != "best against best":
            shared = []
            for key in needed:
                a, b = entry.a.get(key), entry.b.get(key)
                one = b is None or _same_value(entry, key)
                shared.append(f"{key} " + (shown(a) if one else f"{shown(a)} against {shown(b)}"))
            entry = replace(entry, shared=tuple(shared))
        apart.append(entry)
    return apart
