"""Rows of tokens in the indexed files of Megatron-LM, and how to make them from text.

NAME.idx says how long every document is and where it lies in NAME.bin; it is checked against the sizes of both files
before anything of the .bin is touched. Both are mapped, not read: a row may be far larger than memory.
"""

from __future__ import annotations

import hashlib
import json
import struct
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from steelyard.data.form import begins_like, read_at, read_whole
from steelyard.data.json_stream import JsonLimits, value
from steelyard.errors import DamagedDataError, InputError, Problem
from steelyard.extras import install_line

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from numpy.typing import NDArray

    from steelyard.data.form import Kind, Split

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
# Version, code of the type, sequences, documents: after the magic.
HEADER = struct.Struct("<QBQQ")
HEADER_BYTES = len(MAGIC) + HEADER.size
# Codes of DType in megatron/core/datasets/indexed_dataset.py; 6 and 7 are floats, which no token is.
TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
BEGINNINGS = {"train": ("train",), "evaluation": ("val",)}
META = "meta.json"
SHARD_LIMIT = 10_000
# An index is checked in pieces of this many entries.
PIECE = 1 << 20


class _Shard(NamedTuple):
    bin_path: Path
    idx_path: Path
    tokens: NDArray[Any]


class TokensExamples:
    """One split: all its shards as one long row."""

    classes: int | None = None

    def __init__(self, root: Path, split: Split) -> None:
        paths = sorted(path for start in BEGINNINGS[split] for path in root.glob(f"{start}*.bin"))
        if not paths:
            wanted = " or ".join(f"{start}*.bin" for start in BEGINNINGS[split])
            raise InputError(f"tokens: there is no {wanted} in {root}", next_step="steelyard data show tokens")
        if len(paths) > SHARD_LIMIT:
            raise DamagedDataError(f"{root}: more than {SHARD_LIMIT:,} shards")
        self._shards = [_open_shard(path) for path in paths]
        self._ends = np.cumsum([len(shard.tokens) for shard in self._shards])
        self._meta = root / META
        self.vocabulary = _vocabulary(self._meta)
        """Tokens are below this number; None: no meta.json says so."""
        if not len(self):
            raise DamagedDataError(f"{root}: the {split} split has no tokens")

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, number: int) -> int:
        """One token of the row."""
        if not 0 <= number < len(self):
            raise IndexError(number)
        return int(self._cut(number, number + 1)[0])

    def count(self, length: int) -> int:
        """How many windows of `length` tokens and one more there are; each begins with the last token before it."""
        return (len(self) - 1) // length

    def window(self, number: int, length: int) -> NDArray[np.int64]:
        """`length` + 1 tokens as int64."""
        if not 0 <= number < self.count(length):
            raise IndexError(number)
        return self._cut(number * length, (number + 1) * length + 1)

    def order(self, source: random.Random) -> Sequence[int]:  # noqa: ARG002 -- nobody reads single tokens in random order
        """The places of the row as they are: a caller shuffles its windows."""
        return range(len(self))

    def files(self) -> Iterable[Path]:
        """Both files of every shard, and what describes them."""
        for shard in self._shards:
            yield shard.bin_path
            yield shard.idx_path
        if self._meta.exists():
            yield self._meta

    def _cut(self, start: int, stop: int) -> NDArray[np.int64]:
        pieces = []
        place = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            shard = self._shards[place]
            begin = int(self._ends[place]) - len(shard.tokens)
            piece = np.asarray(shard.tokens[start - begin : stop - begin], np.int64)
            self._check(shard, piece)
            pieces.append(piece)
            start += len(piece)
            place += 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _check(self, shard: _Shard, piece: NDArray[np.int64]) -> None:
        """A token that a model has no row for would end in an error of the device that names nothing."""
        if not len(piece):
            return
        if int(piece.min()) < 0:
            raise DamagedDataError(f"{shard.bin_path}: a token is {piece.min()}")
        if self.vocabulary is not None and int(piece.max()) >= self.vocabulary:
            raise DamagedDataError(
                f"{shard.bin_path}: a token is {piece.max()}; {META} says the vocabulary is {self.vocabulary}"
            )


def _vocabulary(path: Path) -> int | None:
    if not path.exists():
        return None
    meta = value(path, read_whole(path, 1 << 16), JsonLimits())
    size = meta.get("vocabulary") if isinstance(meta, dict) else None
    if type(size) is not int or not 0 < size <= 1 << 31:
        raise DamagedDataError(f"{path}: no whole number from 1 to {1 << 31:,} as vocabulary")
    return size


def _open_shard(bin_path: Path) -> _Shard:
    path = bin_path.with_suffix(".idx")
    head = read_at(path, 0, HEADER_BYTES)
    if not head.startswith(MAGIC) or len(head) < HEADER_BYTES:
        raise DamagedDataError(
            f"{path} is not an index of Megatron-LM, which begins with MMIDIDX: it {begins_like(head)}"
        )
    version, code, sequences, documents = HEADER.unpack_from(head, len(MAGIC))
    if version != VERSION:
        raise DamagedDataError(f"{path}: version {version}; only version {VERSION} is known")
    if code not in TYPES:
        raise DamagedDataError(f"{path}: type {code} is not one of whole numbers; valid: {', '.join(map(str, TYPES))}")
    size = path.stat().st_size
    needed = HEADER_BYTES + 12 * sequences + 8 * documents
    # Data sets of pictures and text have another byte a sequence at the end.
    if size not in (needed, needed + sequences):
        raise DamagedDataError(
            f"{path}: {sequences:,} sequences and {documents:,} documents take {needed:,} bytes; it has {size:,}"
        )
    item = np.dtype(TYPES[code])
    try:
        bin_bytes = bin_path.stat().st_size
        _check_index(path, sequences, documents, item.itemsize, bin_bytes)
        # A map of nothing is an error of its own.
        mapped = np.memmap(bin_path, item, "r") if bin_bytes else np.zeros(0, item)
    except OSError as error:
        raise DamagedDataError(f"{bin_path}: cannot be read: {error.strerror}") from None
    return _Shard(bin_path, path, mapped)


def _check_index(path: Path, sequences: int, documents: int, item_bytes: int, bin_bytes: int) -> None:
    """Lengths and pointers against the size of the .bin. In pieces: an index may be large."""
    end = 0
    lengths = _pieces(path, HEADER_BYTES, sequences, "<i4")
    pointers = _pieces(path, HEADER_BYTES + 4 * sequences, sequences, "<i8")
    for length, pointer in zip(lengths, pointers, strict=True):
        if length.min() < 0:
            _fail(path, f"a sequence has the length {length.min()}")
        # At most 2^20 lengths below 2^31 of 8 bytes each: no sum overflows.
        ends = end + np.cumsum(length * item_bytes)
        if int(ends[-1]) > bin_bytes:
            _fail(path, f"its sequences end at byte {ends[-1]:,} or later; the .bin has {bin_bytes:,}")
        if not np.array_equal(pointer, ends - length * item_bytes):
            _fail(path, "a pointer is not where the sequence before it ends")
        end = int(ends[-1])
    if end != bin_bytes:
        _fail(path, f"its sequences have {end:,} bytes; the .bin has {bin_bytes:,}")
    last = 0
    for piece in _pieces(path, HEADER_BYTES + 12 * sequences, documents, "<i8"):
        if piece[0] < last or (np.diff(piece) < 0).any() or piece[-1] > sequences:
            _fail(path, f"the documents are not in order within the {sequences:,} sequences")
        last = int(piece[-1])
    if last != sequences:
        _fail(path, f"the documents end at sequence {last:,} of {sequences:,}")


def _pieces(path: Path, offset: int, count: int, kind: str) -> Iterator[NDArray[np.int64]]:
    if count:
        mapped = np.memmap(path, kind, "r", offset, (count,))
        for start in range(0, count, PIECE):
            yield np.asarray(mapped[start : start + PIECE], np.int64)


def _fail(path: Path, what: str) -> NoReturn:
    raise DamagedDataError(f"{path}: {what}")


# --- from text -----------------------------------------------------------------------------------------------------

END_OF_BYTES = 256
TEXT_KEYS = ("text", "content")
# A line of 16 MB with nothing but small texts takes 200 MB while it is decoded.
LINE = JsonLimits(element_chars=16 << 20, containers=200_000)
TOKENIZER_BYTES = 64 << 20
# A new shard starts after this many bytes or documents: the lengths of a shard are kept in memory.
SHARD_BYTES = 4 << 30
SHARD_DOCUMENTS = 8_000_000
EVALUATION_ONE_IN = 100
# Documents are given to a tokenizer in batches: it works on them in parallel.
BATCH_DOCUMENTS = 512
BATCH_CHARS = 1 << 20
# As Megatron-LM chooses: above, two bytes could not hold padded vocabularies.
SMALL_VOCABULARY = 65_500
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")


class _Encoder(NamedTuple):
    name: str
    vocabulary: int
    end: int | None
    encode: Callable[[list[str]], list[Any]]


class _Writer:
    """The shards of one split: the .bin grows as documents come, the .idx follows when a shard is full."""

    def __init__(self, target: Path, split: str, code: int) -> None:
        self._target = target
        self._split = split
        self._code = code
        self._kind = np.dtype(TYPES[code])
        self._file: BinaryIO | None = None
        self._lengths = array("i")
        self._size_bytes = 0
        self.written: list[Path] = []
        self.documents = 0

    def add(self, tokens: Any, end: int | None) -> None:
        """One document, and what ends it."""
        if self._file is None:
            path = self._target / f"{self._split}_{len(self.written) // 2:05d}_text_document.bin"
            self._file = path.open("xb")
            self.written.append(path)
        row = np.empty(len(tokens) + (end is not None), self._kind)
        row[: len(tokens)] = tokens
        row[len(tokens) :] = 0 if end is None else end
        self._file.write(row.data)
        self._size_bytes += row.nbytes
        self._lengths.append(len(row))
        self.documents += 1
        if self._size_bytes >= SHARD_BYTES or len(self._lengths) >= SHARD_DOCUMENTS:
            self.finish()

    def finish(self) -> None:
        """Ends the shard at hand."""
        if self._file is None:
            return
        self._file.close()
        self._file = None
        lengths = np.array(self._lengths, "<i4")
        path = self.written[-1].with_suffix(".idx")
        sizes = lengths.astype("<i8") * self._kind.itemsize
        with path.open("xb") as file:
            self.written.append(path)
            file.write(MAGIC + HEADER.pack(VERSION, self._code, len(lengths), len(lengths) + 1))
            file.write(lengths.tobytes())
            file.write((np.cumsum(sizes) - sizes).astype("<i8").tobytes())
            file.write(np.arange(len(lengths) + 1, dtype="<i8").tobytes())
        self._lengths = array("i")
        self._size_bytes = 0

    def undo(self) -> None:
        """Takes back what has been written."""
        if self._file is not None:
            self._file.close()
        for path in self.written:
            path.unlink(missing_ok=True)


def to_shards(sources: Sequence[Path], target: Path, tokenizer: Path | None) -> None:
    """Texts in JSON lines to shards of tokens; about every 100th document, by its hash, goes to the evaluation.

    A line is an object with the text as `text` or `content`. Without a tokenizer.json the tokens are the bytes of
    UTF-8, and 256 ends a document. Nothing is left in `target` when it fails.
    """
    _convert(_documents(sources), target, _encoder(tokenizer), EVALUATION_ONE_IN)


def _convert(documents: Iterable[str], target: Path, encoder: _Encoder, one_in: int) -> None:
    target.mkdir(parents=True, exist_ok=True)
    if present := [path for name in ("train*.*", "val*.*", META) for path in target.glob(name)]:
        problem = Problem(str(target), f"{present[0].name} is in it", "a folder without train*, val* and meta.json")
        raise InputError("tokens: the target is in use", problems=(problem,))
    code = 8 if encoder.vocabulary < SMALL_VOCABULARY else 4
    train, val = (_Writer(target, split, code) for split in ("train", "val"))
    done = False
    try:
        for batch in _batches(documents):
            for text, tokens in zip(batch, encoder.encode(batch), strict=True):
                chosen = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") % one_in == 0
                (val if chosen else train).add(tokens, encoder.end)
        for name, writer in (("training", train), ("evaluation", val)):
            writer.finish()
            if not writer.documents:
                problem = Problem(
                    "documents", f"none fell to the {name}", f"several times {one_in} documents with text"
                )
                raise InputError(
                    f"tokens: too little text for both splits, 1 in {one_in} is kept for evaluation",
                    problems=(problem,),
                )
        meta = {"vocabulary": encoder.vocabulary, "tokenizer": encoder.name, "end_of_document": encoder.end}
        (target / META).write_text(json.dumps(meta) + "\n", encoding="utf-8")
        done = True
    finally:
        if not done:
            train.undo()
            val.undo()


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    chars = 0
    for text in documents:
        batch.append(text)
        chars += len(text)
        if len(batch) == BATCH_DOCUMENTS or chars >= BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


def _documents(sources: Sequence[Path]) -> Iterator[str]:
    """The texts of all lines, empty ones left out."""
    for path in sources:
        # Opening a pipe would wait for ever.
        if not path.is_file():
            raise InputError(f"tokens: {path} is not a file", next_step="name files of JSON lines, unpacked")
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LINE.element_chars + 1):
                number += 1
                if len(line) > LINE.element_chars:
                    raise DamagedDataError(f"{path}: line {number} has more than {LINE.element_chars >> 20} MiB")
                if text := _text(path, number, line.strip()):
                    yield text


def _text(path: Path, number: int, line: bytes) -> str:
    if not line:
        return ""
    try:
        entry = value(path, line, LINE)
    except DamagedDataError as error:
        raise DamagedDataError(f"{error.what}, in line {number}") from None
    texts = [entry[key] for key in TEXT_KEYS if key in entry] if isinstance(entry, dict) else []
    if not texts or not isinstance(texts[0], str):
        raise DamagedDataError(f"{path}: line {number} is not an object with a text as {' or '.join(TEXT_KEYS)}")
    # Half a pair of UTF-16 is nothing that UTF-8 or a tokenizer takes; web pages have them.
    return texts[0].encode("utf-8", "replace").decode("utf-8")


def _encoder(tokenizer: Path | None) -> _Encoder:
    if tokenizer is None:
        return _Encoder(
            "bytes",
            END_OF_BYTES + 1,
            END_OF_BYTES,
            lambda texts: [np.frombuffer(text.encode(), np.uint8) for text in texts],
        )
    try:
        from tokenizers import Tokenizer
    except ImportError:
        line = install_line("transformers")
        raise InputError("a tokenizer.json needs the library tokenizers", next_step=line) from None
    data = read_whole(tokenizer, TOKENIZER_BYTES)
    try:
        loaded = Tokenizer.from_str(data.decode("utf-8"))
    except Exception as error:  # noqa: BLE001 -- the library raises Exception itself
        raise DamagedDataError(f"{tokenizer}: not a tokenizer.json: {str(error)[:200]}") from None
    loaded.no_truncation()
    loaded.no_padding()
    end = next((token for name in ENDS if (token := loaded.token_to_id(name)) is not None), None)
    return _Encoder(
        hashlib.sha256(data).hexdigest(),
        loaded.get_vocab_size(),
        end,
        lambda texts: [encoded.ids for encoded in loaded.encode_batch(texts, add_special_tokens=False)],
    )


# --- made ----------------------------------------------------------------------------------------------------------

WORDS = (("red", "blue", "green", "old"), ("cat", "dog", "bird", "fish"), ("sees", "likes", "finds"))
MADE_ONE_IN = 4
MADE_TOKENS = 200
MADE_DOCUMENTS = 64


def _story(source: np.random.Generator) -> str:
    adjectives, nouns, verbs = WORDS

    def word(words: tuple[str, ...]) -> str:
        return words[int(source.integers(len(words)))]

    sentence = f"the {word(adjectives)} {word(nouns)} {word(verbs)} the {word(adjectives)} {word(nouns)}. "
    return sentence * int(source.integers(2, 5))


def _stories(samples: int, seed: int) -> Iterator[str]:
    """Twice the tokens asked for, so that training gets as many; documents enough for both splits to get some."""
    source = np.random.default_rng(seed)
    written = count = 0
    while written < samples * MADE_TOKENS * 2 or count < MADE_DOCUMENTS:
        text = _story(source)
        yield text
        written += len(text) + 1
        count += 1


class _Tokens:
    name = "tokens"
    kind: Kind = "tokens"
    needs: tuple[str, ...] = ()
    title = "Text as tokens in the indexed files of Megatron-LM, such as OSCAR"
    layout = (
        "train*.bin and train*.idx, one pair or several, such as train_00000_text_document.bin\n"
        "val*.bin and val*.idx\n"
        'meta.json, optional: {"vocabulary": 50257}, the largest token and one more'
    )
    source = (
        "Any text: preprocess_data.py of Megatron-LM writes such files, and so does steelyard from JSON lines with "
        '"text" or "content". OSCAR: https://oscar-project.org, from some GB to TB a language, access and terms on its '
        "page."
    )

    def open(self, root: Path, split: Split) -> TokensExamples:
        """A split; checks every index."""
        return TokensExamples(root, split)

    def make(self, root: Path, samples: int, seed: int) -> None:
        """Short stories of few words, as bytes; at least 200 tokens per sample."""
        _convert(_stories(samples, seed), root, _encoder(None), MADE_ONE_IN)


TOKENS = _Tokens()
