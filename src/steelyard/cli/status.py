"""Show the status of submitted studies and collect finished runs."""

import argparse

from steelyard.errors import InputError, Problem
from steelyard.launch.adopt import Takeover, adopt, digest_of, find_takeovers
from steelyard.launch.follow import look, wait
from steelyard.launch.plan import studies
from steelyard.launch.submit import cancel
from steelyard.results.store import ResultFolder
from steelyard.terminal.document import print_json
from steelyard.terminal.live.following import Following
from steelyard.terminal.live.progress import loudness, say
from steelyard.terminal.status import NO_FIT, status_lines, status_object, takeover_lines, takeover_object
from steelyard.terminal.text import many


def run(arguments: argparse.Namespace) -> int:
    """Show the status; exit code 1 when a site could not be queried or, with --wait, when a run did not complete."""
    folder = ResultFolder(arguments.results)
    names = _names(arguments, studies(folder))
    loud = loudness(arguments)
    if arguments.adopt == "":
        return _show_takeovers(arguments, find_takeovers(folder, arguments.study))
    if arguments.adopt:
        say(f"{many(adopt(folder, arguments.study, arguments.adopt), 'campaign')} taken over", loud)
    if arguments.cancel:
        say(f"{cancel(folder, arguments.study, shared=arguments.shared)} jobs cancelled", loud)
    statuses = []
    for name in names:
        if arguments.wait:
            with Following(loud) as following:
                statuses.append(wait(folder, name, following.tell, shared=arguments.shared))
        else:
            statuses.append(look(folder, name, shared=arguments.shared))
    if arguments.json:
        print_json({"shape": "status/1", "studies": [status_object(status) for status in statuses]})
    elif not statuses:
        print("no study was submitted from here; to submit one: steelyard study FILE --site SITE")
    else:
        print("\n\n".join("\n".join(status_lines(status, verbose=arguments.verbose)) for status in statuses))
    failed = arguments.wait and any(code != NO_FIT for status in statuses for code, _ in status.causes)
    lost = any(sent.vanished for status in statuses for sent in status.campaigns)
    return 1 if failed or lost or any(status.problems for status in statuses) else 0


def _show_takeovers(arguments: argparse.Namespace, takeovers: list[Takeover]) -> int:
    digest = digest_of(takeovers)
    if arguments.json:
        campaigns = [takeover_object(takeover) for takeover in takeovers]
        print_json({"shape": "status-adopt/1", "adopt": digest, "campaigns": campaigns})
    else:
        print("\n".join(takeover_lines(arguments.study, takeovers, digest)))
    return 0


def _names(arguments: argparse.Namespace, known: list[str]) -> list[str]:
    if arguments.study is None:
        for given, option in ((arguments.cancel, "--cancel"), (arguments.adopt is not None, "--adopt")):
            if given:
                problem = Problem("STUDY", "missing", ", ".join(known) or "no study was submitted from here")
                raise InputError(f"{option} needs a study", problems=(problem,))
        return known
    if arguments.study not in known:
        problem = Problem("STUDY", f"{arguments.study} was not submitted", ", ".join(known) or "none was submitted")
        raise InputError(
            f"{arguments.results} has no submitted jobs of this study",
            problems=(problem,),
            next_step="steelyard study FILE --site SITE",
        )
    return [arguments.study]
