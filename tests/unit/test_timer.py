"""The step timer on a device that cannot separate computation from communication."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from conftest import make_spec
from steelyard import plugins
from steelyard.contracts.sample_files import COLUMNS
from steelyard.contracts.sim import InputPipeline, SimTruth
from steelyard.contracts.spec import Budget
from steelyard.worker.devices.sim import open_devices
from steelyard.worker.engine.timer import StepTimer
from steelyard.worker.workloads.sim import SimSteps

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec
    from steelyard.worker.workloads.batches import Batch


class Unsplit(SimSteps):
    """Records no end of its computation."""

    def run(self, batch: Batch) -> None:  # type: ignore[override]
        self._device.work(0.010)


def test_steps_are_whole_and_their_parts_unknown() -> None:
    spec = make_spec(sim=SimTruth(input=InputPipeline(samples_per_s=1000.0)))
    device = open_devices(spec)[0]
    timer = StepTimer(device, Unsplit(spec, device))
    for _ in range(2):
        timer.issue(50)
        table = dict(zip(COLUMNS, timer.harvest(), strict=True))
    np.testing.assert_allclose(table["step_s"], 0.032)
    np.testing.assert_allclose(table["input_wait_s"], 0.022)
    assert np.isnan(table["compute_s"]).all()
    assert np.isnan(table["exposed_comm_s"]).all()
    assert table["samples"].tolist() == [32.0] * 50


def test_unknown_parts_are_said_to_be_unknown(
    simulate: Callable[[RunSpec], RunRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(plugins.BUILTIN["workload"], "sim", "test_timer:Unsplit")
    record = simulate(make_spec(budget=Budget(max_steps=100)))
    assert record.status.code == "completed", record.status
    share = record.quantities["compute_share"]
    assert (share.value, share.reason) == (None, "computation and communication cannot be separated here")
    assert record.quantities["input_wait_share"].value == 0.0
    assert record.quantities["throughput"].value == pytest.approx(3200)
