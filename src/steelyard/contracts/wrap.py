"""A person's own program, measured without a change: what to start, and what its processes reported."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Literal

from steelyard.contracts.base import AtLeastOne, Bound, Contract, Count, Length, Name, NotNegative, Positive, Text, Time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

END_PATTERN = "program-*.json"
PROCESSES_PATTERN = "processes-*.jsonl"
WORK_PATTERN = "work-*.bin"
"""What each step of a rank worked on, in the format of step files."""
WORK_COLUMNS = ("start_s", "step_s", "micro_batches", "label_tokens", "padding_tokens", "tokens")

STOPPED_FILE = "stopped"
"""Written by an observer that ends the program, with the name of the limit: max_steps or max_seconds."""
OBSERVER_LOG = "observer.log"
"""Written by an observer that has failed; the program goes on without it."""
DEVICES = "devices"
PLACES = (DEVICES, "devices_per_node", "nodes", "node", "host", "port")
"""Placeholders that every command may have: its devices, and the place of the node on which it is started."""
# What the launcher tells the worker of a program.
NODES_VARIABLE, NODE_VARIABLE, FOLDER_VARIABLE = "STEELYARD_NODES", "STEELYARD_NODE", "STEELYARD_FOLDER"
HOST_VARIABLE, PORT_VARIABLE = "STEELYARD_MEETING_HOST", "STEELYARD_MEETING_PORT"
OTHERS = "other processes trained as the same rank, and only the first was measured"
"""Of the steps of a command that trains several times, such as a shell script."""
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_MAX_NAME = 40

EndedBy = Literal["itself", "max_steps", "max_seconds", "time limit", "signal"]


@dataclass(frozen=True, kw_only=True)
class Program(Contract):
    """A command to measure, as it is: only environment variables are added."""

    command: Annotated[tuple[Text, ...], Length(1000)]
    """The words of the command, which is started once per node. {name} stands for a parameter; {devices},
    {devices_per_node}, {nodes}, {node}, {host} and {port} for the place of the node; {{ and }} are braces."""
    parameters: Annotated[dict[str, bool | int | float | Text], Length(50)] = field(default_factory=dict)
    """Values of the placeholders of the command."""
    max_steps: AtLeastOne | None = None
    """End the program after this many steps; None: it runs to its end."""
    max_seconds: Positive | None = None
    """End the program this many seconds after its first step; None: it runs to its end."""
    second_pass: bool = False
    """Launch the program once more, for some steps, to count its operations and watch its communication."""
    samples_per_step: Positive | None = None
    """Samples per optimizer step of the whole job, if the program's own loader hides them."""
    figures: Name | None = None
    """Format of the figures that the program prints; None: every known format is tried."""

    def __post_init__(self) -> None:
        if not self.command or not self.command[0]:
            raise ValueError("command: has no words; valid: a program and its arguments")
        if taken := [name for name in PLACES if name in self.parameters]:
            valid = "set devices" if taken[0].startswith(DEVICES) else "another name"
            raise ValueError(f"parameters.{taken[0]}: {{{taken[0]}}} is the place of the run; valid: {valid}")
        named = placeholders(self.command)
        valid = ", ".join(f"{{{name}}}" for name in (*PLACES, *self.parameters))
        for name in named:
            if name not in PLACES and name not in self.parameters:
                shown = f"{{{name}}}" if name is not None else "a single brace"
                raise ValueError(f"command: {shown} stands for nothing; valid: {valid}, or {{{{ and }}}} for braces")
        for name in self.parameters:
            if name not in named:
                raise ValueError(f"parameters.{name}: the command does not use it; valid: write {{{name}}} in it")

    def words(self, place: Mapping[str, int | str]) -> list[str]:
        """Return the words of the command with values in place of the placeholders; `place`: those of PLACES."""
        values = {**place, **self.parameters}

        def value(match: re.Match[str]) -> str:
            if match[1] is None:
                return match[0][0]
            given = values[match[1]]
            # As in a study file: true, not True.
            return str(given).lower() if isinstance(given, bool) else str(given)

        return [_PLACEHOLDER.sub(value, word) for word in self.command]


def placeholders(words: Iterable[str]) -> dict[str | None, None]:
    """Return the names of the placeholders in order; None: a brace that belongs to none."""
    matches = (match for word in words for match in _PLACEHOLDER.finditer(word))
    return {match[1]: None for match in matches if match[0] not in ("{{", "}}")}


def literal(words: Iterable[str]) -> list[str]:
    """Return words that stand for themselves, whatever braces they have."""
    return [word.replace("{", "{{").replace("}", "}}") for word in words]


def program_name(words: Sequence[str]) -> str:
    """Return a name for a command: of its script (train for train.py), its module after -m, or else its first word."""
    scripts = [PurePath(word).stem for word in words if word.endswith((".py", ".sh")) and not word.startswith("-")]
    module = words[words.index("-m", 1) + 1] if "-m" in words[1:-1] else ""
    # `python -m torch.distributed.run train.py`: the module is a launcher of the script.
    name = scripts[0] if scripts else module.removesuffix(".__main__").rpartition(".")[2] or PurePath(words[0]).name
    kept = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("_.-")[:_MAX_NAME]
    return kept or "program"


@dataclass(frozen=True, kw_only=True)
class ProgramEnd(Contract):
    """How the command of one node ended."""

    exit_code: int | None
    """None: it was killed by a signal."""
    signal: Count | None = None
    start_s: Time
    """On the clock of the observers of this node."""
    wall_s: NotNegative
    cpu_s: NotNegative
    """Processor time of the command and of the processes that it waited for."""
    peak_rss_bytes: NotNegative | None
    """Memory of the largest of these processes; None: less than the worker had that started them, some 40 MB."""
    output_bytes: Count
    ended_by: EndedBy


@dataclass(frozen=True, kw_only=True)
class Wrapped(Contract):
    """What the observer in one rank of a program saw of its training."""

    rank: Count
    world: Annotated[int, Bound(ge=1, le=65_536)]
    device: Name
    device_name: Text = ""
    """Name given by the driver; empty: the processor."""
    device_bytes: NotNegative | None = None
    timing: Text
    steps: Count
    updates: Count
    """Calls of an optimizer's step in them; a step of two optimizers has two."""
    skipped_updates: Count = 0
    """By a gradient scaler, because of an overflow."""
    phantom_updates: Count = 0
    """Without a backward pass before them, as some libraries make at start-up; they end no step."""
    optimizers: Count = 1
    backwards: Count = 0
    """Outermost backward passes."""
    step_reason: Text = ""
    """Why the steps are unknown or uncertain."""
    accumulation: AtLeastOne | None = None
    """Micro-batches per step; None: unknown, or not always the same."""
    batch: AtLeastOne | None = None
    """Samples per micro-batch; None: unknown, or not always the same."""
    samples_known: bool = False
    samples_reason: Text = ""
    tokens_known: bool = False
    tokens_reason: Text = ""
    evaluation_s: NotNegative = 0.0
    evaluation_mode_s: NotNegative = 0.0
    """The part of it of which only the mode of the model tells that it is an evaluation."""
    """Time of evaluations and of checkpoints, which belongs to no step."""
    checkpoint_s: NotNegative = 0.0
    stopped: bool = False
    """The observer ended the program at its limit of steps or seconds."""


@dataclass(frozen=True, kw_only=True)
class SecondPass(Contract):
    """What one rank counted in the second pass of a program, per step; None: unknown."""

    rank: Count
    flops: NotNegative | None = None
    """Floating-point operations; a multiply-add counts as two."""
    recomputes: bool = False
    """Activations are computed again in the backward pass, and these operations are counted too."""
    communication_s: NotNegative | None = None
    exposed_comm_s: NotNegative | None = None
    """Communication during which the rank did nothing else."""
    busy_s: NotNegative | None = None
    """Time in which the device computed; None: the host itself computes."""
    steps: Count = 0
    """Steps in which communication was watched."""
    reason: Text = ""
    """Why something is unknown."""
