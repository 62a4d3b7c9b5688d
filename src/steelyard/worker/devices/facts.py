"""Datasheet facts on devices, looked up by the driver's device name.

They are in `facts.json`, each entry with its sources. Peaks are dense; vendors print some with sparsity, which doubles
them. Peaks and bandwidths are per device as a job sees it, which may be one of two dies, while the power limit is that
of the card or module. fp32 is the peak of the fastest unit for that type: vector units at NVIDIA (tf32 is separate),
matrix units at AMD. Vendors write GB of memory and mean 2**30 bytes; a GB/s is 10**9 bytes per second. Uncertain values
are null; a device not in the table is unknown.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path

from steelyard.contracts.base import from_json_object
from steelyard.contracts.observe import DeviceFacts

TABLE = Path(__file__).with_name("facts.json")
NAME_CHARACTERS = 200
LEAST_MEMORY, MOST_MEMORY = 0.85, 1.05
"""Range of the reported memory relative to the datasheet: error correction takes up to an eighth."""


@dataclass(frozen=True)
class Entry:
    """One device of the table."""

    patterns: tuple[re.Pattern[str], ...]
    facts: DeviceFacts

    def has_name(self, name: str) -> bool:
        """Whether a pattern matches the whole device name."""
        return any(pattern.fullmatch(name) for pattern in self.patterns)

    def has_memory(self, memory_bytes: float) -> bool:
        """Whether a device that reports this much memory can be this one, unsliced."""
        whole = self.facts.memory_bytes
        return whole is None or LEAST_MEMORY * whole <= memory_bytes <= MOST_MEMORY * whole


def look_up(name: str, memory_bytes: float | None = None) -> DeviceFacts:
    """Return the facts on a device by its name, and by its memory if several share the name.

    A slice of a device, or a device with different memory, stays unknown: the peaks do not apply to it. If several
    devices match, only their common facts are returned.
    """
    name = name[:NAME_CHARACTERS]
    plain = " ".join(name.split())
    fitting = [entry for entry in table() if entry.has_name(plain)]
    if memory_bytes is not None:
        fitting = [entry for entry in fitting if entry.has_memory(memory_bytes)]
    if not fitting or re.search(r"\bMIG\b", plain, re.IGNORECASE):
        return DeviceFacts(name=name)
    return replace(_common([entry.facts for entry in fitting]), name=name)


@cache
def table() -> tuple[Entry, ...]:
    """Return all devices of `facts.json`."""
    known = {field.name for field in fields(DeviceFacts)}
    entries = []
    for data in json.loads(TABLE.read_text(encoding="utf-8")):
        facts = {key: value for key, value in data.items() if key in known}
        facts["peak_flops"] = {kind: flops for kind, flops in data["peak_flops"].items() if flops is not None}
        patterns = tuple(re.compile(pattern, re.IGNORECASE) for pattern in data["patterns"])
        entries.append(Entry(patterns, from_json_object(DeviceFacts, {"name": "", **facts})))
    return tuple(entries)


def _common(candidates: list[DeviceFacts]) -> DeviceFacts:
    """Return the facts that all candidates share, with all their models and sources."""
    first = candidates[0]
    if len(candidates) == 1:
        return first
    nothing = DeviceFacts(name="")
    differing = {
        field.name: getattr(nothing, field.name)
        for field in fields(DeviceFacts)
        if any(getattr(other, field.name) != getattr(first, field.name) for other in candidates)
    }
    models = dict.fromkeys(facts.model for facts in candidates if facts.model is not None)
    sources = dict.fromkeys(source for facts in candidates for source in facts.sources)
    return replace(first, **{**differing, "model": " or ".join(models), "sources": tuple(sources)})
