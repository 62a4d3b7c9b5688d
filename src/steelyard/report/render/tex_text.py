"""Escape untrusted text as LaTeX: ASCII, with commands from a short list.

Characters that TeX cannot print become their code point. The commands need only LaTeX itself, in every font encoding,
so that a table can be pasted into any paper.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache

from steelyard.report.render.plain import one_line

_ACCENTS = {
    "\u0300": "`",
    "\u0301": "'",
    "\u0302": "^",
    "\u0303": "~",
    "\u0304": "=",
    "\u0306": "u",
    "\u0307": ".",
    "\u0308": '"',
    "\u030a": "r",
    "\u030b": "H",
    "\u030c": "v",
    "\u0327": "c",
}
_MATHS = {
    "\u00b5": r"\mu", "\u00d7": r"\times", "\u00f7": r"\div", "\u00b1": r"\pm", "\u00b0": r"^\circ", "\u00b7": r"\cdot",
    "\u00b9": "^1", "\u00b2": "^2", "\u00b3": "^3", "\u00ac": r"\neg", "\u2190": r"\leftarrow",
    "\u2192": r"\rightarrow",
    "\u2191": r"\uparrow", "\u2193": r"\downarrow", "\u2194": r"\leftrightarrow", "\u21d2": r"\Rightarrow",
    "\u2212": "-", "\u2215": "/", "\u221a": r"\surd", "\u221d": r"\propto", "\u221e": r"\infty", "\u2211": r"\sum",
    "\u220f": r"\prod", "\u2208": r"\in", "\u2248": r"\approx", "\u2260": r"\neq", "\u2261": r"\equiv",
    "\u2264": r"\leq",
    "\u2265": r"\geq", "\u226a": r"\ll", "\u226b": r"\gg", "\u2022": r"\bullet", "\u2032": r"\prime",
    "\u03b1": r"\alpha", "\u03b2": r"\beta", "\u03b3": r"\gamma", "\u03b4": r"\delta", "\u03b5": r"\varepsilon",
    "\u03b6": r"\zeta", "\u03b7": r"\eta", "\u03b8": r"\theta", "\u03b9": r"\iota", "\u03ba": r"\kappa",
    "\u03bb": r"\lambda", "\u03bc": r"\mu", "\u03bd": r"\nu", "\u03be": r"\xi", "\u03c0": r"\pi", "\u03c1": r"\rho",
    "\u03c3": r"\sigma", "\u03c4": r"\tau", "\u03c5": r"\upsilon", "\u03c6": r"\varphi", "\u03c7": r"\chi",
    "\u03c8": r"\psi", "\u03c9": r"\omega", "\u0393": r"\Gamma", "\u0394": r"\Delta", "\u0398": r"\Theta",
    "\u039b": r"\Lambda", "\u039e": r"\Xi", "\u03a0": r"\Pi", "\u03a3": r"\Sigma", "\u03a6": r"\Phi", "\u03a8": r"\Psi",
    "\u03a9": r"\Omega",
}  # fmt: skip
_PLAIN = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # Could be read as an argument or a star form after a command, or as a shorthand of babel.
    "[": "{[}", "]": "{]}", "*": "{*}", '"': r"{\char34}",
    "\u00a0": "~", "\u202f": r"\,", "\u2009": r"\,", "\u2010": "-", "\u2011": "-", "\u2013": r"\textendash{}",
    "\u2014": r"\textemdash{}", "\u2018": "`{}", "\u2019": "'{}", "\u201c": "``{}", "\u201d": "''{}",
    "\u2026": r"\dots{}", "\u00a3": r"\pounds{}", "\u00a7": r"\S{}", "\u00b6": r"\P{}", "\u00a9": r"\copyright{}",
    "\u00df": r"\ss{}", "\u00e6": r"\ae{}", "\u00c6": r"\AE{}", "\u00f8": r"\o{}", "\u00d8": r"\O{}",
    "\u0153": r"\oe{}", "\u0152": r"\OE{}", "\u0142": r"\l{}", "\u0141": r"\L{}", "\u0131": r"\i{}", "\u20ac": "EUR",
    "\u2030": r"0/00", "\u25cf": r"\ensuremath{\bullet}",
}  # fmt: skip
# Pairs that TeX fonts would merge into one character: the dashes of an option must stay two.
_LIGATURES = frozenset(("--", "''", "``", ",,", "!`", "?`"))
LONG_WORD = 30
"""A line may break after this many letters: longer words are ids and paths."""
BREAK = r"\allowbreak{}"
_UNITS = (
    r"%(?: CI)?|[kMGT]?(?:W|Wh|J|B|Hz)|[kMGT]i?B|[mnu\u00b5\u03bc]?s|min|h|days?|bytes|(?:device|node|core|GPU)-hours?|"
    r"[a-z]+/(?:s|J|Wh)|devices?|jobs?|nodes?|samples?|trainings?|times"
)
# A number, or an interval in brackets, and its unit.
_QUANTITY = re.compile(rf"(?<![\w.])[\d][\d,.]{{0,20}}(?:e[+-]?\d{{1,3}})?\]? (?:{_UNITS})(?![\w/-])")


def tex(words: str, *, breakable: bool = False) -> str:
    """Escape a text; `breakable`: lines may also break after the punctuation in paths and names."""
    return tex_line(one_line(words), breakable=breakable)


def unbroken(text: str) -> list[str]:
    """Return the parts of a text between which a line may break: words, and numbers with their units."""
    return _QUANTITY.sub(lambda match: match[0].replace(" ", "\u00a0"), text).split(" ")


def tex_line(line: str, *, breakable: bool = False) -> str:
    """Escape one line of visible characters, keeping its spaces. A number and its unit stay on one line."""
    made, since = [], 0
    for match in _QUANTITY.finditer(line):
        made.append(_words(line[since : match.start()], breakable=breakable))
        made.append(rf"\mbox{{{_words(match[0], breakable=False)}}}")
        since = match.end()
    return "".join(made) + _words(line[since:], breakable=breakable)


def _words(line: str, *, breakable: bool) -> str:
    made, since = [], 0
    for place, character in enumerate(line):
        following = line[place + 1 : place + 2]
        made.append(_character(character))
        if character + following in _LIGATURES:
            made.append("{}")
        since = 0 if character == " " else since + 1
        # Not inside a number.
        inside = character == "." and following.isdigit() and line[place - 1 : place].isdigit()
        joint = character in "/_-.=" and not inside
        if breakable and (following.isalnum() if joint else since >= LONG_WORD and following > " "):
            made.append(BREAK)
            since = 0
    return "".join(made)


@cache
def _character(character: str) -> str:
    if character in _PLAIN:
        return _PLAIN[character]
    if character in _MATHS:
        return rf"\ensuremath{{{_MATHS[character]}}}"
    if " " <= character <= "~":
        return character
    # A Latin letter with one accent.
    parts = unicodedata.normalize("NFD", character)
    base, mark = parts[0], parts[1:]
    accented = ""
    if mark in _ACCENTS and base.isascii() and base.isalpha():
        # An accent above i or j replaces the dot.
        dotless = base in "ij" and mark != "\u0327"
        accented = f"\\{_ACCENTS[mark]}{{{chr(92) if dotless else ''}{base}}}"
    if accented:
        return accented
    simple = unicodedata.normalize("NFKC", character)
    if simple != character and simple.isprintable():
        return "".join(_character(part) for part in simple)
    return f"{{[}}U+{ord(character):04X}{{]}}"
