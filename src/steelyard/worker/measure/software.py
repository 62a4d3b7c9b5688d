"""Facts on software: torch, variables that change performance.

Only variables on a list are recorded, without what looks like a secret. torch is imported only when needed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import sys
from typing import TYPE_CHECKING, Any

from steelyard.redact import MARK, looks_secret, redact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")
ACCELERATORS = ("cuda", "xpu", "npu", "hpu", "mtia")

VARIABLES = frozenset({
    "AMD_DIRECT_DISPATCH", "AMD_LOG_LEVEL", "AMD_SERIALIZE_KERNEL", "CRAY_CUDA_MPS", "CUBLASLT_LOG_LEVEL",
    "CUBLAS_WORKSPACE_CONFIG", "CUDA_AUTO_BOOST", "CUDA_BINARY_LOADER_THREAD_COUNT", "CUDA_CACHE_DISABLE",
    "CUDA_CACHE_MAXSIZE", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_ORDER", "CUDA_DISABLE_PTX_JIT",
    "CUDA_FORCE_PTX_JIT", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_DATA_LOADING", "CUDA_MODULE_LOADING",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_SCALE_LAUNCH_QUEUES",
    "CUDA_VISIBLE_DEVICES", "CUDNN_LOGINFO_DBG", "CUDNN_LOGLEVEL_DBG", "CXI_FORK_SAFE", "CXI_FORK_SAFE_HP",
    "ENABLE_CONSOLE", "EXPERIMENTAL_WEIGHT_SHARING", "EnableImplicitScaling", "FLASH_ATTENTION_DETERMINISTIC",
    "GLIBC_TUNABLES", "GLOO_DEVICE_TRANSPORT", "GLOO_SOCKET_IFNAME", "GPU_DEVICE_ORDINAL", "GPU_ENABLE_PAL",
    "GPU_MAX_ALLOC_PERCENT", "GPU_MAX_HEAP_SIZE", "GPU_MAX_HW_QUEUES", "GPU_SINGLE_ALLOC_PERCENT",
    "GRAPH_VISUALIZATION", "HABANA_LOGS", "HABANA_PROFILE", "HABANA_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES",
    "HCCL_NUM_SCALEOUT_PORTS", "HCCL_OVER_OFI", "HCCL_SOCKET_IFNAME", "HCL_CPU_AFFINITY", "HIPBLASLT_LOG_LEVEL",
    "HIPBLASLT_TUNING_FILE", "HIP_DB", "HIP_FORCE_DEV_KERNARG", "HIP_HIDDEN_FREE_MEM", "HIP_LAUNCH_BLOCKING",
    "HIP_VISIBLE_DEVICES", "HSA_CU_MASK", "HSA_ENABLE_INTERRUPT", "HSA_ENABLE_PEER_SDMA", "HSA_ENABLE_SDMA",
    "HSA_FORCE_FINE_GRAIN_PCIE", "HSA_NO_SCRATCH_RECLAIM", "HSA_OVERRIDE_GFX_VERSION", "HSA_TOOLS_LIB", "HSA_XNACK",
    "IGC_EnableDPEmulation", "IGC_ForceOCLSIMDWidth", "IPUOF_CONFIG_PATH", "IPUOF_LOG_LEVEL", "IPUOF_VIPU_API_HOST",
    "IPUOF_VIPU_API_PARTITION_ID", "IPUOF_VIPU_API_PORT", "IPUOF_VIPU_API_TIMEOUT", "JAX_PLATFORMS", "LD_BIND_NOW",
    "LD_LIBRARY_PATH", "LD_PRELOAD", "LOG_LEVEL_ALL", "MALLOC_ARENA_MAX", "MALLOC_CHECK_", "MALLOC_CONF",
    "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_PERTURB_", "MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_",
    "MV2_ENABLE_AFFINITY", "MV2_USE_CUDA", "NEOReadDebugKeys", "NUMEXPR_MAX_THREADS", "NUMEXPR_NUM_THREADS",
    "NVIDIA_BUILD_ID", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_PYTORCH_VERSION", "NVIDIA_TF32_OVERRIDE",
    "NVIDIA_VISIBLE_DEVICES", "NVPL_BLAS_NUM_THREADS", "NVPL_LAPACK_NUM_THREADS", "NVTE_FLASH_ATTN",
    "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN", "ONEAPI_DEVICE_SELECTOR", "ONEAPI_ROOT", "POPART_LOG_LEVEL",
    "POPLAR_ENGINE_OPTIONS", "POPLAR_LOG_LEVEL", "POPLAR_TARGET_OPTIONS", "POPTORCH_CACHE_DIR", "POPTORCH_IPU_MODEL",
    "POPTORCH_LOG_LEVEL", "PT_ENABLE_INT64_SUPPORT", "PT_RECIPE_CACHE_PATH", "PYTHONMALLOC", "PYTHONNOUSERSITE",
    "PYTHONOPTIMIZE", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_CUDA_FUSER_DISABLE",
    "PYTORCH_DEBUG_MPS_ALLOCATOR", "PYTORCH_ENABLE_MPS_FALLBACK", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_JIT",
    "PYTORCH_KERNEL_CACHE_PATH", "PYTORCH_MIOPEN_SUGGEST_NHWC", "PYTORCH_MPS_HIGH_WATERMARK_RATIO",
    "PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING", "PYTORCH_NVML_BASED_CUDA_CHECK",
    "ROCBLAS_INTERNAL_FP16_ALT_IMPL", "ROCBLAS_LAYER", "ROCBLAS_TENSILE_LIBPATH", "ROCR_VISIBLE_DEVICES",
    "ROC_GLOBAL_CU_MASK", "SLINGSHOT_DEVICES", "SLURM_CLUSTER_NAME", "SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_TASK",
    "SLURM_CPU_BIND", "SLURM_CPU_BIND_TYPE", "SLURM_DISTRIBUTION", "SLURM_GPUS", "SLURM_GPUS_ON_NODE",
    "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND", "SLURM_HINT", "SLURM_JOB_CPUS_PER_NODE",
    "SLURM_JOB_GPUS", "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_JOB_PARTITION",
    "SLURM_JOB_QOS", "SLURM_JOB_RESERVATION", "SLURM_MEM_BIND", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_NODE",
    "SLURM_NNODES", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_STEP_NODELIST", "SLURM_THREADS_PER_CORE",
    "SLURM_TOPOLOGY_ADDR", "SYCL_CACHE_DIR", "SYCL_CACHE_PERSISTENT", "SYCL_DEVICE_FILTER",
    "SYCL_UR_USE_LEVEL_ZERO_V2", "TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD", "TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES",
    "TCMALLOC_RELEASE_RATE", "TENSILE_DB", "TF_POPLAR_FLAGS", "TOKENIZERS_PARALLELISM",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_BLAS_PREFER_CUBLASLT", "TORCH_BLAS_PREFER_HIPBLASLT",
    "TORCH_COMPILE_DEBUG", "TORCH_COMPILE_DISABLE", "TORCH_CPP_LOG_LEVEL", "TORCH_CUDA_ARCH_LIST",
    "TORCH_CUDNN_V8_API_ENABLED", "TORCH_DISTRIBUTED_DEBUG", "TORCH_EXTENSIONS_DIR",
    "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "TORCH_FR_BUFFER_SIZE", "TORCH_HOME", "TORCH_LINALG_PREFER_CUSOLVER",
    "TORCH_LOGS", "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL", "TORCH_SHOW_CPP_STACKTRACES", "TORCH_TRACE",
    "TORCH_USE_CUDA_DSA", "TRITON_ALWAYS_COMPILE", "TRITON_CACHE_DIR", "TRITON_DISABLE_LINE_INFO",
    "TRITON_HIP_USE_BLOCK_PINGPONG", "TRITON_HOME", "TRITON_INTERPRET", "TRITON_PRINT_AUTOTUNING",
    "TRITON_PTXAS_PATH", "UR_L0_USE_COPY_ENGINE", "UR_L0_USE_IMMEDIATE_COMMANDLISTS", "VECLIB_MAXIMUM_THREADS",
    "XFORMERS_DISABLED", "XLA_FLAGS", "XLA_PYTHON_CLIENT_PREALLOCATE", "ZES_ENABLE_SYSMAN", "ZE_AFFINITY_MASK",
    "ZE_ENABLE_PCI_ID_DEVICE_ORDER", "ZE_ENABLE_TRACING_LAYER", "ZE_FLAT_DEVICE_HIERARCHY",
})  # fmt: skip
"""Variables that change performance, from the documentation of their makers."""
VARIABLE_FAMILIES = (
    "BLIS_", "CCL_", "DNNL_", "FI_", "GOMP_", "I_MPI_", "KMP_", "MIOPEN_", "MKL_", "MPICH_", "MPIR_CVAR_", "NCCL_",
    "OMP_", "OMPI_MCA_", "ONEDNN_", "OPENBLAS_", "PSM2_", "PSM3_", "PT_HPU_", "PYTORCH_TUNABLEOP_", "RCCL_",
    "SYCL_PI_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "TORCH_NCCL_", "UCC_", "UCX_",
)  # fmt: skip
"""Beginnings of names that only one library has, with more members in each release than a list can follow."""
LONGEST_PART = 20


def variable_facts(variables: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that change performance, under `env.`. What looks like a secret is redacted."""
    facts = {}
    for name in sorted(variables):
        value = variables[name]
        if name in VARIABLES:
            facts[f"env.{name}"] = redact(value)[0]
        elif name.startswith(VARIABLE_FAMILIES) and name.isidentifier() and not redact(name)[1]:
            facts[f"env.{name}"] = MARK if looks_secret(name, value) or _is_odd(value) else value
    return facts


def _is_odd(value: str) -> bool:
    """Whether a value has a long part of letters and digits, which no setting has but a mask of CPUs (0x...)."""
    parts = (part for part in re.split("[^A-Za-z0-9]+", value) if len(part) >= LONGEST_PART)
    return any(not part.isdigit() and not part.isalpha() and part[:2] != "0x" for part in parts)


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
    return kind == "cpu" or _is_true(getattr(torch, kind, None), "is_available")


def free_device_bytes() -> float | None:
    """Return the free memory of the current accelerator; None: no torch is loaded, or the device does not answer."""
    torch: Any = sys.modules.get("torch")
    free: float | None = ask(lambda: float(getattr(torch, accelerator_name(torch) or "cpu").mem_get_info()[0]))
    return free


def ask(question: Callable[[], Any]) -> Any:
    """Return the answer, or None on any error: builds without a feature fail in many ways."""
    try:
        return question()
    except Exception:  # noqa: BLE001 -- an unavailable fact must not end a run
        return None


def _distributed(torch: Any) -> dict[str, str]:
    if not ask(lambda: torch.distributed.is_available()):
        return {"torch.distributed": "no"}
    backends = [name for name in BACKENDS if _is_true(torch.distributed, f"is_{name}_available")]
    facts = {"torch.distributed": "yes", "torch.backends": " ".join(backends) or "none"}
    version = ask(lambda: torch.cuda.nccl.version()) if "nccl" in backends else None
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
