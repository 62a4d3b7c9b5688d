"""Recordings of a real Kubernetes API (tests/data/kubernetes): what it showed, and what it answered."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

Object = dict[str, Any]
DATA = Path(__file__).resolve().parents[1] / "data" / "kubernetes"


@dataclass(frozen=True)
class Step:
    """One version of an object."""

    at: str
    type: str
    kind: str
    thing: Object

    @property
    def name(self) -> str:
        name: str = self.thing["metadata"]["name"]
        return name


@cache
def read(scenario: str, job: str) -> tuple[Step, ...]:
    """All versions of a Job, its pods and its events."""
    rows = [json.loads(line) for line in (DATA / f"{scenario}.jsonl").read_text().splitlines()]
    return tuple(Step(row["at"], row["type"], row["kind"], row["object"]) for row in rows if row["job"] == job)


@cache
def answers() -> tuple[Object, ...]:
    return tuple(json.loads(line) for line in (DATA / "answers.jsonl").read_text().splitlines())


def answer(label: str, status: int | None = None) -> tuple[int, str]:
    """Status and message of the answer with this label."""
    found = next(row for row in answers() if row["label"] == label and status in (None, row["status"]))
    return found["status"], found["body"]["message"]


DRY_RUNS = {
    "pod over LimitRange max": ("LimitRange", "wrong"),
    "pod without limits: refused for the ratio that the LimitRange asks": ("LimitRange", "wrong"),
    "restricted: pod": ("PodSecurity", "wrong"),
    "dry run of a pod over quota": ("quota", "wrong"),
    "no such PriorityClass, pod": ("dry run", "wrong"),
    "no such ServiceAccount, pod": ("dry run", "wrong"),
    "no such RuntimeClass, pod": ("dry run", "wrong"),
    "unknown field, fieldValidation=Strict": ("dry run", "wrong"),
}


def dry_runs() -> list[tuple[str, str, tuple[int, str]]]:
    """Refusals of dry runs, with the name and the verdict of the check that must report them."""
    return [(*check, answer(label)) for label, check in DRY_RUNS.items()]
