"""The environment record, read from file trees of other machines and from this one."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from conftest import HANG_S, until
from planted import HARMLESS_VARIABLES
from steelyard import hostinfo
from steelyard.contracts.base import from_json_object, to_json_object
from steelyard.contracts.observe import Environment
from steelyard.redact import MARK
from steelyard.worker.measure import numa, vendor
from steelyard.worker.measure.environment import MAX_FACTS, MAX_LENGTH, bounded, environment
from steelyard.worker.measure.host import container_facts, filesystem_facts, host_facts
from steelyard.worker.measure.software import variable_facts
from steelyard.worker.measure.vendor import NVIDIA_FIELDS, NvidiaSmi, driver_facts, topology_facts

ROOT = Path("/")


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run does not wait long for nvidia-smi. A test does: the machine may be busy."""
    monkeypatch.setattr(vendor, "KILL_WAIT_S", HANG_S)


def plant(root: Path, files: dict[str, str]) -> Path:
    """Create a tree of small files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_record_of_this_machine(tmp_path: Path) -> None:
    found = environment("sim", "scripted", data=tmp_path, results=tmp_path, more={"torch.version": "9"})
    assert from_json_object(Environment, to_json_object(found)) == found
    assert found.node
    assert {"python.version", "system.architecture", "cpu.usable", "memory.total_bytes"} <= set(found.facts)
    assert {"cgroup.cpu_quota", "filesystem.data.type", "filesystem.results.mount"} <= set(found.facts)
    assert found.facts["torch.version"] == "9"
    assert environment("sim", "scripted").facts["cpu.online"] == str(os.cpu_count())


def test_a_folder_that_was_removed_under_us(tmp_path: Path) -> None:
    code = (
        f"import os; os.mkdir({str(tmp_path / 'x')!r}); os.chdir({str(tmp_path / 'x')!r}); os.rmdir(os.getcwd())\n"
        "from pathlib import Path; from steelyard.worker.measure.environment import environment\n"
        "environment('sim', 't', data=Path('data'))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_facts_have_bounds() -> None:
    kept = bounded({f"n{number}": "x" * 5000 for number in range(2000)} | {"half": "\ud800"})
    assert len(kept) == MAX_FACTS
    assert max(map(len, kept.values())) == MAX_LENGTH
    assert kept["facts_left_out"] == str(2001 - (MAX_FACTS - 1))
    assert bounded({"half": "\ud800"}) == {"half": "\\ud800"}


def test_cpus_and_memory_of_a_server(tmp_path: Path) -> None:
    cpu = "sys/devices/system/cpu"
    files = {
        "proc/cpuinfo": "processor: 0\nmodel name\t: AMD EPYC 7763\n\nprocessor: 1\nmodel name: other\n",
        "proc/meminfo": "MemTotal:       1000 kB\nMemFree: 1 kB\nSwapTotal: 0 kB\n",
        f"{cpu}/cpu0/cpufreq/scaling_cur_freq": "3500000\n",
        f"{cpu}/smt/control": "on\n",
        "sys/devices/system/node/node0/cpulist": "0-1\n",
        "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       600 kB\nNode 0 MemFree: 1 kB\n",
        "sys/devices/system/node/node1/cpulist": "2-3\n",
    }
    for number in range(4):
        files |= {
            f"{cpu}/cpu{number}/topology/physical_package_id": f"{number // 2}\n",
            f"{cpu}/cpu{number}/topology/core_cpus_list": f"{number // 2 * 2}-{number // 2 * 2 + 1}\n",
            f"{cpu}/cpu{number}/cpufreq/scaling_governor": "powersave\n" if number else "performance\n",
            f"{cpu}/cpu{number}/cpufreq/scaling_max_freq": "3500000\n" if number else "2500000\n",
        }
    facts = host_facts(plant(tmp_path, files))
    assert facts == {
        "cpu.model": "AMD EPYC 7763", "cpu.sockets": "2", "cpu.cores": "2", "cpu.smt": "on",
        "cpu.governor": "powersave (3 CPUs), performance (1 CPUs)", "cpu.max_mhz": "2500 to 3500",
        "cpu.cpu0_mhz": "3500",
        "memory.total_bytes": "1024000", "memory.swap_bytes": "0", "numa.nodes": "2", "numa.nodes_with_cpus": "2",
        "numa.node0.cpus": "0-1", "numa.node0.memory_bytes": "614400", "numa.node1.cpus": "2-3",
        "cgroup.cpu_quota": "none", "cgroup.memory_limit_bytes": "none",
    }  # fmt: skip


def test_a_core_of_arm_has_a_number_for_a_name(tmp_path: Path) -> None:
    plant(tmp_path, {"proc/cpuinfo": "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"})
    assert host_facts(tmp_path)["cpu.model"] == "Arm Neoverse V2"
    plant(tmp_path, {"proc/cpuinfo": "processor\t: 0\nCPU implementer\t: 0x99\nCPU part\t: 0x1\n"})
    assert host_facts(tmp_path)["cpu.model"] == "ARM implementer 0x99, part 0x1"


@pytest.mark.parametrize(
    "files",
    [
        {
            "proc/self/cgroup": "0::/job/step\n",
            "sys/fs/cgroup/job/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/job/step/cpu.max": "max 100000\n",
            "sys/fs/cgroup/job/step/memory.max": "1048576\n",
            "sys/fs/cgroup/job/step/cpuset.cpus.effective": "0-3\n",
        },
        {
            "proc/self/cgroup": "4:memory:/x\n3:cpuset:/\n2:cpu,cpuacct:/x\n0::/\nnonsense\n",
            "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1048576\n",
            "sys/fs/cgroup/cpuset/cpuset.effective_cpus": "0-3\n",
            "sys/fs/cgroup/unified/cgroup.procs": "\n",
        },
    ],
    ids=["version 2", "version 1"],
)
def test_control_groups(tmp_path: Path, files: dict[str, str]) -> None:
    facts = host_facts(plant(tmp_path, files))
    names = ("cgroup.cpu_quota", "cgroup.memory_limit_bytes", "cgroup.cpuset")
    assert [facts[name] for name in names] == ["1.5", "1048576", "0-3"]


def test_control_groups_from_the_inside_out(tmp_path: Path) -> None:
    plant(tmp_path, {"proc/self/cgroup": "4:memory:/x\n0::/a/b\n"})
    groups = tmp_path / "sys/fs/cgroup"
    (groups / "a/b").mkdir(parents=True)
    (groups / "memory/x").mkdir(parents=True)
    assert list(hostinfo.control_groups("cpu", tmp_path)) == [groups / "a/b", groups / "a", groups]
    assert list(hostinfo.control_groups("memory", tmp_path))[:2] == [groups / "memory/x", groups / "memory"]


MOUNTS = r"""
1 0 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
2 1 0:9 / /data rw - nfs4 server:/export rw,addr=10.0.0.1
3 1 0:9 / /data\040sets/imagenet ro - lustre 10.0.0.2@o2ib:/scratch rw
4 1 0:9 / /auto rw - autofs systemd-1 rw
5 4 0:9 / /auto rw - cifs //user:secret@host/share rw
6 1 0:9 / /dav rw - fuse.davfs https://me:pass@host/dav rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "point"),
    [
        ("/data/x", "nfs4", "/data"),
        ("/database", "ext4", "/"),
        ("/data sets/imagenet/train", "lustre", "/data sets/imagenet"),
        ("/auto/x", "cifs", "/auto"),
    ],
)
def test_mounts(tmp_path: Path, path: str, kind: str, point: str) -> None:
    plant(tmp_path, {"proc/self/mountinfo": MOUNTS})
    facts = filesystem_facts("data", Path(path), tmp_path)
    assert (facts["filesystem.data.type"], facts["filesystem.data.mount"]) == (kind, point)


def test_a_mount_without_its_password(tmp_path: Path) -> None:
    plant(tmp_path, {"proc/self/mountinfo": MOUNTS})
    assert filesystem_facts("data", Path("/dav"), tmp_path)["filesystem.data.source"] == "https://host/dav"
    assert filesystem_facts("data", Path("/data"), tmp_path)["filesystem.data.source"] == "server:/export"


def test_fabric(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
            "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
            "sys/class/infiniband/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)\n",
            "sys/class/infiniband/mlx5_1/ports/1/link_layer": "Ethernet\n",
            "sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n",
            "sys/class/net/hsn0/operstate": "up\n",
        },
    )
    facts = host_facts(tmp_path)
    assert facts["fabric.InfiniBand"] == "mlx5_0: active"
    assert facts["fabric.RoCE"] == "mlx5_1: no port is active"
    assert facts["fabric.Slingshot"] == "hsn0: active"
    assert facts["fabric.rate.mlx5_0.1"] == "200 Gb/sec (4X HDR)"


def test_containers(tmp_path: Path) -> None:
    assert container_facts(tmp_path, {}) == {}
    image = tmp_path / "torch.sif"
    image.write_bytes(b"x" * 10)
    digest = "sha256:" + "a" * 64
    labels = {
        "org.label-schema.usage.singularity.deffile.from": f"pytorch/pytorch@{digest}",
        "org.opencontainers.image.revision": "r1",
        "maintainer": "somebody",
    }
    plant(tmp_path / "a", {".singularity.d/labels.json": json.dumps(labels)})
    facts = container_facts(tmp_path / "a", {"APPTAINER_CONTAINER": str(image)})
    assert (facts["container.kind"], facts["container.image"]) == ("apptainer", str(image))
    assert (facts["container.image_bytes"], facts["container.digest"]) == ("10", digest)
    assert facts["container.label.org.opencontainers.image.revision"] == "r1"
    assert not any("maintainer" in name for name in facts)
    broken = plant(tmp_path / "e", {".singularity.d/labels.json": "["})
    assert container_facts(broken, {}) == {"container.kind": "apptainer"}
    text = f'engine="podman-4.9"\nimage="docker.io/x@{digest}"\nimageid="abc"\nrootless=1\n'
    facts = container_facts(plant(tmp_path / "b", {"run/.containerenv": text}), {})
    assert (facts["container.kind"], facts["container.digest"], facts["container.image_id"]) == (
        "podman",
        digest,
        "abc",
    )
    assert container_facts(plant(tmp_path / "c", {".dockerenv": ""}), {}) == {"container.kind": "docker"}
    assert container_facts(tmp_path / "c", {"KUBERNETES_SERVICE_HOST": "1"}) == {"container.kind": "kubernetes"}


KEPT = {
    "NCCL_DEBUG": "INFO",
    "OMP_NUM_THREADS": "8",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "CUDA_VISIBLE_DEVICES": "",
    "SLURM_JOB_ID": "7",
    "LD_PRELOAD": "/usr/lib/libtcmalloc.so.4:/opt/x.so",
    "FI_PROVIDER": "cxi",
}
DROPPED = {
    "HOME": "/home/me",
    "SLURM_JOB_USER": "me",
    "SLURM_JWT": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "HF_TOKEN": "x",
    "WANDB_API_KEY": "x",
    "TORCH_HUB_TOKEN": "x",
    "NCCL_PRIVATE_key": "x",
    "UCX_PASSWORD": "x",
    "MKL_credentials": "x",
    "TORCH_HOME": "https://me:hunter2@host/cache",
    "TORCH_PROXY": "http://me@host",
    "NCCL_X": "Bearer abc",
    "NCCL_Y": "a=1;password=hunter2",
    "TORCH_Z": "ghp_" + "a" * 36,
    "TORCH_J": "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.x.y",
    "NCCL_W": "-----BEGIN RSA PRIVATE KEY-----",
}


def test_no_secret_is_recorded() -> None:
    facts = variable_facts(KEPT | DROPPED)
    assert {name: value for name, value in facts.items() if MARK not in value} == {
        f"env.{name}": value for name, value in KEPT.items()
    }
    assert facts["env.TORCH_HOME"] == f"https://{MARK}@host/cache"
    assert facts["env.UCX_PASSWORD"] == MARK
    assert variable_facts({"TORCH_HOME": "https://host/a@b"}) == {"env.TORCH_HOME": "https://host/a@b"}


def test_names_are_exact() -> None:
    """A beginning such as GPU_ or FABRIC_ belongs to nobody."""
    assert variable_facts({"FABRIC_PASS": "hunter", "GPU_PW": "hunter", "AMD_X": "1", "TORCH_ANY": "1"}) == {}
    odd = {"UCX_ANY": "aB3dE6gH9jK2mN5pQ8sT1", "OMPI_MCA_x": "0123456789abcdef0123-45", "NCCL_MASK": "0x" + "f0" * 16}
    assert variable_facts(odd) == {
        "env.UCX_ANY": MARK, "env.OMPI_MCA_x": MARK, "env.NCCL_MASK": odd["NCCL_MASK"],
    }  # fmt: skip


def test_variables_that_matter_for_performance_are_kept() -> None:
    assert len(HARMLESS_VARIABLES) >= 200
    facts = variable_facts(HARMLESS_VARIABLES)
    assert facts == {f"env.{name}": value for name, value in HARMLESS_VARIABLES.items()}


def test_no_secret_of_this_process_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in DROPPED.items():
        monkeypatch.setenv(name, value)
    text = json.dumps(environment("sim", "t").facts)
    assert "hunter2" not in text
    assert "ghp_" not in text


def fake_smi(folder: Path, query: str, topology: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program named nvidia-smi that is first on the path."""
    folder.mkdir()
    program = folder / "nvidia-smi"
    program.write_text(f'#!/bin/sh\ncase "$1" in\n--query-gpu*) {query};;\ntopo) {topology};;\nesac\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


ROW = (
    "NVIDIA H100 80GB HBM3, GPU-{0}, 550.54.15, 00000000:{0}5:00.0, 81559 MiB, 1980 MHz, 345 MHz, 2619 MHz, 2619 MHz, "
    "700.00 W, 700.00 W, 33, Disabled, Enabled, Enabled, Default, 5, 16, [N/A]"
)
TOPOLOGY = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tPIX\t0-51\t0\t\tN/A\nGPU1\tNV18\t X \tSYS\t52-103\t1\t\t12\nNIC0\tPIX\tSYS\t X \n\n"
    "Legend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
)


def test_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, {"rows": "".join(ROW.format(n) + "\n" for n in range(2)), "topo": TOPOLOGY})
    fake_smi(tmp_path / "bin", f"cat {tmp_path}/rows", f"cat {tmp_path}/topo", monkeypatch)
    smi = NvidiaSmi()
    smi.start()
    facts = smi.facts(HANG_S)
    assert facts == smi.facts()
    assert facts["gpu0.name"] == "NVIDIA H100 80GB HBM3"
    assert (facts["gpu1.pci"], facts["gpu1.power_limit"]) == ("00000000:15:00.0", "700.00 W")
    assert (facts["gpu0.clock_max"], facts["gpu0.clock_now"]) == ("1980 MHz", "345 MHz")
    assert (facts["gpu0.mig"], facts["gpu0.ecc"], facts["gpu0.persistence"]) == ("Disabled", "Enabled", "Enabled")
    assert "gpu0.vbios" not in facts
    assert (facts["gpu0.links"], facts["gpu1.links"]) == ("GPU1 NV18, NIC0 PIX", "GPU0 NV18, NIC0 SYS")
    assert (facts["gpu1.cpus_beside"], facts["gpu1.numa_node"], facts["gpu1.own_node"]) == ("52-103", "1", "12")
    assert "gpu0.own_node" not in facts
    assert len(ROW.split(",")) == len(NVIDIA_FIELDS)


def test_an_nvidia_smi_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_smi(tmp_path / "bin", f"echo $$ > {tmp_path}/pid; sleep 1000", "sleep 1000", monkeypatch)
    smi = NvidiaSmi()
    smi.start()
    pid = tmp_path / "pid"
    until(lambda: pid.exists() and pid.read_text().strip(), "the start of nvidia-smi")
    assert smi.facts(timeout_s=0.1) == {"nvidia.smi": "no answer within the time limit"}
    assert not Path("/proc", pid.read_text().strip()).exists()


def test_an_nvidia_smi_that_fails_or_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_smi(tmp_path / "bin", "echo no driver; exit 9", "exit 9", monkeypatch)
    smi = NvidiaSmi()
    smi.start()
    assert smi.facts(HANG_S) == {"nvidia.smi": "exit code 9: no driver"}
    monkeypatch.setenv("PATH", str(tmp_path))
    smi = NvidiaSmi()
    smi.start()
    assert smi.facts() == {}
    assert NvidiaSmi().facts() == {}
    assert topology_facts("nothing of the kind") == {}


def test_cards_of_amd_and_intel(tmp_path: Path) -> None:
    pci = "sys/devices/pci0000:c0/0000:c1:00.0"
    plant(
        tmp_path,
        {
            f"{pci}/vendor": "0x1002\n",
            f"{pci}/pp_dpm_sclk": "0: 500Mhz\n1: 800Mhz *\n2: 1700Mhz\n",
            f"{pci}/hwmon/hwmon3/power1_cap": "560000000\n",
            f"{pci}/current_link_speed": "16.0 GT/s PCIe\n",
            f"{pci}/current_link_width": "16\n",
            f"{pci}/mem_info_vram_total": "68702699520\n",
            "sys/module/amdgpu/version": "6.3.6\n",
            "sys/class/drm/card1/device/vendor": "0x8086\n",
            "sys/class/drm/card1/gt/gt0/rps_max_freq_mhz": "1600\n",
            "sys/class/drm/card1/device/hwmon/hwmon4/power1_max": "300000000\n",
            "sys/class/drm/card2/device/vendor": "0x1a03\n",
            "sys/class/drm/card0-DP-1/status": "connected\n",
            "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15\nGCC\n",
        },
    )
    (tmp_path / "sys/bus/pci/drivers/amdgpu").mkdir(parents=True)
    (tmp_path / pci / "driver").symlink_to(tmp_path / "sys/bus/pci/drivers/amdgpu")
    (tmp_path / "sys/class/drm/card0").mkdir()
    (tmp_path / "sys/class/drm/card0/device").symlink_to(tmp_path / pci)
    facts = driver_facts(tmp_path)
    card = {name[6:]: value for name, value in facts.items() if name.startswith("card0.")}
    assert card == {
        "vendor": "AMD", "pci": "0000:c1:00.0", "driver": "amdgpu 6.3.6", "clock_max": "1700Mhz", "clock_now": "800Mhz",
        "power_limit_w": "560", "link_speed": "16.0 GT/s PCIe", "link_width": "16", "memory_bytes": "68702699520",
    }  # fmt: skip
    assert (facts["card1.clock_max"], facts["card1.power_limit_w"]) == ("1600 MHz", "300")
    assert not any(name.startswith("card2") for name in facts)
    assert facts["nvidia.kernel_module"] == "NVIDIA UNIX x86_64 Kernel Module  550.54.15"


def two_sockets(root: Path) -> Path:
    plant(
        root,
        {
            "devices/system/node/node0/cpulist": "0-3\n",
            "devices/system/node/node1/cpulist": "4-7\n",
            "bus/pci/devices/0000:65:00.0/numa_node": "1\n",
            "bus/pci/devices/0000:66:00.0/numa_node": "-1\n",
        },
    )
    return root


def may_use(cpus: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: cpus)


def test_cpus_beside_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = two_sockets(tmp_path)
    may_use(set(range(8)), monkeypatch)
    for spelling in ("0000:65:00.0", "00000000:65:00.0", "65:00.0"):
        assert numa.cpus_beside(spelling, 0, 1, root).cpus == {4, 5, 6, 7}
    assert not numa.cpus_beside("0000:66:00.0", 0, 1, root).cpus
    assert not numa.cpus_beside("0000:99:00.0", 0, 1, root).cpus
    assert not numa.cpus_beside("nonsense", 0, 1, root).cpus
    may_use({0, 1, 6}, monkeypatch)
    assert numa.cpus_beside("0000:65:00.0", 0, 1, root).cpus == {6}
    may_use({0, 1}, monkeypatch)
    assert not numa.cpus_beside("0000:65:00.0", 0, 1, root).cpus


def test_accelerators_are_bound_unless_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = two_sockets(tmp_path)

    def choice(asked: bool | None, address: str | None = "0000:65:00.0", *, accelerator: bool = True) -> str:
        return str(numa.choose(asked, address, 0, 2, accelerator=accelerator, root=root))

    may_use(set(range(8)), monkeypatch)
    assert numa.choose(None, "0000:65:00.0", 0, 1, accelerator=True, root=root).cpus == {4, 5, 6, 7}
    assert choice(None) == choice(True) == "node 1"
    assert choice(False) == "no (switched off)"
    assert choice(None, None) == choice(True, None) == "no (the PCI address of the device is unknown)"
    assert choice(None, "0000:66:00.0") == "no (the NUMA node of the device is unknown)"
    assert choice(None, None, accelerator=False) == "no (a run on the CPU is bound only on request)"
    assert choice(True, None, accelerator=False) == "node 0"
    # A job with scattered CPUs is not forced onto the few near its device, unless it asks for that.
    may_use({0, 1, 2, 6}, monkeypatch)
    assert choice(None) == "no (only 1 of 4 usable CPUs are near the device)"
    assert choice(True) == "node 1"
    may_use({0, 1}, monkeypatch)
    assert choice(None) == choice(True) == "no (no usable CPU is near the device)"
    (tmp_path / "one").mkdir()
    found = numa.choose(None, "0000:65:00.0", 0, 1, accelerator=True, root=tmp_path / "one")
    assert str(found) == "no (the machine does not have several NUMA nodes)"


def test_ranks_without_a_device_are_dealt_over_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = two_sockets(tmp_path)
    may_use(set(range(8)), monkeypatch)
    low, high = {0, 1, 2, 3}, {4, 5, 6, 7}
    assert [numa.cpus_beside(None, rank, 4, root).cpus for rank in range(4)] == [low, low, high, high]
    assert [numa.cpus_beside(None, rank, 3, root).cpus for rank in range(3)] == [low, low, high]
    assert [numa.cpus_beside(None, rank, 2, root).cpus for rank in range(2)] == [low, high]
    may_use(high, monkeypatch)
    assert not numa.cpus_beside(None, 0, 2, root).cpus
    assert not numa.cpus_beside(None, 0, 2, tmp_path / "nothing").cpus


def test_four_superchips_with_36_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four nodes have CPUs, four the memory of a GPU, and 28 are reserved for GPU partitions."""
    cpus = {node: set(range(72 * node, 72 * node + 72)) for node in range(4)}
    for node in range(36):
        text = f"{min(cpus[node])}-{max(cpus[node])}" if node in cpus else ""
        plant(tmp_path, {f"devices/system/node/node{node}/cpulist": text + "\n"})
    # The memory of the second GPU, node 12, is nearest to node 1.
    distances = ["40", "20", "40", "40", *["80"] * 32]
    plant(tmp_path, {"devices/system/node/node12/distance": " ".join(distances)})
    plant(tmp_path, {"bus/pci/devices/0009:01:00.0/numa_node": "1", "bus/pci/devices/0019:01:00.0/numa_node": "12"})
    plant(tmp_path, {"bus/pci/devices/0029:01:00.0/numa_node": "20"})
    may_use(set().union(*cpus.values()), monkeypatch)
    assert [numa.cpus_beside(None, rank, 4, tmp_path).cpus for rank in range(4)] == list(cpus.values())
    assert numa.cpus_beside("0009:01:00.0", 0, 4, tmp_path).cpus == cpus[1]
    assert numa.cpus_beside("0019:01:00.0", 0, 4, tmp_path).cpus == cpus[1]
    assert not numa.cpus_beside("0029:01:00.0", 0, 4, tmp_path).cpus


def test_bind_takes_every_thread_along() -> None:
    ready, done = threading.Event(), threading.Event()
    allowed = os.sched_getaffinity(0)

    def wait() -> None:
        ready.set()
        done.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait()
    try:
        numa.bind({min(allowed)})
        assert thread.native_id is not None
        assert os.sched_getaffinity(thread.native_id) == os.sched_getaffinity(0) == {min(allowed)}
    finally:
        numa.bind(allowed)
        done.set()
        thread.join()


def test_libraries_where_the_loader_looks(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "usr/lib/x86_64-linux-gnu/libibverbs.so.1": "",
            "opt/efa/lib/libfabric.so.1": "",
            "opt/own/libnccl-net-ofi.so": "",
        },
    )
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(
        b"glibc-ld.so.cache1.1\0libfabric.so.1\0/opt/efa/lib/libfabric.so.1\0/gone/libpsm2.so\0"
    )
    names = ("libibverbs", "libfabric", "libpsm2", "libnccl-net")
    assert [len(hostinfo.find_libraries(name, tmp_path, {})) for name in names] == [1, 1, 0, 0]
    assert hostinfo.find_libraries("libnccl-net", tmp_path, {"LD_LIBRARY_PATH": ":/opt/own:relative"})


def test_cpu_lists() -> None:
    assert hostinfo.parse_cpus("0-2,8\n") == {0, 1, 2, 8}
    assert hostinfo.parse_cpus("") == hostinfo.parse_cpus("nonsense") == set()
