"""[two_clocks] Figures of steps on a scripted accelerator whose host and device have clocks of their own.

Random machines and programs: cost of a launch, depth of the queue, copy streams, cost of an event, speed and changing
clock of the device, speed of the loader, hidden synchronisations, slower ranks and slower hosts, overlapped
collectives. Each is measured with the product's own device class, timer, block loop, cross-check and derivation, and
compared with the truth of the same machine without any timer. See benchmarks/lib/scripted_accelerator.py.
"""

from __future__ import annotations

import gc
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np

from figure import Figure, arguments, at_least, at_most, finish, slack_percent
from scripted_accelerator import Script, TrueShares, measured, truth
from steelyard.analysis.bound import leading
from steelyard.contracts.spec import Budget, RunSpec
from steelyard.derive.observations import StepSamples

STEPS = 800
LEAD = 0.10
NAMES = {
    "compute": "compute-bound",
    "communication": "communication-bound",
    "host": "host-bound",
    "input": "input-bound",
}
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def random_script(seed: int) -> Script:
    """Draw one machine and program."""
    draw = Random(seed)

    def between(low: float, high: float) -> float:
        return float(np.exp(draw.uniform(np.log(low), np.log(high))))

    count, step_s = draw.randint(60, 80), between(6e-3, 25e-3)
    weights = [draw.uniform(0.2, 1.8) for _ in range(count)]
    kernels = tuple(step_s * weight / sum(weights) for weight in weights)
    ranks = draw.choice((1, 1, 2, 4))
    last = draw.randint(count // 2, count - 2)
    points = sorted({*(draw.randint(0, last) for _ in range(draw.randint(0, 3))), last})
    exchange_s = step_s * between(0.1, 5.0)
    parts = [draw.uniform(0.5, 1.5) for _ in points]
    buckets = tuple(zip(points, (exchange_s * part / sum(parts) for part in parts), strict=True))
    return Script(
        kernels=kernels,
        launch_s=step_s * between(0.1, 6.0) / count,
        depth=draw.choice((64, 128, 256, 1024)),
        event_s=draw.uniform(0.3e-6, 3e-6),
        event_host_s=draw.uniform(0.5e-6, 4e-6),
        query_s=draw.uniform(0.3e-6, 1.5e-6),
        wake_s=draw.uniform(3e-6, 30e-6),
        loader_s=step_s * between(0.4, 6.0) if draw.random() < 0.5 else None,
        prefetch=draw.randint(1, 4),
        copy_s=step_s * draw.uniform(0.01, 0.3) if draw.random() < 0.4 else 0.0,
        copy=draw.choice(("stream", "own stream", "synchronous")),
        syncs=draw.choice((0, 0, 0, 0, 1, 2)),
        buckets=buckets if ranks > 1 else (),
        reduced_by=last + 1,
        device_factors=tuple(draw.uniform(1.0, 1.3) for _ in range(ranks)),
        host_factors=tuple(draw.uniform(1.0, 1.3) for _ in range(ranks)),
        clock_swing=draw.choice((0.0, 0.0, 0.05)),
        clock_period_s=7.3 * step_s,
    )  # fmt: skip


def spec_of(script: Script) -> RunSpec:
    budget = Budget(min_steps=STEPS, max_steps=STEPS, max_seconds=1e6)
    return RunSpec(
        run_id="two-clocks", configuration="two-clocks", workload="tiny", device="cuda", devices=script.ranks,
        budget=budget, crosscheck_steps=16,
    )  # fmt: skip


def one_case(seed: int) -> tuple[int, float, float, str, str, bool]:
    """Return seed, errors of step time and busy share, the true and the given name, and whether the truth leads."""
    # Millions of small objects, none of them in a cycle until the end.
    gc.collect()
    gc.disable()
    script = random_script(seed)
    spec = spec_of(script)
    true = truth(script, spec, STEPS)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        record = measured(script, spec, Path(folder))
    step, busy = (record.quantities[name].value for name in ("step_time_mean", "busy_share"))
    off = 1.0 if busy is None else abs(busy - true.busy)
    name, leads = leading_part(true)
    return seed, abs((step or 0.0) / true.step_s - 1), off, name, leading(record), leads


def leading_part(true: TrueShares) -> tuple[str, bool]:
    """Return the name of the largest true share, and whether it leads by ten points."""
    shares = sorted(((getattr(true, part), name) for part, name in NAMES.items()), reverse=True)
    return shares[0][1], shares[0][0] - shares[1][0] >= LEAD


def delayed(seed: int) -> float:
    """Return the largest change of another rank's first steps of blocks, if one rank is late between blocks."""
    script = random_script(seed)
    while script.ranks == 1:
        seed += 100_000
        script = random_script(seed)
    # Without what depends on the time of day: batches that are ready after a pause, and the changing clock.
    script = replace(script, loader_s=None, copy_s=0.0, clock_swing=0.0)
    late = replace(script, delay_rank=script.ranks - 1, delay_s=Random(seed).uniform(0.5, 50.0) * sum(script.kernels))
    spec = spec_of(script)
    tables = []
    for each in (script, late):
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            measured(each, spec, Path(folder))
            samples = StepSamples(Path(folder), script.ranks)
            tables.append(
                np.concatenate([chunk.column("step_s") for chunk in samples.windowed(0, STEPS) if chunk.rank == 0])
            )
    return float(np.abs(tables[1] / tables[0] - 1).max())


def main() -> None:
    options = arguments(__doc__)
    cases, late = (10, 1) if options.quick else (500, 40)
    first = 2_000_000
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = list(pool.map(one_case, range(first, first + cases), chunksize=2))
        moved = list(pool.map(delayed, range(first, first + late)))
    clear = [case for case in found if case[5]]
    for seed, step, busy, true, given, leads in found:
        if step > 0.005 or busy > 0.02 or (leads and true != given):
            print(f"seed {seed}: step off {100 * step:.2f} %, busy off {100 * busy:.1f} points, {true}: {given}")
    named = 100 * sum(true == given for _, _, _, true, given, _ in clear) / len(clear)
    print(f"{len(clear)} of {len(found)} lead by 10 points: " + ", ".join(
        f"{sum(case[3] == name for case in clear)} {name}" for name in NAMES.values()))  # fmt: skip
    figures: list[Figure] = [
        at_most("two_clocks: largest error of the step time", 100 * max(case[1] for case in found), "%", 0.5),
        at_least("two_clocks: named rightly where one share leads by 10 points", named, "%",
                 98.0 - slack_percent(98, len(clear), quick=options.quick)),
        at_most("two_clocks: largest error of the busy share", 100 * max(case[2] for case in found), "points", 2.0),
        at_most("two_clocks: steps of others change by a delay between blocks", 100 * max(moved), "%", 1.0),
    ]  # fmt: skip
    finish(figures)


if __name__ == "__main__":
    main()
