"""Sites: which there are, a new one from a template, what one says, and what would go wrong there."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.cli.verb import add_results
from steelyard.contracts.base import to_json_object
from steelyard.errors import InputError, printable
from steelyard.inputs.site import Place, find_place, list_sites
from steelyard.inputs.site_kinds import site_kinds, template
from steelyard.launch.site_check import checks
from steelyard.terminal.checks import check_lines, checks_summary
from steelyard.terminal.site import site_lines, sites_lines

if TYPE_CHECKING:
    from steelyard.doctor.node import Check

NAME_COLUMNS = 18


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    # Also after the word that says what to do, where most people put it.
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print the result as JSON")
    words = parser.add_subparsers(dest="what", required=True, metavar="list|new|show|check")
    words.add_parser("list", parents=[common], help="sites that can be named, and templates for new ones")
    new = words.add_parser("new", parents=[common], help="a site file from a template, to be filled in")
    new.add_argument("kind", metavar="KIND", help=f"one of {', '.join(site_kinds())}")
    new.add_argument("--output", metavar="FILE", help="where to write it (default: KIND.toml here; -: print it)")
    show = words.add_parser("show", parents=[common], help="what a site file says")
    show.add_argument("site", metavar="SITE", help="a name that `steelyard site list` shows, or a file")
    check = words.add_parser("check", parents=[common], help="what would go wrong there, before anything is queued")
    check.add_argument("site", metavar="SITE[:POOL]", help="a name or a file; without a pool: all of its kinds of node")
    add_results(check)


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when nothing is wrong; notes are not wrong."""
    actions = {"list": _list, "new": _new, "show": _show, "check": _check}
    return actions[arguments.what](arguments)


def _list(arguments: argparse.Namespace) -> int:
    sites = list_sites()
    if arguments.json:
        print(json.dumps({"sites": sites, "templates": site_kinds()}))
    else:
        print("\n".join(sites_lines(sites)))
    return 0


def _new(arguments: argparse.Namespace) -> int:
    text = template(arguments.kind)
    if arguments.output == "-":
        sys.stdout.write(text)
        return 0
    path = Path(arguments.output or f"{arguments.kind}.toml")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(f"{path} is there already", next_step="give another name with --output") from None
    again = f"./{path}" if str(path).startswith("-") else str(path)
    if arguments.json:
        print(json.dumps({"file": str(path)}))
    else:
        print(printable(f"{path} is written. Fill in what is marked CHANGE-ME, then:"))
        print(printable(f"  steelyard site check {again}"))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    site = find_place(arguments.site).site
    print(json.dumps(to_json_object(site)) if arguments.json else "\n".join(site_lines(site)))
    return 0


def _check(arguments: argparse.Namespace) -> int:
    place = find_place(arguments.site)
    # The file's own name may hold a colon.
    named = arguments.site.endswith(f":{place.pool_name}") and not Path(arguments.site).is_file()
    pools = [place.pool_name] if named else list(place.site.pools)
    found: list[tuple[str, Check]] = []
    for pool in pools:
        if not arguments.json and len(pools) > 1:
            print(f"{pool}:")
        for check in checks(Place(place.site, pool), results=arguments.results):
            # Of several pools the same is said once.
            if check not in (seen for _, seen in found):
                found.append((pool, check))
                if not arguments.json:
                    print("\n".join(check_lines(check, NAME_COLUMNS)), flush=True)
    if arguments.json:
        print(json.dumps([{"pool": pool, **asdict(check)} for pool, check in found]))
    else:
        print(checks_summary([check for _, check in found]))
    return int(any(check.verdict == "wrong" for _, check in found))
