"""Choose the domains of a node whose joules add up to the job's, each joule once.

A parent domain includes the joules of its children: a module is never added to its own device, and a card counts once
for its dies.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from steelyard.contracts.energy import Domain

ACCELERATORS = ("die", "device")
HOSTS = ("cpu", "memory", "io")
MAX_DEPTH = 16


@dataclass
class Cover:
    """The domains that are counted on one node."""

    counted: list[str] = field(default_factory=list)
    """The counted domains; none contains another."""
    unread: list[str] = field(default_factory=list)
    """Accelerators of the job that no readable domain contains."""
    hosts: list[str] = field(default_factory=list)
    """Host domains that no counted or other host domain contains."""


class Tree:
    """The domains of one node as a tree; parents that do not exist or would close a cycle are ignored."""

    def __init__(self, domains: Mapping[str, Domain]) -> None:
        self.domains = domains
        self._parents = {name: domain.parent for name, domain in domains.items() if domain.parent in domains}
        # Domains that contain themselves, directly or through others.
        rings = [name for name in self._parents if name in self.above(name)]
        self._parents = {name: parent for name, parent in self._parents.items() if name not in rings}
        self.children: defaultdict[str, list[str]] = defaultdict(list)
        for name in domains:
            for parent in self.above(name):
                self.children[parent].append(name)
                break

    def above(self, name: str) -> list[str]:
        """Return the domains that contain this one, the smallest first."""
        larger: list[str] = []
        parent = self._parents.get(name)
        while parent is not None and len(larger) < MAX_DEPTH:
            larger.append(parent)
            parent = self._parents.get(parent)
        return larger

    def inside(self, name: str, others: Collection[str]) -> bool:
        """Return whether one of the others is this domain or contains it."""
        return name in others or any(parent in others for parent in self.above(name))


def cover(domains: Mapping[str, Domain], readable: Collection[str], *, on_cpu: bool) -> Cover:
    """Choose the readable domains that contain the job's accelerators, or its CPUs if these do the work."""
    tree = Tree(domains)
    hosts = _top(tree, (name for name, domain in domains.items() if domain.scope in HOSTS and name in readable))
    if on_cpu:
        return Cover(counted=hosts)
    covered = Cover()
    for unit in _units(tree):
        if not _count(tree, unit, readable, covered.counted):
            covered.unread.append(unit)
    # A domain is dropped if a larger one that contains it had to be counted for its neighbour.
    covered.counted = _top(tree, dict.fromkeys(covered.counted))
    covered.unread = [unit for unit in covered.unread if not tree.inside(unit, covered.counted)]
    covered.hosts = [name for name in hosts if not tree.inside(name, covered.counted)]
    return covered


def _units(tree: Tree) -> list[str]:
    """Return the job's accelerators as the scheduler allocates them; modules if their content is unknown."""
    for scopes in (ACCELERATORS, ("module",)):
        units = [name for name, domain in tree.domains.items() if domain.scope in scopes]
        # Where ranks are known, domains without ranks belong to other jobs.
        own = [name for name in units if tree.domains[name].ranks]
        if units:
            return _top(tree, own or units)
    return []


def _count(tree: Tree, unit: str, readable: Collection[str], counted: list[str]) -> bool:
    """Count one accelerator: itself, else all its dies, else the smallest domain that contains it."""
    if unit in readable:
        counted.append(unit)
        return True
    dies = [name for name in tree.children[unit] if tree.domains[name].scope == "die"]
    if dies and all(name in readable for name in dies):
        counted += dies
        return True
    holder = next((name for name in tree.above(unit) if name in readable), None)
    if holder is not None:
        counted.append(holder)
    return holder is not None


def _top(tree: Tree, names: Iterable[str]) -> list[str]:
    """Return the domains that none of the others contains."""
    chosen = list(names)
    known = set(chosen)
    return [name for name in chosen if not any(parent in known for parent in tree.above(name))]
