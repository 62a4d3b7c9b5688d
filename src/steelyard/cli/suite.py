"""List suites, show one, run it, or write its report."""

import argparse
import json
import tempfile
from contextlib import suppress
from pathlib import Path

from steelyard import plugins
from steelyard.analysis.probe import StudyForecast, forecast, short_runs
from steelyard.analysis.summary import summarise
from steelyard.audit import documents
from steelyard.cli.study import Command, carry_out
from steelyard.cli.verb import exit_code
from steelyard.errors import SteelyardError, printable
from steelyard.inputs.study import Expansion, require_registered
from steelyard.inputs.suite import Choice, Part, SuiteFolder, expand_part, find_suite, suite_names, why_left_out
from steelyard.launch.allocation import launcher_here
from steelyard.launch.local_study import run_all
from steelyard.report.render.files import default_name, require_place, write
from steelyard.report.suite.page import suite_page
from steelyard.results.store import ResultFolder
from steelyard.terminal.findings import next_line
from steelyard.terminal.live.progress import Progress, loudness, say
from steelyard.terminal.suite import part_lines, suite_lines, suite_object, suites_lines, suites_object
from steelyard.terminal.text import wrapped

GENERATED = "generated-data"
"""Folder in the results with data sets for the size tiny."""


def run(arguments: argparse.Namespace) -> int:
    """Do the action."""
    actions = {"list": _list, "show": _show, "run": _run, "report": _report}
    return actions[arguments.action](arguments)


def _list(arguments: argparse.Namespace) -> int:
    found = []
    for name in suite_names():
        try:
            found.append(find_suite(name))
        except SteelyardError as error:
            # A broken suite of another package must not hide the others.
            say(f"{name}: {error.what}; see: steelyard suite show {name}")
    print(json.dumps(suites_object(found)) if arguments.json else "\n".join(suites_lines(found)))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    found = find_suite(arguments.suite)
    choice = _choose(arguments, found, make=arguments.probe)
    parts = [part for part in _parts(arguments, found) if why_left_out(found.suite, part, choice) is None]
    expansions = {part.name: expand_part(found, part, choice) for part in parts}
    forecasts = (
        {name: _probe(arguments, expansion) for name, expansion in expansions.items()} if arguments.probe else {}
    )
    suite = found.suite
    cited = documents.provenance(suite.document).cited() if suite.document in documents.names() else suite.cite
    shown = (found, arguments.size, cited, expansions, forecasts)
    print(json.dumps(suite_object(*shown)) if arguments.json else "\n".join(suite_lines(*shown)))
    return 0


def _probe(arguments: argparse.Namespace, expansion: Expansion) -> StudyForecast:
    """Run a few steps of each configuration on this machine."""
    brief, folder = short_runs(expansion), ResultFolder(arguments.results)
    require_registered(brief)
    with Progress(loudness(arguments), brief, folder, too_short=False) as progress:
        run_all(folder, brief, launcher_here(progress.say, list(brief.runs)), progress)
    return forecast(expansion, folder.records(brief.study.name))


def _run(arguments: argparse.Namespace) -> int:
    found = find_suite(arguments.suite)
    choice = _choose(arguments, found, make=not arguments.dry_run)
    code, shown = 0, {}
    parts = []
    for part in _parts(arguments, found):
        if reason := why_left_out(found.suite, part, choice):
            say(f"{part.name}: left out: {reason}")
            continue
        command = Command(("suite", "run", *_words(arguments, part)))
        words = command.inside(arguments.site, _paths(arguments))
        parts.append((part, command, expand_part(found, part, choice, arguments=words)))
    if arguments.site and arguments.wait and not (arguments.dry_run or arguments.extend):
        # All parts into the queue before the first is waited for.
        for _, command, expansion in parts:
            carry_out(argparse.Namespace(**{**vars(arguments), "wait": False}), expansion, command)
    for number, (part, command, expansion) in enumerate(parts, start=1):
        say(f"{part.name} ({number}/{len(parts)}): {part.title}", loudness(arguments))
        answer = carry_out(arguments, expansion, command)
        shown[part.name] = answer.shown
        if not arguments.json:
            lines = part_lines(expansion, summarise(answer.records)) if answer.records else answer.lines
            print("\n".join([f"{part.name}: {part.title}", *lines, ""]), flush=True)
        code = exit_code(answer.records) or answer.code or code
    if arguments.json:
        print(json.dumps(shown))
    elif not arguments.dry_run:
        size = f" --size {arguments.size}"
        print(next_line(f"steelyard suite report {arguments.suite}{size}"))
    return code


def _report(arguments: argparse.Namespace) -> int:
    found = find_suite(arguments.suite)
    path = arguments.output or Path(default_name(f"{found.suite.name}-{arguments.size}", arguments.format))
    require_place(path, arguments.format)
    page = suite_page(ResultFolder(arguments.results), found, arguments.size)
    made = write(page, path, arguments.format)
    if arguments.json:
        sections = [{"name": part.name, "title": part.title, "answer": part.answer} for part in page.sections]
        print(json.dumps({"path": str(made.path), "title": page.title, "sections": sections}))
    else:
        for part in page.sections:
            if part.answer and not part.folded:
                print("\n".join(wrapped(f"{part.title}: {part.answer}")))
        print("", printable(f"{made.path}: {made.size_bytes:,} bytes"), sep="\n")
    return 0


def _parts(arguments: argparse.Namespace, found: SuiteFolder) -> list[Part]:
    return [found.part(arguments.part)] if arguments.part else list(found.suite.part)


def _paths(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the words of the command that are paths."""
    named = () if arguments.suite in suite_names() else (arguments.suite,)
    return (*named, str(arguments.data)) if arguments.data else named


def _words(arguments: argparse.Namespace, part: Part) -> list[str]:
    """Return the options that name this part of the suite again."""
    words = [arguments.suite, "--part", part.name, "--size", arguments.size]
    if arguments.devices:
        words += ["--devices", ",".join(map(str, arguments.devices))]
    return [*words, "--data", str(arguments.data)] if arguments.data else words


# -- data


def _choose(arguments: argparse.Namespace, found: SuiteFolder, *, make: bool) -> Choice:
    """Return what the user chose, with the folders of data sets; with the size tiny they may be generated."""
    folders: dict[str, Path] = {}
    needed = {entry.format: entry for entry in found.suite.data}
    if arguments.data is not None:
        # A folder that is not on this machine is that of a site.
        there = arguments.data.is_dir()
        folders = {
            name: arguments.data.absolute() / name for name in needed if not there or (arguments.data / name).is_dir()
        }
        missing = [name for name in needed if name not in folders]
        if missing:
            say(f"not in {arguments.data}, so synthetic: {', '.join(missing)}")
    elif arguments.size == "tiny" and not getattr(arguments, "site", None):
        for name, entry in needed.items():
            folders[name] = (arguments.results / GENERATED / f"{name}-{entry.tiny_samples}").absolute()
            if make:
                _generate(name, entry.tiny_samples, folders[name])
    return Choice(arguments.size, arguments.devices, folders)


def _generate(name: str, samples: int, path: Path) -> None:
    """Make a data set, unless it is there; under another name until it is complete."""
    if path.is_dir():
        return
    form = plugins.load("data", name)
    with tempfile.TemporaryDirectory(dir=_made(path.parent)) as place:
        form.make(Path(place) / name, samples, 0)
        with suppress(OSError):
            # Another process may have made it in the meantime.
            (Path(place) / name).rename(path)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
