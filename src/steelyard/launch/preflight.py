"""What this node is and what would go wrong on it, found without privileges and without changing anything."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from steelyard.contracts.spec import Budget, RunSpec
from steelyard.launch.campaign import collect
from steelyard.launch.local import LocalLauncher
from steelyard.results.store import ResultFolder

if TYPE_CHECKING:
    from collections.abc import Iterator

CGROUPS = Path("/sys/fs/cgroup")

Verdict = Literal["ok", "note", "wrong"]

# A step of 8 ms is the smallest people report; a clock must be fine against it.
CLOCK_LIMIT_S = 1e-5
DEVICE_FILES = {
    "NVIDIA": "nvidia[0-9]*",
    "AMD": "kfd",
    "Intel or AMD (DRM)": "dri/renderD*",
    "Graphcore": "ipu[0-9]*",
    "Habana": "accel/accel[0-9]*",
}


@dataclass(frozen=True)
class Check:
    """One thing looked at."""

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""


def checks(results: Path) -> Iterator[Check]:
    """Everything there is to say, cheap things first."""
    yield _python()
    yield Check("machine", "ok", f"{platform.machine()}, {platform.system()} {platform.release()}")
    yield from _cpus()
    yield _memory()
    yield _torch()
    yield _accelerators()
    yield _scheduler()
    yield _clock()
    yield _folder(results)
    yield _worker()


def _python() -> Check:
    found = f"{platform.python_version()} at {sys.executable}"
    packages = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "scipy", "pydantic"))
    return Check("python", "ok", f"{found}; {packages}")


def _cpus() -> Iterator[Check]:
    online, usable = os.cpu_count() or 1, len(os.sched_getaffinity(0))
    yield Check("CPUs", "ok", f"{usable} usable of {online} online")
    quota = cpu_quota(list(control_groups("cpu")))
    if quota is not None and quota < usable:
        yield Check(
            "CPU quota",
            "wrong",
            f"the cgroup allows {quota:g} CPUs, {usable} are visible: loader workers would be throttled",
            f"ask for more CPUs, or use at most {max(1, int(quota))} loader workers",
        )


def control_groups(controller: str, membership: Path = Path("/proc/self/cgroup")) -> Iterator[Path]:
    """Directories of the control groups this process is in, its own first; a limit of any of them binds it."""
    for line in (_read(membership) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            root = CGROUPS / controllers if controllers else CGROUPS
            own = root / path.lstrip("/")
            yield from (group for group in [own, *own.parents] if group.is_relative_to(root) and group.is_dir())


def cpu_quota(groups: list[Path]) -> float | None:
    """CPUs that the control groups allow, in version 2 and version 1 spelling; None without a limit."""
    quotas = []
    for group in groups:
        second = _read(group / "cpu.max")
        if second and not second.startswith("max"):
            limit, _, period = second.partition(" ")
            quotas.append(float(limit) / float(period or 100_000))
        limits = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
        if limits[0] and limits[1] and float(limits[0]) > 0:
            quotas.append(float(limits[0]) / float(limits[1]))
    return min(quotas, default=None)


def memory_limit(groups: list[Path]) -> int | None:
    """Bytes that the control groups allow; None without a limit."""
    texts = [_read(group / name) for group in groups for name in ("memory.max", "memory.limit_in_bytes")]
    return min((int(text) for text in texts if text and text.isdigit()), default=None)


def _memory() -> Check:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = memory_limit(list(control_groups("memory")))
    # Version 1 writes "no limit" as a number larger than any memory.
    bound = f", limited to {limit / 2**30:.1f} GiB" if limit is not None and limit < total else ""
    return Check("memory", "ok", f"{total / 2**30:.1f} GiB{bound}")


def _torch() -> Check:
    try:
        return Check("torch", "ok", importlib.metadata.version("torch"))
    except importlib.metadata.PackageNotFoundError:
        return Check(
            "torch", "note", "not installed: the simulated device works, real ones need it", "pip install torch"
        )


def _accelerators() -> Check:
    found = [f"{name}: {count}" for name, pattern in DEVICE_FILES.items() if (count := len(list(_dev(pattern))))]
    if found:
        return Check("accelerators", "ok", "device files of " + ", ".join(found))
    return Check("accelerators", "note", "no device files: only `sim` can be measured here")


def _dev(pattern: str) -> Iterator[Path]:
    return Path("/dev").glob(pattern)


def _scheduler() -> Check:
    job = os.environ.get("SLURM_JOB_ID")
    if job:
        return Check("scheduler", "ok", f"inside Slurm allocation {job}, node {os.environ.get('SLURMD_NODENAME', '?')}")
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return Check("scheduler", "ok", "inside a Kubernetes pod")
    return Check("scheduler", "note", "none: repeats here speak for this node only")


def _clock() -> Check:
    info = time.get_clock_info("monotonic")
    if info.resolution > CLOCK_LIMIT_S:
        return Check(
            "clock", "wrong", f"monotonic clock resolves {info.resolution:g} s", "do not time short steps here"
        )
    return Check("clock", "ok", f"{info.implementation}, resolution {info.resolution:g} s")


def _folder(results: Path) -> Check:
    if results.exists() and not results.is_dir():
        return Check("results", "wrong", f"{results} is not a directory", "give another folder with --results")
    parent = next(path for path in [results, *results.absolute().parents] if path.is_dir())
    try:
        with tempfile.TemporaryDirectory(dir=parent, prefix=".steelyard-doctor-") as scratch:
            (Path(scratch) / "beside").mkdir()
            (Path(scratch) / "beside").rename(Path(scratch) / "place")
    except OSError as error:
        return Check("results", "wrong", f"{results}: {error.strerror}", "give another folder with --results")
    return Check("results", "ok", f"{results.absolute()}: writable, renames work")


def _worker() -> Check:
    """A real worker process with a real, tiny run: nothing tells more."""
    spec = RunSpec(run_id="doctor", cell="doctor", budget=Budget(min_steps=10, max_steps=10, min_seconds=0))
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="steelyard-doctor-") as scratch:
        folder = ResultFolder(Path(scratch))
        folder.prepare()
        record = collect(folder, spec, LocalLauncher(), lambda _raw: None)
    if record.status.code != "completed":
        return Check("worker", "wrong", f"a simulated run ended as {record.status.code}: {record.status.reason}")
    return Check("worker", "ok", f"a simulated run of 10 steps took {time.monotonic() - begin_s:.2f} s")


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
