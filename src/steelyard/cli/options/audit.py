"""Audit tables, claims and results: contradictions, missing information and claims that do not hold.

FILE is a published table (CSV or TOML), a claims file (TOML), a results folder, a study, a run, or the name of a
reference document that comes with steelyard.

$ steelyard audit table.csv --html review.html
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
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page for reviewers")
    parser.add_argument("--brief", action="store_true", help="leave out fixes and claims that hold")
    add_common(parser)
