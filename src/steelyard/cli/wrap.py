"""Measure a person's own program: it runs as without us, and what we have to say follows on standard error."""

import argparse
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from steelyard.analysis.summary import summarise
from steelyard.cli.verb import exit_code
from steelyard.contracts.base import to_json_object
from steelyard.contracts.record import RunRecord
from steelyard.contracts.spec import RunSpec
from steelyard.contracts.wrap import literal
from steelyard.derive.printed.formats import chosen_formats
from steelyard.errors import InputError
from steelyard.inputs.study import require_registered, single_run
from steelyard.launch.local import LocalLauncher
from steelyard.launch.local_study import run_all
from steelyard.results.store import ResultFolder
from steelyard.terminal import console
from steelyard.terminal.document import print_json
from steelyard.terminal.plain import shown_configurations
from steelyard.terminal.tables import cells_lines

LIMIT_REACHED, NOT_EXECUTABLE, NOT_FOUND = 124, 126, 127
"""As timeout(1) has them."""
OF_PROGRAM = ("max_steps", "max_seconds", "second_pass", "samples_per_step", "figures")


class _Silence:
    """No progress: the terminal is the program's."""

    def begin(self, spec: RunSpec, done: int, total: int) -> None:
        pass

    def tick(self, raw: Path) -> None:
        pass

    def end(self, record: RunRecord, done: int, total: int) -> None:
        pass


def run(arguments: argparse.Namespace) -> int:
    """Launch the repeats; the exit code is that of the program, the first that is not 0."""
    folder = ResultFolder(arguments.results)
    chosen_formats(arguments.figures)
    expansion = single_run(
        settings(arguments),
        study=arguments.study,
        seed=RunSpec.seed,
        repeats=arguments.repeats,
        taken=lambda study: folder.run_ids(study) | folder.ids_being_made(),
    )
    require_registered(expansion)
    # Here also in an allocation of several nodes: how the command is spread over them is its own affair.
    launcher = LocalLauncher(show=True)
    word = arguments.command[0]
    if shutil.which(word) is None:
        where = "no such program" if "/" in word else "no such program on PATH"
        step = f"check its spelling, or give its path{' such as ./' + word if Path(word).is_file() else ''}"
        error = InputError(f"{word}: {where}, or it may not be executed", next_step=step)
        error.exit_code = NOT_FOUND if shutil.which(word, os.F_OK) is None else NOT_EXECUTABLE
        raise error
    made: list[RunRecord] = []
    for spec in expansion.runs:
        made += run_all(folder, replace(expansion, runs=(spec,)), launcher, _Silence()).made
        # A signal that the program was given is also meant for what would follow.
        if launcher.signals:
            break
    if arguments.json:
        # Standard output is the program's.
        shown, records = shown_configurations(summarise(made)), [to_json_object(record) for record in made]
        print_json({"shape": "wrap/1", "configurations": shown, "runs": records}, file=sys.stderr)
    else:
        console.say("\n".join(["", *cells_lines(summarise(made), detail=True)]))
        exit_code(made)
    return next((code for code in map(program_code, made) if code), 0)


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings of the run, as the options give them."""
    program: dict[str, Any] = {"command": literal(arguments.command)}
    program |= {name: value for name in OF_PROGRAM if (value := getattr(arguments, name)) not in (None, False)}
    limit = {} if arguments.time_limit_s is None else {"time_limit_s": arguments.time_limit_s}
    return {"program": program, **limit}


def program_code(record: RunRecord) -> int:
    """The exit code of the program, as a shell gives it."""
    launch, end = record.launch, record.wrapped.end if record.wrapped is not None else None
    if launch is not None and (launch.limit_hit or (end is not None and end.ended_by == "time limit")):
        return LIMIT_REACHED
    if launch is None or launch.exit_code is None:
        return 1
    # A worker that was killed took the program with it.
    return launch.exit_code if launch.exit_code >= 0 else 128 - launch.exit_code
