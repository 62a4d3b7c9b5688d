"""NVIDIA's sensors: the real package with a fake library of known truth, and other versions of the package."""

from __future__ import annotations

import ctypes
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

import nvml_cases
from fake_nvml.build import Device, build, environment
from fake_nvml.probe import Question, ask
from steelyard import plugins
from steelyard.contracts.base import from_json_object, to_json_object
from steelyard.contracts.energy import Channel, Domain, Missing
from steelyard.worker.sensors.backend import ReadError
from steelyard.worker.sensors.nvml import open_nvml
from steelyard.worker.sensors.nvml_cards import Card, wanted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml") / "built"
    build(folder)
    build(folder / "old", old=True)
    return folder


# The blocking call takes 5 s and is left to the figure.
@pytest.mark.parametrize("case", [case for case in nvml_cases.CASES if case is not nvml_cases.blocks])
def test_truth_through_the_real_package(case: Callable[[nvml_cases.Bench], None], built: Path, tmp_path: Path) -> None:
    assert nvml_cases.tried(case, tmp_path / "case", built).wrong == []


def test_the_figure_sees_a_library_that_lies(built: Path, tmp_path: Path) -> None:
    bench = nvml_cases.Bench(tmp_path / "case", built)
    answer = bench.ask([Device(gain=1.001)], times_s=(100.0,))
    bench.near("energy", answer["readings"][0]["nvml.0.energy"], Device().counter_j(100.0))
    bench.near("power", answer["readings"][0]["nvml.0.power_instant"], 300.0)
    assert len(bench.wrong) == 2


def test_what_is_found_fits_its_contract(built: Path) -> None:
    gpu = Device(mig=("MIG-1",), errors=(("average", 4, 0.0),), c2c=True, module_power_w=((0.0, 500.0),))
    answer = ask(Question(root="/"), environment(built, devices=[gpu]))
    for kind, contract in (("domains", Domain), ("channels", Channel), ("missing", Missing)):
        assert answer[kind]
        for one in answer[kind]:
            assert to_json_object(from_json_object(contract, one)) == one
    domains = {domain["name"] for domain in answer["domains"]}
    assert {channel["domain"] for channel in answer["channels"]} <= domains


def test_it_is_registered() -> None:
    assert plugins.load("sensor", "nvml") is open_nvml


# -- packages other than the newest ---------------------------------------------------------------------------


class NVMLError(Exception):
    """Like the package's own error: it carries a number."""

    def __init__(self, value: int) -> None:
        super().__init__(f"code {value}")
        self.value = value


def package(**functions: Any) -> types.ModuleType:
    """An old nvidia-ml-py: only the given functions exist."""
    module = types.ModuleType("pynvml")
    defaults = {
        "NVMLError": NVMLError,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda _: b"GPU-old",
        "nvmlDeviceGetTotalEnergyConsumption": lambda _: 5_000,
    }
    for name, function in {**defaults, **functions}.items():
        setattr(module, name, function)
    return module


def test_without_nvidia_nothing_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = open_nvml(tmp_path, ("0", "1"))
    assert (found.domains, found.channels, found.missing, found.read) == ([], [], [], None)
    found.close()
    assert found.states is None


def test_a_driver_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    (missing,) = open_nvml(tmp_path, ()).missing
    assert (missing.code, missing.what) == ("missing", "all GPUs")
    assert "nvidia-ml-py" in missing.reason
    assert "pip install nvidia-ml-py" in missing.fix


def test_an_old_package_gives_bytes_and_no_fields(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", package())
    found = open_nvml(tmp_path, ())
    assert found.domains == [Domain(name="gpu0", scope="device", device="GPU-old")]
    assert [channel.name for channel in found.channels] == ["nvml.0.energy"]
    assert found.channels[0].limit_w is None
    assert found.channels[0].period_s is None
    assert found.read is not None
    assert found.read(0) == 5.0
    assert {missing.code for missing in found.missing} == {"unsupported"}
    assert all("too old" in missing.reason for missing in found.missing)


def test_a_package_without_scopes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def field_values(_handle: int, fields: list[Any]) -> list[int]:
        return [ctypes.c_uint32(field).value for field in fields]

    monkeypatch.setitem(sys.modules, "pynvml", package(nvmlDeviceGetFieldValues=field_values))
    found = open_nvml(tmp_path, ())
    # A field without a scope could be that of the module: it is not read at all.
    assert [channel.name for channel in found.channels] == ["nvml.0.energy"]
    assert [missing.reason for missing in found.missing if "power_" in missing.what] == [
        "this nvidia-ml-py is too old: it has no fields with a scope"
    ] * 2


@pytest.mark.parametrize(
    ("value_type", "name", "value", "watts"),
    [(0, "dVal", 250_000.0, 250.0), (1, "uiVal", 1, 0.001), (3, "ullVal", 700_000, 700.0), (6, "usVal", 500, 0.5)],
)
def test_fields_of_every_type(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value_type: int, name: str, value: float, watts: float
) -> None:
    def field_values(_handle: int, fields: list[tuple[int, int]]) -> list[Any]:
        code = 0 if fields == [(186, 0)] else 3
        union = types.SimpleNamespace(**{name: value})
        return [types.SimpleNamespace(nvmlReturn=code, valueType=value_type, value=union)]

    monkeypatch.setitem(sys.modules, "pynvml", package(nvmlDeviceGetFieldValues=field_values))
    found = open_nvml(tmp_path, ())
    assert [channel.name for channel in found.channels] == ["nvml.0.energy", "nvml.0.power_instant"]
    assert found.read is not None
    assert found.read(1) == watts


@pytest.mark.parametrize(
    ("number", "code"),
    [(1, "vanished"), (3, "unsupported"), (4, "forbidden"), (10, "blocked"), (15, "vanished"), (16, "vanished"),
     (17, "forbidden"), (27, "blocked"), (28, "vanished"), (20, "missing"), (999, "missing"), (12345, "missing")],
)  # fmt: skip
def test_every_failure_of_a_reading_has_a_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int, code: str
) -> None:
    answers = iter([5_000, 5_000])

    def energy(_handle: int) -> int:
        value = next(answers, None)
        if value is None:
            raise NVMLError(number)
        return value

    monkeypatch.setitem(sys.modules, "pynvml", package(nvmlDeviceGetTotalEnergyConsumption=energy))
    found = open_nvml(tmp_path, ())
    assert found.read is not None
    with pytest.raises(ReadError) as caught:
        found.read(0)
    assert caught.value.code == code
    assert f"nvmlDeviceGetTotalEnergyConsumption: code {number}" in caught.value.reason


def test_closing_a_library_that_is_already_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def shutdown() -> None:
        raise NVMLError(1)

    monkeypatch.setitem(sys.modules, "pynvml", package(nvmlShutdown=shutdown))
    open_nvml(tmp_path, ()).close()


# -- reasons and names ----------------------------------------------------------------------------------------


def test_untrusted_names_are_bounded() -> None:
    absent: list[Missing] = []
    card = Card(0, None, "GPU-1", "a", None, (), superchip=False)
    assert wanted([card], ["G" * 100_000, "9" * 5000, "", "GPU-", "MIG-GPU-"], absent) == []
    assert len(absent) == 5
    assert max(len(missing.what) for missing in absent) < 200
