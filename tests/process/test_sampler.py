"""The sampler as a real process: it reads on time, cannot delay a run, and its failures are visible."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from array import array
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from conftest import HANG_S, make_spec, until
from fake_nvml.build import Device, build, environment, set_clock
from steelyard import plugins
from steelyard.contracts import energy, observe
from steelyard.contracts.base import from_json_object
from steelyard.contracts.conditions import COLUMNS
from steelyard.contracts.spec import Budget, Energy
from steelyard.derive.observations import Observations
from steelyard.derive.record import derive
from steelyard.launch.local import LocalLauncher
from steelyard.results.store import record_text
from steelyard.worker.engine.run import run_directory
from steelyard.worker.measure import clock
from steelyard.worker.sensors import files, reader, watch
from steelyard.worker.sensors import find as finding
from steelyard.worker.sensors.backend import ReadError, SensorsFound
from steelyard.worker.sensors.watch import Watch, devices_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Within
    from steelyard.contracts.spec import RunSpec

BACKEND = """
import os, pathlib, time
from steelyard.contracts.energy import Channel, Domain
from steelyard.worker.sensors.backend import SensorsFound, ReadError

FOLDER = pathlib.Path(__file__).parent


def find(root, devices):
    (FOLDER / "devices").write_text(" ".join(devices))
    domain = Domain(name="box", scope="cpu")
    names = (FOLDER / "channels").read_text().split()
    channels = [Channel(name=name, backend="made", domain="box", kind="counter", resolution=1e-3) for name in names]

    def read(number):
        held = FOLDER / ("block." + names[number])
        while held.exists():
            (FOLDER / "held").touch()
            time.sleep(0.01)
        if (FOLDER / ("fail." + names[number])).exists():
            raise ReadError("vanished", "it fell off the bus")
        return 100.0 * time.monotonic()

    return SensorsFound([domain], channels, [], read)
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A backend from an installed package: two channels of 100 W, and files that make them misbehave."""
    folder = tmp_path / "package"
    (folder / "made-1.dist-info").mkdir(parents=True)
    (folder / "made-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: made\nVersion: 1\n")
    (folder / "made-1.dist-info" / "entry_points.txt").write_text("[steelyard.sensor]\nmade = made_sensor:find\n")
    (folder / "made_sensor.py").write_text(BACKEND)
    (folder / "channels").write_text("made.a made.b")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    # The system's own sensors are tested elsewhere.
    monkeypatch.setitem(plugins.BUILTIN, "sensor", {})
    # A run waits so long for the end of its sampler: on a busy machine that may be too short, and it is killed.
    monkeypatch.setattr(watch, "STOP_S", HANG_S)
    return folder


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    folder.mkdir()
    return folder


@pytest.fixture
def watches() -> Iterator[list[Watch]]:
    """Watches that are stopped at the end of each test."""
    begun: list[Watch] = []
    yield begun
    for one in begun:
        one.stop()


def cpu_spec(**settings: Any) -> RunSpec:
    return make_spec(workload="tiny", device="cpu", threads=1, **settings)


def begin(watches: list[Watch], raw: Path, period_s: float = 0.02, **settings: Any) -> Watch:
    started = Watch(cpu_spec(energy=Energy(period_s=period_s, **settings)), raw)
    watches.append(started)
    started.start()
    return started


def pid_of(started: Watch) -> int:
    assert started._process is not None
    return started._process.pid


def events(raw: Path, process: int = 0) -> list[Any]:
    """Return all events, read like steelyard reads them."""
    path = raw / f"sensors-{process:05d}.jsonl"
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        kind, fields = energy.sensor_event(json.loads(line))
        found.append(from_json_object(energy.SENSOR_EVENTS[kind], fields))
    return found


def of(kind: type, raw: Path, process: int = 0) -> list[Any]:
    return [event for event in events(raw, process) if isinstance(event, kind)]


def samples(raw: Path, channel: int = 0, process: int = 0) -> np.ndarray[Any, Any]:
    path = raw / f"power-{process:05d}.bin"
    chunks = list(energy.read_power_chunks(path)) if path.exists() else []
    tables = [chunk.table for chunk in chunks if chunk.channel == channel]
    return np.concatenate(tables, axis=1) if tables else np.empty((3, 0))


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# -- what is read


@pytest.mark.usefixtures("made")
def test_every_channel_is_read_periodically(raw: Path, watches: list[Watch]) -> None:
    started = begin(watches, raw, period_s=0.05)
    until(lambda: samples(raw, 1).shape[1] >= 30)
    started.stop()
    (told,) = of(energy.Sampler, raw)
    assert (told.process, told.period_s, told.clock, told.random_phase) == (0, 0.05, "CLOCK_MONOTONIC", False)
    assert told.zero_s == clock.START_S
    assert [channel.name for channel in of(energy.Channel, raw)] == ["made.a", "made.b"]
    time_s, value, spent_s = samples(raw)
    assert np.all(np.diff(time_s) > 0)
    assert np.all(spent_s >= 0)
    # The truth: 100 W by the same clock, read at some time during the call.
    assert np.all((value <= 100 * time_s) & (value >= 100 * (time_s - spent_s)))
    # A reading may be late on a busy machine, never early.
    assert time_s[-1] - time_s[0] >= 25 * 0.05
    (ended,) = of(energy.Ended, raw)
    assert ended.reason == "the run ended"
    assert ended.samples == samples(raw).shape[1] + samples(raw, 1).shape[1]
    assert time_s[-1] <= ended.at_s


@pytest.mark.usefixtures("made")
def test_random_phases(raw: Path, watches: list[Watch]) -> None:
    started = begin(watches, raw, period_s=0.05, random_phase=True)
    until(lambda: samples(raw).shape[1] >= 2)
    started.stop()
    assert of(energy.Sampler, raw)[0].random_phase


@pytest.mark.usefixtures("made")
def test_marks_bring_readings_at_once(raw: Path, watches: list[Watch]) -> None:
    started = begin(watches, raw, period_s=2 * HANG_S)
    until(lambda: samples(raw).shape[1] == 1)
    after_s = []
    for number in range(2, 5):
        marked_s = time.monotonic()
        started.mark()
        until(lambda: samples(raw).shape[1] == number)  # noqa: B023 -- called before the number changes
        after_s.append(samples(raw)[0, -1] - marked_s)
    assert min(after_s) > 0
    started.stop()
    assert samples(raw).shape[1] == 5


@pytest.mark.usefixtures("made")
def test_a_mark_costs_next_to_nothing_and_never_waits(raw: Path, watches: list[Watch], within: Within) -> None:
    started = begin(watches, raw)
    until(lambda: samples(raw).size)
    os.kill(pid_of(started), signal.SIGSTOP)
    with within(50_000 * 20e-6):
        for _ in range(50_000):
            started.mark()
    os.kill(pid_of(started), signal.SIGKILL)
    started._process.wait()  # type: ignore[union-attr]
    started.mark()
    started.stop()


@pytest.mark.full("counts context switches, which depend on other processes")
@pytest.mark.usefixtures("made")
def test_a_flood_of_marks_does_not_keep_it_busy(raw: Path, watches: list[Watch]) -> None:
    """A mark every millisecond, as with very short epochs: it wakes no more often than it reads."""
    started = begin(watches, raw, period_s=60.0)
    assert started.reads(HANG_S)
    status = Path(f"/proc/{pid_of(started)}/status")

    def wakes() -> int:
        return int(status.read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0])

    before, begin_s = wakes(), time.monotonic()
    for _ in range(1000):
        started.mark()
        time.sleep(0.001)
    lasted_s = time.monotonic() - begin_s
    # Two per handled mark, and a few for the files and the interpreter's lock.
    assert wakes() - before < 4 * lasted_s / reader.MARK_GAP_S + 20
    ended_s = time.monotonic()
    started.stop()
    assert samples(raw)[0, -1] > ended_s


def test_the_devices_of_the_job_are_handed_on(made: Path, raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-7,GPU-9")
    started = Watch(make_spec(workload="tiny", device="cuda", energy=Energy()), raw)
    started.start()
    until(lambda: of(energy.Channel, raw))
    started.stop()
    assert (made / "devices").read_text() == "GPU-7"


@pytest.mark.parametrize(
    ("device", "variables", "devices"),
    [
        ("cuda", {}, ("0",)),
        ("auto", {"LOCAL_WORLD_SIZE": "3"}, ("0", "1", "2")),
        ("cuda", {"WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "3, 5,6"}, ("3", "5")),
        # Each rank sees only its own device: the first does not know the others.
        ("cuda", {"LOCAL_WORLD_SIZE": "4", "CUDA_VISIBLE_DEVICES": "2"}, ()),
        ("cpu", {"CUDA_VISIBLE_DEVICES": "0"}, ()),
        # HIP counts among those that ROCR selects, and uses CUDA's variable as its own.
        ("cuda", {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}, ("3",)),
        ("cuda", {"ROCR_VISIBLE_DEVICES": "GPU-a,GPU-b", "CUDA_VISIBLE_DEVICES": "1,0"}, ("GPU-b",)),
        ("cuda", {"ROCR_VISIBLE_DEVICES": "2,3"}, ("2",)),
        # A scheduler that does not know the vendor sets all of them.
        ("cuda", {"CUDA_VISIBLE_DEVICES": "2,3", "ROCR_VISIBLE_DEVICES": "2,3", "ZE_AFFINITY_MASK": "2,3"}, ("2",)),
        # These contradict each other.
        ("cuda", {"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"}, ()),
        ("cuda", {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "5"}, ()),
        ("cuda", {"LOCAL_WORLD_SIZE": "many", "WORLD_SIZE": ""}, ("0",)),
    ],
)
def test_which_devices_are_the_jobs(device: str, variables: dict[str, str], devices: tuple[str, ...]) -> None:
    assert devices_of(make_spec(workload="tiny", device=device), variables) == devices


def test_values_from_outside_are_not_options(made: Path, raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "--help")
    monkeypatch.setenv("NODE_NAME", "-n")
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    started = Watch(make_spec(workload="tiny", device="cuda", energy=Energy()), raw)
    started.start()
    until(lambda: of(energy.Channel, raw))
    started.stop()
    assert (made / "devices").read_text() == "--help"
    assert of(energy.Sampler, raw)[0].node == "-n"


@pytest.mark.parametrize(
    ("variables", "leads"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, True),
        # The local rank is unknown: a missing sampler is better than counting the same energy twice.
        ({"RANK": "1", "WORLD_SIZE": "2"}, False),
        ({"RANK": "4", "LOCAL_RANK": "0"}, True),
        ({"RANK": "", "LOCAL_RANK": "first"}, True),
    ],
)
@pytest.mark.usefixtures("made")
def test_who_keeps_the_watch(
    raw: Path, watches: list[Watch], monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], leads: bool
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    started = begin(watches, raw)
    assert (started._process is not None) == leads
    if variables.get("WORLD_SIZE") and leads:
        # Other processes of the node may have used their devices.
        assert started.reads(HANG_S)
        assert started.idle(clock.now()) is None


@pytest.mark.usefixtures("made")
def test_a_device_that_was_opened_before_has_no_baseline(
    raw: Path, watches: list[Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two runs in one process has no idle device, and does not wait for one."""
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    begin_s = time.monotonic()
    started = begin(watches, raw, idle_s=600.0)
    assert time.monotonic() - begin_s < HANG_S
    assert started.reads(HANG_S)
    assert started.idle(clock.now()) is None


@pytest.mark.full("the second sampler must start within a run of seconds")
@pytest.mark.usefixtures("made", "torch_as_it_was")
def test_several_runs_of_one_process_have_a_sampler_each(tmp_path: Path) -> None:
    raws = [tmp_path / name for name in ("one", "two")]
    for raw in raws:
        raw.mkdir()
        (raw / observe.SPEC_FILE).write_text(record_text(cpu_spec(budget=LONGER, crosscheck_steps=0)))
    command = [sys.executable, "-m", "steelyard.worker", *map(str, raws)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    first, second = (samples(raw)[0] - of(energy.Sampler, raw)[0].zero_s for raw in raws)
    assert first.max() < second.min()
    for raw, time_s in zip(raws, (first, second), strict=True):
        assert of(energy.Ended, raw)[0].reason == "the run ended"
        steps = phases(raw)["steps"]
        # torch is already loaded in the second run: its steps may begin while its sampler starts.
        assert time_s.min() < steps["end_s"] <= time_s.max()


# -- faults of the sampler


SHORT = Budget(min_steps=1, min_seconds=0.0, max_steps=30)


def run(raw: Path, budget: Budget = SHORT, **settings: Any) -> observe.Status:
    spec = cpu_spec(budget=budget, crosscheck_steps=4, energy=Energy(**settings))
    (raw / observe.SPEC_FILE).write_text(record_text(spec))
    return run_directory(raw)


def phases(raw: Path) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in (raw / "events-00000.jsonl").read_text().splitlines()]
    return {line["name"]: line for line in lines if line["kind"] == "phase"}


@pytest.fixture
def befall(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], Any]], list[int]]:
    """Something happens to the sampler as soon as a run has started it."""

    def arrange(act: Callable[[int], Any]) -> list[int]:
        seen: list[int] = []
        launch = Watch._launch

        def launch_and_act(self: Watch) -> None:
            launch(self)
            seen.append(pid_of(self))
            until(lambda: of(energy.Channel, self._raw))
            act(seen[0])

        monkeypatch.setattr(Watch, "_launch", launch_and_act)
        return seen

    return arrange


@pytest.mark.full("a reading within 0.25 s of every edge")
@pytest.mark.usefixtures("made", "torch_as_it_was")
def test_a_run_is_bracketed_at_every_edge(raw: Path, befall: Any) -> None:
    """With a period longer than the run: every reading but the first was requested."""
    seen = befall(lambda _: None)
    assert run(raw, period_s=60.0).code == "completed"
    assert not lives(seen[0])
    assert of(energy.Ended, raw)[0].reason == "the run ended"
    zero_s = of(energy.Sampler, raw)[0].zero_s
    time_s = samples(raw)[0] - zero_s
    found = phases(raw)
    assert set(found) - {"idle"} == {"setup", "compile", "steps", "crosscheck"}
    for edge_s in (found["steps"]["start_s"], found["steps"]["end_s"], found["crosscheck"]["end_s"]):
        assert np.abs(time_s - edge_s).min() < 0.25


LONGER = Budget(min_steps=1, min_seconds=2.5, max_steps=10**6, rel_half_width=10.0)


@pytest.mark.full("needs dense readings over real seconds")
@pytest.mark.usefixtures("made", "torch_as_it_was")
def test_the_joules_of_a_run_are_those_that_were_drawn(raw: Path) -> None:
    """From the sensor to the record: 100 W all the time, also before the device was used."""
    assert run(raw, LONGER, period_s=0.05, idle_s=1.0).code == "completed"
    idle = phases(raw)["idle"]
    assert idle["end_s"] - idle["start_s"] >= 1.0
    assert idle["end_s"] <= phases(raw)["setup"]["end_s"]
    quantities = derive(raw).quantities
    for name in ("power_job", "idle_power_job"):
        interval = quantities[name].interval
        assert interval is not None
        assert interval.low <= 100.0 <= interval.high


def believed(raw: Path) -> str:
    """Return why the energy of a run is not valid; empty if it is."""
    validity = derive(raw).quantities["energy_job"].validity
    assert validity is not None
    return "; ".join(validity.reasons) if validity.verdict == "invalid" else ""


@pytest.mark.usefixtures("made", "torch_as_it_was")
def test_a_sampler_that_is_killed_is_missed_and_nothing_more(raw: Path, befall: Any) -> None:
    seen = befall(lambda pid: os.kill(pid, signal.SIGKILL))
    assert run(raw).code == "completed"
    assert not lives(seen[0])
    assert len(of(energy.Channel, raw)) == 2
    assert of(energy.Ended, raw) == []
    assert "killed" in believed(raw)


@pytest.mark.usefixtures("made", "torch_as_it_was")
def test_a_stopped_sampler_does_not_delay_a_run(raw: Path, befall: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "STOP_S", 2.0)
    seen = befall(lambda pid: os.kill(pid, signal.SIGSTOP))
    assert run(raw).code == "completed"
    assert not lives(seen[0])
    assert of(energy.Ended, raw) == []
    assert believed(raw)


@pytest.mark.usefixtures("made", "torch_as_it_was")
def test_a_full_disk_ends_the_sampler_with_a_reason(raw: Path, befall: Any) -> None:
    seen = befall(lambda pid: resource.prlimit(pid, resource.RLIMIT_FSIZE, (2000, 2000)))
    assert run(raw, LONGER, period_s=0.01).code == "completed"
    assert not lives(seen[0])
    (ended,) = of(energy.Ended, raw)
    assert ended.reason == "the readings cannot be written: File too large"
    assert samples(raw).shape[1] + samples(raw, 1).shape[1] == ended.samples
    assert "File too large" in believed(raw)


@pytest.mark.usefixtures("made")
def test_an_interrupt_is_for_the_job_and_an_order_to_end_is_obeyed(raw: Path, watches: list[Watch]) -> None:
    started = begin(watches, raw)
    until(lambda: samples(raw).size)
    before = samples(raw).shape[1]
    os.kill(pid_of(started), signal.SIGINT)
    until(lambda: samples(raw).shape[1] > before)
    os.kill(pid_of(started), signal.SIGTERM)
    until(lambda: of(energy.Ended, raw))
    assert of(energy.Ended, raw)[0].reason == "terminated by SIGTERM"


ORPHAN = """
import os, signal, sys
from pathlib import Path
from steelyard.contracts.spec import Energy, RunSpec
from steelyard.worker.sensors.watch import Watch
spec = RunSpec(run_id="r", configuration="c", workload="tiny", device="cpu", energy=Energy(period_s=0.02))
watch = Watch(spec, Path(sys.argv[1]))
watch.start()
print(watch._process.pid if watch._process else 0, flush=True)
child = os.fork() if sys.argv[2] == "forks" else 1
if child == 0:
    signal.pause()
print(child, flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("way", ["alone", "forks"])
def test_it_ends_with_its_parent_however_that_dies(raw: Path, way: str) -> None:
    """Also if a process forked by the parent still has the other end of the pipe open."""
    command = [sys.executable, "-W", "ignore", "-c", ORPHAN, str(raw), way]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, child = int(parent.stdout.readline()), int(parent.stdout.readline())
        until(lambda: samples(raw).size)
        assert parent.stdin is not None
        parent.stdin.close()
        assert parent.wait() == -signal.SIGKILL
    until(lambda: not lives(pid))
    assert of(energy.Ended, raw)[0].reason == "the measured process has ended"
    if way == "forks":
        os.kill(child, signal.SIGKILL)


@pytest.mark.usefixtures("made")
def test_two_nodes_leave_two_files_and_other_ranks_none(raw: Path) -> None:
    parents = []
    for rank, local in ((0, 0), (4, 0), (5, 1)):
        variables = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(local), "NODE_NAME": f"node{rank}"}
        command = [sys.executable, "-c", ORPHAN, str(raw), "alone"]
        parents.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables)
        )
    pids = [int(parent.stdout.readline()) for parent in parents if parent.stdout is not None]
    assert pids[2] == 0
    until(lambda: samples(raw, 0, 0).size and samples(raw, 0, 4).size)
    for parent in parents:
        parent.communicate()
    until(lambda: not any(lives(pid) for pid in pids[:2]))
    assert [of(energy.Sampler, raw, process)[0].node for process in (0, 4)] == ["node0", "node4"]
    assert sorted(path.name for path in raw.glob("sensors-*")) == ["sensors-00000.jsonl", "sensors-00004.jsonl"]


@pytest.mark.usefixtures("made")
def test_no_sampler_is_left_when_the_launcher_returns(raw: Path) -> None:
    spec = cpu_spec(budget=SHORT, crosscheck_steps=0)
    (raw / observe.SPEC_FILE).write_text(record_text(spec))
    launch = LocalLauncher().run(spec, raw, lambda: None)
    assert launch.exit_code == 0, (raw / observe.WORKER_LOG).read_text()
    assert of(energy.Ended, raw)[0].reason == "the run ended"
    words = [entry.read_bytes() for entry in Path("/proc").glob("[0-9]*/cmdline") if entry.exists()]
    assert not [line for line in words if str(raw).encode() in line and b"steelyard.worker.sensors" in line]


# -- channels that misbehave


@pytest.mark.full("a call that blocks for a second, and is given up after ten")
def test_a_call_that_blocks_stops_no_other_channel(made: Path, raw: Path, watches: list[Watch]) -> None:
    begin(watches, raw)
    until(lambda: samples(raw).size)
    (made / "block.made.a").touch()
    until((made / "held").exists)
    held_s = time.monotonic()
    until(lambda: (samples(raw, 1)[0] > held_s + 1.0).sum() > 20)
    assert samples(raw)[0].max() < held_s
    (made / "block.made.a").unlink()
    # It returned: the reading has its duration, and the channel is read again.
    until(lambda: (samples(raw)[0] > held_s).sum() > 20)
    assert samples(raw)[2].max() > 1.0
    assert of(energy.Missing, raw) == []
    watches[0].stop()
    assert of(energy.Ended, raw)[0].late > 20


@pytest.mark.full("a call that blocks for a second, and readings in the meantime")
def test_a_call_into_a_vendors_library_that_blocks(
    raw: Path, tmp_path: Path, watches: list[Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the real nvidia-ml-py: at some time one call for one GPU blocks."""
    monkeypatch.setattr(watch, "ROOT", tmp_path / "nowhere")
    build(tmp_path / "library")
    blocking = Device(blocks=(("energy", 60.0, 1.0),))
    for name, value in environment(tmp_path / "library", devices=[blocking, Device()], own_clock=True).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    started = Watch(make_spec(workload="tiny", device="cuda", energy=Energy(period_s=0.05)), raw)
    watches.append(started)
    started.start()
    assert started.reads(HANG_S)
    set_clock(tmp_path / "library", 1.0)
    names = [found.name for found in of(energy.Channel, raw)]
    held, other = names.index("nvml.0.energy"), names.index("nvml.1.energy")
    begin_s = time.monotonic()
    until(lambda: samples(raw, other).size and samples(raw, other)[0].max() > begin_s + 4.5)
    started.stop()
    assert (samples(raw, held)[0] > begin_s + 1.0).sum() == 0
    assert (samples(raw, other)[0] > begin_s + 1.0).sum() > 20
    assert of(energy.Missing, raw)[-1].what == "nvml.0.energy"
    assert of(energy.Ended, raw)[0].reason == "the run ended"


def test_the_state_of_the_devices_is_recorded(
    raw: Path, tmp_path: Path, watches: list[Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the real nvidia-ml-py: the second GPU is at its power limit, and has an error while it is watched."""
    monkeypatch.setattr(watch, "ROOT", tmp_path / "nowhere")
    build(tmp_path / "library")
    devices = [Device(), Device(reasons=0x4, clock_mhz=1410, changed_s=1.0, uncorrected=(2, 3), processes=1)]
    for name, value in environment(tmp_path / "library", devices=devices, own_clock=True).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    started = Watch(make_spec(workload="tiny", device="cuda", energy=Energy(period_s=0.05)), raw)
    watches.append(started)
    started.start()
    until(lambda: states(raw, 1).size)
    set_clock(tmp_path / "library", 1.0)
    until(lambda: samples(raw, 0).size and states(raw, 1).shape[1] > 2)
    started.stop()
    assert of(energy.Missing, raw) == []
    (node,) = Observations(raw).nodes
    assert [(state.domain, state.default_limit_w) for state in node.states] == [("gpu0", 400.0), ("gpu1", 400.0)]
    first, second = (dict(zip(COLUMNS, states(raw, number), strict=True)) for number in (0, 1))
    assert set(first["power_capped"]) == {0.0}
    assert set(second["power_capped"]) == {1.0}
    assert set(second["clock_mhz"]) == {1410.0}
    # One reading per second, and one at the end; errors and processes are read less often, but always at the end.
    count, duration_s = second["time_s"].size, second["time_s"][-1] - second["time_s"][0]
    assert count <= duration_s + 2
    assert (second["uncorrected"][0], second["uncorrected"][-1]) == (0.0, 1.0)
    assert np.isnan(second["uncorrected"]).any()
    assert second["processes"][-1] == 1.0
    assert (raw / "conditions-00000.bin").stat().st_size < 100 * 2 * (count + 1)


def states(raw: Path, device: int) -> np.ndarray[Any, Any]:
    path = raw / "conditions-00000.bin"
    chunks = list(energy.read_power_chunks(path, energy.CONDITIONS)) if path.exists() else []
    tables = [chunk.table for chunk in chunks if chunk.channel == device]
    return np.concatenate(tables, axis=1) if tables else np.empty((len(COLUMNS), 0))


def test_a_driver_that_hangs_on_the_state_delays_no_energy(
    raw: Path, tmp_path: Path, watches: list[Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "ROOT", tmp_path / "nowhere")
    build(tmp_path / "library")
    for name, value in environment(
        tmp_path / "library", devices=[Device(blocks=(("clock", 2 * HANG_S, 0.0),))]
    ).items():
        monkeypatch.setenv(name, value)
    started = Watch(make_spec(workload="tiny", device="cuda", energy=Energy(period_s=0.05)), raw)
    watches.append(started)
    started.start()
    begin_s = time.monotonic()
    until(lambda: samples(raw).size and samples(raw)[0].max() > begin_s + 2.5)
    started.stop()
    assert states(raw, 0).shape[1] == 0
    assert of(energy.Ended, raw)[0].reason == "the run ended"


def test_a_channel_that_stays_away_is_given_up(made: Path, raw: Path, watches: list[Watch]) -> None:
    begin(watches, raw)
    until(lambda: samples(raw).size)
    (made / "block.made.a").touch()
    until((made / "held").exists)
    held_s = time.monotonic()
    until(lambda: (samples(raw, 1)[0] > held_s + 1.0).sum() > 20)
    watches[0].stop()
    (lost,) = of(energy.Missing, raw)
    assert (lost.what, lost.code) == ("made.a", "blocked")
    assert of(energy.Ended, raw)[0].reason == "the run ended"
    assert samples(raw, 1)[0].max() > samples(raw)[0].max() + 1


def test_a_channel_that_fails_is_left_and_the_last_one_ends_the_watch(
    made: Path, raw: Path, watches: list[Watch]
) -> None:
    begin(watches, raw)
    until(lambda: samples(raw).size)
    (made / "fail.made.a").touch()
    until(lambda: of(energy.Missing, raw))
    failed_s = time.monotonic()
    (lost,) = of(energy.Missing, raw)
    assert (lost.what, lost.code, lost.reason) == ("made.a", "vanished", "it fell off the bus")
    until(lambda: samples(raw, 1)[0].max() > failed_s)
    (made / "fail.made.b").touch()
    until(lambda: not lives(pid_of(watches[0])))
    assert of(energy.Ended, raw)[0].reason == "no channel can be read any longer"


class Stuck:
    """A backend in this process, whose first channel blocks until it is released."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.calls = 0
        names = ("stuck", "fine")
        self.found = SensorsFound(channels=[channel(name) for name in names], read=self.read)

    def read(self, number: int) -> float:
        if number == 0:
            self.calls += 1
            assert self.free.wait(HANG_S)
        return 1.0


def channel(name: str) -> energy.Channel:
    return energy.Channel(name=name, backend="b", domain="d", kind="gauge", resolution=1.0)


def test_a_call_that_comes_back_too_late_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # Time stands still except where the test advances it: a busy machine makes no other call look blocked.
    now_s = 100.0
    monkeypatch.setattr(reader.time, "monotonic", lambda: now_s)
    stuck = Stuck()
    reading = reader.Reader(stuck.found, 7, 0.01)
    reading.start()
    lost: list[energy.Missing] = []
    held: dict[int, int] = {}

    def look() -> None:
        reading.look_after()
        taken, new = reading.take()
        lost.extend(new)
        for number, columns in taken.items():
            held[number] = held.get(number, 0) + len(columns[0])

    def read_ten() -> bool:
        look()
        return held.get(8, 0) > 10

    until(lambda: stuck.calls)
    now_s += reader.STALLED_S + 1
    until(read_ten)
    assert lost == []
    now_s += reader.BLOCKED_S
    look()
    assert [(one.what, one.code) for one in lost] == [("stuck", "blocked")]
    stuck.free.set()
    reading.end()
    assert reading.finished(HANG_S)
    monkeypatch.undo()
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "reader"])
    look()
    assert (stuck.calls, set(held), len(lost)) == (1, {8}, 1)


def test_a_call_that_comes_back_in_time_is_a_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(reader.time, "monotonic", lambda: now_s)
    stuck = Stuck()
    reading = reader.Reader(stuck.found, 0, 0.01)
    reading.start()
    until(lambda: stuck.calls)
    now_s += reader.STALLED_S + 1
    reading.look_after()
    stuck.free.set()
    until(lambda: stuck.calls > 2)
    reading.end()
    assert reading.finished(HANG_S)
    taken, lost = reading.take()
    assert lost == []
    # Its time and its duration are those of the whole call.
    assert (taken[0][0][0], taken[0][2][0]) == (now_s, reader.STALLED_S + 1)


def test_late_readings_do_not_shift_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(reader.time, "monotonic", lambda: now_s)
    reading = reader.Reader(SensorsFound(channels=[channel("one")], read=lambda _: 1.0), 0, 0.5)
    due_s = []
    for late_s in (0.0, 0.2, 0.4, 0.0, 1.2, 0.3):
        due_s.append(reading._next_due())
        now_s = due_s[-1] + late_s
    # The fifth reading took 1.2 s: one period is missed, the next is due at once, the one after that on the grid.
    assert due_s == [100.0, 100.5, 101.0, 101.5, 102.0, 103.0]
    assert (reading._next_due(), reading.late) == (103.5, 1)


def test_random_phases_fall_anywhere_in_their_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader.time, "monotonic", lambda: 0.0)
    found = SensorsFound(channels=[channel("one")], read=lambda _: 1.0)
    reading = reader.Reader(found, 0, 1.0, random_phase=True)
    phase, period = np.modf([reading._next_due() for _ in range(40)])
    assert period.tolist() == list(range(40))
    assert np.diff(np.sort([0.0, *phase, 1.0])).max() < 0.2


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_reading_that_is_no_number(value: float) -> None:
    reading = reader.Reader(SensorsFound(channels=[channel("odd")], read=lambda _: value), 0, 0.01)
    reading.start()
    until(lambda: not reading.live)
    taken, lost = reading.take()
    assert (taken, [one.code for one in lost]) == ({}, ["implausible"])


def test_samples_that_nobody_takes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_HELD", 5)
    reading = reader.Reader(SensorsFound(channels=[channel("one")], read=lambda _: 1.0), 0, 0.01)
    reading.start()
    until(lambda: reading.late > 3)
    assert len(reading.take()[0][0][0]) == 5
    reading.end()


def test_room_is_made_for_the_last_event(raw: Path) -> None:
    chunks = files.Chunks(raw, 0)
    for start in range(100):
        columns = tuple(array("d", [float(start * 10 + row) for row in range(10)]) for _ in range(3))
        chunks.write({0: columns})  # type: ignore[dict-item]
    size = (raw / "power-00000.bin").stat().st_size
    chunks.give_up_some()
    chunks.close()
    assert files.END_BYTES <= size - (raw / "power-00000.bin").stat().st_size < 2 * files.END_BYTES
    assert samples(raw)[0].tolist() == [float(number) for number in range(chunks.samples)]


# -- finding sensors


def test_a_machine_without_sensors_starts_nothing_and_says_why(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "ROOT", tmp_path / "nowhere")
    monkeypatch.setitem(plugins.BUILTIN, "sensor", dict.fromkeys(finding.SIGNS, "nowhere:at_all"))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    started = Watch(cpu_spec(energy=Energy(idle_s=600.0)), raw)
    started.start()
    assert started._process is None
    started.mark()
    started.stop()
    assert {one.backend: one.code for one in of(energy.Missing, raw)} == dict.fromkeys(finding.SIGNS, "missing")
    assert of(energy.Missing, raw)[0].reason.startswith("there is no /")
    assert of(energy.Ended, raw)[0].reason == "no sensor channel was found"
    assert list(raw.glob("power-*")) == []


@pytest.mark.parametrize("settings", [{"energy": Energy(watch=False)}, {"workload": "sim", "device": "sim"}])
@pytest.mark.usefixtures("made")
def test_not_without_a_request(raw: Path, settings: dict[str, Any]) -> None:
    started = Watch(make_spec(**{"workload": "tiny", "device": "cpu", **settings}), raw)
    started.start()
    started.stop()
    assert list(raw.iterdir()) == []


def test_a_sign_that_promises_too_much(made: Path, raw: Path, watches: list[Watch]) -> None:
    """It finds nothing and ends; nobody waits for the idle baseline."""
    (made / "channels").write_text("")
    begin_s = time.monotonic()
    started = begin(watches, raw, idle_s=600.0)
    assert time.monotonic() - begin_s < HANG_S
    until(lambda: not lives(pid_of(started)))
    assert of(energy.Ended, raw)[0].reason == "no sensor channel was found"


@pytest.mark.usefixtures("made")
def test_the_idle_baseline_is_waited_for(raw: Path, watches: list[Watch]) -> None:
    started = begin(watches, raw, idle_s=0.7)
    ready_s = clock.now()
    idle = started.idle(ready_s)
    assert idle is not None
    assert idle[1] - idle[0] >= 0.7
    started.stop()
    time_s = samples(raw)[0] - clock.START_S
    # Exactly: the window begins after the first reading and ends before the last.
    assert time_s.min() <= idle[0] < idle[1] <= time_s.max()
    assert list(raw.glob("rested*")) == []


@pytest.mark.usefixtures("made")
def test_the_other_ranks_of_a_node_wait_for_its_first(
    raw: Path, watches: list[Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    first = Watch(cpu_spec(energy=Energy(idle_s=0.5)), raw)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    second = Watch(cpu_spec(energy=Energy(idle_s=0.5)), raw)
    watches += [first, second]
    thread = threading.Thread(target=first.start)
    thread.start()
    second.start()
    gone_on_s = clock.now()
    thread.join()
    idle = first.idle(None)
    assert idle is not None
    assert idle[0] + 0.5 <= idle[1] <= gone_on_s
    assert second.idle(gone_on_s) is None


@pytest.mark.usefixtures("made")
def test_a_node_of_several_ranks_that_did_not_wait_has_no_baseline(
    raw: Path, watches: list[Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    started = begin(watches, raw)
    until(lambda: samples(raw).size)
    assert started.idle(clock.now()) is None


def test_a_sampler_that_cannot_be_started(
    made: Path, raw: Path, monkeypatch: pytest.MonkeyPatch, watches: list[Watch]
) -> None:
    monkeypatch.setattr(sys, "executable", str(made / "no_python"))
    begin(watches, raw)
    (why,) = of(energy.Missing, raw)
    assert (why.backend, why.code) == ("sampler", "missing")
    assert "no_python" in why.reason


def raises(root: Path, devices: Any) -> SensorsFound:
    raise PermissionError("not for you \ud800")


def refuses(root: Path, devices: Any) -> SensorsFound:
    raise ReadError("unsupported", "too old")


def other(root: Path, devices: Any) -> Any:
    return "nothing of use"


def hangs(root: Path, devices: Any) -> SensorsFound:
    threading.Event().wait()
    return SensorsFound()


def good(root: Path, devices: Any) -> SensorsFound:
    domains = [energy.Domain(name="d", scope="device")]
    return SensorsFound(domains, [channel("x"), channel("y")], [], lambda number: 10.0 + number)


def spoilt(root: Path, devices: Any) -> SensorsFound:
    return SensorsFound(channels=[replace(channel("s"), resolution=float("nan"))], read=lambda _: 1.0)


def again(root: Path, devices: Any) -> SensorsFound:
    domains = [energy.Domain(name="d", scope="device"), energy.Domain(name="e", scope="device", parent="d")]
    return SensorsFound(domains, [channel("y"), channel("z")], [], lambda number: 20.0 + number)


def test_all_backends_are_merged_and_each_failure_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backends = {name: f"test_sampler:{name}" for name in ("raises", "refuses", "other", "good", "hangs", "spoilt")}
    backends |= {"more": "test_sampler:again", "absent": "no.such:module"}
    monkeypatch.setitem(plugins.BUILTIN, "sensor", backends)
    # Long enough for the others on a busy machine.
    monkeypatch.setattr(finding.open_all, "__defaults__", (5.0,))
    found = finding.find(tmp_path, ())
    assert [domain.name for domain in found.domains] == ["d", "e"]
    assert [one.name for one in found.channels] == ["x", "y", "z"]
    assert found.read is not None
    assert [found.read(number) for number in range(3)] == [10.0, 11.0, 21.0]
    codes = {(one.backend, one.what): one.code for one in found.missing}
    assert codes == {
        ("absent", "sensor"): "missing",
        ("hangs", "sensor"): "blocked",
        ("b", "y"): "unsupported",
        ("other", "sensor"): "missing",
        ("raises", "sensor"): "forbidden",
        ("refuses", "sensor"): "unsupported",
        ("spoilt", "sensor"): "missing",
    }
    found.close()
