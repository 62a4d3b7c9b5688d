"""How studies stand that were sent to a site: collects what has ended, says what waits, runs or failed, and why."""

import argparse
import json

from steelyard.cli.verb import add_loudness, add_results
from steelyard.errors import InputError, Problem
from steelyard.launch.follow import look, wait
from steelyard.launch.plan import studies
from steelyard.launch.submit import cancel
from steelyard.results.store import ResultFolder
from steelyard.terminal.live.following import Following
from steelyard.terminal.live.progress import loudness, say
from steelyard.terminal.status import standing_lines, standing_object


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument("study", nargs="?", help="its name; without one, all that were sent somewhere")
    parser.add_argument("--wait", action="store_true", help="look until everything has ended and is collected")
    parser.add_argument("--cancel", action="store_true", help="take what waits or runs out of the queue; needs STUDY")
    add_loudness(parser)
    add_results(parser)


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when everything could be looked at, however the runs ended."""
    folder = ResultFolder(arguments.results)
    names = _names(arguments, studies(folder))
    loud = loudness(arguments)
    if arguments.cancel:
        say(f"jobs taken out of the queue, or told to end: {cancel(folder, arguments.study)}", loud)
    standings = []
    for name in names:
        if arguments.wait:
            with Following(loud) as following:
                standings.append(wait(folder, name, following.tell))
        else:
            standings.append(look(folder, name))
    if arguments.json:
        print(json.dumps({"studies": [standing_object(standing) for standing in standings]}))
    elif not standings:
        print("nothing was sent to a site from here: steelyard study FILE --site SITE does")
    else:
        print("\n\n".join("\n".join(standing_lines(standing, verbose=arguments.verbose)) for standing in standings))
    return 1 if any(standing.problems for standing in standings) else 0


def _names(arguments: argparse.Namespace, known: list[str]) -> list[str]:
    if arguments.study is None:
        if arguments.cancel:
            problem = Problem("--cancel", "of which study?", ", ".join(known) or "none was sent from here")
            raise InputError("what to cancel is not said", problems=(problem,))
        return known
    if arguments.study not in known:
        problem = Problem("study", f"{arguments.study!r} was not sent anywhere", ", ".join(known) or "none was")
        raise InputError(
            f"no campaign of this study is in {arguments.results}",
            problems=(problem,),
            next_step="steelyard study FILE --site SITE",
        )
    return [arguments.study]
