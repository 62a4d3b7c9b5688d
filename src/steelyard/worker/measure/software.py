"""Facts on software: torch, the git state of the measured code, variables that change performance.

Only variables on a list are kept, and never one that looks like a secret. torch is imported only when needed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

GIT_LIMIT_S = 2.0
BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")
ACCELERATORS = ("cuda", "xpu", "npu", "hpu", "mtia", "mps")

VARIABLE_PREFIXES = (
    "NCCL_", "RCCL_", "GLOO_", "UCX_", "UCC_", "FI_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NVPL_",
    "TORCH_", "PYTORCH_", "TORCHINDUCTOR_", "TRITON_", "HIP_", "HSA_", "ROCR_", "MIOPEN_", "AMD_", "GPU_", "ZE_",
    "ZES_", "SYCL_", "ONEAPI_", "CCL_", "ONEDNN_", "DNNL_", "CUBLAS_", "CUDNN_", "NVIDIA_TF32_", "PT_HPU_", "MALLOC_",
    "TCMALLOC_", "MPICH_", "CXI_", "FABRIC_",
)  # fmt: skip
VARIABLES = frozenset({
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING", "CUDA_FORCE_PTX_JIT", "CUDA_DISABLE_PTX_JIT", "CUDA_CACHE_DISABLE",
    "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_PYTORCH_VERSION", "NVIDIA_BUILD_ID", "LD_PRELOAD", "LD_LIBRARY_PATH",
    "PYTHONOPTIMIZE", "PYTHONMALLOC", "PYTHONNOUSERSITE", "SLURM_JOB_ID", "SLURM_JOB_PARTITION", "SLURM_JOB_QOS",
    "SLURM_JOB_NUM_NODES", "SLURM_JOB_NODELIST", "SLURM_JOB_CPUS_PER_NODE", "SLURM_JOB_GPUS", "SLURM_JOB_RESERVATION",
    "SLURM_CLUSTER_NAME", "SLURM_NNODES", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK",
    "SLURM_CPUS_ON_NODE", "SLURM_CPU_BIND", "SLURM_CPU_BIND_TYPE", "SLURM_DISTRIBUTION", "SLURM_GPUS",
    "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND", "SLURM_MEM_BIND",
    "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_HINT", "SLURM_THREADS_PER_CORE", "SLURM_TOPOLOGY_ADDR",
    "SLURM_STEP_NODELIST",
})  # fmt: skip

_SECRET_NAME = re.compile(
    r"TOKEN|KEY|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|COOKIE|PRIVATE|CERT|SESSION|JWT|SIGNATURE|_PAT$", re.IGNORECASE
)
_SECRET_VALUE = re.compile(
    r"://[^/\s]*@"  # a URL with a user and possibly a password
    r"|(?i:(token|key|secret|passw\w*|credential\w*|sig|signature)\s*[=:])"
    r"|(?i:\b(bearer|basic)\s+\S)"
    r"|-----BEGIN"
    r"|\b(gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[abprs]-|AKIA|ASIA|AIza|eyJ)[A-Za-z0-9_-]{16,}"
)


def variable_facts(variables: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that change performance, under `env.`, without those that look like secrets."""
    kept = sorted(name for name in variables if name in VARIABLES or name.startswith(VARIABLE_PREFIXES))
    return {f"env.{name}": variables[name] for name in kept if not looks_secret(name, variables[name])}


def looks_secret(name: str, value: str) -> bool:
    """Whether a variable's name or value looks like a secret."""
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))


def git_facts(folder: Path) -> dict[str, str]:
    """Return the commit of a folder's repository and whether tracked files were changed; empty without one."""
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    if not commit:
        return {}
    facts = {"git.commit": commit}
    # A filter is a program configured in the repository, and checking for changes would run it.
    if _git(folder, "config", "--includes", "--local", "--get-regexp", r"^filter\.") is not None:
        return facts
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    if changed is not None:
        facts["git.dirty"] = f"yes: {len(changed.splitlines())} files" if changed else "no"
    return facts


def _git(folder: Path, *words: str) -> str | None:
    # Without fsmonitor, which is a program configured in the repository.
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *words]
    variables = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, timeout=GIT_LIMIT_S, check=False
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else None


def torch_facts() -> dict[str, str]:
    """Return facts on torch's build and devices, under `torch.`; ImportError without torch."""
    # Through importlib: attributes differ between releases, and every access is guarded.
    torch: Any = importlib.import_module("torch")
    answers: dict[str, Any] = {
        "torch.version": torch.__version__,
        "torch.git_version": ask(lambda: torch.version.git_version),
        "torch.cuda": ask(lambda: torch.version.cuda),
        "torch.hip": ask(lambda: torch.version.hip),
        "torch.xpu": ask(lambda: torch.version.xpu),
        "torch.arch_list": ask(lambda: " ".join(arch_list(torch))),
        "torch.cudnn": ask(torch.backends.cudnn.version),
        "torch.debug_build": "yes" if ask(lambda: torch.version.debug) else None,
        "torch.accelerator": accelerator_name(torch) or "none",
        "torch.threads": ask(torch.get_num_threads),
        "torch.interop_threads": ask(torch.get_num_interop_threads),
        "torch.cpu_capability": ask(lambda: torch.backends.cpu.get_cpu_capability()),
        "torch.mkl": ask(lambda: "yes" if torch.backends.mkl.is_available() else "no"),
        "torchvision.version": _version("torchvision"),
        "triton.version": _version("triton"),
        **_distributed(torch),
    }
    return {name: str(value) for name, value in answers.items() if value not in (None, "")}


def arch_list(torch: Any) -> list[str]:
    """Return the GPU architectures in torch's build. Older releases list them only with a GPU, so ask the build."""
    flags = ask(lambda: torch._C._cuda_getArchFlags())  # noqa: SLF001
    return flags.split() if flags else list(ask(torch.cuda.get_arch_list) or [])


def accelerator_name(torch: Any) -> str | None:
    """Return the accelerator torch can use. `torch.accelerator` names that of the build even if there is none."""
    if ask(lambda: torch.accelerator.is_available()):
        return str(torch.accelerator.current_accelerator().type)
    return next((kind for kind in ACCELERATORS if available(torch, kind)), None)


def available(torch: Any, kind: str) -> bool:
    """Whether torch can use a device of this kind now."""
    # Older releases have Apple's devices in another module.
    return kind == "cpu" or _is_true(
        torch.backends.mps if kind == "mps" else getattr(torch, kind, None), "is_available"
    )


def ask(question: Callable[[], Any]) -> Any:
    """Return the answer, or None on any error: builds without a feature fail in many ways."""
    try:
        return question()
    except Exception:  # noqa: BLE001 -- an unavailable fact must not end a run
        return None


def _distributed(torch: Any) -> dict[str, str]:
    if not ask(lambda: torch.distributed.is_available()):
        return {"torch.distributed": "no"}
    found = [name for name in BACKENDS if _is_true(torch.distributed, f"is_{name}_available")]
    facts = {"torch.distributed": "yes", "torch.backends": " ".join(found) or "none"}
    version = ask(lambda: torch.cuda.nccl.version()) if "nccl" in found else None
    if version:
        facts["torch.nccl"] = ".".join(map(str, version)) if isinstance(version, tuple) else str(version)
    return facts


def _is_true(thing: Any, question: str) -> bool:
    return bool(ask(lambda: getattr(thing, question)()))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
