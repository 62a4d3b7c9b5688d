"""Facts about torch that a run records before any step, and the error for an unknown workload."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from conftest import make_spec
from steelyard.cli.main import main
from steelyard.worker.measure.software import torch_facts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec


def test_torch_says_what_it_is() -> None:
    facts = torch_facts()
    assert {"torch.version", "torch.threads", "torch.accelerator", "torch.distributed"} <= set(facts)
    assert all(isinstance(value, str) and value for value in facts.values())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["mobilenet-v3-small", "--mode", "generate"], "cannot generate tokens"),
        (["mobilenet-v3-small", "--device", "hpu"], "--device cpu"),
    ],
)
def test_a_run_that_is_refused_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main(["run", *words, "--results", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.err.count(told) == 1
    assert not said.out
    assert not list(tmp_path.glob("runs/*/*"))


def test_unknown_workload_is_refused(simulate: Callable[[RunSpec], RunRecord]) -> None:
    record = simulate(make_spec(workload="nothing"))
    assert (record.status.code, "no such workload" in record.status.reason) == ("refused", True)
