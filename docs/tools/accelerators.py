"""The table of accelerators: every generation in the table of devices, and what `selftest --accelerator` found on it.

A result that somebody sends is a file of docs/accelerators/; its name does not matter.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from console import PageError

from steelyard.contracts.accelerator import AcceleratorReport
from steelyard.contracts.base import from_json_object

ROOT = Path(__file__).resolve().parent.parent.parent
FACTS = ROOT / "src/steelyard/worker/devices/facts.json"
RESULTS = ROOT / "docs" / "accelerators"
MAX_BYTES = 1 << 20
GENERATIONS = {
    "NVIDIA Volta, Turing": r"V100S?|T4",
    "NVIDIA Ampere": r"A\d+",
    "NVIDIA Ada": r"L\d+S?",
    "NVIDIA Hopper": r"G?H\d+",
    "NVIDIA Blackwell": r"G?B\d+",
    "AMD CDNA 2": r"MI2\d+X?",
    "AMD CDNA 3": r"MI3\d+[AX]?",
    "Intel Max": r"Max \d+",
    "Intel Gaudi": r"GAUDI ?\d|HL-\d+",
    "Graphcore": r"GC\d+",
}
"""The part of a device's name that tells its generation; the first that is found counts."""


def table(folder: Path = RESULTS) -> str:
    """Return the table; a generation of which nobody has sent a result is simulated only."""
    models: dict[str, list[str]] = {}
    for entry in json.loads(FACTS.read_text(encoding="utf-8")):
        generation, model = _generation(entry["model"])
        models.setdefault(generation, []).append(model)
    results: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.json")):
        report = _read(path)
        results.setdefault(_generation(report.device)[0], []).append(_describe(report))
    rows = [
        f"| {generation} | {', '.join(dict.fromkeys(models[generation]))} | "
        f"{'; '.join(results.get(generation, ['simulated only']))} |"
        for generation in GENERATIONS
        if generation in models
    ]
    return "\n".join(["| generation | devices | tested |", "| --- | --- | --- |", *rows])


def _generation(name: str) -> tuple[str, str]:
    """Return the generation of a device and the short name of its model."""
    for generation, pattern in GENERATIONS.items():
        if found := re.search(rf"(?<!\w)({pattern})(?!\w)", name, re.IGNORECASE):
            return generation, found[1]
    raise PageError(f"the generation of {name!r} is not known: see GENERATIONS in accelerators.py")


def _read(path: Path) -> AcceleratorReport:
    with path.open("rb") as file:
        text = file.read(MAX_BYTES)
    try:
        return from_json_object(AcceleratorReport, json.loads(text))
    except ValueError as error:
        raise PageError(f"{path.name} is not a result of steelyard selftest --accelerator: {error}") from None


def _describe(report: AcceleratorReport) -> str:
    model = _generation(report.device)[1]
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(report.counts().items(), reverse=True))
    torch = re.sub(r"[^\w.+-]", "", report.facts.get("torch.version", "unknown"))
    return f"{report.devices} x {model}, torch {torch}, {report.date}: {counts}"
