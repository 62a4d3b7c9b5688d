"""NVIDIA's library through nvidia-ml-py, imported only when asked: calls, fields with a scope, errors as reasons.

Knows how a call is made and what its failure means; knows no card and no channel.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from dataclasses import replace
from typing import Any

from steelyard.contracts.energy import Missing, MissingCode
from steelyard.worker.sensors.backend import ReadError

BACKEND = "nvml"
# The numbers of nvml.h, for bindings too old to name them.
AVERAGE, INSTANT, CURRENT_LIMIT, ENERGY = 185, 186, 190, 191
GPU_SCOPE, MODULE_SCOPE = 0, 1
VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")

# What NVML's return codes mean for a reading. All others: something is wrong, and nothing more is known.
CODES: dict[int, MissingCode] = {
    **dict.fromkeys((2, 3, 13, 21, 25, 26), "unsupported"),  # argument, not supported, no function, no data, version
    **dict.fromkeys((4, 17), "forbidden"),  # no permission; the operating system has blocked it
    **dict.fromkeys((1, 6, 15, 16, 28), "vanished"),  # uninitialised, not found, lost, reset required
    **dict.fromkeys((10, 19, 27), "blocked"),  # timeout, in use, not ready
}
WORDS: dict[str, str] = {
    "unsupported": "this device or its driver does not give it",
    "forbidden": "this user may not read it",
    "vanished": "the device does not answer any more",
    "blocked": "the driver gave no answer in time",
    "missing": "the driver failed",
}
FIXES = {
    "forbidden": "ask the site to let users read it; in a container, pass the device in",
    "vanished": "the kernel's log (dmesg, Xid) says what happened to the device",
}
NO_LIBRARY, NO_DRIVER, MISMATCH = 12, 9, 18
INIT_FIXES = {
    NO_LIBRARY: "in a container, let the runtime bring the driver's library in (--nv, --gpus all); else install it",
    NO_DRIVER: "load the kernel module: nvidia-smi says what is wrong with it",
    MISMATCH: "the driver was updated under a running kernel: restart the node",
}


def binding() -> Any:
    """The package, or None. An older one of the same name warns when it is imported; that is no matter here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module("pynvml")
        except ImportError:
            return None


class Session:
    """The opened library. Each method is one call, holds nothing between calls, and fails with a ReadError."""

    def __init__(self, package: Any) -> None:
        self._package = package

    def call(self, name: str, *arguments: Any) -> Any:
        """One call by its name."""
        function = getattr(self._package, name, None)
        if function is None:
            raise ReadError("unsupported", f"this nvidia-ml-py is too old: it has no {name}")
        try:
            return function(*arguments)
        except self._package.NVMLError as error:
            raise failure(error, name) from None

    def try_call(self, name: str, *arguments: Any) -> Any:
        """As `call`; None where it fails."""
        with contextlib.suppress(ReadError):
            return self.call(name, *arguments)
        return None

    def field(self, handle: Any, field: int, scope: int) -> float:
        """A field with its scope said: the number as NVML gives it, in mW or mJ."""
        try:
            value = self.call("nvmlDeviceGetFieldValues", handle, [(field, scope)])[0]
        except TypeError:
            raise ReadError("unsupported", "this nvidia-ml-py is too old: it cannot say a scope") from None
        if value.nvmlReturn:
            raise failure(self._package.NVMLError(value.nvmlReturn), f"field {field}, {('GPU', 'module')[scope]}")
        if value.valueType >= len(VALUES):
            raise ReadError("unsupported", f"field {field} has a type that is not known here: {value.valueType}")
        return float(getattr(value.value, VALUES[value.valueType]))

    def try_field(self, handle: Any, field: int, scope: int) -> float | None:
        """As `field`; None where it fails or says nothing but zero."""
        with contextlib.suppress(ReadError):
            return self.field(handle, field, scope) or None
        return None

    def milli(self, name: str, handle: Any) -> float:
        """A call that answers in thousandths, in whole ones."""
        return float(self.call(name, handle)) / 1000

    def close(self) -> None:
        """Give the library back; it may be gone already."""
        self.try_call("nvmlShutdown")


def failure(error: Any, what: str) -> ReadError:
    """An error of the library as one of ours, with what was asked."""
    code = CODES.get(error.value, "missing")
    return ReadError(code, f"{WORDS[code]} ({what}: {error})")


def init_failure(error: Any) -> Missing:
    """Why the library cannot be opened."""
    code = "missing" if error.value in INIT_FIXES else CODES.get(error.value, "missing")
    reason = f"the library cannot be opened (nvmlInit: {error})"
    return replace(missing("all GPUs", code, reason, INIT_FIXES.get(error.value, "")), broken=True)


def missing(what: str, code: str, reason: str, fix: str = "") -> Missing:
    """A Missing of this backend; the fix is the code's usual one where none is given."""
    known: MissingCode = next((one for one in (*CODES.values(), "implausible") if one == code), "missing")
    return Missing(backend=BACKEND, what=what, code=known, reason=reason, fix=fix or FIXES.get(code, ""))


def text(value: Any) -> str:
    """Old bindings give bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
