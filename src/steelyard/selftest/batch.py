"""Run many simulated jobs through real worker processes, several per process, and derive their records."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.contracts.observe import SPEC_FILE
from steelyard.derive.record import derive
from steelyard.errors import SteelyardError, printable
from steelyard.results.store import record_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec

JOBS_PER_PROCESS = 50


def run_many(specs: Sequence[RunSpec]) -> list[RunRecord]:
    """Return the records of all specs, in order. Workers run in parallel, one per usable CPU."""
    groups = [specs[first : first + JOBS_PER_PROCESS] for first in range(0, len(specs), JOBS_PER_PROCESS)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return [record for records in pool.map(_run_group, groups) for record in records]


def _run_group(specs: Sequence[RunSpec]) -> list[RunRecord]:
    with tempfile.TemporaryDirectory(prefix="steelyard-selftest-") as folder:
        raws = [Path(folder).resolve() / str(number) for number in range(len(specs))]
        for raw, spec in zip(raws, specs, strict=True):
            raw.mkdir()
            (raw / SPEC_FILE).write_text(record_text(spec), encoding="utf-8")
        command = [sys.executable, "-P", "-m", "steelyard.worker", "--lifeline", *map(str, raws)]
        log = Path(folder) / "log"
        with log.open("wb") as output:
            worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT)
        try:
            code = worker.wait()
        finally:
            worker.kill()
            worker.wait()
        if code not in (0, 1):
            raise SteelyardError(
                f"a worker ended with exit code {code}: {printable(log.read_text(errors='replace')[-500:])}"
            )
        return [derive(raw) for raw in raws]
