"""The format of claims files: typed TOML with the claims that a document makes about its rows.

Described with examples in docs/claims.md. A claims file names its tables; a claim selects rows by their settings.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from steelyard.audit import documents
from steelyard.audit.reading import read_table
from steelyard.audit.table import read_platforms
from steelyard.contracts.base import Bound, Contract, Length, Positive, Share, Text
from steelyard.errors import InputError, Problem, nearest
from steelyard.inputs.validate import parse_object, parse_toml
from steelyard.rules.claim import Assertion, Span
from steelyard.rules.table.settings import SETTINGS
from steelyard.rules.table.units import printed

if TYPE_CHECKING:
    from steelyard.rules.table.row import RowTable

MAX_CLAIMS = 500
NEAR_LINEAR = 0.9

Id = Annotated[str, Length(40, r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Short = Annotated[str, Length(200)]
Selector = Annotated[dict[Annotated[str, Length(80)], bool | int | float | Short], Length(40)]
"""Settings that a row must have, such as `{ accelerator = "GH200", devices = 4 }`; also `table`, `source`, `note` and
`metric`."""

Relation = Literal[
    "faster", "slower", "less time", "more time", "more throughput", "less throughput", "more", "less", "change"
]
Ratio = Literal["as fast", "as much", "less"]
Base = Literal["a", "b", "larger", "smaller"]


@dataclass(frozen=True, kw_only=True)
class Claim(Contract):
    """The fields that all kinds of claims have."""

    id: Id
    kind: Short
    text: Text = ""
    """The sentence in the document."""
    document: Short = ""
    """The table that the claim is about, if the file has several."""
    place: Short = ""
    """Where the claim is in the document."""
    published: Short = ""
    """The figure as printed: `32.3 %`, `14.2x`, `35-55 %`. A printed figure also asserts `arithmetic`."""
    asserts: Annotated[tuple[Assertion, ...], Length(7)] = ()
    """What is judged; if empty, the default of the kind."""
    factor: Short = ""
    """For `attribution`: the setting named as the cause."""
    rows: Selector = field(default_factory=dict)
    """Settings that all rows of the claim have."""
    metric: Short = ""
    """The metric; may be omitted if the rows have only one in common."""

    def __post_init__(self) -> None:
        if "attribution" in self.asserts and not self.factor:
            raise ValueError("factor: missing; valid: the setting named as the cause, such as precision")

    def assertions(self) -> tuple[Assertion, ...]:
        """Return everything to be judged, the arithmetic of a printed figure first."""
        named = self.asserts or self.by_itself()
        implied: tuple[Assertion, ...] = ()
        if self.states_order() or (self.published and self.prints_figure()):
            implied = ("arithmetic",)
        return tuple(dict.fromkeys((*implied, *named)))

    def states_order(self) -> bool:
        """Return whether the claim can be wrong without a printed figure, such as faster, best or rises.

        Such a claim always asserts `arithmetic`: the cause of a difference matters only if there is one.
        """
        return False

    def by_itself(self) -> tuple[Assertion, ...]:
        """Return what a claim of this kind asserts by default."""
        return ("arithmetic",)

    def prints_figure(self) -> bool:
        """Return whether `published` is a figure to recompute."""
        return True


@dataclass(frozen=True, kw_only=True)
class PairClaim(Claim):
    """A claim on two rows, or on pairs of rows."""

    a: Selector
    """The row that the claim is about."""
    b: Selector
    """The row that it is compared with."""
    over: Annotated[tuple[Short, ...], Length(10)] = ()
    """Settings that match the rows of both sides into pairs; the claim must hold for each pair."""


@dataclass(frozen=True, kw_only=True)
class Times(PairClaim):
    """A is r times as fast as B, or r times as much."""

    relation: Ratio = "as fast"
    """`as fast`: A/B for rates, B/A for times. `as much`: always A/B. `less`: always B/A."""


@dataclass(frozen=True, kw_only=True)
class Percent(PairClaim):
    """A differs from B by p %."""

    relation: Relation = "faster"
    """The wording. `faster` and `slower` do not determine the base, the others do; `change` is (A-B)/B."""
    base: Base | None = None
    """The base that the document states, if any."""

    def states_order(self) -> bool:
        """Return True, except for `change`, which does not say which side is ahead."""
        return self.relation != "change"


@dataclass(frozen=True, kw_only=True)
class Efficiency(PairClaim):
    """Speed-up of A over B, divided by the ratio of their device counts."""


@dataclass(frozen=True, kw_only=True)
class Faster(PairClaim):
    """A is faster than B, by an unstated amount. `published` may have both figures: `about 3,000 against 270`."""

    def prints_figure(self) -> bool:
        """Return False: `published` is text, or the figures of both sides."""
        return False

    def states_order(self) -> bool:
        """Return True: A must be faster."""
        return True


@dataclass(frozen=True, kw_only=True)
class Equal(PairClaim):
    """A and B are equal within a margin."""

    within: Share | None = None
    """The margin as a fraction of B; None means equal within rounding."""

    def states_order(self) -> bool:
        """Return whether there is a margin that the rows can exceed."""
        return self.within is not None


@dataclass(frozen=True, kw_only=True)
class Linear(Claim):
    """The rate scales almost linearly with the number of devices."""

    up_to: Positive | None = None
    """The largest number of devices that the claim covers; None means all rows."""
    at_least: Share = NEAR_LINEAR
    """The least efficiency that counts as linear."""

    def prints_figure(self) -> bool:
        """Return False: `published` is text."""
        return False

    def states_order(self) -> bool:
        """Return True: the rows can be less than linear."""
        return True


@dataclass(frozen=True, kw_only=True)
class SameWork(Claim):
    """Rate times time is the same amount of work in all rows; `published` may state it."""

    rate: Short = ""
    time: Short = ""
    within: Share = 0.0
    """A margin beyond rounding."""

    def by_itself(self) -> tuple[Assertion, ...]:
        """Return `same work`."""
        return ("same work",)

    def prints_figure(self) -> bool:
        """Return False: a published amount is checked as part of `same work`."""
        return False


@dataclass(frozen=True, kw_only=True)
class PowerClaim(Claim):
    """Power stays below the limit of the device; figures per energy follow from the energy."""

    limit_w: Positive | None = None
    """The power limit of one device; None means the limit in the table of machines."""

    def by_itself(self) -> tuple[Assertion, ...]:
        """Return `physical limit`."""
        return ("physical limit",)


@dataclass(frozen=True, kw_only=True)
class Monotone(Claim):
    """The metric rises or falls with a setting."""

    setting: Short
    direction: Literal["rises", "falls"] = "rises"

    def states_order(self) -> bool:
        """Return True: the rows can go the other way."""
        return True


@dataclass(frozen=True, kw_only=True)
class Best(Claim):
    """One value of a setting is the best, with all other settings equal."""

    setting: Short
    value: bool | int | float | Short
    better: Literal["more", "less"] | None = None
    """Whether more or less of the metric is better; None means by its unit or name."""

    def prints_figure(self) -> bool:
        """Return False: `published` repeats the claimed value."""
        return False

    def states_order(self) -> bool:
        """Return True: another value can be better."""
        return True


@dataclass(frozen=True, kw_only=True)
class Value(Claim):
    """A row has this figure. With `up to` in `published`, several rows may be meant, and one must reach it."""

    per: Literal["job", "device"] = "job"
    """`device`: the figure of the job divided by its devices, unless the metric is already one per device."""


KINDS: dict[str, type[Claim]] = {
    "times": Times,
    "percent": Percent,
    "efficiency": Efficiency,
    "linear": Linear,
    "same_work": SameWork,
    "power": PowerClaim,
    "monotone": Monotone,
    "best": Best,
    "equal": Equal,
    "faster": Faster,
    "value": Value,
}


@dataclass(frozen=True, kw_only=True)
class ClaimsFile(Contract):
    """A claims file; each claim is parsed according to its kind."""

    schema_version: Annotated[int, Bound(ge=1, le=1)] = 1
    title: Text = ""
    tables: Annotated[tuple[Short, ...], Length(20)]
    """Files in the same folder, or names in the built-in catalogue."""
    platforms: Short = ""
    """A file in the same folder that describes the machines."""
    claim: Annotated[tuple[dict[str, Any], ...], Length(MAX_CLAIMS)]


@dataclass(frozen=True)
class Claims:
    """Claims, and the tables they are about, by name."""

    name: str
    title: str
    tables: dict[str, RowTable]
    claims: tuple[Claim, ...]


def parse_claims(text: bytes, source: str, folder: Path | None = None) -> Claims:
    """Parse a claims file. Without a folder, only built-in tables are allowed."""
    return made_claims(parse_toml(text, source), source, folder)


def made_claims(data: dict[str, Any], source: str, folder: Path | None) -> Claims:
    """Return the claims in parsed TOML data. Without a folder, only built-in tables are allowed."""
    if isinstance(entries := data.get("claim"), dict):
        data = {**data, "claim": [entries]}
    file = parse_object(ClaimsFile, data, source)
    platforms = read_platforms(_resolve_beside("platforms", file.platforms, folder, source)) if file.platforms else ()
    tables = {
        name: documents.load(name)
        if name in documents.names()
        else read_table(_resolve_beside("tables", name, folder, source), platforms)
        for name in file.tables
    }
    claims = tuple(parse_claim(entry, source) for entry in file.claim)
    _refuse(_find_doubles(claims) + _find_unknown_documents(claims, tables), source)
    if not tables:
        _refuse([Problem("tables", "empty", "a file in the same folder, or a built-in name")], source)
    return Claims(source, file.title, tables, tuple(claims))


def parse_claim(entry: dict[str, Any], source: str) -> Claim:
    """Parse one claim according to its kind."""
    name = str(entry.get("id", "without an id"))[:40]
    kind = entry.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        problem = Problem(f"claim {name}: kind", f'"{str(kind)[:40]}" is not a kind of claim', ", ".join(KINDS))
        raise InputError(f"{source} is not valid", problems=(problem,), next_step="see docs/claims.md")
    claim = parse_object(KINDS[kind], entry, f"{source}, claim {name}")
    _refuse(_find_unknown_settings(claim), f"{source}, claim {name}")
    if claim.published:
        _refuse(_check_published(claim), f"{source}, claim {name}")
    return claim


def _check_published(claim: Claim) -> list[Problem]:
    """Return the problems of the printed figure; a figure that is never checked would mislead."""
    if claim.prints_figure() or isinstance(claim, SameWork):
        parsed = figure(claim)
        wanted = _list_units(claim)
        if wanted is not None and parsed.unit not in wanted[0]:
            return [Problem("published", f'"{claim.published}" for the kind {claim.kind}', wanted[1])]
        if isinstance(claim, Efficiency) and not parsed.unit and parsed.ends[0] > MAX_FRACTION:
            return [Problem("published", f'"{claim.published}" is not a fraction', "such as 89 % or 0.89")]
    elif isinstance(claim, Best):
        stated, value = claim.published.strip().casefold(), claim.value
        text = f"{value:g}" if isinstance(value, float) else str(value)
        if stated != text.casefold():
            return [Problem("published", f'"{claim.published}", but the claimed value is "{text}"', "the same value")]
    elif isinstance(claim, Faster) and len(sides(claim)) == 2:
        for text in sides(claim):
            figure(replace(claim, published=text))
    elif re.search(r"[0-9]", claim.published):
        valid = {"faster": "3,000 against 270; for a ratio use kind times or percent"}.get(
            claim.kind, "text; put the figure into at_least, such as at_least = 0.95"
        )
        return [Problem("published", f'the figure "{claim.published}" for the kind {claim.kind}', valid)]
    return []


def _list_units(claim: Claim) -> tuple[tuple[str, ...], str] | None:
    """Return the units that the figure may have, and a description of them; None if any unit is allowed."""
    if isinstance(claim, Percent | Equal):
        return ("%",), "a percentage such as 32.3 %"
    if isinstance(claim, Efficiency):
        return ("%", ""), "such as 89 % or 0.89"
    if isinstance(claim, Times):
        return ("x", "", "%", "times", "fold"), "a ratio such as 14.2x; for a difference in percent use kind percent"
    return None


def sides(claim: Faster) -> list[str]:
    """Split the two figures of a claim that prints both, such as `about 3,000 against 270`."""
    return re.split(r"\s+(?:against|versus|vs\.?)\s+", claim.published.strip())


def _find_unknown_settings(claim: Claim) -> list[Problem]:
    """Return a problem for each `setting` or `factor` that does not exist."""
    named = {"setting": claim.setting} if isinstance(claim, Monotone | Best) else {}
    named |= {"factor": claim.factor} if claim.factor else {}
    problems = []
    for field_name, value in named.items():
        known = [*SETTINGS, *(sorted(set(SETTINGS.values())) if field_name == "factor" else ())]
        if value not in known:
            near = nearest(value, known)
            problems.append(Problem(field_name, f'"{value}" is not a setting', ", ".join(SETTINGS), near=near))
    return problems


_NUMBER = r"[0-9][0-9,]*(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,2})?"
_BOUNDS = {
    "more than": 1,
    "over": 1,
    "above": 1,
    "at least": 1,
    ">": 1,
    "less than": -1,
    "under": -1,
    "below": -1,
    "at most": -1,
    "up to": -1,
    "<": -1,
}
_FIGURE = re.compile(
    rf"(?:(?P<about>about|around|nearly|almost|roughly|approximately|~)\s*|(?P<bound>{'|'.join(_BOUNDS)})\s*)?"
    rf"(?P<low>[-+]?{_NUMBER})\s*(?P<first>%|x)?"
    rf"(?:\s*(?:-|to)\s*(?P<high>-?{_NUMBER}))?\s*(?P<unit>%|per ?cent|x|-?fold|[A-Za-z][A-Za-z/]*)?"
)
# Typographic characters in documents: dashes, the minus sign, the multiplication sign, non-breaking spaces.
PRINTED = str.maketrans({"\u2013": "-", "\u2014": "-", "\u2212": "-", "\u00d7": "x", "\u00a0": " ", "\u202f": " "})
ABOUT_SHARE = 0.1
"""Largest relative tolerance of a figure printed with `about`."""
MAX_FRACTION = 10.0


@dataclass(frozen=True)
class Figure:
    """A published figure, or the two ends of a range."""

    low: Span
    high: Span
    unit: str
    ends: tuple[float, float]
    """The values as printed, without rounding."""
    reached: Span | None = None
    """For `up to`: the value that must be reached."""


def figure(claim: Claim) -> Figure:
    """Parse the published figure with its rounding; percentages become fractions, `more than` has no upper bound."""
    match = _FIGURE.fullmatch(claim.published.strip().translate(PRINTED))
    low = _bound_number(match["low"], about=match["about"]) if match else None
    high = _bound_number(match["high"] or match["low"], about=match["about"]) if match else None
    unit = _join_units(match["first"] or "", match["unit"] or "", ranged=bool(match["high"])) if match else None
    if match is None or low is None or high is None or unit is None or high[0] < low[0]:
        problem = Problem(
            "published",
            f'"{claim.published}" is not a figure',
            "such as 32.3 %, 14.2x, 35-55 %, 70,000, about 3,000 or more than 2x",
        )
        raise InputError(f"claim {claim.id} is not valid", problems=(problem,))
    factor = 0.01 if unit == "%" else 1.0
    first, last = (Span(end[1] * factor, end[2] * factor) for end in (low, high))
    if match["bound"] == "up to":
        most = Span(-math.inf, first.high)
        return Figure(most, most, unit, (-math.inf, low[0] * factor), first)
    if match["bound"]:
        # The number is the limit itself, so it has no rounding.
        value = low[0] * factor
        span = Span(value, math.inf) if _BOUNDS[match["bound"]] > 0 else Span(-math.inf, value)
        return Figure(span, span, unit, (span.low, span.high))
    return Figure(first, last, unit, (low[0] * factor, high[0] * factor))


def _join_units(first: str, last: str, *, ranged: bool) -> str | None:
    """Return the unit of a figure or range, printed once or at both ends; None if the ends differ."""
    last = {"percent": "%", "per cent": "%", "-fold": "fold"}.get(last, last)
    if first and ranged and first != last:
        return None
    return None if first and not ranged and last else last or first


def _bound_number(text: str, *, about: str | None) -> tuple[float, float, float] | None:
    """Return value and bounds of a claimed number. Trailing zeros are significant, unless printed with `about`."""
    number = printed(text)
    digits = text.replace(",", "")
    if number is None or "." in digits or "e" in digits.casefold():
        return number
    padding = len(digits) - len(digits.rstrip("0")) if about and number[0] else 0
    half = 0.5 * 10.0**padding
    if padding:
        half = max(0.5, min(half, ABOUT_SHARE * abs(number[0])))
    return number[0], number[0] - half, number[0] + half


def _resolve_beside(field: str, name: str, folder: Path | None, source: str) -> Path:
    """Return the path of a file named in a claims file, which is untrusted: only files in its folder are allowed."""
    place = (folder / name).resolve() if folder is not None else None
    if folder is None or place is None or Path(name).is_absolute() or not place.is_relative_to(folder.resolve()):
        built_in = ", ".join(documents.names())
        problem = Problem(
            field, f'"{name}" is not in the folder of the claims file', f"a file there, or built in: {built_in}"
        )
        raise InputError(f"{source} is not valid", problems=(problem,))
    return place


def _find_doubles(claims: tuple[Claim, ...]) -> list[Problem]:
    seen: set[str] = set()
    problems = []
    for claim in claims:
        if claim.id in seen:
            problems.append(Problem("id", f'"{claim.id}" is used twice', "a unique id for each claim"))
        seen.add(claim.id)
    return problems


def _find_unknown_documents(claims: tuple[Claim, ...], tables: dict[str, RowTable]) -> list[Problem]:
    named = ", ".join(tables)
    problems = [
        Problem(f"claim {claim.id}: document", f'"{claim.document}" is not a table of this file', named)
        for claim in claims
        if claim.document and claim.document not in tables
    ]
    if len(tables) > 1:
        problems += [
            Problem(f"claim {claim.id}: document", "missing, and the file has several tables", named)
            for claim in claims
            if not claim.document
        ]
    return problems


def _refuse(problems: list[Problem], source: str) -> None:
    if problems:
        raise InputError(f"{source} is not valid", problems=tuple(problems))
