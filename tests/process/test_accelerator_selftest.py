"""`steelyard selftest --accelerator` with processes: without an accelerator, and with the CPU in its place."""

from __future__ import annotations

import getpass
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from steelyard.cli.main import main
from steelyard.contracts.accelerator import AcceleratorReport
from steelyard.contracts.base import from_json_object
from steelyard.contracts.sim import SimTruth, State
from steelyard.selftest import accelerator
from steelyard.selftest.accelerator import NodeRuns

CPU = {"family": "cpu", "index": 0, "name": "x86_64", "memory_bytes": None, "architecture": None, "fault": None}
SIM: dict[str, Any] = {"workload": "sim"}


def probing(monkeypatch: pytest.MonkeyPatch, devices: int) -> None:
    """Let the probe find this many accelerators, which are the CPU."""
    pretended = [{**CPU, "family": "cuda", "name": "NVIDIA GH200 480GB", "memory_bytes": 1e11}] * devices
    found = {"facts": {"torch.version": "2.9", "torch.git_version": "abc"}, "devices": [CPU, *pretended], "error": None}
    monkeypatch.setattr(accelerator, "run_probe", lambda: found)


def test_without_an_accelerator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    probing(monkeypatch, 0)
    assert main(["selftest", "--accelerator"]) == 2
    err = capsys.readouterr().err
    assert "there is no accelerator here that torch can use" in err
    assert "steelyard selftest checks the arithmetic" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.full("takes 20 s: an all-reduce of two real processes")
def test_the_whole_with_the_cpu_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Simulated runs stand for the device's own, and the all-reduce is a real one over two processes."""
    probing(monkeypatch, 2)
    states = (State(clock_mhz=1980.0, power_capped=0.0, thermal=0.0, hardware=0.0),)
    monkeypatch.setattr(accelerator, "TINY", SIM | {"sim": SimTruth(step_time_s=0.001, launch_s=0.01)})
    monkeypatch.setattr(accelerator, "PRODUCT", SIM | {"sim": SimTruth(step_time_s=0.01, states=states)})
    monkeypatch.setattr(accelerator, "EXCHANGE", accelerator.EXCHANGE | {"device": "cpu", "model": {"size_mb": 0.1}})
    monkeypatch.setattr(accelerator, "hardware_test", _fail)
    path = tmp_path / "result.json"
    assert main(["selftest", "--accelerator", "--write", str(path)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("NVIDIA GH200 480GB: not as steelyard assumes in 1 of 10 checks: events")
    assert all(len(line) <= 80 for line in out.splitlines() if str(path) not in line)
    text = path.read_text(encoding="utf-8")
    report = from_json_object(AcceleratorReport, json.loads(text))
    outcomes = {check.name: check.outcome for check in report.checks}
    # The CPU has no queue, and no memory of its own.
    assert outcomes == {
        "events": "not as assumed",
        **dict.fromkeys(("clocks", "queue", "profiler", "memory"), "could not check"),
        **dict.fromkeys(("host-bound", "repeatability", "collectives", "throttling"), "ok"),
        "sensors": "could not check",
    }, report.checks
    assert report.facts["torch.version"]
    assert "torch.git_version" not in report.facts
    for private in (socket.gethostname(), getpass.getuser(), str(tmp_path), str(Path.home())):
        assert f'"{private}"' not in text
        assert f" {private}" not in text
    assert "OSError: no driver in (path)" in text


def _fail(*_words: Any, **_more: Any) -> Any:
    raise OSError("no driver in /opt/site/lib")


def test_a_process_that_hangs_or_dies_loses_one_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def asked(program: str) -> list[tuple[str, str]]:
        """The checks as made by this program in place of the worker."""
        script = tmp_path / "python"
        script.write_text(f"#!/bin/sh\n{program}\n", encoding="utf-8")
        script.chmod(0o755)
        monkeypatch.setattr(accelerator.sys, "executable", str(script))
        return [(check.name, check.text) for check in NodeRuns(60.0).examine(("a", "b"))]

    good = '{"name": "a", "outcome": "ok", "text": "well"}'
    assert asked(f"""test $4 = a && echo '{good}'; echo 'no b' >&2; exit 3""") == [
        ("a", "well"),
        ("b", "the process ended with exit code 3: no b"),
    ]
    monkeypatch.setattr(accelerator, "START_S", 0.3)
    monkeypatch.setattr(accelerator, "EACH_S", 0.0)
    assert asked("exec tail -f /dev/null") == [("a", "no answer within 0 s"), ("b", "no answer within 0 s")]


def test_no_check_begins_after_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    probing(monkeypatch, 2)
    report = accelerator.accelerator_test(lambda _text: None, limit_s=1.0)
    assert report.counts() == {"could not check": 10}
    assert all("no time left" in check.text for check in report.checks)
