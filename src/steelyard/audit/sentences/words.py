"""Split a sentence into names of the table, counts, figures and words. Each is read by itself, from left to right."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from steelyard.audit.claims import PRINTED
from steelyard.rules.table.settings import SETTINGS, alike
from steelyard.rules.table.units import ITEMS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.rules.table.row import RowTable, Setting

MAX_NAMES = 5000
MAX_PHRASE = 6
SHORT = 2
"""Parts of names with fewer letters are not names."""

_NUMBER = r"[0-9][0-9,]*(?:\.[0-9]+)?"
_FIGURE = re.compile(rf"([~<>]?)({_NUMBER}(?:-{_NUMBER})?)(x|%|-?fold)?", re.IGNORECASE)
_GLUED = re.compile(r"([0-9]{1,6})x(?=[A-Za-z])")
_SIZED = re.compile(r"([0-9]{1,6})-(gpu|device|node|ipu|tpu)s?")


def several(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())


NUMBER_WORDS = {"one": 1, "single": 1, "two": 2, "three": 3, "four": 4, "eight": 8, "sixteen": 16}
DEVICES = several(
    "gpu gpus device devices accelerator accelerators chip chips card cards ipu ipus tpu tpus npu npus hpu hpus gcds"
)
NODES = several("node nodes")
FAMILIES = several("gpu ipu tpu npu hpu")
"""Words for devices that are also parts of their names: one IPU, of a table of IPUs and GPUs."""
IN_PART = ("system", "accelerator", "model", "dataset", "task", "precision", "framework", "optimizer")
"""Settings that a sentence may name by a part of their value: `A100` for `A100-80GB`."""
UNITS = {"x": "x", "times": "x", "fold": "x", "-fold": "x", "%": "%", "percent": "%"}
PER = {"s": "s", "sec": "s", "second": "s", "min": "min", "minute": "min", "h": "h", "hour": "h"}
ITEM_WORDS = {
    "img": "images",
    "imgs": "images",
    "image": "images",
    "sample": "samples",
    "sequence": "sequences",
    "seq": "sequences",
    "seqs": "sequences",
    "token": "tokens",
    "tok": "tokens",
    "request": "requests",
}
SIZES = {
    "batch": "any_batch",
    "global batch": "global_batch",
    "sequence length": "sequence_length",
    "seq length": "sequence_length",
    "sequence": "sequence_length",
}
ABOUT = several("about around nearly almost roughly approximately ~")
BOUNDS = ("more than", "less than", "at least", "at most", "up to", "over", "above", "under", "below", ">", "<")
THAN = several("than over versus vs against compared relative outperforms outperform beats")
LINEAR = several("linear linearly near-linear near-linearly")
SLOWER = several("slower behind")
LESS = several("less lower smaller shorter reduces reduce reduced reducing reduction cuts cut saves save saved")
MORE = several(
    "more higher longer greater increases increase increased improves improve improved improvement boosts boost"
)
SPEED = several(
    "faster quicker fast speedup speed-up speedups speed-ups speeds speed speeding accelerates accelerate acceleration "
    "outperforms outperform outperformed beats"
)
FORM = (
    THAN
    | LINEAR
    | SLOWER
    | LESS
    | MORE
    | SPEED
    | several("up efficiency efficient scaling scales scale scaled near nearly almost close perfect perfectly parallel")
    | several("weak strong time times throughput performance rate energy power latency epoch step mfu utilization")
    | several("utilisation per-device from to as by")
)
SILENT = several(
    "a an the is are was were be been has have had it its this that these those and on of for with in at when using "
    "use used uses via our we can achieves achieve achieved achieving gives give gained gains gain gets get delivers "
    "deliver provides provide reaches reach reached reaching runs run running trains train trained training takes take "
    "took needs need needed requires require shows show showed shown yields yield obtains obtain observed observe "
    "measured reports reported result results resulting about job much significantly considerably substantially "
    "consistently staggering impressive also which while number count getting going moving required model models"
)
SILENT |= DEVICES | NODES
"""Words that change nothing. Words that would, such as `not`, `average` or `without`, must not be here."""
AFTER_NAMES = several(
    "is are was has needs takes runs trains outperforms beats uses achieves reaches gives delivers reduces with using "
    "on in at for and by over than versus vs against"
)
"""Words after a name. Before other words, `A` is an article, even if a system is called A."""

Kind = Literal["name", "count", "figure", "word"]


@dataclass(frozen=True)
class Item:
    """A part of a sentence that is understood by itself."""

    kind: Kind
    text: str
    key: str = ""
    """For a name or a count: the setting."""
    values: tuple[Setting, ...] = ()
    """For a name or a count: the values that may be meant."""
    glued: bool = False
    """Whether a count belongs to the name after it, as in `4xA100`."""
    most: bool = False
    """Whether a count is a limit: `up to 16`."""


@dataclass
class Sentence:
    """The parts of a sentence, in order."""

    text: str
    items: list[Item] = field(default_factory=list)

    @property
    def words(self) -> frozenset[str]:
        """Return the words that belong to no name, count or figure."""
        return frozenset(item.text for item in self.items if item.kind == "word")

    def figures(self) -> list[str]:
        """Return the printed figures."""
        return [item.text for item in self.items if item.kind == "figure"]

    def before(self, item: Item) -> str:
        """Return the word before a part, such as `on` or `with`; empty if it is not a word."""
        at = next(place for place, other in enumerate(self.items) if other is item)
        return self.items[at - 1].text if at and self.items[at - 1].kind == "word" else ""

    def has(self, words: frozenset[str] | str) -> bool:
        """Return whether any of these words occurs; a text is its words."""
        return bool(self.words & (several(words) if isinstance(words, str) else words))


class Names:
    """The values of a table, by how a sentence may spell them: whole, or in part if that is a name of its own."""

    def __init__(self, table: RowTable) -> None:
        self.whole: defaultdict[str, dict[tuple[str, Setting], None]] = defaultdict(dict)
        self.parts: defaultdict[str, dict[tuple[str, Setting], None]] = defaultdict(dict)
        self.precisions: list[str] = []
        seen: set[tuple[str, Setting]] = set()
        for row in table.rows:
            if row.table and len(self.whole) < MAX_NAMES:
                self.whole["table" + _joined(row.table)]["table", row.table] = None
                if not row.table.isdigit() and len(row.table) > SHORT:
                    self.whole[_joined(row.table)]["table", row.table] = None
            for key, value in row.settings.items():
                if isinstance(value, str) and (key, value) not in seen and len(seen) < MAX_NAMES:
                    seen.add((key, value))
                    self._add(key, value)

    def _add(self, key: str, value: str) -> None:
        if key == "precision":
            self.precisions.append(value)
        if SETTINGS.get(key) == "evidence":
            return
        parts = [part for part in re.split(r"[^A-Za-z0-9.]+", value.casefold())[:8] if part]
        self.whole["".join(parts)][key, value] = None
        for first in range(len(parts) if key in IN_PART else 0):
            for last in range(first + 1, len(parts) + 1):
                joined = "".join(parts[first:last])
                # A number or a word of ordinary English is no name.
                if (
                    (len(joined) > SHORT or joined.isalnum() != joined.isalpha())
                    and not joined.isdigit()
                    and joined not in FORM | SILENT - FAMILIES
                ):
                    self.parts[joined][key, value] = None

    def find(self, words: Sequence[str]) -> tuple[str, tuple[Setting, ...]] | None:
        """Return the setting and the values that some words name; None if they name none, or values of two settings."""
        joined = _joined("".join(words)).strip(".")
        spellings = (joined, *([joined.removesuffix("s")] if len(joined) > SHORT + 1 else [])) if joined else ()
        for index in (self.whole, self.parts):
            for spelling in spellings:
                if meant := index.get(spelling):
                    keys = {key for key, _ in meant}
                    # The name of a machine often has that of its accelerator in it.
                    key = "accelerator" if keys == {"accelerator", "system"} else keys.pop() if len(keys) == 1 else ""
                    return (key, tuple(value for its, value in meant if its == key)) if key else None
        if len(words) == 1 and words[0].casefold() in ("single", "double", "half"):
            # A single GPU is no precision.
            return None
        # "Single precision" is a value, as "mixed precision" is.
        phrase = words[0] if len(words) == 2 and words[1].casefold() == "precision" else " ".join(words)
        same_precision = [value for value in self.precisions if alike("precision", phrase, value) == "same"]
        return ("precision", tuple(same_precision)) if same_precision else None


def _joined(text: str) -> str:
    """Return a name as it is compared: letters and digits only."""
    return re.sub(r"[^a-z0-9.]+", "", text.casefold())


def split(text: str, names: Names) -> Sentence:
    """Split a sentence into names, counts, figures and words."""
    plain = _GLUED.sub(r"\1x ", text.translate(PRINTED))
    chunks = [chunk.strip("\"'`;:,!?()[]*").removesuffix(".") for chunk in plain.split()]
    chunks = [chunk for chunk in chunks if chunk]
    sentence, at = Sentence(text), 0
    while at < len(chunks):
        taken, items = _take(chunks, at, names)
        sentence.items += items
        at += taken
    return sentence


def _take(chunks: list[str], at: int, names: Names) -> tuple[int, list[Item]]:
    """Return how many chunks were read at a place, and what they are."""
    for many in range(min(MAX_PHRASE, len(chunks) - at), 0, -1):
        phrase = chunks[at : at + many]
        named = names.find(phrase)
        if named and not (many == 1 and _is_article(chunks, at)) and phrase[0].casefold() not in DEVICES | NODES:
            return many, [Item("name", " ".join(phrase), *named)]
    low = chunks[at].casefold()
    if low == "per" and chunks[at + 1 : at + 2] and chunks[at + 1].casefold() in DEVICES:
        return 2, [Item("word", "per-device")]
    before = " ".join(chunks[at : at + 2]).casefold()
    bound = before if before in BOUNDS else low if low in BOUNDS or low in ABOUT else ""
    if bound:
        start = at + len(bound.split())
        taken, items = _take_number(chunks, start, names) if start < len(chunks) else (0, [])
        if items and items[0].kind == "figure":
            return start - at + taken, [Item("figure", f"{bound} {items[0].text}"), *items[1:]]
        if items and items[0].kind == "count" and bound == "up to":
            first = Item("count", items[0].text, items[0].key, items[0].values, most=True)
            return start - at + taken, [first, *items[1:]]
    taken, items = _take_number(chunks, at, names)
    if taken:
        return taken, items
    if low in DEVICES | NODES and (named := names.find([low])):
        return 1, [Item("name", chunks[at], *named)]
    if "-" in low and low not in FORM | SILENT:
        return 1, [Item("word", part) for part in low.split("-") if part]
    return 1, [Item("word", low)]


def _is_article(chunks: Sequence[str], at: int) -> bool:
    """Return whether `A` is the article, although a system is called A: it is a name before a verb or at an end."""
    if chunks[at] not in ("A", "a"):
        return False
    after = chunks[at + 1].casefold() if at + 1 < len(chunks) else ""
    return chunks[at] == "a" or (after != "" and after not in AFTER_NAMES)


def _take_number(chunks: list[str], at: int, names: Names) -> tuple[int, list[Item]]:
    """Read a number: of devices or nodes, of a batch or a length, or a figure with its unit."""
    low = chunks[at].casefold()
    following = chunks[at + 1].casefold() if at + 1 < len(chunks) else ""
    if low in ("batch", "sequence", "seq", "global"):
        return _take_size(chunks, at)
    if low in NUMBER_WORDS:
        counts = low == "single" or following in DEVICES | NODES or names.find(chunks[at + 1 : at + 2])
        return _take_count(NUMBER_WORDS[low], chunks, at + 1, names) if counts else (0, [])
    if sized := _SIZED.fullmatch(low):
        return 1, [Item("count", low, "nodes" if sized[2] == "node" else "devices", (int(sized[1]),))]
    match = _FIGURE.fullmatch(low)
    if match is None:
        return 0, []
    mark, digits, unit = match[1], match[2], match[3] or ""
    if not mark and unit in ("", "x") and _is_count(digits):
        # `4xA100`, `4 A100s` and `4 GPUs` are counts; `4x on A100` is a figure.
        named = bool(names.find(chunks[at + 1 : at + 2])) and following not in SILENT
        if named or following in DEVICES | NODES:
            return _take_count(_whole(digits), chunks, at + 1, names, glued=unit == "x")
    return _take_figure(mark, digits, unit, [chunk.casefold() for chunk in chunks[at + 1 : at + 5]])


def _take_figure(mark: str, digits: str, unit: str, after: Sequence[str]) -> tuple[int, list[Item]]:
    """Read the unit of a number; without one, it is a count that gets its meaning from the rest of the sentence."""
    taken = 1
    # "Four times the hardware" is no figure.
    if not unit and after and after[0] in UNITS and not (after[0] == "times" and after[1:2] == ["the"]):
        unit, taken = after[0], 2
    if unit:
        printed = digits + {"x": "x", "%": " %"}[UNITS[unit.casefold()]]
        return taken, [Item("figure", f"{mark} {printed}".strip())]
    if rate := _rate(after):
        return 1 + rate[1], [Item("figure", f"{mark} {digits} {rate[0]}".strip())]
    return (1, [Item("count", digits, "", (_whole(digits),))]) if not mark and _is_count(digits) else (0, [])


def _is_count(digits: str) -> bool:
    return digits.replace(",", "").isdigit() and len(digits) <= 9


def _whole(digits: str) -> int:
    return int(digits.replace(",", ""))


def _take_count(
    number: int, chunks: list[str], at: int, names: Names, *, glued: bool = False
) -> tuple[int, list[Item]]:
    """Read what a number counts, at a place: devices or nodes. The word may also name the accelerator."""
    low = chunks[at].casefold() if at < len(chunks) else ""
    if low not in DEVICES | NODES:
        return 1, [Item("count", str(number), "devices", (number,), glued=True)]
    named = names.find([low]) if low in DEVICES else None
    key = "nodes" if low in NODES else "devices"
    count = Item("count", f"{number} {low}", key, (number,), glued=glued or named is not None)
    return 2, [count, Item("name", low, *named)] if named else [count]


def _take_size(chunks: list[str], at: int) -> tuple[int, list[Item]]:
    """Read `batch 256`, `batch size of 256`, `global batch size 1024` or `sequence length 512`."""
    words: list[str] = []
    for place, chunk in enumerate(chunks[at : at + MAX_PHRASE], 1):
        if words and _is_count(chunk):
            key = SIZES.get(" ".join(words), "")
            return (place, [Item("count", f"{' '.join(words)} {chunk}", key, (_whole(chunk),))]) if key else (0, [])
        if chunk.casefold() not in ("batch", "size", "of", "global", "sequence", "seq", "length"):
            break
        words += [chunk.casefold()] if chunk.casefold() not in ("of", "size") else []
    return 0, []


def _rate(after: Sequence[str]) -> tuple[str, int] | None:
    """Return the unit of a rate after a number, and its number of words: `tokens/s`, `images per second`."""
    first = re.fullmatch(r"([kmg]?)([a-z]+)(?:/(s|sec|second|min|h))?", after[0]) if after else None
    if first is None:
        return None
    item = ITEM_WORDS.get(first[2], first[2])
    if item not in ITEMS:
        return None
    prefix = {"m": "M", "g": "G"}.get(first[1], first[1])
    if first[3]:
        return f"{prefix}{item}/{PER[first[3]]}", 1
    if len(after) > 2 and after[1] in ("per", "a", "/") and after[2] in PER:
        return f"{prefix}{item}/{PER[after[2]]}", 3
    return None
