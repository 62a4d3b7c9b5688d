"""Write the performance and resources part of a proposal, with an audit and a checklist.

$ steelyard pack STUDY --scheme nairr --epochs 90 --epoch-samples 1281167 --devices 8 -o pack
"""

from pathlib import Path

from steelyard.cli.arguments import add_common, number, whole, within
from steelyard.cli.options.scaling import add_kind
from steelyard.cli.parser import Parser


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    parser.add_argument(
        "study", nargs="?", metavar="STUDY", help="study over several device counts, or STUDY:key=value"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FOLDER", help="folder to write the pack to")
    parser.add_argument(
        "--scheme",
        action="append",
        default=[],
        metavar="NAME",
        help="funding scheme whose requirements to answer: a name or a file; may be repeated",
    )
    parser.add_argument("--schemes", action="store_true", help="list the known schemes and where to put your own")
    add_kind(parser)
    parser.add_argument("--pdf", action="store_true", help="also build the PDF with pdflatex and count its pages")
    plan = parser.add_argument_group("planned work")
    plan.add_argument("--samples", type=number, metavar="N", help="samples per training")
    plan.add_argument("--epochs", type=number, metavar="N", help="epochs per training; needs --epoch-samples")
    plan.add_argument("--epoch-samples", type=number, metavar="N", help="samples per epoch")
    plan.add_argument("--runs", type=whole, default=1, metavar="N", help="number of trainings (default %(default)s)")
    plan.add_argument("--devices", type=whole, metavar="N", help="devices of the largest job")
    plan.add_argument(
        "--buffer", type=number, metavar="PERCENT", help="reserve (default: the middle of what the scheme allows)"
    )
    plan.add_argument(
        "--failures",
        type=number,
        metavar="N",
        help="failures per 1,000 device-hours (default: as in the study; 0.02 if it ran too short a time to tell)",
    )
    plan.add_argument(
        "--checkpoint",
        type=number,
        metavar="MINUTES",
        help="work between two checkpoints; 0: a failed job starts again (default: 0 is assumed)",
    )
    plan.add_argument("--job-hours", type=number, metavar="H", help="longest job allowed (default: the site's limit)")
    site = parser.add_argument_group("charging")
    site.add_argument("--site", metavar="SITE[:POOL]", help="site whose rates, nodes and time limit to use")
    site.add_argument(
        "--charge",
        metavar="RATE",
        help="rate, such as '1.5 SU/device-hour' or '80 core-h/node-hour'; replaces the site's",
    )
    site.add_argument(
        "--node-devices", type=within(whole, ge=1), metavar="N", help="devices per node (default: the site's)"
    )
    add_common(parser)
