"""[slurm_10k] Ten thousand short runs on a real Slurm: few calls, fast answers, and low cost per run.

The runs are simulated, several per task, in arrays no longer than the site allows. Wrapper scripts count the calls of
Slurm commands. While the tasks run, squeue is timed from outside. Launcher, tasks and collector run one after the
other, so that they do not share processors; the cost is wall time, with every file synced to disk.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from cluster import Cluster, clean_environment
from figure import Figure, arguments, at_most, finish, of_time, timed
from steelyard.launch.plan import campaigns
from steelyard.launch.scripts.task import read_done
from steelyard.results.store import ResultFolder

STUDY = """
name = "many"
repeats = 5

[run]
workload = "sim"
crosscheck_steps = 0
budget = {{ min_steps = 50, max_steps = 50, min_seconds = 0.0 }}

[sweep]
batch = {batches}
"sim.step_time_s" = [0.01, 0.02, 0.03, 0.04]
"""
CALLS = ("sbatch", "squeue", "sacct", "scontrol", "scancel", "sacctmgr", "sinfo")
SHIM = """#!/bin/bash
echo {name} >> {log}
exec {path} "$@"
"""
ARRAY_SIZE = 20
LONGEST_S = 1200.0


@dataclass
class Seen:
    """Results of one campaign."""

    runs: int
    tasks: int
    arrays: int
    longest_array: int
    sending: Counter[str]
    looking: Counter[str]
    processor_ms: float
    """Processor time of launcher and collector per run."""
    send_s: float
    run_s: float
    collect_s: float
    worker_s: float
    """Total time of the workers in runs."""
    slowest_squeue_s: float
    completed: int
    left: int

    @property
    def per_run_ms(self) -> float:
        """Wall time of launcher and collector per run."""
        return 1e3 * (self.send_s + self.collect_s) / self.runs


def campaign(cluster: Cluster, home: Path, cells: int) -> Seen:
    """Submit a study of five runs per configuration, wait for Slurm, and collect."""
    home.mkdir()
    study, log, results = home / "study.toml", home / "calls", ResultFolder(home / "results")
    study.write_text(STUDY.format(batches=list(range(1, cells // 4 + 1))), encoding="utf-8")
    site = cluster.site(limits={"array_size": ARRAY_SIZE, "max_submitted": 100_000})
    shims(home / "bin", log)
    command = ["study", str(study), "--site", str(site)]
    before_s = processor_s()
    send_s, sending = watched(cluster, home, log, command)
    begin_s, sent_processor_s = time.monotonic(), processor_s()
    slowest_s = watch(cluster)
    run_s, watched_s = time.monotonic() - begin_s, processor_s()
    sent_s = sent_processor_s - before_s
    collect_s, looking = watched(cluster, home, log, ["status", "many", "--json"])
    collected_s = processor_s() - watched_s
    made = campaigns(results, "many")[0]
    lines = [
        line
        for job in made.plan.jobs
        for task in range(len(job.tasks))
        for line in read_done(made.done_file(job, task))
    ]
    totals = json.loads((home / "out").read_text(encoding="utf-8"))["studies"][0]
    return Seen(
        runs=cells * 5,
        tasks=sum(len(job.tasks) for job in made.plan.jobs),
        arrays=len(made.plan.jobs),
        longest_array=max(len(job.tasks) for job in made.plan.jobs),
        sending=sending,
        looking=looking,
        processor_ms=1e3 * (sent_s + collected_s) / (cells * 5),
        send_s=send_s,
        run_s=run_s,
        collect_s=collect_s,
        worker_s=sum(line.ended_unix_s - line.began_unix_s for line in lines),
        slowest_squeue_s=slowest_s,
        completed=count(totals, "completed"),
        left=cells * 5 - len(results.run_ids("many")),
    )


def shims(folder: Path, log: Path) -> None:
    """Write wrapper scripts that count the calls of Slurm commands."""
    folder.mkdir()
    log.touch()
    for name in CALLS:
        path = shutil.which(name)
        assert path is not None
        (folder / name).write_text(SHIM.format(name=name, log=log, path=path), encoding="utf-8")
        (folder / name).chmod(0o755)


def watched(cluster: Cluster, home: Path, log: Path, words: list[str]) -> tuple[float, Counter[str]]:
    """Return the wall time of a steelyard command, and the Slurm calls it made."""
    before = Counter(log.read_text(encoding="utf-8").split())
    variables = {**clean_environment(), **cluster.variables}
    variables["PATH"] = f"{home / 'bin'}:{variables['PATH']}"
    begin_s = time.monotonic()
    with (home / "out").open("wb") as out:
        command = [sys.executable, "-m", "steelyard.cli.main", *words, "--results", str(home / "results")]
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, env=variables, check=False)
    took_s = time.monotonic() - begin_s
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return took_s, Counter(log.read_text(encoding="utf-8").split()) - before


def processor_s() -> float:
    """Return the processor time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def watch(cluster: Cluster) -> float:
    """Return the slowest answer of squeue until the queue is empty."""
    slowest_s, end_s = 0.0, time.monotonic() + LONGEST_S
    while time.monotonic() < end_s:
        begin_s = time.monotonic()
        queue = cluster.queue()
        slowest_s = max(slowest_s, time.monotonic() - begin_s)
        if not queue:
            return slowest_s
        time.sleep(0.1)  # between two answers
    raise TimeoutError(f"not within {LONGEST_S:g} s: {cluster.logs()}")


def count(status: dict[str, object], code: str) -> int:
    totals = status["totals"]
    assert isinstance(totals, dict)
    return int(totals.get(code, 0))


def show(seen: Seen) -> None:
    rate = seen.runs / (seen.send_s + seen.run_s + seen.collect_s)
    print(
        f"{seen.runs} runs in {seen.tasks} tasks of {seen.arrays} arrays: planned and sent in {seen.send_s:.1f} s, "
        f"run in {seen.run_s:.1f} s, collected in {seen.collect_s:.1f} s: {rate:.0f} runs/s in all"
    )
    print(
        f"  a run took its worker {1e3 * seen.worker_s / seen.runs:.1f} ms, launcher and collector "
        f"{seen.per_run_ms:.1f} (processor {seen.processor_ms:.1f}); "
        f"calls to send {dict(seen.sending)}, to look {dict(seen.looking)}"
    )


def cost(seen: Seen, *, quick: bool) -> list[Figure]:
    """Processor time is valid on a busy machine; wall time, which includes the disk, needs an idle one."""
    name = "slurm_10k: launcher and collector"
    figures = [timed(f"{name}, processor", seen.processor_ms, "ms per run", 20, quick=quick)]
    return figures if quick else [*figures, of_time(at_most(f"{name}, wall", seen.per_run_ms, "ms per run", 20))]


def main() -> None:
    options = arguments(__doc__)
    few, many = (40, 200) if options.quick else (200, 2000)
    with tempfile.TemporaryDirectory() as name, Cluster(Path(name) / "slurm", array_size=ARRAY_SIZE + 1) as cluster:
        small = campaign(cluster, Path(name) / "few", few)
        large = campaign(cluster, Path(name) / "many", many)
        queue = cluster.queue()
    show(small)
    show(large)
    same = small.looking == large.looking
    finish(
        [
            Figure("slurm_10k: runs", large.completed, "completed", f"= {large.runs}", large.completed == large.runs),
            at_most("slurm_10k: sbatch calls an array", (large.sending["sbatch"] - 1) / large.arrays, "calls", 1),
            at_most("slurm_10k: longest array", large.longest_array, "tasks", ARRAY_SIZE),
            Figure("slurm_10k: calls of a look, whatever the runs", sum(large.looking.values()), "calls", "same", same),
            *cost(large, quick=options.quick),
            of_time(at_most("slurm_10k: slowest squeue meanwhile", large.slowest_squeue_s, "s", 1)),
            at_most("slurm_10k: runs without a record", large.left, "runs", 0),
            at_most("slurm_10k: left in the queue", len(queue), "tasks", 0),
        ]
    )


if __name__ == "__main__":
    main()
