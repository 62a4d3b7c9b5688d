"""Judge claims: recompute the figures, and check each assertion with the claim rules."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard.audit import claims as language
from steelyard.audit.claims import figure, parse_claim
from steelyard.audit.energy import device_power, with_limit, work_power
from steelyard.audit.percentages import BASES, base_of, work_percent
from steelyard.audit.recompute import (
    Worked,
    few,
    lead,
    work_efficiency,
    work_equal,
    work_faster,
    work_times,
    work_value,
)
from steelyard.audit.repeats import Index, best_ratio, chance, statistics
from steelyard.audit.series import other_product, work_best, work_linear, work_monotone, work_same_work
from steelyard.audit.table import parse_table
from steelyard.errors import InputError, Problem
from steelyard.inputs.validate import parse_toml
from steelyard.rules.claim import MAX_SHOWN, Asserted, Reading, RepeatNoise, Span
from steelyard.rules.energy.tables import PowerAboveLimit
from steelyard.rules.plausibility.tables import LEAST_PEERS, Outlier
from steelyard.rules.rule import VERDICTS, check, rule
from steelyard.rules.scaling.tables import Superlinear
from steelyard.rules.settings.claims import Unfair
from steelyard.rules.statistics.claims import NotShown
from steelyard.rules.table.peers import WORK_ROLES, keys_of
from steelyard.rules.table.row import Pair, RowTable
from steelyard.rules.table.settings import SETTINGS, confounders, differences, keys_named, unclear

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from steelyard.audit.claims import Claim, Claims
    from steelyard.contracts.finding import Finding
    from steelyard.rules.claim import Assertion, ClaimRule
    from steelyard.rules.rule import Example, Verdict
    from steelyard.rules.table.row import Row

LEVEL = 1e-6
"""Figures that differ by less are equal."""


@dataclass(frozen=True)
class Judged:
    """One assertion of a claim, judged."""

    asserts: Assertion
    verdict: Verdict
    recomputed: str
    findings: tuple[Finding, ...] = ()
    sums: str = ""
    """The calculations, without the findings."""


@dataclass(frozen=True)
class Judgement:
    """A claim, judged."""

    claim: Claim
    verdict: Verdict
    parts: tuple[Judged, ...]
    notes: tuple[str, ...] = ()

    @property
    def recomputed(self) -> str:
        """Return the calculations and findings behind the verdict."""
        return "; ".join(dict.fromkeys(part.recomputed for part in self._select_deciding() if part.recomputed))

    @property
    def sums(self) -> str:
        """Return the calculations behind the verdict, without the findings."""
        return "; ".join(dict.fromkeys(part.sums for part in self._select_deciding() if part.sums))

    @property
    def asserted(self) -> str:
        """Return the assertions that decided the verdict."""
        return ", ".join(part.asserts for part in self._select_deciding())

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return the findings of all assertions."""
        return tuple(finding for part in self.parts for finding in part.findings)

    def _select_deciding(self) -> tuple[Judged, ...]:
        if self.verdict != "holds":
            return tuple(part for part in self.parts if part.verdict == self.verdict)
        # Leave out the implied `arithmetic`: the claim is about what it names.
        named = self.claim.asserts or self.claim.by_itself()
        return tuple(part for part in self.parts if part.asserts in named)


Vote = tuple[str, str]
"""The kind of figure, and the base that gives the printed percentage."""


class Document:
    """The rows that claims are about, with results shared by all claims."""

    def __init__(self, table: RowTable, claims: Sequence[Claim] = ()) -> None:
        self.table = table
        self.votes = _collect_votes(claims, table)
        """The base of every percentage in the document, by claim id."""
        self._indices: dict[str, Index] = {}
        self._works: dict[tuple[object, ...], set[tuple[object, ...]]] = {}
        self._outliers: dict[frozenset[tuple[object, ...]], list[Finding]] = {}

    def index(self, metric: str) -> Index:
        """Return the rows by their settings, for one metric."""
        if metric not in self._indices:
            self._indices[metric] = Index(self.table, metric)
        return self._indices[metric]

    def shared_works(self, a: Row, b: Row) -> int:
        """Count the works that were run on the machines of both rows."""
        if not self._works:
            for row in self.table.rows:
                work = tuple(row.get(key) for key in keys_of(*WORK_ROLES))
                self._works.setdefault(_identify_machine(row), set()).add(work)
        return len(self._works.get(_identify_machine(a), set()) & self._works.get(_identify_machine(b), set()))

    def outliers(self, rows: Sequence[Row]) -> list[Finding]:
        """Return the outliers among these rows, relative to all rows of their machines."""
        machines = frozenset(_identify_machine(row) for row in rows)
        if machines not in self._outliers:
            peers = tuple(row for row in self.table.rows if _identify_machine(row) in machines)
            self._outliers[machines] = list(Outlier().check(RowTable(self.table.name, peers, self.table.platforms)))
        places = {row.place for row in rows}
        return [finding for finding in self._outliers[machines] if finding.place in places]


def judge(claims: Claims, document: str = "") -> list[Judgement]:
    """Judge all claims of a file, or those about one of its tables, in order."""
    only = next(iter(claims.tables))
    by_table: dict[str, list[Claim]] = {}
    for claim in claims.claims:
        by_table.setdefault(claim.document or only, []).append(claim)
    documents = {name: Document(claims.tables[name], about) for name, about in by_table.items()}
    judged, errors = [], []
    for claim in claims.claims:
        name = claim.document or only
        if not document or name == document:
            try:
                judged.append(judge_claim(claim, documents[name]))
            except InputError as error:
                what = error.what if error.what.startswith("claim ") else f"claim {claim.id}: {error.what}"
                errors.append(InputError(what, problems=error.problems, next_step=error.next_step))
    if errors:
        raise _join_errors(errors, len(claims.claims))
    return judged


def _join_errors(errors: list[InputError], claims: int) -> InputError:
    """Combine the errors of all claims that cannot be judged into one."""
    if len(errors) == 1:
        return errors[0]
    problems = tuple(
        Problem(error.what, "; ".join(entry.problem for entry in error.problems) or "see above", valid)
        for error in errors
        for valid in [error.problems[0].valid if error.problems else "see docs/claims.md"]
    )
    return InputError(f"{len(errors)} of {claims} claims cannot be judged", problems=problems)


def judge_claim(claim: Claim, document: Document) -> Judgement:
    """Judge one claim about the rows of its document."""
    worked, convention = _work(claim, document)
    parts = tuple(_judge_assertion(claim, document, worked, convention, assertion) for assertion in claim.assertions())
    worst = min((part.verdict for part in parts), key=VERDICTS.index)
    return Judgement(claim, worst, parts, (*worked.notes, *_note_aside(claim, document, worked)))


def try_example(made: ClaimRule, example: Example) -> list[Finding]:
    """Return the findings of a rule in one of its examples: a table, a line of dashes, and a claim."""
    rows, _, text = example.text.partition("---\n")
    claim = parse_claim(parse_toml(text.encode(), "the example"), "the example")
    document = Document(parse_table(rows, "the example"))
    worked, convention = _work(claim, document)
    assertions = [
        _work_out_assertion(claim, document, worked, convention, assertion) for assertion in claim.assertions()
    ]
    return [finding for asserted in assertions for finding in made.check(asserted)]


# -- recomputing


_WORK: dict[type[Claim], Callable[..., Worked]] = {
    language.Times: work_times,
    language.Percent: work_percent,
    language.Efficiency: work_efficiency,
    language.Faster: work_faster,
    language.Equal: work_equal,
    language.Linear: work_linear,
    language.SameWork: work_same_work,
    language.PowerClaim: work_power,
    language.Monotone: work_monotone,
    language.Best: work_best,
    language.Value: work_value,
}


def _work(claim: Claim, document: Document) -> tuple[Worked, str]:
    """Recompute the figures of a claim, and describe the base that its document uses for percentages."""
    table = document.table
    if not isinstance(claim, language.Percent):
        return _WORK[type(claim)](claim, table), ""
    kind, larger, others = _find_convention(claim, table, document.votes)
    worked = work_percent(claim, table, larger)
    if claim.base is not None:
        return worked, "the document states another base"
    if claim.relation not in ("faster", "slower"):
        return worked, f"{claim.relation} means relative to {worked.meant[0].base}"
    if not larger:
        return worked, ""
    base = BASES[kind][0 if larger == "larger" else 1]  # type: ignore[index]
    many = (
        f"{others} other percentages in the document are" if others > 1 else "the other percentage in the document is"
    )
    return worked, f"{many} relative to {base}"


def _collect_votes(claims: Sequence[Claim], table: RowTable) -> dict[str, Vote]:
    """Return the base of each percentage, by claim id. Claims that cannot be recomputed are reported when judged."""
    votes: dict[str, Vote] = {}
    for claim in claims:
        if isinstance(claim, language.Percent):
            with suppress(InputError):
                vote = base_of(claim, table)
                if vote is not None:
                    votes[claim.id] = vote
    return votes


def _find_convention(claim: Claim, table: RowTable, votes: dict[str, Vote]) -> tuple[str, str, int]:
    """Return the kind of figure, the base of most other percentages in the document, and their number; or empty."""
    own = work_percent(claim, table) if isinstance(claim, language.Percent) else Worked()
    kind = next((kind for kind, bases in BASES.items() if own.meant and own.meant[0].base in bases), "other")
    counts = Counter(base for name, (its, base) in votes.items() if its == kind and name != claim.id)
    if not counts or len(set(counts.values())) < len(counts):
        return kind, "", 0
    base, count = counts.most_common(1)[0]
    return kind, base, count


# -- judging


def _note_aside(claim: Claim, document: Document, worked: Worked) -> tuple[str, ...]:
    """Return notes on a comparison that the claim does not assert: other changes, and unfair settings."""
    if len(worked.pairs) != 1 or not isinstance(claim, language.PairClaim):
        return ()
    (a, b), notes = worked.pairs[0], []
    if "attribution" not in claim.asserts:
        # The factor is most likely the machine, otherwise its size.
        first = next((key for key in ("accelerator", "system", "devices") if a.get(key) != b.get(key)), "")
        factor = "system" if first == "accelerator" else first
        pair = Pair(b, a, factor, worked.metric)
        changed = [str(entry) for entry in confounders(pair)]
        # Without a known factor, a single changed setting is the factor.
        if len(changed) >= (1 if factor else 2):
            alone = unclear(pair)
            one_sided = f"; stated for only one row: {', '.join(alone)}" if alone else ""
            notes.append(f"there is no single cause, because these changed too: {', '.join(changed)}{one_sided}")
    machines = a.get("accelerator"), b.get("accelerator")
    if "fairness" not in claim.asserts and machines[0] != machines[1]:
        asserted = _work_out_assertion(claim, document, worked, "", "fairness")
        notes += [f"{finding.message}: {finding.evidence}" for finding in Unfair().check(asserted)]
    return tuple(notes)


def _judge_assertion(claim: Claim, document: Document, worked: Worked, convention: str, assertion: Assertion) -> Judged:
    asserted = _work_out_assertion(claim, document, worked, convention, assertion)
    findings = check("claim", asserted)
    if assertion == "plausibility":
        # Check the rows of the claim against each other, and among other rows of their machines.
        pairs = worked.pairs or ((worked.rows[0], worked.rows[-1]),)
        tables = (RowTable(document.table.name, (b, a), document.table.platforms) for a, b in pairs)
        odd = [finding for table in tables for finding in Superlinear().check(table)]
        odd += document.outliers([row for pair in pairs for row in pair])
        findings += tuple(dict.fromkeys(odd))
    if assertion == "physical limit":
        findings += tuple(PowerAboveLimit().check(_add_platforms(claim, document, worked)))
    verdict = min((rule(finding.code).verdict for finding in findings), key=VERDICTS.index, default=VERDICTS[-1])
    sums = _format_figures(asserted, worked)
    return Judged(assertion, verdict, _format_recomputed(asserted, worked, sums, findings), findings, sums)


def _work_out_assertion(
    claim: Claim, document: Document, worked: Worked, convention: str, assertion: Assertion
) -> Asserted:
    stated = figure(claim) if claim.published and claim.prints_figure() and worked.meant else None
    equal = best = noise = None
    differs: tuple[str, ...] = ()
    unchanged = False
    if (unlike := _explain_unlike(claim, worked)) and assertion in ("attribution", "fairness", "statistics"):
        noise = RepeatNoise(shown=False, text=unlike)
    elif assertion == "attribution":
        differs, unchanged, noise = _check_credited(claim, document, worked)
    elif assertion == "fairness":
        equal, best, noise = _compare_best(document, worked)
    elif assertion == "statistics":
        noise = _check_statistics(claim, document, worked)
    elif assertion == "plausibility":
        noise = _explain_few_peers(document, worked)
    elif assertion == "physical limit":
        noise = _explain_no_limit(claim, document, worked)
    faults = worked.faults
    if assertion == "same work" and worked.pairs:
        stated, faults = None, _find_other_work(worked)
    return Asserted(
        claim=claim.id,
        asserts=assertion,
        place=worked.place,
        published=Span(stated.low.low, stated.high.high) if stated else None,
        reached=stated.reached if stated else None,
        printed=claim.published,
        meant=worked.meant,
        other=worked.other,
        convention=convention,
        faults=faults,
        hint=worked.hint,
        factor=claim.factor,
        differs=differs,
        unchanged=unchanged,
        equal=equal,
        best=best,
        noise=noise,
    )


def _explain_unlike(claim: Claim, worked: Worked) -> str:
    """Return why the sides cannot be compared if the claim uses a different metric for each; otherwise empty."""
    other = str(claim.b.get("metric") or worked.metric) if isinstance(claim, language.PairClaim) else worked.metric
    return f"different metrics are compared: {worked.metric} and {other}" if other != worked.metric else ""


def _check_credited(
    claim: Claim, document: Document, worked: Worked
) -> tuple[tuple[str, ...], bool, RepeatNoise | None]:
    """Return what else changed, whether the factor is unchanged, and if only the factor changed, the noise."""
    changed: dict[str, None] = {}
    if not worked.pairs:
        return (), False, RepeatNoise(shown=False, text="the claim does not compare two rows")
    for a, b in worked.pairs:
        changed.update((str(entry), None) for entry in confounders(Pair(b, a, claim.factor, worked.metric)))
        if claim.factor == "accelerator" and not worked.metric.endswith("_per_device"):
            # The number of devices follows from the system, but not from the accelerator.
            changed.update((str(entry), None) for entry in differences(b, a) if entry.key == "devices")
    if changed:
        return tuple(changed), False, None
    same, unknown = _check_unchanged(claim.factor, worked)
    if same:
        return (), True, None
    if unknown:
        words = f"the rows do not both state {claim.factor}, so it cannot be shown to be the cause"
        return (), False, RepeatNoise(shown=False, text=words)
    index = document.index(worked.metric)
    return (), False, _pick_worst([chance(index, pair) for pair in worked.pairs])


def _check_unchanged(factor: str, worked: Worked) -> tuple[bool, bool]:
    """Return whether the factor is the same in some pair of rows, and whether it is unknown in some."""
    keys = keys_named(factor)
    same = unknown = False
    for a, b in worked.pairs:
        if not any(entry.key in keys for entry in differences(b, a)):
            known = any(a.get(key) is not None and b.get(key) is not None for key in keys)
            same, unknown = same or known, unknown or not known
    return same, unknown


def _compare_best(document: Document, worked: Worked) -> tuple[Reading | None, Reading | None, RepeatNoise | None]:
    """Return the advantage in the claim's rows, and the advantage at each side's best settings."""
    if not worked.pairs:
        return None, None, RepeatNoise(shown=False, text="fairness needs two sides, but the claim has one")
    equal = best = None
    index = document.index(worked.metric)
    for pair in worked.pairs:
        for ahead, behind in (pair, (pair[1], pair[0])):
            at_best, why = best_ratio(index, (ahead, behind))
            if at_best is None:
                return None, None, RepeatNoise(shown=False, text=why)
            own = lead(worked.metric, ahead.figures[worked.metric], behind.figures[worked.metric])
            # Skip the side that is behind; if both are level, check both.
            if own is None or own.values[0].high < 1 or own.values[0].low + own.values[0].high < 2 - LEVEL:
                continue
            # The pair that loses most decides.
            if best is None or equal is None or _compute_loss(own, at_best) > _compute_loss(equal, best):
                equal, best = own, at_best
    return equal, best, None


def _compute_loss(equal: Reading, best: Reading) -> float:
    return equal.values[0].low / best.values[0].high


def _check_statistics(claim: Claim, document: Document, worked: Worked) -> RepeatNoise:
    if not worked.pairs:
        return RepeatNoise(shown=False, text="the claim does not compare two rows, so there are no repeats to count")
    equal = isinstance(claim, language.Equal)
    within = claim.within if isinstance(claim, language.Equal) else None
    index = document.index(worked.metric)
    return _pick_worst([statistics(index, pair, within, equal=equal) for pair in worked.pairs])


def _pick_worst(noises: list[RepeatNoise]) -> RepeatNoise:
    return next((noise for noise in noises if not noise.shown), noises[0])


def _explain_few_peers(document: Document, worked: Worked) -> RepeatNoise | None:
    """Return a reason if there are too few rows to judge plausibility: no other machine size, and too few works."""
    pairs = worked.pairs or ((worked.rows[0], worked.rows[-1]),)
    counts = []
    for a, b in pairs:
        if a.number("devices") != b.number("devices") and _identify_system(a) == _identify_system(b):
            return None
        counts.append(document.shared_works(a, b) - 1)
    if max(counts) >= LEAST_PEERS:
        return None
    have = f"{max(0, max(counts))} other models or data sets were run on both machines"
    return RepeatNoise(shown=False, text=f"{have}; {LEAST_PEERS} are needed to judge plausibility")


def _identify_system(row: Row) -> tuple[object, ...]:
    return tuple(row.get(key) for key, role in SETTINGS.items() if role == "system")


def _explain_no_limit(claim: Claim, document: Document, worked: Worked) -> RepeatNoise | None:
    """Return a reason if the limit cannot be checked: it is unknown, or the power cannot be computed."""
    limited = _add_platforms(claim, document, worked)
    known = [platform for row in limited.rows if (platform := limited.platform(row)) is not None]
    if not any(platform.power_limit_w or platform.system_power_limit_w for platform in known):
        return RepeatNoise(shown=False, text="no power limit is known for these machines")
    if all(device_power(row) is None for row in limited.rows):
        return RepeatNoise(shown=False, text="the power of these rows cannot be computed")
    return None


def _identify_machine(row: Row) -> tuple[object, ...]:
    """Return the settings that identify a machine and its size."""
    return tuple(row.get(key) for key, role in SETTINGS.items() if role in ("system", "size"))


def _add_platforms(claim: Claim, document: Document, worked: Worked) -> RowTable:
    rows = worked.rows or tuple(row for pair in worked.pairs for row in pair)
    return with_limit(claim.limit_w if isinstance(claim, language.PowerClaim) else None, document.table, rows)


def _find_other_work(worked: Worked) -> tuple[str, ...]:
    """Return the differences in work between the two sides of a claim."""
    differing: dict[str, None] = {}
    for a, b in worked.pairs:
        differing.update((str(entry), None) for entry in differences(b, a) if entry.role in ("work", "data", "amount"))
        if product := other_product(a, b):
            differing[product] = None
    return few(tuple(differing))


def _format_figures(asserted: Asserted, worked: Worked) -> str:
    """Format the calculations of an assertion."""
    if asserted.asserts == "fairness" and asserted.equal and asserted.best:
        return f"equal settings: {asserted.equal.text}; each side's best settings: {asserted.best.text}"
    if worked.text:
        return worked.text
    # The calculations that give the printed figure; if none does, all that were tried.
    fitting = [reading for reading in asserted.meant if asserted.given_by(reading)]
    tried = fitting or (asserted.meant if asserted.published is None else (*asserted.meant, *asserted.other))
    return "; ".join(reading.text for reading in tried)


def _format_recomputed(asserted: Asserted, worked: Worked, sums: str, findings: tuple[Finding, ...]) -> str:
    """Format the calculations and findings behind one verdict."""
    words = [sums]
    if asserted.asserts in ("arithmetic", "same work"):
        included = worked.includes_faults and asserted.faults == worked.faults
        words += [*(() if included else asserted.faults), *([asserted.hint] if not asserted.follows() else [])]
    if asserted.asserts == "plausibility":
        words += [finding.message for finding in findings if finding.code != NotShown.code]
    if asserted.differs:
        words.append("changed too: " + ", ".join(few(asserted.differs, MAX_SHOWN)))
    if asserted.unchanged:
        words.append(f"{asserted.factor} is the same on both sides")
    if asserted.noise is not None:
        words.append(asserted.noise.text)
    return "; ".join(word for word in words if word)
