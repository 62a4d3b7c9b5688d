"""Claim rules: unfair comparisons and confounded causes (SY120, SY121)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.rules.claim import MAX_SHOWN, ClaimRule
from steelyard.rules.rule import Example

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.finding import Finding
    from steelyard.rules.claim import Asserted

LASTING_SHARE = 0.9
"""An advantage at equal settings is fair if at least this share of the ratio remains at each side's best settings."""


class Unfair(ClaimRule):
    """A comparison at settings that favour one side."""

    code = "SY120"
    name = "unfair-settings"
    severity = "error"
    verdict = "unfair"
    why = (
        "Equal settings are not always fair. A batch size that suits one device can leave the other one idle, so the "
        "choice of the batch decides who wins. Readers want to know what each device can do."
    )
    detected = (
        "For each side, the best row of the same machine, work and precision is taken from the table, with any batch, "
        "input and implementation. Figures for more devices are scaled down in proportion. The claim is unfair if the "
        "other side wins at these settings, or if less than 90 % of the claimed ratio remains. Sides claimed to be "
        "equal must stay equal within 10 %."
    )
    bad = Example(
        "accelerator,devices,model,batch,metric,value,unit\n"
        "X,1,net,8,throughput,300.0,images/s\nY,1,net,8,throughput,100.0,images/s\n"
        "Y,1,net,256,throughput,900.0,images/s\n"
        "---\n"
        'id = "1"\nkind = "times"\nasserts = ["fairness"]\npublished = "3.0x"\nmetric = "throughput"\n'
        'a = { accelerator = "X", batch = 8 }\nb = { accelerator = "Y", batch = 8 }\n',
        "X is 3 times as fast at batch 8, which is too small for Y; at batch 256, Y is 3 times as fast as X.",
    )
    good = Example(
        "accelerator,devices,model,batch,metric,value,unit\n"
        "X,1,net,8,throughput,300.0,images/s\nX,1,net,256,throughput,2700.0,images/s\n"
        "Y,1,net,8,throughput,100.0,images/s\nY,1,net,256,throughput,900.0,images/s\n"
        "---\n"
        'id = "1"\nkind = "times"\nasserts = ["fairness"]\npublished = "3.0x"\nmetric = "throughput"\n'
        'a = { accelerator = "X", batch = 8 }\nb = { accelerator = "Y", batch = 8 }\n',
        "X is 3 times as fast at batch 8, and also if each side runs at its best batch.",
    )
    fix = "report the ratio at each side's best settings as well"

    def check(self, asserted: Asserted) -> Iterator[Finding]:
        """Yield one finding with both ratios."""
        equal, best = asserted.equal, asserted.best
        if asserted.asserts != "fairness" or equal is None or best is None:
            return
        (at_equal,), (at_best,) = equal.values, best.values
        turns = at_equal.low > 1 and at_best.low <= 1
        if turns or at_best.high < LASTING_SHARE * at_equal.low:
            what = "the other side wins" if turns else "the advantage shrinks"
            what = "one side gains far more" if at_equal.low <= 1 else what
            yield self.found(
                f"{what} if each side runs at its own best settings",
                place=asserted.place,
                evidence=f"equal settings: {equal.text}; each side's best settings: {best.text}",
            )


class Confounded(ClaimRule):
    """A difference attributed to one setting although others changed too."""

    code = "SY121"
    name = "confounded-attribution"
    severity = "error"
    verdict = "confounded"
    why = (
        "The ratio of two rows is the effect of everything that differs between them. If more than the named cause "
        "changed, its share of the ratio is unknown."
    )
    detected = (
        "A setting stated on both sides differs, is not the named factor and does not follow from it. For example, the "
        "global batch follows from the number of devices; the batch per device does not. A factor that is the same on "
        "both sides cannot be the cause either."
    )
    bad = Example(
        "devices,batch,precision,metric,value,unit\n"
        "1,32,fp32,throughput,1000.0,images/s\n4,256,fp16,throughput,9000.0,images/s\n"
        "---\n"
        'id = "1"\nkind = "times"\nasserts = ["attribution"]\nfactor = "devices"\npublished = "9.0x"\n'
        'metric = "throughput"\na = { devices = 4 }\nb = { devices = 1 }\n',
        "9 times the rate is attributed to four devices, but batch and precision changed too.",
    )
    good = Example(
        "devices,batch,precision,metric,value,unit\n"
        "1,32,fp16,throughput,1000.0,images/s\n1,32,fp16,throughput,1010.0,images/s\n"
        "4,32,fp16,throughput,3600.0,images/s\n"
        "---\n"
        'id = "1"\nkind = "faster"\nasserts = ["attribution"]\nfactor = "devices"\n'
        'metric = "throughput"\na = { devices = 4 }\nb = { devices = 1, mean = true }\n',
        "Only the number of devices changed, and a repeat shows the size of the noise.",
    )
    fix = "change one setting at a time, or attribute the difference to all changes together"

    def check(self, asserted: Asserted) -> Iterator[Finding]:
        """Yield one finding with all settings that differ."""
        if asserted.asserts == "attribution" and asserted.unchanged:
            same = f"{asserted.factor} is the same on both sides"
            yield self.found(f"{same}, so it cannot be the cause", place=asserted.place, evidence=same)
        elif asserted.asserts == "attribution" and asserted.differs:
            shown = ", ".join(asserted.differs[:MAX_SHOWN])
            more = len(asserted.differs) - MAX_SHOWN
            yield self.found(
                f"not only {asserted.factor} changed, but also {shown}" + (f" and {more} more" if more > 0 else ""),
                place=asserted.place,
                evidence="; ".join(asserted.differs[:MAX_SHOWN]),
            )
