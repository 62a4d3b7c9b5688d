"""Benchmark AI accelerators with numbers you can trust."""

from __future__ import annotations

import sys

# As typing.TYPE_CHECKING, for type checkers: `steelyard --help` imports nothing that it does not need.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import os

    import steelyard.results.query as of_results


def mark_step() -> None:
    """End a step of a program that `steelyard wrap` measures, where its steps cannot be told; otherwise do nothing."""
    observer = sys.modules.get("steelyard_observer")
    if observer is not None:
        observer.mark_step()


def open_results(path: str | os.PathLike[str]) -> of_results.Results:
    """Open the runs of a results folder, archived or not, as tables of DuckDB: runs, quantities, settings, findings.

    `open_results(path).query("select ...").df()` is a data frame, `.to_arrow_table()` a table of Arrow.
    `left_out` names the runs whose records cannot be read.
    """
    import importlib
    from pathlib import Path

    # By its name: the worker, which has neither DuckDB nor pydantic, imports this package too.
    opened: of_results.Results = importlib.import_module("steelyard.results.query").Results(Path(path))
    return opened
