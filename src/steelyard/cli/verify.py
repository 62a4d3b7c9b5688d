"""Run a documented recipe and compare the result with its stated value: pass, fail or cannot tell."""

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.analysis.verify import (
    begin_occasion,
    history,
    judge_records,
    latest_occasion,
    new_occasion,
    occasions,
    overall,
    require_begun,
    require_figures,
)
from steelyard.cli import run as run_verb
from steelyard.cli.exit_codes import DONE, FAILED, UNDECIDED
from steelyard.cli.parser import OptionError
from steelyard.cli.verb import command_on_file, counted_if_interrupted, make_parser
from steelyard.contracts.record import RunRecord
from steelyard.errors import InputError, Problem, printable
from steelyard.inputs.recipe import Recipe, load_recipe, plan
from steelyard.inputs.study import Expansion, require_registered
from steelyard.inputs.suite import find_recipe
from steelyard.launch.allocation import launcher_here
from steelyard.launch.local_study import run_all
from steelyard.report.charts.history import verified_chart
from steelyard.report.render.draw import svg
from steelyard.report.render.put import put
from steelyard.results.store import ResultFolder
from steelyard.stats.band import Verdict
from steelyard.terminal.document import print_json
from steelyard.terminal.findings import command_line
from steelyard.terminal.live.progress import Loudness, Progress, loudness
from steelyard.terminal.verify import (
    history_lines,
    history_object,
    outcomes_object,
    plan_lines,
    plan_object,
    verdict_lines,
)

if TYPE_CHECKING:
    from steelyard.terminal.shapes.measure import VerifyData

# Options of `steelyard run` that verify decides itself.
OWN = ("repeats", "study", "seed", "results", "json")
EXIT: dict[Verdict, int] = {"pass": DONE, "fail": FAILED, "cannot tell": UNDECIDED}


def run(arguments: argparse.Namespace) -> int:
    """Run and judge; exit code 0 for a pass, 1 for a fail, 3 when it cannot tell."""
    _check_options(arguments)
    path = find_recipe(str(arguments.file)) or arguments.file
    recipe, settings = read_recipe(path)
    folder, place = ResultFolder(arguments.results), path.parent
    name, jobs = _choose_occasion(arguments, folder, recipe)
    expansion = plan(recipe, place, name=name, jobs=jobs, run=settings)
    require_registered(expansion)
    if arguments.dry_run:
        _say(arguments, plan_object(recipe, expansion), plan_lines(recipe, expansion))
        return 0
    if arguments.history:
        entries = history(folder, recipe, expansion)
        lines = [line for entry in entries for line in history_lines(recipe, entry)]
        histories = [history_object(entry) for entry in entries]
        _say(arguments, {"shape": "verify-history/1", "recipe": recipe.name, "histories": histories}, lines)
        for number, entry in enumerate(entries if arguments.plot is not None else (), 1):
            path = arguments.plot if number == 1 else arguments.plot.with_stem(f"{arguments.plot.stem}-{number}")
            put(path.parent, path.name, svg(verified_chart(entry, f"history-{number}")).encode())
            print(printable(f"plot of {entry.expect.metric}: {path}"), file=sys.stderr)
        return 0
    if arguments.more is not None:
        require_begun(folder, expansion)
    elif not arguments.no_run:
        begin_occasion(folder, name)
    if not arguments.no_run:
        command = command_on_file("verify", arguments)
        with (
            counted_if_interrupted(folder, expansion, lambda left: f"{command} --more {left}"),
            _Watch(recipe, expansion, loudness(arguments), folder) as watch,
        ):
            run_all(folder, expansion, launcher_here(watch.say, expansion.runs), watch)
    outcomes = judge_records(recipe, expansion, list(folder.records(name)))
    verdict, past = overall(outcomes), len(occasions(folder, recipe))
    again = command_on_file("verify", arguments)
    lines = verdict_lines(recipe, outcomes, again=again, study=name)
    if past > 1:
        lines.append(printable(f"{past} occasions so far: {command_line(again + ' --history')}"))
    data: VerifyData = {
        "shape": "verify/1",
        "recipe": recipe.name,
        "occasion": name,
        "verdict": verdict,
        "figures": outcomes_object(outcomes, name),
    }
    _say(arguments, data, lines)
    return EXIT[verdict]


class _Watch(Progress):
    """Show progress, and stop after the first job if the recipe names a metric that no job has."""

    def __init__(self, recipe: Recipe, expansion: Expansion, loud: Loudness, folder: ResultFolder) -> None:
        super().__init__(loud, expansion, folder)
        self._recipe, self._expansion = recipe, expansion

    def end(self, record: RunRecord, done: int, total: int) -> None:
        """Show the end of a run."""
        super().end(record, done, total)
        require_figures(self._recipe, self._expansion, record)


def _say(arguments: argparse.Namespace, data: Mapping[str, Any], lines: list[str]) -> None:
    if arguments.json:
        print_json(data)
    else:
        print("\n".join(lines))


def now() -> datetime:
    """The current time, which names an occasion."""
    return datetime.now(UTC)


def _check_options(arguments: argparse.Namespace) -> None:
    chosen = [
        name
        for name, given in (
            ("--more", arguments.more is not None),
            ("--no-run", arguments.no_run),
            ("--dry-run", arguments.dry_run),
            ("--history", arguments.history),
        )
        if given
    ]
    problems = []
    if len(chosen) > 1:
        problems.append(Problem(" ".join(chosen), "cannot be combined", "one of them"))
    if chosen and chosen != ["--dry-run"] and arguments.jobs is not None:
        problems.append(Problem("--jobs", f"cannot be used with {chosen[0]}", "--jobs alone, or with --dry-run"))
    if arguments.plot is not None and not arguments.history:
        problems.append(Problem("--plot", "needs --history", "--history --plot FILE.svg"))
    if problems:
        raise InputError("the options cannot be used together", problems=tuple(problems))


def _choose_occasion(arguments: argparse.Namespace, folder: ResultFolder, recipe: Recipe) -> tuple[str, int]:
    """The occasion, and how many jobs each configuration has then."""
    if arguments.more is None and not arguments.no_run:
        return new_occasion(folder, recipe, now()), arguments.jobs or recipe.jobs
    name = latest_occasion(folder, recipe)
    done = max((record.spec.repeat + 1 for record in folder.records(name)), default=0)
    return name, max(1, done + (arguments.more or 0))


# -- the command of a recipe


def read_recipe(path: Path) -> tuple[Recipe, dict[str, Any] | None]:
    """Read a recipe file, and the settings of its command if that is a run."""
    return _read_command(load_recipe(path))


def _read_command(recipe: Recipe) -> tuple[Recipe, dict[str, Any] | None]:
    """The recipe with its command replaced by a study file, or by the settings of a run."""
    if recipe.command is None:
        return recipe, None
    program, verb, words = [*recipe.command, "", ""][0], [*recipe.command, "", ""][1], list(recipe.command[2:])
    if program != "steelyard" or verb not in ("run", "study"):
        problem = Problem(
            "command",
            f"{' '.join(recipe.command[:2])} is not run: only steelyard's own results have a known window and scope",
            'a list that begins with "steelyard", "run" or "steelyard", "study"',
        )
        raise InputError("the recipe's command is not accepted", problems=(problem,))
    if verb == "study":
        if len(words) != 1 or words[0].startswith("-"):
            problem = Problem("command", "must name the study file and nothing else", '["steelyard", "study", "FILE"]')
            raise InputError("the recipe's command is not valid", problems=(problem,))
        return dataclasses.replace(recipe, command=None, study=words[0]), None
    parser = make_parser("run")
    defaults = vars(parser.parse_args(["workload"]))
    try:
        if {"-h", "--help"}.intersection(words[: words.index("--") if "--" in words else None]):
            parser.refuse("--help: not an option of a recipe")
        parsed = parser.parse_args(words)
    except OptionError as error:
        problem = Problem("command", error.what, "see steelyard run --help")
        raise InputError("the recipe's command is not valid", problems=(problem,)) from None
    own = tuple(
        Problem(f"command --{key}", "is set by the recipe", "leave it out; `jobs` sets the number of jobs")
        for key in OWN
        if getattr(parsed, key, None) != defaults.get(key)
    )
    if own:
        raise InputError("the recipe's command is not valid", problems=own)
    try:
        return recipe, run_verb.settings(parsed)
    except RecursionError:
        problem = Problem("command", "a value is nested too deeply", "KEY=VALUE with a number or text")
        raise InputError("the recipe's command is not valid", problems=(problem,)) from None
