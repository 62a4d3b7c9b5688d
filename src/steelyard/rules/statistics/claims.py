"""The rule on claims that repeats do not bear out (SY210). Knows what repeats say of chance, not how they say it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.rules.claim import ClaimRule
from steelyard.rules.rule import Example

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import Finding
    from steelyard.rules.claim import Asserted


class NotShown(ClaimRule):
    """A difference that may be chance."""

    code = "SY210"
    name = "not-shown"
    severity = "error"
    verdict = "not shown"
    why = (
        "Two runs of the same thing differ. Without repeats nobody knows by how much. So a difference between two "
        "single runs does not show that the two are unlike, and no difference does not show that they are alike."
    )
    detected = (
        "Rows whose settings are all the same are repeats. With three repeats or more on both sides the 95 % interval "
        "of the ratio must leave out 1; of two sides that are said to be equal, it must stay inside the stated margin. "
        "A claim that asserts statistics needs these repeats. A difference that is credited to a cause may do with "
        "fewer: it must exceed the largest spread between repeats of either side, or, where these have none, of any "
        "row of the document. What could not be checked at all, for want of a power limit or of other rows, is not "
        "shown either."
    )
    bad = Example(
        "precision,metric,value,unit\nfp16,throughput,1051,images/s\nfp16,throughput,991,images/s\n"
        "bf16,throughput,1001,images/s\n"
        "---\n"
        'id = "1"\nkind = "faster"\nasserts = ["attribution"]\nfactor = "precision"\nmetric = "throughput"\n'
        'a = { precision = "fp16", mean = true }\nb = { precision = "bf16" }\n',
        "A gain of 2 % is credited to fp16, but two runs with fp16 lie 6 % apart.",
    )
    good = Example(
        "precision,metric,value,unit\nfp16,throughput,1500.0,images/s\nbf16,throughput,1000.0,images/s\n"
        "bf16,throughput,1010.0,images/s\n"
        "---\n"
        'id = "1"\nkind = "faster"\nasserts = ["attribution"]\nfactor = "precision"\nmetric = "throughput"\n'
        'a = { precision = "fp16" }\nb = { precision = "bf16", mean = true }\n',
        "A gain of 50 % is far beyond the 1 % between two runs with bf16.",
    )
    fix = "repeat both sides at least three times and print the spread"

    def check(self, asserted: Asserted) -> Iterator[Finding]:
        """One finding with what the repeats say."""
        noise = asserted.noise
        if noise is not None and not noise.shown:
            yield self.found(noise.words, place=asserted.place, evidence=noise.words)
