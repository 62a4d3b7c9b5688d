"""Real runs on a machine that other processes keep busy: the answers are shares of its time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.full("shares of processor time")
CPUS = len(os.sched_getaffinity(0))


@pytest.fixture
def _busy() -> Iterator[None]:
    """Three busy processes per CPU. They get at least half of the CPU time, even if the kernel shares it by session."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3 * CPUS)]
    yield
    for process in started:
        process.kill()
        process.wait()


def run(folder: Path, *words: str) -> tuple[dict[str, Any], str]:
    """Return the record of one run and what else was printed."""
    command = [sys.executable, "-m", "steelyard.cli.main", "run", *words, "--results", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (record,) = json.loads(done.stdout)["runs"]
    return record, done.stderr


@pytest.mark.usefixtures("_busy")
def test_the_record_names_the_load_of_other_processes(tmp_path: Path) -> None:
    budget = ["--min-seconds", "1.5", "--max-seconds", "2", "--min-steps", "1"]
    record, said = run(tmp_path, "tiny", "--device", "cpu", "--devices", "2", "--batch", "8", *budget)
    (node,) = record["load"]
    assert node["node"] == record["environment"]["node"]
    assert node["cpus"] == CPUS
    assert node["before"]["other_cpus"] > 0.3 * CPUS
    assert node["during"]["other_cpus"] > 0.3 * CPUS
    # Both ranks count as the run's own.
    assert 0 < node["during"]["own_cpus"] < 0.7 * CPUS
    (found,) = [one for one in record["findings"] if one["code"] == "SY609"]
    assert f"other processes used {node['during']['other_cpus']:.1f} of {CPUS} CPUs" in found["message"]
    assert said.count("busy machine: other processes used") == 1


@pytest.mark.usefixtures("_busy")
def test_a_simulated_run_is_not_disturbed(tmp_path: Path) -> None:
    record, said = run(tmp_path, "sim")
    assert record["load"] == []
    assert record["findings"] == []
    assert "busy" not in said
