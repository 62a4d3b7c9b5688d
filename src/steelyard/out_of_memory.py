"""Whether an error means that memory ran out, in the words of torch, its libraries and the drivers.

Used by the worker for errors that it catches, and by the front side for the end of a log. The words are those of public
reports, which are in `tests/unit/test_out_of_memory.py` with their addresses.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

Degree = Literal["certain", "likely", "possible", "no"]

# A size that no device has is a fault in the program; a full /dev/shm and the limit of locked memory (`ulimit -l`) are
# settings of the node; the shared memory of a kernel is a part of the chip. A smaller batch does not help.
_OTHER = re.compile(
    r"more than 1EB memory|out of shared memory|shared memory segment|shared memory, Required"
    r"|(ibv_\w+|fi_mr_reg)\b[^\n]{0,200}Cannot allocate memory",
    re.IGNORECASE,
)
_CERTAIN = re.compile(
    # torch on every device, CUDA, HIP, NCCL's last error, Poplar, and drivers in their own spelling.
    r"out[ _]of[ _]((device|host|gpu|system)[ _])?memory|OutOfMemory|cudaErrorMemoryAllocation"
    # The host: torch's allocator, the C++ library and the C library.
    r"|can't allocate memory|not enough memory|bad_alloc|Cannot allocate memory"
    # Python, numpy.
    r"|\b_?(Array)?MemoryError\b"
    # MIOpen, Gaudi, Poplar, Metal.
    r"|Memory not available to allocate buffer|PT_DEVMEM Allocation failed|memory_allocation_error"
    r"|Invalid buffer size: [\d.]+ [KMGT]i?B",
    re.IGNORECASE,
)
# The library says that an allocation failed. Some say so for other faults when they start.
_LIKELY = re.compile(
    r"_STATUS_(INTERNAL_ERROR_\w{1,40}_)?ALLOC(ATION)?_FAILED|CUFFT_ALLOC_FAILED|miopenStatusAllocFailed"
    r"|rocblas_status_memory_error|Failed to CUDA (host )?(malloc|calloc|alloc)"
)
# The library fails without a reason. Often it found no room for its own workspace or kernels.
_POSSIBLE = re.compile(
    r"(CUBLAS|HIPBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_(NOT_INITIALIZED|INTERNAL_ERROR)\b"
    r"|unable to find (an engine to execute|a valid cuDNN algorithm)|ncclUnhandledCudaError|unhandled cuda error"
    r"|(UR_RESULT|ZE_RESULT|PI)_ERROR_OUT_OF_RESOURCES\b",
    re.IGNORECASE,
)
SCARCE_BYTES = 512 << 20
"""Libraries load their kernels when they are first used; those of cuDNN 8 need about 500 MB of the device."""


def degree(text: str) -> Degree:
    """Return how certain it is that a message is about memory."""
    if _OTHER.search(text):
        return "no"
    if _CERTAIN.search(text):
        return "certain"
    if _LIKELY.search(text):
        return "likely"
    # NCCL names its last error. If there is one, it is the cause.
    _, named, cause = text.partition("Last error:")
    doubtful = _POSSIBLE.search(text) and not (named and cause.strip())
    return "possible" if doubtful else "no"


def ran_out(text: str, free_bytes: Callable[[], float | None]) -> bool:
    """Return whether memory ran out. `free_bytes`, the device's free memory, is asked only if the words leave a doubt.

    torch keeps the memory it got from the driver, so after a failure the device is as full as it was then.
    """
    verdict = degree(text)
    if verdict in ("certain", "no"):
        return verdict == "certain"
    free = free_bytes()
    return verdict == "likely" if free is None else free < SCARCE_BYTES
