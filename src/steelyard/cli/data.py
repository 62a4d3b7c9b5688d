"""Data sets: list the formats, explain one, check what is there, make a small one, put files into shards."""

import argparse
import json
from pathlib import Path
from typing import Any

from steelyard import plugins
from steelyard.data.form import Format
from steelyard.errors import InputError, Problem
from steelyard.inputs.data_set import SAMPLED, check_data, find_data, list_formats, require_empty
from steelyard.terminal.data import data_check_lines, format_lines, formats_table


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the verb; without a word it lists the formats."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    show = _action(actions, "show", "what a format looks like, and where its data set comes from")
    show.add_argument("format", metavar="FORMAT")
    check = _action(actions, "check", "open both splits and decode examples; exit code 1 when something is wrong")
    check.add_argument("data", metavar="FORMAT:PATH")
    check.add_argument("--all", action="store_true", help=f"decode every example, not {SAMPLED} of each split")
    make = _action(actions, "make", "write a small data set that a model can learn")
    make.add_argument("format", metavar="FORMAT")
    make.add_argument("path", type=Path, metavar="PATH", help="a folder that is empty or not there yet")
    make.add_argument("--samples", type=_count, default=1000, metavar="N", help="of the training split (default 1000)")
    make.add_argument("--seed", type=int, default=0, help="decides all that is random")
    shards = _action(actions, "shards", "put pictures into tar shards, or text into shards of tokens")
    shards.add_argument(
        "sources", nargs="+", metavar="SOURCE", help="imagefolder:PATH; or files of text as JSON lines (.jsonl)"
    )
    shards.add_argument("target", type=Path, metavar="TARGET", help="a folder that is empty or not there yet")
    shards.add_argument(
        "--samples-per-shard", type=_count, default=1000, metavar="N", help="of pictures (default 1000)"
    )
    shards.add_argument("--tokenizer", type=Path, metavar="FILE", help="tokenizer.json for text; without it, bytes")


def _action(actions: Any, name: str, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text)
    # Suppressed: the default of a sub-command would overwrite what stands before it.
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print the result as JSON")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """What was asked for; the list when nothing was."""
    actions = {None: _list, "show": _show, "check": _check, "make": _make, "shards": _shards}
    return actions[arguments.action](arguments)


def _list(arguments: argparse.Namespace) -> int:
    found = list_formats()
    print(json.dumps(found) if arguments.json else f"{formats_table(found)}\n\nnext: steelyard data show FORMAT")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    form: Format = plugins.load("data", arguments.format)
    if arguments.json:
        names = ("name", "kind", "title", "layout", "source")
        print(json.dumps({**{name: getattr(form, name) for name in names}, "needs": list(form.needs)}))
    else:
        print("\n".join(format_lines(form)))
    return 0


def _check(arguments: argparse.Namespace) -> int:
    form, root = find_data(arguments.data)
    return _tell(arguments, form, root, every=arguments.all)


def _make(arguments: argparse.Namespace) -> int:
    form: Format = plugins.load("data", arguments.format)
    require_empty(arguments.path)
    form.make(arguments.path, arguments.samples, arguments.seed)
    return _tell(arguments, form, arguments.path)


def _shards(arguments: argparse.Namespace) -> int:
    first, colon, _ = arguments.sources[0].partition(":")
    if colon and first in plugins.names("data"):
        if first != "imagefolder" or len(arguments.sources) > 1:
            problem = Problem("SOURCE", " ".join(arguments.sources), "one imagefolder:PATH, or files of JSON lines")
            raise InputError("these cannot be put into shards", problems=(problem,))
        _, root = find_data(arguments.sources[0])
        require_empty(arguments.target)
        from steelyard.data.shards import to_shards

        to_shards(root, arguments.target, arguments.samples_per_shard)
        return _tell(arguments, plugins.load("data", "webdataset"), arguments.target)
    sources = [Path(source) for source in arguments.sources]
    missing = tuple(Problem(str(path), "is no file", "imagefolder:PATH, or files of JSON lines")
                    for path in sources if not path.is_file())  # fmt: skip
    if missing:
        raise InputError("a source is not there", problems=missing)
    require_empty(arguments.target)
    from steelyard.data.tokens import to_shards as to_token_shards

    to_token_shards(sources, arguments.target, arguments.tokenizer)
    return _tell(arguments, plugins.load("data", "tokens"), arguments.target)


def _tell(arguments: argparse.Namespace, form: Format, root: Path, *, every: bool = False) -> int:
    """Says what a folder holds, having read some of it."""
    found = check_data(form, root, every=every)
    print(json.dumps(found) if arguments.json else "\n".join(data_check_lines(found)))
    return 1 if found["problems"] else 0


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 2 <= int(text[:9]) <= 10_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count from 2 to 10,000,000")
    return int(text)
