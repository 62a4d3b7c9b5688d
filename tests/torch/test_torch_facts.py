"""Facts about torch that a run records before any step, and the error for an unknown workload."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conftest import make_spec
from steelyard.worker.measure.software import torch_facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec


def test_torch_says_what_it_is() -> None:
    facts = torch_facts()
    assert {"torch.version", "torch.threads", "torch.accelerator", "torch.distributed"} <= set(facts)
    assert all(isinstance(value, str) and value for value in facts.values())


def test_unknown_workload_is_refused(simulate: Callable[[RunSpec], RunRecord]) -> None:
    record = simulate(make_spec(workload="nothing"))
    assert (record.status.code, "no such workload" in record.status.reason) == ("refused", True)
