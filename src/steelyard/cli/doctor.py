"""Check this node and print each check with its fix."""

import argparse
import os
from dataclasses import asdict
from functools import partial

from steelyard.doctor.checks import checks
from steelyard.doctor.node import HostView, IntendedRun
from steelyard.launch.allocation import whereabouts
from steelyard.launch.local import LocalLauncher
from steelyard.launch.local_study import trial
from steelyard.terminal.checks import check_lines, checks_summary
from steelyard.terminal.document import print_json
from steelyard.terminal.live.foot import Foot

NAME_COLUMNS = 14


def run(arguments: argparse.Namespace) -> int:
    """Run the checks; exit code 1 when one is wrong."""
    plan = IntendedRun(arguments.results, arguments.data, arguments.devices, arguments.loader_workers)
    trying = partial(trial, launcher=LocalLauncher())
    done = []
    with Foot(live=not arguments.json) as foot:
        # Some checks take seconds: say which, and print each at once.
        for check in checks(
            HostView(), plan, trying, whereabouts(os.environ).message, lambda what: foot.show([f"checking: {what}"])
        ):
            done.append(check)
            if not arguments.json:
                foot.show([])
                print("\n".join(check_lines(check, NAME_COLUMNS)), flush=True)
    if arguments.json:
        print_json({"shape": "doctor/1", "checks": [asdict(check) for check in done]})
    else:
        print(checks_summary(done))
    return int(any(check.verdict == "wrong" for check in done))
