"""Rules on claims: whether the figures that a document prints bear out what it says of them (SY120, SY210, SY52x).

Knows a claim once it has been worked out: what was printed, what the rows give, what else differs. How a claim is
written and which rows it means is known elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from steelyard.rules.rule import Example, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import Finding

Assertion = Literal[
    "arithmetic", "same work", "attribution", "fairness", "physical limit", "statistics", "plausibility"
]
"""What a claim says is true: its number; that rows count the same work; that one named setting is the cause; that the
comparison favours nobody; that no device exceeds its power; that repeats show it; that nothing about it is odd."""

MAX_SHOWN = 8
"""Settings that one finding names: a person reads the first few."""
LASTING_SHARE = 0.9
"""An advantage at equal settings lasts when at least this share of the ratio is left at each side's best."""


@dataclass(frozen=True)
class Span:
    """A number between bounds: what printed digits allow."""

    low: float
    high: float

    def meets(self, other: Span) -> bool:
        """Whether one number may lie in both. A little slack for sums of binary fractions; an end may be open."""
        ends = map(abs, (self.low, self.high, other.low, other.high))
        slack = 1e-9 * max((end for end in ends if math.isfinite(end)), default=0.0)
        return self.low <= other.high + slack and other.low <= self.high + slack


@dataclass(frozen=True)
class Reading:
    """One way to work out a figure from rows."""

    values: tuple[Span, ...]
    """One a pair of rows."""
    words: str
    """The sum, such as `(36.67-24.81)/36.67 = 32.3 %`."""
    base: str = ""
    """What was divided by, such as `the longer time`."""
    result: str = ""
    """What it comes to, such as `32.3 %`, or `47.8 % to 118.8 %` over several pairs of rows."""

    def gives(self, published: Span, reached: Span | None = None) -> bool:
        """Whether what is printed may be this, on every pair of rows; and is reached by one, where it is `up to`."""
        inside = all(value.meets(published) for value in self.values)
        return inside and (reached is None or any(value.meets(reached) for value in self.values))


@dataclass(frozen=True)
class RepeatNoise:
    """What repeats say of chance."""

    shown: bool
    """Whether the difference is larger than chance."""
    words: str


@dataclass(frozen=True)
class Asserted:
    """One assertion of one claim, worked out from the rows it speaks of."""

    claim: str
    asserts: Assertion
    place: str = ""
    """Where a reader finds the row."""
    published: Span | None = None
    """What its digits allow; of a range, from its lower end to its upper one."""
    reached: Span | None = None
    """Of `up to`: the figure that one pair of rows must reach."""
    printed: str = ""
    """The published figure as it stands in the document."""
    meant: tuple[Reading, ...] = ()
    """What the rows give, as the claim means it; any of them will do."""
    other: tuple[Reading, ...] = ()
    """What they give when divided by something else."""
    convention: str = ""
    """What the document's other percentages are divided by."""
    faults: tuple[str, ...] = ()
    """What contradicts a claim that prints no figure."""
    hint: str = ""
    """How the printed figure may have come about."""
    factor: str = ""
    differs: tuple[str, ...] = ()
    """Settings that changed beside the factor."""
    unchanged: bool = False
    """Whether the factor itself is the same on both sides."""
    equal: Reading | None = None
    """The ratio at the settings of the claim."""
    best: Reading | None = None
    """The ratio at each side's best settings; None where these are not known."""
    noise: RepeatNoise | None = None

    def follows(self) -> bool:
        """Whether the printed figure is one of those meant."""
        return self.published is None or any(map(self.given_by, self.meant))

    def given_by(self, reading: Reading) -> bool:
        """Whether a reading gives what is printed."""
        return self.published is not None and reading.gives(self.published, self.reached)


class ClaimRule(Rule):
    """A rule on one assertion of a claim."""

    subject = "claim"

    def check(self, asserted: Asserted) -> Iterator[Finding]:
        """Its findings on an assertion."""
        raise NotImplementedError


TIMES = "accelerator,devices,model,metric,value,unit\n"


class Unfair(ClaimRule):
    """A comparison at settings that suit one side."""

    code = "SY120"
    name = "unfair-settings"
    severity = "blocks"
    why = (
        "Equal settings are not equal conditions. A batch size that one device is made for can leave the other one "
        "idle; whoever chooses it chooses the winner. A reader wants to know what each can do."
    )
    detected = (
        "For each side the table is searched for the best row of the same machine and the same work in the same "
        "precision, whatever its batch, input and implementation. A figure of more devices is scaled down in "
        "proportion. The claim is unfair when the other side wins at these settings, or when less than 90 % of the "
        "claimed ratio is left. Two sides that are said to be equal must stay so within 10 %."
    )
    bad = Example(
        "accelerator,devices,model,batch_per_device,metric,value,unit\n"
        "X,1,net,8,throughput,300.0,images/s\nY,1,net,8,throughput,100.0,images/s\n"
        "Y,1,net,256,throughput,900.0,images/s\n"
        "---\n"
        'id = "1"\nkind = "times"\nasserts = ["fairness"]\npublished = "3.0x"\nmetric = "throughput"\n'
        'a = { accelerator = "X", batch_per_device = 8 }\nb = { accelerator = "Y", batch_per_device = 8 }\n',
        "X is 3 times as fast at batch 8, which starves Y; at its own best batch Y is 3 times as fast as X.",
    )
    good = Example(
        "accelerator,devices,model,batch_per_device,metric,value,unit\n"
        "X,1,net,8,throughput,300.0,images/s\nX,1,net,256,throughput,2700.0,images/s\n"
        "Y,1,net,8,throughput,100.0,images/s\nY,1,net,256,throughput,900.0,images/s\n"
        "---\n"
        'id = "1"\nkind = "times"\nasserts = ["fairness"]\npublished = "3.0x"\nmetric = "throughput"\n'
        'a = { accelerator = "X", batch_per_device = 8 }\nb = { accelerator = "Y", batch_per_device = 8 }\n',
        "X is 3 times as fast at batch 8, and also where each side runs at its best batch.",
    )
    remedy = "print best against best beside the comparison at equal settings"

    def check(self, asserted: Asserted) -> Iterator[Finding]:
        """One finding with both ratios."""
        equal, best = asserted.equal, asserted.best
        if asserted.asserts != "fairness" or equal is None or best is None:
            return
        (at_equal,), (at_best,) = equal.values, best.values
        turns = at_equal.low > 1 and at_best.low <= 1
        if turns or at_best.high < LASTING_SHARE * at_equal.low:
            what = "the order turns" if turns else "the advantage shrinks"
            what = "one side gains far more" if at_equal.low <= 1 else what
            yield self.found(
                f"{what} when each side runs at its own best settings",
                place=asserted.place,
                evidence=f"equal settings: {equal.words}; best against best: {best.words}",
            )


class Confounded(ClaimRule):
    """A difference credited to one setting while others changed too."""

    code = "SY121"
    name = "confounded-attribution"
    severity = "blocks"
    why = (
        "The ratio between two rows is the effect of everything that differs between them. When more than the named "
        "cause changed, nobody can say how much of the ratio that cause brought."
    )
    detected = (
        "A setting that is stated on both sides differs, is not the named factor and does not follow from it. With "
        "more devices, for example, the batch of the whole job grows by itself; the batch of one device does not. A "
        "factor that is the same on both sides cannot be the cause either."
    )
    bad = Example(
        "devices,batch_per_device,precision,metric,value,unit\n"
        "1,32,fp32,throughput,1000.0,images/s\n4,256,fp16,throughput,9000.0,images/s\n"
        "---\n"
        'id = "1"\nkind = "times"\nasserts = ["attribution"]\nfactor = "devices"\npublished = "9.0x"\n'
        'metric = "throughput"\na = { devices = 4 }\nb = { devices = 1 }\n',
        "Four devices are credited with 9 times the rate, but batch and precision changed with them.",
    )
    good = Example(
        "devices,batch_per_device,precision,metric,value,unit\n"
        "1,32,fp16,throughput,1000.0,images/s\n1,32,fp16,throughput,1010.0,images/s\n"
        "4,32,fp16,throughput,3600.0,images/s\n"
        "---\n"
        'id = "1"\nkind = "faster"\nasserts = ["attribution"]\nfactor = "devices"\n'
        'metric = "throughput"\na = { devices = 4 }\nb = { devices = 1, mean = true }\n',
        "Only the number of devices changed, and one repeat shows how large chance is.",
    )
    remedy = "change one setting at a time, or credit the whole bundle of changes"

    def check(self, asserted: Asserted) -> Iterator[Finding]:
        """One finding with all that differs."""
        if asserted.asserts == "attribution" and asserted.unchanged:
            same = f"{asserted.factor} is the same on both sides"
            yield self.found(f"{same}, so that it cannot be the cause", place=asserted.place, evidence=same)
        elif asserted.asserts == "attribution" and asserted.differs:
            shown = ", ".join(asserted.differs[:MAX_SHOWN])
            more = len(asserted.differs) - MAX_SHOWN
            yield self.found(
                f"not {asserted.factor} alone changed, but also {shown}" + (f" and {more} more" if more > 0 else ""),
                place=asserted.place,
                evidence="; ".join(asserted.differs[:MAX_SHOWN]),
            )


class NotShown(ClaimRule):
    """A difference that may be chance."""

    code = "SY210"
    name = "not-shown"
    severity = "blocks"
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
    remedy = "repeat both sides at least three times and print the spread"

    def check(self, asserted: Asserted) -> Iterator[Finding]:
        """One finding with what the repeats say."""
        noise = asserted.noise
        if noise is not None and not noise.shown:
            yield self.found(noise.words, place=asserted.place, evidence=noise.words)


class BaseDiffers(ClaimRule):
    """Percentages of one document that were divided by different things."""

    code = "SY520"
    name = "base-differs"
    severity = "blocks"
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
    remedy = "divide every percentage of a document by the same side, and say by which"

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
    severity = "blocks"
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
    remedy = "print what the rows give, or the rows that give what is printed"

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
