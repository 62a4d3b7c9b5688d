"""What the main loop asks of an engine: devices, workloads and the other processes. Knows the protocol, no engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from steelyard.contracts.observe import DataFacts, DeviceFacts, ModelFacts, Settings
    from steelyard.contracts.spec import RunSpec
    from steelyard.worker.devices.device import Device
    from steelyard.worker.engine.evaluate import Judge
    from steelyard.worker.workloads.step_maker import StepMaker


class Team(Protocol):
    """The processes of one job, this one among them."""

    process: int
    """Number of this process; 0 decides."""

    def agree(self, values: list[int]) -> list[int]:
        """What process 0 says, on every process."""


class Alone:
    """A team of one."""

    process = 0

    def agree(self, values: list[int]) -> list[int]:
        """Its own word."""
        return values


class SensorWatcher(Protocol):
    """Reads sensors while the job runs."""

    def mark(self) -> None:
        """Read them now: a window begins or ends."""

    def stop(self) -> None:
        """Read no more."""


class Job(Protocol):
    """One job as an engine runs it. Opened before the setup phase, built in it."""

    family: str
    """Of the devices that were found."""
    devices: Sequence[Device]
    team: Team
    spec: RunSpec
    """As it is run: after `build` an epoch is as long as the data set, where nothing else was asked for."""
    judge: Judge | None
    """Measures quality, where that was asked for; there after `build`."""
    touched_s: float | None
    """When the device was first touched, on the worker's clock; None: not told. Until then it was idle."""

    def watch(self, raw: Path) -> SensorWatcher | None:
        """The job's own sensors, where it brings any; None: those of the node are read."""

    def facts(self) -> dict[str, str]:
        """What the environment record says of this engine and its devices."""

    def build(self) -> Sequence[StepMaker]:
        """The step makers of the workload, one a device."""

    def data_facts(self) -> DataFacts | None:
        """Which data is read; None: synthetic. Looks at every file."""

    def settings(self) -> Settings | None:
        """The settings in effect, read back after the first steps."""

    def device_facts(self) -> DeviceFacts | None:
        """What is known of the devices' model."""

    def model_facts(self) -> ModelFacts | None:
        """What is known of the workload's model; counted after the measurement."""

    def close(self) -> None:
        """Leave the other processes in order."""
