"""Access to NVML through nvidia-ml-py, imported only when needed: calls, fields with a scope, errors as reasons."""

from __future__ import annotations

import contextlib
import importlib
import warnings
from dataclasses import replace
from typing import Any

from steelyard.contracts.energy import Missing, MissingCode
from steelyard.worker.sensors.backend import ReadError

BACKEND = "nvml"
# Numbers from nvml.h, for bindings too old to name them.
AVERAGE, INSTANT, CURRENT_LIMIT, ENERGY = 185, 186, 190, 191
GPU_SCOPE, MODULE_SCOPE = 0, 1
VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")

# Meaning of NVML's return codes for a reading. All others are a failure of unknown cause.
CODES: dict[int, MissingCode] = {
    **dict.fromkeys((2, 3, 13, 21, 25, 26), "unsupported"),  # argument, not supported, no function, no data, version
    **dict.fromkeys((4, 17), "forbidden"),  # no permission; the operating system has blocked it
    **dict.fromkeys((1, 6, 15, 16, 28), "vanished"),  # uninitialised, not found, lost, reset required
    **dict.fromkeys((10, 19, 27), "blocked"),  # timeout, in use, not ready
}
REASONS: dict[str, str] = {
    "unsupported": "not supported by this device or its driver",
    "forbidden": "no permission to read it",
    "vanished": "the device no longer answers",
    "blocked": "the driver did not answer in time",
    "missing": "the driver failed",
}
FIXES = {
    "forbidden": "ask your site for read access; in a container, pass the device in",
    "vanished": "look for Xid errors in the kernel log: dmesg",
}
NO_LIBRARY, NO_DRIVER, MISMATCH = 12, 9, 18
INIT_FIXES = {
    NO_LIBRARY: "in a container, start it with --nv or --gpus all; otherwise install the NVIDIA driver",
    NO_DRIVER: "load the kernel module; nvidia-smi shows the error",
    MISMATCH: "the driver was updated while the old one is loaded: restart the node",
}


def binding() -> Any:
    """Return the package, or None. An older one with the same name warns when imported, which does not matter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module("pynvml")
        except ImportError:
            return None


class Session:
    """The opened library. Each method is one call, keeps no state, and raises ReadError on failure."""

    def __init__(self, package: Any) -> None:
        self._package = package

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function by name."""
        function = getattr(self._package, name, None)
        if function is None:
            raise ReadError("unsupported", f"this nvidia-ml-py is too old: it has no {name}")
        try:
            return function(*arguments)
        except self._package.NVMLError as error:
            raise failure(error, name) from None

    def try_call(self, name: str, *arguments: Any) -> Any:
        """Like `call`, but return None on failure."""
        with contextlib.suppress(ReadError):
            return self.call(name, *arguments)
        return None

    def field(self, handle: Any, field: int, scope: int) -> float:
        """Return the value of a field with a scope, in mW or mJ."""
        try:
            value = self.call("nvmlDeviceGetFieldValues", handle, [(field, scope)])[0]
        except TypeError:
            raise ReadError("unsupported", "this nvidia-ml-py is too old: it has no fields with a scope") from None
        if value.nvmlReturn:
            raise failure(self._package.NVMLError(value.nvmlReturn), f"field {field}, {('GPU', 'module')[scope]}")
        if value.valueType >= len(VALUES):
            raise ReadError("unsupported", f"field {field} has the unknown type {value.valueType}")
        return float(getattr(value.value, VALUES[value.valueType]))

    def try_field(self, handle: Any, field: int, scope: int) -> float | None:
        """Like `field`, but return None on failure or for zero."""
        with contextlib.suppress(ReadError):
            return self.field(handle, field, scope) or None
        return None

    def milli(self, name: str, handle: Any) -> float:
        """Return the result of a call that answers in mW or mJ, in W or J."""
        return float(self.call(name, handle)) / 1000

    def close(self) -> None:
        """Shut the library down; it may be down already."""
        self.try_call("nvmlShutdown")


def failure(error: Any, what: str) -> ReadError:
    """Return an error of the library as a ReadError, with the name of the call."""
    code = CODES.get(error.value, "missing")
    return ReadError(code, f"{REASONS[code]} ({what}: {error})")


def init_failure(error: Any) -> Missing:
    """Return why the library cannot be opened."""
    code = "missing" if error.value in INIT_FIXES else CODES.get(error.value, "missing")
    reason = f"the library cannot be opened (nvmlInit: {error})"
    return replace(missing("all GPUs", code, reason, INIT_FIXES.get(error.value, "")), broken=True)


def missing(what: str, code: str, reason: str, fix: str = "") -> Missing:
    """Return a Missing of this backend, with the usual fix of its code if none is given."""
    known: MissingCode = next((one for one in (*CODES.values(), "implausible") if one == code), "missing")
    return Missing(backend=BACKEND, what=what, code=known, reason=reason, fix=fix or FIXES.get(code, ""))


def text(value: Any) -> str:
    """Return a str; old bindings return bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
