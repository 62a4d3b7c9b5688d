"""Rules on printed figures that the rows do not give (SY520, SY521). Knows the sums that were tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.rules.claim import ClaimRule
from steelyard.rules.rule import Example

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import Finding
    from steelyard.rules.claim import Asserted

TIMES = "accelerator,devices,model,metric,value,unit\n"


class BaseDiffers(ClaimRule):
    """Percentages of one document that were divided by different things."""

    code = "SY520"
    name = "base-differs"
    severity = "error"
    verdict = "base differs"
    why = (
        "From 10 s to 8 s, 20 % of the time is saved, and 25 % more work is done in a second. Both are called faster. "
        "In a document that mixes the two, one pair of machines looks further apart than another although it is not."
    )
    detected = (
        "The base is what was divided by. It is what the claim says (less time: of the longer time), or else what most "
        "other percentages of the document were divided by. The printed percentage does not follow with that base, but "
        "it does with the other one. The rounding of all printed digits is allowed for."
    )
    bad = Example(
        TIMES + "X,1,net,train_time,100.0,s\nY,1,net,train_time,80.0,s\n"
        "---\n"
        'id = "1"\nkind = "percent"\nrelation = "less time"\npublished = "25 %"\nmetric = "train_time"\n'
        'a = { accelerator = "Y" }\nb = { accelerator = "X" }\n',
        "Y needs 20 s less than the 100 s of X: 20 %. 25 % comes from dividing by the shorter time.",
    )
    good = Example(
        TIMES + "X,1,net,train_time,100.0,s\nY,1,net,train_time,80.0,s\n"
        "---\n"
        'id = "1"\nkind = "percent"\nrelation = "less time"\npublished = "20 %"\nmetric = "train_time"\n'
        'a = { accelerator = "Y" }\nb = { accelerator = "X" }\n',
        "20 s of 100 s are 20 % less time.",
    )
    fix = "divide every percentage of a document by the same side, and say by which"

    def check(self, asserted: Asserted) -> Iterator[Finding]:
        """One finding with both sums."""
        if asserted.asserts != "arithmetic" or asserted.follows() or asserted.published is None:
            return
        matching = [reading for reading in asserted.other if asserted.given_by(reading)]
        if matching:
            yield self.found(
                f"{asserted.printed} is a share of {matching[0].base}; {asserted.convention}",
                place=asserted.place,
                evidence="; ".join(reading.words for reading in (*asserted.meant, *matching)),
            )


class DoesNotFollow(ClaimRule):
    """A statement that the document's own figures contradict."""

    code = "SY521"
    name = "does-not-follow"
    severity = "error"
    verdict = "does not follow"
    why = (
        "A number that cannot be worked out from the rows it speaks of is a slip, comes from rows that are not shown, "
        "or means something else than it says. Readers repeat it all the same."
    )
    detected = (
        "The figure is worked out again from the printed rows, by every base that a percentage may have; none gives "
        "what is printed. A claim without a figure (faster, best, almost linear, rises) is held against the rows in "
        "the same way. The rounding of all printed digits is allowed for."
    )
    bad = Example(
        TIMES + "X,1,net,throughput,1000.0,images/s\nX,4,net,throughput,3100.0,images/s\n"
        "---\n"
        'id = "1"\nkind = "efficiency"\npublished = "95 %"\nmetric = "throughput"\n'
        "a = { devices = 4 }\nb = { devices = 1 }\n",
        "3.1 times the rate on 4 devices is an efficiency of 78 %.",
    )
    good = Example(
        TIMES + "X,1,net,throughput,1000.0,images/s\nX,4,net,throughput,3100.0,images/s\n"
        "---\n"
        'id = "1"\nkind = "efficiency"\npublished = "78 %"\nmetric = "throughput"\n'
        "a = { devices = 4 }\nb = { devices = 1 }\n",
        "3.1 times the rate on 4 devices is 77.5 %, printed as 78 %.",
    )
    fix = "print what the rows give, or the rows that give what is printed"

    def check(self, asserted: Asserted) -> Iterator[Finding]:
        """One finding with the sums that were tried."""
        readings = (*asserted.meant, *asserted.other)
        if asserted.asserts not in ("arithmetic", "same work"):
            return
        if asserted.faults:
            faults = "; ".join(asserted.faults)
            yield self.found(f"the rows have {faults}", place=asserted.place, evidence=faults)
        elif asserted.published and not any(map(asserted.given_by, readings)):
            words = [*(reading.words for reading in readings), *([asserted.hint] if asserted.hint else [])]
            given = " or ".join(dict.fromkeys(reading.result for reading in readings))
            hint = f": {asserted.hint}" if asserted.hint else ""
            yield self.found(
                f"the rows give {given}, not {asserted.printed}{hint}", place=asserted.place, evidence="; ".join(words)
            )
