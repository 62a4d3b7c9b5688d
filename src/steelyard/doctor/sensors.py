"""What of energy can be measured on this node, and how to be allowed to. A process of the measured side is asked.

Knows the answers of `steelyard.worker.sensors.survey`; reads no sensor itself and imports no vendor's library.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.doctor.node import Check, HostView

if TYPE_CHECKING:
    from collections.abc import Iterator

SURVEY_LIMIT_S = 60.0
KILLED_S = 2.0
NAME = "energy"
SCOPES = ("device", "die", "module", "cpu", "memory", "io", "board", "node")
SHOWN = 8
# The files of these are looked at before: what is closed has been told there, with the same remedy.
TOLD = ("rapl", "hwmon")


def sensor_checks(node: HostView) -> Iterator[Check]:
    """What a run could measure here, a line a backend."""
    # Vendors' libraries know this machine alone, whatever tree of files somebody looks at.
    if node.root == Path("/"):
        yield from judge_sensors(run_survey())


def run_survey(root: Path | None = None, limit_s: float = SURVEY_LIMIT_S) -> dict[str, Any]:
    """The survey's answer; a process that hangs or dies is a finding too."""
    command = [sys.executable, "-P", "-m", "steelyard.worker.sensors.survey", *([str(root)] if root else [])]
    pipe = subprocess.PIPE
    # Not `with` nor `run`: both wait without end for a killed process that a driver holds.
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    try:
        said, complaints = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=KILLED_S)
        return {"error": f"the sensors gave no answer in {limit_s:g} s: a driver hangs"}
    try:
        found: dict[str, Any] = json.loads(said)
    except ValueError:
        words = complaints.decode("utf-8", "replace").strip().splitlines()
        return {"error": f"{' '.join(command)} ended with {process.returncode}: {words[-1][:200] if words else ''}"}
    return found


def judge_sensors(found: dict[str, Any]) -> Iterator[Check]:
    """The survey's answer for a person."""
    if "error" in found:
        yield Check(NAME, "wrong", found["error"], "dmesg tells of failed devices; runs go on without energy")
        return
    scopes = {domain["name"]: domain["scope"] for domain in found["domains"]}
    backends = dict.fromkeys(channel["backend"] for channel in found["channels"])
    for backend in backends:
        channels = [channel for channel in found["channels"] if channel["backend"] == backend]
        yield Check(NAME, "ok", f"{backend}: {_offered(channels, scopes)}")
    for channel in found["channels"]:
        if channel["fault"]:
            yield Check(NAME, "note", f"{channel['name']} cannot be read: {channel['fault']}")
    yield from _missing(found["missing"])
    if not backends:
        names = ", ".join(found["backends"])
        yield Check(NAME, "note", f"none of {names} finds a sensor: energy of runs here is unknown, never guessed")


def _offered(channels: list[dict[str, Any]], scopes: dict[str, str]) -> str:
    """Such as `device gpu0, gpu1 (counter, gauge); cpu package-0 (counter)`."""
    parts = []
    for scope in SCOPES:
        own = [channel for channel in channels if scopes.get(channel["domain"]) == scope]
        if own:
            domains = list(dict.fromkeys(channel["domain"] for channel in own))
            more = f" and {len(domains) - SHOWN} more" if len(domains) > SHOWN else ""
            kinds = ", ".join(sorted({channel["kind"] for channel in own}))
            parts.append(f"{scope} {', '.join(domains[:SHOWN])}{more} ({kinds})")
    return "; ".join(parts)


def _missing(missing: list[dict[str, Any]]) -> Iterator[Check]:
    """What cannot be read: one line for all that have the same cause."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for entry in missing:
        if entry["code"] == "forbidden" and entry["backend"] in TOLD:
            continue
        cause = entry["reason"] if not entry["remedy"] else ""
        groups.setdefault((entry["backend"], cause, entry["remedy"]), []).append(entry)
    for (backend, _, remedy), entries in groups.items():
        first = entries[0]
        more = f" (and {len(entries) - 1} more)" if len(entries) > 1 else ""
        yield Check(NAME, "note", f"{backend}: {first['what']}{more}: {first['reason']}", remedy)
