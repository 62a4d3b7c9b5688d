"""List data set formats, show one, check a data set, make a small one, or convert files to shards.

$ steelyard data show imagefolder
$ steelyard data check imagefolder:/data/imagenet
$ steelyard data make cifar10 small-cifar10
"""

from pathlib import Path

from steelyard.cli.arguments import add_action, add_common, whole, within
from steelyard.cli.parser import Parser

SAMPLED = 200
SAMPLES = within(whole, ge=2, le=10_000_000)


def configure(parser: Parser) -> None:
    """Add the options of the verb."""
    actions = parser.add_subparsers(
        dest="action", metavar="ACTION", title="actions (default: list the formats)", prog=parser.prog
    )
    show = add_action(actions, "show", "show the layout of a format and where to get its data set", "data show coco")
    show.add_argument("format", metavar="FORMAT", help="format; steelyard data lists them")
    check = add_action(
        actions, "check", "open both splits and decode examples", "data check imagefolder:/data/imagenet"
    )
    check.add_argument("data", metavar="FORMAT:PATH", help="data set to check")
    check.add_argument("--all", action="store_true", help=f"decode every example, not {SAMPLED} per split")
    make = add_action(
        actions, "make", "write a small data set that a model can learn", "data make cifar10 small-cifar10"
    )
    make.add_argument("format", metavar="FORMAT", help="format; steelyard data lists them")
    make.add_argument("path", type=Path, metavar="PATH", help="folder to write; must be empty or not exist")
    make.add_argument(
        "--samples", type=SAMPLES, default=1000, metavar="N", help="training samples (default %(default)s)"
    )
    make.add_argument("--seed", type=whole, default=0, metavar="N", help="random seed (default %(default)s)")
    shards = add_action(
        actions,
        "shards",
        "pack images into tar shards, or text into token shards",
        "data shards imagefolder:/data/imagenet shards",
        "data shards books.jsonl tokens --tokenizer tokenizer.json",
    )
    shards.add_argument("sources", nargs="+", metavar="SOURCE", help="imagefolder:PATH, or text files (.jsonl)")
    shards.add_argument("target", type=Path, metavar="TARGET", help="folder to write; must be empty or not exist")
    shards.add_argument(
        "--samples-per-shard", type=SAMPLES, default=1000, metavar="N", help="images per shard (default %(default)s)"
    )
    shards.add_argument(
        "--tokenizer", type=Path, metavar="FILE", help="tokenizer.json for text (default: one token per byte)"
    )
    for inner in (show, check, make, shards):
        add_common(inner, results=False, inner=True)
    add_common(parser, results=False)
