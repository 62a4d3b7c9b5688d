"""Boxes, masks, tokens and questions in their true layouts: read exactly, refused clearly when spoiled, learnable."""

from __future__ import annotations

import importlib
import json
import os
import random
import re
import struct
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_formats_images import SAMPLES, TIME_LIMIT_S, Case
from data_formats_structured import CASES, REFERENCE, change, differences, read_structured
from steelyard import plugins
from steelyard.data import coco, json_stream, tokens
from steelyard.data.cityscapes import CITYSCAPES, MADE, TABLE
from steelyard.data.coco import COCO
from steelyard.data.form import extent
from steelyard.data.json_stream import JsonLimits, Nesting, TextTable, entries, value
from steelyard.data.squad import SQUAD
from steelyard.data.tokens import TOKENS, to_shards
from steelyard.errors import DamagedDataError, InputError

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Within
    from steelyard.data.form import Format

NAMES = sorted(REFERENCE)
FORMATS: dict[str, Format] = {name: plugins.load("data", name) for name in NAMES}


# Damaged and hostile data.


@pytest.mark.parametrize("case", CASES, ids=[f"{case.format}-{case.name}".replace(" ", "-") for case in CASES])
def test_what_is_spoiled_is_refused(case: Case, tmp_path: Path, within: Within) -> None:
    FORMATS[case.format].make(tmp_path, SAMPLES, 1)
    case.spoil(tmp_path)
    # Memory is measured by the figure, in one process per case.
    with within(TIME_LIMIT_S), pytest.raises((DamagedDataError, InputError)) as caught:
        read_structured(case.format, tmp_path)
    assert re.search(case.says, str(caught.value), re.DOTALL), str(caught.value)


# All four.


@pytest.mark.parametrize("name", NAMES)
def test_reading_gives_what_was_made(name: str, tmp_path: Path) -> None:
    FORMATS[name].make(tmp_path, 12, 0)
    unequal, total = differences(name, tmp_path)
    assert unequal == 0
    assert total >= 15
    for split, least in (("train", 12), ("evaluation", 3)):
        examples = FORMATS[name].open(tmp_path, split)  # type: ignore[arg-type]
        assert len(examples) == least or name == "tokens"
        assert sorted(examples.order(random.Random(1))) == list(range(len(examples)))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_makes_the_same_files(name: str, tmp_path: Path) -> None:
    for folder, seed in (("one", 3), ("same", 3), ("other", 4)):
        FORMATS[name].make(tmp_path / folder, 8, seed)
    contents = {
        folder: {path.relative_to(tmp_path / folder): path.read_bytes() for path in (tmp_path / folder).rglob("*.*")}
        for folder in ("one", "same", "other")
    }
    assert contents["one"] == contents["same"]
    assert contents["one"] != contents["other"]
    files = [file for split in ("train", "evaluation") for file in FORMATS[name].open(tmp_path / "one", split).files()]
    assert {file.relative_to(tmp_path / "one") for file in files} == set(contents["one"])
    assert extent(tmp_path / "one", files).size_bytes == sum(map(len, contents["one"].values()))


@pytest.mark.parametrize("name", NAMES)
def test_one_sample_is_enough_and_a_number_too_high_is_not_there(name: str, tmp_path: Path) -> None:
    FORMATS[name].make(tmp_path, 1, 0)
    examples = FORMATS[name].open(tmp_path, "evaluation")
    assert examples[0] is not None
    with pytest.raises(IndexError):
        examples[len(examples)]


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_folder_is_refused_with_what_would_be_right(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        FORMATS[name].open(tmp_path, "train")
    assert f"steelyard data show {name}" in str(caught.value)


# JSON as a stream.

texts = st.text(st.sampled_from(list('[]{}"\\,: \n\u00e9\u20ac\U0001f600ab')), max_size=8)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
documents = st.dictionaries(
    texts,
    st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=12),
    max_size=4,
)


def flat(whole: dict[str, Any]) -> list[tuple[str, Any]]:
    """What `entries` should give."""
    rows: list[tuple[str, Any]] = []
    for name, found in whole.items():
        rows += [(name, element) for element in found] if isinstance(found, list) else [(name, found)]
    return rows


@given(documents, st.booleans(), st.sampled_from([None, 2]), st.integers(1, 9))
def test_a_stream_gives_what_json_gives(
    tmp_path_factory: pytest.TempPathFactory, whole: dict[str, Any], ascii_only: bool, indent: int | None, chunk: int
) -> None:
    path = tmp_path_factory.mktemp("stream") / "whole.json"
    text = json.dumps(whole, ensure_ascii=ascii_only, indent=indent)
    path.write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "CHUNK_BYTES", chunk)
        assert list(entries(path, whole.keys(), JsonLimits())) == flat(whole)
        assert value(path, text.encode(), JsonLimits()) == whole


def depth(found: Any) -> int:
    inner = found.values() if isinstance(found, dict) else found if isinstance(found, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


def containers(found: Any) -> int:
    inner = found.values() if isinstance(found, dict) else found if isinstance(found, list) else None
    return 0 if inner is None else 1 + sum(map(containers, inner))


@given(documents, st.integers(1, 7))
def test_nesting_is_exact_whatever_stands_in_quotes(whole: dict[str, Any], piece: int) -> None:
    data, deep = json.dumps(whole, ensure_ascii=False).encode(), depth(whole)
    allowed, forbidden = Nesting(deep), Nesting(deep - 1)
    pieces = [data[place : place + piece] for place in range(0, len(data), piece)]
    within = [allowed.feed(part) for part in pieces]
    assert all(within)
    assert not all(forbidden.feed(part) for part in pieces)
    assert allowed.containers == containers(whole)


@pytest.mark.parametrize("chunk", [1, 5, 1000])
def test_whatever_is_cut_off_is_refused(chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", chunk)
    data = '{"a": [12, {"b": "é\\""}, []], "c": -1.5e3}'.encode()
    path = tmp_path / "whole.json"
    for end in range(len(data)):
        path.write_bytes(data[:end])
        with pytest.raises(DamagedDataError, match=r"whole\.json"):
            list(entries(path, ("a",), JsonLimits()))
    path.write_bytes(data)
    assert len(list(entries(path, ("a",), JsonLimits()))) == 4
    assert list(entries(path, (), JsonLimits())) == [("c", -1500.0)]


@pytest.mark.parametrize(
    "text", ['{"a": 1,}', '{"a": [1,]}', '{"a": [,1]}', '{"a" 1}', '{a: 1}', '{"a": 1 "b": 2}', '{"a": [1 2]}', "{,}",
             '{"a": 1, "a": 2}', "{1: 2}", '{"a": NaN}', '{"a": [-Infinity]}', '{"a": tru}', "[]", '{"a": 1}}', "{} x"],
)  # fmt: skip
def test_what_is_not_json_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "whole.json"
    path.write_text(text)
    with pytest.raises(DamagedDataError, match=r"whole\.json"):
        list(entries(path, ("a",), JsonLimits()))


def test_limits_of_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "whole.json"
    path.write_text(json.dumps({"a": list(range(20)), "b": ["x" * 100]}))
    assert len(list(entries(path, ("a", "b"), JsonLimits(elements=20, element_chars=102)))) == 21
    for limits, says in (
        (JsonLimits(elements=19), "more than 19 elements"),
        (JsonLimits(element_chars=101), "more than 101 characters"),
        (JsonLimits(nesting=1), "1 deep"),
        (JsonLimits(file_bytes=100), "more than 0 MiB"),
    ):
        with pytest.raises(DamagedDataError, match=says):
            list(entries(path, ("a", "b"), limits))
    with pytest.raises(DamagedDataError, match="more than 19 elements"):
        list(entries(path, ("b",), JsonLimits(passed_over=19)))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(DamagedDataError, match="not a regular file"):
        list(entries(tmp_path / "pipe.json", (), JsonLimits()))


@given(st.lists(st.text(st.characters(), max_size=5)))
def test_a_table_of_texts_gives_back_what_it_was_given(given_texts: list[str]) -> None:
    table = TextTable()
    assert [table.append(text) for text in given_texts] == list(range(len(given_texts)))
    assert [table[number] for number in range(len(table))] == given_texts


# COCO.


def test_boxes_are_where_the_colours_are(tmp_path: Path) -> None:
    COCO.make(tmp_path, 20, 5)
    train = COCO.open(tmp_path, "train")
    assert train.classes == 81
    assert train.category_ids == tuple(sorted(coco.CATEGORIES))
    for number in range(len(train)):
        picture, boxes, labels, _ = train[number]
        assert boxes.dtype == np.float32
        assert labels.dtype == np.int64
        pixels = np.asarray(picture, np.float64)
        for (left, top, right, low), label in zip(boxes.astype(int), labels, strict=True):
            inside = pixels[top + 4 : low - 4, left + 4 : right - 4].mean((0, 1))
            assert np.abs(inside - coco.MADE[train.category_ids[label - 1]]).max() < 12


def coco_of(root: Path, **changes: Any) -> None:
    """Three images of 40 x 30, of which the first has a box, and what else is asked for."""
    from PIL import Image

    images = [{"id": 10 * number, "file_name": f"{number}.jpg", "width": 40, "height": 30} for number in (1, 2, 3)]
    box = {"id": 1, "image_id": 10, "category_id": 90, "bbox": [1, 2, 3.5, 4], "iscrowd": 0}
    whole = {"images": images, "annotations": [box], "categories": [{"id": 90}, {"id": 7}], **changes}
    (root / "annotations").mkdir()
    for folder in ("train2017", "val2017"):
        (root / f"annotations/instances_{folder}.json").write_text(json.dumps(whole))
        (root / folder).mkdir()
        for image in images:
            Image.new("RGB", (40, 30)).save(root / folder / str(image["file_name"]))


def test_images_without_boxes_are_for_evaluation_only(tmp_path: Path) -> None:
    coco_of(tmp_path)
    train, evaluation = COCO.open(tmp_path, "train"), COCO.open(tmp_path, "evaluation")
    assert [train[number][3] for number in range(len(train))] == [10]
    assert [evaluation[number][3] for number in range(len(evaluation))] == [10, 20, 30]
    assert evaluation[1][1].shape == (0, 4)
    assert train[0][1].tolist() == [[1, 2, 4.5, 6]]
    assert train[0][2].tolist() == [2]
    assert len(list(train.files())) == 2


def test_crowds_and_empty_boxes_are_left_out_and_the_rest_is_cut_at_the_edge(tmp_path: Path) -> None:
    rows = [([0, 0, 5, 5], 1), ([1, 1, 0, 5], 0), ([1, 1, 5, -1], 0), ([40, 1, 5, 5], 0), ([-3, 20, 50, 20], 0)]
    annotations = [
        {"id": number, "image_id": 20, "category_id": 7, "bbox": box, "iscrowd": crowd}
        for number, (box, crowd) in enumerate(rows)
    ]
    coco_of(tmp_path, annotations=annotations)
    train = COCO.open(tmp_path, "train")
    assert len(train) == 1
    assert train[0][1].tolist() == [[0, 20, 40, 30]]


def test_annotations_take_little_memory_and_keep_their_order(tmp_path: Path) -> None:
    annotations = [
        {"id": number, "image_id": 10 * (1 + number % 3), "category_id": 7, "bbox": [number % 30, 0, 5, 5],
         "segmentation": [[0.5] * 200]}
        for number in range(3000)
    ]  # fmt: skip
    coco_of(tmp_path, annotations=annotations)
    evaluation = COCO.open(tmp_path, "evaluation")
    assert evaluation[1][1][:, 0].tolist() == [number % 30 for number in range(1, 3000, 3)]


# Cityscapes.


def test_the_classes_are_where_the_colours_are(tmp_path: Path) -> None:
    CITYSCAPES.make(tmp_path, 4, 2)
    for picture, mask in (CITYSCAPES.open(tmp_path, "train")[number] for number in range(4)):
        assert mask.dtype == np.uint8
        pixels = np.asarray(picture, np.float64)
        for number, colour in MADE.items():
            assert np.abs(pixels[mask == TABLE[number]].mean(0) - colour).max() < 8
        assert (mask == 255).any()


def test_nineteen_ids_count_and_no_other() -> None:
    counted = np.flatnonzero(TABLE != 255)
    assert TABLE[counted].tolist() == list(range(19))
    # Road, rider and bicycle; unlabelled, the car that drives the camera, parking, caravan and trailer.
    assert TABLE[[7, 25, 33]].tolist() == [0, 12, 18]
    assert set(TABLE[[0, 1, 9, 29, 30]].tolist()) == {255}


def test_what_is_no_picture_is_passed_over(tmp_path: Path) -> None:
    CITYSCAPES.make(tmp_path, 4, 2)
    (tmp_path / "leftImg8bit/train/aachen/notes.txt").write_text("x")
    (tmp_path / "leftImg8bit/train/README").write_text("x")
    assert len(CITYSCAPES.open(tmp_path, "train")) == 4


# Tokens.


def parsed(path: Path) -> list[list[int]]:
    """The documents of a shard, by the layout alone, one value after another."""
    data, held = path.with_suffix(".idx").read_bytes(), path.read_bytes()
    assert data[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, documents = struct.unpack("<QBQQ", data[9:34])
    kind = {4: "i", 8: "H"}[code]
    size = struct.calcsize(f"<{kind}")
    at = 34
    lengths = struct.unpack_from(f"<{sequences}i", data, at)
    pointers = struct.unpack_from(f"<{sequences}q", data, at := at + 4 * sequences)
    marks = struct.unpack_from(f"<{documents}q", data, at := at + 8 * sequences)
    assert at + 8 * documents == len(data)
    assert version == 1
    assert marks == tuple(range(sequences + 1))
    assert sum(lengths) * size == len(held)
    return [
        list(struct.unpack_from(f"<{length}{kind}", held, pointer))
        for length, pointer in zip(lengths, pointers, strict=True)
    ]


def corpus(path: Path, texts: list[str], key: str = "text") -> Path:
    path.write_text("".join(json.dumps({"id": 1, key: text}) + "\n" for text in texts), encoding="utf-8")
    return path


TEXTS = [f"document {number}: é€ " * (number % 4 + 1) for number in range(600)]


def test_bytes_go_to_shards_in_the_layout_of_megatron(tmp_path: Path) -> None:
    one, two = corpus(tmp_path / "a.jsonl", TEXTS[:300]), corpus(tmp_path / "b.jsonl", TEXTS[300:], "content")
    to_shards([one, two], tmp_path / "out", None)
    train = parsed(tmp_path / "out/train_00000_text_document.bin")
    val = parsed(tmp_path / "out/val_00000_text_document.bin")
    assert 1 <= len(val) <= 20
    assert len(train) + len(val) == 600
    assert sorted(train + val) == sorted([*text.encode(), 256] for text in TEXTS)
    meta = json.loads((tmp_path / "out/meta.json").read_text())
    assert meta == {"vocabulary": 257, "tokenizer": "bytes", "end_of_document": 256}


def test_several_shards_are_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = corpus(tmp_path / "a.jsonl", TEXTS)
    to_shards([source], tmp_path / "one", None)
    monkeypatch.setattr(tokens, "SHARD_DOCUMENTS", 7)
    to_shards([source], tmp_path / "many", None)
    assert len(list((tmp_path / "many").glob("train*.bin"))) > 80
    one, many = (TOKENS.open(tmp_path / folder, "train") for folder in ("one", "many"))
    assert len(one) == len(many)
    assert one.count(1000) == many.count(1000) == (len(one) - 1) // 1000
    assert one.vocabulary == 257
    for number in range(one.count(1000)):
        window = many.window(number, 1000)
        assert window.dtype == np.int64
        assert window.tolist() == one.window(number, 1000).tolist()
        assert window[-1] == one[(number + 1) * 1000]
    with pytest.raises(IndexError):
        one.window(one.count(1000), 1000)


def test_a_file_of_four_bytes_a_token_and_of_modes_is_read(tmp_path: Path) -> None:
    rows = [[1, 2, 70_000], [], [5]]
    for split in ("train", "valid"):
        (tmp_path / f"{split}_text_document.bin").write_bytes(struct.pack("<4i", 1, 2, 70_000, 5))
        index = struct.pack("<9sQBQQ3i3q4q3b", b"MMIDIDX", 1, 4, 3, 4, 3, 0, 1, 0, 12, 12, 0, 1, 2, 3, 0, 0, 0)
        (tmp_path / f"{split}_text_document.idx").write_bytes(index)
    evaluation = TOKENS.open(tmp_path, "evaluation")
    assert evaluation.window(0, 3).tolist() == [token for row in rows for token in row]
    assert evaluation.vocabulary is None


def test_a_tokenizer_is_used_as_it_is(tmp_path: Path) -> None:
    library = importlib.import_module("tokenizers")
    vocabulary = {"<|endoftext|>": 0, "[UNK]": 1, "red": 2, "cat": 3}
    made = library.Tokenizer(library.models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = library.pre_tokenizers.Whitespace()
    made.enable_truncation(1)
    made.save(str(tmp_path / "tokenizer.json"))
    texts = [" ".join(["red"] * (number % 9) + ["cat"] * (number // 9) + ["x"]) for number in range(900)]
    to_shards([corpus(tmp_path / "a.jsonl", texts)], tmp_path / "out", tmp_path / "tokenizer.json")
    train = parsed(tmp_path / "out/train_00000_text_document.bin")
    val = parsed(tmp_path / "out/val_00000_text_document.bin")
    ids = {"red": 2, "cat": 3, "x": 1}
    assert sorted(train + val) == sorted([*(ids[word] for word in text.split()), 0] for text in texts)
    assert TOKENS.open(tmp_path / "out", "train").vocabulary == 4


def test_a_tokenizer_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = corpus(tmp_path / "a.jsonl", TEXTS)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Nothing"}}')
    with pytest.raises(DamagedDataError, match=r"not a tokenizer\.json"):
        to_shards([source], tmp_path / "out", tmp_path / "tokenizer.json")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InputError, match="next: pip install 'transformers>="):
        to_shards([source], tmp_path / "out", tmp_path / "tokenizer.json")


def test_nothing_is_left_of_a_conversion_that_fails(tmp_path: Path) -> None:
    source = corpus(tmp_path / "a.jsonl", TEXTS * 2)
    with source.open("a") as file:
        file.write("{}\n")
    with pytest.raises(DamagedDataError, match="line 1201"):
        to_shards([source], tmp_path / "out", None)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_target_in_use_and_too_little_text_are_refused(tmp_path: Path) -> None:
    TOKENS.make(tmp_path / "made", 1, 0)
    before = sorted((tmp_path / "made").iterdir())
    with pytest.raises(InputError, match="in use"):
        to_shards([corpus(tmp_path / "a.jsonl", TEXTS)], tmp_path / "made", None)
    assert sorted((tmp_path / "made").iterdir()) == before
    with pytest.raises(InputError, match="too little text"):
        to_shards([corpus(tmp_path / "b.jsonl", ["one"])], tmp_path / "out", None)
    with pytest.raises(InputError, match="is not a file"):
        to_shards([tmp_path], tmp_path / "out", None)


def test_half_a_surrogate_and_empty_lines_do_not_stop_a_conversion(tmp_path: Path) -> None:
    source = corpus(tmp_path / "a.jsonl", [*TEXTS, "", "\ud800"])
    with source.open("a") as file:
        file.write("\n\n")
    to_shards([source], tmp_path / "out", None)
    rows = [row for path in (tmp_path / "out").glob("*.bin") for row in parsed(path)]
    assert len(rows) == 601
    assert [ord("?"), 256] in rows


def test_made_text_is_learnt_fast(tmp_path: Path) -> None:
    TOKENS.make(tmp_path, 50, 0)
    train, evaluation = TOKENS.open(tmp_path, "train"), TOKENS.open(tmp_path, "evaluation")
    assert len(train) >= 50 * 200
    # What follows which three tokens: the smallest model there is.
    seen: dict[tuple[int, ...], dict[int, int]] = {}
    row = train.window(0, len(train) - 1).tolist()
    for place in range(3, len(row)):
        table = seen.setdefault(tuple(row[place - 3 : place]), {})
        table[row[place]] = table.get(row[place], 0) + 1
    row = evaluation.window(0, len(evaluation) - 1).tolist()
    loss = 0.0
    for place in range(3, len(row)):
        table = seen.get(tuple(row[place - 3 : place]), {})
        loss -= np.log((table.get(row[place], 0) + 0.01) / (sum(table.values()) + 2.57))
    assert np.exp(loss / (len(row) - 3)) < 2.5


# SQuAD.


def test_questions_ask_what_the_paragraph_says(tmp_path: Path) -> None:
    SQUAD.make(tmp_path, 30, 0)
    words = set((tmp_path / "vocab.txt").read_text().split())
    train = SQUAD.open(tmp_path, "train")
    for question in (train[number] for number in range(len(train))):
        (answer, start), *_ = question.answers
        thing = question.question.removeprefix("What colour is the ").removesuffix("?")
        assert f"The {thing} is {answer}." in question.paragraph
        assert question.paragraph[start : start + len(answer)] == answer
        assert set(re.findall(r"\w+|[.?]", f"{question.paragraph} {question.question}".lower())) <= words


def test_version_2_has_questions_without_answers(tmp_path: Path) -> None:
    SQUAD.make(tmp_path, 9, 0)
    plausible = [{"text": "red", "answer_start": 0}]

    def alter(whole: Any) -> None:
        whole["version"] = "v2.0"
        asked = whole["data"][0]["paragraphs"][0]["qas"]
        asked[1].update(is_impossible=True, answers=[], plausible_answers=plausible)
        asked[2]["answers"] *= 3

    change("train-v1.1.json", alter)(tmp_path)
    (tmp_path / "train-v1.1.json").rename(tmp_path / "train-v2.0.json")
    train = SQUAD.open(tmp_path, "train")
    assert train.version == "v2.0"
    assert [len(train[number].answers) for number in range(4)] == [1, 0, 3, 1]


def test_places_count_characters_and_not_bytes(tmp_path: Path) -> None:
    SQUAD.make(tmp_path, 3, 0)
    entry = {"id": "a", "question": "wo?", "answers": [{"text": "Köln \U0001f600", "answer_start": 9}]}
    whole = {
        "version": "1.1",
        "data": [{"title": "t", "paragraphs": [{"context": "é€ liegt Köln \U0001f600", "qas": [entry]}]}],
    }
    for ascii_only in (True, False):
        (tmp_path / "dev-v1.1.json").write_text(json.dumps(whole, ensure_ascii=ascii_only), encoding="utf-8")
        assert SQUAD.open(tmp_path, "evaluation")[0].answers == (("Köln \U0001f600", 9),)
