"""Checks of the energy sensors of this node. A worker process (`steelyard.worker.sensors.survey`) reads them."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from steelyard.doctor.node import Check

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SURVEY_LIMIT_S = 60.0
KILLED_S = 2.0
NAME, STATE = "energy", "device state"
WORDS = {
    "clock_mhz": "clock",
    "memory_clock_mhz": "memory clock",
    "temperature_c": "temperature",
    "memory_temperature_c": "memory temperature",
    "power_capped": "held back by its power limit",
    "thermal": "held back by its temperature",
    "hardware": "held back by the hardware",
    "corrected": "corrected ECC errors",
    "uncorrected": "uncorrected ECC errors",
    "limit_w": "power limit",
}
"""What is read of the state of a device; the rest of `contracts.conditions.COLUMNS` is of no interest here."""
SCOPES = ("device", "die", "module", "cpu", "memory", "io", "board", "node")
SHOWN = 8


def run_survey(root: Path) -> dict[str, Any]:
    """Run the survey and return its answer, or an error if the process hangs or dies."""
    command = [sys.executable, "-P", "-m", "steelyard.worker.sensors.survey", str(root)]
    pipe = subprocess.PIPE
    # Neither `with` nor `run`: both wait for ever for a killed process that a driver blocks.
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    try:
        said, complaints = process.communicate(timeout=SURVEY_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=KILLED_S)
        return {"error": f"no answer from the sensors in {SURVEY_LIMIT_S:g} s: a driver hangs"}
    try:
        answer: dict[str, Any] = json.loads(said)
    except ValueError:
        words = complaints.decode("utf-8", "replace").strip().splitlines()
        return {"error": f"{' '.join(command)} ended with {process.returncode}: {words[-1][:200] if words else ''}"}
    return answer


def judge_sensors(answer: dict[str, Any]) -> Iterator[Check]:
    """Yield a check per backend, then unreadable sensors, then events that only look like sensors."""
    if "error" in answer:
        yield Check(NAME, "wrong", answer["error"], "look for failed devices in dmesg; runs continue without energy")
        return
    scopes = {domain["name"]: domain["scope"] for domain in answer["domains"]}
    backends = dict.fromkeys(channel["backend"] for channel in answer["channels"])
    for backend in backends:
        channels = [channel for channel in answer["channels"] if channel["backend"] == backend]
        yield Check(NAME, "ok", f"{backend}: {_format_channels(channels, scopes)}")
    for channel in answer["channels"]:
        if channel["fault"]:
            yield Check(NAME, "note", f"{channel['name']} cannot be read: {channel['fault']}")
    yield from _judge_states(answer["states"])
    yield from _judge_missing(answer["missing"])
    if not backends:
        names = ", ".join(answer["backends"])
        yield Check(NAME, "note", f"No power sensor found ({names}); energy is not reported.")
    if answer["cray_counters"]:
        yield Check(NAME, "note", f"Cray counters are not supported yet: {', '.join(answer['cray_counters'])}")
    if answer["perf_events"] and not answer["powercap"]:
        # Other tools use them as sensors.
        yield Check(
            NAME,
            "note",
            f"perf has {', '.join(answer['perf_events'])}, but powercap has no counter: these events are not used, "
            "because they read 0 without it",
            "on a virtual machine: measure on the host; otherwise: modprobe intel_rapl_msr",
        )


def _format_channels(channels: list[dict[str, Any]], scopes: dict[str, str]) -> str:
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


def _judge_states(states: list[dict[str, Any]]) -> Iterator[Check]:
    """Yield a check for the devices of which the same can be read, and one for what cannot be read of them."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for state in states:
        groups.setdefault((state["backend"], *state["sources"]), []).append(state)
    for (backend, *columns), devices in groups.items():
        names = [state["domain"] for state in devices]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        place = f"{backend}: {', '.join(names[:SHOWN])}{more}"
        if told := [words for column, words in WORDS.items() if column in columns]:
            yield Check(STATE, "ok", f"{place}: {', '.join(told)}")
        reasons: dict[str, list[str]] = {}
        for column, reason in devices[0]["unknown"].items():
            if column in WORDS:
                reasons.setdefault(reason, []).append(WORDS[column])
        if reasons:
            unknown = "; ".join(f"{', '.join(words)} ({reason})" for reason, words in reasons.items())
            yield Check(STATE, "note", f"{place}: unknown: {unknown}")


def _judge_missing(missing: list[dict[str, Any]]) -> Iterator[Check]:
    """Yield one check for all unreadable sensors with the same cause."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for entry in missing:
        cause = entry["reason"] if not entry["fix"] else ""
        groups.setdefault((entry["backend"], cause, entry["fix"]), []).append(entry)
    for (backend, _, fix), entries in groups.items():
        first = entries[0]
        more = f" (and {len(entries) - 1} more)" if len(entries) > 1 else ""
        text = f"{backend}: {first['what']}{more}: {first['reason']}"
        if first["broken"]:
            yield Check(NAME, "wrong", text, fix or "nvidia-smi must work here; look for a failed GPU in dmesg")
        else:
            yield Check(NAME, "note", text, fix)
