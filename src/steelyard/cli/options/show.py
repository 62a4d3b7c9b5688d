"""Show results: all studies, configurations of one, or one run in full.

$ steelyard show
$ steelyard show STUDY:batch=8
$ steelyard show STUDY --csv > study.csv
$ steelyard show RUN_ID --derive
"""

from steelyard.cli.arguments import add_common
from steelyard.cli.parser import Parser


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    parser.add_argument(
        "what",
        nargs="?",
        metavar="SELECTION",
        help="study, STUDY:batch=8, STUDY/CONFIGURATION or run to show (default: all studies)",
    )
    parser.add_argument(
        "--derive",
        action="store_true",
        help="derive the record of RUN_ID (or of the folder of a run) again from its raw files and report whether it "
        "is the same",
    )
    parser.add_argument(
        "--csv",
        action="store_true",
        help="print configurations as CSV, one line per figure, with its interval and every setting",
    )
    add_common(parser)
