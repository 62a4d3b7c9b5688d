"""Suites on simulated machines: one faster than the document's, with noise, for pictures; others of some devices."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from printed_machines import batches, joined, printed_rows, simulated
from simjob import run_spec
from steelyard.contracts.observe import DataFacts, ModelFacts, Settings
from steelyard.contracts.sim import Collective, Link, Noise, Power, Sensor, SimTruth
from steelyard.contracts.spec import Budget
from steelyard.inputs.catalogue import load as catalogue
from steelyard.inputs.suite import Choice, counterpart, expand_part, plan_part
from steelyard.report.suite.beside import SuiteResults
from steelyard.worker.devices.facts import look_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from steelyard.contracts.base import Contract
    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec
    from steelyard.inputs.suite import Planned, Size, SuiteFolder
    from steelyard.results.store import ResultFolder

SIZE: Size = "small"
FASTER = 1.3
JOBS = 3
NOISE = Noise(kind="normal", cv=0.02, between_jobs_cv=0.01)
BUDGET = Budget(min_steps=30, max_steps=30, min_seconds=0.0, max_seconds=1e9, max_extension=1.0)
NODE = SimTruth(
    noise=NOISE, power=Power(idle_w=70.0, compute_w=640.0), sensors=(Sensor(kind="gauge"),),
    collective=Collective(message_bytes=496_000_000, links=(Link(latency_s=2e-5, bytes_per_s=1e11),)),
)  # fmt: skip
"""The node of the suite without a document."""
DEVICE = "NVIDIA H100 80GB HBM3"
PEAKS = {"bf16": 0.66, "tf32": 0.75, "fp32": 0.78}
"""Part of the device's peak that matrix products reach."""
BYTES_PER_S = {"memory-bandwidth": 3.0e12, "to-device": 55e9, "to-host": 52e9, "all-reduce": 2.2e11}
SAMPLES_PER_S = {
    "resnet50": 2600.0, "swin-t": 1500.0, "fasterrcnn-r50-fpn": 45.0, "segformer-b4": 40.0,
    "bert-base": 250.0, "gpt": 95.0,
}  # fmt: skip
"""What one device reaches. They are chosen, and say nothing about a real device of this name."""
TORCH_TYPES = {"bf16": "bfloat16", "tf32": "float32", "fp32": "float32"}


def make_suite(folder: ResultFolder, found: SuiteFolder) -> None:
    """Make the runs of a suite on a simulated machine."""
    make = make_beside if found.suite.document else make_alone
    make(folder, found)


def make_beside(folder: ResultFolder, found: SuiteFolder) -> None:
    """Make the runs beside the rows of the document's first machine, on one that is faster."""
    rows = joined(printed_rows(SuiteResults(folder, found, "full")))
    for row in batches(rows)[0]:
        planned = row.entries[0].planned
        there = counterpart(found.suite, planned, SIZE, plan_part(found.suite, planned.part, Choice(SIZE)))
        spec = spec_of(found, there) if there is not None else None
        run = simulated(row, spec) if spec is not None else None
        if there is None or spec is None or run is None:
            continue
        truth = replace(run.sim, step_time_s=run.sim.step_time_s / FASTER, noise=NOISE)
        make_jobs(folder, replace(run, sim=truth, budget=spec.budget), data_of(there))


def make_alone(folder: ResultFolder, found: SuiteFolder, devices: int = 8, device: str = DEVICE) -> None:
    """Make the runs of a suite without a document on a node with this many devices of this name; none that generate."""
    for part in found.suite.part:
        if part.least_devices > devices:
            continue
        for cell in expand_part(found, part, Choice(SIZE, counts(devices))).cells:
            spec, facts = cell.spec, look_up(device)
            if spec.mode == "generate" or spec.devices > devices:
                continue
            model = facts_of(spec)
            if spec.mode == "train":
                rate = SAMPLES_PER_S[spec.workload]
            elif model.flops_per_sample:
                peaks = facts.peak_flops or look_up(DEVICE).peak_flops or {}
                rate = PEAKS[spec.precision] * peaks[spec.precision] / model.flops_per_sample
            else:
                rate = BYTES_PER_S[str(spec.model.get("direction", spec.workload))] / (model.bytes_per_sample or 1.0)
            collective = NODE.collective if spec.mode == "train" else Collective()
            truth = replace(NODE, step_time_s=spec.batch / rate, collective=collective)
            values = {"matmul_dtype": TORCH_TYPES[spec.precision], "float32_products": spec.precision}
            seen = {"device": facts, "model": model, "settings": Settings(values=values)}
            made = replace(spec, device="sim", mode="train", sim=truth, crosscheck_steps=0)
            # The simulated device only trains.
            recorded = {} if spec.mode == "train" else {"mode": "ceiling", "device": "auto"}
            make_jobs(folder, made, seen=seen, recorded=recorded)


def facts_of(spec: RunSpec) -> ModelFacts:
    """Return what the worker would have counted of a workload."""
    if spec.mode != "ceiling":
        known = catalogue()["workloads"][spec.workload]
        return ModelFacts(
            parameters=known["parameters"], flops_per_sample=known["flops_per_sample"]["train"], method="the catalogue",
            tokens_per_sample=known["tokens_per_sample"],
        )  # fmt: skip
    counted = "of one repeat"
    if spec.workload == "matmul":
        flops = 2.0 * math.prod(float(spec.model[side]) for side in ("m", "n", "k"))
        return ModelFacts(parameters=0, flops_per_sample=flops, method=counted)
    moved = 1e6 * float(spec.model["size_mb"])
    ring = 2 * (spec.devices - 1) / spec.devices if spec.workload == "all-reduce" else None
    return ModelFacts(parameters=0, flops_per_sample=None, bytes_per_sample=moved, bus_factor=ring, method=counted)


def make_machine(folder: ResultFolder, found: SuiteFolder, devices: int, *, data: bool = True) -> None:
    """Make the runs of every configuration that fits on a machine of its own speed, with the data sets or without."""
    for part in found.suite.part:
        choice = Choice(SIZE, counts(devices))
        # What evaluates needs files; its speed is that of the others.
        plan = [one for one in plan_part(found.suite, part, choice) if "quality" not in one.run]
        if not plan or len(plan) < len(plan_part(found.suite, part, choice)):
            continue
        for planned, cell in zip(plan, expand_part(found, part, choice).cells, strict=True):
            if cell.spec.devices <= devices:
                spec = replace(
                    cell.spec, device="sim", sim=truth_of(cell.spec), budget=BUDGET, crosscheck_steps=0
                )  # fmt: skip
                make_jobs(folder, spec, data_of(planned) if data else None)


def counts(devices: int) -> tuple[int, ...]:
    """Return the usual numbers of devices on a machine with this many."""
    return tuple(number for number in (1, 2, 4, 8) if number <= devices)


def truth_of(spec: RunSpec) -> SimTruth:
    """Return the speed and power of a configuration: larger batches and more devices pay, and no two are alike."""
    chance = random.Random(spec.configuration)
    samples = spec.batch * spec.accumulation
    step_s = (0.003 + 0.001 * samples) * chance.uniform(0.5, 2.0) * (1 + 0.02 * spec.devices)
    watts = chance.uniform(300, 600)
    power = Power(idle_w=watts, compute_w=watts, compile_w=watts)
    return SimTruth(step_time_s=step_s, power=power, sensors=(Sensor(kind="gauge", resolution=1e-9, gain=0.0),))


def spec_of(found: SuiteFolder, planned: Planned) -> RunSpec:
    """Return the settings of a configuration."""
    plan = plan_part(found.suite, planned.part, Choice(SIZE))
    cells = expand_part(found, planned.part, Choice(SIZE)).cells
    return next(cell.spec for one, cell in zip(plan, cells, strict=True) if one.settings == planned.settings)


def data_of(planned: Planned) -> DataFacts | None:
    """Return the data set of the document, as a run would have found it."""
    if planned.data is None:
        return None
    samples = planned.get("epoch_samples") or 1
    return DataFacts(
        format=planned.data, path=planned.data, samples=samples, files=samples, size_bytes=samples * 100_000,
        identity="0" * 64, filesystem="simulated", memory_bytes=None, fits_in_memory=None,
    )  # fmt: skip


def make_jobs(
    folder: ResultFolder,
    spec: RunSpec,
    data: DataFacts | None = None,
    seen: Mapping[str, Contract] = MappingProxyType({}),
    recorded: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Run a configuration several times; `seen`: as for `run_spec`, `recorded`: other settings than it ran with."""
    for job in range(JOBS):
        one = replace(spec, run_id=f"{spec.configuration}-r{job:04}", repeat=job, seed=spec.seed + job)
        run_spec(folder, one, lambda record: as_measured(record, data, recorded), seen)


def as_measured(
    record: RunRecord, data: DataFacts | None, recorded: Mapping[str, Any] = MappingProxyType({})
) -> RunRecord:
    """Return the record as if the machine were real: it read the data, and its speed is not a setting."""
    return replace(record, data=data, spec=replace(record.spec, sim=SimTruth(), **recorded))
