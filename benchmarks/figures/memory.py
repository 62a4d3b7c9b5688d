"""[memory] Peak memory of worker and collector does not grow with steps or ranks, and time grows at most linearly.

A worker process runs 10 million steps, and another 1,024 ranks, as in a study; a second process derives the record.
Peak resident memory is VmHWM of the kernel, minus the value before the work. Linearity: CPU time per sample at the
largest size divided by that at a smaller size, as the median of several interleaved pairs.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from figure import Figure, arguments, at_most, finish, of_time
from steelyard.contracts.observe import SPEC_FILE
from steelyard.contracts.sim import Collective, Noise, SimTruth
from steelyard.contracts.spec import Budget, RunSpec
from steelyard.results.store import record_text

LIMIT_MB = 200.0
# Ten times the samples in ten times the time is 1; CPU time of identical runs varies by some 10 % on these machines.
LINEAR_LIMIT = 1.25
# Short runs vary more: six ratios of the quick form at 1,024 ranks were 0.73 to 1.52, a standard deviation of 0.29. The
# mean of two may miss the limit by three standard errors; growth with the square would be 4.
QUICK_NOISE = 3 * 0.29 / 2**0.5

# Both parts run in their own processes, because peak memory is per process.
PROBE = """
import json, sys, time
from pathlib import Path
from {module} import {function} as work
def peak_mb():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
idle, begin = peak_mb(), time.process_time()
work(Path(sys.argv[1]))
print(json.dumps({{"idle_mb": idle, "peak_mb": peak_mb(), "seconds": time.process_time() - begin}}))
"""
PARTS = {
    "worker": ("steelyard.worker.engine.run", "run_directory"),
    "collector": ("steelyard.derive.record", "derive"),
}


def probe(part: str, raw: Path) -> dict[str, float]:
    module, function = PARTS[part]
    command = [sys.executable, "-c", PROBE.format(module=module, function=function), str(raw)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def spec(steps: int, ranks: int) -> RunSpec:
    truth = SimTruth(noise=Noise(kind="normal", cv=0.02), collective=Collective(message_bytes=1_000_000))
    budget = Budget(min_steps=steps, max_steps=steps, max_seconds=1e9)
    return RunSpec(run_id="memory", configuration="memory", devices=ranks, seed=1, budget=budget, sim=truth)


def measure(steps: int, ranks: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder)
        (raw / SPEC_FILE).write_text(record_text(spec(steps, ranks)), encoding="utf-8")
        return {part: probe(part, raw) for part in PARTS}


def judge(
    name: str, large: tuple[int, int], small: tuple[int, int], pairs: int, limit: float = LINEAR_LIMIT
) -> list[Figure]:
    runs = [(measure(*large), measure(*small)) for _ in range(pairs)]
    factor = large[0] * large[1] / (small[0] * small[1])
    figures = []
    for part in PARTS:
        above = max(big[part]["peak_mb"] - big[part]["idle_mb"] for big, _ in runs)
        ratios = [big[part]["seconds"] / little[part]["seconds"] / factor for big, little in runs]
        rate = large[0] * large[1] / statistics.median(big[part]["seconds"] for big, _ in runs)
        print(f"{name}, {part}: {rate:,.0f} samples/s; time ratios {', '.join(f'{ratio:.2f}' for ratio in ratios)}")
        figures.append(at_most(f"memory: {part}, {name}", above, "MB above idle", LIMIT_MB))
        figures.append(of_time(at_most(f"memory: {part}, {name}, time growth", statistics.median(ratios), "x", limit)))
    return figures


def main() -> None:
    options = arguments(__doc__)
    if options.quick:
        steps = judge("400,000 steps", (400_000, 1), (100_000, 1), 2, LINEAR_LIMIT + QUICK_NOISE)
        ranks = judge("1,024 ranks", (64, 1024), (64, 256), 2, LINEAR_LIMIT + QUICK_NOISE)
    else:
        steps = judge("10 million steps", (10_000_000, 1), (1_000_000, 1), pairs=3)
        ranks = judge("1,024 ranks", (2000, 1024), (2000, 128), pairs=3)
    finish(steps + ranks)


if __name__ == "__main__":
    main()
