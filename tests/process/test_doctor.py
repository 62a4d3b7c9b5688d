"""The doctor finds each trap on a tree that has it, and nothing wrong on a healthy one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from steelyard import hostinfo
from steelyard.cli import doctor
from steelyard.cli.main import main
from steelyard.doctor import checks as all_checks
from steelyard.doctor import torch_build
from steelyard.doctor.checks import checks
from steelyard.doctor.node import Check, HostView, IntendedRun, node_checks, place_checks, shared_memory_check
from steelyard.doctor.torch_build import architecture_check, elf_machine, judge, run_probe, supports, torch_checks
from steelyard.launch.local import LocalLauncher
from steelyard.launch.local_study import trial

if TYPE_CHECKING:
    from collections.abc import Iterable

GIB = 1 << 30
CPU: dict[str, Any] = {
    "family": "cpu",
    "index": 0,
    "name": "x86_64",
    "memory_bytes": None,
    "architecture": None,
    "fault": None,
}


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def make_node(root: Path, **settings: Any) -> HostView:
    """A node of 8 CPUs with generous limits, and no variables but a path."""
    (root / "dev/shm").mkdir(parents=True, exist_ok=True)
    given = {"variables": {"PATH": "/usr/bin:/bin"}, "machine": "x86_64", "usable_cpus": 8} | settings
    given.setdefault("cpu_numbers", frozenset(range(8)))
    return HostView(root=root, **({"locked_memory_bytes": None, "open_files": 65536} | given))


def verdicts(found: Iterable[Check]) -> dict[str, Check]:
    """By name; of several with one name, the worst."""
    order = {"ok": 0, "note": 1, "wrong": 2}
    result: dict[str, Check] = {}
    for check in found:
        if check.name not in result or order[check.verdict] > order[result[check.name].verdict]:
            result[check.name] = check
        assert check.verdict != "wrong" or check.fix, f"no fix: {check}"
    return result


def on_node(node: HostView, **plan: Any) -> dict[str, Check]:
    plan = {"results": node.root / "results"} | plan
    return verdicts([*node_checks(node, IntendedRun(**plan)), *place_checks(node, IntendedRun(**plan))])


def wrong_of(found: dict[str, Check]) -> set[str]:
    return {name for name, check in found.items() if check.verdict == "wrong"}


def h100(**settings: Any) -> dict[str, Any]:
    device = CPU | {"family": "cuda", "name": "NVIDIA H100", "memory_bytes": 80 * GIB, "architecture": "sm_90"}
    return device | settings


CUDA = {
    "torch.version": "2.9.0+cu128",
    "torch.cuda": "12.8",
    "torch.arch_list": "sm_80 sm_90",
    "torch.backends": "gloo nccl",
}


def probed(
    facts: dict[str, str] | None = None, devices: list[dict[str, Any]] | None = None, **more: Any
) -> dict[str, Any]:
    found = {"facts": CUDA if facts is None else facts, "devices": [CPU, *(devices or [])], "error": None}
    return found | {"warnings": [], "unavailable": None} | more


def gpu_node(tmp_path: Path, **settings: Any) -> HostView:
    return make_node(plant(tmp_path, {"dev/nvidia0": "", "dev/nvidiactl": ""}), **settings)


HEALTHY = {
    "proc/self/cgroup": "0::/job\n",
    # Nobody but us uses CPU time.
    "proc/stat": "".join(f"cpu{number} 5 0 0 900 0 0 0 0 0 0\n" for number in range(8)),
    f"proc/{os.getpid()}/stat": f"{os.getpid()} (pytest) S 1 1 1 0 -1 0 0 0 0 0 5 0 0 0 20 0 1 0 1 1 1",
    "proc/self/mountinfo": "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:5 / /lustre rw - lustre mds:/x rw\n",
    "sys/fs/cgroup/job/cpu.max": "max 100000\n",
    "sys/fs/cgroup/job/memory.max": "max\n",
    "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
    "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    "dev/infiniband/uverbs0": "",
    "usr/lib/x86_64-linux-gnu/libibverbs.so.1": "",
    "dev/nvidia0": "",
}


def test_a_healthy_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make_node(plant(tmp_path, HEALTHY))
    monkeypatch.setattr(torch_build, "torch_folder", lambda: tmp_path)
    monkeypatch.setattr(torch_build, "run_probe", lambda: probed(devices=[h100()]))
    # Vendors' libraries know this machine alone, whatever tree of files is looked at.
    asked = {"domains": [{"name": "package-0", "scope": "cpu"}], "missing": [], "backends": ["rapl"]}
    counter = {"name": "rapl.package-0", "backend": "rapl", "domain": "package-0", "kind": "counter", "fault": None}
    asked |= {"channels": [counter], "states": [], "powercap": True, "perf_events": ["energy-pkg"], "cray_counters": []}
    monkeypatch.setattr(all_checks, "run_survey", lambda _: asked)
    plan = IntendedRun(tmp_path / "results", data=tmp_path, devices=1, loader_workers=4)
    told: list[str] = []
    found = verdicts(checks(node, plan, partial(trial, launcher=LocalLauncher()), "", told.append))
    assert told[-1] == "10 training steps with torch"
    assert wrong_of(found) == set()
    assert {name for name, check in found.items() if check.verdict == "note"} == {"scheduler"}
    assert found["fabric"].found == "InfiniBand (mlx5_0) with libibverbs"
    assert found["torch devices"].found.startswith("1 x NVIDIA H100 (cuda, 80.0 GiB each)")
    assert found["energy"].found == "rapl: cpu package-0 (counter)"
    assert found["worker"].verdict == "ok"
    assert found["load"].found == "other processes used 0.0 of 8 CPUs"


def test_a_quota_below_the_cpus(tmp_path: Path) -> None:
    node = make_node(plant(tmp_path, HEALTHY | {"sys/fs/cgroup/cpu.max": "150000 100000\n"}))
    found = on_node(node)
    assert wrong_of(found) == {"CPU quota"}
    assert "allows 1.5 CPUs, 8 are visible" in found["CPU quota"].found
    inner, outer = tmp_path / "sys/fs/cgroup/job", tmp_path / "sys/fs/cgroup"
    assert hostinfo.cpu_quota([inner, outer]) == 1.5
    plant(inner, {"cpu.cfs_quota_us": "50000\n", "cpu.cfs_period_us": "100000\n"})
    assert hostinfo.cpu_quota([inner, outer]) == 0.5
    plant(outer, {"memory.limit_in_bytes": "1073741824\n"})
    assert hostinfo.memory_limit([inner, outer]) == GIB


def test_more_processes_than_cpus(tmp_path: Path) -> None:
    node = make_node(plant(tmp_path, HEALTHY))
    assert wrong_of(on_node(node, devices=4, loader_workers=1)) == set()
    found = on_node(node, devices=4, loader_workers=2)
    assert wrong_of(found) == {"CPU share"}
    assert found["CPU share"].found == "4 devices with 2 loader workers each are 12 processes for 8 CPUs"
    plant(tmp_path, {"sys/fs/cgroup/job/cpu.max": "400000 100000\n"})
    assert wrong_of(on_node(node, devices=1, loader_workers=4)) == {"CPU quota", "CPU share"}


def test_little_shared_memory(tmp_path: Path) -> None:
    docker = 64 << 20
    assert shared_memory_check(docker, IntendedRun(tmp_path)).verdict == "note"
    assert shared_memory_check(docker, IntendedRun(tmp_path, loader_workers=2)).verdict == "wrong"
    assert shared_memory_check(GIB, IntendedRun(tmp_path, devices=4, loader_workers=8)).verdict == "wrong"
    assert shared_memory_check(4 * GIB, IntendedRun(tmp_path, devices=4, loader_workers=8)).verdict == "ok"
    assert wrong_of(on_node(HostView(root=tmp_path))) == {"shared memory"}


def test_few_open_files(tmp_path: Path) -> None:
    node = make_node(plant(tmp_path, HEALTHY), open_files=1024, usable_cpus=64)
    assert "open files" not in on_node(node)
    assert on_node(node, loader_workers=8)["open files"].verdict == "ok"
    assert wrong_of(on_node(node, loader_workers=16)) == {"open files"}


@pytest.mark.parametrize(
    ("files", "library", "verdict"),
    [
        ({"sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand"}, "libibverbs", "wrong"),
        ({"sys/class/infiniband/mlx5_0/ports/1/link_layer": "Ethernet"}, "libibverbs", "note"),
        ({"sys/class/infiniband/efa_0/ports/1/state": "4: ACTIVE", "dev/nvidia0": ""}, "libnccl-net", "wrong"),
        ({"sys/class/cxi/cxi0/x": ""}, "libfabric", "wrong"),
        ({"sys/class/net/hsn0/operstate": "up", "dev/kfd": ""}, "librccl-net", "wrong"),
        ({"sys/class/infiniband/hfi1_0/x": ""}, "libpsm2", "wrong"),
    ],
)
def test_a_fabric_without_its_library(tmp_path: Path, files: dict[str, str], library: str, verdict: str) -> None:
    device_files = {"dev/infiniband/uverbs0": "", "dev/cxi0": "", "dev/hfi1_0": ""}
    node = make_node(plant(tmp_path, files))
    found = on_node(node)
    assert found["fabric"].verdict == verdict
    assert library in found["fabric"].found
    plant(tmp_path, {f"opt/lib/{name}.so.1": "" for name in ("libibverbs", "libfabric", "libnccl-net", "libpsm2")})
    node = make_node(tmp_path, variables={"LD_LIBRARY_PATH": "/opt/lib", "PATH": ""})
    assert "device files" in on_node(node)["fabric"].found
    plant(tmp_path, device_files)
    assert on_node(node)["fabric"].verdict == "ok"


def test_a_port_that_is_down(tmp_path: Path) -> None:
    plant(tmp_path, {"sys/class/infiniband/mlx5_0/ports/1/state": "1: DOWN"})
    assert on_node(make_node(tmp_path))["fabric"].verdict == "note"


def test_locked_memory(tmp_path: Path) -> None:
    node = make_node(plant(tmp_path, HEALTHY), locked_memory_bytes=8 << 20)
    found = on_node(node)
    assert wrong_of(found) == {"locked memory"}
    assert "8,192 KiB" in found["locked memory"].found
    plant(tmp_path, {"proc/self/status": "Name: x\nCapEff:\t0000000000004000\n"})
    assert wrong_of(on_node(node)) == set()
    bare = tmp_path / "bare"
    assert "locked memory" not in on_node(make_node(bare, locked_memory_bytes=8 << 20))


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        ("ext4", "ok"), ("xfs", "ok"), ("tmpfs", "ok"), ("squashfs", "ok"), ("fuse.squashfuse_ll", "ok"),
        ("lustre", "note"), ("gpfs", "note"), ("beegfs", "note"), ("nfs", "wrong"), ("nfs4", "wrong"),
        ("cifs", "wrong"), ("fuse.sshfs", "wrong"), ("fuse.gcsfuse", "wrong"), ("9p", "wrong"), ("overlay", "wrong"),
    ],
)  # fmt: skip
def test_file_systems_of_data(tmp_path: Path, kind: str, verdict: str) -> None:
    plant(
        tmp_path, {"proc/self/mountinfo": f"1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:1 / {tmp_path} rw - {kind} x rw\n"}
    )
    found = on_node(make_node(tmp_path), data=tmp_path)
    assert (found["data"].verdict, kind in found["data"].found) == (verdict, True)
    results = found.get("results disk")
    assert (results is not None) == (verdict == "wrong")
    assert results is None or results.verdict == "note"


def test_data_that_are_not_there(tmp_path: Path) -> None:
    assert wrong_of(on_node(make_node(tmp_path), data=tmp_path / "none")) == {"data"}


def elf(machine: int, order: str = "little") -> bytes:
    mark = b"\x7fELF\x02" + (b"\x01" if order == "little" else b"\x02") + bytes(10)
    return mark + (3).to_bytes(2, order) + machine.to_bytes(2, order)  # type: ignore[arg-type]


def test_torch_for_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "lib/libtorch_cpu.so"
    assert architecture_check(tmp_path, "aarch64") is None
    library.parent.mkdir()
    library.write_bytes(elf(62))
    assert elf_machine(library) == "x86_64"
    assert architecture_check(tmp_path, "x86_64") is None
    found = architecture_check(tmp_path, "aarch64")
    assert found is not None
    assert (found.verdict, "built for x86_64, this machine is aarch64" in found.found) == ("wrong", True)
    library.unlink()
    (tmp_path / "_C.cpython-311-aarch64-linux-gnu.so").write_bytes(elf(183))
    assert architecture_check(tmp_path, "aarch64") is None
    assert architecture_check(tmp_path, "x86_64") is not None
    library.write_bytes(elf(22, "big"))
    assert elf_machine(library) == "s390x"
    library.write_bytes(b"text")
    assert elf_machine(library) is None
    monkeypatch.setattr(torch_build, "torch_folder", lambda: tmp_path)
    assert wrong_of(verdicts(torch_checks(make_node(tmp_path, machine="x86_64")))) == {"torch"}


def test_the_library_of_this_python() -> None:
    assert elf_machine(Path(sys.executable).resolve()) == os.uname().machine


def test_no_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_build, "torch_folder", lambda: None)
    found = verdicts(torch_checks(gpu_node(tmp_path)))["torch"]
    assert (found.verdict, "CUDA build" in found.fix) == ("note", True)


def test_torch_for_the_cpu_beside_gpus(tmp_path: Path) -> None:
    only_cpu = {"torch.version": "2.9.0+cpu"}
    assert wrong_of(verdicts(judge(probed(only_cpu), make_node(tmp_path / "bare")))) == set()
    found = verdicts(judge(probed(only_cpu), gpu_node(tmp_path)))["torch devices"]
    assert (found.verdict, found.found) == ("wrong", "torch is built for the CPU only, this node has devices of NVIDIA")
    assert "CUDA build" in found.fix
    amd = make_node(plant(tmp_path / "amd", {"dev/kfd": ""}))
    found = verdicts(judge(probed(), amd))["torch devices"]
    assert (found.verdict, found.found) == ("wrong", "torch is built for NVIDIA, this node has devices of AMD")
    assert "ROCm build" in found.fix
    drm = {"dev/dri/renderD128": "", "sys/class/drm/renderD128/device/vendor": "0x8086\n"}
    found = verdicts(judge(probed(only_cpu), make_node(plant(tmp_path / "intel", drm))))["torch devices"]
    assert (found.verdict, "XPU build" in found.fix) == ("note", True)


def test_devices_that_torch_cannot_use(tmp_path: Path) -> None:
    old = "CUDA initialization: The NVIDIA driver on your system is too old (found version 11040)."
    found = verdicts(judge(probed(warnings=[old]), gpu_node(tmp_path)))["torch devices"]
    assert (found.verdict, old in found.found) == ("wrong", True)
    assert "newer driver" in found.fix
    found = verdicts(judge(probed(unavailable="Found no NVIDIA driver on your system."), gpu_node(tmp_path)))[
        "torch devices"
    ]
    assert "Found no NVIDIA driver" in found.found
    assert "--nv" in found.fix
    hidden = gpu_node(tmp_path, variables={"CUDA_VISIBLE_DEVICES": ""})
    found = verdicts(judge(probed(), hidden))["torch devices"]
    assert found.fix.startswith("unset CUDA_VISIBLE_DEVICES")
    amd = make_node(plant(tmp_path / "amd", {"dev/kfd": ""}))
    rocm = {"torch.version": "2.9.0+rocm6.4", "torch.hip": "6.4"}
    assert "render" in verdicts(judge(probed(rocm), amd))["torch devices"].fix
    assert verdicts(judge(probed(), make_node(tmp_path / "bare")))["torch devices"].verdict == "note"


@pytest.mark.parametrize(
    ("architecture", "compiled", "support"),
    [
        ("sm_90", "sm_80 sm_90", "code"),
        ("sm_86", "sm_80 sm_90", "code"),
        ("sm_70", "sm_75 sm_80", "none"),
        ("sm_80", "sm_86", "none"),
        ("sm_120", "sm_90 sm_100", "none"),
        ("sm_120", "sm_90 compute_90", "compiled at first use"),
        ("sm_103", "sm_100", "code"),
        ("sm_103", "sm_100a", "none"),
        ("sm_103", "sm_100f", "code"),
        ("sm_90", "sm_90a", "code"),
        ("gfx90a", "gfx906 gfx90a:xnack-", "code"),
        ("gfx1100", "gfx90a gfx942", "none"),
        ("gfx1103", "gfx11-generic", "code"),
    ],
)
def test_architectures(architecture: str, compiled: str, support: str) -> None:
    assert supports(architecture, compiled.split()) == support


def test_a_device_that_torch_has_no_code_for(tmp_path: Path) -> None:
    volta = h100(name="Tesla V100", architecture="sm_70")
    found = list(judge(probed(devices=[volta]), gpu_node(tmp_path)))
    assert [check.found for check in found if check.verdict == "wrong"] == [
        "torch has no code for Tesla V100 (sm_70); it has: sm_80 sm_90"
    ]


def test_a_device_that_computes_wrong(tmp_path: Path) -> None:
    found = list(judge(probed(devices=[h100(), h100(index=1, fault="CUDA error: ECC")]), gpu_node(tmp_path)))
    assert [check.found[:20] for check in found if check.verdict == "ok"][1:] == ["1 x NVIDIA H100 (cud"]
    assert ["cuda:1" in check.found for check in found if check.verdict == "wrong"] == [True]


def run_python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", code]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)


PROBE = "from steelyard.worker.probe import main; raise SystemExit(main())"


@pytest.mark.parametrize(
    ("body", "meaning"),
    [
        ("raise ImportError(\"libcudart.so.12: cannot open shared object file\")", "a library that torch needs"),
        ("raise ImportError(\"/x/torch.so: undefined symbol: ncclCommInit\")", "mixed"),
        ("raise OSError(\"/lib/libc.so: version `GLIBC_2.34' not found\")", "needs a newer C library"),
        ("raise OSError(\"libtorch.so: wrong ELF class\")", "another architecture"),
        ("raise ModuleNotFoundError(\"No module named 'torch._C'\")", "another Python"),
        ("raise SystemExit(3)", "cannot be imported"),
        ("print('noise')", "is incomplete"),
    ],
)  # fmt: skip
def test_the_probe_outlives_a_broken_torch(tmp_path: Path, body: str, meaning: str) -> None:
    plant(tmp_path, {"torch.py": body})
    done = run_python(PROBE, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert meaning in json.loads(done.stdout)["error"]["meaning"]


def test_the_probe_without_torch(tmp_path: Path) -> None:
    done = run_python(f"import sys; sys.modules['torch'] = None; {PROBE}")
    assert (done.returncode, json.loads(done.stdout)["error"] is not None) == (0, True)


def test_the_probe_with_torch() -> None:
    found = run_probe()
    assert found["error"] is None
    assert found["facts"]["torch.version"]
    assert [device["fault"] for device in found["devices"] if device["family"] == "cpu"] == [None]


def test_a_probe_that_dies_or_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    plant(tmp_path, {"torch.py": "import os, signal; os.kill(os.getpid(), signal.SIGILL)"})
    found = verdicts(judge(run_probe(), make_node(tmp_path)))["torch"]
    assert (found.verdict, "SIGILL" in found.found, "instructions" in found.found) == ("wrong", True, True)
    plant(tmp_path, {"torch.py": "import time; time.sleep(1000)"})
    with monkeypatch.context() as patience:
        patience.setattr(torch_build, "PROBE_LIMIT_S", 1.0)
        found = verdicts(judge(run_probe(), make_node(tmp_path)))["torch"]
    assert (found.verdict, "did not end in 1 s" in found.found) == ("wrong", True)
    plant(tmp_path, {"torch.py": "import os; os._exit(3)"})
    found = verdicts(judge(run_probe(), make_node(tmp_path)))["torch"]
    assert (found.verdict, "exit code 3" in found.found) == ("wrong", True)


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line without seconds of import."""
    monkeypatch.setattr(torch_build, "torch_folder", lambda: None)


@pytest.mark.usefixtures("no_torch")
def test_the_verb_on_this_node(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = main(["doctor", "--json", "--data", str(tmp_path)])
    found = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert code == any(check["verdict"] == "wrong" for check in found.values())
    assert {"python", "CPUs", "memory", "torch", "data", "results", "worker"} <= set(found)
    assert found["worker"]["verdict"] == "ok"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_torch")
def test_a_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--results", "/proc/steelyard"]) == 1
    out = capsys.readouterr().out
    assert "wrong results       /proc/steelyard" in out
    assert out.endswith(("problem\n", "problems\n"))


def test_lines_for_a_person(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    long = Check("torch devices", "wrong", "found " * 60 + "\x1b[2J", "do this " * 40)
    monkeypatch.setattr(doctor, "checks", lambda *_: iter([Check("python", "ok", "3"), long]))
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "ok    python        3"
    assert lines[-1] == "1 problem"
    assert max(map(len, lines)) <= 80
    assert sum("fix: " in line for line in lines) == 1
    assert not any("\x1b" in line for line in lines)
    monkeypatch.setattr(doctor, "checks", lambda *_: iter([Check("python", "ok", "3")]))
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.endswith("No problems found.\n")


@pytest.mark.parametrize("words", [["--devices", "0"], ["--devices", "x"], ["--loader-workers", "-1"]])
def test_counts(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) == 2
    assert " ".join(words) + ": must be " in capsys.readouterr().err


def test_a_worker_that_fails_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(plant(tmp_path, {"numpy.py": "raise ImportError('broken')"})))
    found = all_checks._try_worker(partial(trial, launcher=LocalLauncher()))
    assert (found.verdict, bool(found.fix)) == ("wrong", True)
