"""Choose what the section to submit shows, so that it keeps the page limit of its scheme; the rest is an appendix.

What the forms ask for stays longest: the hours, the scaling table and its plot. Errors always stay.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from steelyard.report.page import Chart, Prose, Section, Table
from steelyard.terminal.findings import by_code
from steelyard.terminal.text import sentence

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from steelyard.contracts.finding import Finding
    from steelyard.report.pack.model import Pack

    Parts = tuple[list[Section], list[Section]]

STEPS = (
    "plan-energy",
    "device-use",
    "machine-facts",
    "warnings",
    "base-performance",
    "words",
    "headings",
    "derivation",
)
"""What moves to the appendix, in this order: tables by name, warnings in full, words on the hours, headings."""
TOLD_FACTS = ("device", "accelerator", "framework", "precision", "batch per device", "driver", "host CPU", "nodes")
MERGED = ("performance", "use", "energy", "machine")
KEPT_WORDS = 1
# Estimate of the length without TeX, in points, on the safe side: a page of 720, a line of 80 letters and 12 points.
PAGE_PT, LINE_LETTERS, LINE_PT = 720.0, 80, 12.0
HEAD_PT, TABLE_PT, PICTURE_PT = 34.0, 52.0, 190.0
SAFETY = 1.15


def page_limit(pack: Pack) -> float | None:
    """Return the smallest page limit of the pack's schemes."""
    return min((file.scheme.page_limit for file in pack.schemes if file.scheme.page_limit), default=None)


def fitted(sections: Sequence[Section], limit: float | None, pages: Callable[[list[Section]], float]) -> Parts:
    """Return the sections to submit and those of the appendix: as few steps as needed to keep the limit."""
    made: Parts = (list(sections), [])
    for count in range(len(STEPS) + 1):
        made = _cut(sections, STEPS[:count])
        if limit is None or pages(made[0]) <= limit:
            break
    return made


def _cut(sections: Sequence[Section], steps: Sequence[str]) -> Parts:
    kept, moved = [], []
    for section in sections:
        stays: list[Any] = []
        leaves: list[Any] = []
        for block in section.blocks:
            short = _shortened(block, section, steps)
            if short is None:
                stays.append(block)
                continue
            stays += [short] if short.paragraphs else []
            # Words that stay are not repeated.
            rest = [text for text in getattr(block, "paragraphs", ()) if text not in short.paragraphs]
            leaves += [block] if isinstance(block, Table) else [Prose(tuple(rest))] if rest else []
        findings = section.findings
        told: tuple[Finding, ...] = ()
        if "warnings" in steps and section.findings:
            findings = tuple(finding for finding in section.findings if finding.severity == "error")
            told = tuple(finding for finding in section.findings if finding not in findings)
            names = ", ".join(f"{group.rule} ({group.code})" for group in by_code(told))
            stays += [Prose((f"Warnings, explained in the appendix: {names}.",))] if told else []
        kept.append(replace(section, blocks=tuple(stays), findings=findings))
        if leaves or told:
            moved.append(replace(section, blocks=tuple(leaves), findings=told))
    return (_merged(kept) if "headings" in steps else kept), moved


def _shortened(block: Any, section: Section, steps: Sequence[str]) -> Prose | None:
    """Return what replaces a block that moves to the appendix; None if it stays."""
    if isinstance(block, Table) and block.name in steps:
        facts = {row[0].text: row[1].text for row in block.rows} if block.name == "machine-facts" else {}
        told = "; ".join(f"{name} {facts[name]}" for name in TOLD_FACTS if name in facts)
        return Prose((sentence(told),) if told else ())
    if isinstance(block, Prose) and section.name == "device-hours" and "words" in steps:
        return Prose(block.paragraphs[:KEPT_WORDS])
    if isinstance(block, Prose) and section.name == "machine" and "machine-facts" in steps:
        # Where the full environment is.
        return Prose()
    return None


def _merged(sections: Sequence[Section]) -> list[Section]:
    """Put the short sections under one heading."""
    several = [section for section in sections if section.name in MERGED]
    if len(several) < 2:
        return list(sections)
    blocks: list[Any] = []
    for section in several:
        texts = [section.answer, *(text for block in section.blocks for text in getattr(block, "paragraphs", ()))]
        words = " ".join(text for text in texts if text)
        blocks.append(Prose((f"{section.title}: {words}",)))
        blocks += [block for block in section.blocks if not isinstance(block, Prose)]
    findings = tuple(finding for section in several for finding in section.findings)
    one = Section("performance", "Performance, devices and energy", "", "", tuple(blocks), findings)
    return [*(section for section in sections if section.name not in MERGED), one]


# -- length without TeX


def estimated_pages(sections: Sequence[Section]) -> float:
    """Estimate the pages of a section to submit, rather too many than too few."""
    total = 3 * HEAD_PT
    for section in sections:
        total += HEAD_PT + _lines(section.answer)
        total += sum(
            _lines(finding.message + finding.evidence + finding.fix) + 2 * LINE_PT for finding in section.findings
        )
        total += sum(map(_height, section.blocks))
    return SAFETY * total / PAGE_PT


def _lines(text: str) -> float:
    return math.ceil(len(text) / LINE_LETTERS) * LINE_PT + LINE_PT / 2 if text else 0.0


def _height(block: Any) -> float:
    if isinstance(block, Prose):
        return sum(map(_lines, block.paragraphs))
    if isinstance(block, Chart):
        return PICTURE_PT
    rows = [max(1, math.ceil(sum(len(cell.text) for cell in row) / LINE_LETTERS)) for row in block.rows]
    return TABLE_PT + LINE_PT * sum(rows) + sum(map(_lines, block.notes))
