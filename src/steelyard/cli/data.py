"""Data sets: list the formats, explain one, check what is there, make a small one, put files into shards."""

import argparse
import contextlib
import importlib.util
import json
import math
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from steelyard import plugins
from steelyard.data.form import Extent, Format, Split, extent
from steelyard.errors import SHOWN_PROBLEMS, InputError, Problem, SteelyardError, printable
from steelyard.terminal.text import number, table

SPLITS: tuple[Split, ...] = ("train", "evaluation")
SAMPLED = 200
# A data set with more damaged files is not mended file by file.
MOST_PROBLEMS = 1000
COLUMNS = 100
# Tokens have no examples of their own; windows of this length are looked at.
WINDOW = 128
# A workload that takes the data: by format where that matters, else by kind.
WORKLOADS = {
    "cifar10": "wideresnet28-10", "cifar100": "wideresnet28-10", "mnist": "autoencoder", "image-class": "resnet50",
    "image-boxes": "fasterrcnn-r50-fpn", "image-mask": "deeplabv3plus-r101", "tokens": "gpt",
    "question-answer": "bert-base",
}  # fmt: skip


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
    rows: list[dict[str, Any]] = []
    for name in plugins.names("data"):
        try:
            form: Format = plugins.load("data", name)
        except (ImportError, AttributeError) as error:
            # One that a package adds and that is broken must not hide the others.
            rows.append({"name": name, "kind": "", "title": f"cannot be loaded: {error}", "needs": [], "missing": []})
            continue
        missing = [module for module in form.needs if importlib.util.find_spec(module) is None]
        rows.append(
            {"name": name, "kind": form.kind, "title": form.title, "needs": list(form.needs), "missing": missing}
        )
    if arguments.json:
        print(json.dumps(rows))
        return 0
    cells = [[row["name"], row["kind"], row["title"], _needs(row["needs"], row["missing"])] for row in rows]
    print(table(["format", "kind", "what it is", "needs"], cells))
    print("\nnext: steelyard data show FORMAT")
    return 0


def _needs(needs: Sequence[str], missing: Sequence[str]) -> str:
    return ", ".join(f"{name} (missing)" if name in missing else name for name in needs) or "-"


def _show(arguments: argparse.Namespace) -> int:
    form: Format = plugins.load("data", arguments.format)
    if arguments.json:
        names = ("name", "kind", "title", "layout", "source")
        print(json.dumps({**{name: getattr(form, name) for name in names}, "needs": list(form.needs)}))
        return 0
    print(
        f"{form.name}: {form.title}\nkind: {form.kind}; needs: {', '.join(form.needs) or 'numpy'}\n\nlayout below PATH"
    )
    print(textwrap.indent(form.layout, "  "))
    print("\nsource, size and terms")
    print(textwrap.fill(form.source, COLUMNS, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False,
                        break_long_words=False))  # fmt: skip
    print(f"\nnext: steelyard data check {form.name}:PATH\n  or: steelyard data make {form.name} PATH")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    form, root = _data(arguments.data)
    found = look(form, root, every=arguments.all)
    if arguments.json:
        print(json.dumps(found))
    else:
        _print_check(found)
    return 1 if found["problems"] else 0


def look(form: Format, root: Path, *, every: bool = False) -> dict[str, Any]:
    """Both splits of a data set: how much there is, which, and what is wrong with it."""
    splits: dict[str, Any] = {}
    problems: list[dict[str, str]] = []
    files: list[Path] = []
    for split in SPLITS:
        with _noted(problems, split):
            examples: Any = form.open(root, split)
            length = _window(examples) if form.kind == "tokens" else None
            count = len(examples) if length is None else examples.count(length)
            looked = range(count) if every else _spread(count, SAMPLED)
            splits[split] = {
                "examples": count,
                "classes": getattr(examples, "classes", None),
                "window": length,
                "decoded": len(looked),
            }
            files += examples.files()
            for place in looked:
                if len(problems) >= MOST_PROBLEMS:
                    break
                with _noted(problems, split):
                    examples[place] if length is None else examples.window(place, length)
    whole: Extent | None = None
    with _noted(problems, "files"):
        whole = extent(root, files)
    return {
        "format": form.name, "path": str(root), "splits": splits,
        "files": None if whole is None else whole.files,
        "size_bytes": None if whole is None else whole.size_bytes,
        "identity": None if whole is None else whole.identity,
        "problems": problems, "next": None if problems else _next(form, root),
    }  # fmt: skip


@contextlib.contextmanager
def _noted(problems: list[dict[str, str]], split: str) -> Iterator[None]:
    """What is wrong inside becomes a line of the report, and the check goes on."""
    try:
        yield
    except SteelyardError as error:
        what = "; ".join([error.what, *map(str, error.problems)])
        problems.append({"split": split, "problem": what, "next": error.next_step or ""})
    except OSError as error:
        problems.append({"split": split, "problem": f"{error.filename}: {error.strerror}", "next": ""})


def _window(tokens: Any) -> int:
    return WINDOW if tokens.count(WINDOW) else 1


def _spread(count: int, most: int) -> Sequence[int]:
    """At most so many numbers below `count`, evenly, with the first and the last."""
    if count <= most:
        return range(count)
    return [place * (count - 1) // (most - 1) for place in range(most)]


def _print_check(found: dict[str, Any]) -> None:
    rows = [
        [split, f"{facts['examples']:,}" + (f" windows of {facts['window']} tokens" if facts["window"] else ""),
         "-" if facts["classes"] is None else str(facts["classes"]), f"{facts['decoded']:,}"]
        for split, facts in found["splits"].items()
    ]  # fmt: skip
    print(printable(f"{found['format']}: {found['path']}"))
    if rows:
        print(table(["split", "examples", "classes", "decoded"], rows))
    if found["identity"] is not None:
        print(f"{found['files']:,} files, {_size(found['size_bytes'])}, identity {found['identity'][:16]}")
    problems = found["problems"]
    for problem in problems[:SHOWN_PROBLEMS]:
        print(printable(f"WRONG {problem['split']}: {problem['problem']}"))
    if len(problems) > SHOWN_PROBLEMS:
        print(f"and {len(problems) - SHOWN_PROBLEMS} more; --json lists all")
    steps = dict.fromkeys(problem["next"] for problem in problems if problem["next"])
    steps |= {} if found["next"] is None else {found["next"]: None}
    print(f"\n{len(problems)} wrong" if problems else "\nnothing wrong")
    for step in steps:
        print(printable(f"next: {step}"))


def _size(size_bytes: int) -> str:
    step = min(4, int(math.log(max(1, size_bytes), 1024)))
    return f"{number(size_bytes / 1024**step, 3)} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[step]}"


def _make(arguments: argparse.Namespace) -> int:
    form: Format = plugins.load("data", arguments.format)
    _require_empty(arguments.path)
    form.make(arguments.path, arguments.samples, arguments.seed)
    return _written(arguments, form, arguments.path)


def _written(arguments: argparse.Namespace, form: Format, path: Path) -> int:
    """Says what a folder now holds, having read some of it."""
    found = look(form, path)
    if arguments.json:
        print(json.dumps(found))
    else:
        _print_check(found)
    return 1 if found["problems"] else 0


def _shards(arguments: argparse.Namespace) -> int:
    first, colon, _ = arguments.sources[0].partition(":")
    if colon and first in plugins.names("data"):
        if first != "imagefolder" or len(arguments.sources) > 1:
            problem = Problem("SOURCE", " ".join(arguments.sources), "one imagefolder:PATH, or files of JSON lines")
            raise InputError("these cannot be put into shards", problems=(problem,))
        _, root = _data(arguments.sources[0])
        _require_empty(arguments.target)
        from steelyard.data.shards import to_shards

        to_shards(root, arguments.target, arguments.samples_per_shard)
        return _written(arguments, plugins.load("data", "webdataset"), arguments.target)
    sources = [Path(source) for source in arguments.sources]
    missing = tuple(Problem(str(path), "is no file", "imagefolder:PATH, or files of JSON lines")
                    for path in sources if not path.is_file())  # fmt: skip
    if missing:
        raise InputError("a source is not there", problems=missing)
    _require_empty(arguments.target)
    from steelyard.data.tokens import to_shards as to_token_shards

    to_token_shards(sources, arguments.target, arguments.tokenizer)
    return _written(arguments, plugins.load("data", "tokens"), arguments.target)


def _data(text: str) -> tuple[Format, Path]:
    """The format and folder of FORMAT:PATH."""
    name, colon, path = text.partition(":")
    if not colon or not path:
        problem = Problem("data", f"{text!r} names no format and path", "FORMAT:PATH, such as cifar100:/data/cifar")
        raise InputError("a data set is not named so", problems=(problem,), next_step="steelyard data")
    form: Format = plugins.load("data", name)
    root = Path(path)
    if not root.is_dir():
        problem = Problem(path, "is no folder", "the folder that holds the data set")
        raise InputError(
            "the data set is not there", problems=(problem,), next_step=f"steelyard data make {name} {path}"
        )
    return form, root


def _require_empty(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        problem = Problem(str(path), "is not empty", "a folder that is empty or not there yet")
        raise InputError("nothing is written over", problems=(problem,), next_step="name another folder")


def _next(form: Format, root: Path) -> str:
    workload = WORKLOADS.get(form.name) or WORKLOADS.get(form.kind, "WORKLOAD")
    return f"steelyard run {workload} --data {shlex.quote(f'{form.name}:{root}')}"


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 2 <= int(text[:9]) <= 10_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count from 2 to 10,000,000")
    return int(text)
