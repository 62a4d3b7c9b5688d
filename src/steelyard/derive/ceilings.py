"""Numbers of ceilings: bandwidths of memory, copies and collectives. Knows the formulas.

A ceiling's operations a second are the model's, as derived for every workload.
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
    """What is moved a second; `rate` is that of one device, in repeats. Empty where nothing of interest is moved.

    Bandwidth is the bytes of one repeat times the repeats a second. Of a collective this is the algorithm's: message
    over time; times the factor of the collective it is what the busiest link carries.
    """
    if rate is None or model is None or model.bytes_per_sample is None:
        return {}
    bandwidth = replace(scaled(rate, model.bytes_per_sample, UNIT), scope="device")
    if model.bus_factor is None:
        return {"bandwidth_device": bandwidth}
    return {"algorithm_bandwidth": bandwidth, "bus_bandwidth": scaled(bandwidth, model.bus_factor, UNIT)}
