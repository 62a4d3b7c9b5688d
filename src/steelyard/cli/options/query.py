"""Ask a question about all runs at once, archived or not: in SQL (DuckDB), or one that has a name.

The tables are runs, quantities, settings and findings. Nothing but these can be read, and nothing is changed.

$ steelyard query slow-nodes
$ steelyard query "select workload, max(throughput) from runs group by workload"
"""

from pathlib import Path

from steelyard.cli.arguments import add_common, number, whole, within
from steelyard.cli.parser import Parser

FORMATS = ("table", "csv", "parquet")


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    parser.add_argument("query", nargs="?", metavar="SQL|NAME", help="one SELECT statement, or the name of a question")
    parser.add_argument("--list", action="store_true", help="list the questions that have a name, tables and columns")
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default=FORMATS[0],
        metavar="FORMAT",
        help="table, csv or parquet (default %(default)s)",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="PATH", help="file to write (default: standard output)")
    parser.add_argument(
        "--timeout",
        type=within(number, gt=0, le=86_400),
        default=60.0,
        metavar="SECONDS",
        help="end a query that takes longer (default %(default)g)",
    )
    parser.add_argument(
        "--memory",
        type=within(whole, ge=100, le=1_000_000),
        default=600,
        metavar="MB",
        help="memory that a query may use (default %(default)s)",
    )
    add_common(parser)
