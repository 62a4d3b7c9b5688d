"""Compare the energy of a run with what a wattmeter or Slurm measured at the same time."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from steelyard.analysis.meters import (
    MeterAgreement,
    MeteredEnergy,
    check_agreement,
    meter_energy,
    ours,
    read_meter,
    read_slurm,
)
from steelyard.analysis.power_trace import counted_scopes
from steelyard.derive.observations import Observations
from steelyard.errors import InputError, SteelyardError
from steelyard.results.store import RAW

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from steelyard.analysis.energy import CellEnergy
    from steelyard.contracts.energy import DomainScope
    from steelyard.contracts.record import Quantity, RunRecord
    from steelyard.results.store import ResultFolder

OF_STEPS, OF_RUN = "energy_all_steps", "energy_run"


def compare_meters(
    folder: ResultFolder,
    cells: Sequence[CellEnergy],
    *,
    meter: Path | None,
    scope: DomainScope | None,
    slurm: Path | None,
    plugin: str | None,
) -> dict[str, MeterAgreement]:
    """Compare the selected run with measurements of others, by source; empty if no file is given."""
    if meter is None and slurm is None:
        return {}
    records = [record for entry in cells for record in entry.cell.records]
    if len(records) != 1:
        raise InputError(
            f"{len(records)} runs are selected; a meter can be compared with one run",
            next_step="steelyard energy RUN_ID --meter FILE.csv",
        )
    record, raw, checks = records[0], folder.run_path(records[0].spec) / RAW, {}
    if meter is not None:
        checks["meter"] = against_meter(record, raw, meter, scope)
    if slurm is not None:
        steps = against_slurm(record, raw, slurm, plugin)
        checks |= {f"Slurm step {name}": check for name, check in steps.items()}
    return checks


def against_meter(record: RunRecord, raw: Path, path: Path, scope: DomainScope | None) -> MeterAgreement:
    """Compare the meter's energy during the steps of a run with ours."""
    start_s, stop_s = _window(record, raw, "steps")
    own = _own(record, raw, OF_STEPS, start_s, stop_s)
    return check_agreement(own, meter_energy(read_meter(path), start_s, stop_s, scope=scope))


def against_slurm(record: RunRecord, raw: Path, path: Path, plugin: str | None) -> dict[str, MeterAgreement]:
    """Compare each step in Slurm's accounting with our energy of the whole run."""
    start_s, stop_s = _window(record, raw, None)
    own = _own(record, raw, OF_RUN, start_s, stop_s)
    return {name: check_agreement(own, other) for name, other in read_slurm(path, plugin=plugin).items()}


def _own(record: RunRecord, raw: Path, name: str, start_s: float, stop_s: float) -> MeteredEnergy:
    quantity: Quantity | None = record.quantities.get(name) or record.quantities.get("energy_job")
    if quantity is None:
        raise InputError(f"run {record.run_id} had no sensor", next_step="steelyard doctor")
    scopes: tuple[DomainScope, ...] = ()
    if quantity.validity is not None:
        with contextlib.suppress(SteelyardError, OSError):
            scopes = counted_scopes(Observations(raw).nodes, quantity.validity.domains)
    return ours(quantity, scopes[0] if len(set(scopes)) == 1 else None, start_s, stop_s)


def _window(record: RunRecord, raw: Path, phase: str | None) -> tuple[float, float]:
    """Return a phase, or all of them, in Unix time. Only for one node: a meter and an account each cover one."""
    nodes = Observations(raw).nodes
    if len(nodes) != 1:
        raise InputError(f"run {record.run_id} has sensor files of {len(nodes)} nodes; a meter covers one")
    sampler = nodes[0].sampler
    if sampler is None or sampler.unix_s is None:
        raise InputError(f"run {record.run_id} has no wall-clock start time: a simulated clock has none")
    phases = [entry for entry in record.phases if phase is None or entry.name == phase]
    if not phases:
        raise InputError(f"run {record.run_id} made no steps")
    start_s, stop_s = min(entry.start_s for entry in phases), max(entry.end_s for entry in phases)
    return sampler.unix_s + start_s, sampler.unix_s + stop_s
