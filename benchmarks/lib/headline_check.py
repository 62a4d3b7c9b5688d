"""Check sentences against the table below them: what they call best, how many, which range, which count.

It reads texts only, as a reader does: numbers and names in a sentence, and the texts of a table's rows. It shares no
code with what makes the sentences.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"
BEST = re.compile(rf"Best(?P<reliable> reliable)?: (?P<name>[^;]+?) at (?P<value>{NUMBER})")
TIED = re.compile(r"Best(?P<reliable> reliable)?: tied, no difference shown: (?P<names>.+)")
ITEM = re.compile(rf"(?P<name>[^;]+?) at (?P<value>{NUMBER}) [^;]*")
NEXT = re.compile(
    rf"(?P<ratio>{NUMBER}) times as (?:fast|much per device) as the next, (?P<name>[^;(]+?)(?: \(|;|\.$|$)"
)
NEXT_COST = re.compile(rf"the next, (?P<name>[^;]+?), (?:costs|needs) (?P<ratio>{NUMBER}) times as much")
HIGHER = re.compile(
    rf"(?:^|; |\. )(?P<name>[^;.]+?) measured (?P<change>{NUMBER})(?P<way> % higher| % lower|x as much), "
    rf"(?P<value>{NUMBER}) "
    r"[^;]*?but is unreliable"
)
NONE = re.compile(
    rf"[Nn]o reliable best: (?:none of (?P<count>\d+) configurations is reliable|the only configuration is unreliable)"
    rf"(?:; (?P<name>[^;]+?) measured(?: (?:highest|lowest))? (?P<value>{NUMBER}))?"
)
NO_RESULT = re.compile(r"[Nn]o best: ")
RELIABLE = re.compile(r"(\d+) of (\d+) configurations (?:is|are) reliable")
WITHOUT = re.compile(r"(\d+) configurations? without (?:a result|an energy)")
EXACT = 1.2e-3
"""Sentences have four digits, tables four or five; ratios have three."""
RATIO = 8e-3


@dataclass(frozen=True)
class Shown:
    """A row as a reader sees it."""

    name: str
    value: float | None
    unreliable: bool = False
    more: tuple[str, ...] = ()
    """The texts of the row."""


def number(text: str) -> float | None:
    """Return the first number of a cell; None if it begins with a word or a dash."""
    found = re.match(rf"\s*({NUMBER})", text)
    return float(found[1].replace(",", "")) if found else None


def plain(name: str) -> str:
    """Remove thousands separators, which tables have and names do not."""
    return re.sub(r"(?<=\d),(?=\d{3}|$)", "", name.strip())


def near(a: float, b: float, share: float = EXACT) -> bool:
    return abs(a - b) <= share * max(abs(a), abs(b))


def read_table(lines: Sequence[str], start: int = 0) -> list[list[str]]:
    """Return the rows of the first table of plain text, without its header; ends where a line does not fit."""
    at = next((n for n in range(start, len(lines)) if re.fullmatch(r"-+(  -+)*", lines[n])), None)
    if at is None:
        return []
    spans = [match.span() for match in re.finditer(r"-+", lines[at])]
    edges = [*spans, (spans[-1][1] + 2, 10**6)]
    rows = []
    for line in lines[at + 1 :]:
        if not line.strip() or any(line[end : end + 2].strip() for _, end in spans[:-1]):
            break
        rows.append([line[low : edges[n + 1][0]].strip() for n, (low, _) in enumerate(spans)])
    return rows


# -- who is best


def check_best(text: str, rows: Sequence[Shown], *, less: bool = False) -> Iterator[str]:
    """Yield what is wrong with a sentence that names the best of these rows, or that says that there is none."""
    sign = -1 if less else 1
    known = sorted((row for row in rows if row.value is not None), key=lambda row: -sign * (row.value or 0.0))
    sound = [row for row in known if not row.unreliable]
    doubtful = [row for row in known if row.unreliable]
    if (found := NONE.search(text)) is not None:
        yield from _check_none(found, known, sound)
        return
    if NO_RESULT.search(text):
        if known:
            yield f"says that nothing has a result, but {known[0].name} has {known[0].value}"
        return
    tied, best = TIED.search(text), BEST.search(text)
    named = tied or best
    if named is None:
        yield "names no best"
        return
    if not sound:
        yield "names a best, but no row is reliable"
        return
    if bool(named["reliable"]) != bool(doubtful):
        yield f"'{named[0][:15]}' with {len(doubtful)} unreliable rows"
    items = _items(tied["names"]) if tied else [(plain(named["name"]), float(named["value"].replace(",", "")))]
    yield from _check_named(items, sound)
    yield from _check_counts(text, len(rows), len(sound), len(rows) - len(known), bool(doubtful))
    if tied is None:
        yield from _check_next(text, sound, less=less)
    yield from _check_higher(text, sound[0], doubtful, sign)


def _items(text: str) -> list[tuple[str, float]]:
    listed = re.split(r" \(|; and \d+ other", text)[0]
    listed = re.split(r"; [^;]+ measured ", listed)[0]
    return [(plain(item["name"]), float(item["value"].replace(",", ""))) for item in ITEM.finditer(listed)]


def _check_none(found: re.Match[str], known: Sequence[Shown], sound: Sequence[Shown]) -> Iterator[str]:
    if sound:
        yield f"says that nothing is reliable, but {sound[0].name} is not marked"
    if found["name"] and known and (plain(found["name"]), True) != (known[0].name, near_text(found["value"], known[0])):
        yield f"{found['name']} with {found['value']} is not the best of all rows, {known[0].name}"


def near_text(text: str, row: Shown) -> bool:
    return row.value is not None and near(float(text.replace(",", "")), row.value)


def _check_named(items: Sequence[tuple[str, float]], sound: Sequence[Shown]) -> Iterator[str]:
    by_name = {row.name: row for row in sound}
    if not items:
        yield "names no best"
    for name, value in items:
        row = by_name.get(name)
        if row is None:
            yield f"{name} is no reliable row"
        elif row.value is not None and not near(value, row.value):
            yield f"{name} has {row.value} in the table, not {value}"
    if items and items[0][0] in by_name and not near(by_name[items[0][0]].value or 0.0, sound[0].value or 0.0, 1e-9):
        yield f"{items[0][0]} is not the best reliable row, {sound[0].name}"


def _check_counts(text: str, rows: int, sound: int, lost: int, doubtful: bool) -> Iterator[str]:
    counted = RELIABLE.search(text)
    if doubtful and (counted is None or (int(counted[1]), int(counted[2])) != (sound, rows)):
        yield f"counts {counted[0] if counted else 'nothing'}, but {sound} of {rows} rows are reliable"
    without = WITHOUT.search(text)
    if (int(without[1]) if without else 0) != lost:
        yield f"{lost} rows have no result"


def _check_next(text: str, sound: Sequence[Shown], *, less: bool) -> Iterator[str]:
    found = (NEXT_COST if less else NEXT).search(text)
    if found is None:
        if len(sound) > 1:
            yield "does not compare with the next"
        return
    name, ratio = plain(found["name"]), float(found["ratio"].replace(",", ""))
    if len(sound) < 2:
        yield "compares with a next that the table does not have"
        return
    best, following = sound[0].value or 0.0, sound[1].value or 0.0
    if name != sound[1].name and not near(
        following, next((r.value or 0.0 for r in sound if r.name == name), 0.0), 1e-9
    ):
        yield f"{name} is not the next, {sound[1].name}"
    if not near(ratio, following / best if less else best / following, RATIO):
        yield f"{ratio} is not the ratio to the next, {best}/{following}"


def _check_higher(text: str, best: Shown, doubtful: Sequence[Shown], sign: int) -> Iterator[str]:
    """An unreliable row that measured better must be named, with by how much; no other may be."""
    found = HIGHER.search(text)
    better = [row for row in doubtful if sign * (row.value or 0.0) > sign * (best.value or 0.0)]
    if not better:
        if found is not None:
            yield f"{found['name']} did not measure more than the best"
        return
    top = better[0]
    if found is None:
        yield f"leaves out {top.name}, which has {top.value} and is unreliable"
        return
    times = (top.value or 0.0) / (best.value or 1.0)
    change = times if "x" in found["way"] else 100 * abs(times - 1)
    said = float(found["change"].replace(",", ""))
    named = next((row for row in better if row.name == plain(found["name"])), None)
    # Two rows may be equal in the digits of the table.
    if named is None or not near(named.value or 0.0, top.value or 0.0) or not near_text(found["value"], named):
        yield f"{found['name']} with {found['value']} is not the best unreliable row, {top.name} with {top.value}"
    # Two digits, of values with four.
    if abs(said - change) > 0.06 * change + 0.15:
        yield f"{found[0]!r} is not the difference to {top.name}, {change:.3g}"


# -- ranges


SPAN = re.compile(
    rf"(?P<count>\d+) (?P<kind>reliable |unreliable )?configurations?: (?P<low>{NUMBER})(?: \[[^\]]*\](?: ~)?)?"
    rf"(?: to (?P<high>{NUMBER}))?"
)


def check_spans(text: str, rows: Sequence[Shown]) -> Iterator[str]:
    """Yield what is wrong with a sentence that gives the range of the reliable rows, and of the others."""
    known = [row for row in rows if row.value is not None]
    found = {match["kind"] or "": match for match in SPAN.finditer(text)}
    for kind, wanted in (("unreliable ", [row for row in known if row.unreliable]),
                         ("reliable ", [row for row in known if not row.unreliable])):  # fmt: skip
        match = found.get(kind) or (found.get("") if kind == "reliable " else None)
        if not wanted or len(known) == 1:
            continue
        if match is None:
            yield f"gives no range of the {len(wanted)} {kind}rows"
            continue
        values = [row.value or 0.0 for row in wanted]
        ends = [float(end.replace(",", "")) for end in (match["low"], match["high"] or match["low"])]
        if int(match["count"]) != len(wanted) or not (near(ends[0], min(values)) and near(ends[1], max(values))):
            yield f"'{match[0]}' is not the range of {len(wanted)} rows, {min(values)} to {max(values)}"


# -- curves


def check_knee(text: str, rows: Sequence[Shown]) -> Iterator[str]:
    """Yield what is wrong with the answer of a batch curve; a row's name is its batch."""
    known = [row for row in rows if row.value is not None]
    sound = [row for row in known if not row.unreliable]
    used = known if "provisional" in text else sound
    if "provisional" in text and len(sound) >= 3:
        yield "is provisional, but three rows are reliable"
    for pattern, end in (
        (r"knee is beyond batch ([\d,]*\d)", max),
        (r"at or below the smallest batch, ([\d,]*\d)", min),
    ):
        found = re.search(pattern, text)
        batches = [int(row.name) for row in used]
        # With errors in some rows a provisional knee rests on fewer than all.
        if found and "from " not in text and (not batches or int(plain(found[1])) != end(batches)):
            yield f"'{found[0]}', but the rows end at {batches}"
    reaching = re.search(r"smallest swept batch that reaches it is ([\d,]*\d)", text)
    if reaching and plain(reaching[1]) not in {row.name for row in used}:
        yield f"batch {reaching[1]} is no reliable row"
    higher = HIGHER.search(text)
    if sound and "provisional" not in text and "not reported" not in text:
        top = max(known, key=lambda row: row.value or 0.0)
        if top.unreliable and (higher is None or plain(higher["name"]) != f"batch {top.name}"):
            yield f"leaves out batch {top.name}, which has {top.value} and is unreliable"
    fits = re.search(r"argest batch (?:that fits|run): ([\d,]*\d)", text)
    wanted = [int(row.name) for row in rows if "completed" in row.more[1] and "out" not in row.more[1]]
    if fits and (not wanted or int(plain(fits[1])) != max(wanted)):
        yield f"batch {fits[1]} is not the largest that completed, {wanted}"
    memory = re.search(r"([\d,]*\d) ran out of memory", text)
    lost = [int(row.name) for row in rows if re.search(r"out.of.memory", row.more[1])]
    if lost and wanted and (memory is None or int(plain(memory[1])) != min(lost)):
        yield f"batch {min(lost)} ran out of memory"


def check_scaling(text: str, rows: Sequence[Shown], efficiencies: dict[str, float]) -> Iterator[str]:
    """Yield what is wrong with the answer of a scaling curve; a row's name is its number of devices."""
    known = {row.name: row for row in rows if row.value is not None}
    found = re.search(rf"(\d+) devices? gives? ({NUMBER}).{{0,40}}? times the throughput of (\d+) device", text)
    if found is None:
        if "not reported" not in text and "Speed-up" not in text:
            yield "does not say how it scales"
        return
    last, base = known.get(found[1]), known.get(found[3])
    if last is None or base is None or last.unreliable or base.unreliable:
        yield f"'{found[0]}' rests on a row that is missing or unreliable"
    elif not near(float(found[2].replace(",", "")), (last.value or 0.0) / (base.value or 1.0), RATIO):
        yield f"'{found[0]}', but the rows have {last.value} and {base.value}"
    used = [int(row.name) for row in known.values() if not row.unreliable]
    if used and (int(found[1]), int(found[3])) != (max(used), min(used)):
        yield f"'{found[0]}', but the rows have {used}"
    for row in known.values():
        if row.unreliable and not re.search(rf"\b{row.name} devices? (?:is|are) unreliable", text):
            yield f"does not say that {row.name} devices are unreliable"
    enough = re.search(r"Largest device count with at least (\d+) % efficiency: (\d+) device", text)
    if enough:
        reaching = [int(name) for name, share in efficiencies.items() if share >= float(enough[1]) - 0.06]
        if int(enough[2]) not in reaching or any(
            count > int(enough[2]) and efficiencies[str(count)] >= float(enough[1]) + 0.06 for count in reaching
        ):
            yield f"'{enough[0]}', but the rows have {efficiencies}"
