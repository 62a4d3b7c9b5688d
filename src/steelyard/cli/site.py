"""List, create, show and check site files."""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.contracts.base import to_json_object
from steelyard.errors import printable
from steelyard.inputs.site import Place, find_place, list_sites
from steelyard.inputs.templates import kinds, template, write_new
from steelyard.terminal.checks import check_lines, checks_summary
from steelyard.terminal.document import print_json
from steelyard.terminal.site import site_lines, sites_lines

if TYPE_CHECKING:
    from steelyard.doctor.node import Check

NAME_COLUMNS = 18


def run(arguments: argparse.Namespace) -> int:
    """Do the action; exit code 1 when a check is wrong."""
    actions = {"list": _list, "new": _new, "show": _show, "check": _check}
    return actions[arguments.action](arguments)


def _list(arguments: argparse.Namespace) -> int:
    sites = list_sites()
    if arguments.json:
        print_json({"shape": "site-list/1", "sites": sites, "templates": kinds("sites")})
    else:
        print("\n".join(sites_lines(sites)))
    return 0


def _new(arguments: argparse.Namespace) -> int:
    text = template("sites", arguments.kind)
    if arguments.output == "-":
        sys.stdout.write(text)
        return 0
    path = Path(arguments.output or f"{arguments.kind}.toml")
    named = write_new(path, text, f"steelyard site new {arguments.kind} --output FILE")
    if arguments.json:
        print_json({"shape": "site-new/1", "file": str(path)})
    else:
        print(printable(f"wrote {path}; fill in what is marked CHANGE-ME, then:"))
        print(printable(f"  steelyard site check {named}"))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    site = find_place(arguments.site).site
    if arguments.json:
        print_json({"shape": "site-show/1", "site": to_json_object(site)})
    else:
        print("\n".join(site_lines(site)))
    return 0


def _check(arguments: argparse.Namespace) -> int:
    # It imports what submits jobs, which the other actions can do without.
    from steelyard.launch.site_check import checks

    place = find_place(arguments.site)
    # The name of the file may contain a colon.
    named = arguments.site.endswith(f":{place.pool_name}") and not Path(arguments.site).is_file()
    pools = [place.pool_name] if named else list(place.site.pools)
    told: list[tuple[str, Check]] = []
    for pool in pools:
        if not arguments.json and len(pools) > 1:
            print(f"{pool}:")
        for check in checks(Place(place.site, pool), results=arguments.results, offline=arguments.offline):
            # What several pools have in common is printed once.
            if check not in (seen for _, seen in told):
                told.append((pool, check))
                if not arguments.json:
                    print("\n".join(check_lines(check, NAME_COLUMNS)), flush=True)
    if arguments.json:
        print_json({"shape": "site-check/1", "checks": [{"pool": pool, **asdict(check)} for pool, check in told]})
    else:
        print(checks_summary([check for _, check in told]))
    return int(any(check.verdict == "wrong" for _, check in told))
