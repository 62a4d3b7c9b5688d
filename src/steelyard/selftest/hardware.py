"""The self-test of real sensors: idle, then a known load, and whether counter, power, scope and limit are consistent.

Sampler and load are processes of the measured side. The result can be shared: it names no host, user or device. The
checks are the same for every vendor.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from steelyard import plugins
from steelyard.contracts.base import to_json_object
from steelyard.contracts.observe import LAUNCH_FILE, PROGRESS_FILE, SPEC_FILE
from steelyard.contracts.spec import Budget, Energy, RunSpec
from steelyard.derive.observations import NodeSensors, Observations
from steelyard.derive.record import derive
from steelyard.launch.local import LocalLauncher
from steelyard.results.store import write_json
from steelyard.selftest.fitting import SensorCheck, Window, fitting
from steelyard.selftest.shareable import names_here, shared_facts, without_names
from steelyard.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from steelyard.contracts.record import RunRecord

    Floats = NDArray[np.float64]

IDLE_S, LOAD_S = 10.0, 20.0
PERIOD_S = 0.1
# A driver that wakes its devices may take several seconds until the first channel.
OPEN_S = 20.0
END_S = 10.0
LOOK_S = 0.1
# Readings before a window begins: its edge must lie between two of them.
EDGE_S = 0.5
# No sensor shows a load shorter than this.
LEAST_S = 1.0
NODE = "node"

ROOT = Path("/")
"""The root directory for sensors that are files."""
LOAD: dict[str, Any] = {"workload": "matmul", "mode": "ceiling"}
"""Products of large matrices: they draw about as much power as a device can."""


@dataclass(frozen=True)
class HardwareTest:
    """The result of the sensor test on a node."""

    verdict: Literal["holds", "fails", "nothing to test here"]
    reasons: tuple[str, ...]
    """Why there is nothing to test, or no load."""
    checks: tuple[SensorCheck, ...] = ()
    shared: dict[str, Any] = field(default_factory=dict)
    """The result in a form that names no host, user or device."""


def hardware_test(
    tell: Callable[[str], None],
    *,
    idle_s: float,
    load_s: float,
    limit_s: float | None = None,
) -> HardwareTest:
    """Watch the sensors of this node while it is idle and under load; `tell` receives progress.

    `limit_s`: the longest that the load may take with its start.
    """
    with tempfile.TemporaryDirectory(prefix="steelyard-hardware-") as folder:
        raw = Path(folder).resolve() / "raw"
        raw.mkdir()
        # Short blocks of steps: time under load matters, not a mean.
        budget = Budget(min_steps=1, min_seconds=load_s, max_seconds=load_s, rel_half_width=1e-9, max_steps=10**9)
        spec = RunSpec(
            run_id="hardware",
            study="selftest",
            configuration="hardware",
            budget=budget,
            crosscheck_steps=0,
            time_limit_s=limit_s or 20 * load_s + 120,
            energy=Energy(watch=False),
            **LOAD,
        )
        windows, record = _watch(tell, raw, idle_s, spec)
        nodes = Observations(raw).nodes
        if not nodes or not nodes[0].channels:
            return HardwareTest("nothing to test here", _explain_nothing(nodes))
        node = nodes[0]
        family = record.environment.device if record is not None and record.environment is not None else ""
        checks = tuple(fitting(node, _read_samples(node), windows, family))
    reasons: tuple[str, ...] = ()
    if record is None:
        reasons = ("no load was run",)
    elif "load" not in windows and record.status.code != "completed":
        reasons = (f"the load ended as {record.status.code}: {record.status.reason}",)
    elif "load" not in windows:
        reasons = ("the load was too short to show",)
    failed = any(check.outcome == "fails" for check in checks)
    tested = any(check.outcome == "holds" for check in checks)
    verdict: Literal["holds", "fails"] = "holds" if tested and not failed else "fails"
    return HardwareTest(verdict, reasons, checks, _make_shareable(verdict, checks, node, windows, record, reasons))


# -- measuring


def _watch(
    tell: Callable[[str], None], raw: Path, idle_s: float, spec: RunSpec
) -> tuple[dict[str, Window], RunRecord | None]:
    """Return the windows on the sampler's clock, and the record of the load."""
    with _run_sampler(raw) as sampler:
        tell("looking for sensors")
        if not _wait_for_channel(raw, sampler):
            return {}, None
        tell(f"idle for {idle_s:g} s: run nothing else on this node")
        _pass(sampler, EDGE_S)
        begin_s = time.monotonic()
        _pass(sampler, idle_s)
        windows = {"idle": Window(begin_s, time.monotonic())}
        tell(f"load ({spec.workload})")
        record, window = _run_load(spec, raw.parent / "load")
        _pass(sampler, EDGE_S)
    if window is not None:
        windows["load"] = window
    return windows, record


@contextlib.contextmanager
def _run_sampler(raw: Path) -> Any:
    """Run the sampler as a process that ends with us."""
    options = {
        "--node": NODE,
        "--process": "0",
        "--period": str(PERIOD_S),
        "--zero": "0.0",
        "--parent": str(os.getpid()),
        "--root": str(ROOT),
    }
    words = [word for pair in options.items() for word in pair]
    command = [sys.executable, "-P", "-m", "steelyard.worker.sensors", str(raw), *words]
    with (raw / "sampler.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield process
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.write(b"e")
            process.stdin.flush()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
    finally:
        process.kill()
        process.communicate()


def _pass(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Let time pass, unless the sampler ends earlier."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def _wait_for_channel(raw: Path, process: subprocess.Popen[bytes]) -> bool:
    """Wait until the sampler has opened a channel; False if it has none."""
    deadline_s = time.monotonic() + OPEN_S
    while time.monotonic() < deadline_s and process.poll() is None:
        nodes = Observations(raw).nodes
        if nodes and nodes[0].channels:
            return True
        if nodes and nodes[0].ended:
            return False
        _pass(process, LOOK_S)
    return False


def _run_load(spec: RunSpec, raw: Path) -> tuple[RunRecord, Window | None]:
    """Run the load. Its steps end at its last progress report, and last as long as its phase of that name."""
    raw.mkdir()
    write_json(raw / SPEC_FILE, spec)
    launch = LocalLauncher().run(spec, raw, lambda: None)
    ended_s = None
    with contextlib.suppress(OSError):
        # Files have wall-clock times; the sampler's clock is monotonic.
        ended_s = (raw / PROGRESS_FILE).stat().st_mtime - (time.time() - time.monotonic())
    for path in raw.glob(f"{PROGRESS_FILE}*"):
        path.unlink(missing_ok=True)
    write_json(raw / LAUNCH_FILE, launch)
    record = derive(raw)
    lengths = [phase.end_s - phase.start_s for phase in record.phases if phase.name == "steps" and phase.complete]
    if ended_s is None or not lengths or lengths[0] < LEAST_S:
        return record, None
    return record, Window(ended_s - lengths[0], ended_s)


def _read_samples(node: NodeSensors) -> list[Floats]:
    """Read all readings of each channel: at most a few minutes."""
    parts: list[list[Floats]] = [[] for _ in node.channels]
    for chunk in node.samples():
        if chunk.channel < len(parts):
            parts[chunk.channel].append(chunk.table)
    return [np.concatenate(part, axis=1) if part else np.zeros((3, 0)) for part in parts]


def _explain_nothing(nodes: list[NodeSensors]) -> tuple[str, ...]:
    if not nodes:
        return ("the sampler did not start",)
    reasons = [f"{missing.backend}: {missing.what}: {missing.reason}" for missing in nodes[0].missing]
    looked = f"no power or energy sensor on this node; looked for: {', '.join(plugins.names('sensor'))}"
    return tuple(dict.fromkeys(reasons)) or (looked,)


# -- the form to share


def _make_shareable(
    verdict: str,
    checks: tuple[SensorCheck, ...],
    node: NodeSensors,
    windows: dict[str, Window],
    record: RunRecord | None,
    reasons: tuple[str, ...],
) -> dict[str, Any]:
    """Return the result without names of hosts and users; devices by a hash that cannot be reversed."""
    facts = record.environment.facts if record is not None and record.environment is not None else {}
    whole = {
        "what": "steelyard selftest --hardware",
        "version": VERSION,
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "verdict": verdict,
        "reasons": list(reasons),
        "seconds": {name: round(window.stop_s - window.start_s, 3) for name, window in windows.items()},
        "load": None if record is None else {"workload": record.spec.workload, "status": record.status.code},
        "device": None if record is None or record.device is None else record.device.name,
        "facts": shared_facts(facts),
        "checks": [asdict(check) for check in checks],
        "domains": [to_json_object(domain) for domain in node.domains.values()],
        "channels": [to_json_object(channel) for channel in node.channels],
        "missing": [to_json_object(missing) for missing in node.missing],
        "sampler": to_json_object(node.ended),
    }
    devices = {domain.device: hashed(domain.device) for domain in node.domains.values() if domain.device}
    nodes = [record.environment.node] if record is not None and record.environment is not None else []
    return dict(without_names(whole, devices | names_here(nodes)))


def hashed(text: str) -> str:
    """Hash a device id: two results of one device can be matched, but the device cannot be identified."""
    return f"id-{hashlib.sha256(f'steelyard hardware {text}'.encode()).hexdigest()[:12]}"
