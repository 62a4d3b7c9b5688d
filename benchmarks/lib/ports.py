"""Ports of one's own, for servers whose ports are fixed before they start.

A port that the system chose is free again until the server binds it, and somebody else may get it meanwhile. These
blocks are below the ports that the system chooses from, and no two tests or figures on this machine have the same.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# From where the ranks of Slurm's jobs meet (launch/scripts/task.py) to below 29,500, which torchrun takes if it is told
# nothing.
FIRST_PORT, PORTS, BLOCKS = 10_000, 1000, 19


@contextlib.contextmanager
def port_block() -> Iterator[range]:
    """Take a block of free ports; it is given back at the end, also at the end of this process by a signal."""
    for number in range(BLOCKS):
        # Not always the first, where something of an earlier user may still be about to end.
        block = (os.getpid() + number) % BLOCKS
        ports = range(FIRST_PORT + PORTS * block, FIRST_PORT + PORTS * (block + 1))
        with socket.socket(socket.AF_UNIX) as held:
            try:
                # A name without a file: one for each network, as ports are, and gone with the process that has it.
                held.bind(f"\0steelyard-ports-{ports.start}")
            except OSError:
                continue
            if all(map(_is_free, ports)):
                yield ports
                return
    raise OSError(f"all {BLOCKS} blocks of ports from {FIRST_PORT} on are in use")


def _is_free(port: int) -> bool:
    with socket.socket() as tried, contextlib.suppress(OSError):
        tried.bind(("", port))
        return True
    return False
