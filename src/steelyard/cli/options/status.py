"""Show the status of studies that were submitted to a site, and collect finished runs.

Says what is waiting, running or failed, and why. Campaigns that you have not submitted from here are only read; --adopt
shows what taking them over would do.

$ steelyard status
$ steelyard status sweep
"""

from steelyard.cli.arguments import add_common
from steelyard.cli.options.study import add_shared
from steelyard.cli.parser import Parser


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    parser.add_argument("study", nargs="?", metavar="STUDY", help="study name (default: all submitted studies)")
    parser.add_argument("--wait", action="store_true", help="wait until all runs have ended and are collected")
    parser.add_argument("--cancel", action="store_true", help="cancel the waiting and running jobs of STUDY")
    parser.add_argument(
        "--adopt",
        nargs="?",
        const="",
        metavar="DIGEST",
        help="show what taking over the campaigns of STUDY that are not yours would do; with the DIGEST that this "
        "prints: take them over",
    )
    add_shared(parser)
    add_common(parser, loudness=True)
