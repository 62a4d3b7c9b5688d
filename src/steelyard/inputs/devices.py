"""The devices that runs can have at a place: this machine, an allocation, or the nodes of a site."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PlaceDevices:
    """The devices of a place."""

    place: str
    """For a person, such as `this machine`."""
    per_node: int
    nodes: int | None = 1
    """None: any number."""

    def suffice(self, devices: int) -> bool:
        """Return whether a run can have as many: some of one node, or all of several."""
        if devices <= self.per_node:
            return True
        whole = self.per_node > 0 and devices % self.per_node == 0
        return whole and (self.nodes is None or devices // self.per_node <= self.nodes)

    @property
    def text(self) -> str:
        """What the place has, as a sentence."""
        each = f"{self.per_node} {'device' if self.per_node == 1 else 'devices'}"
        if self.nodes == 1:
            return f"{self.place} has {each}"
        return f"{self.place} has {'' if self.nodes is None else f'{self.nodes} '}nodes with {each} each"
