"""Hostile texts in every place of a report have no effect, by readers of each format; no browser is needed."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hostile
from sample_page import poisoned, small_page
from steelyard.report.render.html import html
from steelyard.report.render.markdown import markdown

SMALL = small_page()
PIECES = st.sampled_from(hostile.TEXTS).map(lambda words: words[:30]) | st.text(max_size=8)


def test_the_checks_see_an_attack() -> None:
    assert hostile.elements("<p>x") != hostile.elements("<p><b>x")
    assert hostile.elements("<a href=javascript:1>x") != hostile.elements("<a href=#1>x")
    assert hostile.formulas("a,=1\n") == ["=1"]
    assert hostile.formulas("a,-1\n") == []
    assert hostile.formulas('a,"b;=1"\n') != []
    assert hostile.foreign_commands(r"\input{x}") == ["input"]
    assert hostile.foreign_commands("}{") == ["braces do not match"]


def without_code(text: str) -> str:
    return re.sub("<pre>.*?</pre>", "", text, flags=re.DOTALL)


def check(words: str) -> None:
    assert [form for form, wrong in hostile.effects(SMALL, words).items() if wrong] == []
    bad, good = poisoned(SMALL, words), poisoned(SMALL, hostile.harmless(words))
    html(bad, charts=False).encode()
    text = markdown(bad)
    text.encode()
    # No text begins a line of its own, but for code, which keeps its lines.
    assert without_code(text).count("\n") == without_code(markdown(good)).count("\n")
    for mark in ("<script", "<img", "{{", "{%"):
        assert mark not in text
    assert re.search(r"(?<!\\)\]\(", without_code(text)) is None


@pytest.mark.parametrize("words", hostile.TEXTS, ids=range(len(hostile.TEXTS)))
def test_hostile_texts_are_inert(words: str) -> None:
    check(words)


@settings(max_examples=20)
@given(st.lists(PIECES, min_size=1, max_size=6).map("".join))
def test_texts_that_nobody_thought_of_are_inert(words: str) -> None:
    check(words.strip() or "x")
