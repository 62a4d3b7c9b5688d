"""Show the status of submitted studies and collect finished runs."""

import argparse
import json

from steelyard.errors import InputError, Problem
from steelyard.launch.follow import look, wait
from steelyard.launch.plan import studies
from steelyard.launch.submit import cancel
from steelyard.results.store import ResultFolder
from steelyard.terminal.live.following import Following
from steelyard.terminal.live.progress import loudness, say
from steelyard.terminal.status import status_lines, status_object


def run(arguments: argparse.Namespace) -> int:
    """Show the status; exit code 1 when a site could not be queried, 0 however the runs ended."""
    folder = ResultFolder(arguments.results)
    names = _names(arguments, studies(folder))
    loud = loudness(arguments)
    if arguments.cancel:
        say(f"{cancel(folder, arguments.study)} jobs cancelled", loud)
    statuses = []
    for name in names:
        if arguments.wait:
            with Following(loud) as following:
                statuses.append(wait(folder, name, following.tell))
        else:
            statuses.append(look(folder, name))
    if arguments.json:
        print(json.dumps({"studies": [status_object(status) for status in statuses]}))
    elif not statuses:
        print("no study was submitted from here; to submit one: steelyard study FILE --site SITE")
    else:
        print("\n\n".join("\n".join(status_lines(status, verbose=arguments.verbose)) for status in statuses))
    return 1 if any(status.problems for status in statuses) else 0


def _names(arguments: argparse.Namespace, known: list[str]) -> list[str]:
    if arguments.study is None:
        if arguments.cancel:
            problem = Problem("STUDY", "missing", ", ".join(known) or "no study was submitted from here")
            raise InputError("--cancel needs a study", problems=(problem,))
        return known
    if arguments.study not in known:
        problem = Problem("STUDY", f"{arguments.study!r} was not submitted", ", ".join(known) or "none was submitted")
        raise InputError(
            f"{arguments.results} has no submitted jobs of this study",
            problems=(problem,),
            next_step="steelyard study FILE --site SITE",
        )
    return [arguments.study]
