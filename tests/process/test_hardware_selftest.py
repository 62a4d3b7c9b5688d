"""The self-test of sensors: what it finds right and wrong, on made-up readings and through the real NVIDIA binding."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fake_nvml.build import Device, build, environment
from steelyard.cli import selftest as verb
from steelyard.cli.main import main
from steelyard.contracts.energy import Channel, Domain, Ended, Sampler
from steelyard.contracts.sim import SimTruth
from steelyard.derive.observations import NodeSensors
from steelyard.selftest import hardware
from steelyard.selftest.fitting import SensorCheck, Window, fitting
from steelyard.selftest.hardware import HardwareTest, hardware_test, hashed

if TYPE_CHECKING:
    from collections.abc import Callable

WINDOWS = {"idle": Window(100.0, 110.0), "load": Window(112.0, 132.0)}
TIMES = np.arange(99.0, 134.0, 0.05)
# A simulated load that takes as long as it says, and no CPU.
LOAD: dict[str, Any] = {"workload": "sim", "sim": SimTruth(step_time_s=0.01, wall_s_per_s=1.0)}


def drawn_w(time_s: float, idle_w: float = 80.0, load_w: float = 300.0) -> float:
    return idle_w if time_s < 111.0 else load_w


def counted_j(time_s: float, idle_w: float = 80.0, load_w: float = 300.0) -> float:
    """Joules since second 99."""
    return idle_w * (min(time_s, 111.0) - 99.0) + load_w * max(0.0, time_s - 111.0)


def node_of(
    channels: dict[str, tuple[str, str, Callable[[float], float]]],
    *,
    parents: dict[str, str] | None = None,
    **more: Any,
) -> tuple[NodeSensors, list[Any]]:
    """A node with channels {name: (domain, kind, reading)}, read at 20 Hz over 35 s."""
    scopes = {"gpu": "device", "mod": "module", "pac": "cpu"}
    node = NodeSensors(process=0, power=Path("none"))
    node.sampler = Sampler(node="n", process=0, period_s=0.05, clock="m", zero_s=0.0)
    node.ended = Ended(reason="the run ended", at_s=134.0, samples=700)
    tables = []
    for name, (domain, kind, read) in channels.items():
        parent = (parents or {}).get(domain)
        node.domains[domain] = Domain(name=domain, scope=scopes[domain[:3]], parent=parent)  # type: ignore[arg-type]
        gauge = {"average_s": 0.05} if kind == "gauge" else {}
        node.channels.append(
            Channel(name=name, backend="x", domain=domain, kind=kind, resolution=0.001, period_s=0.05, **gauge, **more)  # type: ignore[arg-type]
        )
        tables.append(np.array([TIMES, [read(float(at)) for at in TIMES], np.full(TIMES.size, 1e-4)]))
    return node, tables


def judged(
    *arguments: Any, family: str = "cuda", windows: dict[str, Window] | None = None, **more: Any
) -> list[SensorCheck]:
    node, tables = node_of(*arguments, **more)
    return list(fitting(node, tables, windows or WINDOWS, family))


def outcome(checks: list[SensorCheck], name: str, of: str | None = None) -> str:
    (found,) = [check for check in checks if check.name == name and of in (None, check.of)]
    return found.outcome


GPU: dict[str, Any] = {"energy": ("gpu0", "counter", counted_j), "power": ("gpu0", "gauge", drawn_w)}


def test_sensors_that_fit_hold() -> None:
    checks = judged(GPU, limit_w=400.0)
    assert {check.outcome for check in checks} == {"holds"}
    assert {check.name for check in checks} == {"sampler", "readable", "counter and power", "idle below load", "limit"}
    text = next(check.text for check in checks if check.name == "idle below load")
    assert text == "idle 80 W, load 300 W"


@pytest.mark.parametrize("share", [0.8, 1.2])
def test_a_counter_that_does_not_count_what_the_power_adds_up_to(share: float) -> None:
    checks = judged({**GPU, "energy": ("gpu0", "counter", lambda at: share * counted_j(at))})
    assert outcome(checks, "counter and power") == "fails"


def test_a_counter_that_stands_still_fails() -> None:
    checks = judged({**GPU, "energy": ("gpu0", "counter", lambda _at: 5.0)})
    assert outcome(checks, "readable", "energy") == "fails"
    assert outcome(checks, "counter and power") == "not tested"


@pytest.mark.parametrize(("host_w", "wanted"), [(90.0, "holds"), (-90.0, "fails")])
def test_a_module_draws_at_least_what_its_gpu_does(host_w: float, wanted: str) -> None:
    module = ("module0", "gauge", lambda at: drawn_w(at) + host_w)
    checks = judged({**GPU, "module": module}, parents={"gpu0": "module0"})
    assert outcome(checks, "whole and parts") == wanted


def test_a_load_that_does_not_show_fails() -> None:
    same = {"power": ("gpu0", "gauge", lambda _at: 80.0 + 1e-3 * (_at % 1))}
    assert outcome(judged(same), "idle below load") == "fails"
    # A load on the CPU says nothing of a GPU.
    assert outcome(judged(same, family="cpu"), "idle below load") == "not tested"
    package = {"p": ("package-0", "counter", counted_j)}
    assert outcome(judged(package, family="cpu"), "idle below load") == "holds"


def test_more_than_the_limit_fails() -> None:
    assert outcome(judged(GPU, limit_w=200.0), "limit") == "fails"
    # Within the sensor's gain it may be the limit.
    assert outcome(judged(GPU, limit_w=290.0), "limit") == "holds"


def test_without_a_load_the_rest_is_tested() -> None:
    checks = judged(GPU, windows={"idle": WINDOWS["idle"]})
    assert outcome(checks, "counter and power") == "holds"
    assert outcome(checks, "idle below load") == "not tested"


def test_a_sampler_that_was_killed_fails() -> None:
    node, tables = node_of(GPU)
    node.ended = None
    assert outcome(list(fitting(node, tables, WINDOWS, "cuda")), "sampler") == "fails"


# -- with processes


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    build(folder)
    return folder


def on_fake(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: list[Device], **more: Any
) -> HardwareTest:
    """The whole test through nvidia-ml-py. Power rises or falls all the time, so no start-up time matters."""
    for name, value in environment(library, devices=devices, **more).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(hardware, "LOAD", LOAD)
    monkeypatch.setattr(hardware, "ROOT", tmp_path)
    return hardware_test(lambda _text: None, idle_s=1.5, load_s=3.0)


RISING = ((0.0, 100.0), (40.0, 500.0))
QUICK: dict[str, Any] = {"tick_s": 0.02, "sensor_s": (0.02, 0.02, 0.02), "limit_w": 700.0}


@pytest.mark.full("readings over a few real seconds")
def test_a_sound_device_through_the_real_binding(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = "GPU-5ec2e7aa-0000-1111-2222-333344445555"
    found = on_fake(library, tmp_path, monkeypatch, [Device(uuid=uuid, power_w=RISING, **QUICK)])
    outcomes = {(check.name, check.outcome) for check in found.checks}
    assert found.verdict == "holds", found.checks
    assert {("counter and power", "holds"), ("idle below load", "holds"), ("limit", "holds")} <= outcomes
    text = json.dumps(found.shared)
    assert uuid not in text
    assert uuid.removeprefix("GPU-") not in text
    assert hashed(uuid) in text
    assert len(socket.gethostname()) < 3 or f'"{socket.gethostname()}"' not in text
    assert str(tmp_path) not in text.replace("\\\\", "")
    assert found.shared["load"] == {"workload": "sim", "status": "completed"}


@pytest.mark.full("readings over a few real seconds")
def test_a_falling_power_and_a_low_limit_are_found(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    falling = ((0.0, 500.0), (40.0, 100.0))
    device = Device(power_w=falling, **{**QUICK, "limit_w": 150.0})
    found = on_fake(library, tmp_path, monkeypatch, [device])
    failed = {check.name for check in found.checks if check.outcome == "fails"}
    assert found.verdict == "fails"
    assert {"idle below load", "limit"} <= failed


def test_the_verb_writes_what_can_be_shared(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = (
        SensorCheck("limit", "gpu0", "holds", "mean 1 W"),
        SensorCheck("counter and power", "x", "fails", "no " * 60),
    )
    for verdict, code in (("holds", 0), ("fails", 1)):
        found = HardwareTest(verdict, ("no load",), checks, {"verdict": verdict})  # type: ignore[arg-type]
        monkeypatch.setattr(verb, "hardware_test", lambda *_words, found=found, **_more: found)
        path = tmp_path / f"{verdict}.json"
        assert main(["selftest", "--hardware", "--write", str(path)]) == code
        out = capsys.readouterr().out
        assert "holds       limit: gpu0: mean 1 W" in out
        assert all(len(line) <= 80 for line in out.splitlines() if str(path) not in line)
        assert json.loads(path.read_text()) == {"verdict": verdict}


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_machine_without_sensors_has_nothing_to_test(
    words: list[str], library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in environment(library, devices=0).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(hardware, "ROOT", tmp_path)
    assert main(["selftest", "--hardware", *words]) == 1
    out = capsys.readouterr().out
    assert "nothing to test here" in out
    assert "looked for: amd, hwmon, ipu, nvml, rapl, xpu" in " ".join(out.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.full("readings over a few real seconds")
def test_counters_in_files_below_another_root(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A counter that stands still is not worth its readings, and says so."""
    zone = tmp_path / "sys/class/powercap/intel-rapl:0"
    zone.mkdir(parents=True)
    for name, text in {"name": "package-0", "energy_uj": "123456789", "max_energy_range_uj": "262143328850"}.items():
        (zone / name).write_text(f"{text}\n")
    for name, value in environment(library, devices=0).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(hardware, "LOAD", LOAD)
    monkeypatch.setattr(hardware, "ROOT", tmp_path)
    found = hardware_test(lambda _text: None, idle_s=1.5, load_s=1.5)
    assert found.verdict == "fails"
    assert any(channel["domain"] for channel in found.shared["channels"])
    assert any(check.outcome == "fails" and check.name == "readable" for check in found.checks)
    shutil.rmtree(zone)


def test_seconds_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--hardware", "--idle-s", "0"]) == 2
    assert "--idle-s 0: must be at least 1" in capsys.readouterr().err
