"""Results of a node in a form that can be sent to others: without names of hosts, users and devices."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MIN_SECRET = 3
MAX_FACT = 200
# Facts that may be shared: what a device's behaviour depends on, and nothing that identifies the place.
SHARED_FACTS = re.compile(
    r"(system\.(kernel|architecture)|cpu\.model|torch\.(version|cuda|hip|xpu|nccl)|.*driver.*|device\.name)"
)
# What error messages may hold of a place or a single device.
_PRIVATE = {
    re.compile(r"\b(GPU-|MIG-)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE): "(id)",
    re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", re.IGNORECASE): "(address)",
    re.compile(r"\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b"): "(address)",
    re.compile(r"(?<![\w/.])/([\w.+@-]+/)*[\w.+@-]+"): "(path)",
    re.compile(r"\b(0x[0-9a-f]{6,}|\d{9,})\b", re.IGNORECASE): "(number)",
}


def shared_facts(facts: Mapping[str, str]) -> dict[str, str]:
    """Return the facts that may be shared."""
    return {key: text[:MAX_FACT] for key, text in sorted(facts.items()) if SHARED_FACTS.fullmatch(key)}


def names_here(nodes: Iterable[str] = ()) -> dict[str, str]:
    """Return the names of this host, its user and these nodes, each with its replacement."""
    hosts = {socket.gethostname(), socket.getfqdn(), os.uname().nodename, *nodes}
    hosts |= {host.partition(".")[0] for host in hosts}
    with contextlib.suppress(OSError, KeyError):
        hosts.add(getpass.getuser())
    hosts -= {"localhost", "root"}
    # Long names first: one may be part of another.
    names = dict.fromkeys(sorted((host for host in hosts if len(host) >= MIN_SECRET), key=len, reverse=True), "(host)")
    return {str(Path.home()): "~"} | names


def without_names(data: Any, names: Mapping[str, str], *, private: bool = False) -> Any:
    """Return JSON data without these names; `private`: also without paths, addresses and ids, as errors have them."""
    if isinstance(data, dict):
        return {
            without_names(key, names, private=private): without_names(value, names, private=private)
            for key, value in data.items()
        }
    if isinstance(data, list | tuple):
        return [without_names(entry, names, private=private) for entry in data]
    if isinstance(data, str):
        for name, instead in names.items():
            # As a whole word: a host name may be part of a common word.
            data = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", instead, data)
        for pattern, instead in _PRIVATE.items() if private else ():
            data = pattern.sub(instead, data)
    return data
