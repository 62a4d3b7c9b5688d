"""SQuAD: questions about paragraphs, from the published files."""

from __future__ import annotations

import json
from array import array
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from steelyard.data.form import Question, read_whole, shuffled
from steelyard.data.json_stream import JsonLimits, TextTable, entries
from steelyard.errors import DamagedDataError, InputError, Problem

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from steelyard.data.form import Kind, Split

BEGINNINGS = {"train": "train", "evaluation": "dev"}
# The versions, and the values of `version` in their files.
VERSIONS = {"v1.1": ("1.1", "v1.1"), "v2.0": ("2.0", "v2.0")}
# The articles of the real files have 100,000 characters on average, and the largest file 42 MB.
LIMITS = JsonLimits(file_bytes=256 << 20, element_chars=2 << 20)
QUESTION_LIMIT = 1_000_000
ID_CHARS = 100
VOCAB = "vocab.txt"
VOCAB_BYTES = 16 << 20
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class SquadExamples:
    """One split: questions in the order of the file. Texts are kept as UTF-8, one copy of each paragraph."""

    classes: int | None = None

    def __init__(self, root: Path, split: Split) -> None:
        self._path, self.version = _which(root, BEGINNINGS[split])
        self.vocab = root / VOCAB
        """The word pieces of the model's tokenizer."""
        _check_vocab(self.vocab)
        self._texts = TextTable()
        # By question: the texts of its id, its paragraph and itself, and how many answers come before its own.
        self._questions = array("q")
        # By answer: its text, and the character at which it begins.
        self._answers = array("q")
        self._seen: set[str] = set()
        self._read()
        self._seen.clear()

    def __len__(self) -> int:
        return len(self._questions) // 4

    def __getitem__(self, number: int) -> Question:
        if not 0 <= number < len(self):
            raise IndexError(number)
        name, paragraph, question, first = self._questions[4 * number : 4 * number + 4]
        last = self._questions[4 * number + 7] if number + 1 < len(self) else len(self._answers) // 2
        rows = (self._answers[2 * row : 2 * row + 2] for row in range(first, last))
        answers = tuple((self._texts[text], start) for text, start in rows)
        return Question(self._texts[name], self._texts[paragraph], self._texts[question], answers)

    def order(self, source: random.Random) -> Sequence[int]:
        """All questions, shuffled."""
        return shuffled(len(self), source)

    def files(self) -> Iterable[Path]:
        """The questions and the word pieces."""
        return (self._path, self.vocab)

    def _read(self) -> None:
        version = None
        for name, element in entries(self._path, ("data",), LIMITS):
            if name == "version":
                version = element
            elif name == "data":
                self._article(element)
        if version not in VERSIONS[self.version]:
            told = "there is no version" if version is None else f"the version is {version!s:.40}"
            self._fail(f"{told}, in a file named {self.version}")
        if not len(self):
            self._fail("no questions in data")

    def _article(self, article: Any) -> None:
        for paragraph in self._list(article, "paragraphs", "an article"):
            context = self._text(paragraph, "context", "a paragraph")
            place = self._texts.append(context)
            for entry in self._list(paragraph, "qas", "a paragraph"):
                self._question(entry, context, place)

    def _question(self, entry: Any, context: str, place: int) -> None:
        name = self._text(entry, "id", "a question")
        if not 0 < len(name) <= ID_CHARS:
            self._fail(f"a question has an id of {len(name)} characters; valid: 1 to {ID_CHARS}")
        what = f"question {name}"
        if name in self._seen:
            self._fail(f"{what} is there twice")
        if len(self._seen) == QUESTION_LIMIT:
            self._fail(f"more than {QUESTION_LIMIT:,} questions")
        self._seen.add(name)
        question = self._text(entry, "question", what)
        impossible = entry.get("is_impossible", False)
        if type(impossible) is not bool:
            self._fail(f"{what} has an is_impossible that is neither true nor false")
        # What a question that cannot be answered has under `answers` is not one.
        answers = [] if impossible else self._list(entry, "answers", what)
        if not answers and not impossible:
            self._fail(f"{what} has no answer and is not marked is_impossible")
        row = (self._texts.append(name), place, self._texts.append(question), len(self._answers) // 2)
        self._questions.extend(row)
        for answer in answers:
            text = self._text(answer, "text", what)
            start = answer.get("answer_start")
            # A negative start would count from the end.
            if not text or type(start) is not int or start < 0 or not context.startswith(text, start):
                self._fail(f'{what}: the answer "{text[:60]}" is not at character {start!s:.30} of its paragraph')
            self._answers.extend((self._texts.append(text), start))

    def _list(self, entry: Any, key: str, what: str) -> list[Any]:
        items = entry.get(key) if isinstance(entry, dict) else None
        if not isinstance(items, list):
            self._fail(f"{what} has no list of {key}")
        return items

    def _text(self, entry: Any, key: str, what: str) -> str:
        text = entry.get(key) if isinstance(entry, dict) else None
        if not isinstance(text, str):
            self._fail(f"{what} has no text as {key}")
        return text

    def _fail(self, what: str) -> NoReturn:
        raise DamagedDataError(f"{self._path}: {what}")


def _which(root: Path, beginning: str) -> tuple[Path, str]:
    """The one file of the split, and its version."""
    there = [version for version in VERSIONS if (root / f"{beginning}-{version}.json").exists()]
    if len(there) == 1:
        return root / f"{beginning}-{there[0]}.json", there[0]
    names = " or ".join(f"{beginning}-{version}.json" for version in VERSIONS)
    problem = Problem(str(root), "there are both" if there else "there is none", f"one of {names}")
    raise InputError("SQuAD: which questions?", problems=(problem,), next_step="steelyard data show squad")


def _check_vocab(path: Path) -> None:
    if not path.exists():
        raise InputError(
            f"SQuAD: {path} is missing", next_step="take the vocab.txt of the model, such as bert-base-uncased"
        )
    try:
        pieces = read_whole(path, VOCAB_BYTES).decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DamagedDataError(f"{path}: not UTF-8 at byte {error.start}") from None
    if missing := set(SPECIAL) - set(pieces):
        raise DamagedDataError(f"{path}: no line {min(missing)}; it is not a vocabulary of BERT")


COLOURS = ("red", "blue", "green", "yellow", "black", "white", "grey", "brown")
THINGS = ("ball", "car", "house", "door", "chair", "hat", "boat", "lamp")
QUESTIONS_A_PARAGRAPH = 3


def _paragraph(source: np.random.Generator, first: int, count: int) -> dict[str, Any]:
    things = [THINGS[place] for place in source.permutation(len(THINGS))[:QUESTIONS_A_PARAGRAPH]]
    context, answers = "", []
    for thing in things:
        colour = COLOURS[int(source.integers(len(COLOURS)))]
        context += f"The {thing} is "
        answers.append((thing, colour, len(context)))
        context += f"{colour}. "
    questions = [
        {
            "id": f"made{first + number:08d}",
            "question": f"What colour is the {thing}?",
            "answers": [{"text": colour, "answer_start": start}],
        }
        for number, (thing, colour, start) in enumerate(answers[:count])
    ]
    return {"context": context.rstrip(), "qas": questions}


def _make_split(path: Path, samples: int, source: np.random.Generator) -> None:
    paragraphs = [
        _paragraph(source, first, min(QUESTIONS_A_PARAGRAPH, samples - first))
        for first in range(0, samples, QUESTIONS_A_PARAGRAPH)
    ]
    # Some paragraphs an article, as the real files have it.
    articles = [
        {"title": f"Colours {first}", "paragraphs": paragraphs[first : first + 20]}
        for first in range(0, len(paragraphs), 20)
    ]
    path.write_text(json.dumps({"data": articles, "version": "1.1"}), encoding="utf-8")


def _vocabulary() -> list[str]:
    signs = [chr(code) for code in range(ord("a"), ord("z") + 1)] + [str(digit) for digit in range(10)]
    words = ["the", "is", "what", "colour", *COLOURS, *THINGS]
    return [*SPECIAL, *".,?!'", *signs, *(f"##{sign}" for sign in signs), *words]


class _Squad:
    name = "squad"
    kind: Kind = "question-answer"
    needs: tuple[str, ...] = ()
    title = "SQuAD: questions on paragraphs of Wikipedia, 87,599 for training and 10,570 for evaluation (v1.1)"
    layout = (
        "train-v1.1.json, or train-v2.0.json\n"
        "dev-v1.1.json, or dev-v2.0.json\n"
        "vocab.txt, the word pieces of the model's tokenizer, one per line"
    )
    source = (
        "https://rajpurkar.github.io/SQuAD-explorer: 30 MB and 5 MB (v1.1), 42 MB and 4 MB (v2.0), under CC BY-SA 4.0. "
        "vocab.txt comes with the model, such as huggingface.co/google-bert/bert-base-uncased (Apache 2.0)."
    )

    def open(self, root: Path, split: Split) -> SquadExamples:
        """A split; reads and checks all of its questions."""
        return SquadExamples(root, split)

    def make(self, root: Path, samples: int, seed: int) -> None:
        """Write questions about the colours of things in made paragraphs; v1.1, with a vocabulary of their words."""
        source = np.random.default_rng(seed)
        root.mkdir(parents=True, exist_ok=True)
        _make_split(root / "train-v1.1.json", max(1, samples), source)
        _make_split(root / "dev-v1.1.json", max(1, samples // 4), source)
        (root / VOCAB).write_text("\n".join(_vocabulary()) + "\n", encoding="utf-8")


SQUAD = _Squad()
