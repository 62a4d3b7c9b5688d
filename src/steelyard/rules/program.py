"""What a program was told: the options that it was started with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.inputs.command import words_of
from steelyard.inputs.synonyms import STUDY as SYNONYMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec

SAME_SAMPLES = 0.02
"""The last batch of an epoch may be smaller."""


def other_samples(record: RunRecord) -> float | None:
    """Return the samples per step of a program as they were seen, if its user stated another number."""
    seen, program = record.wrapped, record.spec.program
    if seen is None or seen.samples != "seen" or program is None or program.samples_per_step is None:
        return None
    if seen.batch is not None and seen.accumulation is not None and seen.world is not None:
        counted: float = seen.batch * seen.accumulation * seen.world
    else:
        rate, step = (record.quantities.get(name) for name in ("throughput", "step_time_mean"))
        counted = (rate.value or 0.0) * (step.value or 0.0) if rate is not None and step is not None else 0.0
    return counted if counted and abs(counted / program.samples_per_step - 1) > SAME_SAMPLES else None


def own_words(spec: RunSpec) -> list[str]:
    """Return the words after the script or module: what the program itself was told, without its launcher."""
    words = words_of(spec)
    for place, word in enumerate(words):
        if word.endswith(".py"):
            return words[place + 1 :]
        if word == "-m" and place + 1 < len(words) and not words[place + 1].startswith("torch.distributed"):
            return words[place + 2 :]
    return words[1:]


def options_of(words: Sequence[str], settings: Sequence[str]) -> str:
    """Return a program's options as one text, without those that set one of the `settings`, which are known better."""
    return " ".join(
        f"{name}{'=' if value else ''}{value}" for name, value in _pairs(words) if not _sets(name, settings)
    )


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield options with their values; a word that is no option alone."""
    rest = list(words)
    while rest:
        name = rest.pop(0)
        name, _, value = name.partition("=") if name.startswith("-") else (name, "", "")
        if name.startswith("-") and not value and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        yield name, value


def _sets(name: str, settings: Sequence[str]) -> bool:
    if not name.startswith("-"):
        return False
    plain = name.lstrip("-").replace("-", "_").casefold()
    return SYNONYMS.get(plain, f"run.{plain}").removeprefix("run.").partition(" ")[0] in settings
