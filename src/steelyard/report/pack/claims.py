"""Write the numbers of a pack as a published table with claims, and audit them like any other document."""

from __future__ import annotations

import csv
import io
import tomllib
from typing import TYPE_CHECKING

from steelyard.analysis.rows import row_of
from steelyard.audit.check import check_table
from steelyard.audit.claims import Claims, parse_claim
from steelyard.audit.judge import judge
from steelyard.audit.subject import Audit
from steelyard.audit.table import parse_table
from steelyard.numbers import number
from steelyard.report.render.csv_table import inert
from steelyard.rules.table.requests import ASKED
from steelyard.rules.table.units import unit_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.request import Request
    from steelyard.analysis.scaling import Scaling
    from steelyard.analysis.summary import CellSummary
    from steelyard.rules.table.row import Row

TABLE_FILE = "table.csv"
SETTINGS = ("system", "accelerator", "model", "mode", "precision", "batch", "global_batch")
COLUMNS = ("source", "table", "devices", *SETTINGS, "jobs", "metric", "value", "unit")
DIGITS = 6
"""Digits of every number: at least as many as the tables of a pack print."""
MAX_SETTING = 200


def own_table(cells: Sequence[CellSummary], curve: Scaling | None, request: Request) -> str:
    """Return the numbers of a pack as CSV in the form of docs/tables.md, one per line."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    points = () if curve is None or curve.blocked else curve.points
    efficiencies = {point.configuration: point.split.total.value for point in points}
    for cell in cells:
        row = row_of(cell)
        settings = _settings(row, batches=True)
        rate = cell.throughput
        start = ["pack", "scaling", cell.records[0].spec.devices, *settings, row.get("jobs")]
        if rate.value is not None and unit_of(rate.unit) is not None:
            writer.writerow([*start, "throughput", _printed(rate.value), rate.unit])
            if cell.name in efficiencies:
                writer.writerow([*start, "efficiency", _printed(100 * efficiencies[cell.name]), "%"])
    basis = row_of(request.basis.cell)
    # The batch of a job that was not measured is unknown.
    same = request.basis.kind == "measured"
    start = ["pack", "request", request.plan.devices, *_settings(basis, batches=same), ""]
    for metric, value, unit in _plan_figures(request):
        writer.writerow([*start, metric, value, unit])
    return out.getvalue()


def _plan_figures(request: Request) -> list[tuple[str, str, str]]:
    time, failed = request.term("T"), request.term("f")
    assert time is not None
    assert failed is not None
    return [
        ("trainings", str(request.plan.trainings), ""),
        ("train_time", _printed(time.amount.value), "s"),
        ("failed_share", _printed(failed.amount.value), "%"),
        ("buffer", _printed(request.plan.buffer_percent), "%"),
        (ASKED, _printed(request.asked.amount.value), "h"),
    ]


def own_claims(curve: Scaling | None) -> str:
    """Return the parallel efficiencies of a pack in the format of docs/claims.md."""
    lines = ["schema_version = 1", 'title = "Claims of an allocation pack"', f'tables = ["{TABLE_FILE}"]']
    for point in () if curve is None or curve.blocked else curve.points[1:]:
        share = _printed(100 * point.split.total.value, 4)
        base = curve.base.devices if curve else 1
        lines += [
            "",
            "[[claim]]",
            f'id = "efficiency-{point.devices}"',
            'kind = "efficiency"',
            f'text = "parallel efficiency on {point.devices} devices relative to {base}"',
            f'published = "{share} %"',
            'metric = "throughput"',
            'rows = { table = "scaling" }',
            f"a = {{ devices = {point.devices} }}",
            f"b = {{ devices = {base} }}",
        ]
    return "\n".join(lines) + "\n"


def own_audit(table_csv: str, claims_toml: str) -> Audit:
    """Audit the table and the claims as a reviewer would."""
    table = parse_table(table_csv, TABLE_FILE)
    entries = tomllib.loads(claims_toml).get("claim", [])
    claims = tuple(parse_claim(entry, "the pack's own claims") for entry in entries)
    judged = judge(Claims("pack", "", {TABLE_FILE: table}, claims)) if claims else []
    return Audit("this pack", f"{len(table.rows)} rows, {len(claims)} claims", check_table(table), tuple(judged))


def _settings(row: Row, *, batches: bool) -> list[str]:
    """Return the settings of a row. The batch is unknown if it differs between jobs or was not measured."""
    texts = [_setting(row.get(key)) for key in SETTINGS[:-2]]
    numbers = [row.number(key) if batches else None for key in SETTINGS[-2:]]
    return [*texts, *("" if value is None else f"{value:.0f}" for value in numbers)]


def _setting(value: object) -> str:
    return "" if value is None else inert(str(value)[:MAX_SETTING])


def _printed(value: float, digits: int = DIGITS) -> str:
    """Format a number without thousands separators; a decimal point keeps zeros significant."""
    text = number(value, digits).replace(",", "") if value else f"{0:.{digits}f}"
    return text if "." in text or "e" in text else f"{text}.0"
