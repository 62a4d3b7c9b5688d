"""Power limits and peaks of the devices that steelyard knows, looked up by the name that a table prints."""

from __future__ import annotations

import json
import re
from functools import cache, lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from steelyard.rules.table.row import Row

MAX_NAME = 200
# A table prints `A100` or `H100 SXM`. The form and the memory are compared only if the name has them.
_VARIANTS = (re.compile(r"sxm|pcie|nvl", re.IGNORECASE), re.compile(r"[0-9]+ ?gb", re.IGNORECASE))
_MODEL = re.compile(r"GH200|MI[0-9]+[AX]?|[ABHLTV]+[0-9]+S?|Max [0-9]+|Gaudi [0-9]|GC[0-9]+")
MIXED = ("fp16", "bf16")
KINDS = {"mixed": MIXED, "amp": MIXED, "mixed precision": MIXED, "float16": ("fp16",), "bfloat16": ("bf16",)}


class Known(NamedTuple):
    """Known limits of a device that a row names; several devices if the name is not exact."""

    models: tuple[str, ...]
    power_limit_w: float | None
    """The highest of the candidates; None: one of them has no known value."""
    peaks: dict[str, tuple[float, float]]
    """Lowest and highest dense peak of the candidates in FLOP/s, by number format."""


@cache
def device_table() -> tuple[dict[str, Any], ...]:
    """Return the entries of the device table. It is data of the worker; the front side imports nothing of it."""
    return tuple(json.loads((resources.files("steelyard") / "worker" / "devices" / "facts.json").read_bytes()))


def device_of(row: Row) -> Known | None:
    """Return the known limits of the accelerator of a row, by its accelerator or the name of its system."""
    for key in ("accelerator", "system"):
        name = row.get(key)
        known = look_up(str(name)[:MAX_NAME]) if name is not None else None
        if known is not None:
            return known
    return None


@lru_cache(maxsize=512)
def look_up(name: str) -> Known | None:
    """Return the known limits of a device by a name such as `8x H100` or `DGX A100`; None if no device fits."""
    fitting = [entry for entry in device_table() if _is_named(entry["model"], name)]
    for variant in _VARIANTS:
        fitting = [entry for entry in fitting if _is_like(variant, entry["model"], name)] or fitting
    if not fitting:
        return None
    limits = [entry["power_limit_w"] for entry in fitting]
    peaks: dict[str, tuple[float, float]] = {}
    for kind in {kind for entry in fitting for kind in entry["peak_flops"]}:
        flops = [entry["peak_flops"].get(kind) for entry in fitting]
        if None not in flops:
            # One card of two dies may count as one device or as two.
            dies = [entry["dies"] if entry["scope"] == "die" else 1 for entry in fitting]
            peaks[kind] = (min(flops), max(peak * count for peak, count in zip(flops, dies, strict=True)))
    limit = None if None in limits else float(max(limits))
    return Known(tuple(dict.fromkeys(entry["model"] for entry in fitting)), limit, peaks)


def peak_of(row: Row) -> tuple[float, float] | None:
    """Return the lowest and highest peak that the device of a row may have in its precision, in FLOP/s per device."""
    known, precision = device_of(row), str(row.get("precision") or "").lower()
    kinds = KINDS.get(precision, (precision,))
    peaks = [known.peaks[kind] for kind in kinds if kind in known.peaks] if known is not None else []
    return (min(low for low, _ in peaks), max(high for _, high in peaks)) if peaks else None


def _is_named(model: str, name: str) -> bool:
    told = _MODEL.search(model)
    word = rf"(?:(?<![A-Za-z0-9])|(?<=[0-9]x)){told[0]}(?![0-9A-Za-z])" if told is not None else "(?!)"
    return re.search(word, name, re.IGNORECASE) is not None


def _is_like(variant: re.Pattern[str], model: str, name: str) -> bool:
    one, other = variant.search(model), variant.search(name)
    return one is None or other is None or one[0].replace(" ", "").casefold() == other[0].replace(" ", "").casefold()
