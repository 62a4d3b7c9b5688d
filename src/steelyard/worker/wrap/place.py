"""The place of a node in its job, and where the nodes meet, as the words and variables of a program give it."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard.contracts import wrap

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HOST = "127.0.0.1"
OF_LAUNCHER = (wrap.NODES_VARIABLE, wrap.NODE_VARIABLE, wrap.FOLDER_VARIABLE)


@dataclass(frozen=True)
class NodePlace:
    """The place of a node in its job, as the launcher says it."""

    ranks: int
    """Of the whole job."""
    nodes: int
    node: int
    """From 0."""
    host: str
    port: str
    folder: str | None
    """Where the program starts; None: here."""

    @classmethod
    def read(cls, ranks: int, environ: Mapping[str, str]) -> NodePlace:
        """Read the launcher's variables; without them the job has one node."""
        return cls(
            ranks=ranks,
            nodes=int(environ.get(wrap.NODES_VARIABLE) or 1),
            node=int(environ.get(wrap.NODE_VARIABLE) or 0),
            host=environ.get(wrap.HOST_VARIABLE) or HOST,
            port=environ.get(wrap.PORT_VARIABLE) or _free_port(),
            folder=environ.get(wrap.FOLDER_VARIABLE) or None,
        )

    def values(self) -> dict[str, int | str]:
        """Return the values of the placeholders that every command may have."""
        each = max(1, self.ranks // self.nodes)
        known: tuple[int | str, ...] = (self.ranks, each, self.nodes, self.node, self.host, self.port)
        return dict(zip(wrap.PLACES, known, strict=True))

    def first_rank(self, raw: Path) -> int | None:
        """Return the first rank of this node, in whose file its events belong; None: none of it reported in."""
        if not self.node:
            return 0
        ranks = []
        with suppress(OSError), (raw / wrap.PROCESSES_PATTERN.replace("*", f"{self.node:05d}")).open("rb") as lines:
            for line in lines:
                with suppress(ValueError, AttributeError):
                    ranks.append(json.loads(line).get("rank"))
        return min((rank for rank in ranks if isinstance(rank, int)), default=None)

    def environment(self, inject: str) -> dict[str, str]:
        """Return the environment of the program: ours, our folder on its path, and its place if it has several ranks.

        torchrun takes its options from variables PET_*: `torchrun train.py` starts the ranks that the study asks for,
        on all nodes. Options of the command win.
        """
        own = {name: value for name, value in os.environ.items() if name not in OF_LAUNCHER}
        if self.folder is not None:
            # For the worker only: a program imports what is beside it.
            own.pop("PYTHONSAFEPATH", None)
        own["PYTHONPATH"] = os.pathsep.join([inject, *filter(None, [own.get("PYTHONPATH")])])
        if self.ranks > self.nodes:
            own.setdefault("PET_NPROC_PER_NODE", str(self.ranks // self.nodes))
        if self.nodes > 1:
            told = {"NNODES": str(self.nodes), "NODE_RANK": str(self.node)}
            told |= {"MASTER_ADDR": self.host, "MASTER_PORT": self.port}
            own |= {**told, **{f"PET_{name}": value for name, value in told.items()}}
            own["STEELYARD_WRAP_NODE"] = str(self.node)
        return own


def _free_port() -> str:
    """Return a port that nobody has now: the default of torchrun may be that of another run on this node."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        return str(one.getsockname()[1])
