"""Show a suite, run it, or write its report. `cli.suite` lists them without what this imports."""

import argparse
import shlex
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from steelyard import plugins
from steelyard.analysis.hours import TimedPart
from steelyard.analysis.probe import StudyForecast, forecast, short_runs
from steelyard.audit import documents
from steelyard.cli.study import Command, StudyAnswer, carry_out, clear, path_inside, refuse_under_way, results_of
from steelyard.cli.suite_hours import InTime, run_in_time
from steelyard.cli.verb import exit_code
from steelyard.errors import InputError, Problem, printable, refusal
from steelyard.extras import line_for_modules
from steelyard.inputs.devices import PlaceDevices
from steelyard.inputs.packages import missing_packages
from steelyard.inputs.site import find_place
from steelyard.inputs.study import Expansion, require_registered
from steelyard.inputs.suite import (
    Choice,
    NotRun,
    Part,
    Planned,
    Size,
    SuiteFolder,
    expand_part,
    find_suite,
    left_out,
    plan_part,
    running,
    study_name,
    why_left_out,
)
from steelyard.inputs.suites import suite_names
from steelyard.launch.allocation import devices_here, launcher_here
from steelyard.launch.local_study import Outcome, run_all
from steelyard.launch.plan import campaigns
from steelyard.report.page import Page
from steelyard.report.render.csv_table import table_object
from steelyard.report.render.files import default_name, require_place, write
from steelyard.report.suite.against import CONDITIONS_OF_TWO
from steelyard.report.suite.against import NAME as AGAINST
from steelyard.report.suite.answers import KIND
from steelyard.report.suite.beside import SuiteResults
from steelyard.report.suite.page import measured_sizes, suite_page
from steelyard.report.suite.reached import NAME as REACHED
from steelyard.results.store import ResultFolder
from steelyard.terminal.document import print_json
from steelyard.terminal.findings import next_line
from steelyard.terminal.live.progress import Progress, loudness, say
from steelyard.terminal.suite import (
    SuiteShown,
    left_out_lines,
    left_out_object,
    packages_line,
    part_lines,
    settings_lines,
    suite_lines,
    suite_object,
)
from steelyard.terminal.text import table, wrapped

GENERATED = "generated-data"
"""Folder in the results with data sets for the size tiny."""


@dataclass(frozen=True)
class _Selected:
    """What runs of a suite, and what does not."""

    choice: Choice
    parts: tuple[Part, ...]
    left_out: tuple[NotRun, ...]


def show(arguments: argparse.Namespace) -> int:
    """Say what a suite measures, states, needs and costs."""
    suite_folder = find_suite(arguments.suite)
    selected = _select(arguments, suite_folder)
    expansions = {part.name: expand_part(suite_folder, part, selected.choice) for part in selected.parts}
    missing = missing_packages({name: expansion.runs for name, expansion in expansions.items()})
    if arguments.probe:
        _require_packages(missing)
        _generate_all(suite_folder, selected)
    forecasts = (
        {name: _probe(arguments, expansion) for name, expansion in expansions.items()} if arguments.probe else {}
    )
    suite = suite_folder.suite
    cited = documents.provenance(suite.document).cited() if suite.document in documents.names() else suite.cite
    shown = SuiteShown(suite_folder, selected.choice, cited, expansions, forecasts, selected.left_out, missing)
    words = _words(arguments, None)
    if arguments.json:
        print_json(suite_object(shown))
    elif arguments.settings:
        print("\n".join(settings_lines(shown)))
    else:
        settings = shlex.join(["steelyard", "suite", "show", *words, "--settings"])
        words += ["--synthetic"] if _lacks_input(arguments) and _formats(suite_folder, selected) else []
        if lacking := _lacks_accelerator(arguments, suite_folder, selected):
            say(lacking)
            words = [arguments.suite, "--size", "tiny"]
        print("\n".join(suite_lines(shown, settings, shlex.join(["steelyard", "suite", "run", *words]))))
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
    begun_s = time.monotonic()
    _refuse_beside_hours(arguments)
    suite_folder = find_suite(arguments.suite)
    selected = _select(arguments, suite_folder)
    parts = _planned(arguments, suite_folder, selected)
    if not arguments.dry_run:
        _generate_all(suite_folder, selected)
    if not (arguments.again or arguments.extend or arguments.dry_run):
        # What refused a run before, such as a missing folder, may be there now; asking again costs nothing.
        arguments.again = "refused"
    if arguments.site and arguments.wait and not (arguments.dry_run or arguments.extend):
        # All parts into the queue before the first is waited for.
        for _, command, expansion in parts:
            carry_out(argparse.Namespace(**{**vars(arguments), "wait": False}), expansion, command)
        arguments.again = None
    if arguments.hours is None or arguments.dry_run:
        return _print_parts(arguments, selected, _one_by_one(arguments, parts))
    in_time = _run_in_time(arguments, suite_folder, selected, parts, begun_s)
    return _print_parts(arguments, selected, _made_in_time(arguments, parts, in_time), in_time)


def _print_parts(
    arguments: argparse.Namespace,
    selected: _Selected,
    answers: Iterator[tuple[Part, Expansion, StudyAnswer]],
    in_time: InTime | None = None,
) -> int:
    """Print what each part did, then what was left out of a limited time; return the exit code."""
    shown, code, measured = {}, exit_code(in_time.short if in_time is not None else ()), False
    for part, expansion, answer in answers:
        shown[part.name] = answer.shown
        if not arguments.json:
            _print_part(arguments, expansion, answer)
        code = exit_code(answer.records) or answer.code or code
        measured |= any("completed" in cell.statuses for cell in answer.cells)
    found = in_time.left_out if in_time is not None else ()
    if arguments.json:
        left = left_out_object([*selected.left_out, *found], selected.choice)
        print_json({"shape": "suite-run/1", "parts": shown, "left_out": left})
        return code
    if in_time is not None:
        rest = [f"The rest: {_again(arguments)}"] if any(entry.why == "hours" for entry in found) else []
        told = [in_time.measured, *left_out_lines(found, selected.choice), *rest]
        print("\n".join([*(line for text in told for line in wrapped(text)), ""]))
    if measured:
        print(next_line(shlex.join(["steelyard", "suite", "report", arguments.suite, "--size", arguments.size])))
    return code


def _print_part(arguments: argparse.Namespace, expansion: Expansion, answer: StudyAnswer) -> None:
    lines = answer.lines
    if answer.cells:
        lines = [*part_lines(expansion, answer.cells, arguments.size), answer.note]
    print("\n".join([*filter(None, lines), ""]), flush=True)


def _one_by_one(
    arguments: argparse.Namespace, parts: Sequence[tuple[Part, Command, Expansion]]
) -> Iterator[tuple[Part, Expansion, StudyAnswer]]:
    """Run or submit one part after the other, and yield what it did."""
    for number, (part, command, expansion) in enumerate(parts, start=1):
        _announce(arguments, f"{part.name} ({number}/{len(parts)}): {part.title}")
        yield part, expansion, carry_out(arguments, expansion, command)


# -- in a limited time


def _refuse_beside_hours(arguments: argparse.Namespace) -> None:
    """Refuse what has no end that is known here: a queue, or jobs that a finding asks for."""
    named = [word for word in ("site", "wait", "extend") if getattr(arguments, word)]
    if arguments.hours is not None and named:
        what = f"--hours is for runs on this machine, and not together with --{named[0]}"
        raise InputError(what, next_step=f"{_again(arguments)} --hours {arguments.hours:g}")


def _run_in_time(
    arguments: argparse.Namespace,
    suite_folder: SuiteFolder,
    selected: _Selected,
    parts: Sequence[tuple[Part, Command, Expansion]],
    begun_s: float,
) -> InTime:
    """Run what fits into --hours, and say what does not."""
    folder, suite, timed = ResultFolder(arguments.results), suite_folder.suite, []
    printed = SuiteResults(folder, suite_folder, arguments.size)
    for part, command, expansion in parts:
        refuse_under_way(folder, expansion.study.name)
        clear(arguments, expansion, folder, command)
        clear(arguments, short_runs(expansion), folder, command)
        planned = running(suite, part, selected.choice)
        figures = tuple(printed.count_figures(planned)) if suite.document else None
        timed.append(TimedPart(part.name, expansion, tuple(planned), figures))
    return run_in_time(arguments, timed, selected.choice, begun_s, _again(arguments))


def _made_in_time(
    arguments: argparse.Namespace, parts: Sequence[tuple[Part, Command, Expansion]], in_time: InTime
) -> Iterator[tuple[Part, Expansion, StudyAnswer]]:
    """Yield what there is of each part; nothing of a part without a run."""
    folder = ResultFolder(arguments.results)
    for part, _, expansion in parts:
        there, made = folder.run_ids(expansion.study.name), in_time.made[part.name]
        if there:
            _announce(arguments, f"{part.name}: {part.title}")
            yield part, expansion, results_of(expansion, folder, Outcome(tuple(made), len(there) - len(made)))


def _announce(arguments: argparse.Namespace, heading: str) -> None:
    """Name a part; in a dry run with its plan, which says nothing without its name."""
    if arguments.dry_run and not arguments.json:
        print(heading)
    else:
        say(heading, loudness(arguments))


def _planned(
    arguments: argparse.Namespace, suite_folder: SuiteFolder, selected: _Selected
) -> list[tuple[Part, Command, Expansion]]:
    """Return the parts that run, each with its command and its runs; refuse before the first what cannot start."""
    here = not (arguments.site or arguments.wait)
    if here and (lacking := _lacks_accelerator(arguments, suite_folder, selected)):
        if not arguments.dry_run:
            raise InputError(lacking, next_step=f"steelyard suite run {arguments.suite} --size tiny")
        say(lacking)
    if _lacks_input(arguments) and (formats := _formats(suite_folder, selected)):
        again = _again(arguments)
        what = f"{suite_folder.suite.name} reads data sets ({', '.join(formats)}), and none is named"
        raise InputError(what, next_step=f"{again} --data DIR, or {again} --synthetic")
    for line in left_out_lines(selected.left_out, selected.choice):
        say(line)
    if arguments.hours is not None and arguments.dry_run:
        say("What fits into --hours is known after short runs; this is all that there is to choose from.")
    if not selected.parts:
        raise InputError("nothing can run with these options", next_step=f"steelyard suite show {arguments.suite}")
    parts = []
    for part in selected.parts:
        words = ("suite", "run", *_words(arguments, part))
        command = Command(words, trial=arguments.size == "tiny", repeats_refused=not arguments.again)
        named = command.inside(arguments.site, _paths(arguments))
        expansion = expand_part(suite_folder, part, selected.choice, arguments=named)
        require_registered(expansion)
        parts.append((part, command, expansion))
    missing = missing_packages({part.name: expansion.runs for part, _, expansion in parts}) if here else {}
    if not arguments.dry_run:
        _require_packages(missing)
    elif missing:
        say(f"{packages_line(missing)}: {line_for_modules(missing)}")
    return parts


def _require_packages(missing: dict[str, list[str]]) -> None:
    """Refuse parts whose workload cannot be imported."""
    if missing:
        raise InputError(packages_line(missing), next_step=line_for_modules(missing))


def _lacks_accelerator(arguments: argparse.Namespace, suite_folder: SuiteFolder, selected: _Selected) -> str:
    """Return that this machine has no accelerator if the size needs one: on CPUs it takes days; empty: it can run."""
    wanted = any(planned.device_family == "auto" for planned in _running(suite_folder, selected))
    there = devices_here()
    if arguments.size == "tiny" or not wanted or there is None or there.per_node:
        return ""
    return f"this machine has no accelerator, which the size {arguments.size} needs"


def report(arguments: argparse.Namespace) -> int:
    """Write the report of a suite's results."""
    suite_folder = find_suite(arguments.suite)
    arguments.size = arguments.size or _only_size(arguments, suite_folder)
    path = arguments.output or Path(default_name(f"{suite_folder.suite.name}-{arguments.size}", arguments.format))
    require_place(path, arguments.format)
    against = _other_results(arguments, suite_folder) if arguments.against is not None else None
    page = suite_page(ResultFolder(arguments.results), suite_folder, arguments.size, against)
    made = write(page, path, arguments.format)
    if arguments.json:
        sections = [{"name": part.name, "title": part.title, "answer": part.answer} for part in page.all_sections]
        answers = [table_object(one) for one in page.tables if one.columns[0] == KIND]
        about = {"shape": "suite-report/1", "path": str(made.path), "title": page.title}
        print_json(about | {"sections": sections, "answers": answers})
    else:
        for part in page.all_sections:
            if part.answer and not part.folded:
                print("\n".join(wrapped(f"{part.title}: {part.answer}")))
        for line in _tables_as_lines(page):
            print(line)
        print("", printable(f"{made.path}: {made.size_bytes:,} bytes"), sep="\n")
    return 0


def _tables_as_lines(page: Page) -> Iterator[str]:
    """Yield what the terminal shows too: what a machine reaches, and the ratios of two machines."""
    by_name = {one.name: one for one in page.tables}
    for shown in (by_name[name] for name in (REACHED, AGAINST) if name in by_name):
        heads = [" ".join(filter(None, (column.name, column.unit))) for column in shown.columns]
        yield from ("", table(heads, [[cell.text for cell in row] for row in shown.rows]))
        conditions = by_name.get(CONDITIONS_OF_TWO) if shown.name == AGAINST else None
        letters = [f"({row[0].text}) {row[1].text}" for row in conditions.rows] if conditions is not None else []
        yield from (line for note in (*shown.notes, *letters) for line in wrapped(note))


def _other_results(arguments: argparse.Namespace, suite_folder: SuiteFolder) -> ResultFolder:
    """Return the results of another machine; InputError if they are not of this suite and size."""
    folder, name = ResultFolder(arguments.against), suite_folder.suite.name
    sizes = measured_sizes(folder, suite_folder)
    if arguments.size in sizes:
        return folder
    there = f"{name} with the size {', '.join(sizes)}" if sizes else ", ".join(folder.studies()[:5]) or "no results"
    problem = Problem(f"--against {arguments.against}", f"has {there}", f"results of {name}, size {arguments.size}")
    run = shlex.join(["steelyard", "suite", "run", suite_folder.asked, "--size", arguments.size])
    raise refusal(problem, next_step=f"on that machine: {run}")


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
    if arguments.synthetic:
        words.append("--synthetic")
    # Findings show the command: a folder elsewhere may be private.
    if arguments.weights:
        words += ["--weights", path_inside(str(arguments.weights)) or "DIR"]
    return [*words, "--data", path_inside(str(arguments.data)) or "DIR"] if arguments.data else words


def _again(arguments: argparse.Namespace) -> str:
    """Return the command that runs the same parts."""
    return shlex.join(["steelyard", "suite", "run", *_words(arguments, None)])


# -- devices and data


def _select(arguments: argparse.Namespace, suite_folder: SuiteFolder) -> _Selected:
    """Return what runs on the devices that there are and with the data that the user gives."""
    suite, parts = suite_folder.suite, _parts(arguments, suite_folder)
    hours = getattr(arguments, "hours", None)
    chosen = Choice(arguments.size, arguments.devices, _devices(arguments, suite_folder), hours=hours)
    planned = [entry for part in parts for entry in plan_part(suite, part, chosen)]
    used = sorted({entry.reads for entry in planned if entry.reads and why_left_out(entry, chosen) != "devices"})
    if arguments.data is not None:
        chosen = replace(chosen, data=_data_folders(arguments, used), synthetic=False)
    elif arguments.size == "tiny" and not getattr(arguments, "site", None):
        place = (arguments.results / GENERATED).absolute()
        made = [entry for entry in suite.data if entry.format in used]
        folders = {entry.format: place / f"{entry.format}-{entry.tiny_samples}" for entry in made}
        chosen = replace(chosen, data=folders)
    if arguments.weights is not None:
        chosen = replace(chosen, weights=_weight_files(arguments, planned))
    reasons = [entry for part in parts for entry in left_out(suite, part, chosen)]
    without = {entry.part for entry in reasons if entry.whole}
    return _Selected(chosen, tuple(part for part in parts if part.name not in without), tuple(reasons))


def _devices(arguments: argparse.Namespace, suite_folder: SuiteFolder) -> PlaceDevices | None:
    """Return the devices that runs can have; None: unknown, or the user says how many."""
    if arguments.devices:
        return None
    if site := getattr(arguments, "site", None):
        place = find_place(site)
    elif getattr(arguments, "wait", False):
        names = [study_name(suite_folder.suite, part, arguments.size) for part in _parts(arguments, suite_folder)]
        sent = [campaign for name in names for campaign in campaigns(ResultFolder(arguments.results), name)]
        if not sent:
            return None
        place = sent[-1].plan.place
    else:
        there = devices_here()
        # On CPUs any number of ranks can run.
        return there if there is not None and there.per_node else None
    pool = place.pool
    return PlaceDevices(f"pool {place.pool_name} of {place.site.name}", pool.devices_per_node, pool.max_nodes)


def _lacks_input(arguments: argparse.Namespace) -> bool:
    """Return whether the user has not said what the input is, at a size that does not make its own."""
    return arguments.size != "tiny" and arguments.data is None and not arguments.synthetic


def _formats(suite_folder: SuiteFolder, selected: _Selected) -> list[str]:
    """Return the formats of the data sets that the selected parts can read."""
    return sorted({planned.reads for planned in _running(suite_folder, selected) if planned.reads})


def _running(suite_folder: SuiteFolder, selected: _Selected) -> list[Planned]:
    """Return the configurations that run."""
    return [entry for part in selected.parts for entry in running(suite_folder.suite, part, selected.choice)]


def _data_folders(arguments: argparse.Namespace, formats: list[str]) -> dict[str, Path]:
    """Return the data sets below --data; those of a site need not be on this machine."""
    given: Path = arguments.data
    folders = {name: given.absolute() / name for name in formats}
    if getattr(arguments, "site", None) and not given.is_dir():
        return folders
    there = {name: path for name, path in folders.items() if path.is_dir() and any(path.iterdir())}
    if not given.is_dir():
        raise refusal(Problem(f"--data {given}", "no such folder", "a folder with data sets"))
    if formats and not there:
        near = f"--data {given.parent}" if given.name in formats else ""
        listed = ", ".join(f"{name}/" for name in formats)
        valid = f"a folder with {'' if len(formats) == 1 else 'one of '}{listed}"
        problem = Problem(f"--data {given}", "no data set of these parts is there", valid, near=near)
        raise refusal(problem, next_step=None if near else f"steelyard data show {formats[0]}")
    return there


def _weight_files(arguments: argparse.Namespace, planned: list[Planned]) -> dict[str, Path]:
    """Return the files below --weights, and name those that are missing; a site's need not be on this machine."""
    given: Path = arguments.weights
    names = sorted({entry.weights_file for entry in planned if entry.weights_file})
    files = {name: given.absolute() / name for name in names}
    if arguments.size == "tiny":
        raise refusal(Problem("--weights", "the size tiny has reduced models", "small or full, with --size"))
    if not names:
        raise refusal(Problem("--weights", "the document begins none of these parts with pre-trained weights"))
    if getattr(arguments, "site", None) and not given.is_dir():
        return files
    if not given.is_dir():
        raise refusal(Problem(f"--weights {given}", "no such folder", f"a folder with {', '.join(names)}"))
    there = {name: path for name, path in files.items() if path.is_file()}
    if missing := [name for name in names if name not in there]:
        say(f"random weights instead of {', '.join(missing)}, which {given} does not have")
    return there


def _generate_all(suite_folder: SuiteFolder, selected: _Selected) -> None:
    """Make the data sets of the size tiny, unless the user has named others."""
    if selected.choice.synthetic:
        for entry in suite_folder.suite.data:
            if entry.format in selected.choice.data:
                _generate(entry.format, entry.tiny_samples, selected.choice.data[entry.format])


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
