"""Write the performance and resources part of a proposal from a study and a plan, and print its checklist."""

import argparse
import re
import sys
from dataclasses import replace
from pathlib import Path

from steelyard.analysis.request import Tariff, WorkPlan, tariff_of
from steelyard.cli.parser import OptionError
from steelyard.errors import InputError, Problem, printable
from steelyard.extras import install_line
from steelyard.inputs.scheme import SchemeFile, find_scheme, scheme_folders, scheme_names
from steelyard.inputs.site import find_place
from steelyard.report.pack.build import gather
from steelyard.report.pack.checklist import fits, lines
from steelyard.report.pack.files import pack_object, write_pack
from steelyard.report.pack.model import Pack
from steelyard.report.pack.sections import hours_answer
from steelyard.report.render import draw
from steelyard.results.store import ResultFolder
from steelyard.terminal.document import print_json
from steelyard.terminal.findings import tally_lines
from steelyard.terminal.text import table, wrapped

CHARGE = re.compile(r"(?P<rate>\d+(?:\.\d+)?)\s+(?P<unit>[^\s/][^/]{0,40})/(?P<per>device|node)-hour")


def run(arguments: argparse.Namespace) -> int:
    """Write the pack; exit code 1 when it has errors or leaves a requirement open that a study can answer."""
    if arguments.schemes:
        return _list(as_json=arguments.json)
    _check_options(arguments)
    schemes = [find_scheme(name) for name in arguments.scheme]
    plan, tariff = _make_plan(arguments, schemes), _make_tariff(arguments)
    pack = gather(
        ResultFolder(arguments.results), arguments.study, plan, schemes=schemes, tariff=tariff, declared=arguments.kind
    )
    if not draw.available():
        print(f"no charts; for charts: {install_line('report')}", file=sys.stderr)
    written = write_pack(pack, arguments.output, pdf=arguments.pdf)
    if arguments.json:
        print_json(pack_object(written.pack, written.files))
    else:
        _print(written.pack, arguments.output)
    made = written.pack
    # Requirements that only the applicant can answer do not count.
    answered = all(not line.todo or line.demand.needs == ("yours",) for s in made.schemes for line in lines(made, s))
    fit = all(fits(made, file) for file in made.schemes)
    return 0 if answered and fit and made.passes else 1


def _check_options(arguments: argparse.Namespace) -> None:
    missing = [
        Problem(name, "missing", valid)
        for name, value, valid in (
            ("STUDY", arguments.study, "a study with results: steelyard show"),
            ("--devices", arguments.devices, "devices of the largest job"),
            ("-o", arguments.output, "a folder for the pack"),
        )
        if value is None
    ]
    epochs = (arguments.epochs, arguments.epoch_samples)
    if (arguments.samples is None) == (None in epochs) or (arguments.samples is not None and epochs != (None, None)):
        missing.append(Problem("--samples", "give --samples N, or --epochs N with --epoch-samples N"))
    if missing:
        step = "steelyard pack STUDY --scheme nairr --epochs 90 --epoch-samples 1281167 --devices 8 -o pack"
        raise InputError("a pack needs a study and a plan", problems=tuple(missing), next_step=step)


def _make_plan(arguments: argparse.Namespace, schemes: list[SchemeFile]) -> WorkPlan:
    samples = arguments.samples
    if samples is None:
        samples = arguments.epochs * arguments.epoch_samples
    asked = [file.scheme.buffer for file in schemes if file.scheme.buffer is not None]
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
        failures=arguments.failures,
        checkpoint_s=None if arguments.checkpoint is None else 60 * arguments.checkpoint,
        job_limit_s=None if limit_h is None else limit_h * 3600,
    )


def _make_tariff(arguments: argparse.Namespace) -> Tariff | None:
    """The rates of the site; --charge and --node-devices go first."""
    place = find_place(arguments.site) if arguments.site is not None else None
    each = arguments.node_devices or (place.pool.devices_per_node if place else None)
    whole = place.pool.exclusive if place else False
    if arguments.charge is not None:
        match = CHARGE.fullmatch(arguments.charge.strip())
        if match is None:
            given = arguments.charge[:60]
            raise OptionError(f"--charge {given}: must be a rate such as '1.5 SU/device-hour'", "steelyard pack")
        by_node = match["per"] == "node"
        rate = float(match["rate"])
        return Tariff(match["unit"], 0.0 if by_node else rate, rate if by_node else 0.0, each, whole, "the rate given")
    if place is None:
        return None
    return replace(tariff_of(place), devices_per_node=each)


def _print(pack: Pack, folder: Path) -> None:
    print("\n".join(wrapped(hours_answer(pack.request))))
    # The last line has the command that shows the findings.
    told = [line for line in tally_lines(pack.findings) if not line.startswith("next: ")]
    print("\n".join(["Audit: " + told[0][0].lower() + told[0][1:], *told[1:]]))
    for file in pack.schemes:
        rows = [
            [line.demand.id, "yes" if not line.todo else "partly" if line.sections else "no"]
            for line in lines(pack, file)
        ]
        print(f"\n{printable(file.scheme.title)}\n{table(['requirement', 'answered'], rows)}")
        for line in lines(pack, file):
            for todo in line.todo:
                print("\n".join(wrapped(f"{line.demand.id}: {todo}")))
        if not fits(pack, file):
            print(f"pages: {pack.pages:g}; the limit is {file.scheme.page_limit:g}")
    print(f"\npages of section.pdf: {pack.pages:g}" if pack.pages else "\npages: not counted; add --pdf")
    rest = f"; the rest: {folder}/appendix.tex" if pack.appendix else ""
    print(printable(f"overview: {folder}/pack.html; to submit: {folder}/section.tex{rest}"))
    figures = "claims.toml" if pack.own_audit.judgements else "table.csv"
    print(printable(f"see it as a reviewer: steelyard audit {folder}/{figures} --html review.html"))


def _list(*, as_json: bool) -> int:
    schemes = [find_scheme(name) for name in scheme_names()]
    if as_json:
        entries = [
            {
                "name": one.name,
                "title": one.scheme.title,
                "where": one.scheme.where,
                "state": one.scheme.state,
                "seen": one.scheme.seen,
                "source": one.scheme.source,
                "address": one.scheme.address,
                "place": one.place,
                "demands": [demand.demand for demand in one.scheme.demand],
            }
            for one in schemes
        ]
        print_json({"shape": "pack-schemes/1", "schemes": entries})
        return 0
    rows = [[one.name, one.scheme.where, one.scheme.state, str(one.scheme.seen), one.scheme.title] for one in schemes]
    print(table(["scheme", "where", "state", "seen", "title"], rows))
    print("\nput your own schemes into:")
    print("\n".join(printable(f"  {folder}") for folder in scheme_folders()))
    return 0
