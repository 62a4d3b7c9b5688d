"""Write a report of results: HTML, Markdown, LaTeX, CSV, or a picture of its first screen."""

import argparse
from pathlib import Path

from steelyard.analysis.verify import history, occasions
from steelyard.errors import InputError, Problem, printable
from steelyard.extras import install_line
from steelyard.inputs.recipe import plan
from steelyard.inputs.suite import find_recipe
from steelyard.report.audit.reference import reference_page
from steelyard.report.page import Page
from steelyard.report.render import draw
from steelyard.report.render.files import Format, default_name, require_place, write
from steelyard.report.study.page import study_page
from steelyard.results.store import ResultFolder
from steelyard.terminal.document import print_json
from steelyard.terminal.live.progress import say


def run(arguments: argparse.Namespace) -> int:
    """Build and write the report; print its path and size."""
    if not arguments.selection and not arguments.reference:
        raise InputError("nothing to report", next_step="steelyard report STUDY, or steelyard report --reference")
    words = [Path(word).stem if _is_recipe(word) else word for word in arguments.selection] or ["reference"]
    kind: Format = "card" if arguments.card else arguments.format
    if arguments.card and arguments.format != "html":
        problem = Problem("--card", f"cannot be combined with --format {arguments.format}", "one of them")
        raise InputError("the card is a picture", problems=(problem,))
    path = arguments.output or Path(default_name(" ".join(words), kind))
    require_place(path, kind)
    page = _page(arguments)
    if kind in ("html", "latex"):
        say(
            "drawing charts"
            if draw.available()
            else f"no charts, only their tables; for charts: {install_line('report')}"
        )
    made = write(page, path, kind)
    if arguments.json:
        sections = [{"name": part.name, "title": part.title, "answer": part.answer} for part in page.sections]
        print_json(
            {
                "shape": "report/1",
                "path": str(made.path),
                "files": made.files,
                "size_bytes": made.size_bytes,
                "format": kind,
                "title": page.title,
                "sections": sections,
            }
        )
    else:
        files = "" if made.files == 1 else f" in {made.files} files"
        print(printable(f"{made.path}: {made.size_bytes:,} bytes{files}"))
    return 0


def _page(arguments: argparse.Namespace) -> Page:
    if arguments.reference:
        return reference_page(arguments.selection, title=arguments.title)
    if any(map(_is_recipe, arguments.selection)):
        return _recipe_page(arguments)
    return study_page(
        ResultFolder(arguments.results), arguments.selection, title=arguments.title, factor=arguments.factor, say=say
    )


def _is_recipe(word: str) -> bool:
    """Whether a word is a recipe file or the recipe of a suite: names of studies have neither."""
    return word.endswith(".toml") or ("/" in word and find_recipe(word) is not None)


def _recipe_page(arguments: argparse.Namespace) -> Page:
    """The history of a recipe, and the report of its latest occasion."""
    # Only for recipes: it imports everything that runs jobs.
    from steelyard.cli.verify import read_recipe

    if len(arguments.selection) > 1:
        problem = Problem("SELECTION", f"{len(arguments.selection)} given", "one recipe, or any number of selections")
        raise InputError("a recipe has a page of its own", problems=(problem,))
    (word,) = arguments.selection
    path = find_recipe(word) or Path(word)
    recipe, settings = read_recipe(path)
    folder = ResultFolder(arguments.results)
    names = occasions(folder, recipe)
    if not names:
        raise InputError(f"{folder.path} has no jobs of the recipe {recipe.name}", next_step=f"steelyard verify {word}")
    expansion = plan(recipe, path.parent, name=names[-1], jobs=recipe.jobs, run=settings)
    histories = history(folder, recipe, expansion)
    title = arguments.title or f"History: {recipe.title or recipe.name}"
    return study_page(folder, names[-1], title=title, histories=histories, say=say)
