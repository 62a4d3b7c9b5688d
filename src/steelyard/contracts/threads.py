"""The number of CPU threads per rank, if nobody has set it.

On CPUs the threads of a rank are its device. A study of 1 and 2 ranks compares devices only if a rank has as many
threads alone as beside another one: the CPUs of a node are divided by the most ranks that a run of the study has there.
On accelerators they are divided by the accelerators of the node, also for a single rank.

A launcher passes on what it knows (`variables`); the number is found on the node, by the rank itself (`share`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard import hostinfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

OMP = "OMP_NUM_THREADS"
SHARE = "STEELYARD_CPU_SHARE"
"""CPUS/RANKS: these CPUs of the node, or all that a rank may use, belong to this many ranks. Empty: threads are set."""


def variables(threads: int | None, ranks: int, given: Mapping[str, str], cpus: int | None = None) -> dict[str, str]:
    """Return the variables of a rank. `given`: variables of the user, whose OMP_NUM_THREADS counts.

    `devices`: how many share the CPUs of a node; `cpus`: those CPUs, if it is not all that a rank may use.
    """
    if threads is not None:
        return {OMP: str(threads), SHARE: ""}
    # That of a run of ours in which we are is not the user's.
    if given.get(OMP) and not given.get(SHARE):
        return {}
    # torchrun would set it to 1 as well, and print a warning on every start.
    return {OMP: "1", SHARE: f"{cpus or ''}/{ranks}"}


def share(accelerators: int = 0, *, usable: Set[int] | None = None, root: Path = Path("/")) -> int | None:
    """Return the threads of this rank; None: they are set. `accelerators`: those that it sees."""
    word = os.environ.get(SHARE)
    if not word:
        return None
    given, _, ranks = word.partition("/")
    usable = os.sched_getaffinity(0) if usable is None else usable
    quota = hostinfo.cpu_quota(hostinfo.control_groups("cpu", root))
    allowed = len(usable) if quota is None else max(1, min(len(usable), int(quota)))
    own = min(allowed, (int(given) if given else allowed) // max(int(ranks), accelerators, 1))
    # A second thread on a core does not compute faster, which is why torch counts cores too.
    return max(1, own * hostinfo.cores(usable, root / "sys") // len(usable))


def settle() -> None:
    """Set the variable for libraries that are not loaded yet."""
    if (own := share()) is not None:
        os.environ[OMP] = str(own)
