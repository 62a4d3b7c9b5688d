"""Run a documented recipe and compare the result with its stated value: pass, fail or cannot tell.

$ steelyard verify node.toml
$ steelyard verify node.toml --history --plot history.svg
$ steelyard verify olivia/test-1
"""

from pathlib import Path

from steelyard.cli.arguments import add_common, whole, within
from steelyard.cli.parser import Parser

MOST_JOBS = 1000


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    jobs = within(whole, ge=1, le=MOST_JOBS)
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="recipe file (TOML; steelyard explain recipe), or SUITE/RECIPE for a recipe of a suite",
    )
    parser.add_argument("--jobs", type=jobs, metavar="N", help="fresh launches (default: as the recipe says)")
    parser.add_argument("--more", type=jobs, metavar="N", help="add N jobs to the latest ones and judge them all")
    parser.add_argument("--no-run", action="store_true", help="run nothing: judge the latest jobs again")
    parser.add_argument(
        "--dry-run", action="store_true", help="run nothing: show what would run and which value it must reach"
    )
    parser.add_argument("--history", action="store_true", help="run nothing: show the results over time and changes")
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE.svg",
        help="draw the history; for a recipe with several values, the second goes to FILE-2.svg and so on",
    )
    add_common(parser, loudness=True)
