"""Bandwidths of ceiling workloads: memory, copies and collectives.

The operations per second of a ceiling are the model FLOPs, derived for every workload.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from steelyard.derive.tokens import scaled

if TYPE_CHECKING:
    from steelyard.contracts.observe import ModelFacts
    from steelyard.contracts.record import Quantity

UNIT = "B/s"


def ceiling_quantities(rate: Quantity | None, model: ModelFacts | None) -> dict[str, Quantity]:
    """Return bandwidths; `rate` is the rate of one device in repeats. Empty if the workload moves no bytes of interest.

    Bandwidth is the bytes of one repeat times the repeats per second. For a collective this is the algorithm bandwidth:
    message over time; times the factor of the collective it is the bandwidth of the busiest link.
    """
    if rate is None or model is None or model.bytes_per_sample is None:
        return {}
    bandwidth = replace(scaled(rate, model.bytes_per_sample, UNIT), scope="device")
    if model.bus_factor is None:
        return {"bandwidth_device": bandwidth}
    return {"algorithm_bandwidth": bandwidth, "bus_bandwidth": scaled(bandwidth, model.bus_factor, UNIT)}
