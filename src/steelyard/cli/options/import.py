"""Read results of other benchmarks into rows with the same settings and units as our own.

FILE is an MLPerf training log, output of nccl-tests, a JUBE result table, a ReFrame report or performance log, a
SuperBench summary, a milabench summary, or JSON of AIPerf or GuideLLM; a folder is searched for them. Figures are kept
as printed. What a file does not say stays unknown; say what you know with --set.

The table is kept in the results folder, where expect finds it. With --save it is written elsewhere instead: audit and
compare read it there.

$ steelyard import training_results_v4.0/Dell --source "MLPerf Training v4.0"
$ steelyard import all_reduce.txt --set system=mycluster
"""

from pathlib import Path

from steelyard.cli.arguments import add_common, stated
from steelyard.cli.parser import Parser
from steelyard.plugins import BUILTIN


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="files or folders of results")
    parser.add_argument(
        "--format", metavar="NAME", help=f"format of the files (default: found out): {', '.join(BUILTIN['importer'])}"
    )
    parser.add_argument("--source", default="", metavar="TEXT", help="where the results were published")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=stated,
        metavar="KEY=VALUE",
        dest="stated",
        help="a setting that the files do not state, such as accelerator=A100; may be repeated",
    )
    parser.add_argument("--save", type=Path, metavar="FILE.csv", help="write the table here, and keep nothing")
    add_common(parser)
