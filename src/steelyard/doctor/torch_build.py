"""Checks of the torch installation. A worker process (`steelyard.worker.probe`) imports torch; this module does not."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard import hostinfo
from steelyard.doctor.node import Check, HostView, Verdict, accelerator_makers

if TYPE_CHECKING:
    from collections.abc import Iterator

PROBE_LIMIT_S = 120.0
# e_machine of a shared library's header, and its name in `uname -m`.
ELF_MACHINES = {
    3: "i686",
    21: "ppc64le",
    22: "s390x",
    40: "armv7l",
    62: "x86_64",
    183: "aarch64",
    243: "riscv64",
}
MAKER_OF = {"torch.cuda": "NVIDIA", "torch.hip": "AMD", "torch.xpu": "Intel"}
INSTALL_PAGE = "https://pytorch.org/get-started/locally"
OLD_RELEASES = "https://pytorch.org/get-started/previous-versions"
WHEELS = {"NVIDIA": "CUDA", "AMD": "ROCm", "Intel": "XPU"}


def torch_checks(node: HostView) -> Iterator[Check]:
    """Check that torch is installed, fits this machine and can use its devices."""
    folder = torch_folder()
    if folder is None:
        yield Check(
            "torch",
            "note",
            "not installed: only the simulated device can be used",
            _install(node),
        )
        return
    if wrong := architecture_check(folder, node.machine):
        yield wrong
        return
    yield from judge(run_probe(), node)


def torch_folder() -> Path | None:
    """Return the folder of torch without importing it."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def architecture_check(folder: Path, machine: str) -> Check | None:
    """Check that torch's libraries are built for this machine."""
    libraries = [folder / "lib/libtorch_cpu.so", *sorted(folder.glob("_C*.so"))]
    built = next((target for path in libraries if (target := elf_machine(path))), None)
    if built is None or built == machine or {built, machine} <= {"x86_64", "amd64"}:
        return None
    return Check(
        "torch",
        "wrong",
        f"torch in {folder} is built for {built}, this machine is {machine}",
        "an environment made on this machine: python -m venv, then pip install torch here (not a copied one)",
    )


def elf_machine(path: Path) -> str | None:
    """Return the machine that a shared library is built for; None: not a shared library."""
    try:
        with path.open("rb") as file:
            header = file.read(20)
    except OSError:
        return None
    if len(header) < 20 or header[:4] != b"\x7fELF":
        return None
    order = ">" if header[5] == 2 else "<"
    number: int = struct.unpack(f"{order}H", header[18:20])[0]
    return ELF_MACHINES.get(number, f"ELF machine {number}")


def run_probe() -> dict[str, Any]:
    """Run the probe and return its answer, or an error if the process dies."""
    command = [sys.executable, "-P", "-m", "steelyard.worker.probe"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return _broken(
            f"import torch and a small matrix product did not end in {PROBE_LIMIT_S:g} s",
            "a device or a network file system hangs",
            "look for failed devices in dmesg; python -X importtime -c 'import torch' shows the import times",
        )
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        text = "built for CPU instructions that this machine lacks" if name == "SIGILL" else "its libraries do not fit"
        return _broken(f"import torch died by {name}", text, "pip install --force-reinstall torch, on this machine")
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return _broken(
            f"the probe gave no answer: {words[-1] if words else 'no message'}",
            f"exit code {done.returncode}",
            f"{' '.join(command)} shows the whole error",
        )
    return answer


def _broken(text: str, meaning: str, fix: str) -> dict[str, Any]:
    return {"facts": {}, "devices": [], "error": {"text": text, "meaning": meaning, "fix": fix}}


def judge(answer: dict[str, Any], node: HostView) -> Iterator[Check]:
    """Turn the probe's answers into checks."""
    if answer["error"] is not None:
        error = answer["error"]
        yield Check("torch", "wrong", f"{error['meaning']}: {_short(error['text'])}", error["fix"])
        return
    facts: dict[str, str] = answer["facts"]
    yield Check("torch", "ok", _describe(facts))
    makers = {maker for name, maker in MAKER_OF.items() if name in facts}
    there = accelerator_makers(node)
    devices = [device for device in answer["devices"] if device["family"] != "cpu"]
    if there and not devices:
        yield _explain_unused(answer, node, makers, there)
    elif not devices and makers:
        yield Check("torch devices", "note", f"torch is built for {' and '.join(sorted(makers))}; no such device found")
    yield from _check_architectures(devices, facts.get("torch.arch_list", "").split())
    well = [device for device in devices if not device["fault"]]
    for name in sorted({device["name"] for device in well}):
        same = [device for device in well if device["name"] == name]
        memory = same[0]["memory_bytes"]
        size = f", {memory / 2**30:.1f} GiB each" if memory else ""
        yield Check(
            "torch devices", "ok", f"{len(same)} x {name} ({same[0]['family']}{size}): matrix products are correct"
        )
    for device in answer["devices"]:
        if device["fault"]:
            yield Check(
                "torch devices",
                "wrong",
                f"{device['family']}:{device['index']} ({device['name']}) fails at a small matrix product: "
                f"{_short(device['fault'])}",
                "another torch, or another device (CUDA_VISIBLE_DEVICES); look for a failed device in dmesg",
            )


def _describe(facts: dict[str, str]) -> str:
    built = [f"{WHEELS[maker]} {facts[name]}" for name, maker in MAKER_OF.items() if name in facts]
    parts = [facts["torch.version"], f"built for {' and '.join(built)}" if built else "built for the CPU only"]
    if "torch.backends" in facts:
        parts.append(f"collectives {facts['torch.backends']}")
    if "torchvision.version" in facts:
        parts.append(f"torchvision {facts['torchvision.version']}")
    return ", ".join(parts)


def _explain_unused(answer: dict[str, Any], node: HostView, makers: set[str], there: dict[str, bool]) -> Check:
    """Explain why torch uses none of the node's devices."""
    names = " and ".join(sorted(there))
    sure: Verdict = "wrong" if any(there.values()) else "note"
    if not makers & set(there):
        built = f"built for {' and '.join(sorted(makers))}" if makers else "built for the CPU only"
        return Check(
            "torch devices",
            sure,
            f"torch is {built}, this node has devices of {names}",
            _install(node),
        )
    maker = min(makers & set(there))
    for variable in hostinfo.VISIBLE[maker]:
        if node.variables.get(variable, "x").strip() in ("", "-1"):
            return Check(
                "torch devices",
                sure,
                f"{variable}={node.variables[variable]} hides every device of {names}",
                f"unset {variable}, or ask the scheduler for devices (Slurm: --gpus)",
            )
    words = _short(
        " ".join([*answer.get("warnings", []), answer.get("unavailable") or ""]).strip() or "no reason given"
    )
    return Check("torch devices", sure, f"torch cannot use the devices of {names}: {words}", _unused_fix(words, maker))


def _unused_fix(words: str, maker: str) -> str:
    if re.search(r"too old|insufficient", words, re.IGNORECASE):
        return f"a newer driver, or a torch built for an older CUDA: {OLD_RELEASES}"
    if maker == "AMD":
        return "ask to be in the groups render and video (id shows yours); in a container: --rocm, or --device /dev/kfd"
    if maker == "Intel":
        return "install the Level Zero driver (libze_intel_gpu); in a container: --device /dev/dri"
    return "nvidia-smi must work here; in a container: --nv (Apptainer) or --gpus all (Docker)"


def _check_architectures(devices: list[dict[str, Any]], compiled: list[str]) -> Iterator[Check]:
    for name, architecture in sorted({(device["name"], device["architecture"]) for device in devices}):
        if not compiled or architecture is None:
            continue
        support = supports(architecture, compiled)
        if support == "none":
            yield Check(
                "torch devices",
                "wrong",
                f"torch has no code for {name} ({architecture}); it has: {' '.join(compiled)}",
                f"another torch release: newer for new devices, older for old ones ({OLD_RELEASES})",
            )
        elif support == "compiled at first use":
            yield Check(
                "torch devices",
                "note",
                f"torch has no code for {name} ({architecture}) and compiles it at first use, which takes long",
                "a torch release that lists it, for the best speed",
            )


def supports(architecture: str, compiled: list[str]) -> str:
    """`code`, `compiled at first use` or `none`.

    NVIDIA's code runs on the same generation from its own number up (sm_80 on sm_86), code with an `a` only on its
    own (sm_90a), and what is kept as compute_NN is compiled for anything newer. AMD's runs on its own name only, and
    on the members of a generic one, which we cannot list: they count as code.
    """
    if not architecture.startswith("sm_"):
        names = [name.partition(":")[0] for name in compiled]
        return "code" if architecture in names or any("generic" in name for name in names) else "none"
    own = int(architecture[3:])
    matches = [re.fullmatch(r"(sm|compute)_(\d+)([a-z]?)", name) for name in compiled]
    parts = [(match[1], int(match[2]), match[3]) for match in matches if match]
    for kind, number, letter in parts:
        same_generation = number // 10 == own // 10 and number <= own and letter in ("", "f")
        if kind == "sm" and (number == own or same_generation):
            return "code"
    newer = any(kind == "compute" and number <= own and not letter for kind, number, letter in parts)
    return "compiled at first use" if newer else "none"


def _install(node: HostView) -> str:
    """Return what to install for the devices of this node."""
    kinds = [WHEELS[maker] for maker in WHEELS if maker in accelerator_makers(node)]
    return f"the {kinds[0]} build of torch; its install command is at {INSTALL_PAGE}" if kinds else "pip install torch"


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 300 else words[:297] + "..."
