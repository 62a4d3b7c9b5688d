"""What was seen of a wrapped program, in a few lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.analysis.rows import LEVELS
from steelyard.contracts.observe import MEASURED
from steelyard.inputs.command import words_of
from steelyard.redact import redact
from steelyard.terminal.text import many, number, seconds, wrapped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from steelyard.analysis.summary import CellSummary
    from steelyard.contracts.record import RunRecord

SHOWN_COMMAND = 300


def program_lines(cells: Sequence[CellSummary], names: Mapping[str, str]) -> list[str]:
    """Describe the program of each configuration that is one; one job stands for the others."""
    lines = []
    for cell in cells:
        done = [record for record in cell.records if record.status.code in MEASURED]
        record = next(iter([*done, *cell.records]))
        if record.wrapped is not None:
            name, command = names[cell.name], _command(record)
            lines += wrapped(command if command == name else f"{name}: {command}")
            lines += [line for said in facts(record) for line in wrapped(said, "  ")]
    return lines


def facts(record: RunRecord) -> list[str]:
    """Say how a program trains, how it was measured, and what is unknown; nothing for a workload."""
    seen = record.wrapped
    if seen is None:
        return []
    how = [many(seen.world, "rank")] if seen.world is not None else []
    if seen.world is not None:
        how.append("batch unknown" if "batch" in seen.unknown else f"batch {record.spec.batch}")
    if seen.accumulation is not None and seen.accumulation > 1:
        how.append(f"{seen.accumulation} micro-batches per step")
    figures = {name: quantity.value for name, quantity in record.quantities.items()}
    for name, write, unit in (("step_time_mean", seconds, " per step"), ("token_throughput", number, " tokens/s")):
        if (value := figures.get(name)) is not None:
            how.append(f"{write(value)}{unit}")
    if padding := figures.get("padding_share"):
        how[-1] += f" and {number(100 * padding, 2)} % padding"
    said = f"{LEVELS[seen.level]}: {', '.join(how)}" if how else LEVELS[seen.level]
    if seen.samples == "stated" and record.spec.program is not None:
        said += f"; samples per step stated, not seen: {record.spec.program.samples_per_step:g}"
    # One that differs is a finding, and so are all if no step was seen.
    right = [claim for claim in record.printed if claim.verdict != "differs" or claim.by_definition]
    lines = [said, *(claim.sentence for claim in right if seen.level > 1)]
    apart = [f"{seconds(value)} {what}" for what, value in _apart(record) if value]
    if apart:
        lines.append(f"not in the steps: {', '.join(apart)}")
    unknown = [*(seen.unknown.items() if seen.level > 1 else ()), ("operations", seen.second_reason)]
    hidden = "; ".join(f"{name} ({why})" for name, why in unknown if why)
    return [*lines, f"unknown: {hidden}"] if hidden else lines


def program_fact(record: RunRecord) -> list[str]:
    """Return the command of a program and what was seen of it, for the description of one run."""
    return [f"program: {_command(record)}", *facts(record)] if record.wrapped is not None else []


def _apart(record: RunRecord) -> list[tuple[str, float]]:
    seen = record.wrapped
    return [("evaluation", seen.evaluation_s), ("checkpoints", seen.checkpoint_s)] if seen is not None else []


def _command(record: RunRecord) -> str:
    text = redact(" ".join(words_of(record.spec)))[0]
    return text if len(text) <= SHOWN_COMMAND else text[: SHOWN_COMMAND - 3] + "..."
