"""Rules on what was asked of a run and what was in effect (SY101). Knows one record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.rules.rule import Example, RunRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import Finding, RunRecord

_EFFECTIVE = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}


class NotInEffect(RunRule):
    """Settings that were asked for and are not what the engine says it used."""

    code = "SY101"
    name = "setting-not-in-effect"
    severity = "warning"
    why = (
        "A framework may ignore a setting without a word: a device without bfloat16 computes in float32, a model that "
        "cannot be compiled runs as it is. The figure is then that of other settings than its label says."
    )
    detected = (
        "After set-up the worker reads each setting back from the engine. What it read is held against what was asked "
        "for; any difference is a finding."
    )
    bad = Example(
        'spec.precision = "bf16"\nsettings.values.matmul_dtype = "float32"\n',
        "bfloat16 was asked for, but matrices were multiplied in float32.",
    )
    good = Example(
        'spec.precision = "bf16"\nsettings.values.matmul_dtype = "bfloat16"\n',
        "What was asked for is what was used.",
    )
    fix = "compare by what is in effect (settings of the record), or ask for what this device can do"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """One finding with every setting that differs."""
        if record.settings is None:
            return
        spec, values = record.spec, record.settings.values
        other = [
            f"{name} is {values.get(name)}, not {value}"
            for name, value in _read_wanted(record).items()
            if values.get(name) != value
        ]
        if spec.compile != "off" and values.get("compiled_graphs", "0") == "0":
            other.append("nothing was compiled")
        if spec.channels_last and "channels_last" not in values:
            other.append("no parameter has a channel dimension to put last")
        if other:
            yield self.found("settings in effect differ from those asked for: " + "; ".join(other))


def _read_wanted(record: RunRecord) -> dict[str, str]:
    """What the settings in effect should read."""
    assert record.settings is not None
    spec = record.spec
    # A ceiling may be asked for in formats that no model's precision has.
    own_format = spec.mode == "ceiling" and spec.model.get("dtype", "auto") != "auto"
    wanted = {} if own_format else {"matmul_dtype": _EFFECTIVE[spec.precision]}
    if spec.precision in ("fp32", "tf32"):
        wanted["float32_products"] = spec.precision
    wanted["deterministic"] = str(spec.deterministic).lower()
    wanted["ranks"] = str(spec.ranks)
    if "channels_last" in record.settings.values:
        wanted["channels_last"] = str(spec.channels_last).lower()
    if spec.threads is not None:
        wanted["threads"] = str(spec.threads)
    if spec.loader.place == "host":
        wanted |= {"loader_workers": str(spec.loader.workers), "pin_memory": str(spec.loader.pin_memory).lower()}
    return wanted
