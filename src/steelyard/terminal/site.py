"""Sites as lines for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.errors import printable
from steelyard.inputs.site import SITES_VARIABLE, site_folders
from steelyard.inputs.templates import about, kinds
from steelyard.terminal.drawing import duration
from steelyard.terminal.text import table, wrapped

if TYPE_CHECKING:
    from steelyard.inputs.site import Pool, Site

WIDEST = 16
NAME = 14


def sites_lines(sites: list[dict[str, str]]) -> list[str]:
    """List the sites, or the folders searched for them, then the templates for new ones."""
    if sites:
        lines = [table(["site", "scheduler", "pools", "file"], [list(entry.values()) for entry in sites])]
    else:
        lines = ["No sites found. Searched folders:"]
        lines += [printable(f"  {folder}") for folder in site_folders()]
        lines += wrapped(f"Add folders with the environment variable {SITES_VARIABLE}.")
    lines += ["", "Templates for steelyard site new KIND:"]
    longest = max(map(len, kinds("sites")))
    for kind in kinds("sites"):
        lines += wrapped(f"  {kind:<{longest}}  {about('sites', kind)}", deeper=" " * (longest + 4))
    return lines


def site_lines(site: Site) -> list[str]:
    """Format a site file: its pools as a table, then its other settings."""
    lines = wrapped(f"{site.name}: {site.description or site.scheduler}")
    lines += [
        "",
        *table(POOL_COLUMNS, [_make_pool_row(site, name, pool) for name, pool in site.pools.items()]).splitlines(),
    ]
    charge, limits = site.charge, site.limits
    rates = [(charge.per_device_hour, "device"), (charge.per_node_hour, "node")]
    running = "" if limits.max_running is None else f", {limits.max_running} running"
    facts = {
        "scheduler": site.scheduler,
        "container": _describe_container(site),
        "python": site.python
        or ("the one that runs steelyard" if _describe_container(site) == "none" else "python3 in the image"),
        "modules": _describe_modules(site),
        "prologue": "; ".join(site.prologue),
        "environment": ", ".join(f"{name}={value}" for name, value in {**site.environment, **site.expanded}.items()),
        "meeting host": site.meeting_host or "",
        "charge": " + ".join(f"{rate:g} per {what}-hour" for rate, what in rates if rate) + f", in {charge.unit}s",
        "limits": f"{limits.array_size} tasks per array, {limits.max_submitted} in the queue{running}; "
        f"{limits.setup_s} s to start",
        "cluster": f"namespace {site.cluster.namespace}" if site.scheduler == "kubernetes" else "",
    }
    lines.append("")
    for name, text in facts.items():
        if text:
            lines += wrapped(f"{name:<{NAME}}{text}", deeper=" " * NAME)
    return lines


POOL_COLUMNS = ["pool", "architecture", "devices", "request", "where", "max nodes", "max time"]


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


def _describe_modules(site: Site) -> str:
    modules = site.modules
    first = ["purge"] if modules.purge else []
    return ", ".join([*first, *(f"use {path}" for path in modules.use), *modules.load])


def _describe_container(site: Site) -> str:
    if site.scheduler != "kubernetes" and site.container.runtime == "none":
        return "none"
    runtime = "" if site.scheduler == "kubernetes" else f"{site.container.runtime}; "
    return runtime + ", ".join(f"{name}: {image}" for name, image in site.container.images.items())
