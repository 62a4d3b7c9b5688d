"""A wrapped program: what its ranks reported together, and the spec with the settings that were read back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, get_args

from steelyard.contracts.base import Contract, Count, Length, Text
from steelyard.contracts.record import WrappedRun, possible
from steelyard.contracts.spec import CompileMode, Loader, Precision
from steelyard.contracts.wrap import OTHERS
from steelyard.errors import DamagedDataError, SteelyardError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from steelyard.contracts.observe import Settings
    from steelyard.contracts.spec import RunSpec
    from steelyard.contracts.wrap import ProgramEnd, SecondPass, Wrapped

BY_LIMIT = ("max_steps", "max_seconds")
"""Ends of a program that we caused, as the user asked."""
MOST = {"batch": 10**9, "accumulation": 10**6, "loader.workers": 1024}
PARALLEL = {"ddp": "ddp", "fsdp": "fsdp2", "fsdp2": "fsdp2", "none": "independent"}
NOT_READ = "the program did not report it"
NO_RANK = "no rank of the program reported in"
VARIES = "it is not the same in all steps and ranks"


@dataclass(frozen=True, kw_only=True)
class PythonProcess(Contract):
    """A Python process of the program, as it reported in at its start."""

    pid: Count
    ppid: Count = 0
    argv: Annotated[tuple[Text, ...], Length(10)] = ()
    rank: Count | None = None
    world: Count | None = None
    python: Text = ""
    elsewhere: bool = False
    """Its supervisor did not start it: what it used is not known."""
    trains_too: bool = False
    """A second report, by a process that made steps after another one of the same rank: they were not measured."""


@dataclass(frozen=True)
class ProgramFacts:
    """A program as far as it was seen."""

    spec: RunSpec
    """With the settings that were read back."""
    seen: WrappedRun
    damage: SteelyardError | None = None


def program_facts(
    launched: RunSpec,
    reports: Mapping[int, Wrapped],
    settings: Settings | None,
    processes: Sequence[PythonProcess],
    ends: Iterable[ProgramEnd],
    second: Sequence[SecondPass] = (),
) -> ProgramFacts:
    """Put together what was reported. `reports`: by the number in the name of their file; `second`: of each rank."""
    damage: SteelyardError | None = None
    world = max((report.world for report in reports.values()), default=None)
    if world is None:
        world = max((process.world or 0 for process in processes), default=0) or None
    if any(report.rank != number or report.rank >= report.world for number, report in reports.items()):
        damage = DamagedDataError("a rank reports a number that it cannot have")
    told = list(reports.values())
    unknown: dict[str, str] = {}
    seen = _join(told, world, launched.program is not None and launched.program.samples_per_step is not None)
    changes = _changes(told, settings.values if settings else {}, world, unknown)
    try:
        spec = replace(launched, **changes)
    except ValueError as error:
        spec, damage = launched, damage or DamagedDataError(f"the settings that were read back contradict: {error}")
    seen = _with_second_pass(seen, second)
    started = sum(not process.trains_too for process in processes)
    if started < len(processes):
        seen = replace(seen, step_reason="; ".join(filter(None, (seen.step_reason, OTHERS))))
    worst = min(ends, key=lambda end: end.exit_code == 0 or end.ended_by in BY_LIMIT, default=None)
    asked = launched.devices if launched.devices > 1 else None
    seen = replace(seen, processes=started, devices_asked=asked, unknown=unknown, end=worst)
    return ProgramFacts(spec, seen, damage)


def _join(told: Sequence[Wrapped], world: int | None, stated: bool) -> WrappedRun:
    """Return the reports of all ranks as one."""
    if not told:
        return WrappedRun(
            level=0,
            processes=0,
            world=world,
            samples="stated" if stated else "unknown",
            samples_reason=NO_RANK,
            tokens_reason=NO_RANK,
            unknown={},
        )
    missing = f"only {len(told)} of {world} ranks reported in" if len(told) != world else ""
    hidden = missing or next((report.samples_reason or NOT_READ for report in told if not report.samples_known), "")
    if not missing and hidden and (known := sum(report.samples_known for report in told)):
        # As where the first rank reads the batches of all.
        hidden = f"only {known} of {len(told)} ranks read batches themselves"
    no_tokens = missing or next((report.tokens_reason or NOT_READ for report in told if not report.tokens_known), "")
    counts: dict[str, Any] = {
        name: max(getattr(report, name) for report in told)
        for name in (
            "steps",
            "updates",
            "skipped_updates",
            "phantom_updates",
            "optimizers",
            "backwards",
            "evaluation_s",
            "evaluation_mode_s",
            "checkpoint_s",
        )
    }
    return WrappedRun(
        level=2 if counts["steps"] else 0,
        processes=0,
        world=world,
        ranks_reported=len(told),
        accumulation=_common(report.accumulation for report in told),
        batch=_common(report.batch for report in told),
        step_reason=next((report.step_reason for report in told if report.step_reason), ""),
        samples="seen" if not hidden else "stated" if stated else "unknown",
        samples_reason=hidden,
        tokens_known=not no_tokens,
        tokens_reason=no_tokens,
        unknown={},
        **counts,
    )


def _with_second_pass(seen: WrappedRun, second: Sequence[SecondPass]) -> WrappedRun:
    """Add what the second pass counted, if all ranks did."""
    if not second:
        return seen
    why = next((one.reason for one in second if one.reason), "")
    if not why and len(second) != seen.world:
        why = f"only {len(second)} of {seen.world} ranks counted in the second pass"
    if why:
        return replace(seen, second_reason=why)
    flops = _all(one.flops for one in second)
    exposed, busy = (_all(getattr(one, name) for one in second) for name in ("exposed_comm_s", "busy_s"))
    if any(one.recomputes for one in second):
        flops, why = None, "activations are computed again in the backward pass, which the count includes"
    return replace(
        seen,
        level=3 if seen.steps and exposed is not None else seen.level,
        flops_per_step=flops,
        exposed_comm_s=None if exposed is None else exposed / len(second),
        busy_s=None if busy is None else busy / len(second),
        second_reason=why,
    )


def _all(values: Iterable[float | None]) -> float | None:
    """Return the sum of values that are all known."""
    parts = [*values]
    total = sum(value for value in parts if value is not None)
    return total if None not in parts and possible(total) else None


def _common(values: Iterable[int | None]) -> int | None:
    distinct = {*values}
    return distinct.pop() if len(distinct) == 1 else None


def _changes(
    told: Sequence[Wrapped], values: Mapping[str, str], world: int | None, unknown: dict[str, str]
) -> dict[str, Any]:
    """Return the settings that were read back; add those that were not to `unknown`, with the reason."""
    changes: dict[str, Any] = {}
    if world is None:
        unknown["devices"] = NO_RANK
    else:
        changes["devices"] = world
    for name in ("batch", "accumulation"):
        value = _common(getattr(report, name) for report in told) if told else None
        if value is not None and value <= MOST[name]:
            changes[name] = value
        else:
            reasons = [report.samples_reason for report in told if name == "batch" and report.samples_reason]
            unknown[name] = reasons[0] if reasons else VARIES if told else NO_RANK
    compiled = {"on": "default"}.get(values.get("compile", ""), values.get("compile"))
    parallel = PARALLEL.get(values.get("parallel", ""))
    if world == 1:
        # Nothing is divided: a single rank has the usual value, whatever it is wrapped in.
        parallel = parallel if parallel != "independent" else "ddp"
    read: tuple[tuple[str, str | None, Collection[str]], ...] = (
        ("precision", values.get("precision"), get_args(Precision)),
        ("compile", compiled, get_args(CompileMode)),
        ("parallel", parallel, PARALLEL.values()),
    )
    for name, text, valid in read:
        if text in valid:
            changes[name] = text
        else:
            unknown[name] = f"it is {text[:40]}" if text else NOT_READ if told else NO_RANK
    workers = values.get("loader.workers", "")
    if workers.isascii() and workers.isdigit() and int(workers[:10]) <= MOST["loader.workers"]:
        pinned = {"true": True, "false": False}.get(values.get("loader.pin_memory", "").lower())
        changes["loader"] = Loader(place="host", workers=int(workers), pin_memory=pinned)
    else:
        unknown["loader.workers"] = "no loader of torch was seen" if told else NO_RANK
    return changes
