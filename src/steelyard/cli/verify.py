"""Run a documented recipe and hold it against its stated figure: pass, fail, or cannot tell."""

import argparse
import dataclasses
import json
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

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
from steelyard.cli.verb import add_loudness, add_results
from steelyard.contracts.record import RunRecord
from steelyard.errors import InputError, Problem, printable
from steelyard.inputs.recipe import Recipe, load_recipe, plan
from steelyard.inputs.study import Expansion, require_registered
from steelyard.launch.allocation import launcher_here
from steelyard.launch.local_study import run_all
from steelyard.report.charts.history import verified_chart
from steelyard.report.render.draw import svg
from steelyard.results.store import ResultFolder
from steelyard.terminal.live.progress import Loudness, Progress, loudness
from steelyard.terminal.verify import (
    history_lines,
    history_object,
    outcomes_object,
    plan_lines,
    plan_object,
    verdict_lines,
)

# Options of `steelyard run` that verify decides itself.
OWN = ("repeats", "study", "seed", "results", "json")


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument("file", type=Path, help="recipe file (TOML)")
    parser.add_argument("--jobs", type=int, help="fresh launches, instead of the recipe's own number")
    parser.add_argument("--more", type=int, metavar="N", help="add N jobs to the latest ones and judge all of them")
    parser.add_argument("--no-run", action="store_true", help="run nothing: judge the latest jobs again")
    parser.add_argument(
        "--dry-run", action="store_true", help="run nothing: show what would be run and held against what"
    )
    parser.add_argument(
        "--history", action="store_true", help="run nothing: the figure over time, and where it changed"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.svg",
        help="with --history: draw it too; a recipe's second figure goes to FILE-2.svg, and so on",
    )  # fmt: skip
    add_loudness(parser)
    add_results(parser)
    parser.set_defaults(default_results=parser.get_default("results"))


def run(arguments: argparse.Namespace) -> int:
    """Run and judge; exit code 0 for a pass, 1 for a fail and where it cannot be told."""
    _check_options(arguments)
    recipe = load_recipe(arguments.file)
    recipe, settings = _read_command(recipe)
    folder, place = ResultFolder(arguments.results), arguments.file.parent
    name, jobs = _choose_occasion(arguments, folder, recipe)
    expansion = plan(recipe, place, name=name, jobs=jobs, run=settings)
    require_registered(expansion)
    if arguments.dry_run:
        _say(arguments, plan_object(recipe, expansion), plan_lines(recipe, expansion))
        return 0
    if arguments.history:
        found = history(folder, recipe, expansion)
        lines = [line for entry in found for line in history_lines(recipe, entry)]
        _say(arguments, [history_object(entry) for entry in found], lines)
        for number, entry in enumerate(found if arguments.plot is not None else (), 1):
            path = arguments.plot if number == 1 else arguments.plot.with_stem(f"{arguments.plot.stem}-{number}")
            path.write_text(svg(verified_chart(entry, f"history-{number}")), encoding="utf-8")
            print(printable(f"picture of {entry.expect.metric}: {path}"), file=sys.stderr)
        return 0
    if arguments.more is not None:
        require_begun(folder, expansion)
    elif not arguments.no_run:
        begin_occasion(folder, name)
    if not arguments.no_run:
        with _Watch(recipe, expansion, loudness(arguments), folder) as watch:
            run_all(folder, expansion, launcher_here(watch.say), watch)
    outcomes = judge_records(recipe, expansion, list(folder.records(name)))
    verdict, past = overall(outcomes), len(occasions(folder, recipe))
    # The command line that means this recipe and these results.
    path = str(arguments.file)
    words = ["steelyard", "verify", f"./{path}" if path.startswith("-") else path]
    if arguments.results != arguments.default_results:
        words += ["--results", str(arguments.results)]
    again = shlex.join(words)
    lines = verdict_lines(recipe, outcomes, again=again, study=name)
    if past > 1:
        lines.append(printable(f"{past} occasions so far: {again} --history"))
    data = {"recipe": recipe.name, "occasion": name, "verdict": verdict, "figures": outcomes_object(outcomes)}
    _say(arguments, data, lines)
    return 0 if verdict == "pass" else 1


class _Watch(Progress):
    """Shows progress, and stops at the first job if the recipe names a figure that no job has."""

    def __init__(self, recipe: Recipe, expansion: Expansion, loud: Loudness, folder: ResultFolder) -> None:
        super().__init__(loud, expansion, folder)
        self._recipe, self._expansion = recipe, expansion

    def end(self, record: RunRecord, done: int, total: int) -> None:
        """A run has its record."""
        super().end(record, done, total)
        require_figures(self._recipe, self._expansion, record)


def _say(arguments: argparse.Namespace, data: Any, lines: list[str]) -> None:
    print(json.dumps(data, allow_nan=False) if arguments.json else "\n".join(lines))


def now() -> datetime:
    """The time that names an occasion."""
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
        problems.append(Problem(" ".join(chosen), "ask for different things", "one of them"))
    if chosen and chosen != ["--dry-run"] and arguments.jobs is not None:
        problems.append(Problem("--jobs", f"has no meaning with {chosen[0]}", "--jobs alone"))
    if arguments.plot is not None and not arguments.history:
        problems.append(Problem("--plot", "has no meaning without --history", "--history --plot FILE.svg"))
    problems += [
        Problem(f"--{key}", f"{value} jobs", "from 1 to 1000")
        for key in ("jobs", "more")
        if (value := getattr(arguments, key)) is not None and not 1 <= value <= 1000
    ]
    if problems:
        raise InputError("the options are not valid", problems=tuple(problems))


def _choose_occasion(arguments: argparse.Namespace, folder: ResultFolder, recipe: Recipe) -> tuple[str, int]:
    """The occasion, and how many jobs of each cell it shall have."""
    if arguments.more is None and not arguments.no_run:
        return new_occasion(folder, recipe, now()), arguments.jobs or recipe.jobs
    name = latest_occasion(folder, recipe)
    there = max((record.spec.repeat + 1 for record in folder.records(name)), default=0)
    return name, max(1, there + (arguments.more or 0))


# -- the command of a recipe


class _Words(argparse.ArgumentParser):
    """Errors in a recipe's command are errors of the recipe, not of what was typed."""

    def error(self, message: str) -> NoReturn:
        raise InputError(
            "the recipe's command is not valid", problems=(Problem("command", message, "see steelyard run --help"),)
        )


def _read_command(recipe: Recipe) -> tuple[Recipe, dict[str, Any] | None]:
    """The recipe with its command read: as a study's file or as the settings of a run."""
    if recipe.command is None:
        return recipe, None
    program, verb, words = [*recipe.command, "", ""][0], [*recipe.command, "", ""][1], list(recipe.command[2:])
    if program != "steelyard" or verb not in ("run", "study"):
        problem = Problem(
            "command",
            f"{' '.join(recipe.command[:2])!r} is not run: only steelyard's own figures have a known window and scope",
            'a list of words that begins "steelyard", "run" or "steelyard", "study"',
        )
        raise InputError("the recipe's command is not accepted", problems=(problem,))
    if verb == "study":
        if len(words) != 1 or words[0].startswith("-"):
            problem = Problem(
                "command", "it must name the study's file and nothing else", '["steelyard", "study", "FILE"]'
            )
            raise InputError("the recipe's command is not valid", problems=(problem,))
        return dataclasses.replace(recipe, command=None, study=words[0]), None
    parser = _Words(prog="steelyard run", add_help=False, allow_abbrev=False)
    run_verb.configure(parser)
    defaults = vars(parser.parse_args(["workload"]))
    parsed = parser.parse_args(words)
    own = tuple(
        Problem(f"command --{key}", "is decided by the recipe", "leave it out; `jobs` says how many")
        for key in OWN
        if getattr(parsed, key, None) != defaults.get(key)
    )
    if own:
        raise InputError("the recipe's command is not valid", problems=own)
    try:
        return recipe, run_verb.settings(parsed)
    except RecursionError:
        problem = Problem("command", "a value is nested too deeply", "KEY=VALUE with a number or a text")
        raise InputError("the recipe's command is not valid", problems=(problem,)) from None
