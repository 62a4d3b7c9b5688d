"""Run a published benchmark on this machine or at a site, and see the result beside the published one.

A suite is a collection of studies: the benchmark of a document. `show` prints what it measures, which settings the
document states and which were chosen, the data that it needs and its cost. `run` makes what the devices and the data
sets here allow, names what it leaves out, and continues where it stopped. `report` writes the document's tables with
the figures of this machine beside them.

$ steelyard suite list
$ steelyard suite run nrp --size tiny
$ steelyard suite report nrp --size tiny -o nrp.html
"""

import argparse
from pathlib import Path

from steelyard.cli.arguments import add_action, add_common, counts, number, within
from steelyard.cli.options.report import FORMATS
from steelyard.cli.options.study import SIZES, add_running
from steelyard.cli.parser import Parser

MOST_HOURS = 10_000


def device_counts(text: str) -> tuple[int, ...]:
    """One or more numbers of devices."""
    numbers = counts(text)
    if 0 in numbers:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return numbers


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", title="actions", prog=parser.prog)
    lists = add_action(actions, "list", "list the suites", "suite list")
    show = add_action(
        actions,
        "show",
        "show what a suite measures, where its settings come from, and its cost",
        "suite show nrp",
        "suite show nrp --size tiny --part inference --probe",
    )
    run = add_action(
        actions,
        "run",
        "run a suite, or what is missing of it",
        "suite run nrp --size tiny",
        "suite run nrp --synthetic --hours 1",
        "suite run aces --data ~/data --site mysite.toml --wait",
    )
    report = add_action(
        actions,
        "report",
        "write the document's tables with the figures of this machine beside them",
        "suite report nrp --size tiny -o nrp.html",
    )
    for inner in (show, run, report):
        inner.add_argument("suite", metavar="NAME", help="a suite, or a folder with a file suite.toml")
        inner.add_argument(
            "--size",
            choices=SIZES,
            default=None if inner is report else "small",
            metavar="SIZE",
            help="full: as in the document; small: the same models, shorter runs, about an hour on one accelerator; "
            "tiny: reduced models, minutes on two CPU cores (default: "
            f"{'the one that was run' if inner is report else 'small'})",
        )
    for inner in (show, run):
        inner.add_argument("--part", metavar="PART", help="only this part (default: all)")
        inner.add_argument(
            "--devices",
            type=device_counts,
            default=(),
            metavar="N[,N...]",
            help="numbers of devices (default: those of the suite that this machine, or the site, has)",
        )
        source = inner.add_mutually_exclusive_group()
        source.add_argument(
            "--data",
            type=Path,
            metavar="DIR",
            help="folder with the data sets, each in a folder with the name of its format, such as DIR/cifar100; what "
            "needs another one is left out (with --size tiny not needed: files are generated)",
        )
        source.add_argument("--synthetic", action="store_true", help="run on generated data instead of data sets")
        inner.add_argument(
            "--weights",
            type=Path,
            metavar="DIR",
            help="folder with the pre-trained weights that the document begins with, as DIR/WORKLOAD.safetensors "
            "(default: random weights)",
        )
    show.add_argument(
        "--settings",
        action="store_true",
        help="list all settings with their sources, and the differences from the document",
    )
    show.add_argument(
        "--probe", action="store_true", help="run a few steps of each configuration to predict the device-hours"
    )
    run.add_argument(
        "--hours",
        type=within(number, gt=0, le=MOST_HOURS),
        metavar="H",
        help="run what fits into this many hours from now, most printed figures first, and name what does not",
    )
    add_running(run)
    report.add_argument(
        "--against",
        type=Path,
        metavar="DIR",
        help="results of the same suite and size on another machine: for ratios of two machines that the document "
        "states without their figures",
    )
    report.add_argument("-o", "--output", type=Path, metavar="PATH", help="file or folder (default: SUITE-SIZE.html)")
    report.add_argument(
        "--format",
        choices=FORMATS,
        default=FORMATS[0],
        metavar="FORMAT",
        help=f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]} (default %(default)s)",
    )
    for inner in (lists, show, run, report):
        add_common(inner, results=inner is not lists, loudness=inner in (show, run), inner=True)
    add_common(parser, results=False)
