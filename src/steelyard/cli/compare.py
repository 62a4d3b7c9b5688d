"""Compare two results: comparability first, then the ratio with its interval."""

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import replace

from steelyard.analysis.compare import Compared, compare
from steelyard.analysis.instead import comparable_instead
from steelyard.analysis.node_history import shown_drift
from steelyard.analysis.ratios import RatioQuestion
from steelyard.analysis.select import select
from steelyard.analysis.summary import labels
from steelyard.analysis.sweep import selecting
from steelyard.audit.beside import rows_beside
from steelyard.errors import InputError, Problem
from steelyard.results.store import ResultFolder
from steelyard.rules.table.row import Row
from steelyard.stats.ratio import DRIFT
from steelyard.terminal.compare import compared_object, lines, names_of
from steelyard.terminal.document import print_json
from steelyard.terminal.text import shortened


def run(arguments: argparse.Namespace) -> int:
    """Compare; exit code 1 when errors leave no ratio to report."""
    folder = ResultFolder(arguments.results)
    if arguments.b is None:
        raise _one_side(folder, arguments.a)
    a, b = rows_beside(folder, arguments.a), rows_beside(folder, arguments.b)
    drift = arguments.drift / 100 if arguments.drift else shown_drift(folder, a, b)
    asked = RatioQuestion(
        margin=arguments.margin / 100 if arguments.margin else None, drift=DRIFT if drift is None else drift
    )
    compared = compare(a, b, factor=arguments.factor, metric=arguments.metric, force=arguments.force, asked=asked)
    if not compared.made:
        compared = _with_better_command(arguments, folder, compared, (a, b))
    if arguments.json:
        print_json(compared_object(compared, arguments.a, arguments.b))
    else:
        print("\n".join(lines(compared, arguments.a, arguments.b, names_of([*a, *b]))))
    return 0 if compared.made else 1


def _one_side(folder: ResultFolder, text: str) -> InputError:
    """Return the error for a single selection; a study of several configurations may be what is to be compared."""
    rows = rows_beside(folder, text)
    if len(rows) < 2 or any(row.spec is None for row in rows):
        return InputError("missing: B, the result to compare with it", next_step="steelyard compare --help")
    cells = select(folder, text)
    first, second = (shlex.quote(selecting(cells, [cell], text)) for cell in cells[:2])
    problem = Problem("A", f"{len(cells)} configurations: {shortened([*labels(cells).values()])}")
    step = f"steelyard compare {first} {second}"
    return InputError("missing: B, the result to compare with it", problems=(problem,), next_step=step)


def _with_better_command(
    arguments: argparse.Namespace, folder: ResultFolder, compared: Compared, sides: tuple[Sequence[Row], Sequence[Row]]
) -> Compared:
    """Name the comparison that was measured already in place of the commands that would measure it again."""
    instead = comparable_instead(folder, (arguments.a, arguments.b), sides, arguments.factor, compared.metric)
    if instead is None:
        return compared
    words = ["--factor", arguments.factor] if arguments.factor else []
    words += ["--metric", compared.metric] if compared.metric != "throughput" else []
    command = shlex.join(["steelyard", "compare", *instead, *words])
    entries = []
    for entry in compared.comparisons:
        findings = tuple(
            replace(one, command=command, fix="compare what was measured with the same settings")
            if one.severity == "error"
            else one
            for one in entry.findings
        )
        entries.append(replace(entry, findings=findings))
    return replace(compared, comparisons=tuple(entries))
