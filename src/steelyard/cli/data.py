"""List data set formats, show one, check a data set, make a small one, or convert files to shards."""

import argparse
from pathlib import Path

from steelyard import plugins
from steelyard.data.form import Format
from steelyard.errors import InputError, Problem
from steelyard.inputs.data_set import check_data, find_data, list_formats, require_empty
from steelyard.terminal.data import data_check_lines, format_lines, formats_table
from steelyard.terminal.document import print_json


def run(arguments: argparse.Namespace) -> int:
    """Do the action; without one list the formats. Exit code 1 when a data set has problems."""
    actions = {None: _list, "show": _show, "check": _check, "make": _make, "shards": _shards}
    return actions[arguments.action](arguments)


def _list(arguments: argparse.Namespace) -> int:
    formats = list_formats()
    if arguments.json:
        print_json({"shape": "data-list/1", "formats": formats})
    else:
        print(f"{formats_table(formats)}\n\nnext: steelyard data show FORMAT")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    form: Format = plugins.load("data", arguments.format)
    if arguments.json:
        names = ("name", "kind", "title", "layout", "source")
        told = {name: getattr(form, name) for name in names}
        print_json({"shape": "data-show/1", **told, "needs": list(form.needs)})
    else:
        print("\n".join(format_lines(form)))
    return 0


def _check(arguments: argparse.Namespace) -> int:
    form, root = find_data(arguments.data)
    return _check_and_print(arguments, form, root, every=arguments.all)


def _make(arguments: argparse.Namespace) -> int:
    form: Format = plugins.load("data", arguments.format)
    require_empty(arguments.path)
    form.make(arguments.path, arguments.samples, arguments.seed)
    return _check_and_print(arguments, form, arguments.path)


def _shards(arguments: argparse.Namespace) -> int:
    first, colon, _ = arguments.sources[0].partition(":")
    if colon and first in plugins.names("data"):
        if first != "imagefolder" or len(arguments.sources) > 1:
            problem = Problem("SOURCE", " ".join(arguments.sources), "one imagefolder:PATH, or text files (.jsonl)")
            raise InputError("these cannot be converted to shards", problems=(problem,))
        _, root = find_data(arguments.sources[0])
        require_empty(arguments.target)
        from steelyard.data.shards import to_shards

        to_shards(root, arguments.target, arguments.samples_per_shard)
        return _check_and_print(arguments, plugins.load("data", "webdataset"), arguments.target)
    sources = [Path(source) for source in arguments.sources]
    missing = tuple(
        Problem(str(path), "is not a file", "imagefolder:PATH, or text files (.jsonl)")
        for path in sources
        if not path.is_file()
    )
    if missing:
        raise InputError("a source does not exist", problems=missing)
    require_empty(arguments.target)
    from steelyard.data.tokens import to_shards as to_token_shards

    to_token_shards(sources, arguments.target, arguments.tokenizer)
    return _check_and_print(arguments, plugins.load("data", "tokens"), arguments.target)


def _check_and_print(arguments: argparse.Namespace, form: Format, root: Path, *, every: bool = False) -> int:
    """Check a data set and print what it holds."""
    check = check_data(form, root, every=every)
    if arguments.json:
        print_json({"shape": "data-check/1", **check})
    else:
        print("\n".join(data_check_lines(check)))
    return 1 if check["problems"] else 0
