"""Run rule: settings that were requested but not in effect (SY101)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.rules.rule import Example, RunRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.finding import Finding
    from steelyard.contracts.record import RunRecord

_EFFECTIVE = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}


class NotInEffect(RunRule):
    """Requested settings that the engine did not use."""

    code = "SY101"
    name = "setting-not-in-effect"
    severity = "warning"
    why = (
        "A framework may ignore a setting without an error: a device without bfloat16 computes in float32, a model "
        "that cannot be compiled runs uncompiled. The figure then belongs to other settings than its label says."
    )
    detected = (
        "After set-up the worker reads each setting back from the engine and compares it with the requested value. Any "
        "difference is a finding."
    )
    bad = Example(
        'spec.precision = "bf16"\nsettings.values.matmul_dtype = "float32"\n',
        "bfloat16 was requested, but matrices were multiplied in float32.",
    )
    good = Example(
        'spec.precision = "bf16"\nsettings.values.matmul_dtype = "bfloat16"\n',
        "The requested precision was used.",
    )
    fix = "report the settings in effect, or request settings that this device supports"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield one finding with all settings that differ."""
        if record.settings is None or record.spec.program is not None:
            # Of a program nothing was requested: its settings are only read back.
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
            other.append("channels_last has no effect, because no parameter has a channel dimension")
        bound = values.get("numa_bound", "")
        if spec.numa and bound.startswith("no "):
            other.append(f"not bound to a NUMA node {bound.removeprefix('no ')}")
        if other:
            yield self.found("requested settings are not in effect: " + "; ".join(other))


def _read_wanted(record: RunRecord) -> dict[str, str]:
    """Return the values that the settings in effect should have."""
    assert record.settings is not None
    spec = record.spec
    # A ceiling run may use number formats that --precision does not offer.
    own_format = spec.mode == "ceiling" and spec.model.get("dtype", "auto") != "auto"
    wanted = {} if own_format else {"matmul_dtype": _EFFECTIVE[spec.precision]}
    if spec.precision in ("fp32", "tf32"):
        wanted["float32_products"] = spec.precision
    elif spec.mode in ("infer", "generate") and "autocast" in record.settings.values:
        wanted["autocast"] = str(spec.autocast).lower()
        if not spec.autocast and "parameter_dtype" in record.settings.values:
            wanted["parameter_dtype"] = _EFFECTIVE[spec.precision]
    wanted["deterministic"] = str(spec.deterministic).lower()
    wanted["devices"] = str(spec.devices)
    if "channels_last" in record.settings.values:
        wanted["channels_last"] = str(spec.channels_last).lower()
    if spec.threads is not None:
        wanted["threads"] = str(spec.threads)
    if spec.loader.place == "host":
        wanted["loader.workers"] = str(spec.loader.workers)
    asked = {
        "loader.pin_memory": spec.loader.pin_memory if spec.loader.place == "host" else None,
        "cudnn_benchmark": spec.cudnn_benchmark,
        "gradient_as_bucket_view": spec.gradient_as_bucket_view or None,
    }
    return wanted | {name: str(value).lower() for name, value in asked.items() if value is not None}
