"""Shared by the tests: a simulated job run through the real worker and derivation, without starting a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from steelyard.contracts.observe import SPEC_FILE
from steelyard.contracts.spec import RunSpec
from steelyard.results.derive import derive
from steelyard.results.store import record_text
from steelyard.worker.engine.run import run_directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from steelyard.contracts.record import RunRecord


def make_spec(**settings: Any) -> RunSpec:
    return RunSpec(run_id="run", cell="cell", **settings)


@pytest.fixture
def simulate(tmp_path: Path) -> Callable[[RunSpec], RunRecord]:
    """Runs a spec in `tmp_path` and derives its record."""

    def run(spec: RunSpec) -> RunRecord:
        (tmp_path / SPEC_FILE).write_text(record_text(spec), encoding="utf-8")
        run_directory(tmp_path)
        return derive(tmp_path)

    return run
