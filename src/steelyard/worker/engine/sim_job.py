"""The engine of the simulated accelerator: all ranks of a job in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard import plugins
from steelyard.worker.devices.sim import SimWatch, open_devices
from steelyard.worker.engine.job import Alone

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from steelyard.contracts.observe import DataFacts, DeviceFacts, ModelFacts, Settings
    from steelyard.contracts.spec import RunSpec
    from steelyard.worker.devices.device import Device
    from steelyard.worker.engine.evaluate import Judge
    from steelyard.worker.engine.job import Job, Team
    from steelyard.worker.workloads.step_maker import StepMaker


def open_job(spec: RunSpec) -> Job:
    """Open the whole job with all its ranks."""
    return SimJob(spec)


class SimJob:
    """A job on simulated devices."""

    family = "sim"

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        self.judge: Judge | None = None
        self.touched_s: float | None = None
        self._devices = open_devices(spec)
        self.devices: Sequence[Device] = self._devices
        self.team: Team = Alone()

    def watch(self, raw: Path) -> SimWatch | None:
        """Return the simulated sampler if the spec has something to read and it is to be read."""
        truth = self.spec.sim
        if not (truth.sensors or truth.states) or not self.spec.energy.watch:
            return None
        return SimWatch(self.spec, raw, self._devices)

    def facts(self) -> dict[str, str]:
        """Return no facts beyond those of the host."""
        return {}

    def build(self) -> list[StepMaker]:
        """Return one simulated step maker per rank, whatever the workload is called: the spec scripts its times."""
        make = plugins.load("workload", "sim")
        return [make(self.spec, device) for device in self._devices]

    def data_facts(self) -> DataFacts | None:
        """Return None: no data is read."""
        return None

    def settings(self) -> Settings | None:
        """Return None: there are no settings."""
        return None

    def device_facts(self) -> DeviceFacts | None:
        """Return None: there is no datasheet."""
        return None

    def model_facts(self) -> ModelFacts | None:
        """Return None: there is no model."""
        return None

    def close(self, *, lost: bool) -> None:
        """Do nothing: nothing is open."""
