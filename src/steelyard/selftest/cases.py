"""Simulated runs without noise, and the true value of each of their figures. The truths are calculated by hand, from
the script alone, and share no code with what derives the figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from steelyard.contracts.sim import Collective, InputPipeline, Link, Memory, Node, Power, Sensor, Shape, SimTruth
from steelyard.contracts.spec import Budget, RunSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP_S = 0.010
BATCH = 32
# 100 MB over a ring of 10 GB/s links with 5 microseconds per hop.
RING = Collective(message_bytes=100_000_000, links=(Link(latency_s=5e-6, bytes_per_s=1e10),))


@dataclass(frozen=True)
class Case:
    """One simulated run and its truths by quantity name."""

    name: str
    spec: RunSpec
    truths: dict[str, float]


def cases() -> Iterator[Case]:
    """Yield runs that cover every formula at least once."""
    yield from _plain()
    yield from _epochs()
    yield from _ranks()
    yield from _where_time_goes()
    yield from _around_the_steps()
    yield from _energy()


def _case(name: str, truths: dict[str, float], sim: SimTruth | None = None, steps: int = 1000, **spec: Any) -> Case:
    budget = spec.pop("budget", Budget(min_steps=steps, max_steps=steps))
    return Case(
        name,
        RunSpec(
            run_id=f"selftest-{name.replace(' ', '-')}",
            configuration="selftest",
            batch=BATCH,
            budget=budget,
            sim=sim or SimTruth(step_time_s=STEP_S),
            **spec,
        ),
        truths,
    )


def _throughput(job: float, devices: int = 1) -> dict[str, float]:
    return {"throughput": job, "throughput_per_device": job / devices}


def _plain() -> Iterator[Case]:
    yield _case("training", {**_throughput(BATCH / STEP_S), "step_time_mean": STEP_S})
    yield _case("inference", {**_throughput(BATCH / STEP_S), "step_time_mean": STEP_S}, mode="infer")
    # Four micro-batches per step: four times the time, four times the samples.
    yield _case("accumulation", {**_throughput(BATCH / STEP_S), "step_time_mean": 4 * STEP_S}, accumulation=4)
    # Nine steps of 10 ms and one of 30: 90 % are 10 ms.
    spikes = SimTruth(step_time_s=STEP_S, shape=Shape(spike_every=10, spike_factor=3.0))
    percentiles = {"p50": STEP_S, "p90": STEP_S, "p95": 3 * STEP_S, "p99": 3 * STEP_S}
    yield _case(
        "percentiles",
        {**{f"step_time_{name}": value for name, value in percentiles.items()}, **_throughput(BATCH / (1.2 * STEP_S))},
        spikes,
    )


def _epochs() -> Iterator[Case]:
    # 1,000 samples are 31 batches of 32 and a rest of 8 samples.
    epoch: dict[str, Any] = {"epoch_samples": 1000, "budget": Budget(epochs=40)}
    sized = SimTruth(step_time_s=0.002, sample_time_s=0.00025)
    yield _case("last batch dropped", _throughput(31 * 32 / (31 * STEP_S)), last_batch="drop", **epoch)
    yield _case("last batch padded", _throughput(1000 / (32 * STEP_S)), last_batch="pad", **epoch)
    yield _case(
        "last batch kept", _throughput(1000 / (31 * 0.010 + 0.002 + 8 * 0.00025)), sized, last_batch="keep", **epoch
    )
    # The loader restarts 39 times between 40 epochs.
    restart = SimTruth(step_time_s=STEP_S, input=InputPipeline(epoch_restart_s=0.05))
    seconds = 40 * 31 * STEP_S + 39 * 0.05
    yield _case(
        "several epochs",
        {**_throughput(40 * 31 * 32 / seconds), "input_wait_share": 39 * 0.05 / seconds},
        restart,
        **epoch,
    )


def _ring_s(ranks: int) -> float:
    return 2 * (ranks - 1) * 5e-6 + 2 * (ranks - 1) / ranks * 100_000_000 / 1e10


def _ranks() -> Iterator[Case]:
    for ranks in (8, 1024):
        slow = SimTruth(step_time_s=STEP_S, collective=RING, slow_rank=ranks // 2, slow_factor=1.25)
        # All wait for the slow rank; the others spend the difference in communication.
        step_s = 1.25 * STEP_S + _ring_s(ranks)
        compute = (ranks - 1 + 1.25) / ranks * STEP_S / step_s
        yield _case(
            f"training on {ranks} ranks with a slow one",
            {
                **_throughput(ranks * BATCH / step_s, ranks),
                "step_time_mean": step_s,
                "compute_share": compute,
                "exposed_comm_share": 1 - compute,
            },
            slow,
            steps=1000 if ranks == 8 else 200,
            devices=ranks,
        )
        # Replicas do not wait for each other: their rates add up.
        yield _case(
            f"inference on {ranks} ranks with a slow one",
            _throughput((ranks - 1 + 1 / 1.25) * BATCH / STEP_S, ranks),
            slow,
            steps=1000 if ranks == 8 else 200,
            devices=ranks,
            mode="infer",
        )
    together = 8 * BATCH * 4 / (4 * STEP_S + _ring_s(8))
    yield _case(
        "accumulation on 8 ranks",
        _throughput(together, 8),
        SimTruth(step_time_s=STEP_S, collective=RING),
        devices=8,
        accumulation=4,
    )


def _where_time_goes() -> Iterator[Case]:
    # The loader takes 32 ms per batch; the device computes for 10 ms.
    starved = SimTruth(step_time_s=STEP_S, input=InputPipeline(samples_per_s=1000.0))
    yield _case("input bound", {**_throughput(1000.0), "input_wait_share": 22 / 32, "compute_share": 10 / 32}, starved)
    fed = SimTruth(step_time_s=STEP_S, input=InputPipeline(samples_per_s=6400.0))
    yield _case("input hidden", {**_throughput(BATCH / STEP_S), "compute_share": 1.0}, fed)
    # The host takes 16 ms to enqueue what the device computes in 10 ms.
    hosted = SimTruth(step_time_s=STEP_S, launch_s=0.016)
    shares = {"host_wait_share": 6 / 16, "input_wait_share": 0.0, "compute_share": 10 / 16, "exposed_comm_share": 0.0}
    yield _case("host bound", {**_throughput(BATCH / 0.016), **shares}, hosted)


def _around_the_steps() -> Iterator[Case]:
    compiling = SimTruth(
        step_time_s=STEP_S,
        setup_s=1.5,
        compile_s=3.0,
        shape=Shape(compile_step_s=5.0),
        memory=Memory(limit_bytes=8e10, fixed_bytes=1e9, bytes_per_sample=1e8),
    )
    yield _case(
        "compilation kept apart",
        {
            **_throughput(BATCH / STEP_S),
            "setup_time": 1.5,
            "compile_time": 3.0,
            "first_step_time": 5.0 + STEP_S,
            "memory_peak": 1e9 + 32 * 1e8,
        },
        compiling,
    )


def _energy() -> Iterator[Case]:
    # 300 W during computation, after a first step that compiles; the sensor is finer than the required accuracy.
    power = Power(idle_w=50.0, compute_w=300.0, comm_w=120.0, compile_w=80.0, host_w=400.0)
    fine = Sensor(period_s=1e-5, resolution=1e-9)
    one = SimTruth(
        step_time_s=STEP_S,
        setup_s=10.0,
        shape=Shape(compile_step_s=20.0),
        power=power,
        sensors=(fine,),
    )
    joules = 300 * STEP_S / BATCH
    yield _case(
        "energy",
        {
            "power_job": 300.0,
            "idle_power_job": 50.0,
            "energy_per_sample": joules,
            "energy_per_sample_net": joules - 50 * STEP_S / BATCH,
            "samples_per_wh": 3600 / joules,
        },
        one,
    )
    # Cards with two dies, all of whose levels are read: each joule counts once.
    several = (fine, Sensor(scope="die", period_s=1e-5), Sensor(scope="node", period_s=1e-5))
    cards = SimTruth(
        step_time_s=STEP_S,
        power=power,
        sensors=several,
        node=Node(devices_per_node=4, dies_per_card=2),
        collective=RING,
        shape=Shape(compile_step_s=20.0),
    )
    yield _case(
        "energy on 8 dies of 4 cards on 2 nodes",
        {"energy_per_sample": (300 * STEP_S + 120 * _ring_s(8)) / BATCH},
        cards,
        devices=8,
    )
