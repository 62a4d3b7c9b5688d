"""Fold finished runs into the archive of a results folder."""

import argparse
import dataclasses

from steelyard.errors import InputError, printable
from steelyard.launch import plan
from steelyard.results.fold import archive
from steelyard.results.store import ResultFolder
from steelyard.terminal.archive import archive_lines
from steelyard.terminal.document import print_json
from steelyard.terminal.live.progress import say

DAY_S = 86_400.0


def run(arguments: argparse.Namespace) -> int:
    """Archive them; print how many, and what was left where it is."""
    folder = ResultFolder(arguments.results)
    if not folder.studies():
        raise folder.empty("steelyard run sim")
    drop = arguments.drop_raw
    if drop is not None and drop < arguments.older_than:
        raise InputError("--drop-raw is shorter than --older-than: raw files are dropped when runs are archived")
    done = archive(
        folder,
        older_than_s=arguments.older_than * DAY_S,
        drop_raw_s=None if drop is None else drop * DAY_S,
        busy={s for s in plan.studies(folder) if not all(map(plan.is_collected, plan.planned(folder, s)))},
        tell=lambda so_far: say(f"{so_far.runs:,} runs so far"),
    )
    if arguments.json:
        print_json({"shape": "archive/1", **dataclasses.asdict(done)})
    else:
        print("\n".join(map(printable, archive_lines(folder.path, done))))
    return 0
