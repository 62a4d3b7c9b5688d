"""Audit tables, claims and results: contradictions, missing information and claims that do not hold.

FILE is a table as printed (Markdown, CSV, TSV, LaTeX, HTML, or - for standard input), a table in steelyard's own
form (CSV or TOML), a claims file (TOML), a results folder, a study, a run, or the name of a reference document that
comes with steelyard.

$ steelyard audit table.md --html review.html
$ steelyard audit README.md --map "Speed=throughput[images/s]" --map "Notes=ignore"
$ steelyard audit table.md --claim "4.12x on 4 GPUs" --claim "A is 20 % faster than B"
"""

from pathlib import Path

from steelyard.cli.arguments import add_common
from steelyard.cli.parser import Parser


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    parser.add_argument("what", nargs="*", metavar="FILE", help="what to audit")
    parser.add_argument(
        "--reference", action="store_true", help="audit all reference documents that come with steelyard"
    )
    parser.add_argument(
        "--platforms", type=Path, metavar="FILE.csv", help="machines named in a table, with their power limits"
    )
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="HEADING=METRIC[UNIT]",
        help="what a heading of a printed table means: a metric with its unit, a setting, or ignore; may be repeated",
    )
    parser.add_argument(
        "--save", type=Path, metavar="FILE.csv", help="also write the table as it was read, one line per figure"
    )
    parser.add_argument(
        "--claim",
        action="append",
        default=[],
        metavar="TEXT",
        help='a claim about the table, such as "4.12x on 4 GPUs" or "A is 20 %% faster than B"; may be repeated',
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page for reviewers")
    parser.add_argument("--brief", action="store_true", help="leave out fixes and claims that hold")
    add_common(parser)
