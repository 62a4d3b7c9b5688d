"""Sites as lines for a terminal: which there are, and what the file of one says. Knows words, judges nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.errors import printable
from steelyard.inputs.site import SITES_VARIABLE, site_folders
from steelyard.inputs.site_kinds import about, site_kinds
from steelyard.terminal.drawing import duration
from steelyard.terminal.text import table, wrapped

if TYPE_CHECKING:
    from steelyard.inputs.site import Pool, Site

WIDEST = 16
NAME = 14


def sites_lines(sites: list[dict[str, str]]) -> list[str]:
    """The sites that can be named, or where they are looked for; then the templates for new ones."""
    if sites:
        lines = [table(["site", "scheduler", "pools", "file"], [list(entry.values()) for entry in sites])]
    else:
        lines = ["no sites yet; they are looked for in:"]
        lines += [printable(f"  {folder}") for folder in site_folders()]
        lines.append(f"  (and first in the folders that {SITES_VARIABLE} names)")
    lines += ["", "templates, for steelyard site new KIND:"]
    for kind in site_kinds():
        lines += wrapped(f"  {kind:<14}{about(kind)}", deeper=" " * 16)
    return lines


def site_lines(site: Site) -> list[str]:
    """What a site file says, most of it as one table of its pools."""
    lines = wrapped(f"{site.name}: {site.description or site.scheduler}")
    lines += [
        "",
        *table(POOL_COLUMNS, [_make_pool_row(site, name, pool) for name, pool in site.pools.items()]).splitlines(),
    ]
    charge, limits = site.charge, site.limits
    rates = [(charge.per_device_hour, "device"), (charge.per_node_hour, "node")]
    running = "" if limits.max_running is None else f", {limits.max_running} of them running"
    facts = {
        "scheduler": site.scheduler,
        "container": _describe_container(site),
        "python": site.python
        or ("the one that runs steelyard" if _describe_container(site) == "none" else "python3 of the image"),
        "modules": ", ".join(site.modules.load),
        "environment": ", ".join(f"{name}={value}" for name, value in site.environment.items()),
        "meeting host": site.meeting_host or "",
        "charge": " + ".join(f"{rate:g} a {what} and hour" for rate, what in rates if rate) + f", in {charge.unit}s",
        "limits": f"arrays of {limits.array_size}, {limits.max_submitted} tasks in the queue{running}; "
        f"start {limits.setup_s} s",
        "cluster": f"namespace {site.cluster.namespace}" if site.scheduler == "kubernetes" else "",
    }
    lines.append("")
    for name, text in facts.items():
        if text:
            lines += wrapped(f"{name:<{NAME}}{text}", deeper=" " * NAME)
    return lines


POOL_COLUMNS = ["pool", "nodes", "devices", "asked as", "where", "most nodes", "most time"]


def _make_pool_row(site: Site, name: str, pool: Pool) -> list[str]:
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


def _describe_container(site: Site) -> str:
    if site.scheduler != "kubernetes" and site.container.runtime == "none":
        return "none"
    runtime = "" if site.scheduler == "kubernetes" else f"{site.container.runtime}; "
    return runtime + ", ".join(f"{name}: {image}" for name, image in site.container.images.items())
