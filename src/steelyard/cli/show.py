"""Show all studies, configurations of one, or one run in full; or derive a record again from its raw files."""

import argparse
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from steelyard.analysis.select import select
from steelyard.analysis.summary import list_studies, summarise
from steelyard.contracts.base import to_json_object
from steelyard.contracts.record import RunRecord
from steelyard.errors import InputError, Problem, printable
from steelyard.results.store import RAW, RECORD_FILE, ResultFolder, read_record_text, record_text
from steelyard.terminal.document import print_json
from steelyard.terminal.plain import shown_configurations
from steelyard.terminal.tables import cells_lines, record_lines, studies_table
from steelyard.terminal.text import many, shortened


def run(arguments: argparse.Namespace) -> int:
    """Show it; exit code 2 when nothing has that name, 1 when a record derived again differs."""
    folder = ResultFolder(arguments.results)
    studies = folder.studies()
    _require_one_form(arguments, studies)
    if arguments.derive:
        return _derive(arguments, folder)
    if not studies:
        raise folder.empty("steelyard run sim")
    if arguments.what is None:
        listed = list_studies(folder)
        if arguments.json:
            print_json({"shape": "show-studies/1", "studies": listed})
        else:
            print(studies_table(listed))
        return 0
    if arguments.what in studies or any(sign in arguments.what for sign in ":/"):
        _show_configurations(arguments, folder, studies)
        return 0
    return _show_run(arguments, folder)


def _require_one_form(arguments: argparse.Namespace, studies: Sequence[str]) -> None:
    """Refuse --csv with --json or --derive, and without a study."""
    other = next((name for name in ("json", "derive") if getattr(arguments, name)), None)
    if arguments.csv and (other or arguments.what is None):
        problem = f"--csv and --{other} cannot be combined" if other else "--csv needs a study"
        study = next((name for name in (arguments.what, *studies) if name in studies), "STUDY")
        raise InputError(problem, next_step=f"steelyard show {study} --csv")


def _show_configurations(arguments: argparse.Namespace, folder: ResultFolder, studies: Sequence[str]) -> None:
    whole = arguments.what in studies
    cells = summarise(folder.records(arguments.what)) if whole else select(folder, arguments.what)
    if arguments.csv:
        # Pages, too, are made from what this imports.
        from steelyard.report.render.long_csv import long_csv

        print(long_csv(cells), end="")
    elif arguments.json:
        study = arguments.what if whole else cells[0].study
        print_json({"shape": "show-study/1", "study": study, "configurations": shown_configurations(cells)})
    else:
        print("\n".join(cells_lines(cells, detail=True)))


def _show_run(arguments: argparse.Namespace, folder: ResultFolder) -> int:
    records = {path: folder.read(path) for path in folder.find(arguments.what)}
    if not records:
        raise folder.unknown(arguments.what)
    if arguments.csv:
        study = next(iter(records.values())).spec.study
        raise InputError("--csv prints configurations, not runs", next_step=f"steelyard show {study} --csv")
    if arguments.json:
        print_json({"shape": "show-run/1", "runs": [to_json_object(record) for record in records.values()]})
    else:
        for path, record in records.items():
            steps = folder.of_run(path, partial(_steps, record))
            print("\n".join([*record_lines(record), *steps]))
    return 0


def _steps(record: RunRecord, path: Path) -> list[str]:
    # It imports numpy, which tables can do without.
    from steelyard.terminal.step_times import step_time_lines

    return step_time_lines(path / RAW, record)


def _no_run(folder: ResultFolder, what: str) -> InputError:
    """Return the error for a name that is of no run: that of a study names the study's runs."""
    if re.split("[:/]", what)[0] not in folder.studies():
        return folder.unknown(what)
    runs = [record.run_id for cell in select(folder, what) for record in cell.records]
    problem = Problem(what, f"{many(len(runs), 'run')}: {shortened(runs)}")
    return InputError("--derive needs a run", problems=(problem,), next_step=f"steelyard show {runs[0]} --derive")


def _derive(arguments: argparse.Namespace, folder: ResultFolder) -> int:
    """Derive the record again; exit code 0 when it is the stored one, byte for byte."""
    from steelyard.derive.record import derive

    if arguments.what is None:
        raise InputError("--derive needs a run", next_step="steelyard show RUN_ID --derive")
    direct = Path(arguments.what)
    paths = [direct.resolve()] if (direct / RECORD_FILE).is_file() else folder.find(arguments.what)
    if not paths:
        raise _no_run(folder, arguments.what)
    derived = {path: folder.of_run(path, lambda place: derive(place / RAW)) for path in paths}
    same = {
        path: folder.of_run(path, read_record_text) == record_text(record).encode() for path, record in derived.items()
    }
    if arguments.json:
        entries = [
            {"path": str(path), "same": same[path], "record": to_json_object(record)}
            for path, record in derived.items()
        ]
        print_json({"shape": "show-derived/1", "runs": entries})
    else:
        for path in paths:
            print(printable(f"{path}: {'same record' if same[path] else 'DIFFERENT from the stored record'}"))
    return 0 if all(same.values()) else 1
