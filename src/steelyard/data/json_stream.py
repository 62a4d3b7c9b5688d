"""Reads untrusted JSON piece by piece, with limits on size, nesting and count.

A file of 470 MB unfolds to gigabytes when it is read whole, and 4 MB of brackets to 200 MB. Here a file is one object;
the elements of the arrays in it are decoded one after another and dropped when the caller drops them.
"""

from __future__ import annotations

import codecs
import json
import re
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from steelyard.data.form import begins_like, read_at
from steelyard.errors import DamagedDataError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path
    from typing import BinaryIO

CHUNK_BYTES = 1 << 18
_FOLLOWS = tuple(",]}: \t\n\r")
NAMES = 1000
"""Largest number of values of the top-level object."""
_SPACES = re.compile("[ \t\n\r]*")
# Everything but what opens, closes and quotes.
_PLAIN = bytes(sorted(set(range(256)) - set(b'[]{}"')))


@dataclass(frozen=True)
class JsonLimits:
    """How large a file may be, and what is in it."""

    file_bytes: int = 2 << 30
    element_chars: int = 1 << 20
    nesting: int = 32
    elements: int = 5_000_000
    passed_over: int = 200_000
    """Elements of arrays that nobody asked for."""
    containers: int = 100_000
    """Lists and objects in one element: empty ones take 30 times the memory of their text."""


class Nesting:
    """How deep brackets go in JSON that is fed in pieces: exact, for text in quotes does not count."""

    def __init__(self, limit: int) -> None:
        self.containers = 0
        self._limit = limit
        self._depth = 0
        self._quoted = False
        self._escape = b""

    def feed(self, piece: bytes) -> bool:
        """Takes the next piece; False once the limit has been passed."""
        piece = self._escape + piece
        run = len(piece) - len(piece.rstrip(b"\\"))
        # A backslash at the end belongs to what comes next.
        self._escape = b"\\" if run % 2 else b""
        # Escaped backslashes first: what is left before a quote escapes it.
        piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        signs = (b'"' if self._quoted else b"") + piece.translate(None, _PLAIN)
        # Nearly every text holds no bracket, and two quotes in a row change nothing.
        parts = signs.replace(b'""', b"").split(b'"')
        self._quoted = len(parts) % 2 == 0
        brackets = np.frombuffer(b"".join(parts[::2]), np.uint8)
        if not len(brackets):
            return True
        # The second bit tells [ and { from ] and }.
        opens = (brackets & 2).astype(np.int8) - 1
        depth = np.cumsum(opens, dtype=np.int64) + self._depth
        self.containers += int(np.count_nonzero(opens > 0))
        self._depth = int(depth[-1])
        return int(depth.max()) <= self._limit


class TextTable:
    """Many short texts in one piece of memory, which processes that fork go on sharing."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._ends = array("q", [0])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, number: int) -> str:
        return self._data[self._ends[number] : self._ends[number + 1]].decode("utf-8", "surrogatepass")

    def append(self, text: str) -> int:
        """Keeps a text; its number."""
        self._data += text.encode("utf-8", "surrogatepass")
        self._ends.append(len(self._data))
        return len(self) - 1


def entries(path: Path, arrays: Collection[str], limits: JsonLimits) -> Iterator[tuple[str, Any]]:
    """Elements of these arrays in the object at the top, each with the array's name; values that are no arrays too."""
    head = read_at(path, 0, 512)
    if head.strip(b" \t\r\n")[:1] not in (b"{", b""):
        raise DamagedDataError(f"{path} is not a JSON object: it {begins_like(head)}")
    try:
        if path.stat().st_size > limits.file_bytes:
            raise DamagedDataError(f"{path}: more than {limits.file_bytes >> 20:,} MiB")
        with path.open("rb") as file:
            yield from _Reader(path, file, limits).entries(arrays)
    except OSError as error:
        raise DamagedDataError(f"{path}: cannot be read: {error.strerror}") from None


def value(path: Path, data: bytes, limits: JsonLimits) -> Any:
    """One whole JSON value of at most `element_chars` bytes."""
    nesting = Nesting(limits.nesting)
    if len(data) > limits.element_chars:
        raise DamagedDataError(f"{path}: JSON of more than {limits.element_chars:,} bytes")
    for start in range(0, len(data), CHUNK_BYTES):
        if not nesting.feed(data[start : start + CHUNK_BYTES]):
            raise DamagedDataError(f"{path}: brackets more than {limits.nesting} deep")
        if nesting.containers > limits.containers:
            raise DamagedDataError(f"{path}: more than {limits.containers:,} lists and objects in one value")
    try:
        return _decoder(path).decode(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DamagedDataError(f"{path}: not UTF-8 at byte {error.start}") from None
    except ValueError as error:
        raise DamagedDataError(f"{path}: not JSON: {error}") from None


def _decoder(path: Path) -> json.JSONDecoder:
    def constant(name: str) -> NoReturn:
        raise DamagedDataError(f"{path}: {name} is not a number that JSON has")

    return json.JSONDecoder(parse_constant=constant)


class _Reader:
    """A window on the text of a file: what lies before `_at` has been taken."""

    def __init__(self, path: Path, file: BinaryIO, limits: JsonLimits) -> None:
        self._path = path
        self._file = file
        self._limits = limits
        self._scan = _decoder(path).raw_decode
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._nesting = Nesting(limits.nesting)
        self._text = ""
        self._at = 0
        self._read_bytes = 0
        self._ended = False

    def entries(self, arrays: Collection[str]) -> Iterator[tuple[str, Any]]:
        """See `entries` of the module."""
        self._expect("{")
        seen: set[str] = set()
        while self._more("}", first=not seen):
            name = self._value()
            if not isinstance(name, str) or name in seen or len(seen) == NAMES:
                self._fail("no name, a name that is there twice, or too many of them")
            seen.add(name)
            self._expect(":")
            if self._peek() != "[":
                yield name, self._value()
            elif name in arrays:
                for element in self._array(self._limits.elements):
                    yield name, element
            else:
                for _ in self._array(self._limits.passed_over):
                    pass
        if self._peek():
            self._fail("something follows the end of the object")

    def _array(self, limit: int) -> Iterator[Any]:
        self._expect("[")
        count = 0
        while self._more("]", first=not count):
            count += 1
            if count > limit:
                self._fail(f"an array of more than {limit:,} elements")
            yield self._value()

    def _more(self, end: str, *, first: bool) -> bool:
        """Whether another element follows; steps over the comma or the end."""
        sign = self._peek()
        if sign == end:
            self._at += 1
            return False
        if not first:
            self._expect(",")
        return True

    def _expect(self, sign: str) -> None:
        if self._peek() != sign:
            self._fail(f'"{sign}" expected')
        self._at += 1

    def _peek(self) -> str:
        """The next sign that is no space, not taken; nothing at the end."""
        while True:
            self._at = _SPACES.match(self._text, self._at).end()  # type: ignore[union-attr]  # nothing matches too
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._fill():
                return ""

    def _value(self) -> Any:
        """The next value. What no comma, bracket or space follows may go on outside of the window, as 1.5e3 may."""
        self._peek()
        while True:
            try:
                element, end = self._scan(self._text, self._at)
            except (ValueError, RecursionError) as error:
                element, end, problem = None, -1, str(error)
            if end > 0 and (self._ended or self._text[end : end + 1] in _FOLLOWS):
                break
            if len(self._text) - self._at > self._limits.element_chars:
                self._fail(f"an element of more than {self._limits.element_chars:,} characters, or not JSON")
            # Those in quotes and those of the next elements count too: no sound file has nearly as many.
            if self._text.count("[", self._at) + self._text.count("{", self._at) > self._limits.containers:
                self._fail(f"an element of more than {self._limits.containers:,} lists and objects, or not JSON")
            if not self._fill() and end < 0:
                self._fail(f"not JSON or cut off: {problem.partition(':')[0]}")
        if end - self._at > self._limits.element_chars:
            self._fail(f"an element of more than {self._limits.element_chars:,} characters")
        self._at = end
        return element

    def _fill(self) -> bool:
        """Read on; False at the end of the file. Doubles the window, so that large values need few tries."""
        if self._ended:
            return False
        rest = self._text[self._at :]
        piece = self._file.read(max(CHUNK_BYTES, len(rest)))
        self._read_bytes += len(piece)
        self._ended = not piece
        if self._read_bytes > self._limits.file_bytes:
            self._fail(f"more than {self._limits.file_bytes >> 20:,} MiB")
        if not self._nesting.feed(piece):
            self._fail(f"brackets more than {self._limits.nesting} deep")
        try:
            self._text = rest + self._utf8.decode(piece, final=self._ended)
        except UnicodeDecodeError:
            self._fail("not UTF-8")
        self._at = 0
        return len(self._text) > len(rest) or not self._ended

    def _fail(self, what: str) -> NoReturn:
        place = self._read_bytes - len(self._text) + self._at
        raise DamagedDataError(f"{self._path}: {what}, near byte {max(0, place):,}")
