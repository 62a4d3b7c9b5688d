"""`python -P -m steelyard.worker.probe`: print what torch is and can do here, as one JSON object.

Started by `steelyard doctor`, which must not import torch itself. Exits with 0 even if torch is missing or broken,
because that is its result.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import re
import signal
import sys
import time
import traceback
import warnings
from typing import Any

from steelyard.worker.measure.software import ACCELERATORS, ask, available, torch_facts

# The caller gives up earlier; this is for the case that it has died.
LIMIT_S = 180
SIZE = 256
MAX_TEXT = 2000

# Patterns of import errors with their cause and fix; the first match counts.
MEANINGS = (
    (
        r"No module named 'torch'",
        "torch is not installed for this Python",
        "pip install torch, or start steelyard with the Python that has it",
    ),
    (
        r"wrong ELF class|invalid ELF header|Exec format error",
        "torch was built for another architecture than this machine",
        "pip uninstall torch, then pip install torch on this machine",
    ),
    (
        r"No module named 'torch\._C'",
        "torch's compiled part is for another Python version or architecture",
        "pip install --force-reinstall torch with this Python on this machine",
    ),
    (
        r"version `(GLIBC_[\d.]+)' not found",
        "torch needs a newer C library (glibc) than this system has",
        "use a container, or an older torch",
    ),
    (
        r"version `(GLIBCXX|CXXABI)_[\d.]+' not found",
        "an older libstdc++ is found before the one that torch needs",
        "put a newer libstdc++ first in LD_LIBRARY_PATH (module load gcc, or conda's lib folder)",
    ),
    (
        r"static TLS block",
        "a library that uses static thread-local storage was loaded too late",
        "set LD_PRELOAD to the library that the message names",
    ),
    (
        r"undefined symbol",
        "libraries of different installations are mixed",
        "unset LD_LIBRARY_PATH and LD_PRELOAD and try again; else install torch into a fresh environment",
    ),
    (
        r"(\S+\.so\S*): cannot open shared object file",
        "a library that torch needs is missing",
        "install it, or add its folder to LD_LIBRARY_PATH (module load, or pip install --force-reinstall torch)",
    ),
    (
        r"numpy|_ARRAY_API",
        "torch and numpy are not compatible",
        "pip install 'numpy<2' with torch 2.2 or older, else pip install --upgrade numpy torch",
    ),
    (
        r"partially initialized module|has no attribute",
        "another module is named torch, or the installation is incomplete",
        "pip install --force-reinstall torch in a fresh environment",
    ),
)


def meaning(text: str) -> tuple[str, str]:
    """Return the cause of an import error and its fix."""
    for pattern, cause, fix in MEANINGS:
        if re.search(pattern, text):
            return cause, fix
    return "torch is installed but cannot be imported", "run: python -c 'import torch'"


def probe() -> dict[str, Any]:
    """Return what was found. Errors of torch are part of the result, never raised."""
    answer: dict[str, Any] = {"python": platform.python_version(), "facts": {}, "error": None, "devices": []}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        begin_s = time.monotonic()
        try:
            torch: Any = importlib.import_module("torch")
            answer["import_s"] = time.monotonic() - begin_s
            answer["facts"] = torch_facts()
            answer["devices"] = [_device(torch, "cpu", 0)]
            for family in ACCELERATORS:
                if available(torch, family):
                    count = ask(getattr(getattr(torch, family), "device_count", int))
                    answer["devices"] += [_device(torch, family, index) for index in range(count or 1)]
            answer["unavailable"] = _why_not(torch)
        except (Exception, SystemExit) as error:  # noqa: BLE001 -- a broken torch is a result
            traceback.print_exc()
            text = f"{type(error).__name__}: {error}"[:MAX_TEXT]
            cause, fix = meaning(text)
            answer["error"] = {"text": text, "meaning": cause, "fix": fix}
    answer["warnings"] = list(dict.fromkeys(str(warning.message)[:MAX_TEXT] for warning in caught))[:20]
    return answer


def _device(torch: Any, family: str, index: int) -> dict[str, Any]:
    """Return name and memory of a device, and the error of a small matrix product on it, if any."""
    name, properties = platform.machine(), None
    if family != "cpu":
        library = getattr(torch, family)
        properties = ask(lambda: library.get_device_properties(index))
        name = str(getattr(properties, "name", None) or ask(lambda: library.get_device_name(index)) or family)
    # The spelling of torch's list of architectures: gfx90a for AMD, sm_90 for NVIDIA.
    architecture = None
    major, minor = getattr(properties, "major", None), getattr(properties, "minor", None)
    if gcn := getattr(properties, "gcnArchName", None):
        architecture = str(gcn).partition(":")[0]
    elif major is not None and minor is not None:
        architecture = f"sm_{major}{minor}"
    return {
        "family": family,
        "index": index,
        "name": name,
        "memory_bytes": getattr(properties, "total_memory", None),
        "architecture": architecture,
        "fault": _fault(torch, "cpu" if family == "cpu" else f"{family}:{index}"),
    }


def _fault(torch: Any, device: str) -> str | None:
    """Return the error of a matrix product with a known result, or None."""
    try:
        ones = torch.ones((SIZE, SIZE), device=device)
        total = float((ones @ ones).sum().item())
    except Exception as error:  # noqa: BLE001 -- any error of the device is the result
        return f"{type(error).__name__}: {error}"[:MAX_TEXT]
    return None if total == SIZE**3 else f"a matrix product gave {total:g} instead of {SIZE**3}"


def _why_not(torch: Any) -> str | None:
    """Return torch's message on why the accelerator it was built for cannot be used, or None if it can."""
    family = "cuda" if torch.version.cuda or torch.version.hip else "xpu" if ask(lambda: torch.version.xpu) else None
    if family is None or ask(getattr(torch, family).is_available):
        return None
    try:
        getattr(torch, family).init()
    except Exception as error:  # noqa: BLE001 -- the error is the result
        return str(error)[:MAX_TEXT]
    return None


def main() -> int:
    """Print the result. What torch itself prints goes to standard error."""
    signal.alarm(LIMIT_S)
    own = os.dup(1)
    os.dup2(2, 1)
    text = json.dumps(probe())
    with os.fdopen(own, "w", encoding="utf-8") as output:
        print(text, file=output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
