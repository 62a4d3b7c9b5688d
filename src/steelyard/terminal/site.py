"""A site as lines for a terminal: what its file says, and what was found wrong with it. Knows words, judges nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.terminal.drawing import duration
from steelyard.terminal.text import table, wrapped

if TYPE_CHECKING:
    from steelyard.doctor.node import Check
    from steelyard.inputs.site import Pool, Site

WIDEST = 16
NAME, CHECK_NAME = 14, 18


def site_lines(site: Site) -> list[str]:
    """What a site file says, most of it as one table of its pools."""
    lines = wrapped(f"{site.name}: {site.description or site.scheduler}")
    lines += ["", *table(POOL_COLUMNS, [_pool_row(site, name, pool) for name, pool in site.pools.items()]).splitlines()]
    facts = {
        "scheduler": site.scheduler,
        "container": _container(site),
        "python": site.python
        or ("the one that runs steelyard" if _container(site) == "none" else "python3 of the image"),
        "modules": ", ".join(site.modules.load),
        "environment": ", ".join(f"{name}={value}" for name, value in site.environment.items()),
        "meeting host": site.meeting_host or "",
        "charge": _charge(site),
        "limits": _limits(site),
        "cluster": f"namespace {site.cluster.namespace}" if site.scheduler == "kubernetes" else "",
    }
    lines.append("")
    for name, text in facts.items():
        if text:
            lines += wrapped(f"{name:<{NAME}}{text}", deeper=" " * NAME)
    return lines


POOL_COLUMNS = ["pool", "nodes", "devices", "asked as", "where", "most nodes", "most time"]


def _pool_row(site: Site, name: str, pool: Pool) -> list[str]:
    asked = pool.resource if site.scheduler == "kubernetes" else pool.gpus
    where = next(iter(pool.node_selector.values()), "") if site.scheduler == "kubernetes" else pool.partition or ""
    return [
        _cut(name),
        pool.architecture,
        f"{pool.devices_per_node}",
        _cut(asked or "-"),
        _cut(where or "-"),
        "-" if pool.max_nodes is None else str(pool.max_nodes),
        "-" if pool.max_time_s is None else duration(pool.max_time_s),
    ]


def _cut(text: str) -> str:
    return text if len(text) <= WIDEST else text[: WIDEST - 3] + "..."


def _container(site: Site) -> str:
    if site.scheduler != "kubernetes" and site.container.runtime == "none":
        return "none"
    runtime = "" if site.scheduler == "kubernetes" else f"{site.container.runtime}; "
    return runtime + ", ".join(f"{name}: {image}" for name, image in site.container.images.items())


def _charge(site: Site) -> str:
    charge = site.charge
    parts = [(charge.per_device_hour, "device"), (charge.per_node_hour, "node")]
    return " + ".join(f"{rate:g} a {what} and hour" for rate, what in parts if rate) + f", in {charge.unit}s"


def _limits(site: Site) -> str:
    limits = site.limits
    running = "" if limits.max_running is None else f", {limits.max_running} of them running"
    return (
        f"arrays of {limits.array_size}, {limits.max_submitted} tasks in the queue{running}; start {limits.setup_s} s"
    )


def check_lines(check: Check) -> list[str]:
    """One check as a person reads it: verdict, name and finding, then the remedy."""
    lines = wrapped(f"{check.verdict:<6}{check.name:<{CHECK_NAME}}{check.found}", deeper=" " * (6 + CHECK_NAME))
    if check.remedy:
        lines += wrapped(f"remedy: {check.remedy}", indent=" " * (6 + CHECK_NAME))
    return lines
