"""The interface between the main loop and an engine: devices, workloads and the other processes."""

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
    """The processes of one job, including this one."""

    process: int
    """Number of this process; process 0 decides."""

    def agree(self, values: list[int]) -> list[int]:
        """Return the values of process 0 on every process.

        If their steps wait for each other, no process returns before all have called it: a process that is late
        between blocks of steps then delays no measured step of another.
        """


class Alone:
    """A team of one process."""

    process = 0

    def agree(self, values: list[int]) -> list[int]:
        """Return its own values."""
        return values


class SensorWatcher(Protocol):
    """Reads sensors while the job runs."""

    def mark(self) -> None:
        """Read them now, because a window begins or ends."""

    def stop(self) -> None:
        """Stop reading."""


class Job(Protocol):
    """One job of an engine. Opened before the setup phase, built during it."""

    family: str
    """Device family that was found."""
    devices: Sequence[Device]
    team: Team
    spec: RunSpec
    """The spec as run: after `build` an epoch has the length of the data set unless the user set another."""
    judge: Judge | None
    """Measures quality if requested; set by `build`."""
    touched_s: float | None
    """When the device was first used, on the worker's clock; None: unknown. Until then it was idle."""

    def watch(self, raw: Path) -> SensorWatcher | None:
        """Return the job's own sensors if it has any; None: the node's sensors are read."""

    def facts(self) -> dict[str, str]:
        """Return facts on the engine and its devices for the environment record."""

    def build(self) -> Sequence[StepMaker]:
        """Return the step makers of the workload, one per device."""

    def data_facts(self) -> DataFacts | None:
        """Return facts on the data set; None: synthetic data. Looks at every file."""

    def settings(self) -> Settings | None:
        """Return the settings in effect, read back after the first steps."""

    def device_facts(self) -> DeviceFacts | None:
        """Return datasheet facts on the device model."""

    def model_facts(self) -> ModelFacts | None:
        """Return facts on the workload's model; counted after the measurement."""

    def close(self, *, lost: bool) -> None:
        """Leave the process group cleanly. `lost`: a process may be gone from it, so do not wait for all of them."""
