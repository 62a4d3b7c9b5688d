"""A comparison as lines for a terminal: verdict and answer, findings, ratios."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from steelyard.analysis.ratios import sense
from steelyard.analysis.rows import chosen_names, settings_in_effect
from steelyard.analysis.summary import settings_of
from steelyard.analysis.sweep import written
from steelyard.audit.beside import REFERENCE
from steelyard.audit.documents import provenance
from steelyard.inputs.study import setting
from steelyard.numbers import short
from steelyard.rules.table.row import Pair
from steelyard.rules.table.settings import SETTINGS, carried_along, shown
from steelyard.stats.ratio import MIN_JOBS
from steelyard.terminal.findings import finding_lines, findings_object, tally_lines
from steelyard.terminal.plain import amount_object, number_object
from steelyard.terminal.ratios import allowed_for, bounded, level_percent, method_text, sentence
from steelyard.terminal.text import capital, many, number, spec_notes, table, wrapped

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from steelyard.analysis.compare import Compared, Comparison
    from steelyard.analysis.ratios import Ratio
    from steelyard.contracts.finding import Finding
    from steelyard.rules.table.row import Row
    from steelyard.terminal.shapes.results import CompareData, RatioData, SideData

SHOWN_LEFT_OUT = 6
# What the column `B is` shows for a verdict.
SAYS = {"too few jobs": "not ranked"}
# True of most comparisons: one line is enough.
QUIET = ("SY206",)
OF_ONE_SIDE = ("SY115", "SY207", "SY209", "SY211", "SY213", "SY625")


def lines(compared: Compared, name_a: str, name_b: str, names: Mapping[str, str] | None = None) -> list[str]:
    """Format a comparison, the verdict and the answer first; `names`: how to name the places of rows."""
    named = names or {}
    verdicts = dict.fromkeys(entry.verdict for entry in compared.comparisons)
    out = wrapped(" and ".join(map(_loud, verdicts)))
    if len(compared.comparisons) == 1 and not compared.comparisons[0].forced:
        out += _answer_lines(compared.comparisons[0])
    else:
        out += _answer_of_pairs([entry for entry in compared.comparisons if entry.how != "best against best"])
    out += ["", *wrapped(f"A (base): {name_a}"), *wrapped(f"B: {name_b}")]
    for source in dict.fromkeys(filter(None, (_cite_source(name_a), _cite_source(name_b)))):
        out += wrapped(f"Source: {source}")
    follows = _differing(compared)
    only = "nothing else differs within a pair" if len(compared.comparisons) > 1 else "nothing else was varied"
    # A setting takes others with it; a role, such as implementation, is these settings.
    beside = [
        *([f"with it {follows}" if compared.factor in SETTINGS else follows] if follows else []),
        *([only] if compared.inferred else []),
    ]
    note = f" ({'; '.join(beside)})" if beside else ""
    out += wrapped(f"Factor: {compared.factor}{note}; figure: {compared.metric}")
    rows = [row for entry in compared.comparisons for row in (entry.a, entry.b)]
    for kind in dict.fromkeys(str(row.get("serving")) for row in rows if row.get("serving") is not None):
        out += wrapped(f"Generation: {kind}")
    out += spec_notes(row.spec for row in rows if row.spec is not None)
    told: dict[tuple[str, ...], Finding] = {}
    for how, several in groupby(compared.comparisons, key=lambda entry: entry.how):
        entries = list(several)
        if len(entries) > 1 and how != "best against best":
            out += ["", *_describe_pairs(entries, told)]
        else:
            for entry in entries:
                text = _describe_pair(entry, told, named, answered=len(compared.comparisons) == 1 and not entry.forced)
                # Without a heading and findings, it begins with the empty line before its table.
                out += text if text[:1] == [""] else ["", *text]
    if compared.left_out:
        out.append("")
        for left in compared.left_out[:SHOWN_LEFT_OUT]:
            place, why = left.split(" (", 1)
            out += wrapped(f"Not compared: {named.get(place, place)} ({why}")
        if len(compared.left_out) > SHOWN_LEFT_OUT:
            out.append(f"and {len(compared.left_out) - SHOWN_LEFT_OUT} more")
    return [*out, "", *tally_lines(list(told.values()))]


def _answer_of_pairs(entries: Sequence[Comparison]) -> list[str]:
    """Count what the ratios of several pairs say, and give their range."""
    ratios = [entry.ratios[0] for entry in entries if entry.ratios and not entry.forced]
    if len(entries) < 2 or not ratios:
        return []
    counts = Counter(SAYS.get(ratio.verdict, ratio.verdict) for ratio in ratios)
    plain = ("faster", "slower", "more", "less")
    parts = [f"{'B ' * (verdict in plain)}{verdict} in {count}" for verdict, count in counts.most_common()]
    low, high = min(ratio.value for ratio in ratios), max(ratio.value for ratio in ratios)
    span = short(low) if short(low) == short(high) else f"{short(low)} to {short(high)}"
    return wrapped(f"Of {many(len(entries), 'pair')}: {', '.join(parts)}; B / A is {span}.")


def _differing(compared: Compared) -> str:
    """Name the settings of the runs that differ with the factor, such as the batch of the job."""
    texts: dict[str, str] = {}
    for entry in compared.comparisons:
        pair = Pair(entry.a, entry.b, compared.factor, compared.metric)
        for one in carried_along(pair):
            texts.setdefault(one.key, str(one))
    return ", ".join(texts if len(compared.comparisons) > 1 else texts.values())


def names_of(rows: Iterable[Row]) -> dict[str, str]:
    """Return names for the places of our own rows: the settings in which they differ, as a selection takes them."""
    specs = {row.place: row.spec for row in rows if row.spec is not None}
    keys = sorted({key for spec in specs.values() for key in settings_of(spec)})
    keys = [key for key in keys if len({repr(setting(spec, key)) for spec in specs.values()}) > 1]
    return {
        place: f"{spec.study}:{','.join(f'{key}={written(setting(spec, key))}' for key in keys)}"
        for place, spec in specs.items()
        if keys
    }


def _loud(verdict: str) -> str:
    return verdict.upper()


def _cite_source(text: str) -> str:
    kind, _, rest = text.partition(":")
    return provenance(rest.partition(":")[0]).cited() if kind == REFERENCE else ""


def _describe_pairs(entries: Sequence[Comparison], told: dict[tuple[str, ...], Finding]) -> list[str]:
    """Format several pairs of equal settings as one table."""
    refused = sum(entry.verdict == "not comparable" and not entry.forced for entry in entries)
    out = wrapped(
        capital(entries[0].how) + f": {len(entries)} pairs" + (f", {refused} not comparable" if refused else "")
    )
    for entry in entries:
        out += _new_findings(entry, told, repeat=False)
    rows = []
    for entry in entries:
        first = entry.ratios[0] if entry.ratios else None
        says = ["-", "-", "-", "-", entry.verdict]
        if first is not None:
            _, a, b, _, value, bounds, _ = _make_row(first)
            says = [a, b, value, bounds, ("FORCED, " if entry.forced else "") + SAYS.get(first.verdict, first.verdict)]
        rows.append([", ".join(text.partition(" ")[2] for text in entry.shared), *says])
    settings = ", ".join(text.partition(" ")[0] for text in entries[0].shared)
    out += ["", table([settings, "A", "B", "B / A", "interval", "B is"], rows)]
    ratios = [ratio for entry in entries for ratio in entry.ratios[:1]]
    units = dict.fromkeys(ratio.unit for ratio in ratios)
    if units:
        out += wrapped(f"A and B in {', '.join(units)}; base of every ratio: A.")
    if any(ratio.level is not None and ratio.low is not None for ratio in ratios):
        methods = dict.fromkeys(method_text(ratio) for ratio in ratios if ratio.level is not None)
        out += wrapped(f"Intervals: 95 % CI per pair, {' or '.join(methods)}.")
    printed = [ratio for ratio in ratios if ratio.level is None and ratio.low is not None]
    for method in dict.fromkeys(map(method_text, printed)):
        out += wrapped(f"Bounds: {method}. They do not test for chance.")
    if any(ratio.verdict == "too few jobs" for ratio in ratios):
        out += wrapped(f"Not ranked: fewer than {MIN_JOBS} jobs on a side.")
    if any(sense(unit) == "time" for unit in units):
        out += wrapped("B / A is a ratio of times: below 1, B is faster.")
    return out


def _new_findings(entry: Comparison, told: dict[tuple[str, ...], Finding], *, repeat: bool = True) -> list[str]:
    """Format the findings that were not shown yet, and list the codes of the others."""
    out, before = [], []
    for finding in entry.findings:
        # Most findings are about both sides.
        side = "A" if finding.place == entry.a.place else "B"
        placed = replace(finding, place=side if finding.code in OF_ONE_SIDE else "")
        key = (placed.code, placed.severity, placed.message, placed.place)
        if key in told:
            before.append(finding.code)
        else:
            fixes = bool(finding.command) or (finding.severity != "warning" and finding.code not in QUIET)
            out += finding_lines([placed], fixes=fixes)
        told.setdefault(key, finding)
    if before and repeat:
        out += wrapped(f"As above: {', '.join(dict.fromkeys(before))}")
    return out


def _describe_pair(
    entry: Comparison, told: dict[tuple[str, ...], Finding], named: Mapping[str, str], *, answered: bool
) -> list[str]:
    shared = f" ({', '.join(entry.shared)})" if entry.shared else ""
    out = []
    if entry.how != "as selected":
        out += wrapped(f"{capital(entry.how)}{shared}: {_loud(entry.verdict)}")
    if entry.how != "as selected" or entry.chosen_from != (1, 1):
        out += wrapped(f"A: {_name_row(entry, entry.a, named)}", "  ")
        out += wrapped(f"B: {_name_row(entry, entry.b, named)}", "  ")
    out += _new_findings(entry, told)
    if entry.forced:
        out += ["", *wrapped("FORCED: the errors above make this ratio invalid. Quote them wherever it is used.")]
    if not entry.ratios:
        return out if answered else [*out, *_answer_lines(entry)]
    out += [
        "",
        table(["", "A", "B", "unit", "B / A", "interval", "jobs"], [_make_row(ratio) for ratio in entry.ratios]),
    ]
    return out + ([] if answered else ["", *_answer_lines(entry)]) + _explain_ratios(entry)


def _name_row(entry: Comparison, row: Row, named: Mapping[str, str]) -> str:
    """Name a row of a sweep by the settings that were chosen."""
    if row.place in named:
        return named[row.place]
    keys = [key for key in entry.chosen if row.get(key) is not None]
    return row.place + (f" ({', '.join(f'{key} {shown(row.get(key))}' for key in keys)})" if keys else "")


def _make_row(ratio: Ratio) -> list[str]:
    bounds = "-" if ratio.low is None or ratio.high is None else f"{short(ratio.low)} to {short(ratio.high)}"
    scope = "job" if ratio.scope == "job" else f"per {ratio.scope}"
    jobs = f"{ratio.jobs_a}, {ratio.jobs_b}"
    value = f"{short(ratio.value)}"
    if ratio.bound is not None:
        value, bounds = bounded(ratio.bound), "-"
    return [scope, number(ratio.a), number(ratio.b), ratio.unit, value, bounds, jobs]


def _answer_lines(entry: Comparison) -> list[str]:
    """Say what the ratios mean, each different one in a sentence, or why there is none."""
    if not entry.ratios:
        errors = [finding for finding in entry.findings if finding.severity == "error"]
        if not errors:
            return wrapped("No ratio: the figure is zero on one side.")
        more = f"; {len(errors) - 1} more below" if len(errors) > 1 else ""
        return wrapped(f"No ratio: {errors[0].message} ({errors[0].code}{more}). --force prints it anyway.")
    others = [ratio for ratio in entry.ratios[1:] if abs(ratio.value / entry.ratios[0].value - 1) > 1e-9]
    shown = [*entry.ratios[:1], *others]
    return [line for ratio in shown for line in wrapped(capital(sentence(ratio, "A", "B")) + ".")]


def _explain_ratios(entry: Comparison) -> list[str]:
    first = entry.ratios[0]
    out = []
    if first.level is not None and first.low is not None:
        out += wrapped(
            f"Interval: {level_percent(first.level)} CI, {method_text(first)}. Base of every ratio and percentage: A."
        )
    elif first.low is not None:
        out += wrapped(f"Bounds: {method_text(first)}. They do not test for chance.")
    if first.method in ("nodes", "same nodes"):
        out += wrapped("Each node counts once in B / A, so it may differ from the quotient of A and B.")
    if max(entry.chosen_from) > 1:
        out += wrapped(_explain_choice(entry.chosen_from, first))
    if sense(first.unit) == "time":
        out += wrapped("B / A is a ratio of times: below 1, B is faster.")
    return out


def _explain_choice(rows: tuple[int, int], first: Ratio) -> str:
    """Explain the bias of choosing the best rows by the figures that are compared."""
    text = (
        f"The best of {rows[0]} rows compared with the best of {rows[1]}, chosen by the same jobs: chance favours the "
        "side with more rows. "
    )
    if first.level is None or first.low is None:
        return text + "Without jobs on both sides, the size of this bias is unknown."
    pairs = rows[0] * rows[1]
    return text + (
        f"The interval allows for the choice ({level_percent(first.level)} for each of {pairs} pairs, 95 % for all "
        "together). Measure the two winners again for a ratio without this bias."
    )


def compared_object(compared: Compared, name_a: str, name_b: str) -> CompareData:
    """Return a comparison as plain data."""
    chosen = chosen_names(row.spec for entry in compared.comparisons for row in (entry.a, entry.b))
    return {
        "shape": "compare/1",
        "a": name_a,
        "b": name_b,
        "factor": compared.factor,
        "inferred": compared.inferred,
        "metric": compared.metric,
        "comparisons": [
            {
                "how": entry.how,
                "factor": entry.factor,
                "metric": entry.metric,
                "verdict": entry.verdict,
                "a": _side_object(entry.a, entry.metric, chosen),
                "b": _side_object(entry.b, entry.metric, chosen),
                "findings": findings_object(entry.findings),
                "ratios": [_ratio_object(ratio) for ratio in entry.ratios],
                "forced": entry.forced,
                "chosen_from": list(entry.chosen_from),
                "chosen": list(entry.chosen),
                "shared": list(entry.shared),
            }
            for entry in compared.comparisons
        ],
        "left_out": list(compared.left_out),
    }


def _side_object(row: Row, metric: str, chosen: Collection[str]) -> SideData:
    return {
        "place": row.place,
        "settings": settings_in_effect(row, chosen),
        "figure": amount_object(row.figures[metric]),
    }


def _ratio_object(ratio: Ratio) -> RatioData:
    figure = number_object(ratio.value, ratio.low, ratio.high, ratio.level, unit="1", jobs=ratio.jobs_a + ratio.jobs_b)
    figure["method"] = method_text(ratio)
    return {
        **figure,
        "metric": ratio.metric,
        "of": ratio.scope,
        "a": ratio.a,
        "b": ratio.b,
        "figure_unit": ratio.unit,
        "verdict": ratio.verdict,
        "percent_faster": ratio.percent_faster,
        "jobs_a": ratio.jobs_a,
        "jobs_b": ratio.jobs_b,
        "answer": ratio.answer,
        "allows": list(allowed_for(ratio)),
        "margin": ratio.margin,
        "findings": findings_object(ratio.findings),
    }
