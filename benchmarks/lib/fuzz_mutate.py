"""Changes to valid files, from which the figure `fuzz` makes its inputs.

Each change takes the bytes of a file and returns others. A file has a form, which says what changes make sense: bytes
for all, text and structure for JSON and TOML, numbers of headers for binary files. Where a format has checksums, they
are made right again, because otherwise the checksum is all that is tested.
"""

from __future__ import annotations

import base64
import io
import json
import re
import struct
import tomllib
import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from steelyard.contracts import energy, sample_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    Change = Callable[[bytes, Sequence[bytes], Random], bytes]

Form = Literal["json", "jsonl", "toml", "text", "csv", "podlog", "binary", "steps", "power", "state", "tar", "png"]
STRUCTURED = ("json", "jsonl", "toml")
TEXTUAL = (*STRUCTURED, "text", "csv", "podlog")
MAX_BYTES = 4 << 20
"""Larger files are made sparse: `Input.size_bytes`."""
SPARSE_BYTES = (1 << 28, 10 << 30)


@dataclass(frozen=True)
class Input:
    """The content of a file."""

    data: bytes
    size_bytes: int = 0
    """If larger than the data: the file has a hole behind it."""


def mutate(form: Form, data: bytes, seeds: Sequence[bytes], source: Random) -> Input:
    """Return a changed copy of a file; parts of the other seeds may get into it."""
    changes = CHANGES[form]
    for _ in range(source.choice((1, 1, 1, 2, 2, 3, 5))):
        change = source.choice(source.choice(changes))
        data = change(data, seeds, source)[:MAX_BYTES]
    if form in REPAIRS and source.random() < 0.8:
        data = REPAIRS[form](data)
    # A huge file costs little to make, and much to read for whoever has no limit.
    return Input(data, source.choice(SPARSE_BYTES) if source.random() < 0.004 else 0)


# -- bytes


def _place(data: bytes, source: Random) -> int:
    """Return a place in a file; the beginning is more likely, because headers are there."""
    end = len(data) if source.random() < 0.6 else min(len(data), 256)
    return source.randrange(end + 1)


def _span(data: bytes, source: Random) -> tuple[int, int]:
    begin = _place(data, source)
    return begin, min(len(data), begin + source.choice((1, 1, 2, 4, 8, 16, 64, 512, 4096)))


def flip(data: bytes, _seeds: Sequence[bytes], source: Random) -> bytes:
    """Change bits or whole bytes."""
    changed = bytearray(data)
    for _ in range(source.choice((1, 1, 1, 2, 8)) if data else 0):
        at = min(_place(data, source), len(data) - 1)
        changed[at] = changed[at] ^ (1 << source.randrange(8)) if source.random() < 0.5 else source.randrange(256)
    return bytes(changed)


def delete(data: bytes, _seeds: Sequence[bytes], source: Random) -> bytes:
    begin, end = _span(data, source)
    return data[:begin] + data[end:]


def insert(data: bytes, _seeds: Sequence[bytes], source: Random) -> bytes:
    at = _place(data, source)
    return data[:at] + source.randbytes(source.choice((1, 2, 8, 100))) + data[at:]


def duplicate(data: bytes, _seeds: Sequence[bytes], source: Random) -> bytes:
    """Repeat a part, sometimes until the file is long."""
    begin, end = _span(data, source)
    times = source.choice((1, 1, 2, 10, 100, 10_000))
    return data[:begin] + data[begin:end] * min(times, 1 + (1 << 18) // max(1, end - begin)) + data[begin:]


def truncate(data: bytes, _seeds: Sequence[bytes], source: Random) -> bytes:
    return data[: _place(data, source)]


def splice(data: bytes, seeds: Sequence[bytes], source: Random) -> bytes:
    """Join the beginning of one file and the end of another."""
    other = source.choice(seeds)
    return data[: _place(data, source)] + other[_place(other, source) :]


def word(data: bytes, _seeds: Sequence[bytes], source: Random) -> bytes:
    """Write an extreme number into a binary file, most often where a header has one."""
    kind = source.choice("bBhHiIqQfd")
    order = source.choice("<>")
    if kind in "fd":
        number: float = source.choice((0.0, -1.0, float("nan"), float("inf"), 3e38, 1e-45))
    else:
        bits = 8 * struct.calcsize(kind)
        low, high = (0, 2**bits - 1) if kind.isupper() else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        number = source.choice((0, 1, low, high, high - 1, high // 2, min(high, 1 << 20), source.randint(low, high)))
    packed = struct.pack(order + kind, number)
    at = _place(data, source) // len(packed) * len(packed)
    return data[:at] + packed + data[at + len(packed) :]


# -- text

NUMBERS = (
    "0", "-0", "-1", "1e400", "-1e400", "1.7e308", "-1.7e308", "1e308", "5e-324", "1e-400", "NaN", "nan", "Infinity",
    "-Infinity", "inf", "-inf", "1e22", "9007199254740993", "18446744073709551616", "-9223372036854775809",
    "4294967295", "1" + "0" * 400, "9" * 5000, "0x7fffffff", "1_000", "0.1.2", "+5", "\u0663", "1,5", "00012", "1e",
    "true", "0-3999999", "n[0-9999999]",
)  # fmt: skip
TEXTS = (
    "", " ", "x" * 5000, "\x00", "\x1b[2J", "\x9b31m", "\u202e\u2066", "\u2028", "\ufeff", "\ud800", "\udfff\ud800",
    "\U0010ffff", "\u0130\u0131\u00df", "../../etc/passwd", "/dev/stdin", "$(id)", "%s%n{0}", "a\nb", "\r\n", "\\", '"',
    "'", "=1+1", "<script>", "\u0301" * 50, "-1", "nan", "1e400", "None", "/" * 300, "a/" * 3000, "." * 300, "CON", "~",
)  # fmt: skip
NUMBER = re.compile(rb"(?<![\w\".-])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w\".-])")
DEPTHS = (20, 100, 500, 990, 3000, 100_000)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def put_text(data: bytes, _seeds: Sequence[bytes], source: Random) -> bytes:
    at = _place(data, source)
    return data[:at] + _encoded(source.choice(TEXTS + NUMBERS)) + data[at:]


def put_bytes(data: bytes, _seeds: Sequence[bytes], source: Random) -> bytes:
    """Insert bytes that are not UTF-8, or that other encodings begin with."""
    at = source.choice((0, _place(data, source)))
    odd = source.choice((b"\xff\xfe", b"\xef\xbb\xbf", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5", b"\x80"))
    return data[:at] + odd + data[at:]


def change_number(data: bytes, _seeds: Sequence[bytes], source: Random) -> bytes:
    found = list(NUMBER.finditer(data[: 1 << 16]))
    if not found:
        return data
    one = source.choice(found)
    return data[: one.start()] + _encoded(source.choice(NUMBERS)) + data[one.end() :]


def swap_numbers(data: bytes, _seeds: Sequence[bytes], source: Random) -> bytes:
    """Replace numbers by others that are extreme or come from elsewhere in the file; most readers accept those."""
    found = [match.span() for match in NUMBER.finditer(data[: 1 << 16])]
    chosen = sorted(source.sample(found, min(len(found), source.choice((1, 1, 2, 5, 30)))), reverse=True)
    for begin, end in chosen:
        other = data[slice(*source.choice(found))]
        extreme = source.choice((b"0", b"1", b"2", b"1e15", b"1e300", b"1e-300", b"1.7e308", b"5e-324"))
        data = data[:begin] + (extreme if source.random() < 0.7 else other) + data[end:]
    return data


def change_line(data: bytes, seeds: Sequence[bytes], source: Random) -> bytes:
    """Remove, repeat, move, empty or lengthen a line, or take one of another file."""
    lines = data.split(b"\n")
    at = source.randrange(len(lines))
    line = lines.pop(at)
    what = source.randrange(7)
    if what == 0:
        return b"\n".join(lines)
    added = {
        1: [line] * source.choice((2, 3, 1000)), 2: [b""], 3: [line + b" " * source.choice((10, 100_000))],
        4: [line, source.choice(source.choice(seeds).split(b"\n"))], 5: [line[: len(line) // 2]],
    }.get(what, [])  # fmt: skip
    if what == 6:
        at, added = source.randrange(len(lines) + 1), [line]
    return b"\n".join([*lines[:at], *added, *lines[at:]])


def nest(data: bytes, _seeds: Sequence[bytes], source: Random) -> bytes:
    """Insert deep nesting, closed or not."""
    depth = source.choice(DEPTHS)
    opening, closing = source.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"{a=", b"}"), (b"(", b")"), (b"[[", b"]]")))
    at = _place(data, source)
    return data[:at] + opening * depth + b"1" + closing * source.choice((0, depth)) + data[at:]


def change_cell(data: bytes, _seeds: Sequence[bytes], source: Random) -> bytes:
    """Change a cell of a table, or the order or number of its columns."""
    lines = data.split(b"\n")
    mark = max(b",|;\t ", key=lambda sign: lines[0].count(bytes([sign])))
    at = source.randrange(len(lines))
    cells = lines[at].split(bytes([mark]))
    what, place = source.randrange(5), source.randrange(len(cells))
    if what < 3:
        cells[place] = _encoded(source.choice(source.choice((NUMBERS, TEXTS))))
    elif what == 3:
        cells = cells[:place] + cells[place:] * source.choice((0, 2, 1000))
    else:
        source.shuffle(cells)
    lines[at] = bytes([mark]).join(cells)
    return b"\n".join(lines)


def long_key(data: bytes, _seeds: Sequence[bytes], source: Random) -> bytes:
    """Add a TOML key of many parts, with the spaces that are allowed around its dots."""
    part = source.choice(("a", "a ", '"a"', "'a'\t", "a" + " " * 20, '""', "\u00e9 "))
    parts = source.choice((2, 30, 33, 2000, 20_000))
    key = _encoded((part + ".") * parts + "b")
    line = source.choice((b"[%s]\n", b"[[%s]]\n", b"%s = 1\n", b"x = {%s = 1}\n")) % key
    return line * source.choice((1, 1, 5)) + data if source.random() < 0.5 else data + b"\n" + line


# -- structure


class Raw(str):
    """Text that is written as it is."""

    __slots__ = ()


class Pairs(list):  # type: ignore[type-arg]
    """The fields of an object; a name may be there twice."""


def _from_toml(value: Any) -> Any:
    if isinstance(value, dict):
        return Pairs([key, _from_toml(item)] for key, item in value.items())
    if isinstance(value, list):
        return [_from_toml(item) for item in value]
    return value if isinstance(value, str | bool | int | float) else Raw(value)


def _written(value: Any, joint: str) -> str:
    if isinstance(value, Pairs):
        return "{" + ", ".join(f"{_written(key, joint)}{joint}{_written(item, joint)}" for key, item in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_written(item, joint) for item in value) + "]"
    if isinstance(value, Raw):
        return str(value)
    return json.dumps(value)


def _pick(value: Any, source: Random) -> tuple[Any, int]:
    """Return a random place in a document: a list or the pairs of an object, and the index in it."""
    while True:
        at = source.randrange(len(value))
        inner = value[at][1] if isinstance(value, Pairs) else value[at]
        if not isinstance(inner, list) or not inner or source.random() < 0.2:
            return value, at
        value = inner


def _nested(depth: int, opening: str, closing: str) -> Raw:
    return Raw(opening * depth + "1" + closing * depth)


def _odd_value(source: Random, value: Any) -> Any:
    kind = source.randrange(6)
    if kind == 0:
        return Raw(source.choice(NUMBERS))
    if kind == 1:
        return source.choice(TEXTS)
    if kind == 2:
        return source.choice((None, True, False, [], Pairs(), [[]], [value], Pairs([["a", value]]), "", 0, -1, 1.5))
    if kind == 3:
        return _nested(source.choice(DEPTHS), *source.choice((("[", "]"), ('{"a":', "}"))))
    if kind == 4:
        return [value] * source.choice((2, 100, 5000))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return source.choice((-value, Raw(f"{value}e300"), Raw(f"{value}e-300"), value + 1, str(value), bool(value)))
    return str(value) * 3 if isinstance(value, str) else Raw("null")


def _alter(document: Any, source: Random) -> None:
    table, at = _pick(document, source)
    pair = table[at] if isinstance(table, Pairs) else None
    what = source.randrange(8)
    if what == 0:
        del table[at]
    elif what == 1:
        table.insert(at, table[at])
    elif what == 2 and pair is not None:
        pair[0] = source.choice((*TEXTS, str(pair[0])[:-1], str(pair[0]) + "s", "kind", "schema_version"))
    elif what == 3 and pair is not None:
        table.insert(at, [pair[0], _odd_value(source, pair[1])])
    elif what == 4 and pair is not None:
        other, place = _pick(document, source)
        pair[1] = other[place][1] if isinstance(other, Pairs) else other[place]
    elif pair is not None:
        table[at] = [pair[0], _odd_value(source, pair[1])]
    else:
        table[at] = _odd_value(source, table[at])


def alter_json(data: bytes, _seeds: Sequence[bytes], source: Random) -> bytes:
    """Change a value, or remove, repeat or rename a field."""
    try:
        document = json.loads(data, object_pairs_hook=lambda pairs: Pairs(map(list, pairs)))
    except (ValueError, RecursionError):
        return data
    whole = [document]
    with suppress(RecursionError):
        _alter(document if isinstance(document, list) and document and source.random() < 0.98 else whole, source)
        return _encoded(_written(whole[0], ": ")) if whole else b""
    return data


def alter_line(data: bytes, seeds: Sequence[bytes], source: Random) -> bytes:
    """Change the JSON of one line."""
    lines = data.split(b"\n")
    at = source.randrange(max(1, len(lines) - 1))
    lines[at] = alter_json(lines[at], seeds, source).replace(b"\n", b" ")
    return b"\n".join(lines)


def alter_toml(data: bytes, _seeds: Sequence[bytes], source: Random) -> bytes:
    """The same for TOML; tables are written inline."""
    # Not the files that would take minutes: they are made for the reader, not for us.
    if len(data) > 1 << 16 or data.count(b".") > 2000:
        return data
    with suppress(ValueError, RecursionError):
        document = _from_toml(tomllib.loads(data.decode()))
        if document:
            _alter(document, source)
        lines = (f"{_written(key, ' = ')} = {_written(value, ' = ')}\n" for key, value in document)
        return _encoded("".join(lines))
    return data


# -- files of samples, with checksums

EXTREME_SAMPLES = (0.0, -1.0, 1.7e308, -1.7e308, 1e300, 5e-324, 1e-300, 1e22, np.nan, np.inf, -np.inf)


def _spoil_table(table: Any, source: Random) -> Any:
    table = np.array(table)
    row = source.randrange(len(table))
    begin = source.randrange(table.shape[1])
    end = source.choice((begin + 1, table.shape[1]))
    value = source.choice((*EXTREME_SAMPLES, float(table[row, begin]) * source.choice((-1, 1e3, 1e-3, 1e150))))
    with np.errstate(over="ignore"):
        table[row, begin:end] = value
    if source.random() < 0.1:
        table = table[:, source.sample(range(table.shape[1]), table.shape[1])]
    return table[:, : source.choice((table.shape[1], table.shape[1], 1))]


def _steps(data: bytes, source: Random) -> bytes:
    """Change samples or headers of a step file."""
    out = io.BytesIO()
    out.write(data[: len(sample_files.FILE_MAGIC)])
    at, chosen = len(sample_files.FILE_MAGIC), source.randrange(4)
    while len(data) >= at + sample_files.HEADER_BYTES:
        mark, rank, first, steps = sample_files.PLACE.unpack_from(data, at)
        size = steps * len(sample_files.COLUMNS) * 8
        payload = data[at + sample_files.HEADER_BYTES : at + sample_files.HEADER_BYTES + size]
        if mark != sample_files.CHUNK_MARK or len(payload) < size or not steps:
            break
        table = np.frombuffer(payload, dtype="<f8").reshape(len(sample_files.COLUMNS), steps)
        if chosen == 0 or source.random() < 0.3:
            table = _spoil_table(table, source)
        if source.random() < 0.1:
            rank = source.choice((rank, 0, 1, 2**32 - 1))
            first = source.choice((first, 0, min(first + 1, 2**64 - 1), 2**64 - 1))
        sample_files.write_chunk(out, rank, first, table)
        at += sample_files.HEADER_BYTES + size
        if source.random() < 0.05:
            place = sample_files.PLACE.pack(
                mark, rank, first, source.choice((0, 1, sample_files.MAX_CHUNK_STEPS, 2**32 - 1))
            )
            out.write(place + sample_files.CHECK.pack(zlib.crc32(place), 0))
    return out.getvalue() + data[at:]


def _samples(kind: energy.ChunkFile) -> Callable[[bytes, Random], bytes]:
    place_of, check = struct.Struct("<4sII"), struct.Struct("<II")
    each = np.dtype(kind.number).itemsize

    def change(data: bytes, source: Random) -> bytes:
        out = io.BytesIO()
        out.write(data[: len(kind.magic)])
        at = len(kind.magic)
        head = place_of.size + check.size
        while len(data) >= at + head:
            mark, channel, samples = place_of.unpack_from(data, at)
            size = samples * len(kind.columns) * each
            payload = data[at + head : at + head + size]
            if mark != b"CHNP" or len(payload) < size or not samples:
                break
            table = np.frombuffer(payload, dtype=kind.number).reshape(len(kind.columns), samples)
            if source.random() < 0.3:
                table = _spoil_table(table, source)
            if source.random() < 0.1:
                channel = source.choice((0, 1, 4095, 2**32 - 1))
            energy.write_power_chunk(out, channel, table, kind)
            at += head + size
            if source.random() < 0.05:
                place = place_of.pack(mark, channel, source.choice((0, 1, energy.MAX_CHUNK_SAMPLES, 2**32 - 1)))
                out.write(place + check.pack(zlib.crc32(place), 0))
        return out.getvalue() + data[at:]

    return change


def _alone(change: Callable[[bytes, Random], bytes]) -> Change:
    def with_seeds(data: bytes, _seeds: Sequence[bytes], source: Random) -> bytes:
        # Numbers beyond the range of the file's format become infinite.
        with np.errstate(all="ignore"):
            return change(data, source)

    return with_seeds


# -- checksums


def repair_png(data: bytes) -> bytes:
    """Make the checksum of every part right."""
    out, at = bytearray(data[:8]), 8
    while len(data) >= at + 12:
        size = int.from_bytes(data[at : at + 4], "big")
        if len(data) < at + 12 + size:
            break
        body = data[at + 4 : at + 8 + size]
        out += data[at : at + 4] + body + zlib.crc32(body).to_bytes(4, "big")
        at += 12 + size
    return bytes(out) + data[at:]


def repair_tar(data: bytes) -> bytes:
    """Make the checksum of every header right."""
    out, at = bytearray(data), 0
    while len(data) >= at + 512:
        head = bytes(out[at : at + 512])
        if head[257:262] == b"ustar":
            total = sum(head[:148]) + 8 * 32 + sum(head[156:])
            out[at + 148 : at + 156] = b"%06o\0 " % total
        at += 512
    return bytes(out)


def repair_podlog(data: bytes) -> bytes:
    """Make length and checksum of every line with data right."""
    lines = []
    for line in data.split(b"\n"):
        words = line.split(b" ")
        if len(words) == 8 and words[:2] == [b"#steelyard", b"data"]:
            with suppress(ValueError):
                content = base64.b64decode(words[7], validate=True)
                words[5:7] = str(len(content)).encode(), f"{zlib.crc32(content):08x}".encode()
                line = b" ".join(words)
        lines.append(line)
    return b"\n".join(lines)


REPAIRS: dict[str, Callable[[bytes], bytes]] = {"png": repair_png, "tar": repair_tar, "podlog": repair_podlog}
_BYTES = (flip, delete, insert, duplicate, truncate, splice)
_TEXT = (put_text, put_bytes, change_number, change_number, change_line, nest)
CHANGES: dict[str, tuple[tuple[Any, ...], ...]] = {
    "json": (_BYTES, _TEXT, (alter_json,), (alter_json,), (swap_numbers,), (swap_numbers,)),
    "jsonl": (_BYTES, _TEXT, (alter_line,), (alter_line,), (swap_numbers,)),
    "toml": (_BYTES, _TEXT, (alter_toml,), (alter_toml,), (long_key,), (swap_numbers,)),
    "text": (_BYTES, _TEXT),
    "csv": (_BYTES, _TEXT, (change_cell,), (change_cell,), (swap_numbers,)),
    "podlog": (_BYTES, _TEXT, (change_cell,)),
    "binary": (_BYTES, (word,)),
    "tar": (_BYTES, (word, put_text)),
    "png": (_BYTES, (word,)),
    "steps": (_BYTES, (_alone(_steps),), (_alone(_steps),), (_alone(_steps),)),
    "power": (_BYTES, (_alone(_samples(energy.POWER)),), (_alone(_samples(energy.POWER)),)),
    "state": (_BYTES, (_alone(_samples(energy.CONDITIONS)),), (_alone(_samples(energy.CONDITIONS)),)),
}  # fmt: skip
