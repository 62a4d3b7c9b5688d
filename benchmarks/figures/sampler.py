"""[sampler] Cost of measuring energy: CPU time of the sampler, and throughput of a training next to it.

The sampler reads eight devices at 10 Hz through the real nvidia-ml-py and a fake NVIDIA library. Its CPU time covers
the whole process, including the kernel, from the moment every channel is read. For the throughput, a model trains on
one thread in this process, in short turns; in every other turn the sampler is stopped (SIGSTOP), so that only its work
differs. Each side comes first every other time. The end of each turn requests a reading, as a block of steps does.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fake_nvml.build import build, environment
from figure import Figure, arguments, at_least, finish, of_time, timed
from overhead import LONG, LONG_BATCH, ByHarness, spec, spread
from steelyard.contracts.energy import sensor_event
from steelyard.contracts.spec import RunSpec
from steelyard.worker.sensors.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator

DEVICES = 8
CPU_LIMIT_PERCENT, SHARE_LIMIT = 1.0, 0.995
READY_S = 20.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Watched:
    """A watch whose sampler is running and can be stopped."""

    def __init__(self, raw: Path) -> None:
        self._watch = Watch(RunSpec(run_id="s", configuration="s", workload="tiny", device="cuda"), raw)
        self._raw = raw

    def start(self) -> None:
        """Wait until every channel is read."""
        begin_s = time.monotonic()
        self._watch.start()
        started_s = time.monotonic() - begin_s
        process = self._watch._process  # noqa: SLF001 -- nobody else needs it
        if process is None:
            raise SystemExit("the sampler did not start: the fake library was not found")
        self._pid = process.pid
        if not self._watch.reads(READY_S):
            raise SystemExit("the sampler does not read")
        print(
            f"started in {1e3 * started_s:.1f} ms; all channels read after {time.monotonic() - begin_s:.2f} s, "
            f"with {self.cpu_s():.2f} s of CPU"
        )

    def mark(self) -> None:
        """Request a reading, as at the end of a block."""
        self._watch.mark()

    def stand_still(self, *, still: bool) -> None:
        """Stop or continue the sampler."""
        os.kill(self._pid, signal.SIGSTOP if still else signal.SIGCONT)

    def cpu_s(self) -> float:
        """CPU seconds so far, user and kernel, of all threads."""
        words = Path(f"/proc/{self._pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / TICKS_PER_S

    def stop(self) -> tuple[int, int, int]:
        """Return the devices with a channel, the samples, and the periods without a reading."""
        self.stand_still(still=False)
        self._watch.stop()
        lines = (self._raw / "sensors-00000.jsonl").read_text(encoding="utf-8").splitlines()
        events = [sensor_event(json.loads(line)) for line in lines]
        domains = {fields["domain"] for kind, fields in events if kind == "channel"}
        ended = next(fields for kind, fields in events if kind == "ended")
        return len(domains), ended["samples"], ended["late"]


@contextmanager
def watched() -> Iterator[Watched]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder)
        os.environ.update(environment(folder, devices=DEVICES))
        # As on a node with one rank per device.
        os.environ["LOCAL_WORLD_SIZE"] = str(DEVICES)
        raw = folder / "raw"
        raw.mkdir()
        yield Watched(raw)


def cpu_figure(sampler: Watched, seconds: float, *, quick: bool) -> Figure:
    begin_s, begin_cpu_s = time.monotonic(), sampler.cpu_s()
    time.sleep(seconds)
    percent = 100 * (sampler.cpu_s() - begin_cpu_s) / (time.monotonic() - begin_s)
    return timed("sampler: CPU time, 10 Hz, 8 devices", percent, "% of one core", CPU_LIMIT_PERCENT, quick=quick)


def share_figure(sampler: Watched, pairs: int, steps: int, *, quick: bool) -> Figure:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        harness = ByHarness(spec(batch=LONG_BATCH, model=LONG), Path(name))

        def seconds(*, still: bool) -> float:
            sampler.stand_still(still=still)
            begin_s = time.perf_counter()
            harness.seconds(steps)
            if not still:
                sampler.mark()
            return time.perf_counter() - begin_s

        seconds(still=True)
        found = []
        for number in range(pairs):
            first = seconds(still=number % 2 == 0)
            second = seconds(still=number % 2 == 1)
            found.append((first, second) if number % 2 == 0 else (second, first))
    ratios = sorted(without / with_it for without, with_it in found)
    middle, bare_s = statistics.median(ratios), statistics.median(without for without, _ in found)
    error, half = spread(ratios)
    print(f"turns of {bare_s:.2f} s: {middle:.4f} of the throughput without, standard error {error:.4f}, {half}")
    limit = SHARE_LIMIT - (3 * error if quick else 0.0)
    return of_time(at_least("sampler: throughput of a training run beside it", middle, "of that without", limit))


def main() -> None:
    quick = arguments(__doc__).quick
    with watched() as sampler:
        sampler.start()
        cost = cpu_figure(sampler, 6.0 if quick else 30.0, quick=quick)
        share = share_figure(sampler, *((15, 6) if quick else (101, 12)), quick=quick)
        devices, samples, late = sampler.stop()
    print(f"{samples} samples, {late} periods without (it was stopped in half of the turns)")
    finish([at_least("sampler: devices that were read", devices, "", DEVICES), cost, share])


if __name__ == "__main__":
    main()
