"""Turn a sentence about a table into a claim: a few usual forms, and nothing is guessed.

Every word must be understood: as a figure, a value of the table, a number of devices, a word of a form, or a word that
changes nothing. Otherwise the sentence is refused, so that it is never judged as something that it does not say. It is
untrusted text: it is short, and read word by word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.audit.claims import Claims, parse_claim
from steelyard.audit.judge import judge
from steelyard.audit.sentences.forms import make
from steelyard.audit.sentences.rows import AmbiguousError, NotUnderstoodError, quoted
from steelyard.audit.sentences.words import FORM, SILENT, Names, split
from steelyard.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.audit.claims import Claim
    from steelyard.audit.judge import Judgement
    from steelyard.rules.table.row import RowTable

MAX_SENTENCE = 300
MAX_SENTENCES = 50
SHOWN = 10
FORMS = (
    "A is 3.2x faster than B on 4 GPUs",
    "A is 20 % slower than B",
    "3.2x speed-up of A over B",
    "A takes 40 % less time than B",
    "A reduces training time by 40 %",
    "4.12x on 4 GPUs",
    "92 % efficiency on 64 GPUs",
    "scales linearly to 16 GPUs",
    "1,039 tokens/s per GPU on 64 GPUs",
    "A is faster than B",
)
"""Forms that are understood. A and B are values in the table; any of its values may be added to say which rows."""


def judge_sentences(sentences: Sequence[str], table: RowTable) -> list[Judgement]:
    """Judge sentences about a table; raise InputError with all sentences that are not understood."""
    if len(sentences) > MAX_SENTENCES:
        raise InputError(f"{len(sentences)} claims; at most {MAX_SENTENCES} are allowed")
    names = Names(table)
    claims: list[Claim] = []
    problems: list[Problem] = []
    forms: tuple[Problem, ...] = ()
    for number, text in enumerate(sentences, 1):
        try:
            claims.append(read_sentence(text, table, f"claim-{number}", names))
        except NotUnderstoodError as error:
            problems.append(Problem(f"--claim {quoted(text)}", str(error)))
            if not isinstance(error, AmbiguousError):
                forms = tuple(Problem("a form that can be read", form) for form in FORMS)
    if problems:
        what = f"{len(problems)} of {len(sentences)} claims cannot be read"
        step = "write each in one of these forms" if forms else "add values of the table until one row is left"
        raise InputError(what, problems=(*problems[:SHOWN], *forms), next_step=f"{step}, or as data: docs/claims.md")
    return judge(Claims("--claim", "", {table.name: table}, tuple(claims)))


def read_sentence(text: str, table: RowTable, name: str, names: Names | None = None) -> Claim:
    """Return the claim that a sentence makes about a table; raise NotUnderstoodError if it is in none of the forms."""
    if len(text) > MAX_SENTENCE:
        raise NotUnderstoodError(f"{len(text):,} characters; at most {MAX_SENTENCE}")
    sentence = split(text, names or Names(table))
    unknown = list(dict.fromkeys(sorted(sentence.words - FORM - SILENT, key=text.casefold().find)))
    if unknown:
        words = ", ".join(map(quoted, unknown[:5]))
        raise NotUnderstoodError(f"{words}: neither in the table nor a word of a form")
    if len(sentence.figures()) > 1:
        raise NotUnderstoodError(f"{len(sentence.figures())} figures; write one claim per figure")
    entry = make(sentence, table)
    return parse_claim({"id": name, "text": text, **entry}, "--claim")
