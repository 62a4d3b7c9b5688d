"""Check that no two ranks of a node use the same device."""

from __future__ import annotations

import os
from typing import Any

from torch.distributed import distributed_c10d

from steelyard.errors import InputError
from steelyard.worker.measure.environment import node_name


def refuse_shared(identity: str | None, local_rank: int, local_world: int) -> None:
    """Raise InputError if another rank of this node has a device with this identity; None: unknown.

    Each rank leaves its identity in the store of the process group, and reads those of its own node: with many nodes a
    table of all ranks would be long. Host names may repeat, in containers for example, hence the node's number.
    """
    number = os.environ.get("GROUP_RANK", os.environ.get("SLURM_NODEID", ""))
    place = f"steelyard/device/{node_name()}/{number}"
    store: Any = distributed_c10d._get_default_store()  # noqa: SLF001 -- the group has no public access to it
    store.set(f"{place}/{local_rank}", identity or "")
    if identity is None:
        return
    others = [other for other in range(local_world) if other != local_rank]
    same = [other for other in others if store.get(f"{place}/{other}").decode() == identity]
    if same:
        ranks = ", ".join(str(each) for each in sorted([local_rank, *same]))
        raise InputError(
            f"ranks {ranks} of {node_name()} would use the same device ({identity}): each rank needs its own",
            next_step="request one device per rank, or let every rank see all devices of its node: remove "
            "CUDA_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES, and --gpu-bind or --gpus-per-task of srun",
        )
