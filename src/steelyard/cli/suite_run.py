"""Show a suite, run it, or write its report. `cli.suite` lists them without what this imports."""

import argparse
import shlex
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from steelyard import hostinfo, plugins
from steelyard.analysis.probe import StudyForecast, forecast, short_runs
from steelyard.audit import documents
from steelyard.cli.study import Command, carry_out, path_inside
from steelyard.cli.verb import exit_code
from steelyard.errors import InputError, Problem, printable, refusal
from steelyard.inputs.study import Expansion, require_registered
from steelyard.inputs.suite import (
    Choice,
    Part,
    Size,
    SuiteFolder,
    data_formats,
    expand_part,
    find_suite,
    why_left_out,
)
from steelyard.inputs.suites import suite_names
from steelyard.launch.allocation import launcher_here
from steelyard.launch.local_study import run_all
from steelyard.report.render.files import default_name, require_place, write
from steelyard.report.suite.page import measured_sizes, suite_page
from steelyard.results.store import ResultFolder
from steelyard.terminal.document import print_json
from steelyard.terminal.findings import next_line
from steelyard.terminal.live.progress import Progress, loudness, say
from steelyard.terminal.suite import SuiteShown, part_lines, suite_lines, suite_object
from steelyard.terminal.text import wrapped

GENERATED = "generated-data"
"""Folder in the results with data sets for the size tiny."""


def show(arguments: argparse.Namespace) -> int:
    """Say what a suite measures, states, needs and costs."""
    suite_folder = find_suite(arguments.suite)
    choice = _choose(arguments, suite_folder, make=arguments.probe)
    reasons = {part.name: why_left_out(suite_folder.suite, part, choice) for part in _parts(arguments, suite_folder)}
    parts = [part for part in _parts(arguments, suite_folder) if reasons[part.name] is None]
    expansions = {part.name: expand_part(suite_folder, part, choice) for part in parts}
    forecasts = (
        {name: _probe(arguments, expansion) for name, expansion in expansions.items()} if arguments.probe else {}
    )
    suite = suite_folder.suite
    cited = documents.provenance(suite.document).cited() if suite.document in documents.names() else suite.cite
    left_out = {name: reason for name, reason in reasons.items() if reason}
    shown = SuiteShown(suite_folder, arguments.size, cited, expansions, forecasts, left_out)
    again = shlex.join(["steelyard", "suite", "run", *_words(arguments, None)])
    if arguments.json:
        print_json(suite_object(shown))
    else:
        print("\n".join(suite_lines(shown, again)))
    return 0


def _probe(arguments: argparse.Namespace, expansion: Expansion) -> StudyForecast:
    """Run a few steps of each configuration on this machine."""
    brief, folder = short_runs(expansion), ResultFolder(arguments.results)
    require_registered(brief)
    with Progress(loudness(arguments), brief, folder, too_short=False) as progress:
        run_all(folder, brief, launcher_here(progress.say, list(brief.runs)), progress)
    return forecast(expansion, folder.records(brief.study.name))


def run(arguments: argparse.Namespace) -> int:
    """Run the parts of a suite one after the other, or submit them; exit code 1 when a run did not complete."""
    parts = _planned(arguments)
    _require_accelerator(arguments, parts)
    if not (arguments.again or arguments.extend or arguments.dry_run):
        # What refused a run before, such as a missing folder, may be there now; asking again costs nothing.
        arguments.again = "refused"
    if arguments.site and arguments.wait and not (arguments.dry_run or arguments.extend):
        # All parts into the queue before the first is waited for.
        for _, command, expansion in parts:
            carry_out(argparse.Namespace(**{**vars(arguments), "wait": False}), expansion, command)
        arguments.again = None
    code, shown, measured = 0, {}, False
    for number, (part, command, expansion) in enumerate(parts, start=1):
        say(f"{part.name} ({number}/{len(parts)}): {part.title}", loudness(arguments))
        answer = carry_out(arguments, expansion, command)
        shown[part.name] = answer.shown
        if not arguments.json:
            lines = [*part_lines(expansion, answer.cells), answer.note] if answer.cells else answer.lines
            print("\n".join([*filter(None, lines), ""]), flush=True)
        code = exit_code(answer.records) or answer.code or code
        measured |= any("completed" in cell.statuses for cell in answer.cells)
    if arguments.json:
        print_json({"shape": "suite-run/1", "parts": shown})
    elif measured:
        print(next_line(shlex.join(["steelyard", "suite", "report", arguments.suite, "--size", arguments.size])))
    return code


def _require_accelerator(arguments: argparse.Namespace, parts: list[tuple[Part, Command, Expansion]]) -> None:
    """Refuse sizes that need an accelerator on a machine without one: on its CPUs they take days."""
    if arguments.size == "tiny" or arguments.site or arguments.wait or arguments.dry_run:
        return
    files = (Path("/dev").glob(pattern) for pattern in hostinfo.ACCELERATOR_FILES.values())
    wanted = any(spec.device_family == "auto" for _, _, expansion in parts for spec in expansion.runs)
    if wanted and not any(any(paths) for paths in files):
        what = f"this machine has no accelerator, which the size {arguments.size} needs"
        raise InputError(what, next_step=f"steelyard suite run {arguments.suite} --size tiny")


def _planned(arguments: argparse.Namespace) -> list[tuple[Part, Command, Expansion]]:
    """Return the parts that can run, each with its command and its runs."""
    suite_folder = find_suite(arguments.suite)
    choice = _choose(arguments, suite_folder, make=not arguments.dry_run)
    parts = []
    for part in _parts(arguments, suite_folder):
        if reason := why_left_out(suite_folder.suite, part, choice):
            say(f"{part.name}: left out: {reason}")
            continue
        words = ("suite", "run", *_words(arguments, part))
        command = Command(words, trial=arguments.size == "tiny", repeats_refused=not arguments.again)
        named = command.inside(arguments.site, _paths(arguments))
        expansion = expand_part(suite_folder, part, choice, arguments=named)
        # Before the first part runs.
        require_registered(expansion)
        parts.append((part, command, expansion))
    if not parts:
        raise InputError("nothing can run with these options", next_step=f"steelyard suite show {arguments.suite}")
    return parts


def report(arguments: argparse.Namespace) -> int:
    """Write the report of a suite's results."""
    suite_folder = find_suite(arguments.suite)
    arguments.size = arguments.size or _only_size(arguments, suite_folder)
    path = arguments.output or Path(default_name(f"{suite_folder.suite.name}-{arguments.size}", arguments.format))
    require_place(path, arguments.format)
    page = suite_page(ResultFolder(arguments.results), suite_folder, arguments.size)
    made = write(page, path, arguments.format)
    if arguments.json:
        sections = [{"name": part.name, "title": part.title, "answer": part.answer} for part in page.sections]
        print_json({"shape": "suite-report/1", "path": str(made.path), "title": page.title, "sections": sections})
    else:
        for part in page.sections:
            if part.answer and not part.folded:
                print("\n".join(wrapped(f"{part.title}: {part.answer}")))
        print("", printable(f"{made.path}: {made.size_bytes:,} bytes"), sep="\n")
    return 0


def _only_size(arguments: argparse.Namespace, suite_folder: SuiteFolder) -> Size:
    """Return the size of which there are runs; InputError if there is none, or several."""
    sizes = measured_sizes(ResultFolder(arguments.results), suite_folder)
    if len(sizes) == 1:
        return sizes[0]
    if not sizes:
        what = f"there are no results of {suite_folder.suite.name} in {arguments.results}"
        raise InputError(what, next_step=f"steelyard suite run {suite_folder.asked} --size tiny")
    what = f"--size: there are results of several sizes: {', '.join(sizes)}"
    raise InputError(what, next_step=f"steelyard suite report {suite_folder.asked} --size {sizes[0]}")


def _parts(arguments: argparse.Namespace, suite_folder: SuiteFolder) -> list[Part]:
    return [suite_folder.part(arguments.part)] if arguments.part else list(suite_folder.suite.part)


def _paths(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the words of the command that are paths."""
    return () if arguments.suite in suite_names() else (arguments.suite,)


def _words(arguments: argparse.Namespace, part: Part | None) -> list[str]:
    """Return the options that name this part of the suite again; None: those that were given."""
    name = part.name if part is not None else arguments.part
    words = [arguments.suite, *(["--part", name] if name else []), "--size", arguments.size]
    if arguments.devices:
        words += ["--devices", ",".join(map(str, arguments.devices))]
    # Findings show the command: a folder elsewhere may be private.
    return [*words, "--data", path_inside(str(arguments.data)) or "DIR"] if arguments.data else words


# -- data


def _choose(arguments: argparse.Namespace, suite_folder: SuiteFolder, *, make: bool) -> Choice:
    """Return what the user chose, with the folders of data sets; with the size tiny they may be generated."""
    chosen = Choice(arguments.size, arguments.devices)
    used = {name for part in _parts(arguments, suite_folder) for name in data_formats(suite_folder.suite, part)}
    needed = {entry.format: entry for entry in suite_folder.suite.data if entry.format in used}
    if arguments.data is not None:
        return replace(chosen, data={name: _data_folder(arguments, name) for name in needed})
    folders: dict[str, Path] = {}
    if arguments.size == "tiny" and not getattr(arguments, "site", None):
        for name, entry in needed.items():
            folders[name] = (arguments.results / GENERATED / f"{name}-{entry.tiny_samples}").absolute()
            if make:
                _generate(name, entry.tiny_samples, folders[name])
    return replace(chosen, data=folders)


def _data_folder(arguments: argparse.Namespace, name: str) -> Path:
    """Return the folder of a data set below --data; that of a site need not be on this machine."""
    path: Path = arguments.data.absolute() / name
    if path.is_dir() or (getattr(arguments, "site", None) and not arguments.data.is_dir()):
        return path
    near = f"--data {arguments.data.parent}" if arguments.data.name == name else ""
    problem = Problem(
        f"--data {arguments.data}", f"{name} is not there", f"a folder with the data set in {name}/", near=near
    )
    raise refusal(problem, next_step=None if near else f"steelyard data show {name}")


def _generate(name: str, samples: int, path: Path) -> None:
    """Make a data set, unless it is there; under another name until it is complete."""
    if path.is_dir():
        return
    form = plugins.load("data", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as place:
        form.make(Path(place) / name, samples, 0)
        with suppress(OSError):
            # Another process may have made it in the meantime.
            (Path(place) / name).rename(path)
