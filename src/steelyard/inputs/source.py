"""A user's own workload, given as FILE.py:FUNCTION. The file is read and parsed; it is never imported here."""

from __future__ import annotations

import ast
import hashlib
import re
import warnings
from pathlib import Path
from typing import Any

from steelyard.contracts.spec import Source
from steelyard.errors import InputError, Problem, nearest, refusal
from steelyard.inputs.validate import read_bounded, show_value

# Python needs a kilobyte for each short word of a file, and for formatted texts a time that grows with the square.
MAX_SOURCE_BYTES = 1 << 17
_FORM = re.compile(r"(?P<path>.*\.py):(?P<function>[A-Za-z_][A-Za-z0-9_]{0,79})")
# Names that a file makes in a way that only running it can tell.
_DYNAMIC = ("globals", "exec", "vars", "setattr", "__getattr__")


def find_source(workload: str, folder: Path | None, *, below: Path | None) -> Source | None:
    """Return the source that `workload` names, relative to `folder`; None when it is a registered name.

    `below`: a study may come from anybody, and may only name files of its own folder.
    """
    named = _FORM.fullmatch(workload)
    if named is None:
        if "/" in workload or ".py" in workload:
            raise refusal(_not_a_function(workload, folder, below))
        return None
    if folder is None:
        raise refusal(Problem("workload", "only a study in a file can use a workload of a file"))
    path = _resolve(named["path"], folder, below)
    text = read_source(path, named["path"])
    names = defined_names(text, named["path"])
    if names is not None and named["function"] not in names:
        # Functions before names that may stand for one.
        functions = sorted(
            (name for name, node in names.items() if _can_be_called(node)), key=lambda n: names[n] is None
        )
        near = nearest(named["function"], functions) or (functions[0] if len(functions) == 1 else "")
        defined = [name for name in functions if isinstance(names[name], ast.FunctionDef)]
        valid = ", ".join(defined) or "a function at the top level of the file"
        near = near and f"{named['path'][:80]}:{near}"
        raise refusal(Problem("workload", "no such function", valid, given=show_value(workload), near=near))
    return Source(path=str(path), function=named["function"], sha256=hashlib.sha256(text).hexdigest())


def _resolve(name: str, folder: Path, below: Path | None) -> Path:
    try:
        path = (folder / name).resolve()
    except (OSError, ValueError, RuntimeError):
        # A NUL character, or a link that leads to itself.
        raise refusal(Problem("workload", f'"{name[:80]}" is not a path', "./my.py:build")) from None
    if below is not None and not path.is_relative_to(below.resolve()):
        problem = f'"{name[:80]}" is outside the study\'s folder'
        raise refusal(Problem("workload", problem, "a file beside the study or below"))
    return path


def read_source(path: Path, name: str) -> bytes:
    """Return the text of a file; errors name it as the user wrote it."""
    try:
        return read_bounded(path, MAX_SOURCE_BYTES)
    except InputError as error:
        cause = error.problems[0]
        # Only a file of the same folder is another name for this one.
        near = name.removesuffix(path.name) + Path(cause.near).name if Path(cause.near).parent == path.parent else ""
        problem = Problem("workload", cause.problem, cause.valid, given=show_value(name), near=near)
        raise refusal(problem) from None


def _not_a_function(workload: str, folder: Path | None, below: Path | None) -> Problem:
    """Return the problem of a path without a function, with the function that it most likely means."""
    path, _, rest = workload.partition(":")
    near = ""
    if folder is not None and path.endswith(".py"):
        try:
            names = defined_names(read_source(_resolve(path, folder, below), path), path) or {}
        except InputError as error:
            return error.problems[0]
        functions = sorted(name for name, node in names.items() if isinstance(node, ast.FunctionDef))
        near = nearest(rest or "build", functions) or (functions[0] if functions and not rest else "")
    near = near and f"{path[:80]}:{near}"
    return Problem("workload", "must name a function", "./my.py:build", given=show_value(workload), near=near)


def defined_names(text: bytes, name: str) -> dict[str, ast.AST | None] | None:
    """Return what a Python file defines at its top level, by name; None when only running it can tell."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(text)
    except SyntaxError as error:
        raise refusal(Problem("workload", f"{name[:80]}:{error.lineno}: not valid Python: {error.msg}")) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise refusal(Problem("workload", f"{name[:80]}: not valid Python: {str(error)[:80]}")) from None
    defined: dict[str, ast.AST | None] = {}
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined[node.name] = node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            defined |= {(entry.asname or entry.name).partition(".")[0]: None for entry in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined[node.id] = None
        else:
            # Assignments, and what is inside if, try, with and for.
            todo += ast.iter_child_nodes(node)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | set(defined)
    return None if "*" in defined or used.intersection(_DYNAMIC) else defined


def _can_be_called(node: ast.AST | None) -> bool:
    return node is None or isinstance(node, ast.FunctionDef | ast.ClassDef)


def parameters(source: Source) -> dict[str, Any] | None:
    """Return the options that a user's function takes; None when only calling it can tell."""
    try:
        names = defined_names(read_bounded(Path(source.path), MAX_SOURCE_BYTES), source.path)
    except InputError:
        return None
    node = (names or {}).get(source.function)
    if not isinstance(node, ast.FunctionDef) or node.decorator_list or node.args.kwarg is not None:
        return None
    taken = [*node.args.args, *node.args.kwonlyargs]
    return {argument.arg: None for argument in taken}


def workload_name(source: Source) -> str:
    """Return the name of the workload in tables and folders."""
    stem = re.sub(r"[^A-Za-z0-9_.-]", "_", Path(source.path).stem).lstrip("_.-")[:40]
    return f"{stem or 'own'}.{source.function}"[:80]
