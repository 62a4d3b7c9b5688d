"""What makers say of their devices, looked up by the name the driver gives. Knows datasheets; asks no device.

The facts are in `facts.json`, each entry with the documents it is from. Peaks are dense: makers print some of theirs
with sparsity, which doubles them. They are of what a job sees as one device, which may be one die of two, while the
power limit is of the card or module that has one. fp32 is what the fastest unit of that type does: vector units at
NVIDIA, which have tf32 besides, matrix units at AMD. Makers write GB of memory and mean 2**30 bytes. What is not
certain is null, and what is not in the table is unknown.
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
"""Shares of the maker's memory that a driver may report: error correction takes up to an eighth of it."""


@dataclass(frozen=True)
class Entry:
    """One device of the table."""

    patterns: tuple[re.Pattern[str], ...]
    facts: DeviceFacts

    def has_name(self, name: str) -> bool:
        """Whether the driver calls this device so: a pattern must take in the whole name."""
        return any(pattern.fullmatch(name) for pattern in self.patterns)

    def has_memory(self, memory_bytes: float) -> bool:
        """Whether a device that reports so much memory can be this one, and all of it."""
        whole = self.facts.memory_bytes
        return whole is None or LEAST_MEMORY * whole <= memory_bytes <= MOST_MEMORY * whole


def look_up(name: str, memory_bytes: float | None = None) -> DeviceFacts:
    """The facts of a device by its name, and by its memory where several share the name.

    A slice of a device and a device with another memory than the maker's stay unknown: the peaks are not theirs.
    Where more than one device fits, only what they have in common is known.
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
    """Every device of `facts.json`."""
    known = {field.name for field in fields(DeviceFacts)}
    found = []
    for data in json.loads(TABLE.read_text(encoding="utf-8")):
        facts = {key: value for key, value in data.items() if key in known}
        facts["peak_flops"] = {kind: flops for kind, flops in data["peak_flops"].items() if flops is not None}
        patterns = tuple(re.compile(pattern, re.IGNORECASE) for pattern in data["patterns"])
        found.append(Entry(patterns, from_json_object(DeviceFacts, {"name": "", **facts})))
    return tuple(found)


def _common(candidates: list[DeviceFacts]) -> DeviceFacts:
    """What all of them have, with their models side by side and the documents of all."""
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
