"""Claim rules: printed figures that do not follow from the rows (SY520, SY521)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.rules.claim import ClaimRule
from steelyard.rules.rule import Example

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.finding import Finding
    from steelyard.rules.claim import Asserted

TIMES = "accelerator,devices,model,metric,value,unit\n"


class BaseDiffers(ClaimRule):
    """Percentages of one document with different bases."""

    code = "SY520"
    name = "base-differs"
    severity = "error"
    verdict = "base differs"
    why = (
        "A time that falls from 10 s to 8 s is 20 % shorter, and the rate is 25 % higher. Both get called `faster`. "
        "If a document mixes the two, its percentages cannot be compared with each other."
    )
    detected = (
        "The base is the number that was divided by. The wording of the claim sets it (`less time` means: of the "
        "longer time); otherwise the base of most other percentages in the document is expected. The printed "
        "percentage does not follow with that base, but does with the other one. Rounding of the printed digits is "
        "taken into account."
    )
    bad = Example(
        TIMES + "X,1,net,train_time,100.0,s\nY,1,net,train_time,80.0,s\n"
        "---\n"
        'id = "1"\nkind = "percent"\nrelation = "less time"\npublished = "25 %"\nmetric = "train_time"\n'
        'a = { accelerator = "Y" }\nb = { accelerator = "X" }\n',
        "Y takes 20 s less than X's 100 s, which is 20 %. The 25 % were divided by the shorter time.",
    )
    good = Example(
        TIMES + "X,1,net,train_time,100.0,s\nY,1,net,train_time,80.0,s\n"
        "---\n"
        'id = "1"\nkind = "percent"\nrelation = "less time"\npublished = "20 %"\nmetric = "train_time"\n'
        'a = { accelerator = "Y" }\nb = { accelerator = "X" }\n',
        "20 s of 100 s is 20 % less time.",
    )
    fix = "use the same base for every percentage in the document, and state it"

    def check(self, asserted: Asserted) -> Iterator[Finding]:
        """Yield one finding with both calculations."""
        if asserted.asserts != "arithmetic" or asserted.follows() or asserted.published is None:
            return
        matching = [reading for reading in asserted.other if asserted.given_by(reading)]
        if matching:
            yield self.found(
                f"{asserted.printed} is relative to {matching[0].base}; {asserted.convention}",
                place=asserted.place,
                evidence="; ".join(reading.text for reading in (*asserted.meant, *matching)),
            )


class DoesNotFollow(ClaimRule):
    """A claim that contradicts the document's own figures."""

    code = "SY521"
    name = "does-not-follow"
    severity = "error"
    verdict = "does not follow"
    why = (
        "A number that does not follow from its rows is a mistake, comes from rows that are not shown, or means "
        "something other than it says. Readers will quote it anyway."
    )
    detected = (
        "The figure is recomputed from the printed rows, with every base that a percentage can have; none gives the "
        "printed figure. A claim without a figure (faster, best, almost linear, rises) is compared with the rows in "
        "the same way. Rounding of the printed digits is taken into account."
    )
    bad = Example(
        TIMES + "X,1,net,throughput,1000.0,images/s\nX,4,net,throughput,3100.0,images/s\n"
        "---\n"
        'id = "1"\nkind = "efficiency"\npublished = "95 %"\nmetric = "throughput"\n'
        "a = { devices = 4 }\nb = { devices = 1 }\n",
        "3.1 times the rate on 4 devices is an efficiency of 78 %, not 95 %.",
    )
    good = Example(
        TIMES + "X,1,net,throughput,1000.0,images/s\nX,4,net,throughput,3100.0,images/s\n"
        "---\n"
        'id = "1"\nkind = "efficiency"\npublished = "78 %"\nmetric = "throughput"\n'
        "a = { devices = 4 }\nb = { devices = 1 }\n",
        "3.1 times the rate on 4 devices is 77.5 %, printed as 78 %.",
    )
    fix = "correct the figure, or show the rows it was computed from"

    def check(self, asserted: Asserted) -> Iterator[Finding]:
        """Yield one finding with the calculations that were tried."""
        readings = (*asserted.meant, *asserted.other)
        if asserted.asserts not in ("arithmetic", "same work"):
            return
        if asserted.faults:
            faults = "; ".join(asserted.faults)
            yield self.found(f"the rows have {faults}", place=asserted.place, evidence=faults)
        elif asserted.published and not any(map(asserted.given_by, readings)):
            words = [*(reading.text for reading in readings), *([asserted.hint] if asserted.hint else [])]
            given = " or ".join(dict.fromkeys(reading.result for reading in readings))
            hint = f": {asserted.hint}" if asserted.hint else ""
            yield self.found(
                f"the rows give {given}, not {asserted.printed}{hint}", place=asserted.place, evidence="; ".join(words)
            )
