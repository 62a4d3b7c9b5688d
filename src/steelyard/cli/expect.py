"""Ask for the band of a figure on comparable machines, and whether a figure is inside."""

import argparse

from steelyard.audit.expect import expect, known_rows
from steelyard.audit.table import BadCellError, setting
from steelyard.cli.exit_codes import DONE, FAILED, UNDECIDED
from steelyard.errors import InputError, Problem
from steelyard.inputs.synonyms import setting_for
from steelyard.plugins import unknown
from steelyard.results.store import ResultFolder
from steelyard.rules.table.row import Row, Setting
from steelyard.rules.table.settings import SETTINGS
from steelyard.rules.table.units import known_units, printed, unit_of
from steelyard.terminal.document import print_json
from steelyard.terminal.expect import expect_lines, expected_object

# The option --device names a part of the accelerator.
OPTIONS = {"device": "accelerator", "batch": "batch", "precision": "precision", "devices": "devices"}


def run(arguments: argparse.Namespace) -> int:
    """Ask; exit code 0 inside or without a figure, 1 outside, 3 when there is no band or more than one."""
    rows = known_rows(ResultFolder(arguments.results), arguments.workload)
    value = None if arguments.value is None else _value(arguments.value, rows, arguments.metric)
    expected = expect(rows, _asked(arguments), arguments.metric, value=value)
    if arguments.json:
        print_json({"shape": "expect/1", "expected": [expected_object(entry) for entry in expected]})
    else:
        print("\n".join(expect_lines(expected, rows, arguments.workload, arguments.metric)))
    answers = {entry.answer for entry in expected if entry.band is not None}
    if not answers or (value is not None and len(answers) > 1):
        return UNDECIDED
    return DONE if answers <= {"inside", "band"} else FAILED


def _asked(arguments: argparse.Namespace) -> dict[str, Setting]:
    """Return the settings that rows must share."""
    given = [(key, str(value)) for name, key in OPTIONS.items() if (value := getattr(arguments, name)) is not None]
    asked: dict[str, Setting] = {}
    for name, text in [*given, *arguments.stated]:
        if name not in SETTINGS:
            raise unknown("setting", name, list(SETTINGS), setting_for(name, list(SETTINGS)))
        try:
            asked[name] = setting(name, text)
        except BadCellError as error:
            raise InputError(
                f"{name}: {error.problem}", problems=(Problem(name, error.problem, error.valid),)
            ) from None
    return asked


def _value(text: str, rows: list[Row], metric: str) -> float:
    """Return a figure in its base unit; without a unit it is in that of the known figures."""
    digits, _, unit = text.strip().partition(" ")
    figure = printed(digits)
    units = {row.figures[metric].unit for row in rows if metric in row.figures}
    if not unit and len(units) == 1:
        unit = units.pop()
    known = unit_of(unit.strip())
    if figure is None or known is None or figure[0] <= 0:
        problem = Problem("--value", "not a figure with a unit", known_units() if figure else "a number", given=text)
        raise InputError("the figure cannot be read", problems=(problem,))
    return figure[0] * known[1]
