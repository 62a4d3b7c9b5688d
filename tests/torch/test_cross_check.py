"""A second pass that fails after the measurement, in one process and in one of two."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from conftest import make_spec
from steelyard.cli.main import main
from steelyard.contracts.spec import Budget
from steelyard.derive.record import derive
from steelyard.worker.engine import run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec

SHORT = Budget(min_steps=20, max_steps=20, min_seconds=0.0)
LONG = [pytest.mark.full("takes long: 10 s, two more ranks")]


def test_the_measurement_stays_completed(
    simulate: Callable[[RunSpec], RunRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")

    monkeypatch.setattr(run, "crosscheck", fail)
    record = simulate(make_spec(budget=SHORT))
    assert (record.status.code, record.steps_seen, record.crosscheck) == ("completed", 20, None)
    reason = "rank 0: RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB.\nmore"
    assert record.crosscheck_failure == reason
    (found,) = [finding for finding in record.findings if finding.code == "SY618"]
    assert (found.severity, "Tried to allocate 2.00 GiB.)" in found.message) == ("note", True)
    assert [phase.name for phase in record.phases if not phase.complete] == ["crosscheck"]


def test_what_is_read_afterwards_may_fail_too(
    simulate: Callable[[RunSpec], RunRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that failed in the second pass may answer nothing any more."""

    def fail(*_: Any, **_named: Any) -> Any:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(run, "crosscheck", fail)
    monkeypatch.setattr("steelyard.worker.engine.sim_job.SimJob.device_facts", fail)
    monkeypatch.setattr("steelyard.worker.engine.sim_job.SimJob.close", fail)
    assert simulate(make_spec(budget=SHORT)).status.code == "completed"


def test_a_process_that_is_killed_in_it(simulate: Callable[[RunSpec], RunRecord], tmp_path: Path) -> None:
    """Only the event before the second pass is left. A target that was missed stays missed."""
    assert simulate(make_spec(budget=SHORT)).crosscheck_failure is None
    events = tmp_path / "events-00000.jsonl"
    kept = [line for line in events.read_text().splitlines() if json.loads(line)["kind"] != "status"]
    events.write_text("\n".join(kept) + "\n")
    record = derive(tmp_path)
    reason = "failed: neither worker nor launcher left a status"
    assert (record.status.code, record.crosscheck_failure) == ("completed", reason)
    missed = [line.replace('"completed"', '"not_converged"') for line in kept]
    events.write_text("\n".join(missed) + "\n")
    assert derive(tmp_path).status.code == "not_converged"
    events.write_text("\n".join(line for line in kept if '"measured"' not in line) + "\n")
    assert derive(tmp_path).status.code == "failed"


FAILING = """
import os
import threading
import torch
from torch import nn

STEPS, HOW = 20, "{how}"

class Model(nn.Linear):
    calls = 0

    def forward(self, inputs):
        Model.calls += 1
        if Model.calls > STEPS + 3 and os.environ["RANK"] == "1":
            if HOW == "hangs":
                threading.Event().wait()
            if HOW == "dies":
                os.abort()
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().forward(inputs)

def batch(samples, generator):
    return torch.randn(samples, 5, generator=generator), torch.zeros(samples, 1)

def build():
    return Model(5, 1), nn.functional.mse_loss, lambda parameters: torch.optim.SGD(parameters, lr=0.1), batch
"""


@pytest.mark.usefixtures("torch_as_it_was")
@pytest.mark.parametrize(
    ("how", "more", "reason"),
    [
        ("raises", [], "rank 1: RuntimeError: CUDA out of memory."),
        pytest.param("raises", ["--parallel", "independent"], "rank 1: RuntimeError: CUDA out of memory.", marks=LONG),
        pytest.param(
            "hangs",
            ["--hang-limit-s", "5"],
            "hung: no block of steps completed within 5 s",
            marks=pytest.mark.full("on a busy machine any block may take the 5 s that are a hang here"),
        ),
        pytest.param("dies", [], "killed: rank 1 was ended by signal 6", marks=LONG),
    ],
)
def test_a_rank_that_fails_in_it_ends_nobodys_measurement(
    how: str,
    more: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The other rank waits in a collective until its connection or the watchdog ends it."""
    (tmp_path / "mine.py").write_text(FAILING.replace("{how}", how))
    monkeypatch.chdir(tmp_path)
    words = ["--device", "cpu", "--devices", "2", "--batch", "8", "--min-steps", "20", "--max-steps", "20", *more]
    words += ["--min-seconds", "0", "--results", str(tmp_path / "results"), "--json"]
    code = main(["run", "./mine.py:build", *words])
    out = capfd.readouterr()
    assert code == 0, out.out[-3000:] + out.err[-3000:]
    record = json.loads(out.out)["runs"][0]
    assert (record["status"]["code"], record["ranks_seen"], record["steps_seen"]) == ("completed", 2, 20)
    assert record["crosscheck_failure"].startswith(reason)
    assert "SY618" in {finding["code"] for finding in record["findings"]}
