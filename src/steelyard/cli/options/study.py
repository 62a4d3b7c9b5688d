"""Run a sweep from a study file, here or at a site.

Every combination is run, in random order. The same command continues a study where it stopped: runs that have a result
are skipped. --extend adds jobs where a finding asks for them, after those that are missing, and first prints a price.

$ steelyard study new scaling
$ steelyard study scaling.toml --dry-run
$ steelyard study scaling.toml --site olive:gh200 --wait
"""

import argparse
from pathlib import Path

from steelyard.cli.arguments import add_common
from steelyard.cli.parser import Parser, did_you_mean
from steelyard.inputs.templates import kinds

NEW = """Write a study file to begin with: a question, with the settings that it needs, commented.

$ steelyard study new
$ steelyard study new batch -o mymodel.toml
$ steelyard study new --from-suite olivia --part workers
"""
SIZES = ("full", "small", "tiny")
# What a run can end with, but for completed.
STATUSES = (
    "not_converged",
    "out_of_memory",
    "time_limit",
    "hung",
    "failed",
    "killed",
    "node_failure",
    "preempted",
    "lost",
    "refused",
    "cancelled",
)


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="study file (TOML; steelyard explain study), or new, to write one"
    )
    add_running(parser)
    add_common(parser, loudness=True)
    _add_new(parser.add_first_word("new", NEW))


def _add_new(parser: Parser) -> None:
    """Add the options of `steelyard study new`."""
    parser.add_argument(
        "kind", nargs="?", metavar="KIND", help=f"template: {', '.join(kinds('studies'))}; without one all are listed"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="file to write (default: KIND.toml, or PART.toml; - prints it)",
    )
    suite = parser.add_argument_group("from a suite")
    suite.add_argument("--from-suite", metavar="NAME", help="write what a part of this suite runs, to be changed")
    suite.add_argument("--part", metavar="PART", help="the part (steelyard suite show NAME lists them)")
    suite.add_argument(
        "--size", choices=SIZES, default="small", metavar="SIZE", help=f"{', '.join(SIZES)} (default %(default)s)"
    )
    add_common(parser, results=False)


def add_running(parser: Parser) -> None:
    """Add the options of everything that runs a study."""
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="run nothing: show configurations, order and cost; with --site also write the job scripts",
    )
    parser.add_argument(
        "--site", metavar="SITE[:POOL]", help="submit the missing runs to this site instead of running them here"
    )
    parser.add_argument("--wait", action="store_true", help="wait until all submitted runs are collected")
    parser.add_argument(
        "--extend",
        action="store_true",
        help="add jobs where a finding asks for them: up to three per configuration, and longer ones where they were "
        "too short or have a trend; with --dry-run only show them and their price",
    )
    parser.add_argument(
        "--again",
        type=statuses,
        metavar="STATUS",
        help=f"rerun runs that ended with this status: {', '.join(STATUSES)}; several with commas. The old results "
        "move to RESULTS/superseded",
    )
    add_shared(parser)


def add_shared(parser: Parser) -> None:
    """Add the option that accepts campaigns of ours in folders of others."""
    parser.add_argument(
        "--shared",
        action="store_true",
        help="also act on your campaigns in folders to which others can write; they may change what is collected",
    )


def statuses(text: str) -> str:
    """Statuses with commas between them."""
    for status in text.split(","):
        if status.strip() not in STATUSES:
            hint = did_you_mean(status.strip(), STATUSES)
            raise argparse.ArgumentTypeError(f"must be one or more of {', '.join(STATUSES)}{hint}")
    return text
