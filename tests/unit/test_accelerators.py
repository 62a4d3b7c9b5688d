"""Which accelerators there are: from device files, the variables that hide some of them, and an allocation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from steelyard.hostinfo import accelerators, usable_accelerators
from steelyard.inputs.devices import PlaceDevices
from steelyard.launch import allocation
from steelyard.launch.allocation import Allocation, AllocationLauncher, LocalLauncher, Whereabouts, devices_here

if TYPE_CHECKING:
    from pathlib import Path


def plant(root: Path, *files: str, **texts: str) -> Path:
    for name in (*files, *texts):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts.get(name, ""))
    return root


def amd(root: Path, gpus: int, *, files: int) -> Path:
    """A node with two processors and some GPUs of AMD, of which this container has the files of some."""
    nodes = "sys/class/kfd/kfd/topology/nodes"
    minors = [0, 0, *range(128, 128 + gpus)]
    texts = {f"{nodes}/{n}/properties": f"cpu_cores_count 64\ndrm_render_minor {m}\n" for n, m in enumerate(minors)}
    return plant(root, "dev/kfd", *(f"dev/dri/renderD{128 + n}" for n in range(files)), **texts)


def intel(root: Path, count: int) -> Path:
    vendors = {f"sys/class/drm/renderD{128 + n}/device/vendor": "0x8086\n" for n in range(count)}
    return plant(root, *(f"dev/dri/renderD{128 + n}" for n in range(count)), **vendors)


def test_files_of_each_maker_are_counted_as_it_makes_them(tmp_path: Path) -> None:
    nvidia = plant(tmp_path / "a", *(f"dev/nvidia{n}" for n in range(12)), "dev/nvidiactl", "dev/nvidia-uvm")
    assert accelerators(nvidia) == {"NVIDIA": 12}
    # One file for all of them, and the machine's other devices are not in this container.
    assert accelerators(amd(tmp_path / "b", 8, files=8)) == {"AMD": 8}
    assert accelerators(amd(tmp_path / "c", 8, files=2)) == {"AMD": 2}
    assert accelerators(plant(tmp_path / "d", "dev/kfd")) == {"AMD": 1}
    assert accelerators(amd(tmp_path / "e", 0, files=0)) == {}
    habana = plant(tmp_path / "f", "dev/accel/accel0", "dev/accel/accel1", "dev/accel/accel_controlD0")
    assert accelerators(habana) == {"Habana": 2}
    assert accelerators(plant(tmp_path / "g", "dev/ipu0", "dev/ipu1", "dev/ipu0_ex")) == {"Graphcore": 2}
    assert accelerators(intel(tmp_path / "h", 2)) == {"Intel": 2}
    # The driver of NVIDIA makes such a file, too, and so does the display of a virtual machine.
    assert accelerators(plant(tmp_path / "i", "dev/nvidia0", "dev/dri/renderD128")) == {"NVIDIA": 1}
    assert accelerators(plant(tmp_path / "j", "dev/dri/renderD128")) == {}
    assert accelerators(tmp_path) == {}


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({}, 4),
        ({"CUDA_VISIBLE_DEVICES": "0, 3"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5"}, 4),
        ({"CUDA_VISIBLE_DEVICES": "GPU-7aa2,GPU-9"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,2"}, 1),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
        ({"ROCR_VISIBLE_DEVICES": "0"}, 4),
    ],
)
def test_devices_that_are_hidden_from_us_do_not_count(tmp_path: Path, variables: dict[str, str], count: int) -> None:
    root = plant(tmp_path, *(f"dev/nvidia{n}" for n in range(4)))
    assert usable_accelerators(root, variables) == count


def test_the_variables_of_other_makers(tmp_path: Path) -> None:
    node = amd(tmp_path / "amd", 8, files=8)
    assert usable_accelerators(node, {"ROCR_VISIBLE_DEVICES": "2,3,4", "HIP_VISIBLE_DEVICES": "0,1"}) == 2
    assert usable_accelerators(intel(tmp_path / "intel", 6), {"ZE_AFFINITY_MASK": "0.0,1.0"}) == 2
    # Graphics for a display beside the device that computes.
    both = intel(plant(tmp_path / "both", "dev/nvidia0"), 1)
    assert usable_accelerators(both, {"ZE_AFFINITY_MASK": "0"}) == 1
    assert usable_accelerators(tmp_path, {"CUDA_VISIBLE_DEVICES": "0"}) == 0


@pytest.mark.parametrize(
    ("there", "fits", "text"),
    [
        (PlaceDevices("this machine", 1), {1}, "this machine has 1 device"),
        (PlaceDevices("this machine", 6), {1, 2, 3, 4, 5, 6}, "this machine has 6 devices"),
        (PlaceDevices("this machine", 0), set(), "this machine has 0 devices"),
        (PlaceDevices("Slurm job 7", 4, 2), {1, 2, 3, 4, 8}, "Slurm job 7 has 2 nodes with 4 devices each"),
        (PlaceDevices("pool x of y", 4, None), {1, 2, 3, 4, 8, 12, 16}, "pool x of y has nodes with 4 devices each"),
    ],
)
def test_what_fits_a_place(there: PlaceDevices, fits: set[int], text: str) -> None:
    assert {number for number in range(1, 17) if there.suffice(number)} == fits
    assert there.text == text


@pytest.mark.parametrize(
    ("given", "here", "expected"),
    [
        (4, "n1", PlaceDevices("Slurm job 7", 4, 2)),
        (4, None, PlaceDevices("Slurm job 7", 4, 2)),
        # Slurm counts no devices, and the nodes are not this machine.
        (0, None, None),
    ],
)
def test_the_devices_of_an_allocation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: int, here: str | None, expected: PlaceDevices | None
) -> None:
    monkeypatch.setattr(allocation, "ROOT", plant(tmp_path, "dev/nvidia0"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    launcher = AllocationLauncher(Allocation("7", ("n1", "n2"), 1, 8, given, here))
    monkeypatch.setattr(allocation, "whereabouts", lambda _: Whereabouts(launcher))
    assert devices_here() == expected
    monkeypatch.setattr(allocation, "whereabouts", lambda _: Whereabouts(LocalLauncher()))
    assert devices_here() == PlaceDevices("this machine", 1)
    own = AllocationLauncher(Allocation("7", ("n1",), 1, 8, 0, "n1"))
    monkeypatch.setattr(allocation, "whereabouts", lambda _: Whereabouts(own))
    assert devices_here() == PlaceDevices("this machine", 1)
