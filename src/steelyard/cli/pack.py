"""The part of a proposal on performance and resources, from a study and a plan, with an audit and a checklist."""

import argparse
import json
import re
import sys
from pathlib import Path

from steelyard.analysis.request import Tariff, WorkPlan
from steelyard.cli.verb import add_results
from steelyard.errors import InputError, Problem, printable
from steelyard.inputs.scheme import SchemeFile, find_scheme, scheme_folders, scheme_names
from steelyard.inputs.site import find_place
from steelyard.report.pack.build import gather
from steelyard.report.pack.checklist import fits, lines
from steelyard.report.pack.files import pack_object, write_pack
from steelyard.report.pack.model import Pack
from steelyard.report.pack.sections import hours_answer
from steelyard.report.render import draw
from steelyard.results.store import ResultFolder
from steelyard.terminal.findings import tally
from steelyard.terminal.text import table, wrapped

CHARGE = re.compile(r"(?P<rate>\d+(?:\.\d+)?)\s+(?P<unit>[^\s/][^/]{0,40})/(?P<per>device|node)-hour")


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument("study", nargs="?", metavar="STUDY", help="a study over devices, or STUDY:key=value")
    parser.add_argument("-o", "--output", type=Path, metavar="FOLDER", help="where the pack is written")
    parser.add_argument(
        "--scheme", action="append", default=[], metavar="NAME",
        help="whose demands are answered: a name or a file; may be given several times",
    )  # fmt: skip
    parser.add_argument("--schemes", action="store_true", help="list the schemes there are, and where others go")
    plan = parser.add_argument_group("the plan")
    plan.add_argument("--samples", type=float, metavar="N", help="samples of one training")
    plan.add_argument("--epochs", type=float, metavar="N", help="epochs of one training; with --epoch-samples")
    plan.add_argument("--epoch-samples", type=float, metavar="M", help="samples of one epoch")
    plan.add_argument("--runs", type=int, default=1, metavar="K", help="trainings (default: 1)")
    plan.add_argument("--devices", type=int, metavar="N", help="devices of the largest job")
    plan.add_argument("--buffer", type=float, metavar="PERCENT", help="on top (default: the middle of what is asked)")
    plan.add_argument("--failed", type=float, metavar="PERCENT", help="runs that fail (default: as in the study)")
    plan.add_argument(
        "--job-hours", type=float, metavar="H", help="the longest job allowed (default: the site's, or none)"
    )
    site = parser.add_argument_group("how it is charged")
    site.add_argument("--site", metavar="SITE[:POOL]", help="a site file with its charge, nodes and longest job")
    site.add_argument("--charge", metavar="'R UNIT/device-hour'", help="the rate instead, or 'R UNIT/node-hour'")
    site.add_argument("--node-devices", type=int, metavar="N", help="devices on one node")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--strong", action="store_const", dest="kind", const="strong", help="the job's batch stays")
    kind.add_argument("--weak", action="store_const", dest="kind", const="weak", help="a device's batch stays")
    parser.add_argument("--pdf", action="store_true", help="set the LaTeX with pdflatex, and count pages")
    add_results(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the pack; exit code 1 when a finding blocks or a demand that a study can answer is not answered."""
    if arguments.schemes:
        return _list(as_json=arguments.json)
    _check_options(arguments)
    schemes = [find_scheme(name) for name in arguments.scheme]
    plan, tariff = _make_plan(arguments, schemes), _make_tariff(arguments)
    pack = gather(
        ResultFolder(arguments.results), arguments.study, plan, schemes=schemes, tariff=tariff, declared=arguments.kind
    )
    if not draw.available():
        print("no pictures: pip install 'steelyard[report]' draws them", file=sys.stderr)
    written = write_pack(pack, arguments.output, pdf=arguments.pdf)
    if arguments.json:
        print(json.dumps({**pack_object(written.pack), "files": list(written.files)}, allow_nan=False))
    else:
        _print(written.pack, arguments.output)
    made = written.pack
    # What is for a person to write is nobody's fault here.
    answered = all(not line.todo or line.demand.needs == ("yours",) for s in made.schemes for line in lines(made, s))
    fit = all(fits(made, found) for found in made.schemes)
    return 0 if answered and fit and made.study_audit.passes and made.own_audit.passes else 1


def _check_options(arguments: argparse.Namespace) -> None:
    missing = [
        Problem(name, "missing", valid)
        for name, value, valid in (
            ("STUDY", arguments.study, "a study with results: steelyard show"),
            ("--devices", arguments.devices, "devices of the largest job asked for"),
            ("-o", arguments.output, "a folder for the pack"),
        )
        if value is None
    ]
    epochs = (arguments.epochs, arguments.epoch_samples)
    if (arguments.samples is None) == (None in epochs) or (arguments.samples is not None and epochs != (None, None)):
        missing.append(Problem("--samples", "not one plan", "--samples N, or --epochs N --epoch-samples M"))
    if missing:
        step = "steelyard pack STUDY --scheme nairr --epochs 90 --epoch-samples 1281167 --devices 8 -o pack"
        raise InputError("a pack needs a study and a plan", problems=tuple(missing), next_step=step)


def _make_plan(arguments: argparse.Namespace, schemes: list[SchemeFile]) -> WorkPlan:
    samples = arguments.samples
    if samples is None:
        samples = arguments.epochs * arguments.epoch_samples
    asked = [found.scheme.buffer for found in schemes if found.scheme.buffer is not None]
    middle = max(((entry.low_percent + entry.high_percent) / 2 for entry in asked), default=0.0)
    limit_h = arguments.job_hours
    if limit_h is None and arguments.site is not None:
        longest_s = find_place(arguments.site).pool.max_time_s
        limit_h = longest_s / 3600 if longest_s is not None else None
    return WorkPlan(
        samples=samples,
        trainings=arguments.runs,
        devices=arguments.devices,
        epochs=arguments.epochs,
        epoch_samples=arguments.epoch_samples,
        buffer_percent=middle if arguments.buffer is None else arguments.buffer,
        failed_percent=arguments.failed,
        job_limit_s=None if limit_h is None else limit_h * 3600,
    )


def _make_tariff(arguments: argparse.Namespace) -> Tariff | None:
    """The site's rule, or the rate that is given; devices on a node as given go before the site's."""
    place = find_place(arguments.site) if arguments.site is not None else None
    if arguments.node_devices is not None and arguments.node_devices < 1:
        problem = Problem("--node-devices", f"{arguments.node_devices} is out of range", "1 or more")
        raise InputError("an option is not valid", problems=(problem,))
    each = arguments.node_devices or (place.pool.devices_per_node if place else None)
    whole = place.pool.exclusive if place else False
    if arguments.charge is not None:
        found = CHARGE.fullmatch(arguments.charge.strip())
        if found is None:
            problem = Problem("--charge", f"{arguments.charge[:60]!r} is no rate", "such as '1.5 SU/device-hour'")
            raise InputError("an option is not valid", problems=(problem,))
        by_node = found["per"] == "node"
        rate = float(found["rate"])
        return Tariff(found["unit"], 0.0 if by_node else rate, rate if by_node else 0.0, each, whole, "the rate given")
    if place is None:
        return None
    charge = place.site.charge
    source = f"site {place.site.name}, pool {place.pool_name}"
    return Tariff(charge.unit, charge.per_device_hour, charge.per_node_hour, each, whole, source)


def _print(pack: Pack, folder: Path) -> None:
    print("\n".join(wrapped(hours_answer(pack.request))))
    print("\n".join(wrapped(f"Audit: {tally(pack.findings)}")))
    for found in pack.schemes:
        rows = [
            [line.demand.id, "yes" if not line.todo else "in part" if line.sections else "NOT answered"]
            for line in lines(pack, found)
        ]
        print(f"\n{printable(found.scheme.title)}\n{table(['demand', 'answered'], rows)}")
        for line in lines(pack, found):
            for todo in line.todo:
                print("\n".join(wrapped(f"{line.demand.id}: {todo}")))
        if not fits(pack, found):
            print(f"pages: {pack.pages} are more than the {found.scheme.page_limit:g} allowed")
    print(f"\npages of section.pdf: {pack.pages}" if pack.pages else "\npages: not counted (--pdf)")
    print(printable(f"read first: {folder}/pack.html; to hand in: {folder}/section.tex"))
    figures = "claims.toml" if pack.own_audit.judgements else "table.csv"
    print(printable(f"a reviewer's view: steelyard audit {folder}/{figures} --html review.html"))


def _list(*, as_json: bool) -> int:
    found = [find_scheme(name) for name in scheme_names()]
    if as_json:
        entries = [
            {"name": one.name, "title": one.scheme.title, "where": one.scheme.where, "state": one.scheme.state,
             "seen": one.scheme.seen, "source": one.scheme.source, "address": one.scheme.address, "place": one.place,
             "demands": [demand.demand for demand in one.scheme.demand]}
            for one in found
        ]  # fmt: skip
        print(json.dumps(entries))
        return 0
    rows = [[one.name, one.scheme.where, one.scheme.state, str(one.scheme.seen), one.scheme.title] for one in found]
    print(table(["scheme", "where", "state", "seen", "title"], rows))
    print("\nschemes of your own are looked for in:")
    print("\n".join(printable(f"  {folder}") for folder in scheme_folders()))
    return 0
