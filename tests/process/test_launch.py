"""Launching for real: limits, deaths and orphans end promptly, as a status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from conftest import HANG_S, make_spec, until
from steelyard.contracts.observe import SPEC_FILE
from steelyard.contracts.sim import SimTruth
from steelyard.contracts.spec import Budget, RunSpec
from steelyard.contracts.wrap import Program
from steelyard.doctor.load import Look
from steelyard.errors import InputError
from steelyard.launch.allocation import launcher_here
from steelyard.launch.local import LocalLauncher
from steelyard.launch.local_study import make_run
from steelyard.results.store import RAW, ResultFolder, record_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.observe import Launch

SLOW = SimTruth(step_time_s=1.0, wall_s_per_s=1.0)
ENDLESS = Budget(min_steps=100_000, max_steps=100_000, max_seconds=1e6)


def folder_in(path: Path) -> ResultFolder:
    folder = ResultFolder(path)
    folder.prepare()
    return folder


def slow_spec(**settings: object) -> RunSpec:
    return make_spec(sim=SLOW, budget=ENDLESS, **settings)


def test_a_run_and_its_place(tmp_path: Path) -> None:
    ticks: list[Path] = []
    record = make_run(folder_in(tmp_path), make_spec(), LocalLauncher(), ticks.append)
    assert record.status.code == "completed"
    assert record.launch is not None
    assert (record.launch.exit_code, record.launch.limit_hit) == (0, False)
    assert record.environment is not None
    assert record.environment.node
    assert sorted(file.name for file in record.raw) == [
        "events-00000.jsonl", "launch.json", "spec.json", "steps-00000.bin", "worker.log",
    ]  # fmt: skip


def test_a_spec_that_was_changed_is_not_run(tmp_path: Path) -> None:
    """It names what is executed, and others may be able to write to the folder of the results."""
    other = make_spec(program=Program(command=("touch", str(tmp_path / "ran"))), device="cpu")

    class Changed(LocalLauncher):
        def command(self, spec: RunSpec, raw: Path) -> list[str]:
            (raw / SPEC_FILE).write_text(record_text(other))
            return super().command(spec, raw)

    with pytest.raises(InputError, match="was changed"):
        make_run(folder_in(tmp_path), make_spec(), Changed(), lambda _: None, keeps_refused=False)
    assert not (tmp_path / "ran").exists()


def test_the_time_limit(tmp_path: Path) -> None:
    record = make_run(folder_in(tmp_path), slow_spec(time_limit_s=1.0), LocalLauncher(), lambda _: None)
    assert record.status.code == "time_limit"
    assert list((tmp_path / ".scratch").iterdir()) == []


def test_other_load_is_told_once_when_the_first_run_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class EnoughError(Exception):
        pass

    monkeypatch.setattr(Look, "busy_line", lambda _look: "busy")
    # A simulated clock does not depend on the machine.
    said: list[str] = []
    assert launcher_here(said.append, [make_spec()]).once_started is None  # type: ignore[attr-defined]
    launcher = launcher_here(said.append, [make_spec(workload="tiny", device="cpu")])

    def tick(_raw: Path) -> None:
        said.append("tick")
        if len(said) >= 3:
            raise EnoughError

    folder = folder_in(tmp_path)
    assert said == []
    for ticks in (["busy", "tick", "tick"], ["tick", "tick", "tick"]):
        said.clear()
        with pytest.raises(EnoughError):
            make_run(folder, slow_spec(), launcher, tick)
        assert said == ticks


def test_a_worker_that_is_killed(tmp_path: Path) -> None:
    def kill(raw: Path) -> None:
        for pid in workers_in(raw):
            os.kill(pid, signal.SIGKILL)

    record = make_run(folder_in(tmp_path), slow_spec(), LocalLauncher(), kill)
    assert (record.status.code, record.status.reason) == ("killed", "the worker was ended by signal 9")


def test_a_worker_that_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "numpy.py").write_text("raise ImportError('numpy is broken here')")
    record = make_run(folder_in(tmp_path / "r"), make_spec(), LocalLauncher(), lambda _: None)
    assert record.status.code == "failed"
    assert record.status.evidence is not None
    assert "numpy is broken here" in str(record.status.evidence["log_tail"])


def test_a_module_in_the_current_directory_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "numpy.py").write_text("raise SystemExit(9)")
    record = make_run(folder_in(tmp_path / "r"), make_spec(), LocalLauncher(), lambda _: None)
    assert record.status.code == "completed"


def test_another_launcher_at_the_same_study(tmp_path: Path) -> None:
    """The other one makes the run while ours is at it: its record stands, and nothing of ours is left."""
    folder = folder_in(tmp_path)

    class Overtaken(LocalLauncher):
        def run(self, spec: RunSpec, raw: Path, tick: Callable[[], None]) -> Launch:
            launch = super().run(spec, raw, tick)
            make_run(folder, spec, LocalLauncher(), lambda _: None)
            return launch

    record = make_run(folder, make_spec(), Overtaken(), lambda _: None)
    assert list(folder.records()) == [record]
    assert list((tmp_path / ".scratch").iterdir()) == []


def workers_in(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"steelyard.worker" in words and any(os.fsencode(folder) in word for word in words):
            found.append(int(entry.name))
    return found


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 130), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_no_worker_outlives_its_launcher(tmp_path: Path, number: signal.Signals, code: int) -> None:
    command = [sys.executable, "-m", "steelyard.cli.main", "run", "sim", "--results", str(tmp_path)]
    command += ["--set", "sim.wall_s_per_s=1", "--min-steps", "100000"]
    launcher = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    until(lambda: list(tmp_path.glob(f".scratch/*/{RAW}/progress.json")) or launcher.poll() is not None)
    assert launcher.poll() is None
    assert workers_in(tmp_path)
    launcher.send_signal(number)
    assert launcher.wait(HANG_S) == code
    until(lambda: not workers_in(tmp_path))
    assert list(ResultFolder(tmp_path).records()) == []
    if number != signal.SIGKILL:
        assert list((tmp_path / ".scratch").iterdir()) == []


def test_a_place_in_another_job_is_not_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    record = make_run(folder_in(tmp_path), make_spec(), LocalLauncher(), lambda _: None)
    assert (record.status.code, record.quantities["setup_time"].reason) == ("completed", None)


def test_a_flood_of_processes_is_refused(tmp_path: Path) -> None:
    spec = make_spec(workload="tiny", device="cpu", devices=65_536)
    with pytest.raises(InputError, match="65536 processes"):
        make_run(folder_in(tmp_path), spec, LocalLauncher(), lambda _: None)
