"""Read numbers and text from the kernel's files, with a reason if that fails."""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING

from steelyard.contracts.energy import Channel, Domain, Missing, MissingCode
from steelyard.worker.sensors.backend import ReadError, SensorsFound

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MAX_BYTES = 4096
MICRO, MILLI = 1e-6, 1e-3
# More than any counter of the kernel has.
MAX_DIGITS = 20
PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

_CODES: dict[int, MissingCode] = {
    errno.EACCES: "forbidden",
    errno.EPERM: "forbidden",
    errno.ENOENT: "vanished",
    errno.ENODEV: "vanished",
    errno.ENXIO: "vanished",
    errno.EOPNOTSUPP: "unsupported",
    errno.EINVAL: "unsupported",
}


def read_bytes(path: Path) -> bytes:
    """Return a small file; ReadError says why it cannot be read."""
    try:
        # O_NONBLOCK: a named pipe in its place must not block the sampler.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return os.read(handle, MAX_BYTES)
        finally:
            os.close(handle)
    except OSError as error:
        text = os.strerror(error.errno) if error.errno else str(error)
        raise ReadError(_CODES.get(error.errno or 0, "missing"), f"{path}: {text}") from None


def read_text(path: Path) -> str:
    """Return the text of a small file without surrounding whitespace; ReadError if it cannot be read."""
    return read_bytes(path).decode("utf-8", "replace").strip("\x00 \t\r\n")


def read_number(path: Path) -> int:
    """Return the integer in a file; ReadError if there is none."""
    text = read_text(path)
    if not re.fullmatch(r"-?[0-9]+", text, re.ASCII) or len(text) > MAX_DIGITS:
        code: MissingCode = "implausible" if text else "missing"
        raise ReadError(code, f'{path}: "{text[:40]}" is not a number' if text else f"{path} is empty")
    return int(text)


def read_micro(path: Path) -> float:
    """Return a reading in millionths as J or W; negative values are rejected."""
    number = read_number(path)
    if number < 0:
        raise ReadError("implausible", f"{path}: {number} is negative")
    return number * MICRO


def read_scaled(path: Path, factor: float) -> float:
    """Return the number in a file in another unit."""
    return read_number(path) * factor


def text_or_none(path: Path) -> str | None:
    """Return the text of an optional file."""
    try:
        return read_text(path) or None
    except ReadError:
        return None


def number_or_none(path: Path) -> int | None:
    """Return the number in an optional file."""
    try:
        return read_number(path)
    except ReadError:
        return None


def entries(folder: Path, pattern: str) -> list[Path]:
    """Return matching entries of a folder, sorted by the numbers in their names; empty if there is no folder."""
    try:
        paths = [path for path in folder.iterdir() if re.fullmatch(pattern, path.name)]
    except OSError:
        return []
    return sorted(paths, key=lambda path: [(len(part), part) for part in re.split(r"(\d+)", path.name)])


def hwmon(root: Path, names: str) -> list[Path]:
    """Return the folders of hwmon chips whose driver's name matches."""
    chips = entries(root / "sys/class/hwmon", r"hwmon\d+")
    return [chip for chip in chips if re.fullmatch(names, text_or_none(chip / "name") or "")]


def temperature(chip: Path, labels: Sequence[str | None]) -> Path | None:
    """Return the file of the first temperature of a chip with one of these labels; None is a file without a label."""
    files = entries(chip, r"temp\d+_input")
    by_label = {text_or_none(path.with_name(path.name.replace("_input", "_label"))): path for path in reversed(files)}
    return next((by_label[label] for label in labels if label in by_label), None)


def pci_address(chip: Path) -> str | None:
    """Return the PCI address of the device that a chip belongs to, or None."""
    try:
        name = (chip / "device").resolve().name
    except (OSError, RuntimeError):
        return None
    return name if PCI_ADDRESS.fullmatch(name) else None


def shown(root: Path, path: Path) -> str:
    """Return a path as the user knows it, without a test's root."""
    return "/" + str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def whose_numbers(root: Path, devices: Sequence[str], others: Sequence[str]) -> str | None:
    """Return why the job's devices are ambiguous: they are numbers, and another vendor has devices here, too.

    Many processors have AMD or Intel graphics in addition to the accelerator.
    """
    if all(device.strip()[:1].isdigit() for device in devices) and devices:
        for pattern in others:
            if any(root.glob(pattern)):
                return f"the job names its devices by number, but there is also /{pattern} of another vendor"
    return None


class FileSensors:
    """Collects channels that are files in millionths of J or W; each is test-read before it is added."""

    def __init__(self, root: Path, backend: str, fixes: dict[str, str]) -> None:
        self.root = root
        self.backend = backend
        self.fixes = fixes
        """The fix for each code of what is missing."""
        self.offered = SensorsFound(read=lambda number: read_micro(self._paths[number]))
        self._paths: list[Path] = []

    def offer(self, domain: Domain, channel: Channel, path: Path) -> bool:
        """Add the channel and its domain if its file can be read; otherwise record why not."""
        if not self.readable(path, domain.name):
            return False
        self.add(domain)
        self.offered.channels.append(channel)
        self._paths.append(path)
        return True

    def add(self, domain: Domain) -> None:
        """Add a domain, which need not have its own channel."""
        if all(domain.name != known.name for known in self.offered.domains):
            self.offered.domains.append(domain)

    def readable(self, path: Path, what: str) -> bool:
        """Whether the file can be read now; record why if not."""
        try:
            read_micro(path)
        except ReadError as error:
            # Before the first reading nothing can have vanished.
            code = "missing" if error.code == "vanished" else error.code
            reason = error.reason.replace(str(path), shown(self.root, path))
            self.miss(f"{what}: {shown(self.root, path)}", code, reason)
            return False
        return True

    def miss(self, what: str, code: str, reason: str, fix: str | None = None) -> None:
        """Record something that cannot be read."""
        fix = self.fixes.get(code, "") if fix is None else fix
        missing = Missing(backend=self.backend, what=what, code=code, reason=reason, fix=fix)  # type: ignore[arg-type]
        self.offered.missing.append(missing)
