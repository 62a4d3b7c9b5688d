"""Run the missing runs of a study, here or at a site, and print its table."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.analysis.extension import find_extension
from steelyard.analysis.summary import CellSummary, summarise
from steelyard.cli.verb import counted_if_interrupted, exit_code
from steelyard.errors import InputError, Problem, printable
from steelyard.inputs.site import find_place
from steelyard.inputs.study import Expansion, Study, expand, load_study, require_registered
from steelyard.inputs.study_file import from_suite, from_template, part_named
from steelyard.inputs.suite import find_suite
from steelyard.inputs.templates import kinds, write_new
from steelyard.launch.allocation import launcher_here
from steelyard.launch.follow import look, wait
from steelyard.launch.local_study import Outcome, refuse_other_seed, run_all, set_aside
from steelyard.launch.plan import studies, under_way
from steelyard.launch.search import search_all, search_result, tried
from steelyard.launch.submit import Submitted, lock, send
from steelyard.results.store import ResultFolder
from steelyard.terminal.document import print_json
from steelyard.terminal.findings import command_line, next_line
from steelyard.terminal.live.following import Following
from steelyard.terminal.live.progress import Progress, loudness, say
from steelyard.terminal.plain import shown_configurations
from steelyard.terminal.status import campaign_lines, foreign_lines, sent_object
from steelyard.terminal.study import (
    extension_lines,
    extension_object,
    plan_lines,
    plan_object,
    search_lines,
    searches_object,
    template_lines,
)
from steelyard.terminal.tables import cells_lines
from steelyard.terminal.text import many, wrapped

if TYPE_CHECKING:
    import argparse

    from steelyard.contracts.record import RunRecord
    from steelyard.terminal.shapes.measure import StudyData, StudyRunData


PRINTED = Path("-")
"""As the file of `steelyard study new`: print it."""
REPEATABLE = {"failed", "hung", "killed", "time_limit", "node_failure", "preempted", "lost"}
"""How a run can end for a reason that may be gone the next time."""


@dataclass(frozen=True)
class StudyAnswer:
    """What a study did or would do."""

    code: int
    shown: StudyData
    """As plain data."""
    lines: list[str]
    records: tuple[RunRecord, ...] = ()
    """Runs that should have completed."""
    cells: tuple[CellSummary, ...] = ()
    """All runs of the study, with those that were added to it."""
    note: str = ""
    """What is missing."""


@dataclass(frozen=True)
class Command:
    """The command of a study, to name it again."""

    words: tuple[str, ...]
    """After `steelyard`, without the site."""
    file: Path | None = None
    """The study's file."""
    trial: bool = False
    """Whether its runs are too short on purpose."""
    repeats_refused: bool = False
    """Whether refused runs are repeated without being asked for."""

    def line(self, site: str | None) -> str:
        """Return the command line."""
        return shlex.join(["steelyard", *self.words, *(["--site", site] if site else [])])

    def inside(self, site: str | None, paths: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Return the words with paths relative to this folder; one empty word if one leads out of it.

        Findings show them: no path leads out of here.
        """
        named = [path_inside(word) if word in paths else word for word in self.words]
        if site:
            named += ["--site", path_inside(site) if "/" in site else site]
        return tuple(named) if all(named) else ("",)


def run(arguments: argparse.Namespace) -> int:
    """Run what is missing; exit code 0 when every run of the study completed, or was submitted."""
    if arguments.action == "new":
        return _new(arguments)
    path = str(arguments.file)
    asked = arguments.again or arguments.extend or arguments.dry_run or arguments.site or arguments.wait
    if not asked:
        # What refused a run before, such as a missing package, may be there now; asking again costs nothing.
        arguments.again = "refused"
    words = ("study", f"./{path}" if path.startswith("-") else path)
    command = Command(words, arguments.file, repeats_refused=not asked)
    named = command.inside(arguments.site, command.words[1:])
    expansion = expand(_load(arguments.file), arguments.file.parent, arguments=named)
    answer = carry_out(arguments, expansion, command)
    if arguments.json:
        print_json(answer.shown)
    else:
        print("\n".join(answer.lines))
    return exit_code(answer.records) or answer.code


def _load(path: Path) -> Study:
    try:
        return load_study(path)
    except InputError as error:
        if path.exists() or error.next_step or any(problem.near for problem in error.problems):
            raise
        raise InputError(error.what, problems=error.problems, next_step="steelyard study new") from None


def _new(arguments: argparse.Namespace) -> int:
    """Write a study file, or list the templates."""
    if arguments.kind is None and arguments.from_suite is None:
        if arguments.output is not None or arguments.part is not None:
            raise InputError("missing: a template, or --from-suite", next_step="steelyard study new")
        if arguments.json:
            print_json({"shape": "study-templates/1", "templates": kinds("studies")})
        else:
            print("\n".join(template_lines()))
        return 0
    path, text, again = _new_file(arguments)
    if arguments.output == PRINTED:
        sys.stdout.write(text)
        return 0
    named = write_new(path, text, f"{again} --output FILE")
    if arguments.json:
        print_json({"shape": "study-new/1", "file": str(path)})
    else:
        print(printable(f"wrote {path}; change in it what is different for you, then:"))
        print(printable(f"  {shlex.join(['steelyard', 'study', named, '--dry-run'])}"))
    return 0


def _new_file(arguments: argparse.Namespace) -> tuple[Path, str, str]:
    """Return the path and the text of a new study file, and the command that makes it."""
    given = None if arguments.output == PRINTED else arguments.output
    if arguments.from_suite is None:
        if arguments.part is not None:
            problem = Problem("--part", "needs --from-suite", f"--from-suite NAME, or {arguments.kind} alone")
            raise InputError("a template has no parts", problems=(problem,))
        path = given or Path(f"{arguments.kind}.toml")
        return path, from_template(arguments.kind, path), f"steelyard study new {arguments.kind}"
    if arguments.kind is not None:
        problem = Problem("--from-suite", f"cannot be combined with the template {arguments.kind}", "one of them")
        raise InputError("one file, of one thing", problems=(problem,))
    suite_folder = find_suite(arguments.from_suite)
    part = part_named(suite_folder, arguments.part)
    path = given or Path(f"{part.name}.toml")
    words = ["steelyard", "study", "new", "--from-suite", suite_folder.asked, "--part", part.name]
    return path, from_suite(suite_folder, part, arguments.size, path), shlex.join(words)


def carry_out(arguments: argparse.Namespace, expansion: Expansion, command: Command) -> StudyAnswer:
    """Run what is missing of a study, here or at a site, or do what the options ask for instead."""
    require_registered(expansion)
    folder = ResultFolder(arguments.results)
    if arguments.extend:
        return _extend(arguments, expansion, folder, command)
    if arguments.dry_run:
        return _plan_sending(arguments, expansion, folder, command) if arguments.site else _plan(expansion, folder)
    clear(arguments, expansion, folder, command)
    if arguments.site or arguments.wait:
        return _at_site(arguments, expansion, folder, command)
    return _here(arguments, expansion, folder, command)


def clear(arguments: argparse.Namespace, expansion: Expansion, folder: ResultFolder, command: Command) -> None:
    """Collect what has ended at a site, and move away what is to run again."""
    if (arguments.again or arguments.site) and expansion.study.name in studies(folder):
        # Collect what has ended since: it need not run again, or --again may select it.
        _collect(arguments, folder, expansion.study.name)
    if arguments.again:
        with lock(folder, expansion.study.name):
            count = set_aside(folder, expansion, arguments.again)
        if count or not command.repeats_refused:
            say(f"{many(count, 'run')} moved to {folder.path}/superseded, to run again", loudness(arguments))


def _collect(arguments: argparse.Namespace, folder: ResultFolder, study: str) -> None:
    """Collect what has ended, and say what was not collected."""
    status = look(folder, study, shared=arguments.shared)
    for line in (*foreign_lines(status), *(line for problem in status.problems for line in problem.splitlines())):
        say(line)


def _here(arguments: argparse.Namespace, expansion: Expansion, folder: ResultFolder, command: Command) -> StudyAnswer:
    refuse_under_way(folder, expansion.study.name)
    make = search_all if expansion.searches else run_all
    with (
        counted_if_interrupted(folder, expansion),
        Progress(loudness(arguments), expansion, folder, too_short=not command.trial) as progress,
    ):
        outcome = make(folder, expansion, launcher_here(progress.say, _specs(expansion)), progress)
    answer = results_of(expansion, folder, outcome)
    kept = sorted({record.status.code for record in answer.records} & REPEATABLE)
    if not kept:
        return answer
    again = wrapped(f"To run again what ended as {' or '.join(kept)}:")
    return replace(answer, lines=[*answer.lines, "", *again, f"  {command.line(None)} --again {','.join(kept)}"])


def _extend(arguments: argparse.Namespace, expansion: Expansion, folder: ResultFolder, command: Command) -> StudyAnswer:
    """Make the jobs that findings of a study ask for, after printing their price; first what is missing of it."""
    study, again = expansion.study.name, command.line(arguments.site)
    if arguments.again or (arguments.wait and not arguments.site):
        refused = "--again" if arguments.again else "--wait without --site"
        raise InputError(f"--extend: not together with {refused}", next_step=f"{again} --extend")
    if expansion.searches:
        raise InputError("--extend: a study with [search] tries every batch once", next_step=again)
    if study in studies(folder):
        _collect(arguments, folder, study)
    refuse_under_way(folder, study)
    refuse_other_seed(folder, expansion)
    if missing := sum(not folder.has(spec) for spec in expansion.runs):
        return _complete_first(arguments, expansion, folder, command, missing)
    extension = find_extension(expansion, folder.records(study))
    lines = extension_lines(extension, again)
    if not extension.needs or arguments.dry_run:
        return StudyAnswer(0, extension_object(extension, study), lines)
    for line in "\n".join(lines).split("\n"):
        say(line, loudness(arguments))
    further = extension.runs(expansion)
    return (
        _at_site(arguments, further, folder, command) if arguments.site else _here(arguments, further, folder, command)
    )


def _complete_first(
    arguments: argparse.Namespace, expansion: Expansion, folder: ResultFolder, command: Command, missing: int
) -> StudyAnswer:
    """Make the missing runs of a study that is to be extended; then extend it, unless they are only submitted."""
    say(f"first the study as it is: {many(missing, 'run')} without a result", loudness(arguments))
    if arguments.dry_run:
        return _plan_sending(arguments, expansion, folder, command) if arguments.site else _plan(expansion, folder)
    if not arguments.site:
        _here(arguments, expansion, folder, command)
        return _extend(arguments, expansion, folder, command)
    answer = _at_site(arguments, expansion, folder, command)
    if arguments.wait and not answer.code:
        return _extend(arguments, expansion, folder, command)
    return answer


def path_inside(path: str) -> str:
    """Return a path relative to this folder; empty for a file elsewhere. Links keep their names."""
    relative = os.path.relpath(path)
    if Path(relative).parts[:1] == (os.pardir,):
        return ""
    return f"./{relative}" if relative.startswith("-") else relative


def _at_site(
    arguments: argparse.Namespace, expansion: Expansion, folder: ResultFolder, command: Command
) -> StudyAnswer:
    study, loud = expansion.study.name, loudness(arguments)
    if not arguments.site and study not in studies(folder):
        raise InputError(
            f"--wait: {study} was not submitted to a site", next_step=f"{command.line(None)} --site SITE --wait"
        )
    done = sum(folder.has(spec) for spec in _specs(expansion))
    said = ""
    while True:
        # Again after waiting: a site may limit the number of jobs in the queue.
        sent = Submitted(0)
        if arguments.site:
            sent = send(folder, expansion, find_place(arguments.site), file=command.file, shared=arguments.shared)
        if not arguments.wait:
            return _sent(expansion, folder, sent)
        if sent.full and sent.full != said:
            said = sent.full
            say(f"{said}; waiting to submit the rest", loud)
        with Following(loud) as following:
            wait(folder, study, following.tell, shared=arguments.shared, full=bool(sent.full))
        if sent.made is None and not sent.full:
            break
    records = [folder.read(folder.run_path(spec)) for spec in _specs(expansion) if folder.has(spec)]
    answer = results_of(expansion, folder, Outcome(tuple(records[done:]), done))
    missing = sum(not folder.has(spec) for spec in expansion.runs)
    if not missing:
        return answer
    see = command_line(f"steelyard status {study}")
    note = f"{many(missing, 'run')} without a result: not submitted or cancelled; see {see}"
    return replace(answer, code=1, lines=[*answer.lines, "", note], note=note)


def _sent(expansion: Expansion, folder: ResultFolder, done: Submitted) -> StudyAnswer:
    study, made = expansion.study.name, done.made
    sent = under_way(folder, study)
    out = len(sent)
    # The file may have changed since: a submitted run need not be part of the study any more.
    missing = sum(spec.run_id not in sent and not folder.has(spec) for spec in expansion.runs)
    shown = sent_object(made, dry_run=False, under_way=out, left_over=missing, queue_full=done.full)
    lines = [f"nothing to submit: {many(out, 'run')} waiting or running, all others have a result"]
    if made is not None:
        lines = campaign_lines(made, sent=True)
    if done.full:
        lines += ["", f"{done.full}; not all of this is submitted: repeat the command when other jobs have ended"]
    if missing > 0:
        lines.append(f"no room in the queue for {many(missing, 'run')}; repeat the command when these have ended")
    return StudyAnswer(0, shown, [*lines, "", next_line(f"steelyard {'status' if out else 'show'} {study}")])


def _plan_sending(
    arguments: argparse.Namespace, expansion: Expansion, folder: ResultFolder, command: Command
) -> StudyAnswer:
    made = send(folder, expansion, find_place(arguments.site), file=command.file, dry_run=True).made
    if made is None:
        nothing = ["nothing to submit: every run has a result, is waiting or is running"]
        return StudyAnswer(0, sent_object(None, dry_run=True), nothing)
    return StudyAnswer(0, sent_object(made, dry_run=True), campaign_lines(made, sent=False))


def refuse_under_way(folder: ResultFolder, study: str) -> None:
    """Refuse to run here what waits in a queue."""
    out = under_way(folder, study)
    if out:
        raise InputError(
            f"{many(len(out), 'run')} of {study} submitted to a site and not collected (--cancel cancels)",
            next_step=f"steelyard status {study}",
        )


def _specs(expansion: Expansion) -> list[Any]:
    return [*expansion.runs, *(spec for group in expansion.searches for spec in group.runs)]


def results_of(expansion: Expansion, folder: ResultFolder, outcome: Outcome) -> StudyAnswer:
    """Return what a study has, after some of its runs were made."""
    records = [folder.read(folder.run_path(spec)) for spec in expansion.runs if folder.has(spec)]
    records += tried(folder, expansion.searches)
    order = {cell.name: number for number, cell in enumerate(expansion.cells)}
    # All runs of the study, with those that --extend has added.
    every = records if expansion.searches else folder.records(expansion.study.name)
    cells = sorted(
        summarise(record for record in every if record.spec.configuration in order), key=lambda cell: order[cell.name]
    )
    searches = [search_result(folder, group) for group in expansion.searches]
    shown: StudyRunData = {
        "shape": "study/1",
        "made": len(outcome.made),
        "skipped": outcome.skipped,
        "configurations": shown_configurations(cells),
        "searches": searches_object(expansion, searches),
    }
    lines = search_lines(expansion, searches) if searches else cells_lines(cells)
    if searches:
        # A search runs until a batch does not fit: that is not a failure.
        records = [record for record in records if record.status.code != "out_of_memory"]
    code = int(any(search.largest_fitting is None for search in searches))
    return StudyAnswer(code, shown, lines, tuple(records), tuple(cells))


def _plan(expansion: Expansion, folder: ResultFolder) -> StudyAnswer:
    done = sum(folder.has(spec) for spec in _specs(expansion))
    left = replace(expansion, runs=tuple(spec for spec in expansion.runs if not folder.has(spec)))
    return StudyAnswer(0, plan_object(expansion, done, left), plan_lines(expansion, done, left))
