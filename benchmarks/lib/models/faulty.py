"""A small model that fails in the middle of its steps, as set in the environment; only for the figures.

FAULT is the fault, FAULT_RANK its rank, and FAULTS the folder in which each rank records the time of it. Without FAULT
it trains normally.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

FAULT = os.environ.get("FAULT", "")
HERE = os.environ.get("RANK", "0") == os.environ.get("FAULT_RANK", "0")
AFTER_STEPS = 10
# Floats per sample inside the model: 65,536 samples are 16 GiB.
WIDTH = 1 << 16
MANY_SAMPLES = 1 << 12


def leave_stamp() -> None:
    """Record the time of the fault on the clock that all processes share, atomically."""
    folder, rank = Path(os.environ["FAULTS"]), os.environ.get("RANK", "0")
    beside = folder / f".{rank}"
    beside.write_text(f"{time.monotonic()} {os.getpid()}", encoding="ascii")
    beside.replace(folder / f"stamp_{rank}")


if FAULT == "import":
    leave_stamp()
    import steelyard_has_no_such_module  # type: ignore[import-not-found] # noqa: F401


def go_wrong() -> None:
    """The fault itself."""
    if FAULT == "fill":
        fill(Path(os.environ["FAULT_DISK"]) / "filler")
    leave_stamp()
    if FAULT == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
    if FAULT == "terminate_parent":
        os.kill(os.getppid(), signal.SIGTERM)
    if FAULT == "kill_parent":
        os.kill(os.getppid(), signal.SIGKILL)
    if FAULT == "exit":
        sys.exit(3)
    if FAULT == "hold":
        hold()
    if FAULT != "fill":
        time.sleep(100_000)


def hold() -> None:
    """Wait for ever in a call that keeps the interpreter lock, like those through PyDLL, and that no signal ends."""
    mutex = ctypes.create_string_buffer(256)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


class Net(nn.Module):
    """One layer that needs much memory."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 10)
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of a batch of vectors."""
        if self.training and x.device.type != "meta" and not torch.compiler.is_compiling():
            self.steps += 1
            if FAULT and HERE and self.steps == AFTER_STEPS:
                go_wrong()
            if len(x) >= MANY_SAMPLES and not FAULT:
                leave_stamp()
        wide = x.repeat(1, WIDTH // 8)
        return self.layer(x) + wide.mean()  # type: ignore[no-any-return]


def batch(samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Random vectors and classes."""
    return torch.randn(samples, 8, generator=generator), torch.randint(10, (samples,), generator=generator)


def optimizer(parameters):  # type: ignore[no-untyped-def]
    """Without a state."""
    return torch.optim.SGD(parameters, lr=1e-3)


def build():  # type: ignore[no-untyped-def]
    """Entry point for steelyard."""
    if FAULT == "build":
        leave_stamp()
        nn.Linear(8, -1)
    return Net(), nn.functional.cross_entropy, optimizer, batch
