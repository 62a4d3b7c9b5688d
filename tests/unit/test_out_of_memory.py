"""The words for exhausted memory, each from a public report, and those that only look like it."""

# ruff: noqa: E501 -- messages as they were reported

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from conftest import make_spec
from steelyard.out_of_memory import SCARCE_BYTES, degree, ran_out
from steelyard.worker.engine import run

if TYPE_CHECKING:
    from steelyard.contracts.observe import Status

# Address below https://github.com/, message. Warnings of NCCL stand where torch quotes them, after "Last error:".
MEMORY = [
    ("gjy3035/NWPU-Crowd-Sample-Code/issues/27", "CUDA out of memory. Tried to allocate 38.00 MiB (GPU 0; 4.00 GiB total capacity; 3.41 GiB already allocated; 0 bytes free; 3.44 GiB reserved in total by PyTorch)"),
    ("AlphaGPU/leetgpu-challenges/issues/52", "CUDA out of memory. Tried to allocate 7.45 GiB. GPU 0 has a total capacity of 14.56 GiB of which 3.24 GiB is free. Process 1 has 11.32 GiB memory in use."),
    ("taohan10200/IIM/issues/28", "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call,so the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1."),
    ("Comfy-Org/ComfyUI/issues/12366", "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information."),
    ("junjie18/CMT/issues/15", "TensorStorage /io/include/tensorview/tensor.h 168\ncuda failed with error 2 out of memory. use CUDA_LAUNCH_BLOCKING=1 to get correct traceback."),
    ("QwenLM/Qwen3/issues/873", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ("pytorch/pytorch/issues/128601", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
    ("pytorch/pytorch/issues/20123", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    ("torch/torch7/issues/780", "Error in CuDNN: CUDNN_STATUS_ALLOC_FAILED (cudnnFindConvolutionForwardAlgorithm)"),
    ("pytorch/pytorch/issues/138002", "HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 19.98 GiB"),
    ("pytorch/pytorch/issues/175431", "HIP out of memory. Tried to allocate 2.00 MiB. GPU 7 has a total capacity of 287.98 GiB of which 203.49 GiB is free."),
    ("kokkos/kokkos/issues/8008", "hipMallocAsync failed: hipErrorOutOfMemory"),
    ("ROCm/TheRock/issues/1708", "CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`"),
    ("ROCm/MIOpen/issues/47", "MIOpen Error: /data/repo/MIOpen/src/hip/handlehip.cpp:70: Memory not available to allocate buffer: 655360000"),
    ("intel/intel-extension-for-pytorch/issues/846", "XPU out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 15.11 GiB."),
    ("Comfy-Org/ComfyUI/issues/6379", "XPU out of memory. Tried to allocate 2.00 GiB (GPU 0; 5.65 GiB total capacity; 2.07 GiB already allocated; 4.24 GiB reserved in total by PyTorch)"),
    ("intel/torch-xpu-ops/issues/5432", "level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"),
    ("intel/compute-runtime/issues/984", "zeMemAllocDevice returns ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"),
    ("NVIDIA/nccl/issues/1235", "NCCL error: unhandled cuda error\nLast error:\nFailed to CUDA calloc 6291456 bytes"),
    ("NVIDIA/TensorRT-LLM/issues/1670", "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'out of memory'"),
    ("mila-iqia/milabench/issues/301", "[Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::268435456 (256)MB"),
    ("graphcore/poptorch/issues/9", "In include/poptorch_err/ExceptionHandling.hpp:76: 'poplar_stream_memory_allocation_error': irlowering.cpp:3516 Out of memory. Single stream of length 149766584 in bufferIndex 1"),
    ("pytorch/pytorch/issues/105839", "MPS backend out of memory (MPS allocated: 1.45 GB, other allocations: 7.42 GB, max allowed: 9.07 GB). Tried to allocate 563.62 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure)."),
    ("pytorch/pytorch/issues/141909", "Invalid buffer size: 19.45 GB"),
    ("mxfold/mxfold2/issues/20", "[enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 132426121216 bytes. Error code 12 (Cannot allocate memory)"),
    ("IvanoLauriola/MKLpy/issues/27", "DefaultCPUAllocator: not enough memory: you tried to allocate 5077901088 bytes."),
    ("ROCm/MIOpen/issues/494", "std::bad_alloc"),
]  # fmt: skip
# Memory only if the device is full: the same words have other causes too.
DOUBTFUL = [
    ("OpenBMB/VisCPM/issues/3", "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    ("pytorch/pytorch/issues/81620", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"),
    ("rwth-i6/returnn/issues/1508", "GET was unable to find an engine to execute this computation"),
    ("deepakn97/relationPrediction/issues/37", "Unable to find a valid cuDNN algorithm to run convolution"),
    (
        "intel/ipex-llm/issues/9467",
        "Native API failed. Native API returns: -5 (PI_ERROR_OUT_OF_RESOURCES) -5 (PI_ERROR_OUT_OF_RESOURCES)",
    ),
    ("pytorch/pytorch/issues/190972", "level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)"),
    ("PKU-YuanGroup/Open-Sora-Plan/issues/386", "NCCL Error 1: unhandled cuda error"),
]
OTHER = [
    ("WangYueFt/dcp/issues/30", "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1.\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."),
    ("hpcaitech/Open-Sora/issues/694", "CUDA error: an illegal memory access was encountered"),
    ("ROCm/legacy-rocm-build/issues/5742", "HIP error: an illegal memory access was encountered\nSearch for `hipErrorIllegalAddress' in https://rocm.docs.amd.com/projects/HIP/en/latest/index.html for more information."),
    ("huggingface/autotrain-advanced/issues/737", "HIP error: no kernel image is available for execution on the device"),
    ("patientx/ComfyUI-Zluda/issues/284", "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    ("pytorch/pytorch/issues/118369", "[Rank 7] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=880, OpType=BROADCAST, NumelIn=131137536, NumelOut=131137536, Timeout(ms)=1800000) ran for 1800648 milliseconds before timing out."),
    ("NVIDIA/nccl/issues/1410", "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 1 'invalid argument'"),
    ("NVIDIA/nccl/issues/1935", "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 999 'unknown error'"),
    ("verl-project/verl/issues/161", "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 10"),
    ("NVIDIA/nccl-tests/issues/206", "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\nLast error:\nCall to ibv_reg_mr_iova2 failed with error Cannot allocate memory"),
    ("hiyouga/EasyR1/issues/228", "NCCL error\nLast error:\nError while creating shared memory segment /dev/shm/nccl-UmqSM9 (size 7340384)"),
    ("NVIDIA/nccl/issues/1284", "CUDA out of memory. Tried to allocate more than 1EB memory."),
    ("vllm-project/vllm/issues/12498", "out of resource: shared memory, Required: 66560, Hardware limit: 65536. Reducing block sizes or `num_stages` may help."),
    ("pytorch/pytorch/issues/108861", "DataLoader worker (pid 11011) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit."),
    ("HabanaAI/vllm-fork/issues/484", "Graph compile failed. synStatus=synStatus 26 [Generic failure]."),
    ("intel/torch-ccl/issues/75", "could not create an engine"),
    ("pytorch/pytorch/issues/177714", "level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)"),
    ("pytorch/pytorch/issues/77886", "Placeholder buffer size (14336) is not large enough to contain the Tensor storage of size 114688"),
    ("triton-inference-server/server/issues/1765", "Input type (CPUFloatType) and weight type (CUDAFloatType) should be the same"),
]  # fmt: skip


def status_of(error: Exception, free: float | None, monkeypatch: pytest.MonkeyPatch) -> Status:
    monkeypatch.setattr(run, "free_device_bytes", lambda: free)
    return run.failure(error, make_spec())


@pytest.mark.parametrize(("address", "text"), MEMORY)
def test_words_of_memory(address: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert status_of(RuntimeError(text), None, monkeypatch).code == "out_of_memory", address


@pytest.mark.parametrize(("address", "text"), OTHER)
@pytest.mark.parametrize("free", [None, 0.0, 64e9])
def test_words_of_other_faults(address: str, text: str, free: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a device whose memory is full, which that of most jobs is."""
    assert status_of(RuntimeError(text), free, monkeypatch).code == "failed", address


@pytest.mark.parametrize(("address", "text"), DOUBTFUL)
def test_the_free_memory_decides_where_words_do_not(address: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert degree(text) == "possible", address
    full = status_of(RuntimeError(text), 100e6, monkeypatch)
    assert (full.code, (full.evidence or {})["device_free_bytes"]) == ("out_of_memory", 100e6)
    assert status_of(RuntimeError(text), 8e9, monkeypatch).code == "failed"
    # A device that does not answer any more, for example after a failed assertion.
    assert status_of(RuntimeError(text), None, monkeypatch).code == "failed"


def test_a_library_that_fails_to_start_on_an_empty_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report ROCm/TheRock/issues/1708: 128 x 128 numbers on a card of 24 GB."""
    text = "CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`"
    assert status_of(RuntimeError(text), 24e9, monkeypatch).code == "failed"
    assert status_of(RuntimeError(text), float(SCARCE_BYTES - 1), monkeypatch).code == "out_of_memory"


def test_certain_words_ask_no_device() -> None:
    def ask() -> Any:
        raise AssertionError

    assert ran_out("CUDA out of memory.", ask)
    assert not ran_out("mat1 and mat2 shapes cannot be multiplied (4x8 and 4x8)", ask)


def test_an_error_of_the_program_that_only_names_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A KeyError or ValueError is not a device's; a device's library may have its own class, as Poplar does."""

    class Error(Exception):
        pass

    assert status_of(ValueError("out of memory"), None, monkeypatch).code == "failed"
    assert status_of(Error("Out of memory: Cannot fit all variable data"), None, monkeypatch).code == "out_of_memory"
    assert status_of(OSError(28, "No space left on device"), None, monkeypatch).code == "failed"
    assert status_of(OSError(12, "Cannot allocate memory"), None, monkeypatch).code == "out_of_memory"
