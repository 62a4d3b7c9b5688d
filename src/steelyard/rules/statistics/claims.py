"""Claim rule: differences that may be noise (SY210)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.rules.claim import ClaimRule
from steelyard.rules.rule import Example

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.finding import Finding
    from steelyard.rules.claim import Asserted


class NotShown(ClaimRule):
    """A difference that may be noise."""

    code = "SY210"
    name = "not-shown"
    severity = "error"
    verdict = "not shown"
    why = (
        "Two identical runs differ; without repeats it is not known by how much. So one run per side shows neither "
        "that the sides differ nor that they are equal."
    )
    detected = (
        "Rows with identical settings are repeats. With at least three repeats on both sides, the 95 % CI of the ratio "
        "must exclude 1; for sides claimed to be equal, it must lie within the stated margin. A claim that asserts "
        "statistics needs these repeats. A difference attributed to a cause may have fewer: it must exceed the largest "
        "spread between repeats of either side or, if these have none, of any row in the document. A claim that could "
        "not be checked at all, because a power limit or other rows are missing, is not shown either."
    )
    bad = Example(
        "precision,metric,value,unit\nfp16,throughput,1051,images/s\nfp16,throughput,991,images/s\n"
        "bf16,throughput,1001,images/s\n"
        "---\n"
        'id = "1"\nkind = "faster"\nasserts = ["attribution"]\nfactor = "precision"\nmetric = "throughput"\n'
        'a = { precision = "fp16", mean = true }\nb = { precision = "bf16" }\n',
        "A gain of 2 % is attributed to fp16, but two runs with fp16 differ by 6 %.",
    )
    good = Example(
        "precision,metric,value,unit\nfp16,throughput,1500.0,images/s\nbf16,throughput,1000.0,images/s\n"
        "bf16,throughput,1010.0,images/s\n"
        "---\n"
        'id = "1"\nkind = "faster"\nasserts = ["attribution"]\nfactor = "precision"\nmetric = "throughput"\n'
        'a = { precision = "fp16" }\nb = { precision = "bf16", mean = true }\n',
        "A gain of 50 % is far more than the 1 % between two runs with bf16.",
    )
    fix = "repeat both sides at least three times, and report the spread"

    def check(self, asserted: Asserted) -> Iterator[Finding]:
        """Yield one finding if the repeats do not show the difference."""
        noise = asserted.noise
        if noise is not None and not noise.shown:
            yield self.found(noise.text, place=asserted.place, evidence=noise.text)
