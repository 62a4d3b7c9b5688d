"""Rules on claims that a difference has one cause, or is fair (SY120, SY121). Knows what else differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.rules.claim import MAX_SHOWN, ClaimRule
from steelyard.rules.rule import Example

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import Finding
    from steelyard.rules.claim import Asserted

LASTING_SHARE = 0.9
"""An advantage at equal settings lasts when at least this share of the ratio is left at each side's best."""


class Unfair(ClaimRule):
    """A comparison at settings that suit one side."""

    code = "SY120"
    name = "unfair-settings"
    severity = "error"
    verdict = "unfair"
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
    fix = "print best against best beside the comparison at equal settings"

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
    severity = "error"
    verdict = "confounded"
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
    fix = "change one setting at a time, or credit the whole bundle of changes"

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
