"""Packages that runs need, and those that are missing here: known without importing any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard import plugins
from steelyard.extras import missing_modules
from steelyard.inputs.catalogue import load as catalogue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from steelyard.contracts.spec import RunSpec


def modules_of(spec: RunSpec) -> set[str]:
    """Return the modules that a run imports for its workload, its data and its evaluation."""
    if spec.device_family == "sim":
        return set()
    # Those of a workload that is not in the catalogue are unknown.
    known = catalogue()["workloads"].get(spec.workload)
    modules = {"torch", *known["needs"]} if known is not None else {"torch"}
    if spec.data is not None:
        modules |= set(plugins.load("data", spec.data.format).needs)
    return modules | ({"torchmetrics"} if spec.quality is not None else set())


def missing_packages(specs: Mapping[str, Sequence[RunSpec]]) -> dict[str, list[str]]:
    """Return the modules that are missing here, each with the parts that need it."""
    needed: dict[str, list[str]] = {}
    for part, of_part in specs.items():
        for module in sorted(set().union(*map(modules_of, of_part))):
            needed.setdefault(module, []).append(part)
    return {module: needed[module] for module in missing_modules(needed)}
