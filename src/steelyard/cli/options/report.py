"""Write a report: one HTML page that works offline, Markdown, LaTeX or CSV.

$ steelyard report sweep -o sweep.html
$ steelyard report old new --format latex
"""

from pathlib import Path

from steelyard.cli.arguments import SELECTION, add_common
from steelyard.cli.parser import Parser

FORMATS = ("html", "markdown", "latex", "csv")


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    parser.add_argument(
        "selection",
        nargs="*",
        metavar="SELECTION",
        help=f"what to report: {SELECTION}; several are compared with the first; or a recipe (RECIPE.toml), for its "
        "history",
    )
    parser.add_argument(
        "--reference",
        action="store_true",
        help="report the published documents that come with steelyard; SELECTION then names some of them",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="PATH", help="file or folder to write (default: STUDY.html)"
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default=FORMATS[0],
        metavar="FORMAT",
        help="html or markdown (one file), latex (a folder with the document and its figures) or csv (a folder with "
        "one file per table) (default %(default)s)",
    )
    parser.add_argument(
        "--card",
        action="store_true",
        help="write only a picture of the verdict, figures and chart (PNG, 1,200 x 630), for chats and slides",
    )
    parser.add_argument("--title", default="", metavar="TEXT", help="title of the page (default: the selection)")
    parser.add_argument(
        "--factor",
        default="system",
        metavar="NAME",
        help="the setting that may differ between selections (default %(default)s)",
    )
    add_common(parser)
